"""`runner up`, `preview` and `down` over the real engine: what a person types and sees."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from runner.contract import parse_stack_outputs
from tests.arm_server import ArmServer
from tests.engine.stage import ROOT, Stage
from tests.unit.infra.cloud import SUBSCRIPTION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
_Runner = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def project(stage: Stage) -> Path:
    folder = stage.folder / "project"
    folder.mkdir()
    shutil.copy(ROOT / "Pulumi.yaml", folder)
    (folder / "infra").mkdir()  # the engine enters the folder of `main`; the code is installed
    text = (ROOT / "Pulumi.dev.yaml").read_text()
    text += f"  azure-native:location: westeurope\n  azure-native:subscriptionId: {SUBSCRIPTION}\n"
    (folder / "Pulumi.dev.yaml").write_text(text)
    return folder


@pytest.fixture
def azure() -> Generator[ArmServer]:
    with ArmServer() as server:
        server.add_size("Standard_NC4as_T4_v3", "standardNCASv3_T4Family", "westeurope")
        server.state.images = {"microsoft-dsvm/ubuntu-hpc/2204": ["22.04.1"]}
        yield server


@pytest.fixture
def runner(stage: Stage, project: Path) -> _Runner:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "runner.cli.main", *words],
            cwd=project,
            env={**stage.environment, "RUNNER_HOME": str(stage.folder / "runner")},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def change(project: Path, before: str, after: str) -> None:
    file = project / "Pulumi.dev.yaml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_up_deploys_keeps_the_outputs_and_is_quiet_the_second_time(
    stage: Stage, runner: _Runner
) -> None:
    outputs = printed(runner("up", "-y", "--no-check", "-o", "json"))
    kept = (stage.folder / "runner/stacks/dev.json").read_text()
    assert parse_stack_outputs(kept) == parse_stack_outputs(json.dumps(outputs))
    assert [pool["id"] for pool in outputs["pools"]] == ["t4"]
    made = stage.azure.ids()
    assert made == stage.ids_in_state()

    assert printed(runner("preview", "-o", "json"))["changes"] == []
    assert runner("up", "-y", "--no-check").returncode == 0
    assert stage.azure.ids() == made


def test_preview_tells_an_update_from_a_replacement(
    project: Path, stage: Stage, runner: _Runner
) -> None:
    printed(runner("up", "-y", "--no-check", "-o", "json"))
    change(project, "max_spot: 4", "max_spot: 2")
    (changed,) = printed(runner("preview", "-o", "json"))["changes"]
    assert (changed["change"], changed["type"]) == ("~ update", "batch:Pool")
    change(project, "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4")
    (changed,) = printed(runner("preview", "-o", "json"))["changes"]
    assert (changed["change"], changed["name"]) == ("± replace", "pool-t4")
    assert "vmSize" in changed["because_of"]


def test_down_keeps_what_holds_data_and_everything_leaves_nothing(
    stage: Stage, runner: _Runner
) -> None:
    printed(runner("up", "-y", "--no-check", "-o", "json"))
    # No services answer for the stand-in's account: whether runs are active cannot be asked.
    left = printed(runner("down", "-y", "--force", "-o", "json"))
    kinds = {row["type"] for row in left}
    assert {"storage:StorageAccount", "storage:BlobContainer", "resources:ResourceGroup"} <= kinds
    assert "batch:Pool" not in kinds
    assert not (stage.folder / "runner/stacks/dev.json").exists()
    assert not [found for found in stage.azure.ids() if "/batchAccounts/" in found]

    assert printed(runner("up", "-y", "--no-check", "-o", "json"))["pools"]
    assert printed(runner("down", "-y", "--force", "--everything", "-o", "json")) == []
    assert stage.azure.ids() == stage.ids_in_state() == set()
    again = runner("down", "-y")
    assert again.returncode == 0
    assert "not deployed" in again.stderr


def test_nothing_is_deployed_without_consent(stage: Stage, runner: _Runner) -> None:
    done = runner("up", "--no-check")
    assert done.returncode == 2
    assert "R-UP-DECLINED" in done.stderr
    assert stage.azure.ids() == set()


def test_up_looks_first_for_what_would_stop_it(
    stage: Stage, project: Path, azure: ArmServer
) -> None:
    def up() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "runner.cli.main", "up", "-y", "-o", "json"],
            cwd=project,
            env={
                **stage.environment,
                **azure.environment(),
                "RUNNER_HOME": str(stage.folder / "runner"),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    azure.refuse("/providers", 403, "AuthorizationFailed")
    refused = up()
    assert refused.returncode == 4, refused.stderr
    assert json.loads(refused.stdout)["error"]["fix"]
    assert stage.azure.ids() == set()

    azure.state.faults.clear()
    assert printed(up())["pools"]
    assert stage.azure.ids() == stage.ids_in_state()


def test_impossible_configuration_stops_before_the_engine(
    project: Path, stage: Stage, runner: _Runner
) -> None:
    change(project, "Standard_NC4as_T4_v3", "Standard_NC6")
    done = runner("up", "-y", "--no-check")
    assert "R-MACHINE-RETIRED" in done.stderr
    assert "Traceback" not in done.stderr
    assert stage.azure.ids() == set()
