"""Costs before a submission, and a cap that holds whatever the service does."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from runner.contract import PoolOutput
from runner.core.pricing.cost import (
    BOOT_S,
    LIMIT_DELAY_S,
    SHORTEST_JOB_S,
    CostCap,
    SubmissionCost,
    Work,
    expected_seconds,
    join_trials,
    plan_cost,
    plan_schedule_cost,
    rate_micros,
    to_micros,
)
from runner.core.pricing.kept_node import KeptNode
from runner.core.pricing.prices import Price, PriceKey, PriceTable
from runner.core.units import format_duration
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.host import format_usd

TODAY = date(2026, 11, 23)
T4 = "Standard_NC4as_T4_v3"
POOL = PoolOutput("t4", T4, 1, 4, True, 4, "spot", False, 1, release_minutes=20)
MANY_CASES = int(os.environ.get("PROOF_COST_CASES", "20000"))
HOUR = Work(limit_s=3600, expected_s=1800)


def table(
    spot: float | None = 0.2, dedicated: float | None = 0.6, as_of: date = TODAY
) -> PriceTable:
    known = {True: spot, False: dedicated}
    return PriceTable(
        {
            PriceKey(T4.lower(), "westeurope", kind): Price(usd, as_of, "test")
            for kind, usd in known.items()
            if usd is not None
        }
    )


def cost(
    *work: Work, cap: float | None = None, pool: PoolOutput = POOL, prices: PriceTable | None = None
) -> SubmissionCost:
    return plan_cost(
        pool,
        "westeurope",
        work or (HOUR,),
        table() if prices is None else prices,
        cap_micros=None if cap is None else to_micros(cap),
        today=TODAY,
    )


def the_cap(*work: Work, cap: float = 5, pool: PoolOutput = POOL) -> CostCap:
    found = cost(*work, cap=cap, pool=pool).cap
    assert found is not None
    return found


def refused(**options: object) -> RunnerError:
    with pytest.raises(RunnerError) as caught:
        cost(**{"cap": 5, **options})  # type: ignore[arg-type]
    assert caught.value.exit_code is ExitCode.COST_CAP
    return caught.value


def test_expected_costs_include_boot_and_release() -> None:
    found = cost()
    # 30 minutes of work, 10 of boot, 20 until the node is gone: one hour.
    assert (found.spot.expected_micros, found.dedicated.expected_micros) == (200_000, 600_000)


def test_worst_case_counts_retries_and_unlimited_evictions() -> None:
    found = cost(replace(HOUR, attempts=3))
    assert found.dedicated.worst_micros == 600_000 * 3 + 300_000
    assert found.spot.worst_micros is None


def test_unknown_price_is_unknown_and_not_zero() -> None:
    found = cost(prices=table(spot=None))
    assert (found.spot.price, found.spot.expected_micros) == (None, None)
    assert found.dedicated.expected_micros == 600_000
    assert cost(Work()).dedicated.worst_micros is None


@pytest.mark.feature(53)
def test_cap_becomes_the_time_limit_of_the_job() -> None:
    cap = the_cap(cap=5)
    # 5 USD pay for 30,000 s of a dedicated node, the most that a spot node costs.
    assert cap.job_s == 30_000 - LIMIT_DELAY_S - 20 * 60
    assert cap.script_s < cap.job_s
    assert cap.bound_micros == 5_000_000


def test_nodes_are_those_of_the_tasks_and_at_most_those_of_the_pool() -> None:
    assert the_cap(HOUR, HOUR).nodes == 2
    assert the_cap(*[HOUR] * 9).nodes == 4
    assert the_cap(replace(HOUR, nodes=3)).nodes == 3
    assert the_cap(HOUR, pool=replace(POOL, capacity="spot-then-dedicated")).nodes == 2
    first, other = replace(HOUR, name="a"), replace(HOUR, name="b")
    assert the_cap(first, replace(other, after=("a",))).nodes == 2, "one works, one still leaves"
    assert the_cap(first, replace(HOUR, name="c"), replace(other, after=("a",))).nodes == 3


def test_two_tasks_in_a_row_on_a_pool_of_two_are_two_nodes() -> None:
    row = [replace(HOUR, name=f"t{n}", after=(f"t{n - 1}",) if n else ()) for n in range(2)]
    assert cost(*row, pool=replace(POOL, max_nodes=2)).nodes == 2
    fork = [*row, replace(HOUR, name="t2", after=("t0",))]
    assert cost(*fork, pool=replace(POOL, max_nodes=9)).nodes == 4, "two at once, two waited"


def test_limit_is_shorter_for_more_nodes() -> None:
    one, two = the_cap(HOUR), the_cap(HOUR, HOUR)
    assert one.job_s + LIMIT_DELAY_S + 1200 == 2 * (two.job_s + LIMIT_DELAY_S + 1200)


def test_cap_with_an_unknown_price_is_refused() -> None:
    err = refused(prices=table(dedicated=None))
    assert err.code == "R-COST-UNKNOWN"
    assert "runner skus --refresh --region westeurope" in err.fix
    assert refused(prices=PriceTable()).code == "R-COST-UNKNOWN"


def test_cap_of_a_pool_that_may_keep_its_nodes_is_refused() -> None:
    assert refused(pool=replace(POOL, release_minutes=None)).code == "R-COST-POOL"


def test_too_low_cap_names_an_accepted_one() -> None:
    err = refused(cap=0.1)
    assert err.code == "R-COST-CAP"
    least = float(err.fix.removeprefix("--max-cost "))
    assert the_cap(cap=least).job_s >= SHORTEST_JOB_S
    assert refused(cap=least - 0.02).code == "R-COST-CAP"


@pytest.mark.parametrize("capacity", ["spot", "dedicated", "mixed", "spot-then-dedicated"])
@pytest.mark.parametrize("work", [(HOUR,), (Work(),), (HOUR, HOUR), (HOUR, Work())])
@pytest.mark.parametrize("prices", [table(), table(spot=0.9), table(spot=None)])
def test_lowest_cap_is_accepted_and_a_lower_one_refused(
    capacity: str, work: tuple[Work, ...], prices: PriceTable
) -> None:
    pool = replace(POOL, capacity=capacity)
    least = cost(*work, pool=pool, prices=prices).least_cap_micros
    assert least is not None
    assert cost(*work, cap=least / 1e6, pool=pool, prices=prices).cap is not None
    with pytest.raises(RunnerError, match="too low for pool"):
        cost(*work, cap=least / 1e6 - 0.01, pool=pool, prices=prices)


def test_lowest_cap_is_unknown_where_no_cap_is_accepted() -> None:
    assert cost(pool=replace(POOL, release_minutes=None)).least_cap_micros is None
    assert cost(prices=table(dedicated=None)).least_cap_micros is None


def test_cap_that_ends_a_run_early_or_has_old_prices_warns() -> None:
    assert cost(cap=5).warnings == ()
    [early] = cost(replace(HOUR, limit_s=4 * 86400, expected_s=None), cap=5).warnings
    assert "before the time limit of 4 d" in early
    assert cost(replace(HOUR, limit_s=4 * 86400), cap=5).warnings == (), "it needs half an hour"
    [short] = cost(replace(HOUR, limit_s=5 * 86400, expected_s=48 * 3600), cap=5).warnings
    assert "by the `estimate` it needs 2 d: --max-cost 9.74 pays for it" in short
    [less] = cost(replace(HOUR, limit_s=5 * 86400, expected_s=48 * 3600), cap=9.73).warnings
    assert "--max-cost 9.74" in less
    enough = cost(replace(HOUR, limit_s=5 * 86400, expected_s=48 * 3600), cap=9.74)
    assert enough.warnings == ()


A100 = PoolOutput("a100", T4, 1, 24, True, 4, "spot", False, 1, release_minutes=20)


@pytest.mark.feature(53)
def test_cap_pays_for_what_a_run_on_spot_nodes_needs() -> None:
    """`estimate: 3h, timeout: 5h, max_cost: 12` at 0.88 USD (dedicated 4.775) needs 3.09 USD."""
    run = Work(limit_s=5 * 3600, expected_s=3 * 3600)
    prices = table(0.88242, 4.775)
    found = cost(run, cap=12, pool=A100, prices=prices)
    assert found.spot.expected_micros == 3_088_470
    assert found.warnings == ()
    assert found.cap is not None
    assert found.cap.script_s == 5 * 3600
    assert found.cap.rate_limit_micros is not None
    # 12 USD for 5 h 15 min, the 5 minutes of the service and 20 until the node is gone.
    assert format_usd(found.cap.rate_limit_micros) == "2.12 USD"
    assert found.kinds == {"spot"}
    fallback = cost(run, cap=12, pool=replace(A100, capacity="spot-then-dedicated"), prices=prices)
    assert fallback.cap is not None
    assert fallback.cap.rate_limit_micros is None, "dedicated nodes cost what they cost"
    assert "--max-cost" in fallback.warnings[0]


@pytest.mark.parametrize(
    ("work", "hours"),
    [
        ([(3, "")] * 2, 3),
        ([(3, "")] * 3, 6),
        ([(3, "")] * 5, 9),
        ([(1, ""), (1, ""), (4, "")], 5),
        ([(1, "a"), (1, "b", "a"), (2, "c")], 2),
        ([(1, "a"), (2, "b", "a"), (3, "c", "a", "b")], 6),
        ([(1, "a"), (1, "b"), (1, "c"), (1, "d", "a", "b", "c")], 3),
    ],
)
def test_warning_names_a_cap_that_pays_for_the_last_task(
    work: list[tuple[Any, ...]], hours: int
) -> None:
    """On two nodes, three trials of three hours need six hours, not four and a half."""
    pool = replace(A100, max_nodes=2)
    tasks = [
        Work(limit_s=10 * 3600, expected_s=time_h * 3600, name=name, after=tuple(after))
        for time_h, name, *after in work
    ]

    def warned(cap: float) -> str:
        return " ".join(cost(*tasks, cap=cap, pool=pool).warnings)

    needed = format_duration(hours * 3600 + BOOT_S + 300)
    early = warned(1)
    assert f"it needs {needed}: --max-cost " in early
    enough = float(early.split("--max-cost ")[1].split()[0])
    assert warned(enough) == ""
    assert warned(enough - 0.02) != ""


def test_needed_time_of_many_tasks_is_found_at_once() -> None:
    trials = [replace(HOUR, name=f"t{n}", limit_s=60, expected_s=30) for n in range(10_000)]
    merge = replace(HOUR, name="merge", after=tuple(each.name for each in trials))
    assert cost(*trials, merge, cap=900_000, pool=A100).warnings == ()


@pytest.mark.parametrize(
    ("max_parallel", "hours"), [(None, 2), (9, 2), (4, 2), (3, 3), (2, 4), (1, 8)]
)
def test_tasks_that_may_not_run_at_once_need_longer(max_parallel: int | None, hours: int) -> None:
    tasks = [Work(limit_s=3600, expected_s=3600)] * 8
    cap = plan_cost(
        A100, "westeurope", tasks, table(), cap_micros=None, today=TODAY, left_micros=to_micros(99),
        max_parallel=max_parallel,
    ).cap  # fmt: skip
    assert cap is not None
    assert cap.job_s >= BOOT_S + hours * 3600 + 300
    assert cap.job_s < BOOT_S + (hours + 1) * 3600
    [warning] = plan_cost(
        A100, "westeurope", tasks, table(), cap_micros=to_micros(1), today=TODAY,
        max_parallel=max_parallel,
    ).warnings  # fmt: skip
    assert f"it needs {format_duration(BOOT_S + hours * 3600 + 300)}:" in warning


def test_trials_of_one_task_run_one_after_another() -> None:
    trials = [replace(HOUR, name=name, cap_micros=1) for name in "abcde"]
    merge = replace(HOUR, name="merge", after=tuple("abcde"), cap_micros=None)
    tasks = {"a": "1", "b": "1", "c": "2", "d": "2", "e": "3", "merge": "m"}
    joined = join_trials([*trials, merge], tasks)
    assert [(each.name, each.limit_s, each.expected_s, each.cap_micros) for each in joined] == [
        ("1", 7200, 3600, 2), ("2", 7200, 3600, 2), ("3", 3600, 1800, 1), ("m", 3600, 1800, None),
    ]  # fmt: skip
    assert joined[-1].after == ("1", "2", "3")
    needed = format_duration(BOOT_S + 3600 + 1800 + 300)
    assert f"it needs {needed}:" in cost(*joined, cap=1, pool=A100).warnings[0]
    unknown = join_trials([replace(HOUR, name="a"), Work(name="b")], tasks)
    assert [(each.limit_s, each.expected_s) for each in unknown] == [(None, None)]


def test_cap_that_holds_at_every_price_stays_as_long_as_it_pays() -> None:
    found = cost(replace(HOUR, limit_s=600), cap=5)
    assert found.cap is not None
    assert found.cap.job_s == 30_000 - LIMIT_DELAY_S - 20 * 60
    assert found.cap.rate_limit_micros is None
    [old] = cost(cap=5, prices=table(as_of=date(2024, 8, 27))).warnings
    assert "2024-08-27" in old


def test_runs_below_a_budget_get_what_they_need_as_cap() -> None:
    def capped(left: float, **work: int | None) -> CostCap:
        run = replace(HOUR, limit_s=4 * 3600, **work)
        found = plan_cost(
            POOL, "westeurope", (run,), table(), cap_micros=None, today=TODAY,
            left_micros=to_micros(left),
        )  # fmt: skip
        assert found.cap is not None
        return found.cap

    # 4 h, boot and export, the 5 minutes of the service and 20 until the node is gone, at 0.20 USD.
    assert capped(50).cap_micros == 933_334
    assert capped(50).script_s == 4 * 3600
    assert capped(0.5).cap_micros == 500_000, "enough for the expected half hour"
    assert capped(0.2).cap_micros == 933_334, "too little: the budget refuses it"
    with pytest.raises(RunnerError) as caught:
        plan_cost(
            POOL, "westeurope", (Work(),), table(), cap_micros=None, today=TODAY, left_micros=9
        )
    assert (caught.value.code, caught.value.exit_code) == ("R-COST-NEED", ExitCode.COST_CAP)


def test_schedule_costs_its_runs_and_the_starts_without_a_run() -> None:
    priced = cost(replace(HOUR, limit_s=3600), cap=1)
    month = plan_schedule_cost(priced, 21.7, 8.7)
    assert month.run.expected_micros == 200_000
    assert month.skip_micros == 100_000, "10 minutes of boot, 20 until the node is gone"
    assert month.expected_month_micros == 21.7 * 200_000 + 8.7 * 100_000
    assert month.worst_month_micros == 21.7 * 1_000_000 + 8.7 * 100_000
    assert month.affordable_runs(to_micros(10)) == 9, "each with its part of the other starts"
    with pytest.raises(RunnerError, match="too low for the schedule") as caught:
        month.affordable_runs(to_micros(1))
    assert "--max-cost 1.05" in caught.value.fix
    unknown = plan_schedule_cost(cost(prices=PriceTable()), 30, 0)
    assert (unknown.expected_month_micros, unknown.worst_month_micros) == (None, None)


@pytest.mark.parametrize(
    ("text", "micros"), [("5", 5_000_000), ("0.25", 250_000), ("$5", 5_000_000), (5, 5_000_000)]
)
def test_amounts_are_read_as_micro_dollars(text: object, micros: int) -> None:
    assert to_micros(text) == micros


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "1e9", "much", "", "1.2.3", "0.0000001"])
def test_invalid_amount_is_refused(text: str) -> None:
    with pytest.raises(RunnerError, match="invalid --max-cost"):
        to_micros(text)


@pytest.mark.parametrize(
    ("estimate", "seconds"),
    [
        ("about 1 minute on 2 CPU cores", 60),
        ("2h on a T4", 7200),
        ("1.5 hours", 5400),
        ("90 s", 90),
        ("a few seconds", None),
        (None, None),
    ],
)
def test_estimate_in_words_gives_the_expected_time(
    estimate: str | None, seconds: int | None
) -> None:
    assert expected_seconds(estimate) == seconds


# A simulation of the worst case of the service. It shares no code with `plan_cost`. Times are
# seconds since the job was created, by the clock of the service; money is in micro-dollars times
# seconds per hour, so that all sums are exact.


@dataclass(slots=True)
class _Task:
    work: Work
    retries_left: int
    after: int | None
    node: int | None = None
    began: float = 0
    ends: float = 0
    done: bool = False


@dataclass(slots=True)
class _Node:
    spot: bool
    since: float
    ready: float
    leaves: float | None = None
    tasks: int = 0


class _Service:
    """One pool that only has the tasks of one job, simulated from event to event.

    Nodes boot for any time, are evicted at any time, and are billed until they are gone. Every
    eviction requeues the task without an end; failures are retried as often as the task allows. The
    prices of spot nodes change at any time, up to that for which the cap holds. The pool follows
    the demand and releases nodes as late as it may.
    """

    def __init__(
        self, rng: random.Random, pool: PoolOutput, work: list[Work], limit_s: int
    ) -> None:
        self.rng, self.pool, self.limit_s = rng, pool, limit_s
        self.release_s = 60 * (pool.release_minutes or 0)
        self.ends_at = limit_s + rng.choice([0, rng.uniform(0, LIMIT_DELAY_S), LIMIT_DELAY_S])
        self.tasks = [
            _Task(each, each.attempts - 1, number - 1 if each.after else None)
            for number, each in enumerate(work)
        ]
        self.nodes: list[_Node] = []
        self.most = 0
        self.node_seconds: list[tuple[bool, float, float]] = []
        # A duration by the clock of a node, which runs fast or slow.
        self.drift = rng.uniform(0.9, 1.1)
        self.evicted = rng.choice([0.0, 1 / 3600, 1 / 600])
        self.fails = rng.choice([0.0, 0.5, 1.0])
        self.boots = rng.choice([60.0, 600.0, 3600.0])

    def run(self) -> None:
        """Simulate until all nodes are gone."""
        now = 0.0
        while now < self.ends_at and not all(task.done for task in self.tasks):
            self._start_nodes(now)
            self._start_tasks(now)
            self.most = max(self.most, len(self.nodes))
            now = min(self._next(now), self.ends_at)
            self._evict(now)
            self._end_tasks(now)
            self._remove(now)
        for task in self.tasks:  # ended by the service
            task.done = True
        for node in list(self.nodes):
            gone = node.leaves if node.leaves is not None else now + self.release_s
            self._bill(node, min(gone, now + self.release_s))

    def _active(self) -> list[_Task]:
        return [
            task
            for task in self.tasks
            if not task.done and (task.after is None or self.tasks[task.after].done)
        ]

    def _start_nodes(self, now: float) -> None:
        wanted = min(self.pool.max_nodes, sum(task.work.nodes for task in self._active()))
        staying = [node for node in self.nodes if node.leaves is None]
        for node in staying[wanted:]:
            if not node.tasks:
                node.leaves = now + self.rng.uniform(0, self.release_s)
        for _ in range(wanted - len(staying)):
            ready = now + self.rng.expovariate(1 / self.boots)
            spot = self.pool.capacity == "spot" or (self.pool.spot and self.rng.random() < 0.8)
            self.nodes.append(_Node(spot, now, ready))

    def _start_tasks(self, now: float) -> None:
        for number, task in enumerate(self._active()):
            if task.node is not None:
                continue
            free = [n for n in self.nodes if n.ready <= now and not n.tasks and n.leaves is None]
            if len(free) < task.work.nodes:
                continue
            task.node, task.began = number, now
            for node in free[: task.work.nodes]:
                node.tasks = id(task)
            takes = self.rng.uniform(0, 2 * (task.work.expected_s or 3600))
            limits = [task.work.limit_s, self.limit_s]  # task limits, by the clock of the service
            task.ends = now + min([takes * self.drift, *(each for each in limits if each)])

    def _next(self, now: float) -> float:
        times = [task.ends for task in self.tasks if task.node is not None and task.ends > now]
        times += [node.ready for node in self.nodes if node.ready > now]
        times += [node.leaves for node in self.nodes if node.leaves is not None]
        if self.evicted and self.nodes:
            times.append(now + self.rng.expovariate(self.evicted * len(self.nodes)))
        return max(min(times, default=self.ends_at), now + 1)

    def _evict(self, now: float) -> None:
        for node in list(self.nodes):
            if node.spot and self.evicted and self.rng.random() < 0.2:
                self._bill(node, now)
                for task in self.tasks:  # requeued, without a limit on the count
                    if task.node is not None and node.tasks == id(task):
                        self._requeue(task)

    def _end_tasks(self, now: float) -> None:
        for task in self.tasks:
            if task.node is None or task.ends > now:
                continue
            self._requeue(task)
            if self.rng.random() < self.fails and task.retries_left:
                task.retries_left -= 1
            else:
                task.done = True

    def _requeue(self, task: _Task) -> None:
        task.node = None
        for node in self.nodes:
            if node.tasks == id(task):
                node.tasks = 0

    def _remove(self, now: float) -> None:
        for node in [node for node in self.nodes if node.leaves is not None]:
            if node.leaves is not None and node.leaves <= now:
                self._bill(node, node.leaves)

    def _bill(self, node: _Node, until: float) -> None:
        self.nodes.remove(node)
        self.node_seconds.append((node.spot, node.since, max(until, node.since)))

    def spent(self, spot_rates: list[int], dedicated_rate: int) -> float:
        """Return micro-dollars; the price of a spot node is another one in every hour."""
        total = 0.0
        for spot, since, until in self.node_seconds:
            start = since
            while start < until:
                end = min(until, (start // 3600 + 1) * 3600)
                rate = spot_rates[int(start // 3600) % len(spot_rates)] if spot else dedicated_rate
                total += rate * (end - start)
                start = end
        return total / 3600


def _spent_and_cap(seed: int) -> tuple[float, CostCap, _Service] | None:
    rng = random.Random(seed)
    count = rng.choice([1, 1, 2, 5, 12])
    work = [
        Work(
            rng.choice([1, 1, 1, 2]),
            rng.choice([1, 2, 101]),
            rng.choice([None, 600, 3600, 7 * 86400]),
            rng.choice([60, 3600, 86400]),
            name=str(number),
            after=(str(number - 1),) if rng.random() < 0.3 and number else (),
        )
        for number in range(count)
    ]
    capacity = rng.choice(["spot", "spot", "mixed", "mixed", "dedicated"])
    pool = replace(
        POOL,
        max_nodes=rng.choice([2, 3, 8]),
        spot=capacity != "dedicated",
        capacity=capacity,
        release_minutes=rng.choice([0, 20, 90]),
    )
    dedicated = rng.choice([0.1, 0.526, 3.673, 98.32])
    spot = rng.choice([None, dedicated * rng.uniform(0.05, 1)])
    cap = round(rng.uniform(0.05, 40) * dedicated, 2)
    try:
        planned = cost(*work, cap=cap, pool=pool, prices=table(spot, dedicated))
    except RunnerError as err:
        if err.code != "R-COST-CAP":
            raise
        return None
    assert planned.cap is not None
    service = _Service(rng, pool, work, planned.cap.job_s)
    service.run()
    dedicated_rate = rate_micros(Price(dedicated, TODAY, ""))
    highest = planned.cap.rate_limit_micros or dedicated_rate  # as the plan says
    spot_rates = [rng.randint(1, highest) for _ in range(7)] + [highest]
    return service.spent(spot_rates, dedicated_rate), planned.cap, service


@dataclass(slots=True)
class _Cases:
    """What many cases came to; `exceeded` names those that were above their bound."""

    capped: int = 0
    close: int = 0
    exceeded: list[str] = field(default_factory=list[str])


def _simulate(seeds: range) -> _Cases:
    cases = _Cases()
    for seed in seeds:
        found = _spent_and_cap(seed)
        if found is None:
            continue
        spent, cap, service = found
        cases.capped += 1
        cases.close += spent > 0.8 * cap.cap_micros
        if service.most > cap.nodes or not spent <= cap.bound_micros <= cap.cap_micros:
            cases.exceeded.append(f"seed {seed}: {spent} with {service.most} nodes, {cap}")
    return cases


@pytest.mark.slow
@pytest.mark.feature(53)
def test_spending_never_exceeds_the_cap() -> None:
    cases = _simulate(range(2_000))
    assert cases.exceeded == []
    assert cases.capped > 1_000
    assert cases.close > 20, "no case comes close to its cap: the simulation is too mild"


@pytest.mark.slow
def test_spending_never_exceeds_the_cap_in_many_cases() -> None:
    """Tries 20,000 cases, or `PROOF_COST_CASES`, which `make proof` sets to 100,000."""
    cases = _simulate(range(MANY_CASES))
    assert cases.exceeded == []
    assert cases.capped > MANY_CASES / 2


def test_kept_node_is_part_of_the_worst_case_and_of_what_a_run_needs() -> None:
    kept = replace(HOUR, hold_s=1800)
    more = cost(kept).dedicated.worst_micros
    assert (more or 0) - (cost().dedicated.worst_micros or 0) == 300_000
    assert (kept.needed_s or 0) - (HOUR.needed_s or 0) == 1800
    assert cost(kept).spot.expected_micros == cost().spot.expected_micros


def test_kept_node_says_until_when_and_what_it_costs() -> None:
    failed = datetime(2026, 11, 29, 22, 11, tzinfo=UTC)
    kept = KeptNode("a", failed, failed + timedelta(minutes=30), 160_000)
    now = failed + timedelta(minutes=12)
    assert kept.describe(now) == "until 22:41 UTC (12 min, 0.032 USD so far, at most 0.08 USD)"
    assert kept.cost_micros(failed + timedelta(days=1)) == 80_000
    late = replace(kept, until=failed + timedelta(hours=3), micros_per_hour=0)
    assert late.describe(now) == "until 2026-11-30 01:11 UTC (12 min)"
    assert replace(kept, micros_per_hour=None).describe(now) == "until 22:41 UTC (12 min)"
