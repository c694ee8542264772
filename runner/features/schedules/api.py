"""Schedules: runs that Azure Batch starts at set times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from runner.api import html
from runner.api.arguments import checked
from runner.api.group_object import Group
from runner.api.history import Runs
from runner.api.html import Table
from runner.api.progress import OnUpdate, live
from runner.api.requests import attach, connect, load_call_settings, to_options
from runner.api.run_object import Run
from runner.protocol.groups import RunGroup as Document

if TYPE_CHECKING:
    from pydantic import PositiveInt

    from runner.features.schedules.manage import Firing
    from runner.features.schedules.manage import ScheduleRecord as Found
    from runner.flows.session import Session


class _BoundSchedule:
    session: Session
    found: Found


@dataclass(frozen=True)
class Schedule(_BoundSchedule):
    """A snapshot of a schedule; `runner.schedule(name)` returns a new one.

    `state` is active, paused, completed, or gone if it was deleted from Batch. `tasks` is empty for
    a schedule of single runs.
    """

    name: str
    state: str
    when: str
    next_run: datetime | None
    recipe: str
    pool: str
    tasks: tuple[str, ...]

    def firings(self) -> Table[Firing]:
        """Return the firings, newest last: `.created`, `.group_id`, and `.runs` with run IDs."""
        from runner.features.schedules.manage import firings

        return Table(firings(self.session.connection, self.found), _firing_cells)

    def runs(self) -> Runs:
        """Return the runs that the schedule or `trigger` started, newest first."""
        from runner.flows.runs.history import list_runs

        ids = [run_id for one in self.firings() for run_id in one.runs]
        session = self.session
        found = list_runs(session.connection, limit=None, ids=ids)
        return Runs.of_rows(session, found.rows)

    def trouble(self) -> str | None:
        """Return why the newest job has started no run, or None if it has started one."""
        from runner.features.schedules.manage import trouble

        return trouble(self.session.connection, self.found, self.firings())

    def trigger(self, *, send_env: Sequence[str] = ()) -> Run | Group:
        """Start a run (or group) now, in addition to the scheduled ones, and return it.

        Secrets are read from the environment variables of this machine: those in `send_env` only,
        if the schedule was not created from it.
        """
        from runner.features.schedules.trigger import trigger
        from runner.flows.submit.consent import Consent

        made = trigger(self.session.connection, self._reload(), Consent(frozenset(send_env)))
        if isinstance(made, Document):
            return Group(self.session, made)
        return Run(self.session, made)

    def pause(self) -> Schedule:
        """Start no runs until `resume`; active runs continue. Return a new snapshot."""
        from runner.features.schedules.manage import pause_schedule

        pause_schedule(self.session.connection, self._reload())
        return _to_schedule(self.session, self._reload())

    def resume(self) -> Schedule:
        """Start runs again; missed runs are not started. Return a new snapshot."""
        from runner.features.schedules.manage import resume_schedule

        resume_schedule(self.session.connection, self._reload())
        return _to_schedule(self.session, self._reload())

    def remove(self) -> tuple[str, ...]:
        """Delete it without asking; finished runs remain. Return the IDs of cancelled runs."""
        from runner.features.schedules.manage import remove_schedule

        return tuple(remove_schedule(self.session.connection, self._reload()))

    def _reload(self) -> Found:
        """Read the schedule again: it may have been replaced or deleted."""
        from runner.features.schedules.manage import find_schedule

        return find_schedule(self.session.connection, self.name)

    def _repr_html_(self) -> str:
        return html.record(_cells(self))


@checked
def schedules(*, target: str | None = None, stack: str | None = None) -> Table[Schedule]:
    """Return all schedules, by name."""
    from runner.features.schedules.manage import list_schedules

    session = connect(target, stack)
    found = list_schedules(session.connection)
    return Table((_to_schedule(session, one) for one in found), _cells)


@checked
def schedule(name: str, *, target: str | None = None, stack: str | None = None) -> Schedule:
    """Return a schedule. Raise RunnerError (R-SCHEDULE-UNKNOWN) with the existing names."""
    from runner.features.schedules.manage import find_schedule

    session = connect(target, stack)
    return _to_schedule(session, find_schedule(session.connection, name))


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
    max_cost: float | None = None,
    name: str | None = None,
    set: Mapping[str, object] | None = None,  # noqa: A002  as on the command line
    priority: int | None = None,
    pool: str | None = None,
    target: str | None = None,
    stack: str | None = None,
    on_progress: OnUpdate | None = None,
) -> Schedule:
    """Create a schedule of a recipe, or of a file of tasks as `submit` accepts it.

    Starts the local services if they are not running.

    Args:
        recipe: name of a built-in recipe, or path of a folder, script, or file of tasks.
        cron: five cron fields, such as "0 3 * * 1-5", or "@daily".
        every: interval instead of `cron`, from a minute to a year: "6h" or a timedelta.
        timezone: time zone of `cron`, and of times without one; by default UTC.
        start: time before which no run starts.
        until: time after which no run starts.
        max_runs: maximum number of runs.
        max_cost: maximum cost of all runs in USD; the schedule ends before.
        name: name of the schedule; by default the recipe's.
        set: parameters of the recipe.
        priority: from -1000 to 1000; higher runs first.
        pool: pool to run on.
        target: "local" or "azure".
        stack: Pulumi stack of the target.
        on_progress: called with updates.
    """
    from runner.features.schedules.create import ScheduleFlags, make_schedule

    flags = ScheduleFlags(
        cron, _interval(every), timezone, _to_iso(start), _to_iso(until), max_runs, name,
        None if max_cost is None else str(max_cost),
    )  # fmt: skip
    ref = str(Path(recipe).expanduser()) if isinstance(recipe, Path) else recipe
    settings = load_call_settings(target, stack, pool)
    with live(on_progress, what=f"schedule {name or Path(recipe).stem}") as view:
        made = make_schedule(
            ref, settings, flags, to_options({"set": set, "priority": priority}),
            on_progress=view.on_progress, on_warning=view.on_warning,
        )  # fmt: skip
    return _to_schedule(connect(target, stack), made)


def _to_schedule(session: Session, found: Found) -> Schedule:
    schedule = Schedule(
        name=found.schedule_id,
        state=found.state,
        when=found.when,
        next_run=next(iter(found.next_runs(1, datetime.now(UTC))), None),
        recipe=str(found.document["recipe"]),
        pool=str(found.document["pool"]),
        tasks=tuple(found.tasks),
    )
    attach(schedule, session=session, found=found)
    return schedule


def _interval(every: str | timedelta | None) -> str | None:
    return str(int(every.total_seconds())) if isinstance(every, timedelta) else every


def _to_iso(moment: str | datetime | None) -> str | None:
    return moment.isoformat() if isinstance(moment, datetime) else moment


def _cells(schedule: Schedule) -> dict[str, object]:
    names = ("name", "state", "when", "next_run", "recipe", "pool", "tasks")
    return {name: getattr(schedule, name) for name in names}


def _firing_cells(firing: Firing) -> dict[str, object]:
    return {"created": firing.created, "group": firing.group_id, "runs": firing.runs}
