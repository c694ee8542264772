"""Programs in the folder of a task on this machine: whose folder, which user, whose terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from runner.core.home import HomePaths
from runner.flows import task_shell
from runner.flows.local.state import LocalState, TaskIsolation
from runner.protocol.errors import RunnerError

TASK_UID = 41234
ROOT = "workitems/job/job-1/mnist-1"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a task of an emulator that runs tasks as another user, if it can."""
    batch = HomePaths(tmp_path).batch_data
    made = batch / "nodes" / "pool" / "tvm-1" / "tasks" / ROOT / "wd"
    made.mkdir(parents=True)
    uid = None
    for each in (tmp_path, *tmp_path.parents):
        if each.stat().st_uid == os.geteuid():
            each.chmod(each.stat().st_mode | 0o111)
    if os.geteuid() == 0:
        uid = TASK_UID
        os.chown(made, uid, uid)
    isolation = TaskIsolation("user" if uid else "environment", uid, batch, "")
    monkeypatch.setattr(task_shell, "load_state", lambda _: LocalState(1, 2, 1, 1))
    monkeypatch.setattr(task_shell, "load_isolation", lambda _: isolation)
    return made


def find(home: Path, root: str = ROOT) -> task_shell.TaskFolder:
    return task_shell.find_task_folder(home, "Pool", "tvm-1", root)


def test_folder_is_found_from_pool_node_and_task(folder: Path, tmp_path: Path) -> None:
    uid = TASK_UID if os.geteuid() == 0 else None
    assert find(tmp_path) == task_shell.TaskFolder(folder, uid)


@pytest.mark.attack
@needs_root
def test_folder_of_another_user_is_refused(folder: Path, tmp_path: Path) -> None:
    for owner in (0, TASK_UID + 1):
        os.chown(folder, owner, owner)
        with pytest.raises(RunnerError) as caught:
            find(tmp_path)
        assert caught.value.code == "R-REACH-FOLDER"


@pytest.mark.attack
@pytest.mark.parametrize("above", range(4))
def test_folder_behind_a_link_is_refused(above: int, folder: Path, tmp_path: Path) -> None:
    part = (folder, *folder.parents)[above]
    part.rename(tmp_path / "elsewhere")
    part.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunnerError) as caught:
        find(tmp_path)
    assert caught.value.code == "R-REACH-FOLDER"


@pytest.mark.attack
@pytest.mark.parametrize("root", ["", "..", "workitems/../../x", "/etc", "a//b", "a\0b", "no/such"])
def test_folder_with_another_name_is_refused(root: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(RunnerError) as caught:
        find(tmp_path, root)
    assert caught.value.code == "R-REACH-FOLDER"


@pytest.mark.attack
@needs_root
def test_program_has_user_and_groups_of_the_task_only() -> None:
    show = "import os; print(os.getresuid(), os.getresgid(), os.getgroups(), os.getsid(0))"
    done = task_shell.capture(["python3", "-c", show], {"PATH": os.defpath}, TASK_UID, "")
    three = (TASK_UID,) * 3
    assert done.stdout.startswith(f"{three} {three} [] "), done.stderr
    assert done.stdout.split()[-1] != str(os.getsid(0))


# Types a command for whoever reads the terminal, and leaves a process that reads the keys.
_HOSTILE = """
import fcntl, os, sys, termios
said = []
for name in (0, 1, 2, "/dev/tty"):
    try:
        fd = name if isinstance(name, int) else os.open(name, os.O_RDWR)
        for char in b"touch owned\\n":
            fcntl.ioctl(fd, termios.TIOCSTI, bytes([char]))
        said.append(f"{name} typed in {os.ttyname(fd)}")
    except OSError as err:
        said.append(f"{name} {err.strerror}")
open(sys.argv[1], "w").write("\\n".join(said))
if os.fork() == 0:
    kept = os.read(0, 100)
    open(sys.argv[1] + ".keys", "wb").write(kept)
"""
_CALL = """
import os, sys
from runner.flows.task_shell import run_apart
code = run_apart(sys.argv[2:], dict(os.environ), None)
print("code", code, flush=True)
print("read", sys.stdin.readline().strip(), flush=True)
"""


def in_terminal(
    tmp_path: Path, argv: list[str], keys: bytes, *, stdout: bool = True
) -> tuple[bytes, str]:
    """Call `run_apart` in a new terminal, type keys after its end. Return screen and terminal."""
    master, slave = pty.openpty()
    name = os.ttyname(slave)

    def control() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", _CALL, "x", *argv],
            stdin=slave,
            stdout=slave if stdout else out,
            stderr=slave,
            start_new_session=True,
            preexec_fn=control,  # noqa: PLW1509  no other threads
        )
    os.close(slave)
    screen, typed, deadline = b"", False, time.monotonic() + 300
    while time.monotonic() < deadline:
        ready, _, _ = select.select([master], [], [], 0.1)
        if ready:
            try:
                screen += os.read(master, 4096)
            except OSError:
                break
        text = screen if stdout else (tmp_path / "out").read_bytes()
        if b"code" in text and not typed:
            time.sleep(0.2)
            os.write(master, keys)
            typed = True
    if process.poll() is None:
        process.wait(300)
    os.close(master)
    return screen if stdout else (tmp_path / "out").read_bytes(), name


@pytest.mark.attack
@pytest.mark.parametrize("stdout", [True, False])
def test_program_neither_types_nor_reads_in_the_terminal_of_the_caller(
    stdout: bool, tmp_path: Path
) -> None:
    report = tmp_path / "report"
    argv = [sys.executable, "-c", _HOSTILE, str(report)]
    screen, name = in_terminal(tmp_path, argv, b"mine\n", stdout=stdout)
    assert b"read mine" in screen, screen
    assert f"typed in {name}" not in report.read_text().split("\n")
    assert name not in report.read_text()
    keys = Path(f"{report}.keys")
    assert not keys.exists() or b"mine" not in keys.read_bytes()


def test_program_has_a_terminal_with_the_size_of_the_caller(tmp_path: Path) -> None:
    show = "import os, sys; print(sys.stdin.isatty(), os.getpgrp() == os.tcgetpgrp(0)); sys.exit(3)"
    screen, _ = in_terminal(tmp_path, [sys.executable, "-c", show], b"x\n")
    assert b"True True" in screen
    assert b"code 3" in screen


def test_interrupt_reaches_a_program_without_a_terminal(tmp_path: Path) -> None:
    call = _CALL.replace("dict(os.environ)", "None")
    sleeps = (
        "import time\n"
        "try:\n print('on', flush=True); time.sleep(600)\n"
        "except KeyboardInterrupt:\n print('off')"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", call, "x", sys.executable, "-c", sleeps],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "off\n"
    process.communicate("\n", timeout=300)


def test_interrupt_while_the_program_starts_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    assert task_shell.run_apart(["sleep", "60"], None, None) == -signal.SIGINT
