"""Run the script in its own process group: forward SIGTERM, limit its time, kill its orphans."""

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

# Set to the task's folder for a script, and inherited by all processes that it starts.
SCRIPT_OF = "RUNNER_SCRIPT_OF"

KILL_WITHIN_S = 5.0
POLL_S = 0.02


def dies_with_parent() -> Callable[[], None]:
    """Return a function for a new child that lets the kernel kill it when its parent dies.

    Prepared before the fork: between fork and exec, imports and locks are unsafe.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def reparent_orphans() -> Generator[None]:
    """Adopt descendants whose parent ends, for the duration of the block.

    Adopted processes must be collected, which happens only during the block.
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
    """Return the process ids of this process's children."""
    if not sys.platform.startswith("linux"):
        return frozenset()
    me = os.getpid()
    return frozenset(pid for pid in _processes() if _parent(pid) == me)


def kill_children(but: frozenset[int]) -> None:
    """Kill and collect every child that is not in `but`, and orphans that are adopted meanwhile."""
    _kill(lambda: children() - but)


def kill_left_behind(work_dir: Path) -> None:
    """Kill processes of this task's script that remained after its agent was killed.

    Processes of another user, or with another environment, are not found.
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
        if time.monotonic() > until:  # after the signals, so that a slow machine sends them too
            return
        time.sleep(POLL_S)


def _processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _environment(pid: int) -> list[bytes]:
    """Return the initial environment of a process; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0  # the process has just ended
    return int(stat.rpartition(")")[2].split()[1])  # the name may contain parentheses


COMMAND_STAGE = "command"
# An evicted node leaves a few seconds, some of which the agent needs for the logs.
TERMINATION_GRACE_S = 3.0
TIMEOUT_GRACE_S = 10.0
TIMEOUT_EXIT_CODE = 124  # as coreutils' timeout
NOT_FOUND_EXIT_CODE = 127  # as a shell


@dataclass(frozen=True)
class ScriptResult:
    """How the script ended: its exit code, or 128 + n for signal n.

    `stopped`: it got SIGTERM because `terminated` was true. `at`: when it ended
    (`time.monotonic`). `alive_ns`: when it was last seen running (`time.time_ns`), which on a busy
    machine may be long before its end was detected.
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
    """Run the script until it exits, then kill its remaining processes, daemons included.

    Args:
        command: the program and its arguments.
        cwd: the working directory.
        environment: the whole environment.
        stdout: the file to append standard output to.
        stderr: the file to append standard error to.
        timeout_s: the time limit, or None.
        terminated: when it returns True, the process group gets SIGTERM, later SIGKILL.
        grace_s: returns the seconds between the two signals; may change meanwhile.
        on_start: receives the process id.

    Raises:
        StageFailedError: the program is missing or not executable (CommandNotFound).
    """
    with reparent_orphans():
        ours = children()
        process = _start(command, cwd, environment, stdout, stderr)
        script = _ScriptProcess(process)
        try:
            on_start(process.pid)
            why = _wait(script, timeout_s, terminated, grace_s)
        finally:
            # The process is not collected yet, so its group id cannot be in use elsewhere.
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
    # Append mode, so that processes that share or reopen the files do not overwrite each other.
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
    """Return the setup of the child: its own group, and on Linux its death with the agent."""
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
        """Return True if the process exits within the time; it is not collected."""
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
            pass  # the kernel is still tearing it down
