"""One sweep, or a group of runs: its trials compared, drawn and changed.

`load_sweep` reads it in a thread; trials that have ended are read once. `SweepQuery` is what the
address says: marked ranges of axes, columns and order. The pictures have the same trials in the
same order, so that a script marks a trial in all of them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import accumulate, islice
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.core.curves import Curve, differing
from runner.core.pricing.ledger import NodeCosts
from runner.core.states import WaitCause
from runner.core.sweep_plots import Axis, PlottedTrial, best_so_far, importance
from runner.flows.costs.report import CostQuery, report_costs
from runner.flows.runs.group_documents import find_group, list_group_ids
from runner.flows.sweeps.experiments import (
    Leaderboard,
    TrialCost,
    costs_of_trials,
    load_leaderboard,
    plotted_trials,
)
from runner.flows.sweeps.groups import load_group_view
from runner.flows.sweeps.ranking import goal_of
from runner.page.ask import Ask, WebPage
from runner.page.charts.trials import HEIGHT, TIME, DrawnAxis, History
from runner.page.rest import Endpoint
from runner.page.source import Source
from runner.protocol.errors import RunnerError
from runner.protocol.groups import MERGE_TASK, RunGroup
from runner.protocol.metrics import Goal
from runner.views.sweeps import (
    GroupDocument,
    SweepDocument,
    group_document,
    sweep_document,
    trial_documents,
)

ROWS = 100  # of the table, unless the address asks for more
_MOST_ROWS = 10_000
_CURVES, _MOST_CURVES = 20, 500
_MOST_OTHERS = 7  # sweeps in one plot, each with a colour of its own
_AXES, _FEW_AXES, _MANY = 8, 6, 2000  # fewer axes for many trials, because of the bytes
_MOST_AXES = 24
_MOST_KEPT = 8  # sweeps
_STALE_S = 600.0
_PATIENCE_S = 0.3
METRIC = ""  # the name of the axis of the metric


@dataclass(frozen=True, slots=True)
class Trial:
    """A trial, or a run of a group; `value` is the last value of the metric."""

    name: str
    run_id: str
    state: str
    reason: str
    value: float | None
    params: Mapping[str, Any]
    took_s: float | None
    attempts: int
    evicted: int | None
    ended: datetime | None
    points: tuple[tuple[int, float], ...] = ()

    @property
    def has_value(self) -> bool:
        """True if the trial can be compared."""
        return self.value is not None and math.isfinite(self.value)


@dataclass(frozen=True)
class Sweep:
    """A sweep as it was read, with what all views of it share.

    Attributes:
        group: Its document; the tasks of a plain group are shown as trials, too.
        board: Its leaderboard.
        trials: The trials; those with a value first, the best one on top.
        read_s: Seconds that reading took.
    """

    group: RunGroup
    board: Leaderboard
    trials: tuple[Trial, ...]
    goal: Goal
    read_s: float

    @property
    def is_sweep(self) -> bool:
        """False for a group of runs from a file."""
        return bool(self.group.trials)

    @cached_property
    def is_over(self) -> bool:
        """True if no run may change."""
        return all(row.is_over for row in self.board.rows)

    @cached_property
    def states(self) -> Mapping[str, int]:
        """The number of trials in each state."""
        return self.board.shown_states

    @property
    def experiment(self) -> str:
        """The experiment of its runs; empty if it is unknown."""
        return next((row.spec.experiment for row in self.board.rows if row.spec), "")

    @cached_property
    def problems(self) -> tuple[str, ...]:
        """Why trials cannot be compared, or ended without success."""
        metric_problem = [self.board.metric_problem] if self.is_sweep else []
        return (*filter(None, metric_problem), *self.board.problems)

    @cached_property
    def cause(self) -> WaitCause | None:
        """Why queued trials need an action of the user, or None."""
        return self.board.cause

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The parameters, in the order of the trials."""
        return tuple(dict.fromkeys(name for each in self.trials for name in each.params))

    @cached_property
    def measured(self) -> int:
        """The number of trials with a value."""
        return sum(each.has_value for each in self.trials)

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The names of all values that trials reported."""
        return tuple(sorted({name for row in self.board.rows for name in row.metrics}))

    @cached_property
    def shares(self) -> Mapping[str, float]:
        """The importance of each parameter, the most important first."""
        plotted = [PlottedTrial(each.name, each.params, each.value) for each in self.trials]
        known = importance(plotted)
        return known | {name: 0.0 for name in self.names if name not in known}

    @cached_property
    def axes(self) -> Mapping[str, Axis]:
        """The axis of each parameter, and that of the metric."""
        found = {
            name: Axis(name, [each.params[name] for each in self.trials if name in each.params])
            for name in self.names
        }
        values = [each.value for each in self.trials if each.has_value]
        return found | {METRIC: Axis(self.board.metric or "value", values)}

    @cached_property
    def crossings(self) -> dict[str, tuple[int | None, ...]]:
        """Where trials cross the axes that were drawn; see `cross`."""
        return {}

    def cross(self, name: str) -> tuple[int | None, ...]:
        """Return where each trial crosses an axis, from 0 at the top; None without a value."""
        if name not in self.crossings:
            axis = self.axes[name]
            heights = (self._height(axis, each, name) for each in self.trials)
            self.crossings[name] = tuple(
                None if height is None else round(HEIGHT * (1 - height)) for height in heights
            )
        return self.crossings[name]

    def _height(self, axis: Axis, trial: Trial, name: str) -> float | None:
        if name == METRIC:
            return axis.at(trial.value) if trial.has_value else None
        return axis.at(trial.params[name]) if name in trial.params else None

    @cached_property
    def in_order(self) -> tuple[int, ...]:
        """The numbers of the trials that have ended, in the order of their ends."""
        ended = [(each.ended, n) for n, each in enumerate(self.trials) if each.ended is not None]
        return tuple(number for _, number in sorted(ended))


def load_sweep(
    connection: Connection, reference: str, metric: str | None, kept: Sweep | None
) -> Sweep:
    """Return a sweep or a group.

    Args:
        connection: The services.
        reference: Its ID.
        metric: The metric that compares the trials; None means that of the sweep.
        kept: The same as it was read before. Its trials that have ended are not read again.

    Raises:
        RunnerError: R-GROUP-UNKNOWN, R-METRIC-UNKNOWN.
    """
    began = time.monotonic()
    group = find_group(connection, reference)
    if kept is not None and kept.group == group and kept.is_over:
        return kept
    # A resumed trial has the attempts of all its runs, which would be added again.
    known = kept.board.rows if kept is not None and not group.earlier else ()
    shown = group if group.trials else replace(group, trials={name: {} for name in group.runs})
    board = load_leaderboard(connection, shown, metric, known)
    plotted = plotted_trials(connection, board) if group.trials else _of_group(board)
    trials = [
        Trial(
            each.name, row.run_id, row.shown_state, row.failure, each.value, each.params,
            row.took_s, row.attempts, row.evicted, row.ended, each.points,
        )
        for each, row in zip(plotted, board.rows, strict=True)
    ]  # fmt: skip
    trials.sort(key=lambda each: not each.has_value)  # infinite values are ranked, too
    goal = goal_of(board.rows, board.metric or "value")
    found = Sweep(group, board, tuple(trials), goal, time.monotonic() - began)
    # Computed here, in a thread.
    _ = found.shares, found.axes, found.metrics, found.states, found.problems, found.cause
    return found


def _of_group(board: Leaderboard) -> list[PlottedTrial]:
    """Return the runs of a plain group, with the parameters that differ."""
    given = differing([row.params for row in board.rows])
    return [
        PlottedTrial(
            board.names[row.run_id],
            {name: values[n] for name, values in given.items() if values[n] is not None},
            row.metrics.get(board.metric) if board.metric else None,
        )
        for n, row in enumerate(board.rows)
    ]


class SweepMemory:
    """The sweeps that were read last, whose ended trials are not read again."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Sweep] = {}

    def find(self, key: Hashable) -> Sweep | None:
        """Return a sweep as it was read before, or None."""
        return self._known.get(key)

    def keep(self, key: Hashable, sweep: Sweep) -> None:
        """Remember a sweep, and forget the one that was read first if there are many."""
        self._known.pop(key, None)
        self._known[key] = sweep
        while len(self._known) > _MOST_KEPT:
            self._known.pop(next(iter(self._known)), None)


async def read_sweep(source: Source, reference: str, metric: str | None = None) -> Sweep:
    """Return a sweep; a large one that was read before is returned at once, and read again."""
    key = ("sweep", reference, metric)

    memory = source.kept(SweepMemory)
    before = memory.find(key)

    def load(connection: Connection) -> Sweep:
        found = load_sweep(connection, reference, metric, memory.find(key))
        memory.keep(key, found)
        return found

    rest_s = 2.0 if before is None else max(10 * before.read_s, 2.0)
    stale_s = 0.0 if before is None or before.read_s < _PATIENCE_S else _STALE_S
    return await source.read(key, load, fresh_s=rest_s, stale_s=stale_s)


async def read_costs(source: Source, sweep: Sweep) -> Mapping[str, TrialCost] | None:
    """Return what each trial has cost, by name; None for nodes of this machine.

    The ledger has all runs, because they share nodes, so it is read less often.
    """
    settings = source.settings
    if not settings.target.is_billed:
        return None

    def load(connection: Connection) -> Mapping[str, NodeCosts]:
        return report_costs(connection, CostQuery(by="run"), settings.home).ledger.runs

    spent = await source.read(("ledger", "runs"), load, fresh_s=60.0, stale_s=3600.0)
    return costs_of_trials(sweep.board, spent)


@dataclass(frozen=True, slots=True)
class Brush:
    """A selected part of an axis: `low..high`, where either may be missing, or choices."""

    low: float = -math.inf
    high: float = math.inf
    choices: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, name: str, axis: Axis, texts: Sequence[str]) -> Brush:
        """Read the values of the address. Raise RunnerError if they are no range."""
        if not axis.numbers:
            return cls(choices=frozenset(texts))
        low, dots, high = texts[-1].partition("..")
        try:
            limits = float(low or "-inf"), float(high or "inf") if dots else float(low)
        except ValueError:
            limits = math.nan, math.nan
        if any(map(math.isnan, limits)):
            raise RunnerError(
                "R-PAGE-QUERY",
                f"invalid range {texts[-1][:40]!r} of {name or 'the metric'}",
                why="expected two numbers, for example 0.001..0.1",
                fix="correct the address, or remove the range",
            )
        return cls(*limits)

    def accepts(self, value: Any) -> bool:
        """Return True if a trial with this value is selected."""
        if self.choices:
            return str(value) in self.choices
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high

    def shares(self, axis: Axis) -> tuple[float, float] | None:
        """Return the heights on the axis, from 0 to 1; None if it selects nothing."""
        if not axis.numbers:
            heights = [axis.at(each) for each in axis.choices if each in self.choices]
            return (min(heights), max(heights)) if heights else None
        if self.low > axis.high or self.high < axis.low or self.low > self.high:
            return None
        return axis.at(max(self.low, axis.low)), axis.at(min(self.high, axis.high))


@dataclass(frozen=True, slots=True)
class SweepQuery:
    """What the address of a sweep says.

    Attributes:
        metric: The metric that compares the trials; None means that of the sweep.
        axes: The parameters to show; empty means the most important ones.
        sort: A column, with `-` for the other order; empty means the best first.
        states: States of trials to mark; empty means all.
        limit: Number of rows.
        curves: Number of curves.
        others: IDs of other sweeps in the plot of the best value.
    """

    metric: str | None
    axes: tuple[str, ...]
    sort: str
    states: tuple[str, ...]
    limit: int
    curves: int
    others: tuple[str, ...]
    brushes: Mapping[str, Brush] = field(default_factory=dict[str, Brush])

    @classmethod
    def parse(cls, ask: Ask) -> SweepQuery:
        """Read the query of the address. Raise RunnerError for an invalid value."""
        return cls(
            ask.text("metric") or None,
            tuple(dict.fromkeys(ask.texts("axis")))[:_MOST_AXES],
            ask.text("sort"),
            tuple(ask.texts("state")),
            ask.number("n", ROWS, low=1, high=_MOST_ROWS),
            ask.number("curves", _CURVES, low=0, high=_MOST_CURVES),
            tuple(dict.fromkeys(ask.texts("with")))[:_MOST_OTHERS],
        )

    def with_brushes(self, ask: Ask, sweep: Sweep) -> SweepQuery:
        """Return the query with the selected parts of axes: `b.lr=0.001..0.1`; `b` is the metric.

        Raises:
            RunnerError: a range is invalid.
        """
        found: dict[str, Brush] = {}
        for name, axis in sweep.axes.items():
            if texts := ask.texts(f"b.{name}" if name else "b"):
                found[name] = Brush.parse(name, axis, texts)
        return replace(self, brushes=found)

    def select(self, sweep: Sweep) -> list[int] | None:
        """Return the numbers of the selected trials; None if the query selects none."""
        if not self.brushes and not self.states:
            return None
        return [number for number, each in enumerate(sweep.trials) if self._accepts(each)]

    def _accepts(self, trial: Trial) -> bool:
        if self.states and trial.state not in self.states:
            return False
        values = {**trial.params, METRIC: trial.value}
        return all(brush.accepts(values.get(name)) for name, brush in self.brushes.items())

    def shown_axes(self, sweep: Sweep) -> list[str]:
        """Return the parameters with an axis: chosen ones, or the most important ones."""
        if chosen := [name for name in self.axes if name in sweep.names]:
            return chosen
        most = _AXES if len(sweep.trials) <= _MANY else _FEW_AXES
        important = list(sweep.shares)[:most]
        brushed = [name for name in self.brushes if name and name not in important]
        return [*important, *brushed]


def sorted_rows(
    sweep: Sweep, numbers: Sequence[int], sort: str, costs: Mapping[str, TrialCost] | None
) -> list[int]:
    """Return trials in the order of a column; those without a value come last."""
    is_reverse, column = sort.startswith("-"), sort.removeprefix("-")
    if not column:
        return list(numbers)

    def value(number: int) -> Any:
        trial = sweep.trials[number]
        if column.startswith("p."):
            return trial.params.get(column.removeprefix("p."))
        if column == "cost":
            return costs[trial.name].cost_usd if costs else None
        known = {
            "trial": trial.name, "value": trial.value, "state": trial.state,
            "took": trial.took_s, "attempts": trial.attempts,
        }  # fmt: skip
        return known.get(column)

    keys = {number: _order_of(value(number)) for number in numbers}
    known = [number for number in numbers if keys[number] is not None]
    missing = [number for number in numbers if keys[number] is None]
    return [*sorted(known, key=lambda n: keys[n] or (0, 0, ""), reverse=is_reverse), *missing]


def _order_of(value: Any) -> tuple[int, float, str] | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, int | float):
        return (0, float(value), "")
    return (1, 0.0, str(value))


def history_by_trials(sweep: Sweep) -> History:
    """Return the values of a sweep over the number of trials that had ended."""
    places = {number: float(n) for n, number in enumerate(sweep.in_order, 1)}
    return _history(sweep, places)


def history_by_cost(sweep: Sweep, costs: Mapping[str, TrialCost] | None) -> History:
    """Return the values over the dollars, or without `costs` the seconds, of trials until then."""
    steps = [_spent(sweep.trials[number], costs) for number in sweep.in_order]
    places = dict(zip(sweep.in_order, accumulate(steps), strict=True))
    return _history(sweep, places)


def _spent(trial: Trial, costs: Mapping[str, TrialCost] | None) -> float:
    if costs is None:
        return trial.took_s or 0.0
    found = costs.get(trial.name)
    return (found.cost_usd or 0.0) if found else 0.0


def _history(sweep: Sweep, places: Mapping[int, float]) -> History:
    points = [
        (places[number], each.value)
        if number in places and each.has_value and each.value is not None
        else None
        for number, each in enumerate(sweep.trials)
    ]
    best = best_so_far(filter(None, points), sweep.goal)
    return History(sweep.group.group_id, points, best, max(places.values(), default=0.0))


@dataclass(frozen=True, slots=True)
class Histories:
    """The best value so far of several sweeps, over trials and over costs."""

    sweeps: tuple[Sweep, ...]
    by_trials: tuple[History, ...]
    by_cost: tuple[History, ...]
    unit: str
    total: float | None


async def _histories(ask: Ask, sweep: Sweep, others: Sequence[Sweep]) -> Histories:
    sweeps = (sweep, *others)
    costs = [await read_costs(ask.source, each) for each in sweeps]
    by_cost = [history_by_cost(each, cost) for each, cost in zip(sweeps, costs, strict=True)]
    return Histories(
        sweeps,
        tuple(map(history_by_trials, sweeps)),
        tuple(by_cost),
        TIME if costs[0] is None else "$",
        total_cost(costs[0]),
    )


def total_cost(costs: Mapping[str, TrialCost] | None) -> float | None:
    """Return the dollars of all trials; None if a price is unknown, or without costs."""
    known = [each.cost_usd for each in (costs or {}).values()]
    return None if costs is None or None in known else sum(filter(None, known))


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `sweep.html`."""
    query = SweepQuery.parse(ask)
    sweep = await read_sweep(ask.source, ask.parts["group_id"], query.metric)
    query = query.with_brushes(ask, sweep)
    read_others = (read_sweep(ask.source, each) for each in query.others)
    found = await asyncio.gather(*read_others, return_exceptions=True)
    others = [each for each in found if isinstance(each, Sweep)]
    missing = [
        name for name, each in zip(query.others, found, strict=True) if not isinstance(each, Sweep)
    ]
    comparable = [each for each in others if each.board.metric == sweep.board.metric]
    costs = await read_costs(ask.source, sweep)
    selected = query.select(sweep)
    numbers = range(len(sweep.trials)) if selected is None else selected
    rows = sorted_rows(sweep, numbers, query.sort, costs)
    axes = query.shown_axes(sweep)
    drawn = [_drawn(sweep, name, query) for name in (*axes, METRIC)]
    return {
        "title": sweep.group.group_id,
        "sweep": sweep,
        "board": sweep.board,
        "wanted": query,
        "axes": axes,
        "drawn": drawn if sweep.board.metric or axes else (),
        "columns": sweep.names if len(sweep.names) <= _AXES else tuple(axes),
        "selected": selected,
        "rows": rows[: query.limit],
        "matching": len(rows),
        "costs": costs,
        "histories": await _histories(ask, sweep, comparable),
        "trial_names": " ".join(each.name for each in sweep.trials),
        "left_out": [*missing, *(each.group.group_id for each in others if each not in comparable)],
        "curves": _curves(sweep, selected, query.curves),
        "places": {each.name: number for number, each in enumerate(sweep.trials)},
        "counts": _counts(sweep),
        "pools": await ask.source.read(("pools",), _pools, fresh_s=60.0, stale_s=3600.0),
        "groups": await _groups(ask.source),
        "merge_task": MERGE_TASK,
        **({"live": ""} if sweep.is_over else {}),
    }


def _drawn(sweep: Sweep, name: str, query: SweepQuery) -> DrawnAxis:
    axis, brush = sweep.axes[name], query.brushes.get(name)
    return DrawnAxis(name, axis, sweep.cross(name), brush.shares(axis) if brush else None)


def _curves(sweep: Sweep, selected: Sequence[int] | None, most: int) -> list[Curve]:
    """Return the curves of the best trials, and of the best selected ones."""
    metric = sweep.board.metric or "value"

    def best(numbers: Sequence[int]) -> set[int]:
        with_points = (n for n in numbers if n < sweep.measured and len(sweep.trials[n].points) > 1)
        return set(islice(with_points, most))

    numbers = best(range(sweep.measured)) | best(selected or ())
    trials = (sweep.trials[number] for number in sorted(numbers))
    return [Curve(each.name, metric, each.points) for each in trials]


def _counts(sweep: Sweep) -> dict[str, int]:
    """Return how many trials are in which part of their life, for the actions."""
    states = sweep.states
    over = ("succeeded", "stopped early", "failed", "lost", "cancelled", "unreadable")
    return {
        "active": sum(count for state, count in states.items() if state not in over),
        "running": sum(states.get(state, 0) for state in ("running", "preparing")),
        "again": sum(states.get(state, 0) for state in ("failed", "lost", "cancelled")),
        "paused": states.get("paused", 0),
        "succeeded": states.get("succeeded", 0) + states.get("stopped early", 0),
    }


def _pools(connection: Connection) -> tuple[str, ...]:
    return tuple(pool.id for pool in connection.outputs.pools)


async def _groups(source: Source) -> list[str]:
    """Return the newest sweeps and groups, to choose one for the plot."""
    ids = await source.read(("group ids",), list_group_ids, fresh_s=10.0, stale_s=_STALE_S)
    return ids[:200]


async def read_trial(ask: Ask) -> dict[str, Any]:
    """Return the values of `trial.html`: one trial, as a hover shows it."""
    metric = ask.text("metric") or None
    sweep = await read_sweep(ask.source, ask.parts["group_id"], metric)
    name = ask.parts["name"]
    trial = next((each for each in sweep.trials if each.name == name), None)
    if trial is None:
        group_id = sweep.group.group_id
        raise RunnerError(
            "R-PAGE-UNKNOWN", f"{group_id} has no trial {name!r}", fix=f"/sweeps/{group_id}"
        )
    costs = await read_costs(ask.source, sweep)
    return {
        "title": f"Trial {name}",
        "sweep": sweep,
        "trial": trial,
        "cost": costs[name].cost_usd if costs and name in costs else None,
    }


async def read_sweep_document(ask: Ask) -> SweepDocument:
    """Return a sweep with its trials, the best first."""
    sweep = await read_sweep(ask.source, ask.parts["group_id"], ask.text("metric") or None)
    costs = await read_costs(ask.source, sweep) if ask.text("cost") else None
    return sweep_document(sweep.board, trial_documents(sweep.board, costs))


async def read_group_document(ask: Ask) -> GroupDocument:
    """Return a group with the states of its tasks."""
    group_id = ask.parts["group_id"]

    def load(connection: Connection) -> GroupDocument:
        return group_document(load_group_view(connection, find_group(connection, group_id)))

    return await ask.source.read(("api group", group_id), load)


ENDPOINTS = (
    Endpoint(
        "/sweeps/{group_id}",
        "Return the trials of a sweep, the best first.",
        SweepDocument,
        read_sweep_document,
        (
            ("metric", "the metric that compares the trials"),
            ("cost", "1: add what each trial has cost, on nodes that are billed"),
        ),
        "runner sweep show SWEEP",
    ),
    Endpoint(
        "/groups/{group_id}",
        "Return the tasks of a group, with their states.",
        GroupDocument,
        read_group_document,
        command="runner show GROUP",
    ),
)
PAGE = WebPage("/sweeps/{group_id}", "sweep", read, every_s=3.0)
TRIAL_PAGE = WebPage("/sweeps/{group_id}/trials/{name}", "trial", read_trial, every_s=0)
