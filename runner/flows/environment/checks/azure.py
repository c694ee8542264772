"""Check a stack against its subscription: access, names, VM sizes, images and quotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING

from runner.azure.arm import subscription as ask
from runner.azure.arm.client import ArmClient
from runner.azure.auth.credentials import connect, outputs_path
from runner.core.azure.arm_faults import DENIED
from runner.core.checks import Check, failed, passed, run_check, skipped, warned
from runner.core.pricing.machines import Machine
from runner.core.settings import Settings
from runner.flows.environment.checks.adopted import check_adopted, needed_actions
from runner.flows.environment.checks.landing import check_landing
from runner.flows.environment.ownership import check_owner
from runner.flows.environment.quotas import (
    account_room,
    builder_quota,
    core_quotas,
    pool_room,
    quota_checks,
)
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner_infra.config.naming import Names
    from runner_infra.config.stack import StackConfig
    from runner_infra.planning.earlier import Earlier
    from runner_infra.planning.pool_plan import MarketplaceImage, PoolPlan


_AGENT_SOON_DAYS = 180


def check_agents(settings: Settings, pools: Sequence[PoolPlan], today: date) -> Iterator[Check]:
    """Check images and node agents against the list of the deployed Batch account.

    A list that cannot be read stops no deployment, which only talks to Resource Manager: a private
    account answers in its network only, and whoever deploys next may have no role on it yet.
    """
    if not outputs_path(settings).is_file():
        yield skipped("images", "the account lists its images after the first deployment")
        return
    from runner.azure.batch.pools import list_supported_images  # noqa: PLC0415  the Batch SDK

    try:
        supported = list_supported_images(connect(settings.for_whole_stack()))
    except RunnerError as err:
        yield failed("images", err, stops_up=False)
        return
    for image, agent in dict.fromkeys((pool.image, pool.node_agent) for pool in pools):
        if image is not None:
            key = (image.publisher.lower(), image.offer.lower(), image.sku.lower(), agent.lower())
            yield _agent_verdict(image, agent, key in supported, supported.get(key), today)


def _agent_verdict(
    image: MarketplaceImage, agent: str, known: bool, end: date | None, today: date
) -> Check:
    name = f"{image.offer}/{image.sku} with {agent}"
    fix = "use another image; `az batch pool supported-images list -o table` lists them"
    if not known or (end is not None and end <= today):
        what = f"support for {name} ended on {end}" if known else f"Batch does not support {name}"
        error = RunnerError("R-IMAGE-ENDED", what, fix=fix)
        return failed("images", error)
    if end is not None and (end - today).days < _AGENT_SOON_DAYS:
        return warned("images", f"support for {name} ends on {end}", fix)
    return passed("images", f"{name} is supported{f' until {end}' if end else ''}")


_PROVIDERS = (
    *("Microsoft.Batch", "Microsoft.Storage", "Microsoft.Compute", "Microsoft.ManagedIdentity"),
    *("Microsoft.Network", "Microsoft.Authorization", "Microsoft.Consumption"),
)
# learn.microsoft.com/azure/virtual-machines/linux/image-builder, "Register the providers"
# (read 2026-11-21).
_IMAGE_PROVIDERS = (
    *("Microsoft.VirtualMachineImages", "Microsoft.KeyVault", "Microsoft.ContainerInstance"),
)
_WATCH_PROVIDERS = ("Microsoft.Insights", "Microsoft.OperationalInsights")
# Quota ids of the offers that Cost Management does not support. CSP subscriptions with an Azure
# plan have another id and are supported.
# https://learn.microsoft.com/azure/cost-management-billing/costs/understand-cost-mgt-data
# (read 2026-11-22)
_WITHOUT_COST_MANAGEMENT = frozenset(
    {
        "AzureForStudents_2018-01-01",
        "CSP_2015-05-01",
        "Default_2014-09-01",
        "DreamSpark_2015-02-01",
        "Sponsored_2016-01-01",
    }
)


@dataclass(frozen=True, slots=True)
class AzureChecks:
    """The checks of one stack against one subscription."""

    management: ArmClient
    stack: StackConfig
    pools: Sequence[PoolPlan]
    settings: Settings
    today: date
    earlier: Earlier | None  # deployments of the stack; None: its state cannot be read here

    @property
    def _name(self) -> Names:
        return self.stack.names

    def subscription(self) -> Check:
        """Check that the subscription is visible and enabled."""

        def load() -> str:
            found = ask.load_subscription(self.management)
            if found.state not in ("Enabled", "PastDue", "Warned"):
                raise RunnerError(
                    "R-AZURE-SUBSCRIPTION",
                    f"subscription {found.name!r} is {found.state}",
                    fix="enable it in the portal under Subscriptions, or use another one",
                )
            return f"{found.name} ({found.id})"

        return run_check("subscription", load)

    def regions(self) -> Iterator[Check]:
        """Check that the subscription has the regions of the stack."""
        from runner.flows.environment.first_files import check_location  # noqa: PLC0415  pydantic

        try:
            listed = ask.list_locations(self.management)
        except RunnerError as err:
            yield failed("region", err)
            return

        def find(name: str) -> str:
            check_location(name, listed)
            return f"the subscription has {name}"

        for name in dict.fromkeys(self.stack.regions):
            yield run_check("region", partial(find, name))

    def budget(self) -> Iterator[Check]:
        """Check that the subscription has Cost Management, which a budget needs."""
        if self.stack.budget is None:
            yield skipped("budget", "runner:budget is null: no budget watches the costs")
            return
        yield run_check("budget", self._budget)

    def _budget(self) -> str | Check:
        offer = ask.load_subscription(self.management).quota_id
        usd = f"{self.stack.budget.usd_per_month:g} USD a month" if self.stack.budget else ""
        if not offer:
            return skipped("budget", "unknown offer of the subscription")
        if offer in _WITHOUT_COST_MANAGEMENT:
            raise RunnerError(
                "R-AZURE-BUDGET",
                f"the subscription's offer {offer} has no Cost Management",
                why=f"a budget of {usd} cannot be created",
                fix="set runner:budget: null in the stack's file; the caps of the pools stay",
            )
        return f"{usd}; the offer {offer} has Cost Management"

    def providers(self) -> Iterator[Check]:
        """Check that the resource providers of the stack are registered."""
        wanted = list(_PROVIDERS)
        wanted += _IMAGE_PROVIDERS if self.stack.image else ()
        if self.stack.observability:
            wanted += _WATCH_PROVIDERS
        elif self.stack.budget is not None and not self.stack.budget.emails:
            # Without addresses, the budget notifies the owners through an action group.
            wanted += _WATCH_PROVIDERS[:1]
        wanted += ("Microsoft.ContainerRegistry",) if self.stack.registry else ()
        wanted += ("Microsoft.CostManagementExports",) if self.stack.cost_export else ()
        good = 0
        for namespace in wanted:
            check = run_check("providers", lambda namespace=namespace: self._provider(namespace))
            if check.state == "ok":
                good += 1
            else:
                yield check
        if good == len(wanted):
            yield passed("providers", f"{good} registered")

    def _provider(self, namespace: str) -> str | Check:
        state = ask.load_provider_state(self.management, namespace)
        fix = f"az provider register --namespace {namespace} --wait"
        if state == "Registering":
            return warned("providers", f"{namespace} is being registered", fix)
        if state != "Registered":
            raise RunnerError(
                "R-AZURE-PROVIDER", f"resource provider {namespace} is {state}", fix=fix
            )
        return namespace

    def permissions(self) -> Iterator[Check]:
        """Check that the signed-in identity may deploy, including role assignments."""
        for group, actions in needed_actions(self.stack).items():
            yield run_check("permissions", partial(self._permissions, group, actions))

    def _permissions(self, group: str, actions: Sequence[str]) -> str:
        granted = ask.load_permissions(self.management, group)
        missing = [action for action in actions if not ask.is_allowed(granted, action)]
        where = f"resource group {group}" if group else "the subscription"
        if missing:
            raise RunnerError(
                DENIED,
                "the signed-in identity lacks permissions to deploy the stack",
                why=f"not allowed in {where}: {', '.join(missing)}",
                fix="ask an owner for the roles Contributor and Role Based Access Control "
                f"Administrator on {where}",
            )
        return f"the signed-in identity may deploy the stack in {where}, with role assignments"

    def names(self) -> Iterator[Check]:
        """Check the names of the storage account (global) and the Batch account (per region).

        Adopted accounts are checked instead.
        """
        yield from check_adopted(self.management, self.stack)
        yield from check_landing(self.management, self.stack)
        owner = check_owner(self.management, self.stack, self.earlier)
        if owner is not None:
            yield owner
            if owner.state == "failed":
                return
        if not self.stack.adopted.storage_account:
            name = self.stack.storage_account.name
            yield run_check("names", lambda: self._storage_name(name))
        if not self.stack.adopted.batch_account:
            yield run_check("names", self._batch_name)

    def _storage_name(self, name: str) -> str:
        answer = ask.check_storage_name(self.management, name)
        if answer.available:
            return f"storage account name {name} is available"
        if self._is_ours(f"Microsoft.Storage/storageAccounts/{name}", "2023-05-01"):
            return f"storage account {name} is in the group of the stack"
        raise _name_taken(
            "storage account", name, answer, "storage.account_name in the stack's file"
        )

    def _batch_name(self) -> str:
        name = self._name.batch_account
        answer = ask.check_batch_name(self.management, self.stack.location, name)
        if answer.available:
            return f"Batch account name {name} is available"
        if ask.find_batch_account(self.management, self.stack.resource_group, name):
            return f"Batch account {name} is in the group of the stack"
        raise _name_taken("Batch account", name, answer, "the stack's name")

    def _is_ours(self, resource: str, version: str) -> bool:
        group = f"{self.management.scope}/resourceGroups/{self.stack.resource_group}"
        return self.management.find(f"{group}/providers/{resource}", version) is not None

    def sizes(self) -> Iterator[Check]:
        """Check that Batch offers each VM size in the region to this subscription."""
        if not self.pools:
            yield skipped("sizes", "no valid pool")
            return
        try:
            offered = ask.load_batch_sizes(self.management, self.stack.location)
            restrictions = ask.load_restrictions(self.management, self.stack.location)
        except RunnerError as err:
            yield failed("sizes", err)
            return
        if self.stack.image is not None:
            yield self._builder_size(self.stack.image.build_vm_size, restrictions)
        for size in dict.fromkeys(pool.machine.vm_size for pool in self.pools):
            yield run_check("sizes", lambda size=size: self._size(size, offered, restrictions))
        for plan in self.pools:
            found = offered.get(plan.machine.vm_size.lower())
            if plan.caps.spot and found is not None and found.spot_capable is False:
                what = f"pool {plan.pool.id}: {plan.machine.vm_size} has no spot nodes"
                fix = "set max_spot to 0 and max_dedicated to 1 or more, or use another VM size"
                yield failed("sizes", RunnerError("R-MACHINE-SPOT", what, fix=fix))
        yield from self._trusted_launch()
        yield from self._encryption()

    def _encryption(self) -> Iterator[Check]:
        """Check that sizes support encryption at host if a pool asks for it."""
        asked = [plan for plan in self.pools if plan.pool.encryption_at_host]
        if not asked:
            return
        try:
            able = ask.load_sizes_with_encryption(self.management, self.stack.location)
        except RunnerError as err:
            yield failed("sizes", err)
            return
        for plan in asked:
            if plan.machine.vm_size.lower() not in able:
                what = f"pool {plan.pool.id}: {plan.machine.vm_size} has no encryption at host"
                fix = "remove encryption_at_host from the pool, or use another VM size"
                yield failed("sizes", RunnerError("R-POOL-ENCRYPTION", what, fix=fix))

    def _trusted_launch(self) -> Iterator[Check]:
        """Check that sizes support trusted launch if a pool uses the stack's custom image."""
        own = [plan for plan in self.pools if plan.image is None]
        if not own:
            return
        try:
            without = ask.load_sizes_without_trusted_launch(self.management, self.stack.location)
        except RunnerError as err:
            yield failed("sizes", err)
            return
        for plan in own:
            if plan.machine.vm_size.lower() in without:
                size = f"pool {plan.pool.id}: {plan.machine.vm_size}"
                error = RunnerError(
                    "R-POOL-IMAGE",
                    f"{size} cannot use the stack's custom image",
                    why="the image needs trusted launch, which the VM size does not support",
                    fix="remove image from the pool, or use another VM size",
                )
                yield failed("sizes", error)

    def _builder_size(self, size: str, restrictions: Mapping[str, str]) -> Check:
        """Check the size that builds the VM image. A problem is a warning."""
        where = self.stack.location
        found = restrictions.get(size.lower())
        if found == "":
            return passed("sizes", f"{size} (builds the VM image) is offered in {where}")
        why = "is not offered" if found is None else f"is restricted ({found})"
        fix = "set image.build_vm_size to another size with a GPU (`runner skus` lists them)"
        return warned("sizes", f"the VM image cannot be built: {size} {why} in {where}", fix)

    def _size(
        self, size: str, offered: Mapping[str, ask.BatchSize], restrictions: Mapping[str, str]
    ) -> str | Check:
        found = offered.get(size.lower())
        where = self.stack.location
        fix = "use another VM size or region (`runner skus` lists sizes)"
        if found is None or size.lower() not in restrictions:
            what = f"{size} is not offered in {where}"
            raise RunnerError("R-AZURE-REGION", what, fix=fix)
        if restrictions[size.lower()]:
            raise RunnerError(
                "R-AZURE-CAPACITY",
                f"{size} is restricted in {where}",
                why=restrictions[size.lower()],
                fix="request access in the portal (Help + support, Service and subscription "
                "limits), or use another VM size or region (`runner skus` lists sizes)",
            )
        if found.end_of_life is not None and found.end_of_life <= self.today:
            what = f"Batch retired {size} on {found.end_of_life}"
            raise RunnerError("R-MACHINE-RETIRED", what, fix=fix)
        if found.end_of_life is not None:
            return warned("sizes", f"Batch offers {size} until {found.end_of_life}", fix)
        return f"{size} is offered in {where}"

    def images(self) -> Iterator[Check]:
        """Check that the image versions exist and that Batch supports them."""
        asked = {(plan.image, plan.pool.image.version) for plan in self.pools}
        for image, version in sorted(asked, key=str):
            if image is None:
                yield run_check("images", lambda version=version: self._gallery_image(version))
            else:
                yield run_check("images", lambda image=image: self._marketplace_image(image))
        yield from check_agents(self.settings, self.pools, self.today)

    def _marketplace_image(self, image: MarketplaceImage) -> str:
        name = f"{image.publisher}/{image.offer}/{image.sku}"
        where = self.stack.location
        versions = ask.list_marketplace_versions(
            self.management, where, image.publisher, image.offer, image.sku
        )
        if not versions:
            what = f"image {name} not found in {where}"
            fix = "use another image or region"
            raise RunnerError("R-IMAGE-VERSION", what, fix=fix)
        if image.version != "latest" and image.version not in versions:
            raise _no_version(f"image {name}", image.version, versions)
        return f"{name} {image.version} is available in {where}"

    def _gallery_image(self, version: str) -> str:
        group, gallery = self.stack.resource_group, self._name.gallery
        base = f"{self.management.scope}/resourceGroups/{group}"
        path = f"{base}/providers/Microsoft.Compute/galleries/{gallery}"
        found: list[str] = []
        if self.management.find(path, "2023-07-03") is not None:
            for each in self.management.pages(f"{path}/images", "2023-07-03"):
                definition = str(each["name"])
                found += ask.list_gallery_versions(self.management, group, gallery, definition)
        if not found:
            raise RunnerError(
                "R-IMAGE-VERSION",
                "the gallery of the stack has no image",
                why=f"a pool uses version {version} of the image",
                fix="run `runner image build`, or set image.source: marketplace for the first "
                "deployment",
            )
        if version != "latest" and version not in found:
            raise _no_version(f"the image in {gallery}", version, found)
        return f"{gallery} has {version}"

    def quotas(self) -> Iterator[Check]:
        """Check the quotas of pools and cores, or of accounts if the stack has none yet."""
        group, name = self.stack.batch_account.group, self.stack.batch_account.name
        if self.stack.image is not None:
            from runner_infra.config.vm_sizes import stack_machine  # noqa: PLC0415  pydantic

            wanted, given = self.stack.image.build_vm_size, self.stack.vm_sizes
            with suppress(RunnerError):  # the check of the stack's file reports an unknown size
                size = stack_machine(wanted, given, self.today)
                yield run_check("quotas", lambda: self._builder_quota(size))
        try:
            account = ask.find_batch_account(self.management, group, name)
            if account is None:
                yield account_room(
                    ask.list_batch_accounts(self.management),
                    ask.load_account_limit(self.management, self.stack.location),
                    self.stack.location,
                )
                why = "the account does not exist yet; check again after the first `runner up`"
                yield skipped("quotas", why)
                return
        except RunnerError as err:
            yield failed("quotas", err)
            return
        yield from pool_room(account, self.pools)
        yield from quota_checks(core_quotas(account, self.pools, self.today))

    def _builder_quota(self, size: Machine) -> Check:
        where = self.stack.location
        return builder_quota(size, ask.load_free_cores(self.management, where, size.family), where)


def _name_taken(kind: str, name: str, answer: ask.NameAvailability, where: str) -> RunnerError:
    return RunnerError(
        "R-NAME-TAKEN",
        f"the name {name} is not available for the {kind}",
        why=f"{answer.reason}: {answer.message}",
        fix=f"change {where}",
    )


def _no_version(what: str, version: str, versions: Sequence[str]) -> RunnerError:
    newest = ", ".join(sorted(versions, key=_ordered)[-3:])
    return RunnerError(
        "R-IMAGE-VERSION",
        f"{what} has no version {version}",
        why=f"the newest are {newest}",
        fix="set image.version of the pool to one of them, or to latest",
    )


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))
