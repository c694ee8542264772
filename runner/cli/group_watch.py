"""The tasks of a group while they run: a line for each change of a few, a count of many."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from runner.cli.group_view import FEW_TASKS, count_states, task_namer
from runner.cli.output import Output, StageView
from runner.cli.terminal import is_terminal
from runner.core.progress import Progress

if TYPE_CHECKING:
    from runner.azure.credentials import Connection
    from runner.core.group import Group
    from runner.core.settings import Settings
    from runner.flows.groups import GroupView
    from runner.flows.history import RunRow

_SHORTLY = ("failed", "lost", "unreadable", "running", "preparing")  # beside the bar
_COUNT_EVERY_S = 15.0  # where no bar can be drawn


def watch_group(out: Output, connection: Connection, settings: Settings, group: Group) -> GroupView:
    """Say how the tasks get on, until all have ended. Lost contact is waited out."""
    from runner.flows.group_progress import group_views

    last: GroupView | None = None
    with out.stages() as stages:
        shown = GroupDisplay(out, stages, group)
        for last in filter(None, group_views(connection, settings.home, group)):
            shown.show(last)
    if last is None:
        raise AssertionError("the views end with one in which all have ended")
    return last


class GroupDisplay:
    """What was said of each task already."""

    def __init__(
        self,
        out: Output,
        stages: StageView,
        group: Group,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._out = out
        self._stages = stages
        self._group = group
        self._by_name = task_namer(group)
        self._said: dict[str, str] = {}
        self._clock = clock
        self._counted = ("", clock())

    def show(self, view: GroupView) -> None:
        """Say what is new since the view before."""
        few = len(self._group.runs) <= FEW_TASKS
        for name in self._group.runs:
            row = view.rows.get(name)
            if row is None or not (few or _ended_badly(row)):
                continue
            text = _text(row)
            if self._said.get(name) != text:
                self._out.note(f"{name}  {self._by_name(text)}")
                self._said[name] = text
        if not few:
            self._count(view)

    def _count(self, view: GroupView) -> None:
        text, total = count_states(view), len(self._group.runs)
        ended = sum(
            row is None or row.status is None or row.status.state.final
            for row in (view.rows.get(name) for name in self._group.runs)
        )
        if is_terminal(sys.stderr):
            state = "end" if ended == total else "progress"
            text = text if ended == total else count_states(view, _SHORTLY)
            self._stages.on_progress(Progress("tasks", state, text, ended, total))
            return
        before, at = self._counted
        due = not before or ended == total or self._clock() - at >= _COUNT_EVERY_S
        if text != before and due:
            self._out.note(f"{ended} of {total} tasks ended: {text}")
            self._counted = (text, self._clock())


def _ended_badly(row: RunRow) -> bool:
    """Failed by itself: those that are blocked by it are counted."""
    return row.status is None or row.status.state.value in ("failed", "lost")


def _text(row: RunRow) -> str:
    if row.status is None:
        return f"unreadable: {row.problem}"
    state, reason = row.status.state.value, row.status.reason
    return f"{state}: {reason}" if reason else state
