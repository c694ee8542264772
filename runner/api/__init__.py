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

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from runner.api import data, local
from runner.api.arguments import checked
from runner.api.budgets import Budget, budgets, remove_budget, set_budget
from runner.api.catalogue import Pool, new_recipe, pool, pools, recipe, recipes, settings, skus
from runner.api.group_object import Group, submit, sweep
from runner.api.history import Retried, Runs, group, retry_failed, run, runs
from runner.api.html import Table
from runner.api.models import alias_model, get_model, model, models, remove_model, unalias_model
from runner.api.progress import OnUpdate, RunnerWarning, Update, live
from runner.api.requests import (
    TrainArguments,
    accepts,
    connect,
    load_call_settings,
    to_options,
)
from runner.api.run_object import Command, Metric, Run
from runner.core.features import load_feature
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from typing import Unpack

    from runner.flows.runs.metrics import MetricComparison
    from runner.protocol.run_spec import RunSpec

__all__ = [
    "Budget", "Command", "Group", "Metric", "OnUpdate", "Pool", "Retried", "Run", "RunnerError",
    "RunnerWarning", "Runs", "Table", "Update", "alias_model", "budgets", "compare", "data",
    "get_model", "group", "local", "model", "models", "new_recipe", "pool", "pools", "recipe",
    "recipes", "remove_budget", "remove_model", "retry_failed", "run", "runs", "set_budget",
    "settings", "skus", "submit", "sweep", "tensorboard", "train", "unalias_model",
]  # fmt: skip


@checked
@accepts(TrainArguments)
def train(
    recipe: str | Path,
    *,
    target: str | None = None,
    stack: str | None = None,
    wait: bool = False,
    check: bool = False,
    on_progress: OnUpdate | None = None,
    **options: Unpack[TrainArguments],
) -> Run:
    """Submit a built-in recipe, a folder or a script. Return the run.

    Starts the local services if they are not running.

    Args:
        recipe: name of a built-in recipe, or path of a folder or script.
        target: "local" or "azure".
        stack: Pulumi stack of the target.
        wait: return when the run has ended.
        check: wait, and raise RunnerError (R-RUN-FAILED) if the run failed.
        on_progress: called with updates.
    """
    from runner.core.recipe.file import load_recipe
    from runner.flows.session import Session
    from runner.flows.submit.check_and_read import check_run
    from runner.flows.submit.pipeline import open_and_plan
    from runner.flows.submit.submit_run import submit_run

    typed = to_options(options)
    settings = load_call_settings(target, stack, typed.pool)
    loaded = load_recipe(str(recipe), cwd=Path.cwd(), entry=typed.entry)
    checked = check_run(loaded, typed)
    with live(on_progress) as view:
        connection, plan = open_and_plan(checked, settings, view.on_progress, view.on_warning)
        spec = submit_run(connection, plan, view.on_progress)
        submitted = Run(Session(settings, connection), spec)
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
def tensorboard(*runs: Run | Group | str, port: int | None = None) -> Generator[str]:
    """Serve TensorBoard for runs, by default the last one, during the block. Yield its URL.

    Args:
        runs: runs and groups, or references to runs, sweeps, groups or experiments.
        port: the port; None for 6006, or a free one.
    """
    from runner.flows.sweeps.groups import RunSet, find_run_or_set, load_specs

    show_runs = load_feature("export.tensorboard").show_runs
    first = next((each for each in runs if not isinstance(each, str)), None)
    session = connect(None, None) if first is None else first.session
    specs: dict[str, RunSpec] = {}
    for each in runs or ("@last",):
        if isinstance(each, Run):
            specs[each.id] = each.spec
            continue
        reference = each if isinstance(each, str) else each.id
        found = find_run_or_set(session.connection, reference)
        every = (
            load_specs(session.connection, found, started=False)
            if isinstance(found, RunSet)
            else [found]
        )
        specs |= {spec.run_id: spec for spec in every}
    with show_runs(session.connection, [*specs.values()], session.settings.home, port) as shown:
        yield shown.url
