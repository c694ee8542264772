"""The job manager task: an ordinary task that is added with its job and may end it."""

from __future__ import annotations

from datetime import datetime

from batch_emulator.account import Account
from batch_emulator.model import Job, Json, Wants
from batch_emulator.transitions import admission

_NOT_OF_TASKS = ("killJobOnCompletion", "runExclusive", "allowLowPriorityNode")


def add(account: Account, job: Job, now: datetime) -> None:
    """Add the job manager task, the first in the queue, when the job has one (docs)."""
    spec: Json | None = job.spec.get("jobManagerTask")
    if spec is None:
        return
    wants = Wants(
        manager=True,
        exclusive=spec.get("runExclusive") is not False,
        dedicated=spec.get("allowLowPriorityNode") is False,
        ends_job=spec.get("killJobOnCompletion") is not False,
    )
    body = {name: value for name, value in spec.items() if name not in _NOT_OF_TASKS}
    admission.add(account, job, body, now, wants)
