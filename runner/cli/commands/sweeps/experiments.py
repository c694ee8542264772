"""`runner experiments`: summaries of the runs of each experiment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from runner.cli.autocomplete import complete_experiment
from runner.cli.options import Invocation, on_target
from runner.cli.ui.leaderboard import format_states
from runner.core.units import format_age, format_duration
from runner.protocol.metrics import format_metric

if TYPE_CHECKING:
    from runner.views.sweeps import ExperimentLine

app = typer.Typer(no_args_is_help=True, help="Summarise the runs of each experiment.")


@app.command("ls")
@on_target
def ls(call: Invocation) -> None:
    """List the experiments with the states of their runs and the best one, newest first."""
    from runner.flows.sweeps.experiments import list_experiments
    from runner.views.sweeps import experiment_line

    out = call.out
    found = list_experiments(call.connect())
    documents = [experiment_line(one, one.main_metric) for one in found]
    rows = [_texts(each) for each in documents] if out.as_text else documents
    columns = ("experiment", "runs", "states", "best", "metric", "value", "newest")
    spare = ("newest", "metric", "runs", "value") if out.as_text else ()
    out.rows(rows, columns, empty="no runs; to start one: runner train mnist", spare=spare)


@app.command("show")
@on_target
def show(
    call: Invocation,
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="EXPERIMENT", help="Name of the experiment.", autocompletion=complete_experiment
        ),
    ],
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC",
            help="Metric that decides which run is best.",
            show_default="the primary metric of the newest run",
        ),
    ] = None,
) -> None:
    """Show the states of the runs of an experiment, its best run, and why runs failed."""
    from runner.flows.sweeps.experiments import find_experiment
    from runner.views.sweeps import experiment_document

    out = call.out
    found = find_experiment(call.connect(), experiment)
    document = experiment_document(found, metric or found.main_metric)
    failures = document["failures"]
    if out.document(document):
        return
    out.record({name: value for name, value in _texts(document).items() if value})
    if metric is None and found.metric_problem:
        out.warning(found.metric_problem)
    if failures:
        out.text()
        out.rows(failures, ("failed", "cause", "newest"))
        out.note(f"\nto repeat them: runner retry --failed --experiment {found.name}")


def _texts(document: ExperimentLine) -> dict[str, Any]:
    def age(time: str) -> str:
        return format_age(datetime.now(UTC) - datetime.fromisoformat(time)) + " ago"

    value, took = document["value"], document["duration_s"]
    return {
        "experiment": document["experiment"],
        "runs": document["runs"],
        "states": format_states(document.get("shown_states", document["states"])),
        "best": document["best"],
        "metric": document["metric"],
        "value": None if value is None else format_metric(float(value)),
        "params": ", ".join(f"{name}={each}" for name, each in document["params"].items()),
        "took": ", ".join(f"{name} {format_duration(s)}" for name, s in took.items()),
        "newest": age(document["newest"]),
        "oldest": age(document["oldest"]),
    }
