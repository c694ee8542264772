"""`runner show`: everything known of one run; `show_text` says it to people."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runner.cli.output import Output, OutputFormat, OutputOption
from runner.cli.run_options import RunOrGroupArgument, StackOption, TargetOption, open_settings
from runner.core.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.credentials import Connection
    from runner.cli.show_text import Shown
    from runner.core.run_record import RunRecord
    from runner.flows.model_registration import RunModel
    from runner.flows.run_view import RunView
    from runner.node.checkpoint import Checkpoint


def show(
    run: RunOrGroupArgument = "@last",
    target: TargetOption = None,
    stack: StackOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a run: state, parameters, metrics, attempts, outputs; or a group."""
    from runner.azure.credentials import connect
    from runner.cli.group_view import show_group
    from runner.cli.show_text import ATTEMPT_COLUMNS, attempt_rows, lines
    from runner.flows.broken_off import finish_broken_off
    from runner.flows.groups import group_instead, load_group_view
    from runner.flows.run_documents import find_run

    out = Output(output)
    settings = open_settings(target, stack)
    connection = connect(settings)
    try:
        record = find_run(connection, run)
    except RunnerError as err:
        group = group_instead(connection, run, err)
        finish_broken_off(connection)
        show_group(out, load_group_view(connection, settings.home, group))
        return
    shown = _load(connection, record)
    if output is not OutputFormat.TABLE:
        out.record(_document(shown))
        return
    out.record(lines(shown), title=record.run_id)
    if shown.attempts:
        out.text()
        resumed = any(row.resumed for row in shown.attempts)
        columns = ATTEMPT_COLUMNS + (("resumed_from",) if resumed else ())
        out.rows(attempt_rows(shown), columns, spare=("spot", "node"))


def _load(connection: Connection, record: RunRecord) -> Shown:
    from runner.cli.show_text import Shown
    from runner.flows.attempts import list_attempts
    from runner.flows.checkpoints import checkpoint_problem, list_checkpoints
    from runner.flows.reproduce import load_environment
    from runner.flows.run_documents import load_metrics, runs_container
    from runner.flows.run_view import load_view

    view = load_view(connection, record)
    container = runs_container(connection)
    told: dict[str, Any] = (view.result.raw.get("checkpoint") or {}) if view.result else {}
    attempt = view.attempts[-1].attempt if view.attempts and view.result is None else 0
    problem = told.get("problem") or checkpoint_problem(container, record.run_id, attempt)
    return Shown(
        connection,
        view,
        load_metrics(connection, record),
        list_attempts(connection, view),
        load_environment(connection, record),
        list_checkpoints(container, record.run_id),
        _models(connection, view),
        str(problem or ""),
    )


def _document(shown: Shown) -> dict[str, Any]:
    from runner.cli.run_summary import output_url

    view = shown.view
    return {
        "run_id": view.record.run_id,
        "state": view.status.state.value,
        "reason": view.status.reason,
        "fix": view.status.fix,
        "node": view.status.node,
        "metrics": [dataclasses.asdict(metric) for metric in shown.metrics],
        "attempts": [dataclasses.asdict(attempt) for attempt in shown.attempts],
        "environment": shown.environment,
        "checkpoints": [_checkpoint(checkpoint) for checkpoint in shown.checkpoints],
        "checkpoint_problem": shown.checkpoint_problem or None,
        "output_url": output_url(shown.connection, view.record.run_id, view.result),
        "run": view.record.raw,
        "result": view.result.raw if view.result else None,
        "models": [dataclasses.asdict(model) for model in shown.models],
    }


def _models(connection: Connection, view: RunView) -> Sequence[RunModel]:
    from runner.flows.model_registration import describe_models

    succeeded = view.result is not None and view.result.status == "succeeded"
    return describe_models(connection, view.record) if succeeded else ()


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "checkpoint": checkpoint.number,
        "attempt": checkpoint.attempt,
        "time": checkpoint.time,
        "step": checkpoint.step,
        "files": len(checkpoint.files),
        "size_bytes": checkpoint.size_bytes,
    }
