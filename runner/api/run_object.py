"""A run as an object: its state, logs, metrics and files, and the verbs for one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from runner.api import html
from runner.api.arguments import checked, to_overrides
from runner.api.html import Table
from runner.api.progress import LiveView, OnUpdate, live
from runner.core.features import load_feature
from runner.core.points import final_points
from runner.core.progress import ignore_progress
from runner.core.states import RunStatus
from runner.core.units import format_duration, format_size
from runner.flows.runs.events import LogStream, WatchEvent
from runner.protocol.checkpoints import CheckpointManifest
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import MetricPoint, format_metric, summarize_metrics
from runner.protocol.results import OutputFile, RunResult
from runner.protocol.run_spec import RunSpec

if TYPE_CHECKING:
    from pydantic import NonNegativeInt, PositiveInt

    from runner.core.planning.reproduction import Drift
    from runner.flows.models.versions import ModelVersion
    from runner.flows.runs.attempts import AttemptRow
    from runner.flows.session import Session
    from runner.flows.submit.reproduce import Comparison

_MAX_FILES = 10  # outputs that a notebook shows


@dataclass(frozen=True, slots=True, repr=False)
class Metric:
    """A metric of a run: all values with their steps, the last value and the best one."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    last: float
    best: float | None
    best_step: int | None

    def __repr__(self) -> str:
        best = "" if self.best is None else f", best={self.best:g} at step {self.best_step}"
        return f"<Metric {self.name}: last={self.last:g}{best}, {len(self.values)} points>"


@dataclass(frozen=True, slots=True)
class Command:
    """Exit code and output of a command that ran on a run's node."""

    exit_code: int
    stdout: str
    stderr: str


class Run:
    """A submitted run. Properties are read on access, and stored once the run has ended."""

    def __init__(
        self,
        session: Session,
        spec: RunSpec,
        status: RunStatus | None = None,
        *,
        partial: bool = False,
    ) -> None:
        """Wrap a run; `partial` means that `spec` has only the fields of a listing."""
        self.session = session
        self._spec = spec
        self._partial = partial
        self._status = status if status is not None and status.state.final else None
        self._result: RunResult | None = None

    @property
    def id(self) -> str:
        """The run ID, as every verb of the command line accepts it."""
        return self._spec.run_id

    @property
    def spec(self) -> RunSpec:
        """The run specification, `run.json`, with all fields."""
        if self._partial:
            from runner.flows.runs.documents import find_run

            self._spec = find_run(self.session.connection, self.id)
            self._partial = False
        return self._spec

    @property
    def experiment(self) -> str:
        """The experiment the run belongs to."""
        return self._spec.experiment

    @property
    def created(self) -> datetime:
        """Time of submission, in UTC."""
        return self._spec.created

    @property
    def params(self) -> Mapping[str, Any]:
        """All parameters by name: declared, set and swept ones, and arguments of the script.

        A flag without a value is True. An option that was given several times has a list.
        """
        spec = self._spec if self._spec.command else self.spec  # listings omit long commands
        return spec.all_params

    @checked
    def logs(
        self,
        stream: LogStream = "stdout",
        *,
        tail: NonNegativeInt | None = None,
        attempt: PositiveInt | None = None,
        node: NonNegativeInt = 0,
    ) -> str:
        """Return the script's output so far.

        Args:
            stream: "stdout" or "stderr".
            tail: number of last lines; None returns everything.
            attempt: only this attempt, from 1; None returns all attempts.
            node: rank of the node, from 0, if the run has several.
        """
        from runner.flows.runs.logs import read_log

        connection = self.session.connection
        return "".join(
            read_log(connection, self.spec, stream, tail=tail, attempt=attempt, node=node)
        )

    def attempts(self) -> Table[AttemptRow]:
        """Return the attempts: node, start, duration (`.took_s`), and the reason each ended."""
        from runner.flows.runs.attempts import list_attempts
        from runner.flows.runs.live import load_view

        connection = self.session.connection
        return Table(list_attempts(connection, load_view(connection, self.spec)), _attempt_cells)

    def checkpoints(self) -> Table[CheckpointManifest]:
        """Return the complete checkpoints, newest first; `resume` starts from the first."""
        from runner.flows.runs.attempts import list_checkpoints
        from runner.flows.runs.documents import runs_container

        container = runs_container(self.session.connection)
        return Table(list_checkpoints(container, self.id), _checkpoint_cells)

    def environment(self) -> dict[str, Any] | None:
        """Return Python, packages, hardware and driver of the run, or None if not recorded."""
        from runner.flows.submit.reproduce import load_environment

        return load_environment(self.session.connection, self.spec)

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics by name, without values of work that was lost with its node."""
        from runner.flows.runs.documents import load_history

        points, history = load_history(self.session.connection, self._spec)
        series: dict[str, list[tuple[int, float]]] = {}
        for point in final_points(points, history):
            series.setdefault(point.name, []).append((point.step, point.value))
        return {
            each.name: Metric(
                each.name,
                tuple(step for step, _ in series[each.name]),
                tuple(value for _, value in series[each.name]),
                each.last,
                each.best,
                each.best_step,
            )
            for each in summarize_metrics(points, self.spec.goals, history)
        }

    def points(self) -> list[MetricPoint]:
        """Return every value as it was written: `pandas.DataFrame(run.points())`."""
        from runner.flows.runs.documents import load_points

        return load_points(self.session.connection, self._spec)

    def outputs(self) -> tuple[OutputFile, ...]:
        """Return the exported files; while the run is active, those uploaded so far."""
        from runner.flows.runs.outputs import list_outputs

        return list_outputs(self.session.connection, self._spec)

    @checked
    def download(
        self,
        folder: str | Path | None = None,
        patterns: Iterable[str] = (),
        *,
        on_progress: OnUpdate | None = None,
    ) -> Path:
        """Download and verify the outputs. Return the folder `FOLDER/<run id>`.

        Args:
            folder: parent folder; by default the `output_dir` setting.
            patterns: only files that match one of these globs.
            on_progress: called with updates.
        """
        from runner.flows.runs.outputs import download_outputs

        target = self.session.settings.output_dir if folder is None else Path(folder).expanduser()
        with live(on_progress, self.id) as view:
            fetched = download_outputs(
                self.session.connection, self._spec, target.absolute(), view.on_progress, patterns
            )
        return fetched.folder

    @property
    def status(self) -> RunStatus:
        """Current state with its reason, and the node."""
        if self._status is None:
            from runner.flows.runs.live import load_view

            view = load_view(self.session.connection, self._spec)
            self._result = view.result
            if not view.status.state.final:
                return view.status
            self._status = view.status
        return self._status

    @property
    def state(self) -> str:
        """`queued`, `preparing`, `running`, `succeeded`, `failed`, `cancelled` or `lost`."""
        return self.status.state.value

    @property
    def done(self) -> bool:
        """True if the run has ended."""
        return self.status.state.final

    @property
    def result(self) -> RunResult | None:
        """The outcome, or None if the run is active or ended without one."""
        if self._result is None and self.done:
            from runner.flows.runs.documents import load_result, runs_container

            self._result = load_result(runs_container(self.session.connection), self.id)
        return self._result

    @checked
    def wait(
        self,
        timeout_s: float | None = None,
        *,
        check: bool = False,
        on_progress: OnUpdate | None = None,
    ) -> Run:
        """Wait until the run has ended, with a live display in a notebook. Return the run.

        An interrupt (Ctrl-C) leaves the run active.

        Raises:
            RunnerError: R-TIMEOUT after `timeout_s`; with `check`, R-RUN-FAILED if it failed.
        """
        with live(on_progress, self.id) as view:
            self.follow(view, timeout_s)
        return self.check() if check else self

    def check(self) -> Run:
        """Return the run. Raise RunnerError (R-RUN-FAILED) if it ended without success."""
        status = self.status
        if status.state.final and status.state.value != "succeeded":
            raise RunnerError(
                "R-RUN-FAILED",
                f"{self.id} {status.state.value}",
                why=status.reason,
                fix=f"runner.run({self.id!r}).logs('stderr')",
            )
        return self

    @checked
    def events(
        self, tail: NonNegativeInt | None = None, *, beats: bool = False
    ) -> Iterator[WatchEvent]:
        """Yield states, stages, log text and metrics until the run has ended.

        Args:
            tail: number of earlier log lines; None yields all of them.
            beats: also yield one event per second.
        """
        from runner.flows.runs.watch import WatchOptions, watch_run

        return watch_run(self.session.connection, self.spec, WatchOptions(tail=tail, beats=beats))

    def follow(self, view: LiveView, timeout_s: float | None = None) -> None:
        """Show the run in a view until it has ended."""
        self._status = view.follow(self.events(beats=True), timeout_s)

    def cancel(self) -> Run:
        """Cancel the run unless it has ended, or release the node that it keeps. Return the run."""
        from runner.flows.runs.cancel import cancel_run

        cancel_run(self.session.connection, self.spec)
        return self

    def remove(self) -> None:
        """Delete the run with all its files. Raise RunnerError if something still needs them."""
        from runner.flows.removal import RunSelection, plan_removal, remove_runs

        connection = self.session.connection
        plan = plan_removal(connection, RunSelection(references=(self.id,)))
        remove_runs(connection, plan, ignore_progress)

    @checked
    def retry(
        self,
        *,
        pool: str | None = None,
        keep_node: str | int | None = None,
        notify: str | None = None,
        send_env: Sequence[str] = (),
        wait: bool = False,
        on_progress: OnUpdate | None = None,
    ) -> Run:
        """Submit a run that did not succeed again, from the beginning. Return the new run.

        A run that was not submitted from this machine gets the variables in `send_env` only.
        `keep_node` and `notify` are as for `runner.train`, by default as before.
        """
        from runner.flows.submit.repeat import retry_run

        again = partial(
            retry_run, self.session.connection, self.spec, pool,
            keep_node=None if keep_node is None else str(keep_node), notify=notify,
        )  # fmt: skip
        return self._submit_again(again, send_env, wait=wait, on_progress=on_progress)

    @checked
    def resume(
        self,
        *,
        set: Mapping[str, object] | None = None,  # noqa: A002  as on the command line
        checkpoint: int | None = None,
        fresh: bool = False,
        nodes: int | None = None,
        pool: str | None = None,
        keep_node: str | int | None = None,
        notify: str | None = None,
        send_env: Sequence[str] = (),
        wait: bool = False,
        on_progress: OnUpdate | None = None,
    ) -> Run:
        """Submit a new run that starts from a checkpoint of this one. Return the new run.

        Args:
            set: parameters to change.
            checkpoint: number of the checkpoint; by default the newest complete one.
            fresh: start from the beginning, without a checkpoint.
            nodes: number of nodes; by default as before.
            pool: pool to run on; by default as before.
            keep_node: time for which the node is kept if the run fails; by default as before.
            notify: variable or secret with the URL of a webhook; by default as before.
            send_env: variables of this machine for a run that was not submitted from it.
            wait: return when the new run has ended.
            on_progress: called with updates.
        """
        from runner.flows.submit.repeat import resume_run

        again = partial(
            resume_run, self.session.connection, self.spec, pool, to_overrides(set),
            number=checkpoint, nodes=nodes, fresh=fresh,
            keep_node=None if keep_node is None else str(keep_node), notify=notify,
        )  # fmt: skip
        return self._submit_again(again, send_env, wait=wait, on_progress=on_progress)

    @checked
    def reproduce(
        self,
        *,
        pool: str | None = None,
        send_env: Sequence[str] = (),
        wait: bool = False,
        on_progress: OnUpdate | None = None,
    ) -> Run:
        """Submit the same code, data and packages again. Return the new run; see `against`.

        A run that was not submitted from this machine gets the variables in `send_env` only.
        """
        from runner.flows.submit.reproduce import reproduce_run

        again = partial(reproduce_run, self.session.connection, self.spec, pool)
        return self._submit_again(again, send_env, wait=wait, on_progress=on_progress)

    @checked
    def drift(self, *, pool: str | None = None) -> tuple[Drift, ...]:
        """Return the differences that a reproduction now would have: `.what`, `.was`, `.now`."""
        from runner.flows.submit.reproduce import find_drift

        return find_drift(self.session.connection, self.spec, pool)

    @checked
    def against(self, repeated: Run) -> Comparison:
        """Compare with a repeated run: `.same_model`, `.files`, `.metrics`, `.drift`."""
        from runner.flows.submit.reproduce import compare_runs

        return compare_runs(self.session.connection, self.spec, repeated.spec)

    def _submit_again(
        self,
        submit: Callable[..., RunSpec],
        send_env: Sequence[str],
        *,
        wait: bool,
        on_progress: OnUpdate | None,
    ) -> Run:
        from runner.flows.submit.consent import Consent

        consent = Consent(frozenset(send_env))
        with live(on_progress) as view:
            run = Run(self.session, submit(view.on_progress, consent=consent))
            view.submitted(run.id)
            if wait:
                run.follow(view)
        return run

    @checked
    def register(
        self,
        name: str | None = None,
        *,
        aliases: Iterable[str] = (),
        path: str | None = None,
        description: str = "",
        on_progress: OnUpdate | None = None,
    ) -> ModelVersion:
        """Register the outputs as a version of a model. Return the version.

        Registering the same run again returns the existing version.

        Args:
            name: name of the model; by default the recipe's.
            aliases: aliases to move to the version.
            path: glob of outputs; by default the recipe's, or all.
            description: text stored with the version.
            on_progress: called with updates.
        """
        from runner.flows.models.register import default_request, register_with_aliases

        wanted = tuple(alias.removeprefix("@") for alias in aliases)
        request = default_request(self.spec, name, path, wanted, description)
        with live(on_progress, what=f"register {request.name}") as view:
            return register_with_aliases(
                self.session.connection, self.spec, request, wanted, view.on_progress
            ).version

    @checked
    def exec(
        self,
        command: Sequence[str],
        *,
        node: str | NonNegativeInt | None = None,
        stdin: str | None = None,
        check: bool = False,
    ) -> Command:
        """Run a command on the run's node, in its folder and environment. Return its output.

        Args:
            command: program and arguments.
            node: rank from 0 or node ID, if the run has several nodes.
            stdin: text for the standard input.
            check: raise RunnerError (R-EXEC) if the exit code is not 0.
        """
        from runner.flows.shell import capture_login, find_location, open_login

        connection, home = self.session.connection, self.session.settings.home
        place = find_location(connection, self.spec, None if node is None else str(node))
        with open_login(connection, home, place, list(command), terminal=False) as login:
            ended = Command(*capture_login(login, stdin))
        if check and ended.exit_code:
            lines = ended.stderr.strip().splitlines()
            raise RunnerError(
                "R-EXEC",
                f"{command[0]} exited with code {ended.exit_code}",
                why=lines[-1] if lines else "",
                fix="call exec without check=True and read .stdout and .stderr",
            )
        return ended

    @checked
    def export(
        self,
        to: Literal["mlflow", "tensorboard"],
        uri: str | Path | None = None,
        *,
        artifacts: bool = True,
        on_progress: OnUpdate | None = None,
    ) -> str:
        """Copy the run to MLflow or TensorBoard, or update the copy.

        Args:
            to: the tool.
            uri: tracking URI of MLflow, or folder for TensorBoard.
            artifacts: also send the outputs to MLflow.
            on_progress: called with updates.

        Returns:
            The ID of the run in MLflow, or the folder of the event files.
        """
        connection, home = self.session.connection, self.session.settings.home
        if to == "tensorboard":
            tool = load_feature("export.tensorboard")
            return str(tool.export_to_tensorboard(connection, self.spec, uri)[0])
        tool = load_feature("export.mlflow")
        address = None if uri is None else str(uri)
        with live(on_progress, what=f"export {self.id}") as view:
            return tool.export_to_mlflow(
                connection, self.spec, home, address, view.on_progress, artifacts=artifacts
            ).id

    def __repr__(self) -> str:
        return f"<Run {self.id}{f': {self._status.state.value}' if self._status else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def _repr_html_(self) -> str:
        return html.record(_card(self), self.id)


def _card(run: Run) -> dict[str, object]:
    """Return what a notebook shows of a run, or the error."""
    shown: dict[str, object] = {**run_cells(run), "params": run.params}
    del shown["run"]
    try:
        shown["metrics"] = {name: _last_and_best(found) for name, found in run.metrics().items()}
        files = run.outputs()
    except RunnerError as err:
        return {**shown, "problem": err.what}
    more = f" and {len(files) - _MAX_FILES} more" if len(files) > _MAX_FILES else ""
    return {**shown, "outputs": ", ".join(file.path for file in files[:_MAX_FILES]) + more}


def run_cells(run: Run) -> dict[str, object]:
    """Return the cells of a run in a table of runs."""
    try:
        status = run.status
        state = f"{status.state.value}: {status.reason}" if status.reason else status.state.value
    except RunnerError as err:
        state = f"unknown: {err.what}"
    return {"run": run.id, "state": state, "experiment": run.experiment, "created": run.created}


def _last_and_best(metric: Metric) -> str:
    text = format_metric(metric.last)
    best = "" if metric.best in (None, metric.last) else f" (best {format_metric(metric.best)})"
    return text + best


def _attempt_cells(attempt: AttemptRow) -> dict[str, object]:
    return {
        "attempt": attempt.attempt,
        "state": attempt.why,
        "node": attempt.node,
        "spot": attempt.spot,
        "started": attempt.started,
        "took": "" if attempt.took_s is None else format_duration(attempt.took_s),
        "exit code": attempt.exit_code,
        "lost": attempt.lost_text,
    }


def _checkpoint_cells(checkpoint: CheckpointManifest) -> dict[str, object]:
    return {
        "checkpoint": checkpoint.number,
        "attempt": checkpoint.attempt,
        "step": checkpoint.step,
        "time": checkpoint.time,
        "files": len(checkpoint.files),
        "size": format_size(checkpoint.size_bytes),
    }
