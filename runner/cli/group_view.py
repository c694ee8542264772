"""How a group of runs is shown: a tree, with the state of each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from runner.cli.output import Output, OutputFormat

if TYPE_CHECKING:
    from runner.core.group import Group
    from runner.flows.groups import GroupView
    from runner.flows.history import RunRow

_ID = re.compile(r"[a-z0-9][a-z0-9_-]+")
FEW_TASKS = 12  # so many are read one by one; of more a count is told too


def show_group(out: Output, view: GroupView) -> None:
    """Print the tree, or the same as data."""
    group = view.group
    if out.format is not OutputFormat.TABLE:
        out.record(
            {
                "group": group.group_id,
                "job_id": group.job_id,
                "pool": group.pool,
                "created": group.created.isoformat(),
                "tasks": [
                    {
                        "task": name,
                        "run_id": run_id,
                        "after": list(group.after[name]),
                        **_state(view.rows.get(name)),
                    }
                    for name, run_id in group.runs.items()
                ],
            }
        )
        return
    draw_group(out, view)


def draw_group(out: Output, view: GroupView) -> None:
    """Print the tree for people."""
    from runner.core.dag import draw

    group = view.group
    notes: dict[str, str] = {}
    named = task_namer(group)
    for name, run_id in group.runs.items():
        state = _state(view.rows.get(name))
        reason = f": {named(state['reason'])}" if state["reason"] else ""
        notes[name] = f"{state['state']}{reason}  {run_id}"
    for line in draw(group.after, notes):
        out.text(line)
    if len(group.runs) > FEW_TASKS:
        out.note(f"{len(group.runs)} tasks: {count_states(view)}")


def task_namer(group: Group) -> Callable[[str], str]:
    """Puts tasks, as the file names them, where a reason has the ids of their runs."""
    names = {run_id: name for name, run_id in group.runs.items()}
    return lambda text: _ID.sub(lambda found: names.get(found[0], found[0]), text)


def count_states(view: GroupView, only: Sequence[str] = ()) -> str:
    """`97 succeeded, 2 failed, 1 cancelled`: the most first, or `only` these in their order."""
    counts = Counter(_state(view.rows.get(name))["state"] for name in view.group.runs)
    states = [state for state in only if counts[state]] if only else dict(counts.most_common())
    return ", ".join(f"{counts[state]} {state}" for state in states)


def _state(row: RunRow | None) -> dict[str, str]:
    if row is None:
        return {"state": "deleted", "reason": "its description is gone from storage"}
    if row.status is None:
        return {"state": "unreadable", "reason": row.problem}
    return {"state": row.status.state.value, "reason": row.status.reason}
