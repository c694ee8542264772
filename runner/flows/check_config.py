"""What can be said of a stack's file without Azure: keys, sizes, caps, formulas, images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.checks import Check, attempt, failed, passed, skipped, warned
from runner.core.errors import ExitCode, RunnerError
from runner.core.node_agents import END_OF_LIFE
from runner.core.prices import PriceTable

if TYPE_CHECKING:
    from infra.pool_plan import PoolPlan
    from infra.stack_config import StackConfig

_SOON_DAYS = 180


@dataclass(frozen=True, slots=True)
class Config:
    """The stack's file, read or not."""

    check: Check
    stack: StackConfig | None


def load_config(file: Path, *, env: Mapping[str, str]) -> Config:
    """Read the stack's file, once; what is wrong with it is a failed check."""
    found: list[StackConfig] = []

    def look() -> str:
        if not file.is_file():
            raise _no_file(file)
        from infra.stack_config import load_stack_config  # noqa: PLC0415  pydantic, YAML

        stack = load_stack_config(file, environment=env)
        found.append(stack)
        count = len(stack.pools)
        pools = f"{count} pool" if count == 1 else f"{count} pools"
        return f"{file.name}: {pools} in {stack.location}"

    check = attempt("config", look)
    return Config(check, found[0] if found else None)


def check_pools(
    stack: StackConfig, prices: PriceTable, today: date
) -> tuple[Sequence[PoolPlan], Sequence[Check]]:
    """Return the plans of the pools that can be declared, and the checks of all pools.

    Pools are planned one at a time, so an error in one does not hide an error in the next.
    """
    from infra.pool_plan import plan_pools  # noqa: PLC0415  pydantic, YAML

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
    """Announced ends of the operating systems' support in Batch."""
    if agent not in END_OF_LIFE:
        return skipped(name, f"no end of life is known here for {agent}")
    end = END_OF_LIFE[agent]
    if end is None:
        return passed(name, f"{agent} is current")
    if end <= today:
        return failed(
            name,
            RunnerError(
                "R-IMAGE-ENDED",
                f"{agent} ended on {end}",
                why="Batch takes no pool with it",
                fix="use an image of Ubuntu 24.04",
                exit_code=ExitCode.PREFLIGHT,
            ),
        )
    if (end - today).days < _SOON_DAYS:
        return warned(name, f"{agent} ends on {end}", "use an image of Ubuntu 24.04")
    return passed(name, f"{agent} is supported until {end}")


def _no_file(file: Path) -> RunnerError:
    return RunnerError(
        "R-STACK-CONFIG-READ",
        f"there is no {file.name} in {file.parent}",
        why="a stack is described by the file of its name, beside Pulumi.yaml",
        fix="run this where Pulumi.yaml is, or choose another stack with --stack",
        exit_code=ExitCode.PREFLIGHT,
    )
