"""Commit snapshots to blob, and delete old checkpoints."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from runner.node.checkpoints.snapshot import BLOCK_BYTES, HeldFile, Snapshot, UnsettledError
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.protocol.checkpoints import (
    BadManifestError,
    CheckpointBlobs,
    CheckpointFile,
    CheckpointManifest,
    merge_shards,
    parse_checkpoint,
)
from runner.protocol.codec import now_text
from runner.protocol.paths import RunPaths

logger = logging.getLogger(__name__)

THREADS = 4
NICENESS = 10  # the script has priority


OnRequests = Callable[[int, int], None]  # receives the numbers of completed and of all requests


def ignore_requests(done: int, total: int) -> None:
    """Do nothing."""


class CheckpointStore:
    """Writes the checkpoints of one attempt to blob. Not thread-safe.

    Args:
        runs: the container of runs.
        run: the names of the run's blobs.
        attempt: the number of the attempt.
        keep: how many checkpoints are kept; older ones are deleted.
        is_kept: returns True for a checkpoint that is never deleted; None for none.
    """

    def __init__(
        self,
        runs: ContainerClient,
        run: RunPaths,
        attempt: int,
        keep: int,
        is_kept: Callable[[CheckpointManifest], bool] | None = None,
    ) -> None:
        self._runs = runs
        self._paths = CheckpointBlobs(run.run_id)
        self._next_attempt = run.attempt_start(attempt + 1)
        self._attempt = attempt
        self._keep = keep
        self._is_kept = is_kept
        self._number = 0
        # By number; None for an unreadable manifest.
        self._manifests: dict[int, CheckpointManifest | None] = {}

    def is_superseded(self) -> bool:
        """Return True if a later attempt has begun."""
        return self._runs.head(self._next_attempt) is not None

    def upload(self, snapshot: Snapshot, number: int) -> bytes:
        """Upload the missing files of a snapshot. Return its manifest. Raise as `commit` does."""
        listed = self._runs.list_sizes(self._paths.root)
        draft, missing = self._draft(snapshot, None, listed)
        upload_all(self._runs, missing)
        return replace(draft, number=number).to_bytes()

    def put_file(self, sha256: str, body: bytes) -> str:
        """Store a file that no checkpoint refers to yet. Return its blob."""
        blob = self._paths.files(self._attempt) + sha256
        self._runs.put(blob, body)
        return blob

    def read_shard(self, blob: str, number: int) -> CheckpointManifest:
        """Return the manifest of a rank. Raise BadManifestError or StorageRequestError."""
        return parse_checkpoint(self._runs.get(blob) or b"", self._paths, number)

    def commit(
        self,
        snapshot: Snapshot,
        step: int | None,
        on_requests: OnRequests = ignore_requests,
        shards: Mapping[int, CheckpointManifest] | None = None,
    ) -> CheckpointManifest:
        """Upload the missing files of a snapshot and create its manifest.

        Args:
            snapshot: the content of the checkpoint.
            step: the last step of any metric, or None.
            on_requests: receives the numbers of completed and of all upload requests.
            shards: the manifests of the other ranks, whose files are uploaded already.

        Raises:
            StorageRequestError: storage refused a request or did not answer.
            UnsettledError: a file changed since the snapshot.
        """
        listed = self._runs.list_sizes(self._paths.root)
        draft, missing = self._draft(snapshot, step, listed)
        upload_all(self._runs, missing, on_requests)
        if shards is not None:
            draft = merge_shards({0: draft, **shards})
        checkpoint = self._create(draft, listed)
        self._prune(checkpoint, {*listed, *(file.blob for file in draft.files)})
        return checkpoint

    def _draft(
        self, snapshot: Snapshot, step: int | None, listed: Mapping[str, int]
    ) -> tuple[CheckpointManifest, dict[str, HeldFile]]:
        """Return the manifest without its number, and the files that are missing, by blob."""
        prefix = self._paths.files(self._attempt)
        wanted = {prefix + file.sha256: file for file in snapshot.files}
        # Trust only the listing: after a crash, storage may have lost acknowledged blobs.
        missing = {b: file for b, file in wanted.items() if listed.get(b) != file.size_bytes}
        files = tuple(
            CheckpointFile(
                file.path,
                file.size_bytes,
                file.sha256,
                prefix + file.sha256,
                file.mtime_ns,
                file.mode,
            )
            for file in snapshot.files
        )
        listing = snapshot.listing
        draft = CheckpointManifest(
            0, self._attempt, now_text(), files, listing.links, listing.folders, step=step
        )
        return draft, missing

    def _create(self, draft: CheckpointManifest, listed: Iterable[str]) -> CheckpointManifest:
        number = max([self._number, *self._numbers(listed)]) + 1
        while True:
            checkpoint = replace(draft, number=number)
            if self._runs.create(self._paths.manifest(number), checkpoint.to_bytes()):
                break
            number += 1
        self._number = number
        self._manifests[number] = checkpoint
        return checkpoint

    def _numbers(self, names: Iterable[str]) -> set[int]:
        return {n for name in names if (n := self._paths.parse_number(name)) is not None}

    def _prune(self, newest: CheckpointManifest, names: set[str]) -> None:
        """Delete old checkpoints: first manifests, then files that no manifest refers to.

        In this order, an interruption leaves unused files, but no manifest with missing files.
        """
        try:
            manifests = self._read_manifests(names, newest)
            may_go = [
                found
                for found in manifests
                if found.attempt <= self._attempt and not (self._is_kept and self._is_kept(found))
            ]
            old = sorted(may_go, key=lambda found: found.order, reverse=True)[self._keep :]
            for checkpoint in old:
                self._runs.delete(self._paths.manifest(checkpoint.number))
                self._manifests.pop(checkpoint.number, None)
            used = {file.blob for found in manifests if found not in old for file in found.files}
            attempts = {name: self._paths.parse_attempt(name) for name in names - used}
            ours = (name for name, by in attempts.items() if by is not None and by <= self._attempt)
            _in_parallel(self._runs.delete, ours)
        except StorageRequestError as err:
            # Old checkpoints do no harm, and the next commit tries again.
            logger.warning("older checkpoints could not be deleted: %s", err)

    def _read_manifests(
        self, names: Iterable[str], newest: CheckpointManifest
    ) -> list[CheckpointManifest]:
        numbers = self._numbers(names)
        for number in numbers - self._manifests.keys():
            body = self._runs.get(self._paths.manifest(number))
            try:
                self._manifests[number] = (
                    parse_checkpoint(body, self._paths, number) if body else None
                )
            except BadManifestError as err:
                logger.warning("checkpoint %d: %s", number, err)
                self._manifests[number] = None
        numbers.add(newest.number)
        return [found for n in numbers if (found := self._manifests[n]) is not None]


def upload_all(
    runs: ContainerClient, files: dict[str, HeldFile], on_requests: OnRequests = ignore_requests
) -> None:
    """Upload files by blob name, in parallel.

    Raises:
        StorageRequestError: storage refused a request or did not answer.
        UnsettledError: a file changed since its snapshot.
        OSError: a file could not be read.
    """
    uploads = [_CheckpointUpload(runs, name, file) for name, file in files.items()]
    jobs = [(upload, number) for upload in uploads for number in range(upload.blocks)]
    _in_parallel(lambda job: job[0].send(job[1]), jobs, on_requests)


class _CheckpointUpload:
    """Uploads one file in blocks; the thread that sends the last block commits them."""

    def __init__(self, runs: ContainerClient, name: str, file: HeldFile) -> None:
        self._runs = runs
        self._name = name
        self._file = file
        self.blocks = max(len(file.block_sha256), 1)
        self._left = self.blocks
        self._lock = threading.Lock()

    def send(self, number: int) -> None:
        with self._file.held.open("rb") as source:
            source.seek(number * BLOCK_BYTES)
            block = source.read(BLOCK_BYTES)
        found = (hashlib.sha256(block).hexdigest(),) if block else ()
        if found != self._file.block_sha256[number : number + 1]:  # an empty file has no block
            raise UnsettledError(f"{self._file.path} was written to in place")
        if self.blocks == 1:
            self._runs.put(self._name, block)
            return
        self._runs.put_block(self._name, number, block)
        with self._lock:
            self._left -= 1
            is_last = self._left == 0
        if is_last:
            self._runs.put_block_list(self._name, range(self.blocks))


def _in_parallel(
    work: Callable[[Any], None], items: Iterable[Any], on_requests: OnRequests = ignore_requests
) -> None:
    """Call `work` with each item in threads. Stop at the first failure and raise it."""
    import concurrent.futures  # noqa: PLC0415  many runs have no checkpoint

    pool = concurrent.futures.ThreadPoolExecutor(
        THREADS, thread_name_prefix="checkpoint", initializer=lower_priority
    )
    try:
        waiting = [pool.submit(work, item) for item in items]
        for done, future in enumerate(concurrent.futures.as_completed(waiting), 1):
            future.result()
            on_requests(done, len(waiting))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def lower_priority() -> None:
    """Lower the CPU priority of this thread (on Linux, each thread has its own)."""
    with suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
