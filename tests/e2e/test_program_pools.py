"""Pools exactly as the Pulumi program declares them, on the emulator, train through runner's flows.

`test_declared_pools.py` has what pools do; here is that what reaches Azure is such a pool.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from azure.batch import BatchClient, models

from batch_emulator.files_share.shares import StorageAccount
from batch_emulator.gateway.pools import MANAGEMENT_ONLY, to_data_plane
from batch_emulator.server import Server
from runner.azure.auth.credentials import Connection
from runner.azure.storage.blobs import BlobContainer, ensure_containers, stored_bytes
from runner.contract import StackOutputs, parse_stack_outputs
from runner.core.home import HomePaths
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.settings import Settings, load_settings
from runner.core.states import RunState
from runner.flows.costs.report import CostQuery, report_costs
from runner.flows.local.azurite import ensure_azurite
from runner.flows.local.services import blob_launch, choose_port
from runner.flows.local.state import SEED
from runner.flows.models.versions import list_models
from runner.flows.recipes import new_recipe
from runner.flows.runs.events import RunEnded
from runner.flows.runs.history import list_runs
from runner.flows.runs.logs import read_log
from runner.flows.runs.outputs import download_outputs
from runner.flows.runs.watch import watch_run
from runner.flows.submit.submit_run import submit_run
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec
from tests import plain_http
from tests.e2e.conftest import new_home, until
from tests.e2e.plans import plan_recipe
from tests.e2e.test_declared_pools import all_tasks_over

pytest.importorskip("pulumi_azure_native", reason="make .venv/.ready-infra installs it")
from tests.unit.infra.recording import Recording
from tests.unit.infra.stacks import T4, config_of, deploy

_POOLS: list[Mapping[str, Any]] = [
    {**T4, "preload": [], "mounts": [{"kind": "blob", "container": "data", "path": "data"}]},
    {
        "id": "fallback",
        "vm_size": "Standard_NC4as_T4_v3",
        "scenario": "spot_first_with_dedicated_fallback",
        "max_spot": 2,
        "max_dedicated": 1,
    },
    {"id": "idle", "vm_size": "Standard_NC24ads_A100_v4", "max_spot": 2, "containers": True},
    {"id": "cpu", "vm_size": "Standard_D4s_v5", "max_spot": 1, "slots": 2, "preload": ["mnist"]},
    {
        "id": "a10",
        "vm_size": "Standard_NV12ads_A10_v5",
        "scenario": "office_hours",
        "office_hours": {"days": ["mon"], "nodes": 1},
        "max_spot": 1,
    },
    {**T4, "id": "vision-t4", "preload": [], "team": "vision"},
]


PASSED = ("PATH", "*_proxy", "*_PROXY", "SSL_CERT_*", "UV_*", "PIP_*")  # to the tasks
_ENDS_ON_A_DEDICATED_NODE = """
import os, time
if os.environ["AZ_BATCH_NODE_IS_DEDICATED"] != "true":
    time.sleep(600)
"""


@dataclass(frozen=True)
class Stack:
    """A deployed stack, with the emulator and Azurite in Azure's place."""

    declared: Mapping[str, Mapping[str, Any]]
    outputs: StackOutputs
    connection: Connection
    url: str
    keys: Mapping[str, str]
    settings: Settings

    @property
    def batch(self) -> BatchClient:
        return self.connection.batch_client()

    @property
    def runs(self) -> BlobContainer:
        return BlobContainer(self.connection.blob_service(), self.outputs.container_runs)

    def create(self, pool_id: str) -> None:
        self.batch.create_pool(declared_pool(self.declared[pool_id]))

    def push(self, minutes: int) -> None:
        """Let time pass for the pools."""
        self._admin("clock", {"push": f"PT{minutes}M"})

    def take_spot_away(self, pool_id: str) -> None:
        """Preempt every spot node at once, and have no other for two hours."""
        self._admin(f"pools/{pool_id}/evict?count=100&notice=0&away=7200", None)

    def _admin(self, path: str, body: object) -> None:
        plain_http.post(
            f"{self.url}/_emulator/{path}",
            json=body,
            headers={"Authorization": f"Bearer {self.keys['batch']}"},
            timeout=60,
        ).raise_for_status()

    def nodes(self, pool_id: str) -> list[models.BatchNode]:
        return list(self.batch.list_nodes(pool_id))


def declared_pool(declared: Mapping[str, Any]) -> models.BatchPoolCreateOptions:
    """Return a declared pool in the terms of the service."""
    aside = (*MANAGEMENT_ONLY, "poolName", "accountName", "resourceGroupName")
    properties = {name: value for name, value in declared.items() if name not in aside}
    return models.BatchPoolCreateOptions(to_data_plane(declared["poolName"], properties))


def _recorded() -> Recording:
    return deploy(config_of("e2e", pools=_POOLS))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    recording = _recorded()
    folder = tmp_path_factory.mktemp("declared")
    home = new_home(folder / "home")
    keys = {name: base64.b64encode(name.encode() * 8).decode() for name in ("batch", "storage")}
    outputs = parse_stack_outputs(json.dumps(recording.exports))
    with node_tools(folder), azurite_of(home, outputs.storage_account, keys["storage"]) as url:
        server = Server(
            folder / "batch",
            account=outputs.batch_account,
            key=keys["batch"],
            storage=StorageAccount(outputs.storage_account, keys["storage"]),
            blob_endpoint=url,
            pass_env=PASSED,
        )
        with server:
            local = replace(outputs, batch_endpoint=server.url, blob_endpoint=url)
            connection = Connection(local, keys)
            ensure_containers(connection)
            env = {"RUNNER_HOME": str(home), "HOME": "/", "RUNNER_TARGET": "azure"}
            settings = load_settings({}, cwd=folder, env=env)
            declared = {pool.inputs["poolName"]: pool.inputs for pool in recording.of("batch:Pool")}
            yield Stack(declared, local, connection, server.url, keys, settings)


@contextmanager
def node_tools(folder: Path) -> Generator[None]:
    """Yield an emulator whose nodes have one T4, and python3 and uv of this environment."""
    stub = folder / "bin" / "nvidia-smi"
    stub.parent.mkdir(parents=True)
    stub.write_text("#!/bin/sh\necho 'GPU 0: Tesla T4, 580.95.05'\n", encoding="utf-8")
    stub.chmod(0o755)
    scripts = str(Path(sys.executable).parent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join([str(stub.parent), scripts, os.environ["PATH"]]))
        yield


@contextmanager
def azurite_of(home: Path, account: str, key: str) -> Generator[str]:
    """Run Azurite with an account of this name. Yield the URL of the account."""
    paths, port = HomePaths(home), choose_port()
    keys = {"storage": key, SEED: secrets.token_urlsafe()}
    launch = blob_launch(paths, port, keys, ensure_azurite(paths, ignore_progress))
    paths.blob_data.mkdir(parents=True)
    environment = {**launch.environment, "AZURITE_ACCOUNTS": f"{account}:{key}"}
    with subprocess.Popen(
        launch.arguments, env=environment, stdout=subprocess.DEVNULL, cwd=paths.blob_data
    ) as process:
        url = f"http://127.0.0.1:{port}/{account}"
        try:
            until(lambda: _answers(url))
            yield url
        finally:
            process.terminate()


def _answers(url: str) -> bool:
    try:
        return plain_http.get(url, params={"comp": "list"}).status_code == 403
    except httpx.TransportError:
        return False


def _train(
    stack: Stack, recipe: Path | str, pool: str, *overrides: str, data: Path | None = None
) -> RunSpec:
    settings = replace(stack.settings, pool=pool)
    loaded = load_recipe(str(recipe), cwd=settings.home)
    options = RunOptions(set=overrides, data=data)
    plan = plan_recipe(stack.connection, settings, loaded, options)
    return submit_run(stack.connection, plan, ignore_progress)


def _ended(stack: Stack, spec: RunSpec) -> RunEnded:
    *_, last = watch_run(stack.connection, spec)
    assert isinstance(last, RunEnded)
    return last


def test_every_kind_of_declared_pool_is_accepted_by_the_service(stack: Stack) -> None:
    for pool_id in ("idle", "cpu", "a10"):
        declared = stack.declared[pool_id]
        stack.create(pool_id)
        pool = stack.batch.get_pool(pool_id)
        assert pool.auto_scale_formula == declared["scaleSettings"]["autoScale"]["formula"]
        assert pool.auto_scale_evaluation_interval == timedelta(minutes=5)
        assert pool.auto_scale_run is not None
        assert pool.auto_scale_run.error is None
        assert pool.metadata
        assert pool.metadata[0].value == "e2e"
        assert pool.vm_size == declared["vmSize"].lower()


def test_training_on_a_declared_pool_leaves_a_model_and_no_node(
    stack: Stack, tmp_path: Path
) -> None:
    data = BlobContainer(stack.connection.blob_service(), stack.outputs.container_data)
    data.create_bytes("seen.txt", b"seen through the mount", "text/plain")
    recipe = new_recipe("declared", cwd=tmp_path)
    with (recipe / "train.py").open("a", encoding="utf-8") as script:
        script.write('    mounts = Path(os.environ["AZ_BATCH_NODE_MOUNTS_DIR"])\n')
        script.write('    print((mounts / "data" / "seen.txt").read_text())\n')
    stack.create("t4")
    assert stack.nodes("t4") == []
    spec = _train(stack, recipe, "t4")
    assert stack.nodes("t4") == [], "nothing is bought before the formula has seen the task"
    stack.push(6)
    (node,) = until(lambda: stack.nodes("t4"))
    assert not node.is_dedicated
    assert _ended(stack, spec).status.state is RunState.SUCCEEDED
    log = "".join(read_log(stack.connection, spec, "stdout"))
    assert "seen through the mount" in log
    fetched = download_outputs(stack.connection, spec, tmp_path / "models", ignore_progress)
    assert json.loads((fetched.folder / "model.json").read_text("utf-8"))
    names = {blob.name for blob in stack.runs.list(RunPaths(spec.run_id).output(1))}
    assert any(name.endswith("model.json") for name in names)
    until(lambda: all_tasks_over(stack.batch))  # the agent ends after it has reported the end
    stack.push(15)
    until(lambda: not stack.nodes("t4"))
    pool = stack.batch.get_pool("t4")
    assert (pool.target_low_priority_nodes, pool.target_dedicated_nodes) == (0, 0)


_MODEL = """
import json, os, pathlib
folder = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
(folder / "model.json").write_text(json.dumps({"weights": [1]}))
print("trained")
"""


@pytest.mark.attack
def test_run_of_a_team_uses_only_the_containers_of_the_team(
    stack: Stack, script: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        "runner.azure.faults.count_try", lambda sent: asked.append(sent.http_request.url)
    )
    part = stack.outputs.for_team("vision")
    connection = Connection(part, dict(stack.keys))
    ensure_containers(connection)
    before = {blob.name for blob in stack.runs.list("")}
    stack.create("vision-t4")
    team = replace(stack, outputs=part, connection=connection)
    spec = _train(team, script(_MODEL), "vision-t4")
    stack.push(6)
    assert _ended(team, spec).status.state is RunState.SUCCEEDED
    assert "".join(read_log(connection, spec, "stdout")).strip() == "trained"
    download_outputs(connection, spec, tmp_path / "outputs", ignore_progress)
    assert [row.run_id for row in list_runs(connection, limit=None).rows] == [spec.run_id]
    list_models(connection)
    addressed = _containers_in(" ".join(asked), part)
    assert addressed == {"runs-vision", "models-vision", "code-vision"}
    task = next(iter(stack.batch.list_tasks(spec.job_id)))
    assert task.environment_settings
    access = " ".join(each.value or "" for each in task.environment_settings)
    assert _containers_in(access, part) == {"runs-vision", "models-vision", "data"}
    assert {blob.name for blob in stack.runs.list("")} == before
    _check_costs(stack, connection, spec.run_id)
    until(lambda: all_tasks_over(stack.batch))


def _containers_in(text: str, outputs: StackOutputs) -> set[str]:
    return set(re.findall(f"{re.escape(outputs.blob_endpoint)}/([a-z0-9-]+)", text))


def _check_costs(stack: Stack, team: Connection, run_id: str) -> None:
    """Compare the costs of all teams, which nobody selected, with those of one."""
    whole = Connection(stack.outputs.for_team(None), dict(stack.keys))
    assert run_id in {row.run_id for row in report_costs(whole, CostQuery(), None).history}
    assert {row.run_id for row in report_costs(team, CostQuery(), None).history} == {run_id}
    assert run_id not in {row.run_id for row in list_runs(whole, limit=None).rows}
    assert {"runs", "runs-vision", "models-vision", "data"} <= set(stored_bytes(whole))


@pytest.mark.feature(5)
def test_dedicated_node_replaces_missing_spot_capacity(
    stack: Stack, script: Callable[[str], Path]
) -> None:
    stack.create("fallback")
    spec = _train(stack, script(_ENDS_ON_A_DEDICATED_NODE), "fallback")
    stack.push(6)
    until(lambda: [node for node in stack.nodes("fallback") if node.state == "running"])
    stack.take_spot_away("fallback")
    until(lambda: [node for node in stack.nodes("fallback") if node.state == "preempted"])
    stack.push(8)
    assert not any(node.is_dedicated for node in stack.nodes("fallback")), "too early to pay"
    stack.push(14)
    assert any(node.is_dedicated for node in stack.nodes("fallback"))
    assert _ended(stack, spec).status.state is RunState.SUCCEEDED
    until(lambda: all_tasks_over(stack.batch))
    stack.push(15)
    until(lambda: not stack.nodes("fallback"))
