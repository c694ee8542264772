"""Plan a run again from its `run.json`, without the folder of its recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from runner.contract import PoolOutput, StackOutputs
from runner.core.planning.plan import RunContent, RunPlan, script_arguments
from runner.core.planning.pool_choice import check_nodes, refuse_pool_of_other_team
from runner.core.recipe.options import parse_keep_node, parse_notify, resolve_params
from runner.core.recipe.recipe import Param, ParamValue, Recipe
from runner.core.recipe.secrets import recorded_secrets
from runner.core.recipe.submit_file import order_tasks
from runner.protocol.commands import find_notebook
from runner.protocol.errors import RunnerError
from runner.protocol.groups import CyclicError, Edges
from runner.protocol.paths import job_id_for
from runner.protocol.run_spec import NOTIFY_VARIABLE, ResumeFrom, RunSpec

RepeatKind = Literal["retry", "resume", "reproduce"]


@dataclass(frozen=True, slots=True)
class Repetition:
    """How to repeat a run: kind, changed parameters, and the checkpoint to resume from.

    `after` maps the runs that the repeated run waited for to the runs that take their place.
    """

    kind: RepeatKind
    overrides: tuple[str, ...] = ()
    resume_from: ResumeFrom | None = None
    after: Mapping[str, str] = field(default_factory=dict[str, str])
    constraints: tuple[str, ...] | None = (
        None  # `name==version` of every package; None keeps those of the run
    )
    nodes: int | None = None  # number of nodes; None keeps that of the run
    keep_node: str | None = None  # as --keep-node; None keeps the time of the run
    notify: str | None = None  # as --notify; None keeps the rule of the run

    @property
    def awaited(self) -> tuple[str, ...]:
        """Return the runs to wait for, without duplicates."""
        return tuple(dict.fromkeys(self.after.values()))


def plan_again(
    spec: RunSpec,
    repetition: Repetition,
    outputs: StackOutputs,
    pool: PoolOutput,
    *,
    run_id: str,
    created: datetime,
    agent_sha256: str,
    origin: Mapping[str, str] | None,
) -> RunPlan:
    """Return the draft of the repetition; `origin` is None for a run of a schedule.

    Raises:
        RunnerError: an override names a parameter that the run does not have.
        ValueError: the run recorded no code or no command.
    """
    spec.check_executable()
    params = change_params(spec, repetition.overrides)
    again = _apply_changes(spec, repetition)
    recipe = Recipe(
        **again.recipe_fields(),
        name=spec.recipe,
        description=spec.description,
        folder=Path(),
        source="folder",
        command=spec.command,
        after=repetition.awaited,
    )
    recorded = recorded_secrets(spec)
    own_secrets = tuple(ref for ref in recorded if ref.variable != NOTIFY_VARIABLE)
    return RunPlan(
        run_id=run_id,
        experiment=spec.experiment,
        created=created,
        target="",
        account=outputs.batch_account,
        pool=pool,
        job_id=job_id_for(spec.experiment, pool.id, spec.priority),
        command=_replace_params(spec, params),
        template=spec.template,
        params=params,
        recipe=replace(recipe, secrets=own_secrets),
        content=RunContent(
            code=spec.code,
            agent_sha256=agent_sha256,
            requirements_sha256=spec.requirements_sha256,
            data=None,
            inputs=again.inputs,
        ),
        repeats=again,
        origin=origin,
    )


def change_params(spec: RunSpec, overrides: Iterable[str]) -> dict[str, ParamValue]:
    """Return the parameters with overrides, converted to the type of the recorded value."""
    declared = tuple(Param.of_value(name, value) for name, value in spec.params.items())
    notebook = find_notebook(spec.command)
    return resolve_params(declared, overrides, notebook, spec)


def choose_same_pool(
    wanted: str | None, spec: RunSpec, outputs: StackOutputs, nodes: int | None = None
) -> PoolOutput:
    """Return the pool `wanted`, else the run's own.

    Args:
        wanted: name of a pool, or None.
        spec: the run.
        outputs: the stack.
        nodes: number of nodes of the repetition; None for that of the run.

    Raises:
        RunnerError: the pool does not exist, belongs to another team, or cannot run a task on so
            many nodes.
    """
    name = (wanted or spec.pool).lower()
    refuse_pool_of_other_team(name, outputs)
    for pool in outputs.pools:
        if pool.id.lower() == name:
            check_nodes(pool, nodes or spec.nodes)
            return pool
    names = ", ".join(pool.id for pool in outputs.pools)
    raise RunnerError(
        "R-POOL-UNKNOWN",
        f"unknown pool {wanted or spec.pool!r}",
        why=f"pools of this stack: {names or 'none'}"
        + ("" if wanted else f"; the pool of {spec.run_id} does not exist any more"),
        fix=f"--pool {outputs.pools[0].id}"
        if outputs.pools
        else "add a pool to the stack's file, then run `runner up`",
    )


def order_runs(after: Edges) -> tuple[str, ...]:
    """Return the runs, each after the runs that it waits for. Raise RunnerError for a cycle."""
    try:
        return order_tasks(after)
    except CyclicError as err:
        raise RunnerError(
            "R-RETRY-CYCLE",
            f"runs depend on each other: {' -> '.join(err.path)}",
            why="run.json of one of them was changed after its submission",
            fix="run `runner ps --status failed`, then `runner retry RUN` for single runs",
        ) from err


def _apply_changes(spec: RunSpec, repetition: Repetition) -> RunSpec:
    """Return the run with the requested changes; everything else stays as recorded."""
    after, model = repetition.after, spec.model
    changes: dict[str, Any] = {
        "after": repetition.awaited if spec.after else (),
        "inputs": {
            name: {**one, "run_id": after[one["run_id"]]}
            if one.get("kind") == "run" and one.get("run_id") in after
            else one
            for name, one in spec.inputs.items()
        },
        "resources": replace(spec.resources, nodes=repetition.nodes or spec.nodes),
    }
    if repetition.kind != "reproduce":  # a reproduction starts from the same checkpoint
        changes["resume_from"] = repetition.resume_from
    elif model is not None:
        # A new version would move @latest and the aliases back to an old run.
        changes["model"] = replace(model, register=False)
    if repetition.keep_node is not None:
        changes["keep_node_s"] = parse_keep_node(repetition.keep_node)
    if repetition.notify is not None:
        changes["notify"] = parse_notify(repetition.notify, spec.notify)
    if repetition.constraints is not None:
        changes["constraints"] = repetition.constraints
    return replace(spec, **changes)


def _replace_params(spec: RunSpec, new: Mapping[str, ParamValue]) -> tuple[str, ...]:
    """Return the command with the arguments of the parameters replaced, at any position."""
    if spec.template:
        return script_arguments(spec, new, spec.template)
    script_arguments(spec, new)  # refuses values that the script cannot read
    changed = spec.replace_arguments(spec.command, spec.params, new)
    if changed is not None:
        return changed
    raise RunnerError(
        "R-SET-COMMAND",
        "cannot change the parameters of the run",
        why="the recorded command does not contain the recorded parameters as arguments",
        fix="repeat the run without --set",
    )
