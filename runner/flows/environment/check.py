"""Check a stack before its deployment: first its file, then the subscription."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.checks import Check, failed, passed, run_check, skipped, warned
from runner.core.pricing.machines import OS_END_OF_LIFE
from runner.core.pricing.prices import PriceTable, load_price_table
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings
from runner.core.units import format_count
from runner.protocol.errors import RunnerError

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


def _api_check() -> Check:
    """Return a check that names the version of the Batch API.

    Azure lists versions before 2025-06-01 as retiring, without a date:
    github.com/Azure/Batch/issues/140 (read 2026-11-20).
    """
    from runner_infra.planning.pool_plan import BATCH_API  # noqa: PLC0415  pydantic, YAML

    detail = f"pools use Batch API {BATCH_API}, the newest in azure-native's SDK; "
    return passed("batch-api", f"{detail}Azure will retire versions before 2025-06-01")


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
    from runner_infra.planning.pool_plan import plan_pools  # noqa: PLC0415  pydantic, YAML

    plans: list[PoolPlan] = []
    checks: list[Check] = []
    for pool in stack.pools:
        name = f"pool {pool.id}"
        try:
            (plan,) = plan_pools(stack.model_copy(update={"pools": (pool,)}), prices, today)
        except RunnerError as err:
            checks.append(failed(name, err))
            continue
        plans.append(plan)
        checks += _pool_checks(name, plan, today)
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
    yield _agent_check(name, plan.node_agent, today)


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
        checklist.add(*_config_warnings(config.stack, pools), *checks, _api_check())
    from runner.flows.environment.check_tools import check_tools  # noqa: PLC0415  pydantic, YAML

    checklist.add(*check_tools(settings.home, env))
    management, token = _signed_in(
        checklist, config.stack.subscription_id if config.stack else "", env
    )
    if config.stack is not None:
        checklist.add(*_access_warnings(config.stack, token))
    if management is None or config.stack is None:
        why = "not signed in" if management is None else "the configuration is invalid"
        checklist.add(*(skipped(name, why) for name in _AZURE_CHECKS))
        return checklist.found
    from runner.flows.environment.check_azure import AzureChecks  # noqa: PLC0415  azure-core

    azure = AzureChecks(management, config.stack, pools, settings, today)
    if not checklist.add(azure.subscription()):
        why = "the subscription cannot be used"
        checklist.add(*(skipped(name, why) for name in _AZURE_CHECKS[1:]))
        return checklist.found
    for check in (
        *(azure.budget, azure.providers, azure.permissions),
        *(azure.names, azure.sizes, azure.images, azure.quotas),
    ):
        checklist.add(*check())
    return checklist.found


def _signed_in(
    checklist: _Checklist, subscription_id: str, env: Mapping[str, str]
) -> tuple[ArmClient | None, str | None]:
    """Return the client and its token, or None for both."""
    from runner.azure.arm.client import ArmClient, arm_endpoint  # noqa: PLC0415  azure-core
    from runner.azure.auth.sign_in import describe_sign_in  # noqa: PLC0415

    found: list[tuple[ArmClient, str]] = []

    def sign_in() -> str:
        client = ArmClient(subscription_id, endpoint=arm_endpoint(env))
        found.append((client, client.sign_in()))
        return f"token for {client.endpoint} from {describe_sign_in(env)}"

    checklist.on_progress(Progress("sign-in", "start", "signing in"))
    checklist.add(run_check("sign-in", sign_in))
    return found[0] if found else (None, None)


def first_failure(checks: Sequence[Check]) -> RunnerError | None:
    """Return the first failed check as an error, or None."""
    for each in checks:
        if each.state == "failed":
            return RunnerError(each.code, each.detail, fix=each.fix, exit_code=each.exit_code)
    return None
