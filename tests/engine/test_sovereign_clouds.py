"""`runner preview` and `up` for stacks in China and in Azure Government, over the real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.protocol.azure.clouds import CHINA, USGOV, Cloud
from tests.engine.deployed import make_project, run_in
from tests.engine.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
_REGIONS = {CHINA: "chinanorth3", USGOV: "usgovvirginia"}


@pytest.fixture
def project(stage: Stage) -> Path:
    stage.port = None  # the plugin is a process of its own, with the variables of the engine
    return make_project(stage)


def place(project: Path, region: str, *lines: str) -> None:
    """Put the stack into a region, with further lines of settings."""
    file = project / "Pulumi.dev.yaml"
    text = file.read_text().replace("location: westeurope", f"location: {region}")
    file.write_text(text + "".join(f"  {line}\n" for line in lines))


@pytest.mark.parametrize("cloud", [CHINA, USGOV], ids=lambda cloud: cloud.name)
def test_stack_is_previewed_and_deployed_in_its_cloud(
    stage: Stage, project: Path, cloud: Cloud
) -> None:
    place(project, _REGIONS[cloud], f"runner:cloud: {cloud.name}")
    shown = run_in(stage, "preview", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert [pool["usd_per_hour_max"] for pool in document["pools"]] == [None]
    assert [pool["prices_of"] for pool in document["pools"]] == [None]
    assert ("CNY" in shown.stderr + shown.stdout) == (cloud is CHINA)

    up = run_in(stage, "up", "-y", "--no-check", "-o", "json")
    assert up.returncode == 0, up.stderr
    outputs = json.loads(up.stdout)
    assert outputs["batch_endpoint"].endswith(f".{_REGIONS[cloud]}.{cloud.batch_domain}")
    assert outputs["blob_endpoint"].endswith(f".blob.{cloud.storage_domain}")
    again = run_in(stage, "preview", "-o", "json")
    assert json.loads(again.stdout)["changes"] == []


def test_variable_of_another_cloud_stops_the_deployment(stage: Stage, project: Path) -> None:
    place(project, "chinanorth3", "runner:cloud: china")
    done = run_in(stage, "up", "-y", "--no-check", ARM_ENVIRONMENT="public")
    assert done.returncode != 0
    assert "R-CLOUD-CONFLICT" in done.stderr
    assert not stage.azure.ids()
