"""The display of a watched run without a terminal."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from runner.cli.commands.runs.attach import show_rehearsal
from runner.cli.ui.output import Output, format_stages
from runner.cli.ui.run_display import NOTHING_KEPT, RunDisplay, output_pairs, took_pairs
from runner.cli.ui.terminal import StageDisplay
from runner.core.states import RunState, RunStatus, describe_exit
from runner.flows.runs.events import (
    ContactLost,
    LogSkipped,
    LogStream,
    LogText,
    MetricSeen,
    RunEnded,
    RunMoved,
    StageReported,
    StatusChanged,
    WatchEvent,
)
from runner.flows.runs.rehearsal import RehearsalReport
from runner.protocol.metrics import MetricPoint
from runner.protocol.results import LeftOut, OutputFile, RunResult, StageEvent, parse_result
from runner.protocol.run_spec import parse_run

GOLDEN = Path(__file__).parents[2] / "golden" / "protocol" / "run-plain.json"
Capture = pytest.CaptureFixture[str]
ENDED = RunEnded(RunStatus(RunState.SUCCEEDED), None)


@pytest.fixture
def display() -> RunDisplay:
    return RunDisplay(StageDisplay(), "run-1")


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
    display = RunDisplay(StageDisplay(), "run-1", log_to_stderr=True)
    display.show(LogText("stdout", "hello\n"))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "hello\n")


class NarrowTerminal(io.StringIO):
    def isatty(self) -> bool:
        return True


LONG = "the script saves no checkpoints, so that an eviction starts it again"


@pytest.mark.parametrize(
    "event",
    [
        stage("checkpoint", "failed", LONG),
        stage("notice", "start", LONG),
        ContactLost(LONG),
        RunMoved("a", "b", LONG),
    ],
)
def test_message_of_a_run_is_not_cut_inside_a_word(
    monkeypatch: pytest.MonkeyPatch, event: WatchEvent
) -> None:
    shown = NarrowTerminal()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "30")
    view = StageDisplay()
    display = RunDisplay(view, "run-1")
    display.show(LogText("stderr", f"{LONG}\n"))
    display.show(event)
    view.log(f"  fix: {LONG}", error=True)
    script, *messages = shown.getvalue().splitlines()
    assert script == LONG, "a line of the script stays as it is"
    assert max(map(len, messages)) <= 30
    assert " ".join(" ".join(messages).split()).count(LONG) == 2


def test_boot_stage_lasts_from_queued_to_first_stage(display: RunDisplay, capsys: Capture) -> None:
    display.show(StatusChanged(RunStatus(RunState.QUEUED, "waiting for a node"), 0))
    display.show(stage("code", "start", "unpacking"))
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines] == ["boot", "boot", "code"]
    assert "waiting for a node" in lines[0]


def test_long_stage_prints_its_progress_without_a_terminal(
    display: RunDisplay, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def uploaded(done: float) -> StageReported:
        event = StageEvent(1, "t", "export", "progress", "uploading outputs", done, 5e9, "bytes")
        return StageReported(event)

    display.show(stage("export", "start", "uploading outputs"))
    display.show(uploaded(1e9))
    monkeypatch.setattr("runner.cli.ui.terminal._COUNT_EVERY_S", 0.0)
    display.show(uploaded(2e9))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2, "the first one comes too soon"
    assert lines[1].endswith("uploading outputs  2.0 GB of 5.0 GB")


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


def test_short_stages_are_omitted() -> None:
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


def result(*files: OutputFile, status: str = "succeeded", **more: object) -> RunResult:
    outputs = [file.to_json() for file in files]
    document = {"format": 1, "status": status, "outputs": outputs, **more}
    return parse_result(json.dumps(document).encode(), "run-1")


def test_outputs_name_their_destinations() -> None:
    given, beside = OutputFile("a", 1, ""), OutputFile("model.h5", 2000, "", "code")
    assert output_pairs(result(given)) == {"outputs": "a (1 B)"}
    assert output_pairs(result(given, beside, OutputFile("o/data/m", 5, "", "/data/m"))) == {
        "outputs": "a, model.h5, o/data/m (2.0 kB)",
        "written to": "$RUNNER_OUTPUT_DIR (1), the folder of the script (1), /data/m (1)",
    }


def test_partial_and_earlier_outputs_are_labelled() -> None:
    earlier = OutputFile("epoch-1.pt", 5, "", "code", attempt=1)
    assert output_pairs(result(earlier, status="failed", partial=True)) == {
        "outputs": "partial: epoch-1.pt (5 B)",
        "written to": "the folder of the script (1), attempt 1 (1)",
    }


def test_success_without_outputs_is_reported_unlike_a_failure() -> None:
    assert output_pairs(result()) == {"outputs": NOTHING_KEPT}
    assert output_pairs(result(status="failed")) == {}


def test_omitted_files_are_listed_with_the_flag_that_keeps_them() -> None:
    left_out = [LeftOut("data/", 5_000_000, "data", 7).to_json()]
    pairs = output_pairs(result(left_out=left_out))
    assert pairs["not kept"] == "data/ (7 files, 5.0 MB): looks like downloaded data"
    assert "--keep 'data'" in pairs["to keep it"]
    unreadable = [LeftOut("a\\b", 1, "unreadable").to_json()]
    assert "to keep it" not in output_pairs(result(left_out=unreadable))


@pytest.mark.parametrize(
    ("missed", "text"),
    [
        (
            (9.4, 30.0),
            "its notice comes 9.4 s after the start of the attempt, and the eviction 30 s",
        ),
        ((90.0, 0.0), "before its first eviction, 1 min 30 s after the start of the attempt"),
    ],
)
def test_rehearsal_without_an_eviction_names_its_planned_time(
    missed: tuple[float, float], text: str, capsys: Capture
) -> None:
    spec = "seed=7,mtbf=6s"
    run = parse_run(GOLDEN.read_bytes(), "cats-20261121-143005-aaaa")
    show_rehearsal(Output(), run, RehearsalReport(spec, (), missed))
    assert text in capsys.readouterr().err


def test_duration_is_that_of_all_attempts_with_the_last_one_beside_it() -> None:
    began = datetime(2026, 11, 23, 12, tzinfo=UTC)
    result = RunResult(
        status="succeeded", attempt=2, exit_code=0, step=None, code=None, message=None,
        started=began + timedelta(seconds=20), ended=began + timedelta(seconds=50),
        stages_s={"command": 29.0}, metrics={}, outputs=(),
    )  # fmt: skip
    assert took_pairs(result, began) == {
        "took": "50 s in 2 attempts",
        "last attempt": "30 s, of which command 29 s",
    }
    once = replace(result, attempt=1)
    assert took_pairs(once, began) == {"took": "30 s", "of which": "command 29 s"}
