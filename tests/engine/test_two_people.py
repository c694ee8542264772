"""Two people with two homes and an identity of CI deploy and use one environment."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.gateway.sign_in import CLIENT
from runner.contract import parse_stack_outputs
from tests.arm_server import ArmServer
from tests.e2e.conftest import until
from tests.engine.azure_native.azure import Azure
from tests.engine.deployed import make_project, run_in
from tests.engine.stage import Stage
from tests.engine.test_commands import printed
from tests.engine.test_fixes import Deployment, azure
from tests.unit.command_lines import commands_in
from tests.unit.infra.cloud import DEPLOYER, SUBSCRIPTION, token_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
__all__ = ["azure"]  # a fixture
_ADA = DEPLOYER
_BOB = "bbbbbbbb-8888-7777-6666-555555555555"
_CI = "cccccccc-8888-7777-6666-555555555555"
_EVE = "eeeeeeee-8888-7777-6666-555555555555"


class Person:
    """A principal with a home of its own, and the state that its commands use."""

    def __init__(self, stage: Stage, name: str, object_id: str, idtyp: str = "user") -> None:
        self.stage = stage
        self.home = stage.folder / f"home-{name}"
        self.object_id = object_id
        self._idtyp = idtyp

    def run(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `runner` as this principal; `env` may name another state."""
        self.stage.azure.sign_in(self.object_id, self._idtyp)
        return run_in(self.stage, *words, **{"RUNNER_HOME": str(self.home), **env})

    def up(self, **env: str) -> Any:
        return printed(self.run("up", "-y", "--no-check", "-o", "json", **env))

    def own_state(self) -> dict[str, str]:
        """Return the variables for a state in this home, as without PULUMI_BACKEND_URL."""
        (self.home / "pulumi").mkdir(parents=True, exist_ok=True)
        return {"PULUMI_BACKEND_URL": (self.home / "pulumi").as_uri()}


@pytest.fixture
def project(stage: Stage) -> Path:
    return make_project(stage)


@pytest.fixture
def ada(stage: Stage, project: Path) -> Person:
    return Person(stage, "ada", _ADA)


@pytest.fixture
def bob(stage: Stage, project: Path) -> Person:
    return Person(stage, "bob", _BOB)


def roles(stage: Stage) -> dict[str, set[tuple[str, str]]]:
    """Return the name and kind of each operator's role assignments, by object ID."""
    found: dict[str, set[tuple[str, str]]] = {}
    for each in map(stage.azure.get, stage.azure.ids()):
        assert each is not None
        if each["type"].endswith(":RoleAssignment"):
            inputs = each["inputs"]
            role = inputs["roleDefinitionId"].rpartition("/")[2]
            known = (each["id"].rpartition("/")[2], f"{inputs['principalType']} {role}")
            found.setdefault(inputs["principalId"], set()).add(known)
    return found


def changes(person: Person, **env: str) -> list[tuple[str, str]]:
    rows = printed(person.run("preview", "-o", "json", **env))["changes"]
    return [(row["change"], row["name"]) for row in rows]


@pytest.mark.feature(1)
def test_deployments_by_others_keep_the_roles_of_everybody(
    stage: Stage, project: Path, ada: Person, bob: Person
) -> None:
    ci = Person(stage, "ci", _CI, "app")
    ada.up()
    first = roles(stage)
    assert changes(ada) == []
    added = changes(bob)
    assert added
    assert {kind for kind, _ in added} == {"+ create"}
    assert {name.startswith(f"operator-{_BOB}-") for _, name in added} == {True}
    bob.up()
    ci.up()
    after = roles(stage)
    assert {principal: after[principal] for principal in first} == first
    assert {kind.split()[0] for _, kind in after[_BOB]} == {"User"}
    assert {kind.split()[0] for _, kind in after[_CI]} == {"ServicePrincipal"}
    done = stage.azure.journal()
    assert not [where for what, where in done if what == "delete"]
    assert changes(ada) == changes(bob) == changes(ci) == []
    state = ada.home / "stacks/dev.json"
    assert parse_stack_outputs(state.read_text()).stack_id


def test_only_operators_that_the_list_decides_about_lose_their_roles(
    stage: Stage, project: Path, ada: Person, bob: Person
) -> None:
    file = project / "Pulumi.dev.yaml"
    plain = file.read_text()
    file.write_text(f"{plain}  runner:operators: [{_EVE}]\n")
    ada.up()
    bob.up()
    assert {_ADA, _BOB, _EVE} <= set(roles(stage))

    file.write_text(plain)
    shown = printed(bob.run("preview", "-o", "json"))
    assert {(row["change"], row["name"][:45]) for row in shown["changes"]} == {
        ("- delete", f"operator-{_EVE}"[:45])
    }
    (lost,) = [text for text in shown["warnings"] if "loses access" in text]
    assert lost.startswith(f"user {_EVE} loses access to the Batch account and the storage")
    bob.up()
    assert {_ADA, _BOB} <= set(roles(stage))
    assert _EVE not in roles(stage)

    file.write_text(f"{plain}  runner:operators: [{{id: {_ADA}, access: none}}]\n")
    assert {name[:45] for _, name in changes(ada)} == {f"operator-{_ADA}"[:45]}
    ada.up()
    assert _ADA not in roles(stage)
    assert _BOB in roles(stage)


def test_roles_in_a_state_of_an_older_version_are_kept(
    stage: Stage, project: Path, ada: Person, bob: Person
) -> None:
    ada.up()
    _forget_the_deployers(stage)
    before = roles(stage)
    assert {kind for kind, _ in changes(bob)} == {"+ create"}
    bob.up()
    after = roles(stage)
    assert {principal: after[principal] for principal in before} == before
    assert changes(ada) == []


def _forget_the_deployers(stage: Stage) -> None:
    """Make the state what an older version wrote: without a record of deployers and names."""
    (file,) = (stage.folder / "state/.pulumi/stacks").rglob("dev.json")
    whole: dict[str, Any] = json.loads(file.read_text("utf-8"))
    state = whole["checkpoint"]["latest"]
    state["resources"] = [each for each in state["resources"] if "Deployer" not in each["type"]]
    for each in state["resources"]:
        if each["type"] == "runner:infra:Operators":
            each["outputs"] = {}
    file.write_text(json.dumps(whole), "utf-8")


@pytest.mark.feature(1)
def test_state_of_another_person_is_noticed_before_anything_is_changed(
    stage: Stage, project: Path, ada: Person, bob: Person
) -> None:
    outputs = ada.up(**ada.own_state())
    made = stage.azure.journal()
    for words in (("preview",), ("up", "-y", "--no-check")):
        refused = bob.run(*words, **bob.own_state())
        assert refused.returncode == 3, refused.stderr
        assert (
            "error[R-STACK-FOREIGN]: resource group rg-runner-dev exists, but not in this state "
            "of Pulumi"
        ) in refused.stderr
        assert f"its tag runner-stack-id is {outputs['stack_id']}" in refused.stderr
        assert "runner join --stack dev" in refused.stderr
    assert stage.azure.journal() == made
    assert changes(bob, **ada.own_state())[0][0] == "+ create"  # with the state of the deployer


def test_failed_first_deployment_continues_with_its_id(stage: Stage, ada: Person) -> None:
    stage.azure.fail("create", "t4", "AccountVMSeriesCoreQuotaReached")
    failed = ada.run("up", "-y", "--no-check")
    assert failed.returncode != 0
    (group,) = [each for each in stage.azure.ids() if each.endswith("/rg-runner-dev")]
    first = stage.azure.get(group)
    assert first is not None
    outputs = ada.up()
    assert outputs["stack_id"] == first["inputs"]["tags"]["runner-stack-id"]


@pytest.mark.fix("R-STACK-FOREIGN")
def test_printed_ways_out_of_a_foreign_stack_work(
    stage: Stage, project: Path, ada: Person, bob: Person
) -> None:
    ada.up(**ada.own_state())
    refused = bob.run("preview", **bob.own_state())
    join, init = [
        shlex.split(each)[1:] for each in commands_in(refused.stderr) if "explain" not in each
    ]
    assert join == ["join", "--stack", "dev"]
    with ArmServer() as arm:
        mirror(stage.azure, arm, _ADA)
        here = {**arm.environment(), "ARM_SUBSCRIPTION_ID": SUBSCRIPTION}
        assert printed(bob.run(*join, "-o", "json", **here))["stack"] == "dev"
        init[-1] = "bobs"
        words = (*init, "-y", "--no-check", "--subscription", SUBSCRIPTION)
        made = bob.run(*words, "--location", "eastus", **bob.own_state())
        assert made.returncode == 0, made.stderr
    assert changes(bob, **bob.own_state(), RUNNER_STACK="bobs")


@pytest.mark.feature(22)
def test_second_person_joins_gets_the_roles_and_trains(azure: Deployment, stage: Stage) -> None:
    azure.ok("up -y --no-check")
    bob = Person(stage, "bob", _BOB)
    here = {"RUNNER_HOME": str(bob.home), "ARM_SUBSCRIPTION_ID": SUBSCRIPTION}
    (azure.folder / "hi.py").write_text("print('hi')\n")
    train = "train hi.py --pool work --detach -o json"
    unknown = azure.run(train, **azure.names, **here)
    assert "R-STACK-MISSING" in unknown.stdout + unknown.stderr
    before = stage.azure.journal()

    with ArmServer() as arm:
        there = {**arm.environment(), **here}
        mirror(stage.azure, arm, _BOB)
        refused = azure.run("join -o json", **there)
        assert refused.returncode == 4, refused.stderr
        checks = json.loads(refused.stdout)["checks"]
        assert {each["code"] for each in checks} == {"R-JOIN-ROLES"}
        assert all(f"{{id: {_BOB}, kind: user}}" in each["fix"] for each in checks)
        assert all(f"--assignee-object-id {_BOB}" in each["fix"] for each in checks)
        assert all(f"User {_ADA}" in each["detail"] for each in checks)
        assert stage.azure.journal() == before  # nothing is deployed or taken over

        azure.change(("config:\n", f"config:\n  runner:operators: [{_BOB}]\n"))
        azure.ok("up -y --no-check")
        mirror(stage.azure, arm, _BOB)
        joined = json.loads(azure.ok("join -o json", **there))
    assert [each["state"] for each in joined["checks"]] == ["ok", "ok"]
    assert joined["stack_id"] == json.loads(azure.outputs.read_text())["stack_id"]

    azure.serve()
    stored = bob.home / "stacks/dev.json"
    document = json.loads(stored.read_text())
    stored.write_text(json.dumps({**document, "identity_client_id": CLIENT}))
    azure.replace_pool("work")
    done = azure.run(train, **azure.names, **here)
    assert done.returncode == 0, done.stderr

    def state() -> str:
        shown = azure.run("ps -o json", **azure.names, **here)
        return json.loads(shown.stdout)[0]["state"]

    until(lambda: state() == "succeeded", timeout_s=180)


_RIGHTS = {
    "6aaa78f1-f7de-44ca-8722-c64a23943cae": ["Microsoft.Batch/batchAccounts/jobs/*"],
    "ba92f5b4-2d11-453d-a403-e96b0029c9fe": [
        "Microsoft.Storage/storageAccounts/blobServices/containers/blobs/*"
    ],
}
_OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"


def mirror(azure: Azure, arm: ArmServer, principal: str) -> None:
    """Serve the resources of the stand-in by Resource Manager, to a principal and its roles."""
    arm.state.resources.clear()
    arm.state.handlers.clear()
    arm.state.token = token_of({"oid": principal, "idtyp": "user"})
    found = [record for each in azure.ids() if (record := azure.get(each)) is not None]
    for each in found:
        inputs, outputs = each["inputs"], each["outputs"]
        arm.state.resources[each["id"]] = {
            "id": each["id"],
            "name": outputs["name"],
            "location": inputs.get("location", ""),
            "tags": inputs.get("tags") or {},
            "properties": {**inputs, **outputs},
        }
    roles = [each for each in found if each["type"].endswith(":RoleAssignment")]

    def permissions(path: str, _: object) -> tuple[int, dict[str, Any], dict[str, str]]:
        scope = path.lower().partition("/providers/microsoft.authorization/")[0]
        given = [
            _RIGHTS.get(each["inputs"]["roleDefinitionId"].rpartition("/")[2], [])
            for each in roles
            if each["inputs"]["principalId"] == principal
            and scope.startswith(each["inputs"]["scope"].lower())
        ]
        return 200, {"value": [{"actions": [], "dataActions": part} for part in given]}, {}

    def assignments(_: str, __: object) -> tuple[int, dict[str, Any], dict[str, str]]:
        definition = f"/providers/Microsoft.Authorization/roleDefinitions/{_OWNER}"
        owner = {"principalId": _ADA, "principalType": "User", "roleDefinitionId": definition}
        return 200, {"value": [{"properties": owner}]}, {}

    arm.handle("GET", "/providers/microsoft.authorization/permissions", permissions)
    arm.handle("GET", "/providers/microsoft.authorization/roleassignments", assignments)


def test_outputs_are_joined_from_a_shared_state_without_its_passphrase(
    stage: Stage, project: Path, ada: Person, bob: Person
) -> None:
    outputs = ada.up()
    state = f"file://{stage.folder / 'state'}"
    unset = {"PULUMI_BACKEND_URL": "", "PULUMI_CONFIG_PASSPHRASE": ""}
    with ArmServer() as arm:
        mirror(stage.azure, arm, _ADA)
        here = {**arm.environment(), **unset}
        joined = printed(bob.run("join", state, "-o", "json", **here))
        missing = bob.run("join", state, "--stack", "lab", **here)
    assert joined["stack_id"] == outputs["stack_id"]
    assert json.loads((bob.home / "stacks/dev.json").read_text())["pools"] == outputs["pools"]
    assert "R-JOIN-NONE" in missing.stderr
    assert "found: dev" in missing.stderr
