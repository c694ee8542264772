"""Submit several tasks as one Batch job: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.azure.batch import add_tasks, close_when_done, delete_job, ensure_job
from runner.azure.blobs import in_parallel
from runner.azure.credentials import Connection
from runner.azure.faults import SERVICES_DOWN
from runner.azure.translate import to_task
from runner.core.errors import RunnerError
from runner.core.group import group_blob
from runner.core.progress import OnProgress, Progress
from runner.core.run_document import run_document
from runner.core.run_paths import RunPaths
from runner.flows.broken_off import finish_broken_off, submitting
from runner.flows.group_plan import PreparedGroup
from runner.flows.once import Once
from runner.flows.run_documents import runs_container
from runner.flows.run_index import index_run
from runner.flows.submit import upload_runs, with_inputs


def submit_group(connection: Connection, prepared: PreparedGroup, on_progress: OnProgress) -> None:
    """Bring all runs into being. Raises RunnerError after taking back what was there already."""
    finish_broken_off(connection)
    container = runs_container(connection)
    once = Once()
    ready = [with_inputs(connection, run, once) for run in prepared.runs.values()]
    upload_runs(connection, ready, container, on_progress)
    on_progress(Progress("submit", "start"))
    plans = [run.plan for run in ready]
    group = prepared.group
    tasks = [to_task(run.plan, connection, run.secrets) for run in ready]
    with submitting(connection, group.group_id):
        job_id = ensure_job(
            connection, group.job_id, group.pool, prepared.priority, prepared.max_parallel
        )
        documents = [run_document(plan, job_id) for plan in plans]
        place_group(
            connection,
            job_id,
            group.to_json(),
            documents,
            lambda: add_tasks(connection.batch_client(), job_id, tasks),
        )
    on_progress(Progress("submit", "end", f"{len(plans)} tasks to job {job_id}"))


def place_group(
    connection: Connection,
    job_id: str,
    group: Mapping[str, Any],
    documents: Sequence[Mapping[str, Any]],
    add: Callable[[], object],
) -> None:
    """Write what describes a group, add its tasks to their new job, and let it end with them.

    Refused or interrupted, nothing of it stays, and the job is deleted.
    """
    container = runs_container(connection)
    blob = group_blob(str(group["group_id"]))
    try:
        container.create(blob, group)
        in_parallel(lambda run: container.create(RunPaths(run["run_id"]).run, run), documents)
        add()
        # Not before: an empty job would be complete at once.
        close_when_done(connection, job_id)
    except (RunnerError, KeyboardInterrupt) as err:
        if not isinstance(err, RunnerError) or err.code != SERVICES_DOWN:
            delete_job(connection, job_id)
            in_parallel(lambda run: container.delete(RunPaths(run["run_id"]).run), documents)
            container.delete(blob)
        raise
    in_parallel(lambda run: index_run(container, run), documents)
