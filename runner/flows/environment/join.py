"""Use a stack that somebody else deployed: store its outputs, and check a person's roles."""

from __future__ import annotations

import fnmatch
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.azure.arm import stacks as ask
from runner.azure.arm.client import ArmClient, open_arm
from runner.azure.auth.credentials import load_outputs, outputs_path
from runner.contract import (
    ContractError,
    NewerContractError,
    StackOutputs,
    decode_outputs,
    parse_stack_outputs,
)
from runner.core.azure.clouds import cloud_of_region, find_cloud, sign_in_step, with_cloud
from runner.core.checks import Check, failed, passed, skipped
from runner.core.home import write_atomically
from runner.core.settings import Settings
from runner.flows.environment.first_files import load_subscriptions
from runner.protocol.errors import RunnerError
from runner_infra.config.naming import Names
from runner_infra.config.stack import OUTPUTS_TAG
from runner_infra.planning.warnings import token_claims

_SUBSCRIPTION_VARIABLES = ("ARM_SUBSCRIPTION_ID", "AZURE_SUBSCRIPTION_ID")
_SHOWN = 3
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices"
_PROJECT = "name: runner\nruntime: python\n"


@dataclass(frozen=True, slots=True)
class Joined:
    """Outputs of a stack and where they are from: a file, a state or a subscription."""

    outputs: StackOutputs
    stack: str
    source: str


def load_joined(
    settings: Settings,
    source: str | None,
    named: str | None,
    subscription: str,
    env: Mapping[str, str],
) -> Joined:
    """Return the outputs of a stack.

    Args:
        settings: home and stack.
        source: a file, the URL of a state (`azblob://...`), or None for the subscription.
        named: the stack that the command names; None takes the only one.
        subscription: the ID of the subscription; empty takes that of the variables or of `az`.
        env: the variables of the command.

    Raises:
        RunnerError: R-JOIN-NONE, R-JOIN-WHICH, or the source cannot be read.
    """
    if source is None:
        return _from_subscription(named, subscription, env)
    if "://" in source:
        return _from_state(settings, source, named, env)
    return _from_file(Path(source), settings, named)


def store_joined(settings: Settings, joined: Joined, *, force: bool) -> Path:
    """Store the outputs for the commands of this machine. Return the file.

    Raises:
        RunnerError: R-JOIN-KNOWN, the name belongs to another stack here.
    """
    path = outputs_path(replace(settings, stack=joined.stack))
    if not force and path.is_file():
        try:
            known = parse_stack_outputs(path.read_text(encoding="utf-8"))
        except (ContractError, OSError, UnicodeDecodeError):
            known = joined.outputs
        if known.batch_endpoint != joined.outputs.batch_endpoint:
            raise RunnerError(
                "R-JOIN-KNOWN",
                f"stack {joined.stack!r} is another environment on this machine",
                why=f"{path} describes {known.batch_endpoint}, and the source "
                f"{joined.outputs.batch_endpoint}",
                fix="add --force to replace it; it stays deployed",
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, joined.outputs.to_json())
    return path


def write_outputs(settings: Settings, file: Path) -> StackOutputs:
    """Write the stored outputs of a stack, which have no secrets, for other people. Return them.

    Raises:
        RunnerError: the stack is unknown here, or the file cannot be written.
    """
    outputs = load_outputs(settings.for_whole_stack())
    named = replace(outputs.whole or outputs, stack=settings.stack)
    try:
        write_atomically(file, named.to_json())
    except OSError as err:
        raise RunnerError(
            "R-JOIN-FILE", f"cannot write {file}", why=str(err), fix="use another path"
        ) from err
    return named


def check_access(joined: Joined, env: Mapping[str, str]) -> Sequence[Check]:
    """Return the checks of the signed-in person's roles."""
    account = joined.outputs.batch_account_id
    if account is None:
        why = "the outputs have no IDs of the accounts: an older version of runner deployed it"
        return [skipped("roles", why)]
    cloud = cloud_of_region(joined.outputs.location).name
    management = open_arm(account.split("/")[2], env, cloud)
    try:
        token = management.sign_in()
    except RunnerError as err:
        return [failed("sign-in", err)]
    return list(check_roles(management, token, joined.outputs))


def _from_file(file: Path, settings: Settings, named: str | None) -> Joined:
    try:
        outputs = parse_stack_outputs(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as err:
        raise RunnerError(
            "R-JOIN-FILE",
            f"cannot read {file}",
            why=str(err),
            fix="use the path of a file that the deployer wrote with the option --write",
        ) from err
    except ContractError as err:
        raise _invalid(f"{file} has no outputs of a stack", err) from err
    return Joined(outputs, named or outputs.stack or settings.stack, str(file))


def _invalid(what: str, err: ContractError) -> RunnerError:
    newer = isinstance(err, NewerContractError)
    return RunnerError(
        "R-JOIN-FILE",
        what,
        why=str(err),
        fix="run `pip install --upgrade azure-batch-runner`"
        if newer
        else "ask the deployer for a file that the option --write wrote",
    )


def _from_state(settings: Settings, url: str, named: str | None, env: Mapping[str, str]) -> Joined:
    from runner.flows.environment.plan import need_pulumi  # noqa: PLC0415

    need_pulumi()
    from runner.azure.auth.sign_in import provider_variables  # noqa: PLC0415
    from runner_infra.engine import automation  # noqa: PLC0415  pulumi takes half a second

    cli = automation.find_cli(settings.home / "pulumi-cli")
    if cli is None:
        raise RunnerError(
            "R-PULUMI-MISSING",
            "the Pulumi CLI is not installed",
            why=f"reading {url} needs it",
            fix="install it (https://www.pulumi.com/docs/install), or join with a file that the "
            "deployer wrote",
        )
    in_cloud = with_cloud(env, find_cloud(env))  # the domain of the state's storage account
    added = {name: value for name, value in in_cloud.items() if name not in env}
    variables = {**added, **provider_variables(env), "PULUMI_BACKEND_URL": url}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "Pulumi.yaml").write_text(_PROJECT, encoding="utf-8")
        stack = automation.PulumiStack(Path(folder), named or "", cli, variables, url)
        name = _choose(automation.list_stacks(stack), named, url)
        raw = automation.outputs(replace(stack, name=name))
    return Joined(_parse_state(raw, name, url), name, url)


def _parse_state(raw: Mapping[str, object], name: str, url: str) -> StackOutputs:
    try:
        return parse_stack_outputs(json.dumps({"stack": name, **raw}))
    except (ContractError, TypeError) as err:
        raise RunnerError(
            "R-JOIN-NONE",
            f"stack {name!r} in {url} has no outputs",
            why=f"it is not deployed, or its deployment failed: {err}",
            fix="ask the deployer to complete it",
        ) from err


@dataclass(frozen=True, slots=True)
class _DeployedStack:
    """A stack in the subscription: its name, group, region and the container of its outputs."""

    name: str
    group: str
    location: str
    container: str | None


def _from_subscription(named: str | None, subscription: str, env: Mapping[str, str]) -> Joined:
    subscription = subscription or _default_subscription(env)
    management = open_arm(subscription, env)
    found = {each.name: each for each in _find(management)}
    where = f"subscription {subscription}"
    name = _choose(list(found), named, where, [f"{e.name} ({e.location})" for e in found.values()])
    container = found[name].container
    text = ask.find_published(management, container) if container else None
    if text is None:
        raise RunnerError(
            "R-JOIN-NONE",
            f"stack {name!r} in group {found[name].group} has no outputs in Azure",
            why="an older version of runner deployed it, its deployment is not complete, or you "
            "may not read its containers",
            fix="ask the deployer to deploy it with this version, or for a file with the outputs "
            "(option --write)",
        )
    try:
        outputs = parse_stack_outputs(decode_outputs(text))
    except ContractError as err:
        raise _invalid(f"cannot read the outputs of stack {name!r}", err) from err
    return Joined(outputs, name, where)


def _find(management: ArmClient) -> Iterator[_DeployedStack]:
    """Yield the stacks of the subscription. An identity names the container of the outputs.

    Who may read only the Batch account finds the container through its linked storage account.
    """
    tagged = list(ask.list_tagged(management))
    for each in sorted(tagged, key=lambda found: OUTPUTS_TAG in found.tags):
        marked = each.tags.get(OUTPUTS_TAG)
        container = f"{management.scope}/{marked}" if marked else None
        if container is None and each.is_account:
            storage = ask.find_storage_of(management, each.id)
            own = Names(each.stack, management.subscription_id).outputs_container
            container = storage and f"{storage}/blobServices/default/containers/{own}"
        if container is not None or each.is_account:
            yield _DeployedStack(each.stack, each.group, each.location, container)


def _choose(
    names: Sequence[str], named: str | None, where: str, shown: Sequence[str] | None = None
) -> str:
    """Return the named stack, or the only one."""
    listed = ", ".join(shown or names)
    if named is not None and named in names:
        return named
    if not names:
        raise RunnerError(
            "R-JOIN-NONE",
            f"no stack found in {where}",
            why="nobody has deployed one there, or you have no role on its accounts",
            fix="ask the deployer for a role, or for a file with the outputs (option --write)",
        )
    if named is not None:
        raise RunnerError(
            "R-JOIN-NONE",
            f"no stack {named!r} in {where}",
            why=f"found: {listed}",
            fix=f"use one of them, such as --stack {names[0]}",
        )
    if len(names) > 1:
        raise RunnerError(
            "R-JOIN-WHICH",
            f"{where} has {len(names)} stacks",
            why=f"found: {listed}",
            fix=f"name one of them, such as --stack {names[0]}",
        )
    return names[0]


def _default_subscription(env: Mapping[str, str]) -> str:
    for variable in _SUBSCRIPTION_VARIABLES:
        if env.get(variable):
            return env[variable]
    listed, why = load_subscriptions(env)
    if not listed:
        raise RunnerError(
            "R-JOIN-SUBSCRIPTION",
            "unknown subscription",
            why=why,
            fix=f"{sign_in_step(env)}, or name a file with the outputs; with variables that "
            "sign in, add --subscription ID",
        )
    return listed[0].id


@dataclass(frozen=True, slots=True)
class _RoleNeed:
    """A built-in role, the rights of it that training uses, and the resources that they are for."""

    name: str
    role: str
    actions: Sequence[str]
    data_actions: Sequence[str]
    resources: Sequence[str]


def check_roles(management: ArmClient, token: str, outputs: StackOutputs) -> Iterator[Check]:
    """Yield a check for each role that an operator needs.

    A missing one names the commands that assign it and the principals that may do so.

    Args:
        management: the subscription of the stack.
        token: of the signed-in principal.
        outputs: the outputs of the whole stack.
    """
    if outputs.batch_account_id is None or outputs.storage_account_id is None:
        why = "the outputs have no IDs of the accounts: an older version of runner deployed it"
        yield skipped("roles", why)
        return
    for need in _needs(outputs.batch_account_id, outputs.storage_account_id, outputs):
        try:
            missing = [each for each in need.resources if _lacks(management, need, each)]
        except RunnerError as err:
            yield skipped(need.name, f"your roles cannot be read: {err.summary}")
            continue
        if missing:
            yield failed(need.name, _missing(management, token, need, missing, outputs))
        else:
            yield passed(need.name, f"you have the rights of {need.role}")


def _needs(account: str, storage: str, outputs: StackOutputs) -> Iterator[_RoleNeed]:
    """Yield the needs of an operator.

    https://learn.microsoft.com/azure/batch/batch-role-based-access-control and
    https://learn.microsoft.com/azure/role-based-access-control/built-in-roles/storage
    (read 2026-11-29)
    """
    jobs = "Microsoft.Batch/batchAccounts/jobs"
    yield _RoleNeed(
        "batch", "Azure Batch Data Contributor", (), (f"{jobs}/write", f"{jobs}/read"), [account]
    )
    data = tuple(f"{_BLOBS}/containers/blobs/{verb}" for verb in ("read", "write", "delete"))
    names = [name for part in outputs.parts() for name in part.containers]
    containers = [f"{storage}/blobServices/default/containers/{name}" for name in names]
    # An account of the stack has the role for all containers.
    own = outputs.container_data == "data"
    places = [storage] if own else list(dict.fromkeys(containers))
    yield _RoleNeed("blobs", "Storage Blob Data Contributor", (), data, places)
    if not own:
        key = f"{_BLOBS}/generateUserDelegationKey/action"
        yield _RoleNeed("signatures", "Storage Blob Delegator", (key,), (), [storage])


def _lacks(management: ArmClient, need: _RoleNeed, resource: str) -> bool:
    rights = ask.load_rights(management, resource)
    granted = [*((rights.actions, each) for each in need.actions)]
    granted += [(rights.data_actions, each) for each in need.data_actions]
    return not all(_is_granted(pairs, action) for pairs, action in granted)


def _is_granted(pairs: Sequence[tuple[Sequence[str], Sequence[str]]], action: str) -> bool:
    return any(_matches(given, action) and not _matches(but, action) for given, but in pairs)


def _matches(patterns: Sequence[str], action: str) -> bool:
    return any(fnmatch.fnmatchcase(action.lower(), each.lower()) for each in patterns)


def _missing(
    management: ArmClient, token: str, need: _RoleNeed, places: Sequence[str], outputs: StackOutputs
) -> RunnerError:
    claims = token_claims(token)
    principal = str(claims.get("oid") or "OBJECT_ID")
    folder, _, first = places[0].rpartition("/")
    names = ", ".join([first, *(each.rpartition("/")[2] for each in places[1:])])
    several = len(places) > 1
    scope = f"{folder}/CONTAINER" if several else places[0]
    machine = claims.get("idtyp") == "app"
    kind = "service_principal" if machine else "user"
    assign = (
        f"`az role assignment create --role '{need.role}' --assignee-object-id {principal} "
        f"--assignee-principal-type {'ServicePrincipal' if machine else 'User'} "
        f"--scope {scope}`"
    )
    return RunnerError(
        "R-JOIN-ROLES",
        f"you lack the role {need.role}",
        why=f"{names} {'need' if several else 'needs'} it; {_granters(management, places[0])}",
        fix=f"ask one of them to add `{{id: {principal}, kind: {kind}}}` to runner:operators of "
        f"stack {outputs.stack or 'dev'!r} and deploy it, or to run {assign}"
        + (f" for each CONTAINER of {names}" if several else ""),
    )


def _granters(management: ArmClient, resource: str) -> str:
    """Return who may assign roles at a resource, as far as the signed-in principal may read it."""
    try:
        found = ask.list_granters(management, resource)
    except RunnerError:
        found = ()
    if not found:
        return "the owners of its resource group may assign it"
    shown = ", ".join(f"{kind or 'principal'} {principal}" for principal, kind in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"who may assign it: {shown}{more}"
