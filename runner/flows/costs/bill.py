"""The bill of runs: by day and cause, from the on-demand price to what was paid, and caps.

All sums are of the charges of the ledger, so they are those of `runner cost` to the micro-dollar.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from runner.core.pricing.ledger import EVICTED, PARTS, NodeCharge, Part
from runner.flows.costs.report import CostReport

_DAY_MS = 86_400_000
_EPOCH = date(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class Waterfall:
    """From the on-demand price to what was paid, in micro-dollars.

    `on_demand - spot_saving + rework + idle == paid`, where the first two are None if a price of
    dedicated nodes is unknown. Node time with an unknown price is in no sum.

    Attributes:
        on_demand: The same work on dedicated nodes, which nobody evicts.
        spot_saving: How much less the same work cost; negative if spot nodes were dearer.
        rework: Lost work, and time of nodes that are being evicted.
        idle: Nodes that wait for work.
        paid: The total of the report.
    """

    on_demand: int | None
    spot_saving: int | None
    rework: int
    idle: int
    paid: int


@dataclass(frozen=True, slots=True)
class CapUse:
    """A run with a cap of its costs; `spent` is None if the price of a node is unknown."""

    run_id: str
    cap: int
    spent: int | None


@dataclass(frozen=True, slots=True)
class CostBill:
    """The bill of a report.

    Attributes:
        days: Micro-dollars by day in UTC and by part, oldest first.
        day_ms: Node time of the same days.
        caps: Runs with a cap.
    """

    report: CostReport
    waterfall: Waterfall
    days: Mapping[date, Mapping[Part, int]]
    day_ms: Mapping[date, Mapping[Part, int]]
    caps: Sequence[CapUse]


def make_bill(report: CostReport) -> CostBill:
    """Return the bill of a report, whose ledger has kept its charges."""
    runs = {run_id for row in report.rows for run_id in row.runs}
    charges = [each for each in report.ledger.charges if each.run_id in runs]
    paid, spent = _days(charges)
    return CostBill(report, _waterfall(charges), paid, spent, _caps(report, runs))


def _waterfall(charges: Sequence[NodeCharge]) -> Waterfall:
    known = [each for each in charges if each.micro is not None]
    rework = _paid(each for each in known if each.part in EVICTED)
    idle = _paid(each for each in known if each.part == "idle")
    work = [each for each in known if each.part != "idle" and each.part not in EVICTED]
    paid = _paid(known)
    dedicated = [each.dedicated_micro for each in work]
    on_demand = sum(each for each in dedicated if each is not None)
    if len(known) < len(charges) or None in dedicated:
        return Waterfall(None, None, rework, idle, paid)
    return Waterfall(on_demand, on_demand - _paid(work), rework, idle, paid)


def _paid(charges: Iterable[NodeCharge]) -> int:
    return sum(each.micro or 0 for each in charges)


_Days = dict[date, dict[Part, int]]


def _days(charges: Sequence[NodeCharge]) -> tuple[_Days, _Days]:
    """Return price and time by day and part, oldest first."""
    paid: _Days = defaultdict(lambda: dict.fromkeys(PARTS, 0))
    spent: _Days = defaultdict(lambda: dict.fromkeys(PARTS, 0))
    for charge in charges:
        amounts = zip(_by_day(charge, charge.micro or 0), _by_day(charge, charge.ms), strict=True)
        for (day, micro), (_, ms) in amounts:
            paid[day][charge.part] += micro
            spent[day][charge.part] += ms
    return dict(sorted(paid.items())), dict(sorted(spent.items()))


def _by_day(charge: NodeCharge, amount: int) -> Iterator[tuple[date, int]]:
    """Yield the days of a charge, with parts that sum exactly to an amount of it."""
    first, last = charge.start_ms // _DAY_MS, (charge.end_ms - 1) // _DAY_MS
    whole = charge.end_ms - charge.start_ms
    given = 0
    for number in range(first, last + 1):
        passed = min((number + 1) * _DAY_MS, charge.end_ms) - charge.start_ms
        until = amount * passed // whole
        yield _EPOCH + timedelta(days=number), until - given
        given = until


def _caps(report: CostReport, runs: set[str]) -> list[CapUse]:
    spent = report.ledger.runs
    return [
        CapUse(
            row.run_id,
            row.spec.max_cost_micros,
            spent[row.run_id].total_micro if row.run_id in spent else 0,
        )
        for row in report.history
        if row.spec is not None and row.spec.max_cost_micros is not None and row.run_id in runs
    ]
