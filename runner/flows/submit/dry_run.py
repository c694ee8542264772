"""Plan a submission and look up what the services know of it, without starting anything.

What would refuse the submission refuses the dry run with the same error; what could not be
asked is listed. The same checks run before a download, so that nothing is fetched in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.jobs import find_open_job
from runner.azure.batch.translate import to_task
from runner.azure.faults import SERVICES_DOWN, SIGN_IN
from runner.core.planning.plan import RunPlan
from runner.core.progress import ignore_progress
from runner.core.recipe.inputs import override_inputs
from runner.core.recipe.recipe import Recipe
from runner.core.schedules.submit_file import SubmitFile
from runner.core.settings import Settings
from runner.core.stored_paths import SHARE
from runner.flows.data.datasets import is_cached
from runner.flows.data.stores import open_store
from runner.flows.local.lifecycle import expected_outputs, is_reachable
from runner.flows.local.state import is_made_on_demand
from runner.flows.runs.documents import load_result, runs_container
from runner.flows.submit.after import resolve_after
from runner.flows.submit.group import (
    GroupRequest,
    PreparedGroup,
    load_tasks,
    prepare_group,
    task_options,
)
from runner.flows.submit.inputs import resolve_in_service
from runner.flows.submit.prepare import PreparedRun, TrainOptions, prepare_run
from runner.protocol.errors import RunnerError

T = TypeVar("T")
_AWAY = frozenset({SERVICES_DOWN, SIGN_IN})
_ASKED = ("blob", "run")  # kinds of inputs that a submission asks the services about


@dataclass(slots=True)
class Lookups:
    """What was asked and not answered, as (what, why); `notes` are worth a warning."""

    unknown: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    notes: list[str] = field(default_factory=list[str])

    def text(self) -> str:
        """`pool local, input cats: the local services do not run; …`, or an empty string."""
        by_why: dict[str, list[str]] = {}
        for what, why in dict.fromkeys(self.unknown):
            by_why.setdefault(why, []).append(what)
        return "; ".join(f"{', '.join(what)}: {why}" for why, what in by_why.items())

    def to_json(self) -> list[dict[str, str]]:
        """The same for programs."""
        return [{"what": what, "why": why} for what, why in dict.fromkeys(self.unknown)]


def plan_train(
    recipe: Recipe, settings: Settings, options: TrainOptions
) -> tuple[PreparedRun, Lookups]:
    """What `runner train` would submit. Raises RunnerError where it would."""
    outputs = expected_outputs(settings)
    prepared = prepare_run(recipe, settings, outputs, options, ignore_progress, fetch_data=False)
    asking = _ServiceLookups(settings)
    return asking.look_up(prepared), asking.found


def plan_submit(
    file: SubmitFile,
    path: Path,
    settings: Settings,
    request: GroupRequest,
    schedule_id: str | None = None,
) -> tuple[PreparedGroup, Lookups]:
    """What `runner submit` would submit, or make a schedule of. Raises where that would."""
    outputs = expected_outputs(settings)
    prepared = prepare_group(
        file, path, settings, outputs, request, ignore_progress, fetch_data=False
    )
    asking = _ServiceLookups(settings)
    if schedule_id is not None:
        asking.schedule(schedule_id, prepared)
    runs = {name: asking.look_up(run, f" of {name}") for name, run in prepared.runs.items()}
    return replace(prepared, runs=runs), asking.found


class _ServiceLookups:
    """Asks in the order of a submission; nobody is asked again once a service is away."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._why = "the local services do not run"
        self._connection = connect(settings) if is_reachable(settings) else None
        self._jobs: dict[tuple[str, str], str] = {}
        self.found = Lookups()

    def look_up(self, prepared: PreparedRun, whose: str = "") -> PreparedRun:
        """The run as the services see it; `whose` tells it from others."""
        plan = prepared.plan
        named = {
            name: self._input(f"input {name}{whose}", name, document, prepared)
            for name, document in plan.inputs.named.items()
        }
        plan = replace(plan, inputs=replace(plan.inputs, named=named))
        if plan.recipe.after:
            what = f"after {', '.join(plan.recipe.after)}{whose}"
            plan = self._ask(what, lambda connection: resolve_after(connection, plan), plan)
        self._note_unfinished(plan, {*plan.after, *prepared.pending_runs}, whose)
        plan = self._job(plan, prepared)
        self._left_to_the_node(plan, whose)
        return replace(prepared, plan=plan)

    def schedule(self, schedule_id: str, prepared: PreparedGroup) -> None:
        """Whether a schedule of that name could be made."""
        from runner.flows.schedules.create import (  # noqa: PLC0415  other dry runs go without
            makes_group,
            refuse_taken,
        )

        def ask(connection: Connection) -> None:
            if makes_group(prepared):
                connection.job_access()
            refuse_taken(connection, schedule_id)

        self._ask(f"schedule {schedule_id}", ask, None)

    def _input(
        self, what: str, name: str, document: Mapping[str, Any], prepared: PreparedRun
    ) -> Mapping[str, Any]:
        if document["kind"] == "share":
            self._ask(what, lambda connection: self._share(connection, what, document), None)
        if document["kind"] not in _ASKED:
            return document
        one = {name: document}
        return self._ask(
            what,
            lambda connection: resolve_in_service(connection, one, prepared.pending_runs)[name],
            document,
        )

    def _share(self, connection: Connection, what: str, document: Mapping[str, Any]) -> None:
        """Only noted: a run before this one may write it, and a pool may mount more than this."""
        path = str(document["path"])
        with open_store(connection, SHARE) as store:
            # With the name of the mount, or without it.
            for place in filter(None, (path, path.partition("/")[2])):
                if store.find(place) or next(iter(store.list(place)), None):
                    return
        self.found.notes.append(f"{what}: there is no {path} on the file share now")

    def _note_unfinished(self, plan: RunPlan, awaited: Collection[str], whose: str) -> None:
        """Only noted: what writes an input may be done when this one starts."""
        for name, document in plan.inputs.named.items():
            run_id = str(document.get("run_id") or "")
            if document["kind"] != "run" or not run_id or run_id in awaited:
                continue
            what = f"input {name}{whose}"
            if self._ask(what, lambda connection, run=run_id: _goes_on(connection, run), False):
                fix = "" if plan.group else f": --after {run_id}"
                self.found.notes.append(f"{what}: run {run_id} has not ended{fix}")

    def _job(self, plan: RunPlan, prepared: PreparedRun) -> RunPlan:
        """In the open job it would go to; a task that Batch could not be given is refused too."""

        def ask(connection: Connection) -> RunPlan:
            to_task(plan, connection, prepared.secrets)
            if plan.depends_on and plan.group is None:
                return plan  # in the job of those it waits for
            place = (plan.job_id, plan.pool.id)
            if place not in self._jobs:
                self._jobs[place] = find_open_job(connection, *place)
            return replace(plan, job_id=self._jobs[place])

        try:
            return self._ask(f"pool {plan.pool.id}, job {plan.job_id}", ask, plan)
        except RunnerError as err:
            if err.code != "R-POOL-MISSING" or not is_made_on_demand(self._settings, plan.pool):
                raise
            self.found.unknown.append((f"pool {plan.pool.id}", "made when a run first needs it"))
            return plan

    def _left_to_the_node(self, plan: RunPlan, whose: str) -> None:
        for name, document in plan.inputs.named.items():
            if document["kind"] == "url":
                self.found.unknown.append((f"input {name}{whose}", "the node fetches it"))
        for ref in plan.recipe.secrets:
            if ref.keyvault is not None:
                why = "the node asks the vault"
                self.found.unknown.append((f"secret {ref.variable}{whose}", why))
        if plan.recipe.image is not None:
            self.found.unknown.append((f"image {plan.recipe.image}", "the node pulls it"))

    def _ask(self, what: str, look: Callable[[Connection], T], otherwise: T) -> T:
        if self._connection is not None:
            try:
                return look(self._connection)
            except RunnerError as err:
                if err.code not in _AWAY:
                    raise
                self._connection, self._why = None, err.what
        self.found.unknown.append((what, self._why))
        return otherwise


def _goes_on(connection: Connection, run_id: str) -> bool:
    return load_result(runs_container(connection), run_id) is None


def check_before_download(recipe: Recipe, settings: Settings, options: TrainOptions) -> None:
    """Where data is still to be downloaded, plan and look up first. Raises RunnerError."""
    if _downloads(recipe, options, settings.home):
        plan_train(recipe, settings, options)


def check_file_before_download(
    file: SubmitFile, path: Path, settings: Settings, request: GroupRequest
) -> None:
    """The same for a file of tasks."""
    recipes = load_tasks(file, path.parent)
    asked = {name: task_options(file.tasks[name], path.parent, (), "") for name in recipes}
    if any(_downloads(recipe, asked[name], settings.home) for name, recipe in recipes.items()):
        plan_submit(file, path, settings, request)


def _downloads(recipe: Recipe, options: TrainOptions, home: Path) -> bool:
    inputs = override_inputs(recipe.inputs, options.inputs, Path.cwd())
    wanted: set[tuple[str, Path | None]]
    wanted = {(spec.source, None) for spec in inputs if spec.kind == "dataset"}
    if recipe.dataset is not None and options.data is None:
        wanted.add((recipe.dataset, recipe.folder))
    return not all(is_cached(name, home, folder) for name, folder in wanted)
