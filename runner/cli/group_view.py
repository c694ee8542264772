"""How a group of runs is shown: a tree, with the state of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runner.cli.output import Output, OutputFormat

if TYPE_CHECKING:
    from runner.flows.groups import GroupView
    from runner.flows.history import RunRow


def show_group(out: Output, view: GroupView) -> None:
    """Print the tree, or the same as data."""
    from runner.core.dag import draw

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
    notes: dict[str, str] = {}
    for name, run_id in group.runs.items():
        state = _state(view.rows.get(name))
        reason = f": {state['reason']}" if state["reason"] else ""
        notes[name] = f"{state['state']}{reason}  {run_id}"
    for line in draw(group.after, notes):
        out.text(line)


def _state(row: RunRow | None) -> dict[str, str]:
    if row is None:
        return {"state": "deleted", "reason": "its description is gone from storage"}
    if row.status is None:
        return {"state": "unreadable", "reason": row.problem}
    return {"state": row.status.state.value, "reason": row.status.reason}
