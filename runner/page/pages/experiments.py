"""The experiments, and one of them: states of its runs, the best one, and why runs failed."""

from __future__ import annotations

from typing import Any

from runner.azure.auth.credentials import Connection
from runner.flows.sweeps.experiments import find_experiment, list_experiments
from runner.page.ask import Ask, WebPage
from runner.page.rest import Endpoint
from runner.views.sweeps import (
    ExperimentDocument,
    ExperimentLine,
    experiment_document,
    experiment_line,
)

_STALE_S = 30.0


async def read_lines(ask: Ask) -> list[ExperimentLine]:
    """Return all experiments, the one with the newest run first."""

    def load(connection: Connection) -> list[ExperimentLine]:
        return [experiment_line(each, each.main_metric) for each in list_experiments(connection)]

    return await ask.source.read(("experiments",), load, fresh_s=5.0, stale_s=_STALE_S)


async def read_experiment(ask: Ask) -> ExperimentDocument:
    """Return an experiment, with the best run by the metric of the query."""
    name, metric = ask.parts["name"], ask.text("metric") or None

    def load(connection: Connection) -> ExperimentDocument:
        found = find_experiment(connection, name)
        return experiment_document(found, metric or found.main_metric)

    return await ask.source.read(("experiment", name, metric), load, fresh_s=5.0, stale_s=60.0)


async def read_list(ask: Ask) -> dict[str, Any]:
    """Return the values of `experiments.html`."""
    return {"title": "Experiments", "lines": await read_lines(ask)}


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `experiment.html`."""
    return {"title": ask.parts["name"], "experiment": await read_experiment(ask)}


ENDPOINTS = (
    Endpoint(
        "/experiments",
        "List the experiments, the one with the newest run first.",
        list[ExperimentLine],
        read_lines,
        command="runner experiments ls",
    ),
    Endpoint(
        "/experiments/{name}",
        "Return the states of an experiment, its best run, and why runs failed.",
        ExperimentDocument,
        read_experiment,
        (("metric", "the metric that decides which run is best"),),
        "runner experiments show EXPERIMENT",
    ),
)
LIST_PAGE = WebPage("/experiments", "experiments", read_list, every_s=5.0)
PAGE = WebPage("/experiments/{name}", "experiment", read, every_s=5.0)
