"""Find runs and groups that were submitted before, and retry those that failed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, overload

from runner.api import html
from runner.api.arguments import checked
from runner.api.group_object import Group
from runner.api.html import Table
from runner.api.progress import OnUpdate, live
from runner.api.requests import connect
from runner.api.run_object import Run
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from pydantic import NonNegativeInt

    from runner.flows.runs.history import RunRow
    from runner.flows.session import Session


class Runs(Table[Run]):
    """Runs, newest first; a notebook shows them as a table."""

    __slots__ = ()

    def __init__(self, found: Iterable[Run]) -> None:
        super().__init__(found, lambda run: {"run": run.id})

    @classmethod
    def of_rows(cls, session: Session, rows: Iterable[RunRow]) -> Runs:
        """Those of a listing that can be read."""
        return cls(Run(session, row.record, row.status, partial=True) for row in rows if row.record)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> Runs: ...
    def __getitem__(self, index: int | slice) -> Run | Runs:
        found = super().__getitem__(index)
        return Runs(found) if isinstance(found, Table) else found

    def _repr_html_(self) -> str:
        return html.runs_table(self)


@checked
def run(ref: str = "@last", *, target: str | None = None, stack: str | None = None) -> Run:
    """The run of an id, a unique prefix of one, or `@last`."""
    from runner.flows.runs.documents import find_run

    session = connect(target, stack)
    return Run(session, find_run(session.connection, ref))


@checked
def group(ref: str = "@last", *, target: str | None = None, stack: str | None = None) -> Group:
    """The group that a `submit` made: its id, a unique prefix of it, or `@last`."""
    from runner.flows.runs.groups import find_group

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
    target: str | None = None,
    stack: str | None = None,
) -> Runs:
    """The newest runs; `limit=None` means all.

    Only of one experiment or group, in some states ("failed" or ["failed", "lost"]), submitted
    since a moment or so long ago ("7d", "12h", a date). Runs whose documents cannot be read are
    left out; `runner ps` shows them.
    """
    from runner.core.states import parse_states
    from runner.flows.runs.history import RunFilter, list_runs

    states = parse_states([status] if isinstance(status, str) else status)
    only = RunFilter(experiment, states, _moment(since))
    session = connect(target, stack)
    ids = None if group is None else _ids(session, group)
    found = list_runs(session.connection, limit=limit, only=only, ids=ids)
    return Runs.of_rows(session, found.rows)


@dataclass(frozen=True, slots=True)
class Retried:
    """The new runs, by the id of the run that each repeats; and why others could not be."""

    runs: Mapping[str, Run]
    problems: Mapping[str, RunnerError]


@checked
def retry_failed(
    *,
    experiment: str | None = None,
    pool: str | None = None,
    target: str | None = None,
    stack: str | None = None,
    on_progress: OnUpdate | None = None,
) -> Retried:
    """Run every failed or lost run again that no other run repeats; does not wait for them."""
    from runner.flows.submit.repeat import list_to_retry, retry_each

    session = connect(target, stack)
    connection = session.connection
    found = list_to_retry(connection, experiment)
    made: dict[str, Run] = {}
    problems: dict[str, RunnerError] = {}
    with live(on_progress, what="retry_failed") as view:
        for row, again in retry_each(connection, found, pool, view.on_progress):
            if isinstance(again, RunnerError):
                problems[row.run_id] = again
            else:
                made[row.run_id] = Run(session, again)
    return Retried(made, problems)


def _moment(since: str | datetime | timedelta | None) -> datetime | None:
    from runner.core.units import parse_since

    if isinstance(since, timedelta):
        return datetime.now(UTC) - since
    if isinstance(since, datetime):
        return since.astimezone(UTC)
    return None if since is None else parse_since(since, datetime.now(UTC))


def _ids(session: Session, group: str | Group) -> list[str]:
    from runner.flows.runs.groups import find_group

    if isinstance(group, Group):
        return [group.run_id(task) for task in group]
    return list(find_group(session.connection, group).runs.values())
