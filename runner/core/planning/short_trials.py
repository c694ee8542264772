"""Advice for a sweep of short trials, from the times of those that have ended."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from runner.protocol.task import MAX_TASK_TRIALS

_LEAST_TRIALS = 10  # fewer do not tell the time between two trials
_SHORT_S = 10.0
_WORTH = 0.25  # of the time of a trial: less between two trials is not worth advice
_SHARE = 0.1  # of the time of a trial that its part of the start of the task should take at most
_TASKS_PER_SLOT = 2  # at least, so that no slot waits for the last task of another one


@dataclass(frozen=True, slots=True)
class ShortTrials:
    """How long trials took, and what passed in a slot before the next one: medians in seconds."""

    took_s: float
    between_s: float
    trials_per_task: int

    @property
    def text(self) -> str:
        """The advice in one line."""
        return (
            f"short trials: they took {self.took_s:.2g} s each, and {self.between_s:.2g} s passed "
            f"before the next one in a slot; with --trials-per-task {self.trials_per_task}, fewer "
            "tasks start"
        )


def advise_trials_per_task(spans: Iterable[tuple[datetime, datetime]]) -> ShortTrials | None:
    """Return the advice for trials that had a task each, by their start and end.

    Return None if they are few or long, or if little time passed between them.
    """
    ordered = sorted(spans)
    if len(ordered) < _LEAST_TRIALS:
        return None
    free: list[datetime] = []  # when the last trial of each idle slot ended
    busy: list[datetime] = []
    between: list[float] = []
    slots = 0
    for start, end in ordered:
        free += (each for each in busy if each <= start)
        busy = [each for each in busy if each > start]
        if free:
            latest = max(free)
            free.remove(latest)
            between.append((start - latest).total_seconds())
        busy.append(end)
        slots = max(slots, len(busy) + len(free))
    took_s = statistics.median((end - start).total_seconds() for start, end in ordered)
    between_s = statistics.median(between) if between else 0.0
    if not 0 < took_s <= _SHORT_S or between_s < _WORTH * took_s:
        return None
    most = min(MAX_TASK_TRIALS, len(ordered) // (_TASKS_PER_SLOT * slots))
    best = min(math.ceil(between_s / (_SHARE * took_s)), most)
    return ShortTrials(took_s, between_s, best) if best > 1 else None
