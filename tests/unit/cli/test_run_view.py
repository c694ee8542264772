"""The display of a watched run without a terminal."""

from __future__ import annotations

import pytest

from runner.cli.ui.output import format_stages
from runner.cli.ui.run_view import RunDisplay
from runner.cli.ui.terminal import StageView
from runner.core.states import RunState, RunStatus, describe_exit
from runner.flows.runs.events import (
    ContactLost,
    LogSkipped,
    LogStream,
    LogText,
    MetricSeen,
    RunEnded,
    StageReported,
    StatusChanged,
)
from runner.protocol.metrics import MetricPoint
from runner.protocol.results import StageEvent

Capture = pytest.CaptureFixture[str]
ENDED = RunEnded(RunStatus(RunState.SUCCEEDED), None)


@pytest.fixture
def display() -> RunDisplay:
    return RunDisplay(StageView(), "run-1")


def stage(name: str, state: str, message: str = "", attempt: int = 1) -> StageReported:
    return StageReported(
        StageEvent(attempt, "t", name, state, message, None, None, None)  # type: ignore[arg-type]
    )


def test_pieces_become_whole_lines_on_their_stream(display: RunDisplay, capsys: Capture) -> None:
    pieces: list[tuple[LogStream, str]] = [
        ("stdout", "epoch 1\nepo"),
        ("stderr", "warn"),
        ("stdout", "ch 2\n"),
        ("stderr", "ing\n"),
    ]
    for stream, text in pieces:
        display.show(LogText(stream, text))
    captured = capsys.readouterr()
    assert captured.out == "epoch 1\nepoch 2\n"
    assert captured.err == "warning\n"


def test_unfinished_last_line_is_shown_at_the_end(display: RunDisplay, capsys: Capture) -> None:
    display.show(LogText("stdout", "no newline"))
    assert capsys.readouterr().out == ""
    assert display.show(ENDED) is ENDED
    assert capsys.readouterr().out == "no newline\n"


def test_redrawn_progress_bar_prints_its_last_state(display: RunDisplay, capsys: Capture) -> None:
    for text in ("  1%\r", " 50%\r", "100%", "\r", "done\n", "windows line\r\n"):
        display.show(LogText("stdout", text))
    assert capsys.readouterr().out == "done\nwindows line\n"


def test_log_goes_to_stderr_if_stdout_is_for_a_document(capsys: Capture) -> None:
    display = RunDisplay(StageView(), "run-1", log_to_stderr=True)
    display.show(LogText("stdout", "hello\n"))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")


def test_boot_stage_lasts_from_queued_to_first_stage(display: RunDisplay, capsys: Capture) -> None:
    display.show(StatusChanged(RunStatus(RunState.QUEUED, "waiting for a node"), 0))
    display.show(stage("code", "start", "unpacking"))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["boot", "boot", "code"]
    assert "waiting for a node" in lines[0]


def test_late_metric_does_not_reopen_the_command_stage(
    display: RunDisplay, capsys: Capture
) -> None:
    display.show(stage("command", "start", "python train.py"))
    display.show(stage("command", "end"))
    capsys.readouterr()
    display.show(MetricSeen(MetricPoint("t", 1, 3, "loss", 0.5)))
    assert capsys.readouterr().err == ""


def test_another_attempt_is_announced(display: RunDisplay, capsys: Capture) -> None:
    display.show(stage("code", "start", "unpacking", attempt=2))
    assert "attempt 2" in capsys.readouterr().err


def test_lost_contact_and_skipped_log_are_explained(display: RunDisplay, capsys: Capture) -> None:
    display.show(ContactLost("connection refused"))
    display.show(LogSkipped("stderr", 2_000_000))
    text = capsys.readouterr().err
    assert "connection refused" in text
    assert "not affected" in text
    assert "skipped 2.0 MB of older stderr; run `runner logs run-1 --stderr` to read it" in text


def test_short_stages_are_left_out() -> None:
    assert format_stages({"code": 0.01, "environment": 2.34, "command": 61.0}) == (
        "environment 2.3 s, command 1 min 01 s"
    )


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (3, "exit code 3"),
        (137, "exit code 137, SIGKILL"),
        (-15, "exit code -15, SIGTERM"),
        (255, "exit code 255"),
    ],
)
def test_signals_are_named(code: int, text: str) -> None:
    assert describe_exit(code) == text
