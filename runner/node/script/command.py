"""Run the script in a process group of its own: pass on SIGTERM, enforce the time limit, kill
orphans.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner.node.failures import StageFailedError

# Linux's <sys/prctl.h>; elsewhere these functions do nothing.
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

# In the environment of a script and of all that it starts: the folder of its task.
SCRIPT_OF = "RUNNER_SCRIPT_OF"

KILL_WITHIN_S = 5.0
POLL_S = 0.02


def dies_with_parent() -> Callable[[], None]:
    """What to call in a new child so that it is killed when its parent dies.

    Made beforehand: between fork and exec there must be no import and no lock.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def reparent_orphans() -> Generator[None]:
    """Meanwhile descendants whose parent ends become children of this process.

    Not for longer: who adopts must collect, and afterwards nobody here does.
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
    """The process ids of this process's children."""
    if not sys.platform.startswith("linux"):
        return frozenset()
    me = os.getpid()
    return frozenset(pid for pid in _processes() if _parent(pid) == me)


def kill_children(but: frozenset[int]) -> None:
    """Kill and collect every child that is not in `but`, and the orphans this brings up."""
    _kill(lambda: children() - but)


def kill_left_behind(work_dir: Path) -> None:
    """Kill what a script of this task left running whose agent was itself killed.

    What was started with another environment, or by another user, is not found.
    """
    if sys.platform.startswith("linux"):
        mark = os.fsencode(f"{SCRIPT_OF}={work_dir}")
        _kill(lambda: frozenset(pid for pid in _processes() if mark in _environment(pid)))


def _kill(find: Callable[[], frozenset[int]]) -> None:
    until = time.monotonic() + KILL_WITHIN_S
    while left := find():
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > until:  # looked at last: a slow machine kills them all the same
            return
        time.sleep(POLL_S)


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    """As it was started with; a process that has ended has none."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0  # it has just ended
    return int(stat.rpartition(")")[2].split()[1])  # the name in parentheses may hold anything


COMMAND_STAGE = "command"
# A node that goes away gives a few seconds in all: the agent needs the rest for the logs.
TERMINATION_GRACE_S = 3.0
TIMEOUT_GRACE_S = 10.0
TIMEOUT_EXIT_CODE = 124  # as coreutils' timeout
NOT_FOUND_EXIT_CODE = 127  # as a shell


@dataclass(frozen=True)
class ScriptResult:
    """How the script ended: its exit code, 128 + n for signal n.

    `stopped` is whether it got SIGTERM because `terminated` had turned true; `at` is a time of
    `time.monotonic`. It was last seen to run at `alive_ns`, a time of `time.time_ns`: on a busy
    machine that may be long before it was seen to have ended.
    """

    exit_code: int
    timed_out: bool
    stopped: bool = False
    at: float = field(default_factory=time.monotonic, compare=False)
    alive_ns: int = field(default_factory=time.time_ns, compare=False)


def run_command(  # noqa: PLR0913 - all of one process
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
) -> ScriptResult:
    """Run to the end. When `terminated` turns true, the group gets SIGTERM and then SIGKILL.

    `grace_s` is how long after SIGTERM; it may shrink meanwhile.

    Processes the script left behind, daemons included, are killed when it exits, so that nothing
    writes to the outputs any more. `on_start` gets the process id. Raises StageFailedError
    (CommandNotFound).
    """
    with reparent_orphans():
        ours = children()
        process = _start(command, cwd, environment, stdout, stderr)
        script = _ScriptProcess(process)
        try:
            on_start(process.pid)
            why = _wait(script, timeout_s, terminated, grace_s)
        finally:
            # Not collected yet, so the group's id cannot belong to anybody else.
            script.signal_group(signal.SIGKILL)
            process.wait()
            kill_children(but=ours)
    code = process.returncode
    exit_code = 128 - code if code < 0 else code
    return ScriptResult(exit_code, why == "timeout", why == "terminated", alive_ns=script.alive_ns)


def _start(
    command: Sequence[str],
    cwd: Path,
    environment: Mapping[str, str],
    stdout: Path,
    stderr: Path,
) -> subprocess.Popen[bytes]:
    # Append mode: children that reopen or share the descriptor never overwrite each other.
    with stdout.open("ab") as out, stderr.open("ab") as err:
        try:
            return subprocess.Popen(
                list(command),
                cwd=cwd,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                preexec_fn=_child_setup(),  # noqa: PLW1509 - two system calls, no locks, no imports
            )
        except (FileNotFoundError, PermissionError, NotADirectoryError) as problem:
            raise _not_found(command, problem) from problem


def _child_setup() -> Callable[[], None]:
    """Own group; on Linux the script dies with the agent instead of holding the GPU for ever."""
    die_with_parent = dies_with_parent()

    def setup() -> None:
        os.setpgrp()
        die_with_parent()

    return setup


def _not_found(command: Sequence[str], problem: OSError) -> StageFailedError:
    if isinstance(problem, PermissionError):
        message = f"{command[0]} is not executable on this node"
    else:
        message = f"{command[0]} is not on this node: neither on PATH nor in the code's folder"
    return StageFailedError(COMMAND_STAGE, "CommandNotFound", message, NOT_FOUND_EXIT_CODE)


@dataclass
class _ScriptProcess:
    process: subprocess.Popen[bytes]
    alive_ns: int = field(default_factory=time.time_ns)

    def has_exited(self, within_s: float) -> bool:
        """Whether it exited within the time; it stays uncollected."""
        until = time.monotonic() + within_s
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        while True:
            now_ns = time.time_ns()
            if os.waitid(os.P_PID, self.process.pid, options) is not None:
                return True
            self.alive_ns = now_ns
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_S)

    def signal_group(self, number: signal.Signals) -> None:
        # PermissionError is macOS's answer for a group of which only the zombie is left.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def _wait(
    script: _ScriptProcess,
    timeout_s: float | None,
    terminated: Callable[[], bool],
    grace_s: Callable[[], float],
) -> str:
    """Wait for the exit without collecting it; what ended it: itself, timeout or terminated."""
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
            pass  # the kernel is still tearing it down
