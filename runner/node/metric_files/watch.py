"""Find the metric files of a script while it runs, and read what is new in them.

The folders that the script writes to are searched again and again. What a search costs decides when
the next one begins, so that it takes at most `SHARE` of the time of one core.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runner.node.metric_files.aim_folders import AskPython
from runner.node.metric_files.formats import Opened, may_have_metrics, open_reader
from runner.node.metric_files.reading import FileReader, FoundValue
from runner.node.metric_files.tables import IsMetric

logger = logging.getLogger(__name__)

EVERY_S = 2.0
SHARE = 0.02  # of the time of one core
FINISH_S = 30.0  # time limit for the last search
BEFORE_S = 10.0  # time limit for what exists before the script
MAX_FOLDERS = 5_000
MAX_FILES = 2_000  # that may be of a format
# The times of a folder that changes may have this resolution.
_SETTLED_NS = 2 * 10**9
_SKIPPED = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "lost+found"})
_PHASES = frozenset({"train", "training", "val", "valid", "validation", "test", "eval", "dev"})

_AIM = ".aim"

_DATABASES = (".db", ".sqlite", ".sqlite3")


class AddValue(Protocol):
    """Writes a value of a metric, as `MetricLog.add`."""

    def __call__(  # noqa: D102 - described above
        self, name: str, value: float, step: int | None, *, source: str, wait: bool
    ) -> None: ...


@dataclass
class _Folder:
    """The entries of a folder that count, and the time of its last change."""

    changed_ns: int
    folders: tuple[str, ...]
    files: tuple[str, ...]


class _File:
    """A file that may have metrics, and its reader once its format is known.

    Attributes:
        source: the source of its values; empty while the format is not known.
        names: the names under which its metrics are reported.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.source = ""
        self.names: dict[str, str] = {}
        self._state: tuple[int, int, int] | None = None  # size, time of change, inode
        self._reader: FileReader | None = None
        self._is_damaged = False

    def read(self, opened: Opened, *, is_last: bool = False) -> Iterator[FoundValue]:
        """Yield what is new, and if `is_last` what is only known at the end. Raise no error."""
        try:
            yield from self._read(opened)
            if is_last and self._reader is not None and not self._is_damaged:
                yield from self._reader.finish()
        except OSError as err:
            logger.info("metrics in %s are read later: %s", self.path, err)
        except (ValueError, ArithmeticError, LookupError, TypeError, RecursionError) as err:
            self.leave_out(err)

    def changed_ns(self) -> int:
        """Return the time of the last change; 0 if it is not known."""
        try:
            return os.stat(self.path).st_mtime_ns  # noqa: PTH116 - paths are text here
        except OSError:
            return 0

    def leave_out(self, why: object) -> None:
        """Read no more values."""
        self._is_damaged = True
        logger.warning("no more metrics are read from %s: %s", self.path, why)

    def _read(self, opened: Opened) -> Iterator[FoundValue]:
        found = os.stat(self.path)  # noqa: PTH116 - paths are text here
        state = (found.st_size, found.st_mtime_ns, found.st_ino)
        if state == self._state or self._is_damaged or not stat.S_ISREG(found.st_mode):
            return
        if self._reader is None:
            known = open_reader(Path(self.path), opened)
            if known is None:
                self._state = state
                return
            self.source, self._reader = known
        yield from self._reader.read()
        # A database has journals: it may change while its file does not.
        self._state = None if self.path.endswith(_DATABASES) else state


class MetricFiles(threading.Thread):
    """The thread that reads the metric files of a script. `finish` reads the rest.

    What is in files that exist before the thread starts is not reported: it came with the code, or
    with the checkpoint from which the script continues.

    Args:
        folders: returns the folders that are searched.
        add: gets each value.
        is_metric: says which names in files with other content are metrics.
        is_needless: ends the search when it returns True.
        ask: runs a program with the Python of the script, which reads the databases of Aim.
    """

    def __init__(
        self,
        folders: Callable[[], Iterable[str]],
        add: AddValue,
        is_metric: IsMetric,
        is_needless: Callable[[], bool] = lambda: False,
        ask: AskPython | None = None,
    ) -> None:
        super().__init__(name="metric files", daemon=True)
        self._places = folders
        self._add = add
        self._is_needless = is_needless
        self._opened = Opened(is_metric, ask)
        self._folders: dict[str, _Folder] = {}
        self._files: dict[str, _File] = {}
        self._owners: dict[tuple[str, str], str] = {}  # the folder that reported a name first
        self._ending = threading.Event()
        self._deadline: float | None = None
        self._is_ready = threading.Event()
        self._began_ns = 0
        self.spent_s = 0.0  # CPU time

    def start(self) -> None:
        """Start the thread, and wait until it has read what exists, at most BEFORE_S."""
        self._began_ns = time.time_ns()
        super().start()
        self._is_ready.wait(BEFORE_S)

    def run(self) -> None:
        """Thread body: skip what exists, search until `finish`, then once more."""
        try:
            self._skip_existing()
            wait_s = EVERY_S
            while not self._ending.wait(wait_s) and not self._is_needless():
                began_s = time.thread_time()
                self.search()
                took_s = time.thread_time() - began_s
                self.spent_s += took_s
                wait_s = max(EVERY_S, took_s / SHARE)
            if self._ending.is_set() and not self._is_needless():
                self.search(is_last=True)
        except Exception:  # the metrics are additional: the script must not fail
            logger.exception("metric files are no longer read")

    def _skip_existing(self) -> None:
        """Read what was written before the script, without a report.

        The script does not wait longer than BEFORE_S for it. A file that was not read until then is
        left out: which of its values are new is not known.
        """
        until = time.monotonic() + BEFORE_S
        try:
            for path in list(self._iterate_files()):
                file = self._files[path] = _File(path)
                if file.changed_ns() > self._began_ns:  # by the script, which was not waited for
                    del self._files[path]
                    continue
                for _ in file.read(self._opened):
                    if time.monotonic() > until:
                        break
                if time.monotonic() > until:
                    file.leave_out(f"it is not read within {BEFORE_S:g} s")
        except Exception:
            logger.exception("existing metric files could not be read")
        finally:
            self._is_ready.set()

    def finish(self, timeout_s: float | None = None) -> None:
        """Read what is left, within the time, and stop."""
        limit_s = FINISH_S if timeout_s is None else min(timeout_s, FINISH_S)
        self._deadline = time.monotonic() + limit_s
        self._ending.set()
        if self.is_alive():
            self.join(limit_s)

    def search(self, *, is_last: bool = False) -> None:
        """Search the folders once, and report what is new in their metric files."""
        for path in list(self._iterate_files()):
            if self._deadline is not None and time.monotonic() > self._deadline:
                return
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = _File(path)
            for name, value, step in file.read(self._opened, is_last=is_last):
                shown = file.names.get(name) or self._shown_name(file, name)
                self._add(shown, value, step, source=file.source, wait=True)

    def _iterate_files(self) -> Iterator[str]:
        """Yield the files that may have metrics, at most MAX_FILES."""
        waiting = [os.path.realpath(place) for place in self._places()]
        seen: set[str] = set()
        count = 0
        while waiting and len(seen) < MAX_FOLDERS:
            path = waiting.pop()
            if path in seen:
                continue
            seen.add(path)
            folder = self._list(path)
            if folder is None:
                continue
            waiting.extend(folder.folders)
            for file in folder.files:
                count += 1
                if count > MAX_FILES:
                    return
                yield file

    def _list(self, path: str) -> _Folder | None:
        try:
            changed_ns = os.stat(path).st_mtime_ns  # noqa: PTH116 - paths are text here
            known = self._folders.get(path)
            if known is not None and known.changed_ns == changed_ns:
                return known
            folders: list[str] = []
            files: list[str] = []
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        if _is_searched(path, entry.name):
                            folders.append(entry.path)
                    elif may_have_metrics(entry.path) and entry.is_file(follow_symlinks=False):
                        files.append(entry.path)
        except OSError:
            return None
        found = _Folder(changed_ns, tuple(sorted(folders)), tuple(sorted(files)))
        if time.time_ns() - changed_ns > _SETTLED_NS:
            self._folders[path] = found
        return found

    def _shown_name(self, file: _File, name: str) -> str:
        """Return the name of a metric, with its folder if another folder has the same name."""
        path = file.path
        parts = path.split("/")
        folder, label = "/".join(parts[:-1]), parts[-2]
        if file.source == "mlflow" and "/metrics/" in path:
            run, _, _ = path.rpartition("/metrics/")
            folder, label = run, run.rpartition("/")[2][:8]
        elif file.source == "wandb":
            label = label.rpartition("-")[2]
        elif file.source == "trainer":
            folder = "trainer"
        is_phase = file.source == "tensorboard" and label.lower() in _PHASES
        is_phase = is_phase and _PHASES.isdisjoint(name.lower().replace("_", "/").split("/"))
        is_other = self._owners.setdefault((file.source, name), folder) != folder
        shown = f"{label}/{name}" if is_phase or is_other else name
        file.names[name] = shown
        return shown


def _is_searched(folder: str, name: str) -> bool:
    """Return True for folders with files of tools. The databases of Aim are read as one file."""
    if folder.endswith(f"/{_AIM}") or name in _SKIPPED:
        return False
    return name == _AIM or not name.startswith(".")
