"""The node that a failed run keeps, as clients find it."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from runner.core.pricing.kept_node import KeptNode
from runner.core.states import TaskView
from runner.flows.runs import cancel
from runner.flows.runs.cancel import find_kept_node, find_kept_nodes
from runner.flows.runs.rows import ended_row
from runner.protocol.results import AttemptStart, RunResult
from runner.protocol.run_spec import RunSpec
from runner.protocol.usage import AttemptUsage, usage_to_json
from tests.unit.core.recipe_maker import plan, recipe
from tests.unit.flows.costs.test_budgets import connection

ENDED = datetime(2026, 11, 29, 22, 11, tzinfo=UTC)
NOW = ENDED + timedelta(minutes=12)
RESULT = RunResult(status="failed", attempt=1, ended=ENDED, kept_until=ENDED + timedelta(hours=1))
SPEC = replace(
    plan(recipe(keep_node_s=3600)).to_spec(), vm_size="Standard_NC24ads_A100_v4", spot=True
)
HOLDS = TaskView("running", since=ENDED - timedelta(minutes=5))


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> list[TaskView | None]:
    found: list[TaskView | None] = [HOLDS]
    monkeypatch.setattr(cancel, "get_task", lambda *_: found[0])
    return found


def test_kept_node_has_the_price_of_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[KeptNode | None] = []
    for kind in (None, True):
        starts = (AttemptStart(attempt=1, dedicated=False), AttemptStart(attempt=2, dedicated=kind))
        monkeypatch.setattr(cancel, "load_attempts", lambda *_, starts=starts: starts)
        found.append(find_kept_node(connection("southeastasia"), SPEC, RESULT, NOW))
    spot, dedicated = found
    assert spot is not None
    assert dedicated is not None
    assert (spot.since, spot.until) == (ENDED, RESULT.kept_until)
    assert 0 < (spot.micros_per_hour or 0) < (dedicated.micros_per_hour or 0)
    free = find_kept_node(connection("local"), SPEC, RESULT, NOW)
    assert free is not None
    assert free.micros_per_hour == 0


@pytest.mark.parametrize(
    "other",
    [None, replace(HOLDS, phase="completed"), replace(HOLDS, phase="active"),
     replace(HOLDS, since=NOW)],
    ids=["deleted", "released", "evicted", "started again"],
)  # fmt: skip
def test_node_is_not_kept_if_its_task_does_not_hold_it(
    task: list[TaskView | None], other: TaskView | None
) -> None:
    task[0] = other
    assert find_kept_node(connection(), SPEC, RESULT, NOW) is None


def test_batch_is_asked_only_while_the_node_may_be_kept(task: list[TaskView | None]) -> None:
    task.clear()
    assert find_kept_node(connection(), SPEC, None, NOW) is None
    assert find_kept_node(connection(), SPEC, replace(RESULT, kept_until=None), NOW) is None
    assert find_kept_node(connection(), SPEC, RESULT, ENDED + timedelta(hours=2)) is None


def test_kept_nodes_of_runs_are_found_by_their_outcomes(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = replace(RESULT, kept_until=NOW)
    results = {"kept": RESULT, "running": None, "plain": replace(RESULT, kept_until=None)}
    results |= {"over": ended, "second": replace(RESULT, kept_until=NOW + timedelta(minutes=1))}
    monkeypatch.setattr(cancel, "load_result", lambda _, run_id: results[run_id])
    read: list[str] = []

    def find(_: object, run_id: str) -> RunSpec:
        read.append(run_id)
        return replace(SPEC, run_id=run_id)

    monkeypatch.setattr(cancel, "find_run", find)
    found = find_kept_nodes(connection("local"), list(results), NOW)
    assert [each.run_id for each in found] == read == ["kept", "second"]
    text = found[0].explain(NOW)
    assert text == "kept keeps its node until 23:11 UTC (12 min): `runner cancel kept` releases it"
    assert find_kept_nodes(connection("local"), (), NOW) == []


def test_entry_of_the_index_tells_when_a_node_was_released() -> None:
    row = ended_row(SPEC, RESULT)
    assert row.may_keep_node(NOW)
    assert not row.may_keep_node(ENDED + timedelta(hours=2))
    held = AttemptUsage(1, 0, "tvm-1", held_by=2, held=1)
    texts = [json.dumps(usage_to_json([each])) for each in (replace(held, held=None), held)]
    assert [ended_row(SPEC, RESULT, text).may_keep_node(NOW) for text in texts] == [True, False]
