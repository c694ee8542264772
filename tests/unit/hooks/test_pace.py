from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from runner.hooks import timing
from runner.hooks.timing import SaveInterval

_TERMINATED = """
import os, signal, sys
from runner.hooks.timing import Sigterm
{before}
sigterm = Sigterm()
sigterm.install()
os.kill(os.getpid(), signal.SIGTERM)
print("asked", sigterm.asked, flush=True)
{then}
print("after", flush=True)
"""


def terminated(then: str, before: str = "") -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", _TERMINATED.format(then=then, before=before)],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.split("\n")[:-1]


def test_sigterm_waits_until_it_is_obeyed_and_then_is_sigterm() -> None:
    assert terminated("sigterm.obey()") == (-signal.SIGTERM, ["asked True"])
    assert terminated("sigterm.remove()") == (-signal.SIGTERM, ["asked True"])
    assert terminated("") == (0, ["asked True", "after"])


def test_a_second_sigterm_does_not_wait() -> None:
    again = "os.kill(os.getpid(), signal.SIGTERM)"
    assert terminated(again) == (-signal.SIGTERM, ["asked True"])


def test_the_scripts_own_handler_comes_after() -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    assert terminated("sigterm.obey()", own) == (7, ["asked True"])


def test_who_ignores_sigterm_goes_on_ignoring_it() -> None:
    ignored = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    assert terminated("sigterm.obey()", ignored) == (0, ["asked False", "after"])


def test_in_another_thread_nothing_is_taken_over() -> None:
    code = (
        "import signal, threading\nfrom runner.hooks.timing import Sigterm\n"
        "thread = threading.Thread(target=Sigterm().install)\nthread.start(); thread.join()\n"
        "print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, check=True
    )
    assert done.stdout == b"True\n"


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Clock:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

    made = Clock()
    monkeypatch.setattr(timing, "time", made)
    return made


def test_it_is_time_when_the_interval_has_passed_since_the_last_save(clock: Any) -> None:
    every = SaveInterval(5)
    assert not every.due
    clock.now += 5
    assert every.due
    with every.saving():
        clock.now += 60
    assert not every.due
    clock.now += 5
    assert every.due


def test_without_an_interval_slow_saves_are_rarer_and_cost_a_fiftieth(
    clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RUNNER_CHECKPOINT_INTERVAL", raising=False)
    own = SaveInterval()
    clock.now += 10
    assert own.due
    with own.saving():
        clock.now += 2
    clock.now += 99
    assert not own.due
    clock.now += 1
    assert own.due


@pytest.mark.parametrize(("given", "seconds"), [("2", 2), ("60", 10), ("", 10), ("often", 10)])
def test_it_saves_at_least_as_often_as_the_run_commits(
    clock: Any, monkeypatch: pytest.MonkeyPatch, given: str, seconds: float
) -> None:
    monkeypatch.setenv("RUNNER_CHECKPOINT_INTERVAL", given)
    own = SaveInterval()
    clock.now += seconds - 0.1
    assert not own.due
    clock.now += 0.1
    assert own.due
