"""A group, the runs of one `submit`, as an object: states, waiting, and cancelling."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from runner.api import html
from runner.api.arguments import checked
from runner.api.progress import LiveView, OnUpdate, live, timeout_error
from runner.api.requests import RunArguments, accepts, load_call_settings, to_options
from runner.api.run_object import Run
from runner.core.job_moves import JobNote
from runner.core.progress import Progress, ignore_progress
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from typing import Unpack

    from runner.core.settings import Settings
    from runner.flows.runs.rows import RunRow
    from runner.flows.session import Session
    from runner.flows.submit.group import CheckedFile
    from runner.flows.sweeps.groups import GroupView
    from runner.protocol.groups import RunGroup as Document
    from runner.protocol.samplers import Method

Running = Literal["requeue", "wait", "terminate"]  # how active runs are treated

_MISSING = "missing"
_UNSUCCESSFUL_STATES = ("failed", "cancelled", "lost", _MISSING)
_ENDED_STATES = ("succeeded", *_UNSUCCESSFUL_STATES)


class Group(Mapping[str, Run]):
    """The runs of a file by task, in its order: `group["train"].metrics()`."""

    def __init__(self, session: Session, document: Document) -> None:
        self.session = session
        self._document = document

    @property
    def id(self) -> str:
        """The ID, as `runner show`, `ps --group` and `cancel` accept it."""
        return self._document.group_id

    @property
    def states(self) -> dict[str, str]:
        """Current state of each task's run; `missing` if it cannot be read."""
        from runner.flows.sweeps.groups import load_group_view

        return self._states(load_group_view(self.session.connection, self._document))

    def __getitem__(self, task: str) -> Run:
        from runner.flows.runs.documents import find_run

        return Run(self.session, find_run(self.session.connection, self._document.runs[task]))

    def run_id(self, task: str) -> str:
        """Return the ID of a task's run, which may have been deleted."""
        return self._document.runs[task]

    def __iter__(self) -> Iterator[str]:
        return iter(self._document.runs)

    def __len__(self) -> int:
        return len(self._document.runs)

    @checked
    def wait(
        self,
        timeout_s: float | None = None,
        *,
        check: bool = False,
        on_progress: OnUpdate | None = None,
    ) -> Group:
        """Wait until all runs have ended. Return the group.

        An interrupt (Ctrl-C) leaves the runs active.

        Raises:
            RunnerError: R-TIMEOUT after `timeout_s`; with `check`, R-RUN-FAILED if a run failed.
        """
        with live(on_progress, self.id) as view:
            self.follow(view, timeout_s)
        return self.check() if check else self

    def follow(self, view: LiveView, timeout_s: float | None = None) -> None:
        """Show the runs in a view until all have ended."""
        from runner.flows.sweeps.groups import group_views

        connection = self.session.connection
        until = None if timeout_s is None else time.monotonic() + timeout_s
        for found in group_views(connection, self._document):
            over = found is not None and _show(view, self._states(found))
            if not over and until is not None and time.monotonic() > until:
                raise timeout_error(self.id, timeout_s, f"runner show {self.id}")

    def check(self) -> Group:
        """Return the group. Raise RunnerError (R-RUN-FAILED) if a run ended without success."""
        bad = {task: state for task, state in self.states.items() if state in _UNSUCCESSFUL_STATES}
        if bad:
            raise RunnerError(
                "R-RUN-FAILED",
                f"{len(bad)} of {len(self)} runs of {self.id} did not succeed",
                why=", ".join(f"{task} {state}" for task, state in bad.items()),
                fix=f"runner show {self.id}",
            )
        return self

    @property
    def trials(self) -> dict[str, dict[str, Any]]:
        """The parameters of each trial of a sweep; empty for other groups."""
        return {task: dict(params) for task, params in self._document.trials.items()}

    def best(self, metric: str | None = None) -> Run | None:
        """Return the trial of a sweep that succeeded with the best value of a metric, or None.

        The default is the metric of the sweep or recipe, or the first value that is clearly one.

        Raises:
            RunnerError: R-METRIC-UNCLEAR, no reported value is clearly a metric.
        """
        from runner.flows.sweeps.experiments import load_leaderboard

        board = load_leaderboard(self.session.connection, self._document, metric)
        board.check_metric()
        row = board.best(board.metric) if board.metric else None
        return None if row is None or row.spec is None else Run(self.session, row.spec)

    def cancel(self) -> Group:
        """Cancel every active run. Return the group."""
        from runner.flows.sweeps.cancel import cancel_group

        cancel_group(self.session.connection, self._document)
        return self

    @checked
    def resume(
        self,
        *,
        pool: str | None = None,
        from_start: bool = False,
        partial: bool = False,
        send_env: Sequence[str] = (),
    ) -> Group:
        """Start the unsuccessful trials of a sweep again. Return the sweep.

        Each continues from its newest checkpoint, unless `from_start` is True. With `partial`, only
        the merge task starts, without the results of the trials that failed. A sweep that was not
        submitted from this machine gets the variables in `send_env` only.

        Raises:
            RunnerError: the first error, if no trial could be started; R-MERGE-PARTIAL, the merge
                task cannot start.
        """
        from runner.flows.runs.group_documents import find_group
        from runner.flows.submit.consent import Consent
        from runner.flows.submit.resume_sweep import merge_partially, resume_trials

        consent = Consent(frozenset(send_env))
        connection = self.session.connection
        group = find_group(connection, self.id)
        if partial:
            merge_partially(connection, group, pool, consent)
            return Group(self.session, find_group(connection, self.id))
        done = resume_trials(
            connection, group, pool, ignore_progress, from_start=from_start, consent=consent
        )
        errors = [each for each in done.values() if isinstance(each, RunnerError)]
        if errors and len(errors) == len(done):
            raise errors[0]
        return Group(self.session, find_group(connection, self.id))

    @checked
    def pause(self, *, running: Running = "requeue") -> Group:
        """Start no further runs of the group until `unpause`. Return the group.

        Args:
            running: Active runs are requeued and continue later from their newest checkpoint, run
                to their end ("wait"), or end now ("terminate").

        Raises:
            RunnerError: R-JOB-ENDED, all runs have ended; R-JOB-MOVING, a move was interrupted.
        """
        from runner.flows.sweeps.moves import find_jobs, pause_jobs

        connection = self.session.connection
        name, jobs = find_jobs(connection, self.id)
        note, wait_for_tasks = JobNote("pause", name), running != "wait"
        pause_jobs(connection, jobs, note, running, ignore_progress, wait_for_tasks=wait_for_tasks)
        return self

    @checked
    def unpause(self) -> Group:
        """Let the runs of a paused group start again. Return the group."""
        from runner.flows.sweeps.moves import continue_jobs, find_jobs

        connection = self.session.connection
        continue_jobs(connection, find_jobs(connection, self.id, paused=True)[1])
        return self

    @checked
    def move(self, to: str, *, running: Running = "requeue", force: bool = False) -> Group:
        """Move the unfinished runs to another pool. Return the group.

        If it is interrupted, no run starts until the same call completes the move. With `force`,
        the nodes of the pool need not have been prepared by runner.

        Raises:
            RunnerError: R-POOL-UNKNOWN; R-POOL-FIT, a run could not run there; R-JOB-ENDED.
        """
        from runner.flows.runs.group_documents import find_group
        from runner.flows.sweeps.moves import find_jobs, move_jobs, plan_move

        connection = self.session.connection
        name, jobs = find_jobs(connection, self.id)
        pool = plan_move(connection, jobs, to, force=force)
        note = JobNote("move", name, pool.view.id)
        move_jobs(connection, jobs, pool, note, running, ignore_progress)
        return Group(self.session, find_group(connection, self.id))

    @checked
    def export(
        self,
        to: Literal["mlflow", "tensorboard"],
        uri: str | Path | None = None,
        *,
        artifacts: bool = True,
        on_progress: OnUpdate | None = None,
    ) -> dict[str, str]:
        """Copy all runs that have started to MLflow or TensorBoard, or update the copies.

        Args:
            to: the tool.
            uri: tracking URI of MLflow, or folder for TensorBoard.
            artifacts: also send the outputs to MLflow.
            on_progress: called with updates.

        Returns:
            What `Run.export` returns, by run ID; earlier runs of resumed trials are included.
        """
        from runner.flows.sweeps.groups import find_run_set, load_specs

        connection = self.session.connection
        specs = load_specs(connection, find_run_set(connection, self.id), started=True)
        runs = [Run(self.session, spec) for spec in specs]
        return {
            each.id: each.export(to, uri, artifacts=artifacts, on_progress=on_progress)
            for each in runs
        }

    def _states(self, found: GroupView) -> dict[str, str]:
        return {task: _state(found.rows.get(task)) for task in self}

    def __repr__(self) -> str:
        return f"<Group {self.id}: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        states = self.states
        rows = [{"task": task, "state": states[task], "run": self.run_id(task)} for task in self]
        return html.table(rows, title=self.id)


@checked
def submit(
    file: str | Path,
    *,
    set: Mapping[str, object] | None = None,  # noqa: A002  as on the command line
    experiment: str | None = None,
    priority: int | None = None,
    max_cost: float | None = None,
    pool: str | None = None,
    target: str | None = None,
    stack: str | None = None,
    wait: bool = False,
    check: bool = False,
    on_progress: OnUpdate | None = None,
) -> Group:
    """Submit the tasks of a file; each starts after the tasks that it waits for. Return the group.

    Args:
        file: the file with the tasks.
        set: parameters by `"task.param"`.
        experiment: experiment of the runs; by default that of the file.
        priority: from -1000 to 1000; higher runs first.
        max_cost: cap of the costs of all tasks in USD; the job ends before they exceed it.
        pool: pool to run on.
        target: "local" or "azure".
        stack: Pulumi stack of the target.
        wait: return when all runs have ended.
        check: wait, and raise RunnerError (R-RUN-FAILED) unless all succeed.
        on_progress: called with updates.
    """
    from runner.core.recipe.submit_file import load_submit_file
    from runner.flows.submit.group import check_file

    settings = load_call_settings(target, stack, pool)
    path = Path(file).expanduser().absolute()
    parsed, _ = load_submit_file(path)
    if parsed.schedule is not None:
        raise RunnerError(
            "R-SUBMIT-SCHEDULE",
            f"{path.name} has a schedule: it is not submitted at once",
            fix=f"`runner schedule create {shlex.quote(str(path))}`, "
            f"or runner.create_schedule({str(path)!r})",
        )
    options = {"set": set, "experiment": experiment, "priority": priority, "max_cost": max_cost}
    checked = check_file(parsed, path, to_options(options))
    return _start(checked, settings, on_progress, wait=wait, check=check)


@checked
@accepts(RunArguments)
def sweep(
    recipe: str | Path,
    params: Mapping[str, object] | Iterable[Mapping[str, object]] | None = None,
    *,
    method: Method | None = None,
    metric: str | None = None,
    goal: Literal["min", "max"] | None = None,
    early_stop: str | Mapping[str, object] | None = None,
    trials: int | None = None,
    repeat: int | None = None,
    seed: int | None = None,
    max_parallel: int | None = None,
    trials_per_task: int | None = None,
    merge: str | Mapping[str, object] | None = None,
    target: str | None = None,
    stack: str | None = None,
    wait: bool = False,
    check: bool = False,
    on_progress: OnUpdate | None = None,
    **options: Unpack[RunArguments],
) -> Group:
    """Submit a run for each trial of a sweep. Return their group: `.trials`, `.best()`.

    Args:
        recipe: name of a built-in recipe, or path of a folder or script.
        params: as in `sweep` of train.yaml, which they extend: `{"lr": [0.1, 0.01]}`; or a list or
            generator of trials, each a dict of its parameters.
        method: "grid", "random" or a sampler, such as "tpe".
        metric: what compares the trials; by default the primary metric of the recipe.
        goal: whether a lower or a higher metric is better; by default, its name decides.
        early_stop: a rule such as "median", "none", or a mapping as in train.yaml.
        trials: number of draws.
        repeat: how often each trial runs.
        seed: of the draws.
        max_parallel: trials that run at the same time.
        trials_per_task: trials that a task runs one after another, if they take seconds.
        merge: command after all trials, or a mapping as in train.yaml.
        target: "local" or "azure".
        stack: Pulumi stack of the target.
        wait: return when all trials have ended.
        check: wait, and raise RunnerError (R-RUN-FAILED) unless all succeed.
        on_progress: called with updates.
    """
    from runner.core.recipe.file import load_recipe
    from runner.core.recipe.sweep import change_sweep, replace_trials
    from runner.flows.submit.sweep import check_sweep, find_blobs

    typed = to_options(options)
    loaded = load_recipe(str(recipe), cwd=Path.cwd(), entry=typed.entry)
    changes = {
        "method": method, "trials": trials, "repeat": repeat, "seed": seed,
        "max_parallel": max_parallel, "metric": metric, "goal": goal,
        "early_stop": early_stop, "trials_per_task": trials_per_task, "merge": merge,
    }  # fmt: skip
    settings = load_call_settings(target, stack, typed.pool)
    if params is None or isinstance(params, Mapping):
        varied = cast("Mapping[str, object]", params or {})
        declared = [each.name for each in loaded.params]
        swept = change_sweep(loaded.sweep, varied, changes, declared=declared)
    else:
        swept = replace_trials(loaded.sweep, params, changes)
    with live(on_progress) as view:
        swept, blobs = find_blobs(swept, settings, view.on_progress)
        if swept.generator is not None:
            file = loaded.folder / swept.generator.partition(":")[0]
            text = f"running {file} on this machine to list the trials"
            view.on_progress(Progress("trials", "start", text))
    checked = check_sweep(loaded, swept, typed, blobs)
    return _start(checked, settings, on_progress, wait=wait, check=check)


def _start(
    checked: CheckedFile,
    settings: Settings,
    on_progress: OnUpdate | None,
    *,
    wait: bool,
    check: bool,
) -> Group:
    from runner.flows.session import Session
    from runner.flows.submit.pipeline import open_and_plan
    from runner.flows.submit.submit_group import submit_group

    with live(on_progress) as view:
        connection, plan = open_and_plan(checked, settings, view.on_progress, view.on_warning)
        document = submit_group(connection, plan, view.on_progress)
        group = Group(Session(settings, connection), document)
        view.submitted(group.id)
        if wait or check:
            group.follow(view)
    return group.check() if check else group


def _state(row: RunRow | None) -> str:
    return _MISSING if row is None or row.status is None else row.state


def _show(view: LiveView, states: Mapping[str, str]) -> bool:
    """Show the states, and return True if all runs have ended."""
    done = sum(state in _ENDED_STATES for state in states.values())
    over = done == len(states)
    failed = any(state in _UNSUCCESSFUL_STATES for state in states.values())
    state = ("failed" if failed else "succeeded") if over else "running"
    view.counted(state, done, [f"{task}  {state}" for task, state in states.items()])
    return over
