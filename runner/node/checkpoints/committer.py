"""Commit the script's checkpoint folder, on an interval and on request.

It runs in a thread of its own: its errors are reported, and never stop or delay the training.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from runner.node.checkpoints.snapshot import (
    MAX_FILES,
    FolderListing,
    Snapshot,
    Snapshots,
    TooManyFilesError,
    UnsettledError,
    list_folder,
    recently_written,
)
from runner.node.checkpoints.store import CheckpointStore, lower_priority
from runner.node.failures import full_disk_text, is_disk_full
from runner.node.script.streams import EventLog
from runner.node.storage.http import StorageRequestError
from runner.protocol.checkpoints import CheckpointManifest
from runner.protocol.encoding import format_size
from runner.protocol.run_spec import CheckpointRule

logger = logging.getLogger(__name__)

STAGE = "checkpoint"
RETRY_S = 0.1
TRIES = 3
PASSING = {"unsettled", "storage", "disk", "size", "count"}  # said again when they come back
FEWER = "write fewer and larger ones, such as one archive, or keep some elsewhere"
# How long a snapshot waits for a folder that keeps changing, before it takes any consistent state.
SETTLE_S = 5.0
# Each file is a request, and a line of every manifest: beyond this the user is told so, once.
MANY_FILES = 10_000
PROGRESS_EVERY_S = 10.0


class CheckpointCommitter(threading.Thread):
    """Commits the folder of `snapshots`; `script_runs` says whether the script is still there.

    `step` is the last one that any metric named, `restored` the folder as the script found it.
    """

    def __init__(
        self,
        snapshots: Snapshots,
        store: CheckpointStore,
        rule: CheckpointRule,
        events: EventLog,
        *,
        step: Callable[[], int | None],
        script_runs: Callable[[], bool],
        restored: FolderListing | None = None,
    ) -> None:
        super().__init__(name="checkpoints", daemon=True)
        self._snapshots = snapshots
        self._folder = snapshots.folder
        self._store = store
        self._rule = rule
        self._events = events
        self._step = step
        self._script_runs = script_runs
        self._seen = restored or FolderListing()  # what was restored is no news
        self._content: tuple[object, ...] | None = None
        self._wake = threading.Event()
        self._ending = threading.Event()
        self._final = False
        self._alive_ns: int | None = None  # of a script that was killed
        self._superseded = False
        self._reported: set[str] = set()
        self.committed = 0
        self.took_s = 0.0  # by the last commit
        self.last: CheckpointManifest | None = None
        self.problem: str | None = None
        self._left_out: str | None = None

    def run(self) -> None:
        """Thread body: a commit each interval while the script runs, and perhaps one after it."""
        lower_priority()
        wait_s = self._rule.interval_s
        while not self._ending.is_set():
            self._wake.wait(wait_s)
            self._wake.clear()
            if not self._ending.is_set():
                started = time.monotonic()
                failed = not self._guarded()
                wait_s = commit_pause_s(
                    self._rule.interval_s, time.monotonic() - started, failed=failed
                )
        if self._final:
            self._guarded()

    def request(self) -> None:
        """Commit soon, not only after the interval. From any thread."""
        self._wake.set()

    def finish(
        self, *, final: bool, alive_ns: int | None = None, timeout_s: float | None = None
    ) -> None:
        """The script ended: commit what it left (`final`), within the time, and stop.

        One that was killed was last seen to run at `alive_ns`, a time of `time.time_ns`: what it
        was writing just then may be torn.
        """
        self._final, self._alive_ns = final, alive_ns
        self._ending.set()
        self._wake.set()
        if final and self.is_alive():
            self.join(timeout_s)

    def _guarded(self) -> bool:
        """Whether there was no trouble."""
        try:
            self._commit()
            return True
        except UnsettledError as err:
            self._report_problem("unsettled", f"no checkpoint could be taken: {err}")
        except StorageRequestError as err:
            self._report_problem("storage", f"a checkpoint could not be committed: {err}")
        except TooManyFilesError:
            self._report_problem(
                "count", f"{_many('more than', MAX_FILES)}, nothing is committed: {FEWER}"
            )
        except OSError as err:
            what = "the node's disk is full" if is_disk_full(err) else f"{err}"
            self._report_problem("disk", f"no checkpoint could be taken: {what}")
        except Exception as err:
            # A bug of ours costs checkpoints, not the training.
            logger.exception("the checkpoint thread failed")
            self._report_problem(
                "bug", f"no checkpoint could be taken: {type(err).__name__}: {err}"
            )
        return False

    def _commit(self) -> None:
        started = time.monotonic()
        tries = 0
        while True:
            tries += 1
            step = self._step()
            snapshot = self._settled()
            if snapshot is None or self._is_superseded():
                return
            if snapshot.content == self._content:
                self._seen = snapshot.listing  # written again, with the same content
                return
            try:
                checkpoint = self._store.commit(snapshot, step, self._progress())
                break
            except UnsettledError:
                if tries == TRIES:
                    raise
        self._seen, self._content = snapshot.listing, snapshot.content
        self._snapshots.forget_but(snapshot)
        self._report_commit(checkpoint, time.monotonic() - started)

    def _report_commit(self, checkpoint: CheckpointManifest, took_s: float) -> None:
        self.took_s = took_s
        self.last, self.problem = checkpoint, self._left_out
        self._reported -= PASSING
        self._events.aside(
            STAGE,
            "progress",
            f"{checkpoint.name}, {format_size(checkpoint.size_bytes)}, after {took_s:.1f} s",
            checkpoint=checkpoint.number,
            **({"problem": self.problem} if self.problem else {}),
        )
        self.committed += 1  # last: who sees it finds the rest

    def _progress(self) -> Callable[[int, int], None]:
        """For a commit that takes long."""
        told = time.monotonic()

        def on_requests(done: int, total: int) -> None:
            nonlocal told
            if time.monotonic() - told >= PROGRESS_EVERY_S:
                told = time.monotonic()
                message = f"sending a checkpoint: {done:,} of {total:,} requests"
                self._events.aside(STAGE, "progress", message, done=done, total=total)

        return on_requests

    def _settled(self) -> Snapshot | None:
        """A snapshot of the folder, when there is something new in it that is no half of a file."""
        patient_until = time.monotonic() + min(SETTLE_S, self._rule.interval_s / 2)
        while True:
            after = self._ending.is_set()
            listing = list_folder(self._folder)
            if not self._is_wanted(listing):
                return None
            if after and self._alive_ns is not None:
                self._check_torn(listing, self._alive_ns)
            strict = not after and time.monotonic() < patient_until
            try:
                snapshot = self._snapshots.take(listing, strict=strict)
                # Killed while it wrote, a script leaves a file that nobody writes to any more.
                return snapshot if after or self._script_runs() else None
            except UnsettledError:
                if after or time.monotonic() > patient_until + SETTLE_S:
                    raise
            if self._ending.wait(RETRY_S) and not after:
                return None  # the last commit looks again

    def _is_wanted(self, listing: FolderListing) -> bool:
        if not listing.files or listing == self._seen:
            return False
        self._left_out = None
        for path, why in sorted(listing.left_out.items())[:1]:
            self._report_problem("left out", f"checkpoints are without {path}: it {why}")
            self._left_out = self.problem
        if len(listing.files) > MANY_FILES:
            self._report_problem(
                "many", f"{_many('', len(listing.files))}, each a request: {FEWER}"
            )
            self._left_out = self._left_out or self.problem
        if listing.size_bytes > self._rule.max_bytes:
            self._report_problem(
                "size",
                f"the checkpoint folder holds {format_size(listing.size_bytes)}, more than "
                f"checkpoints.max_size, {format_size(self._rule.max_bytes)}: nothing is committed",
            )
            return False
        if full := full_disk_text(self._folder):
            self._report_problem(
                "disk", f"no checkpoint is taken, a file may be there in half: {full}"
            )
            return False
        return True

    def _check_torn(self, listing: FolderListing, alive_ns: int) -> None:
        torn = recently_written(self._folder, listing, alive_ns)
        if torn:
            raise UnsettledError(f"{min(torn)} was being written when the script was killed")

    def _is_superseded(self) -> bool:
        """Whether another attempt took over: then this one must not cost it anything."""
        if self._superseded or not self._store.is_superseded():
            return self._superseded
        self._superseded = True
        self._report_problem(
            "superseded", "a later attempt has begun: this one commits no more checkpoints"
        )
        return True

    def _report_problem(self, kind: str, message: str) -> None:
        self.problem = self._events.clean(message)
        if kind not in self._reported:
            self._reported.add(kind)
            self._events.aside(STAGE, "failed", message)

    def summary(self) -> dict[str, Any]:
        """As end.json and result.json tell it."""
        return {
            "last": self.last.number if self.last else None,
            "committed": self.committed,
            "problem": self.problem,
        }


def _many(how: str, many: int) -> str:
    return " ".join(f"the checkpoint folder holds {how} {many:,} files".split())


def commit_pause_s(interval_s: float, took_s: float, *, failed: bool) -> float:
    """How long until the next commit: from start to start it is the interval.

    Where storage is slower than that, commits take at most half of the time. One that failed says
    nothing of that: it may have waited ten minutes for storage that is back now.
    """
    return max(interval_s - took_s, min(took_s, interval_s) if failed else took_s)
