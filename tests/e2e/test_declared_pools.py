"""Declared pools on the emulator: they grow for a run, train, and return to zero."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Generator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobServiceClient

from runner.azure.batch.translate import wire_text
from runner.contract import PoolOutput, StackOutputs, parse_stack_outputs
from runner.core.home import HomePaths
from runner.core.pricing.machines import find_machine
from runner.core.pricing.prices import load_price_table
from runner_infra.config.pool import BlobMount, PoolConfig
from runner_infra.planning.autoscale_formula import formula_text, node_caps
from runner_infra.planning.node_setup import blobfuse_options, start_task
from tests import plain_http
from tests.e2e.conftest import Cli, new_home, until

# An id of Resource Manager; in the emulator, every identity may read the account that it serves.
_IDENTITY = (
    "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/lab/providers/"
    "Microsoft.ManagedIdentity/userAssignedIdentities/nodes"
)
_T4 = "Standard_NC4as_T4_v3"
_LOCATION = "southeastasia"  # where the shipped table knows the spot price of a T4
# The output of nvidia-smi for `--query-gpu=name,driver_version --format=csv,noheader`.
_NVIDIA_SMI = '#!/bin/sh\necho "Tesla T4, 580.95.05"\n'
# The start task waits a minute for a driver that is not there yet.
_HASTE = {"RUNNER_GPU_WAIT": "0", "RUNNER_PAUSE": "0.2"}
_SCRIPT = """
import os, pathlib
mounted = pathlib.Path(os.environ["AZ_BATCH_NODE_MOUNTS_DIR"]) / "data" / "sample.txt"
out = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
(out / "model.txt").write_text("trained on " + mounted.read_text())
"""
_POOLS = [
    {"id": "t4", "vm_size": _T4, "max_spot": 2, "spend_cap_usd_per_hour": 0.5},
    {
        "id": "fallback",
        "vm_size": _T4,
        "scenario": "spot_first_with_dedicated_fallback",
        "max_dedicated": 1,
    },
    {"id": "office", "vm_size": "Standard_D2s_v5", "scenario": "office_hours", "office_hours": {}},
    {"id": "broken", "vm_size": "Standard_NC64as_T4_v3", "scenario": "fixed", "max_spot": 1},
]


def declared(**values: Any) -> PoolConfig:
    mounts = [{"kind": "blob", "container": "data", "path": "data"}]
    return PoolConfig.model_validate({"mounts": mounts, **values})


def all_tasks_over(batch: BatchClient) -> bool:
    """Return True if no task waits or runs."""
    jobs = [str(job.id) for job in batch.list_jobs()]
    return all(task.state == "completed" for job in jobs for task in batch.list_tasks(job))


class Lab:
    """Local services that stand for a deployed stack, with a clock that the test pushes."""

    def __init__(self, cli: Cli, tools: Path) -> None:
        self.cli = cli
        # An image with a driver has nvidia-smi on the PATH of its nodes.
        self._of_the_image = {"PATH": f"{tools}:/usr/local/bin:/usr/bin:/bin"}
        self.paths = HomePaths(cli.home)
        self.keys = json.loads(self.paths.keys.read_text())
        self.outputs: StackOutputs = parse_stack_outputs(self.paths.local_outputs.read_text())
        account = AzureNamedKeyCredential(self.outputs.batch_account, self.keys["batch"])
        self.batch = BatchClient(self.outputs.batch_endpoint, account)
        storage = {
            "account_name": self.outputs.storage_account,
            "account_key": self.keys["storage"],
        }
        self.blobs = BlobServiceClient(self.outputs.blob_endpoint, storage)

    def push(self, seconds: float) -> None:
        plain_http.post(
            f"{self.outputs.batch_endpoint}/_emulator/clock",
            json={"push": f"PT{seconds:g}S"},
            headers={"Authorization": f"Bearer {self.keys['batch']}"},
        ).raise_for_status()

    def deploy(self, *pools: PoolConfig) -> None:
        """Create the pools, and let `runner` know of them as of a stack's."""
        known: list[PoolOutput] = []
        for pool in pools:
            machine = find_machine(pool.vm_size)
            assert machine is not None
            self.batch.create_pool(self._created(pool, machine.gpus))
            counts = (machine.gpus, machine.vcpus, True, pool.max_spot)
            known.append(PoolOutput(pool.id, pool.vm_size, *counts))
        outputs = dataclasses.replace(self.outputs, pools=tuple(known))
        self.paths.local_outputs.write_text(outputs.to_json())

    def _created(self, pool: PoolConfig, gpus: int) -> models.BatchPoolCreateOptions:
        """Return the pool that the service has for the request to Resource Manager."""
        caps = node_caps(pool, _LOCATION, load_price_table(None))
        formula = formula_text(pool, caps)
        start = start_task(pool, gpus)
        scale: dict[str, Any] = {"target_low_priority_nodes": caps.spot}
        if formula is not None:
            interval = timedelta(minutes=pool.evaluation_minutes)
            scale = {
                "enable_auto_scale": True,
                "auto_scale_formula": formula,
                "auto_scale_evaluation_interval": interval,
            }
        image = models.BatchVmImageReference(
            publisher="canonical", offer="ubuntu-24_04-lts", sku="server", version="latest"
        )
        return models.BatchPoolCreateOptions(
            id=pool.id,
            vm_size=pool.vm_size,
            virtual_machine_configuration=models.VirtualMachineConfiguration(
                image_reference=image, node_agent_sku_id="batch.node.ubuntu 24.04"
            ),
            task_slots_per_node=pool.slots,
            start_task=models.BatchStartTask(
                command_line=start.command_line,
                environment_settings=[
                    models.EnvironmentSetting(name=name, value=value)
                    for name, value in {
                        **dict(start.variables),
                        **_HASTE,
                        **self._of_the_image,
                    }.items()
                ],
                wait_for_success=True,
                max_task_retry_count=0,
                user_identity=models.UserIdentity(
                    auto_user=models.AutoUserSpecification(
                        scope=models.AutoUserScope.POOL,
                        elevation_level=models.ElevationLevel.ADMIN,
                    )
                ),
            ),
            mount_configuration=[self._mount(m) for m in pool.mounts if isinstance(m, BlobMount)],
            **scale,
        )

    def _mount(self, mount: BlobMount) -> models.MountConfiguration:
        identity = models.BatchNodeIdentityReference(resource_id=_IDENTITY)
        return models.MountConfiguration(
            azure_blob_file_system_configuration=models.AzureBlobFileSystemConfiguration(
                account_name=self.outputs.storage_account,
                container_name=mount.container,
                relative_mount_path=mount.path,
                blobfuse_options=blobfuse_options(read_only=mount.read_only),
                identity_reference=identity,
            )
        )

    def states(self, pool_id: str) -> list[str]:
        return [wire_text(node.state) for node in self.batch.list_nodes(pool_id)]

    def train(self, pool_id: str, *args: object) -> Any:
        """Train on the pool, which has no node yet; minutes pass while it waits for one."""
        assert self.states(pool_id) == []
        process = self.cli.start("train", *args, "--pool", pool_id, "-o", "json")

        def node_or_end() -> bool:
            self.push(20)
            return bool(self.states(pool_id)) or process.poll() is not None

        until(node_or_end, every_s=0.3)
        out, err = process.communicate(timeout=240)
        assert process.returncode == 0, err
        return json.loads(out)

    def is_empty_within(self, pool_id: str, minutes: int) -> bool:
        until(lambda: all_tasks_over(self.batch))  # the agent ends after it has reported the end
        for _ in range(minutes * 2):
            self.push(30)
            if not self.states(pool_id):
                return True
        return False


@pytest.fixture
def lab(tmp_path: Path) -> Generator[Lab]:
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "nvidia-smi").write_text(_NVIDIA_SMI)
    (tools / "nvidia-smi").chmod(0o755)
    (tmp_path / "work").mkdir()
    cli = Cli(new_home(tmp_path / "home"), tmp_path / "work")
    cli.ok("local", "up", "--nodes", "0")
    yield Lab(cli, tools)
    cli.run("local", "down")


@pytest.mark.feature(6)
@pytest.mark.slow
def test_declared_pool_grows_for_a_run_and_returns_to_zero(
    lab: Lab, script: Callable[[str], Path]
) -> None:
    lab.blobs.get_blob_client("data", "sample.txt").upload_blob(b"digits")
    lab.deploy(*(declared(**values) for values in _POOLS))
    run = lab.train("t4", script(_SCRIPT), "--no-download")
    assert run["status"] == "succeeded"
    model = f"{run['run_id']}/output/model.txt"
    container = lab.blobs.get_container_client("runs")
    [name] = [blob.name for blob in container.list_blobs() if blob.name.endswith(model)]
    assert container.download_blob(name).readall() == b"trained on digits"
    assert lab.is_empty_within("t4", 12)
    assert lab.states("fallback") == []
    pool = lab.batch.get_pool("t4")
    assert pool.auto_scale_run is not None
    assert pool.auto_scale_run.error is None
    until(lambda: lab.states("broken") == ["starttaskfailed"])
    [node] = lab.batch.list_nodes("broken")
    assert node.start_task_info is not None
    said = b"".join(lab.batch.download_node_file("broken", node.id, "startup/stderr.txt"))
    assert b"1 of 4 GPUs respond" in said


def test_service_evaluates_every_declared_formula_without_an_error(lab: Lab) -> None:
    lab.deploy(declared(**_POOLS[0]))
    lab.push(300)
    for values in _POOLS[:-1]:
        pool = declared(**values)
        formula = formula_text(pool, node_caps(pool, _LOCATION, load_price_table(None)))
        assert formula is not None
        options = models.BatchPoolEvaluateAutoScaleOptions(auto_scale_formula=formula)
        found = lab.batch.evaluate_pool_auto_scale("t4", options)
        assert found.error is None, found.error
        assert "$NodeDeallocationOption=taskcompletion" in (found.results or "")
    own = models.BatchPoolEvaluateAutoScaleOptions(auto_scale_formula="$TargetDedicatedNodes = 1 +")
    with pytest.raises(HttpResponseError):
        lab.batch.evaluate_pool_auto_scale("t4", own)


@pytest.mark.slow
def test_recipe_trains_on_a_declared_pool_and_leaves_a_model_and_no_node(
    lab: Lab, mnist: Path
) -> None:
    lab.deploy(declared(id="cpu", vm_size="Standard_D4s_v5", max_spot=1, preload=["mnist-sklearn"]))
    run = lab.train("cpu", "mnist-sklearn:small", "--data", mnist, "--set", "epochs=1")
    assert run["status"] == "succeeded"
    assert any(found["path"] == "model.joblib" for found in run["outputs"])
    assert lab.is_empty_within("cpu", 12)
