"""The temporary stack of a self-test on Azure: its cost bound, deployment and removal."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from runner.core.progress import OnProgress
from runner.core.settings import Settings
from runner.features.selftest.contract import Leftover
from runner.features.selftest.report import PoolUpdate, SelftestReport, charging
from runner.features.selftest.scenario import VM_SIZE
from runner.features.selftest.selftest import CONTRACT_LIMIT_S, TRAINING_LIMIT_S
from runner.flows.environment.plan import PoolCost, find_project, need_pulumi, plan_stack
from runner.protocol.errors import RunnerError
from runner.protocol.host import format_usd

STACK = "selftest"
# Charged time of a node after the test: a formula is evaluated every five minutes, and removing a
# node takes some minutes.
_NODE_TAIL_S = 900.0
_DEPLOYMENT_S = 1800.0
# Our conservative estimate: some gigabytes and some ten thousand requests per day.
_STORAGE_USD_PER_HOUR = 0.03
_FILE = """\
# Written by `runner selftest`, which deletes this folder with the stack.
config:
  azure-native:location: {location}
  azure-native:subscriptionId: {subscription_id}
  runner:budget: null
  runner:observability: null
  runner:pools:
    - id: t4
      vm_size: {vm_size}
      max_spot: {t4}
    - id: with-network
      vm_size: {vm_size}
      max_spot: {with_network}
      ssh_from: [192.0.2.1/32]
"""
# The pools of the stack, with what their updates show. Tasks run on the first only; the other one
# has a network configuration, for which nodes are not needed.
_POOLS = ("t4", "with-network")


@dataclass(frozen=True, slots=True)
class OwnStack:
    """A stack that exists for one self-test.

    Its pools have at most one node each until `update_pools`, which runs when nothing else does.

    Attributes:
        settings: The settings with this stack.
        folder: Its Pulumi project.
        usd_per_hour: The price of a node; only one pool gets tasks, one at a time.
        usd_at_most: The bound of all costs.
        is_new: False if its folder remains from an earlier self-test of this machine.
    """

    settings: Settings
    folder: Path
    is_new: bool
    location: str
    usd_per_hour: float
    usd_at_most: float
    subscription_id: str


def plan_own_stack(
    settings: Settings, *, cwd: Path, env: Mapping[str, str], now: datetime, max_usd: float
) -> OwnStack:
    """Write the project of the stack, in the subscription and region of `settings.stack`.

    Raises:
        RunnerError: the bound of its costs is unknown or above `max_usd`, or the name is taken.
    """
    project = find_project(cwd)
    if settings.stack == STACK or (project / f"Pulumi.{STACK}.yaml").exists():
        raise RunnerError(
            "R-SELFTEST-STACK",
            f"you already have a stack {STACK!r}",
            why=f"the self-test deploys and deletes a stack with that name; see {project}",
            fix=f"rename Pulumi.{STACK}.yaml, or use --stack with the name of another stack",
        )
    config = plan_stack(settings, cwd=cwd, env=env, now=now).config
    folder = settings.home / "selftest"
    is_new = not (folder / f"Pulumi.{STACK}.yaml").exists()
    (folder / "infra").mkdir(parents=True, exist_ok=True)  # the engine changes to this folder
    shutil.copyfile(project / "Pulumi.yaml", folder / "Pulumi.yaml")
    own = replace(settings, stack=STACK)
    _write_file(folder, config.location, config.subscription_id)
    cost = plan_stack(own, cwd=folder, env=env, now=now).costs[0]
    usd_at_most = _bound(cost, config.location)
    if usd_at_most > max_usd:
        raise RunnerError(
            "R-SELFTEST-COST",
            f"the self-test may cost {format_usd(1e6 * usd_at_most)}, "
            f"more than {format_usd(1e6 * max_usd)}",
            why=f"this is the price of a {VM_SIZE} in {config.location} for the maximum time",
            fix=f"--max-cost {usd_at_most + 0.01:.2f}, or use another region",
        )
    usd_per_hour = cost.usd_per_hour_max or 0.0
    return OwnStack(
        own,
        folder,
        is_new,
        config.location,
        usd_per_hour,
        usd_at_most,
        config.subscription_id,
    )


def _write_file(folder: Path, location: str, subscription_id: str, **caps: int) -> None:
    """Write the settings of the stack; `caps` are the caps of pools with more than one node."""
    most = {**dict.fromkeys(("t4", "with_network"), 1), **caps}
    text = _FILE.format(location=location, subscription_id=subscription_id, vm_size=VM_SIZE, **most)
    (folder / f"Pulumi.{STACK}.yaml").write_text(text, encoding="utf-8")


def _bound(cost: PoolCost, location: str) -> float:
    """Return the maximum costs of node and storage; spot prices never exceed dedicated ones."""
    if cost.dedicated is None:
        raise RunnerError(
            "R-SELFTEST-PRICE",
            f"the price of a dedicated {VM_SIZE} in {location} is unknown",
            why="this price limits the price of a spot node, and so the costs of the self-test",
            fix=f"runner skus --refresh --region {location}",
        )
    node_s = CONTRACT_LIMIT_S + TRAINING_LIMIT_S + 2 * _NODE_TAIL_S
    node = cost.dedicated.usd_per_hour * node_s / 3600
    return node + _STORAGE_USD_PER_HOUR * (node_s + 2 * _DEPLOYMENT_S) / 3600


@contextmanager
def deployed_stack(
    own: OwnStack,
    report: SelftestReport,
    *,
    env: Mapping[str, str],
    consent: Callable[[str], bool],
    on_progress: OnProgress,
) -> Generator[None]:
    """Deploy the stack for the block, and remove it afterwards, even after an error or Ctrl-C.

    Resources that could not be removed are added to the report.
    """
    need_pulumi()
    from runner.flows.environment import deploy  # noqa: PLC0415  loads Pulumi

    opened = deploy.open_stack(own.settings, own.folder, env, consent)
    changes = deploy.preview(opened, on_progress, report.warnings, refresh=False).changes
    if own.is_new and {change.op for change in changes} != {"create"}:
        raise RunnerError(
            "R-SELFTEST-STACK",
            f"stack {STACK!r} already exists in this Pulumi backend",
            why="it may belong to another user's self-test, and would be deleted",
            fix=f"wait until that self-test has ended, or run `pulumi destroy --stack {STACK}`",
        )
    with charging(report, "storage and requests", _STORAGE_USD_PER_HOUR):
        try:
            deploy.deploy(
                own.settings, opened, changes, on_progress, report.warnings, refresh=False
            )
            yield
            report.updates += [
                _update_pool(own, opened, pool, report, on_progress) for pool in _POOLS
            ]
        except RunnerError as err:
            report.problem = err  # more important than an error of the removal
            raise
        finally:
            with charging(report, "node during the removal", own.usd_per_hour):
                _remove(own, opened, env, report, on_progress)


def _update_pool(
    own: OwnStack, opened: Any, pool: str, report: SelftestReport, on_progress: OnProgress
) -> PoolUpdate:
    """Raise the cap of a pool from 1 to 2, and return what the service answered.

    Pools are updated one after the other, so that each answer belongs to one of them.
    """
    from runner.flows.environment import deploy  # noqa: PLC0415  loads Pulumi

    place = (own.folder, own.location, own.subscription_id)
    _write_file(*place, **{pool.replace("-", "_"): 2})
    try:
        changes = deploy.preview(opened, on_progress, report.warnings, refresh=False).changes
        ops = {change.op for change in changes}
        if ops != {"update"}:
            return PoolUpdate(pool, False, f"the preview shows {', '.join(sorted(ops)) or 'none'}")
        deploy.deploy(own.settings, opened, changes, on_progress, report.warnings, refresh=False)
    except RunnerError as err:
        return PoolUpdate(pool, False, err.why or err.what)
    finally:
        _write_file(*place)
    return PoolUpdate(pool, True, "updated in place")


def _remove(
    own: OwnStack,
    opened: Any,
    env: Mapping[str, str],
    report: SelftestReport,
    on_progress: OnProgress,
) -> None:
    """Remove the stack with its data. If that fails, add the remaining stack to the report."""
    from runner.flows.environment import deploy  # noqa: PLC0415  loads Pulumi

    again = f"cd {own.folder} && runner down --stack {STACK} --everything --force --yes"
    kept = Leftover(f"stack {STACK}", again)
    report.left.append(kept)  # unless the next lines succeed
    deploy.destroy(own.settings, opened, env, on_progress, report.warnings, everything=True)
    remains = deploy.find_remains(own.settings, opened, env, on_progress, ask=False)
    report.left.clear()  # pools and jobs were deleted with their account
    if remains.resources:
        report.left += [Leftover(f"{r.type} {r.name}", again) for r in remains.resources]
        return
    shutil.rmtree(own.folder, ignore_errors=True)
