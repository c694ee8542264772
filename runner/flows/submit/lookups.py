"""Look up the inputs and predecessors of a submission in the services before it is planned.

`Lookups` of `pipeline.py` asks these questions, which runs without inputs and predecessors do not
have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import JobClosedError, get_task, takes_dependent_tasks
from runner.azure.storage.blobs import BlobContainer, BlobInfo
from runner.contract import StackOutputs
from runner.core.planning.plan import RunPlan
from runner.core.planning.pool_choice import pools_for
from runner.core.recipe.inputs import InputSpec
from runner.core.storage_paths import SHARE
from runner.core.units import format_duration
from runner.flows.data.stores import open_store
from runner.flows.runs.documents import find_run, load_index, load_result, runs_container
from runner.flows.submit.check_and_read import check_file_count, refused_input
from runner.protocol.errors import RunnerError
from runner.protocol.groups import TRIALS_INPUT
from runner.protocol.paths import as_stored, blob_name, is_selected_output, listed_prefix
from runner.protocol.results import RunResult
from runner.protocol.run_spec import RunSpec

_FAILED = "R-AFTER-FAILED"


def is_unfinished(connection: Connection, run_id: str) -> bool:
    """Return True if the run has no result."""
    return load_result(runs_container(connection), run_id) is None


def is_on_share(connection: Connection, document: Mapping[str, Any]) -> bool:
    """Return True if the path of a `share` input exists."""
    path = str(document["path"])
    with open_store(connection, SHARE) as store:
        # The path may begin with the name of the mount.
        places = filter(None, (path, path.partition("/")[2]))
        return any(store.find(place) or next(iter(store.list(place)), None) for place in places)


def is_resolved(document: Mapping[str, Any]) -> bool:
    """Return False if only the services can resolve the input: blobs, and outputs of a run."""
    return not (
        (document["kind"] == "blob" and "files" not in document)
        or (document["kind"] == "run" and "run_id" not in document)
    )


def resolve_input(
    connection: Connection, name: str, document: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the entry of a `blob` or `run` input: the blobs below a prefix, or the run's ID."""
    if document["kind"] == "blob":
        return _listed(connection, name, document["blob"])
    path = document.get("path")
    run_id = find_run(connection, document["run"]).run_id
    _check_outputs(connection, InputSpec(name, "run", run_id), path or "")
    return {"kind": "run", "run_id": run_id, "path": path}


def _check_outputs(connection: Connection, spec: InputSpec, path: str) -> None:
    """Reject outputs that the node would reject. Accept an active run."""
    result = load_result(runs_container(connection), spec.source)
    if result is None:
        return
    if result.status != "succeeded":
        how = f"{'was ' if result.status == 'cancelled' else ''}{result.status}"
        fix = f"use a run that succeeded (runner ps), or runner retry {spec.source}"
        raise refused_input(spec, f"run {spec.source} {how}, so it has no outputs", fix)
    names = [file.path for file in result.outputs]
    if not any(is_selected_output(name, path) for name in names):
        what = f"run {spec.source} has no output{f' {path}' if path else 's'}"
        fix = f"outputs: {', '.join(names[:10]) or 'none'}; see `runner files ls {spec.source}`"
        raise refused_input(spec, what, fix)


def _listed(connection: Connection, name: str, source: str) -> dict[str, Any]:
    container, _, prefix = as_stored(source).partition("/")
    spec = InputSpec(name, "blob", source)
    store = BlobContainer(connection.blob_service(), container)
    blobs: list[BlobInfo] = []
    try:
        start = prefix if blob_name(prefix) == prefix else listed_prefix(prefix)
        for blob in map(store.with_full_name, store.list(start)):
            if _belongs(blob.name, prefix):
                blobs.append(blob)
                check_file_count(spec, len(blobs))
    except RunnerError as err:
        if err.code != "R-CONTAINER-MISSING":
            raise
        fix = "use container/prefix in the storage account of the target"
        raise refused_input(spec, f"container {container!r} does not exist", fix) from err
    single = next((blob for blob in blobs if blob.name == prefix), None)
    if single is not None:
        folder, _, last = prefix.rpartition("/")
        return blob_document(source, container, folder, [single], last)
    if not blobs:
        raise refused_input(spec, "no blob has that name or prefix", "check the spelling")
    _refuse_nested(spec, {blob.name for blob in blobs})
    return blob_document(source, container, prefix, blobs, None)


def _belongs(blob: str, prefix: str) -> bool:
    """Return True for the blob itself and blobs below the folder, but not for folder markers."""
    return (not prefix or blob == prefix or blob.startswith(f"{prefix}/")) and blob[-1:] != "/"


def blob_document(
    source: str, container: str, folder: str, blobs: Sequence[BlobInfo], single: str | None
) -> dict[str, Any]:
    """Return the entry of an input of kind blob; `single` names the only file."""
    start = len(folder) + 1 if folder else 0
    files = [
        {"name": b.name[start:], "size_bytes": b.size_bytes, "etag": b.etag, "md5": b.md5}
        for b in blobs
    ]
    manifest = json.dumps([container, folder, files], separators=(",", ":"))
    return {
        "kind": "blob",
        "blob": source,
        "container": container,
        "prefix": f"{folder}/" if folder else "",
        "manifest": hashlib.sha256(manifest.encode()).hexdigest(),
        "single": single,
        "files": files,
    }


def _refuse_nested(spec: InputSpec, names: set[str]) -> None:
    """Reject blobs `a` and `a/b`, which cannot both be files of one folder."""
    for name in names:
        parents = (name[:at] for at, char in enumerate(name) if char == "/")
        if both := next((parent for parent in parents if parent in names), None):
            what = f"{both!r} and {name!r} are blobs, but a folder cannot contain both"
            raise refused_input(spec, what, "use a prefix without such blobs")


# Batch supports dependencies only between tasks of one job. A run is therefore submitted to the job
# of its active predecessors; ended ones are only checked. The agent cannot wait instead: its node
# would cost money, and on a pool with one node it would wait forever.


def resolve_after(connection: Connection, draft: RunPlan, outputs: StackOutputs) -> RunPlan:
    """Return the draft with the predecessors of its recipe, in the job of the active ones.

    Raises:
        RunnerError: Batch cannot make the run wait for them.
    """
    specs = [find_run(connection, reference) for reference in draft.recipe.after]
    found = {spec.run_id: spec for spec in specs}
    active = [spec for spec in found.values() if not _succeeded(connection, spec)]
    return replace(
        draft,
        after=tuple(found),
        depends_on=tuple(spec.task_id for spec in active),
        job_id=_common_job(connection, draft, active, outputs) if active else draft.job_id,
        warnings=(*draft.warnings, *map(_warn_late_end, filter(_keeps_node, active))),
    )


def check_succeeded(connection: Connection, plan: RunPlan, closed: JobClosedError) -> None:
    """Check that a run need not wait for its predecessors, whose job was closed after its planning.

    Raises:
        RunnerError: R-AFTER-FAILED, one did not succeed; R-AFTER-ENDED, one is still active.
    """
    for spec in [find_run(connection, run_id) for run_id in plan.after]:
        if not _succeeded(connection, spec):
            raise RunnerError(
                "R-AFTER-ENDED",
                f"the job of {spec.run_id} was closed while the run was submitted",
                why=closed.why,
                fix="run the same command again when that run has ended",
            ) from closed


def _keeps_node(spec: RunSpec) -> bool:
    return bool(spec.keep_node_s)


def _warn_late_end(before: RunSpec) -> str:
    kept = format_duration(before.keep_node_s or 0)
    return (
        f"if {before.run_id} fails, this run ends only when that one releases its node, up to "
        f"{kept} later (`runner cancel {before.run_id}` releases it)"
    )


def repeat_predecessors(connection: Connection, spec: RunSpec, *, began: bool) -> dict[str, str]:
    """Return the predecessors of a repetition by those of the original run.

    A failed predecessor is replaced by its newest repetition that may succeed. Predecessors are
    not checked if the original run has started (`began`).

    Raises:
        RunnerError: a predecessor failed and has no such repetition.
    """
    found: dict[str, str] = {}
    for run_id in spec.after:
        try:
            before = find_run(connection, run_id)
        except RunnerError as err:
            if err.code != "R-RUN-UNKNOWN" or not began:
                raise
            continue  # deleted in the meantime
        if not began:
            before = _may_succeed(connection, before, spec)
        found[run_id] = before.run_id
    return found


def _may_succeed(connection: Connection, before: RunSpec, waiting: RunSpec) -> RunSpec:
    try:
        _succeeded(connection, before)
    except RunnerError as err:
        if err.code != _FAILED:
            raise
        for repeats in _repetitions(connection, before):
            with suppress(RunnerError):
                return _may_succeed(connection, repeats, waiting)
        fix = f"runner retry {before.run_id}, then runner retry {waiting.run_id}"
        if waiting.group and TRIALS_INPUT in waiting.inputs:  # the merge task of a sweep
            fix = f"runner sweep resume {waiting.group}"
        raise RunnerError(
            _FAILED,
            f"{waiting.run_id} would never start: {before.run_id} did not succeed",
            why=err.why,
            fix=fix,
        ) from err
    return before


def _repetitions(connection: Connection, spec: RunSpec) -> list[RunSpec]:
    """Return the repetitions of a run, newest first."""
    entries = load_index(runs_container(connection)).values()
    made = [
        entry.spec
        for entry in entries
        if entry.spec.origin and entry.spec.origin.run_id == spec.run_id
    ]
    return sorted(made, key=lambda each: each.created, reverse=True)


def _succeeded(connection: Connection, spec: RunSpec) -> bool:
    """Return False while the run is active. Raise RunnerError if it can no longer succeed."""
    container = runs_container(connection)
    result = load_result(container, spec.run_id)
    if result is None:
        task = get_task(connection, spec.job_id, spec.task_id)
        if task is not None and task.phase != "completed":
            return False
        result = load_result(container, spec.run_id)  # written before the task completes
    if result is not None and result.status == "succeeded":
        return True
    raise _cannot_succeed(spec, result)


def _cannot_succeed(spec: RunSpec, result: RunResult | None) -> RunnerError:
    how = f"it {'was ' if result.status == 'cancelled' else ''}{result.status}" if result else ""
    return RunnerError(
        _FAILED,
        f"the run would never start: {spec.run_id} did not succeed",
        why=how or "its task was deleted, and it has no result",
        fix="use a run that succeeded or is active, or omit --after",
    )


def _common_job(
    connection: Connection, draft: RunPlan, active: Sequence[RunSpec], outputs: StackOutputs
) -> str:
    """Return the job of the active predecessors. Raise RunnerError if the run cannot join it."""
    pool, priority = draft.pool.id, draft.recipe.priority
    first = active[0]
    if other := next((r for r in active if r.job_id != first.job_id), None):
        why = f"{first.run_id} is in job {first.job_id}, {other.run_id} in job {other.job_id}"
        raise _cannot_wait(first, why)
    if first.pool.lower() != pool.lower():
        why = f"{first.run_id} is on pool {first.pool}, this run on pool {pool}"
        raise _cannot_wait(first, why, _pool_option(draft.recipe.image, first.pool, outputs))
    if priority not in (0, first.priority):
        why = f"{first.run_id} has priority {first.priority}, this run {priority}"
        raise _cannot_wait(first, why, f"--priority {first.priority}")
    if first.max_cost_micros is not None:
        why = f"job {first.job_id} of {first.run_id} has a cost cap for its own tasks"
        raise _cannot_wait(first, why)
    if not takes_dependent_tasks(connection, first.job_id):
        why = f"job {first.job_id} of {first.run_id} does not accept tasks with dependencies"
        raise _cannot_wait(first, why)
    return first.job_id


def refuse_predecessors(draft: RunPlan) -> None:
    """Raise RunnerError if a run that needs a separate job has predecessors.

    Runs with a cost cap and runs with several pools need one.
    """
    if not draft.depends_on:
        return
    first = draft.depends_on[0]
    kind = "a cost cap" if draft.fallback is None else "several pools"
    other = "submit both in one file with `max_cost`" if draft.fallback is None else "use --pool"
    raise RunnerError(
        "R-AFTER-JOB",
        "Batch cannot make this run wait: a task can only depend on tasks of its job",
        why=f"a run with {kind} has a separate job, but {first} is in another one",
        fix=f"wait with `runner attach {first}`, then run this command again; or {other}",
    )


def _pool_option(image: str | None, pool_id: str, outputs: StackOutputs) -> str:
    """Return `--pool ID` if a run with this image can use that pool, else an empty text."""
    try:
        pools_for(image, pool_id, outputs)
    except RunnerError:
        return ""
    known = (pool.id.lower() for pool in outputs.pools)
    return f"--pool {pool_id}" if pool_id.lower() in known else ""


def _cannot_wait(first: RunSpec, why: str, option: str = "") -> RunnerError:
    here = f"wait with `runner attach {first.run_id}`, then run this command again"
    return RunnerError(
        "R-AFTER-JOB",
        "Batch cannot make this run wait: a task can only depend on tasks of its job",
        why=f"{why}; a job has one pool and one priority",
        fix=f"{option}, or {here}" if option else here,
    )
