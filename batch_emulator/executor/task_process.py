"""Start a process of a task without a shell, in a new session, and await it without a thread."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from batch_emulator.domain.launch import (
    DiskStep,
    ExecutionError,
    LaunchSpec,
    ResourceUsage,
    command_launch_failed,
    command_not_found,
    disk_failure,
)
from batch_emulator.executor.processes import marking
from batch_emulator.folders import Owner, create_below, open_below, opened_folder

_HAS_PROC = sys.platform == "linux"
_HAS_PIDFD = hasattr(os, "pidfd_open")
_HAS_WAITID = hasattr(os, "waitid")  # macOS has it from Python 3.13 on


class TaskProcess:
    """A started command; `ended` resolves to its exit code, negative for a signal.

    With `holds`, the process is not collected when it ends, and the rest of its group is not
    killed. Its process ID is not reused until `release`.
    """

    def __init__(self, popen: subprocess.Popen[bytes], *, holds: bool = False) -> None:
        self._popen = popen
        self._holds = holds
        self.pid = popen.pid
        # The kernel lets only root open it once the process has ended, but everybody read it.
        self._counters = _open_counters(self.pid)
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = self._loop.create_future()
        # of the command and the children that it awaited, once it ended
        self.usage: ResourceUsage | None = None
        self.keep_group = False  # True while the rest of the group has its grace period
        self._watch()

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the process group; its id is not reused before the process is collected."""
        if not self.ended.done():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _watch(self) -> None:
        if _HAS_PIDFD:
            try:
                pidfd = os.pidfd_open(self.pid)
            except OSError:  # an old kernel, a sandbox, or no descriptor left
                pass
            else:
                self._loop.add_reader(pidfd, self._on_exit, pidfd)
                return
        # also on macOS: a thread can await a pid; SIGCHLD is handled by the main thread only
        threading.Thread(target=self._wait_in_thread, daemon=True).start()

    def _on_exit(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)
        os.close(pidfd)
        if self._holds:
            self._finish(self._wait_only())
            return
        self._kill_rest()  # before the zombie is collected, while its group ID cannot be reused
        self._finish(self._collect())

    def _wait_only(self) -> int:
        """Wait for the end without collecting the process, if the system supports it."""
        found = None
        if _HAS_WAITID:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if found is None:
            return self._collect()
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def release(self) -> None:
        """End the remaining processes of a command's group, and collect the command."""
        self._kill_rest()
        self._collect()

    def _wait_in_thread(self) -> None:
        code = self._wait_only()
        if not self._holds:
            self._kill_rest()  # as in _on_exit, where the system can wait without collecting
            self._collect()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._finish, code)

    def _collect(self) -> int:
        """Wait for the end as Popen.wait does, and store the kernel's resource usage."""
        if self._popen.returncode is not None:
            return self._popen.returncode
        if _HAS_WAITID:
            # its counters vanish when it is collected
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        counters = _read_counters(self._counters or _open_counters(self.pid))
        _, status, spent = os.wait4(self.pid, 0)
        self._popen.returncode = os.waitstatus_to_exitcode(status)
        unit = 1 if sys.platform == "darwin" else 1024
        self.usage = ResourceUsage(
            user_s=spent.ru_utime,
            kernel_s=spent.ru_stime,
            read_ops=counters.get("syscr", spent.ru_inblock),
            write_ops=counters.get("syscw", spent.ru_oublock),
            read_bytes=counters.get("read_bytes", spent.ru_inblock * 512),
            write_bytes=counters.get("write_bytes", spent.ru_oublock * 512),
            peak_bytes=spent.ru_maxrss * unit,
        )
        return self._popen.returncode

    def _kill_rest(self) -> None:
        """End the processes that remain in the command's process group."""
        if not self.keep_group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _finish(self, code: int) -> None:
        if not self.ended.done():
            self.ended.set_result(code)


def _open_counters(pid: int) -> FileIO | None:
    """Open the I/O counters of a process and the children that it awaited; Linux only."""
    try:
        return open(f"/proc/{pid}/io", "rb", buffering=0)  # noqa: PTH123 - once per task
    except OSError:
        return None


def _read_counters(file: FileIO | None) -> dict[str, int]:
    lines: list[str] = []
    if file is not None:
        with suppress(OSError), file:
            lines = file.read().decode().splitlines()
    return {name: int(value) for name, _, value in (line.partition(":") for line in lines)}


def start(
    launch: LaunchSpec,
    environment: Mapping[str, str],
    command: list[str] | None = None,
    stdin: int = subprocess.DEVNULL,
    owner: Owner | None = None,
) -> TaskProcess:
    """Start the command line, or `command` instead, as the user of the emulator or another one.

    Raises ExecutionError with the service's failureInfo.
    """
    argv = command or split_command(launch.command_line)
    opened = _open_existing if launch.continues else _create
    stdout = opened(launch, "stdout.txt")
    try:
        stderr = opened(launch, "stderr.txt")
        try:
            popen = _popen(launch, argv, environment, (stdin, stdout, stderr), owner)
            return TaskProcess(popen, holds=launch.holds)
        finally:
            os.close(stderr)
    finally:
        os.close(stdout)


def split_command(command_line: str) -> list[str]:
    """Split a command line as a POSIX shell does. Raises ExecutionError."""
    try:
        argv = shlex.split(command_line)
    except ValueError as err:
        raise ExecutionError(command_launch_failed(command_line, str(err))) from err
    if not argv:
        raise ExecutionError(command_launch_failed(command_line, "the command line is empty"))
    return argv


def _create(launch: LaunchSpec, name: str) -> int:
    path = launch.task_dir / name
    try:
        # of the owner of the folder, because a program may open /dev/stdout again
        return create_below(path, launch.node_dir, flags=os.O_APPEND)
    except OSError as err:
        raise ExecutionError(disk_failure(DiskStep.CREATE_FILE, path, err)) from err


def _open_existing(launch: LaunchSpec, name: str) -> int:
    """Open the output file of an earlier command of the attempt, if it is still a file."""
    try:
        return open_below(launch.task_dir / name, launch.node_dir, os.O_WRONLY | os.O_APPEND)
    except OSError:
        return _create(launch, name)


def _popen(
    launch: LaunchSpec,
    argv: list[str],
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
    owner: Owner | None,
) -> subprocess.Popen[bytes]:
    line = launch.command_line
    stdin, stdout, stderr = streams
    try:
        with _entered(launch) as working_dir, marking(launch.root_dir):
            return subprocess.Popen(
                argv,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=working_dir,
                env=environment,
                start_new_session=True,
                user=None if owner is None else owner.uid,
                group=None if owner is None else owner.gid,
                extra_groups=None if owner is None else [],
            )
    except FileNotFoundError as err:
        why = _why_missing(argv[0], launch.working_dir, environment.get("PATH", ""))
        raise ExecutionError(command_not_found(line, argv[0], why)) from err
    except OSError as err:
        why = f"{argv[0]}: {err.strerror or err}"
        raise ExecutionError(command_launch_failed(line, why)) from err
    except ValueError as err:  # a NUL byte, or '=' in the name of a variable
        raise ExecutionError(command_launch_failed(line, str(err))) from err


@contextmanager
def _entered(launch: LaunchSpec) -> Generator[str]:
    """Yield a path of the working directory that no link can divert, if the system has one.

    The child enters it with the rights of the emulator, before it changes its user.
    """
    with opened_folder(launch.working_dir, launch.node_dir) as folder:
        yield f"/proc/self/fd/{folder}" if _HAS_PROC else str(launch.working_dir)


def _why_missing(program: str, working_dir: Path, path: str) -> str:
    if not working_dir.is_dir():
        return f"the working directory {working_dir} is gone"
    found = working_dir / program if "/" in program else shutil.which(program, path=path)
    if found and Path(found).exists():
        return f"{program} exists, but the interpreter that its first line names does not"
    where = f"relative to {working_dir}" if "/" in program else f"on the PATH of the task: {path}"
    return f"{program} was not found {where}; no shell is used, write /bin/sh -c '...' for one"
