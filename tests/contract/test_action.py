"""The step of the GitHub action, run as GitHub runs it: with inputs, and files for results."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from ruamel.yaml import YAML

from tests.contract.server import client_for
from tests.unit.source_tree import ROOT

FOLDER = ROOT / ".github" / "actions" / "batch-emulator"
ACTION = YAML(typ="safe", pure=True).load((FOLDER / "action.yml").read_text(encoding="utf-8"))
RESULT = re.compile(r"\$\{\{ steps\.start\.outputs\.(\w+) \}\}")


@dataclass(frozen=True)
class Ended:
    """The end of the step: what it printed, and its results by name."""

    code: int
    printed: str
    outputs: dict[str, str]
    variables: dict[str, str]


def run_step(temporary: Path, **inputs: str) -> Ended:
    """Run the only step of the action."""
    (step,) = ACTION["runs"]["steps"]
    given = {name: str(each["default"]) for name, each in ACTION["inputs"].items()} | inputs

    def filled(text: str) -> str:
        return re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: given[found[1]], text)

    files = {name: temporary / name for name in ("GITHUB_ENV", "GITHUB_OUTPUT")}
    for file in files.values():
        file.touch()
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    done = subprocess.run(
        command,
        env={
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            **{name: str(file) for name, file in files.items()},
            **{name: filled(value) for name, value in step["env"].items()},
            "GITHUB_ACTION_PATH": str(FOLDER),
            "RUNNER_TEMP": str(temporary),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    outputs, variables = (
        dict(line.split("=", 1) for line in files[name].read_text().splitlines())
        for name in ("GITHUB_OUTPUT", "GITHUB_ENV")
    )
    return Ended(done.returncode, done.stdout, outputs, variables)


def test_every_output_is_one_of_the_step() -> None:
    script = (FOLDER / "start.sh").read_text(encoding="utf-8")
    for name, output in ACTION["outputs"].items():
        found = RESULT.fullmatch(output["value"])
        assert found is not None
        assert found[1] == name
        assert f'"{name}=$' in script
    (step,) = ACTION["runs"]["steps"]
    assert "${{" not in step["run"], "inputs are no part of a script"
    assert os.access(FOLDER / "start.sh", os.X_OK)


@pytest.mark.slow
@pytest.mark.feature(60)
def test_action_starts_an_emulator_for_the_steps_after_it(tmp_path: Path) -> None:
    ended = run_step(tmp_path, account="mine", options="--boot-seconds 0 --log-level debug")
    if "pip cannot install" in ended.printed:
        pytest.skip("pip cannot install the packages of the emulator here")
    assert ended.code == 0, ended.printed
    process = psutil.Process(int(ended.outputs["pid"]))
    try:
        assert ended.outputs.keys() == ACTION["outputs"].keys()
        key = ended.variables["AZURE_BATCH_ACCESS_KEY"]
        assert key == ended.outputs["key"]
        assert ended.printed.count(key) == 1
        assert f"::add-mask::{key}\n" in ended.printed
        client = client_for(ended.variables["AZURE_BATCH_ENDPOINT"], key, "mine")
        assert list(client.list_jobs()) == []
        assert "/jobs" in Path(ended.variables["BATCH_EMULATOR_LOG"]).read_text()
    finally:
        process.terminate()
        psutil.wait_procs([process], 60)


@pytest.mark.slow
def test_failed_action_prints_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    ended = run_step(tmp_path)
    assert ended.code == 1
    assert ended.printed.startswith("::group::log of the emulator\n")
    assert ended.printed.endswith("Azure Batch emulator::pip cannot install the emulator\n")
    assert not ended.outputs


def test_action_refuses_an_invalid_account(tmp_path: Path) -> None:
    ended = run_step(tmp_path, account="two words")
    assert ended.code == 1
    assert "::error title=Azure Batch emulator::invalid account 'two words'" in ended.printed
    assert not ended.outputs
