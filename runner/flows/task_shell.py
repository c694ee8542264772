"""Run a program in the folder of a task on this machine, as the user of the task.

The program is not trusted: it runs what the task left in its folder. It therefore has no access to
the terminal of the person who calls it: it would read their keys, or type commands for their shell
(TIOCSTI). As with ssh, it gets a terminal or pipes of its own, which are copied.
"""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO, Any

from runner.core.home import HomePaths
from runner.flows.local.state import TaskIsolation, load_isolation, load_state
from runner.flows.local.task_folders import task_folder
from runner.protocol.errors import RunnerError

_CHUNK_BYTES = 1 << 16
_POLL_S = 0.1
_REST_S = 1.0  # how long to wait for output of processes that a command left


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """The working directory of a task; `uid` is the user to switch to, None for the present one."""

    path: Path
    uid: int | None


def find_task_folder(home: Path, pool: str, node: str, root: str) -> TaskFolder:
    """Return the folder of a task of the local emulator.

    Args:
        home: RUNNER_HOME of the emulator.
        pool: the pool.
        node: the node.
        root: the folder of the task below the root of the node, as the emulator reports it.

    Raises:
        RunnerError: R-REACH-FOLDER, it is not there, reached through a link, or does not belong to
            the user of the task; R-REACH-USER, this user cannot become that user.
    """
    paths = HomePaths(home)
    state = load_state(paths)
    found = load_isolation(state) if state is not None else None
    isolation = found or TaskIsolation("environment", None, task_folder(paths), "")
    parts = (*("nodes", pool.lower(), node, "tasks"), *root.split("/"), "wd")
    path = isolation.folder.joinpath(*parts)
    if any(part in ("", ".", "..") or "\0" in part or "/" in part for part in parts):
        raise _refused(path, "its name is not that of a task")
    try:
        tasks = isolation.uid if isolation.uid is not None else isolation.folder.stat().st_uid
        owner = _owner_without_links(isolation.folder, parts)
    except OSError as err:
        raise _refused(path, err.strerror or str(err)) from err
    if owner != tasks:
        raise _refused(path, f"it belongs to user {owner}, and tasks run as user {tasks}")
    if tasks == os.geteuid():
        return TaskFolder(path, None)
    if os.geteuid() != 0:
        raise RunnerError(
            "R-REACH-USER",
            f"cannot become user {tasks}, as which tasks run",
            why="only root can, who started the local services",
            fix="run the command as root",
        )
    return TaskFolder(path, tasks)


def _owner_without_links(base: Path, parts: Sequence[str]) -> int:
    """Return the owner of a folder. Raise OSError if a part of the path below `base` is a link."""
    descriptor = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            below = os.open(part, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        found = os.fstat(descriptor)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError
        return found.st_uid
    finally:
        os.close(descriptor)


def _refused(path: Path, why: str) -> RunnerError:
    return RunnerError(
        "R-REACH-FOLDER", f"refused to run a program in {path}", why=why, fix="submit the run again"
    )


def switched(argv: Sequence[str], uid: int | None) -> list[str]:
    """Return a command that runs `argv` as a user without other groups or a terminal."""
    if uid is None:
        return [*argv]
    user = ["--reuid", str(uid), "--regid", str(uid), "--clear-groups", "--no-new-privs"]
    return ["setsid", "-w", "setpriv", *user, *argv]


def capture(
    argv: Sequence[str], environment: Mapping[str, str] | None, uid: int | None, stdin: str
) -> subprocess.CompletedProcess[str]:
    """Run a program with `stdin`, without a terminal, and return its output."""
    return subprocess.run(
        list(argv),
        env=None if environment is None else dict(environment),
        input=stdin,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        check=False,
        start_new_session=True,
        **_as_user(uid),
    )


def run_apart(argv: Sequence[str], environment: Mapping[str, str] | None, uid: int | None) -> int:
    """Run a program with copies of the streams of this process. Return its exit code."""
    options: dict[str, Any] = {
        "env": None if environment is None else dict(environment),
        "start_new_session": True,
        **_as_user(uid),
    }
    if os.isatty(0) and os.isatty(1):
        return _in_terminal(list(argv), options, uid)
    return _in_pipes(list(argv), options)


def _as_user(uid: int | None) -> dict[str, Any]:
    return {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}


def _in_pipes(argv: list[str], options: Mapping[str, Any]) -> int:
    """Run a program; streams that are a terminal are replaced by pipes."""
    names = ("stdin", "stdout", "stderr")
    pipes = {name: subprocess.PIPE if os.isatty(n) else None for n, name in enumerate(names)}
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []  # signals that arrive while the program starts

    def interrupt(number: int, _: FrameType | None) -> None:
        if not started:
            early.append(number)
            return
        with suppress(OSError):  # it has ended
            os.killpg(started[0].pid, number)

    copies: list[threading.Thread] = []
    with _handler(signal.SIGINT, interrupt):
        process = subprocess.Popen[bytes](argv, **pipes, **options)
        started.append(process)
        for number in early:
            interrupt(number, None)
        if process.stdin is not None:
            _start(_copy_keys, process, process.stdin)
        for stream, number in ((process.stdout, 1), (process.stderr, 2)):
            if stream is not None:
                copies.append(_start(_copy, stream.fileno(), number))
        code = process.wait()
    for each in copies:
        each.join(_REST_S)
    return code


def _start(target: Any, *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _copy(source: int, target: int) -> None:
    with suppress(OSError):  # either end has been closed
        while data := os.read(source, _CHUNK_BYTES):
            _write(target, data)


def _copy_keys(process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
    """Copy keys to a program; those after its end are for another one."""
    with suppress(OSError), pipe:
        while process.poll() is None:
            if select.select([0], [], [], _POLL_S)[0]:
                if not (data := os.read(0, _CHUNK_BYTES)):
                    return
                _write(pipe.fileno(), data)


def _in_terminal(argv: list[str], options: Mapping[str, Any], uid: int | None) -> int:
    """Run a program in a new terminal, and copy it to the one of this process."""
    import fcntl  # noqa: PLC0415  not on Windows
    import pty  # noqa: PLC0415
    import termios  # noqa: PLC0415
    import tty  # noqa: PLC0415

    master, slave = pty.openpty()

    def resize(*_: object) -> None:
        with suppress(OSError):
            size = fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))
            fcntl.ioctl(master, termios.TIOCSWINSZ, size)

    def control() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    before = termios.tcgetattr(0)
    try:
        resize()
        termios.tcsetattr(slave, termios.TCSANOW, before)
        if uid is not None:
            os.fchown(slave, uid, -1)
        streams: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), slave)
        process = subprocess.Popen[bytes](
            argv,
            **streams,
            **options,
            preexec_fn=control,
        )
        os.close(slave)
        with _handler(signal.SIGWINCH, resize):
            tty.setraw(0)
            _copy_terminal(process, master)
        return process.wait()
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
        os.close(master)


def _copy_terminal(process: subprocess.Popen[bytes], master: int) -> None:
    """Copy keys to a terminal, and its output back, until its program ends."""
    sources = [0, master]
    while True:
        ended = process.poll() is not None
        ready, _, _ = select.select(sources, [], [], 0 if ended else _POLL_S)
        if master in ready:
            try:
                data = os.read(master, _CHUNK_BYTES)
            except OSError:  # every process of the terminal has closed it
                return
            if not data:
                return
            _write(1, data)
        elif ended:
            return
        if 0 in ready and not ended:
            keys = os.read(0, _CHUNK_BYTES)
            if keys:
                _write(master, keys)
            else:
                sources.remove(0)


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


@contextmanager
def _handler(number: int, handle: Any) -> Generator[None]:
    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)
