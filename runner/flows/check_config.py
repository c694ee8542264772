"""What can be said of a stack's file without Azure: keys, sizes, caps, formulas, images."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.core.checks import Check, attempt, failed, passed, skipped, warned
from runner.core.errors import ExitCode, RunnerError
from runner.core.machines import Machine, machine
from runner.core.node_agents import END_OF_LIFE
from runner.core.prices import PriceTable

if TYPE_CHECKING:
    from infra.pool_config import PoolConfig
    from infra.stack_config import StackConfig

_SOON_DAYS = 180


@dataclass(frozen=True, slots=True)
class Config:
    """The stack's file, read or not."""

    check: Check
    stack: StackConfig | None


@dataclass(frozen=True, slots=True)
class Image:
    """A marketplace image that a pool boots from; `version` may be `latest`."""

    publisher: str
    offer: str
    sku: str
    version: str


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """A pool that can be declared. `image` is None for one of the stack's own gallery."""

    id: str
    machine: Machine
    spot: int
    dedicated: int
    image: Image | None
    gallery_version: str
    node_agent: str


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
) -> tuple[Sequence[PoolFacts], Sequence[Check]]:
    """Each pool by itself: one that is wrong does not hide what is wrong with the next."""
    facts: list[PoolFacts] = []
    checks: list[Check] = []
    for pool in stack.pools:
        name = f"pool {pool.id}"
        try:
            found = _facts(stack, pool, prices, today)
        except RunnerError as err:
            checks.append(failed(name, err))
            continue
        facts.append(found)
        checks += _pool_checks(name, found, pool, today)
    return facts, checks


def _pool_checks(name: str, found: PoolFacts, pool: PoolConfig, today: date) -> Iterator[Check]:
    nodes = " and ".join(
        f"{count} {kind}"
        for count, kind in ((found.spot, "spot"), (found.dedicated, "dedicated"))
        if count
    )
    yield passed(name, f"{found.machine.vm_size}, at most {nodes}, {pool.scenario}")
    retired = found.machine.retired
    if retired is not None and (retired - today).days < _SOON_DAYS:
        fix = f"change its vm_size to {found.machine.successor}"
        yield warned(name, f"{found.machine.vm_size} is retired on {retired}", fix)
    yield _agent_check(name, found.node_agent, today)


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


def _facts(stack: StackConfig, pool: PoolConfig, prices: PriceTable, today: date) -> PoolFacts:
    size = machine(pool.vm_size, today)
    one = stack.model_copy(update={"pools": (pool,)})
    # By name: formulas are checked by the emulator's own parser, and the modules of runner reach
    # the emulator over HTTP only. Here infra is a tool of the command, as it is in `runner up`.
    try:
        plans: Any = importlib.import_module("infra.pool_plan")
    except ModuleNotFoundError as err:
        raise _not_whole(err) from err
    (plan,) = plans.plan_pools(one, prices, today)
    image = None
    if plan.image is not None:
        image = Image(plan.image.publisher, plan.image.offer, plan.image.sku, plan.image.version)
    return PoolFacts(
        id=pool.id,
        machine=size,
        spot=plan.caps.spot,
        dedicated=plan.caps.dedicated,
        image=image,
        gallery_version=pool.image.version,
        node_agent=plan.node_agent,
    )


def _not_whole(err: ModuleNotFoundError) -> RunnerError:
    return RunnerError(
        "R-INSTALL",
        "this installation of runner cannot plan pools",
        why=str(err),
        fix="install runner again, with the extra infra",
        exit_code=ExitCode.PREFLIGHT,
    )


def _no_file(file: Path) -> RunnerError:
    return RunnerError(
        "R-STACK-CONFIG-READ",
        f"there is no {file.name} in {file.parent}",
        why="a stack is described by the file of its name, beside Pulumi.yaml",
        fix="run this where Pulumi.yaml is, or choose another stack with --stack",
        exit_code=ExitCode.PREFLIGHT,
    )
