"""Earlier deployments of a stack, by its state, and who has roles after the next one."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from runner.protocol.errors import RunnerError
from runner_infra.config.stack import ID_TAG, OperatorConfig, StackConfig

# A component without resources in Azure: who keeps the roles of a deployer.
DEPLOYER_TYPE = "runner:infra:Deployer"
OPERATORS_TYPE = "runner:infra:Operators"
PLANNER = "identity-ci-plan"  # the name of the identity in Pulumi that plans, but never deploys
_ROLE_TYPE = "azure-native:authorization:RoleAssignment"
# Each operator has this role, whatever the stack adopts.
_ROLE = re.compile(r"operator-(?P<id>[0-9a-f-]{36})-batch")
_DEPLOYER = re.compile(r"deployer-(?P<id>[0-9a-f-]{36})")
# Of IDs that replace those of names, where nobody is asked for them: an offline preview.
_UNKNOWN = uuid.UUID("5d1d3c4e-0d0c-4a55-8f6e-6d4b8f0a7a11")
_Kind = Literal["user", "group", "service_principal"]
_KINDS: Mapping[str, _Kind] = {
    "User": "user",
    "Group": "group",
    "ServicePrincipal": "service_principal",
}


@dataclass(frozen=True, slots=True)
class Earlier:
    """The earlier deployments of a stack; empty if there are none.

    Attributes:
        stack_id: The tag that its resources have, or None.
        resources: The ARM IDs of its resources, in lower case.
        operators: Everybody who has the roles of an operator.
        deployers: Those who have them because they deployed, and are not in the configuration.
        names: The object IDs of operators that the configuration names, by name in lower case.
        planners: The object IDs of the identities that plan, but never deploy, in lower case.
    """

    stack_id: str | None = None
    resources: frozenset[str] = frozenset()
    operators: Sequence[OperatorConfig] = ()
    deployers: Sequence[OperatorConfig] = ()
    names: Mapping[str, str] = field(default_factory=dict[str, str])
    planners: frozenset[str] = frozenset()


def read_earlier(deployment: Mapping[str, Any], listed: Iterable[OperatorConfig]) -> Earlier:
    """Return the earlier deployments in an exported state of Pulumi.

    The state of an older version does not record deployers. There, everybody who has roles and is
    not listed counts as one, so that nobody loses access without a decision.

    Args:
        deployment: the field `deployment` of an exported state.
        listed: the operators of the present configuration.
    """
    found = list(_resources(deployment))
    roles = {each.id: each for each in _operators(found)}
    marked = {match["id"] for name in _names(found, DEPLOYER_TYPE) for match in _matches(name)}
    components = [each for each in found if each.get("type") == OPERATORS_TYPE]
    recorded = any("names" in _part(each, "outputs") for each in components)
    if not recorded:
        marked = set(roles) - {str(each.id).lower() for each in listed}
    ids = (str(each.get("id") or "").lower() for each in found)
    return Earlier(
        stack_id=next(filter(None, map(_stack_id, found)), None),
        resources=frozenset(each for each in ids if each.startswith("/subscriptions/")),
        operators=tuple(roles.values()),
        deployers=tuple(each for each in roles.values() if each.id in marked),
        names=_recorded_names(components),
        planners=frozenset(
            str(_part(each, "outputs").get("principalId")).lower()
            for each in found
            if _name(each) == PLANNER
        ),
    )


def foreign_stack(stack: str, what: str, tags: Mapping[str, str]) -> RunnerError:
    """Build the error for a stack that another state deploys; `what` names its first resource."""
    stack_id = tags.get(ID_TAG)
    if stack_id:
        why = f"its tag {ID_TAG} is {stack_id}, which this state of Pulumi does not know"
    elif tags.get("app") == "runner":
        why = f"it has no tag {ID_TAG}: an older version of runner deployed it, with another state"
    else:
        why = "it has no tag of runner: it was created by other means"
    return RunnerError(
        "R-STACK-FOREIGN",
        f"{what} exists, but not in this state of Pulumi",
        why=why,
        fix=f"to train there, run `runner join --stack {stack}`; to deploy it, set "
        "PULUMI_BACKEND_URL to the state of its deployer; for another stack, run "
        "`runner init --stack NAME`",
    )


def _resources(deployment: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the resources of a state, and those with an unfinished operation."""
    yield from deployment.get("resources") or ()
    for each in deployment.get("pending_operations") or ():
        yield each["resource"]


def _operators(found: Iterable[Mapping[str, Any]]) -> Iterator[OperatorConfig]:
    for each in found:
        match = _ROLE.fullmatch(_name(each)) if each.get("type") == _ROLE_TYPE else None
        if match is not None and not each.get("delete"):
            kind = str(_part(each, "inputs").get("principalType"))
            yield OperatorConfig(id=match["id"], kind=_KINDS.get(kind, "user"))


def _matches(name: str) -> Iterator[re.Match[str]]:
    if match := _DEPLOYER.fullmatch(name):
        yield match


def _names(found: Iterable[Mapping[str, Any]], kind: str) -> Iterator[str]:
    return (_name(each) for each in found if each.get("type") == kind)


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a nested object, empty if it is absent or encrypted."""
    found: object = document.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, Mapping) else {}


def _name(resource: Mapping[str, Any]) -> str:
    return str(resource.get("urn", "")).rpartition("::")[2]


def _stack_id(resource: Mapping[str, Any]) -> str | None:
    value = _part(_part(resource, "inputs"), "tags").get(ID_TAG)
    return str(value) if value else None


def _recorded_names(components: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for each in components:
        found |= _part(_part(each, "outputs"), "names")
    return found


@dataclass(frozen=True, slots=True)
class People:
    """The principals of a deployment, with IDs in lower case.

    `deployers` are the operators that the configuration does not list: who deploys, and who did
    before. `removed` had the roles and lose them.
    """

    operators: tuple[OperatorConfig, ...]
    deployers: tuple[OperatorConfig, ...]
    removed: tuple[OperatorConfig, ...]

    def warnings(self) -> Iterator[str]:
        """Yield one warning for each principal that loses access."""
        for each in self.removed:
            yield (
                f"{each.kind.replace('_', ' ')} {each.name or each.id} loses access to the Batch "
                "account and the storage: the configuration no longer lists it, or with access: "
                "none"
            )


def plan_people(config: StackConfig, deployer: OperatorConfig, earlier: Earlier) -> People:
    """Return who has roles: the listed operators, the deployer, and earlier deployers.

    A principal that the configuration lists has what the list says, even if it deploys. An identity
    that only plans gets no roles, so that a plan shows what somebody else would deploy.
    """
    listed = {_id(each): each for each in config.operators}
    known = {_id(each): each for each in (*earlier.deployers, deployer)}
    kept = {key: each for key, each in known.items() if key not in earlier.planners}
    unlisted = {key: each for key, each in kept.items() if key not in listed}
    having = {key: each for key, each in listed.items() if each.access == "run"} | unlisted
    return People(
        operators=tuple(each.model_copy(update={"id": key}) for key, each in having.items()),
        deployers=tuple(each.model_copy(update={"id": key}) for key, each in unlisted.items()),
        removed=tuple(
            listed.get(_id(each), each) for each in earlier.operators if _id(each) not in having
        ),
    )


def _id(operator: OperatorConfig) -> str:
    """Return the object ID; for a name that nobody was asked for yet, a replacement."""
    return (operator.id or str(uuid.uuid5(_UNKNOWN, str(operator.name)))).lower()
