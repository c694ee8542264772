"""Scenarios become formulas that keep to their caps; a formula that cannot work is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest

from batch_emulator.autoscale.parser import MAX_STATEMENTS, parse
from infra.config.pool import OfficeHours, PoolConfig
from infra.planning.autoscale_formula import NodeCaps, check_formula, formula_text, node_caps
from runner.core.pricing.prices import Price, PriceKey, PriceTable
from runner.protocol.errors import ExitCode, RunnerError

_SIZE = "Standard_NC4as_T4_v3"
_FALLBACK = "spot_first_with_dedicated_fallback"


def pool(**values: Any) -> PoolConfig:
    return PoolConfig.model_validate({"id": "t4", "vm_size": _SIZE, **values})


def office(**hours: Any) -> PoolConfig:
    return pool(scenario="office_hours", office_hours=OfficeHours.model_validate(hours))


def table(spot: float | None = None, dedicated: float | None = None) -> PriceTable:
    given = ((True, spot), (False, dedicated))
    rows = {
        PriceKey(_SIZE.lower(), "westeurope", kind): Price(usd, date(2026, 11, 1), "test")
        for kind, usd in given
        if usd is not None
    }
    return PriceTable(rows)


def caps(prices: PriceTable, **values: Any) -> NodeCaps:
    return node_caps(pool(**values), "westeurope", prices)


@pytest.mark.parametrize(
    "given",
    [
        pool(),
        pool(max_spot=0, max_dedicated=1000, slots=256),
        pool(scenario=_FALLBACK, max_spot=1000, max_dedicated=1000, slots=256),
        office(days=("mon", "tue", "wed", "thu", "fri", "sat", "sun"), utc_offset_hours=-12),
    ],
)
@pytest.mark.parametrize("end", [None, datetime(2027, 1, 31, tzinfo=UTC)])
def test_every_scenario_gives_a_short_formula_that_works(
    given: PoolConfig, end: datetime | None
) -> None:
    text = formula_text(given, NodeCaps(given.max_spot, given.max_dedicated), end=end)
    assert text is not None
    check_formula(text, "a pool")
    assert len(text.encode()) <= 8192
    assert len(parse(text)) <= MAX_STATEMENTS
    assert max(len(line) for line in text.splitlines()) <= 200


def test_fixed_pool_has_no_formula_and_an_own_formula_is_not_touched() -> None:
    own = "// mine\n$TargetDedicatedNodes = 1"
    assert formula_text(pool(scenario="fixed"), NodeCaps(4, 0)) is None
    assert formula_text(pool(scenario="formula", formula=own), NodeCaps(4, 0)) == own


@pytest.mark.parametrize("given", [pool(scenario="fixed"), pool(scenario="formula", formula="x=1")])
def test_end_date_is_refused_where_it_would_not_hold(given: PoolConfig) -> None:
    with pytest.raises(RunnerError) as caught:
        formula_text(given, NodeCaps(4, 0), end=datetime(2027, 1, 1, tzinfo=UTC))
    assert caught.value.code == "R-POOL-END"


def test_end_date_of_another_zone_is_written_in_utc() -> None:
    end = datetime(2027, 1, 31, 1, tzinfo=timezone(timedelta(hours=2)))
    text = formula_text(pool(), NodeCaps(4, 0), end=end)
    assert text is not None
    assert 'time("2027-01-30T23:00:00Z") ? 0 : 4' in text


def test_spend_cap_lowers_the_maximum_to_what_it_buys() -> None:
    assert caps(table(spot=0.1), spend_cap_usd_per_hour=0.3, max_spot=9) == NodeCaps(3, 0)
    assert caps(table(spot=0.1), spend_cap_usd_per_hour=0.39, max_spot=9) == NodeCaps(3, 0)
    assert caps(table(spot=0.1), spend_cap_usd_per_hour=50, max_spot=9) == NodeCaps(9, 0)


def test_without_a_spend_cap_no_price_is_needed() -> None:
    assert caps(table(), max_spot=3) == NodeCaps(3, 0)


def test_spend_cap_covers_spot_and_dedicated_nodes_together() -> None:
    both = {"scenario": _FALLBACK, "max_spot": 8, "max_dedicated": 4}
    prices = table(spot=0.1, dedicated=0.5)
    assert caps(prices, **both, spend_cap_usd_per_hour=0.6) == NodeCaps(1, 1)
    assert caps(prices, **both, spend_cap_usd_per_hour=1.0) == NodeCaps(5, 1)
    assert caps(prices, **both, spend_cap_usd_per_hour=1.9) == NodeCaps(8, 2)
    assert caps(prices, **both, spend_cap_usd_per_hour=100) == NodeCaps(8, 4)


@pytest.mark.parametrize(
    ("prices", "values", "says"),
    [
        (table(spot=0.1), {"spend_cap_usd_per_hour": 0.09}, "do not pay for one node"),
        (
            table(spot=0.1, dedicated=0.5),
            {"spend_cap_usd_per_hour": 0.5, "max_dedicated": 1, "scenario": _FALLBACK},
            "one spot and one dedicated node",
        ),
        (table(dedicated=0.5), {"spend_cap_usd_per_hour": 9}, "no spot price"),
        (
            table(spot=0.5),
            {"spend_cap_usd_per_hour": 9, "max_dedicated": 1, "scenario": _FALLBACK},
            "no dedicated price",
        ),
        (
            table(spot=0.1),
            {"spend_cap_usd_per_hour": 9, "scenario": "formula", "formula": "x=1;"},
            "the cap would have no effect",
        ),
        (
            table(spot=0.1),
            {
                "spend_cap_usd_per_hour": 0.2,
                "scenario": "office_hours",
                "office_hours": OfficeHours.model_validate({"nodes": 3}),
            },
            "its maximum is 2",
        ),
    ],
)
def test_cap_that_cannot_hold_is_an_error_with_its_fix(
    prices: PriceTable, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        caps(prices, **values)
    assert caught.value.code == "R-POOL-CAP"
    assert says in str(caught.value)
    assert caught.value.fix
    assert caught.value.exit_code == ExitCode.COST_CAP


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("$TargetDedicatedNodes = 1 +;", "Line 1, Col 28: Unexpected ';'"),
        ("x = 1;\n$TargetDedicatedNodes = maxx(x);", "Line 2, Col 25: unknown function 'maxx'"),
        (
            '$TargetDedicatedNodes = time() > time("2030-01-01") ? nodes : 1;',
            "Line 1, Col 55: unknown name 'nodes'",
        ),
        ("$TargetDedicatedNodes = late;\nlate = 1;", "Line 1, Col 25: unknown name 'late'"),
        ("$TargetDedicatedNodes = $ActiveTask.GetSample(1);", "Col 25: unknown name '$ActiveTask'"),
        ("$TargetDedicatedNodes = $ActiveTasks.GetSamples(1);", "unknown member '.GetSamples'"),
        ("$TargetDedicatedNodes = 1 / sum($RunningTasks.GetSample(1));", "Line 1, Col 27"),
        ('$TargetDedicatedNodes = "two";', "must be a double"),
        ("$targetDedicatedNodes = 1;", "case matters: $TargetDedicatedNodes"),
        ("$NodeDeallocationOption = requeue;", "does not set a node count"),
        ("$TargetDedicatedNodes = 1;" + " " * 9000, "9026 characters"),
        ("x = 1;" * 100 + "$TargetDedicatedNodes = x;", "100"),
        ("", "Line 1, Col 1"),
    ],
)
def test_formula_that_cannot_work_is_refused_with_its_place(text: str, says: str) -> None:
    with pytest.raises(RunnerError) as caught:
        check_formula(text, "pool 'own'")
    assert caught.value.code == "R-POOL-FORMULA"
    assert "pool 'own'" in caught.value.what
    assert says in caught.value.why


def test_window_longer_than_a_day_is_no_error_and_the_rest_of_the_formula_still_is() -> None:
    text = "$TargetDedicatedNodes = max($PendingTasks.GetSample(TimeInterval_Week, 50));"
    check_formula(text, "a pool")
    with pytest.raises(RunnerError, match="invalid autoscale formula"):
        check_formula(text + "$TargetLowPriorityNodes = none;", "a pool")
