"""Choose the pool of a run, by image and resources, and explain why the others do not fit."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from runner.contract import PoolOutput, StackOutputs
from runner.core.pricing.machines import find_machine
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.run_spec import NO_RESOURCES, Resources


def pools_for(image: str | None, wanted: str | None, outputs: StackOutputs) -> StackOutputs:
    """The stack with the pools that take the run. A pool that does not say takes all of them.

    Raises RunnerError where none is left, or where the one that is `wanted` is not among them.
    """
    fitting = tuple(pool for pool in outputs.pools if _fits(pool, image))
    named = next(
        (pool for pool in outputs.pools if pool.id.lower() == (wanted or "").lower()), None
    )
    if named is not None and named not in fitting:
        raise _unsuitable(f"pool {named.id}", image, fitting)
    if outputs.pools and not fitting:
        raise _unsuitable("every pool of this stack", image, fitting)
    return replace(outputs, pools=fitting)


def pools_for_all(
    images: Mapping[str, str | None], wanted: str | None, outputs: StackOutputs
) -> StackOutputs:
    """The stack with the pools that take every task, by whose name `images` are.

    Raises RunnerError where a pool takes only some of them, as for a single run otherwise.
    """
    if not is_mixed(images):
        return pools_for(next(iter(images.values())), wanted, outputs)
    fitting = tuple(pool for pool in outputs.pools if pool.containers is None)
    named = next(
        (pool for pool in outputs.pools if pool.id.lower() == (wanted or "").lower()), None
    )
    if named is None and (fitting or wanted is not None):  # one that is not there is told later
        return replace(outputs, pools=fitting or outputs.pools)
    if named is not None and named in fitting:
        return outputs
    inside = next(name for name, image in images.items() if image is not None)
    outside = next(name for name, image in images.items() if image is None)
    takes = "no pool of this stack takes" if named is None else f"pool {named.id} does not take"
    raise RunnerError(
        "R-POOL-CONTAINERS",
        f"{takes} every task",
        why=f"{inside} has an image and {outside} has none: tasks of one file share a pool, "
        "and a pool runs containers only, or none",
        fix=f"--pool {fitting[0].id}"
        if fitting
        else f"give {outside} an image, or submit the tasks in files of their own",
        exit_code=ExitCode.PREFLIGHT,
    )


def is_mixed(images: Mapping[str, str | None]) -> bool:
    """Whether some tasks are for a container, and others for none."""
    return len({image is None for image in images.values()}) > 1


def _fits(pool: PoolOutput, image: str | None) -> bool:
    return pool.containers is None or pool.containers == (image is not None)


def _unsuitable(what: str, image: str | None, fitting: tuple[PoolOutput, ...]) -> RunnerError:
    if image is None:
        problem, fix = "runs containers only", "give the recipe an `image`"
    else:
        problem, fix = "runs no containers", "add a pool with `containers: true` and deploy"
    return RunnerError(
        "R-POOL-CONTAINERS",
        f"{what} {problem}",
        why=f"the run is for the image {image}" if image else "the recipe names no image",
        fix=f"--pool {fitting[0].id}" if fitting else fix,
        exit_code=ExitCode.PREFLIGHT,
    )


_GIB = 1024**3
_FALLBACK = "spot-then-dedicated"


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """The pool, and what a named pool lacks of what the recipe asks for."""

    pool: PoolOutput
    warnings: tuple[str, ...] = ()


def choose_pool(
    wanted: str | None,
    outputs: StackOutputs,
    asked: Resources = NO_RESOURCES,
    insisted: Resources = NO_RESOURCES,
) -> PoolChoice:
    """The pool that is named, else the first that fits; of GPUs, the fewest that do.

    A named pool is taken although the recipe (`asked`) wants another: a recipe written for a GPU
    runs on the local pool so. What was typed beside the name (`insisted`) is refused instead.
    """
    if not outputs.pools:
        raise RunnerError(
            "R-POOL-NONE",
            "this stack has no pool",
            fix="add a pool to the stack's configuration and deploy it",
            exit_code=ExitCode.PREFLIGHT,
        )
    if wanted is not None:
        return _named(_by_name(wanted, outputs), asked, insisted)
    fitting = [pool for pool in outputs.pools if not lacks(pool, asked)]
    if not fitting:
        raise _none_fits(outputs.pools, asked)
    if asked.gpus is not None:
        fitting.sort(key=lambda pool: pool.gpus)  # stable: the stack's order among equals
    return PoolChoice(fitting[0])


def lacks(pool: PoolOutput, asked: Resources) -> str:
    """What of `asked` a pool does not have, in words; empty where it fits."""
    missing: list[str] = []
    if asked.gpus is not None and pool.gpus < asked.gpus:
        plural = "" if pool.gpus == 1 else "s"
        missing.append(f"{pool.gpus or 'no'} GPU{plural}, {asked.gpus} wanted")
    if asked.memory_bytes is not None:
        missing += _memory(pool, asked.memory_bytes)
    if asked.vm_sizes and pool.vm_size.lower() not in {size.lower() for size in asked.vm_sizes}:
        missing.append(f"VM size {pool.vm_size}")
    if asked.capacity is not None:
        missing += _capacity(pool, asked.capacity)
    missing += _nodes(pool, asked.nodes)
    return ", ".join(missing)


def _memory(pool: PoolOutput, wanted_bytes: int) -> list[str]:
    machine = find_machine(pool.vm_size)
    if machine is None:  # this machine, or a size the table lacks: the node will tell
        return []
    if machine.memory_gib * _GIB >= wanted_bytes:
        return []
    return [f"{machine.memory_gib:g} GiB of memory, {wanted_bytes / _GIB:.3g} wanted"]


def _capacity(pool: PoolOutput, wanted: str) -> list[str]:
    has = pool.capacity or ("spot" if pool.spot else "dedicated")
    if has == wanted:
        return []
    # A pool that falls back begins with spot nodes and may end on dedicated ones: it is neither.
    return [f"{has} nodes"]


def _nodes(pool: PoolOutput, wanted: int) -> list[str]:
    """A task for more nodes than the pool can give it would wait for ever."""
    if wanted == 1 or pool.task_nodes is None or pool.task_nodes >= wanted:
        return []
    if pool.task_nodes > 1:
        return [f"{pool.task_nodes} nodes of {wanted}"]
    why = f"{pool.max_nodes} node" if pool.max_nodes < 2 else "no tasks over several nodes"
    return [f"{why}, {wanted} wanted"]


def check_nodes(pool: PoolOutput, wanted: int) -> None:
    """Raise RunnerError where a pool, named or not, cannot take a run over so many nodes."""
    if missing := _nodes(pool, wanted):
        raise RunnerError(
            "R-POOL-NODES",
            f"pool {pool.id!r} cannot take a run on {wanted} nodes",
            why=f"it has {missing[0]}",
            fix=_nodes_fix(wanted),
            exit_code=ExitCode.PREFLIGHT,
        )


def _nodes_fix(wanted: int) -> str:
    return (
        f"runner local up --nodes {wanted} --slots 1 on this machine; on Azure a pool with "
        f"`inter_node_communication: true`, `slots: 1` and {wanted} nodes or more"
    )


def _named(pool: PoolOutput, asked: Resources, insisted: Resources) -> PoolChoice:
    check_nodes(pool, max(asked.nodes, insisted.nodes))
    if missing := lacks(pool, insisted):
        raise RunnerError(
            "R-POOL-FIT",
            f"pool {pool.id!r} does not fit",
            why=f"it has {missing}",
            fix="leave out --pool, or what it does not have",
        )
    missing = lacks(pool, asked)
    warning = f"pool {pool.id} is not what `resources` asks for: it has {missing}"
    return PoolChoice(pool, (warning,) if missing else ())


def _by_name(wanted: str, outputs: StackOutputs) -> PoolOutput:
    by_id = {pool.id.lower(): pool for pool in outputs.pools}
    if wanted.lower() in by_id:
        return by_id[wanted.lower()]
    near = difflib.get_close_matches(wanted.lower(), by_id, n=1)
    raise RunnerError(
        "R-POOL-UNKNOWN",
        f"there is no pool {wanted!r}",
        why=f"this stack has: {', '.join(pool.id for pool in outputs.pools)}",
        fix=f"--pool {by_id[near[0]].id if near else outputs.pools[0].id}",
    )


def _none_fits(pools: Sequence[PoolOutput], asked: Resources) -> RunnerError:
    reasons = "; ".join(f"{pool.id} has {lacks(pool, asked)}" for pool in pools)
    fix = f"--pool {pools[0].id} takes it all the same, or add a pool to the stack"
    if all(_nodes(pool, asked.nodes) for pool in pools):
        fix = _nodes_fix(asked.nodes)
    if asked.capacity == _FALLBACK:
        fix = (
            "give a pool of the stack `scenario: spot_first_with_dedicated_fallback` and "
            f"`max_dedicated: 1`, or --pool {pools[0].id}"
        )
    return RunnerError(
        "R-POOL-FIT",
        "no pool of this stack has what the run needs",
        why=reasons,
        fix=fix,
        exit_code=ExitCode.PREFLIGHT,
    )


def choose_common_pool(
    wanted: str | None, outputs: StackOutputs, asked: Mapping[str, Resources]
) -> PoolOutput:
    """The pool of tasks that share one Batch job, which has one pool: it fits all of them."""
    if wanted is not None or not outputs.pools:
        pool = choose_pool(wanted, outputs).pool
        check_nodes(pool, max((one.nodes for one in asked.values()), default=1))
        return pool
    misfits = {pool.id: _first_misfit(pool, asked) for pool in outputs.pools}
    fitting = [pool for pool in outputs.pools if not misfits[pool.id]]
    if not fitting:
        raise RunnerError(
            "R-POOL-FIT",
            "no pool of this stack fits every task",
            why="tasks of one file share a Batch job, and so a pool; "
            + "; ".join(f"{pool} {misfit}" for pool, misfit in misfits.items()),
            fix=f"--pool {outputs.pools[0].id}, or submit the tasks in files of their own",
            exit_code=ExitCode.PREFLIGHT,
        )
    if any(one.gpus is not None for one in asked.values()):
        fitting.sort(key=lambda pool: pool.gpus)
    return fitting[0]


def _first_misfit(pool: PoolOutput, asked: Mapping[str, Resources]) -> str:
    lacking = ((name, lacks(pool, one)) for name, one in asked.items())
    return next((f"has {missing} for {name}" for name, missing in lacking if missing), "")
