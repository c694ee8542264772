"""`runner up` ends with the quotas of the account that it created, and `check` repeats them."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any

import pytest

from runner_infra.config.naming import Names
from tests.arm_server import ArmServer
from tests.engine.deployed import make_project, run_in
from tests.engine.stage import Stage
from tests.unit.infra.cloud import SUBSCRIPTION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
NAMES = Names("dev", SUBSCRIPTION)


@pytest.fixture
def arm() -> Generator[ArmServer]:
    with ArmServer() as server:
        server.add_size("Standard_NC4as_T4_v3", "standardNCASv3_T4Family", "westeurope")
        server.state.images = {"microsoft-dsvm/ubuntu-hpc/2204": ["22.04.1"]}
        yield server


def grant(arm: ArmServer, **quotas: Any) -> None:
    """Have the account that the deployment creates, with these quotas."""
    arm.add_batch_account(NAMES.resource_group, NAMES.batch_account, "westeurope", **quotas)


def _forget_outputs(stage: Stage) -> None:
    """Leave out the check of images, which asks the Batch account; here nothing answers for it."""
    (stage.folder / "runner/stacks/dev.json").unlink()


@pytest.mark.feature(9)
def test_account_without_spot_quota_is_deployed_and_not_called_ready(
    stage: Stage, arm: ArmServer
) -> None:
    make_project(stage)
    # Resource Manager shows the account after its creation: until then, a read is a 404.
    account = f"/batchaccounts/{NAMES.batch_account}"
    created = lambda: any(account in each.lower() for each in stage.azure.ids())  # noqa: E731
    grant(arm, lowPriorityCoreQuota=0)
    [(path, body)] = arm.state.resources.items()
    gone = {"error": {"code": "ResourceNotFound", "message": "not yet"}}
    arm.handle("GET", account, lambda *_: (200, body, {}) if created() else (404, gone, {}))
    arm.handle("GET", "/batchaccounts", lambda *_: (200, {"value": []}, {}))

    here = {**arm.environment(), "COLUMNS": "80"}
    done = run_in(stage, "up", "-y", **here)
    assert done.returncode == 0, done.stderr
    assert "The environment is deployed, but its quota allows no node" in done.stderr
    assert "spot quota 0: no node of pool t4 starts" in done.stderr
    request = f"16 spot cores (low-priority) for {NAMES.batch_account} in westeurope"
    assert request in " ".join(done.stderr.split())
    advice = "meanwhile: pool t4: max_spot: 0 and max_dedicated: 1 works now"
    assert advice in " ".join(done.stderr.split())
    assert "ready" not in done.stderr

    _forget_outputs(stage)
    document = json.loads(run_in(stage, "up", "-y", "-o", "json", **here).stdout)
    assert document["quotas"]["pools_without_nodes"] == ["t4"]
    [spot] = document["quotas"]["cores"]
    assert spot["request"] == {
        "batch_account": NAMES.batch_account,
        "region": "westeurope",
        "type": "LowPriority",
        "vm_family": None,
        "new_limit": 16,
    }

    _forget_outputs(stage)
    checked = run_in(stage, "check", "-o", "json", **here)
    assert checked.returncode == 5
    [failed] = [each for each in json.loads(checked.stdout) if each["state"] == "failed"]
    assert (failed["check"], failed["code"]) == ("quotas", "R-QUOTA")
    assert request in failed["fix"]
    assert path in arm.state.resources


def test_account_with_quota_is_ready(stage: Stage, arm: ArmServer) -> None:
    make_project(stage)
    grant(arm, lowPriorityCoreQuota=64)
    done = run_in(stage, "up", "-y", **arm.environment())
    assert done.returncode == 0, done.stderr
    assert "The environment is ready" in done.stderr
    assert "request in the portal" not in done.stderr


def test_unreadable_quotas_are_a_warning(stage: Stage, arm: ArmServer) -> None:
    make_project(stage)
    answers = iter([(404, {"error": {"code": "ResourceNotFound", "message": "none"}}, {})])
    denied = (403, {"error": {"code": "AuthorizationFailed", "message": "no"}}, {})
    account = f"/batchaccounts/{NAMES.batch_account}"
    arm.handle("GET", account, lambda *_: next(answers, denied))
    done = run_in(stage, "up", "-y", "-o", "json", **arm.environment())
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["quotas"] is None
    [warning] = [each for each in document["warnings"] if "unknown quotas" in each]
    assert "AuthorizationFailed" in warning
