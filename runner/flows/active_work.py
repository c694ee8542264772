"""What still needs pools and services: unfinished runs, sweeps, groups and other tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import unfinished_tasks
from runner.flows.runs.documents import runs_container
from runner.flows.runs.group_documents import owners_of
from runner.protocol.errors import RunnerError

_MAX_EXAMINED = 40  # tasks whose sweep or group is read
_MAX_EXAMINED_PER_JOB = 6  # tasks; more than an error message shows


@dataclass(frozen=True, slots=True)
class ActiveWork:
    """Unfinished work.

    Attributes:
        owners: Sweeps, groups and runs.
        tasks: Job ID and task ID of tasks, including tasks that do not belong to runner. Only
            some tasks of each job are read.
    """

    owners: Sequence[str]
    tasks: Sequence[tuple[str, str]]

    @property
    def names(self) -> Sequence[str]:
        """The owners, or the task IDs if no task belongs to runner."""
        return self.owners or [task for _, task in self.tasks]


def find_active(
    connection: Connection, pool_ids: Collection[str] | None, *, on_nodes: bool = False
) -> ActiveWork:
    """Return the unfinished work on pools, or on all pools of the account if None.

    With `on_nodes`, leave out work that waits for a node.
    """
    tasks = unfinished_tasks(
        connection, _MAX_EXAMINED, pool_ids, per_job=_MAX_EXAMINED_PER_JOB, on_nodes=on_nodes
    )
    owners: list[str] = []
    with suppress(RunnerError):  # the storage account may be gone
        for part in connection.parts():  # a task does not say which of them has its run
            owners += owners_of(runs_container(part), tasks)
    return ActiveWork(owners, tasks)
