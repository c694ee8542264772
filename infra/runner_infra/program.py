"""The Pulumi program: declares the resources of a stack and exports the fields of StackOutputs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime.config import CONFIG, get_config_env
from pulumi_azure_native import resources

from runner.contract import CONTRACT_VERSION, PoolOutput
from runner.core.home import runner_home
from runner.core.pricing.prices import PriceTable, load_price_table
from runner.protocol.errors import RunnerError
from runner_infra.components.batch_account import BatchAccountComponent
from runner_infra.components.budget import MonthlyBudget
from runner_infra.components.container_registry import ContainerRegistry
from runner_infra.components.context import StackContext
from runner_infra.components.data_store import DataStore, Firewall
from runner_infra.components.deployer import PRINCIPAL_TYPES, Deployer, find_deployer
from runner_infra.components.gpu_pool import GpuPool, PoolDependencies
from runner_infra.components.identity import Identities, Operator, Operators
from runner_infra.components.network import PoolNetwork
from runner_infra.components.observability import Observability
from runner_infra.components.vm_image import ImageFactory
from runner_infra.config.stack import BUDGET_TAG, CONTAINERS, TEAM_CONTAINERS, StackConfig
from runner_infra.config.stack_file import parse_stack_config
from runner_infra.planning.autoscale_formula import release_minutes
from runner_infra.planning.pool_plan import PoolPlan, plan_pools
from runner_infra.planning.warnings import access_warning, stack_warnings

_FALLBACK = "spot_first_with_dedicated_fallback"


def program(folder: Path) -> None:
    """Declare the selected stack and export its outputs. Pulumi runs this.

    The prices are those that `runner check` uses, so a spend cap gives the same number of nodes.

    Args:
        folder: folder of `Pulumi.<stack>.yaml`; errors name its lines.

    Raises:
        pulumi.RunError: an error of runner, which Pulumi prints without a trace.
    """
    try:
        prices = load_price_table(runner_home(os.environ))
        config, deployer = _selected_config(folder), find_deployer()
        if found := access_warning(config, deployer.signed_in):
            pulumi.log.warn(str(found))
        exports = declare(config, deployer, datetime.now(UTC), prices)
    except RunnerError as err:
        raise pulumi.RunError(str(err)) from err
    for key, value in exports.items():
        pulumi.export(key, value)


def declare(
    config: StackConfig, deployer: Deployer, now: datetime, prices: PriceTable | None = None
) -> Mapping[str, pulumi.Input[Any]]:
    """Declare all resources and return the fields of StackOutputs.

    All pools are planned first, so an invalid one fails before any resource is declared.

    Args:
        config: the stack's configuration.
        deployer: the deployer, who may submit runs like the configured operators.
        now: the date that budgets and retirements are compared with, aware.
        prices: None uses the price table of the package.

    Raises:
        RunnerError: a pool cannot be planned.
    """
    plans = plan_pools(config, prices or load_price_table(None), now.date())
    for found in stack_warnings(config, plans):
        pulumi.log.warn(str(found))
    return _Stack(config, deployer, now).declare(plans)


class _Stack:
    """Declares the components of one stack, in the order of their dependencies."""

    def __init__(self, config: StackConfig, deployer: Deployer, now: datetime) -> None:
        self._config = config
        self._deployer = deployer
        self._now = now
        names = config.names
        tags = {"app": "runner", "stack": config.stack, **config.tags}
        # Tells the policies that the stack has no budget by choice.
        marks = {} if config.budget is not None else {BUDGET_TAG: "off"}
        if config.adopted.resource_group:
            group = resources.get_resource_group_output(
                resource_group_name=config.adopted.resource_group
            )
            tags |= marks
        else:
            # Deleting the group would delete the protected storage account, so both are protected.
            group = resources.ResourceGroup(
                "group",
                resource_group_name=names.resource_group,
                location=config.location,
                tags={**tags, **marks},
                opts=pulumi.ResourceOptions(protect=True),
            )
        self._context = StackContext(names, config.location, tags, group.name, group.id)
        self._operators = _operators(config, deployer.operator)

    def declare(self, plans: Sequence[PoolPlan]) -> Mapping[str, pulumi.Input[Any]]:
        """Declare all components and return the exports."""
        config, context, adopted = self._config, self._context, self._config.adopted
        if config.budget is not None:
            MonthlyBudget("monthly-budget", context, config.budget, self._now.date())
        network = (
            None if config.network is None else PoolNetwork("network", context, config.network)
        )
        store = DataStore(
            "data-store",
            context,
            config.storage,
            self._firewall(network),
            adopted=config.storage_account if adopted.storage_account else None,
            teams=config.teams,
        )
        own = not (adopted.storage_account or adopted.batch_account)
        identities = Identities("identities", context, store, auto_storage=own)
        account = BatchAccountComponent(
            "batch-account",
            context,
            store,
            identities,
            adopted=config.batch_account if adopted.batch_account else None,
        )
        if config.nodes_add_tasks:
            identities.let_nodes_add_tasks(account.account_id)
        Operators("operators", context, self._operators, store, account.account_id)
        if config.observability is not None:
            Observability("observability", context, account, config.observability)
        dependencies = PoolDependencies(
            account=account,
            store=store,
            identities=identities,
            subnet_id=network.subnet.id if network else None,
            images=self._images(),
            registry=self._registry(identities),
        )
        for plan in plans:
            GpuPool(f"pool-{plan.pool.id.lower()}", context, plan, dependencies)
        return self._exports(plans, dependencies)

    def _firewall(self, network: PoolNetwork | None) -> Firewall | None:
        """Return the networks that the storage account allows; None allows every network."""
        if network is None or self._config.network is None:
            return None
        allowed = self._config.network.storage_from
        if allowed is None:
            address = self._deployer.address
            return Firewall(network.subnet.id, [f"{address}/32"] if address else [])
        if allowed == "all" or any(text.endswith("/0") for text in allowed):
            return None
        return Firewall(network.subnet.id, allowed)

    def _images(self) -> ImageFactory | None:
        if self._config.image is None:
            return None
        return ImageFactory("image", self._context, self._config.image)

    def _registry(self, identities: Identities) -> ContainerRegistry | None:
        if not self._config.registry:
            return None
        return ContainerRegistry(
            "registry",
            self._context,
            pullers={
                "": identities.nodes.principal_id,
                **{f"-{team}": found.principal_id for team, found in identities.teams.items()},
            },
            pushers=self._operators,
        )

    def _exports(
        self, plans: Sequence[PoolPlan], dependencies: PoolDependencies
    ) -> Mapping[str, pulumi.Input[Any]]:
        """Return the fields of StackOutputs. A test parses them as StackOutputs."""
        store, nodes = dependencies.store, dependencies.identities.nodes
        return {
            "contract_version": CONTRACT_VERSION,
            "location": self._config.location,
            "resource_group": self._context.resource_group_name,
            "batch_account": dependencies.account.account_name,
            "batch_endpoint": dependencies.account.endpoint,
            "storage_account": store.account_name,
            "blob_endpoint": store.blob_endpoint,
            "file_endpoint": store.file_endpoint,
            **{f"container_{c}": store.containers[c].name for c in CONTAINERS},
            "file_share": store.share.name if store.share else None,
            "identity_client_id": nodes.client_id,
            "identity_resource_id": nodes.id,
            "pools": [_pool_export(plan) for plan in plans],
            "teams": _team_exports(store, dependencies.identities) or None,
            "image_definition": dependencies.images.definition_id if dependencies.images else None,
            "nodes_add_tasks": self._config.nodes_add_tasks,
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
        team=plan.pool.team,
    )
    exported = dataclasses.asdict(output)
    if output.team is None:
        del exported["team"]
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


def _selected_config(folder: Path) -> StackConfig:
    stack = pulumi.get_stack()
    ours, azure = pulumi.Config("runner"), pulumi.Config("azure-native")
    # All keys, including unknown ones, so that the parser can reject them.
    given = [key.partition(":") for key in {**get_config_env(), **CONFIG.get()}]
    values = {name: _value(ours, name) for whose, _, name in given if whose == "runner"}
    # The provider also reads these variables.
    values["location"] = azure.get("location") or os.environ.get("ARM_LOCATION")
    values["subscription_id"] = azure.get("subscriptionId") or os.environ.get("ARM_SUBSCRIPTION_ID")
    azure_keys = [name for whose, _, name in given if whose == "azure-native"]
    file = folder / f"Pulumi.{stack}.yaml"
    return parse_stack_config(values, stack=stack, file=file, azure_keys=azure_keys)


def _value(config: pulumi.Config, key: str) -> Any:
    try:
        return config.get_object(key)
    except pulumi.ConfigTypeError:
        return config.get(key)


def _operators(config: StackConfig, deployer: Operator) -> list[Operator]:
    """Return the operators without duplicates; Azure rejects a second assignment of a role."""
    named = [Operator(found.id, PRINCIPAL_TYPES[found.kind]) for found in config.operators]
    return list({found.name: found for found in (deployer, *named)}.values())
