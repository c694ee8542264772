"""Who has the roles of an operator after a deployment, from the state and the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from runner.protocol.errors import RunnerError
from runner_infra.config.stack import OperatorConfig
from runner_infra.planning.earlier import (
    PLANNER,
    Earlier,
    People,
    foreign_stack,
    plan_people,
    read_earlier,
)
from tests.unit.infra.stacks import config_of

_ADA, _BOB, _CI, _EVE = (f"{letter * 8}-0000-0000-0000-000000000000" for letter in "abce")
_URN = "urn:pulumi:dev::runner::{kind}::{name}"
_ROLE = "azure-native:authorization:RoleAssignment"


def state(
    roles: Mapping[str, str],
    deployers: Sequence[str] | None = (),
    names: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return a state with roles by object ID; `deployers` None is that of an older version."""
    found: list[dict[str, Any]] = []
    for principal, kind in roles.items():
        for part in ("blobs", "batch"):
            name = f"operator-{principal}-{part}"
            inputs = {"principalId": principal, "principalType": kind}
            urn = _URN.format(kind=f"runner:infra:Operators${_ROLE}", name=name)
            found.append(
                {"type": _ROLE, "urn": urn, "id": f"/subscriptions/{name}", "inputs": inputs}
            )
    outputs = {} if deployers is None else {"names": dict(names or {})}
    operators = "runner:infra:Operators"
    urn = _URN.format(kind=operators, name="operators")
    found.append({"type": operators, "urn": urn, "outputs": outputs})
    for each in deployers or ():
        kind = "runner:infra:Deployer"
        urn = _URN.format(kind=f"{operators}${kind}", name=f"deployer-{each}")
        found.append({"type": kind, "urn": urn})
    return {"resources": found}


def people(
    deployer: str, deployment: Mapping[str, Any], operators: Sequence[object] = ()
) -> People:
    config = config_of(operators=list(operators))
    earlier = read_earlier(deployment, config.operators)
    return plan_people(config, OperatorConfig(id=deployer), earlier)


def ids(found: Sequence[OperatorConfig]) -> set[str | None]:
    return {each.id for each in found}


def test_first_deployment_gives_roles_to_the_deployer_and_the_list() -> None:
    found = people(_ADA, {}, [_EVE])
    assert ids(found.operators) == {_ADA, _EVE}
    assert ids(found.deployers) == {_ADA}
    assert not found.removed


def test_earlier_deployers_keep_their_roles_and_kind() -> None:
    found = people(_BOB, state({_ADA: "User", _CI: "ServicePrincipal"}, [_ADA, _CI]))
    kinds = {each.id: each.kind for each in found.operators}
    assert kinds == {_ADA: "user", _BOB: "user", _CI: "service_principal"}
    assert ids(found.deployers) == {_ADA, _BOB, _CI}


def test_removed_line_removes_the_roles() -> None:
    found = people(_ADA, state({_ADA: "User", _EVE: "User"}, [_ADA]))
    assert ids(found.operators) == {_ADA}
    assert ids(found.removed) == {_EVE}
    assert [text for text in found.warnings() if _EVE in text]


def test_list_decides_about_a_deployer_that_it_names() -> None:
    listed = people(_BOB, state({_ADA: "User", _BOB: "User"}, [_ADA, _BOB]), [_ADA])
    assert ids(listed.deployers) == {_BOB}
    without = people(_BOB, state({_ADA: "User", _BOB: "User"}, [_BOB]))
    assert ids(without.removed) == {_ADA}


@pytest.mark.parametrize("deployer", [_BOB, _CI])
def test_principal_without_access_has_no_roles_even_if_it_deploys(deployer: str) -> None:
    none = {"id": _CI.upper(), "kind": "service_principal", "access": "none"}
    found = people(deployer, state({_BOB: "User", _CI: "ServicePrincipal"}, [_BOB, _CI]), [none])
    assert ids(found.operators) == {_BOB}
    assert ids(found.removed) == {_CI.upper()}


def test_identity_that_only_plans_gets_no_roles() -> None:
    deployed = state({_ADA: "User"}, [_ADA])
    urn = _URN.format(kind="azure-native:managedidentity:UserAssignedIdentity", name=PLANNER)
    identity = {"type": urn.split("::")[2], "urn": urn, "outputs": {"principalId": _CI.upper()}}
    found = people(_CI, {"resources": [*deployed["resources"], identity]})
    assert ids(found.operators) == ids(found.deployers) == {_ADA}
    assert not found.removed


def test_state_without_records_removes_nobody() -> None:
    found = people(_BOB, state({_ADA: "User", _EVE: "Group"}, None), [_EVE])
    assert ids(found.operators) == {_ADA, _BOB, _EVE}
    assert not found.removed


def test_ids_of_names_and_of_the_stack_are_read_from_the_state() -> None:
    group = {
        "type": "azure-native:resources:ResourceGroup",
        "urn": _URN.format(kind="azure-native:resources:ResourceGroup", name="group"),
        "id": "/subscriptions/X/resourceGroups/RG",
        "inputs": {"tags": {"runner-stack-id": "7"}},
    }
    known = state({}, [], {"eve@example.com": _EVE})
    found = read_earlier({"resources": [group, *known["resources"]]}, ())
    assert found.stack_id == "7"
    assert "/subscriptions/x/resourcegroups/rg" in found.resources
    assert found.names == {"eve@example.com": _EVE}
    pending = {"pending_operations": [{"type": "creating", "resource": {**group, "id": ""}}]}
    assert read_earlier(pending, ()).stack_id == "7"


def test_empty_state_has_no_earlier_deployment() -> None:
    assert read_earlier({}, ()) == Earlier()


def test_error_tells_a_foreign_from_an_untagged_stack() -> None:
    assert "is 7" in foreign_stack("dev", "group", {"runner-stack-id": "7"}).why
    assert "older version" in foreign_stack("dev", "group", {"app": "runner"}).why
    assert "other means" in foreign_stack("dev", "group", {}).why


@pytest.mark.parametrize(
    ("operators", "problem"),
    [
        ([{"kind": "user"}], "no id and no name"),
        ([{"name": "team@example.com", "kind": "group"}], "only users have names"),
        ([_EVE, {"id": _EVE.upper()}], "duplicate operator"),
        (["eve"], "eve"),
    ],
)
def test_invalid_operator_is_refused(operators: list[object], problem: str) -> None:
    with pytest.raises(RunnerError, match="R-STACK-CONFIG") as caught:
        config_of(operators=operators)
    assert problem in str(caught.value)
