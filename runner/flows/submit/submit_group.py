"""Submit the runs of a group as one Batch job: either all of them, or none.

A job is set to end with its tasks only after they were added, because a job without tasks ends by
itself: immediately (REST docs "Add Job", onAllTasksComplete, read 2026-11-21), or after a minute. A
process that is killed in between leaves an open job, which counts in the account's quota. A note in
blob storage, written before the job is created, therefore tells a later submission to finish its
work.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import (
    Task,
    add_tasks,
    close_when_done,
    create_job,
    delete_job,
    list_tasks,
)
from runner.azure.batch.translate import to_task, to_trial_tasks
from runner.azure.faults import SERVICES_DOWN
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.core.progress import OnProgress, Progress
from runner.core.units import format_count
from runner.flows.runs.documents import add_to_lists, forget_new, index_run, runs_container
from runner.flows.submit.pipeline import SubmissionPlan
from runner.flows.submit.submit_run import keep_index, upload_files
from runner.flows.sweeps.cancel import cancel_group
from runner.protocol.codec import FORMAT, parse_json
from runner.protocol.errors import RunnerError
from runner.protocol.groups import MERGE_TASK, SUBMITTING_FOLDER, RunGroup, group_blob, parse_group
from runner.protocol.paths import RunPaths
from runner.protocol.waiting_trials import (
    WaitingTrials,
    differences,
    template_blob,
    waiting_blob,
)

logger = logging.getLogger(__name__)

_ABANDONED_AFTER = timedelta(minutes=15)  # longer than any submission takes


def submit_group(connection: Connection, plan: SubmissionPlan, on_progress: OnProgress) -> RunGroup:
    """Submit all runs of a plan. Raise RunnerError after removing those already submitted."""
    group, job = plan.run_group, plan.job
    with ThreadPoolExecutor(max_workers=1) as other:
        finishing = other.submit(finish_interrupted, connection)
        waiting = _waiting_trials(plan)
        # The merge task of a sweep is not one of its trials.
        others = [run for run in plan.runs.values() if not (waiting and run.trial)]
        tasks: Iterable[Task] = [to_task(run, connection) for run in others]
        documents = [run.to_spec().to_json() for run in others]
        if waiting is not None:
            first = next(iter(plan.runs.values()))
            tasks = chain(to_trial_tasks(first, connection, waiting), tasks)
        upload_files(connection, plan, on_progress)
        finishing.result()
    on_progress(Progress("submit", "start"))
    with submitting(connection, group.group_id):
        place_group(
            connection,
            job.job_id,
            group.to_json(),
            documents,
            create=lambda: create_job(
                connection, job.job_id, job.pool_id, job.priority, job.max_parallel, job.limit
            ),
            add=lambda: add_tasks(connection.batch_client(), job.job_id, tasks),
            waiting=waiting,
        )
    if any(run.secrets for run in plan.runs.values()):
        from runner.flows.submit.consent import remember_documents  # noqa: PLC0415  as submit_run

        trials = map(waiting.document, waiting.trials) if waiting else ()
        remember_documents(connection, chain(documents, trials))
    on_progress(
        Progress("submit", "end", f"{format_count(len(plan.runs), group.noun)} to job {job.job_id}")
    )
    keep_index(connection, on_progress)
    return group


def _waiting_trials(plan: SubmissionPlan) -> WaitingTrials | None:
    """Return run.json of all trials of a sweep as one document.

    Return None for other groups, and for trials on several nodes, whose agents need a run.json.
    """
    plans = [run for name, run in plan.runs.items() if name != MERGE_TASK]
    first = plans[0]
    if not plan.run_group.trials or first.recipe.nodes > 1:
        return None
    common = first.to_spec().to_json()
    others = [each for each in plans if each.recipe != first.recipe]
    different = {each.run_id: each.to_spec().to_json() for each in others}
    for document in different.values():
        common = {key: value for key, value in common.items() if key in document}
    whole = {first.run_id: first.to_spec().to_json(), **different}
    trials = {
        each.run_id: differences(
            common,
            whole.get(each.run_id)
            or {
                "run_id": each.run_id,
                "command": list(each.command),
                "params": dict(each.params),
                "trial": each.trial,
                "batch": {**common["batch"], "task_id": each.task_id},
            },
        )
        for each in plans
    }
    return WaitingTrials(plan.run_group.group_id, common, trials)


def place_group(
    connection: Connection,
    job_id: str,
    group: Mapping[str, Any],
    documents: Sequence[Mapping[str, Any]],
    *,
    create: Callable[[], object],
    add: Callable[[], object],
    waiting: WaitingTrials | None = None,
) -> None:
    """Create the job and the documents of a group, add its tasks, and let the job end with them.

    If this fails or is interrupted, the documents and the job are deleted.

    Args:
        connection: the services.
        job_id: the ID of the new job.
        group: the document of the group.
        documents: run.json of each run.
        create: creates the job.
        add: adds the tasks.
        waiting: the trials whose run.json their agents write.
    """
    container = runs_container(connection)
    group_id = str(group["group_id"])
    shared: dict[str, bytes] = {}
    if waiting is not None:
        shared[waiting_blob(group_id)] = waiting.to_bytes()
        shared[template_blob(group_id)] = json.dumps(waiting.common).encode()

    def write(blob: str) -> object:
        return container.create_bytes(blob, shared[blob], "application/json")

    try:
        in_parallel(lambda step: step(), (create, *(partial(write, blob) for blob in shared)))
        # After the trials: a sweep is listed by its group, and has to be resumable then.
        container.create_bytes(group_blob(group_id), json.dumps(group).encode(), "application/json")
        in_parallel(partial(_create_run, container), documents)
        add()
        # An empty job would complete immediately.
        close_when_done(connection, job_id)
    except (RunnerError, KeyboardInterrupt) as err:
        if not isinstance(err, RunnerError) or err.code != SERVICES_DOWN:
            delete_job(connection, job_id)
            in_parallel(lambda run: forget_new(container, str(run["run_id"])), documents)
            in_parallel(container.delete, (*shared, group_blob(group_id)))
        raise
    in_parallel(lambda run: index_run(container, run), documents)


def _create_run(container: BlobContainer, run: Mapping[str, Any]) -> None:
    container.create(RunPaths(run["run_id"]).run, run)
    add_to_lists(container, run)


@contextmanager
def submitting(connection: Connection, group_id: str) -> Generator[None]:
    """Keep a note in blob storage while the block creates the group's job and adds its tasks.

    The note is deleted when the block has ended or failed. It remains if the services become
    unreachable, or if this process is killed or interrupted: after a second Ctrl-C, the deletion
    may be incomplete, and the request that creates the job may still be on its way.
    """
    container, blob = runs_container(connection), f"{SUBMITTING_FOLDER}{group_id}.json"
    begun = datetime.now(UTC).isoformat()
    container.create(blob, {"format": FORMAT, "group_id": group_id, "begun": begun})
    try:
        yield
    except RunnerError as err:
        if err.code != SERVICES_DOWN:
            _forget(container, blob)
        raise
    _forget(container, blob)


def finish_interrupted(connection: Connection, now: datetime | None = None) -> None:
    """Finish interrupted submissions of other processes.

    A job that has all its tasks is set to end with them. Otherwise, the runs of the group are
    cancelled, because a group is submitted completely or not at all.
    """
    container = runs_container(connection)
    before = (now or datetime.now(UTC)) - _ABANDONED_AFTER
    for note in container.list(SUBMITTING_FOLDER):
        content = container.read(note.name)
        try:
            raw = parse_json(content or b"")
            group_id, begun = str(raw["group_id"]), datetime.fromisoformat(raw["begun"])
        except (ValueError, OverflowError, KeyError, TypeError):
            continue  # written by another version, or deleted in the meantime
        if begun >= before:
            continue
        try:
            _finish(connection, container, group_id)
        except RunnerError as err:  # a problem of the old group must not stop this submission
            logger.warning("cannot finish the submission of %s: %s", group_id, err.what)
            continue
        _forget(container, note.name)


def _finish(connection: Connection, container: BlobContainer, group_id: str) -> None:
    content = container.read(group_blob(group_id))
    if content is None:  # it is written before the first task, so there are no tasks
        delete_job(connection, group_id)
        in_parallel(container.delete, (waiting_blob(group_id), template_blob(group_id)))
        return
    group = parse_group(content, group_id)
    waiting = WaitingTrials.parse(container.read(waiting_blob(group_id)) or b"")
    wanted = {
        waiting.task_of(run_id) if waiting is not None and run_id in waiting.trials else run_id
        for run_id in group.runs.values()
    }
    if wanted <= set(list_tasks(connection, group.job_id)):
        close_when_done(connection, group.job_id)
    else:
        cancel_group(connection, group)


def _forget(container: BlobContainer, blob: str) -> None:
    """Delete a note. If that fails, the next submission deletes it."""
    with suppress(RunnerError):
        container.delete(blob)
