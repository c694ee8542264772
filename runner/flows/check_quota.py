"""Whether quotas allow the nodes that pools may have. Pure: the numbers were asked for before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from runner.core.checks import Check, failed, passed, skipped, warned
from runner.core.errors import ExitCode, RunnerError
from runner.core.machines import Machine, family_key

if TYPE_CHECKING:
    from infra.pool_plan import PoolPlan
    from runner.azure.subscription import BatchAccount

_ASK = "portal, the Batch account's Quotas, Request quota increase"
# An account of Batch's own allocation has a dedicated quota for each family and one for all of
# them, and one for all spot nodes together.
# https://learn.microsoft.com/azure/batch/batch-quota-limit, "Core quotas" (read 2026-11-21)
_OWN = "UserSubscription"


def account_room(accounts: Sequence[BatchAccount], limit: int, location: str) -> Check:
    """Whether one more Batch account fits into the region."""
    here = sum(each.location.lower() == location.lower() for each in accounts)
    if here < limit:
        return passed("quotas", f"{here} of {limit} Batch accounts in {location} are used")
    return failed(
        "quotas",
        _short(
            f"all {limit} Batch accounts of the subscription in {location} are used",
            "",
            "use another region, or ask for more: portal, Help + support, "
            "Service and subscription limits, Batch",
        ),
    )


def pool_room(account: BatchAccount, pools: Sequence[PoolPlan]) -> Iterator[Check]:
    """Whether the account takes so many pools."""
    if account.pool_quota is not None and account.pool_quota < len(pools):
        fix = f"{_ASK}: {len(pools)} pools; or declare fewer"
        what = f"the Batch account takes {account.pool_quota} pools, and {len(pools)} are declared"
        yield failed("quotas", _short(what, "", fix))


def builder_quota(size: Machine, free: int | None, location: str) -> Check:
    """Cores for the machine that builds the VM image; a deployment does without."""
    if free is None:
        return skipped("quotas", f"Azure lists no quota of {size.vm_size}'s family in {location}")
    if free < size.vcpus:
        detail = f"the VM image cannot be built: {size.vm_size} has {size.vcpus} cores, and "
        detail += f"{free} of its family are free in {location}"
        fix = f"portal, Quotas, Compute, {size.family} in {location}: {size.vcpus} cores more"
        return warned("quotas", detail, fix)
    return passed("quotas", f"image build: {size.vcpus} of {free} free cores of {size.family}")


def spot_quota(account: BatchAccount, pools: Sequence[PoolPlan]) -> Iterator[Check]:
    """One number for all spot nodes of the account."""
    wanted = [
        (plan.pool.id, plan.caps.spot, plan.machine.vcpus) for plan in pools if plan.caps.spot
    ]
    if not wanted:
        return
    if account.allocation_mode == _OWN or account.spot_quota is None:
        yield skipped("quotas", "the account takes its cores from the subscription's own quota")
        return
    yield _verdict("spot", account.spot_quota, wanted)


def dedicated_quota(account: BatchAccount, pools: Sequence[PoolPlan]) -> Iterator[Check]:
    """A number for each family, where the account has them, beside the one for all."""
    groups: dict[str, list[tuple[str, int, int]]] = {}
    for plan in pools:
        if plan.caps.dedicated:
            family = plan.machine.family if account.family_quotas is not None else "dedicated"
            each = (plan.pool.id, plan.caps.dedicated, plan.machine.vcpus)
            groups.setdefault(family, []).append(each)
    for family, wanted in groups.items():
        if account.allocation_mode == _OWN:
            yield skipped("quotas", "the account takes its cores from the subscription's own quota")
        elif account.family_quotas is None:
            yield _verdict("dedicated", account.dedicated_quota or 0, wanted)
        elif not family:
            ids = ", ".join(pool_id for pool_id, _, _ in wanted)
            yield skipped("quotas", f"the quota family of pool {ids} is not known")
        else:
            # A family that the account does not list has no cores in it.
            quota = account.family_quotas.get(family_key(family), 0)
            yield _verdict(f"dedicated {family}", quota, wanted)
    if groups and account.family_quotas is not None and account.dedicated_quota is not None:
        every = [each for wanted in groups.values() for each in wanted]
        yield _verdict("total dedicated", account.dedicated_quota, every)


def _verdict(kind: str, quota: int, wanted: Sequence[tuple[str, int, int]]) -> Check:
    """`wanted`: pool, nodes, cores of a node."""
    smallest = min(cores for _, _, cores in wanted)
    largest = max(cores for _, _, cores in wanted)
    everything = sum(nodes * cores for _, nodes, cores in wanted)
    ids = ", ".join(pool_id for pool_id, _, _ in wanted)
    if quota < smallest:
        return failed(
            "quotas",
            _short(
                f"the {kind} quota of the Batch account is {quota} cores",
                f"a node of pool {ids} has {smallest}",
                f"{_ASK}: {everything} {kind} cores",
            ),
        )
    if quota < largest or quota < everything:
        detail = f"the {kind} quota is {quota} cores; pool {ids} may use {everything}"
        return warned("quotas", detail, f"{_ASK}, or lower the pools' maxima")
    return passed("quotas", f"{kind}: {everything} of {quota} cores")


def _short(what: str, why: str, fix: str) -> RunnerError:
    return RunnerError("R-QUOTA", what, why=why, fix=fix, exit_code=ExitCode.CAPACITY)
