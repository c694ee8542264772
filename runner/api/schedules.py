"""Schedules: runs that begin again and again, kept by Batch, with no client awake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from runner.api import html
from runner.api.arguments import checked
from runner.api.group_object import Group
from runner.api.history import Runs
from runner.api.html import Table
from runner.api.progress import OnUpdate, live
from runner.api.requests import bind, connect, overrides_of, settings_of, whole
from runner.api.run_object import Run

if TYPE_CHECKING:
    from pydantic import PositiveInt

    from runner.flows.schedules.manage import Firing
    from runner.flows.schedules.manage import ScheduleRecord as Found
    from runner.flows.session import Session


class _BoundSchedule:
    session: Session
    found: Found


@dataclass(frozen=True)
class Schedule(_BoundSchedule):
    """A schedule as it was when it was asked for; `runner.schedule(name)` looks again.

    `state` is active, paused, completed, or gone where Batch has lost it. `tasks` is empty for one
    that makes single runs.
    """

    name: str
    state: str
    when: str
    next_run: datetime | None
    recipe: str
    pool: str
    tasks: tuple[str, ...]

    def firings(self) -> Table[Firing]:
        """What it made so far, the newest last: `.created`, `.group_id`, `.runs` (their ids)."""
        from runner.flows.schedules.manage import firings

        return Table(firings(self.session.connection, self.found), _firing_cells)

    def runs(self) -> Runs:
        """The runs it made so far, newest first, those of groups too; not those of `trigger`."""
        from runner.flows.runs.history import list_runs

        ids = [run_id for one in self.firings() for run_id in one.runs]
        session = self.session
        found = list_runs(session.connection, limit=None, ids=ids)
        return Runs.of_rows(session, found.rows)

    def trouble(self) -> str | None:
        """Why its newest job has made nothing yet; None where it has."""
        from runner.flows.schedules.manage import trouble

        return trouble(self.session.connection, self.found, self.firings())

    def trigger(self) -> Run | Group:
        """Start a run now, or a group of several tasks, beside its times; what was started.

        Secrets are read from this machine's variables.
        """
        from runner.flows.schedules.trigger import trigger
        from runner.protocol.groups import RunGroup as Document

        made = trigger(self.session.connection, self._now())
        if isinstance(made, Document):
            return Group(self.session, made)
        return Run(self.session, made)

    def pause(self) -> Schedule:
        """Let no run begin until it is resumed; one that runs goes on. The schedule as it is."""
        from runner.flows.schedules.manage import pause_schedule

        pause_schedule(self.session.connection, self._now())
        return _schedule(self.session, self._now())

    def resume(self) -> Schedule:
        """Let runs begin again; what was missed is not made up for. The schedule as it is."""
        from runner.flows.schedules.manage import resume_schedule

        resume_schedule(self.session.connection, self._now())
        return _schedule(self.session, self._now())

    def remove(self) -> tuple[str, ...]:
        """Delete it without asking. Its finished runs stay; ids of those that are cancelled."""
        from runner.flows.schedules.manage import remove_schedule

        return tuple(remove_schedule(self.session.connection, self._now()))

    def _now(self) -> Found:
        """As it is: it may be another of that name, or gone."""
        from runner.flows.schedules.manage import find_schedule

        return find_schedule(self.session.connection, self.name)

    def _repr_html_(self) -> str:
        return html.record(html.texts(_cells(self)))


@checked
def schedules(*, target: str | None = None, stack: str | None = None) -> Table[Schedule]:
    """All schedules, by name."""
    from runner.flows.schedules.manage import list_schedules

    session = connect(target, stack)
    found = list_schedules(session.connection)
    return Table((_schedule(session, one) for one in found), _cells)


@checked
def schedule(name: str, *, target: str | None = None, stack: str | None = None) -> Schedule:
    """The schedule of that name. Raises RunnerError (R-SCHEDULE-UNKNOWN) naming those there are."""
    from runner.flows.schedules.manage import find_schedule

    session = connect(target, stack)
    return _schedule(session, find_schedule(session.connection, name))


@checked
def create_schedule(
    recipe: str | Path,
    *,
    cron: str | None = None,
    every: str | timedelta | None = None,
    timezone: str | None = None,
    start: str | datetime | None = None,
    until: str | datetime | None = None,
    max_runs: PositiveInt | None = None,
    name: str | None = None,
    set: Mapping[str, object] | None = None,  # noqa: A002  as on the command line
    priority: int | None = None,
    pool: str | None = None,
    target: str | None = None,
    stack: str | None = None,
    on_progress: OnUpdate | None = None,
) -> Schedule:
    """Make a schedule of a recipe, or of a file of tasks as `submit` takes it.

    `cron` is five fields that make an even interval, `every` instead "6h" or a timedelta of a
    minute to a year. `timezone` is that of `cron` and of moments without one; UTC unless given.
    Local services are started if need be.
    """
    from runner.flows.schedules.create import ScheduleFlags, make_schedule

    flags = ScheduleFlags(
        cron, _interval(every), timezone, _moment(start), _moment(until), whole(max_runs), name,
        whole(priority),
    )  # fmt: skip
    ref = str(Path(recipe).expanduser()) if isinstance(recipe, Path) else recipe
    settings = settings_of(target, stack, pool)
    with live(on_progress, what=f"schedule {name or Path(recipe).stem}") as view:
        made = make_schedule(
            ref, settings, flags, overrides_of(set), on_progress=view.on_progress,
            on_warning=view.on_warning,
        )  # fmt: skip
    return _schedule(connect(target, stack), made)


def _schedule(session: Session, found: Found) -> Schedule:
    schedule = Schedule(
        name=found.schedule_id,
        state=found.state,
        when=found.when,
        next_run=found.view.next_run if found.view else None,
        recipe=str(found.document["recipe"]),
        pool=str(found.document["pool"]),
        tasks=tuple(found.tasks),
    )
    bind(schedule, session=session, found=found)
    return schedule


def _interval(every: str | timedelta | None) -> str | None:
    return str(int(every.total_seconds())) if isinstance(every, timedelta) else every


def _moment(moment: str | datetime | None) -> str | None:
    return moment.isoformat() if isinstance(moment, datetime) else moment


def _cells(schedule: Schedule) -> dict[str, object]:
    names = ("name", "state", "when", "next_run", "recipe", "pool", "tasks")
    return {name: getattr(schedule, name) for name in names}


def _firing_cells(firing: Firing) -> dict[str, object]:
    return {"created": firing.created, "group": firing.group_id, "runs": firing.runs}
