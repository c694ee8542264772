"""`runner show`: everything known of one run."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.run_options import RunArgument, StackOption, TargetOption, open_connection

if TYPE_CHECKING:
    from runner.azure.credentials import Connection
    from runner.core.metrics import MetricSummary
    from runner.flows.model_registration import RunModel
    from runner.flows.run_view import RunView


def show(
    run: RunArgument = "@last",
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a run: state, parameters, metrics, attempts, outputs."""
    from runner.flows.run_documents import find_run, load_metrics
    from runner.flows.run_view import load_view

    out = Output(output)
    connection = open_connection(target, stack)
    record = find_run(connection, run)
    view = load_view(connection, record)
    metrics = load_metrics(connection, record)
    if output is OutputFormat.TABLE:
        out.record(_pairs(connection, view, metrics), title=record.run_id)
    else:
        out.record(_document(connection, view, metrics))


def _document(
    connection: Connection, view: RunView, metrics: list[MetricSummary]
) -> dict[str, Any]:
    from runner.cli.run_summary import output_url

    return {
        "run_id": view.record.run_id,
        "state": view.status.state.value,
        "reason": view.status.reason,
        "node": view.status.node,
        "metrics": [dataclasses.asdict(metric) for metric in metrics],
        "attempts": [dataclasses.asdict(attempt) for attempt in view.attempts],
        "output_url": output_url(connection, view.record.run_id, view.result),
        "run": view.record.raw,
        "result": view.result.raw if view.result else None,
        "models": [dataclasses.asdict(model) for model in _models(connection, view)],
    }


def _pairs(connection: Connection, view: RunView, metrics: list[MetricSummary]) -> dict[str, str]:
    from runner.cli.run_summary import output_url
    from runner.cli.run_text import duration, local_time, size, where_time_went

    record, result, status = view.record, view.result, view.status
    pairs = {
        "state": f"{status.state.value}: {status.reason}" if status.reason else status.state.value,
        "recipe": record.recipe,
        "experiment": record.experiment,
        "created": local_time(record.created),
        "where": f"pool {record.pool}" + (", spot" if record.spot else ""),
        "command": " ".join(record.raw["command"]),
    }
    pairs |= _data(record.raw.get("data"))
    for attempt in view.attempts:
        pairs[f"attempt {attempt.attempt}"] = f"on {attempt.node}, from {attempt.started}"
    for metric in metrics:
        pairs[metric.name] = _metric(metric)
    if result and result.started and result.ended:
        pairs["took"] = duration((result.ended - result.started).total_seconds())
        pairs["of which"] = where_time_went(result.stages_s)
    if result and result.outputs:
        listed = [f"{file.path} ({size(file.size_bytes)})" for file in result.outputs[:10]]
        more = len(result.outputs) - len(listed)
        pairs["outputs"] = ", ".join(listed) + (f" and {more} more" if more else "")
        pairs["in blob"] = output_url(connection, record.run_id, result)
    for model in _models(connection, view):
        again = "" if model.version else f"; runner models register {record.run_id}"
        pairs[f"model {model.name}"] = f"{model}{again}"
    return {name: text for name, text in pairs.items() if text}


def _models(connection: Connection, view: RunView) -> list[RunModel]:
    from runner.flows.model_registration import describe_models

    succeeded = view.result is not None and view.result.status == "succeeded"
    return describe_models(connection, view.record) if succeeded else []


def _data(data: dict[str, Any] | None) -> dict[str, str]:
    if data is None:
        return {}
    text = f"{data['name']} from {data['source']}"
    return {"data": f"{text}: {data['notice']}" if data.get("notice") else text}


def _metric(metric: MetricSummary) -> str:
    from runner.cli.run_text import metric as text

    last = text(metric.last)
    if metric.best is None or metric.best == metric.last:
        return last
    step = f" at step {metric.best_step}" if metric.best_step is not None else ""
    return f"{last}, best {text(metric.best)}{step}"
