"""Stacks with teams: what the nodes of a pool reach, and what stays as it is without teams."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runner.contract import SHARED_TEAM, StackOutputs, parse_stack_outputs
from runner.protocol.errors import RunnerError
from tests.unit.infra import cloud
from tests.unit.infra.recording import Recording, Registered
from tests.unit.infra.stacks import ADOPTED, EVERYTHING, T4, config_of, deploy

_VISION = {**T4, "id": "vision-t4", "team": "vision"}
_AUDIO = {**T4, "id": "audio-t4", "team": "audio"}
_DELETE, _READ, _WRITE = "delete", "read", "write"
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/"
# Data actions of the roles on blobs that nodes may have, by the GUID of the role.
_ACTIONS = {
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": {_DELETE, _READ, _WRITE},
    "2a2b9908-6ea1-4ae2-8e65-a410df84e7d1": {_READ},
}
_PULL = "7f951dda-4ed3-4680-a7ca-43fe172d538d"
_EXPRESSION = re.compile(
    r"\(\(!\(ActionMatches\{'" + re.escape(_BLOBS) + r"(\w+)'\}\)\)"
    r" OR \(@Resource\[Microsoft\.Storage/storageAccounts/blobServices/containers:name\]"
    r" (StringStartsWith|StringEquals) '([^']*)'\)\)"
)


def _outputs(found: Recording) -> StackOutputs:
    return parse_stack_outputs(json.dumps(found.exports))


def _principal(found: Recording, identity: str) -> str:
    (own,) = [
        r
        for r in found.of("managedidentity:UserAssignedIdentity")
        if cloud.arm_id(r.type, r.inputs) == identity
    ]
    return cloud.outputs(own.type, own.inputs)["principalId"]


def _roles(found: Recording, identity: str) -> list[Registered]:
    principal = _principal(found, identity)
    roles = found.of("authorization:RoleAssignment")
    return [role for role in roles if role.inputs["principalId"] == principal]


def _allows(condition: str | None, action: str, container: str) -> bool:
    """Evaluate a condition of a role assignment; one of another form is an error."""
    if condition is None:
        return True
    matched = _EXPRESSION.fullmatch(condition)
    assert matched, condition
    limited, operator, value = matched.groups()
    if action != limited:
        return True
    return container.startswith(value) if operator == "StringStartsWith" else container == value


def _reached(found: Recording, identity: str, containers: Sequence[str]) -> set[tuple[str, str]]:
    """Return the actions that an identity may do, with the IDs of the containers."""
    reached: set[tuple[str, str]] = set()
    for role in _roles(found, identity):
        kind = role.inputs["roleDefinitionId"].rpartition("/")[2]
        if kind == _PULL and "/registries/" in role.inputs["scope"]:
            continue
        for container in containers:
            if f"{container}/".lower().startswith(f"{role.inputs['scope']}/".lower()):
                name, condition = container.rpartition("/")[2], role.inputs.get("condition")
                reached |= {(a, name) for a in _ACTIONS[kind] if _allows(condition, a, name)}
    return reached


def _containers(found: Recording) -> list[str]:
    declared = [cloud.arm_id(r.type, r.inputs) for r in found.of("storage:BlobContainer")]
    account = declared[0].rpartition("/")[0]
    return [*declared, f"{account}/of-other-people"]


def _identities_in(value: object) -> Iterator[str]:
    """Yield the identities that the inputs of a pool name, in whatever field."""
    yield from re.findall(r"/subscriptions/[^\"]*/userAssignedIdentities/[^\"]+", json.dumps(value))


def assert_parts_are_apart(found: Recording) -> None:
    whole, containers = _outputs(found), _containers(found)
    pools = {pool.inputs["poolName"]: pool.inputs for pool in found.of("batch:Pool")}
    assert {pool.id for pool in whole.pools} == set(pools)
    seen: set[str] = set()
    for part in whole.parts():
        identity, code = part.identity_resource_id, part.container_code
        written = {part.container_runs, part.container_models}
        assert identity
        assert code
        own = {*written, code}
        assert not own & seen, "a container of two parts"
        seen |= own
        reached = _reached(found, identity, containers)
        readable = {name for _, name in reached} - own
        assert readable == {whole.container_data}
        assert {action for action, name in reached if name not in written} == {_READ}
        assert {(_READ, name) for name in own} | {(_WRITE, name) for name in written} <= reached
        assert {name for action, name in reached if action == _DELETE} == {part.container_runs}
        if part.team not in (None, SHARED_TEAM):
            scopes = [role.inputs["scope"] for role in _roles(found, identity)]
            assert all(re.search("/(containers|registries)/[^/]+$", scope) for scope in scopes)
        for pool in part.pools:
            assert set(_identities_in(pools[pool.id])) == {identity}
            mounted = re.findall(r'"containerName": "([^"]*)"', json.dumps(pools[pool.id]))
            assert set(mounted) <= own | {whole.container_data}
            assert cloud.ACCOUNT_KEY not in json.dumps(pools[pool.id])


_TEAM_NAMES = st.sampled_from(["vision", "audio", "a", "app", "data", "runs", "t" * 24])


@st.composite
def _stacks(draw: st.DrawFn) -> dict[str, Any]:
    pools: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 4))):
        team = draw(st.none() | _TEAM_NAMES)
        kinds = draw(st.lists(st.sampled_from(["runs", "models", "data"]), unique=True))
        mounts = [{"kind": "blob", "container": kind, "path": kind} for kind in kinds]
        pool = {**T4, "id": f"p{number}", "mounts": mounts, "containers": draw(st.booleans())}
        pools.append(pool if team is None else {**pool, "team": team})
    adopted = draw(st.sets(st.sampled_from(sorted(ADOPTED))))
    values: dict[str, Any] = {"pools": pools, "registry": draw(st.booleans())}
    if adopted:
        values["adopt"] = {key: ADOPTED[key] for key in adopted}
    if "storage_account" not in adopted:
        days = {"keep_runs_days": 90} if draw(st.booleans()) else {}
        values["storage"] = days | ({"file_share_gib": 100} if draw(st.booleans()) else {})
    return values


@pytest.mark.attack
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_stacks())
def test_nodes_reach_no_container_of_another_part_of_the_stack(values: dict[str, Any]) -> None:
    assert_parts_are_apart(deploy(config_of("a" * 20, **values)))


def _with_teams(**values: Any) -> Recording:
    all_values: dict[str, Any] = {"pools": [T4, _VISION, _AUDIO], **values}
    return deploy(config_of(**all_values))


@pytest.mark.attack
@pytest.mark.parametrize("adopted", [False, True], ids=["own", "adopted"])
def test_each_team_has_an_identity_and_containers_of_its_own(adopted: bool) -> None:
    found = _with_teams(registry=True, **({"adopt": ADOPTED} if adopted else {}))
    assert_parts_are_apart(found)
    whole = _outputs(found)
    vision = whole.for_team("vision")
    suffix = "-runner-dev" if adopted else ""
    assert vision.containers == (
        f"runs-vision{suffix}",
        f"models-vision{suffix}",
        f"data{suffix}",
        f"code-vision{suffix}",
    )
    assert [pool.id for pool in vision.pools] == ["vision-t4"]
    assert [pool.id for pool in whole.for_team(None).pools] == ["t4"]
    assert len({part.identity_client_id for part in whole.parts()}) == 3


@pytest.mark.attack
@pytest.mark.parametrize(
    ("change", "key", "why"),
    [
        ({"nodes_add_tasks": True}, "nodes_add_tasks", "pools of every team"),
        (
            {
                "storage": {"file_share_gib": 100},
                "pools": [_VISION, {**T4, "mounts": [{"kind": "files"}]}],
            },
            "mounts",
            "opens the containers of every team",
        ),
        ({"pools": [{**T4, "team": SHARED_TEAM}]}, "team", "reserved"),
        # `runs-runner-runner-dev` would be a container of the stack `runner-dev`, too.
        ({"pools": [{**T4, "team": "runner"}]}, "team", "reserved"),
        ({"pools": [{**T4, "team": "a-b"}]}, "team", "not the name of a team"),
        ({"pools": [{**T4, "team": "a" * 25}]}, "team", "not the name of a team"),
        ({"pools": [{**T4, "team": "Vision"}]}, "team", "not the name of a team"),
    ],
)
def test_what_would_join_teams_is_refused(change: dict[str, Any], key: str, why: str) -> None:
    values: dict[str, Any] = {"pools": [T4, _VISION], **change}
    with pytest.raises(RunnerError) as caught:
        config_of(**values)
    assert key in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.attack
def test_names_of_containers_fit_and_differ_between_stacks() -> None:
    names: set[str] = set()
    for stack in ("dev", "runner-dev", "vision-runner-dev", "a" * 100):
        pools = [{**T4, "id": team, "team": team} for team in ("vision", "t" * 24)]
        found = deploy(config_of(stack, pools=pools, adopt=ADOPTED))
        own = {r.inputs["containerName"] for r in found.of("storage:BlobContainer")}
        assert all(re.fullmatch(r"[a-z0-9](-?[a-z0-9]){2,62}", name) for name in own)
        assert not own & names
        names |= own


def test_teams_change_nothing_in_the_shared_part() -> None:
    pools = [{**pool, "mounts": []} for pool in EVERYTHING["pools"]]
    values: dict[str, Any] = {**EVERYTHING, "nodes_add_tasks": False, "pools": pools}
    plain = {r.name: r.inputs for r in deploy(config_of(**values)).resources}
    values["pools"] = [*pools, _VISION]
    later = {r.name: r.inputs for r in deploy(config_of(**values)).resources}
    changed = [name for name, inputs in plain.items() if later[name] != inputs]
    assert changed == ["lifecycle", "container-stack"]  # the latter has the outputs of the stack
    added = set(later) - set(plain)
    assert added == {
        "container-runs-vision",
        "container-models-vision",
        "container-code-vision",
        "identity-nodes-vision",
        "nodes-write-runs-vision",
        "nodes-write-models-vision",
        "nodes-read-data-vision",
        "nodes-read-code-vision",
        "nodes-pull-images-vision",
        "pool-vision-t4",
        "mover-writes-runs-vision",
    }


def test_stack_without_teams_exports_none() -> None:
    found = deploy(config_of())
    assert found.exports["teams"] is None
    assert all("team" not in pool for pool in found.exports["pools"])
    whole = _outputs(found)
    assert whole.for_team(None) is whole
    assert len(whole.parts()) == 1


def test_lifecycle_rules_cover_the_containers_of_every_team() -> None:
    teams = [f"t{number}" for number in range(12)]
    pools = [{**T4, "id": team, "team": team} for team in teams]
    found = deploy(config_of(pools=pools, storage={"keep_runs_days": 90}))
    prefixes: dict[str, list[str]] = {}
    for rule in found.one("storage:ManagementPolicy").inputs["policy"]["rules"]:
        one = rule["definition"]["filters"]["prefixMatch"]
        assert len(one) <= 10  # the limit of Azure
        prefixes.setdefault(rule["name"].removesuffix("-10"), []).extend(one)
    runs, models, code = (
        [f"{kind}/", *(f"{kind}-{team}/" for team in teams)] for kind in ("runs", "models", "code")
    )
    assert prefixes == {
        "cool-models": models,
        "drop-unread-runs": runs,
        "drop-unread-code": code,
        "drop-old-logs": runs,
    }


def test_containers_of_teams_are_protected_and_operators_may_use_them() -> None:
    found = _with_teams(adopt=ADOPTED)
    data = [r for r in found.of("storage:BlobContainer") if r.name != "container-stack"]
    assert all(container.protect for container in data)
    scopes = {
        role.inputs["scope"].rpartition("/")[2]
        for role in found.of("authorization:RoleAssignment")
        if role.name.startswith("operator-")
    }
    assert {"runs-vision-runner-dev", "models-audio-runner-dev"} <= scopes
