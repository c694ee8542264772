"""Find submitted runs and groups, and retry failed runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, overload

from runner.api.arguments import checked
from runner.api.group_object import Group
from runner.api.html import Table
from runner.api.progress import OnUpdate, live
from runner.api.requests import connect
from runner.api.run_object import Run, run_cells
from runner.core.states import parse_states
from runner.core.units import parse_since
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from pydantic import NonNegativeInt

    from runner.flows.runs.rows import RunRow
    from runner.flows.session import Session


class Runs(Table[Run]):
    """A sequence of runs, newest first; a notebook shows it as a table."""

    __slots__ = ()

    def __init__(self, found: Iterable[Run]) -> None:
        super().__init__(found, run_cells)

    @classmethod
    def of_rows(cls, session: Session, rows: Iterable[RunRow]) -> Runs:
        """Return the readable runs of a listing."""
        return cls(Run(session, row.spec, row.status, partial=True) for row in rows if row.spec)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | slice) -> Run | Runs:
        found = super().__getitem__(index)
        return Runs(found) if isinstance(found, Table) else found


@checked
def run(ref: str = "@last", *, target: str | None = None, stack: str | None = None) -> Run:
    """Return the run with an ID or unique prefix, or the last one (`@last`)."""
    from runner.flows.runs.documents import find_run

    session = connect(target, stack)
    return Run(session, find_run(session.connection, ref))


@checked
def group(ref: str = "@last", *, target: str | None = None, stack: str | None = None) -> Group:
    """Return the group with an ID or unique prefix, or the last one (`@last`)."""
    from runner.flows.runs.group_documents import find_group

    session = connect(target, stack)
    return Group(session, find_group(session.connection, ref))


@checked
def runs(
    limit: NonNegativeInt | None = 20,
    *,
    experiment: str | None = None,
    status: str | Iterable[str] = (),
    since: str | datetime | timedelta | None = None,
    group: str | Group | None = None,
    sort: str | None = None,
    target: str | None = None,
    stack: str | None = None,
) -> Runs:
    """Return the newest runs, without unreadable ones (which `runner ps` shows).

    Args:
        limit: maximum number of runs; None returns all.
        experiment: only runs of this experiment.
        status: only runs in this state, or in one of these states.
        since: only runs submitted since then: a time, or an age such as "7d" or "12h".
        group: only runs of this group.
        sort: the metric by whose last value the runs are sorted, best first; "-loss" means largest
            first. All runs are compared before `limit` counts.
        target: "local" or "azure".
        stack: Pulumi stack of the target.
    """
    from runner.flows.runs.history import RunFilter, list_runs
    from runner.flows.sweeps.ranking import MetricOrder, list_ranked

    states = parse_states([status] if isinstance(status, str) else status)
    only = RunFilter(experiment, states, _parse_since(since))
    session = connect(target, stack)
    ids = None if group is None else _run_ids(session, group)
    if sort is None:
        found = list_runs(session.connection, limit=limit, only=only, ids=ids)
    else:
        order = MetricOrder.parse(sort)
        found = list_ranked(session.connection, order, limit=limit, only=only, ids=ids)
    return Runs.of_rows(session, found.rows)


@dataclass(frozen=True, slots=True)
class Retried:
    """New runs by the ID of the run that each repeats, and errors of the others."""

    runs: Mapping[str, Run]
    problems: Mapping[str, RunnerError]


@checked
def retry_failed(
    *,
    experiment: str | None = None,
    pool: str | None = None,
    send_env: Sequence[str] = (),
    target: str | None = None,
    stack: str | None = None,
    on_progress: OnUpdate | None = None,
) -> Retried:
    """Submit each failed or lost run again, unless that was done. Do not wait for the new runs.

    Runs that were not submitted from this machine get the variables in `send_env` only.
    """
    from runner.flows.submit.consent import Consent
    from runner.flows.submit.repeat import list_to_retry, retry_each

    session = connect(target, stack)
    connection = session.connection
    found = list_to_retry(connection, experiment)
    repeated: dict[str, Run] = {}
    problems: dict[str, RunnerError] = {}
    consent = Consent(frozenset(send_env))
    with live(on_progress, what="retry_failed") as view:
        for row, again in retry_each(connection, found, pool, view.on_progress, consent):
            if isinstance(again, RunnerError):
                problems[row.run_id] = again
            else:
                repeated[row.run_id] = Run(session, again)
    return Retried(repeated, problems)


def _parse_since(since: str | datetime | timedelta | None) -> datetime | None:
    if isinstance(since, timedelta):
        return datetime.now(UTC) - since
    if isinstance(since, datetime):
        return since.astimezone(UTC)
    return None if since is None else parse_since(since, datetime.now(UTC))


def _run_ids(session: Session, group: str | Group) -> list[str]:
    from runner.flows.runs.group_documents import find_group

    if isinstance(group, Group):
        return [group.run_id(task) for task in group]
    return list(find_group(session.connection, group).runs.values())
