"""Submit the plan of one run: upload changes, write `run.json`, add the task.

A second submission of the same plan finds the run and adds nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import (
    JobClosedError,
    NewTask,
    add_task,
    close_when_done,
    create_job,
    get_task,
    terminate_task,
)
from runner.azure.batch.translate import to_task
from runner.azure.faults import STORAGE_FULL, TRANSIENT_CODES
from runner.azure.storage.blobs import BlobContainer, BlobInfo, in_parallel
from runner.azure.storage.stores import ChangedError, OnBytes, SourceChangedError
from runner.core.home import HomePaths, disk_reserve, write_atomically
from runner.core.planning.plan import JobPlan, RunPlan, in_job, without_waiting
from runner.core.progress import OnProgress, Progress
from runner.core.units import format_count
from runner.flows.data.datasets import Dataset
from runner.flows.local.state import check_services_room, make_container_pool
from runner.flows.local_files import BytesMoved
from runner.flows.runs.documents import (
    add_to_lists,
    code_container,
    forget_new,
    index_run,
    runs_container,
)
from runner.flows.submit.check_and_read import FilesToUpload
from runner.flows.submit.lookups import check_succeeded
from runner.flows.submit.pipeline import SubmissionPlan, find_next_job
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.paths import RunPaths, blob_name, code_blob, stored_path
from runner.protocol.run_spec import RunSpec, parse_run

_ADD_TRIES = 4
_ADD_PAUSE_S = 1.0
_MOST_ETAGS, _MOST_PLACES = 500, 20  # what is remembered of stored code
_NEXT_JOBS = 2  # maximum number of times that a closed job is replaced
_COMPARED_EVERY_S = 86_400.0  # as often as a client compares the indexes of runs


@dataclass(frozen=True, slots=True)
class ChangedCode:
    """A blob of code that is missing (`etag` is None) or has other content than its name says."""

    sha256: str
    etag: str | None = None


class CodeStore:
    """The container of agents and code, whose blobs are named by the hash of their content.

    A name proves nothing: who may write to storage can replace a blob. An ETag changes with the
    content, so the home remembers the ETags of blobs that this machine stored or hashed. Any other
    blob is downloaded and hashed, once.
    """

    def __init__(self, connection: Connection) -> None:
        self._container = code_container(connection)
        self._earlier = runs_container(connection)  # has the code of outputs of version 1
        self._file = HomePaths(connection.home).stored_code if connection.home else None
        self._place = str(self._container.client.url)
        self._etags = _load_etags(self._file).get(self._place, {})
        self._remembered = dict(self._etags)

    @property
    def name(self) -> str:
        """Name of the container."""
        return self._container.name

    def keep(self, sha256: str) -> ChangedCode | None:
        """Keep a blob from deletion and return None, or return that it has to be stored."""
        while True:
            found = self._container.stat(code_blob(sha256))
            if found is None:
                return ChangedCode(sha256)
            if self._etags.get(sha256) != found.etag and not self._has_hash(found, sha256):
                return ChangedCode(sha256, found.etag)
            etag = self._container.renew(found)
            if etag is not None:  # else it was replaced or deleted meanwhile
                self._etags[sha256] = etag
                return None

    def write(self, changed: ChangedCode, content: bytes) -> None:
        """Store the content, unless another client stores it at the same time."""
        wanted: ChangedCode | None = changed
        while wanted is not None:
            etag = self._container.write(code_blob(wanted.sha256), content, wanted.etag)
            if etag is not None:
                self._etags[wanted.sha256] = etag
                return
            wanted = self.keep(wanted.sha256)

    def restore(self, sha256: str) -> bool:
        """Keep the code of an earlier run. Return False if nothing stored has this hash.

        The code of outputs of version 1 is copied from the container of runs.
        """
        changed = self.keep(sha256)
        if changed is not None:
            content = self._earlier.read(code_blob(sha256))
            if content is None or hashlib.sha256(content).hexdigest() != sha256:
                return False
            self.write(changed, content)
        self.remember()
        return True

    def _has_hash(self, found: BlobInfo, sha256: str) -> bool:
        content, after = self._container.read(found.name), self._container.stat(found.name)
        is_same = content is not None and after is not None and after.etag == found.etag
        return is_same and hashlib.sha256(content or b"").hexdigest() == sha256

    def remember(self) -> None:
        """Write the ETags to the home. What another process writes meanwhile is hashed again."""
        if self._file is None or self._etags == self._remembered:
            return
        places = _load_etags(self._file)
        merged = {**places.pop(self._place, {}), **self._etags}
        places[self._place] = dict(list(merged.items())[-_MOST_ETAGS:])
        with contextlib.suppress(RunnerError):  # the next submission hashes the blobs
            write_atomically(self._file, json.dumps(dict(list(places.items())[-_MOST_PLACES:])))
        self._remembered = dict(self._etags)


def _load_etags(file: Path | None) -> dict[str, dict[str, str]]:
    """Return the remembered ETags by URL of the container and by hash."""
    try:
        places: dict[str, dict[str, str]] = json.loads(file.read_text("utf-8")) if file else {}
        return {place: dict(etags) for place, etags in places.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


@dataclass(frozen=True, slots=True)
class _Upload:
    """Content to upload; `send` reports the bytes that it has sent."""

    size_bytes: int
    send: Callable[[OnBytes], None]


def submit_run(
    connection: Connection, plan: SubmissionPlan, on_progress: OnProgress, *, is_new: bool = False
) -> RunSpec:
    """Submit a plan of one run. Return the run, whose job may differ from the plan.

    With `is_new`, nothing of the run exists, so it is not looked for.

    Raises:
        RunnerError: the services rejected it; nothing of the run remains.
    """
    run = plan.run
    runs = runs_container(connection)
    existing = None if is_new else runs.read(RunPaths(run.run_id).run)
    task = to_task(run, connection)  # an invalid task fails before any upload
    upload_files(connection, plan, on_progress)
    on_progress(Progress("submit", "start"))
    if existing is not None:
        spec = _same_run(parse_run(existing, run.run_id), run)
        _add_again(connection, spec, task)
    else:
        spec = _submit_new(connection, run, plan.job, task, runs)
    if run.secrets:
        from runner.flows.submit.consent import remember  # noqa: PLC0415  few runs have secrets

        remember(connection, (run.to_spec(),))
    on_progress(Progress("submit", "end", f"{spec.run_id} to job {spec.job_id}"))
    keep_index(connection, on_progress)
    return spec


def keep_index(connection: Connection, on_progress: OnProgress) -> None:
    """Complete the index by time once a day, because earlier versions of runner do not write it."""
    note = None
    if connection.home is not None:
        place = hashlib.sha256(runs_container(connection).client.url.encode()).hexdigest()
        note = HomePaths(connection.home).compared / place
        with contextlib.suppress(OSError):
            if abs(time.time() - note.stat().st_mtime) < _COMPARED_EVERY_S:
                return
    from runner.flows.runs.index_upkeep import complete_index  # noqa: PLC0415  once a day

    complete_index(connection, note, on_progress)


def upload_files(connection: Connection, plan: SubmissionPlan, on_progress: OnProgress) -> None:
    """Upload the code and data of all runs of a plan that are not stored yet, each once.

    Create the local pool for containers before, if the plan needs it.
    """
    if plan.dry_run:
        raise ValueError("the plan of a dry run cannot be submitted")
    if plan.home is not None:
        make_container_pool(plan.home, on_progress)
    store = CodeStore(connection)
    on_progress(Progress("upload", "start"))
    missing = [
        *_missing_code(plan.files, store, on_progress),
        *_missing_data(connection, plan.files),
    ]
    if missing:
        total = sum(upload.size_bytes for upload in missing)
        check_services_room(connection, total)
        on_bytes = BytesMoved("upload", total, on_progress).add
        in_parallel(lambda upload: upload.send(on_bytes), missing)
        files = format_count(len(missing), "file")
        on_progress(Progress("upload", "end", files, total, total, "bytes"))
    else:
        on_progress(Progress("upload", "end", "nothing changed"))
    store.remember()


def _missing_code(
    files: FilesToUpload, store: CodeStore, on_progress: OnProgress
) -> Iterator[_Upload]:
    for changed in in_parallel(store.keep, files.archives):
        if changed is None:
            continue
        if changed.etag is not None:
            blob = f"{store.name}/{code_blob(changed.sha256)}"
            text = f"{blob} was replaced by other content: it is stored again"
            on_progress(Progress("code", "warning", text))
        data = files.archives[changed.sha256]
        yield _Upload(len(data), partial(_send_code, store, changed, data))


def _send_code(store: CodeStore, changed: ChangedCode, data: bytes, on_bytes: OnBytes) -> None:
    store.write(changed, data)
    on_bytes(len(data))


def _missing_data(connection: Connection, files: FilesToUpload) -> list[_Upload]:
    """Return the files of data sets and local inputs that are not stored yet."""
    container = BlobContainer(connection.blob_service(), connection.outputs.container_data)
    return [
        upload
        for prefix, dataset in files.data.items()
        for upload in _missing_files(container, prefix, dataset)
    ]


def _missing_files(container: BlobContainer, prefix: str, dataset: Dataset) -> list[_Upload]:
    """Return the files that are missing or have another size. Nodes compare the hash of each."""
    there = {blob.name: blob.size_bytes for blob in container.list(prefix)}
    named = ((blob_name(prefix + stored_path(file.name)), file) for file in dataset.files)
    return [
        _Upload(
            file.size_bytes,
            partial(_send_file, container, blob, dataset.folder / file.name, file.sha256),
        )
        for blob, file in named
        if there.get(blob) != file.size_bytes
    ]


def _send_file(
    container: BlobContainer, blob: str, source: Path, sha256: str, on_bytes: OnBytes
) -> None:
    try:
        with contextlib.suppress(ChangedError):  # another process uploaded it
            container.upload_file(blob, source, on_bytes, sha256=sha256)
    except (SourceChangedError, FileNotFoundError) as err:
        raise RunnerError(
            "R-DATA-UNSTABLE",
            f"{source} changed before its upload",
            why="its content differs from the hash in the plan of the run",
            fix="wait until no program writes to it, then submit again",
            exit_code=ExitCode.PREFLIGHT,
        ) from err


def _submit_new(
    connection: Connection, plan: RunPlan, job: JobPlan, task: NewTask, runs: BlobContainer
) -> RunSpec:
    """Submit a new run; choose the next job for it if its job was closed."""
    for tries_left in reversed(range(_NEXT_JOBS + 1)):
        try:
            return _submit_in_job(connection, in_job(plan, job.job_id), job, task, runs)
        except JobClosedError as err:
            if plan.depends_on:  # on tasks of the closed job
                check_succeeded(connection, plan, err)
                plan = without_waiting(plan)
                task = to_task(plan, connection)
                job = replace(job, wanted=plan.job_id)
            if not tries_left:
                raise
        job = find_next_job(connection, job)
    raise AssertionError("unreachable")


def _submit_in_job(
    connection: Connection, plan: RunPlan, job: JobPlan, task: NewTask, runs: BlobContainer
) -> RunSpec:
    path, document = RunPaths(plan.run_id).run, plan.to_spec().to_json()
    if not job.exists:
        create_job(connection, job.job_id, job.pool_id, job.priority, job.max_parallel, job.limit)
    try:
        runs.create(path, document)
        add_to_lists(runs, document)
        _add_with_retries(connection, plan.job_id, task)
    except RunnerError as err:
        if err.code == STORAGE_FULL:
            _forget_on_full_disk(connection, plan, runs)
        elif err.code not in TRANSIENT_CODES:  # rejected permanently
            forget_new(runs, plan.run_id)
        raise
    except KeyboardInterrupt:
        terminate_task(connection, plan.job_id, plan.task_id)
        forget_new(runs, plan.run_id)
        raise
    index_run(runs, document)
    # Set this after adding the task, because an empty job would end immediately. The run is
    # submitted even if this fails: the next submission uses the open job, and sets it.
    if not job.completes:
        with contextlib.suppress(RunnerError):
            close_when_done(connection, plan.job_id)
    return parse_run(json.dumps(document).encode(), plan.run_id)


def _forget_on_full_disk(connection: Connection, plan: RunPlan, runs: BlobContainer) -> None:
    """Delete a run that could not be submitted, with the reserve of the local services.

    If that is taken, too, `runner ps` shows the run as lost once the disk has room.
    """
    with contextlib.ExitStack() as stack, contextlib.suppress(RunnerError):
        if connection.home is not None:
            stack.enter_context(disk_reserve(HomePaths(connection.home)))
        forget_new(runs, plan.run_id)
        terminate_task(connection, plan.job_id, plan.task_id)


def _add_with_retries(connection: Connection, job_id: str, task: NewTask) -> None:
    """Add the task; safe to repeat, because the service stores one task per ID."""
    for tries_left in reversed(range(_ADD_TRIES)):
        try:
            add_task(connection, job_id, task)
            return
        except RunnerError as err:
            if err.code not in TRANSIENT_CODES - {STORAGE_FULL} or not tries_left:
                raise
            time.sleep(_ADD_PAUSE_S)


def _add_again(connection: Connection, spec: RunSpec, task: NewTask) -> None:
    """Add the missing task of a submitted run, unless its job has ended."""
    add_to_lists(runs_container(connection), spec.to_json())
    try:
        _add_with_retries(connection, spec.job_id, task)
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
