"""Causes of a waiting run, from the state of a pool and its nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from runner.azure.batch.pools import NodeTask, NodeView, PoolAutoscale, PoolProblem, PoolView
from runner.core.states import RunState, RunStatus, TaskView
from runner.flows.runs import live, stuck
from runner.flows.runs.stuck import (
    NodeNeed,
    PoolFacts,
    explain_wait,
    find_failing_node,
    find_work,
    gives_no_node,
)
from runner.protocol.results import AttemptStart
from runner.protocol.run_spec import parse_run

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
SINCE = NOW - timedelta(minutes=2)
NEED = NodeNeed("run-1", since=SINCE)
POOL = PoolView(
    id="t4", vm_size="standard_nc4as_t4_v3", state="active", allocation="steady", slots=1,
    spot=0, spot_target=0, dedicated=0, dedicated_target=0, autoscale=None, resize_errors=(),
    image="", node_agent="", mounts=(), inter_node=True, since=SINCE,
)  # fmt: skip
WANTS_TWO = replace(POOL, spot_target=2)
QUOTA = (PoolProblem("AccountLowPriorityCoreQuotaReached", "no cores left"),)
NO_CAPACITY = (PoolProblem("AllocationFailed", "could not be allocated"),)
FORMULA = "$TargetLowPriorityNodes = min(2, $PendingTasks.GetSample(1));"


def nodes(*states: str, **changes: Any) -> tuple[NodeView, ...]:
    blank = NodeView("", "", True, 0, 0, SINCE, None, None)
    return tuple(
        replace(blank, id=f"tvm-{number}", state=state, **changes)
        for number, state in enumerate(states)
    )


def scale(formula: str = FORMULA, *, minutes_ago: float = 1, **changes: Any) -> PoolAutoscale:
    evaluated = NOW - timedelta(minutes=minutes_ago)
    return replace(PoolAutoscale(formula, 300.0, evaluated, {}, None), **changes)


def found(
    pool: PoolView | None,
    *states: str,
    need: NodeNeed = NEED,
    log: tuple[str, ...] = (),
    **node: Any,
) -> tuple[str, bool] | None:
    cause = explain_wait(need, PoolFacts("t4", pool, nodes(*states, **node), log=log), NOW)
    return (cause.code, cause.stuck) if cause else None


STUCK: Mapping[str, tuple[PoolView | None, tuple[str, ...]]] = {
    "PoolMissing": (None, ()),
    "StartTaskFailed": (WANTS_TWO, ("starttaskfailed", "starttaskfailed")),
    "NodesUnusable": (WANTS_TWO, ("starttaskfailed", "unusable")),
    "NodesOffline": (WANTS_TWO, ("offline", "offline")),
    "NoNodesWanted": (POOL, ()),
    "SpotQuotaReached": (replace(WANTS_TWO, resize_errors=QUOTA), ()),
    "AllocationFailed": (replace(WANTS_TWO, resize_errors=NO_CAPACITY), ()),
    "ResizeFailed": (replace(WANTS_TWO, resize_errors=(PoolProblem("ResizeStopped", ""),)), ()),
    "FormulaGivesNone": (replace(POOL, autoscale=scale("$TargetDedicatedNodes=0")), ()),
    "FormulaFailed": (
        replace(POOL, autoscale=scale(error=PoolProblem("AutoScalingFormulaEvaluationError", "x"))),
        (),
    ),
}


@pytest.mark.parametrize("code", STUCK)
def test_run_is_stuck_on_a_pool_without_possible_nodes(code: str) -> None:
    pool, states = STUCK[code]
    assert found(pool, *states) == (code, True)


def test_every_stuck_run_has_a_next_step() -> None:
    for pool, states in STUCK.values():
        cause = explain_wait(NEED, PoolFacts("t4", pool, nodes(*states)), NOW)
        assert cause is not None
        assert any(word in cause.fix for word in ("runner ", "az ", "formula tries again"))


def test_drained_pool_is_enabled_as_a_whole() -> None:
    cause = explain_wait(NEED, PoolFacts("t4", WANTS_TWO, nodes("offline", "offline")), NOW)
    assert cause is not None
    assert cause.message == "all 2 nodes of pool t4 take no tasks: offline"
    assert cause.fix.startswith("enable scheduling again: `runner pool enable t4`, or ")


@pytest.mark.parametrize(
    ("pool", "states"),
    [
        (WANTS_TWO, ("starting", "creating")),
        (WANTS_TWO, ("waitingforstarttask", "starttaskfailed")),
        (WANTS_TWO, ("idle", "unusable")),
        (WANTS_TWO, ("rebooting",)),
        (replace(WANTS_TWO, allocation="resizing"), ()),
        (replace(WANTS_TWO, allocation="resizing"), ("starttaskfailed",)),
        (replace(POOL, allocation="resizing", autoscale=scale()), ()),
    ],
)
def test_booting_or_growing_pool_is_no_cause(pool: PoolView, states: tuple[str, ...]) -> None:
    assert found(pool, *states) is None


def test_pool_booting_for_over_half_an_hour_is_named() -> None:
    long_ago = NOW - timedelta(minutes=31)
    assert found(WANTS_TWO, "waitingforstarttask", since=long_ago) == ("BootTooLong", True)
    assert found(WANTS_TWO, "waitingforstarttask", since=NOW - timedelta(minutes=29)) is None


@pytest.mark.parametrize("errors", [QUOTA, NO_CAPACITY])
def test_resize_errors_count_only_while_nodes_are_missing(
    errors: tuple[PoolProblem, ...],
) -> None:
    failed = replace(WANTS_TWO, resize_errors=errors)
    assert found(replace(failed, spot=2), "idle", "idle") is None
    assert found(replace(failed, spot=1), "running", running_tasks=1) == ("Busy", False)
    assert found(replace(failed, spot=1), "starting") is None
    assert found(replace(failed, spot_target=0, autoscale=scale())) == ("NextEvaluation", False)


def test_run_on_several_nodes_is_stuck_if_quota_allows_fewer() -> None:
    failed = replace(WANTS_TWO, spot=1, resize_errors=QUOTA)
    two = replace(NEED, nodes=2)
    assert found(failed, "idle", need=two) == ("SpotQuotaReached", True)
    assert found(WANTS_TWO, "idle", "starting", need=two) is None
    assert found(WANTS_TWO, "idle", "idle", need=replace(NEED, nodes=3)) == ("TooFewNodes", True)
    apart = replace(WANTS_TWO, inter_node=False)
    assert found(apart, "idle", "idle", need=two) == ("NoInterNode", True)


def test_cap_of_the_stack_below_the_nodes_of_the_run_is_named() -> None:
    facts = PoolFacts("t4", replace(POOL, autoscale=scale()), (), most_nodes=2)
    cause = explain_wait(replace(NEED, nodes=3), facts, NOW)
    assert cause is not None
    assert cause.message == "the run needs 3 nodes, but pool t4 has at most 2"
    assert explain_wait(replace(NEED, nodes=2), facts, NOW) == explain_wait(NEED, facts, NOW)


def test_task_with_more_slots_than_a_node_is_stuck() -> None:
    two = replace(NEED, slots=2)
    assert found(WANTS_TWO, "idle", need=two) == ("SlotsTooMany", True)
    assert found(replace(WANTS_TWO, slots=2), "idle", need=two) is None


def test_pool_at_zero_shows_its_next_evaluation() -> None:
    facts = PoolFacts("t4", replace(POOL, autoscale=scale()), ())
    cause = explain_wait(NEED, facts, NOW)
    assert cause is not None
    assert cause.message == "no nodes yet; the next evaluation of the formula is at 12:04 UTC"
    assert not cause.stuck


def test_formula_with_zero_target_for_a_seen_task_is_named() -> None:
    early = replace(POOL, autoscale=scale())
    assert found(early) == ("NextEvaluation", False)
    waited = replace(NEED, since=NOW - timedelta(minutes=7))
    assert found(early, need=waited) == ("FormulaGivesNone", True)


def test_formula_of_a_new_pool_can_lack_samples_once() -> None:
    error = PoolProblem("InsufficientSampleData", "wanted 70%")
    pool = replace(POOL, autoscale=scale(error=error))
    assert found(pool) == ("NextEvaluation", False)
    waited = replace(NEED, since=NOW - timedelta(minutes=7))
    assert found(pool, need=waited) == ("FormulaFailed", True)


def test_evicted_spot_nodes_are_waited_for() -> None:
    assert found(replace(WANTS_TWO, spot=2), "preempted", "preempted") == ("Preempted", False)


def test_evidence_has_exit_code_log_and_charge() -> None:
    broken = nodes("starttaskfailed", exit_code=3)
    facts = PoolFacts("t4", WANTS_TWO, broken, log=("no driver on this node",))
    cause = explain_wait(NEED, facts, NOW)
    assert cause is not None
    assert cause.evidence == (
        "node tvm-0: start task exited with 3",
        "  no driver on this node",
        "Azure charges for such nodes until they are removed",
    )
    assert cause.since == SINCE
    here = explain_wait(NEED, replace(facts, is_billed=False), NOW)
    assert here is not None
    assert not any("charges" in line for line in here.evidence)


def test_pool_without_a_container_engine_names_what_to_start() -> None:
    problem = PoolProblem("ContainerPoolNotSupported", "no container engine works")
    facts = PoolFacts("t4", WANTS_TWO, nodes("unusable", trouble=problem))
    for charged, fix in ((False, "start Docker or Podman on this machine"), (True, "correct the")):
        cause = explain_wait(NEED, replace(facts, is_billed=charged), NOW)
        assert cause is not None
        assert cause.code == "ContainersNotSupported"
        assert cause.message == "no container can run on the only node of pool t4"
        assert cause.fix.startswith(fix)
        assert "then replace the nodes" in cause.fix
    plain = replace(NEED, group="net-1", has_image=False, moved_from="local")
    cause = explain_wait(plain, facts, NOW)
    assert cause is not None
    assert cause.fix == "`runner sweep move net-1 --to local`"


def test_run_in_a_pool_of_unusable_nodes_can_be_moved() -> None:
    facts = PoolFacts("t4", WANTS_TWO, nodes("unusable", "unusable"))
    for need, end in (
        (replace(NEED, group="net-1"), "; or `runner sweep move net-1 --to POOL`"),
        (NEED, "; or `runner cancel run-1`, then `runner retry run-1 --pool POOL`"),
        (replace(NEED, run_id=""), "then `runner pool resize t4 2`"),
    ):
        cause = explain_wait(need, facts, NOW)
        assert cause is not None
        assert cause.fix.endswith(end)


@pytest.mark.parametrize(
    "formula",
    [
        "$TargetDedicatedNodes=0;",
        "$TargetLowPriorityNodes = 0; $TargetDedicatedNodes = 0; $Other = 1;",
        "cap = 0; // none\n$TargetLowPriorityNodes = min(cap, max(1, $PendingTasks.GetSample(1)));",
        "$TargetLowPriorityNodes = min($PendingTasks.GetSample(1), 0);",
        "$TargetDedicatedNodes = 5; $TargetDedicatedNodes = min($TargetDedicatedNodes, 0);",
        "$TargetDedicatedNodes = 0;\n$TargetLowPriorityNodes = min($TargetLowPriorityNodes, 2);",
        "/* = 3; */ $TargetDedicatedNodes = 0.5;",
    ],
)
def test_constant_formula_without_nodes_is_named(formula: str) -> None:
    assert gives_no_node(formula)


@pytest.mark.parametrize(
    "formula",
    [
        FORMULA,
        "$TargetDedicatedNodes = 1;",
        "cap = 0; cap = $PendingTasks.GetSample(1); $TargetLowPriorityNodes = min(cap, 3);",
        "$TargetDedicatedNodes = 0; $TargetLowPriorityNodes = min(1, $PendingTasks.GetSample(1));",
        "$TargetDedicatedNodes = 0; a = time().hour > 8 ? stop() : 1; $TargetDedicatedNodes = 0;",
        "$TargetDedicatedNodes = time().hour > 8 ? 3 : 0;",
        "$TargetDedicatedNodes = min(0, 1) + 2;",
        "",
    ],
)
def test_formula_that_can_give_a_node_is_not_named(formula: str) -> None:
    assert not gives_no_node(formula)


def worked(job: str, *succeeded: bool, seconds: float = 2) -> tuple[NodeTask, ...]:
    """Return tasks that ended one after the other."""
    return tuple(
        NodeTask(
            job, f"{job}-{number}", SINCE + timedelta(seconds=10 * number),
            SINCE + timedelta(seconds=10 * number + seconds), has_succeeded,
        )
        for number, has_succeeded in enumerate(succeeded)
    )  # fmt: skip


def to_work(tasks: Sequence[NodeTask]) -> list[object]:
    """Return the job of each task, or what its ID names: `v1/2` is the third task of version 1."""
    return [task.task_id.rpartition("/")[0] or task.job_id for task in tasks]


def versions(*names: str, succeed: bool = False) -> tuple[NodeTask, ...]:
    """Return tasks of one job that run versions of a script, one after the other."""
    tasks = worked("job", *[succeed] * len(names))
    pairs = enumerate(zip(names, tasks, strict=True))
    return tuple(replace(task, task_id=f"{name}/{number}") for number, (name, task) in pairs)


BAD = worked("job", False, False, False, False)


@pytest.mark.parametrize(
    ("mine", "others", "named", "certain"),
    [
        (BAD, worked("job", True, True), True, True),
        (worked("job", True, *[False] * 9), worked("job", True, True, True), True, True),
        (BAD, worked("job", True), True, False),
        (worked("job", False, False, False), worked("job", True, True), True, False),
        (BAD, worked("job", True, True, True, False), True, False),  # other parameters fail too
        (BAD, worked("other", True, True, True), False, False),
        (BAD, worked("job", *[False] * 4), False, False),
        (worked("job", *[False] * 4, True), worked("job", True, True, True), False, False),
        (worked("job", False, False), worked("job", True, True, True), False, False),
        (worked("job", *[False] * 4, seconds=90), worked("job", *[True] * 9), False, False),
        # different scripts of one job, of which only the last works
        (versions("v1", "v2", "v3", "v4"), versions(*["v5"] * 9, succeed=True), False, False),
        (versions("v1", "v2", "v2", "v2"), versions(*["v1"] * 9, succeed=True), False, False),
        (versions("v1", "v2", "v2", "v2"), versions("v2", "v2", succeed=True), True, False),
        (
            versions(*["v1"] * 4),
            versions("v2") + versions("v1", "v1", "v1", succeed=True),
            True,
            True,
        ),
    ],
)
def test_node_failing_tasks_that_succeed_elsewhere_is_named(
    mine: tuple[NodeTask, ...], others: tuple[NodeTask, ...], named: bool, certain: bool
) -> None:
    first, second = nodes("idle", "idle")
    pool = (replace(first, recent=mine), replace(second, recent=others))
    for is_certain, expected in ((False, named), (True, certain)):
        found = find_failing_node(pool, to_work, certain=is_certain)
        assert (found is not None and found[0].id == first.id) == expected


def test_work_of_a_run_is_its_code_and_command(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parents[3] / "golden" / "protocol" / "run-plain.json").read_text("utf-8")
    plain = json.loads(text)
    stamp = "20261123-120000-abcd"
    documents = {
        f"a-{stamp}": text,
        f"b-{stamp}": json.dumps(plain | {"params": {"lr": 3}}),
        f"c-{stamp}": json.dumps(plain | {"command": ["python", "other.py"]}),
        f"d-{stamp}": json.dumps(plain | {"code": plain["code"] | {"sha256": "0" * 64}}),
        f"damaged-{stamp}": "{",
        f"deleted-{stamp}": "",
    }
    documents = {
        run_id: text.replace(f'"{plain["run_id"]}"', f'"{run_id}"')
        for run_id, text in documents.items()
    }
    monkeypatch.setattr(stuck, "runs_container", lambda _: None)
    monkeypatch.setattr(stuck, "read_run", lambda _, run_id, __: documents[run_id].encode() or None)
    [first] = worked("job", False)
    tasks = [replace(first, task_id=run_id) for run_id in documents]
    same, also, *others = find_work(cast("Any", None))([*tasks, *worked("job", True, True)])
    assert same == also
    assert others.pop() == others.pop() == "job"
    assert len({same, *others}) == 5


def test_status_of_a_running_task_needs_neither_job_nor_pool(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = Path(__file__).parents[3] / "golden" / "protocol" / "run-plain.json"
    started = AttemptStart(attempt=1, node="tvm-1", started="2026-11-23T12:00:00+00:00")
    answers = {
        "runs_container": None, "get_task": TaskView("running", "tvm-1"), "load_result": None,
        "load_attempts": (started,), "last_stage": "command",
    }  # fmt: skip
    for name, answer in answers.items():
        monkeypatch.setattr(live, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(stuck, "read_job", lambda *_: pytest.fail("read the job"))
    view = live.load_view(
        cast("Any", None),
        parse_run(run.read_bytes(), "plain"),
        lambda _: pytest.fail("read a pool"),
    )
    assert view.status == RunStatus(RunState.RUNNING, node="tvm-1")


def test_nodes_that_may_be_evicted_are_not_broken() -> None:
    assert found(WANTS_TWO, "unusable", "unusable", may_be_evicted=True) == ("Preempted", False)
    facts = PoolFacts("t4", WANTS_TWO, nodes("unusable", "preempted", may_be_evicted=True))
    assert facts.broken == ()
    assert found(WANTS_TWO, "unusable", "unusable") == ("NodesUnusable", True)
