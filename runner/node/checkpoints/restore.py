"""The stage `restore`: find the newest complete checkpoint and download it."""

from __future__ import annotations

import hashlib
import http.client
import json
import logging
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from runner.node.failures import StageFailedError, disk_full, is_disk_full
from runner.node.script.context import AttemptContext
from runner.node.script.streams import Report
from runner.node.script.workspace import RESTORE_PART
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError, StorageUnreachableError
from runner.node.storage.retries import read_some, retry_transfer, run_watched
from runner.protocol.checkpoints import (
    BadManifestError,
    CheckpointBlobs,
    CheckpointFile,
    CheckpointManifest,
    ResumeHistory,
    parse_checkpoint,
    select_shards,
)
from runner.protocol.run_spec import ResumeFrom

logger = logging.getLogger(__name__)

RESTORE_STAGE = "restore"
THREADS = 6
CHUNK_BYTES = 1024 * 1024


class DamagedCheckpointError(Exception):
    """A checkpoint is incomplete or differs from its manifest; the message has the reason."""


@dataclass(frozen=True)
class FoundCheckpoints:
    """The checkpoints of a run, newest first.

    `problems` has a message for each unreadable manifest, `sizes` the size in bytes of each blob.
    """

    checkpoints: tuple[CheckpointManifest, ...] = ()
    problems: tuple[str, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict[str, int])


def find_checkpoints(
    runs: ContainerClient, run_id: str, number: int | None = None
) -> FoundCheckpoints:
    """Return all checkpoints of a run with a readable manifest, or only checkpoint `number`."""
    blobs = CheckpointBlobs(run_id)
    sizes = runs.list_sizes(blobs.root)
    numbers = {k for name in sizes if (k := blobs.parse_number(name)) is not None}
    found: list[CheckpointManifest] = []
    problems: list[str] = []
    for k in sorted(numbers if number is None else numbers & {number}, reverse=True):
        body = runs.get(blobs.manifest(k))
        if body is None:
            continue  # deleted since the listing
        try:
            found.append(parse_checkpoint(body, blobs, k))
        except BadManifestError as err:
            problems.append(f"checkpoint {k}: {err}")
    found.sort(key=lambda checkpoint: checkpoint.order, reverse=True)
    return FoundCheckpoints(tuple(found), tuple(problems), sizes)


@dataclass(frozen=True)
class RestoredCheckpoint:
    """The checkpoint that an attempt starts from. It may be of another run, `run_id`.

    `skipped` has a message for each newer checkpoint that was not usable.
    """

    run_id: str
    checkpoint: CheckpointManifest
    skipped: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the content of resume.json, which end.json and result.json repeat."""
        return {
            "run_id": self.run_id,
            "checkpoint": self.checkpoint.number,
            "attempt": self.checkpoint.attempt,
            "step": self.checkpoint.step,
            "skipped": list(self.skipped),
        }


class CheckpointRestore:
    """Restores a checkpoint into the checkpoint folder of one attempt.

    `local` may hold files of earlier checkpoints, named by their SHA-256.
    """

    def __init__(self, context: AttemptContext, local: Path) -> None:
        self._nodes = context.spec.nodes
        self._runs = context.runs
        self._paths = context.paths
        self._folder = context.dirs.checkpoints
        self._local = local
        self._events = context.events
        self._retry_budget = context.retry_budget
        self._check = context.termination.check
        self._skipped: list[str] = []
        self._done_bytes = 0
        self._lock = threading.Lock()

    def restore(
        self,
        number: int,
        resume_from: ResumeFrom | None,
        history: ResumeHistory | None = None,
    ) -> RestoredCheckpoint | None:
        """Restore the run's newest checkpoint. If it has none, restore that of `resume_from`.

        Args:
            number: the number of the attempt, whose resume.json is written.
            resume_from: the checkpoint of another run, or None.
            history: the attempts that failed to load a checkpoint; None for none.

        Returns:
            The checkpoint, or None if the script starts from the beginning.

        Raises:
            StageFailedError: `resume_from` has no complete checkpoint, or the disk is full.
        """
        history = history or ResumeHistory(self._paths.run_id)
        own = find_checkpoints(self._runs, self._paths.run_id)
        if not own.checkpoints and not own.problems and resume_from is None:
            return None
        with self._events.stage(
            RESTORE_STAGE, "looking for the newest complete checkpoint"
        ) as report:
            try:
                if history.failures:
                    restored = self._restore_other(history, resume_from, report)
                else:
                    restored = self._restore_newest(self._paths.run_id, None, own, report)
                is_missing = restored is None and not history.is_fresh
                if is_missing and resume_from is not None:
                    restored = self._restore_from(resume_from, report)
            except OSError as err:
                raise (disk_full(RESTORE_STAGE, err) if is_disk_full(err) else err) from err
            self._events.summarise(self._describe(restored, history))
        if restored is not None:
            document = json.dumps(restored.to_json()).encode()
            self._runs.put(self._paths.attempt_resume(number), document)
        return restored

    def restore_same(self, wanted: ResumeFrom) -> RestoredCheckpoint:
        """Restore the checkpoint that the primary restored. Raise StageFailedError."""
        with self._events.stage(
            RESTORE_STAGE, "downloading the checkpoint of the primary"
        ) as report:
            try:
                restored = self._restore_from(wanted, report)
            except OSError as err:
                raise (disk_full(RESTORE_STAGE, err) if is_disk_full(err) else err) from err
            self._events.summarise(self._describe(restored, ResumeHistory(self._paths.run_id)))
        return restored

    def _restore_other(
        self, history: ResumeHistory, resume_from: ResumeFrom | None, report: Report
    ) -> RestoredCheckpoint | None:
        """Restore the first complete checkpoint in the order of the history, or return None."""
        tried: set[tuple[str, int]] = set()
        while True:
            found: list[tuple[str, CheckpointManifest]] = []
            sizes: dict[str, int] = {}
            for run_id, checkpoints in self._find_all(resume_from):
                found += [(run_id, each) for each in checkpoints.checkpoints]
                sizes |= checkpoints.sizes
            left = [one for one in history.order(found) if (one[0], one[1].number) not in tried]
            if not left:
                return None
            run_id, checkpoint = left[0]
            tried.add((run_id, checkpoint.number))
            try:
                self._download(checkpoint, sizes, report)
                return RestoredCheckpoint(run_id, checkpoint, tuple(self._skipped))
            except DamagedCheckpointError as err:
                self._skip(checkpoint, err)

    def _find_all(self, resume_from: ResumeFrom | None) -> Iterator[tuple[str, FoundCheckpoints]]:
        """Yield the checkpoints of the run, and those of `resume_from` up to the wanted one."""
        yield self._paths.run_id, find_checkpoints(self._runs, self._paths.run_id)
        if resume_from is None:
            return
        only = resume_from.checkpoint if resume_from.exact else None
        found = find_checkpoints(self._runs, resume_from.run_id, only)
        orders = {each.number: each.order for each in found.checkpoints}
        wanted = orders.get(resume_from.checkpoint or 0)
        if wanted is not None:
            older = tuple(each for each in found.checkpoints if each.order <= wanted)
            found = replace(found, checkpoints=older)
        yield resume_from.run_id, found

    def _skip(self, checkpoint: CheckpointManifest, err: DamagedCheckpointError) -> None:
        self._skipped.append(self._events.clean(f"{checkpoint.name}: {err}"))
        logger.warning("skipped %s", self._skipped[-1])

    def _restore_from(self, wanted: ResumeFrom, report: Report) -> RestoredCheckpoint:
        self._skipped.clear()
        found = find_checkpoints(self._runs, wanted.run_id, wanted.checkpoint)
        restored = self._restore_newest(wanted.run_id, wanted.checkpoint, found, report)
        if restored is not None:
            return restored
        number = "" if wanted.checkpoint is None else f" {wanted.checkpoint}"
        why = f": {'; '.join(self._skipped)}" if self._skipped else ""
        raise StageFailedError(
            RESTORE_STAGE,
            "CheckpointMissing",
            f"{wanted.run_id} has no complete checkpoint{number}{why}",
        )

    def _restore_newest(
        self, run_id: str, number: int | None, found: FoundCheckpoints, report: Report
    ) -> RestoredCheckpoint | None:
        """Restore and return the newest complete checkpoint, or return None.

        An earlier attempt may still commit and delete checkpoints, so each failure lists again.
        """
        tried: set[tuple[int, int]] = set()
        while True:
            problems = map(self._events.clean, found.problems)
            self._skipped += [why for why in problems if why not in self._skipped]
            left = [checkpoint for checkpoint in found.checkpoints if checkpoint.order not in tried]
            if not left:
                return None
            checkpoint = left[0]
            tried.add(checkpoint.order)
            try:
                self._download(checkpoint, found.sizes, report)
                return RestoredCheckpoint(run_id, checkpoint, tuple(self._skipped))
            except DamagedCheckpointError as err:
                self._skip(checkpoint, err)
            found = find_checkpoints(self._runs, run_id, number)

    def _describe(self, restored: RestoredCheckpoint | None, history: ResumeHistory) -> str:
        skipped = f"; skipped {', '.join(self._skipped)}" if self._skipped else ""
        if restored is None and history.is_fresh:
            return f"starting from the beginning{skipped}"
        if restored is None:
            return f"no complete checkpoint, starting from the beginning{skipped}"
        of = "" if restored.run_id == self._paths.run_id else f" of run {restored.run_id}"
        return f"resumed from {restored.checkpoint.name}{of}{skipped}"

    def _download(
        self, checkpoint: CheckpointManifest, sizes: dict[str, int], report: Report
    ) -> None:
        """Replace the folder by the checkpoint, completely or not at all.

        Raises:
            DamagedCheckpointError: a file is missing or differs from the manifest.
        """
        checkpoint = select_shards(checkpoint, self._paths.rank, self._nodes)
        for file in checkpoint.files:
            size = sizes.get(file.blob)
            if size != file.size_bytes:
                what = "missing" if size is None else f"{size} bytes long, not {file.size_bytes}"
                raise DamagedCheckpointError(f"{file.path} is {what}")
        # A new name for every try: an abandoned thread may still be writing.
        part = self._folder.with_name(f"{self._folder.name}{RESTORE_PART}{secrets.token_hex(16)}")
        part.mkdir(parents=True)
        try:
            self._done_bytes = 0
            self._fetch_all(checkpoint, part, report)
            _create_links(checkpoint, part)
            self._folder.rmdir()  # empty at the start of an attempt
            part.rename(self._folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)

    def _fetch_all(self, checkpoint: CheckpointManifest, part: Path, report: Report) -> None:
        def check_progress(_: Sequence[None]) -> None:
            self._check()
            report(checkpoint.name, self._done_bytes, checkpoint.size_bytes, "bytes")

        abandoned = threading.Event()
        fetch = partial(self._fetch, part, abandoned)
        try:
            run_watched(fetch, checkpoint.files, check_progress, threads=THREADS, name="restore")
        finally:
            abandoned.set()  # threads stop at their next chunk

    def _fetch(self, part: Path, abandoned: threading.Event, file: CheckpointFile) -> None:
        target = part / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        if not self._copy_local(file, target):
            found = self._fetch_blob(file, target, abandoned)
            if found != file.sha256:
                raise DamagedCheckpointError(
                    f"{file.path} has the sha256 {found}, not {file.sha256}"
                )
        if file.mode is not None:
            target.chmod(file.mode)
        if file.mtime_ns:
            os.utime(target, ns=(file.mtime_ns, file.mtime_ns))

    def _copy_local(self, file: CheckpointFile, target: Path) -> bool:
        """Copy the file of an earlier attempt on this node. Return False without a valid copy."""
        try:
            shutil.copyfile(self._local / file.sha256, target)
        except OSError:
            return False
        if _sha256(target) != file.sha256:
            return False
        self._count(file.size_bytes)
        return True

    def _fetch_blob(self, file: CheckpointFile, target: Path, abandoned: threading.Event) -> str:
        """Download a file, resuming after lost connections. Return its SHA-256."""
        digest = hashlib.sha256()
        with target.open("wb") as out:

            def read_rest() -> None:
                for chunk in self._chunks(file, out.tell()):
                    if abandoned.is_set():
                        raise DamagedCheckpointError("abandoned")
                    out.write(chunk)
                    digest.update(chunk)
                    self._count(len(chunk))

            try:
                last_error = retry_transfer(
                    self._retry_budget, read_rest, self._runs.transport.close
                )
            except StorageRequestError as err:
                if err.status == http.client.NOT_FOUND:
                    raise DamagedCheckpointError(f"{file.path} is missing") from err
                raise
        if last_error is not None:
            raise StorageUnreachableError(0, "", f"GET {file.blob}: {last_error}")
        return digest.hexdigest()

    def _chunks(self, file: CheckpointFile, first_byte: int) -> Iterator[bytes]:
        left = file.size_bytes - first_byte
        if left <= 0:
            return
        with self._runs.transport.open(file.blob, first_byte) as response:
            while left > 0:
                chunk = read_some(response, min(CHUNK_BYTES, left))
                if not chunk:
                    raise ConnectionError(f"the answer ended {left} bytes early")
                yield chunk
                left -= len(chunk)

    def _count(self, size: int) -> None:
        with self._lock:
            self._done_bytes += size


def _create_links(checkpoint: CheckpointManifest, part: Path) -> None:
    """Create folders and links. Call this after writing files, so that none follows a link."""
    for folder in checkpoint.folders:
        (part / folder).mkdir(parents=True, exist_ok=True)
    for path, target in checkpoint.links.items():
        (part / path).parent.mkdir(parents=True, exist_ok=True)
        (part / path).symlink_to(target)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
