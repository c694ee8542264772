"""Measure a place with runs of a small script: submit, take a node, take a pool, read what arrived.

The runs take the way of all runs: the submission pipeline, the agent, blob storage. Everything that
is made is on record in `made.py` before it exists, and removed by `qualification.py`.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from runner.azure.batch.jobs import get_task
from runner.azure.batch.pools import FREE_STATES, find_pool, list_pool_nodes
from runner.contract import PoolOutput
from runner.core.planning.plan import to_work
from runner.core.pricing.cost import MICROS_PER_USD
from runner.core.pricing.prices import load_price_table
from runner.core.progress import OnProgress, Progress, ProgressState, ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.settings import Settings
from runner.core.units import format_count, format_duration
from runner.features.qualify import evidence
from runner.features.qualify.criteria import (
    ROWS,
    CapacityFigures,
    CostFigures,
    QualificationBounds,
    QualificationEvidence,
    RowState,
    StartTimeFigures,
    judge,
)
from runner.features.qualify.evidence import ProbeRun, Signals
from runner.features.qualify.made import MadeThings
from runner.features.qualify.places import PREFIX, Place
from runner.flows.costs.report import CostQuery, report_costs
from runner.flows.runs.attempts import list_checkpoints
from runner.flows.runs.documents import (
    count_attempts,
    load_attempt_ends,
    load_attempts,
    load_points,
    load_result,
    runs_container,
)
from runner.flows.runs.moving.fallback import Fallback
from runner.flows.runs.stuck import NodeNeed, explain_wait, load_pool_facts
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.pipeline import Services, SubmissionPlan, plan_submission
from runner.flows.submit.submit_run import submit_run
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec

PROBE = Path(__file__).parent / "probe"
_POLL_S = 0.5
_STEPS = 8
_PAUSE_S = 0.4
_STATES: Mapping[RowState, ProgressState] = {
    "passed": "end",
    "failed": "failed",
    "not measured": "note",
}
_LONG = "until_attempt=2"  # of a run that loses its node
_READY = frozenset({"idle", "running"})
_RUN_S = 90.0  # for a run with a node: packages, the script, the outputs
_SETTLE_S = 15.0  # from the end of a task to the result of its run


@dataclass(frozen=True, slots=True)
class QualificationRequest:
    """What to measure.

    Attributes:
        nodes: The nodes to ask for at once.
        bounds: The limits.
        vm_size: The VM size whose price applies; None for that of the pool.
        region: The region of the price; None for that of the stack.
        probe: The folder of the recipe.
    """

    nodes: int
    bounds: QualificationBounds
    vm_size: str | None = None
    region: str | None = None
    probe: Path = PROBE


@dataclass(slots=True)
class _Submitted:
    """A run, and when it was submitted, in seconds since the epoch."""

    spec: RunSpec
    at: float
    plan: SubmissionPlan = field(repr=False)


class Qualification:
    """One qualification of a place. Each method measures one thing and fills the evidence.

    Args:
        place: The pools.
        settings: The settings of the target.
        request: What to measure.
        made: Records what is made.
        on_progress: Called with every step.
    """

    def __init__(
        self,
        place: Place,
        settings: Settings,
        request: QualificationRequest,
        made: MadeThings,
        on_progress: OnProgress,
    ) -> None:
        self.evidence = QualificationEvidence()
        self._place = place
        self._connection = place.connection
        self._container = runs_container(place.connection)
        self._settings = replace(settings, pool=None)
        self._services = Services(
            replace(settings, pool=place.first.id), self._connection.outputs, self._connection
        )
        self._request = request
        self._bounds = request.bounds
        self._made = made
        self._on_progress = on_progress
        self._until = float("inf")  # when the last wait ends
        self._undisturbed: list[_Submitted] = []
        self._reported: set[str] = set()

    def measure(self) -> None:
        """Measure everything, in an order in which each run finds the nodes that it needs.

        Raises:
            RunnerError: the services do not respond or refuse a submission.
        """
        self._place.open()
        self._until = time.monotonic() + longest_s(self._bounds)
        with _own_copy(self._request.probe) as folder:
            self._folder = folder
            if self._measure_capacity():
                self._measure_warm_start()
                self._measure_cost()  # before nodes are idle for long
                self._measure_recovery()
                self._measure_fallback()

    # -- the rows

    def _measure_capacity(self) -> bool:
        """Ask for all nodes at once. Return False if none came, so that nothing else can run."""
        pool, asked = self._place.first, self._request.nodes
        present = len(self._ready(pool))
        self._say("capacity", "start", f"{format_count(asked, 'node')} of pool {pool.id}")
        view = find_pool(self._connection, pool.id)
        began = time.monotonic()
        self._place.ask(pool, asked)
        runs = [self._submit() for _ in range(asked * (view.slots if view else 1))]
        most, came_s = 0, None
        while came_s is None and time.monotonic() < began + self._bounds.capacity:
            most = max(most, len(self._ready(pool)))
            if most >= asked:
                came_s = time.monotonic() - began
            else:
                time.sleep(_POLL_S)
        why = "" if came_s is not None else self._why_no_nodes(pool)
        capacity = CapacityFigures(asked, min(most, asked), came_s, min(present, asked), why)
        self._found(capacity=capacity)
        if not most and not any(self._began(run) for run in runs):
            text = f"no node of pool {pool.id} came within {format_duration(self._bounds.capacity)}"
            self._missing({name: text for name in ROWS if name != "capacity"})
            return False
        ended = [self._ended(run, self._bounds.cold + len(runs) * _RUN_S) for run in runs]
        self._undisturbed += runs
        first = min((run.start_s for run in ended if run.start_s is not None), default=None)
        not_cold = f"cold: pool {pool.id} had nodes before" if present else ""
        self._start = StartTimeFigures(None if present else first, None, not_cold)
        self._finished = ended
        return True

    def _measure_warm_start(self) -> None:
        """Submit to an idle node, then a run that fails on purpose, and read what arrived."""
        self._say("start time", "start", "a run with an idle node, and one that fails on purpose")
        self._await_idle(self._place.first)
        run = self._submit()
        warm = self._ended(run, self._bounds.warm)
        failing = self._submit("fail=true")
        failed = self._ended(failing, self._bounds.warm)
        self._undisturbed.append(run)
        self._finished.append(warm)
        start = replace(self._start, warm=warm.start_s)
        self._found(start=start, completion=evidence.completion(self._finished))
        self._found(observability=evidence.observability(self._signals(run, failed)))

    def _signals(self, run: _Submitted, failed: ProbeRun) -> Signals:
        paths = RunPaths(run.spec.run_id)
        ends = load_attempt_ends(self._container, run.spec.run_id)
        points = load_points(self._connection, run.spec)
        values = [point.value for point in points if point.name == evidence.METRIC]
        return Signals(
            _STEPS,
            self._text(paths.stdout),
            values,
            self._text(paths.system).splitlines(),
            self._text(paths.attempt_events(1)).splitlines(),
            next((each for each in ends if each.attempt == 1), None),
            failed.result,
            self._text(RunPaths(failed.run_id).stderr),
        )

    def _measure_recovery(self) -> None:
        """Take the node of a run after its first checkpoint."""
        self._say("recovery", "start", "a run until its first checkpoint")
        run = self._submit(_LONG)
        taken = self._after_checkpoint(run)
        how = "the run stored no checkpoint before its end"
        if taken is not None:
            how = self._place.take_node(run.spec, taken)
        evicted = None if taken is None else time.time()
        self._say("recovery", "progress", how)
        ended = self._ended(run, self._bounds.recovery, attempts=2)
        self._found(recovery=evidence.recovery(how, evicted, ended))

    def _measure_fallback(self) -> None:
        """Take the pool of a run after its first checkpoint, and follow it to the second."""
        first, second = self._place.first, self._place.second
        if second is None:
            why = "it needs a second pool: --second-pool POOL"
            self._missing({"fallback": why})
            return
        self._say("fallback", "start", f"a run in {first.id}, then in {second.id}")
        self._place.ask(second, 1)
        self._await_idle(first)
        run = self._submit(_LONG, pools=(first.id, second.id))
        how, evicted = f"pool {first.id} could not start the run", None
        if run.spec.pool != second.id:
            how = "the run stored no checkpoint before its end"
            if self._after_checkpoint(run) is not None:
                how, evicted = self._place.take_pool(run.spec), time.time()
        self._say("fallback", "progress", how)
        attempts = 1 if evicted is None else 2
        moves = Fallback(self._connection, run.spec)
        ended = self._ended(run, self._bounds.fallback, attempts=attempts, fallback=moves)
        self._found(fallback=evidence.fallback(how, second.id, evicted, ended))

    def _measure_cost(self) -> None:
        """Price the recorded node time of the runs that nothing interrupted."""
        runs = self._undisturbed
        ids = frozenset(run.spec.run_id for run in runs)
        request, pool = self._request, self._place.first
        query = CostQuery(by="run", run_ids=ids, vm_size=request.vm_size, region=request.region)
        report = report_costs(self._connection, query, self._settings.home)
        micro, count = report.total.total_micro, len(runs)
        kind = "spot" if pool.spot else "dedicated"
        basis = f"{request.vm_size or pool.vm_size} ({kind}, {report.region})"
        usd = None if micro is None else micro / MICROS_PER_USD / count
        node_s = report.total.total_ms / 1000 / count
        self._found(cost=CostFigures(usd, self._estimate(runs[0], report.region), node_s, basis))

    def _estimate(self, run: _Submitted, region: str) -> float | None:
        """Return what runner expects a run to cost; on this machine, without the boot of a node."""
        planned, size = run.plan.cost, self._request.vm_size
        if planned is not None:
            expected = planned.first_kind.expected_micros
            return None if expected is None else expected / MICROS_PER_USD
        pool = replace(self._place.first, vm_size=size or self._place.first.vm_size)
        price = load_price_table(self._settings.home).find_node(
            pool.vm_size, region, spot=pool.spot, disk=pool.os_disk
        )
        expected_s = to_work(run.plan.run).expected_s
        return price.usd_per_hour * expected_s / 3600 if price and expected_s else None

    # -- runs

    def _submit(self, *values: str, pools: tuple[str, ...] = ()) -> _Submitted:
        options = RunOptions(
            set=(f"steps={_STEPS}", f"pause_s={_PAUSE_S}", *values),
            experiment=self._folder.name,
            pools=pools,
            fallback_evictions=1 if pools else None,
        )
        checked = check_run(load_recipe(str(self._folder), cwd=self._folder.parent), options)
        services = replace(self._services, settings=self._settings) if pools else self._services
        plan = plan_submission(checked, services, ignore_progress)
        run = plan.run
        self._made.add(runs=run.run_id, jobs=plan.job.job_id, archives=run.content.code.sha256)
        at = time.time()
        spec = submit_run(self._connection, plan, ignore_progress)
        self._made.add(jobs=spec.job_id)
        return _Submitted(spec, at, plan)

    def _deadline(self, limit_s: float) -> float:
        """Return the end of a wait that begins now: the price shown before is that of all waits."""
        return min(time.monotonic() + limit_s, self._until)

    def _began(self, run: _Submitted) -> bool:
        return bool(load_attempts(self._container, run.spec.run_id))

    def _after_checkpoint(self, run: _Submitted) -> str | None:
        """Wait for the first checkpoint. Return the node, or None if the run ended before it."""
        run_id = run.spec.run_id
        until = self._deadline(self._bounds.capacity + _RUN_S)
        while time.monotonic() < until and load_result(self._container, run_id) is None:
            if list_checkpoints(self._container, run_id):
                attempts = load_attempts(self._container, run_id)
                return attempts[-1].node if attempts else None
            time.sleep(_POLL_S)
        return None

    def _ended(
        self,
        run: _Submitted,
        limit_s: float,
        *,
        attempts: int = 1,
        fallback: Fallback | None = None,
    ) -> ProbeRun:
        """Wait for the result of a run, and move it on when that is due. Return what it stored.

        Args:
            run: The run.
            limit_s: Time until so many attempts have started; the last one has _RUN_S more.
            attempts: Their number.
            fallback: Moves the run.
        """
        run_id = run.spec.run_id
        deadline = self._deadline(limit_s)
        completed: float | None = None
        has_started = False
        while (result := load_result(self._container, run_id)) is None:
            now = time.monotonic()
            if not has_started and count_attempts(self._container, run_id) >= attempts:
                has_started, deadline = True, self._deadline(_RUN_S)
            task = get_task(self._connection, run.spec.job_id, run.spec.task_id)
            if task is None or task.phase == "completed":
                completed = completed or now
            if now > deadline or (completed is not None and now > completed + _SETTLE_S):
                break
            if fallback is not None:
                fallback.step()
            time.sleep(_POLL_S)
        output = None
        if result is not None:
            output = self._container.read(f"{run_id}/{result.output}probe.json")
        starts = load_attempts(self._container, run_id)
        return ProbeRun(run_id, run.at, _STEPS, result, output, starts)

    # -- nodes

    def _ready(self, pool: PoolOutput) -> list[str]:
        nodes = list_pool_nodes(self._connection, pool.id)
        return [node.id for node in nodes if node.state in _READY]

    def _await_idle(self, pool: PoolOutput) -> None:
        """Wait until a node is idle, at most as long as all nodes may take."""
        deadline = self._deadline(self._bounds.capacity)
        while time.monotonic() < deadline:
            nodes = list_pool_nodes(self._connection, pool.id)
            if any(node.state == "idle" and not node.running_tasks for node in nodes):
                return
            time.sleep(_POLL_S)

    def _why_no_nodes(self, pool: PoolOutput) -> str:
        """Return what keeps a pool from getting nodes; empty if the services do not know."""
        facts = load_pool_facts(self._connection, pool.id, log=False)
        errors = facts.pool.resize_errors if facts.pool else ()
        if errors:
            return f"{errors[0].code}: {errors[0].message}"
        gone = sum(node.state in FREE_STATES for node in facts.nodes)
        if gone:
            return f"{format_count(gone, 'node')} evicted"
        cause = explain_wait(NodeNeed(""), facts, datetime.now(UTC))
        return cause.message if cause is not None and cause.stuck else ""

    def _text(self, blob: str) -> str:
        return (self._container.read(blob) or b"").decode("utf-8", "replace")

    def _found(self, **figures: object) -> None:
        """Add figures to the evidence, and report the row of each."""
        self.evidence = replace(self.evidence, **figures)  # type: ignore[arg-type]
        for row in judge(self.evidence, self._bounds):
            if row.values and row.name not in self._reported:
                self._reported.add(row.name)
                text = "; ".join(part for part in (row.figure, row.why) if part)
                self._say(row.name, _STATES[row.state], text)

    def _missing(self, why: Mapping[str, str]) -> None:
        self.evidence = replace(self.evidence, missing={**self.evidence.missing, **why})
        for name, text in why.items():
            self._say(name, "note", f"not measured: {text}")

    def _say(self, row: str, state: ProgressState, message: str) -> None:
        self._on_progress(Progress(row, state, message))


def longest_s(bounds: QualificationBounds) -> float:
    """Return for how long a qualification may have nodes, without the time of their release."""
    waits = (bounds.capacity, bounds.cold, bounds.warm, bounds.recovery, bounds.fallback)
    return sum(waits) + (len(waits) + 1) * _RUN_S


@contextmanager
def _own_copy(probe: Path) -> Generator[Path]:
    """Yield a copy of the recipe whose code archive no other qualification has."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / f"{PREFIX}{secrets.token_hex(3)}"
        shutil.copytree(probe, folder, ignore=shutil.ignore_patterns("__*__*"))
        with (folder / "probe.py").open("a", encoding="utf-8") as script:
            script.write(f"\n# {folder.name}\n")
        yield folder
