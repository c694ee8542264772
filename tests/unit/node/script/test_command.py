from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from runner.node.checkpoints.snapshot import list_folder
from runner.node.failures import StageFailedError
from runner.node.script import command as command_module
from runner.node.script.command import KEPT_OPEN_S, OpenWriters, ScriptResult, run_command
from tests.processes import alive

Until = Callable[[Callable[[], object]], None]


class Runner:
    """Runs Python text as the script, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stdout = folder / "stdout.txt"
        self.stderr = folder / "stderr.txt"

    def __call__(
        self,
        *words: str,
        timeout_s: float | None = None,
        terminated: Callable[[], bool] = lambda: False,
        environment: Mapping[str, str] = os.environ,
        writers: OpenWriters | None = None,
    ) -> ScriptResult:
        return run_command(
            words,
            cwd=self.folder,
            environment=environment,
            stdout=self.stdout,
            stderr=self.stderr,
            timeout_s=timeout_s,
            terminated=terminated,
            writers=writers,
        )

    def python(self, text: str, **options: object) -> ScriptResult:
        return self(sys.executable, "-c", text, **options)  # pyright: ignore[reportArgumentType]


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


def test_output_is_written_to_files_and_stdin_is_empty(run: Runner) -> None:
    ended = run.python("import sys; print(sys.stdin.read() + 'out'); print('err', file=sys.stderr)")
    assert ended == ScriptResult(0, timed_out=False)
    assert (run.stdout.read_text(), run.stderr.read_text()) == ("out\n", "err\n")


@pytest.mark.parametrize(("text", "code"), [("raise SystemExit(3)", 3), ("1/0", 1)])
def test_exit_code_is_that_of_the_script(run: Runner, text: str, code: int) -> None:
    assert run.python(text).exit_code == code


def test_exit_code_of_a_signal_is_128_plus_its_number(run: Runner) -> None:
    assert run.python("import os; os.kill(os.getpid(), 9)").exit_code == 137


def test_script_has_its_own_process_group(run: Runner) -> None:
    run.python("import os; print(os.getpgrp() == os.getpid())")
    assert run.stdout.read_text() == "True\n"


def test_missing_command_is_named(run: Runner) -> None:
    with pytest.raises(StageFailedError, match="no-such-program was not found") as caught:
        run("no-such-program", "--x")
    assert (caught.value.code, caught.value.exit_code) == ("CommandNotFound", 127)


def test_non_executable_command_is_named(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    with pytest.raises(StageFailedError, match=r"\./run\.sh is not executable"):
        run("./run.sh")


@pytest.mark.feature(39)
def test_time_limit_ends_the_script(run: Runner) -> None:
    started = time.monotonic()
    ended = run.python("import time; time.sleep(600)", timeout_s=0.2)
    assert ended.timed_out
    assert time.monotonic() - started < 300


def test_script_has_time_after_sigterm(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "TERMINATION_GRACE_S", 300.0)
    text = (
        "import signal, sys, time\n"
        "def stop(*_):\n print('saved', flush=True); sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    ended = run.python(text, terminated=lambda: run.stdout.read_text() == "ready\n")
    assert ended == ScriptResult(5, timed_out=False, stopped=True)
    assert run.stdout.read_text() == "ready\nsaved\n"


def test_script_ignoring_sigterm_is_killed(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "TERMINATION_GRACE_S", 0.1)
    text = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True); time.sleep(600)"
    )
    ended = run.python(text, terminated=lambda: run.stdout.read_text() == "ready\n")
    assert ended.exit_code == 137


def test_background_child_holding_stdout_does_not_block_run(run: Runner, until: Until) -> None:
    text = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid)"
    )
    started = time.monotonic()
    ended = run.python(text)
    assert ended.exit_code == 0
    assert time.monotonic() - started < 300
    child = int(run.stdout.read_text())
    until(lambda: not alive(child))


_STARTED = "until grep -qx sleep /proc/$!/comm; do :; done"


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses /proc")
@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"sleep 60 & {_STARTED}", ("sleep 60",)),
        (f"setsid sleep 61 & {_STARTED}; sleep 62 & {_STARTED}", ("sleep 61", "sleep 62")),
        ("sleep 0.1 &", ()),
        ("sleep 60 & kill $!", ()),
        (f"sleep 60 & {_STARTED}; kill -9 $$", ("sleep 60",)),
        # As a process that is just starting a program, it has no first word.
        (f"bash -c 'exec -a \"\" sleep 60' & {_STARTED}", ("'' 60",)),
    ],
)
def test_processes_that_the_script_leaves_running_are_named(
    run: Runner, text: str, left: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not left:  # processes that end by themselves do so at any speed of the machine
        monkeypatch.setattr(command_module, "HELPERS_END_S", 120.0)
    assert run("sh", "-c", text).left_running == left


def test_process_of_a_script_that_was_stopped_is_not_named(run: Runner) -> None:
    ended = run("sh", "-c", "sleep 60 & sleep 60", timeout_s=0.2)
    assert (ended.timed_out, ended.left_running) == (True, ())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses prctl")
def test_script_dies_with_a_killed_agent(tmp_path: Path, until: Until) -> None:
    text = (
        "from pathlib import Path; import os, sys\n"
        "from runner.node.script.command import run_command\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "code = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'\n"
        "run_command([sys.executable, '-c', code], cwd=folder, environment=os.environ,\n"
        "  stdout=folder / 'out', stderr=folder / 'err', timeout_s=None,\n"
        "  terminated=lambda: False)\n"
    )
    agent = os.posix_spawn(sys.executable, [sys.executable, "-c", text], os.environ)
    out = tmp_path / "out"
    until(lambda: out.exists() and out.read_text().endswith("\n"))
    os.kill(agent, 9)
    os.waitpid(agent, 0)
    script = int(out.read_text())
    until(lambda: not alive(script))
    assert not alive(script)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses prctl")
def test_script_does_not_start_after_its_agent_was_killed(tmp_path: Path) -> None:
    started = tmp_path / "started"
    agent = f"""
import os, time
from runner.node.script.command import dies_with_parent
bind, agent = dies_with_parent(), os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == agent:
    time.sleep(0.005)
bind()
open({str(started)!r}, "w").close()
"""
    # Returns when both processes have closed their output.
    subprocess.run([sys.executable, "-c", agent], check=True, stdout=subprocess.PIPE)
    assert not started.exists()


def test_orphans_are_not_adopted_after_the_script(run: Runner) -> None:
    run.python("pass")
    leave = (
        "import subprocess as s\n"
        "print(s.Popen(['sleep', '600'], stdout=s.DEVNULL, start_new_session=True).pid)"
    )
    pid = int(subprocess.check_output([sys.executable, "-c", leave]))
    orphan = psutil.Process(pid)
    try:
        assert orphan.ppid() != os.getpid()
    finally:
        orphan.kill()


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

# The script waits until the agent has seen its file open, or closed again.
WRITER = """
import os, signal, subprocess, sys, time

def wait(state):
    while not os.path.exists(state):
        time.sleep(0.005)

def seen():
    wait("open")

def unseen():
    wait("closed")

def write(name="a", mode="wb"):
    file = open("checkpoints/" + name, mode)
    file.write(b"half")
    file.flush()
    return file

def rename(old, new):
    os.rename("checkpoints/" + old, "checkpoints/" + new)

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def child(work):
    if not os.fork():
        work()
        time.sleep(600)
"""
ORPHAN = """
def write_as_orphan():
    os.setsid()
    if os.fork():
        os._exit(0)
    file = write()
    time.sleep(600)
child(write_as_orphan)
seen()
"""


class Written:
    """The checkpoint folder of a script, and the agent that looks at it."""

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.now = 1000.0
        self.folder = run.folder / "checkpoints"
        self.folder.mkdir()
        (self.folder / "old").touch()
        self.writers = OpenWriters(self.folder, lambda: self.now)
        self.open_for_s = 0.0
        self.while_open: set[str] = set()

    def script(self, text: str) -> set[str]:
        """Run a script until it ends after its file was seen open. Return the incomplete files."""
        ended = self.run.python(WRITER + text, terminated=self._look, writers=self.writers)
        seen = (self.run.folder / "open").exists()
        assert seen, f"the script ended before: {ended}\n{self.run.stderr.read_text()}"
        return self.incomplete()

    def incomplete(self) -> set[str]:
        found, files = self.writers.incomplete(), list_folder(self.folder).files
        return {path for path, state in files.items() if state.id in found}

    def _look(self) -> bool:
        self.writers.scan()
        opened = self.run.folder / "open"
        if not opened.exists() and self.writers.incomplete():
            self.now += self.open_for_s
            self.while_open = self.incomplete()
            opened.touch()
        elif opened.exists() and not self.writers.incomplete():
            (self.run.folder / "closed").touch()
        return False


@pytest.fixture
def written(run: Runner) -> Written:
    return Written(run)


@pytest.mark.slow
@linux
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("f = write(); seen(); die()", id="script"),
        pytest.param("f = write(mode='ab'); seen(); die()", id="appending"),
        pytest.param("f = write('b'); seen(); rename('b', 'a'); die()", id="renamed too early"),
        pytest.param("r = open('checkpoints/old'); f = write(); seen(); die()", id="not read"),
        pytest.param("f = write(); seen(); os._exit(137)", id="as a shell reports it"),
        pytest.param("child(lambda: globals().update(f=write())); seen(); die()", id="child"),
        pytest.param("child(lambda: globals().update(f=write())); seen(); sys.exit(1)",
                     id="child that outlives the script"),
        pytest.param(ORPHAN + "sys.exit(0)", id="orphan in a session of its own"),
    ],
)  # fmt: skip
def test_file_open_when_its_writer_was_killed_is_incomplete(written: Written, text: str) -> None:
    assert written.script(text) == {"a"}


@pytest.mark.slow
@linux
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("f = write(); seen(); f.close(); unseen(); die()", id="closed"),
        pytest.param("f = write('b'); seen(); f.close(); rename('b', 'a'); unseen(); die()",
                     id="renamed"),
        pytest.param("f = write(); seen(); os._exit(0)", id="exit 0 without close"),
        pytest.param("f = write(mode='ab'); seen(); sys.exit(1)", id="log at exit 1"),
        pytest.param("f = write(); seen(); os._exit(255)", id="no signal has this number"),
        pytest.param("f = write(mode='ab'); child(lambda: None); seen(); sys.exit(1)",
                     id="inherited by a child"),
        pytest.param("f = write(); seen(); rename('old', 'a'); die()", id="deleted"),
    ],
)  # fmt: skip
def test_file_closed_or_left_by_an_exit_is_complete(written: Written, text: str) -> None:
    assert written.script(text) == set()


@linux
def test_process_with_the_id_of_an_ended_one_is_a_writer(written: Written) -> None:
    text = (
        "import os, sys, time; sys.stdin.readline(); child = os.fork() == 0\n"
        "if child: f = open('checkpoints/a', 'w'); print('open', flush=True)\n"
        "time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=written.run.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as script:
        assert script.stdin
        assert script.stdout
        written.writers.start(script.pid)
        written.writers._others.update(range(script.pid + 1, script.pid + 5000))
        written.writers.scan()  # the script is alone
        script.stdin.write(b"\n")
        script.stdin.flush()
        assert script.stdout.readline()
        written.writers.scan()
        found = written.incomplete()
        os.killpg(script.pid, signal.SIGKILL)
    assert found == {"a"}


@linux
def test_end_that_is_noticed_late_does_not_hide_the_open_file(written: Written) -> None:
    text = "f = open('checkpoints/a', 'w'); print(flush=True); import time; time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=written.run.folder,
        stdout=subprocess.PIPE,
        process_group=0,
    ) as script:
        assert script.stdout is not None
        script.stdout.readline()
        written.writers.start(script.pid)
        assert written.incomplete() == {"a"}
        script.kill()
        os.waitid(os.P_PID, script.pid, os.WEXITED | os.WNOWAIT)
        for _ in range(2):  # by the checkpoint thread, before the main thread ends the recording
            written.writers.scan()
            assert written.incomplete() == {"a"}
        written.writers.end(killed=True)
        assert written.incomplete() == {"a"}


@linux
def test_file_of_a_process_that_cannot_be_read_now_stays_open(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "f = open('checkpoints/a', 'w'); print(flush=True); import time; time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=written.run.folder,
        stdout=subprocess.PIPE,
        process_group=0,
    ) as script:
        assert script.stdout is not None
        script.stdout.readline()
        written.writers.start(script.pid)

        def refuse(*_: object) -> NoReturn:
            raise PermissionError

        monkeypatch.setattr(command_module, "_open_for_writing", refuse)
        written.writers.scan()
        assert written.incomplete() == {"a"}
        script.kill()
        written.writers.end(killed=True)
        assert written.incomplete() == {"a"}


@linux
def test_file_without_a_name_is_incomplete_until_closed(written: Written) -> None:
    make = (
        "f = os.open('checkpoints', os.O_TMPFILE | os.O_RDWR); os.write(f, b'half'); seen()\n"
        "os.link(f'/proc/self/fd/{f}', 'checkpoints/a', src_dir_fd=f, follow_symlinks=True)\n"
    )
    assert written.script(make + "die()") == {"a"}


@linux
def test_file_of_a_lost_child_is_in_doubt_for_a_while(written: Written) -> None:
    written.open_for_s = 20.0
    text = (
        "pid = os.fork()\n"
        "if not pid:\n    f = write(); time.sleep(600)\n"
        "seen(); os.kill(pid, 9); os.wait(); sys.exit(1)"
    )
    assert written.script(text) == {"a"}
    written.now += 19
    assert written.incomplete() == {"a"}
    written.now += 2
    assert written.incomplete() == set()


@linux
@pytest.mark.parametrize(("mode", "left"), [("ab", set[str]()), ("wb", {"a"})])
def test_log_kept_open_is_complete_whenever_it_ends(
    written: Written, mode: str, left: set[str]
) -> None:
    written.open_for_s = KEPT_OPEN_S
    text = f"f = write(mode='{mode}'); seen(); unseen(); die()"
    assert written.script(text) == left
    assert written.while_open == set()


@pytest.mark.slow
@linux
def test_open_files_are_read_several_times_a_second(written: Written) -> None:
    looks: list[float] = []

    def look() -> bool:
        if written.writers.scanned_ns is not None and written.writers.scanned_ns not in looks:
            looks.append(written.writers.scanned_ns)
        return len(looks) == 3

    written.writers = OpenWriters(written.folder)
    text = "import time; time.sleep(600)"
    ended = written.run.python(text, terminated=look, writers=written.writers)
    assert (ended.stopped, len(looks)) == (True, 3), f"{ended}: {written.run.stderr.read_text()}"


def test_nothing_is_recorded_without_proc(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_module, "_sees_itself", lambda: False)
    (written.run.folder / "open").touch()
    assert written.script("f = write(); seen(); die()") == set()
    assert written.writers.scanned_ns is None
