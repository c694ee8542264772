"""The attempts of a run as a table: where each ran, for how long, why it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from runner.azure.blobs import in_parallel
from runner.azure.credentials import Connection
from runner.core.run_record import AttemptEnd, AttemptStart, RunRecord
from runner.flows.resumes import Resumed, load_resumes
from runner.flows.run_documents import load_attempt_ends, load_attempts, runs_container
from runner.flows.run_view import RunView


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt. `why` is succeeded, failed, terminated, lost, cancelled or running.

    `others` are the nodes of rank 1 and up, of a run over several; None where one has not begun.
    `message` says which of them was lost, where that ended the attempt.
    """

    attempt: int
    node: str
    spot: bool | None
    started: str
    ended: str | None
    why: str
    exit_code: int | None
    step: str | None
    took_s: float | None
    resumed: Resumed | None = None
    others: tuple[str | None, ...] = ()
    message: str | None = None


def list_attempts(connection: Connection, view: RunView) -> tuple[AttemptRow, ...]:
    """All attempts that began, in order."""
    if not view.attempts:
        return ()
    found = load_attempt_ends(runs_container(connection), view.record.run_id)
    ends = {end.attempt: end for end in found}
    resumes = load_resumes(runs_container(connection), view.record.run_id)
    last = view.attempts[-1].attempt
    rows = (_row(view, start, ends.get(start.attempt), last) for start in view.attempts)
    others = _others(connection, view.record)
    return tuple(
        replace(row, resumed=resumes.get(row.attempt), others=others(row.attempt)) for row in rows
    )


def _others(connection: Connection, record: RunRecord) -> Callable[[int], tuple[str | None, ...]]:
    container, ranks = runs_container(connection), range(1, record.nodes)
    found = in_parallel(lambda rank: load_attempts(container, record.run_id, rank), ranks)
    by_rank = [{start.attempt: start.node for start in starts} for starts in found]
    if not by_rank:
        return lambda _: ()
    return lambda attempt: tuple(nodes.get(attempt) for nodes in by_rank)


def _row(view: RunView, start: AttemptStart, end: AttemptEnd | None, last: int) -> AttemptRow:
    ended = end.ended if end else None
    if end is None and view.result and view.result.attempt == start.attempt and view.result.ended:
        ended = view.result.ended.isoformat()
    return AttemptRow(
        attempt=start.attempt,
        node=start.node,
        spot=None if start.dedicated is None else not start.dedicated,
        started=start.started,
        ended=ended,
        why=end.why if end else _why_without_end(view, start.attempt, last),
        exit_code=end.exit_code if end else None,
        step=end.step if end else None,
        took_s=_took_s(start.started, ended),
        message=end.message if end else None,
    )


def _why_without_end(view: RunView, attempt: int, last: int) -> str:
    """An agent that could not say why it ended: its node went away, or it is still there."""
    if view.result is not None and view.result.attempt == attempt:
        return view.result.status
    if attempt < last or view.status.state.final or view.status.state.value == "queued":
        return "lost"
    return "running"


def _took_s(started: str, ended: str | None) -> float | None:
    try:
        took = datetime.fromisoformat(ended or "") - datetime.fromisoformat(started)
    except (ValueError, OverflowError, TypeError):
        return None
    return round(took.total_seconds(), 3)
