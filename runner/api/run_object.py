"""A run as an object: its state, what can be done with it, and commands on its node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from runner.api import html
from runner.api.arguments import checked
from runner.api.progress import LiveView, OnUpdate, live
from runner.api.requests import overrides_of
from runner.api.run_contents import RunContents
from runner.protocol.errors import ExitCode, RunnerError

if TYPE_CHECKING:
    from runner.core.planning.reproduction import Drift
    from runner.core.states import RunStatus
    from runner.flows.models.versions import ModelVersion
    from runner.flows.runs.events import WatchEvent
    from runner.flows.session import Session
    from runner.flows.submit.reproduce import Comparison
    from runner.protocol.results import RunRecord, RunResult


@dataclass(frozen=True, slots=True)
class Command:
    """How a command on a run's node ended, and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str


def run_command(
    session: Session,
    record: RunRecord,
    command: Sequence[str],
    node: str | int | None,
    stdin: str | None,
) -> Command:
    """Run it in the run's folder, with its environment."""
    from runner.flows.runs.shell import capture_login, find_location, open_login

    connection, home = session.connection, session.settings.home
    place = find_location(connection, record, None if node is None else str(node))
    with open_login(connection, home, place, list(command), terminal=False) as login:
        return Command(*capture_login(login, stdin))


def check_command(command: Sequence[str], ended: Command) -> None:
    """Raises RunnerError (R-EXEC) for one that failed."""
    if ended.exit_code:
        said = ended.stderr.strip().splitlines()
        raise RunnerError(
            "R-EXEC",
            f"{command[0]} ended with code {ended.exit_code}",
            why=said[-1] if said else "",
            fix="look at .stdout and .stderr: call it without check=True",
            exit_code=ExitCode.RUN_FAILED,
        )


class Run(RunContents):
    """One run; its properties are read when asked for, and kept once it has ended."""

    def __init__(
        self,
        session: Session,
        record: RunRecord,
        status: RunStatus | None = None,
        *,
        partial: bool = False,
    ) -> None:
        super().__init__(session, record, partial=partial)
        self._status = status if status is not None and status.state.final else None
        self._result: RunResult | None = None

    # -- what it does

    @property
    def status(self) -> RunStatus:
        """State, the reason for it, and the node, as they are now."""
        if self._status is None:
            from runner.flows.runs.view import load_view

            view = load_view(self.session.connection, self._record)
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
        """Whether it has ended."""
        return self.status.state.final

    @property
    def result(self) -> RunResult | None:
        """Its outcome, or None while there is none."""
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
        """Wait for the end, shown live in a notebook; with `check` a run that fails raises.

        Interrupting leaves the run running. Raises RunnerError (R-TIMEOUT) after `timeout_s`.
        """
        with live(on_progress, self.id) as view:
            self.follow(view, timeout_s)
        return self.check() if check else self

    def check(self) -> Run:
        """The run itself. Raises RunnerError (R-RUN-FAILED) if it ended without success."""
        status = self.status
        if status.state.final and status.state.value != "succeeded":
            raise RunnerError(
                "R-RUN-FAILED",
                f"{self.id} {status.state.value}",
                why=status.reason,
                fix=f"runner.run({self.id!r}).logs('stderr')",
                exit_code=ExitCode.RUN_FAILED,
            )
        return self

    @checked
    def events(self, tail: int | None = None, *, beats: bool = False) -> Iterator[WatchEvent]:
        """Everything that happens, as data, until it ends: states, stages, log text, metrics.

        `tail` leaves out all but the last lines printed before; `beats` adds one event a second.
        """
        from runner.flows.runs.watch import WatchOptions, watch_run

        return watch_run(self.session.connection, self.record, WatchOptions(tail=tail, beats=beats))

    def follow(self, view: LiveView, timeout_s: float | None = None) -> None:
        """Show it in a view to its end; `wait` makes one."""
        self._status = view.follow(self.events(beats=True), timeout_s)

    # -- what can be done with it

    def cancel(self) -> Run:
        """End it; a run that had ended stays as it ended."""
        from runner.flows.runs.cancel import cancel_run

        cancel_run(self.session.connection, self.record)
        return self

    @checked
    def retry(
        self,
        *,
        pool: str | None = None,
        wait: bool = False,
        on_progress: OnUpdate | None = None,
    ) -> Run:
        """Run it again from its beginning, as a new run; for one that did not succeed."""
        from runner.flows.submit.repeat import retry_run

        connection = self.session.connection
        return self._again(
            lambda view: retry_run(connection, self.record, pool, view.on_progress),
            wait=wait,
            on_progress=on_progress,
        )

    @checked
    def resume(
        self,
        *,
        set: Mapping[str, object] | None = None,  # noqa: A002  as on the command line
        checkpoint: int | None = None,
        nodes: int | None = None,
        pool: str | None = None,
        wait: bool = False,
        on_progress: OnUpdate | None = None,
    ) -> Run:
        """Go on from its newest complete checkpoint, or `checkpoint`, as a new run.

        On another number of `nodes`, where it is given.
        """
        from runner.flows.submit.repeat import resume_run

        connection, overrides = self.session.connection, overrides_of(set)
        return self._again(
            lambda view: resume_run(
                connection, self.record, pool, overrides, view.on_progress, checkpoint, nodes=nodes
            ),
            wait=wait,
            on_progress=on_progress,
        )

    @checked
    def reproduce(
        self,
        *,
        pool: str | None = None,
        wait: bool = False,
        on_progress: OnUpdate | None = None,
    ) -> Run:
        """Run it again with the same code, data and packages; `against` says what came of it."""
        from runner.flows.submit.reproduce import reproduce_run

        connection = self.session.connection
        return self._again(
            lambda view: reproduce_run(connection, self.record, pool, view.on_progress),
            wait=wait,
            on_progress=on_progress,
        )

    @checked
    def drift(self, *, pool: str | None = None) -> tuple[Drift, ...]:
        """What would not be as it was if it were reproduced now: `.what`, `.was`, `.now`."""
        from runner.flows.submit.reproduce import find_drift

        return find_drift(self.session.connection, self.record, pool)

    @checked
    def against(self, repeated: Run) -> Comparison:
        """Whether another run made the same: `.same_model`, `.files`, `.metrics`, `.drift`."""
        from runner.flows.submit.reproduce import compare_runs

        return compare_runs(self.session.connection, self.record, repeated.record)

    def _again(
        self,
        submit: Callable[[LiveView], RunRecord],
        *,
        wait: bool,
        on_progress: OnUpdate | None,
    ) -> Run:
        with live(on_progress) as view:
            run = Run(self.session, submit(view))
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
        """Make its outputs a version of a model; registered again it stays that version.

        `name` and `path`, a glob of outputs, are the recipe's unless given. `aliases` point at the
        version then, wherever they pointed before.
        """
        from runner.flows.models.register import default_request, register_with_aliases

        wanted = tuple(alias.removeprefix("@") for alias in aliases)
        request = default_request(self.record, name, path, wanted, description)
        with live(on_progress, what=f"register {request.name}") as view:
            return register_with_aliases(
                self.session.connection, self.record, request, wanted, view.on_progress
            ).version

    @checked
    def exec(
        self,
        command: Sequence[str],
        *,
        node: str | int | None = None,
        stdin: str | None = None,
        check: bool = False,
    ) -> Command:
        """Run a command on its node, in its folder, with its environment; what it wrote."""
        ended = run_command(self.session, self.record, command, node, stdin)
        if check:
            check_command(command, ended)
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
        """Copy it to MLflow or TensorBoard, or bring the copy up to date; where it lies there.

        With MLflow that is the id of the run in it, with TensorBoard a folder.
        """
        connection, home = self.session.connection, self.session.settings.home
        if to == "tensorboard":
            from runner.flows.export.tensorboard import export_to_tensorboard

            return str(export_to_tensorboard(connection, self.record, uri)[0])
        from runner.flows.export.mlflow import export_to_mlflow

        address = None if uri is None else str(uri)
        with live(on_progress, what=f"export {self.id}") as view:
            return export_to_mlflow(
                connection, self.record, home, address, view.on_progress, artifacts=artifacts
            ).id

    # -- how it is shown

    def __repr__(self) -> str:
        return f"<Run {self.id}{f': {self._status.state.value}' if self._status else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def _repr_html_(self) -> str:
        return html.run_card(self)
