"""The time of a run as spans."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.flows.runs.stages import StageSpan, divide
from runner.protocol.results import StageEvent
from runner.protocol.usage import AttemptUsage

START = datetime(2026, 11, 29, 2, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def ms(seconds: float) -> int:
    return round(at(seconds).timestamp() * 1000)


def usage(attempt: int, **times: float) -> AttemptUsage:
    found: Any = {name: ms(seconds) for name, seconds in times.items()}
    return AttemptUsage(attempt, 0, "node", **found)


def event(stage: str, state: Any, seconds: float, message: str = "") -> StageEvent:
    return StageEvent(1, at(seconds).isoformat(), stage, state, message)


def text(spans: tuple[StageSpan, ...]) -> list[tuple[str, int, float, float | None]]:
    return [
        (
            span.stage,
            span.attempt,
            (span.start - START).total_seconds(),
            None if span.end is None else (span.end - START).total_seconds(),
        )
        for span in spans
    ]


def test_run_that_waits_has_one_open_span() -> None:
    spans = divide(START, [], [], is_over=False)
    assert text(spans) == [("wait", 0, 0, None)]
    assert spans[0].took_s(at(30)) == 30


def test_boot_of_a_node_counts_only_if_the_run_waited_for_it() -> None:
    fresh = usage(1, booted=10, started=40, ended=60)
    assert text(divide(START, [fresh], [[]], is_over=True)) == [
        ("wait", 1, 0, 10),
        ("boot", 1, 10, 40),
    ]
    old = usage(1, booted=-500, started=40, ended=60)
    assert text(divide(START, [old], [[]], is_over=True)) == [("wait", 1, 0, 40)]


def test_stages_have_start_end_and_failure() -> None:
    events = [
        event("environment", "start", 1),
        event("environment", "end", 4, "12 packages"),
        event("command", "start", 4),
        event("checkpoint", "end", 5),
        event("command", "failed", 9, "exit code 1"),
    ]
    spans = divide(START, [usage(1, started=0, command=4, ended=9)], [events], is_over=True)
    assert text(spans) == [("environment", 1, 1, 4), ("command", 1, 4, 9)]
    assert [(span.failed, span.message) for span in spans] == [
        (False, "12 packages"),
        (True, "exit code 1"),
    ]


def test_running_stage_is_open_until_now() -> None:
    spans = divide(START, [usage(1, started=0)], [[event("command", "start", 2)]], is_over=False)
    assert text(spans) == [("command", 1, 2, None)]


def test_evicted_attempt_shows_its_lost_work_and_the_next_wait() -> None:
    first = usage(1, started=0, command=2, ended=20, kept=12)
    second = usage(2, started=50, command=52, ended=70)
    events = [[event("command", "start", 2)], [event("command", "start", 52)]]
    assert text(divide(START, [first, second], events, is_over=True)) == [
        ("command", 1, 2, 20),
        ("lost work", 1, 12, 20),
        ("wait", 2, 20, 50),
        ("command", 2, 52, 70),
    ]


def test_attempt_without_an_end_is_shown_until_its_last_sign() -> None:
    lost = usage(1, started=0, command=2, seen=15)
    again = usage(2, started=40, ended=60)
    spans = divide(START, [lost, again], [[event("command", "start", 2)], []], is_over=True)
    assert ("command", 1, 2, 15) in text(spans)
    assert ("wait", 2, 15, 40) in text(spans)


@pytest.mark.parametrize(
    "damaged",
    [
        [StageEvent(1, "yesterday", "command", "start", "")],
        [event("command", "end", 3)],
        [StageEvent(1, "", "", "start", "")],
    ],
)
def test_damaged_events_are_left_out(damaged: list[StageEvent]) -> None:
    assert divide(START, [usage(1, started=0, ended=5)], [damaged], is_over=True) == ()


def test_attempt_whose_start_is_damaged_is_left_out() -> None:
    assert divide(START, [AttemptUsage(1, 0, "")], [[]], is_over=True) == ()


def test_evicted_attempt_shows_its_end_and_no_failure() -> None:
    events = [
        event("command", "start", 4),
        event("checkpoint", "progress", 6, "checkpoint 1, 5.0 MB, after 0.2 s"),
        event("command", "failed", 9, "exit code -15"),
    ]
    evicted = usage(1, started=0, command=4, kept=6, ended=9, node_ends=10)
    spans = divide(START, [evicted, usage(2, started=12)], [events, []], is_over=False)
    assert text(spans) == [
        ("command", 1, 4, 9),
        ("checkpoint", 1, 6, 6),
        ("lost work", 1, 6, 9),
        ("evicted", 1, 9, 9),
        ("wait", 2, 9, 12),
    ]
    assert not any(span.failed for span in spans)


def test_upload_of_a_checkpoint_is_no_checkpoint() -> None:
    uploading = StageEvent(1, at(5).isoformat(), "checkpoint", "progress", "", 1, 9)
    failed = event("checkpoint", "failed", 6, "storage refuses it")
    spans = divide(START, [usage(1, started=0)], [[uploading, failed]], is_over=False)
    assert text(spans) == []


def test_node_that_is_kept_after_a_failure_is_a_span() -> None:
    kept = usage(1, started=0, ended=60, held_by=600)
    spans = [
        text(divide(START, [each], [[]], is_over=True, is_kept=is_kept))[-1]
        for each, is_kept in ((kept, True), (kept, False), (replace(kept, held=ms(90)), False))
    ]
    assert spans == [
        ("node kept", 1, 60, None),
        ("node kept", 1, 60, 600),
        ("node kept", 1, 60, 90),
    ]
