"""Several runs over each other: curves on one axis, and what differs between the runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.responses import StreamingResponse

from runner.azure.auth.credentials import Connection
from runner.core.curves import differing
from runner.flows.runs.documents import find_run
from runner.flows.runs.metrics import EXACT_POINTS, MetricComparison, compare_metrics
from runner.flows.submit.differences import Differences, load_differences
from runner.page.ask import Ask, WebPage
from runner.page.charts.panels import AXES, View, align_traces, draw_panels, traces_of
from runner.page.charts.sparklines import main_points
from runner.page.memory.run_facts import FactsMemory, RunFacts, now_ms
from runner.page.memory.run_table import RunEntry, RunTable, find_entries
from runner.page.pages.spending import Prices, price_choices
from runner.page.rendering import with_query
from runner.page.rest import Endpoint
from runner.protocol.errors import RunnerError
from runner.protocol.paths import is_run_id
from runner.views.long_metrics import metrics_pieces
from runner.views.runs import CompareDocument, MetricsDocument, metrics_document

_MOST_RUNS = 500
_MOST_READ = 30  # runs whose documents are read for what differs
_MOST_SHOWN_NAMES = 300
_ROWS = 100
_MOST_VALUES = 50_000  # of the columns of one metric
_WAIT_S = 0.3


@dataclass(frozen=True, slots=True)
class CompareQuery:
    """What the address says.

    Attributes:
        refs: IDs of runs, unique prefixes or `@last`.
        experiment: All its newest runs.
        group: All trials of a sweep.
        metrics: The metrics to show; empty shows the first ones.
    """

    refs: tuple[str, ...]
    experiment: str
    group: str
    metrics: tuple[str, ...]
    view: View
    text: str
    rows: int
    prices: Prices

    @classmethod
    def parse(cls, ask: Ask) -> CompareQuery:
        """Read the query of the address. Raise RunnerError for an invalid value."""
        axis = ask.text("axis", "step") or "step"
        if axis not in AXES:
            raise _invalid("axis", axis, ", ".join(AXES))
        smooth = _number(ask, "smooth") or 0.0
        if not 0 <= smooth < 1:
            raise _invalid("smooth", ask.text("smooth"), "a number from 0 to below 1")
        view = View(
            axis, smooth, ask.text("log") == "1", _number(ask, "from"),
            _number(ask, "to"),
        )  # fmt: skip
        return cls(
            tuple(dict.fromkeys(ask.texts("run"))),
            ask.text("experiment"),
            ask.text("group"),
            tuple(dict.fromkeys(ask.texts("metric"))),
            view,
            ask.text("q").lower(),
            ask.number("rows", _ROWS, low=1, high=_MOST_RUNS),
            Prices.parse(ask),
        )


def _number(ask: Ask, name: str) -> float | None:
    text = ask.text(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _invalid(name, text, "a number")
    return value


def _invalid(name: str, value: str, expected: str) -> RunnerError:
    return RunnerError(
        "R-PAGE-QUERY",
        f"invalid {name}={value[:40]!r} in the address",
        why=f"expected {expected}",
        fix=f"remove {name} from the address",
    )


async def _find(ask: Ask, query: CompareQuery) -> tuple[list[RunEntry], int]:
    """Return the runs, and the number of runs that are left out."""
    source = ask.source
    table = source.kept(RunTable)
    if query.experiment or query.group:
        entries = await table.read(source, wait_s=1.0)
        found = [
            each for each in entries
            if query.experiment in ("", each.experiment) and query.group in ("", each.group)
        ]  # fmt: skip
        if found:
            return found[:_MOST_RUNS], max(len(found) - _MOST_RUNS, 0)
    refs = query.refs[:_MOST_RUNS]
    short = tuple(ref for ref in refs if not is_run_id(ref))
    named: dict[str, str] = {}
    if short:
        named = await source.read(
            ("runs by prefix", short),
            lambda connection: {ref: find_run(connection, ref).run_id for ref in short},
        )
    ids = tuple(dict.fromkeys(named.get(ref, ref) for ref in refs))
    await table.read(source)
    by_id = await find_entries(source, ids)
    for run_id in ids:
        if run_id not in by_id:  # its error says what is near
            await source.read(("run", run_id), lambda connection, r=run_id: find_run(connection, r))
    if not by_id:
        raise RunnerError(
            "R-PAGE-QUERY",
            "no runs to compare",
            why="the address has no run=ID, and no run of its experiment or sweep was found",
            fix="/runs",
        )
    return list(by_id.values()), max(len(query.refs) - _MOST_RUNS, 0)


def choose_names(
    entries: Sequence[RunEntry], facts: Mapping[str, RunFacts], query: CompareQuery
) -> tuple[list[str], list[str]]:
    """Return all metrics of the runs, the main one first, and those to show."""
    counts: dict[str, int] = {}
    mains: dict[str, int] = {}
    for entry in entries:
        known = facts.get(entry.run_id)
        if known is None:
            continue
        for name in known.series:
            counts[name] = counts.get(name, 0) + 1
        main = main_points(entry, known)
        if main is not None:
            mains[main.name] = mains.get(main.name, 0) + 1
    names = sorted(counts, key=lambda name: (-mains.get(name, 0), -counts[name]))
    if query.metrics:
        return names, [name for name in query.metrics if name in counts]
    found = [name for name in names if query.text in name.lower()]
    return names, found[: 6 if len(entries) <= 20 else 2 if len(entries) <= 100 else 1]


async def _load_differences(ask: Ask, entries: Sequence[RunEntry]) -> Differences:
    ids = tuple(each.run_id for each in entries)
    if 2 <= len(ids) <= _MOST_READ:
        return await ask.source.read(
            ("differences", ids), lambda connection: load_differences(connection, ids), fresh_s=30.0
        )
    params = differing([each.params for each in entries])
    return Differences(params, {}, {}, unread=len(ids) > _MOST_READ)


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `compare.html`."""
    query = CompareQuery.parse(ask)
    entries, left_out = await _find(ask, query)
    facts = await ask.source.kept(FactsMemory).gather(
        ask.source, entries, wait_s=_WAIT_S, **query.prices.pairs
    )
    differences = await _load_differences(ask, entries)
    names, shown = choose_names(entries, facts, query)

    def address(name: str) -> str:
        return with_query("/api/v1/compare", ask.pairs, metric=name, q=None, rows=None)

    panels = await ask.source.call(
        lambda _: draw_panels(shown, entries, facts, query.view, address)
    )
    started = [each for each in entries if each.attempts]
    known = sum(1 for each in started if _is_whole(facts.get(each.run_id)))
    is_live = known < len(started) or any(not each.is_over for each in entries)
    matching = [name for name in names if query.text in name.lower()]
    has_price = ask.source.settings.target.is_billed or query.prices != Prices()
    values: dict[str, Any] = {} if is_live else {"live": ""}
    return values | {
        "title": f"Compare {len(entries)} runs" if len(entries) > 1 else entries[0].run_id,
        "entries": entries,
        "numbers": {each.run_id: number for number, each in enumerate(entries)},
        "facts": facts,
        "now_ms": now_ms(),
        "has_price": has_price,
        "is_free": not has_price,
        **price_choices(ask.source.settings, query.prices),
        "differences": differences,
        "few": len(entries) <= _MOST_READ,
        "panels": panels,
        "shown": shown,
        "names": [*dict.fromkeys((*shown, *matching))][:_MOST_SHOWN_NAMES],
        "name_count": len(names),
        "view": query.view,
        "axes": AXES,
        "wanted": query,
        "left_out": left_out,
        "missing": len(started) - known,
        "pairs": ask.pairs,
    }


def _is_whole(facts: RunFacts | None) -> bool:
    return facts is not None and facts.is_whole


async def read_columns(ask: Ask) -> CompareDocument:
    """Return the document of a comparison."""
    query = CompareQuery.parse(ask)
    entries, _ = await _find(ask, query)
    facts = await ask.source.kept(FactsMemory).gather(
        ask.source, entries, wait_s=5.0, **query.prices.pairs
    )
    differences = await _load_differences(ask, entries)
    names, shown = choose_names(entries, facts, query)
    aligned = await ask.source.call(
        lambda _: {
            name: (traces, *align_traces(traces, _MOST_VALUES))
            for name in shown
            if (traces := traces_of(name, entries, facts, query.view))
        }
    )
    moment = now_ms()
    micros = {run_id: each.micro(moment) for run_id, each in facts.items()}
    return {
        "axis": query.view.axis,
        "runs": [
            {
                "run_id": each.run_id,
                "state": each.label,
                "experiment": each.experiment,
                "cost_micro_usd": micros.get(each.run_id),
                "metrics": dict(each.metrics) if len(entries) <= _MOST_READ else {},
            }
            for each in entries
        ],
        "names": names,
        "metrics": {
            name: {
                "x": places,
                "y": {
                    each.run_id: column for each, column in zip(traces, columns, strict=True)
                },
            }
            for name, (traces, places, columns) in aligned.items()
        },
        "params": {name: list(values) for name, values in differences.params.items()}
        if len(entries) <= _MOST_READ
        else {},
        "packages": {name: list(values) for name, values in differences.environment.items()},
        "revisions": [
            None if each is None else str(each)
            for each in differences.code.get("git revision", ())
        ],
        "files": [
            {"path": each.path, "sha256": list(each.hashes)} for each in differences.files
        ],
        "complete": all(_is_whole(facts.get(each.run_id)) for each in entries if each.attempts),
    }  # fmt: skip


async def read_document(ask: Ask) -> MetricsDocument | StreamingResponse:
    """Return the metrics of one run; many values are read again while they are sent."""
    run_id = ask.parts["run_id"]

    def load(connection: Connection) -> tuple[Connection, MetricComparison]:
        specs = [find_run(connection, run_id)]
        return connection, compare_metrics(connection, specs, exact_points=EXACT_POINTS)

    connection, compared = await ask.source.read(("api metrics", run_id), load)
    if not compared.is_long:
        return metrics_document(compared)
    return StreamingResponse(metrics_pieces(connection, compared), media_type="application/json")


ENDPOINTS = (
    Endpoint(
        "/runs/{run_id}/metrics",
        "Return the metrics of a run.",
        MetricsDocument,
        read_document,
        command="runner metrics RUN",
    ),
    Endpoint(
        "/compare",
        "Return curves of runs as columns on a common axis, and what differs between the runs.",
        CompareDocument,
        read_columns,
        (
            ("run", "an ID, a unique prefix or @last; can be repeated"),
            ("experiment", "instead of run: the newest runs of this experiment"),
            ("group", "instead of run: the trials of this sweep"),
            ("metric", "a metric; can be repeated; the main ones without it"),
            ("axis", "step, time (seconds since the start) or dollars"),
            ("vm_size", "prices as if the nodes were of this VM size"),
            ("region", "prices as if the nodes were in this region"),
            ("smooth", "weight of earlier values, from 0 to below 1"),
            ("log", "1: without values that have no logarithm"),
            ("from", "only from this place of the axis on"),
            ("to", "only up to this place of the axis"),
        ),
    ),
)
PAGE = WebPage("/compare", "compare", read, every_s=5.0)
