"""Spot evictions under a pushed clock."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.account import DeleteNodeFolder, Kill
from batch_emulator.domain.eviction_trace import TraceEntry, TraceError, load_trace
from batch_emulator.domain.faults import Fault
from batch_emulator.domain.model import (
    AllocationState,
    ExecutionKind,
    Node,
    NodeState,
    Pool,
    TaskState,
)
from batch_emulator.domain.transitions import eviction, nodes, pools
from batch_emulator.domain.validation.task_rules import check_files
from tests.unit.emulator.world import World, states


def spot(world: World, count: int = 1, pool_id: str = "pool", **body: Any) -> Pool:
    return world.pool(pool_id, targetDedicatedNodes=0, targetLowPriorityNodes=count, **body)


def evict(world: World, node: Node, **options: float) -> None:
    eviction.require_evictable(node)
    eviction.evict(world.account, node, world.clock.now(), why="test", **options)
    world.settle()


def events_of(world: World, node: Node, version: str = "2020-07-01") -> dict[str, Any]:
    return eviction.scheduled_events(node, version, world.clock.now())


def test_notice_precedes_the_eviction() -> None:
    world = World()
    node = world.node(spot(world))
    task = world.task(world.job(), "a")
    quiet = events_of(world, node)
    evict(world, node)
    [event] = events_of(world, node)["Events"]
    assert (event["EventType"], event["EventStatus"]) == ("Preempt", "Scheduled")
    assert event["NotBefore"] == "Thu, 01 Jan 2026 00:00:40 GMT"
    assert event["Resources"] == [node.id]
    assert events_of(world, node)["DocumentIncarnation"] > quiet["DocumentIncarnation"]
    world.push(29)
    assert (node.state, task.state) == (NodeState.RUNNING, TaskState.RUNNING)
    world.push(1)
    assert (task.state, task.requeue_count, task.retry_count) == (TaskState.ACTIVE, 0, 0)
    assert events_of(world, node)["Events"] == []


def test_evicted_node_returns_with_its_id_and_no_disk() -> None:
    world = World()
    pool = spot(world, startTask={"commandLine": "x"})
    world.finish(world.only(ExecutionKind.START))
    node = world.node(pool)
    task = world.task(world.job(), "a")
    evict(world, node, notice_s=0, away_s=60)
    assert states(pool) == [NodeState.PREEMPTED]
    assert any(isinstance(e, Kill) and e.hard for e in world.effects)
    assert sum(isinstance(e, DeleteNodeFolder) for e in world.effects) == 1
    world.push(59)
    assert states(pool) == [NodeState.PREEMPTED]
    seen = []
    for _ in range(3):
        world.push(1 if not seen else 5)
        seen += states(pool)
    assert seen == [NodeState.CREATING, NodeState.STARTING, NodeState.WAITING_FOR_START_TASK]
    world.finish(world.only(ExecutionKind.START))
    assert world.node(pool) is node
    assert task.state is TaskState.RUNNING
    assert pool.allocation is AllocationState.STEADY


def test_preparation_runs_again_on_the_new_machine() -> None:
    world = World()
    node = world.node(spot(world))
    task = world.task(world.job(jobPreparationTask={"commandLine": "x"}), "a")
    world.finish(world.only(ExecutionKind.PREPARATION))
    evict(world, node, notice_s=0)
    world.push(5)
    world.push(5)
    assert task.state is TaskState.PREPARING
    assert world.only(ExecutionKind.PREPARATION).node is node


def test_tasks_of_an_evicted_node_run_elsewhere() -> None:
    world = World()
    pool = spot(world, 2)
    task = world.task(world.job(), "a")
    assert task.execution is not None
    first = task.execution.node
    evict(world, first, notice_s=0, away_s=600)
    assert task.state is TaskState.RUNNING
    assert task.execution is not None
    assert task.execution.node is not first
    assert len(pool.nodes) == 2


@pytest.mark.parametrize("notice_s", [0.0, 30.0])
def test_node_is_evicted_once(notice_s: float) -> None:
    world = World()
    node = world.node(spot(world))
    evict(world, node, notice_s=notice_s, away_s=600)
    with pytest.raises(Fault) as caught:
        eviction.require_evictable(node)
    assert caught.value.code == "OperationInvalidForCurrentState"


def test_dedicated_nodes_are_not_evicted() -> None:
    world = World()
    node = world.node(world.pool())
    with pytest.raises(Fault) as caught:
        eviction.require_evictable(node)
    assert caught.value.code == "OperationNotValidOnNode"
    assert eviction.pick(world.account, node.pool, 3) == []


def test_node_can_be_removed_during_its_notice() -> None:
    world = World()
    pool = spot(world)
    evict(world, world.node(pool))
    pools.resize(world.account, pool, {"targetLowPriorityNodes": 0}, world.clock.now())
    world.settle()
    world.push(60)
    assert not pool.nodes


def log(world: World) -> list[dict[str, object]]:
    return [event.document() for event in world.account.events.after(0)]


def hour(seed: int, tasks: int = 3) -> World:
    """Return a world after an hour of three spot nodes with ten evictions per hour each."""
    world = World(seed=seed, eviction_rate=10.0, capacity_away_s=120.0)
    spot(world, 3)
    job = world.job()
    for number in range(tasks):
        world.task(job, f"t{number}")
    for _ in range(360):
        world.push(10)
    return world


def test_same_seed_gives_the_same_event_log() -> None:
    first, second, other = log(hour(1)), log(hour(1)), log(hour(2))
    assert first == second
    assert first != other


def test_eviction_rate_is_about_the_requested_one() -> None:
    evictions = [e for e in log(hour(1)) if e["kind"] == "node.evict"]
    assert 10 <= len(evictions) <= 40
    assert {e["why"] for e in evictions} == {"rate"}


def test_evictions_of_a_seed_do_not_depend_on_the_tasks() -> None:
    def times(world: World) -> list[object]:
        return [e["at"] for e in log(world) if e["kind"] == "node.evict"]

    assert times(hour(1, tasks=0)) == times(hour(1, tasks=40))


def test_trace_removes_and_restores_capacity() -> None:
    trace = (
        TraceEntry(60, "pool", capacity=1, notice_s=0),
        TraceEntry(300, "pool", capacity=2),
        TraceEntry(400, "other", evict=5),
        TraceEntry(500, evict=1, notice_s=0),
    )
    world = World(trace=trace)
    pool = spot(world, 3)

    def count() -> int:
        return sum(node.state is NodeState.IDLE for node in pool.nodes.values())

    seen: list[int] = []
    for _ in range(60):
        world.push(10)
        seen.append(count())
    assert seen[3:6] == [3, 1, 1]  # at 50, 60 and 70 s
    assert seen[28:31] == [1, 1, 2]  # creating, starting, idle
    assert (seen[35], seen[45], seen[49]) == (2, 2, 1)
    assert len(pool.nodes) == 3


def test_resize_beyond_the_capacity_waits_for_it_until_the_timeout() -> None:
    world = World(trace=(TraceEntry(0, capacity=1), TraceEntry(400, capacity=5)))
    pool = spot(world, 3, resizeTimeout="PT5M")
    assert (len(pool.nodes), pool.allocation) == (1, AllocationState.RESIZING)
    world.push(300)
    assert pool.resize_errors[0]["code"] == "AllocationFailed"
    pools.resize(world.account, pool, {"targetLowPriorityNodes": 3}, world.clock.now())
    world.settle()
    assert len(pool.nodes) == 1
    world.push(100)
    world.push(5)
    world.push(5)
    assert states(pool) == [NodeState.IDLE] * 3
    assert pool.allocation is AllocationState.STEADY


GOOD = (
    '{"time": 5, "pool": "P", "evict": 2}\n\n{"time": 1, "capacity": 0, "notice": 0}\n',
    "time,pool,evict,capacity,notice\n5,P,2,,\n1,,,0,0\n",
)


@pytest.mark.parametrize("text", GOOD)
def test_traces_are_read_from_json_lines_and_csv(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    assert load_trace(path) == (
        TraceEntry(1.0, "*", None, 0, 0.0),
        TraceEntry(5.0, "p", 2, None, None),
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "no entries"),
        ("{", "not JSON"),
        ('{"a":' * 50_000, "line 1: not JSON"),
        ('{"time": 1}', "either"),
        ('{"time": 1, "evict": 1, "capacity": 1}', "either"),
        ('{"evict": 1}', "time"),
        ('{"time": "soon", "evict": 1}', "soon"),
        ('{"time": -1, "evict": 1}', "-1"),
        ('{"time": 1e999, "evict": 1}', "number of seconds"),
        ('{"time": 1, "evict": 1.5}', "whole"),
        ('{"time": 1, "evict": true}', "whole"),
        ('{"time": 1, "evict": 1, "nodes": 2}', "unknown nodes"),
        ('{"time": 1, "evict": 1, "pool": 2}', "an id is expected"),
        ("when,what\n1,2\n", "unknown what, when"),
        ("time,evict\n1,2,3\n", "line 2"),
        ("time,evict\n1,2\nx,2\n", "line 3"),
    ],
)
def test_trace_error_has_place_and_reason(tmp_path: Path, text: str, word: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=word):
        load_trace(path)


def test_missing_trace_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        load_trace(tmp_path / "none")


def asking(value: str) -> dict[str, Any]:
    return {"environmentSettings": [{"name": "BATCH_EMULATOR_EVICTIONS", "value": value}]}


def test_task_is_evicted_at_the_times_in_its_environment() -> None:
    """The time of each eviction counts from the start of its attempt."""
    world = World(boot_s=0)
    pool = spot(world)
    start = world.clock.now()
    task = world.task(world.job(), "a", **asking("[[100, 0, 50], [20, 0]]"))
    for _ in range(40):
        world.push(10)
    evicted = [each for each in world.account.events.after(0) if each.kind == "node.evict"]
    assert [each.why for each in evicted] == ["rehearsal", "rehearsal"]
    assert [(each.time - start).total_seconds() for each in evicted] == [100, 170]
    assert (task.state, task.evicted, states(pool)) == (TaskState.RUNNING, 2, [NodeState.RUNNING])


def test_task_that_ended_before_its_eviction_causes_none() -> None:
    world = World(boot_s=0)
    pool = spot(world)
    task = world.task(world.job(), "a", **asking("[[100, 0]]"))
    world.push(50)
    world.end(task)
    other = world.task(world.job("other"), "b")
    world.push(100)
    assert (task.evicted, states(pool), other.state) == (0, [NodeState.RUNNING], TaskState.RUNNING)


@pytest.mark.parametrize(
    "value", ["{}", "[[-1]]", "[[null]]", "[[1, 2, 3, 4]]", "[3]", "[", "[" * 9999]
)
def test_invalid_list_of_eviction_times_is_refused(value: str) -> None:
    with pytest.raises(Fault, match="InvalidPropertyValue"):
        check_files(asking(value))


def test_a_trace_of_the_spot_traces_repository_is_read(tmp_path: Path) -> None:
    path = tmp_path / "us-east-1a_v100_1.json"
    path.write_text('{"metadata": {"gap_seconds": 300}, "data": [4, 4, 1, 1, 0, 4]}\n')
    assert load_trace(path) == (
        TraceEntry(0.0, capacity=4),
        TraceEntry(600.0, capacity=1),
        TraceEntry(1200.0, capacity=0),
        TraceEntry(1500.0, capacity=4),
    )
    path.write_text('{\n  "metadata": {\n    "gap_seconds": 195\n  },\n  "data": [1]\n}\n')
    assert load_trace(path) == (TraceEntry(0.0, capacity=1),)


SPOTLAKE = """Time,InstanceType,Region,AZ,SPS,T3,T2,IF,OndemandPrice,SpotPrice,Savings
2025-01-01 00:20:00,p3.2xlarge,us-east-1,use1-az1,3,5,10,3.0,3.06,1.1,64
2025-01-01 00:00:00,p3.2xlarge,us-east-1,use1-az1,3,10,50,3.0,3.06,1.1,64
2025-01-01 00:10:00,p3.2xlarge,us-east-1,use1-az1,1,0,1,3.0,3.06,1.1,64
2025-01-01 00:30:00,p3.2xlarge,us-east-1,use1-az1,,,,,3.06,,
"""


def test_rows_of_spotlake_are_read_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(SPOTLAKE)
    assert load_trace(path) == (
        TraceEntry(0.0, capacity=10),
        TraceEntry(600.0, capacity=0),
        TraceEntry(1200.0, capacity=5),
        TraceEntry(1800.0, capacity=0),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "gap_seconds is 0"),
        ('{"metadata": {"gap_seconds": true}, "data": [1]}', "gap_seconds is True"),
        ('{"metadata": {"gap_seconds": 300}, "data": []}', "no measurements"),
        ('{"metadata": {"gap_seconds": 300}, "data": [1, -2]}', "a whole number from 0 on"),
        ('{"metadata": {"gap_seconds": 300}, "data": [1, 0.5]}', "a whole number from 0 on"),
        ('{"metadata": {"gap_seconds": 300}}', "metadata.gap_seconds and data are expected"),
        ('{"metadata": {"gap_seconds": 300}, "data": [1', "Expecting"),
        (SPOTLAKE.replace("00:20:00", "later"), "line 2: "),
        (SPOTLAKE.replace("az1,3,5,", "az1,3,five,"), "line 2: 'T3' is 'five'"),
        (SPOTLAKE + SPOTLAKE.splitlines()[1].replace("az1", "az2"), "keep those of one size"),
    ],
)
def test_an_invalid_public_trace_is_refused(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=re.escape(why)):
        load_trace(path)


def unrequested_notices(seed: int, **limits: Any) -> list[float]:
    """Return when nine nodes are evicted by a trace, in seconds after the first of them."""
    world = World(seed=seed, trace=(TraceEntry(5, evict=9),), **limits)
    pool = spot(world, 9)
    world.push(5)
    nodes = sorted(pool.nodes.values(), key=lambda node: node.number)
    times = [node.notice.not_before for node in nodes if node.notice]
    assert len(times) == 9
    return [(each - min(times)).total_seconds() for each in times]


def test_notices_of_a_range_are_drawn_by_the_seed() -> None:
    limits = {"shortest_notice_s": 1000.0, "notice_s": 1300.0}
    found = unrequested_notices(7, **limits)
    assert found == unrequested_notices(7, **limits)
    assert found != unrequested_notices(8, **limits)
    assert 90 < max(found) <= 300


def test_requested_eviction_has_an_exact_notice() -> None:
    world = World(shortest_notice_s=0.0, notice_s=30.0)
    pool = spot(world, 2)
    first, second = pool.nodes.values()
    evict(world, first)
    evict(world, second, notice_s=7.5)
    left = [each.notice.not_before - world.clock.now() for each in (first, second) if each.notice]
    assert [each.total_seconds() for each in left] == [30.0, 7.5]


@pytest.mark.parametrize("notice_s", [0.0, 5.0])
def test_evicted_node_may_be_unusable_first(notice_s: float) -> None:
    world = World(unusable_s=20.0)
    pool = spot(world)
    node, task = world.node(pool), world.task(world.job(), "a")
    evict(world, node, notice_s=notice_s, away_s=60)
    world.push(notice_s)
    assert (node.state, node.errors, task.state) == (NodeState.UNUSABLE, [], TaskState.ACTIVE)
    assert not eviction.evictable(node)
    world.push(19)
    assert node.state is NodeState.UNUSABLE
    world.push(1)
    assert node.state is NodeState.PREEMPTED
    for _ in range(5):
        world.push(60)
    assert (node.state, task.state) == (NodeState.RUNNING, TaskState.RUNNING)
    assert (task.requeue_count, task.retry_count) == (0, 0)


def test_node_that_is_unusable_anyway_is_preempted_at_once() -> None:
    world = World(unusable_s=20.0)
    node = world.node(spot(world))
    nodes.fail(world.account, node, [{"code": "X"}], world.clock.now())
    evict(world, node, notice_s=0, away_s=60)
    assert node.state is NodeState.PREEMPTED


def test_recommendation_is_shown_to_later_versions_and_evicts_nobody() -> None:
    world = World()
    node = world.node(spot(world))
    later = f"{world.clock.now():%Y-%m-%d}"
    quiet = events_of(world, node, later)
    eviction.recommend_rebalance(world.account, node, world.clock.now())
    [event] = events_of(world, node, later)["Events"]
    assert (event["EventType"], event["Resources"]) == ("SpotRebalanceRecommendation", [node.id])
    assert events_of(world, node, later)["DocumentIncarnation"] > quiet["DocumentIncarnation"]
    assert events_of(world, node)["Events"] == []
    evict(world, node, notice_s=30, away_s=1)
    kinds = [each["EventType"] for each in events_of(world, node, later)["Events"]]
    assert kinds == ["Preempt", "SpotRebalanceRecommendation"]
    for _ in range(3):
        world.push(60)
    assert events_of(world, node, later)["Events"] == []  # of the next machine


@pytest.mark.parametrize(
    ("version", "known"),
    [
        ("2020-07-01", True),
        ("2025-01-01-preview", True),
        ("2026-01-02", False),  # tomorrow
        ("2018-01-01", False),
        ("latest", False),
        ("", False),
    ],
)
def test_versions_of_scheduled_events(version: str, known: bool) -> None:
    assert eviction.is_events_version(version, World().clock.now()) is known
