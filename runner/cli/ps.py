"""`runner ps`: all runs, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.run_options import StackOption, TargetOption, open_settings

if TYPE_CHECKING:
    from runner.flows.history import RunRow

_TEXT_COLUMNS = ("run_id", "state", "recipe", "pool", "created", "took", "metric", "reason")
_COLUMNS = ("run_id", "state", "recipe", "pool", "created", "took_s", "metric", "reason")


def ps(
    all_: Annotated[bool, typer.Option("--all", "-a", help="Every run.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 20,
    experiment: Annotated[
        str | None,
        typer.Option("--experiment", "-e", help="Only of this one.", show_default=False),
    ] = None,
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List runs, newest first."""
    from runner.azure.credentials import connect
    from runner.flows.history import list_runs

    out = Output(output)
    settings = open_settings(target, stack)
    history = list_runs(
        connect(settings), settings.home, limit=None if all_ else limit, experiment=experiment
    )
    as_text = output is OutputFormat.TABLE
    rows = [_text_row(row) if as_text else _row(row) for row in history.rows]
    columns = filled(rows) if as_text else _COLUMNS
    out.rows(rows, columns, empty="no runs yet: runner train mnist")
    if history.older and as_text:
        out.note(f"{history.older} older runs: runner ps -a")


def filled(rows: list[dict[str, Any]]) -> tuple[str, ...]:
    """Columns in which any run has something: a table of plain runs fits on 80 columns."""
    return tuple(name for name in _TEXT_COLUMNS if any(row.get(name) for row in rows))


def _row(row: RunRow) -> dict[str, Any]:
    record, status, result = row.record, row.status, row.result
    name = record.primary_metric if record else None
    return {
        "run_id": row.run_id,
        "state": status.state.value if status else "unreadable",
        "reason": row.problem or (status.reason if status else ""),
        "recipe": record.recipe if record else None,
        "experiment": record.experiment if record else None,
        "pool": record.pool if record else None,
        "created": record.created.isoformat() if record else None,
        "ended": row.ended.isoformat() if row.ended else None,
        "took_s": _took_s(row),
        "metric": result.metrics.get(name) if result and name else None,
        "metrics": dict(result.metrics) if result else {},
        "params": dict(record.params) if record else {},
    }


def _text_row(row: RunRow) -> dict[str, Any]:
    from runner.cli.run_text import duration, local_time, metric

    plain = _row(row)
    took = plain["took_s"]
    metrics: dict[str, float] = plain["metrics"]
    primary = row.record.primary_metric if row.record else None
    name = primary if primary in metrics else next(iter(metrics), None)
    return {
        **plain,
        "created": local_time(row.record.created) if row.record else "",
        "took": "" if took is None else duration(took),
        "metric": "" if name is None else f"{name} {metric(metrics[name])}",
    }


def _took_s(row: RunRow) -> float | None:
    result = row.result
    if result is None or result.started is None or result.ended is None:
        return None
    return round((result.ended - result.started).total_seconds(), 3)
