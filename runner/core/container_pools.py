"""Which pools take a run: those that run containers take nothing else, the others take none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.contract import PoolOutput, StackOutputs
from runner.core.errors import ExitCode, RunnerError


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
