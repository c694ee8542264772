"""Rules for faults: which are refused, what they draw, and what they do to nodes and quotas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.fault_draws import FaultDraws
from batch_emulator.domain.fault_rules import (
    KEYS_OF,
    RULE_KEYS,
    FaultKind,
    RuleError,
    RuleSet,
    load_rules,
    parse_rules,
)
from batch_emulator.domain.model import AllocationState, NodeState, Stop
from batch_emulator.domain.transitions import fault_rules, nodes
from batch_emulator.http.routes.table import OPERATIONS
from tests.manual_clock import ManualClock
from tests.unit.emulator.world import OK, World, failed, states

NOW = ManualClock().now()
BUSY: dict[str, Any] = {"operation": "Task_*", "code": "ServerBusy", "rate": 0.3}


def rules(*rows: dict[str, Any], seed: int | None = 7) -> RuleSet:
    return parse_rules({"seed": seed, "rules": list(rows)}, OPERATIONS)


def ruled(*rows: dict[str, Any], **limits: Any) -> World:
    world = World(**limits)
    fault_rules.load(world.account, rules(*rows), world.clock.now())
    return world


def drawn(*rows: dict[str, Any], operation: str = "Task_Add", seed: int = 7) -> list[str]:
    draws = FaultDraws(1)
    draws.replace(rules(*rows, seed=seed), NOW)
    found = (draws.of_request(operation, "/", NOW) for _ in range(200))
    return ["" if rule is None else rule.name for rule in found]


def listed(draws: FaultDraws, clock: ManualClock) -> dict[str, Any]:
    """Return the only rule, as JSON shows it."""
    document: Any = draws.document(clock.now())
    return document["value"][0]


def test_same_seed_hits_the_same_requests() -> None:
    hits = [bool(name) for name in drawn(BUSY)]
    assert hits == [bool(name) for name in drawn(BUSY)]
    assert 40 < sum(hits) < 80
    assert hits != [bool(name) for name in drawn(BUSY, seed=8)]


def test_draws_do_not_depend_on_other_rules() -> None:
    alone = drawn({"name": "mine", **BUSY})
    other = {"name": "other", "fault": "delay", "delaySeconds": 1, "every": 7}
    both = drawn(other, {"name": "mine", **BUSY})
    for number, (mine, name) in enumerate(zip(alone, both, strict=True), 1):
        assert name == ("other" if number % 7 == 0 else mine)


def test_other_operations_do_not_count() -> None:
    draws = FaultDraws(1)
    draws.replace(rules({"operation": "Pool_List", "code": "ServerBusy", "every": 2}), NOW)
    asked = ["Pool_List", "Job_List", "Job_List", "Pool_List", "Job_List", "Pool_List", "Pool_List"]
    hits = [draws.of_request(operation, "/", NOW) is not None for operation in asked]
    assert hits == [False, False, False, True, False, False, True]


def test_rule_ends_with_its_count_and_its_time() -> None:
    clock, draws = ManualClock(), FaultDraws(1)
    held = {"operation": "Pool_List", "code": "ServerBusy", "count": 2, "afterSeconds": 10}
    draws.replace(rules({**held, "untilSeconds": 20}), clock.now())

    def ask() -> bool:
        return draws.of_request("Pool_List", "/pools", clock.now()) is not None

    assert not ask()
    clock.push(10)
    assert [ask(), ask(), ask()] == [True, True, False]
    draws.replace(rules({**held, "untilSeconds": 20}), clock.now())
    clock.push(20)
    assert not ask()
    shown = listed(draws, clock)
    assert (shown["matched"], shown["hits"], shown["holds"]) == (0, 0, False)


def test_hits_are_listed_with_time_and_request() -> None:
    draws = FaultDraws(1)
    draws.replace(rules({"operation": "Pool_*", "code": "ServerBusy", "every": 2}), NOW)
    for _ in range(5):
        draws.of_request("Pool_Get", "/pools/a", NOW)
    document: Any = draws.document(NOW)
    [shown] = document["value"]
    assert document["seed"] == 7
    assert (shown["matched"], shown["hits"]) == (5, 2)
    assert (
        shown["newest"] == [{"at": "2026-01-01T00:00:00.000000Z", "what": "Pool_Get /pools/a"}] * 2
    )


def test_start_task_fails_on_every_third_node() -> None:
    world = ruled({"fault": "startTask", "every": 3, "exitCode": 9})
    start = {"commandLine": "/bin/true", "waitForSuccess": True}
    pool = world.pool(startTask=start, targetDedicatedNodes=7)
    for execution in list(world.processes.values()):
        line = execution.body["commandLine"]
        world.finish(execution, failed(9) if "exit 9" in line else OK)
    by_number = [node.state for node in sorted(pool.nodes.values(), key=lambda n: n.number)]
    bad, good = NodeState.START_TASK_FAILED, NodeState.IDLE
    assert by_number == [good, good, bad, good, good, bad, good]
    assert all(node.start_task == start for node in pool.nodes.values())


def test_machines_of_each_pool_are_counted_by_themselves() -> None:
    rule = {"fault": "noBoot", "every": 2, "pool": "gpus-*"}
    world = ruled(rule)
    for name in ("gpus-a", "gpus-b", "other"):
        world.pool(name, targetDedicatedNodes=2)
    world.push(3600)
    found = [sorted(n.state for n in p.nodes.values()) for p in world.account.pools.values()]
    half = [NodeState.IDLE, NodeState.STARTING]
    assert found == [half, half, [NodeState.IDLE, NodeState.IDLE]]


def test_slow_boot_takes_longer() -> None:
    world = ruled({"fault": "slowBoot", "delaySeconds": 100, "count": 1})
    pool = world.pool(targetDedicatedNodes=2)
    assert sorted(states(pool)) == ["creating", "idle"]
    world.push(45)
    assert sorted(states(pool)) == ["idle", "starting"]
    world.push(54)
    assert sorted(states(pool)) == ["idle", "starting"]
    world.push(1)
    assert states(pool) == ["idle", "idle"]


def test_reboot_gets_rid_of_an_unusable_node() -> None:
    world = ruled({"fault": "unusable", "code": "DiskFailed"})
    node = world.node(world.pool())
    assert (node.state, node.errors[0]["code"]) == (NodeState.UNUSABLE, "DiskFailed")
    world.push(3600)
    assert node.state is NodeState.UNUSABLE
    nodes.drain_into(world.account, node, NodeState.REBOOTING, Stop.REQUEUE, world.clock.now())
    world.settle()
    world.push(5)
    world.push(5)
    assert node.state is NodeState.IDLE


def test_capacity_falls_and_returns() -> None:
    world = ruled(
        {"fault": "capacity", "pool": "gpus", "nodes": 1, "afterSeconds": 100, "untilSeconds": 200},
        notice_s=0,
    )
    pool = world.pool("gpus", targetDedicatedNodes=0, targetLowPriorityNodes=3)
    other = world.pool("other", targetDedicatedNodes=0, targetLowPriorityNodes=3)
    world.push(79)
    assert states(pool) == ["idle"] * 3
    world.push(1)
    assert sorted(states(pool)) == ["idle", "preempted", "preempted"]
    world.push(100)
    world.push(10)
    world.push(10)
    assert states(pool) == states(other) == ["idle"] * 3


def test_quota_shrinks_at_a_time_and_returns() -> None:
    quota = {"fault": "quota", "quota": "dedicatedCores", "limit": 2}
    world = ruled({**quota, "afterSeconds": 100, "untilSeconds": 200}, dedicated_cores=100)
    world.pool("before", targetDedicatedNodes=3)
    world.push(90)
    refused = world.pool("during", targetDedicatedNodes=1)
    assert refused.allocation is AllocationState.STEADY
    assert refused.resize_errors[0]["code"] == "AccountCoreQuotaReached"
    world.push(100)
    assert states(world.pool("after", targetDedicatedNodes=1)) == ["idle"]
    shown = listed(world.account.faults, world.clock)
    assert (shown["hits"], shown["holds"]) == (1, False)


def test_forgotten_rules_give_quota_and_capacity_back() -> None:
    world = ruled(
        {"fault": "quota", "quota": "pools", "limit": 0}, {"fault": "capacity", "nodes": 0}
    )
    assert world.account.limits.pools == 0
    pool = world.pool(targetDedicatedNodes=0, targetLowPriorityNodes=2)
    assert states(pool) == []
    fault_rules.load(world.account, RuleSet(), world.clock.now())
    world.settle()
    world.push(10)
    world.push(10)
    assert (world.account.limits.pools, states(pool)) == (None, ["idle", "idle"])


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ({"operation": "Task_Ad", "code": "ServerBusy"}, "unknown operation 'Task_Ad'"),
        ({"operation": "", "code": "ServerBusy"}, "invalid operation ''"),
        ({"code": "ServerBussy"}, "unknown code 'ServerBussy'"),
        ({"code": "ServerBusy", "rate": 0}, "invalid rate 0"),
        ({"code": "ServerBusy", "rate": -0.5}, "invalid rate -0.5"),
        ({"code": "ServerBusy", "rate": 1.5}, "invalid rate 1.5"),
        ({"code": "ServerBusy", "rate": float("nan")}, "invalid rate nan"),
        ({"code": "ServerBusy", "rate": True}, "invalid rate True"),
        ({"code": "ServerBusy", "rate": 0.5, "every": 2}, "rate and every"),
        ({"code": "ServerBusy", "every": 0}, "invalid every 0"),
        ({"code": "ServerBusy", "every": 1.5}, "invalid every 1.5"),
        ({"code": "ServerBusy", "count": -1}, "invalid count -1"),
        ({"code": "ServerBusy", "status": 200}, "invalid status 200"),
        ({"code": "ServerBusy", "pool": "a"}, "unknown pool"),
        ({"code": "ServerBusy", "operatoin": "*"}, "use 'operation'"),
        ({"code": "ServerBusy", "afterSeconds": -1}, "invalid afterSeconds -1"),
        ({"code": "ServerBusy", "afterSeconds": 5, "untilSeconds": 5}, "never holds"),
        ({"code": "ServerBusy", "untilSeconds": 0}, "never holds"),
        ({"fault": "delay"}, "missing delaySeconds"),
        ({"fault": "delay", "delaySeconds": 301}, "invalid delaySeconds 301"),
        ({"fault": "rset"}, "use 'reset'"),
        ({"fault": "noBoot", "pool": "a b"}, "no pool can match 'a b'"),
        ({"fault": "noBoot", "pool": "x" * 65}, "no pool can match"),
        ({"fault": "noBoot", "operation": "Pool_Add"}, "unknown operation"),
        ({"fault": "startTask", "exitCode": 0}, "invalid exitCode 0"),
        ({"fault": "capacity", "pool": "a"}, "missing nodes"),
        ({"fault": "capacity", "nodes": -1}, "invalid nodes -1"),
        ({"fault": "quota", "quota": "cores", "limit": 3}, "unknown quota 'cores'"),
        ({"fault": "quota", "quota": "pools"}, "missing limit"),
        ({}, "missing delaySeconds"),
        (3, "invalid rule 1"),
        *(
            ({**row, "rate": rate}, f"invalid rate {rate}: {why}; use a number above 0 to 1")
            for row in (BUSY, {"fault": "noBoot"})
            for rate, why in (
                (0, "it would have no effect"),
                (1.5, "it is out of range"),
                (-1, "it is out of range"),
                (True, "a number is expected"),
            )
        ),
        ({"fault": "delay", "delaySeconds": 0}, "invalid delaySeconds 0: it would have no effect"),
        ({"fault": "slowBoot", "delaySeconds": 0}, "use a number above 0 to 31622400"),
        ({"fault": "startTask", "exitCode": 0}, "invalid exitCode 0: it is out of range"),
        ({"code": "ServerBusy", "status": 200}, "invalid status 200: it is out of range"),
        ({"fault": "capacity", "nodes": -1}, "invalid nodes -1: it is out of range"),
        ({"fault": "quota", "quota": "pools", "limit": 1.5}, "a whole number is expected"),
    ],
)
def test_rule_that_can_never_hit_is_refused(row: Any, word: str) -> None:
    with pytest.raises(RuleError) as refused:
        rules(row)
    assert word in str(refused.value)
    assert all((refused.value.what, refused.value.why, refused.value.fix))


def test_rule_behind_one_that_hits_everything_is_refused() -> None:
    with pytest.raises(RuleError, match="rule 2 can never hit a request: 'rule-1' before it"):
        rules({"code": "ServerBusy"}, {"operation": "Task_*", "fault": "reset"})
    assert rules({"operation": "Job_*", "code": "ServerBusy"}, {"fault": "reset"})
    assert rules({"code": "ServerBusy", "count": 3}, {"fault": "reset"})


@pytest.mark.parametrize(
    ("document", "word"),
    [
        ([], "an object"),
        ({}, "missing rules"),
        ({"rules": []}, "missing rules"),
        ({"rules": [BUSY], "sed": 3}, "use 'seed'"),
        ({"rules": [BUSY], "seed": "x"}, "invalid seed 'x'"),
        ({"rules": [{"name": "a", **BUSY}, {"name": "a", **BUSY}]}, "is used twice"),
        ({"rules": [BUSY] * 101}, "one too many"),
    ],
)
def test_invalid_document_is_refused(document: Any, word: str) -> None:
    with pytest.raises(RuleError, match=word):
        parse_rules(document, OPERATIONS)


def test_file_is_toml_or_json(tmp_path: Path) -> None:
    toml, text = tmp_path / "a.toml", tmp_path / "a.json"
    toml.write_text('seed = 7\n[[rules]]\noperation = "Task_*"\ncode = "ServerBusy"\nrate = 0.3\n')
    text.write_text(json.dumps({"seed": 7, "rules": [BUSY]}))
    assert load_rules(toml, OPERATIONS) == load_rules(text, OPERATIONS) == rules(BUSY)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.toml", "seed = ", "it is not TOML: Invalid value (at end of document)"),
        ("a.json", "{", "it is not JSON"),
        ("a.yaml", "", "name it .toml or .json"),
        ("a.toml", "\udcff", "it is not TOML"),
        ("a.json", "[" * 100_000, "it is not JSON"),
        ("a.toml", '[[rules]]\nfault = "rset"', "a.toml: rule 1: unknown fault 'rset'"),
    ],
)
def test_unreadable_file_is_refused(tmp_path: Path, name: str, text: str, word: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RuleError) as refused:
        load_rules(path, OPERATIONS)
    assert word in str(refused.value)


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="No such file"):
        load_rules(tmp_path / "none.toml", OPERATIONS)


def test_every_key_has_a_fault_and_every_fault_its_keys() -> None:
    assert {key for keys in KEYS_OF.values() for key in keys} == set(RULE_KEYS)
    assert set(KEYS_OF) == set(FaultKind)


_POOLS = {"fault": "quota", "quota": "pools", "limit": 3}
_ROOM = {"fault": "capacity", "nodes": 2, "pool": "a-*"}


@pytest.mark.parametrize(
    ("earlier", "later", "is_refused"),
    [
        (_POOLS, {**_POOLS, "limit": 4}, True),
        ({**_POOLS, "afterSeconds": 9}, {**_POOLS, "limit": 4}, True),
        (_POOLS, {**_POOLS, "limit": 4, "afterSeconds": 9}, False),
        (_POOLS, {**_POOLS, "quota": "spotCores"}, False),
        (_ROOM, {**_ROOM, "nodes": 1}, True),
        (_ROOM, {**_ROOM, "nodes": 1, "pool": "*"}, True),
        (_ROOM, {**_ROOM, "nodes": 1, "pool": "b"}, False),
        (_ROOM, {**_ROOM, "nodes": 1, "untilSeconds": 9}, False),
        ({**_ROOM, "pool": "*"}, _ROOM, False),
        ({**_ROOM, "pool": "a-1"}, _ROOM, True),
        ({**_ROOM, "pool": "A-1"}, {**_ROOM, "pool": "a-1"}, True),
        ({**_ROOM, "pool": "b-1"}, _ROOM, False),
        (_ROOM, {**_ROOM, "pool": "a-?"}, False),
    ],
)
def test_rule_that_a_later_one_always_replaces_is_refused(
    earlier: dict[str, Any], later: dict[str, Any], *, is_refused: bool
) -> None:
    if not is_refused:
        assert len(rules(BUSY, earlier, later).rules) == 3
        return
    with pytest.raises(RuleError, match="rule 2 never counts: 'rule-3' behind it") as refused:
        rules(BUSY, earlier, later)
    assert refused.value.fix == "remove it, or give 'rule-3' a time"
