"""Plan a run again from its `run.json`, without its recipe folder and its machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from runner.contract import PoolOutput, StackOutputs
from runner.core.planning.plan import Placement, RunIdentity, RunInputs, RunPlan
from runner.core.planning.pool_choice import check_nodes
from runner.core.recipe.notebook import notebook_of
from runner.core.recipe.overrides import resolve_params
from runner.core.recipe.recipe import Param, ParamValue, Recipe
from runner.core.recipe.secrets import recorded_secrets
from runner.core.schedules.submit_file import in_order
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.groups import CyclicError, Edges
from runner.protocol.run_spec import ResumeFrom, RunSpec, replace_arguments

RepeatKind = Literal["retry", "resume", "reproduce"]


@dataclass(frozen=True, slots=True)
class Repetition:
    """How to repeat a run: the kind, changed parameters, and where to resume.

    `after` are the runs it waits for, by those that the repeated one waited for.
    """

    kind: RepeatKind
    overrides: tuple[str, ...] = ()
    resume_from: ResumeFrom | None = None
    after: Mapping[str, str] = field(default_factory=dict[str, str])
    constraints: tuple[str, ...] | None = None  # `name==version` of every package; None leaves them
    nodes: int | None = None  # on so many; None leaves it

    @property
    def awaited(self) -> tuple[str, ...]:
        """Return the runs it waits for, each once."""
        return tuple(dict.fromkeys(self.after.values()))


def plan_again(
    record: RunSpec,
    asked: Repetition,
    outputs: StackOutputs,
    *,
    identity: RunIdentity,
    placement: Placement,
    agent_sha256: str,
    origin: Mapping[str, str] | None,
) -> RunPlan:
    """Return the plan of the repetition; `origin` is None for a run of a schedule.

    Raises:
        RunnerError: An override names a parameter that the run does not have.
        ValueError: The run recorded no code or no command.
    """
    record.check_executable()
    params = change_params(record, asked.overrides)
    again = _changed(record, asked)
    recipe = Recipe(
        **again.recipe_fields(),
        name=record.recipe,
        description=record.description,
        folder=Path(),
        source="folder",
        command=record.command,
    )
    return RunPlan(
        run_id=identity.run_id,
        experiment=record.experiment,
        created=identity.created,
        target="",
        account=outputs.batch_account,
        pool=placement.pool,
        job_id=placement.job_id,
        command=_command(record.command, record.params, params),
        params=params,
        recipe=replace(recipe, secrets=recorded_secrets(record)),
        inputs=RunInputs(
            code=record.code,
            agent_sha256=agent_sha256,
            requirements_sha256=record.requirements_sha256,
            data=None,
            named=again.inputs,
        ),
        repeats=again,
        origin=origin,
        after=placement.after,
        depends_on=placement.depends_on,
        group=placement.group,
        job_limit_s=placement.job_limit_s,
    )


def change_params(record: RunSpec, overrides: Iterable[str]) -> dict[str, ParamValue]:
    """Return the parameters with overrides, each of the type of its recorded value."""
    declared = tuple(Param.of_value(name, value) for name, value in record.params.items())
    return resolve_params(declared, overrides, notebook_of(record.command))


def choose_same_pool(
    wanted: str | None, record: RunSpec, outputs: StackOutputs, nodes: int | None = None
) -> PoolOutput:
    """The pool that is named, else the run's own. Raises RunnerError where there is none.

    Or where it does not take a run on `nodes`, which are the run's own where it is None.
    """
    name = (wanted or record.pool).lower()
    for pool in outputs.pools:
        if pool.id.lower() == name:
            check_nodes(pool, nodes or record.nodes)
            return pool
    names = ", ".join(pool.id for pool in outputs.pools)
    raise RunnerError(
        "R-POOL-UNKNOWN",
        f"there is no pool {wanted or record.pool!r}",
        why=f"this stack has: {names or 'no pool'}"
        + ("" if wanted else f"; {record.run_id} ran on one that is gone"),
        fix=f"--pool {outputs.pools[0].id}"
        if outputs.pools
        else "add a pool to the stack's file, then run `runner up`",
    )


def order_again(after: Edges) -> tuple[str, ...]:
    """Return the runs after those they wait for. Raise RunnerError for a cycle."""
    try:
        return in_order(after)
    except CyclicError as err:
        raise RunnerError(
            "R-RETRY-CYCLE",
            f"these runs wait for one another: {' -> '.join(err.path)}",
            why="a run.json was changed after the submission, as no submission has a cycle",
            fix="repeat others one by one: `runner ps --status failed`, then `runner retry RUN`",
            exit_code=ExitCode.RUN_FAILED,
        ) from err


def _changed(record: RunSpec, asked: Repetition) -> RunSpec:
    """Return the run with the changes asked for; everything else stays as it was recorded."""
    after, model = asked.after, record.model
    changes: dict[str, Any] = {
        "after": asked.awaited if record.after else (),
        "inputs": {
            name: {**one, "run_id": after[one["run_id"]]}
            if one.get("kind") == "run" and one.get("run_id") in after
            else one
            for name, one in record.inputs.items()
        },
        "resources": replace(record.resources, nodes=asked.nodes or record.nodes),
    }
    if asked.kind != "reproduce":  # a run that resumed another one is reproduced from there, too
        changes["resume_from"] = asked.resume_from
    elif model is not None:
        # A new version would move @latest and the aliases back to an old run.
        changes["model"] = replace(model, register=False)
    if asked.constraints is not None:
        changes["constraints"] = asked.constraints
    return replace(record, **changes)


def _command(
    command: Sequence[str], old: Mapping[str, ParamValue], new: Mapping[str, ParamValue]
) -> tuple[str, ...]:
    """Return the command with the parameters' arguments replaced, at any position."""
    changed = replace_arguments(command, old, new)
    if changed is not None:
        return changed
    raise RunnerError(
        "R-SET-COMMAND",
        "the run's command does not hold its parameters",
        why="run.json was not written by a runner that knows how they are passed",
        fix="run it again without --set",
    )
