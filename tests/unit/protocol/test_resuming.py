"""The order of checkpoints after failures to load them, and when a run starts over."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.protocol.checkpoints import (
    MAX_RESUME_FAILURES,
    CheckpointManifest,
    ResumeFailure,
    ResumeHistory,
    load_resume_history,
    newest_loadable,
)

RUN, OTHER = "run", "other"


def failed(attempt: int, checkpoint: int, kind: str = "E 1", run_id: str = RUN) -> ResumeFailure:
    return ResumeFailure(attempt, run_id, checkpoint, 1, kind, f"{kind}: no")


def saved(number: int, attempt: int = 1) -> CheckpointManifest:
    return CheckpointManifest(number, attempt, "", (), {}, ())


def order(*failures: ResumeFailure, own: Sequence[CheckpointManifest], other: int = 0) -> list[str]:
    found = [(RUN, each) for each in own]
    found += [(OTHER, saved(number)) for number in range(1, other + 1)]
    ordered = ResumeHistory(RUN, failures).order(found)
    return [f"{'' if run_id == RUN else 'other '}{each.number}" for run_id, each in ordered]


def test_older_checkpoints_come_before_one_that_failed() -> None:
    three = [saved(1), saved(2), saved(3)]
    assert order(own=three) == ["3", "2", "1"]
    assert order(failed(2, 3), own=three) == ["2", "1", "3"]
    assert order(failed(2, 3), failed(3, 2, "F 1"), own=three) == ["1", "3", "2"]
    assert order(failed(2, 1), own=[saved(1)]) == ["1"]


def test_checkpoints_of_the_resumed_run_come_after_own_ones() -> None:
    assert order(failed(2, 2), own=[saved(1), saved(2)], other=2) == [
        "1",
        "other 2",
        "other 1",
        "2",
    ]
    assert order(failed(1, 2, run_id=OTHER), own=[], other=2) == ["other 1", "other 2"]


def test_same_failure_twice_leaves_only_later_checkpoints() -> None:
    twice = (failed(2, 2), failed(3, 1))
    assert order(*twice, own=[saved(1), saved(2)], other=2) == []
    assert order(*twice, own=[saved(1), saved(3, attempt=4)], other=2) == ["3"]
    history = ResumeHistory(RUN, twice)
    assert (history.fresh_after, history.is_kept(saved(7)), history.is_kept(saved(3, 4))) == (
        3, True, False,
    )  # fmt: skip
    assert history.describe() == "checkpoint 2 and checkpoint 1 could not be loaded: E 1: no"
    assert newest_loadable(history, [saved(2), saved(1)]) is None


def test_different_failures_do_not_start_over() -> None:
    history = ResumeHistory(RUN, (failed(2, 2), failed(3, 1, "F 1")))
    assert (history.fresh_after, history.is_fresh) == (0, False)
    assert newest_loadable(history, [saved(2), saved(1)]) is None


def test_failures_after_a_fresh_start_are_counted_anew() -> None:
    first = (failed(2, 2), failed(3, 1))
    assert order(*first, failed(5, 4), own=[saved(4, 4), saved(3, 4)]) == ["3", "4"]
    again = ResumeHistory(RUN, (*first, failed(5, 4), failed(6, 3)))
    assert again.fresh_after == 6
    assert again.describe().startswith("checkpoint 4 and checkpoint 3")
    assert not again.is_exhausted


@given(st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["A 1", "B 1", "C 2"])), max_size=9))
def test_history_keeps_failed_checkpoints_and_ends(drawn: list[tuple[int, str]]) -> None:
    failures = tuple(failed(n + 2, number, kind) for n, (number, kind) in enumerate(drawn))
    history = ResumeHistory(RUN, failures)
    own = [saved(number) for number in range(1, 6)]
    assert all(history.is_kept(saved(number)) for number, _ in drawn)
    left = history.order((RUN, each) for each in own)
    assert bool(left) != history.is_fresh  # all of them are of attempt 1
    loadable = newest_loadable(history, own)
    assert loadable is None or (RUN, loadable) == left[0]
    assert history.is_exhausted == (len(drawn) >= MAX_RESUME_FAILURES)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"resume_failed": 1}', b'{"resume_failed": {"run_id": "r"}}']
)
def test_damaged_record_counts_as_no_failure(body: bytes) -> None:
    assert load_resume_history(lambda _: body, RUN, [1]).failures == ()


def test_history_is_read_from_the_ends_of_attempts() -> None:
    ends = {
        f"{RUN}/attempts/{each.attempt}/end.json": json.dumps(
            {"attempt": each.attempt, "resume_failed": each.to_json()}
        ).encode()
        for each in (failed(2, 2), failed(4, 1, "F 1", OTHER))
    }
    history = load_resume_history(ends.get, RUN, range(1, 6))
    assert history.failures == (failed(2, 2), failed(4, 1, "F 1", OTHER))
    assert (
        history.describe() == "checkpoint 2 and checkpoint 1 of other could not be loaded: F 1: no"
    )
