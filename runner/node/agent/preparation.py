"""Whether `prepare` has to run: once on a node for all tasks of a job, or in each of them."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from runner.node.script.workspace import HOOKS_FOLDER
from runner.node.settings import NodeSettings, boot_id
from runner.protocol.run_spec import RunSpec
from runner.protocol.task import WORKER_LOG

_EACH_TASK = "each task"
_SO = "so each task of the job runs it"
# Of the agent, and what programs write by the way and no script reads.
_NOT_SEARCHED = ("logs", HOOKS_FOLDER, WORKER_LOG)
_BY_THE_WAY = ("/__pycache__", "/.wget-hsts", "/.cache/pip", "/.cache/uv")
MAX_ENTRIES = 200_000

_States = dict[str, tuple[int, ...]]


class NodePreparation:
    """What the tasks of a job record about `prepare` on this node, in a file.

    The other methods are to be called by the holder of the lock `lock`. The file says that each
    task runs the commands, or when the node was started that they have prepared. Once a task found
    changes in its own folders, this stays so: a retry in these folders may write nothing new.
    """

    def __init__(self, node: NodeSettings, spec: RunSpec, own: Sequence[Path]) -> None:
        of = "\0".join((spec.job_id, spec.code.sha256, spec.prepare or ""))
        digest = hashlib.sha256(of.encode()).hexdigest()[:32]
        self._record = node.shared_dir / "runner" / "prepared" / digest
        self._is_container = spec.image is not None
        self._own = own
        self._skipped = {str(node.work_dir / name) for name in _NOT_SEARCHED}
        self._done = f"boot {boot_id()}"
        self.lock = self._record.with_suffix(".lock")

    def is_done(self) -> bool:
        """Return True if this task need not run the commands."""
        return not self._is_container and self._recorded() == self._done

    @contextmanager
    def record(self, say: Callable[[str], None]) -> Generator[None]:
        """Run the commands as the block, and record whether other tasks need them.

        Args:
            say: receives why each task runs them, if this was found.
        """
        recorded = self._recorded()
        if self._is_container:
            yield
            return
        if recorded is not None and not recorded.startswith("boot "):
            yield
            say(f"prepare left files in folders of one task, {_SO}")
            return
        before = self._states()
        self._record.write_text(_EACH_TASK, encoding="utf-8")  # if the agent is killed
        has_succeeded = False
        try:
            yield
            has_succeeded = True
        finally:
            after = self._states()
            if before is None or after != before:
                changed = {*(after or {}).items()} ^ {*(before or {}).items()}
                name = f" ({min(changed)[0]})" if changed else ""
                say(f"prepare left files in folders of this task{name}, {_SO}")
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
        """Return the entries of the folders of this task alone, None if they are too many."""
        found: _States = {}
        for root in self._own:
            for folder, names, files in os.walk(root):
                names[:] = [name for name in names if self._counts(f"{folder}/{name}")]
                for path in (f"{folder}/{name}" for name in (*names, *files)):
                    state = _state(path) if self._counts(path) else None
                    if state is not None:
                        found[os.path.relpath(path, root)] = state
                if len(found) > MAX_ENTRIES:
                    return None
        return found

    def _counts(self, path: str) -> bool:
        return path not in self._skipped and not path.endswith(_BY_THE_WAY)


def _state(path: str) -> tuple[int, ...] | None:
    try:
        found = os.lstat(path)
    except OSError:  # it was removed meanwhile
        return None
    if stat.S_ISDIR(found.st_mode):
        return None if path.endswith("/.cache") else (found.st_mode,)
    return found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino
