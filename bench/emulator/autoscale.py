"""A formula of 100 statements over a day of samples, against the same sums in plain Python."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime

from batch_emulator.autoscale.evaluate import Inputs, evaluate
from batch_emulator.autoscale.samples import KEPT, PERIOD, SampleHistory
from batch_emulator.autoscale.values import Timestamp
from bench.report import Ratio

ROUNDS = 300
BOUND_S = 0.001
NOW = datetime(2026, 1, 5, 9, tzinfo=UTC)
_QUARTER = 24  # windows of one hour to a day, each in four statements


def measure() -> list[Ratio]:
    """Return the median seconds of an evaluation, without parsing, as in the emulator."""
    history, columns = _samples()
    text = _formula()
    inputs = Inputs(history, NOW, 3, 0, lambda: 0.5)
    plain = compile(_python(), "plain", "exec")

    def ours() -> object:
        done = evaluate(text, inputs)
        assert done.problem is None
        return done

    def peer() -> object:
        names: dict[str, object] = {**columns}
        exec(plain, names)
        return names

    for run in (ours, peer):
        run()
    mine, theirs = _medians(ours, peer)
    return [
        Ratio(
            "autoscale formula, 100 statements, 24 h",
            "s",
            mine,
            "compiled Python over lists",
            theirs,
            "< 1 ms",
            mine < BOUND_S,
        )
    ]


def _medians(*runs: Callable[[], object]) -> list[float]:
    """Return the medians of alternating calls, so that other load affects all functions equally."""
    spent: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for run, times in zip(runs, spent, strict=True):
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
    return [statistics.median(times) for times in spent]


def _samples() -> tuple[SampleHistory, dict[str, list[float]]]:
    rng = random.Random(1)
    history = SampleHistory()
    columns: dict[str, list[float]] = {"active": [], "pending": [], "cpu": []}
    newest = Timestamp.of(NOW).ticks
    for age in range(KEPT, 0, -1):
        values = {
            "$ActiveTasks": rng.randrange(50),
            "$PendingTasks": rng.randrange(90),
            "$CPUPercent": rng.random(),
            "$CurrentDedicatedNodes": 3.0,
        }
        history.fill(newest - age * PERIOD, 1, values)
        if age > 1:  # the newest sample is not visible yet
            columns["active"].append(values["$ActiveTasks"])
            columns["pending"].append(values["$PendingTasks"])
            columns["cpu"].append(values["$CPUPercent"])
    return history, columns


def _formula() -> str:
    """Return the four statements of the article for each of 24 windows, then the targets."""
    lines: list[str] = []
    for i in range(_QUARTER):
        window = f"TimeInterval_Hour*{i + 1}"
        lines += [
            f"$s{i}=$PendingTasks.GetSamplePercent({window});",
            (
                f"$t{i}=$s{i}<70?max(0,$PendingTasks.GetSample(1)):"
                f"max($PendingTasks.GetSample(1),avg($ActiveTasks.GetSample({window})));"
            ),
            (
                f"c{i}=min($CPUPercent.GetSample({window},10))>0.7?"
                "$CurrentDedicatedNodes*1.1:$CurrentDedicatedNodes*0.9;"
            ),
            f"n{i}=max(0,min(($t{i}+c{i})/2,20));",
        ]
    lines += [
        f"mean=avg({','.join(f'n{i}' for i in range(_QUARTER))});",
        "$TargetDedicatedNodes=min(mean,20);",
        "$TargetLowPriorityNodes=max(0,mean-20);",
        "$NodeDeallocationOption=taskcompletion;",
    ]
    return "".join(lines)


def _python() -> str:
    """Return Python statements over lists with the same computations as the formula."""
    lines: list[str] = []
    for i in range(_QUARTER):
        count = (i + 1) * 120
        lines += [
            f"s{i} = 100.0 * min(len(pending), {count}) / {count}",
            (
                f"t{i} = max(0, pending[-1]) if s{i} < 70 else"
                f" max(pending[-1], sum(active[-{count}:]) / len(active[-{count}:]))"
            ),
            f"c{i} = 3.0 * 1.1 if min(cpu[-{count}:]) > 0.7 else 3.0 * 0.9",
            f"n{i} = max(0, min((t{i} + c{i}) / 2, 20))",
        ]
    lines += [
        f"mean = sum([{','.join(f'n{i}' for i in range(_QUARTER))}]) / {_QUARTER}",
        "dedicated = min(mean, 20)",
        "spot = max(0, mean - 20)",
    ]
    return "\n".join(lines)
