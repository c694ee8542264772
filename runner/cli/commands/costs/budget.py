"""`runner budget`: caps of the costs of an experiment, or of a month."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_experiment
from runner.cli.options import Invocation, on_target
from runner.protocol.errors import RunnerError

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
    from runner.core.pricing.cost import to_micros, usd_text
    from runner.flows.costs.budgets import change_budget

    micros = to_micros(amount, "USD")
    connection = call.connect()
    name = _experiment(experiment)
    change_budget(connection, name, micros)
    out = call.out
    if not connection.target.is_billed:
        out.warning("the budget has no effect: nodes on this machine are free")
    if out.as_text:
        out.note(f"budget of {_name(name)}: {usd_text(micros)}; to show it: runner budget ls")
    else:
        out.record({"experiment": name or None, "cap_micros": micros})


@app.command()
@on_target
def ls(call: Invocation) -> None:
    """List the budgets: what was spent, what runs may still cost, and what is left."""
    from runner.flows.costs.budgets import load_budgets

    settings, connection = call.open()
    state = load_budgets(connection, settings.home)
    found = state.spending() if state else []
    out = call.out
    if out.as_text:
        rows = [_texts(each) for each in found]
    else:
        rows = [
            {
                "budget": each.experiment or "month",
                "experiment": each.experiment or None,
                "cap_micros": each.cap,
                "spent_micros": each.spent,
                "running_micros": each.running,
                "left_micros": each.left,
            }
            for each in found
        ]
    columns = ("budget", "cap", "spent", "running", "left")
    if not out.as_text and rows:
        columns = tuple(rows[0])
    out.rows(rows, columns, empty="no budgets; to set one: runner budget set 50 --experiment NAME")


@app.command()
@on_target
def rm(call: Invocation, experiment: ExperimentOption = None) -> None:
    """Remove the budget of a month or of an experiment."""
    from runner.flows.costs.budgets import change_budget

    name = _experiment(experiment)
    change_budget(call.connect(), name, None)
    out = call.out
    if out.as_text:
        out.note(f"removed the budget of {_name(name)}")
    else:
        out.record({"experiment": name or None, "cap_micros": None})


def _experiment(name: str | None) -> str:
    """Return the name as runs have it, or MONTH. Raise RunnerError for an empty name."""
    from runner.core.pricing.budgets import MONTH
    from runner.protocol.paths import slug

    if name is not None and not name.strip():
        raise RunnerError(
            "R-FLAG-VALUE", "empty --experiment", fix="--experiment NAME, or no option for a month"
        )
    return MONTH if name is None else slug(name)


def _name(experiment: str) -> str:
    return f"experiment {experiment}" if experiment else "each month"


def _texts(spending: Spending) -> dict[str, Any]:
    from runner.core.pricing.cost import usd_text

    return {
        "budget": spending.experiment or "this month",
        "cap": usd_text(spending.cap),
        "spent": usd_text(spending.spent),
        "running": f"<= {usd_text(spending.running)}" if spending.running else "-",
        "left": usd_text(spending.left),
    }
