"""What a run measured, as an object for each metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.core.metrics import Goal
    from runner.core.run_record import RunRecord
    from runner.flows.session import Session


@dataclass(frozen=True, slots=True, repr=False)
class Metric:
    """One metric: every value with its step, the last and the best of them."""

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    last: float
    best: float | None
    best_step: int | None

    def __repr__(self) -> str:
        best = "" if self.best is None else f", best={self.best:g} at step {self.best_step}"
        return f"<Metric {self.name}: last={self.last:g}{best}, {len(self.values)} points>"


def metrics_of(session: Session, record: RunRecord) -> dict[str, Metric]:
    """Every metric by name; a step that a later attempt went over again is that attempt's."""
    from runner.core.export import final_points
    from runner.core.metrics import summarise
    from runner.flows.run_documents import load_points

    points = load_points(session.connection, record)
    goals: dict[str, Goal] = {}
    if record.primary_metric:
        goals[record.primary_metric] = record.goal
    steps: dict[str, list[int]] = {}
    values: dict[str, list[float]] = {}
    for point in final_points(points):
        steps.setdefault(point.name, []).append(point.step)
        values.setdefault(point.name, []).append(point.value)
    return {
        found.name: Metric(
            found.name,
            tuple(steps[found.name]),
            tuple(values[found.name]),
            found.last,
            found.best,
            found.best_step,
        )
        for found in summarise(points, goals)
    }
