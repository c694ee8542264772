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
from runner.hooks.timing import DeferredSigterm
{before}
sigterm = DeferredSigterm()
sigterm.install()
os.kill(os.getpid(), signal.SIGTERM)
print("requested", sigterm.requested, flush=True)
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


def test_deferred_sigterm_is_raised_later() -> None:
    assert terminated("sigterm.raise_deferred()") == (-signal.SIGTERM, ["requested True"])
    assert terminated("sigterm.remove()") == (-signal.SIGTERM, ["requested True"])
    assert terminated("") == (0, ["requested True", "after"])


def test_second_sigterm_is_not_deferred() -> None:
    again = "os.kill(os.getpid(), signal.SIGTERM)"
    assert terminated(again) == (-signal.SIGTERM, ["requested True"])


def test_handler_of_the_script_is_called_later() -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    assert terminated("sigterm.raise_deferred()", own) == (7, ["requested True"])


def test_ignored_sigterm_stays_ignored() -> None:
    ignored = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    assert terminated("sigterm.raise_deferred()", ignored) == (0, ["requested False", "after"])


def test_handler_is_not_installed_in_another_thread() -> None:
    code = (
        "import signal, threading\nfrom runner.hooks.timing import DeferredSigterm\n"
        "thread = threading.Thread(target=DeferredSigterm().install)\n"
        "thread.start(); thread.join()\n"
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


def test_save_is_due_after_the_interval(clock: Any) -> None:
    every = SaveInterval(5)
    assert not every.due
    clock.now += 5
    assert every.due
    with every.saving():
        clock.now += 60
    assert not every.due
    clock.now += 5
    assert every.due


def test_slow_saves_take_at_most_two_percent_by_default(
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
def test_default_interval_is_at_most_that_of_commits(
    clock: Any, monkeypatch: pytest.MonkeyPatch, given: str, seconds: float
) -> None:
    monkeypatch.setenv("RUNNER_CHECKPOINT_INTERVAL", given)
    own = SaveInterval()
    clock.now += seconds - 0.1
    assert not own.due
    clock.now += 0.1
    assert own.due
