"""A deployment that replaces or deletes a pool looks for its runs first.

Azure is the stand-in of the provider for what is deployed, and the emulator and Azurite for runs.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from batch_emulator.gateway.sign_in import CLIENT
from tests.e2e.conftest import RUNNER, until
from tests.engine.stage import Stage
from tests.engine.test_fixes import Deployment, azure
from tests.unit.infra.cloud import SUBSCRIPTION

__all__ = ["azure"]  # a fixture
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_SETTINGS = f"""\
config:
  azure-native:location: eastus
  azure-native:subscriptionId: {SUBSCRIPTION}
  runner:pools:
    - {{id: work, vm_size: Standard_NC4as_T4_v3, max_spot: 1}}
    - {{id: other, vm_size: Standard_NC4as_T4_v3, max_spot: 1}}
"""
_WAITS = """\
import pathlib, time
while not pathlib.Path({go!r}).exists():
    time.sleep(0.1)
"""


def document(azure: Deployment, words: str) -> Any:
    return json.loads(azure.ok(f"{words} -o json"))


def phases(azure: Deployment) -> dict[str, str]:
    return {each["experiment"]: each["state"] for each in document(azure, "ps")}


def paused_jobs(azure: Deployment) -> list[str]:
    jobs = azure.batch.list_jobs(filter="state eq 'disabled' or state eq 'disabling'")
    return [str(job.id) for job in jobs]


def operations(stage: Stage) -> list[str]:
    return [done for done, where in stage.azure.journal() if where.endswith("/pools/work")]


@pytest.mark.feature(1)
@pytest.mark.fix("R-UP-ACTIVE")
def test_replaced_pool_waits_for_its_runs_and_deleted_one_is_refused(
    azure: Deployment, stage: Stage
) -> None:
    azure.file.write_text(_SETTINGS)
    azure.ok("up -y --no-check")
    azure.serve()
    stored = json.loads(azure.outputs.read_text())
    azure.outputs.write_text(json.dumps({**stored, "identity_client_id": CLIENT}))
    azure.replace_pool("work")
    go = stage.folder / "go"
    (azure.folder / "wait.py").write_text(_WAITS.format(go=str(go)))
    azure.ok("train wait.py --pool work -e first --detach")
    until(lambda: phases(azure)["first"] == "running", timeout_s=120)
    azure.ok("train wait.py --pool work -e second --detach")

    azure.change(("work, vm_size: Standard_NC4as_T4_v3", "work, vm_size: Standard_NC8as_T4_v3"))
    [lost] = document(azure, "preview")["interrupts"]
    assert (lost["pool"], lost["replaced"], lost["nodes"]) == ("work", True, 1)
    [first] = lost["runs"]
    assert first == next(
        each["run_id"] for each in document(azure, "ps") if each["experiment"] == "first"
    )

    drain, force = azure.printed("R-UP-ACTIVE", "up -y --no-check")
    assert (drain, force) == ("up --drain", "up --force")
    assert operations(stage) == ["create"]

    with subprocess.Popen(
        [RUNNER, *drain.split(), "-y", "--no-check"],
        cwd=azure.folder,
        env={**stage.environment, "RUNNER_HOME": str(stage.folder / "runner"), **azure.names},
        stderr=subprocess.PIPE,
        text=True,
    ) as waiting:
        try:
            until(lambda: paused_jobs(azure), timeout_s=120)
            assert (waiting.poll(), operations(stage)) == (None, ["create"])
        finally:
            go.touch()  # which ends the drain
        _, said = waiting.communicate(timeout=300)
    assert waiting.returncode == 0, said
    assert operations(stage) == ["create", "delete", "create"]
    assert "continued 1 paused run" in said
    until(lambda: phases(azure)["second"] == "succeeded", timeout_s=120)
    assert phases(azure)["first"] == "succeeded"

    go.unlink()
    azure.ok("train wait.py --pool work -e third --detach")
    [line] = [each for each in azure.file.read_text().splitlines(keepends=True) if "work" in each]
    azure.change((line, ""))
    move, force = azure.printed("R-UP-ACTIVE", "up -y --no-check")
    assert (move, force) == ("pool drain work --to POOL --target azure", "up --force")
    azure.ok(move.replace("POOL", "other"))
    azure.ok("up -y --no-check")
    assert operations(stage)[-1] == "delete"
    go.touch()
