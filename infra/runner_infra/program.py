"""The Pulumi program: declares the resources of a stack and exports the fields of StackOutputs."""

from __future__ import annotations

import dataclasses
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime.config import CONFIG, get_config_env
from pulumi_azure_native import resources

from runner.contract import CONTRACT_VERSION, MOVER_POOL, PoolOutput, encode_outputs
from runner.core.azure.clouds import PUBLIC, cloud_named
from runner.core.home import runner_home
from runner.core.pricing.prices import PriceTable, load_price_table
from runner.protocol.errors import RunnerError
from runner_infra.components.batch_account import BatchAccountComponent
from runner_infra.components.budget import MonthlyBudget
from runner_infra.components.ci_identities import CiIdentities
from runner_infra.components.container_registry import AdoptedRegistry, ContainerRegistry
from runner_infra.components.context import StackContext
from runner_infra.components.cost_export import DailyCosts
from runner_infra.components.data_store import DataStore, Firewall
from runner_infra.components.deployer import PRINCIPAL_TYPES, Deployer, find_deployer
from runner_infra.components.directory import resolve_operators
from runner_infra.components.gpu_pool import GpuPool, PoolDependencies
from runner_infra.components.identity import Identities, Operator, Operators
from runner_infra.components.mover import MoverIdentity
from runner_infra.components.network import PoolNetwork
from runner_infra.components.observability import Observability
from runner_infra.components.own_state import export_own_state, refuse_foreign
from runner_infra.components.private_access import PrivateAccess
from runner_infra.components.vm_image import ImageFactory
from runner_infra.config.stack import (
    BUDGET_TAG,
    CONTAINERS,
    ID_TAG,
    OUTPUTS_TAG,
    TEAM_CONTAINERS,
    OperatorConfig,
    StackConfig,
)
from runner_infra.config.stack_file import parse_stack_config
from runner_infra.planning.autoscale_formula import release_minutes
from runner_infra.planning.earlier import Earlier, People, plan_people, read_earlier
from runner_infra.planning.pool_plan import PoolPlan, disk_of, plan_pools
from runner_infra.planning.warnings import access_warning, region_warnings, stack_warnings

_FALLBACK = "spot_first_with_dedicated_fallback"


def program(
    folder: Path,
    state: Mapping[str, Any] | None = None,
    env: Mapping[str, str] = os.environ,
) -> None:
    """Declare the selected stack and export its outputs. Pulumi runs this.

    The prices are those that `runner check` uses, so a spend cap gives the same number of nodes.

    Args:
        folder: folder of `Pulumi.<stack>.yaml`; errors name its lines.
        state: the exported state of the stack; None asks the Pulumi CLI for it.
        env: the variables of the engine.

    Raises:
        pulumi.RunError: an error of runner, which Pulumi prints without a trace.
    """
    try:
        prices = load_price_table(runner_home(env))
        config = _selected_config(folder, env)
        deployer = find_deployer(config.cloud)
        if state is None:
            state = export_own_state(folder, config.stack)
        earlier = read_earlier(state, config.operators)
        refuse_foreign(config, earlier)
        config = resolve_operators(config, earlier)
        if found := access_warning(config, deployer.signed_in):
            pulumi.log.warn(str(found))
        if earlier.stack_id is None:
            earlier = dataclasses.replace(earlier, stack_id=str(uuid.uuid4()))
        exports = declare(config, deployer, datetime.now(UTC), prices, earlier)
    except RunnerError as err:
        raise pulumi.RunError(str(err)) from err
    for key, value in exports.items():
        pulumi.export(key, value)


def declare(
    config: StackConfig,
    deployer: Deployer,
    now: datetime,
    prices: PriceTable | None = None,
    earlier: Earlier | None = None,
) -> Mapping[str, pulumi.Input[Any]]:
    """Declare all resources and return the fields of StackOutputs.

    All pools are planned first, so an invalid one fails before any resource is declared.

    Args:
        config: the stack's configuration.
        deployer: the deployer, who may submit runs like the configured operators.
        now: the date that budgets and retirements are compared with, aware.
        prices: None uses the price table of the package.
        earlier: earlier deployments, whose deployers keep their roles; None: there are none.

    Raises:
        RunnerError: a pool cannot be planned.
    """
    plans = plan_pools(config, prices or load_price_table(None), now.date())
    for found in (*region_warnings(config), *stack_warnings(config, plans)):
        pulumi.log.warn(str(found))
    people = plan_people(config, _as_listed(deployer.operator), earlier or Earlier())
    for text in people.warnings():
        pulumi.log.warn(text)
    return _Stack(config, deployer, now, people, earlier or Earlier()).declare(plans)


class _Stack:
    """Declares the components of one stack, in the order of their dependencies."""

    def __init__(
        self,
        config: StackConfig,
        deployer: Deployer,
        now: datetime,
        people: People,
        earlier: Earlier,
    ) -> None:
        self._config = config
        self._people = people
        self._stack_id = earlier.stack_id
        self._deployer = deployer
        self._now = now
        names = config.names
        tags = {"app": "runner", "stack": config.stack, **config.tags}
        # Tells the policies that the stack has no budget by choice.
        without_budget = {} if config.budget is not None else {BUDGET_TAG: "off"}
        marks = {OUTPUTS_TAG: config.outputs_container}
        if earlier.stack_id is not None:
            marks[ID_TAG] = earlier.stack_id
        if config.adopted.resource_group:
            group = resources.get_resource_group_output(
                resource_group_name=config.adopted.resource_group
            )
            tags |= without_budget
        else:
            # Deleting the group would delete the protected storage account, so both are protected.
            group = resources.ResourceGroup(
                "group",
                resource_group_name=names.resource_group,
                location=config.location,
                tags={**tags, **without_budget, **marks},
                opts=pulumi.ResourceOptions(protect=True),
            )
        self._context = StackContext(names, config.location, tags, group.name, group.id, marks)
        self._operators = [_to_operator(each) for each in people.operators]

    def declare(self, plans: Sequence[PoolPlan]) -> Mapping[str, pulumi.Input[Any]]:
        """Declare all components and return the exports."""
        config, context, adopted = self._config, self._context, self._config.adopted
        if config.budget is not None:
            MonthlyBudget("monthly-budget", context, config.budget, self._now.date())
        network = (
            PoolNetwork("network", context, config.network)
            if config.network is not None and config.has_own_network
            else None
        )
        subnet_id = network.subnet.id if network else adopted.subnet
        store = DataStore(
            "data-store",
            context,
            config.storage,
            self._firewall(subnet_id),
            adopted=config.storage_account if adopted.storage_account else None,
            teams=config.teams,
            private=config.is_private,
            more=("costs",) if config.cost_export else (),
        )
        own = not (adopted.storage_account or adopted.batch_account)
        identities = Identities("identities", context, store, auto_storage=own)
        account = BatchAccountComponent(
            "batch-account",
            context,
            store,
            identities,
            adopted=config.batch_account if adopted.batch_account else None,
            private=config.is_private,
        )
        private = self._private(network, store, account)
        if config.nodes_add_tasks:
            identities.let_nodes_add_tasks(account.account_id)
        if config.ci is not None:
            CiIdentities(
                "ci",
                context,
                config.ci,
                cloud_named(config.cloud) or PUBLIC,
                [each for each in (adopted.batch_account, adopted.storage_account) if each],
                registry=adopted.registry if adopted.registry_roles else None,
            )
        if config.observability is not None:
            Observability(
                "observability", context, account, config.observability, adopted.log_workspace
            )
        if config.cost_export:
            DailyCosts("cost-export", context, store, self._now.date())
        dependencies = PoolDependencies(
            account=account,
            store=store,
            identities=identities,
            subnet_id=subnet_id,
            images=self._images(),
            registry=self._registry(identities),
            private=private,
            mover=MoverIdentity("mover", context, store, account) if config.mover else None,
        )
        for plan in plans:
            GpuPool(f"pool-{plan.pool.id.lower()}", context, plan, dependencies)
        exports = self._exports(plans, dependencies)
        published = store.publish(pulumi.Output.json_dumps(exports).apply(_encode))
        Operators(
            "operators",
            context,
            self._operators,
            store,
            account.account_id,
            published,
            deployers=[_to_operator(each) for each in self._people.deployers],
            names={str(each.name).lower(): str(each.id) for each in self._named()},
        )
        return exports

    def _named(self) -> Iterator[OperatorConfig]:
        return (each for each in self._config.operators if each.name and each.id)

    def _private(
        self, own: PoolNetwork | None, store: DataStore, account: BatchAccountComponent
    ) -> PrivateAccess | None:
        """Declare the private endpoints, in the network of the stack or in an adopted one."""
        config, adopted = self._config, self._config.adopted
        if not config.is_private:
            return None
        if own is not None and own.endpoint_subnet is not None:
            subnet_id, network_id = own.endpoint_subnet.id, own.network_id
        elif adopted.subnet is not None:
            subnet_id = pulumi.Output.from_input(adopted.endpoint_subnet or adopted.subnet)
            network_id = pulumi.Output.from_input(adopted.subnet.rpartition("/subnets/")[0])
        else:  # the configuration has been checked
            raise ValueError("private access needs a network")
        return PrivateAccess(
            "private-access",
            self._context,
            config,
            subnet_id=subnet_id,
            network_id=network_id,
            accounts={"storage": store.account_id, "batch": account.account_id},
        )

    def _firewall(self, subnet_id: pulumi.Input[str] | None) -> Firewall | None:
        """Return the networks that the storage account allows; None allows every network."""
        if subnet_id is None or self._config.network is None:
            return None
        allowed = self._config.network.storage_from
        if allowed is None:
            address = self._deployer.address
            return Firewall(subnet_id, [f"{address}/32"] if address else [])
        if allowed == "all" or any(text.endswith("/0") for text in allowed):
            return None
        return Firewall(subnet_id, allowed)

    def _images(self) -> ImageFactory | None:
        if self._config.image is None:
            return None
        return ImageFactory("image", self._context, self._config.image)

    def _registry(self, identities: Identities) -> ContainerRegistry | AdoptedRegistry | None:
        adopted = self._config.adopted
        if not (self._config.registry or adopted.registry):
            return None
        pullers: dict[str, pulumi.Input[str]] = {
            "": identities.nodes.principal_id,
            **{f"-{team}": found.principal_id for team, found in identities.teams.items()},
        }
        if adopted.registry:
            return AdoptedRegistry(
                "registry",
                self._context,
                adopted.registry,
                pullers=pullers,
                assign=adopted.registry_roles,
            )
        return ContainerRegistry(
            "registry", self._context, pullers=pullers, pushers=self._operators
        )

    def _exports(
        self, plans: Sequence[PoolPlan], dependencies: PoolDependencies
    ) -> Mapping[str, pulumi.Input[Any]]:
        """Return the fields of StackOutputs. A test parses them as StackOutputs."""
        store, nodes = dependencies.store, dependencies.identities.nodes
        mover = dependencies.mover
        return {
            "contract_version": CONTRACT_VERSION,
            "stack": self._config.stack,
            "stack_id": self._stack_id,
            "batch_account_id": dependencies.account.account_id,
            "storage_account_id": store.account_id,
            "location": self._config.location,
            "resource_group": self._context.resource_group_name,
            "batch_account": dependencies.account.account_name,
            "batch_endpoint": dependencies.account.endpoint,
            "storage_account": store.account_name,
            "blob_endpoint": store.blob_endpoint,
            "file_endpoint": store.file_endpoint,
            **{f"container_{c}": store.containers[c].name for c in CONTAINERS},
            "container_costs": store.containers["costs"].name if self._config.cost_export else None,
            "file_share": store.share.name if store.share else None,
            "identity_client_id": nodes.client_id,
            "identity_resource_id": nodes.id,
            "mover_client_id": mover.identity.client_id if mover else None,
            "mover_identity_id": mover.identity.id if mover else None,
            "mover_every_s": self._config.mover.every if self._config.mover else None,
            "pools": [_pool_export(plan) for plan in plans if plan.pool.id != MOVER_POOL],
            "teams": _team_exports(store, dependencies.identities) or None,
            "image_definition": dependencies.images.definition_id if dependencies.images else None,
            "nodes_add_tasks": self._config.nodes_add_tasks,
            "events_version": self._config.events_version,
            "registry_server": dependencies.registry.login_server
            if dependencies.registry
            else None,
        }


def _team_exports(
    store: DataStore, identities: Identities
) -> list[Mapping[str, pulumi.Input[str]]]:
    """Return the fields of each TeamOutput."""
    return [
        {
            "name": team,
            **{f"container_{c}": store.container(c, team).name for c in TEAM_CONTAINERS},
            "identity_client_id": nodes.client_id,
            "identity_resource_id": nodes.id,
        }
        for team, nodes in identities.teams.items()
    ]


def _pool_export(plan: PoolPlan) -> Mapping[str, Any]:
    """Return the fields of a PoolOutput; a stack without teams exports no `team`."""
    output = PoolOutput(
        id=plan.pool.id,
        vm_size=plan.machine.vm_size,
        gpus=plan.machine.gpus,
        vcpus=plan.machine.vcpus,
        spot=plan.caps.spot > 0,
        capacity=_capacity(plan),
        max_nodes=plan.caps.spot + plan.caps.dedicated,
        containers=plan.pool.containers,
        task_nodes=_task_nodes(plan),
        release_minutes=release_minutes(plan.pool),
        os_disk=disk_of(plan.pool),
        team=plan.pool.team,
    )
    exported = dataclasses.asdict(output)
    for name in ("os_disk", "team"):  # later additions: older stacks export neither
        if exported[name] is None:
            del exported[name]
    return exported


def _task_nodes(plan: PoolPlan) -> int:
    """Return the maximum nodes of a task: 1 without communication or with several slots."""
    if not plan.pool.inter_node_communication or plan.pool.slots > 1:
        return 1
    spot, dedicated = plan.caps.spot, plan.caps.dedicated
    # One kind replaces the other, so both may not be available at the same time.
    return max(spot, dedicated) if plan.pool.scenario == _FALLBACK else spot + dedicated


def _capacity(plan: PoolPlan) -> str:
    """Return the kind of the nodes; `mixed` means that either kind may run a task."""
    if plan.pool.scenario == _FALLBACK and plan.caps.dedicated:
        return "spot-then-dedicated"
    if plan.caps.spot and plan.caps.dedicated:
        return "mixed"
    return "spot" if plan.caps.spot else "dedicated"


def _selected_config(folder: Path, env: Mapping[str, str]) -> StackConfig:
    stack = pulumi.get_stack()
    ours, azure = pulumi.Config("runner"), pulumi.Config("azure-native")
    # All keys, including unknown ones, so that the parser can reject them.
    given = [key.partition(":") for key in {**get_config_env(), **CONFIG.get()}]
    values = {name: _value(ours, name) for whose, _, name in given if whose == "runner"}
    # The provider also reads these variables.
    if "cloud" not in values and (environment := azure.get("environment")):
        found = cloud_named(environment)
        values["cloud"] = found.name if found else environment
    values["location"] = azure.get("location") or env.get("ARM_LOCATION")
    values["subscription_id"] = azure.get("subscriptionId") or env.get("ARM_SUBSCRIPTION_ID")
    azure_keys = [name for whose, _, name in given if whose == "azure-native"]
    file = folder / f"Pulumi.{stack}.yaml"
    config = parse_stack_config(values, stack=stack, file=file, azure_keys=azure_keys, env=env)
    _check_provider(config, azure.get("environment"), env)
    return config


def _check_provider(config: StackConfig, environment: str | None, env: Mapping[str, str]) -> None:
    """Raise RunnerError if azure-native would use another cloud than the stack.

    `runner up` sets ARM_ENVIRONMENT. Plain `pulumi up` needs the provider's own key.
    """
    used = environment or env.get("ARM_ENVIRONMENT") or env.get("AZURE_ENVIRONMENT")
    found, wanted = cloud_named(used or PUBLIC.name), cloud_named(config.cloud) or PUBLIC
    if found is not wanted:
        raise RunnerError(
            "R-CLOUD-CONFLICT",
            f"stack {config.stack!r} is in cloud {wanted.name!r}, but azure-native uses "
            f"{used or 'the public cloud'}",
            why="`runner up` selects the cloud of azure-native; plain `pulumi` does not",
            fix=f"add `azure-native:environment: {wanted.provider_name}` to the stack's file",
        )


def _value(config: pulumi.Config, key: str) -> Any:
    try:
        return config.get_object(key)
    except pulumi.ConfigTypeError:
        return config.get(key)


def _encode(text: str) -> str | None:
    if (found := encode_outputs(text)) is None:
        pulumi.log.warn(
            "the outputs of the stack are too long to be stored in Azure: "
            "`runner join` needs the shared state or a file"
        )
    return found


def _to_operator(found: OperatorConfig) -> Operator:
    return Operator(str(found.id), PRINCIPAL_TYPES[found.kind])


def _as_listed(operator: Operator) -> OperatorConfig:
    kinds = {str(theirs.value): ours for ours, theirs in PRINCIPAL_TYPES.items()}
    return OperatorConfig.model_validate(
        {"id": operator.principal_id, "kind": kinds[str(operator.kind.value)]}
    )
