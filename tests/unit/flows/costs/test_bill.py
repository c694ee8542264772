"""The bill: its sums are those of `runner cost`, to the micro-dollar."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.pricing.ledger import PARTS, Ledger, NodeCosts, RunUsage, compute_ledger
from runner.flows.costs.bill import CostBill, make_bill
from runner.flows.costs.report import CostReport, CostRow, group_costs, report_costs
from runner.flows.runs.rows import RunRow
from runner.protocol.usage import AttemptUsage
from runner.views.costs import bill_document, cost_document
from tests.unit.flows.costs import test_costs
from tests.unit.flows.costs.test_costs import Records, records

__all__ = ["records"]  # a fixture
HOUR = 3_600_000
DAY = 24 * HOUR


def rate(vm_size: str, spot: bool) -> int | None:
    return {"known": 100_001 if spot else 526_003}.get(vm_size)


def attempt(number: int, start: int, end: int | None, **more: Any) -> AttemptUsage:
    why = "succeeded" if end is not None else ""
    fields: dict[str, Any] = {"node": "tvm-1", "dedicated": False, "command": start, "why": why}
    return AttemptUsage(number, 0, started=start, ended=end, **(fields | more))


def run(name: str, *attempts: AttemptUsage, vm_size: str = "known", **more: Any) -> RunUsage:
    return RunUsage(name, "pool", vm_size, True, more.pop("status", "succeeded"), attempts, **more)


def keep(*runs: RunUsage, **more: Any) -> Ledger:
    more = {"now_ms": 100 * DAY, "keep_charges": True, **more}
    return compute_ledger(runs, rate, **more)


def bill_of(ledger: Ledger) -> CostBill:
    total = NodeCosts()
    for spent in ledger.runs.values():
        total.add(spent)
    rows = tuple(CostRow(name, (name,), spent) for name, spent in ledger.runs.items())
    history = tuple(RunRow(name, None, None, None) for name in ledger.runs)
    return make_bill(
        CostReport("run", rows, total, tuple(ledger.gaps), (), "here", False, ledger, history)
    )


@st.composite
def usages(draw: st.DrawFn) -> list[RunUsage]:
    """Runs on two nodes, some evicted, some lost, some with an unknown price."""
    found: list[RunUsage] = []
    for number in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, 5 * DAY))
        attempts: list[AttemptUsage] = []
        for index in range(draw(st.integers(1, 3))):
            took = draw(st.integers(0, 40 * HOUR))
            why = draw(st.sampled_from(["succeeded", "terminated", "failed", ""]))
            attempts.append(
                attempt(
                    index + 1, at, at + took if why else None, why=why,
                    node=draw(st.sampled_from(["tvm-1", "tvm-2"])), created=at - HOUR,
                    seen=at + took, kept=at + took // 2, node_ends=at + took + 60_000,
                    ends_by=at + took + HOUR, dedicated=draw(st.booleans()),
                )
            )  # fmt: skip
            at += took + draw(st.integers(0, 3 * HOUR))
        size = draw(st.sampled_from(["known", "known", "unknown"]))
        status = draw(st.sampled_from(["succeeded", "failed", ""]))
        found.append(run(f"run-{number}", *attempts, vm_size=size, status=status))
    return found


@given(usages())
def test_charges_days_and_steps_sum_to_the_total(runs: list[RunUsage]) -> None:
    ledger = keep(*runs)
    bill = bill_of(ledger)
    total, steps = bill.report.total, bill.waterfall
    known = sum(total.micro.values())
    assert steps.paid == known
    assert sum(sum(day.values()) for day in bill.days.values()) == known
    assert sum(sum(day.values()) for day in bill.day_ms.values()) == total.total_ms
    for part in PARTS:
        assert sum(day[part] for day in bill.days.values()) == total.micro[part]
        assert sum(each.ms for each in ledger.charges if each.part == part) == total.ms[part]
    if total.unpriced_ms:
        assert steps.on_demand is None
    elif steps.on_demand is not None and steps.spot_saving is not None:
        assert steps.on_demand - steps.spot_saving + steps.rework + steps.idle == steps.paid
    assert ledger.runs == keep(*runs, keep_charges=False).runs


def test_waterfall_names_saving_rework_and_idle_time() -> None:
    evicted = attempt(1, HOUR, 3 * HOUR, why="terminated", created=HOUR, kept=2 * HOUR,
                      node_ends=3 * HOUR + HOUR // 2)  # fmt: skip
    second = attempt(2, 5 * HOUR, 6 * HOUR, node="tvm-2", created=4 * HOUR, ready=4 * HOUR)
    steps = bill_of(keep(run("a", evicted, second))).waterfall
    assert steps.on_demand == 2 * 526_003
    assert steps.spot_saving == 2 * (526_003 - 100_001)
    assert steps.rework == round(1.5 * 100_001)
    assert steps.idle == 100_001
    assert steps.paid == 2 * 100_001 + steps.rework + steps.idle


def test_day_of_the_bill_ends_at_midnight_in_utc() -> None:
    bill = bill_of(keep(run("a", attempt(1, DAY - HOUR, DAY + 2 * HOUR, created=DAY - HOUR))))
    assert {day: sum(parts.values()) for day, parts in bill.day_ms.items()} == {
        date(1970, 1, 1): HOUR,
        date(1970, 1, 2): 2 * HOUR,
    }
    assert sum(bill.days[date(1970, 1, 1)].values()) == 100_001


def test_unknown_price_is_not_zero() -> None:
    bill = bill_of(keep(run("a", attempt(1, 0, HOUR, created=0), vm_size="unknown")))
    assert (bill.waterfall.on_demand, bill.waterfall.spot_saving) == (None, None)
    assert bill_document(bill)["cost_micro_usd"] is None


def test_attempts_that_an_eviction_ends_together_are_one_eviction() -> None:
    gone = {"why": "terminated", "created": 0, "node_ends": 2 * HOUR}
    both = [run(name, attempt(1, HOUR, 2 * HOUR - 5, **gone), status="") for name in "ab"]
    again = run("c", attempt(1, 3 * HOUR, 4 * HOUR, created=None, why="terminated",
                             node_ends=5 * HOUR), status="")  # fmt: skip
    lives = keep(*both, again).lives
    assert [each for life in lives for each in life.evictions] == [2 * HOUR, 5 * HOUR]


@pytest.mark.parametrize("late_ms", [0, 1, 5_000])
def test_attempt_that_ends_after_the_announced_eviction_was_evicted(late_ms: int) -> None:
    late = attempt(1, HOUR, 2 * HOUR + late_ms, why="terminated", created=0, node_ends=2 * HOUR)
    (life,) = keep(run("a", late, status="")).lives
    assert life.evictions == (2 * HOUR + late_ms,)


def test_empty_account_has_an_empty_bill() -> None:
    bill = bill_of(keep())
    assert (dict(bill.days), bill.caps, bill.waterfall.paid) == ({}, [], 0)
    assert bill.waterfall.on_demand == 0


@pytest.mark.feature(54)
def test_bill_has_the_sums_of_the_command(records: Records) -> None:
    for number in range(1, 60):
        records.add(number, node=f"tvm-{number % 3}", experiment=f"e-{number % 2}")
    capped = records.add(70, max_cost_micros=500_000)
    report = report_of(records)
    bill = bill_document(make_bill(report))
    printed = cost_document(records.report())
    total = printed["total"]["cost_micro_usd"]
    assert total
    assert bill["cost_micro_usd"] == bill["waterfall"]["paid_micro_usd"] == total
    assert sum(day["cost_micro_usd"] for day in bill["days"]) == total
    for part, amounts in printed["total"]["parts"].items():
        by_day = sum(day["parts"].get(part, 0) for day in bill["days"])
        assert by_day == amounts["micro_usd"]
    for by in ("run", "recipe", "experiment", "pool"):
        assert group_costs(report, by) == records.report(by=by).rows
    (cap,) = bill["caps"]
    (row,) = [row for row in printed["rows"] if row["name"] == capped]
    assert (cap["run_id"], cap["cap_micro_usd"]) == (capped, 500_000)
    assert cap["cost_micro_usd"] == row["cost_micro_usd"]


def report_of(records: Records, **query: Any) -> CostReport:
    """Return a report with its charges."""

    def with_charges(*words: Any) -> CostReport:
        return report_costs(*words, keep_charges=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_costs, "report_costs", with_charges)
        return records.report(**query)
