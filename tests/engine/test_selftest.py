"""`runner selftest --target azure` over the real engine: its stack is deployed and goes again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.account import Limits
from batch_emulator.server import Server
from infra.config.naming import Names
from tests.contract.server import eventually
from tests.engine.stage import ROOT, Stage
from tests.unit.infra.cloud import SUBSCRIPTION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
Selftest = Callable[..., subprocess.Popen[str]]
ACCOUNT = Names("selftest", SUBSCRIPTION).batch_account


@pytest.fixture
def selftest(stage: Stage) -> Selftest:
    """The command in a project whose stack `dev` says where; without training."""
    project = stage.folder / "project"
    project.mkdir()
    shutil.copy(ROOT / "Pulumi.yaml", project)
    text = (ROOT / "Pulumi.dev.yaml").read_text()
    text += f"  azure-native:location: eastus\n  azure-native:subscriptionId: {SUBSCRIPTION}\n"
    (project / "Pulumi.dev.yaml").write_text(text)

    def run(*before: str, **env: str) -> subprocess.Popen[str]:
        words = ("selftest", "--target", "azure", "--yes", "--no-training", "--no-check")
        return subprocess.Popen(
            [*before, sys.executable, "-m", "runner", *words],
            cwd=project,
            env={**stage.environment, "RUNNER_HOME": str(stage.folder / "runner"), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # with the engine, as the processes of a terminal
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
        )

    return run


def through_gateway(server: Server) -> list[str]:
    """The start of a command for which the name of the stack's account leads to the emulator."""
    gateway = [sys.executable, "-m", "batch_emulator.gateway", "--account", ACCOUNT]
    storage = f"http://127.0.0.1:1/{ACCOUNT}"
    return [*gateway, "--batch", server.url, "--blob", storage, "--file", storage, "--"]


def keys_of(server: Server) -> dict[str, str]:
    return {"AZURE_BATCH_ACCESS_KEY": server.key, "AZURE_STORAGE_KEY": server.key}


def report(stage: Stage) -> dict[str, Any]:
    return json.loads((stage.folder / "project/selftest-report.json").read_text())


def assert_gone(stage: Stage) -> None:
    assert stage.azure.ids() == stage.ids_in_state("selftest") == set()
    assert not (stage.folder / "runner/selftest").exists()
    assert not (stage.folder / "runner/stacks/selftest.json").exists()


def test_stack_is_deployed_compared_and_removed(stage: Stage, selftest: Selftest) -> None:
    with Server(account=ACCOUNT) as server:
        process = selftest(*through_gateway(server), **keys_of(server))
        said = process.communicate()[1]
    assert process.returncode == 0, said
    assert "The self-test passed" in said
    document = report(stage)
    assert (document["passed"], document["different"], document["left"]) == (True, 0, [])
    assert document["equal"] > 60
    assert 0 < document["usd"] < document["usd_at_most"] < 5
    made = [what for operation, what in stage.azure.journal() if operation == "create"]
    assert any(what.endswith(f"/batchAccounts/{ACCOUNT}/pools/t4") for what in made)
    assert_gone(stage)


def test_stack_is_removed_after_a_deployment_that_fails(stage: Stage, selftest: Selftest) -> None:
    stage.azure.fail("create", "t4", "QuotaExceeded", times=100)
    process = selftest()
    said = process.communicate()[1]
    assert process.returncode not in (0, 70), said
    document = report(stage)
    assert (document["passed"], document["left"]) == (False, [])
    assert document["problem"]
    assert stage.azure.journal()
    assert_gone(stage)


def test_what_cannot_be_removed_is_named_with_its_command(stage: Stage, selftest: Selftest) -> None:
    stage.azure.fail("create", "t4", "QuotaExceeded", times=100)
    stage.azure.fail("delete", ACCOUNT, "AnotherOperationInProgress", times=100)
    process = selftest()
    said = process.communicate()[1]
    assert process.returncode not in (0, 70), said
    assert "stack selftest was not removed" in said
    [left] = report(stage)["left"]
    folder = Path(stage.folder / "runner/selftest")
    assert left["what"] == "stack selftest"
    assert left["command"].startswith(f"cd {folder} && runner down --stack selftest --everything")
    assert (folder / "Pulumi.selftest.yaml").is_file()


def test_stack_is_removed_after_ctrl_c(stage: Stage, selftest: Selftest) -> None:
    with Server(account=ACCOUNT, limits=Limits(boot_s=3600)) as server:
        process = selftest(*through_gateway(server), **keys_of(server))
        assert server.emulator is not None
        pools = server.emulator.account.pools
        # from then on it waits for the node of this pool
        eventually(lambda: any(pool.startswith("selftest-work") for pool in list(pools)), 600)
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate()[1]
    assert process.returncode == 130, said
    document = report(stage)
    assert (document["passed"], document["left"], document["equal"]) == (False, [], 0)
    assert_gone(stage)
