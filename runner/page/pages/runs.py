"""The list of runs: filtered, sorted, grouped and continued by the address."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.core.states import RunState, parse_states
from runner.core.units import parse_since
from runner.flows.runs.history import RunFilter, list_runs
from runner.page.ask import Ask, WebPage
from runner.page.charts.sparklines import main_points
from runner.page.memory.run_facts import FactsMemory, RunFacts, now_ms
from runner.page.memory.run_table import MOST_RUNS, RunEntry, RunTable
from runner.page.pages.spending import Prices, price_choices
from runner.page.rendering import with_query
from runner.page.rest import Endpoint
from runner.protocol.commands import get_parameter
from runner.protocol.metrics import default_goal
from runner.protocol.paths import slug
from runner.views.runs import ListedRun, RunLine, RunListDocument, run_line

_ROWS = 100
_WAIT_S = 0.15  # for curves; the next update has them
_MOST_ROWS = 1000
_MOST_LIVE_ROWS = 400
_OPEN_ROWS = 50  # of an experiment that is open in the list of experiments
_MOST_NAMES = 300
_STATES = tuple(state.value for state in RunState)
# Columns that can be sorted, with their heads; `-` before the name in the address: descending.
COLUMNS = {
    "run": "Run",
    "state": "State",
    "metric": "Metric",
    "price": "Price",
    "checkpoint": "Checkpoint",
    "recipe": "Recipe",
    "experiment": "Experiment",
    "pool": "Pool",
    "age": "Age",
    "took": "Took",
}
_SHORT_COLUMNS = ("recipe", "experiment", "pool")  # shown if the rows differ, or if chosen


@dataclass(frozen=True, slots=True)
class RunsQuery:
    """What the address of the list says."""

    only: RunFilter
    text: str
    sort: str
    columns: tuple[str, ...]
    trials: bool
    by_experiment: bool
    opened: frozenset[str]
    limit: int
    after: str
    until: str
    prices: Prices

    @classmethod
    def parse(cls, ask: Ask) -> RunsQuery:
        """Read the query of the address. Raise RunnerError for an invalid value."""
        since = ask.text("since")
        only = RunFilter(
            ask.text("experiment") or None,
            parse_states(ask.texts("status")),
            parse_since(since, datetime.now(UTC)) if since else None,
        )
        columns = (
            name if "." in name or name in COLUMNS else f"params.{name}"
            for name in ask.texts("col")
        )
        return cls(
            only,
            ask.text("q").lower(),
            ask.text("sort"),
            tuple(dict.fromkeys(columns)),
            ask.text("trials") == "1",
            ask.text("group") == "experiment",
            frozenset(ask.texts("open")),
            ask.number("n", _ROWS, low=1, high=_MOST_ROWS),
            ask.text("after"),
            ask.text("until"),
            Prices.parse(ask),
        )

    @property
    def needs_all(self) -> bool:
        """True if the newest runs alone do not tell the first rows."""
        return bool(self.text or self.sort or self.by_experiment or self.only != RunFilter())

    @property
    def shows_trials(self) -> bool:
        """True if each trial of a sweep has a row of its own."""
        params = any(name.startswith("params.") for name in self.columns)
        return self.trials or bool(self.sort or self.only.states) or params or self.by_experiment


@dataclass(frozen=True, slots=True)
class Line:
    """One row: a run, or the trials of a sweep, or the runs of an experiment.

    Attributes:
        key: The ID of the run or sweep, or the name of the experiment.
        entries: Its runs, newest first; one for a run.
        kind: `run`, `sweep` or `experiment`.
        rows: The runs that are shown below an experiment that is open.
    """

    key: str
    entries: tuple[RunEntry, ...]
    kind: str = "run"
    rows: tuple[Line, ...] = ()

    @property
    def run(self) -> RunEntry:
        """The run, or the newest one."""
        return self.entries[0]

    @property
    def states(self) -> dict[str, int]:
        """The number of its runs by label, in the order of a run's life."""
        counts = Counter(each.label for each in self.entries)
        return dict(sorted(counts.items(), key=lambda item: _state_order(item[0])))

    @property
    def best(self) -> tuple[str, float] | None:
        """The metric of its runs and the best of their last values, or None."""
        name = next((each.metric for each in self.entries if each.metric), None)
        values = [each.metrics.get(name, math.nan) for each in self.entries] if name else []
        finite = [value for value in values if math.isfinite(value)]
        if name is None or not finite:
            return None
        return name, max(finite) if _goal(self.entries, name) == "max" else min(finite)


def _state_order(label: str) -> tuple[int, str]:
    return (_STATES.index(label) if label in _STATES else len(_STATES), label)


def _goal(entries: Iterable[RunEntry], metric: str) -> str:
    declared = (each.goals.get(metric) for each in entries)
    return next(filter(None, declared), None) or default_goal(metric)


def select(
    entries: Sequence[RunEntry], query: RunsQuery, facts: Callable[[RunEntry], RunFacts | None]
) -> list[Line]:
    """Return all lines of the list in order.

    Args:
        entries: All runs, newest first.
        query: What to show.
        facts: Returns what is known of a run, to sort by its price.
    """
    found = [each for each in entries if _accepts(query, each)]
    if query.sort:
        found = _sorted(found, query.sort, facts)
    if query.by_experiment:
        return _by_experiment(found, query.opened)
    if query.shows_trials:
        return [Line(each.run_id, (each,)) for each in found]
    return _collapsed(found)


def _accepts(query: RunsQuery, entry: RunEntry) -> bool:
    only = query.only
    if only.experiment and entry.experiment not in (only.experiment, slug(only.experiment)):
        return False
    if only.states and entry.state not in only.states:
        return False
    if only.since is not None and entry.created is not None and entry.created < only.since:
        return False
    return not query.text or all(word in _text(entry) for word in query.text.split())


def _text(entry: RunEntry) -> str:
    words = [entry.run_id, entry.label, entry.reason, entry.recipe, entry.experiment, entry.pool]
    words += [entry.group, *(f"{name}={value}" for name, value in entry.params.items())]
    return " ".join(words).lower()


def _collapsed(entries: Iterable[RunEntry]) -> list[Line]:
    groups: dict[str, list[RunEntry]] = {}
    for each in entries:
        groups.setdefault(each.group if each.is_trial else each.run_id, []).append(each)
    return [
        Line(key, tuple(found), "sweep" if found[0].is_trial else "run")
        for key, found in groups.items()
    ]


def _by_experiment(entries: Iterable[RunEntry], opened: frozenset[str]) -> list[Line]:
    groups: dict[str, list[RunEntry]] = {}
    for each in entries:
        groups.setdefault(each.experiment, []).append(each)
    return [
        Line(
            name,
            tuple(found),
            "experiment",
            tuple(Line(each.run_id, (each,)) for each in found[:_OPEN_ROWS])
            if name in opened
            else (),
        )
        for name, found in groups.items()
    ]


def _sorted(
    entries: list[RunEntry], sort: str, facts: Callable[[RunEntry], RunFacts | None]
) -> list[RunEntry]:
    """Return the runs in order; those without a value come last in both directions."""
    name, is_descending = sort.lstrip("+-"), sort.startswith("-")
    if name not in COLUMNS and "." not in name:
        name = f"metrics.{name}"
    if name.startswith("metrics.") and sort[:1] not in "+-":  # the best first, as `ps --sort`
        is_descending = _goal(entries, name.removeprefix("metrics.")) == "max"
    known = [(sort_value(each, name, facts), each) for each in entries]
    valued = [(value, each) for value, each in known if value is not None]
    valued.sort(key=lambda pair: pair[0], reverse=is_descending)
    return [each for _, each in valued] + [each for value, each in known if value is None]


def sort_value(
    entry: RunEntry, column: str, facts: Callable[[RunEntry], RunFacts | None]
) -> tuple[int, float | str] | None:
    """Return the value of a column to sort by, numbers before text; None if there is none."""
    kind, _, name = column.partition(".")
    value: Any = None
    if kind == "params":
        value = get_parameter(entry.params, name)
    elif kind == "metrics":
        value = entry.metrics.get(name)
    elif column == "metric":
        series = main_points(entry, facts(entry))
        value = series.best if series else None
        value = entry.metrics.get(entry.metric or "") if value is None else value
    elif column in ("price", "checkpoint"):
        known = facts(entry)
        value = known and (known.micro(now_ms()) if column == "price" else known.saved)
    elif column == "age":
        value = None if entry.created is None else -entry.created.timestamp()
    elif column == "state":
        value = _state_order(entry.label)[0]
    elif column == "took":
        value = entry.took_s
    else:
        value = {"run": entry.run_id}.get(column) or getattr(entry, column, None)
    if value is None or value == "":
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return (1, str(value))
    return None if math.isnan(number) else (0, number)


@dataclass(frozen=True, slots=True)
class RunsPage:
    """The lines that are shown, and what follows them.

    Attributes:
        lines: The lines.
        left: The number of lines after them.
        last: The key of the last line that is shown.
    """

    lines: tuple[Line, ...]
    left: int

    @property
    def last(self) -> str:
        """The key of the last line."""
        return self.lines[-1].key if self.lines else ""

    @property
    def runs(self) -> Iterator[RunEntry]:
        """The runs that have a row of their own."""
        for line in self.lines:
            for each in (line, *line.rows):
                if each.kind == "run":
                    yield each.run


def cut(lines: Sequence[Line], query: RunsQuery) -> RunsPage:
    """Return the lines of one page: after a key, or until one, which live updates keep."""
    keys = [line.key for line in lines] if query.after or query.until else []
    begin = keys.index(query.after) + 1 if query.after in keys else 0
    end = begin + query.limit
    if query.until in keys:
        end = min(keys.index(query.until) + 1, _MOST_LIVE_ROWS)
    return RunsPage(tuple(lines[begin:end]), max(len(lines) - end, 0))


async def _read_page(
    ask: Ask, query: RunsQuery
) -> tuple[RunsPage, RunTable, dict[str, RunFacts], tuple[RunEntry, ...]]:
    table, memory = ask.source.kept(RunTable), ask.source.kept(FactsMemory)
    entries = await table.read(ask.source, wait_s=0.3 if query.needs_all else 0.0)
    prices = query.prices

    def choose(connection: Connection) -> RunsPage:
        find = memory.find_or_price(connection, **prices.pairs)
        return cut(select(entries, query, find), query)

    page = await ask.source.call(choose)
    return page, table, await _read_facts(ask, query, list(page.runs), _WAIT_S), entries


async def _read_facts(
    ask: Ask, query: RunsQuery, entries: Sequence[RunEntry], wait_s: float
) -> dict[str, RunFacts]:
    memory = ask.source.kept(FactsMemory)
    return await memory.gather(ask.source, entries, wait_s=wait_s, **query.prices.pairs)


def _row_values(
    ask: Ask, query: RunsQuery, page: RunsPage, facts: Mapping[str, RunFacts]
) -> dict[str, Any]:
    """Return what the template of the rows needs."""
    runs = [each for line in page.lines for each in line.entries[:1]]
    differing = [n for n in _SHORT_COLUMNS if len({getattr(each, n) for each in runs}) > 1]
    shown = [name for name in _SHORT_COLUMNS if name in differing or name in query.columns]
    if query.by_experiment or query.only.experiment:
        shown = [name for name in shown if name != "experiment"]
    return {
        "lines": page.lines,
        "facts": facts,
        "now_ms": now_ms(),
        "wanted": query,
        "extra": [name for name in query.columns if name not in COLUMNS],
        "shown": frozenset(ask.texts("has") or shown),
        "has_price": ask.source.settings.target.is_billed or query.prices != Prices(),
        "value_of": value_of,
        "left": page.left,
        "next": with_query("/rows", _pairs(ask, "after", "has", "only"), after=page.last),
        "polled": with_query(
            "/rows", _pairs(ask, "after", "only"),
            only=[each.run_id for each in page.runs if not each.is_over],
        ),
        "is_live": any(not each.is_over for each in page.runs),
    }  # fmt: skip


def _pairs(ask: Ask, *without: str) -> dict[str, Any]:
    return {name: each for name, each in ask.pairs.items() if name not in (*without, "until")}


def value_of(entry: RunEntry, column: str) -> Any:
    """Return the value of a column `params.NAME` or `metrics.NAME`, or None."""
    kind, _, name = column.partition(".")
    return get_parameter(entry.params, name) if kind == "params" else entry.metrics.get(name)


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `runs.html`."""
    query = RunsQuery.parse(ask)
    page, table, facts, entries = await _read_page(ask, query)
    experiments = dict.fromkeys(each.experiment for each in entries if each.experiment)
    if query.only.experiment:
        experiments[query.only.experiment] = None
    runs = [each for line in page.lines for each in line.entries]
    params = dict.fromkeys(f"params.{name}" for each in runs for name in each.params)
    metrics = dict.fromkeys(f"metrics.{name}" for each in runs for name in each.metrics)
    chosen = (name for name in query.columns if "." in name)
    values = _row_values(ask, query, page, facts)
    if page.left and not query.until and not query.after:
        # Updates keep these rows when new runs come, because those after them are loaded already.
        kept = with_query(f"/live{ask.path}", _pairs(ask), until=page.last)
        values["live"] = kept
    return (
        values
        | price_choices(ask.source.settings, query.prices)
        | {
            "title": "Runs",
            "is_free": not values["has_price"],
            "states": _STATES,
            "experiments": sorted(experiments),
            "choices": [*dict.fromkeys((*chosen, *params, *metrics))][:_MOST_NAMES],
            "heads": COLUMNS,
            "total": len(entries),
            "is_complete": table.is_complete,
            "is_cut": table.is_cut,
            "most_runs": MOST_RUNS,
            "sorted_by": query.sort.lstrip("+-"),
            "is_descending": query.sort.startswith("-"),
            "pairs": _pairs(ask, "after"),
        }
    )


async def read_rows(ask: Ask) -> dict[str, Any]:
    """Return the values of `rows.html`: rows after a key, or the state of single runs again."""
    query = RunsQuery.parse(ask)
    only = ask.texts("only")[:_MOST_ROWS]
    if not only:
        page, _, facts, _ = await _read_page(ask, query)
        return {"title": "Runs", "polls": False, **_row_values(ask, query, page, facts)}
    table = ask.source.kept(RunTable)
    await table.read(ask.source)
    found = [entry for run_id in only if (entry := table.find(run_id))]
    facts = await _read_facts(ask, query, found, 0.0)
    page = RunsPage(tuple(Line(each.run_id, (each,)) for each in found), 0)
    return {"title": "Runs", "polls": True, **_row_values(ask, query, page, facts)}


async def read_documents(ask: Ask) -> list[RunLine]:
    """Return the runs that the query selects, newest first."""
    query = RunsQuery.parse(ask)
    found = await ask.source.read(
        ("api runs", str(ask.query)),
        lambda connection: list_runs(connection, limit=query.limit, only=query.only),
    )
    return [run_line(row) for row in found.rows]


async def read_list(ask: Ask) -> RunListDocument:
    """Return the rows of the list as a document."""
    query = RunsQuery.parse(ask)
    page, table, facts, _ = await _read_page(ask, query)
    return {
        "rows": [_listed(line, facts.get(line.key)) for line in page.lines],
        "left": page.left,
        "next": page.last if page.left else None,
        "complete": table.is_complete,
    }


def _listed(line: Line, facts: RunFacts | None) -> ListedRun:
    run = line.run
    known = main_points(run, facts)
    micro = facts.micro(now_ms()) if facts else None
    best = known.best if known else None
    if line.kind != "run" and line.best:
        best = line.best[1]
    return {
        "id": line.key,
        "kind": line.kind,
        "states": line.states,
        "reason": run.reason if line.kind == "run" else "",
        "recipe": run.recipe,
        "experiment": run.experiment,
        "pool": run.pool,
        "created": run.created.isoformat() if run.created else None,
        "took_s": run.took_s if line.kind == "run" else None,
        "params": dict(run.params) if line.kind == "run" else {},
        "metrics": dict(run.metrics) if line.kind == "run" else {},
        "metric": known.name if known else run.metric,
        "best": best,
        "curve": [list(known.steps), list(known.values)] if known else None,
        "cost_micro_usd": micro,
        "checkpoint": facts.saved_at.isoformat() if facts and facts.saved_at else None,
    }


_QUERY = (
    ("experiment", "only runs of this experiment"),
    ("status", "only runs in these states: failed,lost"),
    ("since", "only runs submitted since then: 7d, 12h, or a date"),
    ("n", "maximum number of runs"),
)
ENDPOINTS = (
    Endpoint(
        "/runs", "List runs, newest first.", list[RunLine], read_documents, _QUERY, "runner ps"
    ),
    Endpoint(
        "/run-list",
        "List runs as the page does: sweeps as one row, curves, prices and checkpoints.",
        RunListDocument,
        read_list,
        (
            *_QUERY,
            ("q", "only runs with all these words in ID, state, names or parameters: lr=0.1"),
            ("sort", "a column, params.NAME or metrics.NAME; -NAME: descending"),
            ("group", "experiment: one row per experiment"),
            ("vm_size", "prices as if the nodes were of this VM size"),
            ("region", "prices as if the nodes were in this region"),
            ("trials", "1: a row for each trial of a sweep"),
            ("after", "only rows after this ID, which is `next` of the answer before"),
        ),
    ),
)
PAGE = WebPage("/runs", "runs", read, label="Runs")
ROWS = WebPage("/rows", "rows", read_rows, every_s=0.0)
