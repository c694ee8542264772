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
from runner.api.requests import TrainArguments, accepts, load_call_settings, to_options
from runner.api.run_object import Command as Command
from runner.api.run_object import Metric as Metric
from runner.api.run_object import Run
from runner.core.features import load_feature
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from typing import Unpack

    from runner.flows.runs.metrics import MetricComparison


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
def tensorboard(*runs: Run | str, port: int | None = None) -> Generator[str]:
    """Serve TensorBoard for runs, by default the last one, during the block. Yield its URL."""
    show_runs = load_feature("export.tensorboard").show_runs
    found = [each if isinstance(each, Run) else run(each) for each in runs or ("@last",)]
    session = found[0].session
    specs = [each.spec for each in found]
    with show_runs(session.connection, specs, session.settings.home, port) as shown:
        yield shown.url
