"""The model registry: immutable versions of models, each created once by a conditional write.

This module depends only on `ModelStore`, so that agent and client share it. A run never becomes two
versions, because numbers have no gaps and are never reused. A writer whose listing missed the
version of its run starts below that number, and finds the version when it tries the next numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from runner.protocol.encoding import now_text
from runner.protocol.models import (
    FORMAT,
    ModelBlobs,
    ModelDocument,
    ModelError,
    content_id,
    damaged_model_document,
    model_document_bytes,
    parse_aliases,
    parse_version,
    parse_version_summary,
    version_summary,
)

_ALIAS_TRIES = 50
_COPY_TRIES = 4  # a concurrent removal may delete the copy

MapFunction = Callable[[Callable[[Any], Any], Iterable[Any]], "list[Any]"]


@dataclass(frozen=True)
class StoredModelBlob:
    """One listed blob."""

    name: str
    size_bytes: int
    etag: str
    summary: str = ""


class ModelStore(Protocol):
    """The operations of the `models` container that the registry needs.

    A write that is repeated after its response was lost may return False.
    """

    def read(self, name: str) -> tuple[bytes, str] | None:
        """Return content and ETag, or None if the blob does not exist."""
        ...

    def create(self, name: str, body: bytes, summary: str = "") -> bool:
        """Write a blob unless it exists. Return True if this call certainly wrote it."""
        ...

    def replace(self, name: str, body: bytes, etag: str, summary: str = "") -> bool:
        """Replace the version with this ETag. Return True if this call certainly did."""
        ...

    def list(self, prefix: str) -> list[StoredModelBlob]:
        """Return all blobs below a prefix, with their summaries."""
        ...

    def copy(self, source: str, name: str, size_bytes: int, *, replace: bool) -> bool:
        """Copy a blob of the `runs` container. Return False if the source does not exist."""
        ...

    def digest(self, name: str) -> tuple[int, str] | None:
        """Read a blob and return its size and SHA-256, or None if it does not exist."""
        ...

    def touch(self, name: str) -> bool:
        """Give the blob a new ETag. Return False if it does not exist."""
        ...


@dataclass(frozen=True)
class CommittedVersion:
    """The version of a run. `new` is True if this call created it."""

    document: ModelDocument
    new: bool

    @property
    def version(self) -> int:
        """The number of the version."""
        return int(self.document["version"])

    @property
    def deleted(self) -> bool:
        """True if the version was removed."""
        return is_deleted_version(self.document)


def is_deleted_version(document: Mapping[str, Any]) -> bool:
    """Return True if only the tombstone of a version remains."""
    return bool(document.get("deleted"))


def map_serially(function: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Return `function` of every item in order."""
    return [function(item) for item in items]


class ModelRegistry:
    """The versions and aliases of one model.

    Args:
        store: the operations on blobs.
        name: the name of the model.
        each: maps a function over items, possibly in parallel.
    """

    def __init__(self, store: ModelStore, name: str, each: MapFunction = map_serially) -> None:
        self._store = store
        self._blobs = ModelBlobs(name)
        self._each = each

    def numbers(self) -> list[int]:
        """Return all version numbers, including tombstones, ascending."""
        found = self._store.list(self._blobs.versions)
        return sorted(n for blob in found if (n := self._blobs.number(blob.name)) is not None)

    def load(self, number: int) -> ModelDocument | None:
        """Return the document of a version, or None if the number is not in use."""
        blob = self._blobs.version(number)
        found = self._store.read(blob)
        return None if found is None else parse_version(found[0], blob)

    def summaries(self) -> dict[int, ModelDocument | ModelError]:
        """Return the summary of each version, from one listing.

        For a version without a summary, the result has its document, or the error on reading it.
        """
        found: dict[int, ModelDocument | ModelError] = {}
        unknown: list[int] = []
        for blob in self._store.list(self._blobs.versions):
            number = self._blobs.number(blob.name)
            if number is None:
                continue
            short = parse_version_summary(blob.summary)
            if short is None:
                unknown.append(number)
            else:
                found[number] = short
        found |= dict(self._each(lambda n: (n, self._try_load(n)), unknown))
        return dict(sorted(found.items()))

    def load_each(self) -> dict[int, ModelDocument | ModelError]:
        """Return the documents of all versions, or the error for one that cannot be read."""
        return dict(self._each(lambda n: (n, self._try_load(n)), self.numbers()))

    def _try_load(self, number: int) -> ModelDocument | ModelError:
        try:
            found = self.load(number)
        except ModelError as err:
            return err
        return found or damaged_model_document(self._blobs.version(number), "it vanished")

    def register(
        self,
        draft: ModelDocument,
        source: Callable[[str], str],
        *,
        anew: bool = False,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> CommittedVersion:
        """Create the version of a run, or find it and complete its files and aliases.

        Args:
            draft: the document without a number.
            source: returns the blob in the container `runs` for the path of an output.
            anew: create a new version if the earlier one was removed, and verify the files of an
                existing version.
            on_bytes: receives the number of copied bytes.

        Raises:
            ModelError: the version cannot be created, or has other files.
        """
        known = self.summaries()
        numbers = [n for n, short in known.items() if _is_of_run(_readable(short), draft, anew)]
        existing = self.load(numbers[-1]) if numbers else None
        if existing is not None and _is_of_run(existing, draft, anew):
            found = CommittedVersion(existing, new=False)
        else:
            self._each(lambda file: self._ensure_file(file, source, on_bytes), _contents(draft))
            found = self._commit(draft, max(known, default=0) + 1, anew)
        if found.deleted:
            return found
        _check_same(found.document, draft)
        # A concurrent removal of another version, which did not list this one, may delete a file
        # that both share. It deletes by ETag, so a touched file remains. A missing file is copied
        # again. A damaged file is copied again only with `anew`, because finding it requires
        # reading the whole model.
        verify = anew and not found.new
        for file in _contents(found.document):
            if not self._store.touch(file["blob"]) or verify:
                self._ensure_file(file, source, on_bytes)
        if found.document.get("aliases"):
            self.apply_aliases(found.version, found.document["aliases"])
        return found

    def _commit(self, draft: ModelDocument, number: int, anew: bool) -> CommittedVersion:
        """Create the version under the first free number from `number`, or find that of the run."""
        while True:
            document = {**draft, "version": number, "created": now_text()}
            if self._store.create(
                self._blobs.version(number),
                model_document_bytes(document),
                version_summary(document),
            ):
                return CommittedVersion(document, new=True)
            existing = self.load(number)
            if existing is None:
                continue  # storage lost it in a crash, so the number is free
            if _is_of_run(existing, draft, anew):
                return CommittedVersion(existing, new=existing["created"] == document["created"])
            number += 1

    def _ensure_file(
        self, file: ModelDocument, source: Callable[[str], str], on_bytes: Callable[[int], None]
    ) -> None:
        """Copy the file unless it is stored, and verify it by reading it back."""
        blob, wanted = file["blob"], (int(file["size_bytes"]), file["sha256"])
        found = self._store.digest(blob)
        for _ in range(_COPY_TRIES):
            if found == wanted:
                on_bytes(wanted[0])
                return
            if not self._store.copy(
                source(file["path"]), blob, wanted[0], replace=found is not None
            ):
                break
            found = self._store.digest(blob)
        if found == wanted:
            on_bytes(wanted[0])
            return
        raise ModelError(
            "R-MODEL-CHANGED",
            f"{file['path']} differs from the file that the run exported",
            "it was changed or deleted in storage after the run",
            "train again",
        )

    def aliases(self) -> dict[str, int]:
        """Return the version of each alias that is set."""
        entries = self._aliases()[0]
        return {alias: int(e["version"]) for alias, e in entries.items() if e.get("version")}

    def set_alias(self, alias: str, number: int | None) -> int | None:
        """Point an alias at a version, or at none. Return the version it pointed at before."""
        before: list[int | None] = []

        def change(entries: ModelDocument) -> None:
            entry = _entry(entries, alias)
            before[:] = [entry.get("version")]
            applied = max(int(entry.get("applied") or 0), number or 0)
            entries[alias] = {"version": number, "applied": applied}

        self._change_aliases(change)
        return before[0]

    def drop_aliases(self, numbers: Iterable[int]) -> None:
        """Remove the aliases of these versions."""
        gone = set(numbers)

        def change(entries: ModelDocument) -> None:
            for entry in entries.values():
                if entry.get("version") in gone:
                    entry["version"] = None

        self._change_aliases(change)

    def apply_aliases(self, number: int, aliases: Iterable[str]) -> None:
        """Point the requested aliases at a version, unless this was done before.

        So a repeated registration does not revert later changes by users.
        """

        def change(entries: ModelDocument) -> None:
            for alias in aliases:
                entry = _entry(entries, alias)
                if number > int(entry.get("applied") or 0):
                    entries[alias] = {"version": number, "applied": number}

        self._change_aliases(change)

    def _change_aliases(self, change: Callable[[ModelDocument], None]) -> None:
        for _ in range(_ALIAS_TRIES):
            entries, etag = self._aliases()
            before = model_document_bytes(entries)
            change(entries)
            if model_document_bytes(entries) == before:
                return
            body = model_document_bytes({"format": FORMAT, "aliases": entries})
            blob = self._blobs.aliases
            if etag is None:
                written = self._store.create(blob, body)
            else:
                written = self._store.replace(blob, body, etag)
            if written:
                return
        raise ModelError(
            "R-MODEL-BUSY",
            f"the aliases of {self._blobs.name} are being changed by others",
            f"{_ALIAS_TRIES} attempts to write them failed",
            "try again",
        )

    def _aliases(self) -> tuple[ModelDocument, str | None]:
        found = self._store.read(self._blobs.aliases)
        body, etag = found or (None, None)
        return parse_aliases(body, self._blobs.aliases), etag


def _is_of_run(document: ModelDocument, draft: ModelDocument, anew: bool) -> bool:
    return document["run_id"] == draft["run_id"] and not (anew and is_deleted_version(document))


def _readable(entry: ModelDocument | ModelError) -> ModelDocument:
    if isinstance(entry, ModelError):
        raise entry
    return entry


def _check_same(document: ModelDocument, draft: ModelDocument) -> None:
    if content_id(document) == content_id(draft):
        return
    name, version, run_id = document["name"], document["version"], document["run_id"]
    raise ModelError(
        "R-MODEL-OTHER-FILES",
        f"run {run_id} is already registered as {name}@{version}, with other files",
        f"the version contains {', '.join(file['path'] for file in document['files'][:5])}",
        f"register under another name, or run `runner models rm {name}@{version}` first",
    )


def _entry(entries: ModelDocument, alias: str) -> ModelDocument:
    return dict(entries.get(alias) or {})


def _contents(document: ModelDocument) -> list[ModelDocument]:
    """Return one file for each different content."""
    return list({file["blob"]: file for file in document["files"]}.values())


# Put Block From URL accepts 4,000 MiB, but smaller blocks repeat less after a lost connection.
COPY_BLOCK_BYTES = 64 * 1024 * 1024
DIGEST_READ_BYTES = 8 * 1024 * 1024
SUMMARY_METADATA = "summary"  # the metadata of a version's blob, which listings contain
