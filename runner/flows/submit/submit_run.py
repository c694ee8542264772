"""Submit the plan of one run: upload changes, write `run.json`, add the task.

A second submission of the same plan finds the run and adds nothing.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import (
    JobClosedError,
    add_task,
    close_when_done,
    create_job,
    get_task,
    terminate_task,
)
from runner.azure.batch.translate import to_task
from runner.azure.faults import TRANSIENT_CODES
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.azure.storage.stores import ChangedError, SourceChangedError
from runner.core.planning.plan import Placement, RunPlan
from runner.core.progress import OnProgress, Progress
from runner.core.recipe.secrets import SecretValues
from runner.core.units import format_count
from runner.flows.data.datasets import Dataset
from runner.flows.local.state import make_container_pool
from runner.flows.local_files import BytesMoved
from runner.flows.runs.documents import index_run, runs_container
from runner.flows.submit.pipeline import JobPlan, PlannedRun, SubmissionPlan, find_job
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.paths import RunPaths, blob_name, code_blob, job_id_for, stored_path
from runner.protocol.run_spec import RunSpec, parse_run

_ADD_TRIES = 4
_ADD_PAUSE_S = 1.0
_REPLANS = 2  # maximum number of times that a closed job is replaced


@dataclass(frozen=True, slots=True)
class _BlobUpload:
    """A blob to upload if it is missing; `content` is bytes in memory or a file."""

    container: BlobContainer
    blob: str
    content: bytes | Path
    size_bytes: int
    sha256: str = ""  # hash of a file, which may change before it is sent


def submit_run(
    connection: Connection, plan: SubmissionPlan, on_progress: OnProgress, *, is_new: bool = False
) -> RunSpec:
    """Submit a plan of one run. Return the run, whose job may differ from the plan.

    With `is_new`, nothing of the run exists, so it is not looked for.

    Raises:
        RunnerError: the services rejected it; nothing of the run remains.
    """
    planned = plan.run
    runs = runs_container(connection)
    existing = None if is_new else runs.read(RunPaths(planned.plan.run_id).run)
    to_task(planned.plan, connection, planned.secrets)  # an invalid task fails before any upload
    upload_files(connection, plan, on_progress)
    on_progress(Progress("submit", "start"))
    if existing is not None:
        spec = _same_run(parse_run(existing, planned.plan.run_id), planned.plan)
        _add_again(connection, planned, spec)
    else:
        spec = _submit_new(connection, planned, plan.job, runs)
    on_progress(Progress("submit", "end", f"{spec.run_id} to job {spec.job_id}"))
    return spec


def upload_files(connection: Connection, plan: SubmissionPlan, on_progress: OnProgress) -> None:
    """Upload the code and data of all runs of a plan that are not stored yet, each once.

    Create the local pool for containers before, if the plan needs it.
    """
    if plan.dry_run:
        raise ValueError("the plan of a dry run cannot be submitted")
    if plan.home is not None:
        make_container_pool(plan.home, on_progress)
    runs = runs_container(connection)
    planned = tuple(plan.runs.values())
    on_progress(Progress("upload", "start"))
    missing = [*_missing_code(planned, runs), *_missing_data(connection, planned)]
    if not missing:
        on_progress(Progress("upload", "end", "nothing changed"))
        return
    total = sum(upload.size_bytes for upload in missing)
    on_bytes = BytesMoved("upload", total, on_progress).add
    in_parallel(lambda upload: _send(upload, on_bytes), missing)
    on_progress(
        Progress("upload", "end", format_count(len(missing), "file"), total, total, "bytes")
    )


def _missing_code(planned: Iterable[PlannedRun], runs: BlobContainer) -> list[_BlobUpload]:
    contents: dict[str, bytes] = {}
    for run in planned:
        content, code, agent = run.plan.content, run.files.code, run.files.agent
        contents |= {content.code.sha256: code.data} if code else {}
        contents |= {content.agent_sha256: agent} if agent else {}
    uploads = [
        _BlobUpload(runs, code_blob(sha256), content, len(content))
        for sha256, content in contents.items()
    ]
    sizes = in_parallel(lambda upload: runs.renew(upload.blob), uploads)
    return [upload for upload, size in zip(uploads, sizes, strict=True) if size is None]


def _missing_data(connection: Connection, planned: Iterable[PlannedRun]) -> list[_BlobUpload]:
    """Return the files of data sets and local inputs that are not stored yet."""
    local: dict[str, Dataset] = {}
    for run in planned:
        local |= {one.document["prefix"]: one.dataset for one in run.files.inputs if one.dataset}
        data = run.plan.content.data
        if data is not None and run.files.dataset is not None:
            local[data.prefix] = run.files.dataset
    container = BlobContainer(connection.blob_service(), connection.outputs.container_data)
    return [
        upload
        for prefix, dataset in local.items()
        for upload in _missing_files(container, prefix, dataset)
    ]


def _missing_files(container: BlobContainer, prefix: str, dataset: Dataset) -> list[_BlobUpload]:
    there = {blob.name: blob.size_bytes for blob in container.list(prefix)}
    named = ((blob_name(prefix + stored_path(file.name)), file) for file in dataset.files)
    return [
        _BlobUpload(container, blob, dataset.folder / file.name, file.size_bytes, file.sha256)
        for blob, file in named
        if there.get(blob) != file.size_bytes
    ]


def _send(upload: _BlobUpload, on_bytes: Callable[[int], None]) -> None:
    if isinstance(upload.content, Path):
        try:
            with contextlib.suppress(ChangedError):  # another process uploaded it
                upload.container.upload_file(
                    upload.blob, upload.content, on_bytes, sha256=upload.sha256
                )
        except (SourceChangedError, FileNotFoundError) as err:
            raise RunnerError(
                "R-DATA-UNSTABLE",
                f"{upload.content} changed before its upload",
                why="its content differs from the hash in the plan of the run",
                fix="wait until no program writes to it, then submit again",
                exit_code=ExitCode.PREFLIGHT,
            ) from err
    else:
        upload.container.create_bytes(upload.blob, upload.content, "application/octet-stream")
        on_bytes(upload.size_bytes)


def _submit_new(
    connection: Connection, planned: PlannedRun, job: JobPlan, runs: BlobContainer
) -> RunSpec:
    """Submit a new run; plan again with the same ID if the job was closed."""
    plan = planned.plan
    for replans_left in reversed(range(_REPLANS + 1)):
        try:
            return _submit_in_job(connection, plan, planned.secrets, job, runs)
        except JobClosedError as err:
            if plan.depends_on:  # the run depends on tasks of the closed job
                raise RunnerError(
                    "R-AFTER-ENDED",
                    "its predecessors ended while it was submitted",
                    fix="run the same command again",
                ) from err
            if not replans_left:
                raise
        name = job.wanted or job_id_for(plan.experiment, job.pool_id, job.priority)
        found = find_job(connection, Placement(plan.pool, name), job.priority)
        job = replace(found, limit=job.limit, max_parallel=job.max_parallel)
        plan = planned.plan_in_job(job.job_id)
    raise AssertionError("unreachable")


def _submit_in_job(
    connection: Connection, plan: RunPlan, secrets: SecretValues, job: JobPlan, runs: BlobContainer
) -> RunSpec:
    path, document = RunPaths(plan.run_id).run, plan.to_spec().to_json()
    if not job.exists:
        create_job(connection, job.job_id, job.pool_id, job.priority, job.max_parallel, job.limit)
    try:
        runs.create(path, document)
        _add_with_retries(connection, plan, secrets, plan.job_id)
    except RunnerError as err:
        if err.code not in TRANSIENT_CODES:  # rejected permanently
            runs.delete(path)
        raise
    except KeyboardInterrupt:
        terminate_task(connection, plan.job_id, plan.task_id)
        runs.delete(path)
        raise
    index_run(runs, document)
    # Set this after adding the task, because an empty job would end immediately. The run is
    # submitted even if this fails: the next submission uses the open job, and sets it.
    if not job.completes:
        with contextlib.suppress(RunnerError):
            close_when_done(connection, plan.job_id)
    return parse_run(json.dumps(document).encode(), plan.run_id)


def _add_with_retries(
    connection: Connection, plan: RunPlan, secrets: SecretValues, job_id: str
) -> None:
    """Add the task; safe to repeat, because the service stores one task per ID."""
    task = to_task(plan, connection, secrets)
    for tries_left in reversed(range(_ADD_TRIES)):
        try:
            add_task(connection, job_id, task)
            return
        except RunnerError as err:
            if err.code not in TRANSIENT_CODES or not tries_left:
                raise
            time.sleep(_ADD_PAUSE_S)


def _add_again(connection: Connection, planned: PlannedRun, spec: RunSpec) -> None:
    """Add the missing task of a submitted run, unless its job has ended."""
    try:
        _add_with_retries(connection, planned.plan, planned.secrets, spec.job_id)
    except JobClosedError:
        if get_task(connection, spec.job_id, spec.task_id) is None:
            raise


def _same_run(spec: RunSpec, plan: RunPlan) -> RunSpec:
    planned = plan.to_spec()
    same = (planned.code, planned.command, planned.created)
    if (spec.code, spec.command, spec.created) == same:
        return spec
    raise RunnerError(
        "R-RUN-EXISTS", f"run {plan.run_id} already exists", fix="run the same command again"
    )


def find_submitted(connection: Connection, run_id: str) -> RunSpec | None:
    """Return the run of an interrupted submission, or None if it left nothing behind."""
    found = runs_container(connection).read(RunPaths(run_id).run)
    return None if found is None else parse_run(found, run_id)
