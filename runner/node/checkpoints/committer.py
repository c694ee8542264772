"""The checkpoints of one attempt: restored before the script, committed during and after it.

Commits run in a thread of their own. Their errors are reported, and never stop or delay the script.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from runner.node.checkpoints.load_failures import (
    LoadWatch,
    check_cap,
    has_other_cause,
    limit_s,
    may_be_load_failure,
)
from runner.node.checkpoints.restore import CheckpointRestore, RestoredCheckpoint
from runner.node.checkpoints.shards import ShardReport, check_generations, find_generation
from runner.node.checkpoints.snapshot import (
    MAX_FILES,
    FolderListing,
    IncompleteFileError,
    Snapshot,
    Snapshotter,
    TooManyFilesError,
    UnsettledError,
    has_same_state,
    list_folder,
)
from runner.node.checkpoints.store import CheckpointStore, lower_priority
from runner.node.failures import StageFailedError, is_disk_full
from runner.node.script.command import (
    KEPT_OPEN_S,
    TERMINATION_GRACE_S,
    OpenWriters,
    ScriptResult,
    is_signal,
)
from runner.node.script.context import AttemptContext
from runner.node.script.streams import EventLog
from runner.node.script.workspace import full_disk_text
from runner.node.storage.http import StorageRequestError
from runner.node.termination import NodeEviction
from runner.protocol.checkpoints import (
    CheckpointManifest,
    ResumeFailure,
    ResumeHistory,
    load_resume_history,
)
from runner.protocol.host import format_size
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import CheckpointRule, ResumeFrom
from runner.protocol.usage import first_commit_ms

logger = logging.getLogger(__name__)

# Called with a new number for each request. Returns the reports of the other ranks by rank, or
# raises UnsettledError.
CollectShards = Callable[[int], Mapping[int, ShardReport]]

STAGE = "checkpoint"
RETRY_S = 0.1
RETRY_SHARE = 0.1  # retries take at most this share of a CPU
TRIES = 3
# Problems that are reported again if they return after a successful commit.
TEMPORARY = {"unsettled", "storage", "disk", "size", "count"}
FEWER_FILES = "write fewer and larger files, such as one archive, or write some to another folder"
# How long to wait while the folder keeps changing, before any consistent state is accepted.
SETTLE_S = 5.0
# How long to wait while the script has a file open: it may have paused in the middle of a model.
INCOMPLETE_WAIT_S = KEPT_OPEN_S
# Above this number of files, warn once: each file is a request, and a line of every manifest.
MANY_FILES = 10_000
PROGRESS_EVERY_S = 10.0
# The first checkpoint of an attempt is committed after this time. The interval then doubles until
# it reaches the recipe's, so that an early eviction loses little work too.
FIRST_INTERVAL_S = 5.0


class CheckpointCommitter(threading.Thread):
    """The thread that commits the folder of `snapshots` to `store`.

    Args:
        snapshots: takes snapshots of the checkpoint folder.
        store: the run's checkpoints in blob.
        rule: interval and limits.
        events: receives commits and problems.
        step: returns the last step of any metric.
        script_runs: returns True if the script is running.
        restored: the folder before the script wrote to it.
        collect_shards: lets the other ranks upload their shards; None if there are none.
    """

    def __init__(
        self,
        snapshots: Snapshotter,
        store: CheckpointStore,
        rule: CheckpointRule,
        events: EventLog,
        *,
        step: Callable[[], int | None],
        script_runs: Callable[[], bool],
        restored: FolderListing | None = None,
        collect_shards: CollectShards | None = None,
    ) -> None:
        super().__init__(name="checkpoints", daemon=True)
        self._snapshots = snapshots
        self._folder = snapshots.folder
        self._store = store
        self._rule = rule
        self._events = events
        self._step = step
        self._script_runs = script_runs
        self._collect_shards = collect_shards
        self._restored = restored or FolderListing()
        self._committed_listing = self._restored  # restored files are committed
        self._content: tuple[object, ...] | None = None
        self._snapshot_at = time.monotonic()  # when the last snapshot began
        self._wake = threading.Event()
        self._requested = threading.Event()  # from a request until a snapshot was taken
        self._request_settles_at = time.monotonic()
        self._ending = threading.Event()
        self._final = False
        self._alive_ns: int | None = None  # set if the script was killed
        self._superseded = False
        self._collected = 0  # the number of requests for shards
        self._reported: set[str] = set()
        self.committed = 0
        self.took_s = 0.0  # the duration of the last commit
        self.last: CheckpointManifest | None = None
        self.problem: str | None = None
        self._left_out: str | None = None

    def run(self) -> None:
        """Thread body: commit at the interval while the script runs, then a last time if asked."""
        lower_priority()
        wait_s = interval_s = min(FIRST_INTERVAL_S, self._rule.interval_s)
        while not self._ending.is_set():
            self._wake.wait(wait_s)
            self._wake.clear()
            if not self._ending.is_set():
                started = time.monotonic()
                requested = self._requested.is_set()
                failed = not self._try_commit()
                if requested:  # still set if the commit failed before it took a snapshot
                    self._requested.clear()
                if failed or self.committed:  # keep the interval short until the first commit
                    interval_s = min(2 * interval_s, self._rule.interval_s)
                took_s = time.monotonic() - started
                wait_s = commit_pause_s(interval_s, took_s, failed=failed)
        if self._final:
            self._try_commit()

    def request(self, settle_s: float = SETTLE_S) -> None:
        """Request a commit before the interval ends. Safe to call from any thread.

        Args:
            settle_s: how long to wait for a folder that keeps changing.
        """
        self._request_settles_at = time.monotonic() + settle_s
        self._requested.set()
        self._wake.set()

    @property
    def is_requested(self) -> bool:
        """Return True until the snapshot of a requested commit was taken, or has failed."""
        return self._requested.is_set()

    def finish(
        self, *, final: bool, alive_ns: int | None = None, timeout_s: float | None = None
    ) -> None:
        """Stop after the end of the script.

        Args:
            final: commit the folder once more.
            alive_ns: for a killed script, when it was last seen running (`time.time_ns`); files
                that it wrote at that time may be incomplete.
            timeout_s: how long to wait for the final commit; None waits without a limit.
        """
        self._final, self._alive_ns = final, alive_ns
        self._ending.set()
        self._wake.set()
        if final and self.is_alive():
            self.join(timeout_s)

    def _try_commit(self) -> bool:
        """Commit, and report a failure. Return False if it failed."""
        try:
            self._commit()
            return True
        except UnsettledError as err:
            self._report_problem("unsettled", f"could not take a checkpoint: {err}")
        except StorageRequestError as err:
            self._report_problem("storage", f"could not commit a checkpoint: {err}")
        except TooManyFilesError:
            self._report_problem(
                "count",
                f"{_file_count('more than', MAX_FILES)}, nothing is committed: {FEWER_FILES}",
            )
        except OSError as err:
            what = "the node's disk is full" if is_disk_full(err) else f"{err}"
            self._report_problem("disk", f"could not take a checkpoint: {what}")
        except Exception as err:
            # A bug in the agent must not end the training.
            logger.exception("the checkpoint thread failed")
            self._report_problem("bug", f"could not take a checkpoint: {type(err).__name__}: {err}")
        return False

    def _commit(self) -> None:
        tries = 0
        while True:
            tries += 1
            step = self._step()
            requested = self._requested.is_set()
            snapshot = self._take_snapshot()
            if snapshot is None or self._is_superseded():
                return
            if snapshot.content == self._content:
                self._committed_listing = snapshot.listing  # files were rewritten, unchanged
                return
            try:
                shards = self._read_shards(snapshot)
                checkpoint = self._store.commit(snapshot, step, self._progress(), shards)
                break
            except UnsettledError:
                if tries == TRIES:
                    raise
                if requested:  # until the next snapshot was taken
                    self._requested.set()
        self._committed_listing, self._content = snapshot.listing, snapshot.content
        self._snapshots.keep_only(snapshot)
        self._report_commit(checkpoint, time.monotonic() - self._snapshot_at)

    def _read_shards(self, snapshot: Snapshot) -> dict[int, CheckpointManifest] | None:
        """Let the other ranks upload their shards, and return the manifests by rank.

        Raises:
            UnsettledError: the shards are not of the same step as the snapshot.
        """
        if self._collect_shards is None:
            return None
        self._collected += 1
        reports = self._collect_shards(self._collected)
        others = {rank: report.generation for rank, report in reports.items()}
        check_generations(find_generation(snapshot.listing), others)
        return {
            rank: self._store.read_shard(report.blob, self._collected)
            for rank, report in reports.items()
        }

    def _report_commit(self, checkpoint: CheckpointManifest, took_s: float) -> None:
        self.took_s = took_s
        self.last, self.problem = checkpoint, self._left_out
        self._reported -= TEMPORARY
        self._events.add(
            STAGE,
            "progress",
            f"{checkpoint.name}, {format_size(checkpoint.size_bytes)}, after {took_s:.1f} s",
            checkpoint=checkpoint.number,
            took_s=round(took_s, 3),
            **({"problem": self.problem} if self.problem else {}),
        )
        self.committed += 1  # last, because other threads read it before the other fields

    def _progress(self) -> Callable[[int, int], None]:
        """Return a callback that reports the progress of a long commit."""
        reported_at = time.monotonic()

        def on_requests(done: int, total: int) -> None:
            nonlocal reported_at
            if time.monotonic() - reported_at >= PROGRESS_EVERY_S:
                reported_at = time.monotonic()
                message = f"uploading a checkpoint: {done:,} of {total:,} requests"
                self._events.add(STAGE, "progress", message, done=done, total=total)

        return on_requests

    def _take_snapshot(self) -> Snapshot | None:
        """Return a snapshot without incomplete files, or None if there is nothing to commit.

        Raises:
            UnsettledError: the folder kept changing, or a file is incomplete.
        """
        began = time.monotonic()
        strict_until = began + min(SETTLE_S, self._rule.interval_s / 2)
        while True:
            after = self._ending.is_set()
            now = self._snapshot_at = time.monotonic()
            listing = list_folder(self._folder)
            if not self._needs_commit(listing):
                return None
            if after and self._alive_ns is not None:
                self._check_incomplete(listing, self._alive_ns)
            requested = self._requested.is_set()
            if requested:
                strict_until = min(strict_until, self._request_settles_at)
            strict = not after and now < strict_until
            waited = not after and now > began + INCOMPLETE_WAIT_S
            try:
                snapshot = self._snapshots.take(listing, strict=strict, allow_incomplete=waited)
                if requested:
                    self._requested.clear()
                # If the script has just been killed, an incomplete file is not open any more, so
                # this snapshot cannot be trusted. The final commit checks for such files.
                return snapshot if after or self._script_runs() else None
            except IncompleteFileError:
                if after:
                    raise
            except UnsettledError:
                if after or now > strict_until + SETTLE_S:
                    raise
            took_s = time.monotonic() - now
            share = 1 if requested else RETRY_SHARE  # the node may be evicted in seconds
            self._wake.wait(max(RETRY_S, took_s / share))  # a request ends the pause
            self._wake.clear()
            if self._ending.is_set():
                return None  # the final commit takes another snapshot

    def _needs_commit(self, listing: FolderListing) -> bool:
        if not listing.files or listing == self._committed_listing:
            return False
        if not self.committed and has_same_state(listing, self._restored):
            return False  # the script has not saved anything new
        self._left_out = None
        for path, why in sorted(listing.left_out.items())[:1]:
            self._report_problem("left out", f"checkpoints do not contain {path}: it {why}")
            self._left_out = self.problem
        if len(listing.files) > MANY_FILES:
            self._report_problem(
                "many", f"{_file_count('', len(listing.files))}, each a request: {FEWER_FILES}"
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
                "disk", f"no checkpoint is taken, as files may be incomplete: {full}"
            )
            return False
        return True

    def _check_incomplete(self, listing: FolderListing, alive_ns: int) -> None:
        written = self._snapshots.recently_written(listing, alive_ns)
        if written:
            raise UnsettledError(f"{min(written)} was being written when the script was killed")

    def _is_superseded(self) -> bool:
        """Return True if a later attempt has begun. Then this one must not commit any more."""
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
            self._events.add(STAGE, "failed", message)

    def summary(self) -> dict[str, Any]:
        """Return the fields for end.json and result.json."""
        return {
            "last": self.last.number if self.last else None,
            "committed": self.committed,
            "problem": self.problem,
        }


def _file_count(prefix: str, count: int) -> str:
    return " ".join(f"the checkpoint folder holds {prefix} {count:,} files".split())


def commit_pause_s(interval_s: float, took_s: float, *, failed: bool) -> float:
    """Return the seconds until the next commit.

    The interval is between the starts of two commits. If storage is slower than the interval, the
    pause is as long as the commit took, so that commits take at most half of the time. After a
    failure, the pause is at most the interval: the commit may have spent ten minutes on retries
    although storage works again.
    """
    return max(interval_s - took_s, min(took_s, interval_s) if failed else took_s)


SNAPSHOTS_FOLDER = "snapshots"  # beside the folder of checkpoints
# The part of the time after SIGTERM that is kept for end.json and the last lines of the log.
RESERVED_S = 0.8
# The agent stops the script this long before the eviction, plus the expected time of a commit.
LEAD_TIME_S = 8.0
MAX_LEAD_TIME_S = 25.0  # Azure gives notice thirty seconds before the eviction
# The agent stops the script this long before the eviction at the latest, even if the commit that
# the notice requested has not finished.
MIN_LEAD_TIME_S = 2.0


class AttemptCheckpoints:
    """The checkpoints of one attempt.

    If the run saves no checkpoints, an instance only restores one of another run to resume from.
    `step` returns the last step of the script. The checkpoints of a run that `is_new` need not be
    searched.
    """

    def __init__(
        self,
        context: AttemptContext,
        *,
        step: Callable[[], int | None] = lambda: None,
        is_new: bool = False,
    ) -> None:
        self._runs = context.runs
        self._paths = context.paths
        self._spec = context.spec
        self._number = context.number
        self._folder = context.dirs.checkpoints
        self._store = self._folder.with_name(SNAPSHOTS_FOLDER)
        self._events = context.events
        self._retry_budget = context.retry_budget
        self._termination = context.termination
        self._notices = context.notices
        self._restore = CheckpointRestore(context, self._store)
        self._step = step
        self._is_new = is_new
        self._thread: CheckpointCommitter | None = None
        self._requested_for = ""  # the event ID of the notice for which a commit was requested
        self.writers = OpenWriters(self._folder) if self._spec.checkpoints is not None else None
        self._pid = 0
        self._found = FolderListing()  # the folder before the script wrote anything
        self.restored: RestoredCheckpoint | None = None
        self.history = ResumeHistory(context.paths.run_id)
        self._loads: LoadWatch | None = None

    def restore(self) -> dict[str, str]:
        """Restore the newest checkpoint. Return the variables that this adds for the script."""
        spec = self._spec
        if (spec.checkpoints is None or self._is_new) and spec.resume_from is None:
            return {}
        if self._number > 1:
            self.history = load_resume_history(
                self._runs.get, self._paths.run_id, range(1, self._number)
            )
        self.restored = self._restore.restore(self._number, spec.resume_from, self.history)
        with suppress(TooManyFilesError):  # the committer reports it while the script runs
            self._found = list_folder(self._folder)
        if self.restored is not None:
            self._loads = LoadWatch(self._folder, self._found)
        elif self.history.failures and self.history.is_fresh:
            check_cap(self._runs.get, spec, self.history)
        return self._variables()

    @property
    def resume_note(self) -> str:
        """One line about checkpoints that could not be loaded; empty if none matters any more."""
        if not self.history.failures:
            return ""
        restored, why = self.restored, self.history.describe()
        if restored is None:
            return f"starting from the beginning, because {why}; the checkpoints are kept"
        last = self.history.failures[-1]
        if restored.run_id == self._paths.run_id and restored.checkpoint.attempt > last.attempt:
            return ""  # it was saved since then
        again = self.history.has_failed(restored.run_id, restored.checkpoint)
        name = restored.checkpoint.name
        how = f"trying {name} again" if again else f"resuming from {name}"
        return f"{how}, because {why}"

    def find_load_failure(self, failure: StageFailedError, took_s: float) -> ResumeFailure | None:
        """Return the failure to load a checkpoint, or None if the attempt failed otherwise.

        Call this when the output of the script is read completely.

        Args:
            failure: why the attempt failed.
            took_s: how long the script ran.
        """
        restored, loads, before = self.restored, self._loads, self._spec.resume_from
        if restored is None or loads is None or self.history.is_exhausted:
            return None
        is_own = restored.run_id == self._paths.run_id
        if not may_be_load_failure(failure) or (not is_own and before is not None and before.exact):
            return None
        if not failure.has_read_checkpoint or self.has_saved or loads.has_new_state():
            return None
        checkpoint = restored.checkpoint
        events = self._runs.get(RunPaths(restored.run_id).attempt_events(checkpoint.attempt))
        if took_s > limit_s(first_commit_ms(events or b"")):
            return None
        name, line = failure.error
        line = line if name else ""  # other complaints say less
        if has_other_cause(line):
            return None
        kind = f"{name or failure.code} {failure.exit_code}"
        message = self._events.clean(line or failure.message)
        return ResumeFailure(
            self._number, restored.run_id, checkpoint.number, checkpoint.attempt, kind, message
        )

    @property
    def was_read(self) -> bool:
        """True if the script read the restored checkpoint, or if this is not recorded."""
        return self._loads is not None and self._loads.was_read()

    @property
    def has_saved(self) -> bool:
        """True if the attempt committed a checkpoint."""
        return self._thread is not None and self._thread.committed > 0

    def restore_same(self, wanted: ResumeFrom) -> dict[str, str]:
        """Restore the checkpoint that the primary restored. Return variables as `restore` does."""
        self.restored = self._restore.restore_same(wanted)
        with suppress(TooManyFilesError):
            self._loads = LoadWatch(self._folder, list_folder(self._folder))
        return self._variables()

    def _variables(self) -> dict[str, str]:
        if self.restored is None:
            return {}
        ranks = self.restored.checkpoint.ranks
        shards = {"RUNNER_CHECKPOINT_RANKS": str(ranks)} if ranks else {}
        return {"RUNNER_RESUMED": "1", **shards}

    @property
    def resumed_text(self) -> str:
        """The restored checkpoint as part of an error message, since it may be the cause."""
        if self.restored is None:
            return ""
        return f" after resuming from {self.restored.checkpoint.name}"

    def start(self, pid: int, collect_shards: CollectShards | None = None) -> None:
        """Start to commit checkpoints of the script, which runs as process `pid`.

        `collect_shards` gets those of the other ranks.
        """
        rule = self._spec.checkpoints
        if rule is None:
            return
        self._pid = pid
        is_kept = self.history.is_kept if self.history.failures else None
        self._thread = CheckpointCommitter(
            Snapshotter(self._folder, self._store, self.writers),
            CheckpointStore(self._runs, self._paths, self._number, rule.keep, is_kept),
            rule,
            self._events,
            step=self._step,
            script_runs=self._script_runs,
            restored=self._found,
            collect_shards=collect_shards if rule.sharded else None,
        )
        self._thread.start()
        if self._notices is not None:
            self._notices.notify(self._on_notice, self._on_recommendation)

    @property
    def must_stop(self) -> bool:
        """Return True if the script must stop, because the node will be evicted."""
        left_s = self._node_left_s
        if self._thread is None or left_s is None or left_s > self._lead_s:
            return False
        if self._must_request:  # the notice is newer than the last call of `_on_notice`
            return left_s <= MIN_LEAD_TIME_S
        # While a requested commit is pending, the script keeps running: stopped in the middle of a
        # write, it would leave a file that may be incomplete.
        return not self._thread.is_requested or left_s <= MIN_LEAD_TIME_S

    @property
    def grace_s(self) -> float:
        """Return the seconds between SIGTERM and SIGKILL for the script."""
        left_s = self._node_left_s
        if left_s is None or self._termination.requested:
            return TERMINATION_GRACE_S
        return max(left_s - self._commit_s - RESERVED_S, TERMINATION_GRACE_S)

    def finish(self, ended: ScriptResult | None) -> None:
        """Commit the last checkpoint, unless the script succeeded.

        The commit takes at most the time until Batch kills the task or the node is evicted.

        Args:
            ended: how the script ended, or None if the agent could not run it to its end.
        """
        if self._notices is not None:
            self._notices.notify(None)
        if self._thread is None:
            return
        ends = [self._retry_budget.left_s, self._node_left_s]
        left = [max(left_s - RESERVED_S, 0.0) for left_s in ends if left_s is not None]
        # A script that is stopped may save its state and exit with 0.
        stopped = ended is None or ended.stopped or ended.timed_out or ended.exit_code != 0
        self._thread.finish(
            final=stopped or self._termination.requested,
            alive_ns=_last_seen_ns(ended),
            timeout_s=min(left, default=None),
        )

    def _on_notice(self, notice: NodeEviction) -> None:
        message = f"the node is about to be evicted, in {notice.left_s:.0f} s: saving a checkpoint"
        if self._thread is not None:
            self._thread.request(min(SETTLE_S, max(0.0, notice.left_s - self._lead_s - RETRY_S)))
        self._requested_for = notice.event_id
        self._events.add("notice", "progress", message)

    def _on_recommendation(self) -> None:
        if self._thread is not None:
            self._thread.request()
        message = (
            "Azure expects to evict the node soon (rebalance recommendation): saving a checkpoint"
        )
        self._events.add("notice", "progress", message)

    @property
    def _must_request(self) -> bool:
        """Return True if no commit was requested yet for the current notice."""
        notice = self._notices.notice if self._notices is not None else None
        return notice is not None and notice.event_id != self._requested_for

    @property
    def _node_left_s(self) -> float | None:
        notice = self._notices.notice if self._notices is not None else None
        return None if notice is None else notice.left_s

    @property
    def _commit_s(self) -> float:
        """Return the expected seconds of a commit, based on the last one."""
        return 2 * self._thread.took_s if self._thread is not None else 0.0

    @property
    def _lead_s(self) -> float:
        return min(LEAD_TIME_S + self._commit_s, MAX_LEAD_TIME_S)

    def summary(self) -> dict[str, Any] | None:
        """Return the summary for end.json and result.json, or None without checkpoints."""
        restored = self.restored.to_json() if self.restored else None
        if self._thread is None:
            return {"restored": restored} if restored else None
        return {"restored": restored, **self._thread.summary()}

    def _script_runs(self) -> bool:
        with suppress(ChildProcessError):
            options = os.WEXITED | os.WNOWAIT | os.WNOHANG
            return os.waitid(os.P_PID, self._pid, options) is None
        return False


def _last_seen_ns(ended: ScriptResult | None) -> int | None:
    """Return when a killed script was last seen running, or None if it ended by itself."""
    if ended is None:
        return time.time_ns()
    return ended.alive_ns if is_signal(ended.exit_code) else None
