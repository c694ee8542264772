"""`runner budget`: caps of the costs of an experiment, or of a month."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_experiment
from runner.cli.options import Invocation, on_target

if TYPE_CHECKING:
    from runner.core.pricing.budgets import Spending

app = typer.Typer(
    help="Cap the costs of an experiment or of a month: what would exceed it is not submitted."
)
ExperimentOption = Annotated[
    str | None,
    typer.Option(
        "--experiment",
        help="Name of the experiment.",
        show_default="all runs of a calendar month",
        autocompletion=complete_experiment,
    ),
]


@app.command("set")
@on_target
def set_(
    call: Invocation,
    amount: Annotated[str, typer.Argument(metavar="USD", help="The cap in USD, such as 50.")],
    experiment: ExperimentOption = None,
) -> None:
    """Set the budget of a month, in UTC, or of an experiment."""
    from runner.core.pricing.budgets import budget_key
    from runner.core.pricing.cost import to_micros
    from runner.flows.costs.budgets import change_budget
    from runner.protocol.host import format_usd

    micros = to_micros(amount, "USD")
    connection = call.connect()
    name = budget_key(experiment)
    change_budget(connection, name, micros)
    out = call.out
    if not connection.target.is_billed:
        out.warning("the budget has no effect: nodes on this machine are free")
    if out.as_text:
        out.note(f"budget of {_name(name)}: {format_usd(micros)}; to show it: runner budget ls")
    else:
        out.record({"experiment": name or None, "cap_micros": micros})


@app.command()
@on_target
def ls(call: Invocation) -> None:
    """List the budgets: what was spent, what runs may still cost, and what is left."""
    from runner.flows.costs.budgets import load_budgets
    from runner.views.costs import budget_document

    settings, connection = call.open()
    state = load_budgets(connection, settings.home)
    found = state.spending() if state else []
    out = call.out
    if out.as_text:
        rows = [_texts(each) for each in found]
    else:
        rows = [dict(budget_document(each)) for each in found]
    columns = ("budget", "cap", "spent", "running", "left")
    if not out.as_text and rows:
        columns = tuple(rows[0])
    out.rows(rows, columns, empty="no budgets; to set one: runner budget set 50 --experiment NAME")
    if warning := state.warning() if state else "":
        out.warning(warning)


@app.command()
@on_target
def rm(call: Invocation, experiment: ExperimentOption = None) -> None:
    """Remove the budget of a month or of an experiment."""
    from runner.core.pricing.budgets import budget_key
    from runner.flows.costs.budgets import change_budget

    name = budget_key(experiment)
    change_budget(call.connect(), name, None)
    out = call.out
    if out.as_text:
        out.note(f"removed the budget of {_name(name)}")
    else:
        out.record({"experiment": name or None, "cap_micros": None})


def _name(experiment: str) -> str:
    return f"experiment {experiment}" if experiment else "each month"


def _texts(spending: Spending) -> dict[str, Any]:
    from runner.protocol.host import format_usd

    return {
        "budget": spending.experiment or "this month",
        "cap": format_usd(spending.cap),
        "spent": f"{'>= ' if spending.unpriced else ''}{format_usd(spending.spent)}",
        "running": f"<= {format_usd(spending.running)}" if spending.running else "-",
        "left": format_usd(spending.left),
    }
