"""Metrics that expressions find in stdout, also with slow expressions."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.node.script import metrics as patterns_module
from runner.node.script.command import run_command
from runner.node.script.metrics import MetricLog, MetricPatterns
from runner.node.script.shipper import LineQueue
from tests.processes import alive
from tests.unit.node.agent_task import Task

Until = Callable[[Callable[[], object]], None]
FOREVER = r"^(?:\w+\s?)*acc=([0-9.]+)$"
EVIL = b"word " * 40 + b"!\n"


class Search:
    """A search with its metrics and warnings."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self.queue = LineQueue()
        self.warnings: list[str] = []
        self.patterns = MetricPatterns(patterns, MetricLog(2, self.queue), self.warnings.append)

    @property
    def found(self) -> list[tuple[str, Any, int | None]]:
        self.queue.rewind(0)  # else the block of the last call is returned again
        lines = [json.loads(line) for line in self.queue.peek().splitlines()]
        return [(m["name"], m["value"], m["step"]) for m in lines]

    @property
    def pid(self) -> int:
        process = self.patterns._process
        assert process is not None
        return process.pid


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Search]]:
    monkeypatch.setattr(patterns_module.pattern_worker, "LINE_S", 0.1)
    made: list[Search] = []

    def make(**patterns: str) -> Search:
        made.append(Search(patterns))
        return made[-1]

    yield make
    for one in made:
        one.patterns.finish(0)


@pytest.mark.feature(46)
def test_patterns_find_metrics_in_stdout(search: Callable[..., Search]) -> None:
    found = search(loss=r"loss=([0-9.eE+-]+)", acc=r"epoch (?P<step>\d+) .*acc (?P<value>[\d.]+)")
    found.patterns.feed(b"epoch 3 loss=0.5 acc 0.75\nnothing\nepoch 4 lo")
    found.patterns.feed(b"ss=1e-2 acc 0.9\rloss=bad-number-e\nloss=0.1")
    pid = found.pid
    found.patterns.finish()
    assert found.found == [
        ("loss", 0.5, 1),
        ("acc", 0.75, 3),
        ("loss", 0.01, 2),
        ("acc", 0.9, 4),
        ("loss", 0.1, 3),
    ]
    assert not alive(pid)
    assert not found.warnings


def test_endless_line_does_not_use_memory(search: Callable[..., Search]) -> None:
    found = search(loss="loss=(.*)")
    for _ in range(100):
        found.patterns.feed(b"x" * 10_000)
    assert len(found.patterns._rests["stdout"]) <= 64 * 1024


def test_endless_expression_is_switched_off_alone(
    search: Callable[..., Search], until: Until
) -> None:
    found = search(acc=FOREVER, loss=r"loss=([0-9.]+)")
    found.patterns.feed(b"loss=0.5\n" + EVIL * 4 + b"loss=0.25\n")
    until(lambda: len(found.found) == 2)
    found.patterns.finish()
    assert found.found == [("loss", 0.5, 1), ("loss", 0.25, 2)]
    assert len(found.warnings) == 1
    assert "metrics.patterns.acc is switched off" in found.warnings[0]


def test_slow_line_is_skipped_alone(search: Callable[..., Search]) -> None:
    found = search(acc=FOREVER)
    found.patterns.feed(EVIL + b"acc=0.5\n")
    found.patterns.finish()
    assert found.found == [("acc", 0.5, 1)]
    assert not found.warnings


@pytest.mark.slow
def test_killed_search_loses_and_repeats_no_value(
    search: Callable[..., Search], until: Until
) -> None:
    found = search(loss=r"loss=([0-9.]+)")
    for number in range(3):
        found.patterns.feed(b"loss=%d\n" % number)
        until(lambda n=number: len(found.found) == n + 1)
        os.kill(found.pid, signal.SIGKILL)
    found.patterns.feed(b"loss=3\n")
    found.patterns.finish()
    assert found.found == [("loss", float(n), n + 1) for n in range(4)]


def test_invalid_expression_is_switched_off_alone(
    search: Callable[..., Search],
) -> None:
    # As a++ is in Python 3.10, but not in later versions of the client.
    found = search(acc="acc=(", loss=r"loss=([0-9.]+)")
    found.patterns.feed(b"acc=1\nloss=0.5\n")
    found.patterns.finish()
    assert found.found == [("loss", 0.5, 1)]
    assert len(found.warnings) == 1
    assert "metrics.patterns.acc is switched off: 'acc=(' is not a valid" in found.warnings[0]


def test_search_restarts_without_the_agents_archive(
    search: Callable[..., Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = search(loss=r"loss=([0-9.]+)")
    monkeypatch.setattr(patterns_module.pattern_worker, "__loader__", None)
    os.kill(found.pid, signal.SIGKILL)
    found.patterns.feed(b"loss=3\n")
    found.patterns.finish()
    assert found.found == [("loss", 3.0, 1)]


@pytest.mark.slow
def test_restarted_search_survives_the_end_of_the_script(
    search: Callable[..., Search], until: Until, tmp_path: Path
) -> None:
    found = search(loss=r"loss=([0-9.]+)")

    def replaced(_: int) -> None:
        os.kill(found.pid, signal.SIGKILL)
        found.patterns.feed(b"loss=1\n")
        until(lambda: len(found.found) == 1)
        printing.start()

    def print_on() -> None:
        while not over.wait(0.005):
            found.patterns.feed(b"loss=2\n")

    over, printing = threading.Event(), threading.Thread(target=print_on)
    out = tmp_path / "out"
    run_command(
        ["true"], cwd=tmp_path, environment={"PATH": os.defpath}, stdout=out, stderr=out,
        timeout_s=None, terminated=lambda: False, on_start=replaced,
    )  # fmt: skip
    over.set()
    printing.join()
    found.patterns.feed(b"loss=3\n")
    found.patterns.finish()
    assert found.found[-1][1] == 3.0
    assert not found.warnings


def test_log_does_not_wait_for_a_slow_search(
    search: Callable[..., Search], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patterns_module, "MAX_PENDING_CHARS", 100)
    monkeypatch.setattr(patterns_module, "BACKLOG_WAIT_S", 0.05)
    found = search(acc=FOREVER)
    for _ in range(200):
        found.patterns.feed(EVIL)  # the search takes hours
    assert [text for text in found.warnings if "slower than the script prints" in text]


@pytest.mark.slow
def test_endless_expression_does_not_affect_the_run(task: Task) -> None:
    task.submit(
        "import os, time\n"
        f"print({EVIL.decode()!r} * 3, flush=True)\n"
        "print('loss=0.5', flush=True)\n"
        "open(os.environ['RUNNER_CHECKPOINT_DIR'] + '/a', 'w').write('a')\n"
        "while not os.path.exists('../../go'): time.sleep(0.01)\n",
        metrics={"patterns": {"acc": FOREVER, "loss": "loss=([0-9.]+)"}},
        checkpoints={"interval_s": 0.2, "keep": 2},
    )
    process = task.start()
    deadline = time.monotonic() + 120
    while not (
        "loss=0.5" in task.text("logs/stdout.txt")
        and task.has("checkpoints/1/manifest.json")
        and "0.5" in task.text("metrics.jsonl")
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (task.folder / "task-0" / "go").touch()
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert task.json("result.json")["metrics"] == {"loss": 0.5}
    warnings = [
        e["message"] for e in task.lines("attempts/1/events.jsonl") if e["stage"] == "metrics"
    ]
    assert len(warnings) == 1
    assert "metrics.patterns.acc is switched off" in warnings[0]


def test_patterns_find_metrics_in_stderr_too(search: Callable[..., Search]) -> None:
    found = search(loss=r"loss=([0-9.]+)")
    found.patterns.feed(b"loss=0.")
    found.patterns.feed(b"loss=0.75\n", "stderr")
    found.patterns.feed(b"5\nloss=0.25")
    found.patterns.finish()
    assert sorted(value for _, value, _ in found.found) == [0.25, 0.5, 0.75]
