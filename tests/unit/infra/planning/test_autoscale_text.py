"""Scenarios become formulas that keep to their caps; a formula that cannot work is refused."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import pytest

from batch_emulator.autoscale.evaluate import Inputs, evaluate
from batch_emulator.autoscale.parser import MAX_STATEMENTS, parse
from batch_emulator.autoscale.samples import DELAY, SampleHistory
from batch_emulator.autoscale.values import Timestamp
from runner.core.pricing.prices import Price, PriceKey, PriceTable
from runner.protocol.errors import ExitCode, RunnerError
from runner_infra.config.pool import OfficeHours, PoolConfig
from runner_infra.planning.autoscale_formula import (
    NodeCaps,
    formula_text,
    idle_nodes,
    node_caps,
)
from runner_infra.planning.own_formula import check_formula

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
def test_every_scenario_has_a_short_valid_formula(given: PoolConfig) -> None:
    text = formula_text(given, NodeCaps(given.max_spot, given.max_dedicated))
    assert text is not None
    check_formula(text, "a pool")
    assert len(text.encode()) <= 8192
    assert len(parse(text)) <= MAX_STATEMENTS
    assert max(len(line) for line in text.splitlines()) <= 200


def own(text: str, most: NodeCaps) -> str:
    """Return the formula of a pool with a user's formula."""
    found = formula_text(pool(scenario="formula", formula=text), most)
    assert found is not None
    return found


def targets(formula: str, *, dedicated: int = 0, spot: int = 0) -> tuple[int, int]:
    """Return the spot and dedicated nodes that a formula sets for an idle pool of this size."""
    now = datetime(2026, 11, 22, 12, tzinfo=UTC)
    history = SampleHistory.steady(Timestamp.of(now).ticks - DELAY, {"$PendingTasks": 0})
    found = evaluate(formula, Inputs(history, now, dedicated, spot, lambda: 0.5))
    assert found.problem is None
    return found.spot, found.dedicated


def test_pool_of_fixed_size_has_no_formula() -> None:
    assert formula_text(pool(scenario="fixed"), NodeCaps(4, 0)) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$TargetLowPriorityNodes = 50;", (2, 0)),
        ("$TargetLowPriorityNodes = 3; $TargetDedicatedNodes = 50;", (2, 1)),
        ("$TargetLowPriorityNodes = 1;", (1, 0)),
        ("// mine\n$TargetDedicatedNodes = 50", (0, 1)),
        ("$TargetLowPriorityNodes = 50 // a comment at the end;", (2, 0)),
        ("$TargetLowPriorityNodes = 50; // no more", (2, 0)),
        ("$TargetLowPriority = 50;", (2, 0)),
        ("$TargetLowPriority = 50; $TargetDedicated = 9;", (2, 1)),
        ("$TargetLowPriorityNodes = 50; stop();", (2, 0)),
        (
            "$TargetLowPriorityNodes = 50; x = 1 > 0 ? stop() : 0; $TargetDedicatedNodes = 9;",
            (2, 0),
        ),
        ("$TargetLowPriority = 50; x = 1 < 0 ? stop() : 0; $TargetLowPriority = 40;", (2, 0)),
        ("$TargetLowPriorityNodes = 1 + stop(); $TargetLowPriorityNodes = 50;", (0, 0)),
    ],
)
def test_own_formula_sets_no_more_nodes_than_the_caps(text: str, expected: tuple[int, int]) -> None:
    assert targets(own(text, NodeCaps(2, 1))) == expected


def test_own_formula_caps_a_target_that_it_does_not_set() -> None:
    capped = own("$TargetLowPriorityNodes = 1;", NodeCaps(2, 1))
    assert targets(capped, dedicated=7) == (1, 1)


def test_own_formula_keeps_its_text_before_the_caps() -> None:
    text = "// mine\n$TargetDedicatedNodes = 1;\n"
    assert own(text, NodeCaps(0, 3)).startswith(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("$TargetDedicatedNodes = 1;" + " " * 8100, "with the 2 statements that cap"),
        ("x = 1;" * 98 + "$TargetDedicatedNodes = x;", "More than 100 statements, with the 2"),
        ("x = 1;" * 95 + "$TargetDedicatedNodes = x; stop(); y = 1;", "with the 4 statements"),
        ("$TargetLowPriorityNodes = 1; $targetDedicatedNodes = 9;", "$TargetDedicatedNodes"),
    ],
)
def test_own_formula_too_long_for_the_caps_is_refused(text: str, says: str) -> None:
    with pytest.raises(RunnerError) as caught:
        own(text, NodeCaps(2, 1))
    assert caught.value.code == "R-POOL-FORMULA"
    assert says in caught.value.why


def test_spend_cap_limits_an_own_formula_too() -> None:
    given = {"scenario": "formula", "formula": "$TargetLowPriorityNodes = 50;", "max_spot": 9}
    bought = caps(table(spot=0.1), **given, spend_cap_usd_per_hour=0.3)
    assert targets(own("$TargetLowPriorityNodes = 50;", bought)) == (3, 0)


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        (pool(), NodeCaps(0, 0)),
        (pool(scenario=_FALLBACK, max_dedicated=2), NodeCaps(0, 0)),
        (pool(scenario="fixed", max_spot=2, max_dedicated=1), NodeCaps(2, 1)),
        (office(nodes=3), NodeCaps(3, 0)),
        (pool(scenario="formula", formula="$TargetLowPriorityNodes = 1;"), NodeCaps(1, 0)),
        (
            pool(
                scenario="formula",
                max_dedicated=5,
                formula="$TargetDedicatedNodes = time().weekday == 3 ? 9 : 0;",
            ),
            NodeCaps(0, 5),
        ),
    ],
)
def test_idle_nodes_are_those_kept_without_tasks(given: PoolConfig, idle: NodeCaps) -> None:
    most = NodeCaps(given.max_spot, given.max_dedicated)
    assert idle_nodes(given, most, formula_text(given, most)) == idle


def test_spend_cap_lowers_the_maximum_number_of_nodes() -> None:
    assert caps(table(spot=0.1), spend_cap_usd_per_hour=0.3, max_spot=9) == NodeCaps(3, 0)
    assert caps(table(spot=0.1), spend_cap_usd_per_hour=0.39, max_spot=9) == NodeCaps(3, 0)
    assert caps(table(spot=0.1), spend_cap_usd_per_hour=50, max_spot=9) == NodeCaps(9, 0)


def test_spend_cap_bounds_an_unknown_spot_price_by_the_dedicated_one() -> None:
    assert caps(table(dedicated=0.5), spend_cap_usd_per_hour=1.2, max_spot=9) == NodeCaps(2, 0)


def test_no_price_is_needed_without_a_spend_cap() -> None:
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
        (table(), {"spend_cap_usd_per_hour": 9}, "no spot price"),
        (
            table(spot=0.5),
            {"spend_cap_usd_per_hour": 9, "max_dedicated": 1, "scenario": _FALLBACK},
            "no dedicated price",
        ),
        (
            table(spot=0.1),
            {
                "spend_cap_usd_per_hour": 0.2,
                "scenario": "office_hours",
                "office_hours": OfficeHours.model_validate({"nodes": 3}),
            },
            "the maximum of the pool is 2",
        ),
    ],
)
def test_impossible_cap_is_an_error_with_a_fix(
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
        (
            "$TargetDedicated = 1; $TargetDedicatedNodes = 2;",
            "$TargetDedicated and $TargetDedicatedNodes, two names of one target",
        ),
        (
            "x = 1; $TargetLowPriorityNodes = x; $TargetLowPriority = x;",
            "use $TargetLowPriorityNodes",
        ),
        ("$TargetDedicatedNodes = 1;" + " " * 9000, "9026 characters"),
        ("x = 1;" * 100 + "$TargetDedicatedNodes = x;", "100"),
        ("", "Line 1, Col 1"),
    ],
)
def test_invalid_formula_is_refused_with_its_position(text: str, says: str) -> None:
    with pytest.raises(RunnerError) as caught:
        check_formula(text, "pool 'own'")
    assert caught.value.code == "R-POOL-FORMULA"
    assert "pool 'own'" in caught.value.what
    assert says in caught.value.why


def test_window_longer_than_a_day_hides_no_other_error() -> None:
    text = "$TargetDedicatedNodes = max($PendingTasks.GetSample(TimeInterval_Week, 50));"
    check_formula(text, "a pool")
    with pytest.raises(RunnerError, match="invalid autoscale formula"):
        check_formula(text + "$TargetLowPriorityNodes = none;", "a pool")
