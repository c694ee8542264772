"""Published formulas over hours of a pushed clock: an idle hour, ten tasks, and hours after them.

The results are targets as (dedicated, spot). Published: Microsoft's article, the REST reference and
projects that ship a formula (see `formulas.PUBLISHED`); ours are those of `infra`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from batch_emulator.domain.model import Pool, Task, TaskState
from batch_emulator.domain.transitions import autoscale, eviction
from runner_infra.config.pool import PoolConfig
from runner_infra.planning.autoscale_formula import NodeCaps, formula_text
from tests.unit.emulator.autoscale.formulas import PUBLISHED
from tests.unit.emulator.world import World

Targets = tuple[int, int]


@dataclass
class Hours:
    """A pool whose targets are read every minute."""

    world: World
    pool: Pool
    errors: list[str] = field(default_factory=list[str])

    def pass_minutes(self, minutes: int) -> set[Targets]:
        """Let time pass and return the targets that the pool had."""
        found: set[Targets] = set()
        for _ in range(minutes):
            self.world.push(60)
            found.add(self.targets)
            run = self.pool.autoscale.run or {}
            self.errors += [run["error"]["code"]] if "error" in run else []
        return found

    @property
    def targets(self) -> Targets:
        return (self.pool.dedicated_target, self.pool.spot_target)

    def finish(self, tasks: list[Task]) -> None:
        """End every task, each as soon as it runs."""
        for _ in range(60):
            for task in tasks:
                if task.state is TaskState.RUNNING:
                    self.world.end(task)
            self.pass_minutes(1)

    @property
    def results(self) -> str:
        assert self.pool.autoscale.run is not None
        return self.pool.autoscale.run["results"]


def scaled(formula: str, nodes: int = 0) -> Hours:
    """Return a pool with the formula, whose text may name the time of creation as it was there."""
    world = World()
    for moment in ("2026-01-05T09:00:00Z", "2024-10-30T00:00:00.880011Z"):
        formula = formula.replace(moment, "2026-01-01T00:00:00Z")
    formula = formula.replace("Mon, 05 Jan 2026 09:00:00 GMT", "Thu, 01 Jan 2026 00:00:00 GMT")
    made = world.pool(boot=False, targetDedicatedNodes=nodes)
    if nodes:
        world.push(30)
    body = {"autoScaleFormula": formula, "autoScaleEvaluationInterval": "PT5M"}
    autoscale.enable(world.account, made, body, world.clock.now())
    world.settle()
    return Hours(world, made)


@dataclass(frozen=True)
class Course:
    """The targets at the end of the idle hour, the largest with ten tasks, and the last."""

    idle: Targets
    busy: Targets
    last: Targets
    final: str | None = None


_TASKS = "$TargetLowPriorityNodes=0;$NodeDeallocationOption=taskcompletion;"
COURSES: dict[str, Course] = {
    "article: first": Course(
        (0, 0),
        (7, 0),
        (0, 0),
        f"$TargetDedicatedNodes=0;{_TASKS}$averageActiveTaskCount=0",
    ),
    "article: sample": Course(
        (0, 0),
        (10, 0),
        (0, 0),
        f"$TargetDedicatedNodes=0;{_TASKS}maxNumberofVMs=25;pendingTaskSamplePercent=100;"
        "pendingTaskSamples=0;startingNumberOfVMs=1",
    ),
    "article: preempted nodes": Course(
        (0, 25),
        (0, 25),
        (0, 25),
        "$TargetDedicatedNodes=0;$TargetLowPriorityNodes=25;"
        "$NodeDeallocationOption=taskcompletion;maxNumberofVMs=25",
    ),
    "article: tasks": Course(
        (0, 0),
        (10, 0),
        (0, 0),
        f"$TargetDedicatedNodes=0;{_TASKS}$samples=100;$targetVMs=0;$tasks=0",
    ),
    "article: parallel tasks": Course(
        (0, 0),
        (3, 0),
        (0, 0),
        f"$TargetDedicatedNodes=0;{_TASKS}$cores=0;$extraVMs=0.75;$samples=100;$targetVMs=0.75;"
        "$tasks=0",
    ),
    "article: initial size": Course((0, 0), (4, 0), (0, 0)),
    "Nextflow": Course((0, 0), (8, 0), (0, 0)),
    "queue": Course((1, 0), (9, 0), (1, 0)),
    "pipelines": Course((0, 0), (0, 1), (0, 0)),
    "task execution service": Course((0, 0), (0, 10), (0, 0)),
    "SDK samples": Course((1, 0), (1, 0), (1, 0)),
}


@pytest.mark.parametrize("name", COURSES)
def test_published_formula_follows_the_queue_and_returns_to_its_floor(name: str) -> None:
    hours, course = scaled(PUBLISHED[name]), COURSES[name]
    hours.pass_minutes(60)
    assert hours.targets == course.idle
    hours.errors.clear()
    job = hours.world.job()
    tasks = [hours.world.task(job, f"t{number}") for number in range(10)]
    assert max(hours.pass_minutes(60)) == course.busy
    hours.finish(tasks)
    hours.pass_minutes(180)
    assert hours.targets == course.last
    assert not hours.errors
    assert course.final is None or hours.results == course.final


def test_first_sample_of_the_article_grows_within_five_minutes() -> None:
    hours = scaled(PUBLISHED["article: sample"])
    assert hours.targets == (1, 0)  # without samples, startingNumberOfVMs applies
    hours.pass_minutes(30)
    job = hours.world.job()
    for number in range(10):
        hours.world.task(job, f"t{number}")
    hours.pass_minutes(6)
    assert hours.targets[0] > 0
    hours.pass_minutes(5)
    assert hours.targets == (10, 0)
    assert "pendingTaskSamplePercent=100" in hours.results


def test_initial_size_is_kept_until_samples_show_no_tasks() -> None:
    hours = scaled(PUBLISHED["article: initial size"])
    assert hours.targets == (4, 0)
    assert hours.pass_minutes(9) == {(4, 0)}
    hours.pass_minutes(50)
    assert hours.targets == (0, 0)


def test_processor_sample_grows_while_busy_and_shrinks_while_idle() -> None:
    hours = scaled(PUBLISHED["article: CPU"], nodes=10)
    job = hours.world.job()
    tasks = [hours.world.task(job, f"t{number}") for number in range(100)]
    assert max(hours.pass_minutes(60))[0] > 10
    hours.finish(tasks)
    hours.pass_minutes(360)
    assert hours.targets == (0, 0)


@pytest.mark.parametrize("name", ["article: time of day", "article: .NET sample"])
def test_office_hours_sample_keeps_more_nodes_from_8_to_18(name: str) -> None:
    hours = scaled(PUBLISHED[name])  # a Thursday
    assert hours.pass_minutes(7 * 60) == {(10, 0)}
    hours.pass_minutes(66)
    assert hours.pass_minutes(9 * 60) == {(20, 0)}
    hours.pass_minutes(60)
    assert hours.targets == (10, 0)


def test_preempted_spot_nodes_are_replaced_by_dedicated_ones() -> None:
    hours = scaled(PUBLISHED["article: preempted nodes"])
    hours.pass_minutes(10)
    assert hours.targets == (0, 25)
    for node in list(hours.pool.nodes.values())[:3]:
        now = hours.world.clock.now()
        eviction.evict(hours.world.account, node, now, why="test", notice_s=0, away_s=7200)
    assert (3, 22) in hours.pass_minutes(10)


def test_window_without_percentage_fails_until_samples_exist() -> None:
    hours = scaled(PUBLISHED["article: first"])
    run = hours.pool.autoscale.run or {}
    assert run["error"]["code"] == "InsufficientSampleData"
    assert "wanted 70%, received 0%" in run["error"]["values"][0]["value"]
    hours.pass_minutes(16)
    assert "error" not in (hours.pool.autoscale.run or {})


@pytest.mark.parametrize(
    ("scenario", "busy"),
    [
        ("scale_to_zero", (0, 10)),
        ("spot_first_with_dedicated_fallback", (0, 10)),
        ("office_hours", (0, 10)),
    ],
)
def test_formulas_of_runner_never_fail_and_follow_the_queue(scenario: str, busy: Targets) -> None:
    given = {"office_hours": {"nodes": 1, "days": ["sat"]}} if scenario == "office_hours" else {}
    pool = PoolConfig.model_validate(
        {
            "id": "t4",
            "vm_size": "Standard_NC4as_T4_v3",
            "scenario": scenario,
            "max_spot": 20,
            "max_dedicated": 5,
            **given,
        }
    )
    text = formula_text(pool, NodeCaps(20, 5))
    assert text is not None
    hours = scaled(text)
    hours.pass_minutes(20)
    job = hours.world.job()
    tasks = [hours.world.task(job, f"t{number}") for number in range(10)]
    assert max(hours.pass_minutes(30)) == busy
    hours.finish(tasks)
    hours.pass_minutes(120)
    assert hours.targets == (0, 0)
    assert hours.errors == []
