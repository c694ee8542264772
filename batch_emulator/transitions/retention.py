"""How long the directory of a task that has completed is kept.

Nothing of a finished task stays in memory: when it expires stands in its row, and one timer of the
account says when to look there again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from batch_emulator.account import Account, Sweep
from batch_emulator.model import Json, Task, part
from batch_emulator.values import parse_duration, time_of

_DEFAULT = timedelta(days=7)  # docs: retentionTime; an older page says for ever [X]
NEVER = datetime(9999, 1, 1, tzinfo=UTC)


def expiry(body: Json, end: datetime) -> datetime:
    """When the directory of a task that ended may be deleted."""
    text = part(body, "constraints").get("retentionTime")
    kept = _DEFAULT if text is None else parse_duration(text)
    return NEVER if kept is None else end + kept


def keep(account: Account, task: Task, body: Json, now: datetime) -> None:
    """A task completed: keep what it left on a node for its retention time."""
    if task.place is not None:
        task.expires = expiry(body, now)
        look_at(account, task.expires)


def look_at(account: Account, when: datetime) -> None:
    """Have expired directories deleted then, unless that is planned for earlier."""
    if when < NEVER and (account.sweep_due is None or when < account.sweep_due):
        account.sweep_due = when
        account.at(when, Sweep())


def over(record: Json, body: Json, now: datetime) -> bool:
    """Whether the retention of a task is over, by what its row says."""
    end = record["executionInfo"].get("endTime")
    return record["state"] == "completed" and end is not None and expiry(body, time_of(end)) <= now
