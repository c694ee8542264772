"""`runner join` against a stand-in of Azure Resource Manager, and with files."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.cli.main import main
from runner.contract import OUTPUTS_KEY, PoolOutput, StackOutputs, encode_outputs
from runner.protocol.errors import ExitCode
from runner_infra.config.naming import Names
from tests.arm_server import SUBSCRIPTION, ArmServer, resource_id
from tests.unit.core.recipe_maker import outputs
from tests.unit.infra.cloud import token_of

_BOB = "bbbbbbbb-8888-7777-6666-555555555555"
_BATCH = "Microsoft.Batch/batchAccounts/jobs/*"
_BLOBS = "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/*"


def outputs_of(stack: str, location: str = "eastus") -> StackOutputs:
    name = Names(stack, SUBSCRIPTION).batch_account
    group = f"rg-runner-{stack}"
    return replace(
        outputs(PoolOutput("t4", "Standard_NC4as_T4_v3", 1, 4, spot=True, max_nodes=2)),
        location=location,
        resource_group=group,
        batch_account=name,
        batch_endpoint=f"https://{name}.{location}.batch.azure.com",
        storage_account=name,
        blob_endpoint=f"https://{name}.blob.core.windows.net",
        identity_client_id=_BOB,
        stack=stack,
        stack_id=f"id of {stack}",
        batch_account_id=resource_id(group, f"Microsoft.Batch/batchAccounts/{name}"),
        storage_account_id=resource_id(group, f"Microsoft.Storage/storageAccounts/{name}"),
    )


class Cloud:
    """A subscription with stacks, and the rights of a person at every resource."""

    def __init__(self, server: ArmServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.server = server
        self.data_actions = [_BATCH, _BLOBS]
        self._capsys = capsys
        server.state.token = token_of({"oid": _BOB, "idtyp": "user"})
        server.handle("GET", "/microsoft.authorization/permissions", self._permissions)

    def add(self, outputs: StackOutputs, *, identity: bool = True, published: bool = True) -> None:
        """Deploy a stack; without `identity`, the person sees only the Batch account."""
        stack, group = str(outputs.stack), outputs.resource_group
        container = (
            f"{outputs.storage_account_id}/blobServices/default/containers/stack-runner-{stack}"
        )
        tags = {"app": "runner", "stack": stack}
        account = self.server.add_batch_account(
            group,
            outputs.batch_account,
            outputs.location,
            autoStorage={"storageAccountId": outputs.storage_account_id},
        )
        account["tags"] = tags
        if identity:
            name = "Microsoft.ManagedIdentity/userAssignedIdentities/id-nodes"
            where = resource_id(group, name)
            marks = {"runner-outputs": container.split("/", 3)[3]}
            self.server.state.resources[where] = {
                "id": where,
                "location": outputs.location,
                "tags": {**tags, **marks},
            }
        if published:
            metadata = {OUTPUTS_KEY: encode_outputs(outputs.to_json())}
            self.server.state.resources[container] = {"properties": {"metadata": metadata}}

    def _permissions(self, *_: object) -> tuple[int, dict[str, Any], dict[str, str]]:
        return 200, {"value": [{"actions": [], "dataActions": self.data_actions}]}, {}

    def join(self, *words: str) -> tuple[int, dict[str, Any]]:
        code = main(["join", *words, "-o", "json"])
        return code, json.loads(self._capsys.readouterr().out)

    def refused(self, *words: str) -> dict[str, str]:
        code, found = self.join(*words)
        assert code != ExitCode.OK
        return found["error"]


@pytest.fixture
def cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Generator[Cloud]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RUNNER_CONFIG", str(tmp_path / "none.yaml"))
    (tmp_path / "none.yaml").touch()
    monkeypatch.setenv("ARM_SUBSCRIPTION_ID", SUBSCRIPTION)
    with ArmServer() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield Cloud(server, capsys)


def stored(folder: Path, stack: str = "dev") -> dict[str, Any]:
    return json.loads((folder / f"home/stacks/{stack}.json").read_text())


@pytest.mark.parametrize("identity", [True, False])
def test_only_stack_of_the_subscription_is_joined(
    cloud: Cloud, tmp_path: Path, identity: bool
) -> None:
    cloud.add(outputs_of("dev"), identity=identity)
    code, found = cloud.join()
    assert (code, found["stack"]) == (ExitCode.OK, "dev")
    assert [each["state"] for each in found["checks"]] == ["ok", "ok"]
    assert stored(tmp_path) == json.loads(outputs_of("dev").to_json())
    assert {method for method, *_ in cloud.server.state.requests} == {"GET"}


def test_one_of_several_stacks_is_chosen(cloud: Cloud, tmp_path: Path) -> None:
    cloud.add(outputs_of("dev"))
    cloud.add(outputs_of("lab", "westeurope"))
    error = cloud.refused()
    assert error["code"] == "R-JOIN-WHICH"
    assert "dev (eastus), lab (westeurope)" in error["why"]
    assert cloud.join("--stack", "lab")[0] == ExitCode.OK
    assert stored(tmp_path, "lab")["location"] == "westeurope"
    error = cloud.refused("--stack", "prod")
    assert (error["code"], "dev (eastus)" in error["why"]) == ("R-JOIN-NONE", True)


def test_subscription_without_stacks_is_an_error(cloud: Cloud) -> None:
    cloud.server.add_batch_account("other", "another", "eastus")
    assert cloud.refused()["code"] == "R-JOIN-NONE"


def test_stack_of_an_older_version_is_an_error(cloud: Cloud) -> None:
    cloud.add(outputs_of("dev"), identity=False, published=False)
    error = cloud.refused()
    assert (error["code"], "older version" in error["why"]) == ("R-JOIN-NONE", True)


@pytest.mark.parametrize(
    ("granted", "missing"),
    [
        ([_BATCH], ["blobs"]),
        ([_BLOBS], ["batch"]),
        ([], ["batch", "blobs"]),
    ],
)
@pytest.mark.feature(22)
def test_missing_roles_are_named_with_their_commands(
    cloud: Cloud, tmp_path: Path, granted: list[str], missing: list[str]
) -> None:
    cloud.add(outputs_of("dev"))
    cloud.data_actions = granted
    definition = "/roleDefinitions/8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
    owner = {"principalId": "ada", "principalType": "User", "roleDefinitionId": definition}
    reader = {**owner, "principalId": "eve", "roleDefinitionId": "/roleDefinitions/acdd72a7"}
    answer = {"value": [{"properties": owner}, {"properties": reader}]}
    cloud.server.handle(
        "GET", "/microsoft.authorization/roleassignments", lambda *_: (200, answer, {})
    )
    code, found = cloud.join()
    assert code == ExitCode.ACCESS
    failed = [each for each in found["checks"] if each["state"] == "failed"]
    assert [each["check"] for each in failed] == missing
    for each in failed:
        assert each["code"] == "R-JOIN-ROLES"
        assert f"add `{{id: {_BOB}, kind: user}}` to runner:operators" in each["fix"]
        assert f"--assignee-object-id {_BOB} --assignee-principal-type User" in each["fix"]
        assert "--scope /subscriptions/" in each["fix"]
        assert "User ada" in each["detail"]
        assert "eve" not in each["detail"]
    assert stored(tmp_path)["stack"] == "dev"  # ready as soon as the roles are assigned


def test_every_container_without_the_role_is_named(cloud: Cloud) -> None:
    """An adopted account has no role for all containers; one of them has its role already."""
    named = {"container_runs": "dev-runs", "container_models": "dev-models"}
    adopted = replace(outputs_of("dev"), container_data="dev-data", container_code="code", **named)
    cloud.add(adopted)
    cloud.data_actions = [_BATCH]

    granted = {"value": [{"actions": [], "dataActions": [_BLOBS]}]}
    handlers = cloud.server.state.handlers
    handlers.insert(0, ("GET", "/containers/code/", lambda *_: (200, granted, {})))
    _, found = cloud.join()
    (failed,) = [each for each in found["checks"] if each["check"] == "blobs"]
    assert "dev-runs, dev-models, dev-data need it" in failed["detail"]
    assert (
        "/containers/CONTAINER` for each CONTAINER of dev-runs, dev-models, dev-data"
        in (failed["fix"])
    )


def test_rights_that_cannot_be_read_are_not_reported_as_missing(cloud: Cloud) -> None:
    cloud.add(outputs_of("dev"))
    cloud.server.refuse("/microsoft.authorization/", 403, "AuthorizationFailed")
    code, found = cloud.join()
    assert code == ExitCode.OK
    assert {each["state"] for each in found["checks"]} == {"skipped"}


def test_file_of_the_deployer_is_joined(cloud: Cloud, tmp_path: Path) -> None:
    cloud.add(outputs_of("lab"))
    assert cloud.join("--stack", "lab")[0] == ExitCode.OK
    code, wrote = cloud.join("--stack", "lab", "--write", "lab-outputs.json")
    assert (code, wrote["stack"]) == (ExitCode.OK, "lab")
    (tmp_path / "home/stacks/lab.json").unlink()
    assert cloud.join("lab-outputs.json")[0] == ExitCode.OK
    assert stored(tmp_path, "lab") == json.loads(outputs_of("lab").to_json())


@pytest.mark.parametrize(
    ("text", "reason"),
    [(None, "No such file"), ("[]", "expected a JSON object"), ("{}", "missing")],
)
def test_file_without_outputs_is_an_error(
    cloud: Cloud, tmp_path: Path, text: str | None, reason: str
) -> None:
    if text is not None:
        (tmp_path / "stack.json").write_text(text)
    error = cloud.refused("stack.json")
    assert error["code"] == "R-JOIN-FILE"
    assert reason in error["why"]


def test_name_of_another_stack_is_not_replaced_without_force(cloud: Cloud, tmp_path: Path) -> None:
    mine = replace(outputs_of("dev"), batch_endpoint="https://mine.eastus.batch.azure.com")
    (tmp_path / "mine.json").write_text(mine.to_json())
    assert cloud.join("mine.json")[0] == ExitCode.OK
    cloud.add(outputs_of("dev"))
    assert cloud.refused()["code"] == "R-JOIN-KNOWN"
    assert stored(tmp_path)["batch_endpoint"] == mine.batch_endpoint
    assert cloud.join("--force")[0] == ExitCode.OK
    assert stored(tmp_path)["batch_endpoint"] != mine.batch_endpoint


def test_unknown_subscription_is_an_error(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARM_SUBSCRIPTION_ID", "AZURE_SUBSCRIPTION_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    refused = cloud.refused()
    assert refused["code"] == "R-JOIN-SUBSCRIPTION"
    assert refused["fix"].startswith("install the Azure CLI (https://")
