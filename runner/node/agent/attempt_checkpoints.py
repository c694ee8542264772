"""The checkpoints of one attempt: restore before the script, commit during and after it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from runner.node.checkpoints.committer import (
    RETRY_S,
    SETTLE_S,
    CheckpointCommitter,
    CollectShards,
)
from runner.node.checkpoints.load_failures import (
    LoadWatch,
    has_other_cause,
    limit_s,
    may_be_load_failure,
)
from runner.node.checkpoints.restore import (
    RESTORE_STAGE,
    CheckpointRestore,
    RestoredCheckpoint,
)
from runner.node.checkpoints.snapshot import (
    FolderListing,
    Snapshotter,
    TooManyFilesError,
    list_folder,
)
from runner.node.checkpoints.store import CheckpointStore
from runner.node.context import AttemptContext
from runner.node.failures import StageFailedError
from runner.node.script.command import (
    TERMINATION_GRACE_S,
    OpenWriters,
    ScriptResult,
    is_signal,
)
from runner.node.termination import NodeEviction
from runner.protocol.paths import RunPaths
from runner.protocol.checkpoints import ResumeFailure, ResumeHistory, load_resume_history
from runner.protocol.run_spec import ResumeFrom
from runner.protocol.usage import first_commit_ms, load_work_ms

SNAPSHOTS_FOLDER = "snapshots"  # beside the folder of checkpoints
RESUME_FAILED = "ResumeFailed"  # code of a run that may not start from the beginning
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
        self._runs = context.task.runs
        self._paths = context.paths
        self._spec = context.spec
        self._number = context.number
        self._folder = context.dirs.checkpoints
        self._store = self._folder.with_name(SNAPSHOTS_FOLDER)
        self._events = context.events
        self._retry_budget = context.task.retry_budget
        self._termination = context.task.termination
        self._notices = context.task.notices
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
        self.restored = self._open_restore().restore(self._number, spec.resume_from, self.history)
        with suppress(TooManyFilesError):  # the committer reports it while the script runs
            self._found = list_folder(self._folder)
        if self.restored is not None:
            self._loads = LoadWatch(self._folder, self._found)
        elif self.history.failures and self.history.is_fresh:
            self._check_cap()
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

    def _check_cap(self) -> None:
        """Raise StageFailedError if the cap of the costs does not allow to repeat the lost work."""
        spec = self._spec
        if spec.max_cost_micros is None or spec.job_limit_s is None:
            return
        passed = datetime.now(timezone.utc) - spec.created  # noqa: UP017  the agent runs on 3.10
        left_s = max(spec.job_limit_s - passed.total_seconds(), 0.0)
        repeated_s = self._lost_work_s()
        if repeated_s <= left_s:
            return
        usd = spec.max_cost_micros / 1_000_000
        costs = usd * repeated_s / spec.job_limit_s
        raise StageFailedError(
            RESTORE_STAGE,
            RESUME_FAILED,
            f"{self.history.describe()}. A start from the beginning repeats "
            f"{_duration(repeated_s)} of work, and the cost cap of {usd:.2f} USD leaves "
            f"{_duration(left_s)}: `runner resume {spec.run_id} --fresh` would cost up to "
            f"{costs:.2f} USD for this work",
        )

    def _lost_work_s(self) -> float:
        """Return how long scripts ran for the checkpoints that cannot be loaded."""
        spec, failures = self._spec, self.history.failures
        own = [each.of_attempt for each in failures if each.run_id == spec.run_id]
        found = load_work_ms(self._runs.get, spec.run_id, max(own, default=0))
        before = spec.resume_from
        if before is not None:
            found += load_work_ms(self._runs.get, before.run_id, None)
        return found / 1000

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
        self.restored = self._open_restore().restore_same(wanted)
        with suppress(TooManyFilesError):
            self._loads = LoadWatch(self._folder, list_folder(self._folder))
        return self._variables()

    def _variables(self) -> dict[str, str]:
        if self.restored is None:
            return {}
        ranks = self.restored.checkpoint.ranks
        shards = {"RUNNER_CHECKPOINT_RANKS": str(ranks)} if ranks else {}
        return {"RUNNER_RESUMED": "1", **shards}

    def _open_restore(self) -> CheckpointRestore:
        return CheckpointRestore(
            self._runs,
            self._paths,
            folder=self._folder,
            local=self._store,
            events=self._events,
            retry_budget=self._retry_budget,
            check=self._termination.check,
            nodes=self._spec.nodes,
        )

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
            self._notices.notify(self._on_notice)

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


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def _last_seen_ns(ended: ScriptResult | None) -> int | None:
    """Return when a killed script was last seen running, or None if it ended by itself."""
    if ended is None:
        return time.time_ns()
    return ended.alive_ns if is_signal(ended.exit_code) else None
