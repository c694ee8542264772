"""Train MNIST on one node, evict the node once, and download the exported model."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.pools import restart_node
from runner.core.planning.plan import CheckedRun
from runner.core.progress import OnProgress, Progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.recipe import Recipe
from runner.core.settings import Settings, stack_option
from runner.core.states import RunState, RunStatus
from runner.features.selftest.contract import Leftover
from runner.flows.local.evict import evict
from runner.flows.models.register import ensure_registered
from runner.flows.models.remove import find_to_remove, remove_versions
from runner.flows.runs.cancel import cancel_run
from runner.flows.runs.documents import load_attempts, runs_container
from runner.flows.runs.events import MetricSeen, RunEnded, StageReported, StatusChanged
from runner.flows.runs.outputs import download_outputs
from runner.flows.runs.watch import WatchOptions, watch_run
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.pipeline import open_and_plan
from runner.flows.submit.submit_run import submit_run
from runner.protocol.errors import RunnerError
from runner.protocol.models import ModelRequest
from runner.protocol.results import SIDE_STAGES, StageEvent, StageState
from runner.protocol.run_spec import RunSpec

# The number of epochs is large enough that some remain when the node is evicted.
_PARAMS, _PARAMS_HERE = ("epochs=40",), ("epochs=12", "subset=6000")
_MODEL_FILE = "model.keras"
_NAME = "selftest"  # name of the experiment and of the model
_STAGE = "training"
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class TrainingReport:
    """The results of the run; `problem` is empty if it behaved as expected."""

    run_id: str
    state: str
    attempts: int
    evicted_node: str
    model: str
    model_file: str
    seconds: float
    problem: str


def check_training(settings: Settings, data: Path | None) -> CheckedRun:
    """Return the run to submit. Raise RunnerError if it cannot be submitted."""
    recipe: Recipe = load_recipe("mnist", cwd=Path.cwd())
    recipe = replace(recipe, timeout_s=1800, model=ModelRequest(_NAME))
    params = _PARAMS_HERE if settings.target.runs_here else _PARAMS
    options = RunOptions(set=params, experiment=_NAME, data=data)
    return check_run(recipe, options)


class EvictedTraining:
    """One run whose node is evicted after its first metric.

    Args:
        checked: The run from `check_training`.
        settings: The settings of the target.
        limit_s: Maximum time of the run, including the queue; then it is cancelled.
        on_progress: Called with every stage.
        stack: The option `--stack` of the command, for the commands that errors print.
    """

    def __init__(
        self,
        checked: CheckedRun,
        settings: Settings,
        limit_s: float,
        on_progress: OnProgress,
        *,
        stack: str | None,
    ) -> None:
        self._checked = checked
        self._settings = settings
        self._limit_s = limit_s
        self._on_progress = on_progress
        self._stack = stack
        self._seen: RunStatus | None = None
        self._evicted = ""
        self._model = ""

    def execute(self) -> TrainingReport:
        """Submit the run, watch it to its end, and download its model.

        Raises:
            RunnerError: the run was not submitted, did not end in time, or has no model.
        """
        began = time.monotonic()
        connection, plan = open_and_plan(
            self._checked, self._settings, self._on_progress, self._warn
        )
        spec = submit_run(connection, plan, self._on_progress)
        self._say("start", f"run {spec.run_id}")
        try:
            ended = self._watch(connection, spec, began + self._limit_s)
        except BaseException:  # also Ctrl-C
            with suppress(RunnerError):
                cancel_run(connection, spec)
            raise
        attempts = len(load_attempts(runs_container(connection), spec.run_id))
        state = ended.status.state.value
        file = self._fetch(connection, spec) if state == "succeeded" else None
        problem = _problem(state, ended.status.reason, attempts, file)
        done = f"{state} after {attempts} attempts"
        self._say("failed" if problem else "end", problem or done)
        seconds = time.monotonic() - began
        return TrainingReport(
            spec.run_id,
            state,
            attempts,
            self._evicted,
            self._model,
            str(file or ""),
            seconds,
            problem,
        )

    def clean_up(self) -> list[Leftover]:
        """Remove the model version of the run. Return it if it could not be removed."""
        if not self._settings.target.runs_here or not self._model:
            return []  # the stack is deleted with everything in it
        try:
            connection = connect(self._settings)
            model, versions, _ = find_to_remove(connection, self._model)
            remove_versions(connection, model, versions, force=True)
        except RunnerError:
            return [Leftover(f"model {self._model}", f"runner models rm {self._model} --yes")]
        return []

    def _watch(self, connection: Connection, spec: RunSpec, deadline: float) -> RunEnded:
        for event in watch_run(connection, spec, WatchOptions(beats=True)):
            if isinstance(event, RunEnded):
                return event
            if isinstance(event, StatusChanged):
                self._seen = event.status
                self._say("progress", event.status.reason or event.status.state.value)
            elif isinstance(event, StageReported):
                self._show(event.event)
            elif isinstance(event, MetricSeen) and not self._evicted:
                self._evict(connection, spec)
            if time.monotonic() > deadline:
                raise self._too_late(spec)
        raise AssertionError("watching ends with RunEnded")

    def _evict(self, connection: Connection, spec: RunSpec) -> None:
        """Evict the node of the first attempt."""
        [first, *_] = load_attempts(runs_container(connection), spec.run_id)
        self._evicted = first.node
        if self._settings.target.runs_here:
            evict(self._settings, node=first.node, notice_s=0)
        else:
            restart_node(connection, spec.pool, first.node)
        self._on_progress(Progress("eviction", "end", f"node {first.node} was evicted"))

    def _too_late(self, spec: RunSpec) -> RunnerError:
        seen = self._seen or RunStatus(RunState.QUEUED)
        waits = seen.state is RunState.QUEUED
        return RunnerError(
            "R-SELFTEST-TIMEOUT",
            f"run {spec.run_id} did not end within {self._limit_s / 60:.0f} minutes",
            why=f"its last state was {seen.label}{': ' * bool(seen.reason)}{seen.reason}",
            fix=f"run `runner check{stack_option(self._stack)}`, then try again later"
            if not self._settings.target.runs_here  # the stack with the run is removed now
            else f"runner pool nodes {spec.pool}"
            if waits
            else f"runner logs {spec.run_id}",
        )

    def _fetch(self, connection: Connection, spec: RunSpec) -> Path | None:
        model = ensure_registered(connection, spec, self._on_progress)
        self._model = model.reference if model and model.version else ""
        folder = self._settings.output_dir
        file = (
            download_outputs(connection, spec, folder, self._on_progress, (_MODEL_FILE,)).folder
            / _MODEL_FILE
        )
        return file if file.is_file() and file.stat().st_size else None

    def _show(self, event: StageEvent) -> None:
        if event.stage not in SIDE_STAGES:
            name = f"{event.stage} {event.attempt}"
            self._on_progress(Progress(name, event.state, event.message))

    def _say(self, state: StageState, message: str) -> None:
        self._on_progress(Progress(_STAGE, state, message))

    def _warn(self, text: str) -> None:
        self._say("progress", text)


def _problem(state: str, reason: str, attempts: int, file: Path | None) -> str:
    if state != "succeeded":
        return f"the run is {state}: {reason}" if reason else f"the run is {state}"
    if attempts != _ATTEMPTS:
        return f"{attempts} attempts, expected {_ATTEMPTS}: the run did not survive one eviction"
    return "" if file else f"the run has no {_MODEL_FILE}"
