"""Whether a stack that exists in Azure belongs to the state that this machine deploys with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from runner.core.settings import Settings, load_settings
from runner.flows.environment import deploy
from runner.flows.environment.ownership import load_earlier
from runner.flows.environment.plan import read_stack
from tests.unit.infra.cloud import SUBSCRIPTION

_GROUP = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg-runner-dev"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project whose file names the state; the home of this machine has none."""
    state = {"checkpoint": {"latest": {"resources": [{"urn": "u::group", "id": _GROUP}]}}}
    stacks = tmp_path / "shared/.pulumi/stacks/runner"
    stacks.mkdir(parents=True)
    (stacks / "dev.json").write_text(json.dumps(state))
    folder = tmp_path / "project"
    folder.mkdir()
    url = (tmp_path / "shared").as_uri()
    (folder / "Pulumi.yaml").write_text(f"name: runner\nruntime: python\nbackend: {{url: {url}}}\n")
    (folder / "Pulumi.dev.yaml").write_text(
        "config:\n  azure-native:location: westeurope\n"
        f"  azure-native:subscriptionId: {SUBSCRIPTION}\n"
        "  runner:pools: [{id: t4, vm_size: Standard_NC4as_T4_v3}]\n"
    )
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    return folder


def settings_of(folder: Path, env: Mapping[str, str]) -> Settings:
    return load_settings({"target": "azure", "stack": "dev"}, cwd=folder, env=env)


def environment(folder: Path) -> Mapping[str, str]:
    return {"HOME": str(folder.parent), "RUNNER_HOME": str(folder.parent / "home"), "PATH": ""}


def test_shared_state_of_the_project_tells_who_deploys(project: Path) -> None:
    env = environment(project)
    stack = read_stack(project / "Pulumi.dev.yaml", env)
    earlier = load_earlier(settings_of(project, env), stack, project, env)
    assert earlier is not None
    assert earlier.resources == {_GROUP.lower()}


def test_engine_finds_the_state_in_the_cloud_of_the_stack(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, own = project / "Pulumi.dev.yaml", project / "Pulumi.yaml"
    file.write_text(file.read_text().replace("westeurope", "chinanorth3\n  runner:cloud: china"))
    own.write_text("name: runner\nbackend: {url: 'azblob://state?storage_account=contosostate'}\n")
    token = {"AZURE_FEDERATED_TOKEN_FILE": "token of the job"}
    monkeypatch.setattr(deploy, "workload_token_file", lambda _: token)
    env = environment(project)
    found = deploy.engine_variables(settings_of(project, env), project, env)
    assert found["PULUMI_BACKEND_URL"].startswith("azblob://state")
    assert found["AZURE_STORAGE_DOMAIN"] == "blob.core.chinacloudapi.cn"
    assert found["AZURE_FEDERATED_TOKEN_FILE"] == token["AZURE_FEDERATED_TOKEN_FILE"]
