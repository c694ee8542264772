"""The report of a rehearsal: the attempt that continues one whose node was evicted."""

from __future__ import annotations

from runner.flows.runs.attempts import AttemptRow
from runner.flows.runs.rehearsal import find_followers


def row(attempt: int, not_loaded: str = "") -> AttemptRow:
    return AttemptRow(
        attempt=attempt, node="n", spot=True, started="", ended="", why="", exit_code=None,
        step=None, took_s=None, not_loaded=not_loaded,
    )  # fmt: skip


def test_attempts_that_could_not_load_a_checkpoint_do_not_count() -> None:
    rows = [row(1), row(2, "checkpoint 3: x"), row(3, "checkpoint 2: x"), row(4), row(5)]
    followers = find_followers(rows)
    assert {number: each.attempt for number, each in followers.items() if number} == {
        1: 4, 2: 4, 3: 4, 4: 5,
    }  # fmt: skip


def test_last_attempt_that_could_not_load_counts_without_another() -> None:
    rows = [row(1), row(2, "checkpoint 3: x"), row(3, "checkpoint 3: x")]
    assert [find_followers(rows)[number].attempt for number in (1, 2)] == [3, 3]
