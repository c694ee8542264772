"""Register a run as a model version: on request, or if its agent could not."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import get_task
from runner.azure.storage.blobs import BlobContainer
from runner.core.progress import OnProgress, Progress, ignore_progress
from runner.flows.local_files import BytesMoved
from runner.flows.models.versions import ModelVersion, find_version, open_model_registry, set_alias
from runner.flows.runs.documents import load_result, runs_container
from runner.protocol.codec import now_text, parse_json
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.models import (
    CommittedVersion,
    ModelDocument,
    ModelError,
    ModelRequest,
    check_alias,
    check_name,
    draft_version,
    is_deleted_version,
    model_record_blob,
)
from runner.protocol.paths import RunPaths, slug
from runner.protocol.results import RunResult
from runner.protocol.run_spec import RunSpec

_STAGE = "model"
_POLL_S = 0.15
# Wait for an agent that copies files, because it is closer to storage than the client.
_AGENT_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class RunModel:
    """The model version of a run; `version` is None if it could not be registered."""

    name: str
    version: int | None
    problem: str = ""

    @property
    def reference(self) -> str:
        """The reference for `runner models`."""
        return f"{self.name}@{self.version}" if self.version else self.name

    def __str__(self) -> str:
        if self.version is None:
            return f"{self.name} was not registered: {self.problem}"
        return f"{self.reference} ({self.problem})" if self.problem else self.reference


@dataclass(frozen=True, slots=True)
class RegisteredVersion:
    """A registered version; `new` is False if the run was registered before."""

    version: ModelVersion
    document: ModelDocument
    new: bool


def register_with_aliases(
    connection: Connection,
    spec: RunSpec,
    request: ModelRequest,
    aliases: Iterable[str],
    on_progress: OnProgress,
) -> RegisteredVersion:
    """Register a run for a user; a version that exists also gets the `aliases`."""
    registered = register_run(connection, spec, request, on_progress, anew=True)
    said = f"{request.name}@{registered.version}"
    for alias in aliases:
        set_alias(connection, said, alias)
    return RegisteredVersion(find_version(connection, said), registered.document, registered.new)


def register_run(
    connection: Connection,
    spec: RunSpec,
    request: ModelRequest,
    on_progress: OnProgress = ignore_progress,
    *,
    anew: bool = False,
) -> CommittedVersion:
    """Register a run that succeeded, unless it is registered. Raise RunnerError.

    With `anew`, a run whose version was removed gets a new version.
    """
    container = runs_container(connection)
    result = _succeeded(load_result(container, spec.run_id), spec)
    check_name(request.name)
    for alias in request.aliases:
        check_alias(alias)
    draft = draft_version(request, spec.to_json(), result.raw)
    total = sum(int(file["size_bytes"]) for file in draft["files"])
    doing = f"registering {request.name}"
    on_bytes = BytesMoved(_STAGE, total, on_progress, message=doing).add
    on_progress(Progress(_STAGE, "start", doing))
    prefix = RunPaths(spec.run_id).root + result.output
    registered = open_model_registry(connection, request.name).register(
        draft, lambda path: prefix + path, anew=anew, on_bytes=on_bytes
    )
    _remember(container, spec.run_id, registered)
    said = f"{request.name}@{registered.version}"
    on_progress(Progress(_STAGE, "end", said))
    return registered


def default_request(
    spec: RunSpec, name: str | None, path: str | None, aliases: tuple[str, ...], text: str
) -> ModelRequest:
    """Return the user's request, completed from the recipe of the run."""
    try:
        wanted = spec.model.check() if spec.model else None
    except RunnerError:
        if name is None:
            raise
        wanted = None  # the recipe's request is invalid, but not needed
    chosen = name or (wanted.name if wanted else slug(spec.recipe)[:63].rstrip("-_"))
    if wanted is None or chosen != wanted.name:
        return ModelRequest(chosen, aliases, path, text)
    # Use the same files as the agent, so that both register the same version.
    return ModelRequest(
        chosen, aliases or wanted.aliases, path or wanted.path, text or wanted.description
    )


def ensure_registered(
    connection: Connection, spec: RunSpec, on_progress: OnProgress = ignore_progress
) -> RunModel | None:
    """Return the version of a run that succeeded. Register it if the agent did not.

    None means that the recipe registers no model. An error of the registration is returned as
    `problem`, because the run itself has succeeded.
    """
    request = spec.model
    if request is None or not request.register:
        return None
    try:
        request.check()
        found = _await_agent(connection, spec, request.name)
        if found is not None:
            on_progress(Progress(_STAGE, "end", str(found)))
            return found
        registered = register_run(connection, spec, request, on_progress)
    except RunnerError as err:
        return RunModel(request.name, None, err.summary)
    return RunModel(request.name, registered.version, "deleted" if registered.deleted else "")


def _await_agent(connection: Connection, spec: RunSpec, name: str) -> RunModel | None:
    """Return the agent's version, or None if its task has ended without one."""
    container = runs_container(connection)
    until = time.monotonic() + _AGENT_TIMEOUT_S
    over = False
    while True:
        found = _load_record(container, model_record_blob(spec.run_id, name))
        if found is not None and found.version:
            return found
        if over or found is not None or time.monotonic() > until:
            return None
        task = get_task(connection, spec.job_id, spec.task_id)
        # Read again, because the agent may have written before its end.
        over = task is None or task.phase == "completed"
        if not over:
            time.sleep(_POLL_S)


def describe_models(connection: Connection, spec: RunSpec) -> list[RunModel]:
    """Return the versions of a run, including a requested one that is missing or removed."""
    found = load_run_models(runs_container(connection), spec.run_id)
    described = [_checked(connection, model) for model in found]
    wanted = spec.model
    if wanted and wanted.register and wanted.name not in {model.name for model in found}:
        described.append(RunModel(wanted.name, None, "the agent did not register it"))
    return described


def _checked(connection: Connection, model: RunModel) -> RunModel:
    if model.version is None:
        return model
    try:
        document = open_model_registry(connection, model.name).load(model.version)
    except ModelError as err:
        return RunModel(model.name, model.version, str(err))
    if document is None or is_deleted_version(document):
        return RunModel(model.name, model.version, "deleted")
    return model


def load_run_models(container: BlobContainer, run_id: str) -> list[RunModel]:
    """Return the versions of a run, by model name."""
    blobs = [
        blob.name for blob in container.list(model_record_blob(run_id, "").removesuffix(".json"))
    ]
    found = [_load_record(container, blob) for blob in blobs]
    return [model for model in found if model is not None]


def _load_record(container: BlobContainer, blob: str) -> RunModel | None:
    body = container.read(blob)
    try:
        raw: dict[str, Any] = parse_json(body or b"")
        version = raw.get("version")
        return RunModel(
            str(raw["name"]), int(version) if version else None, str(raw.get("problem") or "")
        )
    except (ValueError, OverflowError, KeyError, TypeError, AttributeError):
        return None


def _remember(container: BlobContainer, run_id: str, registered: CommittedVersion) -> None:
    name = str(registered.document["name"])
    document = {"format": 1, "name": name, "version": registered.version, "time": now_text()}
    container.put(model_record_blob(run_id, name), document)


def _succeeded(result: RunResult | None, spec: RunSpec) -> RunResult:
    run_id = spec.run_id
    if result is None:
        raise RunnerError(
            "R-MODEL-RUN",
            f"run {run_id} has not ended",
            why="only outputs of a run that succeeded can be registered",
            fix=f"runner attach {run_id}",
        )
    if result.status != "succeeded":
        raise RunnerError(
            "R-MODEL-RUN",
            f"run {run_id} {'was cancelled' if result.status == 'cancelled' else 'failed'}",
            why=result.message or "only outputs of a run that succeeded can be registered",
            fix=f"runner show {run_id}",
            exit_code=ExitCode.RUN_FAILED,
        )
    return result
