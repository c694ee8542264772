"""One run: its state and why, its stages with costs, curves, log, files, and its origin."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.core.pricing.cost import MICROS_PER_USD
from runner.core.pricing.prices import load_price_table
from runner.core.settings import Settings
from runner.core.units import format_duration
from runner.flows.devices import load_devices
from runner.flows.models.register import describe_models
from runner.flows.runs.attempts import list_attempts, list_checkpoints
from runner.flows.runs.diagnose import diagnose_run
from runner.flows.runs.documents import find_run, runs_container
from runner.flows.runs.live import RunView, load_view
from runner.flows.runs.outputs import find_files
from runner.flows.runs.rows import RunRow
from runner.flows.runs.stages import (
    CHECKPOINT,
    KEPT,
    LOST,
    MOMENTS,
    WAIT,
    StageSpan,
    load_spans,
)
from runner.flows.submit.reproduce import load_environment
from runner.page.ask import Ask, WebPage
from runner.page.charts.gantt import Bar
from runner.page.charts.lines import draw_lines
from runner.page.charts.panels import View, draw_panels
from runner.page.memory.run_facts import FactsMemory
from runner.page.memory.run_table import to_entry
from runner.page.pages.log import LogPosition
from runner.page.rendering import format_dollars, with_query
from runner.protocol.run_spec import RunSpec

_NOT_ON_NODE = frozenset({WAIT, *MOMENTS})
_MOST_CHECKPOINTS = 200  # marks in the chart; of more, the newest
_MOST_CHARTS = 12
_DEVICE_HEIGHT = 160
_WAIT_S = 0.5  # for curves; the next update has them


@dataclass(frozen=True, slots=True)
class PricedSpan:
    """A span of a run with its seconds and its price in micro-dollars; None if it is unknown."""

    span: StageSpan
    took_s: float
    micro: int | None


def price_spans(
    spans: tuple[StageSpan, ...], spec: RunSpec, settings: Settings, now: datetime, region: str
) -> list[PricedSpan]:
    """Return spans with their prices: those of the table, or zero on this machine.

    They are those of whole nodes. The bill divides a node among runs that share it.
    """
    table = load_price_table(settings.home)
    found: list[PricedSpan] = []
    for span in spans:
        took_s = span.took_s(now)
        micro: int | None = 0
        if settings.target.is_billed and span.stage not in _NOT_ON_NODE:
            spot = spec.spot if span.spot is None else span.spot
            price = table.find_node(spec.vm_size or "", region, spot=spot)
            rate = None if price is None else price.usd_per_hour * MICROS_PER_USD * spec.nodes
            micro = None if rate is None else round(rate * took_s / 3600)
        found.append(PricedSpan(span, took_s, micro))
    return found


def _bars(spans: list[PricedSpan], now: datetime, *, is_billed: bool) -> list[Bar]:
    bars: list[Bar] = []
    left_out = sum(each.span.stage == CHECKPOINT for each in spans) - _MOST_CHECKPOINTS
    for each in spans:
        span = each.span
        if span.stage == CHECKPOINT and left_out > 0:
            left_out -= 1
            continue
        row = f"attempt {span.attempt}" if span.attempt else "before"
        moment = span.stage in MOMENTS
        parts = [span.stage if moment else f"{span.stage}: {format_duration(each.took_s)}"]
        parts += (
            [format_dollars(each.micro)] if is_billed and span.stage not in _NOT_ON_NODE else []
        )
        parts += ["failed"] if span.failed else ["running"] if span.end is None else []
        parts += [span.message] if span.message else []
        parts += [f"on {span.node}"] if span.node else []
        title = ", ".join(parts)
        kind = "failed" if span.failed else _kind(span.stage)
        if span.stage == LOST:
            row += ", lost"
        bars.append(Bar(row, kind, span.start, span.end or now, title, label=span.stage))
    return bars


# The kinds of bars, which are classes of the style sheet, with their names in the legend.
_KINDS = {
    "wait": "wait", "boot": "boot", "setup": "code and environment", "data": "data",
    "restore": "restore", "useful": "command", "saved": "checkpoint", "lost": "lost work",
    "evicted": "evicted", "failed": "failed", "export": "export",
}  # fmt: skip


def _kind(stage: str) -> str:
    known = {
        "inputs": "data", "command": "useful", "outputs": "export", "model": "export",
        "logs": "export", LOST: "lost", CHECKPOINT: "saved", KEPT: "failed",
    }  # fmt: skip
    kind = known.get(stage, stage)
    return kind if kind in _KINDS else "setup"


def read_run(connection: Connection, run_id: str, settings: Settings) -> dict[str, Any]:
    """Return the values of `run.html`."""
    now = datetime.now(UTC)
    spec = find_run(connection, run_id)
    view = load_view(connection, spec)
    spans = price_spans(
        load_spans(connection, view), spec, settings, now, connection.outputs.location
    )
    bars = _bars(spans, now, is_billed=settings.target.is_billed)
    shown = {bar.kind for bar in bars}
    on_node = [each for each in spans if each.span.stage not in (*_NOT_ON_NODE, LOST)]
    known = [each.micro for each in on_node if each.micro is not None]
    container = runs_container(connection)
    position = LogPosition(spec.run_id)
    return {
        "title": spec.run_id,
        "spec": spec,
        "view": view,
        "status": view.status,
        "result": view.result,
        "bars": bars,
        "kinds": [(kind, name) for kind, name in _KINDS.items() if kind in shown],
        "cost": sum(known) if len(known) == len(on_node) else None,
        "attempts": list_attempts(connection, view),
        "checkpoints": list_checkpoints(container, spec.run_id),
        "files": find_files(connection, spec),
        "diagnosis": diagnose_run(connection, spec),
        "environment": load_environment(connection, spec),
        **_devices(connection, spec),
        "models": _models(connection, view),
        "lines": position.read(connection),
        "log_live": f"/live/runs/{spec.run_id}/log?from={position}",
    }


def _devices(connection: Connection, spec: RunSpec) -> dict[str, Any]:
    """Return the summary and the charts of what the run used of its nodes."""
    found = load_devices(connection, spec)
    charts = [
        (title, draw_lines(curves, f"{title} over seconds", height=_DEVICE_HEIGHT))
        for title, curves in found.panels().items()
    ]
    summary = found.summary
    return {
        "devices": summary.describe() if summary else "",
        "device_problem": summary.gpu_problem if summary else "",
        "device_charts": charts,
    }


def _models(connection: Connection, view: RunView) -> Any:
    succeeded = view.result is not None and view.result.status == "succeeded"
    return describe_models(connection, view.spec) if succeeded else ()


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `run.html`."""
    run_id = ask.parts["run_id"]
    settings = ask.source.settings
    found = await ask.source.read(
        ("run", run_id), lambda connection: read_run(connection, run_id, settings)
    )
    return found | await read_curves(ask, found["view"])


async def read_curves(ask: Ask, view: RunView) -> dict[str, Any]:
    """Return the charts and summaries of the metrics of a run."""
    row = RunRow(view.spec.run_id, view.spec, view.status, view.result, attempts=len(view.attempts))
    entry = to_entry(row)
    known = await ask.source.kept(FactsMemory).gather(ask.source, [entry], wait_s=_WAIT_S)
    facts = known.get(entry.run_id)
    series = list(facts.series.values()) if facts else []
    names = [each.name for each in series[:_MOST_CHARTS]]

    def address(name: str) -> str:
        return with_query("/api/v1/compare", {}, run=entry.run_id, metric=name)

    panels = await ask.source.call(lambda _: draw_panels(names, [entry], known, View(), address))
    return {
        "panels": panels,
        "series": series,
        "reads_curves": bool(entry.attempts) and (facts is None or not facts.is_whole),
    }


PAGE = WebPage("/runs/{run_id}", "run", read)
