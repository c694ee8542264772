"""Several short trials of a sweep in one task: one agent runs them one after another.

Each trial is a run with its own records, logs and outputs, as in a task of its own. Its result.json
decides whether it has ended, so an agent that starts again on any node repeats none of them: it
skips those that have a result, continues the interrupted one, and starts the others.
"""

from __future__ import annotations

import json
import logging
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from runner.node.agent.attempt import LOCK_FILE
from runner.node.agent.records import AttemptOutcome, RunRecords
from runner.node.agent.sweep_trial import NodeSweep, open_trial
from runner.node.context import FAILED_EXIT_CODE, TERMINATED_EXIT_CODE, TaskContext
from runner.node.failures import AGENT_KILLED, COMMAND_STAGE, StageFailedError
from runner.node.script.command import kill_remaining_processes
from runner.node.script.streams import ship_remaining_logs
from runner.node.settings import SettingsError, load_access
from runner.node.storage.http import StorageRequestError
from runner.node.termination import Termination
from runner.protocol.codec import DAMAGED, now_text, parse_json
from runner.protocol.host import remove_tree
from runner.protocol.paths import RunPaths, check_batch_id
from runner.protocol.run_spec import RunSpecError
from runner.protocol.task import (
    AGENT_FILE,
    CODE_ARCHIVE,
    SPARE_STARTS,
    STORAGE_VARIABLE,
    TASK_TRIALS_VARIABLE,
    TRIAL_VARIABLE,
)
from runner.protocol.waiting_trials import parse_trial_setting, trial_setting

logger = logging.getLogger(__name__)

CANCEL_POLL_S = 2.0
_KEPT = frozenset({LOCK_FILE, AGENT_FILE, CODE_ARCHIVE})

RunTask = Callable[[TaskContext, Mapping[str, str], RunRecords], int]


@dataclass(frozen=True)
class _Trial:
    """A trial of the task. `environment` are its variables, with its access to storage."""

    run_id: str
    environment: Mapping[str, str] = field(repr=False)


def run_trials(task: TaskContext, environment: Mapping[str, str], run_task: RunTask) -> int:
    """Run the trials of a task that have not ended. Return the exit code for Batch.

    It is 0 if all trials have ended, even if some have failed: Batch need not run the task again.

    Args:
        task: what all trials share; its run is the first trial.
        environment: the variables of the task, with secrets.
        run_task: executes the attempts of a run.

    Raises:
        SettingsError: the variables of the task are invalid.
        StorageRequestError: storage refused a request or did not answer.
    """
    group_id, trials = _load_trials(environment)
    node = NodeSweep(task.node.shared_dir, group_id)
    folder = _TaskFolder(task.node.work_dir, environment.get("AZ_BATCH_TASK_DIR", ""), node, trials)
    try:
        return _run_in_turn(task, trials, folder, run_task)
    finally:
        folder.leave()


def _run_in_turn(
    task: TaskContext, trials: Sequence[_Trial], folder: _TaskFolder, run_task: RunTask
) -> int:
    """Run the trials in their order, as `run_trials` does."""
    watch = _CancelWatch()
    watch.start()
    unfinished = 0
    for number, trial in enumerate(trials):
        own, records = _context_of(task, trial)
        with closing(own.runs.transport):  # the connection of this thread
            if number < folder.resumed_at and records.exit_code() is not None:
                continue
            if folder.give_to(trial):
                own = replace(own, is_quiet=True)
            _give_up(own, records, folder.killed)  # then `run_task` only sends notifications
            watch.follow(own, records)
            code, has_ended = _run_trial(
                own, trial, records, run_task, lambda: task.termination.requested
            )
            watch.follow(None, None)
            if task.termination.requested:
                return TERMINATED_EXIT_CODE
            if records.has_lost_storage:
                logger.error(
                    "the trials after %s run when Batch starts the task again", trial.run_id
                )
                return code or FAILED_EXIT_CODE
            unfinished += not has_ended
    if unfinished:
        logger.error("%d of %d trials have not ended", unfinished, len(trials))
        folder.forget()
    return FAILED_EXIT_CODE if unfinished else 0


def _give_up(task: TaskContext, records: RunRecords, killed: int) -> None:
    """Fail a trial whose agents were killed too often.

    A trial that uses up the memory of the node, or kills its agent, would otherwise take all starts
    of the task, and the trials after it would never run.

    Args:
        task: the context of the trial.
        records: those of the trial.
        killed: how many of its agents were killed on this node.
    """
    if killed < SPARE_STARTS or records.exit_code() is not None:
        return
    body = records.read_run()
    number = records.last_claimed()
    try:
        spec = records.parse_run(body) if body is not None else None
    except RunSpecError:
        return
    if spec is None or not number or killed <= spec.retries + SPARE_STARTS:
        return
    if not task.secrets.in_vaults:
        ship_remaining_logs(task.runs, records.paths, task.node.work_dir, task.redactor)
    message = f"the agent was killed {killed} times while this trial ran, without a result"
    failure = StageFailedError(COMMAND_STAGE, AGENT_KILLED, message)
    logger.error("run %s: %s", spec.run_id, message)
    for earlier in range(max(number - killed, 0) + 1, number):
        records.end_killed(earlier, "the agent was killed")  # else, it counts as evicted
    started = records.read_start(number)
    AttemptOutcome(task, records, number, started or now_text()).failed(failure, retries=0)
    if (trial := open_trial(task.runs, spec, number, task.node.shared_dir)) is not None:
        trial.finish("failed", message)


def _load_trials(environment: Mapping[str, str]) -> tuple[str, list[_Trial]]:
    """Return the sweep, and the trials of the task in their order. Raise SettingsError."""
    common = {name: each for name, each in environment.items() if name != TASK_TRIALS_VARIABLE}
    try:
        group_id, _ = parse_trial_setting(environment[TRIAL_VARIABLE])
        first: dict[str, Any] = parse_json(environment[STORAGE_VARIABLE])
        later: list[dict[str, Any]] = parse_json(environment[TASK_TRIALS_VARIABLE])
        trials = [_Trial(environment["RUNNER_RUN_ID"], common)]
        for each in later:
            run_id = str(each["run_id"])
            check_batch_id(run_id)
            variables = {
                **common,
                "RUNNER_RUN_ID": run_id,
                TRIAL_VARIABLE: trial_setting(group_id, dict(each["run"])),
                STORAGE_VARIABLE: json.dumps({**first, **each["storage"]}),
            }
            trials.append(_Trial(run_id, variables))
    except DAMAGED as err:
        # Without the cause: its text may contain a signature.
        raise SettingsError(f"invalid {TASK_TRIALS_VARIABLE}: {type(err).__name__}") from None
    return group_id, trials


def _context_of(task: TaskContext, trial: _Trial) -> tuple[TaskContext, RunRecords]:
    """Return the context of one trial, which has access to its own run only, and its records."""
    access = load_access(trial.environment, task.retry_budget, task.redactor)
    own = replace(
        task,
        node=replace(task.node, run_id=trial.run_id),
        runs=access.runs,
        inputs=access,
        termination=_TrialTermination(task.termination),
    )
    return own, RunRecords(access.runs, RunPaths(trial.run_id))


def _run_trial(
    task: TaskContext,
    trial: _Trial,
    records: RunRecords,
    run_task: RunTask,
    task_ends: Callable[[], bool],
) -> tuple[int, bool]:
    """Execute attempts of a trial, as often as its `retries` allow.

    `task_ends` returns True if the whole task must end.

    Returns:
        The last exit code, and whether the trial has a result.
    """
    left = None
    while True:
        code = run_task(task, trial.environment, records)
        if not code:
            return code, True
        if left is None:
            left = records.spec.retries if records.spec is not None else 0
        must_end = task_ends() or records.has_lost_storage
        if not must_end and records.exit_code() is not None:
            return code, True
        if must_end or not left:
            return code, False
        left -= 1
        logger.info("the next attempt of %s runs here", trial.run_id)


class _TrialTermination(Termination):
    """The request to end one trial: because the task has to end, or the trial was cancelled."""

    def __init__(self, task: Termination) -> None:
        super().__init__(on_first=lambda: None)
        self._task = task

    @property
    def requested(self) -> bool:
        """Return True if the trial must end."""
        return self._task.requested or super().requested


class _CancelWatch(threading.Thread):
    """Ends the running trial if a client has written its result, which is how it is cancelled.

    The task of other runs is terminated then. This one goes on to the next trial.
    """

    def __init__(self) -> None:
        super().__init__(name="cancelled trials", daemon=True)
        self._changed = threading.Event()
        self._trial: tuple[TaskContext, RunRecords] | None = None

    def follow(self, task: TaskContext | None, records: RunRecords | None) -> None:
        """Watch another trial from now on, or none."""
        self._trial = (task, records) if task is not None and records is not None else None

    def run(self) -> None:
        """Poll until the process ends."""
        while not self._changed.wait(CANCEL_POLL_S):
            if (trial := self._trial) is None:
                continue
            task, records = trial
            try:
                if task.runs.head(records.paths.result) is not None and self._trial is trial:
                    logger.info("run %s has a result: it ends", records.paths.run_id)
                    task.termination.request()
            except StorageRequestError as err:
                logger.warning("whether the trial was cancelled is not known: %s", err)


class _TaskFolder:
    """The folder of the task, which has the files of one trial at a time.

    Which one is recorded on the node, where scripts cannot write: an agent that starts again finds
    the output that the killed one did not ship, and no file of another trial.
    """

    def __init__(
        self, work_dir: Path, task_dir: str, node: NodeSweep, trials: Sequence[_Trial]
    ) -> None:
        self._work_dir = work_dir
        self._task_dir = Path(task_dir) if task_dir == str(work_dir.parent) else None
        self._of_batch = self._list_outside()
        self._node = node
        self._task_id = trials[0].run_id
        # `killed` agents of the trial on this node ended neither the trial nor themselves.
        self._trial, self.killed = node.trial_in_folder(self._task_id)
        self._is_used = False
        ids = [trial.run_id for trial in trials]
        self._spares = [_Spare(work_dir / name) for name in (CODE_ARCHIVE, AGENT_FILE)]
        # The trials before this one have been run, and usually have a result.
        self.resumed_at = ids.index(self._trial) if self._trial in ids else 0

    def give_to(self, trial: _Trial) -> bool:
        """Delete the files of another trial, unless this one was the last one here.

        Return True if the folder is empty, and no process of another trial is left.

        Raises:
            OSError: files cannot be deleted.
        """
        if self._trial == trial.run_id:
            self._record(trial.run_id, self.killed + 1)
            return False
        if not self._is_used:  # else the last trial here has ended with all its processes
            kill_remaining_processes(self._work_dir, self._work_dir / "logs")
        for folder in (self._work_dir.parent, self._work_dir):
            with suppress(OSError):  # a script may have changed it
                folder.chmod(folder.stat().st_mode | stat.S_IRWXU)
        found = [path for path in self._work_dir.iterdir() if path.name not in _KEPT]
        for path in [*found, *(self._list_outside() - self._of_batch)]:
            _remove(path)
        for spare in self._spares:
            spare.restore()
        self.killed = 0
        self._record(trial.run_id, 1)
        self._is_used = True
        return True

    def _list_outside(self) -> frozenset[Path]:
        """Return what is beside the working directory, and in folders there.

        Before the first script runs, only Batch has written there.
        """
        if self._task_dir is None:
            return frozenset()
        found = [path for path in _entries(self._task_dir) if path != self._work_dir]
        folders = [path for path in found if path.is_dir() and not path.is_symlink()]
        return frozenset([*found, *(path for folder in folders for path in _entries(folder))])

    def leave(self) -> None:
        """Record that this agent ended by itself."""
        if self._trial:
            self._record(self._trial, self.killed)

    def forget(self) -> None:
        """Let the next agent look at all trials again."""
        self._record("", 0)

    def _record(self, run_id: str, killed: int) -> None:
        self._trial = run_id
        self._node.record_trial(self._task_id, run_id, killed)


class _Spare:
    """A copy of a file that every trial of the task needs, and that a script may have changed.

    The copy has no name, so that it is gone when the agent ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy: IO[bytes] | None = None
        self._seen = self._identify()
        with suppress(OSError):  # no file, or no space: a script that changes it harms the others
            self._mode = path.stat().st_mode
            copy = tempfile.TemporaryFile()  # noqa: SIM115 - open until the agent ends
            with path.open("rb") as file:
                shutil.copyfileobj(file, copy)
            self._copy = copy

    def restore(self) -> None:
        """Write the file again if it has changed. Raise OSError if that fails."""
        if self._copy is None or (seen := self._identify()) == self._seen:
            return
        logger.warning("%s was changed by a script and is restored", self._path.name)
        if seen is not None:
            _remove(self._path)
        self._copy.seek(0)
        with self._path.open("xb") as file:
            shutil.copyfileobj(self._copy, file)
        self._path.chmod(stat.S_IMODE(self._mode))
        self._seen = self._identify()

    def _identify(self) -> tuple[int, ...] | None:
        """Return what no script can change without a trace, or None without the file."""
        with suppress(OSError):
            found = self._path.lstat()
            return found.st_ino, found.st_ctime_ns, found.st_size, found.st_mode
        return None


def _entries(folder: Path) -> list[Path]:
    """Return what is in a folder; nothing if it cannot be read."""
    with suppress(OSError):
        return list(folder.iterdir())
    return []


def _remove(path: Path) -> None:
    """Delete a file, a link or a folder, if it exists."""
    if path.is_dir() and not path.is_symlink():
        remove_tree(path)
    else:
        path.unlink(missing_ok=True)
