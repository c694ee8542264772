"""Run the script in its own process group: forward SIGTERM, limit its time, kill its orphans.

The module also records which files the script's processes have open for writing, because a killed
process leaves such a file incomplete.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import shlex
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import BinaryIO

from runner.node.failures import COMMAND_STAGE, StageFailedError
from runner.node.script.protection import (
    forget_namespaces,
    namespace_of_script,
    namespaces_file,
    recorded_namespaces,
    start_protected,
)

# From <sys/prctl.h> of Linux. On other systems, the functions that use them do nothing.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

# Contains the task's folder. All processes of a script inherit it, which identifies them.
SCRIPT_OF_VARIABLE = "RUNNER_SCRIPT_OF"

KILL_WITHIN_S = 5.0
POLL_S = 0.02


def dies_with_parent() -> Callable[[], None]:
    """Return a function that a new child calls, so that the kernel kills it if its parent dies.

    Call this before the fork, because imports and locks are unsafe between fork and exec.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def bind() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the call, which then has no effect
            os._exit(SIGNAL_EXIT_CODE + signal.SIGKILL)

    return bind


@contextmanager
def reparent_orphans() -> Generator[None]:
    """Adopt descendants whose parent ends, for the duration of the block.

    The caller has to collect adopted processes within the block.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def children() -> frozenset[int]:
    """Return the process IDs of this process's children, without its helpers."""
    if not sys.platform.startswith("linux"):
        return frozenset()
    me = os.getpid()
    with _helpers_lock:
        if (listed := _listed_children(me)) is not None:
            return listed - _helpers
        return frozenset(pid for pid in _processes() if _parent(pid) == me) - _helpers


def _listed_children(pid: int) -> frozenset[int] | None:
    """Return the children of a process from the lists of its threads, or None without such lists.

    They need CONFIG_PROC_CHILDREN of the kernel. While children end, one that follows them may be
    missing in a list, but a list that is empty has none: proc_pid_children(5).
    """
    found: set[int] = set()
    folder = f"/proc/{pid}/task"
    try:
        threads = os.listdir(folder)  # noqa: PTH208 - faster
        for thread in threads:
            found.update(map(int, _read(f"{folder}/{thread}/children").split()))
    except OSError:  # a thread or the process has ended, or there are no such files
        return None
    return frozenset(found)


def descendants(pid: int) -> frozenset[int]:
    """Return the process IDs of all descendants of a process, without helpers."""
    if not sys.platform.startswith("linux"):
        return frozenset()
    parents = {each: _parent(each) for each in _processes_of_others()}
    found: set[int] = set()
    family = {pid}
    while family:
        family = {each for each, parent in parents.items() if parent in family} - found
        found |= family
    return frozenset(found)


def _processes_of_others() -> set[int]:
    """Return the process IDs of this machine, without helpers."""
    with _helpers_lock:
        return set(_processes()) - _helpers


_helpers: set[int] = set()  # children of the agent that are not the script's
_helpers_lock = threading.Lock()  # held from the start of one until it is in the set


def start_helper(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process that may outlive the script, because the agent needs it.

    It is a helper until `forget_helper` is called, which comes after its end.
    """
    with _helpers_lock:
        process = start()
        _helpers.add(process.pid)
    return process


def forget_helper(process: subprocess.Popen[bytes]) -> None:
    """Say that a helper has ended: another process may get its ID."""
    _helpers.discard(process.pid)


@contextmanager
def own_helper(
    start: Callable[[], subprocess.Popen[bytes]],
) -> Generator[subprocess.Popen[bytes]]:
    """Start a helper, and wait for its end."""
    process = start_helper(start)
    try:
        yield process
    finally:
        process.wait()
        forget_helper(process)


def kill_children(keep: frozenset[int]) -> None:
    """Kill and collect all children, also adopted ones, except those in `keep` and helpers."""
    _kill(lambda: children() - keep)


def kill_remaining_processes(work_dir: Path, logs: Path) -> None:
    """Kill processes of this task's script that remained after its agent was killed.

    They are recognised by their environment, by their output to a file in `logs`, or by their user
    namespace, which they cannot leave. Processes of another user are not found.
    """
    if sys.platform.startswith("linux"):
        mark = os.fsencode(f"{SCRIPT_OF_VARIABLE}={work_dir}")
        below = _root(logs)
        spaces = recorded_namespaces(os.environ)

        def is_remaining(pid: int) -> bool:
            if mark in _environment(pid) or _prints_below(pid, below):
                return True
            return bool(spaces) and namespace_of_script(pid) in spaces

        _kill(lambda: frozenset(filter(is_remaining, _processes())))
        if spaces and (record := namespaces_file(os.environ)):
            record.unlink(missing_ok=True)


def _prints_below(pid: int, below: str) -> bool:
    """Return True if stdout or stderr of a process is a file whose path starts with `below`."""
    for number in (1, 2):
        with suppress(OSError):
            if os.readlink(f"/proc/{pid}/fd/{number}").startswith(below):  # noqa: PTH115
                return True
    return False


def _kill(find: Callable[[], frozenset[int]]) -> None:
    """Kill the processes that `find` returns until it returns none, or for KILL_WITHIN_S."""
    until = time.monotonic() + KILL_WITHIN_S
    while left := find():
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > until:  # after the signals, so that a slow machine sends them too
            return
        time.sleep(POLL_S)


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - faster


def _environment(pid: int) -> list[bytes]:
    """Return the initial environment of a process; empty if the process has ended."""
    try:
        return _read(f"/proc/{pid}/environ").split(b"\0")
    except OSError:
        return []


def _read(path: str) -> bytes:
    """Return the content of a file of /proc. Path would be slow for hundreds of them."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        return file.readall()


@dataclass(frozen=True)
class _ProcessState:
    """Fields of /proc/PID/stat. `start` is different if another process reuses the ID."""

    state: str
    parent: int
    group: int
    flags: int
    start: int

    @property
    def has_ended(self) -> bool:
        """Return True for a zombie, and for a process that is exiting."""
        return self.state in "ZX" or bool(self.flags & PF_EXITING)


def _process_state(pid: int) -> _ProcessState | None:
    """Return the state of a process, or None if it is gone.

    Raises:
        OSError: this process has no file descriptor or memory left to read the state.
    """
    fields = _stat_fields(pid)
    if not fields:
        return None
    return _ProcessState(fields[0].decode(), *(int(fields[index]) for index in (1, 2, 6, 19)))


def _stat_fields(pid: int) -> list[bytes]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process is gone.

    Raises:
        OSError: see `_process_state`.
    """
    try:
        text = _read(f"/proc/{pid}/stat")
    except OSError as err:
        if err.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
        return []
    return text.rpartition(b")")[2].split()  # the name may contain parentheses


def _parent(pid: int) -> int:
    with suppress(OSError):
        fields = _stat_fields(pid)
        return int(fields[1]) if fields else 0
    return 0


# A flag in /proc/PID/stat: the process is ending, by exit or by a signal (<linux/sched.h>).
PF_EXITING = 0x4
SCAN_EVERY_S = 0.25
MAX_SCAN_SHARE = 0.02  # scans take at most this share of a CPU
# A file that is open for longer is considered a log or a database, not one that is being saved.
KEPT_OPEN_S = 60.0
# The minimum time for which files of an ended process count as incomplete. If the process was
# killed, its parent has probably failed by then.
MIN_DOUBT_S = 5.0

FileId = tuple[int, int]  # device and inode


def files_open_for_writing(folder: Path) -> frozenset[FileId]:
    """Return the files below a folder that other processes of this user have open for writing.

    Linux only.
    """
    found: set[FileId] = set()
    root = _root(folder)
    others = set(_processes()) - {os.getpid()} if _sees_itself() else set[int]()
    for pid in others:
        with suppress(OSError):  # the process ended, or belongs to another user
            found |= _open_for_writing(pid, root).keys()
    return frozenset(found)


def _sees_itself() -> bool:
    """Return True if /proc exists, and belongs to the PID namespace of this process."""
    try:
        return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 - it is a name
    except OSError:
        return False


def _root(folder: Path) -> str:
    return f"{os.path.realpath(folder)}{os.sep}"


def _open_for_writing(pid: int, root: str) -> dict[FileId, bool]:
    """Return the files below `root` that a process writes, with True if it appends to the file.

    Renamed and deleted files count too. Names are compared first, because asking for the state of a
    file elsewhere may take forever if it is on a network drive.

    Raises:
        OSError: the process ended, or belongs to another user.
    """
    descriptors = f"/proc/{pid}/fd"
    found: dict[FileId, bool] = {}
    for number in os.listdir(descriptors):  # noqa: PTH208 - Path objects would be slow
        try:
            if not os.readlink(f"{descriptors}/{number}").startswith(root):  # noqa: PTH115
                continue
            flags = _open_flags(pid, number)
            if flags & os.O_ACCMODE == os.O_RDONLY:
                continue
            file = os.stat(f"{descriptors}/{number}")  # noqa: PTH116
        except OSError:
            continue  # closed meanwhile
        if stat.S_ISREG(file.st_mode):
            found[file.st_dev, file.st_ino] = bool(flags & os.O_APPEND)
    return found


def _open_flags(pid: int, descriptor: str) -> int:
    lines = _read(f"/proc/{pid}/fdinfo/{descriptor}").splitlines()
    flags = (int(line.split()[1], 8) for line in lines if line.startswith(b"flags:"))
    return next(flags, os.O_RDONLY)


@dataclass
class _Writer:
    """A process of the script. `files` is the result of `_open_for_writing` in the last scan."""

    pid: int
    start: int
    seen_at: float
    files: dict[FileId, bool] = field(default_factory=dict[FileId, bool])

    def has_ended(self) -> bool:
        found = _process_state(self.pid)
        return found is None or found.start != self.start or found.has_ended


class OpenWriters:
    """Records which files below a folder the script's processes have open for writing.

    A process that is killed leaves the file that it was writing incomplete, and the file does not
    show that. Therefore the open files of the script's processes are read several times a second.
    Nothing is recorded without the /proc of this namespace. Methods are thread-safe. `clock`
    returns monotonic seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._script: int | None = None
        self._lock = threading.Lock()
        self._writers: dict[int, _Writer] = {}
        self._others: set[int] = set()  # processes that are not the script's
        self._open_since: dict[FileId, float] = {}
        self._open_at_ns: dict[FileId, int] = {}  # when the file was last seen open
        self._incomplete_until: dict[FileId, float] = {}  # files of ended processes
        self._ended: _Writer | None = None  # the script's first process
        self._scan_at: float | None = None  # when the next scan is due; None means now
        self.scanned_ns: int | None = None  # the last scan while the script ran (`time.time_ns`)

    def start(self, pid: int) -> None:
        """Begin to record. The script runs as process `pid`, in its own process group."""
        if _sees_itself():
            self._script = pid
            with self._lock, suppress(OSError):
                found = _process_state(pid)
                if found is not None and not found.has_ended:
                    self._writers[pid] = _Writer(pid, found.start, self._clock())
            self.scan_if_due()

    def scan_if_due(self) -> None:
        """Scan if the last scan was some time ago and no other thread is scanning."""
        is_due = self._scan_at is None or self._clock() >= self._scan_at
        if is_due and self._lock.acquire(blocking=False):
            try:
                with suppress(OSError):  # the next scan may succeed
                    self._scan()
            finally:
                self._lock.release()

    def scan(self) -> None:
        """Record which files are open now. Raise OSError if this process has no descriptor left."""
        with self._lock:
            self._scan()

    def incomplete(self) -> dict[FileId, int]:
        """Return the files that were, or may have been, incomplete at the last scan.

        These are the files that are open for writing, except those that have been open for
        KEPT_OPEN_S, and the files that were open when their writer was killed. Only for the first
        process of the script is it known how it ended. The files of another process count as
        incomplete for as long as that process ran, but at least MIN_DOUBT_S and at most
        KEPT_OPEN_S. If it was killed, the script most likely fails within that time.

        Returns:
            When each file was last seen open (`time.time_ns`). A file that the script renamed since
            then is complete.
        """
        now = self._clock()
        with self._lock:
            found = {file for file in self._open_since if not self._is_kept_open(file, now)}
            found |= {file for file, until in self._incomplete_until.items() if now < until}
            return {file: self._open_at_ns[file] for file in found}

    def end(self, *, killed: bool) -> None:
        """Record the end of the script's first process. The others are killed afterwards.

        Args:
            killed: True if a signal ended it. Otherwise, the files that it left open are complete.
        """
        with self._lock:
            with suppress(OSError):
                self._scan()
            for writer in self._writers.values():
                # If the script exited, a log that a remaining process inherited is complete.
                self._mark_incomplete(writer.files, float("inf"), except_logs=not killed)
            if killed and self._ended is not None:
                self._mark_incomplete(self._ended.files, float("inf"))
            self._writers.clear()
            self._open_since.clear()
            self._script = None

    def _scan(self) -> None:
        if self._script is None:
            return
        began, began_ns = self._clock(), time.time_ns()
        root = _root(self._folder)
        self._find_writers(began)
        closed: set[FileId] = set()
        ended = [w for w in self._writers.values() if not self._still_runs(w, root, closed)]
        for writer in ended:
            del self._writers[writer.pid]
            if writer.pid == self._script:
                self._ended = writer
        files = {file for writer in self._writers.values() for file in writer.files}
        if self._ended is not None:
            files |= self._ended.files.keys()
        for file in closed:
            self._incomplete_until.pop(file, None)
        for writer in ended:  # a shared file is still open in, or was closed by, another process
            left = {f: appends for f, appends in writer.files.items() if f not in files | closed}
            ran_s = began - writer.seen_at
            self._mark_incomplete(left, began + min(max(ran_s, MIN_DOUBT_S), KEPT_OPEN_S))
        self._open_since = {file: self._open_since.get(file, began) for file in files}
        known = files | self._incomplete_until.keys()
        self._open_at_ns = {f: at_ns for f, at_ns in self._open_at_ns.items() if f in known}
        if self._script in self._writers:
            self.scanned_ns = began_ns
        took_s = self._clock() - began
        self._scan_at = began + max(SCAN_EVERY_S, took_s / MAX_SCAN_SHARE)

    def _find_writers(self, now: float) -> None:
        """Add new processes of the script: its group, descendants, and adopted orphans."""
        me = os.getpid()
        if self._is_alone(me):
            self._others.clear()  # until the next look at all processes, they may get these IDs
            return
        pids = _processes_of_others() - {me}
        self._others &= pids
        unknown = pids - self._others - self._writers.keys()
        new = {pid: found for pid in unknown if (found := _process_state(pid)) is not None}
        family = {me, *self._writers}
        while ours := {
            pid
            for pid, found in new.items()
            if pid not in self._writers
            and not found.has_ended  # a known process that ended would be added again
            and (found.group == self._script or found.parent in family)
        }:
            self._writers |= {pid: _Writer(pid, new[pid].start, now) for pid in ours}
            family |= ours
        self._others |= new.keys() - self._writers.keys()

    def _is_alone(self, me: int) -> bool:
        """Return True if the script's first process is known, and it and we have no other child."""
        script = self._script
        if script is None or script not in self._writers:
            return False
        ours = (_listed_children(me) or frozenset()) - _helpers
        return (ours, _listed_children(script)) == ({script}, frozenset())

    def _still_runs(self, writer: _Writer, root: str, closed: set[FileId]) -> bool:
        """Update the files of a process. Return False if it has ended.

        Files that it closed are added to `closed`.
        """
        try:
            files, may_have_ended = _open_for_writing(writer.pid, root), writer.pid == self._script
        except OSError:  # it has ended, or cannot be read now: its files may still be open
            files, may_have_ended = writer.files, True
        missing = writer.files.keys() - files.keys()
        # Read the state after the files, because a process that ends closes its files first.
        if (missing or may_have_ended) and writer.has_ended():
            return False
        self._open_at_ns |= dict.fromkeys(files, time.time_ns())
        closed |= missing
        writer.files = files
        return True

    def _mark_incomplete(
        self, files: Mapping[FileId, bool], until: float, *, except_logs: bool = False
    ) -> None:
        """Record that a process ended while it had these files open.

        Args:
            files: the files, with True if the process appends to it.
            until: how long they count as incomplete.
            except_logs: do not record files that the process appends to. Without this, only those
                that have been open for KEPT_OPEN_S are not recorded.
        """
        now = self._clock()
        for file, appends in files.items():
            if not (appends and (except_logs or self._is_kept_open(file, now))):
                self._incomplete_until[file] = max(until, self._incomplete_until.get(file, until))

    def _is_kept_open(self, file: FileId, now: float) -> bool:
        return now - self._open_since.get(file, now) >= KEPT_OPEN_S


# An eviction leaves a few seconds, and the agent needs some of them for the logs.
TERMINATION_GRACE_S = 3.0
TIMEOUT_GRACE_S = 10.0
MIN_LIMIT_S = 0.001  # of a time limit, because 0 means no limit
HELPERS_END_S = 0.5  # helpers of a script, such as those of multiprocessing, end shortly after it
TIMEOUT_EXIT_CODE = 124  # the same as timeout of coreutils
NOT_FOUND_EXIT_CODE = 127  # the same as a shell
SIGNAL_EXIT_CODE = 128  # the number of the signal that ended the script is added
LAST_SIGNAL = 64  # on Linux


def is_signal(exit_code: int) -> bool:
    """Return True if a signal ended the script, or the last program that a shell script ran."""
    return SIGNAL_EXIT_CODE < exit_code <= SIGNAL_EXIT_CODE + LAST_SIGNAL


@dataclass(frozen=True)
class ScriptResult:
    """How the script ended.

    Attributes:
        exit_code: the exit code, or 128 + n for signal n.
        timed_out: it was stopped because of its time limit.
        stopped: it got SIGTERM because `terminated` returned True.
        at: when it ended (`time.monotonic`).
        alive_ns: when it was last seen running and its open files were last read (`time.time_ns`).
            On a busy machine, this may be long before its end was detected.
        left_running: the command lines of processes that still ran when it exited, and were killed
            (Linux only).
    """

    exit_code: int
    timed_out: bool
    stopped: bool = False
    at: float = field(default_factory=time.monotonic, compare=False)
    alive_ns: int = field(default_factory=time.time_ns, compare=False)
    left_running: tuple[str, ...] = ()


def run_command(  # noqa: PLR0913 - all arguments describe one process
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str],
    stdout: Path,
    stderr: Path,
    timeout_s: float | None,
    terminated: Callable[[], bool],
    grace_s: Callable[[], float] = lambda: TERMINATION_GRACE_S,
    on_start: Callable[[int], None] = lambda _: None,
    writers: OpenWriters | None = None,
    protect: Callable[[], None] | None = None,
) -> ScriptResult:
    """Run the script until it exits, then kill its remaining processes, daemons included.

    Args:
        command: the program and its arguments.
        cwd: the working directory.
        environment: the whole environment.
        stdout: the file to append standard output to.
        stderr: the file to append standard error to.
        timeout_s: the time limit, or None.
        terminated: if it returns True, the process group gets SIGTERM, and later SIGKILL.
        grace_s: returns the seconds between the two signals; the value may change meanwhile.
        on_start: receives the process ID.
        writers: records the files that the script has open for writing.
        protect: called in the new process, from `protect_folders`.

    Raises:
        StageFailedError: the program is missing or not executable (CommandNotFound).
    """
    with reparent_orphans():
        existing = children()
        start = partial(_start, command, cwd, environment, stdout, stderr)
        process = start_protected(start, protect)
        script = _ScriptProcess(process, writers)
        left: tuple[str, ...] = ()
        try:
            if writers is not None:
                writers.start(process.pid)
            on_start(process.pid)
            why = _wait(script, timeout_s, terminated, grace_s)
            if why == "itself":
                left = _left_running(existing | {process.pid})
        finally:
            script.close()
            # The process is not collected yet, so no other group can have the same ID.
            script.record_end()
            script.signal_group(signal.SIGKILL)
            process.wait()
            kill_children(keep=existing)
            if protect is not None and not children() - existing:
                forget_namespaces(os.environ)
    code = process.returncode
    exit_code = SIGNAL_EXIT_CODE - code if code < 0 else code
    return ScriptResult(
        exit_code,
        why == "timeout",
        why == "terminated",
        alive_ns=script.alive_ns,
        left_running=left,
    )


def _left_running(existing: frozenset[int]) -> tuple[str, ...]:
    """Return the command lines of new children that still run after HELPERS_END_S."""
    until = time.monotonic() + HELPERS_END_S
    while left := {pid for pid in children() - existing if _is_running(pid)}:
        if time.monotonic() > until:
            return tuple(line for pid in sorted(left) if (line := _command_line(pid)))
        time.sleep(POLL_S)
    return ()


def _is_running(pid: int) -> bool:
    with suppress(OSError):
        state = _process_state(pid)
        return state is not None and not state.has_ended
    return False


def _command_line(pid: int) -> str:
    """Return the command line of a process, quoted for a shell; "" if it is gone.

    A process that is just starting a program has none; its name is returned instead.
    """
    with suppress(OSError):
        words = _read(f"/proc/{pid}/cmdline").rstrip(b"\0").split(b"\0")
        if any(words):
            return shlex.join(map(os.fsdecode, words))
        return os.fsdecode(_read(f"/proc/{pid}/comm").strip())
    return ""


def _start(
    command: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    stdout: Path,
    stderr: Path,
    protect: Callable[[], None] | None,
) -> subprocess.Popen[bytes]:
    # Append mode, so that processes that share or reopen the files do not overwrite each other. A
    # protected child opens them itself: `prepare` may have replaced them by links to the node.
    setup = child_setup(protect, () if protect is None else (stdout, stderr))
    with ExitStack() as stack:
        opened: list[BinaryIO | int] = [subprocess.DEVNULL] * 2
        if protect is None:
            opened = [stack.enter_context(path.open("ab")) for path in (stdout, stderr)]
        try:
            return subprocess.Popen(
                list(command),
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=opened[0],
                stderr=opened[1],
                preexec_fn=setup,  # noqa: PLW1509 - system calls, no locks, no imports
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as problem:
            raise _not_found(command, problem) from problem


def child_setup(
    protect: Callable[[], None] | None, outputs: Sequence[Path] = ()
) -> Callable[[], None]:
    """Return a function that the child calls: it gets its own group, and dies with the agent.

    After `protect`, it appends its standard output and standard error to `outputs`.
    """
    die_with_parent = dies_with_parent()

    def setup() -> None:
        os.setpgrp()
        if protect is not None:
            protect()
        for number, path in enumerate(outputs, start=1):
            opened = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            os.dup2(opened, number)
            os.close(opened)
        die_with_parent()  # last, because new namespaces undo it

    return setup


def _not_found(command: Sequence[str], problem: OSError) -> StageFailedError:
    if isinstance(problem, PermissionError):
        message = f"{command[0]} is not executable on this node"
    else:
        message = f"{command[0]} was not found, neither on PATH nor in the folder of the code"
    return StageFailedError(COMMAND_STAGE, "CommandNotFound", message, NOT_FOUND_EXIT_CODE)


@dataclass
class _ScriptProcess:
    process: subprocess.Popen[bytes]
    writers: OpenWriters | None = None
    alive_ns: int = field(default_factory=time.time_ns)
    _exit: int | None = None  # a descriptor that is readable once the process has exited
    _is_polled: bool = False  # the process is asked every POLL_S instead

    def has_exited(self, within_s: float) -> bool:
        """Return True if the process exits within the time. Do not collect it."""
        until = time.monotonic() + within_s
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while True:
            now_ns = time.time_ns()
            if os.waitid(os.P_PID, self.process.pid, options) is not None:
                return True
            self.alive_ns = now_ns
            if self.writers is not None:
                self.writers.scan_if_due()
            if time.monotonic() >= until:
                return False
            self._pause()

    def _pause(self) -> None:
        """Wait for POLL_S, or until the process exits if the kernel tells."""
        if self._exit is None and not self._is_polled:
            with suppress(OSError, AttributeError):  # an old kernel, another system
                self._exit = os.pidfd_open(self.process.pid)
            self._is_polled = self._exit is None
        if self._exit is None:
            time.sleep(POLL_S)
            return
        waiting = select.poll()
        waiting.register(self._exit, select.POLLIN)
        if waiting.poll(POLL_S * 1000):
            self.close()

    def close(self) -> None:
        """Stop waiting for the exit."""
        self._is_polled = True
        if self._exit is not None:
            os.close(self._exit)
            self._exit = None

    def record_end(self) -> None:
        """Record the files that will be incomplete when the rest of the script is killed."""
        if self.writers is None:
            return
        if self.writers.scanned_ns is not None:
            self.alive_ns = min(self.alive_ns, self.writers.scanned_ns)
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        ended = os.waitid(os.P_PID, self.process.pid, options)
        exited = (
            ended is not None and ended.si_code == os.CLD_EXITED and not is_signal(ended.si_status)
        )
        self.writers.end(killed=not exited)

    def signal_group(self, number: signal.Signals) -> None:
        # macOS raises PermissionError if only a zombie is left of the group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _wait(
    script: _ScriptProcess,
    timeout_s: float | None,
    terminated: Callable[[], bool],
    grace_s: Callable[[], float],
) -> str:
    """Wait for the exit without collecting it. Return its cause: itself, timeout or terminated."""
    deadline = time.monotonic() + timeout_s if timeout_s else None
    while not script.has_exited(POLL_S):
        if terminated():
            _stop(script, grace_s)
            return "terminated"
        if deadline is not None and time.monotonic() >= deadline:
            _stop(script, lambda: TIMEOUT_GRACE_S)
            return "timeout"
    return "itself"


def _stop(script: _ScriptProcess, grace_s: Callable[[], float]) -> None:
    script.signal_group(signal.SIGTERM)
    began = time.monotonic()
    while not script.has_exited(POLL_S):
        if time.monotonic() - began < grace_s():
            continue
        script.signal_group(signal.SIGKILL)
        while not script.has_exited(1.0):
            pass  # the kernel may need some time to end the process
