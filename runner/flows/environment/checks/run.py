"""Check a stack before its deployment: first its file, then the subscription."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from runner.contract import MOVER_POOL
from runner.core.checks import Check, failed, noted, passed, run_check, skipped, warned
from runner.core.pricing.machines import OS_END_OF_LIFE, Machine
from runner.core.pricing.prices import PriceTable, load_price_table
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings
from runner.core.units import format_count
from runner.protocol.errors import RunnerError
from runner.protocol.host import format_usd

if TYPE_CHECKING:
    from runner.azure.arm.client import ArmClient
    from runner_infra.config.stack import StackConfig
    from runner_infra.planning.pool_plan import PoolPlan


_SOON_DAYS = 180
CONFIG = "config"  # the checks of the stack's file; the program logs their warnings, too


@dataclass(frozen=True, slots=True)
class Config:
    """The result of reading the stack's file; `stack` is None if it is missing or invalid."""

    check: Check
    stack: StackConfig | None


def load_config(file: Path, *, env: Mapping[str, str]) -> Config:
    """Read the stack's file. An error in it is a failed check."""
    found: list[StackConfig] = []

    def read() -> str:
        from runner.flows.environment.plan import read_stack  # noqa: PLC0415  pydantic, YAML

        stack = read_stack(file, env)
        found.append(stack)
        pools = format_count(len(stack.pools), "pool")
        return f"{file.name}: {pools} in {stack.location}"

    check = run_check(CONFIG, read)
    return Config(check, found[0] if found else None)


def _config_warnings(stack: StackConfig, plans: Sequence[PoolPlan]) -> Iterator[Check]:
    from runner_infra.planning.warnings import stack_warnings  # noqa: PLC0415  pydantic, YAML

    for found in stack_warnings(stack, plans):
        yield warned(CONFIG, found.what, found.fix)


def _access_warnings(stack: StackConfig, token: str | None) -> Iterator[Check]:
    """Warn of a firewall that excludes the users of the storage, who include the signed-in one."""
    from runner_infra.planning.warnings import (  # noqa: PLC0415  pydantic, YAML
        access_warning,
        read_token,
    )

    if found := access_warning(stack, read_token(token) if token else None):
        yield warned(CONFIG, found.what, found.fix)


def check_pools(
    stack: StackConfig, prices: PriceTable, today: date
) -> tuple[Sequence[PoolPlan], Sequence[Check]]:
    """Return the plans of the valid pools, and the checks of all pools.

    Pools are planned one at a time, so that an error in one does not hide an error in another.
    """
    from runner.flows.environment.standing_costs import mover_cost  # noqa: PLC0415  pydantic
    from runner_infra.planning.pool_plan import (  # noqa: PLC0415  pydantic, YAML
        check_builder,
        plan_pool,
    )

    plans: list[PoolPlan] = []
    checks: list[Check] = []
    try:
        check_builder(stack, today)
    except RunnerError as err:
        checks.append(failed("image", err))
    for number, pool in enumerate(stack.all_pools):
        name = f"pool {pool.id}"
        try:
            plan = plan_pool(stack, number, prices, today)
        except RunnerError as err:
            checks.append(failed(name, err))
            continue
        plans.append(plan)
        checks += _pool_checks(name, plan, today)
        cost = mover_cost(stack, prices) if pool.id == MOVER_POOL else None
        if cost is not None:
            text = f"{cost.what}: about {format_usd(1e6 * cost.usd_per_month)} a month"
            checks.append(passed(name, text))
    return plans, checks


def _pool_checks(name: str, plan: PoolPlan, today: date) -> Iterator[Check]:
    nodes = " and ".join(
        f"{count} {kind}"
        for count, kind in ((plan.caps.spot, "spot"), (plan.caps.dedicated, "dedicated"))
        if count
    )
    yield passed(name, f"{plan.machine.vm_size}, at most {nodes}, {plan.pool.scenario}")
    retired = plan.machine.retired
    if retired is not None and (retired - today).days < _SOON_DAYS:
        fix = f"change its vm_size to {plan.machine.successor}"
        yield warned(name, f"{plan.machine.vm_size} is retired on {retired}", fix)
    if plan.machine.note:
        yield noted(name, f"{plan.machine.vm_size}: {plan.machine.note}", _newer(plan.machine))
    yield _agent_check(name, plan.node_agent, today)


def _newer(machine: Machine) -> str:
    return f"consider {machine.successor}; `runner skus` compares their prices"


def _agent_check(name: str, agent: str, today: date) -> Check:
    """Check when Batch ends the support of an operating system."""
    if agent not in OS_END_OF_LIFE:
        return skipped(name, f"unknown end of life: {agent}")
    end = OS_END_OF_LIFE[agent]
    if end is None:
        return passed(name, f"{agent} is supported")
    if end <= today:
        return failed(
            name,
            RunnerError(
                "R-IMAGE-ENDED",
                f"support for {agent} ended on {end}",
                why="Batch no longer creates pools with this operating system",
                fix="use an image of Ubuntu 24.04",
            ),
        )
    if (end - today).days < _SOON_DAYS:
        return warned(name, f"support for {agent} ends on {end}", "use an image of Ubuntu 24.04")
    return passed(name, f"{agent} is supported until {end}")


_AZURE_CHECKS = (
    "subscription",
    "region",
    "budget",
    "providers",
    "permissions",
    "names",
    "sizes",
    "images",
    "quotas",
)


@dataclass
class _Checklist:
    """The checks so far. Each new one is also reported as progress."""

    on_progress: OnProgress
    found: list[Check]

    def add(self, *checks: Check) -> bool:
        """Store and report checks. Return True if none of them failed."""
        for each in checks:
            self.found.append(each)
            state = "end" if each.state == "ok" else each.state
            self.on_progress(Progress(each.name, state, each.detail))
        return all(each.state != "failed" for each in checks)


def run_checks(
    settings: Settings,
    *,
    folder: Path,
    env: Mapping[str, str],
    today: date,
    on_progress: OnProgress,
) -> Sequence[Check]:
    """Check configuration, tools, sign-in, subscription and quotas. Create and change nothing.

    Without a sign-in, the checks that need Azure are skipped.
    """
    checklist = _Checklist(on_progress, [])
    config = load_config(folder / f"Pulumi.{settings.stack}.yaml", env=env)
    checklist.add(config.check)
    pools: Sequence[PoolPlan] = ()
    if config.stack is not None:
        prices = load_price_table(settings.home)
        pools, checks = check_pools(config.stack, prices, today)
        checklist.add(*_config_warnings(config.stack, pools), *checks)
        from runner.flows.environment.checks.versions import check_versions  # noqa: PLC0415  azure-core

        checklist.add(*check_versions(today))
    from runner.flows.environment.checks.tools import check_tools  # noqa: PLC0415  pydantic, YAML

    checklist.add(*check_tools(settings.home, env))
    management, token = _signed_in(checklist, config.stack, env)
    if config.stack is not None:
        checklist.add(*_access_warnings(config.stack, token))
    if management is None or config.stack is None:
        why = "not signed in" if management is None else "the configuration is invalid"
        bad = tuple(_unknown_regions(config.stack)) if config.stack is not None else ()
        checklist.add(*bad)
        skips = (name for name in _AZURE_CHECKS if not (bad and name == "region"))
        checklist.add(*(skipped(name, why) for name in skips))
        return checklist.found
    from runner.flows.environment.checks.azure import AzureChecks  # noqa: PLC0415  azure-core
    from runner.flows.environment.checks.private import check_private  # noqa: PLC0415  the Batch SDK
    from runner.flows.environment.ownership import load_earlier  # noqa: PLC0415

    checklist.add(*check_private(config.stack, settings))
    earlier = load_earlier(settings, config.stack, folder, env)
    azure = AzureChecks(management, config.stack, pools, settings, today, earlier)
    if not checklist.add(azure.subscription()):
        why = "the subscription cannot be used"
        checklist.add(*(skipped(name, why) for name in _AZURE_CHECKS[1:]))
        return checklist.found
    for check in (
        *(azure.regions, azure.budget, azure.providers, azure.permissions),
        *(azure.names, azure.sizes, azure.images, azure.quotas),
    ):
        checklist.add(*check())
    return checklist.found


def _unknown_regions(stack: StackConfig) -> Iterator[Check]:
    """Yield a failure for each region that runner does not know, without those of Azure."""
    from runner.flows.environment.first_files import check_location  # noqa: PLC0415  pydantic

    for name in dict.fromkeys(stack.regions):
        try:
            check_location(name, ())
        except RunnerError as err:
            yield failed("region", err)


def _signed_in(
    checklist: _Checklist, stack: StackConfig | None, env: Mapping[str, str]
) -> tuple[ArmClient | None, str | None]:
    """Return the client and its token, or None for both."""
    from runner.azure.arm.client import open_arm  # noqa: PLC0415  azure-core
    from runner.azure.auth.sign_in import describe_sign_in  # noqa: PLC0415
    from runner.core.azure.clouds import check_az  # noqa: PLC0415

    found: list[tuple[ArmClient, str]] = []

    def sign_in() -> str:
        subscription, cloud = (stack.subscription_id, stack.cloud) if stack else ("", None)
        client = open_arm(subscription, env, cloud)
        if describe_sign_in(env).startswith("az login"):
            check_az(env, client.cloud)
        found.append((client, client.sign_in()))
        return f"token for {client.endpoint} from {describe_sign_in(env)}"

    checklist.on_progress(Progress("sign-in", "start", "signing in"))
    checklist.add(run_check("sign-in", sign_in))
    return found[0] if found else (None, None)


def first_failure(checks: Sequence[Check]) -> RunnerError | None:
    """Return the first failed check that stops a deployment as an error, or None."""
    for each in checks:
        if each.state == "failed" and each.stops_up:
            return RunnerError(each.code, each.detail, fix=each.fix, exit_code=each.exit_code)
    return None
