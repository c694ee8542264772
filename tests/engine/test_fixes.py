"""What errors of a deployed stack print is run on it: by the real engine, over Azure's names.

Azure is the stand-in of the provider for what is deployed, and the emulator and Azurite for runs.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient
from azure.core.credentials import AzureNamedKeyCredential
from azure.storage.blob import BlobServiceClient

from batch_emulator.domain.account import Limits
from batch_emulator.files_share.shares import StorageAccount
from batch_emulator.gateway.sign_in import CLIENT
from batch_emulator.launches import NodeNames
from batch_emulator.server import Server
from runner.core.home import HomePaths
from runner_infra.config.naming import Names
from tests.arm_server import ArmServer, resource_id
from tests.e2e.conftest import new_home, until
from tests.e2e.test_program_pools import PASSED, azurite_of, declared_pool, node_tools
from tests.engine.deployed import run_in
from tests.engine.stage import ROOT, Stage
from tests.engine.test_selftest import gateway_names, keys_of
from tests.unit.command_lines import commands_in
from tests.unit.infra.cloud import SUBSCRIPTION

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ACCOUNT = Names("dev", SUBSCRIPTION).batch_account
KEY = base64.b64encode(b"a key of the tests" * 3).decode()
_SETTINGS = """\
config:
  azure-native:location: eastus
  azure-native:subscriptionId: {subscription}
  runner:image: {{}}
  runner:pools:
    - {{id: t4, vm_size: Standard_NC4as_T4_v3, max_spot: 4}}
    - {{id: own, vm_size: Standard_NC4as_T4_v3, max_spot: 2}}
    - {{id: work, vm_size: Standard_NC4as_T4_v3, max_spot: 3}}
    - {{id: old, vm_size: Standard_NC4as_T4_v3, max_spot: 1}}
"""


@dataclass
class Deployment:
    """A project, and what its commands print; `names` lead them to the services."""

    stage: Stage
    names: Mapping[str, str]
    services: Mapping[str, str]
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder = self.stage.folder / "project"
        (self.folder / "infra").mkdir(parents=True)
        shutil.copy(ROOT / "Pulumi.yaml", self.folder)
        self.file.write_text(_SETTINGS.format(subscription=SUBSCRIPTION))

    @property
    def file(self) -> Path:
        return self.folder / "Pulumi.dev.yaml"

    @property
    def outputs(self) -> Path:
        return self.stage.folder / "runner/stacks/dev.json"

    def run(self, words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `runner`; `env` with a Resource Manager goes there and not by the names."""
        given = {**(env or self.names), "RUNNER_TARGET": "azure"}
        return run_in(self.stage, *shlex.split(words), **given)

    def ok(self, words: str, **env: str) -> str:
        done = self.run(words, **env)
        assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def code(self, words: str, **env: str) -> str:
        """Return the code of the error, or nothing."""
        done = self.run(words, **env)
        found = re.search(r"error\[(R-[\w-]+)\]", done.stderr)
        assert (found is None) == (done.returncode == 0), done.stderr
        return found[1] if found else ""

    def printed(self, code: str, words: str, **env: str) -> list[str]:
        """Run words that fail with this code; return the words of its commands."""
        done = self.run(words, **env)
        assert f"error[{code}]" in done.stderr, f"{words}\n{done.stdout}\n{done.stderr}"
        fix = done.stderr.partition("  fix: ")[2].partition("\n")[0]
        commands = [each for each in commands_in(fix) if each.startswith("runner ")]
        assert commands, done.stderr
        return [each.removeprefix("runner ") for each in commands]

    def serve(self) -> None:
        """Have in the emulator and in Azurite what was deployed."""
        for pool in self.pools():
            self.batch.create_pool(declared_pool(pool))
        account = {"account_name": ACCOUNT, "account_key": KEY}
        blobs = BlobServiceClient(self.services["blob"], account)
        for container in ("runs", "data", "models", "code"):
            blobs.create_container(container)

    @property
    def batch(self) -> BatchClient:
        return BatchClient(self.services["batch"], AzureNamedKeyCredential(ACCOUNT, KEY))

    def replace_pool(self, pool_id: str) -> None:
        """Have one node in a pool with the network that was deployed; its tasks start again."""
        self.batch.begin_delete_pool(pool_id, polling_interval=0).result()
        [declared] = [pool for pool in self.pools() if pool["poolName"] == pool_id]
        usual = {name: value for name, value in declared.items() if name != "startTask"}
        fixed = {"fixedScale": {"targetDedicatedNodes": 0, "targetLowPriorityNodes": 1}}
        self.batch.create_pool(declared_pool({**usual, "scaleSettings": fixed}))

    def pools(self) -> list[dict[str, Any]]:
        """Return what Resource Manager was given for each pool."""
        ids = [one for one in self.stage.azure.ids() if f"/{ACCOUNT}/pools/" in one]
        return [found["inputs"] for one in ids if (found := self.stage.azure.get(one))]

    def change(self, *changes: tuple[str, str]) -> None:
        text = self.file.read_text()
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        self.file.write_text(text)


@pytest.fixture
def azure(stage: Stage) -> Generator[Deployment]:
    home = new_home(stage.folder / "services")
    names: dict[str, str] = {}
    with (
        node_tools(stage.folder),
        azurite_of(home, ACCOUNT, KEY) as blob,
        Server(
            # `exec` looks for the folder of a task on this machine there.
            HomePaths(stage.folder / "runner").batch_data,
            account=ACCOUNT,
            key=KEY,
            storage=StorageAccount(ACCOUNT, KEY),
            blob_endpoint=blob,
            pass_env=PASSED,
            names=NodeNames(lambda _: names, b""),
            limits=Limits(boot_s=0.05, active_jobs=2),
        ) as server,
        gateway_names(stage, KEY, ACCOUNT, server.url, blob, server.url) as shown,
    ):
        names |= dict(shown.items() - {**os.environ, **stage.environment, **keys_of(KEY)}.items())
        yield Deployment(stage, shown, {"batch": server.url, "blob": blob})


@pytest.mark.fix(
    *("R-AZURE-CAPACITY", "R-COST-POOL", "R-STACK-IDENTITY", "R-SHARE-NONE", "R-STACK-NODES-ADD"),
    *("R-FORMULA-DECLARED", "R-POOL-AUTOSCALED", "R-POOL-DECLARED", "R-IMAGE-TEMPLATE"),
    *("R-AZURE-MISSING", "R-QUOTA", "R-IMAGE-VERSION", "R-DOWN-ACTIVE", "R-DOWN-SCHEDULES"),
    *("R-PULUMI-PROTECTED", "R-REACH-CLOSED"),
)
def test_printed_commands_work_on_a_deployed_stack(azure: Deployment, stage: Stage) -> None:
    with ArmServer() as arm:
        _deploy_where_the_size_is_offered(azure, arm)
        azure.serve()
        again = _build_the_image(azure, arm)
    [template] = [one for one in stage.azure.ids() if "/imageTemplates/" in one]
    stage.azure.delete(template)  # by a user in the portal
    work = _run_where_nobody_may_connect(azure)
    cured = _break(azure)
    for code, words in cured.items():
        assert azure.printed(code, words) == ["up"], code
    change = azure.printed("R-FORMULA-DECLARED", "pool autoscale apply formula.txt --pool own -y")
    assert change == azure.printed("R-POOL-AUTOSCALED", "pool resize own 2") == ["up"]
    assert azure.printed("R-POOL-DECLARED", "pool rm old") == ["up"]

    [old] = [line for line in azure.file.read_text().splitlines(keepends=True) if "old" in line]
    azure.change((old, ""), ("max_spot: 2", f"max_spot: 2, {_OWN_FORMULA}"))
    azure.change(("max_spot: 3", "max_spot: 3, ssh_from: [198.51.100.7]"))
    more = "  runner:storage: {file_share_gib: 100}\n  runner:nodes_add_tasks: true\n"
    azure.change(("  runner:image:", f"{more}  runner:image:"))
    assert azure.code(f"{again} -y --no-check") == "R-UP-ACTIVE"  # a run is active on `work`
    azure.ok(f"{again} -y --no-check --force")
    assert template in stage.azure.ids()
    pools = {pool["poolName"]: json.dumps(pool) for pool in azure.pools()}
    assert pools.keys() == {"t4", "own", "work"}
    assert "$TargetLowPriorityNodes = 1;" in pools["own"]
    assert "198.51.100.7" in pools["own"]
    _connect(azure, work)
    left = {code: azure.code(words) for code, words in cured.items()}
    assert not {code for code, found in left.items() if found == code}, left

    other = "train hi.py --pool t4 -e other --detach"
    [cancel] = azure.printed("R-QUOTA", other)
    [run] = [each for each in json.loads(azure.ok("ps -o json")) if each["recipe"] == "hi"]
    azure.ok(cancel.replace("RUN", run["run_id"]))
    azure.ok(other)
    _move_to_another_region(azure, other)


def _run_where_nobody_may_connect(azure: Deployment) -> str:
    """Return a command that works on the node of a run as soon as its pool is changed."""
    (azure.folder / "wait.py").write_text("import time\ntime.sleep(600)\n")
    stored = json.loads(azure.outputs.read_text())
    azure.outputs.write_text(json.dumps({**stored, "identity_client_id": CLIENT}))
    azure.replace_pool("work")
    azure.ok("train wait.py --pool work --detach")
    [run] = json.loads(azure.ok("ps -o json"))
    command = f"exec {run['run_id']} -- printenv RUNNER_RUN_ID"
    until(lambda: azure.code(command) == "R-REACH-CLOSED", timeout_s=120)
    assert azure.printed("R-REACH-CLOSED", command) == ["up"]
    return command


def _connect(azure: Deployment, command: str) -> None:
    """Run the command on the changed pool, where the run starts again; then end the run."""
    azure.replace_pool("work")
    run_id = command.split()[1]
    until(lambda: azure.run(command).stdout == f"{run_id}\n", timeout_s=120)
    azure.ok(f"cancel {run_id}")
    azure.ok(f"rm {run_id} -y")
    for job in azure.batch.list_jobs():  # the quota of jobs is for the commands that follow
        azure.batch.begin_delete_job(job.id, polling_interval=0).result()


_OWN_FORMULA = (
    "scenario: formula, formula: '$TargetLowPriorityNodes = 1;', ssh_from: [198.51.100.7]"
)


def _deploy_where_the_size_is_offered(azure: Deployment, arm: ArmServer) -> None:
    where = ("Standard_NC4as_T4_v3", "standardNCASv3_T4Family", "eastus")
    arm.add_size(*where, restricted="NotAvailableForSubscription")
    arm.state.images = {"microsoft-dsvm/ubuntu-hpc/2204": ["22.04.1"]}
    [sizes] = azure.printed("R-AZURE-CAPACITY", "up -y", **arm.environment())
    assert "Standard_NC4as_T4_v3" in azure.ok(sizes)
    azure.ok("up -y --no-check")
    arm.state.skus.clear()
    arm.state.batch_sizes.clear()
    arm.add_size(*where)


def _build_the_image(azure: Deployment, arm: ArmServer) -> str:
    """Have a build started as printed; return what is printed where there is no template."""
    here = arm.environment()
    azure.change(("max_spot: 1", "max_spot: 1, image: {source: gallery}"))
    [build] = azure.printed("R-IMAGE-VERSION", "up -y", **here)
    azure.change(("max_spot: 1, image: {source: gallery}", "max_spot: 1"))
    [again] = azure.printed("R-IMAGE-TEMPLATE", f"{build} --no-wait", **here)
    definition = json.loads(azure.outputs.read_text())["image_definition"]
    made = {"distribute": [{"type": "SharedImage", "galleryImageId": definition}]}
    arm.state.resources[TEMPLATE] = {"id": TEMPLATE, "name": "it-dev", "properties": made}
    arm.handle("POST", "/it-dev/run", lambda *_: (202, {}, {}))
    azure.ok(f"{build} --no-wait", **here)
    assert ("POST", f"{TEMPLATE}/run") in [request[:2] for request in arm.state.requests]
    arm.refuse("/imagetemplates", 404, "ResourceNotFound")
    assert azure.printed("R-AZURE-MISSING", f"{build} --no-wait", **here) == [again]
    return again


def _move_to_another_region(azure: Deployment, train: str) -> None:
    """Follow what is printed until the stack with a run and a schedule is gone, and can move."""
    azure.change(("location: eastus", "location: westeurope"))
    [down] = azure.printed("R-PULUMI-PROTECTED", "up -y --no-check")
    cancel, force = azure.printed("R-DOWN-ACTIVE", f"{down} -y")
    azure.ok(cancel)
    remove, same = azure.printed("R-DOWN-SCHEDULES", f"{down} -y")
    assert same == force
    azure.ok(remove)
    azure.ok(train)
    azure.ok(f"{force} -y")
    assert azure.stage.azure.ids() == set()
    azure.ok("preview")


TEMPLATE = resource_id("rg-runner-dev", "Microsoft.VirtualMachineImages/imageTemplates/it-dev")


def _break(azure: Deployment) -> dict[str, str]:
    """Leave the outputs of an older runner. Return what cannot be done, by the error's code."""
    (azure.folder / "hi.py").write_text("print('hi')\n")
    (azure.folder / "formula.txt").write_text("$TargetLowPriorityNodes = 1;\n")
    (azure.folder / "twice.yaml").write_text(
        "schedule: {every: 30d, start: 2031-01-01}\n"
        "tasks: {a: {command: hostname}, b: {command: hostname, after: [a]}}\n"
    )
    stored = json.loads(azure.outputs.read_text())
    for pool in stored["pools"]:
        del pool["release_minutes"]
    stored["identity_resource_id"] = stored["identity_client_id"] = None
    azure.outputs.write_text(json.dumps(stored))
    return {
        "R-COST-POOL": "train hi.py --max-cost 5 --pool t4 --dry-run",
        "R-STACK-IDENTITY": "train hi.py --pool t4 --detach",
        "R-SHARE-NONE": "data ls share:",
        "R-STACK-NODES-ADD": "submit twice.yaml --pool t4",
    }
