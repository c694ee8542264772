"""The Python API: the verbs of the command line as functions, for scripts and notebooks.

    import runner

    run = runner.train("mnist", set={"epochs": 3}, wait=True)
    run.metrics()["test_accuracy"].last
    run.download("models")

Every error is a `runner.RunnerError` with what, why and fix. Nothing is printed: a notebook shows
live progress, and elsewhere `on_progress` is called with an `Update`.

`runner` exports the public names, and imports this package when one of them is first used.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from runner.api import data as data
from runner.api import local as local
from runner.api.arguments import checked
from runner.api.catalogue import Pool as Pool
from runner.api.catalogue import new_recipe as new_recipe
from runner.api.catalogue import pool as pool
from runner.api.catalogue import pools as pools
from runner.api.catalogue import recipe as recipe
from runner.api.catalogue import recipes as recipes
from runner.api.catalogue import settings as settings
from runner.api.catalogue import skus as skus
from runner.api.group_object import Group as Group
from runner.api.group_object import submit as submit
from runner.api.group_object import sweep as sweep
from runner.api.history import Retried as Retried
from runner.api.history import Runs as Runs
from runner.api.history import group as group
from runner.api.history import retry_failed as retry_failed
from runner.api.history import run as run
from runner.api.history import runs as runs
from runner.api.html import Table as Table
from runner.api.models import alias_model as alias_model
from runner.api.models import get_model as get_model
from runner.api.models import model as model
from runner.api.models import models as models
from runner.api.models import remove_model as remove_model
from runner.api.models import unalias_model as unalias_model
from runner.api.progress import OnUpdate as OnUpdate
from runner.api.progress import RunnerWarning as RunnerWarning
from runner.api.progress import Update as Update
from runner.api.progress import live
from runner.api.requests import load_call_settings, to_flags, to_overrides
from runner.api.run_object import Command as Command
from runner.api.run_object import Metric as Metric
from runner.api.run_object import Run
from runner.api.schedules import Schedule as Schedule
from runner.api.schedules import create_schedule as create_schedule
from runner.api.schedules import schedule as schedule
from runner.api.schedules import schedules as schedules
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.flows.runs.metrics import MetricComparison
    from runner.protocol.run_spec import Capacity


@checked
def train(
    recipe: str | Path,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002  as on the command line
    params_as: str | None = None,
    args: Sequence[str] = (),
    entry: str | None = None,
    env: Mapping[str, str] | None = None,
    data: str | Path | None = None,
    inputs: Mapping[str, str] | None = None,
    experiment: str | None = None,
    gpus: int | None = None,
    nodes: int | None = None,
    launcher: str | None = None,
    capacity: Capacity | None = None,
    priority: int | None = None,
    after: Iterable[Run | str] = (),
    timeout: str | int | None = None,
    retries: int | None = None,
    max_cost: float | None = None,
    pool: str | None = None,
    target: str | None = None,
    stack: str | None = None,
    wait: bool = False,
    check: bool = False,
    on_progress: OnUpdate | None = None,
) -> Run:
    """Submit a built-in recipe, a folder or a script. Return the run.

    Starts the local services if they are not running.

    Args:
        recipe: name of a built-in recipe, or path of a folder or script.
        set: parameters of the recipe.
        params_as: how the script gets them: "flags" (--name value), "key=value" or "hydra".
        args: arguments of the script.
        entry: the script of a folder to run.
        env: variables of the script, not for secrets; they override `env` of the recipe.
        data: file or folder with the data set.
        inputs: SPEC by NAME, as in train.yaml.
        experiment: experiment of the run; by default the recipe's name.
        gpus: minimum number of GPUs. `gpus` ... `max_cost` override the recipe.
        nodes: number of nodes that run it together.
        launcher: what starts the command, such as "torchrun" or "mpi".
        capacity: "spot", "dedicated" or "spot-then-dedicated".
        priority: from -1000 to 1000; higher runs first.
        after: runs that have to succeed first.
        timeout: time limit, such as "2h", or in seconds.
        retries: maximum number of attempts after a failure.
        max_cost: cap of the costs of the nodes in USD; the job ends before they exceed it.
        pool: pool to run on.
        target: "local" or "azure".
        stack: Pulumi stack of the target.
        wait: return when the run has ended.
        check: wait, and raise RunnerError (R-RUN-FAILED) if the run failed.
        on_progress: called with updates.
    """
    from runner.core.recipe.overrides import with_flags
    from runner.core.recipe.recipe import load_recipe
    from runner.flows.session import start_run
    from runner.flows.submit.prepare import TrainOptions, check_run

    where = to_flags(
        gpus=gpus, nodes=nodes, capacity=capacity, priority=priority, after=after,
        timeout=timeout, retries=retries, max_cost=max_cost, launcher=launcher, env=env,
        params_as=params_as,
    )  # fmt: skip
    options = TrainOptions(
        overrides=to_overrides(set),
        script_args=tuple(args),
        experiment=experiment,
        data=None if data is None else Path(data).expanduser(),
        inputs=tuple(f"{name}={spec}" for name, spec in (inputs or {}).items()),
        required_resources=where.resources,
    )
    settings = load_call_settings(target, stack, pool)
    loaded = load_recipe(str(recipe), cwd=Path.cwd(), entry=entry)
    checked = check_run(with_flags(loaded, where), options)
    with live(on_progress) as view:
        session, spec = start_run(checked, settings, view.on_progress, view.on_warning)
        submitted = Run(session, spec)
        view.submitted(submitted.id)
        if wait or check:
            submitted.follow(view)  # in the same display
    if check:
        submitted.check()
    return submitted


@checked
def compare(*runs: Run | str, metrics: Sequence[str] = ()) -> MetricComparison:
    """Return the metrics of runs side by side, and the parameters that differ."""
    from runner.flows.runs.metrics import compare_metrics

    found = [each if isinstance(each, Run) else run(each) for each in runs]
    if not found:
        raise RunnerError("R-COMPARE", "no runs to compare", fix="runner.compare(first, second)")
    connection = found[0].session.connection
    specs = {each.id: each.spec for each in found}  # each run once
    return compare_metrics(connection, list(specs.values()), metrics)


@checked
@contextmanager
def tensorboard(*runs: Run | str, port: int | None = None) -> Generator[str]:
    """Serve TensorBoard for runs, by default the last one, during the block. Yield its URL."""
    from runner.flows.export.tensorboard import show_runs

    found = [each if isinstance(each, Run) else run(each) for each in runs or ("@last",)]
    session = found[0].session
    specs = [each.spec for each in found]
    with show_runs(session.connection, specs, session.settings.home, port) as shown:
        yield shown.url
