"""Everything that can be known before money is spent: `runner check`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.checks import Check, attempt, skipped
from runner.core.errors import RunnerError
from runner.core.prices import load_price_table
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings
from runner.flows.check_config import check_pools, load_config

if TYPE_CHECKING:
    from infra.pool_plan import PoolPlan
    from runner.azure.management import Management

_AZURE_CHECKS = ("subscription", "providers", "permissions", "names", "sizes", "images", "quotas")


@dataclass
class _Checklist:
    """Checks as they come, told to whoever draws them."""

    on_progress: OnProgress
    found: list[Check]

    def add(self, *checks: Check) -> bool:
        """Keep the outcomes; whether none of them failed."""
        for each in checks:
            self.found.append(each)
            if each.state != "skipped":
                told = f"warning: {each.detail}" if each.state == "warning" else each.detail
                state = "failed" if each.state == "failed" else "end"
                self.on_progress(Progress(each.name, state, told))
        return all(each.state != "failed" for each in checks)


def run_checks(
    settings: Settings,
    *,
    folder: Path,
    env: Mapping[str, str],
    today: date,
    on_progress: OnProgress,
) -> Sequence[Check]:
    """Look at configuration, sign-in, subscription and quotas; nothing is created or changed.

    What needs Azure is skipped, with the reason, where nobody is signed in.
    """
    checklist = _Checklist(on_progress, [])
    config = load_config(folder / f"Pulumi.{settings.stack}.yaml", env=env)
    checklist.add(config.check)
    pools: Sequence[PoolPlan] = ()
    if config.stack is not None:
        prices = load_price_table(settings.home)
        pools, checks = check_pools(config.stack, prices, today)
        checklist.add(*checks)
    management = _signed_in(checklist, config.stack.subscription_id if config.stack else "", env)
    if management is None or config.stack is None:
        why = "not signed in" if management is None else "the configuration is not readable"
        checklist.add(*(skipped(name, why) for name in _AZURE_CHECKS))
        return checklist.found
    from runner.flows.check_azure import AzureChecks  # noqa: PLC0415  azure-core

    azure = AzureChecks(management, config.stack, pools, settings, today)
    if not checklist.add(azure.subscription()):
        why = "the subscription cannot be used"
        checklist.add(*(skipped(name, why) for name in _AZURE_CHECKS[1:]))
        return checklist.found
    for look in (azure.providers, azure.permissions, azure.names, azure.sizes, azure.images):
        checklist.add(*look())
    checklist.add(*azure.quotas())
    return checklist.found


def _signed_in(
    checklist: _Checklist, subscription_id: str, env: Mapping[str, str]
) -> Management | None:
    from runner.azure.management import Management, arm_endpoint  # noqa: PLC0415  when needed

    management: list[Management] = []

    def look() -> str:
        made = Management(subscription_id, endpoint=arm_endpoint(env))
        made.sign_in()
        management.append(made)
        return f"a token for {made.endpoint}"

    checklist.on_progress(Progress("sign-in", "start", "looking for a sign-in"))
    ok = checklist.add(attempt("sign-in", look))
    return management[0] if ok else None


def first_failure(checks: Sequence[Check]) -> RunnerError | None:
    """The first failure as an error, for commands that must not go on."""
    for each in checks:
        if each.state == "failed":
            return RunnerError(each.code, each.detail, fix=each.fix, exit_code=each.exit_code)
    return None
