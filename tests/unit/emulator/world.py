"""An account for tests of the scheduler: with a manual clock, without server and processes."""

from __future__ import annotations

from typing import Any

from batch_emulator.domain.account import (
    Account,
    AwaitRetention,
    Effect,
    EraseTasks,
    FreeTasks,
    Kill,
    Limits,
    SetUpNode,
    Start,
)
from batch_emulator.domain.launch import ExecutionOutcome, FailureInfo, ended_by_node_loss
from batch_emulator.domain.model import (
    Execution,
    ExecutionKind,
    Job,
    JobSchedule,
    Json,
    Node,
    NodeState,
    Pool,
    Task,
)
from batch_emulator.domain.transitions import (
    eviction,
    executions,
    job_schedules,
    jobs,
    nodes,
    pools,
    task_admission,
    tasks,
)
from batch_emulator.scheduling.scheduler import apply, decide
from tests.manual_clock import ManualClock

OK = ExecutionOutcome(exit_code=0, failure=None, retryable=False)


def failed(code: int) -> ExecutionOutcome:
    """Return the outcome of a command that exited with this code, which is not 0."""
    failure = FailureInfo("UserError", "FailureExitCode", "exit")
    return ExecutionOutcome(exit_code=code, failure=failure, retryable=True)


class World:
    """An account whose scheduler runs after every change. Processes end when the test ends them."""

    def __init__(self, *, boot_s: float = 10.0, slow_ends: bool = False, **limits: Any) -> None:
        self.slow_ends = slow_ends  # killed processes end when the test calls `die`
        self.dying: dict[str, Execution] = {}
        self.clock = ManualClock()
        self.account = Account("unit", Limits(boot_s=boot_s, **limits))
        self.effects: list[Effect] = []
        self.tasks: list[Task] = []
        self.bodies: dict[str, Json] = {}
        self.processes: dict[str, Execution] = {}

    def settle(self) -> None:
        """Apply the scheduler's actions until nothing changes, without real effects."""
        account, now = self.account, self.clock.now()
        for _ in range(1000):
            actions = decide(account, now)
            account.forget_due(now)
            account.forget_dirty()
            for action in actions:
                apply(account, action, now)
            effects = account.take_effects()
            self.effects += effects
            for effect in effects:
                self._do(effect)
            if not (account.dirty or account.effects):
                return
        raise AssertionError("the scheduler does not come to rest")

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Start) and effect.execution.stop is None:
            execution = effect.execution
            if execution.task is not None:
                job, task = execution.task.job, execution.task
                given = self.bodies.get(f"{job.key}/{task.key}")
                execution.body = job.spec["jobManagerTask"] if given is None else given
            self.processes[execution.key] = execution
            executions.begun(self.account, execution, self.clock.now())
            eviction.schedule_planned_eviction(self.account, execution, self.clock.now())
        elif isinstance(effect, SetUpNode):
            node, now = effect.node, self.clock.now()
            nodes.set_up(self.account, node, node.booted or now, [], now)
        elif isinstance(effect, FreeTasks):
            task_admission.free(self.account, effect.job)
        elif isinstance(effect, EraseTasks):
            jobs.forget(self.account, effect.job)
        elif isinstance(effect, AwaitRetention):
            node, now = effect.node, self.clock.now()
            kept = [t.expires for t in self.tasks if (node.pool.id, node.id) in tasks.places(t)]
            until = max((when for when in kept if when and when > now), default=None)
            nodes.retention_answered(self.account, node, until, now)
        elif isinstance(effect, Kill):
            running = self.processes.pop(effect.execution.key, None) or self.held(effect.execution)
            if effect.execution.key in self.dying or (running and self.slow_ends):
                self.dying[effect.execution.key] = effect.execution
                return
            killed = ExecutionOutcome(exit_code=-9, failure=ended_by_node_loss(), retryable=False)
            executions.ended(self.account, effect.execution, killed, self.clock.now())

    def held(self, execution: Execution) -> bool:
        """Return True for an instance that waits for the other instances of its task."""
        group = None if execution.task is None else execution.task.group
        started = group is not None and execution.instance not in group.waiting
        return started and execution.key in self.account.executions

    def push(self, seconds: float) -> None:
        self.clock.push(seconds)
        self.settle()

    def pool(self, pool_id: str = "pool", *, boot: bool = True, **body: Any) -> Pool:
        spec = {"id": pool_id, "vmSize": "standard_d2s_v3", "targetDedicatedNodes": 1, **body}
        pool = pools.add(self.account, spec, self.clock.now())
        self.settle()
        if boot:
            self.push(5)
            self.push(5)
        return pool

    def job(self, job_id: str = "job", pool: str = "pool", **body: Any) -> Job:
        spec = {"id": job_id, "poolInfo": {"poolId": pool}, **body}
        job = pools.add_job(self.account, spec, self.clock.now())
        self.settle()
        return job

    def schedule(self, times: Json | None = None, **body: Any) -> JobSchedule:
        """Create the schedule "daily" on "pool"; `body` is its job specification."""
        specification = {"poolInfo": {"poolId": "pool"}, **body}
        spec = {"id": "daily", "schedule": times or {}, "jobSpecification": specification}
        schedule = job_schedules.add(self.account, spec, self.clock.now())
        self.settle()
        return schedule

    def task(self, job: Job, task_id: str, *, settle: bool = True, **body: Any) -> Task:
        spec = {"id": task_id, "commandLine": "x", **body}
        self.bodies[f"{job.key}/{task_id.lower()}"] = spec
        task = task_admission.add(self.account, job, spec, self.clock.now())
        self.tasks.append(task)
        if settle:
            self.settle()
        return task

    def end(self, task: Task, outcome: ExecutionOutcome = OK) -> None:
        """End the process of a task with this outcome."""
        assert task.execution is not None
        self.finish(task.execution, outcome)

    def finish(self, execution: Execution, outcome: ExecutionOutcome = OK) -> None:
        del self.processes[execution.key]
        executions.ended(self.account, execution, outcome, self.clock.now())
        self.settle()

    def die(self, execution: Execution) -> None:
        """End the process of a killed execution; only with `slow_ends`."""
        del self.dying[execution.key]
        killed = ExecutionOutcome(exit_code=-9, failure=ended_by_node_loss(), retryable=False)
        executions.ended(self.account, execution, killed, self.clock.now())
        self.settle()

    def only(self, kind: ExecutionKind) -> Execution:
        """Return the only running process of a kind."""
        [found] = [e for e in self.processes.values() if e.kind is kind]
        return found

    def node(self, pool: Pool) -> Node:
        [node] = pool.nodes.values()
        return node


def states(pool: Pool) -> list[NodeState]:
    return [node.state for node in pool.nodes.values()]
