"""Ctrl-C at the moments between two stages: what is said is what is true."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.cli.main import main
from runner.cli.ui.terminal import StageView
from runner.core.progress import Progress
from tests.e2e.conftest import Cli, known_runs, until

Press = Callable[[str, str], int]


@pytest.fixture
def press(cli: Cli, script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Press:
    """Run `runner train` in this process and press Ctrl-C where it says so."""
    monkeypatch.setenv("RUNNER_HOME", str(cli.home))
    monkeypatch.chdir(cli.cwd)
    folder = str(script("print('went on')"))

    def at(stage: str, state: str) -> int:
        draw = StageView.on_progress

        def on_progress(view: StageView, progress: Progress) -> None:
            draw(view, progress)
            if (progress.stage, progress.state) == (stage, state):
                raise KeyboardInterrupt

        monkeypatch.setattr(StageView, "on_progress", on_progress)
        return main(["train", folder])

    return at


def test_ctrl_c_right_after_the_submission_tells_how_to_come_back(
    cli: Cli, press: Press, capsys: pytest.CaptureFixture[str]
) -> None:
    assert press("submit", "end") == 130
    said = capsys.readouterr().err
    assert "was not submitted" not in said
    found = re.search(r"To attach: runner attach (\S+)", said)
    assert found, said
    until(lambda: cli.json("show", found[1])["state"] == "succeeded")


def test_ctrl_c_before_the_submission_leaves_nothing(
    cli: Cli, press: Press, capsys: pytest.CaptureFixture[str]
) -> None:
    before = known_runs(cli)
    assert press("submit", "start") == 130
    assert "was not submitted" in capsys.readouterr().err
    assert known_runs(cli) == before


def test_ctrl_c_right_before_watching_tells_how_to_come_back(
    cli: Cli,
    press: Press,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = StageView.log

    def interrupted(view: StageView, line: str, *, error: bool = False) -> None:
        if line.startswith("run "):
            raise KeyboardInterrupt
        log(view, line, error=error)

    monkeypatch.setattr(StageView, "log", interrupted)
    assert press("no such stage", "end") == 130
    assert "To attach: runner attach" in capsys.readouterr().err
