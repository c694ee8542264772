"""Ctrl-C between two stages: the message matches the state of the run."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn
from urllib.parse import urlsplit

import pytest
from azure.core.pipeline.transport import RequestsTransport

from runner.azure.auth.credentials import connect
from runner.azure.batch.translate import wire_text
from runner.cli.main import main
from runner.cli.ui.terminal import StageDisplay
from runner.core.progress import Progress
from runner.core.settings import load_settings
from runner.flows.submit import pipeline, submit_group, submit_run
from tests.e2e.conftest import Cli, known_runs, show_ended, until

Press = Callable[[str, str], int]


@pytest.fixture
def folder(cli: Cli, script: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a recipe for `runner train` in this process, on the services of the tests."""
    monkeypatch.setenv("RUNNER_HOME", str(cli.home))
    monkeypatch.chdir(cli.cwd)
    return str(script("print('went on')"))


@pytest.fixture
def press(folder: str, monkeypatch: pytest.MonkeyPatch) -> Press:
    """Run `runner train` in this process and press Ctrl-C where it says so."""

    def at(stage: str, state: str) -> int:
        draw = StageDisplay.on_progress

        def on_progress(view: StageDisplay, progress: Progress) -> None:
            draw(view, progress)
            if (progress.stage, progress.state) == (stage, state):
                raise KeyboardInterrupt

        monkeypatch.setattr(StageDisplay, "on_progress", on_progress)
        return main(["train", folder])

    return at


@pytest.mark.smoke
def test_ctrl_c_right_after_the_submission_prints_how_to_attach(
    cli: Cli, press: Press, capsys: pytest.CaptureFixture[str]
) -> None:
    assert press("submit", "end") == 130
    said = capsys.readouterr().err
    assert "was not submitted" not in said
    found = re.search(r"To attach: runner attach (\S+)", said)
    assert found, said
    assert show_ended(cli, found[1])["state"] == "succeeded"


def test_ctrl_c_before_the_submission_leaves_no_run(
    cli: Cli, press: Press, capsys: pytest.CaptureFixture[str]
) -> None:
    before = known_runs(cli)
    assert press("submit", "start") == 130
    assert "was not submitted" in capsys.readouterr().err
    assert known_runs(cli) == before


def test_ctrl_c_right_before_watching_prints_how_to_attach(
    cli: Cli,
    press: Press,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log = StageDisplay.log

    def interrupted(view: StageDisplay, line: str, *, error: bool = False) -> None:
        if line.startswith("run "):
            raise KeyboardInterrupt
        log(view, line, error=error)

    monkeypatch.setattr(StageDisplay, "log", interrupted)
    assert press("no such stage", "end") == 130
    assert "To attach: runner attach" in capsys.readouterr().err


def interrupted(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("module", "step"),
    [
        *((pipeline, step) for step in ("_ensure_running", "connect", "read_files")),
        *((pipeline, step) for step in ("find_job", "download_data", "plan_run")),
        *((submit_run, step) for step in ("upload_files", "create_job", "add_task")),
    ],
)
def test_ctrl_c_before_the_run_is_created_submits_nothing(
    cli: Cli,
    folder: str,
    module: ModuleType,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = known_runs(cli)
    monkeypatch.setattr(module, step, interrupted)
    assert main(["train", folder, "--experiment", f"interrupted-{step.replace('_', '-')}"]) == 130
    assert "interrupted: the run was not submitted" in capsys.readouterr().err
    assert known_runs(cli) == before


@pytest.mark.smoke
def test_ctrl_c_after_the_task_was_added_prints_how_to_attach(
    cli: Cli, folder: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submit_run, "index_run", interrupted)
    assert main(["train", folder]) == 130
    found = re.search(r"To attach: runner attach (\S+)", capsys.readouterr().err)
    assert found
    assert show_ended(cli, found[1])["state"] == "succeeded"


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("add_tasks", "interrupted: the group was not submitted"),
        ("index_run", "the group was submitted; to follow it: runner attach (graph-\\S+)"),
    ],
)
def test_ctrl_c_tells_whether_the_group_was_submitted(
    cli: Cli,
    folder: str,
    step: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path(folder, "graph.yaml")
    path.write_text("tasks:\n  a: {command: [python, train.py]}\n")
    monkeypatch.setattr(submit_group, step, interrupted)
    assert main(["submit", str(path), "-d"]) == 130
    found = re.search(said, capsys.readouterr().err)
    assert found
    if found.groups():
        until(lambda: cli.json("show", found[1])["tasks"][0]["state"] == "succeeded")


OF_EACH_SUBMISSION = {
    "GET /pools/local": 1,
    "GET /jobs": 1,
    "GET /*/run.json": 1,
    "HEAD /code/*": 2,  # the code of the recipe and the agent
    "PUT /*/run.json": 1,
    "POST /jobs/*/tasks": 1,
    "PUT /by-time/*": 1,
    "PUT /index/*": 1,
}
OF_A_NEW_JOB = {"POST /jobs": 1, "PATCH /jobs/*": 1}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return the requests of the SDKs, without the parts that differ between runs."""
    sent: Counter[str] = Counter()
    seen: list[Any] = []
    send = RequestsTransport.send

    def count(transport: RequestsTransport, request: Any, **options: Any) -> Any:
        path = urlsplit(request.url).path.removeprefix("/runnerlocal")
        path = path.removeprefix("/runs").removeprefix("/code")
        path = re.sub(r"(?<=^/by-time/)\d{14}-", "", path)
        names = r"(?<=/)([0-9a-f]{64}|project-\d{8}-\d{6}-[a-z0-9]{4}|counted_local[^/]*)"
        # The SDK repeats requests, and its threads poll deletions that earlier tests started.
        polls = threading.current_thread().name.startswith("LROPoller")
        if not polls and not any(request is one for one in seen):
            seen.append(request)
            sent[f"{request.method} {re.sub(names, '*', path)}"] += 1
        return send(transport, request, **options)

    monkeypatch.setattr(RequestsTransport, "send", count)
    return sent


def test_second_submission_sends_nine_requests_and_two_for_a_new_job(
    cli: Cli, script: Callable[[str], Path], folder: str, sent: Counter[str], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script(f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)\n")
    train = ["train", folder, "-d", "--experiment", "counted"]
    try:
        assert main(train) == 0  # uploads code and agent, and creates the job
        sent.clear()
        assert main(train) == 0
        assert sent == OF_EACH_SUBMISSION
    finally:  # the runs occupy nodes that other tests share
        gate.touch()
    until(lambda: len(cli.json("ps", "--experiment", "counted", "--status", "succeeded")) == 2)
    connection = connect(load_settings({}, cwd=tmp_path, env=cli.env))
    job = connection.batch_client().get_job
    until(lambda: wire_text(job("counted_local").state) == "completed")
    sent.clear()
    assert main(train) == 0
    assert sent == {**OF_EACH_SUBMISSION, **OF_A_NEW_JOB}
