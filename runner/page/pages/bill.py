"""The bill: from the on-demand price to what was paid, by day, cause, experiment, pool and run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast, get_args
from urllib.parse import quote

from runner.azure.auth.credentials import Connection
from runner.core.pricing.budgets import Spending
from runner.core.pricing.ledger import PARTS, Gap, Part
from runner.core.units import format_duration
from runner.flows.costs.bill import CostBill, Waterfall, make_bill
from runner.flows.costs.budgets import load_budgets
from runner.flows.costs.report import CostKey, CostReport, group_costs
from runner.page.ask import Ask, WebPage
from runner.page.charts.bars import Column, WaterfallStep
from runner.page.pages.pools import PRICE_QUERY
from runner.page.pages.spending import ALL, Prices, parse_time, price_choices, read_report
from runner.page.rendering import format_dollars, with_query
from runner.page.rest import Endpoint
from runner.protocol.errors import RunnerError
from runner.views.costs import (
    GAPS,
    BillDocument,
    BudgetDocument,
    CostDocument,
    bill_document,
    budget_document,
    cost_document,
)

_SINCE = timedelta(days=30)
_ROWS = 50
_MOST_ROWS = 100_000
_MOST_GAPS = 100
_BUDGETS_FRESH_S = 10.0
SPANS = ("1d", "7d", "30d", "90d", ALL)
CAUSES: dict[Part, str] = {
    "useful": "useful work",
    "boot": "boot and start task of nodes",
    "setup": "set-up of attempts",
    "lost": "work that evictions lost",
    "evicted": "nodes that were being evicted",
    "failed": "failed and cancelled work",
    "idle": "idle nodes",
}


def hours(ms: float) -> str:
    """Return node time as text."""
    return format_duration(ms / 1000)


def to_steps(waterfall: Waterfall) -> list[WaterfallStep]:
    """Return the steps of the waterfall; without the first two if a price is unknown."""
    steps: list[WaterfallStep] = []
    if waterfall.on_demand is not None and waterfall.spot_saving is not None:
        steps = [
            WaterfallStep("on demand", waterfall.on_demand, "total", is_sum=True),
            WaterfallStep("spot saving", -waterfall.spot_saving, "saving"),
        ]
    else:
        work = waterfall.paid - waterfall.rework - waterfall.idle
        steps = [WaterfallStep("work", work, "useful", is_sum=True)]
    return [
        *steps,
        WaterfallStep("rework", waterfall.rework, "lost"),
        WaterfallStep("idle", waterfall.idle, "idle"),
        WaterfallStep("paid", waterfall.paid, "total", is_sum=True),
    ]


def to_columns(bill: CostBill) -> list[Column]:
    """Return a column for each day: its price by cause, or its node time if nothing has a price."""
    days = bill.days if any(sum(parts.values()) for parts in bill.days.values()) else bill.day_ms
    return [
        Column(f"{day:%m-%d}", {part: parts[part] for part in PARTS}, f"{day:%Y-%m-%d}")
        for day, parts in days.items()
    ]


def group_gaps(gaps: Sequence[Gap]) -> list[tuple[str, int]]:
    """Return what is not on record, with the number of times."""
    counts = {cause: sum(gap.cause == cause for gap in gaps) for cause in GAPS}
    return [(GAPS[cause], count) for cause, count in counts.items() if count]


def read_since(ask: Ask, now: datetime) -> datetime | None:
    """Return the time since which runs are counted; None for all."""
    if ask.text("since") == ALL:
        return None
    return parse_time(ask, "since", now) or now - _SINCE


def _experiment(name: str) -> str:
    return with_query("/runs", {}, experiment=name)


def _pool(name: str) -> str:
    return f"/pools/{quote(name, safe='')}"


def _run(name: str) -> str:
    return f"/runs/{quote(name, safe='')}"


def bill_values(report: CostReport, bill: CostBill, limit: int) -> dict[str, Any]:
    """Return what the template shows of a bill."""
    total = report.total
    runs = group_costs(report, "run")
    return {
        "report": report,
        "is_free": report.is_free,
        "bill": bill,
        "total": total,
        "steps": to_steps(bill.waterfall),
        "columns": to_columns(bill),
        "is_priced": any(total.micro.values()),
        "causes": [(part, CAUSES[part], total.micro[part], total.ms[part], total.bound_ms[part])
                   for part in PARTS],
        "experiments": group_costs(report, "experiment"),
        "pools": group_costs(report, "pool"),
        "runs": runs[:limit],
        "runs_count": len(runs),
        "gaps": group_gaps(report.gaps),
        "gap_list": report.gaps[:_MOST_GAPS],
        "legend": [(part, CAUSES[part]) for part in PARTS if total.ms[part]],
        "address_of": {"experiment": _experiment, "pool": _pool, "run": _run},
        "usd_text": format_dollars,
        "hours_text": hours,
    }  # fmt: skip


async def read_budgets(ask: Ask) -> tuple[list[Spending], str]:
    """Return the state of all budgets, and a warning or an empty string."""
    home = ask.source.settings.home

    def load(connection: Connection) -> tuple[list[Spending], str]:
        state = load_budgets(connection, home)
        return (state.spending(), state.warning()) if state else ([], "")

    return await ask.source.read(("budgets",), load, fresh_s=_BUDGETS_FRESH_S)


async def read_budget_documents(ask: Ask) -> list[BudgetDocument]:
    """Return the budgets."""
    return [budget_document(each) for each in (await read_budgets(ask))[0]]


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `bill.html`."""
    settings, prices = ask.source.settings, Prices.parse(ask)
    limit = ask.number("n", _ROWS, low=1, high=_MOST_ROWS)
    report = await read_report(ask, prices, read_since(ask, datetime.now(UTC)))
    budgets, warning = await read_budgets(ask)
    return {
        "title": "Bill",
        "budgets": budgets,
        "budgets_warning": warning,
        "since": ask.text("since") or "30d",
        "spans": SPANS,
        **bill_values(report, make_bill(report), limit),
        **price_choices(settings, prices),
    }


async def read_bill_document(ask: Ask) -> BillDocument:
    """Return the bill."""
    since = read_since(ask, datetime.now(UTC))
    return bill_document(make_bill(await read_report(ask, Prices.parse(ask), since)))


async def read_costs_document(ask: Ask) -> CostDocument:
    """Return the costs of runs by a key."""
    by = ask.text("by", "experiment")
    if by not in get_args(CostKey):
        raise RunnerError(
            "R-PAGE-QUERY", f"invalid by={by[:40]!r} in the address",
            fix=f"use {', '.join(get_args(CostKey))}",
        )  # fmt: skip
    report = await read_report(ask, Prices.parse(ask), read_since(ask, datetime.now(UTC)))
    key = cast("CostKey", by)
    return cost_document(replace(report, by=key, rows=group_costs(report, key)))


_SINCE_QUERY = ("since", "only runs submitted since then: 7d, 12h, a date, or all; 30d without it")
ENDPOINTS = (
    Endpoint(
        "/bill", "Show the bill: from the on-demand price to what was paid, days and caps.",
        BillDocument, read_bill_document, (_SINCE_QUERY, *PRICE_QUERY),
    ),
    Endpoint(
        "/costs", "Show the costs of runs by the purpose of their node time.",
        CostDocument, read_costs_document,
        (("by", "run, recipe, experiment or pool"), _SINCE_QUERY, *PRICE_QUERY), "runner cost",
    ),
    Endpoint(
        "/budgets", "List the budgets: what was spent, what runs may cost, and what is left.",
        list[BudgetDocument], read_budget_documents, (), "runner budget ls",
    ),
)  # fmt: skip
PAGE = WebPage("/bill", "bill", read, every_s=15.0, label="Bill")
