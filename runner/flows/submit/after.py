"""`after`: which runs must have succeeded before another starts, and how Batch waits for them.

Batch has dependencies only between tasks of one job. So a run joins the job of those it waits for;
runs that have ended are only looked at. An agent that waited on a node of its own would be paid
for waiting, and on a pool of one node it would wait for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import get_task, takes_dependent_tasks
from runner.core.planning.plan import RunPlan
from runner.core.planning.pool_choice import pools_for
from runner.flows.runs.documents import find_run, load_index, load_result, runs_container
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.results import RunResult
from runner.protocol.run_spec import RunSpec

_FAILED = "R-AFTER-FAILED"


def resolve_after(connection: Connection, plan: RunPlan) -> RunPlan:
    """The plan with run ids for references, in the job where they are waited for."""
    if not plan.recipe.after:
        return plan
    found = {record.run_id: record for record in _find(connection, plan.recipe.after)}
    waiting = [record for record in found.values() if not _succeeded(connection, record)]
    plan = replace(plan, after=tuple(found))
    if not waiting:
        return plan
    job_id = _common_job(connection, plan, waiting)
    return replace(plan, job_id=job_id, depends_on=tuple(record.task_id for record in waiting))


def after_again(connection: Connection, record: RunSpec, *, began: bool) -> dict[str, str]:
    """What a run waits for when it is run again, by what it waited for.

    The same runs; in the place of one that failed, the newest that repeats it and may succeed.
    Raises RunnerError where there is none. A run that `began` had nothing to wait for any more.
    """
    found: dict[str, str] = {}
    for run_id in record.after:
        try:
            before = find_run(connection, run_id)
        except RunnerError as err:
            if err.code != "R-RUN-UNKNOWN" or not began:
                raise
            continue  # deleted since
        if not began:
            before = _may_succeed(connection, before, record)
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
        raise RunnerError(
            _FAILED,
            f"{before.run_id} did not succeed: {waiting.run_id} would never start",
            why=err.why,
            fix=f"runner retry {before.run_id}, then runner retry {waiting.run_id}",
            exit_code=ExitCode.PREFLIGHT,
        ) from err
    return before


def _repetitions(connection: Connection, record: RunSpec) -> list[RunSpec]:
    """Runs that are this one again, newest first."""
    entries = load_index(runs_container(connection)).values()
    made = [
        entry.record
        for entry in entries
        if entry.record.origin and entry.record.origin.run_id == record.run_id
    ]
    return sorted(made, key=lambda each: each.created, reverse=True)


def _find(connection: Connection, references: Sequence[str]) -> list[RunSpec]:
    return [find_run(connection, reference) for reference in references]


def _succeeded(connection: Connection, record: RunSpec) -> bool:
    """False while it goes on. Raises RunnerError where it can never succeed any more."""
    container = runs_container(connection)
    result = load_result(container, record.run_id)
    if result is None:
        task = get_task(connection, record.job_id, record.task_id)
        if task is not None and task.phase != "completed":
            return False
        result = load_result(container, record.run_id)  # written before the task completes
    if result is not None and result.status == "succeeded":
        return True
    raise _never(record, result)


def _never(record: RunSpec, result: RunResult | None) -> RunnerError:
    how = f"it {'was ' if result.status == 'cancelled' else ''}{result.status}" if result else ""
    return RunnerError(
        _FAILED,
        f"{record.run_id} did not succeed: a run after it would never start",
        why=how or "its task is gone and it left no result",
        fix="name a run that succeeded or goes on, or leave out --after",
        exit_code=ExitCode.PREFLIGHT,
    )


def _common_job(connection: Connection, plan: RunPlan, waiting: Sequence[RunSpec]) -> str:
    first = waiting[0]
    if other := next((r for r in waiting if r.job_id != first.job_id), None):
        why = f"{first.run_id} is in job {first.job_id}, {other.run_id} in job {other.job_id}"
        raise _cannot_wait(plan, first, why)
    if first.pool.lower() != plan.pool.id.lower():
        why = f"{first.run_id} is on pool {first.pool}, this run on pool {plan.pool.id}"
        raise _cannot_wait(plan, first, why, _there(connection, plan, first.pool))
    if plan.recipe.priority not in (0, first.priority):
        why = f"{first.run_id} has priority {first.priority}, this run {plan.recipe.priority}"
        raise _cannot_wait(plan, first, why, f"--priority {first.priority}")
    if not takes_dependent_tasks(connection, first.job_id):
        why = f"job {first.job_id} of {first.run_id} takes no task that depends on others"
        raise _cannot_wait(plan, first, why)
    return first.job_id


def _there(connection: Connection, plan: RunPlan, pool_id: str) -> str:
    """`--pool`, where the run could go to that pool: those for containers take nothing else."""
    try:
        pools_for(plan.recipe.image, pool_id, connection.outputs)
    except RunnerError:
        return ""
    known = (pool.id.lower() for pool in connection.outputs.pools)
    return f"--pool {pool_id}" if pool_id.lower() in known else ""


def _cannot_wait(plan: RunPlan, first: RunSpec, why: str, option: str = "") -> RunnerError:
    again = "train ..."
    if plan.origin is not None:
        again = f"{plan.origin['kind']} {plan.origin['run_id']}"
    here = f"wait here: runner attach {first.run_id} && runner {again}"
    return RunnerError(
        "R-AFTER-JOB",
        "Batch cannot make this run wait: dependencies are between tasks of one job",
        why=f"{why}; a job has one pool and one priority",
        fix=f"{option}, or {here}" if option else here,
    )
