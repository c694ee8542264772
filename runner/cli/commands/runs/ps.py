"""`runner ps`: list runs."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_group, complete_state
from runner.cli.options import Invocation, on_target
from runner.cli.ui.output import Output
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.flows.runs.history import RunFilter, RunHistory, RunRow

_TEXT_COLUMNS = (
    "run", "recipe", "experiment", "status", "attempt", "pool", "age", "duration", "metric",
    "error",
)  # fmt: skip
_COLUMNS = (
    "run_id", "state", "recipe", "pool", "created", "took_s", "metric", "reason", "experiment",
    "attempts", "evicted",
)  # fmt: skip
_SPARE = ("recipe", "pool", "experiment", "duration", "attempt", "age", "metric")
_WATCH_S = 2.0
_REASON_WIDTH = 60
_CLEAR = "\x1b[H\x1b[2J"

AllOption = Annotated[bool, typer.Option("--all", "-a", help="List every run.")]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of runs.")]
ExperimentOption = Annotated[
    str | None,
    typer.Option("--experiment", "-e", help="Only runs of this experiment.", show_default=False),
]
StatusOption = Annotated[
    list[str] | None,
    typer.Option(
        "--status",
        help="Only runs in these states: failed,lost.",
        show_default=False,
        autocompletion=complete_state,
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since", help="Only runs submitted since then: 7d, 12h, or a date.", show_default=False
    ),
]
GroupOption = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Only runs of this group.",
        show_default=False,
        autocompletion=complete_group,
    ),
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="Refresh every two seconds.")]


@on_target
def ps(
    call: Invocation,
    all_: AllOption = False,
    limit: LimitOption = 20,
    experiment: ExperimentOption = None,
    status: StatusOption = None,
    since: SinceOption = None,
    group: GroupOption = None,
    watch: WatchOption = False,
) -> None:
    """List runs, newest first."""
    from runner.core.states import parse_states
    from runner.flows.runs.history import RunFilter, list_runs

    out = call.out
    only = RunFilter(experiment, parse_states(status or ()), _moment(since))
    if watch and not out.as_text:
        raise RunnerError(
            "R-WATCH-FORMAT",
            f"--watch cannot print {out.format.value}",
            why="it prints a table every two seconds, and a program expects one document",
            fix=f"runner ps -o {out.format.value}",
        )
    connection = call.connect()
    ids = None if group is None else _of_group(connection, group)

    def read() -> RunHistory:
        most = None if all_ or ids else limit
        return list_runs(connection, limit=most, only=only, ids=ids)

    if watch:
        _watch(out, read, only)
    _show(out, read(), only)


def _of_group(connection: Connection, group: str) -> list[str]:
    from runner.flows.runs.groups import find_group

    return list(find_group(connection, group).runs.values())


def filled(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Return the columns with a value in any row, so that a plain table fits 80 columns."""
    return tuple(name for name in _TEXT_COLUMNS if any(row.get(name) for row in rows))


def _moment(since: str | None) -> datetime | None:
    from runner.core.units import parse_since

    return None if since is None else parse_since(since, datetime.now(UTC))


def _watch(out: Output, read: Callable[[], RunHistory], only: RunFilter) -> None:
    """Print the table every two seconds until Ctrl-C, which exits with 0."""
    try:
        while True:
            history = read()
            if sys.stdout.isatty():
                out.text(_CLEAR + f"{datetime.now().astimezone():%H:%M:%S}, press Ctrl-C to stop")
            _show(out, history, only)
            sys.stdout.flush()
            time.sleep(_WATCH_S)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


def _show(out: Output, history: RunHistory, only: RunFilter) -> None:
    from runner.flows.runs.history import EVERY_RUN

    as_text = out.as_text
    rows = [_text_row(row) if as_text else _row(row) for row in history.rows]
    empty = "no runs: runner train mnist" if only == EVERY_RUN else "no matching runs: runner ps -a"
    out.rows(rows, filled(rows) if as_text else _COLUMNS, empty=empty, spare=_SPARE)
    if history.older and as_text:
        out.note(f"{history.older} older runs: runner ps -a")


def _row(row: RunRow) -> dict[str, Any]:
    record, status, result = row.record, row.status, row.result
    name = record.primary_metric if record else None
    return {
        "run_id": row.run_id,
        "state": status.state.value if status else "unreadable",
        "reason": row.problem or (status.reason if status else ""),
        "cause": status.cause.to_json() if status and status.cause else None,
        "recipe": record.recipe if record else None,
        "experiment": record.experiment if record else None,
        "pool": record.pool if record else None,
        "created": record.created.isoformat() if record else None,
        "ended": row.ended.isoformat() if row.ended else None,
        "took_s": _took_s(row),
        "metric": result.metrics.get(name) if result and name else None,
        "metrics": dict(result.metrics) if result else {},
        "params": dict(record.params) if record else {},
        "attempts": row.attempts,
        "evicted": row.evicted,
        "origin": dataclasses.asdict(record.origin) if record and record.origin else None,
        "group": record.group if record else None,
    }


def _text_row(row: RunRow) -> dict[str, Any]:
    from runner.core.units import format_age, format_duration
    from runner.protocol.metrics import format_metric

    record, status = row.record, row.status
    ended = status is None or status.state.final
    reason = row.problem or (status.reason if status else "")
    state = status.label if status else "unreadable"
    metrics = dict(row.result.metrics) if row.result else {}
    primary = record.primary_metric if record else None
    name = primary if primary in metrics else next(iter(metrics), None)
    took = _took_s(row)
    return {
        "run": row.run_id,
        "recipe": record.recipe if record else "",
        "experiment": record.experiment if record and record.experiment != record.recipe else "",
        "status": state if ended or not reason else f"{state}: {_short(reason)}",
        "attempt": f"{row.attempts} ({row.evicted} evicted)" if row.evicted else row.attempts or "",
        "pool": record.pool if record else "",
        "age": format_age(datetime.now(UTC) - record.created) if record else "",
        "duration": "" if took is None else format_duration(took),
        "metric": "" if name is None else f"{name} {format_metric(metrics[name])}",
        "error": _short(reason) if ended else "",
    }


def _short(reason: str) -> str:
    line = reason.partition("\n")[0]
    return line if len(line) <= _REASON_WIDTH else f"{line[: _REASON_WIDTH - 1]}…"


def _took_s(row: RunRow) -> float | None:
    result = row.result
    if result is None or result.started is None or result.ended is None:
        return None
    return round((result.ended - result.started).total_seconds(), 3)
