"""The stage `prepare`: once on a node for all tasks of a job, or in each task."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.node.failures import PREPARE_STAGE, StageFailedError
from runner.node.inputs.data_cache import node_lock
from runner.node.script import command
from runner.node.script.streams import EventLog
from runner.node.script.workspace import HOOKS_FOLDER, AttemptDirs, boot_id
from runner.node.settings import NodeSettings
from runner.protocol.run_spec import RunSpec
from runner.protocol.task import WORKER_LOG

_EACH_TASK = "each task"
_CONSEQUENCE = "so each task of the job runs it"
_AGENT_NAMES = ("logs", HOOKS_FOLDER, WORKER_LOG)
# Files that programs write on the side, and that no script reads.
_IGNORED_SUFFIXES = ("/__pycache__", "/.wget-hsts", "/.cache/pip", "/.cache/uv")
MAX_ENTRIES = 200_000

_States = dict[str, tuple[int, ...]]


class NodePreparation:
    """The record, in a file on this node, of whether `prepare` has to run in each task of a job.

    `run` holds the lock `lock`. The file contains either the ID of the start of the
    node for which one task ran the commands for all, or that each task runs them. The latter is
    final: once the commands changed the folders of one task, later tasks do not decide anew,
    because a retry in the same folders may write nothing new.

    Args:
        node: the node.
        spec: the run of this task.
        own: the folders that belong to this task alone.
        events: the events of the attempt.
    """

    def __init__(
        self, node: NodeSettings, spec: RunSpec, own: Sequence[Path], events: EventLog
    ) -> None:
        self._work_dir = node.work_dir
        self._spec = spec
        self._events = events
        identity = "\0".join((spec.job_id, spec.code.sha256, spec.prepare or ""))
        digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
        self._record = node.shared_dir / "runner" / "prepared" / digest
        self._is_container = spec.image is not None
        self._own = own
        self._skipped = {str(node.work_dir / name) for name in _AGENT_NAMES}
        self._done = f"boot {boot_id()}"
        self.lock = self._record.with_suffix(".lock")

    def run(
        self,
        dirs: AttemptDirs,
        environment: Mapping[str, str],
        left_s: Callable[[], float | None],
        *,
        must_stop: Callable[[], bool],
        check: Callable[[], None],
        check_stop: Callable[[command.ScriptResult], None],
        protect: Callable[[], None] | None,
    ) -> None:
        """Run the stage unless it is done. The output of the commands goes to the run's stderr.

        Args:
            dirs: the folders of the attempt.
            environment: the environment of the commands, the same as that of the script.
            left_s: returns the time limit.
            must_stop: returns True if the commands must end.
            check: raises if the task must end.
            check_stop: raises why commands were stopped.
            protect: see `command.run_command`.
        """
        variables = {**environment, command.SCRIPT_OF_VARIABLE: str(self._work_dir)}
        limit = f"the time limit of {self._spec.timeout_s or 0:.15g} s"
        with self._events.stage(PREPARE_STAGE, "preparing the node") as report:

            def while_waiting() -> None:
                report("another task is preparing the node")
                check()
                if left_s() == command.MIN_LIMIT_S:
                    raise _error(f"waited for that of another task until {limit}")

            with node_lock(self.lock, while_waiting):
                if not self._is_container and self._recorded() == self._done:
                    report("the node is prepared")
                    return
                with self.record(self._events.summarise):
                    ended = command.run_command(
                        ("/bin/sh", "-e", "-c", self._spec.prepare or ""),
                        cwd=dirs.code,
                        environment=variables,
                        stdout=dirs.stderr,
                        stderr=dirs.stderr,
                        timeout_s=left_s(),
                        terminated=must_stop,
                        protect=protect,
                    )
                    check()
                    if ended.stopped:
                        check_stop(ended)
                    if ended.timed_out:
                        raise _error(f"was stopped after {limit}")
                    if ended.exit_code:
                        raise _error(f"exited with code {ended.exit_code}")

    @contextmanager
    def record(self, notify: Callable[[str], None]) -> Generator[None]:
        """Run the block, which runs the commands, and record whether other tasks need them too.

        Args:
            notify: receives the reason if each task has to run them.
        """
        recorded = self._recorded()
        if self._is_container:
            yield
            return
        if recorded is not None and not recorded.startswith("boot "):
            yield
            notify(f"prepare left files in folders of one task, {_CONSEQUENCE}")
            return
        before = self._states()
        self._record.write_text(_EACH_TASK, encoding="utf-8")  # valid if the agent is killed
        has_succeeded = False
        try:
            yield
            has_succeeded = True
        finally:
            after = self._states()
            if before is None or after != before:
                changed = {*(after or {}).items()} ^ {*(before or {}).items()}
                name = f" ({min(changed)[0]})" if changed else ""
                notify(f"prepare left files in folders of this task{name}, {_CONSEQUENCE}")
            elif has_succeeded:
                self._record.write_text(self._done, encoding="utf-8")
            else:
                self._record.unlink()

    def _recorded(self) -> str | None:
        try:
            return self._record.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def _states(self) -> _States | None:
        """Return the state of each file in the folders of this task; None if there are too many."""
        found: _States = {}
        for root in self._own:
            for folder, names, files in os.walk(root):
                names[:] = [name for name in names if self._is_compared(f"{folder}/{name}")]
                for path in (f"{folder}/{name}" for name in (*names, *files)):
                    state = _state(path) if self._is_compared(path) else None
                    if state is not None:
                        found[os.path.relpath(path, root)] = state
                if len(found) > MAX_ENTRIES:
                    return None
        return found

    def _is_compared(self, path: str) -> bool:
        return path not in self._skipped and not path.endswith(_IGNORED_SUFFIXES)


def _error(how: str) -> StageFailedError:
    message = f"`prepare` on this node {how}"
    return StageFailedError(PREPARE_STAGE, "PreparationFailed", message)


def _state(path: str) -> tuple[int, ...] | None:
    try:
        found = os.lstat(path)
    except OSError:  # it was removed meanwhile
        return None
    if stat.S_ISDIR(found.st_mode):
        return None if path.endswith("/.cache") else (found.st_mode,)
    return found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
