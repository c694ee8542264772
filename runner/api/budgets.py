"""Budgets: caps of the costs of an experiment, or of the runs of a calendar month."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from runner.api.arguments import checked
from runner.api.html import Table
from runner.api.requests import connect
from runner.core.pricing.budgets import budget_key
from runner.core.pricing.cost import MICROS_PER_USD, to_micros
from runner.protocol.host import format_usd

if TYPE_CHECKING:
    from runner.core.pricing.budgets import Spending


@dataclass(frozen=True)
class Budget:
    """A budget in USD.

    Attributes:
        experiment: Its experiment; None for the runs of each calendar month (UTC).
        cap: The cap.
        spent: What runs have cost, as far as their prices are known.
        running: What unfinished submissions may cost at most.
        left: What a submission may cost at most.
        unpriced_runs: The runs whose price is unknown, at least in part.
    """

    experiment: str | None
    cap: float
    spent: float
    running: float
    left: float
    unpriced_runs: tuple[str, ...] = ()


@checked
def budgets(*, target: str | None = None, stack: str | None = None) -> Table[Budget]:
    """Return the budgets of the stack, with what was spent and what is left."""
    from runner.flows.costs.budgets import load_budgets

    session = connect(target, stack)
    state = load_budgets(session.connection, session.settings.home)
    return Table([_budget(each) for each in state.spending()] if state else [], _cells)


@checked
def set_budget(
    usd: float,
    experiment: str | None = None,
    *,
    target: str | None = None,
    stack: str | None = None,
) -> None:
    """Cap the costs of an experiment, or of all runs of each calendar month.

    Args:
        usd: the cap in USD.
        experiment: name of the experiment; None for a month.
        target: "local" or "azure". Nodes of "local" are free, so a budget has no effect there.
        stack: Pulumi stack of the target.
    """
    from runner.flows.costs.budgets import change_budget

    micros, key = to_micros(usd, "usd"), budget_key(experiment)
    change_budget(connect(target, stack).connection, key, micros)


@checked
def remove_budget(
    experiment: str | None = None, *, target: str | None = None, stack: str | None = None
) -> None:
    """Remove the budget of an experiment, or that of a month.

    Raises:
        RunnerError: R-BUDGET-UNKNOWN, there is none.
    """
    from runner.flows.costs.budgets import change_budget

    change_budget(connect(target, stack).connection, budget_key(experiment), None)


def _budget(spending: Spending) -> Budget:
    return Budget(
        spending.experiment or None,
        spending.cap / MICROS_PER_USD,
        spending.spent / MICROS_PER_USD,
        spending.running / MICROS_PER_USD,
        spending.left / MICROS_PER_USD,
        spending.unpriced,
    )


def _cells(budget: Budget) -> dict[str, object]:
    amounts = {name: getattr(budget, name) for name in ("cap", "spent", "running", "left")}
    shown = {name: format_usd(round(usd * MICROS_PER_USD)) for name, usd in amounts.items()}
    return {"budget": budget.experiment or "this month", **shown}
