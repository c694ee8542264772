"""The node that a run keeps after it has failed, with `--keep-node`: until when, and its costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from runner.core.units import format_duration
from runner.protocol.host import format_usd

_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class KeptNode:
    """A node that a failed run keeps now.

    Attributes:
        run_id: The run.
        since: When the run failed.
        until: When the node is released, if nobody does so before.
        micros_per_hour: Its price in micro-dollars: 0 on this machine, None if it is unknown.
    """

    run_id: str
    since: datetime
    until: datetime
    micros_per_hour: int | None = None

    def cost_micros(self, moment: datetime) -> int | None:
        """Return what the node costs from the failure until a moment, or None if unknown.

        Runs that share the node pay a part of it.
        """
        if self.micros_per_hour is None:
            return None
        passed_s = max((min(moment, self.until) - self.since).total_seconds(), 0.0)
        return math.ceil(passed_s * self.micros_per_hour / _HOUR_S)

    def describe(self, now: datetime) -> str:
        """Return `until 22:41 UTC (12 min, 0.03 USD so far, at most 0.08 USD)`."""
        passed = format_duration(round(max((now - self.since).total_seconds(), 0.0)))
        day = f"{self.until:%Y-%m-%d} " if self.until.date() != now.date() else ""
        so_far, most = self.cost_micros(now), self.cost_micros(self.until)
        costs = f", {format_usd(so_far)} so far, at most {format_usd(most)}"
        known = costs if self.micros_per_hour else ""
        return f"until {day}{self.until:%H:%M} UTC ({passed}{known})"

    @property
    def advice(self) -> str:
        """How to use and to release the node."""
        run_id = self.run_id
        return f"`runner ssh {run_id}` opens a shell there, `runner cancel {run_id}` releases it"

    def explain(self, now: datetime) -> str:
        """Return which run keeps the node, until when, and the command that releases it."""
        run_id = self.run_id
        return f"{run_id} keeps its node {self.describe(now)}: `runner cancel {run_id}` releases it"

    def to_json(self, now: datetime) -> dict[str, Any]:
        """Return the document for `-o json`, in micro-dollars."""
        return {
            "since": self.since.isoformat(),
            "until": self.until.isoformat(),
            "cost_micro_usd": self.cost_micros(now),
            "most_micro_usd": self.cost_micros(self.until),
        }
