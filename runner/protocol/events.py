"""Events of an attempt: the stages it runs through, one JSON object a line in `events.jsonl`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from runner.protocol.encoding import parse_json

StageState = Literal["start", "progress", "end", "failed"]


# Reported beside the stages: what is going on stays the same.
SIDE_STAGES = frozenset({"checkpoint", "metrics", "notice"})


@dataclass(frozen=True, slots=True)
class StageEvent:
    """One line of `events.jsonl`."""

    attempt: int
    time: str
    stage: str
    state: StageState
    message: str
    done: float | None
    total: float | None
    unit: str | None


def parse_event_line(line: str, attempt: int) -> StageEvent | None:
    """One line of `events.jsonl`, or None where it is none."""
    try:
        raw: Any = parse_json(line)
        state = raw["state"]
        if state not in ("start", "progress", "end", "failed"):
            return None
        return StageEvent(
            attempt=attempt,
            time=str(raw.get("time", "")),
            stage=str(raw["stage"]),
            state=state,
            message=str(raw.get("message") or ""),
            done=raw.get("done"),
            total=raw.get("total"),
            unit=raw.get("unit"),
        )
    except (ValueError, OverflowError, KeyError, TypeError, RecursionError):
        return None
