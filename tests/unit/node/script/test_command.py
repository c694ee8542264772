from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil
import pytest

from runner.node.failures import StageFailedError
from runner.node.script import command as command_module
from runner.node.script.command import ScriptResult, run_command
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
    ) -> ScriptResult:
        return run_command(
            words,
            cwd=self.folder,
            environment=environment,
            stdout=self.stdout,
            stderr=self.stderr,
            timeout_s=timeout_s,
            terminated=terminated,
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
    with pytest.raises(StageFailedError, match="no-such-program is not on this node") as caught:
        run("no-such-program", "--x")
    assert (caught.value.code, caught.value.exit_code) == ("CommandNotFound", 127)


def test_non_executable_command_is_named(run: Runner, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    with pytest.raises(StageFailedError, match=r"\./run\.sh is not executable"):
        run("./run.sh")


@pytest.mark.feature(39)
def test_time_limit_ends_the_script(run: Runner) -> None:
    started = time.monotonic()
    ended = run.python("import time; time.sleep(60)", timeout_s=0.2)
    assert ended.timed_out
    assert time.monotonic() - started < 30


def test_script_has_time_after_sigterm(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "TERMINATION_GRACE_S", 60.0)
    text = (
        "import signal, sys, time\n"
        "def stop(*_):\n print('saved', flush=True); sys.exit(5)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    ended = run.python(text, terminated=lambda: run.stdout.read_text() == "ready\n")
    assert ended == ScriptResult(5, timed_out=False, stopped=True)
    assert run.stdout.read_text() == "ready\nsaved\n"


def test_script_ignoring_sigterm_is_killed(run: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command_module, "TERMINATION_GRACE_S", 0.1)
    text = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    ended = run.python(text, terminated=lambda: run.stdout.read_text() == "ready\n")
    assert ended.exit_code == 137


def test_background_child_holding_stdout_does_not_block_run(run: Runner, until: Until) -> None:
    text = (
        "import subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid)"
    )
    started = time.monotonic()
    ended = run.python(text)
    assert ended.exit_code == 0
    assert time.monotonic() - started < 30
    child = int(run.stdout.read_text())
    until(lambda: not alive(child))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses prctl")
def test_script_dies_with_a_killed_agent(tmp_path: Path, until: Until) -> None:
    text = (
        "from pathlib import Path; import os, sys\n"
        "from runner.node.script.command import run_command\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "code = 'import os, time; print(os.getpid(), flush=True); time.sleep(60)'\n"
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
