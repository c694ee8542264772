"""What has to be asked of Azure before deploying: rights, names, sizes, images and quotas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING

from runner.azure import subscription as ask
from runner.azure.management import Management
from runner.azure.management_faults import DENIED
from runner.core.checks import Check, attempt, failed, passed, skipped, warned
from runner.core.errors import ExitCode, RunnerError
from runner.core.machines import Machine, machine
from runner.core.settings import Settings
from runner.flows.check_agents import check_agents
from runner.flows.check_quota import (
    account_room,
    builder_quota,
    dedicated_quota,
    pool_room,
    spot_quota,
)

if TYPE_CHECKING:
    from infra.naming import Names
    from infra.pool_plan import MarketplaceImage, PoolPlan
    from infra.stack_config import StackConfig

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
_ACTIONS = (
    "Microsoft.Resources/subscriptions/resourceGroups/write",
    "Microsoft.Batch/batchAccounts/write",
    "Microsoft.Storage/storageAccounts/write",
    "Microsoft.Authorization/roleAssignments/write",
)


@dataclass(frozen=True, slots=True)
class AzureChecks:
    """The checks of one stack, against one subscription."""

    management: Management
    stack: StackConfig
    pools: Sequence[PoolPlan]
    settings: Settings
    today: date

    @property
    def _name(self) -> Names:
        from infra.naming import Names  # noqa: PLC0415  only here and in the program

        return Names(self.stack.stack, self.stack.subscription_id)

    def subscription(self) -> Check:
        """It can be seen, and is enabled."""

        def look() -> str:
            found = ask.load_subscription(self.management)
            if found.state not in ("Enabled", "PastDue", "Warned"):
                raise RunnerError(
                    "R-AZURE-SUBSCRIPTION",
                    f"subscription {found.name!r} is {found.state}",
                    fix="enable it in the portal under Subscriptions, or use another one",
                    exit_code=ExitCode.ACCESS,
                )
            return f"{found.name} ({found.id})"

        return attempt("subscription", look)

    def providers(self) -> Iterator[Check]:
        """Each namespace that the stack uses is registered."""
        wanted = list(_PROVIDERS)
        wanted += _IMAGE_PROVIDERS if self.stack.image else ()
        if self.stack.observability:
            wanted += _WATCH_PROVIDERS
        elif not self.stack.budget.emails:  # the budget then tells the owners through a group
            wanted += _WATCH_PROVIDERS[:1]
        wanted += ("Microsoft.ContainerRegistry",) if self.stack.registry else ()
        good = 0
        for namespace in wanted:
            check = attempt("providers", lambda namespace=namespace: self._provider(namespace))
            if check.state == "ok":
                good += 1
            else:
                yield check
        if good == len(wanted):
            yield passed("providers", f"{good} are registered")

    def _provider(self, namespace: str) -> str | Check:
        state = ask.load_provider_state(self.management, namespace)
        fix = f"az provider register --namespace {namespace} --wait"
        if state == "Registering":
            return warned("providers", f"{namespace} is being registered", fix)
        if state != "Registered":
            raise RunnerError(
                "R-AZURE-PROVIDER",
                f"resource provider {namespace} is {state}",
                fix=fix,
                exit_code=ExitCode.PREFLIGHT,
            )
        return namespace

    def permissions(self) -> Iterator[Check]:
        """What a deployment does is allowed: role assignments are what usually is not."""
        yield attempt("permissions", self._permissions)

    def _permissions(self) -> str:
        granted = ask.load_permissions(self.management)
        missing = [action for action in _ACTIONS if not ask.is_allowed(granted, action)]
        if missing:
            raise RunnerError(
                DENIED,
                "the signed-in identity may not deploy the stack",
                why=f"not allowed in the subscription: {', '.join(missing)}",
                fix="ask an owner for the roles Contributor and Role Based Access Control "
                "Administrator on the subscription",
                exit_code=ExitCode.ACCESS,
            )
        return "resource groups, accounts and role assignments can be made"

    def names(self) -> Iterator[Check]:
        """The storage account's name is free in all of Azure, the Batch account's in the region."""
        name = self.stack.storage.account_name or self._name.storage_account
        yield attempt("names", lambda: self._storage_name(name))
        yield attempt("names", self._batch_name)

    def _storage_name(self, name: str) -> str:
        answer = ask.check_storage_name(self.management, name)
        if answer.available:
            return f"storage account {name} is free"
        if self._is_ours(f"Microsoft.Storage/storageAccounts/{name}", "2023-05-01"):
            return f"storage account {name} is the stack's own"
        raise _taken("storage account", name, answer, "storage.account_name in the stack's file")

    def _batch_name(self) -> str:
        name = self._name.batch_account
        answer = ask.check_batch_name(self.management, self.stack.location, name)
        if answer.available:
            return f"Batch account {name} is free"
        if ask.find_batch_account(self.management, self._name.resource_group, name):
            return f"Batch account {name} is the stack's own"
        raise _taken("Batch account", name, answer, "the stack's name")

    def _is_ours(self, resource: str, version: str) -> bool:
        group = f"{self.management.scope}/resourceGroups/{self._name.resource_group}"
        return self.management.find(f"{group}/providers/{resource}", version) is not None

    def sizes(self) -> Iterator[Check]:
        """Batch offers each VM size in the region, and this subscription may have it."""
        if not self.pools:
            yield skipped("sizes", "no pool is right so far")
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
            yield attempt("sizes", lambda size=size: self._size(size, offered, restrictions))
        for plan in self.pools:
            found = offered.get(plan.machine.vm_size.lower())
            if plan.caps.spot and found is not None and found.spot_capable is False:
                yield failed("sizes", _never_spot(plan))

    def _builder_size(self, size: str, restrictions: Mapping[str, str]) -> Check:
        """The machine that builds the VM image: a deployment does without."""
        where = self.stack.location
        found = restrictions.get(size.lower())
        if found == "":
            return passed("sizes", f"{size}, which builds the VM image, is offered in {where}")
        why = "is not offered" if found is None else f"is restricted ({found})"
        fix = "set image.build_vm_size to another size with a GPU: runner skus"
        return warned("sizes", f"the VM image cannot be built: {size} {why} in {where}", fix)

    def _size(
        self, size: str, offered: Mapping[str, ask.BatchSize], restrictions: Mapping[str, str]
    ) -> str | Check:
        found = offered.get(size.lower())
        where = self.stack.location
        fix = "use another VM size or region: runner skus"
        if found is None or size.lower() not in restrictions:
            what = f"{size} is not offered in {where}"
            raise RunnerError("R-AZURE-REGION", what, fix=fix, exit_code=ExitCode.PREFLIGHT)
        if restrictions[size.lower()]:
            raise RunnerError(
                "R-AZURE-CAPACITY",
                f"{size} is restricted in {where}",
                why=restrictions[size.lower()],
                fix="ask for access with a support request (Service and subscription limits), "
                "or use another VM size or region: runner skus",
                exit_code=ExitCode.CAPACITY,
            )
        if found.end_of_life is not None and found.end_of_life <= self.today:
            what = f"Batch stopped to offer {size} on {found.end_of_life}"
            raise RunnerError("R-MACHINE-RETIRED", what, fix=fix, exit_code=ExitCode.PREFLIGHT)
        if found.end_of_life is not None:
            return warned("sizes", f"Batch offers {size} until {found.end_of_life}", fix)
        return f"{size} is offered in {where}"

    def images(self) -> Iterator[Check]:
        """The image versions exist, and Batch takes them."""
        asked = {(plan.image, plan.pool.image.version) for plan in self.pools}
        for image, version in sorted(asked, key=str):
            if image is None:
                yield attempt("images", lambda version=version: self._gallery_image(version))
            else:
                yield attempt("images", lambda image=image: self._marketplace_image(image))
        yield from check_agents(self.settings, self.pools, self.today)

    def _marketplace_image(self, image: MarketplaceImage) -> str:
        name = f"{image.publisher}/{image.offer}/{image.sku}"
        where = self.stack.location
        versions = ask.list_marketplace_versions(
            self.management, where, image.publisher, image.offer, image.sku
        )
        if not versions:
            what = f"there is no image {name} in {where}"
            fix = "choose another image or region"
            raise RunnerError("R-IMAGE-VERSION", what, fix=fix, exit_code=ExitCode.PREFLIGHT)
        if image.version != "latest" and image.version not in versions:
            raise _no_version(f"image {name}", image.version, versions)
        return f"{name} {image.version} is in {where}"

    def _gallery_image(self, version: str) -> str:
        group, gallery = self._name.resource_group, self._name.gallery
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
                "the stack's gallery has no image yet",
                why=f"a pool boots from version {version}",
                fix="runner image build, or image.source: marketplace for the first deployment",
                exit_code=ExitCode.PREFLIGHT,
            )
        if version != "latest" and version not in found:
            raise _no_version(f"the image in {gallery}", version, found)
        return f"{gallery} has {version}"

    def quotas(self) -> Iterator[Check]:
        """Cores for a node of each pool, spot and dedicated; room for one more account."""
        group, name = self._name.resource_group, self._name.batch_account
        if self.stack.image is not None:
            size = machine(self.stack.image.build_vm_size, self.today)
            yield attempt("quotas", lambda: self._builder_quota(size))
        try:
            account = ask.find_batch_account(self.management, group, name)
            if account is None:
                yield account_room(
                    ask.list_batch_accounts(self.management),
                    ask.load_account_limit(self.management, self.stack.location),
                    self.stack.location,
                )
                why = "quotas are known once the account exists: check again after the first up"
                yield skipped("quotas", why)
                return
        except RunnerError as err:
            yield failed("quotas", err)
            return
        yield from pool_room(account, self.pools)
        yield from spot_quota(account, self.pools)
        yield from dedicated_quota(account, self.pools)

    def _builder_quota(self, size: Machine) -> Check:
        where = self.stack.location
        return builder_quota(size, ask.load_free_cores(self.management, where, size.family), where)


def _never_spot(plan: PoolPlan) -> RunnerError:
    return RunnerError(
        "R-MACHINE-SPOT",
        f"{plan.machine.vm_size} of pool {plan.pool.id} is never offered as spot",
        fix="set max_spot to 0 and max_dedicated to 1 or more, or use another VM size",
        exit_code=ExitCode.PREFLIGHT,
    )


def _taken(kind: str, name: str, answer: ask.NameAnswer, where: str) -> RunnerError:
    return RunnerError(
        "R-NAME-TAKEN",
        f"the {kind} cannot be called {name}",
        why=f"{answer.reason}: {answer.message}",
        fix=f"change {where}",
        exit_code=ExitCode.PREFLIGHT,
    )


def _no_version(what: str, version: str, versions: Sequence[str]) -> RunnerError:
    newest = ", ".join(sorted(versions, key=_ordered)[-3:])
    return RunnerError(
        "R-IMAGE-VERSION",
        f"{what} has no version {version}",
        why=f"the newest are {newest}",
        fix="set image.version of the pool to one of them, or to latest",
        exit_code=ExitCode.PREFLIGHT,
    )


def _ordered(version: str) -> tuple[int, ...]:
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))
