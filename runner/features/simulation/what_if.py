"""Compare formulas, VM sizes and policies, and recommend a checkpoint interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from runner.azure.auth.credentials import Connection
from runner.features.simulation.formulas import AssumedPool, simulate_pool
from runner.features.simulation.lifetimes import generate_trace
from runner.features.simulation.optimum import lowest_cost, spot_windows
from runner.features.simulation.policies import POLICIES, Goal, checkpoint_interval_s
from runner.features.simulation.result import SimulationResult, nearest_rank
from runner.features.simulation.scenario import Scenario, Workload
from runner.flows.runs.attempts import AttemptRow, list_attempts
from runner.flows.runs.documents import runs_container
from runner.flows.runs.live import load_view
from runner.protocol.codec import parse_json
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec

_RESIZE_TIMEOUT_MS = 15 * 60_000  # the service evaluates no formula during a resize
_FACTORS = (1.1, 1.25, 1.5, 2.0, 3.0)
_TRACE_FACTOR = 2  # traces go on after the last deadline, for policies that are late


@dataclass(frozen=True, slots=True)
class PoolKind:
    """A VM size with its prices; `speed` is relative to the given durations of tasks."""

    assumed: AssumedPool
    name: str
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Option:
    """Results of one formula or policy on one VM size, one for each seed.

    `optimum_micro` is the lowest cost that a policy could have by the deadline if it knew the
    evictions; None for a formula, whose number of nodes is its own, and if a price is unknown.
    """

    size: str
    name: str
    is_policy: bool
    deadline_ms: int
    results: Sequence[SimulationResult]
    costs_micro: Sequence[int] | None  # None: a price is unknown
    optimum_micro: float | None = None

    @property
    def cost_micro(self) -> float | None:
        """The mean cost in micro-dollars, None if a price is unknown."""
        return None if self.costs_micro is None else sum(self.costs_micro) / len(self.costs_micro)

    @property
    def late(self) -> int:
        """The number of seeds with unfinished work at the deadline."""
        spans = [each.makespan_ms for each in self.results]
        return sum(span is None or span > self.deadline_ms for span in spans)

    @property
    def regret(self) -> float | None:
        """The part by which the cost exceeds the optimum; None if unknown or late."""
        cost, best = self.cost_micro, self.optimum_micro
        return None if cost is None or not best or self.late else cost / best - 1

    @property
    def makespan_ms(self) -> int | None:
        """The longest makespan, None if a task did not end."""
        spans = [each.makespan_ms for each in self.results if each.makespan_ms is not None]
        return max(spans) if len(spans) == len(self.results) else None

    @property
    def evictions(self) -> float:
        """Mean number of evictions."""
        return sum(each.evictions for each in self.results) / len(self.results)

    @property
    def waste(self) -> float:
        """The fraction of the node time that was not useful work: boot, setup, lost and idle."""
        useful = sum(sum(each.spent_ms["useful"]) for each in self.results)
        whole = sum(sum(map(sum, each.spent_ms.values())) for each in self.results)
        return 1 - useful / whole if whole else 0.0

    def wait_ms(self, percentile: int) -> int | None:
        """Return a percentile of the waiting times of all tasks by nearest rank."""
        return nearest_rank(sorted(w for each in self.results for w in each.waits_ms), percentile)


@dataclass(frozen=True, slots=True)
class OptionComparison:
    """The result of a comparison.

    Attributes:
        deadline_ms: Deadline of the options, since the arrival of the first task.
        options: In the order of sizes, formulas and policies.
        frontier: The options of the first size by deadline, each by policy.
    """

    deadline_ms: int
    options: Sequence[Option]
    frontier: Mapping[int, Mapping[str, Option]]

    @property
    def best(self) -> Option | None:
        """The cheapest option that met the deadline with every seed, or None.

        Of equal ones, `spot` is last, because it met the deadline by chance.
        """
        met = [each for each in self.options if not each.late and each.cost_micro is not None]
        return min(
            met, key=lambda each: (each.cost_micro or 0.0, each.name == "spot"), default=None
        )


def compare(
    kinds: Sequence[PoolKind],
    scenario: Scenario,
    *,
    nodes: int,
    deadline_ms: int | None,
    seeds: int,
    lifetime: str = "exponential",
) -> OptionComparison:
    """Simulate all formulas and policies on all sizes.

    Policies meet a trace of evictions that is known before, so that their costs can be compared
    with the lowest possible ones.

    Args:
        kinds: VM sizes; each has the formulas.
        scenario: Tasks, times and evictions; its seed is the first.
        lifetime: A key of LIFETIMES, for the traces of policies.
        nodes: Maximum number of nodes of a policy.
        deadline_ms: Since the arrival of the first task; None is twice the time of dedicated nodes.
        seeds: Number of simulations per option.

    Raises:
        RunnerError: R-SIMULATION, a formula has a syntax error, or a task never fits a node.
        ScenarioError: a trace would have too many evictions.
    """
    trials = _Trials(scenario, nodes, seeds, lifetime)
    alone_ms = trials.time_on_demand_ms(kinds[0])
    deadline = deadline_ms or 2 * alone_ms
    deadlines = sorted({*(int(alone_ms * factor) for factor in _FACTORS), deadline})
    trials.draw_traces(_TRACE_FACTOR * deadlines[-1])
    options: list[Option] = []
    for kind in kinds:
        options += [trials.formula(kind, n, deadline) for n in range(len(kind.assumed.candidates))]
        options += [trials.policy(kind, name, deadline) for name in POLICIES]
    frontier = {
        each: {name: trials.policy(kinds[0], name, each) for name in POLICIES} for each in deadlines
    }
    return OptionComparison(deadline, options, frontier)


class _Trials:
    """Simulations of one workload, in which the same seed gives all policies the same evictions."""

    def __init__(self, scenario: Scenario, nodes: int, seeds: int, lifetime: str) -> None:
        self._scenario, self._nodes, self._seeds = scenario, nodes, seeds
        self._lifetime = lifetime
        arrivals = scenario.workload.arrivals_ms
        self._first_ms = arrivals[0] if len(arrivals) else 0
        self._scenarios: Sequence[Scenario] = ()
        self._optima: dict[tuple[str, int], float] = {}  # by size and deadline

    def draw_traces(self, length_ms: int) -> None:
        """Draw the trace of each seed, unless a trace is given. Raise ScenarioError."""
        self._scenarios = [self._with_trace(seed, length_ms) for seed in range(self._seeds)]

    def _with_trace(self, seed: int, length_ms: int) -> Scenario:
        """Return the scenario of policies for a seed; without a trace, evictions become one."""
        quota = self._scenario.most_spot
        most = self._nodes if quota is None else min(quota, self._nodes)
        found = replace(self._scenario, seed=self._scenario.seed + seed, most_spot=most)
        if not found.evictions_per_hour or found.changes:
            return found
        trace = generate_trace(
            self._lifetime,
            3_600_000 / found.evictions_per_hour,
            found.away_ms,
            machines=most,
            until_ms=min(found.horizon_ms, self._first_ms + length_ms),
            seed=found.seed,
        )
        return replace(found, changes=trace, evictions_per_hour=0.0, away_ms=0)

    def formula(self, kind: PoolKind, number: int, deadline_ms: int) -> Option:
        candidate = kind.assumed.candidates[number]
        base = self._scenario
        results = [
            self._run(
                kind, candidate.name, replace(base, seed=base.seed + n, formula=candidate.formula)
            )
            for n in range(self._seeds)
        ]
        return self._option(kind, candidate.name, deadline_ms, results, is_policy=False)

    def policy(self, kind: PoolKind, name: str, deadline_ms: int) -> Option:
        scenario, assumed = self._scenario, kind.assumed
        every_ms = round(assumed.interval_s * 1000)
        wait_ms = scenario.boot_ms + scenario.start_task_ms + scenario.setup_ms + every_ms
        changeover_ms = wait_ms + _RESIZE_TIMEOUT_MS
        every, slots = scenario.checkpoint_ms, assumed.slots
        lost_ms = every + scenario.save_ms if every else None
        goal = Goal(deadline_ms + self._first_ms, self._nodes, slots, changeover_ms, lost_ms)
        results = [
            self._run(kind, name, replace(each, policy=POLICIES[name](goal)))
            for each in self._scenarios
        ]
        return self._option(kind, name, deadline_ms, results, is_policy=True)

    def time_on_demand_ms(self, kind: PoolKind) -> int:
        """Return the time that dedicated nodes need for all tasks."""
        goal = Goal(1 << 60, self._nodes, kind.assumed.slots, 0)
        policy = POLICIES["on-demand"](goal)
        result = self._run(kind, "on-demand", replace(self._scenario, policy=policy))
        return result.makespan_ms or result.ended_ms - self._first_ms

    def _run(self, kind: PoolKind, name: str, scenario: Scenario) -> SimulationResult:
        work = _faster(scenario.workload, kind.speed)
        return simulate_pool(kind.assumed, name, replace(scenario, workload=work))

    def _option(
        self,
        kind: PoolKind,
        name: str,
        deadline_ms: int,
        results: Sequence[SimulationResult],
        *,
        is_policy: bool,
    ) -> Option:
        prices = kind.assumed.spot_usd, kind.assumed.dedicated_usd
        parts = [each.cost_micro(*prices) for each in results]
        costs = [sum(each.values()) for each in parts if each is not None]
        known = costs if len(costs) == len(parts) else None
        best = self._optimum_micro(kind, deadline_ms) if is_policy else None
        return Option(kind.name, name, is_policy, deadline_ms, results, known, best)

    def _optimum_micro(self, kind: PoolKind, deadline_ms: int) -> float | None:
        """Return the mean of the lowest costs of the seeds, None if a price is unknown."""
        spot_usd, dedicated_usd = kind.assumed.spot_usd, kind.assumed.dedicated_usd
        if spot_usd is None or dedicated_usd is None:
            return None
        key = kind.name, deadline_ms
        if key not in self._optima:
            costs = [
                lowest_cost(
                    replace(
                        each,
                        workload=_faster(each.workload, kind.speed),
                        slots_per_node=kind.assumed.slots,
                    ),
                    spot_windows(
                        each.changes,
                        most=each.most_spot or 0,
                        notice_ms=each.notice_ms,
                        until_ms=deadline_ms + self._first_ms,
                    ),
                    spot_usd=spot_usd,
                    dedicated_usd=dedicated_usd,
                )
                for each in self._scenarios
            ]
            self._optima[key] = sum(costs) / len(costs)
        return self._optima[key]


def _faster(work: Workload, speed: float) -> Workload:
    if speed == 1.0:
        return work
    return replace(work, durations_ms=[max(1, round(ms / speed)) for ms in work.durations_ms])


# -- the checkpoint interval


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements from the records of a run; None if they are missing.

    Attributes:
        save_s: Median time of a checkpoint, from copy to commit.
        ran_s: Time of its attempts on spot nodes.
        evictions: Attempts on spot nodes that were lost or terminated.
    """

    save_s: float | None
    ran_s: float
    evictions: int

    @property
    def mtbf_s(self) -> float | None:
        """Mean time between two evictions; None without an eviction."""
        return self.ran_s / self.evictions if self.evictions else None


@dataclass(frozen=True, slots=True)
class CheckpointInterval:
    """The recommended work between two checkpoints, by Young and by Daly."""

    save_s: float
    mtbf_s: float
    young_s: float
    daly_s: float


def recommend_interval(save_s: float | None, mtbf_s: float | None) -> CheckpointInterval | None:
    """Return the recommended checkpoint interval, or None if a value is unknown or zero."""
    if not save_s or not mtbf_s:
        return None
    return CheckpointInterval(save_s, mtbf_s, *checkpoint_interval_s(save_s, mtbf_s))


def measure_run(connection: Connection, spec: RunSpec) -> Measured:
    """Return save time and evictions from the records of a run."""
    attempts = [row for row in list_attempts(connection, load_view(connection, spec)) if row.spot]
    container = runs_container(connection)
    saves: list[float] = []
    for row in attempts:
        name = RunPaths(spec.run_id).attempt_events(row.attempt)
        for line in (container.read(name) or b"").splitlines():
            saves += _save_time(line)
    following = {row.attempt - 1: row.started for row in attempts}
    spans = (_span_s(row, following.get(row.attempt)) for row in attempts)
    evictions = sum(row.lost_node for row in attempts)
    median = sorted(saves)[len(saves) // 2] if saves else None
    return Measured(median, sum(spans), evictions)


def _save_time(line: bytes) -> list[float]:
    try:
        event = parse_json(line)
        return [float(event["took_s"])] if "checkpoint" in event else []
    except (ValueError, TypeError, KeyError):
        return []


def _span_s(row: AttemptRow, next_start: str | None) -> float:
    """Return the duration of an attempt; on a lost node, until the start of the next attempt."""
    if row.took_s is not None:
        return max(0.0, row.took_s)
    try:
        passed = datetime.fromisoformat(next_start or "") - datetime.fromisoformat(row.started)
    except ValueError:
        return 0.0
    return max(0.0, passed.total_seconds())
