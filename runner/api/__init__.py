"""The Python API: the verbs of the command line as functions, for scripts and notebooks.

    import runner

    run = runner.train("mnist", set={"epochs": 3}, wait=True)
    run.metrics()["test_accuracy"].last
    run.download("models")

Everything raises `runner.RunnerError`, which says what, why and how to go on. Nothing is printed:
a notebook shows live progress, and elsewhere `on_progress` is called with an `Update`.

The names that users see are listed in `runner`, which loads this package at the first use of one.
"""

from __future__ import annotations

import os
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
from runner.api.requests import overrides_of, where_flags
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
    args: Sequence[str] = (),
    data: str | Path | None = None,
    inputs: Mapping[str, str] | None = None,
    experiment: str | None = None,
    gpus: int | None = None,
    nodes: int | None = None,
    capacity: Capacity | None = None,
    priority: int | None = None,
    after: Iterable[Run | str] = (),
    timeout: str | int | None = None,
    retries: int | None = None,
    pool: str | None = None,
    target: str | None = None,
    stack: str | None = None,
    wait: bool = False,
    check: bool = False,
    on_progress: OnUpdate | None = None,
) -> Run:
    """Submit a built-in recipe, a folder or a script; `wait=True` returns when it has ended.

    `set` are its parameters, `args` go to the script, `inputs` are NAME to SPEC as in train.yaml,
    and what is said from `gpus` to `retries` counts instead of what stands there.
    Local services are started if need be. `check=True` waits too, and raises if the run fails.
    """
    from runner.flows.session import start_run
    from runner.flows.submit.prepare import TrainOptions

    options = TrainOptions(
        overrides=overrides_of(set),
        script_args=tuple(args),
        experiment=experiment,
        data=None if data is None else Path(data).expanduser(),
        inputs=tuple(f"{name}={spec}" for name, spec in (inputs or {}).items()),
    )
    flags = {"target": target, "stack": stack, "pool": pool}
    where = where_flags(
        gpus=gpus, nodes=nodes, capacity=capacity, priority=priority, after=after,
        timeout=timeout, retries=retries,
    )  # fmt: skip
    with live(on_progress) as view:
        session, record = start_run(
            str(recipe), options, flags, view.on_progress, cwd=Path.cwd(), env=os.environ,
            on_warning=view.on_warning, where=where,
        )  # fmt: skip
        submitted = Run(session, record)
        view.submitted(submitted.id)
        if wait or check:
            submitted.follow(view)  # the same display goes on
    if check:
        submitted.check()
    return submitted


@checked
def compare(*runs: Run | str, metrics: Sequence[str] = ()) -> MetricComparison:
    """Metrics of runs side by side, and the parameters in which they differ."""
    from runner.flows.runs.metrics import compare_metrics

    found = [each if isinstance(each, Run) else run(each) for each in runs]
    if not found:
        raise RunnerError("R-COMPARE", "no runs to compare", fix="runner.compare(first, second)")
    connection = found[0].session.connection
    records = {each.id: each.record for each in found}  # one that is named twice is shown once
    return compare_metrics(connection, list(records.values()), metrics)


@checked
@contextmanager
def tensorboard(*runs: Run | str, port: int | None = None) -> Generator[str]:
    """TensorBoard on runs for the time of the block, which is given its address."""
    from runner.flows.export.tensorboard import show_runs

    found = [each if isinstance(each, Run) else run(each) for each in runs or ("@last",)]
    session = found[0].session
    records = [each.record for each in found]
    with show_runs(session.connection, records, session.settings.home, port) as shown:
        yield shown.url
