"""The input of a simulation: tasks, pool, formula, and evictions of spot nodes.

Times are whole milliseconds since the start of the simulation, which is the creation of the pool.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batch_emulator.domain.eviction_trace import TraceEntry, TraceError, load_trace, read_rows
from runner.core.units import UnitError, parse_duration

MS = 1000
_DAY_MS = 86_400_000
_MAX_MS = 3650 * _DAY_MS
_MAX_TASKS = 5_000_000
_MAX_BYTES = 256 << 20
_MAX_SLOTS = 256  # maximum of taskSlotsPerNode (Batch docs)
_COLUMNS = ("arrival", "duration", "slots")


class ScenarioError(ValueError):
    """A workload or trace is invalid; the message has the place and the reason."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Tasks in order of arrival; each list has one entry per task."""

    arrivals_ms: Sequence[int]
    durations_ms: Sequence[int]
    slots: Sequence[int]

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.arrivals_ms)

    @property
    def slot_ms(self) -> int:
        """The work of all tasks: duration times slots."""
        return sum(map(int.__mul__, self.durations_ms, self.slots))


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """The state that a policy uses. Unlike a formula, a policy knows tasks that arrive later.

    Attributes:
        now_ms: Time since the start of the simulation.
        nodes_wanted: Number of nodes for all waiting and running tasks.
        spot, dedicated: Number of nodes that have a machine.
        done_ms, left_ms: Slot time of finished and of remaining work.
        longest_ms: The longest remaining time of one task, without evictions.
        all_arrived: True if no task arrives later.
    """

    now_ms: int
    nodes_wanted: int
    spot: int
    dedicated: int
    done_ms: int
    left_ms: int
    longest_ms: int
    all_arrived: bool = False


Policy = Callable[[SimulatedPool], tuple[int, int]]  # returns spot and dedicated nodes


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulation; the same scenario gives the same result.

    Attributes:
        formula: Autoscale formula; None keeps `spot` and `dedicated` constant.
        policy: Decides the nodes instead of a formula.
        interval_ms: Time between two evaluations of the formula.
        spot, dedicated: Targets before the first evaluation.
        most_spot, most_dedicated: Quota in nodes; None is no limit.
        slots_per_node: Task slots of a node.
        pack: Fill the fullest node first instead of the emptiest.
        boot_ms: Time from allocation to the first task, without the start task.
        boot_spread: Standard deviation of the logarithm of the boot time; 0 for a constant time.
        start_task_ms: Duration of the start task.
        setup_ms: Time at the start of each attempt of a task: environment, data, restore.
        checkpoint_ms: Work between two checkpoints; None for tasks without checkpoints.
        save_ms: Time for which a checkpoint stops the work; counts as setup.
        evictions_per_hour: Mean number of evictions of one spot node in an hour.
        notice_ms: Time between the notice of an eviction and the eviction.
        away_ms: Mean time until an evicted node gets another machine.
        changes: Evictions and capacities of a trace, by time.
        start: Date and time of the start, for formulas that read the clock.
        until_ms: Latest end of the simulation.
        seed, pool: Together they select the random evictions, as in the emulator.
    """

    workload: Workload
    formula: str | None = None
    policy: Policy | None = None
    interval_ms: int = 900 * MS
    spot: int = 0
    dedicated: int = 0
    most_spot: int | None = None
    most_dedicated: int | None = None
    slots_per_node: int = 1
    pack: bool = False
    boot_ms: int = 240 * MS
    boot_spread: float = 0.0
    start_task_ms: int = 0
    setup_ms: int = 0
    checkpoint_ms: int | None = None
    save_ms: int = 0
    evictions_per_hour: float = 0.0
    notice_ms: int = 30 * MS
    away_ms: int = 0
    changes: Sequence[TraceEntry] = ()
    start: datetime = field(default_factory=lambda: datetime(2026, 1, 5, tzinfo=UTC))
    until_ms: int | None = None
    seed: int = 0
    pool: str = "pool"

    @property
    def horizon_ms(self) -> int:
        """The latest end of the simulation."""
        if self.until_ms is not None:
            return self.until_ms
        last = self.workload.arrivals_ms[-1] if len(self.workload) else 0
        return last + 30 * _DAY_MS


# -- workloads


def generate(
    count: int, over_ms: int, duration: Callable[[random.Random], float], slots: int, seed: int
) -> Workload:
    """Return `count` tasks that arrive at random over a period.

    Args:
        count: Number of tasks.
        over_ms: Length of the period; if 0, all tasks arrive at the start.
        duration: Returns the duration of one task in seconds.
        slots: Slots of each task.
        seed: Seed of the arrivals and durations.
    """
    draw = random.Random(f"workload/{seed}")  # noqa: S311
    arrivals = sorted(draw.randint(0, over_ms) for _ in range(count))
    durations = [max(1, min(_MAX_MS, round(duration(draw) * MS))) for _ in range(count)]
    return Workload(arrivals, durations, [slots] * count)


def parse_spread(text: str) -> Callable[[random.Random], float]:
    """Return the distribution of a text such as `30m`, `20m-1h` or `lognormal(30m, 0.5)`.

    `A-B` is uniform; `exponential(MEAN)`; `lognormal(MEDIAN, SIGMA)`. Values are seconds.

    Raises:
        ScenarioError: the text is none of these.
    """
    name, bracket, rest = text.strip().partition("(")
    try:
        if not bracket:
            low, dash, high = text.partition("-")
            first = _seconds(low)
            if not dash:
                return lambda _: first
            last = _seconds(high)
            if last < first:
                raise ScenarioError(f"{text!r}: the first duration is longer than the second")
            return lambda draw: draw.uniform(first, last)
        if not rest.endswith(")"):
            raise ScenarioError(f"{text!r} has no closing parenthesis")
        words = rest[:-1].split(",")
        if name == "exponential" and len(words) == 1:
            mean = _seconds(words[0])
            return lambda draw: draw.expovariate(1 / mean)
        if name == "lognormal" and len(words) == 2:
            median, sigma = _seconds(words[0]), float(words[1])
            if not 0 <= sigma <= 5:
                raise ScenarioError(f"{text!r}: sigma must be from 0 to 5")
            return lambda draw: draw.lognormvariate(math.log(median), sigma)
    except (UnitError, ValueError) as err:
        raise ScenarioError(f"{text!r}: {err}") from err
    forms = "30m, 20m-1h, exponential(30m) or lognormal(30m, 0.5)"
    raise ScenarioError(f"{text!r} is not a distribution of durations; use {forms}")


def _seconds(text: str) -> float:
    seconds = parse_duration(text.strip()).total_seconds()
    if not 0 < seconds <= _MAX_MS / MS:
        raise ScenarioError(f"{text.strip()!r} must be longer than zero and at most 3650 days")
    return seconds


def load_workload(path: Path) -> Workload:
    """Read tasks from JSON lines or CSV with a header: `arrival`, `duration`, `slots`.

    Times are seconds, or durations such as `30m`; `slots` defaults to 1. Rows need no order.

    Raises:
        ScenarioError: the file cannot be read, or a row is invalid.
    """
    tasks: list[tuple[int, int, int]] = []
    try:
        if path.exists() and not (path.is_file() and path.stat().st_size <= _MAX_BYTES):
            raise ScenarioError(f"{path}: expected a file of at most {_MAX_BYTES >> 20} MiB")
        for line, row in read_rows(path):
            tasks.append(_task(row, f"{path}, line {line}"))
            if len(tasks) > _MAX_TASKS:
                raise ScenarioError(f"{path}: more than {_MAX_TASKS:,} tasks")
    except TraceError as err:
        raise ScenarioError(str(err)) from err
    if not tasks:
        rows = "expected one JSON object per line, or CSV with the header arrival,duration,slots"
        raise ScenarioError(f"{path}: no tasks; {rows}")
    tasks.sort(key=lambda task: task[0])
    return Workload([t[0] for t in tasks], [t[1] for t in tasks], [t[2] for t in tasks])


def _task(row: dict[str, Any], place: str) -> tuple[int, int, int]:
    unknown = sorted(set(row) - set(_COLUMNS))
    if unknown:
        names = ", ".join(unknown)
        raise ScenarioError(f"{place}: unknown {names}; allowed: {', '.join(_COLUMNS)}")
    try:
        arrival, duration = _time(row, "arrival", 0), _time(row, "duration", 1)
        slots = _slots(row.get("slots"))
    except (UnitError, TypeError, ValueError, OverflowError) as err:
        raise ScenarioError(f"{place}: {err}") from err
    return arrival, duration, slots


def _slots(value: object) -> int:
    if value is None or value == "":
        return 1
    number = math.nan if isinstance(value, bool) else float(str(value))
    if not number.is_integer() or not 1 <= number <= _MAX_SLOTS:
        raise ScenarioError(f"'slots' must be a whole number from 1 to {_MAX_SLOTS}")
    return int(number)


def load_changes(path: Path) -> tuple[TraceEntry, ...]:
    """Read a trace of evictions and spot capacity, as the emulator's `--eviction-trace`.

    Raises:
        ScenarioError: the file cannot be read, or a line is invalid.
    """
    try:
        return load_trace(path)
    except TraceError as err:
        raise ScenarioError(str(err)) from err


def _time(row: dict[str, Any], name: str, least_ms: int) -> int:
    value = row.get(name)
    if value is None or value == "" or isinstance(value, bool):
        raise ScenarioError(f"missing {name!r}")
    try:
        seconds = float(value)
    except ValueError:
        seconds = parse_duration(str(value)).total_seconds()
    if not least_ms / MS <= seconds <= _MAX_MS / MS:
        raise ScenarioError(f"{name!r} is {value!r}; expected {least_ms / MS:g} s to 3650 days")
    return round(seconds * MS)
