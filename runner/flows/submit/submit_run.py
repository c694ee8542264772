"""Submit a plan: upload what changed, write `run.json`, add the task. Twice is as good as once."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import add_task, ensure_job, terminate_task
from runner.azure.batch.translate import to_task
from runner.azure.faults import SERVICES_DOWN
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.azure.storage.stores import ChangedError, SourceChangedError
from runner.core.planning.plan import RunPlan
from runner.core.progress import OnProgress, Progress
from runner.flows.data.datasets import Dataset
from runner.flows.runs.documents import index_run
from runner.flows.submit.after import resolve_after
from runner.flows.submit.inputs import resolve_in_service
from runner.flows.submit.prepare import Memo, PreparedRun
from runner.flows.transfers import BytesMoved, count_text
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.paths import RunPaths, code_blob
from runner.protocol.run_spec import RunSpec, parse_run

_ADD_TRIES = 4
_ADD_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class _BlobUpload:
    """One blob to make sure of; `content` is bytes in memory or a file."""

    container: BlobContainer
    blob: str
    content: bytes | Path
    size_bytes: int
    sha256: str = ""  # of a file, which may change before it is sent


def submit_run(connection: Connection, prepared: PreparedRun, on_progress: OnProgress) -> RunSpec:
    """Bring the run into being. A second call with the same plan finds it there."""
    prepared = with_inputs(connection, prepared)
    plan = prepared.plan
    runs = BlobContainer(connection.blob_service(), connection.outputs.container_runs)
    existing = runs.read(RunPaths(plan.run_id).run)
    if existing is None:  # refused before anything is sent
        plan = resolve_after(connection, plan)
        prepared = replace(prepared, plan=plan)
    upload_runs(connection, [prepared], runs, on_progress)
    on_progress(Progress("submit", "start"))
    if existing is not None:
        record = _same_run(parse_run(existing, plan.run_id), plan)
        _add_with_retries(connection, prepared, record.job_id)
    else:
        record = _submit_new(connection, prepared, runs)
    on_progress(Progress("submit", "end", f"{record.run_id} to job {record.job_id}"))
    return record


def with_inputs(
    connection: Connection, prepared: PreparedRun, memo: Memo | None = None
) -> PreparedRun:
    """The plan with the inputs that only the service knows, before anything is sent.

    `once` is shared by runs of one submission: the same prefix is listed once.
    """
    plan = prepared.plan
    memo = memo or Memo()
    if plan.repeats is not None:  # they stay what they were
        return prepared
    named = {
        name: memo(
            (name, json.dumps(document)),
            lambda one={name: document}: resolve_in_service(connection, one, prepared.pending_runs),
        )[name]
        for name, document in plan.inputs.named.items()
    }
    return replace(prepared, plan=replace(plan, inputs=replace(plan.inputs, named=named)))


def find_submitted(connection: Connection, run_id: str) -> RunSpec | None:
    """The run of a submission that was broken off, or None where it left nothing behind."""
    runs = BlobContainer(connection.blob_service(), connection.outputs.container_runs)
    found = runs.read(RunPaths(run_id).run)
    return None if found is None else parse_run(found, run_id)


def _submit_new(connection: Connection, prepared: PreparedRun, runs: BlobContainer) -> RunSpec:
    plan = prepared.plan
    paths = RunPaths(plan.run_id)
    job_id = plan.job_id
    if not plan.depends_on:  # else it is the job of those it depends on
        job_id = ensure_job(connection, job_id, plan.pool.id, plan.recipe.priority)
    document = plan.to_spec(job_id).to_json()
    try:
        runs.create(paths.run, document)
        _add_with_retries(connection, prepared, job_id)
    except RunnerError as err:
        if err.code != SERVICES_DOWN:  # refused for good: nothing is left half-done
            runs.delete(paths.run)
        raise
    except KeyboardInterrupt:
        terminate_task(connection, job_id, plan.task_id)
        runs.delete(paths.run)
        raise
    index_run(runs, document)
    return parse_run(json.dumps(document).encode(), plan.run_id)


def _add_with_retries(connection: Connection, prepared: PreparedRun, job_id: str) -> None:
    """Add the task; safe to repeat, since the service keeps one task per id."""
    task = to_task(prepared.plan, connection, prepared.secrets)
    for tries_left in reversed(range(_ADD_TRIES)):
        try:
            add_task(connection, job_id, task)
            return
        except RunnerError as err:
            if err.code != SERVICES_DOWN or not tries_left:
                raise
            time.sleep(_ADD_PAUSE_S)


def _same_run(record: RunSpec, plan: RunPlan) -> RunSpec:
    planned = plan.to_spec(record.job_id)
    if (record.code, record.command, record.created) == (
        planned.code,
        planned.command,
        planned.created,
    ):
        return record
    raise RunnerError(
        "R-RUN-EXISTS", f"another run is named {plan.run_id}", fix="run the same command again"
    )


def upload_runs(
    connection: Connection,
    prepared: Sequence[PreparedRun],
    runs: BlobContainer,
    on_progress: OnProgress,
) -> None:
    """Send what of the code and the data of these runs is not there yet, each thing once."""
    on_progress(Progress("upload", "start"))
    missing = [*_missing_code(prepared, runs), *_missing_data(connection, prepared)]
    if not missing:
        on_progress(Progress("upload", "end", "nothing changed"))
        return
    total = sum(upload.size_bytes for upload in missing)
    on_bytes = BytesMoved("upload", total, on_progress).add
    in_parallel(lambda upload: _send(upload, on_bytes), missing)
    on_progress(Progress("upload", "end", count_text(len(missing)), total, total, "bytes"))


def _send(upload: _BlobUpload, on_bytes: Callable[[int], None]) -> None:
    if isinstance(upload.content, Path):
        try:
            with contextlib.suppress(ChangedError):  # sent by another process meanwhile
                upload.container.upload_file(
                    upload.blob, upload.content, on_bytes, sha256=upload.sha256
                )
        except (SourceChangedError, FileNotFoundError) as err:
            raise RunnerError(
                "R-DATA-UNSTABLE",
                f"{upload.content} changed before it was uploaded",
                why="it is not what was hashed for this run: nothing of it counts",
                fix="let the program that writes it finish, then submit again",
                exit_code=ExitCode.PREFLIGHT,
            ) from err
    else:
        upload.container.create_bytes(upload.blob, upload.content, "application/octet-stream")
        on_bytes(upload.size_bytes)


def _missing_code(prepared: Sequence[PreparedRun], runs: BlobContainer) -> list[_BlobUpload]:
    contents: dict[str, bytes] = {}
    for run in prepared:
        inputs = run.plan.inputs
        contents |= {inputs.code.sha256: run.code.data, inputs.agent_sha256: run.agent}
    uploads = [
        _BlobUpload(runs, code_blob(sha256), content, len(content))
        for sha256, content in contents.items()
    ]
    sizes = in_parallel(lambda upload: runs.size(upload.blob), uploads)
    return [upload for upload, size in zip(uploads, sizes, strict=True) if size is None]


def _missing_data(connection: Connection, prepared: Iterable[PreparedRun]) -> list[_BlobUpload]:
    """What is not there yet of the data sets and of the inputs that lie on this machine."""
    local: dict[str, Dataset] = {}
    for run in prepared:
        local |= {one.document["prefix"]: one.dataset for one in run.inputs if one.dataset}
        data = run.plan.inputs.data
        if data is not None and run.dataset is not None:
            local[data.prefix] = run.dataset
    container = BlobContainer(connection.blob_service(), connection.outputs.container_data)
    return [
        upload
        for prefix, dataset in local.items()
        for upload in _missing_files(container, prefix, dataset)
    ]


def _missing_files(container: BlobContainer, prefix: str, dataset: Dataset) -> list[_BlobUpload]:
    there = {blob.name: blob.size_bytes for blob in container.list(prefix)}
    return [
        _BlobUpload(
            container,
            prefix + file.name,
            dataset.folder / file.name,
            file.size_bytes,
            file.sha256,
        )
        for file in dataset.files
        if there.get(prefix + file.name) != file.size_bytes
    ]
