"""Remove model versions: a tombstone reserves the number, and unused files are deleted."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from runner.azure.auth.credentials import Connection
from runner.azure.storage.model_container import ModelContainer
from runner.flows.models.versions import (
    Model,
    existing_model,
    find_version,
    open_model_registry,
    split_reference,
)
from runner.protocol.codec import now_text
from runner.protocol.errors import RunnerError
from runner.protocol.models import (
    ModelBlobs,
    ModelError,
    ModelRegistry,
    ModelStore,
    is_deleted_version,
    model_document_bytes,
    parse_version,
    version_summary,
)

_TRIES = 50


class DeletingStore(ModelStore, Protocol):
    """A store with blobs that can be deleted."""

    def delete(self, name: str, etag: str) -> bool:
        """Delete a blob if it has this ETag. Return True if it is deleted."""
        ...


@dataclass(frozen=True, slots=True)
class Removed:
    """The removed versions and files."""

    versions: tuple[int, ...]
    files: int
    size_bytes: int


def find_to_remove(connection: Connection, reference: str) -> tuple[Model, list[int], bool]:
    """Return the model, the existing versions of a reference, and whether it names all of them.

    `NAME@VERSION` names one version, `NAME` all versions.
    """
    name, wanted = split_reference(reference)
    found = existing_model(connection, name)
    if wanted is None:
        return found, [version.version for version in found.live], True
    version = find_version(connection, reference, deleted=True)
    return found, [] if version.deleted else [version.version], False


def remove_versions(
    connection: Connection, model: Model, numbers: Collection[int], *, force: bool
) -> Removed:
    """Remove versions of a model. Without `force`, raise RunnerError if an alias names one."""
    registry = open_model_registry(connection, model.name)
    pointing = {a: n for a, n in registry.aliases().items() if n in numbers}
    if pointing and not force:
        raise _in_use(model.name, pointing)
    return remove(ModelContainer(connection), registry, model.name, numbers)


def remove(
    store: DeletingStore, registry: ModelRegistry, name: str, numbers: Collection[int]
) -> Removed:
    """Write tombstones, drop the aliases, and delete files that no version needs."""
    blobs = ModelBlobs(name)
    tombstone = tuple(
        number for number in sorted(numbers) if _write_tombstone(store, blobs, number)
    )
    registry.drop_aliases(numbers)
    files, size_bytes = delete_unused_files(store, registry, blobs)
    return Removed(tombstone, files, size_bytes)


def _write_tombstone(store: DeletingStore, blobs: ModelBlobs, number: int) -> bool:
    """Write a tombstone. Return False if the version does not exist, or was removed before."""
    blob = blobs.version(number)
    ours = now_text()
    for _ in range(_TRIES):
        found = store.read(blob)
        if found is None:
            return False
        document = parse_version(found[0], blob)
        if is_deleted_version(document):
            return document["deleted"] == ours
        tombstone = {**document, "deleted": ours}
        if store.replace(
            blob, model_document_bytes(tombstone), found[1], version_summary(tombstone)
        ):
            return True
    raise ModelError("R-MODEL-BUSY", f"{blob} is being changed by other processes", fix="try again")


def delete_unused_files(
    store: DeletingStore, registry: ModelRegistry, blobs: ModelBlobs
) -> tuple[int, int]:
    """Delete files that no version has. Return their number and bytes.

    ETags are read before the versions. If another process registers one of the files meanwhile, it
    writes the file again after its version: either the new ETag prevents the deletion, or the
    process finds the file missing and copies it again.
    """
    files = store.list(blobs.files)
    versions = registry.load_each().values()
    if any(isinstance(version, ModelError) for version in versions):
        return 0, 0  # the files of the unreadable version are unknown
    needed = {
        file["blob"]
        for version in versions
        if not isinstance(version, ModelError) and not is_deleted_version(version)
        for file in version["files"]
    }
    gone = [f for f in files if f.name not in needed and store.delete(f.name, f.etag)]
    return len(gone), sum(file.size_bytes for file in gone)


def _in_use(name: str, pointing: dict[str, int]) -> RunnerError:
    alias, number = next(iter(sorted(pointing.items())))
    others = f", and {len(pointing) - 1} more" if len(pointing) > 1 else ""
    return RunnerError(
        "R-MODEL-IN-USE",
        f"{name}@{number} is {name}@{alias}{others}",
        why="the alias would point at a removed version",
        fix=f"runner models alias {name}@OTHER {alias}, or --force",
    )
