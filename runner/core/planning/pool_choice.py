"""Choose the pool of a run, by image and resources, and explain why the others do not fit."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from runner.contract import MOVER_POOL, SHARED_TEAM, PoolOutput, StackOutputs
from runner.core.pricing.machines import find_machine
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.run_spec import NO_RESOURCES, Resources


def pools_for(image: str | None, wanted: str | None, outputs: StackOutputs) -> StackOutputs:
    """Return the stack with only the pools that can run `image`; None is a run without container.

    Raises:
        RunnerError: no pool can, or the pool `wanted` cannot.
    """
    refuse_pool_of_other_team(wanted, outputs)
    fitting = tuple(pool for pool in outputs.pools if runs_image(pool, image))
    named = _find_named(wanted, outputs)
    if named is not None and named not in fitting:
        raise _unsuitable(f"pool {named.id}", image, fitting)
    if outputs.pools and not fitting:
        raise _unsuitable("every pool of this stack", image, fitting)
    return replace(outputs, pools=fitting)


def pools_for_all(
    images: Mapping[str, str | None],
    wanted: str | None,
    outputs: StackOutputs,
    trials: Collection[str] = (),
) -> StackOutputs:
    """Return the stack with only the pools that can run all tasks.

    Args:
        images: the image of each task.
        wanted: name of a pool, or None.
        outputs: the stack.
        trials: the tasks that are trials of a sweep.

    Raises:
        RunnerError: no pool can, or the pool `wanted` cannot.
    """
    if not is_mixed(images):
        return pools_for(next(iter(images.values())), wanted, outputs)
    refuse_pool_of_other_team(wanted, outputs)
    fitting = tuple(pool for pool in outputs.pools if pool.containers is None)
    named = _find_named(wanted, outputs)
    if named is None and (fitting or wanted is not None):  # an unknown pool is rejected later
        return replace(outputs, pools=fitting or outputs.pools)
    if named is not None and named in fitting:
        return outputs
    inside = _of_sweep(next(name for name, image in images.items() if image is not None), trials)
    outside = _of_sweep(next(name for name, image in images.items() if image is None), trials)
    share = "a sweep has one pool" if trials else "tasks of one file share a pool"
    runs = "no pool of this stack can run" if named is None else f"pool {named.id} cannot run"
    raise RunnerError(
        "R-POOL-CONTAINERS",
        f"{runs} {_all_of(trials)}",
        why=f"{inside} has an image and {outside} has none; {share}, and a pool runs either "
        "containers only or none",
        fix=f"--pool {fitting[0].id}"
        if fitting
        else f"add an image to {outside}"
        + ("" if trials else ", or submit the tasks in separate files"),
    )


def _of_sweep(name: str, trials: Collection[str]) -> str:
    """Return what a task is called: in a sweep, it is a trial or the merge task."""
    if not trials:
        return name
    return "each trial" if name in trials else "the merge task"


def _all_of(trials: Collection[str]) -> str:
    return "the trials and the merge task" if trials else "every task"


def is_of_other_team(pool: str, outputs: StackOutputs) -> bool:
    """Return True if a pool is not in the selected part of the stack, as that of the mover."""
    try:
        refuse_pool_of_other_team(pool, outputs)
    except RunnerError:
        return True
    return False


def refuse_pool_of_other_team(wanted: str | None, outputs: StackOutputs) -> None:
    """Raise RunnerError if the pool `wanted` is not in the selected part of the stack.

    Its nodes could not read the runs of this part, because they have another identity. The pool of
    the mover is in no part, so that no run gets the rights of its identity.
    """
    if wanted is not None and wanted.lower() == MOVER_POOL:
        raise RunnerError(
            "R-POOL-MOVER",
            f"no run may use pool {MOVER_POOL}",
            why="its nodes have the identity of the mover, which changes jobs of others",
            fix="choose another pool",
        )
    if outputs.whole is None or wanted is None:
        return
    found = next((p for p in outputs.stack_pools if p.id.lower() == wanted.lower()), None)
    own = None if outputs.team == SHARED_TEAM else outputs.team
    if found is None or found.team == own:
        return
    owner = "the shared part of the stack" if found.team is None else f"team {found.team!r}"
    part = "the shared part" if own is None else f"team {own!r}"
    ours = [pool.id for pool in outputs.stack_pools if pool.team == own]
    raise RunnerError(
        "R-POOL-TEAM",
        f"pool {found.id!r} belongs to {owner}",
        why=f"its nodes have no access to the runs of {part}",
        fix=f"--team {found.team or SHARED_TEAM}" + (f", or --pool {ours[0]}" if ours else ""),
    )


def is_mixed(images: Mapping[str, str | None]) -> bool:
    """Return True if some tasks have an image and others have none."""
    return len({image is None for image in images.values()}) > 1


def _find_named(wanted: str | None, outputs: StackOutputs) -> PoolOutput | None:
    return next((pool for pool in outputs.pools if pool.id.lower() == (wanted or "").lower()), None)


def runs_image(pool: PoolOutput, image: str | None) -> bool:
    """Return True if a pool can run a run with this image, or one without an image."""
    return pool.containers is None or pool.containers == (image is not None)


def _unsuitable(what: str, image: str | None, fitting: tuple[PoolOutput, ...]) -> RunnerError:
    if image is None:
        problem, fix = "runs containers only", "add `image` to the recipe"
    else:
        problem, fix = (
            "runs no containers",
            "add a pool with `containers: true` to the stack, and run `runner up`",
        )
    return RunnerError(
        "R-POOL-CONTAINERS",
        f"{what} {problem}",
        why=f"the run uses image {image}" if image else "the recipe has no image",
        fix=f"--pool {fitting[0].id}" if fitting else fix,
    )


_GIB = 1024**3
_FALLBACK = "spot-then-dedicated"


def choose_pool(
    wanted: str | None,
    outputs: StackOutputs,
    requested: Resources = NO_RESOURCES,
    required: Resources = NO_RESOURCES,
) -> PoolOutput:
    """Return the pool `wanted`, else the first that fits, preferring fewer GPUs.

    Args:
        wanted: name of a pool, or None.
        outputs: the stack.
        requested: the resources of the recipe. A named pool is used even if it lacks some of them,
            so that a recipe for a GPU runs on the local pool.
        required: the resources of the command line, which a named pool must have.
    """
    if not outputs.pools and outputs.whole is not None and outputs.stack_pools:
        teams = sorted({pool.team or SHARED_TEAM for pool in outputs.stack_pools})
        raise RunnerError(
            "R-POOL-TEAM",
            "the shared part of this stack has no pools",
            why=f"all of its pools belong to teams: {', '.join(teams)}",
            fix=f"--team {teams[0]}",
        )
    if not outputs.pools:
        raise RunnerError(
            "R-POOL-NONE",
            "this stack has no pools",
            fix="add a pool to the stack's configuration, and run `runner up`",
        )
    if wanted is not None:
        return _check_named_pool(_find_pool(wanted, outputs), requested, required)
    fitting = [pool for pool in outputs.pools if not missing_resources(pool, requested)]
    if not fitting:
        raise _no_pool_fits(outputs.pools, requested)
    if requested.gpus is not None:
        fitting.sort(key=lambda pool: pool.gpus)  # stable: the stack's order among equals
    return fitting[0]


def missing_resources(pool: PoolOutput, requested: Resources) -> str:
    """Return the resources that a pool lacks, as text; empty if it fits."""
    missing: list[str] = []
    if requested.gpus is not None and pool.gpus < requested.gpus:
        plural = "" if pool.gpus == 1 else "s"
        missing.append(f"{pool.gpus or 'no'} GPU{plural} ({requested.gpus} needed)")
    if requested.memory_bytes is not None:
        missing += _missing_memory(pool, requested.memory_bytes)
    if requested.gpu_memory_bytes is not None:
        missing += _missing_gpu_memory(pool, requested.gpu_memory_bytes)
    if requested.vm_sizes and pool.vm_size.lower() not in {
        size.lower() for size in requested.vm_sizes
    }:
        missing.append(f"VM size {pool.vm_size}")
    if requested.capacity is not None:
        missing += _wrong_capacity(pool, requested.capacity)
    missing += _missing_nodes(pool, requested.nodes)
    return ", ".join(missing)


def _missing_memory(pool: PoolOutput, wanted_bytes: int) -> list[str]:
    machine = find_machine(pool.vm_size)
    if machine is None:  # this machine or an unknown size: only the node knows its memory
        return []
    if machine.memory_gib * _GIB >= wanted_bytes:
        return []
    return [f"{machine.memory_gib:g} GiB of memory ({wanted_bytes / _GIB:.3g} needed)"]


def _missing_gpu_memory(pool: PoolOutput, wanted_bytes: int) -> list[str]:
    machine = find_machine(pool.vm_size)
    has = machine.gpu_memory_gib if machine is not None and machine.gpus else None
    if not pool.gpus:
        return [f"no GPU memory ({wanted_bytes / _GIB:.3g} GiB needed)"]
    if has is None or has * _GIB >= wanted_bytes:  # a GPU that the table does not know may have it
        return []
    return [f"{has:g} GiB of GPU memory ({wanted_bytes / _GIB:.3g} needed)"]


def _wrong_capacity(pool: PoolOutput, wanted: str) -> list[str]:
    has = pool.capacity or ("spot" if pool.spot else "dedicated")
    if has == wanted:
        return []
    # A pool with a fallback is neither spot nor dedicated, because it may use both.
    return [f"{has} nodes"]


def _missing_nodes(pool: PoolOutput, wanted: int) -> list[str]:
    """Return the missing nodes. A task for more nodes than a pool can have would wait forever."""
    if wanted == 1 or pool.task_nodes is None or pool.task_nodes >= wanted:
        return []
    if pool.task_nodes > 1:
        return [f"{pool.task_nodes} nodes ({wanted} needed)"]
    if pool.max_nodes < 2:
        return [f"{pool.max_nodes} node ({wanted} needed)"]
    return [f"only tasks on one node ({wanted} nodes needed)"]


def check_nodes(pool: PoolOutput, wanted: int) -> None:
    """Raise RunnerError if a pool, named or not, cannot run a task on so many nodes."""
    if missing := _missing_nodes(pool, wanted):
        raise RunnerError(
            "R-POOL-NODES",
            f"pool {pool.id!r} cannot run a task on {wanted} nodes",
            why=f"it has {missing[0]}",
            fix=_nodes_fix(wanted),
        )


def _nodes_fix(wanted: int) -> str:
    return (
        f"run `runner local up --nodes {wanted} --slots 1` on this machine; on Azure, use a pool "
        f"with `inter_node_communication: true`, `slots: 1` and at least {wanted} nodes"
    )


def _check_named_pool(pool: PoolOutput, requested: Resources, required: Resources) -> PoolOutput:
    check_nodes(pool, max(requested.nodes, required.nodes))
    if missing := missing_resources(pool, required):
        raise RunnerError(
            "R-POOL-FIT",
            f"pool {pool.id!r} does not have the requested resources",
            why=f"it has {missing}",
            fix="remove --pool, or the option that the pool does not satisfy",
            exit_code=ExitCode.USAGE,
        )
    return pool


def pool_warnings(pool: PoolOutput, requested: Resources) -> tuple[str, ...]:
    """Return a warning if the pool, which the user named, lacks resources of the recipe."""
    if missing := missing_resources(pool, requested):
        return (f"pool {pool.id} does not satisfy `resources`: it has {missing}",)
    return ()


def _find_pool(wanted: str, outputs: StackOutputs) -> PoolOutput:
    by_id = {pool.id.lower(): pool for pool in outputs.pools}
    if wanted.lower() in by_id:
        return by_id[wanted.lower()]
    near = difflib.get_close_matches(wanted.lower(), by_id, n=1)
    raise RunnerError(
        "R-POOL-UNKNOWN",
        f"unknown pool {wanted!r}",
        why=f"pools of this stack: {', '.join(pool.id for pool in outputs.pools)}",
        fix=f"--pool {by_id[near[0]].id if near else outputs.pools[0].id}",
    )


def _no_pool_fits(
    pools: Sequence[PoolOutput], requested: Resources, whose: str = "the run"
) -> RunnerError:
    reasons = "; ".join(f"{pool.id} has {missing_resources(pool, requested)}" for pool in pools)
    return RunnerError(
        "R-POOL-FIT",
        f"no pool of this stack satisfies the resources of {whose}",
        why=reasons,
        fix=_suggest_fix(pools, requested),
    )


def _suggest_fix(pools: Sequence[PoolOutput], requested: Resources) -> str:
    if requested.capacity == _FALLBACK:
        return (
            "set `scenario: spot_first_with_dedicated_fallback` and `max_dedicated: 1` for a pool, "
            f"or use --pool {pools[0].id}"
        )
    if all(_missing_nodes(pool, requested.nodes) for pool in pools):
        return _nodes_fix(requested.nodes)
    return f"--pool {pools[0].id} to use that pool anyway, or add a pool to the stack"


def choose_common_pool(
    wanted: str | None,
    outputs: StackOutputs,
    requested: Mapping[str, Resources],
    trials: Collection[str] = (),
) -> PoolOutput:
    """Return the pool for tasks of one Batch job: the pool `wanted`, else one that fits all.

    Args:
        wanted: name of a pool, or None.
        outputs: the stack.
        requested: the resources of each task.
        trials: the tasks that are trials of a sweep, all with the same resources.
    """
    if wanted is not None or not outputs.pools:
        pool = choose_pool(wanted, outputs)
        check_nodes(pool, max((one.nodes for one in requested.values()), default=1))
        return pool
    misfits = {pool.id: _explain_misfit(pool, requested, trials) for pool in outputs.pools}
    fitting = [pool for pool in outputs.pools if not misfits[pool.id]]
    if not fitting:
        alone = (
            name
            for name, one in requested.items()
            if all(missing_resources(each, one) for each in outputs.pools)
        )
        unfit = next(alone, None)
        if trials and unfit is not None:
            raise _no_pool_fits(outputs.pools, requested[unfit], _of_sweep(unfit, trials))
        share = "a sweep has one Batch job" if trials else "tasks of one file share a Batch job"
        separate = "" if trials else ", or submit the tasks in separate files"
        raise RunnerError(
            "R-POOL-FIT",
            f"no pool of this stack fits {_all_of(trials)}",
            why=f"{share} and therefore a pool; "
            + "; ".join(f"{pool} {misfit}" for pool, misfit in misfits.items()),
            fix=f"--pool {outputs.pools[0].id}{separate}"
            if unfit is None
            else _suggest_fix(outputs.pools, requested[unfit]),
        )
    if any(one.gpus is not None for one in requested.values()):
        fitting.sort(key=lambda pool: pool.gpus)
    return fitting[0]


def _explain_misfit(
    pool: PoolOutput, requested: Mapping[str, Resources], trials: Collection[str]
) -> str:
    lacking = ((name, missing_resources(pool, one)) for name, one in requested.items())
    found = (f"has {missing} for {_of_sweep(name, trials)}" for name, missing in lacking if missing)
    return next(found, "")
