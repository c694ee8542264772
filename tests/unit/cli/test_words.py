"""Inputs of newcomers and of scripts, and their answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from runner.cli import main as cli
from runner.cli.commands.runs.ps import filled
from runner.cli.main import build_app, main, wants_json
from runner.cli.ui.output import Output, OutputFormat
from runner.protocol.errors import ExitCode, RunnerError

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version_options_of_other_programs_work(word: str, capsys: Capture) -> None:
    assert main([word]) == 0
    assert capsys.readouterr().out.startswith("runner ")


def test_help_is_a_verb(capsys: Capture) -> None:
    assert main(["help", "train"]) == 0
    assert "Usage: runner train" in capsys.readouterr().out
    assert main(["help"]) == 0
    assert "Usage: runner [OPTIONS]" in capsys.readouterr().out


def test_parameter_typed_as_an_option_suggests_set(capsys: Capture) -> None:
    assert main(["train", "mnist", "--epochs", "3"]) == ExitCode.USAGE
    assert "fix: --set epochs=VALUE" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (("train", "mnist", "--detatch"), "did you mean --detach?"),
        (("train", "mnist", "--sett", "a=1"), "did you mean --set?"),
        (("train", "mnist", "--envs", "A=1"), "did you mean --env?"),
        (("train", "mnist", "--env-file", ".env"), "--env NAME=VALUE for each variable"),
        (("sweep", "start", "mnist", "--env-file", ".env"), "--env NAME=VALUE for each variable"),
        (("submit", "tasks.yaml", "--env", "A=1"), "`env` below a task, or below `defaults`"),
        (("train", "mnist", "-e", "LR_SCALE=0.1"), "--env LR_SCALE=VALUE"),
        (("sweep", "start", "mnist", "-e", "LR_SCALE=0.1"), "--env LR_SCALE=VALUE"),
        (("files", "ls", "@last", "--sas"), "runner files ls --help"),
        (("exec", "@last", "ls", "-l"), "runner exec RUN -- COMMAND -l"),
        (("exec", "@last", "--nod", "1", "ls"), "did you mean --node?"),
    ],
)
def test_mistyped_option_has_a_suggestion(
    words: tuple[str, ...], fix: str, capsys: Capture
) -> None:
    assert main(list(words)) == ExitCode.USAGE
    assert f"fix: {fix}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["train", "nosuch", "-o", "json"], "R-RECIPE-UNKNOWN"),
        (["ps", "--output=json"], "R-STACK-MISSING"),
        (["ps", "-ojson", "--limit", "0"], "R-USAGE"),
        (["show", "A", "--output", "json"], "R-STACK-MISSING"),
    ],
)
def test_error_is_a_json_document_on_stdout(words: list[str], code: str, capsys: Capture) -> None:
    exit_code = main(words)
    shown = capsys.readouterr()
    error = json.loads(shown.out)["error"]
    assert error["code"] == code
    assert error["exit_code"] == exit_code != 0
    assert shown.err.startswith(f"error[{code}]: ")


def test_late_error_adds_no_second_json_document(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def fail_late(words: object) -> int:
        Output(OutputFormat.JSON).record({"run_id": "r"})
        raise RunnerError("R-LATE", "cannot download")

    monkeypatch.setattr(cli, "_run", fail_late)
    assert main(["train", "x", "-o", "json"]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"run_id": "r"}
    assert "R-LATE" in shown.err


def test_deleted_folder_is_an_expected_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["ps"]) == ExitCode.USAGE
    monkeypatch.chdir(tmp_path)
    assert capsys.readouterr().err.startswith("error[R-FOLDER-GONE]")


def test_empty_columns_are_omitted() -> None:
    row = {"run": "r", "status": "running", "metric": "", "duration": "", "error": None}
    assert filled([row]) == ("run", "status")
    assert filled([row, {**row, "duration": "2 s"}]) == ("run", "status", "duration")


def test_script_arguments_do_not_request_json(capsys: Capture) -> None:
    assert not wants_json(["train", "x.py", "--", "-o", "json"])
    assert not wants_json(["train", "x.py", "--output-dir", "json"])
    assert main(["train", "nosuch", "--", "-o", "json"]) == ExitCode.USAGE
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_unencodable_characters_are_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "ünï"
    folder.mkdir()
    (folder / "train.py").write_text("print(1)\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "runner", "recipe", "check", str(folder)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "uni" in done.stdout.splitlines()[0], "its name is readable"
    assert "\\xfcn\\xef" in done.stdout


@pytest.mark.parametrize("words", [["train", "x" * 300], ["submit", "x" * 300]])
def test_overlong_path_is_an_expected_error(words: list[str], capsys: Capture) -> None:
    assert main(words) == ExitCode.USAGE
    assert "R-BUG" not in capsys.readouterr().err


def test_run_ids_keep_their_case_as_headings(capsys: Capture) -> None:
    Output(OutputFormat.TABLE).rows([{"a_b": 1, "cats-2026-x": 2}], ("a_b", "cats-2026-x"))
    assert "A B  cats-2026-x" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["run", "mnist"], "runner train RECIPE"),
        (["list"], "runner ps"),
        (["stop", "x"], "runner cancel RUN"),
        (["status"], "runner show RUN"),
        (["foo"], "runner --help"),
    ],
)
def test_command_of_another_program_suggests_ours(
    words: list[str], fix: str, capsys: Capture
) -> None:
    assert main(words) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert f"error[R-USAGE]: unknown command '{words[0]}'" in said
    assert f"fix: {fix}" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ps", "--nothing"], "unknown option --nothing"),
        (["models", "foo"], "unknown command 'foo'"),
        (["show", "a", "b"], "unexpected argument: b"),
        (["models", "show"], "missing argument 'NAME[@VERSION]'"),
        (["ps", "--limit"], "option '--limit' requires an argument"),
        (["ps", "--limit", "0"], "invalid value for '--limit' / '-n': the minimum is 1"),
    ],
)
def test_messages_of_typer_have_the_form_of_errors(
    words: list[str], message: str, capsys: Capture
) -> None:
    assert main(words) == ExitCode.USAGE
    assert f"error[R-USAGE]: {message}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["train", "x.py", "lr=0.1"], "--set lr=0.1"),
        (["train", "x.py", "fast", "0.2"], "-- fast 0.2"),
        (["sweep", "start", "x.py", "lr=0.1,0.2"], "--param lr=0.1,0.2"),
        (["sweep", "start", "x.py", "-p", "lr=0.1", "0.2"], "-- 0.2"),
    ],
)
def test_argument_of_the_script_without_dashes_is_refused(
    words: list[str], fix: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "x.py").write_text("print(1)")
    assert main([*words, "--dry-run"]) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert "error[R-ARGUMENTS]: unexpected argument" in said
    assert f"fix: {fix}\n" in said


def test_training_a_file_of_tasks_suggests_submit(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "tasks.yaml").write_text("tasks: {a: {command: x}}")
    assert main(["train", "tasks.yaml", "--dry-run"]) == ExitCode.USAGE
    assert f"runner submit {tmp_path / 'tasks.yaml'}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ["show"]),
        (["mnist-2"], ["show", "mnist-2"]),
        (["--since", "7d"], ["show", "--since", "7d"]),
        (["show", "whatif"], ["show", "whatif"]),
        (["--help"], ["--help"]),
    ],
)
def test_cost_shows_unless_another_command_is_named(words: list[str], expected: list[str]) -> None:
    group: Any = get_command(build_app(["cost"]))
    assert group.commands["cost"].with_default(words) == expected
