"""`runner preview` shows what others changed in Azure, and `runner up` does what it showed."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engine.deployed import DeployedOnce, run_in
from tests.engine.stage import Stage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_POOL = "/pools/t4"
_FORMULA = "scaleSettings.autoScale.formula"


@pytest.fixture
def deployed(stage: Stage, deployed_once: DeployedOnce) -> Stage:
    deployed_once.copy_to(stage)
    return stage


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def preview(stage: Stage, *words: str) -> Any:
    return printed(run_in(stage, "preview", *words, "-o", "json"))


def up(stage: Stage, *words: str) -> subprocess.CompletedProcess[str]:
    return run_in(stage, "up", "-y", "--no-check", *words)


def storage_of(stage: Stage) -> str:
    """Return the end of the ID of the storage account."""
    [found] = [
        each.rpartition("/")[2]
        for each in stage.azure.ids()
        if each.split("/")[-2] == "storageAccounts"
    ]
    return f"/storageAccounts/{found}"


def inputs_of(stage: Stage, ending: str) -> Any:
    [found] = [each for each in stage.azure.ids() if each.endswith(ending)]
    resource = stage.azure.get(found)
    assert resource is not None
    return resource["inputs"]


@pytest.mark.feature(1)
def test_changes_by_hand_are_shown_in_words_and_set_back(deployed: Stage) -> None:
    formula = inputs_of(deployed, _POOL)["scaleSettings"]["autoScale"]["formula"]
    deployed.azure.change_by_hand(_POOL, _FORMULA, "$TargetDedicatedNodes = 9;")
    deployed.azure.change_by_hand(storage_of(deployed), "allowBlobPublicAccess", True)
    deployed.azure.change_by_hand(storage_of(deployed), "minimumTlsVersion", "TLS1_0")
    state, azure = deployed.state(), deployed.azure.journal()

    document = preview(deployed)
    assert {(row["type"], row["text"], row["then"]) for row in document["drift"]} == {
        ("batch:Pool", "autoscale formula was changed", "sets it back"),
        ("storage:StorageAccount", "public access to blobs was switched on", "sets it back"),
        (
            "storage:StorageAccount",
            "minimum TLS version was changed from TLS1_2 to TLS1_0",
            "sets it back",
        ),
    }
    [changed] = [row for row in document["drift"] if row["property"] == _FORMULA]
    assert (changed["deployed"], changed["now"]) == (formula, "$TargetDedicatedNodes = 9;")
    assert all(row["reverts_drift"] for row in document["changes"])
    assert {row["change"] for row in document["changes"]} == {"~ update"}
    assert (deployed.state(), deployed.azure.journal()) == (state, azure), "a preview writes"

    assert up(deployed).returncode == 0
    assert inputs_of(deployed, _POOL)["scaleSettings"]["autoScale"]["formula"] == formula
    assert inputs_of(deployed, storage_of(deployed))["allowBlobPublicAccess"] is False
    assert preview(deployed)["drift"] == preview(deployed)["changes"] == []


def test_deleted_pool_is_created_again(deployed: Stage) -> None:
    deployed.azure.delete_by_hand(_POOL)
    document = preview(deployed)
    [gone] = document["drift"]
    assert (gone["name"], gone["text"], gone["then"]) == (
        "pool-t4",
        "was deleted",
        "creates it again",
    )
    [change] = document["changes"]
    assert (change["change"], change["name"], change["reverts_drift"]) == (
        "+ create",
        "pool-t4",
        True,
    )
    assert up(deployed).returncode == 0
    assert any(each.endswith(_POOL) for each in deployed.azure.ids())
    assert deployed.azure.ids() == deployed.ids_in_state()


def test_drift_and_changes_of_the_configuration_are_apart(deployed: Stage) -> None:
    file = deployed.folder / "project/Pulumi.dev.yaml"
    file.write_text(file.read_text().replace("max_spot: 4", "max_spot: 2"))
    deployed.azure.change_by_hand(storage_of(deployed), "allowBlobPublicAccess", True)
    done = run_in(deployed, "preview", COLUMNS="80")
    assert done.returncode == 0, done.stderr
    drift, _, changes = done.stdout.partition("CHANGE")
    assert "changed in Azure since the last deployment, by other means" in done.stderr
    assert "public access to blobs was switched on" in drift
    assert "pool-t4" not in drift
    [pool] = [line for line in changes.splitlines() if "pool-t4" in line]
    assert "drift" not in pool
    [storage] = [line for line in changes.splitlines() if "StorageAccount" in line]
    assert "drift: allowBlobPublicAccess" in storage


def test_without_a_refresh_only_the_state_is_compared(deployed: Stage) -> None:
    deployed.azure.delete_by_hand(_POOL)
    document = preview(deployed, "--no-refresh")
    assert (document["drift"], document["changes"]) == ([], [])
    assert up(deployed, "--no-refresh").returncode == 0
    assert not any(each.endswith(_POOL) for each in deployed.azure.ids())


def test_expected_absence_of_changes_is_an_exit_code_for_ci(deployed: Stage) -> None:
    words = ("preview", "--expect-no-changes", "-o", "json")
    assert printed(run_in(deployed, *words))["changes"] == []
    deployed.azure.change_by_hand(storage_of(deployed), "allowBlobPublicAccess", True)
    found = run_in(deployed, *words)
    assert found.returncode == 1
    assert len(json.loads(found.stdout)["drift"]) == 1
    assert "expected no changes, found 1 change" in found.stderr
    offline = run_in(deployed, "preview", "--expect-no-changes", "--offline")
    assert "error[R-PREVIEW-OPTIONS]" in offline.stderr


def test_tag_that_a_policy_added_is_named(deployed: Stage, tmp_path: Path) -> None:
    deployed.azure.change_by_hand(_POOL, "tags.cost-center", "42")
    [added] = preview(deployed)["drift"]
    assert added["text"] == "tag cost-center was added: 42"
