"""Download and verify the files of a model version, in parallel and with resume."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobStore
from runner.azure.storage.stores import ChangedError
from runner.core.progress import OnProgress
from runner.flows.data.stores import transfer_each
from runner.flows.local_files import (
    BytesMoved,
    fetch_file,
    has_content,
    plan_targets,
    sha256_of,
)
from runner.flows.models.versions import ModelVersion
from runner.protocol.errors import RunnerError
from runner.protocol.models import ModelDocument

Wanted = tuple[Path, ModelDocument]


@dataclass(frozen=True, slots=True)
class DownloadedModel:
    """The files of a version on this machine, of which `downloaded` are new."""

    folder: Path
    files: tuple[str, ...]
    downloaded: int


def download_files(
    connection: Connection,
    version: ModelVersion,
    folder: Path,
    on_progress: OnProgress,
    *,
    force: bool = False,
) -> DownloadedModel:
    """Download a version to a folder; existing files with the right hash are not downloaded.

    An interrupted download is continued.

    Raises:
        RunnerError: a file has different content (unless `force`), a hash is wrong, or the folder
            is not writable.
    """
    try:
        targets = plan_targets(folder, (str(file["path"]) for file in version.files))
        placed = {targets.by_path[str(file["path"])]: file for file in version.files}
        wanted = [
            (target, file)
            for target, file in placed.items()
            if not has_content(target, int(file["size_bytes"]), str(file["sha256"]))
        ]
        taken = [target for target, _ in wanted if target.exists() or target.is_symlink()]
        if taken and not force:
            more = f", and {len(taken) - 1} more" if len(taken) > 1 else ""
            raise RunnerError(
                "R-MODEL-OVERWRITE",
                f"{taken[0]} exists with different content{more}",
                why=f"its content differs from {version}; nothing was written",
                fix=f"runner models get {version} ANOTHER_FOLDER, or --force",
            )
        _download(connection, version, wanted, on_progress, targets.note)
    except ValueError as err:
        raise RunnerError(
            "R-MODEL-PATH",
            str(err),
            why="a file would be written outside the folder",
            fix="remove links from the folder, or use another folder",
        ) from err
    except OSError as err:
        other = shlex.quote(f"{folder}-2")
        raise RunnerError(
            "R-MODEL-FOLDER",
            f"cannot write to {folder}",
            why=err.strerror or str(err),
            fix=f"use another folder: runner models get {version} {other}",
        ) from err
    return DownloadedModel(folder, tuple(str(file["path"]) for file in version.files), len(wanted))


def _download(
    connection: Connection,
    version: ModelVersion,
    wanted: Sequence[Wanted],
    on_progress: OnProgress,
    note: str,
) -> None:
    if not wanted:
        return
    sizes = [int(file["size_bytes"]) for _, file in wanted]
    store = BlobStore(connection.blob_service(), connection.outputs.container_models)
    fetch, texts = partial(_fetch, store, version), (str(version), f"{version}{note}")
    transfer_each("download", fetch, wanted, sizes, on_progress, texts)


def _fetch(store: BlobStore, version: ModelVersion, wanted: Wanted, moved: BytesMoved) -> None:
    target, file = wanted
    sha256 = str(file["sha256"])
    stored = store.find(str(file["blob"]))
    if stored is None or stored.size_bytes != int(file["size_bytes"]):
        raise _damaged(version, file)
    stored = replace(stored, etag="")  # registering the same content again changes the ETag

    def is_right(path: Path, _: bytes) -> bool:
        return sha256_of(path) == sha256

    try:
        if not fetch_file(store, stored, target, moved, sha256, is_right):
            raise _damaged(version, file)
    except ChangedError as err:
        raise _damaged(version, file) from err


def _damaged(version: ModelVersion, file: ModelDocument) -> RunnerError:
    run_id = (version.document or {}).get("run_id")
    return RunnerError(
        "R-MODEL-HASH",
        f"{file['path']} of {version} is missing or damaged in storage",
        why="its content does not have the registered hash; the file was not written",
        fix=f"try again; if it fails again, and the run still exists: "
        f"runner models register {run_id} {version.name}",
    )
