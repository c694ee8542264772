"""Display of a group of runs: a tree with their states, and state changes while they run."""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from runner.cli.ui.output import Output
from runner.cli.ui.terminal import StageDisplay, is_terminal
from runner.core.progress import Progress
from runner.core.units import format_count
from runner.protocol.errors import ExitCode

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.flows.runs.rows import RunRow
    from runner.flows.sweeps.groups import GroupView
    from runner.protocol.groups import RunGroup


_ID = re.compile(r"[a-z0-9][a-z0-9_-]+")
FEW_TASKS = 12  # a group with more tasks is shown as counts


def show_group(out: Output, view: GroupView) -> None:
    """Print the tree, or the same data as JSON or TSV."""
    from runner.views.sweeps import group_document

    if not out.document(group_document(view)):
        draw_group(out, view)


def draw_group(out: Output, view: GroupView) -> None:
    """Print the tree."""
    from runner.core.recipe.submit_file import draw_tree

    group = view.group
    notes: dict[str, str] = {}
    with_names = task_namer(group)
    for name, run_id in group.runs.items():
        notes[name] = f"{with_names(_text(view.rows.get(name)))}  {run_id}"
    for line in draw_tree(group.after, notes):
        out.text(line)
    if len(group.runs) > FEW_TASKS:
        out.note(f"{format_count(len(group.runs), group.noun)}: {count_states(view)}")


def task_namer(group: RunGroup) -> Callable[[str], str]:
    """Return a function that replaces the run IDs in a text by the names of their tasks."""
    names = {run_id: name for name, run_id in group.runs.items()}
    return lambda text: _ID.sub(lambda found: names.get(found[0], found[0]), text)


def count_states(view: GroupView, only: Sequence[str] = ()) -> str:
    """Return `97 succeeded, 2 failed`, the most frequent state first; or `only` these states."""
    rows = (view.rows.get(name) for name in view.group.runs)
    counts = Counter("deleted" if row is None else row.shown_state for row in rows)
    states = [state for state in only if counts[state]] if only else dict(counts.most_common())
    return ", ".join(f"{counts[state]} {state}" for state in states)


_BAR_STATES = ("failed", "lost", "unreadable", "running", "preparing")  # counted next to the bar
_COUNT_EVERY_S = 15.0  # without a terminal


def watch_group(out: Output, connection: Connection, group: RunGroup) -> GroupView:
    """Show state changes until all tasks have ended, and return the last view.

    Raises:
        typer.Exit: 130 after Ctrl-C; the runs continue.
    """
    from runner.flows.sweeps.groups import group_views

    group_id = group.group_id
    if group.trials:
        name = f"sweep {group_id}, {format_count(len(group.trials), 'trial')}"
        runs = "trials"
        show = f"to compare them: runner sweep show {group_id}"
        stop = f"to stop them: runner sweep stop {group_id}"
    else:
        name, runs = f"group {group_id}", "runs"
        show = f"to show them: runner show {group_id}"
        stop = f"to cancel them: runner cancel {group_id}"
    out.note(f"{name}   (Ctrl-C leaves it running)")
    last: GroupView | None = None
    try:
        with out.stages() as stages:
            display = GroupDisplay(out, stages, group)
            for last in filter(None, group_views(connection, group)):
                display.show(last)
    except KeyboardInterrupt:
        out.note(f"detached; the {runs} continue")
        out.note(f"to follow them again: runner attach {group_id}")
        out.note(show)
        out.note(stop)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if last is None:
        raise AssertionError("no view of the group")
    return last


def follow_group(out: Output, connection: Connection, group: RunGroup) -> None:
    """Watch a group to its end. Raise typer.Exit: 1 unless all succeeded, 130 after Ctrl-C."""
    from runner.core.states import RunState

    view = watch_group(out, connection, group)
    show_group(out, view)
    states = {row.status.state for row in view.rows.values() if row.status}
    if states != {RunState.SUCCEEDED}:
        raise typer.Exit(ExitCode.RUN_FAILED)


class GroupDisplay:
    """Prints the state changes of a group."""

    def __init__(
        self,
        out: Output,
        stages: StageDisplay,
        group: RunGroup,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out
        self._stages = stages
        self._group = group
        self._by_name = task_namer(group)
        self._printed: dict[str, str] = {}
        self._clock = clock
        self._stuck = ""
        self._counted = ("", clock())

    def show(self, view: GroupView) -> None:
        """Print the changes since the last view."""
        if view.taken_out:
            self._out.warning(view.taken_out)
        few = len(self._group.runs) <= FEW_TASKS
        for name in self._group.runs:
            row = view.rows.get(name)
            if row is None or not (few or _has_failed(row)):
                continue
            text = _text(row)
            if self._printed.get(name) != text:
                self._out.note(f"{name}  {self._by_name(text)}")
                self._printed[name] = text
        if not few:
            self._count(view)
            self._report_stuck(view)

    def _report_stuck(self, view: GroupView) -> None:
        """Print, once, why tasks wait for an action of the user."""
        waiting = [row.status for row in view.rows.values() if row.status and row.status.stuck]
        cause = waiting[0].cause if waiting else None
        text = f"{cause.label}: {cause.message}   fix: {cause.fix}" if cause else ""
        if text and text != self._stuck:
            self._out.note(text)
        self._stuck = text

    def _count(self, view: GroupView) -> None:
        text, total = count_states(view), len(self._group.runs)
        ended = sum(
            row is None or row.is_over for row in (view.rows.get(name) for name in self._group.runs)
        )
        if is_terminal(sys.stderr):
            state = "end" if ended == total else "progress"
            text = text if ended == total else count_states(view, _BAR_STATES)
            self._stages.on_progress(Progress(f"{self._group.noun}s", state, text, ended, total))
            return
        before, at = self._counted
        due = not before or ended == total or self._clock() - at >= _COUNT_EVERY_S
        if text != before and due:
            self._out.note(f"{ended} of {total} {self._group.noun}s ended: {text}")
            self._counted = (text, self._clock())


def _has_failed(row: RunRow) -> bool:
    """Return True for a failed run, but not for a run that is blocked by one."""
    return row.state in ("failed", "lost", "unreadable")


def _text(row: RunRow | None) -> str:
    """Return the state of a task's run, and why."""
    if row is None:
        return "deleted: its run record was deleted from storage"
    if row.status is None:
        return f"unreadable: {row.problem}"
    fix = f"   fix: {row.status.fix}" if row.status.stuck and row.status.fix else ""
    return f"{replace(row.status, reason=row.failure).text}{fix}"
