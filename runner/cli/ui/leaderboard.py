"""The trials of a sweep: follow them to their end, and compare them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer

from runner.cli.ui.groups import watch_group
from runner.cli.ui.output import Output
from runner.core.units import format_duration
from runner.protocol.errors import ExitCode
from runner.protocol.host import format_usd
from runner.protocol.metrics import format_metric

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.flows.costs.report import CostReport
    from runner.flows.sweeps.experiments import Leaderboard
    from runner.protocol.groups import RunGroup


def follow_sweep(out: Output, connection: Connection, group: RunGroup) -> None:
    """Show the trials until they have ended, and then compare them.

    Raises:
        typer.Exit: 1 unless all trials succeeded; 130 after Ctrl-C, the trials continue.
    """
    from runner.flows.sweeps.experiments import load_leaderboard

    view = watch_group(out, connection, group)
    board = load_leaderboard(connection, group, known=view.rows.values())
    show_leaderboard(out, connection, board)
    merged = board.merge is None or board.merge.state == "succeeded"
    # Trials that stopped early count as succeeded.
    if list(board.states) != ["succeeded"] or not merged:
        raise typer.Exit(ExitCode.RUN_FAILED)


def show_leaderboard(
    out: Output,
    connection: Connection,
    board: Leaderboard,
    report: CostReport | None = None,
) -> None:
    """Print the trials of a sweep, the best first, and what to do next.

    `report` has the costs of its runs, if they are shown.
    """
    from runner.flows.sweeps.experiments import costs_of_trials, has_outputs, short_trials
    from runner.views.sweeps import parameter_names, sweep_document, trial_documents

    merge = board.merge
    costs = None if report is None else costs_of_trials(board, report.ledger.runs)
    documents = trial_documents(board, costs)
    if not out.as_text:
        out.record(sweep_document(board, documents))
        return
    own = ("trial", board.metric or "value", "state", "took", "attempts", "run_id")
    names = {
        name: f"params.{name}" if name in own else name
        for name in parameter_names(board.sweep.trials)
    }
    rows = [
        {**trial_text(each), **{names[name]: value for name, value in each["params"].items()}}
        for each in documents
    ]
    if report is not None:
        own = (*own[:-1], "cost", "evictions_cost", own[-1])
    columns = (*own[:2], *names.values(), *own[2:])
    spare = ("attempts", "evictions_cost", "took", *reversed([*names.values()]), "cost", "state")
    out.rows(rows, columns, empty="the runs were deleted", spare=spare)
    out.note(format_states(board.shown_states))
    if report is not None:
        _note_costs(out, report)
    for line in board.problems:
        out.note(line)
    if board.metric_problem:
        out.warning(board.metric_problem)
    if (cause := board.cause) is not None:
        out.note(f"{cause.label}: {cause.message}   to continue: {cause.fix}")
    if merge is not None:
        reason = f": {merge.reason}" if merge.reason else ""
        out.note(f"merge {merge.state}{reason}   {merge.run_id}")
        if merge.state == "cancelled" and board.shown_states.get("succeeded"):
            sweep_id = board.sweep.group_id
            out.note(f"to merge without the others: runner sweep resume {sweep_id} --partial")
    first = board.best(board.metric) if board.metric else None
    if first is not None and has_outputs(connection, first):
        best_id = board.sweep.group_id
        out.note(f"to register the best model: runner sweep best {best_id} --register MODEL")
    if (advice := short_trials(board)) is not None:
        out.note(advice.text)
    if board.shown_states.get("succeeded"):
        out.note(f"to download the outputs: runner files get {board.sweep.group_id}")


def _note_costs(out: Output, report: CostReport) -> None:
    from runner.cli.commands.costs.cost import print_cost_notes
    from runner.core.pricing.ledger import EVICTED

    if not report.is_free:
        evictions = sum(report.total.micro[part] for part in EVICTED)
        at_most = "at most " if report.total.is_bound else ""
        total = format_usd(report.total.total_micro)
        out.note(f"all runs: {at_most}{total}, of which evictions {format_usd(evictions)}")
    print_cost_notes(out, report)


def format_states(states: Mapping[str, int]) -> str:
    """Return `3 succeeded, 1 failed`."""
    return ", ".join(f"{count} {state}" for state, count in states.items())


def trial_text(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial as a row of a table, without its parameters."""
    value, took, evicted = document["value"], document["took_s"], document["evicted"]
    return {
        "trial": document["trial"],
        document["metric"] or "value": "" if value is None else format_metric(value),
        "state": document["state"],
        "took": "" if took is None else format_duration(took),
        "attempts": f"{document['attempts']} ({evicted} evicted)"
        if evicted
        else document["attempts"],
        **(
            {
                "cost": _usd(document["cost_usd"]),
                "evictions_cost": _usd(document["evictions_usd"]),
            }
            if "cost_usd" in document
            else {}
        ),
        "run_id": document["run_id"],
        **({"model": document["model"]} if "model" in document else {}),
    }


def _usd(amount: float | None) -> str:
    return "" if amount is None else format_usd(1e6 * amount)
