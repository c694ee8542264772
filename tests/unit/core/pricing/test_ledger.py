"""The ledger: parts of node time sum exactly, and unrecorded time is a gap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.pricing.ledger import (
    PARTS,
    Gap,
    Ledger,
    NodeCosts,
    RunUsage,
    compute_ledger,
)
from runner.protocol.run_spec import PoolStay
from runner.protocol.usage import AttemptUsage

HOUR = 3_600_000
SIZE = "Standard_NC4as_T4_v3"
RATES = {True: 100_000, False: 526_000}


def rate(vm_size: str, spot: bool) -> int | None:
    return RATES[spot] if vm_size == SIZE else None


def attempt(number: int, start: int, end: int | None, **more: Any) -> AttemptUsage:
    why = "succeeded" if end is not None else ""
    fields: dict[str, Any] = {"node": "tvm-1", "dedicated": False, "why": why, **more}
    return AttemptUsage(number, 0, started=start, command=start, ended=end, **fields)


def run(name: str, *attempts: AttemptUsage, status: str = "succeeded", **more: Any) -> RunUsage:
    return RunUsage(name, "pool", more.pop("vm_size", SIZE), True, status, attempts, **more)


def keep(*runs: RunUsage, now: int = 100 * HOUR, **more: Any) -> Ledger:
    return compute_ledger(runs, rate, now_ms=now, **more)


def parts(spent: NodeCosts) -> dict[str, int]:
    return {part: ms for part, ms in spent.ms.items() if ms}


def test_node_time_is_divided_by_use() -> None:
    first = attempt(
        1, HOUR, 3 * HOUR, why="terminated", created=0, ready=HOUR // 2, kept=2 * HOUR,
        node_ends=3 * HOUR + 60_000,
    )  # fmt: skip
    second = replace(attempt(2, 5 * HOUR, 8 * HOUR, node="tvm-2"), command=6 * HOUR)
    ledger = keep(run("a", first, second))
    assert parts(ledger.runs["a"]) == {
        "boot": HOUR // 2,
        "idle": HOUR // 2,
        "useful": 3 * HOUR,
        "lost": HOUR,
        "evicted": 60_000,
        "setup": HOUR,
    }
    assert ledger.runs["a"].total_micro == sum(life.micro or 0 for life in ledger.lives)
    assert {(gap.cause, gap.node) for gap in ledger.gaps} == {("boot", "tvm-2"), ("end", "tvm-2")}


def test_moved_run_is_charged_by_the_pool_of_each_attempt() -> None:
    before = attempt(1, 0, 2 * HOUR, why="terminated", kept=2 * HOUR, created=0, pool="Small")
    after = attempt(2, 3 * HOUR, 4 * HOUR, created=3 * HOUR, pool="pool")
    moved = run("a", before, after, moved_from=(PoolStay("small", "unknown", True),))
    ledger = keep(moved)
    assert {pool: parts(spent) for (_, pool), spent in ledger.pools.items()} == {
        "small": {"useful": 2 * HOUR},
        "pool": {"useful": HOUR},
    }
    assert ledger.runs["a"].unpriced_ms == 2 * HOUR  # the size has no price
    assert [(life.pool, life.vm_size) for life in ledger.lives] == [
        ("small", "unknown"),
        ("pool", SIZE),
    ]


def test_shared_time_is_divided_and_idle_time_belongs_to_the_last_run() -> None:
    one = run("a", attempt(1, HOUR, 3 * HOUR, created=0))
    other = run("b", attempt(1, 2 * HOUR, 6 * HOUR, created=0))
    late = run("c", attempt(1, 8 * HOUR, 9 * HOUR, created=0))
    ledger = keep(one, other, late, now=10 * HOUR, existing_nodes={("pool", "tvm-1"): True})
    assert parts(ledger.runs["a"]) == {"boot": HOUR, "useful": HOUR + HOUR // 2}
    assert parts(ledger.runs["b"]) == {"useful": 3 * HOUR + HOUR // 2, "idle": 2 * HOUR}
    assert parts(ledger.runs["c"]) == {"useful": HOUR, "idle": HOUR}
    assert sum(spent.total_micro or 0 for spent in ledger.runs.values()) == 10 * RATES[True]
    assert not ledger.gaps


def test_costs_of_a_run_do_not_change_when_the_node_is_used_again() -> None:
    early = run("a", attempt(1, HOUR, 2 * HOUR, created=0))
    before = keep(early).runs["a"]
    later = run("b", attempt(1, 2 * HOUR, 9 * HOUR, created=0))
    assert keep(early, later).runs["a"] == before


def test_returned_spot_node_is_another_node() -> None:
    one = run("a", attempt(1, HOUR, 2 * HOUR, created=0))
    two = run("b", attempt(1, 12 * HOUR, 13 * HOUR, created=11 * HOUR))
    ledger = keep(one, two)
    assert [(life.started_ms, life.ended_ms) for life in ledger.lives] == [
        (0, 2 * HOUR), (11 * HOUR, 13 * HOUR),
    ]  # fmt: skip


def test_time_after_the_last_event_of_a_lost_attempt_is_a_gap() -> None:
    lost = attempt(1, 0, None, created=0, seen=HOUR, saved=HOUR // 2, kept=HOUR // 2)
    ledger = keep(run("a", lost, attempt(2, 3 * HOUR, 4 * HOUR, node="tvm-2", created=3 * HOUR)))
    assert parts(ledger.runs["a"]) == {"useful": HOUR // 2 + HOUR, "lost": HOUR // 2}
    assert Gap("lost", "a", "pool", "tvm-1", HOUR, 3 * HOUR) in ledger.gaps


@pytest.mark.parametrize(
    ("changed", "lost", "bound"),
    [
        ({"seen": 2 * HOUR}, 3 * HOUR, HOUR),  # no checkpoint
        ({"command": None, "seen": HOUR // 2}, 3 * HOUR, 5 * HOUR // 2),  # during its preparation
        ({"saved": HOUR, "kept": HOUR, "seen": HOUR}, 2 * HOUR, 2 * HOUR),
        ({"why": "lost", "ended": 2 * HOUR, "ends_by": None}, 2 * HOUR, 0),  # measured
        ({"ended": 2 * HOUR, "ends_by": None}, 2 * HOUR, 0),  # by the plan of a rehearsal
    ],
)
def test_lost_attempt_counts_until_its_latest_end(
    changed: dict[str, Any], lost: int, bound: int
) -> None:
    first = replace(attempt(1, 0, None, created=0), **{"ends_by": 3 * HOUR, **changed})
    second = attempt(2, 5 * HOUR, 6 * HOUR, node="tvm-2", created=5 * HOUR)
    for status, running in (("succeeded", False), ("failed", False), ("", True)):
        ledger = keep(run("a", first, second, status=status, is_running=running))
        spent = ledger.runs["a"]
        assert (spent.ms["lost"], spent.bound_ms["lost"]) == (lost, bound)
        assert spent.is_bound == (bound > 0)
        assert spent.break_even is not None
        assert spent.break_even.repeated == lost / spent.spot_ms > 0
        assert "lost" not in {gap.cause for gap in ledger.gaps}
        assert_sums(ledger)


def test_lost_attempt_without_another_one_counts_until_its_latest_end() -> None:
    waiting = run("a", replace(attempt(1, 0, None, created=0), ends_by=HOUR), status="")
    assert parts(keep(waiting).runs["a"]) == {"lost": HOUR}
    cancelled = keep(replace(waiting, status="cancelled")).runs["a"]
    assert (parts(cancelled), cancelled.bound_ms["failed"]) == ({"failed": HOUR}, HOUR)


def test_attempts_that_share_a_node_share_the_bound_of_a_lost_one() -> None:
    lost = run("a", replace(attempt(1, 0, None, created=0, seen=HOUR), ends_by=2 * HOUR), status="")
    ledger = keep(lost, run("b", attempt(1, 0, 2 * HOUR, created=0)))
    assert (ledger.runs["a"].ms["lost"], ledger.runs["a"].bound_ms["lost"]) == (HOUR, HOUR // 2)
    assert not ledger.runs["b"].is_bound


def test_unknown_price_makes_the_cost_unknown_and_not_zero() -> None:
    known = run("a", attempt(1, 0, HOUR, created=0))
    unknown = run("b", attempt(1, 0, HOUR, node="tvm-2", created=0), vm_size="Standard_New")
    ledger = keep(known, unknown)
    total = NodeCosts()
    for spent in ledger.runs.values():
        total.add(spent)
    assert (total.total_micro, total.unpriced_ms) == (None, HOUR)
    assert sum(total.micro.values()) == RATES[True]
    assert total.break_even is None


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"ended": -HOUR}, "clock"),
        ({"command": -HOUR}, "clock"),
        ({"seen": 9 * HOUR}, "clock"),
        ({"started": 102 * HOUR, "command": None, "ended": 103 * HOUR}, "clock"),
        ({"started": None}, "unreadable"),
        ({"node": ""}, "unreadable"),
    ],
)
def test_attempt_with_contradictory_times_is_a_gap(changed: dict[str, Any], cause: str) -> None:
    ledger = keep(run("a", replace(attempt(1, 0, HOUR, created=0), **changed)))
    assert [gap.cause for gap in ledger.gaps] == [cause]
    assert not ledger.runs


def test_unreadable_records_are_a_gap() -> None:
    ledger = keep(replace(run("a"), attempts=None))
    assert [(gap.cause, gap.run_id) for gap in ledger.gaps] == [("unreadable", "a")]


def test_node_created_after_its_run_has_no_boot_time() -> None:
    ledger = keep(run("a", attempt(1, 0, HOUR, created=2 * HOUR)))
    assert [gap.cause for gap in ledger.gaps] == ["clock", "end"]
    assert parts(ledger.runs["a"]) == {"useful": HOUR}


def test_boot_time_of_a_shared_machine_is_not_that_of_a_node() -> None:
    used = run("a", attempt(1, HOUR, 2 * HOUR, booted=0, created=60_000))
    assert keep(used).lives[0].started_ms == 0
    assert keep(used, share_kernel=True).lives[0].started_ms == 60_000
    long_before = run("a", attempt(1, 9 * HOUR, 10 * HOUR, booted=0, created=8 * HOUR))
    assert keep(long_before).lives[0].started_ms == 8 * HOUR


def test_failed_and_cancelled_runs_are_not_useful() -> None:
    for status in ("failed", "cancelled"):
        ledger = keep(run("a", attempt(1, 0, HOUR, created=0, why=status), status=status))
        assert parts(ledger.runs["a"]) == {"failed": HOUR}
    repeated = attempt(1, 0, HOUR, created=0, why="failed")
    ledger = keep(run("a", repeated, attempt(2, HOUR, 3 * HOUR, created=0)))
    assert parts(ledger.runs["a"]) == {"failed": HOUR, "useful": 2 * HOUR}


def test_a_running_attempt_lasts_until_now() -> None:
    going = run("a", attempt(1, 0, None, created=0, seen=5), status="", is_running=True)
    ledger = keep(going, now=2 * HOUR)
    assert (parts(ledger.runs["a"]), list(ledger.gaps)) == ({"useful": 2 * HOUR}, [])


def test_spot_breaks_even_with_dedicated_nodes_at_the_ratio_of_prices() -> None:
    lost = attempt(1, 0, HOUR, created=0, why="terminated", node_ends=HOUR)
    ledger = keep(run("a", lost, attempt(2, HOUR, 4 * HOUR, created=0)))
    even = ledger.runs["a"].break_even
    assert even is not None
    assert even.spot_micro == 4 * RATES[True]
    assert even.dedicated_micro == 3 * RATES[False]
    assert even.repeated == 0.25
    assert even.limit == pytest.approx(1 - RATES[True] / RATES[False])


_TIMES = st.integers(0, 50 * HOUR)
_MAYBE = st.none() | _TIMES


@st.composite
def _attempts(draw: st.DrawFn) -> AttemptUsage:
    ended = draw(_MAYBE)
    return AttemptUsage(
        1,
        draw(st.integers(0, 1)),
        draw(st.sampled_from(["tvm-1", "tvm-2", "tvm-3", ""])),
        dedicated=draw(st.sampled_from([True, False, None])),
        booted=draw(_MAYBE),
        created=draw(_MAYBE),
        ready=draw(_MAYBE),
        started=draw(_MAYBE),
        command=draw(_MAYBE),
        ended=ended,
        seen=draw(_MAYBE),
        why=draw(st.sampled_from(["succeeded", "failed", "terminated", "lost", ""])),
        node_ends=draw(_MAYBE),
        kept=draw(_MAYBE),
        saved=draw(_MAYBE),
        ends_by=None if ended is not None else draw(_MAYBE),
    )


@st.composite
def _runs(draw: st.DrawFn) -> list[RunUsage]:
    """Return runs that overlap on nodes, with inconsistent clocks."""
    runs: list[RunUsage] = []
    for number in range(draw(st.integers(0, 6))):
        attempts = draw(st.lists(_attempts(), max_size=4))
        runs.append(
            RunUsage(
                f"r{number}",
                "pool",
                draw(st.sampled_from([SIZE, "Standard_New"])),
                draw(st.booleans()),
                draw(st.sampled_from(["succeeded", "failed", "cancelled", ""])),
                tuple(replace(each, attempt=n) for n, each in enumerate(attempts, 1)),
                is_running=draw(st.booleans()),
            )
        )
    return runs


def assert_sums(ledger: Ledger) -> None:
    spent = list(ledger.runs.values())
    assert all(ms >= 0 for each in spent for ms in each.ms.values())
    assert all(0 <= each.bound_ms[part] <= each.ms[part] for each in spent for part in PARTS)
    assert all(micro >= 0 for each in spent for micro in each.micro.values())
    assert sum(each.total_ms for each in spent) == sum(
        life.ended_ms - life.started_ms for life in ledger.lives
    )
    assert sum(sum(each.micro.values()) for each in spent) == sum(
        life.micro or 0 for life in ledger.lives
    )
    unpriced = sum(
        life.ended_ms - life.started_ms for life in ledger.lives if life.micro_per_hour is None
    )
    assert sum(each.unpriced_ms for each in spent) == unpriced


@given(_runs(), st.booleans(), st.integers(0, 1000), st.booleans())
def test_parts_sum_exactly_to_node_time_times_price(
    runs: Sequence[RunUsage], share_kernel: bool, price: int, exists: bool
) -> None:
    present = {("pool", f"tvm-{n}"): exists for n in (1, 2, 3)}
    ledger = compute_ledger(
        runs,
        lambda size, spot: price if size == SIZE else None,
        now_ms=60 * HOUR,
        existing_nodes=present,
        share_kernel=share_kernel,
    )
    assert_sums(ledger)


@given(
    st.lists(
        st.tuples(st.integers(0, 40 * HOUR), st.integers(1, 9 * HOUR)), min_size=1, max_size=8
    ),
    st.integers(1, 10**9),
)
def test_runs_on_a_shared_node_pay_for_all_of_it(spans: list[tuple[int, int]], price: int) -> None:
    runs = [
        run(f"r{n}", attempt(1, start, start + took, created=0))
        for n, (start, took) in enumerate(spans)
    ]
    ledger = compute_ledger(runs, lambda *_: price, now_ms=60 * HOUR)
    assert_sums(ledger)
    (life,) = ledger.lives
    end = max(start + took for start, took in spans)
    assert (life.started_ms, life.ended_ms) == (0, end)
    assert life.micro == (2 * end * price + HOUR) // (2 * HOUR)
    assert {gap.cause for gap in ledger.gaps} == {"end"}


@given(_runs(), st.integers(-100 * HOUR, 100 * HOUR))
def test_constant_clock_offset_changes_no_cost(runs: Sequence[RunUsage], skew: int) -> None:
    """Each node is measured by its own clock."""
    times = ("booted", "created", "ready", "started", "command", "ended", "seen", "node_ends",
             "kept", "saved", "ends_by")  # fmt: skip

    def moved(each: AttemptUsage) -> AttemptUsage:
        found = {name: getattr(each, name) for name in times}
        return replace(each, **{n: None if v is None else v + skew for n, v in found.items()})

    shifted = [
        replace(each, attempts=tuple(map(moved, each.attempts or ())), is_running=False)
        for each in runs
    ]
    still = [replace(each, is_running=False) for each in runs]
    far = 400 * HOUR
    assert keep(*shifted, now=far).runs == keep(*still, now=far).runs


def test_sums_have_a_field_for_every_part() -> None:
    spent = NodeCosts()
    assert tuple(spent.ms) == tuple(spent.micro) == PARTS
    assert spent.goodput is None


@pytest.mark.parametrize(
    ("more", "now", "failed", "bound"),
    [
        ({"held": 3 * HOUR, "held_by": 5 * HOUR}, 100 * HOUR, 3 * HOUR, 0),
        ({"held_by": 5 * HOUR}, 4 * HOUR, 4 * HOUR, 0),
        ({"held_by": 5 * HOUR}, 100 * HOUR, 5 * HOUR, 3 * HOUR),
    ],
    ids=["released", "still kept", "end not on record"],
)
def test_time_of_a_kept_node_belongs_to_the_run_that_failed(
    more: dict[str, int], now: int, failed: int, bound: int
) -> None:
    kept = run("a", attempt(1, 0, 2 * HOUR, why="failed", created=0, **more), status="failed")
    spent = keep(kept, now=now).runs["a"]
    assert parts(spent) == {"failed": failed}
    assert spent.bound_ms["failed"] == bound
    assert kept.last_end(now) == failed
