"""What the picture of nodes and time is drawn from."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from batch_emulator.domain.account import Events
from batch_emulator.page.views.timeline import histories

START = datetime(2026, 11, 29, tzinfo=UTC)


def test_tasks_stand_on_the_node_that_ran_them_until_they_ended() -> None:
    events = Events()

    def add(second: int, kind: str, entity: str, value: str, node: str = "") -> None:
        events.add(START + timedelta(seconds=second), kind, entity, value, node=node)

    add(0, "node.state", "p/n1", "creating")
    add(1, "node.state", "p/n1", "idle")
    add(2, "task.state", "j/t", "running", "p/n1")
    add(5, "node.state", "p/n1", "preempted")
    add(5, "task.state", "j/t", "active")
    add(6, "node.state", "p/n2", "idle")
    add(7, "task.state", "j/t", "running", "p/n2")
    found = histories(events.after(0))
    states = [(bar.name, bar.length(START).total_seconds()) for bar in found["p/n1"].states[:2]]
    assert states == [("creating", 1), ("idle", 4)]
    [first] = found["p/n1"].tasks
    assert (first.ending, first.length(START).total_seconds()) == ("active", 3)
    [second] = found["p/n2"].tasks
    assert second.end is None
    now = START + timedelta(seconds=10)
    assert second.length(now).total_seconds() == 3
