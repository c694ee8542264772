"""What a deployment would take from pools that it replaces or deletes: runs, nodes, schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from runner.azure.auth.credentials import Connection
from runner.azure.batch.pools import list_pool_nodes
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings, stack_option
from runner.core.units import format_count
from runner.flows.active_work import find_active
from runner.flows.environment.deploy import ACCOUNT, POOL, deployed_connection, firing_schedules
from runner.flows.sweeps.moves import drain_pool, end_drain, plan_drain
from runner.protocol.errors import RunnerError
from runner_infra.engine.automation import PulumiStack, deployed
from runner_infra.engine.steps import Change

_SHOWN = 5
_REMOVING = ("replace", "delete")


@dataclass(frozen=True, slots=True)
class PoolLoss:
    """A pool that a deployment replaces or deletes, and the work that it would interrupt.

    Attributes:
        pool: The ID of the pool.
        replaced: True if the pool is created again; its queued runs then start on the new one.
        runs: Sweeps, groups and runs that would be interrupted.
        nodes: Number of its nodes.
        schedules: Schedules that use a pool which is deleted.
    """

    pool: str
    replaced: bool
    runs: Sequence[str]
    nodes: int
    schedules: Sequence[str] = ()

    @property
    def text(self) -> str:
        """The loss in words."""
        does = "replaces" if self.replaced else "deletes"
        parts = [f"{does} pool {self.pool!r} with {format_count(self.nodes, 'node')}"]
        if self.runs:
            what = "running" if self.replaced else "waiting or running"
            parts.append(f"{what}: {_listed(self.runs)}")
        if self.schedules:
            parts.append(f"schedules: {_listed(self.schedules)}")
        return "; ".join(parts)


def find_losses(
    settings: Settings, stack: PulumiStack, changes: Sequence[Change], on_progress: OnProgress
) -> list[PoolLoss]:
    """Return the pools with work that the changes would interrupt.

    Without a pool that is replaced or deleted, this sends no request.

    Raises:
        RunnerError: the Batch account cannot be asked.
    """
    removed = _removed_pools(stack, changes)
    connection = deployed_connection(settings, stack) if removed else None
    if connection is None:
        return []
    on_progress(Progress("runs", "start", f"checking for active runs: {', '.join(removed)}"))
    found = [_loss(connection, pool, replaced) for pool, replaced in removed.items()]
    lost = [each for each in found if each.runs or each.schedules]
    text = f"{format_count(len(lost), 'pool')} with active runs" if lost else "no active runs"
    on_progress(Progress("runs", "end", text))
    return lost


def _removed_pools(stack: PulumiStack, changes: Sequence[Change]) -> dict[str, bool]:
    """Return the deployed pools that the changes remove, and whether they are created again."""
    by_urn = {change.urn: change for change in changes if change.op in _REMOVING}
    if not any(change.type in (POOL, ACCOUNT) for change in by_urn.values()):
        return {}
    there = deployed(stack)
    if any(change.type == ACCOUNT for change in by_urn.values()):
        return {each.name: False for each in there if each.type == POOL}  # its jobs are lost, too
    return {
        each.name: by_urn[each.urn].op == "replace"
        for each in there
        if each.type == POOL and each.urn in by_urn
    }


def _loss(connection: Connection, pool: str, replaced: bool) -> PoolLoss:
    active = find_active(connection, [pool], on_nodes=replaced)
    return PoolLoss(
        pool,
        replaced,
        active.names,
        len(list_pool_nodes(connection, pool)),
        () if replaced else firing_schedules(connection, [pool]),
    )


def refuse_losses(losses: Sequence[PoolLoss], *, stack: str | None, replace: str | None) -> None:
    """Raise RunnerError R-UP-ACTIVE if the deployment would interrupt work.

    `stack` and `replace` are the options of the command, which the printed commands repeat.
    """
    if not losses:
        return
    there, options = stack_option(stack), _options(stack, replace)
    ways: list[str] = []
    if any(each.replaced for each in losses):
        ways.append(f"`runner up{options} --drain` waits for their end, then starts queued runs")
    if gone := [each for each in losses if not each.replaced]:
        if gone[0].runs:
            move = f"runner pool drain {gone[0].pool} --to POOL --target azure{there}"
            ways.append(f"`{move}` moves its runs to another pool")
        else:
            ways.append(f"`runner schedule rm {gone[0].schedules[0]} --target azure{there}`")
    raise RunnerError(
        "R-UP-ACTIVE",
        "nothing was deployed, because runs are still active on pools that would be removed",
        why="; ".join(each.text for each in losses),
        fix="; ".join([*ways, f"`runner up{options} --force` interrupts them"]),
    )


def _options(stack: str | None, replace: str | None) -> str:
    return stack_option(stack) + (f" --replace {replace}" if replace else "")


def unknown_losses(err: RunnerError, *, stack: str | None, replace: str | None) -> RunnerError:
    """Return the error of a deployment that cannot ask whether runs are active."""
    return RunnerError(
        err.code,
        f"cannot check whether runs are active on pools that would be removed: {err.what}",
        why=err.why,
        fix=f"{err.fix}; or `runner up{_options(stack, replace)} --force`, which does not check",
        exit_code=err.exit_code,
    )


def drain_pools(
    settings: Settings, stack: PulumiStack, pools: Sequence[str], on_progress: OnProgress
) -> None:
    """Pause the queued runs of pools, and wait until the running ones have ended."""
    connection = deployed_connection(settings, stack)
    if connection is None:
        return
    for part in connection.parts():  # a job does not say which of them has its runs
        for pool in pools:
            note, jobs, target = plan_drain(part, pool, None)
            drain_pool(part, note, jobs, target, "wait", on_progress)


def continue_drained(settings: Settings, stack: PulumiStack, pools: Sequence[str]) -> int:
    """Continue the runs that `drain_pools` paused. Return their number."""
    connection = deployed_connection(settings, stack)
    if connection is None:
        return 0
    parts = connection.parts()
    return sum(job.runs for part in parts for pool in pools for job in end_drain(part, pool)[0])


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (" and more" if len(names) > _SHOWN else "")
