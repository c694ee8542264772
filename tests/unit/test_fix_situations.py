"""The `runner` commands that an error prints work in the situation that printed it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from runner.cli.main import main
from tests.unit.command_lines import commands_in
from tests.unit.fix_situations import (
    ALONE,
    SERVED,
    FixCase,
    codes_of_tests,
    codes_with_commands,
)
from tests.unit.source_tree import assert_none

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "config.yaml"))
    monkeypatch.setenv("RUNNER_PRICES_URL", "http://127.0.0.1:1/prices")  # no server listens there
    (tmp_path / "config.yaml").touch()
    for name in ("ARM_LOCATION", "ARM_SUBSCRIPTION_ID", "RUNNER_STACK", "RUNNER_TARGET"):
        monkeypatch.delenv(name, raising=False)
    return folder


def error_of(words: list[str], capsys: Capture) -> dict[str, str]:
    """Run a command; return its error, or nothing if it succeeds."""
    try:
        code = main(words)
    except SystemExit as err:
        code = int(err.code or 0)
    shown = capsys.readouterr().err
    if code == 0:
        return {}
    found = re.search(
        r"error\[(R-[\w-]+)\]: .*?(?:^  fix: (.*?))?(?=^  more: |^\S|\Z)", shown, re.S | re.M
    )
    assert found, (words, code, shown)
    return {"code": found[1], "fix": found[2] or ""}


def test_every_error_that_names_a_command_has_a_situation() -> None:
    tried = {*ALONE, *SERVED, *codes_of_tests()}
    assert_none(codes_with_commands() - tried, "add a situation that prints its command")
    unknown = codes_of_tests() - codes_with_commands()
    assert_none(unknown, "tests are marked with errors that name no command")


@pytest.mark.parametrize("code", ALONE)
def test_printed_command_works_without_services(folder: Path, capsys: Capture, code: str) -> None:
    case: FixCase = ALONE[code]
    for name, text in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    err = error_of(shlex.split(case.words), capsys)
    assert err["code"] == code
    printed = [each for each in commands_in(err["fix"]) if each.startswith("runner ")]
    assert printed, err
    for command in printed:
        words = shlex.split(command)[1:]
        if words[0] in ("train", "submit"):
            words.append("--dry-run")  # which starts no services
        again = error_of(words, capsys)
        assert again.get("code", "") in ("", *case.beyond), (command, again)


@pytest.mark.fix("R-INIT-PROJECT")
def test_init_of_another_folder_works_beside_the_project_of_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    (folder / "Pulumi.yaml").write_text("name: theirs\nruntime: yaml\n", encoding="utf-8")
    err = error_of(["init"], capsys)
    assert err["code"] == "R-INIT-PROJECT"
    (folder / "ours").mkdir()
    monkeypatch.chdir(folder / "ours")
    [command] = commands_in(err["fix"])
    options = "--subscription 11111111-2222-3333-4444-555555555555 --location eastus --no-check"
    assert error_of(shlex.split(f"{command} {options}")[1:], capsys) == {}
    assert (folder / "ours" / "Pulumi.dev.yaml").is_file()
