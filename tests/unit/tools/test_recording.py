"""The recording of a command in a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.source_tree import ROOT
from tools import recording

SCRIPT = "import os, sys; print(sys.stdout.isatty(), os.get_terminal_size().columns, flush=True)"


def test_command_runs_in_a_terminal_of_the_given_size() -> None:
    printed = "".join(text for _, text in recording.run([sys.executable, "-c", SCRIPT]))
    assert printed == f"True {recording.COLUMNS}\r\n"


def test_failed_command_is_not_recorded() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        list(recording.run([sys.executable, "-c", "raise SystemExit(3)"]))


def test_pauses_are_shortened_and_the_order_is_kept() -> None:
    events = [(10.0, "a"), (10.1, "b"), (90.0, "c")]
    assert recording.shortened(events) == [
        (pytest.approx(second), text) for second, text in ((1.0, "a"), (1.1, "b"), (2.1, "c"))
    ]
    many = [(second * 1.0, "x") for second in range(100)]
    assert recording.shortened(many)[-1][0] == pytest.approx(recording.LONGEST_S)


def test_recording_has_no_paths_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_HOME", "/opt/state")
    printed = f"{ROOT}/outputs {Path.home()}/x /opt/state/local\r\n"
    lines = recording.cast("make train", iter([(0.0, printed)])).splitlines()
    assert json.loads(lines[0])["version"] == 2
    text = "".join(json.loads(line)[2] for line in lines[1:])
    assert "make train\r\nrunner/outputs ~/x ~/.local/share/runner/local\r\n" in text


def test_recording_in_the_readme_is_of_a_run_that_succeeded() -> None:
    picture = (ROOT / "docs/make-train.svg").read_text(encoding="utf-8")
    assert "docs/make-train.svg" in (ROOT / "README.md").read_text(encoding="utf-8")
    for shown in ("make train", "succeeded", "test_accuracy", "registered mnist@1"):
        assert shown in picture
    assert str(ROOT) not in picture
    assert len(picture) < 200_000
