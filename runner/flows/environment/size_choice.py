"""Choose the cheapest VM size that a pool may have, and write it into the stack's file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core.pricing.prices import PriceTable, load_price_table
from runner.core.settings import Settings
from runner.core.yaml_files import read_document
from runner.flows.environment.plan import find_project, read_stack
from runner.flows.environment.skus import SkuRow, list_skus, load_facts
from runner.protocol.errors import ExitCode, RunnerError
from runner_infra.planning.pool_plan import plan_pool

if TYPE_CHECKING:
    from runner_infra.config.stack import StackConfig

_SHOWN = 3  # cheaper sizes whose reason is shown
_VALUE = re.compile(r"(\bvm_size\s*:\s*)([\"']?)([\w.-]+)\2")


@dataclass(frozen=True, slots=True)
class SizeChoice:
    """The chosen size of a pool.

    Attributes:
        file: The stack's file.
        pool_id, old_size, max_spot: The pool as it is in the file.
        row: The chosen size with its price and quota.
        refused: Cheaper sizes, each with the reason why the pool cannot have it.
        problems: Facts that Azure did not return.
        line: Number of the changed line, from 1.
        before, after: The text of the file.
    """

    file: Path
    pool_id: str
    old_size: str
    max_spot: int
    row: SkuRow
    refused: Sequence[tuple[str, str]]
    problems: Sequence[str]
    line: int
    before: str
    after: str

    @property
    def quota_nodes(self) -> int:
        """The number of spot nodes that the quota allows."""
        return (self.row.facts.quota_cores or 0) // self.row.machine.vcpus


def choose_size(
    settings: Settings,
    pool_id: str | None,
    *,
    cwd: Path,
    env: Mapping[str, str],
    today: date,
    gpu: str | None = None,
    region: str | None = None,
    subscription_id: str | None = None,
) -> SizeChoice:
    """Return the cheapest GPU size for the spot nodes of a pool; nothing is written.

    Sizes are compared by the expected cost of an hour of useful work on spot nodes, in the region
    of the stack. A size has to have a known spot price, to be allowed by the quota and the
    restrictions of the subscription, and to be accepted by the Pulumi program for this pool.

    Args:
        pool_id: None for the only pool of the stack.
        gpu: Only sizes with this GPU.
        region: None for that of the stack; any other is an error.
        subscription_id: None for that of the stack.

    Raises:
        RunnerError: R-SKUS-POOL, no such pool or it has no spot nodes; R-SKUS-PICK, no size is
            allowed, or the line of the file cannot be changed; or an error of the stack's file or
            of Azure.
    """
    file = find_project(cwd) / f"Pulumi.{settings.stack}.yaml"
    config = read_stack(file, env)
    number = _find_pool(config, pool_id, file)
    if region not in (None, config.location):
        raise RunnerError(
            "R-SKUS-PICK",
            f"the pools of stack {settings.stack!r} are in {config.location}, not in {region}",
            why=f"azure-native:location in {file.name} decides the region",
            fix=f"runner skus --pick --region {config.location}",
        )
    pool = config.pools[number]
    listed = list_skus(
        settings.home, gpu=gpu, region=config.location, include_retired=False, today=today
    )
    rows, problems = load_facts(
        [row for row in listed if row.machine.gpu], subscription_id or config.subscription_id, env
    )
    prices = load_price_table(settings.home)
    refused: list[tuple[str, str]] = []
    for row in sorted(rows, key=_spot_cost):
        reason = _refusal(row) or _plan_refusal(config, number, row, prices, today)
        if not reason:
            line, before, after = _edit(file, number, row.machine.vm_size)
            return SizeChoice(
                *(file, pool.id, pool.vm_size, pool.max_spot, row, refused, problems),
                line=line,
                before=before,
                after=after,
            )
        refused.append((row.machine.vm_size, reason))
    raise _nothing_allowed(config, refused, problems)


def write_choice(choice: SizeChoice, env: Mapping[str, str]) -> None:
    """Write the chosen size into the stack's file, and check that the file is accepted.

    Raises:
        RunnerError: the file changed meanwhile, cannot be written, or is not accepted; then it is
            as before.
    """
    if _read(choice.file) != choice.before:
        raise _cannot_edit(choice.file, "it changed after it was read")
    wanted = _with_size(read_stack(choice.file, env), choice.pool_id, choice.row.machine.vm_size)
    _replace(choice.file, choice.after)
    try:
        if read_stack(choice.file, env) != wanted:
            raise _cannot_edit(choice.file, "another value of the stack would have changed")
    except RunnerError:
        _replace(choice.file, choice.before)
        raise


def _read(file: Path) -> str:
    """Return the text with its line breaks as they are."""
    with file.open(encoding="utf-8", newline="") as stream:
        return stream.read()


def _replace(file: Path, text: str) -> None:
    part = file.with_name(f"{file.name}.part")
    try:
        part.write_text(text, encoding="utf-8", newline="")
        part.chmod(file.stat().st_mode & 0o777)
        part.replace(file)
    except OSError as err:
        raise _cannot_edit(file, str(err)) from err
    finally:
        part.unlink(missing_ok=True)


def _find_pool(config: StackConfig, pool_id: str | None, file: Path) -> int:
    names = [pool.id for pool in config.pools]
    found = [n for n, name in enumerate(names) if (pool_id or name).lower() == name.lower()]
    if len(found) != 1:
        what = (
            f"no pool {pool_id!r} in {file.name}" if pool_id else f"no pool of {len(names)} named"
        )
        raise RunnerError(
            "R-SKUS-POOL",
            what,
            why=f"pools: {', '.join(names)}" if names else "the stack has no pools",
            fix=f"runner skus --pick --pool {names[0]}" if names else "add a pool to the file",
        )
    if not config.pools[found[0]].max_spot:
        raise RunnerError(
            "R-SKUS-POOL",
            f"pool {names[found[0]]!r} has no spot nodes",
            why="--pick compares sizes by the price and the quota of spot nodes",
            fix=f"set max_spot of the pool in {file.name}, or choose a size with `runner skus`",
        )
    return found[0]


def _spot_cost(row: SkuRow) -> tuple[bool, float, str]:
    usd = row.useful_spot_usd_per_hour
    return (usd is None, usd or 0.0, row.machine.vm_size)


def _refusal(row: SkuRow) -> str:
    """Return why a pool cannot have spot nodes of the size, or an empty text."""
    facts, vcpus = row.facts, row.machine.vcpus
    if row.spot is None:
        return "its spot price is unknown"
    if facts.restriction is None:
        return "its restrictions are unknown"
    if facts.restriction:
        return facts.restriction
    if facts.quota_cores is None:
        return "the quota is unknown"
    if facts.quota_cores < vcpus:
        return f"{vcpus} vCPUs, quota {facts.quota_cores}"
    return ""


def _with_size(config: StackConfig, pool_id: str, vm_size: str) -> StackConfig:
    pools = tuple(
        pool.model_copy(update={"vm_size": vm_size}) if pool.id == pool_id else pool
        for pool in config.pools
    )
    return config.model_copy(update={"pools": pools})


def _plan_refusal(
    config: StackConfig, number: int, row: SkuRow, prices: PriceTable, today: date
) -> str:
    """Return why the Pulumi program would refuse the size, or an empty text."""
    changed = _with_size(config, config.pools[number].id, row.machine.vm_size)
    try:
        plan_pool(changed.of_file(None), number, prices, today)
    except RunnerError as err:
        return err.why or err.what
    return ""


def _edit(file: Path, number: int, vm_size: str) -> tuple[int, str, str]:
    """Return the number of the line with the size of a pool, and the text with and without it."""
    document = read_document(file, code="R-STACK-CONFIG")
    line = document.line(("config", "runner:pools", number, "vm_size"))
    before = _read(file)
    lines = before.splitlines(keepends=True)
    changed, count = _VALUE.subn(rf"\g<1>\g<2>{vm_size}\g<2>", lines[line - 1])
    if count != 1:
        raise _cannot_edit(file, f"line {line} does not have the size of one pool")
    return line, before, "".join([*lines[: line - 1], changed, *lines[line:]])


def _cannot_edit(file: Path, why: str) -> RunnerError:
    return RunnerError(
        "R-SKUS-PICK",
        f"{file.name} was not changed",
        why=why,
        fix=f"change vm_size of the pool in {file.name} by hand",
    )


def _nothing_allowed(
    config: StackConfig, refused: Sequence[tuple[str, str]], problems: Sequence[str]
) -> RunnerError:
    reasons, region = _reasons(refused), config.location
    show = f"runner skus --live --region {region} --subscription {config.subscription_id}"
    return RunnerError(
        "R-SKUS-PICK",
        f"no VM size with a GPU is allowed for spot nodes in {region}",
        why="; ".join([*problems, *reasons]),
        fix=f"run `{show}` to see quota, restrictions and prices",
        exit_code=ExitCode.CAPACITY,
    )


def _reasons(refused: Sequence[tuple[str, str]]) -> Iterator[str]:
    for size, reason in refused[:_SHOWN]:
        yield reason if reason.startswith(size) else f"{size}: {reason}"
    if len(refused) > _SHOWN:
        yield f"and {len(refused) - _SHOWN} more"


def refused_lines(choice: SizeChoice) -> list[str]:
    """Return the cheaper sizes with the reason why each is not allowed, at most three."""
    return list(_reasons(choice.refused))
