"""The quotas of a stack's Batch account: what its pools need, and what to request.

With the allocation mode BatchService, quotas belong to the Batch account, which the first
deployment creates: one dedicated quota per VM family and one for all families, and one quota for
all spot nodes. A new account may have 0 of each. With UserSubscription, the quotas of the
subscription count.
https://learn.microsoft.com/azure/batch/batch-quota-limit, "Core quotas" (read 2026-11-21)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Literal

from runner.azure.arm import subscription as ask
from runner.azure.arm.client import open_arm
from runner.core.checks import Check, failed, passed, skipped, warned
from runner.core.pricing.machines import Machine, family_key, machines, region_name
from runner.core.units import format_count
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.arm.subscription import BatchAccountInfo
    from runner_infra.config.stack import StackConfig
    from runner_infra.planning.pool_plan import PoolPlan

_PORTAL = "request more in the portal (Batch account, Quotas, Request quota increase)"
_USER_SUBSCRIPTION = "UserSubscription"
_MOST_SIZES = 2  # other VM sizes in an advice
Kind = Literal["spot", "dedicated"]


@dataclass(frozen=True, slots=True)
class QuotaRequest:
    """A request for more cores, in the terms of Azure's form and of its support API.

    `type` is `LowPriority` for spot nodes or `Dedicated`. `vm_family` is None for all families.
    https://learn.microsoft.com/rest/api/support/quota-payload, "Azure Batch" (read 2026-11-29)
    """

    batch_account: str
    region: str
    type: str
    vm_family: str | None
    new_limit: int

    @property
    def text(self) -> str:
        """The request in words."""
        what = "spot cores (low-priority)" if self.type == "LowPriority" else "dedicated cores"
        family = f" of {self.vm_family}" if self.vm_family else ""
        return f"{self.new_limit} {what}{family} for {self.batch_account} in {self.region}"


@dataclass(frozen=True, slots=True)
class CoreQuota:
    """A core quota of the Batch account, and what the pools need of it.

    Attributes:
        kind: The kind of nodes that it limits.
        name: The quota in words, such as `dedicated StandardNCASv3_T4Family`.
        pools: The IDs of the pools that use it.
        quota: Cores.
        node: Cores of the smallest node of the pools.
        needed: Cores of all nodes that the pools may have.
        state: `ok`, `low` (not all nodes can start at the same time) or `none` (no node can start).
        request: What to request, or None if the quota is sufficient.
    """

    kind: Kind
    name: str
    pools: tuple[str, ...]
    quota: int
    node: int
    needed: int
    state: Literal["ok", "low", "none"]
    request: QuotaRequest | None


@dataclass(frozen=True, slots=True)
class AccountQuotas:
    """The core quotas of the pools of an account.

    `skipped` says why a quota is unknown. `meanwhile` is what works until a request is granted.
    """

    cores: Sequence[CoreQuota]
    skipped: Sequence[str] = ()
    meanwhile: Sequence[str] = ()

    @property
    def blocked(self) -> Sequence[str]:
        """The pools of which no node of any kind can start."""
        kinds: dict[str, set[str]] = {}
        lacking: dict[str, set[str]] = {}
        for each in self.cores:
            for pool in each.pools:
                kinds.setdefault(pool, set()).add(each.kind)
                if each.state == "none":
                    lacking.setdefault(pool, set()).add(each.kind)
        return [pool for pool in kinds if kinds[pool] == lacking.get(pool)]


@dataclass(frozen=True, slots=True)
class _Need:
    pool: str
    nodes: int
    machine: Machine

    @property
    def cores(self) -> int:
        return self.nodes * self.machine.vcpus


def load_quotas(
    stack: StackConfig, pools: Sequence[PoolPlan], *, env: Mapping[str, str], today: date
) -> AccountQuotas | None:
    """Return the quotas of the stack's Batch account, or None if it does not exist."""
    management = open_arm(stack.subscription_id, env, stack.cloud)
    place = stack.batch_account
    account = ask.find_batch_account(management, place.group, place.name)
    return None if account is None else core_quotas(account, pools, today)


def core_quotas(account: BatchAccountInfo, pools: Sequence[PoolPlan], today: date) -> AccountQuotas:
    """Compare the core quotas of an account with the pools."""
    if account.allocation_mode == _USER_SUBSCRIPTION:
        why = "the account takes its cores from the subscription's own quota"
        return AccountQuotas((), (why,) if any(map(_needs, pools)) else ())
    cores: list[CoreQuota] = []
    unknown: list[str] = []
    if spot := [_Need(p.pool.id, p.caps.spot, p.machine) for p in pools if p.caps.spot]:
        if account.spot_quota is None:
            unknown.append("the account does not say its spot quota")
        else:
            cores.append(_core_quota(account, "spot", None, account.spot_quota, spot))
    dedicated = [_Need(p.pool.id, p.caps.dedicated, p.machine) for p in pools if p.caps.dedicated]
    cores += _by_family(account, dedicated, unknown)
    if dedicated and (account.family_quotas is None or account.dedicated_quota is not None):
        total = account.dedicated_quota or 0
        every = account.family_quotas is not None
        cores.append(
            _core_quota(account, "dedicated", None, total, dedicated, total_of_families=every)
        )
    lacking = [each for each in cores if each.state == "none"]
    return AccountQuotas(cores, unknown, _meanwhile(account, pools, lacking, today))


def _needs(plan: PoolPlan) -> bool:
    return bool(plan.caps.spot or plan.caps.dedicated)


def _by_family(
    account: BatchAccountInfo, dedicated: Sequence[_Need], unknown: list[str]
) -> Iterator[CoreQuota]:
    """Yield the quota of each family, and add pools with an unknown family to `unknown`."""
    if account.family_quotas is None:
        return
    groups: dict[str, list[_Need]] = {}
    for need in dedicated:
        groups.setdefault(need.machine.family, []).append(need)
    for family, needs in groups.items():
        if not family:
            unknown.append(f"unknown quota family: pool {_ids(needs)}")
            continue
        # An account has no quota for a family that it does not list.
        quota = account.family_quotas.get(family_key(family), 0)
        yield _core_quota(account, "dedicated", family, quota, needs)


def _core_quota(
    account: BatchAccountInfo,
    kind: Kind,
    family: str | None,
    quota: int,
    needs: Sequence[_Need],
    *,
    total_of_families: bool = False,
) -> CoreQuota:
    smallest = min(need.machine.vcpus for need in needs)
    largest = max(need.machine.vcpus for need in needs)
    needed = sum(need.cores for need in needs)
    state = "none" if quota < smallest else "low" if quota < max(largest, needed) else "ok"
    name = f"total {kind}" if total_of_families else f"{kind} {family}" if family else kind
    request = QuotaRequest(
        account.id.rpartition("/")[2],
        account.location,
        "LowPriority" if kind == "spot" else "Dedicated",
        family,
        needed,
    )
    pools = tuple(dict.fromkeys(need.pool for need in needs))
    return CoreQuota(
        kind, name, pools, quota, smallest, needed, state, None if state == "ok" else request
    )


def _ids(needs: Sequence[_Need]) -> str:
    return ", ".join(need.pool for need in needs)


def _meanwhile(
    account: BatchAccountInfo,
    pools: Sequence[PoolPlan],
    lacking: Sequence[CoreQuota],
    today: date,
) -> tuple[str, ...]:
    """Return what works before a request is granted: another kind of node, family, or region."""
    if not lacking:
        return ()
    found: list[str] = []
    for plan in pools:
        size, name = plan.machine, f"pool {plan.pool.id}"
        lacks = {each.kind for each in lacking if plan.pool.id in each.pools}
        # A pool that may use the other kind, too, does so already; most scenarios use only one.
        if "spot" in lacks and not plan.caps.dedicated and _dedicated_nodes(account, size):
            keys = "max_spot: 0 and max_dedicated: 1"
            found.append(f"{name}: {keys} works now, at the dedicated price")
        has_spot_quota = (account.spot_quota or 0) >= size.vcpus
        if "dedicated" in lacks and not plan.caps.spot and has_spot_quota:
            found.append(f"{name}: max_spot: 1 and max_dedicated: 0 works now")
    if others := _other_sizes(account, {plan.machine.family for plan in pools}, today):
        found.append(f"there is dedicated quota for another VM size: {', '.join(others)}")
    init = "`runner init --stack NAME --location REGION`"
    found.append(f"another region has quotas of its own: {init}")
    return tuple(found)


def _dedicated_nodes(account: BatchAccountInfo, size: Machine) -> int:
    """Return how many dedicated nodes of a size the quotas of an account allow."""
    total = account.dedicated_quota or 0
    if account.family_quotas is not None:
        total = min(total, account.family_quotas.get(family_key(size.family), 0))
    return total // size.vcpus


def _other_sizes(account: BatchAccountInfo, used: set[str], today: date) -> list[str]:
    """Return GPU sizes of other families for which the account has dedicated quota."""
    if account.family_quotas is None:
        return []
    smallest: dict[str, Machine] = {}
    for size in machines():
        ended = size.retired is not None and size.retired <= today
        if not size.gpu or ended or not size.family or size.family in used:
            continue
        if _dedicated_nodes(account, size) and size.family not in smallest:
            smallest[size.family] = size
    return [size.vm_size for size in smallest.values()][:_MOST_SIZES]


# -- as checks


def account_room(accounts: Sequence[BatchAccountInfo], limit: int, location: str) -> Check:
    """Check that the region has room for one more Batch account."""
    here = sum(region_name(each.location) == region_name(location) for each in accounts)
    if here < limit:
        return passed("quotas", f"{here} of {limit} Batch accounts in {location} are used")
    return failed(
        "quotas",
        _quota_error(
            f"all {limit} Batch accounts of the subscription in {location} are used",
            "",
            "use another region, or request more in the portal (Help + support, "
            "Service and subscription limits, Batch)",
        ),
    )


def pool_room(account: BatchAccountInfo, pools: Sequence[PoolPlan]) -> Iterator[Check]:
    """Check the quota of pools."""
    if account.pool_quota is not None and account.pool_quota < len(pools):
        wanted = format_count(len(pools), "pool")
        fix = f"{_PORTAL}: {wanted}; or declare fewer pools"
        what = f"the stack has {wanted}, the quota of the account is {account.pool_quota}"
        yield failed("quotas", _quota_error(what, "", fix))


def builder_quota(size: Machine, free: int | None, location: str) -> Check:
    """Check the cores for building the VM image. Too few are a warning: a deployment needs none."""
    if free is None:
        return skipped("quotas", f"Azure lists no quota for the family of {size.vm_size}")
    if free < size.vcpus:
        detail = f"the VM image cannot be built: {size.vm_size} needs {size.vcpus} cores, "
        detail += f"{free} of its family are free in {location}"
        fix = f"request {size.vcpus} cores of {size.family} in the portal (Quotas, Compute)"
        return warned("quotas", detail, fix)
    return passed("quotas", f"image build: {size.vcpus} of {free} free cores of {size.family}")


def quota_checks(found: AccountQuotas) -> Iterator[Check]:
    """Return the core quotas as checks. They fail if no node can start; `up` is possible."""
    for why in found.skipped:
        yield skipped("quotas", why)
    for each in found.cores:
        yield _verdict(each, found.meanwhile)


def _verdict(found: CoreQuota, meanwhile: Sequence[str]) -> Check:
    ids = ", ".join(found.pools)
    if found.request is None:
        return passed("quotas", f"{found.name}: {found.needed} of {found.quota} cores")
    if found.state == "none":
        return failed(
            "quotas",
            _quota_error(
                f"the {found.name} quota of the Batch account is {found.quota} cores",
                f"a node of pool {ids} needs {found.node}",
                "; ".join([f"{_PORTAL}: {found.request.text}", *meanwhile]),
            ),
            stops_up=False,
        )
    detail = f"the {found.name} quota is {found.quota} cores; pool {ids} may use {found.needed}"
    return warned(
        "quotas", detail, f"{_PORTAL}: {found.request.text}; or lower max_spot and max_dedicated"
    )


def _quota_error(what: str, why: str, fix: str) -> RunnerError:
    return RunnerError("R-QUOTA", what, why=why, fix=fix)


def quota_documents(found: AccountQuotas) -> Mapping[str, object]:
    """Return the quotas as JSON."""
    return {
        "cores": [
            {
                "kind": each.kind,
                "quota_of": each.name,
                "pools": list(each.pools),
                "quota": each.quota,
                "node_needs": each.node,
                "pools_may_use": each.needed,
                "state": each.state,
                "request": None if each.request is None else _request_document(each.request),
            }
            for each in found.cores
        ],
        "unknown": list(found.skipped),
        "meanwhile": list(found.meanwhile),
        "pools_without_nodes": list(found.blocked),
    }


def _request_document(request: QuotaRequest) -> Mapping[str, object]:
    return {
        "batch_account": request.batch_account,
        "region": request.region,
        "type": request.type,
        "vm_family": request.vm_family,
        "new_limit": request.new_limit,
    }
