"""Documents about costs: `runner cost`, the bill by day and cause, and the what-if comparison."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from typing_extensions import TypedDict  # pydantic describes that of `typing` from Python 3.12 on

from runner.core.pricing.budgets import Spending
from runner.core.pricing.ledger import Gap, NodeCharge, NodeCosts
from runner.flows.costs.bill import CostBill
from runner.flows.costs.report import CostReport

# Texts about node time that no sum includes, by cause.
GAPS: dict[str, str] = {
    "unreadable": "attempts with unreadable records",
    "clock": "attempts during which the clock of the node was changed",
    "boot": "the boot of nodes whose start is unknown",
    "lost": "the time after the last event of attempts on lost nodes",
    "end": "the time after the last run of nodes that are gone",
}


class PartDocument(TypedDict):
    """Node time for one purpose."""

    micro_usd: int
    node_ms: int
    bound_node_ms: int


class BreakEvenDocument(TypedDict):
    """Spot nodes compared with dedicated nodes for the same work."""

    spot_micro_usd: int
    dedicated_micro_usd: int
    repeated_share: float
    break_even_share: float


class SpentDocument(TypedDict):
    """Node time and its price; `cost_micro_usd` is None if a price is unknown."""

    cost_micro_usd: int | None
    node_ms: int
    unpriced_node_ms: int
    bound_node_ms: int
    goodput: float | None
    parts: dict[str, PartDocument]
    break_even: BreakEvenDocument | None


class CostRowDocument(SpentDocument):
    """The runs that share a value of the key, and their costs."""

    name: str
    runs: list[str]


class BudgetDocument(TypedDict):
    """A budget: `runner budget ls`.

    `budget` is the experiment, or `month`, for which `experiment` is None. `spent_micros` is what
    runs have cost as far as prices are known, `running_micros` what unfinished ones may cost at
    most, and `left_micros` what a submission may cost. `unpriced_runs` have no known price.
    """

    budget: str
    experiment: str | None
    cap_micros: int
    spent_micros: int
    running_micros: int
    left_micros: int
    unpriced_runs: list[str]


def budget_document(spending: Spending) -> BudgetDocument:
    """Return the document of a budget."""
    return {
        "budget": spending.experiment or "month",
        "experiment": spending.experiment or None,
        "cap_micros": spending.cap,
        "spent_micros": spending.spent,
        "running_micros": spending.running,
        "left_micros": spending.left,
        "unpriced_runs": list(spending.unpriced),
    }


class PriceDocument(TypedDict):
    """A price in use; `usd_per_hour` is None if it is unknown."""

    vm_size: str
    spot: bool
    usd_per_hour: float | None
    as_of: str | None
    source: str | None


class GapDocument(TypedDict):
    """Node time that was not recorded and is in no sum."""

    cause: str
    run_id: str
    pool: str
    node: str
    since: str | None
    until: str | None


class CostDocument(TypedDict):
    """The document of `runner cost -o json`."""

    by: str
    region: str
    rows: list[CostRowDocument]
    total: SpentDocument
    prices: list[PriceDocument]
    gaps: list[GapDocument]


def cost_document(report: CostReport) -> CostDocument:
    """Return the costs of runs."""
    return {
        "by": report.by,
        "region": report.region,
        "rows": [
            {"name": row.name, "runs": list(row.runs), **_spent(row.spent)} for row in report.rows
        ],
        "total": _spent(report.total),
        "prices": [
            {
                "vm_size": each.vm_size, "spot": each.spot, "usd_per_hour": each.usd_per_hour,
                "as_of": each.as_of, "source": each.source or None,
            }
            for each in report.prices
        ],
        "gaps": [gap_document(gap) for gap in report.gaps],
    }  # fmt: skip


def _spent(spent: NodeCosts) -> SpentDocument:
    even = spent.break_even
    return {
        "cost_micro_usd": spent.total_micro,
        "node_ms": spent.total_ms,
        "unpriced_node_ms": spent.unpriced_ms,
        "bound_node_ms": sum(spent.bound_ms.values()),
        "goodput": spent.goodput,
        "parts": {
            part: {
                "micro_usd": spent.micro[part],
                "node_ms": ms,
                "bound_node_ms": spent.bound_ms[part],
            }
            for part, ms in spent.ms.items()
        },
        "break_even": None
        if even is None
        else {
            "spot_micro_usd": even.spot_micro,
            "dedicated_micro_usd": even.dedicated_micro,
            "repeated_share": even.repeated,
            "break_even_share": even.limit,
        },
    }


def gap_document(gap: Gap) -> GapDocument:
    """Return the document of node time that was not recorded."""
    return {
        "cause": gap.cause,
        "run_id": gap.run_id,
        "pool": gap.pool,
        "node": gap.node,
        "since": to_time(gap.since_ms),
        "until": to_time(gap.until_ms),
    }


def to_time(ms: int | None) -> str | None:
    """Return milliseconds since 1970 as ISO 8601."""
    if ms is None:
        return None
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)).isoformat()


class ChargeDocument(TypedDict):
    """What an attempt pays for a piece of the life of a node; `micro_usd` None is unknown."""

    run_id: str
    attempt: int
    rank: int
    node: str
    spot: bool
    part: str
    start: str | None
    end: str | None
    node_ms: int
    micro_usd: int | None


def charge_document(charge: NodeCharge) -> ChargeDocument:
    """Return the document of a charge."""
    return {
        "run_id": charge.run_id,
        "attempt": charge.attempt,
        "rank": charge.rank,
        "node": charge.node,
        "spot": charge.spot,
        "part": charge.part,
        "start": to_time(charge.start_ms),
        "end": to_time(charge.end_ms),
        "node_ms": charge.ms,
        "micro_usd": charge.micro,
    }


class WaterfallDocument(TypedDict):
    """From the price on dedicated nodes to what was paid; None if a price is unknown.

    `on_demand - spot_saving + rework + idle = paid`, exactly.
    """

    on_demand_micro_usd: int | None
    spot_saving_micro_usd: int | None
    rework_micro_usd: int
    idle_micro_usd: int
    paid_micro_usd: int


class DayDocument(TypedDict):
    """A day in UTC, with its node time, and the price of it by part."""

    day: str
    node_ms: int
    cost_micro_usd: int
    parts: dict[str, int]


class CapDocument(TypedDict):
    """A run with a cost cap; `cost_micro_usd` None is unknown."""

    run_id: str
    cap_micro_usd: int
    cost_micro_usd: int | None


class BillDocument(TypedDict):
    """A bill: its total is that of `runner cost -o json`."""

    cost_micro_usd: int | None
    waterfall: WaterfallDocument
    days: list[DayDocument]
    caps: list[CapDocument]


def bill_document(bill: CostBill) -> BillDocument:
    """Return the bill of the runs of a report."""
    steps = bill.waterfall
    return {
        "cost_micro_usd": bill.report.total.total_micro,
        "waterfall": {
            "on_demand_micro_usd": steps.on_demand,
            "spot_saving_micro_usd": steps.spot_saving,
            "rework_micro_usd": steps.rework,
            "idle_micro_usd": steps.idle,
            "paid_micro_usd": steps.paid,
        },
        "days": [
            {
                "day": day.isoformat(),
                "node_ms": sum(bill.day_ms[day].values()),
                "cost_micro_usd": sum(parts.values()),
                "parts": {part: micro for part, micro in parts.items() if micro},
            }
            for day, parts in bill.days.items()
        ],
        "caps": [
            {"run_id": cap.run_id, "cap_micro_usd": cap.cap, "cost_micro_usd": cap.spent}
            for cap in bill.caps
        ],
    }


class OptionDocument(TypedDict):
    """A formula or policy on a VM size, with the results of all seeds."""

    size: str
    option: str
    policy: bool
    cost_micro_usd: float | None
    optimum_micro_usd: float | None
    regret: float | None
    makespan_s: list[float | None]
    late: int
    wait_p50_s: float | None
    wait_p90_s: float | None
    wait_p99_s: float | None
    evictions: float
    waste: float
    unfinished: list[int]
    problems: list[str]


class WhatIfDocument(TypedDict):
    """The document of `runner cost whatif -o json`.

    A line of `frontier` has a deadline, and the option of each policy with that deadline.
    """

    deadline_s: float
    options: list[OptionDocument]
    frontier: list[dict[str, Any]]
    cheapest: dict[str, str] | None
    checkpoint: dict[str, Any] | None
    measured: dict[str, Any] | None
