"""`runner image` against a Resource Manager of our own over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.azure.auth.credentials import outputs_path
from runner.cli.main import main
from runner.core.settings import load_settings
from runner.flows.environment import images
from tests.arm_server import ArmServer, resource_id
from tests.unit.core.recipe_maker import outputs

GROUP = "rg-runner-dev"
DEFINITION = resource_id(GROUP, "Microsoft.Compute/galleries/runner_dev/images/runner-gpu")
TEMPLATE = resource_id(GROUP, "Microsoft.VirtualMachineImages/imageTemplates/it-runner-dev-1")
STAGING = "/subscriptions/s/resourceGroups/IT_rg-runner-dev_it_1"


def run_status(state: str, sub_state: str = "", message: str = "", started: str = "t2") -> Any:
    return {
        "runState": state,
        "runSubState": sub_state,
        "message": message,
        "startTime": started,
        "endTime": "t3",
    }


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[ArmServer]:
    """Yield a fake Azure with an image definition and its template, without versions."""
    with ArmServer() as running:
        for name, value in running.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
        monkeypatch.setenv("RUNNER_CONFIG", "")
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(images, "POLL_S", 0.001)
        write_outputs(DEFINITION)
        running.add_batch_account(GROUP, "account", "westeurope")
        life = {"endOfLifeDate": "2029-04-30T00:00:00Z"}
        running.state.resources[DEFINITION] = {"name": "runner-gpu", "properties": life}
        add_template(running, TEMPLATE)
        yield running


def write_outputs(definition: str | None) -> None:
    deployed = replace(
        outputs(), location="westeurope", resource_group=GROUP,
        batch_account="account", storage_account="store", pools=(), image_definition=definition,
    )  # fmt: skip
    import os

    path = outputs_path(load_settings({"target": "azure"}, cwd=Path.cwd(), env=os.environ))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(deployed.to_json(), encoding="utf-8")


def add_template(
    server: ArmServer, path: str, *, definition: str = DEFINITION, created: str = "2026-11-01"
) -> dict[str, Any]:
    document = {
        "id": path,
        "name": path.rpartition("/")[2],
        "systemData": {"createdAt": created},
        "properties": {
            "distribute": [{"type": "SharedImage", "galleryImageId": definition}],
            "exactStagingResourceGroup": STAGING,
        },
    }
    server.state.resources[path] = document
    return document


def play(server: ArmServer, *states: Any, version: str | None = "1.0.4") -> None:
    """Let each GET of the template after POST /run return the next state; the last one stays."""
    document = server.state.resources[TEMPLATE]
    queue = list(states)
    begun: list[bool] = []

    def run(path: str, body: Any) -> Any:
        begun.append(True)
        return 202, {}, {"Location": f"{server.url}/operations/1"}

    def look(path: str, body: Any) -> Any:
        running = document["properties"].get("lastRunStatus", {}).get("runState") == "Running"
        if (begun or running) and queue:
            found = queue.pop(0) if len(queue) > 1 else queue[0]
            if isinstance(found, int):
                return found, {"error": {"code": "InternalOperationError", "message": "x"}}, {}
            document["properties"]["lastRunStatus"] = found
        return 200, document, {}

    server.handle("POST", "/it-runner-dev-1/run", run)
    output = {"properties": {"artifactId": f"{DEFINITION}/versions/{version}"}}
    if version:
        server.state.resources[f"{TEMPLATE}/runOutputs/gallery"] = output
    server.handle("GET", "/runoutputs/gallery", lambda *_: (200, output if version else {}, {}))
    server.handle("GET", "/imagetemplates/it-runner-dev-1", look)


def posts(server: ArmServer) -> list[str]:
    return [path for method, path, _ in server.state.requests if method == "POST"]


def add_version(server: ArmServer, name: str, state: str = "Succeeded") -> None:
    regions = [{"name": "West Europe"}, {"name": "North Europe"}]
    server.state.resources[f"{DEFINITION}/versions/{name}"] = {
        "name": name,
        "tags": {"runner-node-agent": "batch.node.ubuntu 24.04"},
        "properties": {
            "provisioningState": state,
            "publishingProfile": {
                "publishedDate": "2026-11-20T10:00:00+00:00",
                "targetRegions": regions,
            },
        },
    }


def add_pools(server: ArmServer, group: str = GROUP, **used: str) -> None:
    def pool(name: str, image: str) -> dict[str, Any]:
        reference = {"imageReference": {"id": image}} if image else {}
        deployment = {"virtualMachineConfiguration": reference}
        return {"name": name, "properties": {"deploymentConfiguration": deployment}}

    pools = [pool(name, image) for name, image in used.items()]
    account = resource_id(group, "Microsoft.Batch/batchAccounts/account").lower()
    server.handle("GET", f"{account}/pools", lambda *_: (200, {"value": pools}, {}))


@pytest.mark.feature(3)
def test_build_is_started_and_watched_until_its_version(
    server: ArmServer, capsys: pytest.CaptureFixture[str]
):
    play(
        server,
        run_status("Running", "Building"),
        run_status("Running", "Customizing"),
        run_status("Running", "Validating"),
        run_status("Succeeded"),
    )
    assert main(["image", "build", "-o", "json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {
        "version": "1.0.4",
        "template": "it-runner-dev-1",
        "state": "Succeeded",
    }
    assert posts(server) == [f"{TEMPLATE}/run"]
    ended = [line.split()[1] for line in shown.err.splitlines() if line.startswith("✓")]
    assert ended == ["building", "customizing", "validating"]


def test_failed_build_has_the_reason_and_its_log(
    server: ArmServer, capsys: pytest.CaptureFixture[str]
):
    play(
        server,
        run_status("Running", "Validating"),
        run_status("Failed", message="Validation failed:\n verify exited 1"),
    )
    assert main(["image", "build"]) == 1
    shown = capsys.readouterr().err
    assert "error[R-IMAGE-BUILD]: the image was not built" in shown
    assert "why: Validation failed: verify exited 1" in shown
    assert "customization.log" in shown
    assert "IT_rg-runner-dev_it_1" in shown


@pytest.mark.parametrize("state", ["Canceled", "PartiallySucceeded"])
def test_unsuccessful_build_is_a_failure(server: ArmServer, state: str):
    play(server, run_status("Running"), run_status(state))
    assert main(["image", "build"]) == 1


def test_outcome_of_an_earlier_build_is_ignored(
    server: ArmServer, capsys: pytest.CaptureFixture[str]
):
    old = run_status("Failed", message="the old one", started="t1")
    server.state.resources[TEMPLATE]["properties"]["lastRunStatus"] = old
    play(server, old, old, run_status("Running"), run_status("Succeeded"))
    assert main(["image", "build"]) == 0
    shown = capsys.readouterr()
    assert "the old one" not in shown.err
    assert "1.0.4" in shown.out


@pytest.mark.parametrize("run_before", [True, False])
def test_build_that_never_starts_is_an_error(
    server: ArmServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run_before: bool,
):
    if run_before:
        old = run_status("Failed", started="t1")
        server.state.resources[TEMPLATE]["properties"]["lastRunStatus"] = old
        play(server, old)
    else:
        play(server, {})
    monkeypatch.setattr(images, "_BEGINS_WITHIN_S", 0)
    assert main(["image", "build"]) == 1
    assert "no run started within 15 minutes" in capsys.readouterr().err


def test_running_build_is_watched_and_not_started_again(server: ArmServer):
    server.state.resources[TEMPLATE]["properties"]["lastRunStatus"] = run_status("Running")
    play(server, run_status("Running"), run_status("Succeeded"))
    assert main(["image", "build"]) == 0
    assert posts(server) == []


def test_temporary_service_error_does_not_end_the_watch(server: ArmServer):
    play(server, run_status("Running"), 400, 400, run_status("Running"), run_status("Succeeded"))
    assert main(["image", "build"]) == 0


def test_persistent_service_error_ends_the_watch_with_a_hint(
    server: ArmServer, capsys: pytest.CaptureFixture[str]
):
    play(server, run_status("Running"), 400)
    assert main(["image", "build"]) == 3
    shown = capsys.readouterr().err
    assert "may continue" in shown
    assert "InternalOperationError" in shown


def test_ctrl_c_keeps_the_build_running_and_prints_how_to_watch(
    server: ArmServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    play(server, run_status("Running", "Building"))

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    # Only the module's name: `time.sleep` itself also runs in threads of other tests.
    monkeypatch.setattr(images, "time", SimpleNamespace(sleep=interrupt, monotonic=time.monotonic))
    assert main(["image", "build"]) == 130
    shown = capsys.readouterr().err
    assert "the build continues. To watch it: runner image build" in shown
    assert not [path for path in posts(server) if "cancel" in path]


def test_no_wait_starts_and_returns(server: ArmServer, capsys: pytest.CaptureFixture[str]):
    play(server, run_status("Running"))
    assert main(["image", "build", "--no-wait", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "Running"
    assert posts(server) == [f"{TEMPLATE}/run"]


def test_success_without_a_version_is_an_error(
    server: ArmServer, capsys: pytest.CaptureFixture[str]
):
    play(server, run_status("Running"), run_status("Succeeded"), version=None)
    assert main(["image", "build"]) == 1
    assert "succeeded without a version" in capsys.readouterr().err


def test_newest_template_of_the_definition_is_run(server: ArmServer):
    other = DEFINITION.replace("runner-gpu", "other")
    add_template(server, TEMPLATE.replace("-dev-1", "-dev-0"), created="2026-10-01")
    add_template(server, TEMPLATE.replace("-dev-1", "-x"), definition=other, created="2026-12-01")
    play(server, run_status("Running"), run_status("Succeeded"))
    assert main(["image", "build"]) == 0
    assert posts(server) == [f"{TEMPLATE}/run"]


def no_image(_: ArmServer) -> None:
    write_outputs(None)


def no_template(server: ArmServer) -> None:
    del server.state.resources[TEMPLATE]


def no_right(server: ArmServer) -> None:
    server.refuse("/imagetemplates", 403, "AuthorizationFailed")


def no_quota(server: ArmServer) -> None:
    server.refuse("/run", 409, "QuotaExceeded")


@pytest.mark.parametrize(
    ("break_it", "code", "exit_code"),
    [
        (no_image, "R-IMAGE-NONE", 3),
        (no_template, "R-IMAGE-TEMPLATE", 3),
        (no_right, "R-AZURE-DENIED", 4),
        (no_quota, "R-AZURE-QUOTA", 5),
    ],
)
def test_impossible_build_is_one_error_with_a_fix(
    server: ArmServer,
    capsys: pytest.CaptureFixture[str],
    break_it: Callable[[ArmServer], None],
    code: str,
    exit_code: int,
):
    break_it(server)
    assert main(["image", "build"]) == exit_code
    shown = capsys.readouterr().err
    assert f"error[{code}]" in shown
    assert "fix: " in shown


def test_versions_are_listed_newest_first_with_their_pools(
    server: ArmServer, capsys: pytest.CaptureFixture[str]
):
    for name in ("1.0.2", "1.0.10", "1.0.9"):
        add_version(server, name)
    add_version(server, "1.0.11", "Creating")
    add_pools(
        server,
        t4=f"{DEFINITION}/versions/1.0.2",
        a100=DEFINITION.lower(),
        plain="",
        other=f"{DEFINITION}x/versions/1.0.2",
    )
    assert main(["image", "ls", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["version"] for row in rows] == ["1.0.11", "1.0.10", "1.0.9", "1.0.2"]
    assert [row["pools"] for row in rows] == [[], ["a100 (latest)"], [], ["t4"]]
    assert rows[1]["regions"] == ["West Europe", "North Europe"]
    assert rows[1]["node_agent"] == "batch.node.ubuntu 24.04"
    assert rows[1]["end_of_life"] == "2029-04-30"
    assert rows[1]["created"] == "2026-11-20T10:00:00+00:00"


def test_pools_of_an_adopted_account_are_found_in_its_group(
    server: ArmServer, capsys: pytest.CaptureFixture[str]
):
    del server.state.resources[resource_id(GROUP, "Microsoft.Batch/batchAccounts/account")]
    server.add_batch_account("team", "account", "westeurope")
    add_version(server, "1.0.2")
    add_pools(server, group="team", t4=DEFINITION)
    assert main(["image", "ls", "-o", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["pools"] == ["t4 (latest)"]


def test_table_has_one_line_per_version(server: ArmServer, capsys: pytest.CaptureFixture[str]):
    add_version(server, "1.0.2")
    add_pools(server, t4=DEFINITION)
    assert main(["image", "ls", "-o", "tsv"]) == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split("\t")[0] == "version"
    assert row.split("\t")[:4] == ["1.0.2", "2026-11-20", "Succeeded", "West Europe, North Europe"]


def test_missing_versions_name_the_build_command(
    server: ArmServer, capsys: pytest.CaptureFixture[str]
):
    add_pools(server)
    assert main(["image", "ls"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "runner image build" in shown.err
