"""`runner up`, `preview` and `down` over the real Pulumi engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from batch_emulator.server import Server
from runner.contract import parse_stack_outputs
from runner_infra.config.naming import Names
from tests.arm_server import ArmServer
from tests.e2e import warm
from tests.e2e.conftest import RUNNER
from tests.engine.deployed import DeployedOnce, make_project, run_in
from tests.engine.stage import Stage
from tests.engine.test_selftest import NO_FILES, gateway_names
from tests.unit.infra.cloud import SUBSCRIPTION
from tests.unit.infra.stacks import ADOPTED

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
Runner = Callable[..., subprocess.CompletedProcess[str]]
_T = TypeVar("_T")
_TIMEOUT_S = 600
_NETWORKED = "  runner:network: {storage_from: all}\n"
_DOWN_ALL = ("down", "-y", "--force", "--everything", "-o", "json")
_IMAGE = "  runner:image: {}\n"
ACCOUNT = Names("dev", SUBSCRIPTION).batch_account
NO_BLOBS = f"http://127.0.0.1:1/{ACCOUNT}"


@pytest.fixture
def project(stage: Stage) -> Path:
    return make_project(stage)


@pytest.fixture
def azure() -> Generator[ArmServer]:
    with ArmServer() as server:
        server.add_size("Standard_NC4as_T4_v3", "standardNCASv3_T4Family", "westeurope")
        server.state.images = {"microsoft-dsvm/ubuntu-hpc/2204": ["22.04.1"]}
        yield server


@pytest.fixture
def runner(stage: Stage, project: Path) -> Runner:
    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        return run_in(stage, *words, **env)

    return run


def change(project: Path, before: str, after: str) -> None:
    file = project / "Pulumi.dev.yaml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.feature(1)
def test_up_deploys_stores_outputs_and_changes_nothing_again(stage: Stage, runner: Runner) -> None:
    outputs = printed(runner("up", "-y", "--no-check", "-o", "json"))
    kept = (stage.folder / "runner/stacks/dev.json").read_text()
    assert parse_stack_outputs(kept) == parse_stack_outputs(json.dumps(outputs))
    assert [pool["id"] for pool in outputs["pools"]] == ["t4"]
    made = stage.azure.ids()
    assert made == stage.ids_in_state()

    assert printed(runner("preview", "-o", "json"))["changes"] == []
    assert runner("up", "-y", "--no-check").returncode == 0
    assert stage.azure.ids() == made


def test_preview_distinguishes_updates_from_replacements(
    project: Path, stage: Stage, runner: Runner, deployed_once: DeployedOnce
) -> None:
    deployed_once.copy_to(stage)
    change(project, "max_spot: 4", "max_spot: 2")
    (changed,) = printed(runner("preview", "-o", "json"))["changes"]
    assert (changed["change"], changed["type"]) == ("~ update", "batch:Pool")
    change(project, "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4")
    (changed,) = printed(runner("preview", "-o", "json"))["changes"]
    assert (changed["change"], changed["name"]) == ("± replace", "pool-t4")
    assert "vmSize" in changed["because_of"]


@pytest.mark.feature(1)
def test_down_keeps_data_unless_everything_is_given(
    stage: Stage, runner: Runner, deployed_once: DeployedOnce
) -> None:
    deployed_once.copy_to(stage)
    # No services answer for the stand-in's account: whether runs are active cannot be asked.
    left = printed(runner("down", "-y", "--force", "-o", "json"))["remaining"]
    kinds = {row["type"] for row in left}
    assert {"storage:StorageAccount", "storage:BlobContainer", "resources:ResourceGroup"} <= kinds
    assert "batch:Pool" not in kinds
    assert not (stage.folder / "runner/stacks/dev.json").exists()
    assert not [found for found in stage.azure.ids() if "/batchAccounts/" in found]

    assert printed(runner("up", "-y", "--no-check", "-o", "json"))["pools"]
    assert printed(runner(*_DOWN_ALL))["remaining"] == []
    assert stage.azure.ids() == stage.ids_in_state() == set()
    again = runner("down", "-y")
    assert again.returncode == 0
    assert "not deployed" in again.stderr


@pytest.mark.feature(27)
def test_adopted_accounts_are_unchanged_by_up_and_down(
    project: Path, stage: Stage, runner: Runner
) -> None:
    before = project / "Pulumi.dev.yaml"
    before.write_text(f"{before.read_text()}  runner:adopt: {json.dumps(ADOPTED)}\n")
    missing = runner("up", "-y", "--no-check")
    assert missing.returncode != 0
    assert "was not found" in missing.stderr
    theirs = _team(stage)
    outputs = printed(runner("up", "-y", "--no-check", "-o", "json"))
    assert (outputs["batch_account"], outputs["storage_account"]) == ("teambatch", "teamdata")
    assert printed(runner("preview", "-o", "json"))["changes"] == []
    made = stage.azure.ids() - theirs
    assert any(found.endswith("/batchAccounts/teambatch/pools/t4") for found in made)
    left = printed(runner("down", "-y", "--force", "-o", "json"))["remaining"]
    assert {row["type"] for row in left} == {"storage:BlobContainer"}
    assert printed(runner(*_DOWN_ALL))["remaining"] == []
    assert stage.azure.ids() == theirs
    assert not {found for _, found in stage.azure.journal()[len(theirs) :]} & theirs


def _team(stage: Stage) -> set[str]:
    """Return another team's group with a Batch account, a storage account and a container."""
    azure, group = stage.azure, {"resourceGroupName": "team", "location": "westeurope"}
    data = {**group, "accountName": "teamdata"}
    for kind, inputs in (
        ("resources:ResourceGroup", group),
        ("batch:BatchAccount", {**group, "accountName": "teambatch"}),
        ("storage:StorageAccount", data),
        ("storage:BlobContainer", {**data, "containerName": "runs"}),
    ):
        azure.create(f"azure-native:{kind}", inputs)
    return azure.ids()


_LOCKED_OUT = "the storage account allows only the subnet of the pools, because your public IPv4"


def test_warnings_of_the_program_are_shown_once_and_asked_about(
    project: Path, stage: Stage, runner: Runner
) -> None:
    file = project / "Pulumi.dev.yaml"
    text = file.read_text().replace("westeurope", "brazilsouth")  # the table has no price there
    file.write_text(f"{text}  runner:network: {{}}\n")
    warning, price = printed(runner("preview", "-o", "json"))["warnings"]
    assert "unknown price of t4" in price
    assert warning.startswith(_LOCKED_OUT)
    assert "set network.storage_from" in warning

    declined = answer(stage, "n", "up", "--no-check")
    assert declined.returncode == 2
    assert f"warning: {warning}" in declined.stderr
    assert " changes despite 2 warnings? [y/N]" in declined.stderr
    assert stage.azure.ids() == set()

    done = runner("up", "-y", "--no-check", "-o", "json")
    assert printed(done)["warnings"] == [warning, price]
    assert done.stderr.count(_LOCKED_OUT) == 1
    assert parse_stack_outputs(done.stdout).pools


def answer(stage: Stage, said: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run `runner` with a terminal as its input, on which a person answers."""
    ours, theirs = os.openpty()
    try:
        os.write(ours, f"{said}\n".encode())
        return subprocess.run(
            [RUNNER, *words],
            cwd=stage.folder / "project",
            env={**stage.environment, "RUNNER_HOME": str(stage.folder / "runner")},
            stdin=theirs,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
        )
    finally:
        os.close(ours)
        os.close(theirs)


def test_warnings_of_a_provider_are_shown_by_every_command(
    project: Path, stage: Stage, runner: Runner, deployed_once: DeployedOnce
) -> None:
    deployed_once.copy_to(stage)
    stage.azure.warn("pool-t4", "API version 2024-07-01 will be retired")
    change(project, "max_spot: 4", "max_spot: 2")
    expected = ["API version 2024-07-01 will be retired"]
    assert printed(runner("preview", "-o", "json"))["warnings"][:1] == expected
    shown = runner("up", "-y", "--no-check")
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr.count(f"warning: {expected[0]}") == 1
    assert printed(runner("down", "-y", "--force", "-o", "json"))["warnings"] == expected


@pytest.mark.fix("R-POOL-UPDATE")
def test_pool_whose_update_azure_refuses_is_replaced_on_request(
    project: Path, stage: Stage, runner: Runner, deployed_once: DeployedOnce
) -> None:
    deployed_once.copy_to(stage, _NETWORKED)
    stage.azure.refuse_resent("batch:Pool", "networkConfiguration")
    change(project, "max_spot: 4", "max_spot: 2")
    refused = runner("up", "-y", "--no-check")
    assert refused.returncode == 3
    assert "error[R-POOL-UPDATE]: Azure refuses to update pool 't4' in place" in refused.stderr
    assert "networkConfiguration" in refused.stderr
    assert "fix: `runner up --stack dev --replace t4`" in refused.stderr

    words = ("--stack", "dev", "--replace", "t4")
    (changed,) = printed(runner("preview", *words, "-o", "json"))["changes"]
    assert (changed["change"], changed["name"]) == ("± replace", "pool-t4")
    with (
        Server(account=ACCOUNT) as server,
        gateway_names(stage, server.key, ACCOUNT, server.url, NO_BLOBS, NO_FILES) as names,
    ):
        done = runner("up", *words, "-y", "--no-check", "-o", "json", **names)
    assert printed(done)["pools"]
    assert [done for done, where in stage.azure.journal() if where.endswith("/pools/t4")] == [
        "create",
        "delete",
        "create",
    ]
    assert printed(runner("preview", "-o", "json"))["changes"] == []


def test_only_deployed_pools_are_replaced(
    stage: Stage, runner: Runner, deployed_once: DeployedOnce
) -> None:
    deployed_once.copy_to(stage)
    unknown = runner("up", "-y", "--no-check", "--replace", "t44")
    assert unknown.returncode == 2
    assert "error[R-UP-POOL]: stack 'dev' has no deployed pool 't44'" in unknown.stderr
    assert "did you mean 't4'" in unknown.stderr


def test_nothing_is_deployed_without_consent(stage: Stage, runner: Runner) -> None:
    done = runner("up", "--no-check")
    assert done.returncode == 2
    assert "R-UP-DECLINED" in done.stderr
    assert stage.azure.ids() == set()


def test_up_runs_the_checks_before_it_deploys(
    stage: Stage, runner: Runner, azure: ArmServer
) -> None:
    def up() -> subprocess.CompletedProcess[str]:
        return runner("up", "-y", "-o", "json", **azure.environment())

    azure.refuse("/providers", 403, "AuthorizationFailed")
    refused = up()
    assert refused.returncode == 4, refused.stderr
    assert json.loads(refused.stdout)["error"]["fix"]
    assert stage.azure.ids() == set()

    azure.state.faults.clear()
    assert printed(up())["pools"]
    assert stage.azure.ids() == stage.ids_in_state()


def test_invalid_configuration_is_refused_before_the_engine_starts(
    project: Path, stage: Stage, runner: Runner
) -> None:
    change(project, "Standard_NC4as_T4_v3", "Standard_NC6")
    done = runner("up", "-y", "--no-check")
    assert "R-MACHINE-RETIRED" in done.stderr
    assert "Traceback" not in done.stderr
    assert stage.azure.ids() == set()


@pytest.mark.feature(58)
def test_second_down_lists_kept_resources_and_changes_nothing(
    stage: Stage, runner: Runner, deployed_once: DeployedOnce
) -> None:
    deployed_once.copy_to(stage)
    left = printed(runner("down", "-y", "--force", "-o", "json"))["remaining"]
    assert not [row for row in left if row["type"].startswith("pulumi:")]
    journal = stage.azure.journal()
    # Nobody is signed in, and there is no Batch account to ask any more: sizes are unknown.
    again = runner("down")
    assert again.returncode == 0, again.stderr
    assert "`runner down --everything` also deletes the remaining resources" in again.stderr
    assert "container runs" in again.stdout
    assert stage.azure.journal() == journal


def test_down_of_an_unknown_stack_creates_no_files(
    project: Path, stage: Stage, runner: Runner
) -> None:
    assert printed(runner("down", "--stack", "other", "-o", "json"))["remaining"] == []
    assert not (project / "Pulumi.other.yaml").exists()
    assert not list((stage.folder / "state").rglob("other.json"))


def test_down_deletes_image_versions_before_their_definition(
    stage: Stage, runner: Runner, deployed_once: DeployedOnce
) -> None:
    definition = deployed_once.copy_to(stage, _IMAGE)["image_definition"]
    with ArmServer() as server:
        server.state.resources[definition] = {"name": "runner-gpu"}
        version = f"{definition}/versions/1.0.0"
        server.state.resources[version] = {"name": "1.0.0"}
        declined = runner("down", "--force", **server.environment())
        assert "R-DOWN-DECLINED" in declined.stderr
        assert "1.0.0" in declined.stderr
        assert version in server.state.resources
        done = runner("down", "-y", "--force", **server.environment())
        assert done.returncode == 0, done.stderr
        assert version not in server.state.resources
    assert definition not in stage.azure.ids()


def test_up_without_the_image_announces_and_deletes_its_versions(
    project: Path, stage: Stage, runner: Runner, deployed_once: DeployedOnce
) -> None:
    definition = deployed_once.copy_to(stage, _IMAGE)["image_definition"]
    change(project, _IMAGE, "")
    with ArmServer() as server:
        version = f"{definition}/versions/1.0.0"
        server.state.resources |= {definition: {"name": "runner-gpu"}, version: {"name": "1.0.0"}}
        declined = runner("up", "--no-check", **server.environment())
        assert "R-UP-DECLINED" in declined.stderr
        assert "deletes the VM image and its versions (1.0.0)" in declined.stderr
        assert version in server.state.resources
        done = runner("up", "-y", "--no-check", **server.environment())
        assert done.returncode == 0, done.stderr
        assert version not in server.state.resources
    assert definition not in stage.azure.ids()


def test_lock_of_a_killed_engine_is_released_for_the_next_up(stage: Stage, project: Path) -> None:
    stage.azure.slow_down(8)
    home = stage.folder / "a home"
    words = ("up", "-y", "--no-check")
    attached = _with_own_state(stage, home)
    stage.port = None  # the provider of the first is a process that outlives the engine
    first = subprocess.Popen(
        [RUNNER, *words],
        cwd=project,
        env=_with_own_state(stage, home),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _wait_for(stage.azure.ids)  # it deploys: the lock is no longer that of making the stack
    stage.azure.slow_down(1200)  # the first is not done before the second has looked
    lock = _wait_for(lambda: _files(home / "pulumi/.pulumi/locks"))[0]
    locked = warm.run(RUNNER, words, attached, project, timeout_s=_TIMEOUT_S)
    assert "R-PULUMI-LOCKED" in locked.stderr
    first.kill()
    first.wait()
    os.kill(json.loads(lock.read_text())["pid"], signal.SIGKILL)
    stage.azure.slow_down(0)
    # What Azure was at is made: its plugins outlive the engine.
    _wait_for(lambda: not stage.azure.under_way())
    again = warm.run(RUNNER, words, attached, project, timeout_s=_TIMEOUT_S)
    assert again.returncode == 0, again.stderr
    assert stage.azure.ids()


def _with_own_state(stage: Stage, home: Path) -> dict[str, str]:
    """Return the environment of commands that keep Pulumi's state and passphrase in their home."""
    own = {**stage.environment, "RUNNER_HOME": str(home)}
    for name in ("PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE"):
        del own[name]
    return own


def _files(folder: Path) -> list[Path]:
    """Return the files of a folder that are not empty; none if they change at the moment."""
    try:
        return [path for path in folder.rglob("*.json") if path.stat().st_size]
    except FileNotFoundError:
        return []


def _wait_for(look: Callable[[], _T]) -> _T:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.05)
    raise AssertionError("it never came")
