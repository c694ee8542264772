"""Whatever a pool has been through, its formula keeps to what its scenario promises.

Thousands of random histories (bursts, lost samples, evictions, capacity that never came), read by
the emulator's evaluator in each of its readings of the language. Seeded: every run tries the same,
a quick one 100 of each promise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from batch_emulator.autoscale.dialect import DEFAULT, DIALECTS, Dialect
from batch_emulator.autoscale.evaluate import Evaluation, Inputs, evaluate
from batch_emulator.autoscale.samples import PERIOD, SampleHistory
from batch_emulator.autoscale.values import Timestamp
from runner.core.pricing.prices import Price, PriceKey, PriceTable
from runner_infra.config.pool import PoolConfig
from runner_infra.planning.autoscale_formula import NodeCaps, formula_text, node_caps

_SIZE = "Standard_NC4as_T4_v3"
_MONDAY = datetime(2026, 11, 23, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Sample:
    """One sample; `there` is false where the service lost it."""

    pending: int
    spot: int
    preempted: int
    dedicated: int
    there: bool


@st.composite
def _stretches(draw: st.DrawFn) -> list[Sample]:
    """Draw minutes with few changes and some lost samples."""
    spot = draw(st.integers(0, 12))
    sample = {
        "pending": draw(st.sampled_from([0, 0, 1, 2, 3, 7, 40, 1000])),
        "spot": spot,
        "preempted": draw(st.integers(0, spot)),
        "dedicated": draw(st.integers(0, 4)),
    }
    lost = draw(st.sampled_from([1, 2, 3, 5, 1000]))  # every n-th
    length = draw(st.integers(1, 35))
    return [Sample(**sample, there=(n + 1) % lost != 0 or lost == 1000) for n in range(length)]


_pasts = st.lists(_stretches(), max_size=5).map(lambda parts: [s for part in parts for s in part])
_dialects = st.sampled_from(sorted(DIALECTS)).map(DIALECTS.__getitem__)
_targets = st.integers(0, 12)


def pool(**values: Any) -> PoolConfig:
    return PoolConfig.model_validate({"id": "t4", "vm_size": _SIZE, **values})


def scaled(
    given_pool: PoolConfig,
    past: list[Sample],
    *,
    caps: NodeCaps | None = None,
    targets: tuple[int, int] = (0, 0),
    dialect: Dialect = DEFAULT,
    now: datetime = _MONDAY,
) -> Evaluation:
    """Evaluate a formula; the newest visible sample is as old as in the service."""
    text = formula_text(given_pool, caps or NodeCaps(given_pool.max_spot, given_pool.max_dedicated))
    assert text is not None
    history = SampleHistory()
    for age, sample in zip(range(len(past) + 1, 1, -1), past, strict=True):
        if sample.there:
            metrics = {
                "$PendingTasks": float(sample.pending),
                "$CurrentLowPriorityNodes": float(sample.spot),
                "$PreemptedNodeCount": float(sample.preempted),
                "$CurrentDedicatedNodes": float(sample.dedicated),
            }
            history.fill(Timestamp.of(now).ticks - age * PERIOD, 1, metrics)
    spot, dedicated = targets
    done = evaluate(text, Inputs(history, now, dedicated, spot, lambda: 0.5, dialect))
    assert done.problem is None, f"{done.problem}\n{text}"
    assert done.option == "taskcompletion"
    return done


EXAMPLES = int(os.environ.get("PROOF_EXAMPLES", "500"))


def newest(past: list[Sample], count: int) -> list[Sample]:
    """Return the visible samples of the last minutes; the last two are not visible yet."""
    return [sample for sample in past[-(count - 1) :] if sample.there]


def promise(*drawn: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that runs a test with 100 examples, or more in the slow suite."""

    def decorate(check: Callable[..., None]) -> Callable[..., None]:
        @pytest.mark.parametrize("examples", [100, pytest.param(EXAMPLES, marks=pytest.mark.slow)])
        def run(examples: int) -> None:
            many = settings(max_examples=examples, deadline=None, derandomize=True, database=None)
            many(given(*drawn)(check))()

        return run

    return decorate


@pytest.mark.slow
@promise(_pasts, st.integers(1, 9), st.integers(1, 5), _targets, _dialects)
def test_pool_scales_to_zero_by_its_samples(
    past: list[Sample], cap: int, slots: int, target: int, dialect: Dialect
) -> None:
    done = scaled(pool(max_spot=cap, slots=slots), past, targets=(target, 0), dialect=dialect)
    there = [sample.pending for sample in past if sample.there]
    pending = there[-1] if there else 0
    seen = [sample.pending for sample in newest(past, 10)]
    lately = pending if len(seen) < 7 else sum(seen) / len(seen)
    warm = min(target, math.ceil(lately / slots))
    assert done.spot == min(cap, max(math.ceil(pending / slots), warm))
    assert done.dedicated == 0


@promise(_pasts, st.integers(1, 9), st.integers(1, 64), st.booleans(), _targets)
def test_pending_tasks_get_nodes_up_to_the_cap(
    past: list[Sample], cap: int, slots: int, dedicated: bool, target: int
) -> None:
    kinds = {"max_spot": 0, "max_dedicated": cap} if dedicated else {"max_spot": cap}
    done = scaled(pool(slots=slots, **kinds), past, targets=(target, target))
    nodes, others = (done.dedicated, done.spot) if dedicated else (done.spot, done.dedicated)
    assert nodes <= cap
    assert others == 0
    there = [sample.pending for sample in past if sample.there]
    if there and there[-1]:
        assert nodes >= 1


@pytest.mark.slow
@promise(_pasts, st.sampled_from([1, 2]), _targets, _dialects)
def test_idle_pool_returns_to_zero_from_any_size(
    past: list[Sample], slots: int, target: int, dialect: Dialect
) -> None:
    fallback = pool(
        scenario="spot_first_with_dedicated_fallback", max_spot=9, max_dedicated=4, slots=slots
    )
    idle = [Sample(0, target, 0, 2, there=True)] * 10
    for each in (pool(slots=slots), fallback):
        done = scaled(each, past + idle, targets=(target, 4), dialect=dialect)
        assert (done.spot, done.dedicated) == (0, 0)


@promise(_pasts, st.integers(1, 9), st.integers(1, 4), st.integers(1, 3), _targets, _dialects)
def test_fallback_uses_dedicated_nodes_only_after_lasting_spot_failure(
    past: list[Sample], spot: int, dedicated: int, slots: int, target: int, dialect: Dialect
) -> None:
    fallback = pool(
        scenario="spot_first_with_dedicated_fallback",
        **{"max_spot": spot, "max_dedicated": dedicated, "slots": slots},
    )
    done = scaled(fallback, past, targets=(target, target), dialect=dialect)
    alone = scaled(pool(max_spot=spot, slots=slots), past, targets=(target, 0), dialect=dialect)
    assert done.spot == alone.spot, "dedicated nodes take nothing away from spot"
    assert done.dedicated <= dedicated
    wait = newest(past, 30)
    if done.dedicated:
        assert len(wait) >= 21, "too little is known"
        assert min(sample.pending for sample in wait) > 0, "nothing has waited all that time"
        wanted = min(spot, *(math.ceil(sample.pending / slots) for sample in wait))
        up = max(sample.spot - sample.preempted for sample in wait)
        assert done.dedicated <= wanted - up
    steady = len(wait) >= 21 and len({sample.spot - sample.preempted for sample in wait}) == 1
    if steady and len({(sample.spot, sample.preempted) for sample in wait}) == 1:
        wanted = min(spot, *(math.ceil(sample.pending / slots) for sample in wait))
        missing = wanted - (wait[0].spot - wait[0].preempted)
        assert done.dedicated == max(0, min(dedicated, missing)), "what spot fails to bring"


_prices = st.decimals("0.05", "9", places=2)


@pytest.mark.slow
@promise(_pasts, st.decimals("0.10", "40", places=2), _prices, _prices, _targets)
@pytest.mark.feature(39)
def test_nodes_never_cost_more_per_hour_than_the_spend_cap(
    past: list[Sample], budget: Any, spot_price: Any, dedicated_price: Any, target: int
) -> None:
    assume(spot_price + dedicated_price <= budget)
    both = pool(
        scenario="spot_first_with_dedicated_fallback",
        **{"max_spot": 50, "max_dedicated": 20, "spend_cap_usd_per_hour": float(budget)},
    )
    rows = {
        PriceKey(_SIZE.lower(), "eastus", spot): Price(float(usd), date(2026, 11, 1), "test")
        for spot, usd in ((True, spot_price), (False, dedicated_price))
    }
    caps = node_caps(both, "eastus", PriceTable(rows))
    done = scaled(both, past, caps=caps, targets=(target, target))
    assert min(caps.spot, caps.dedicated) >= 1
    assert caps.spot * spot_price + caps.dedicated * dedicated_price <= budget
    assert done.spot * spot_price + done.dedicated * dedicated_price <= budget


@pytest.mark.slow
@promise(
    _pasts,
    st.sets(st.integers(0, 6), min_size=1),
    st.integers(0, 24 * 60 - 1),
    st.integers(1, 24 * 60 - 1),
    st.integers(-12, 14),
    st.integers(0, 14 * 24 * 60),
)
def test_office_hours_keep_nodes_only_in_their_hours(
    past: list[Sample], days: set[int], opens: int, length: int, offset: int, minute: int
) -> None:
    names = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
    closes = (opens + length) % (24 * 60)
    hours = {
        "days": [names[day] for day in sorted(days)],
        "start": f"{opens // 60:02}:{opens % 60:02}",
        "end": f"{closes // 60:02}:{closes % 60:02}",
        "utc_offset_hours": offset,
        "nodes": 2,
    }
    now = _MONDAY + timedelta(minutes=minute)
    office = pool(scenario="office_hours", office_hours=hours, max_spot=5)
    local = now + timedelta(hours=offset)
    midnight = local.replace(hour=0, minute=0)
    begun = [midnight + timedelta(days=back, minutes=opens) for back in (-1, 0)]
    is_open = any(
        start.weekday() in days and start <= local < start + timedelta(minutes=length)
        for start in begun
    )
    kept = 2 if is_open else 0
    alone = scaled(pool(max_spot=5), past, now=now)
    assert scaled(office, past, now=now).spot == max(kept, alone.spot)


@promise(st.integers(1, 9), st.integers(2, 8))
def test_instances_of_a_multi_instance_task_each_get_a_node(instances: int, slots: int) -> None:
    past = [Sample(instances, 0, 0, 0, there=True)] * 12
    together = pool(inter_node_communication=True, slots=slots, max_spot=20)
    assert scaled(together, past).spot == instances
