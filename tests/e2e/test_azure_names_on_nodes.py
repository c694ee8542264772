"""`runner local up --azure-names`: programs in tasks reach the local services by Azure's names."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.core.home import HomePaths
from runner.flows.local.state import ensure_keys, load_state, local_outputs
from tests.clients.environments import python_of
from tests.contract.container_engines import fake
from tests.e2e.conftest import Cli, new_home, until

_IMAGE = "snakemake/snakemake:v9"
_CLIENT = "snakemake"  # a link to its environment, which the containers of that image have
_TASK = """
import json, os, subprocess, urllib.request
from urllib.error import HTTPError, URLError
account, identity = os.environ["AZ_BATCH_ACCOUNT_NAME"], os.environ["IDENTITY_ENDPOINT"]

def answer(url, headers, method="GET", data=None):
    try:
        asked = urllib.request.Request(url, data, headers, method=method)
        with urllib.request.urlopen(asked) as reply:
            return reply.status, reply.read()
    except HTTPError as err:
        return err.code, err.read()
    except URLError as err:
        return str(err.reason), b""

secret = {"X-IDENTITY-HEADER": os.environ["IDENTITY_HEADER"]}

def headers_for(audience):
    token = json.loads(answer(identity + "?client_id=mine&resource=" + audience, secret)[1])
    return {"Authorization": "Bearer " + token["access_token"], "x-ms-version": "2021-12-02"}

headers = headers_for("https://storage.azure.com")
of_batch = headers_for("https://batch.core.windows.net/")
of_keys = headers_for("https://management.azure.com/")
batch = f"https://{account}.westeurope.batch.azure.com"
version = "api-version=2024-07-01.20.0"
made = f"https://{account}.blob.core.windows.net/named"
answer(f"{made}?restype=container", headers, "PUT")
answer(f"{made}/a%20b", {**headers, "x-ms-blob-type": "BlockBlob"}, "PUT", b"text")
source = {"x-ms-copy-source": f"{made}/a%20b", "x-ms-requires-sync": "true"}
wrong = {"x-ms-copy-source-authorization": "Bearer wrong"}
signed = {"x-ms-copy-source-authorization": headers["Authorization"]}
found = {
    "copy": answer(f"{made}/copy", {**headers, **source, **signed}, "PUT")[0],
    "wrong": answer(f"{made}/wrong", {**headers, **source, **wrong}, "PUT")[0],
    "copied": answer(f"{made}/copy", headers)[1].decode(),
    "blob": answer(f"https://{account}.blob.core.windows.net/?comp=list", headers)[0],
    "file": answer(f"https://{account}.file.core.windows.net/?comp=list", headers)[0],
    "batch": answer(f"{batch}/pools?{version}", of_batch)[0],
    "keys": answer("https://management.azure.com/subscriptions?api-version=2022-12-01", of_keys)[0],
    "queue": answer(f"https://{account}.queue.core.windows.net/?comp=list", headers)[0],
}
print(json.dumps(found))
"""
_REFUSED = "Tunnel connection failed: 403 Forbidden"


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cli]:
    """Yield local services whose tasks use Azure's names, and an engine with one image."""
    folder = tmp_path_factory.mktemp("names")
    pip = folder / "image" / "pip"  # Snakemake asks it for its plugin, which the image has
    pip.parent.mkdir()
    pip.write_text("#!/bin/sh\n")
    pip.chmod(0o755)
    path = {"PATH": f"{pip.parent}:{folder / _CLIENT / 'bin'}:/usr/local/bin:/usr/bin:/bin"}
    fake(folder / "engine", "podman", registry={f"docker.io/{_IMAGE}": {"env": path}})
    cli = Cli(new_home(folder / "home"), folder)
    try:
        _up(cli, "--azure-names")
        yield cli
    finally:
        cli.run("local", "down")


def _up(cli: Cli, *options: str) -> None:
    engine = cli.cwd / "engine" / "podman"
    cli.ok("local", "up", *options, env={"BATCH_EMULATOR_CONTAINER_ENGINE": str(engine)})


def _connection(cli: Cli) -> Connection:
    paths = HomePaths(cli.home)
    state = load_state(paths)
    assert state is not None
    return Connection(local_outputs(state), ensure_keys(paths))


def _run_task(cli: Cli, job: str, script: str) -> str:
    """Run a script on a node and return what it printed."""
    batch: Any = _connection(cli).batch_client()
    batch.create_job({"id": job, "poolInfo": {"poolId": "local"}})
    task = {
        "id": "task",
        "commandLine": "python3 -c \"import os; exec(os.environ['SCRIPT'])\"",
        "environmentSettings": [{"name": "SCRIPT", "value": script}],
    }
    batch.create_task(job, task)
    until(lambda: batch.get_task(job, "task").state == "completed")
    out, err = (
        b"".join(batch.download_task_file(job, "task", name)).decode()
        for name in ("stdout.txt", "stderr.txt")
    )
    assert err == ""
    return out


def test_identity_of_a_node_grants_access_to_storage_only(named: Cli) -> None:
    found = json.loads(_run_task(named, "names", _TASK))
    refused = {"batch": 403, "keys": 403, "queue": _REFUSED}
    copied = {"copy": 202, "copied": "text", "wrong": 401}
    assert found == {"blob": 200, "file": 200, **copied, **refused}


def test_azure_names_work_after_a_restart(named: Cli) -> None:
    seen = "import os; print(os.path.isfile(os.environ.get('SSL_CERT_FILE', '')), end=' ')"
    named.ok("local", "down")
    _up(named)
    assert _run_task(named, "again", f"{seen}; print('IDENTITY_ENDPOINT' in os.environ)") == (
        "True True\n"
    )


_FLOW = """
rule all:
    input: "made.txt"
rule make:
    output: "made.txt"
    shell: "echo on $AZ_BATCH_POOL_ID > {output}"
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)  # it may install its client
def test_executor_of_snakemake_runs_a_workflow_unchanged(named: Cli, tmp_path: Path) -> None:
    plugins = ("executor-plugin-azure-batch==0.3.0", "storage-plugin-azure==0.4.4")
    python = python_of("snakemake", "snakemake==9.27.1", *(f"snakemake-{one}" for one in plugins))
    (named.cwd / _CLIENT).symlink_to(python.parents[1])
    (tmp_path / "Snakefile").write_text(_FLOW)
    blobs = _connection(named).blob_service()
    blobs.create_container("flow")
    identity = "Microsoft.ManagedIdentity/userAssignedIdentities/nodes"
    options = (
        *("--executor", "azure-batch", "--jobs", "1", "--container-image", _IMAGE),
        *("--seconds-between-status-checks", "1"),
        # its default is Ubuntu 20.04, which Batch no longer supports
        *("--azure-batch-pool-image-publisher", "microsoft-dsvm"),
        *("--azure-batch-pool-image-offer", "ubuntu-hpc", "--azure-batch-pool-image-sku", "2204"),
        *("--azure-batch-pool-vm-node-agent-sku-id", "batch.node.ubuntu 22.04"),
        *("--azure-batch-pool-vm-size", "standard_d2s_v3"),
        *("--azure-batch-managed-identity-resource-id", f"/subscriptions/s/providers/{identity}"),
        *("--default-storage-provider", "azure", "--default-storage-prefix", "az://flow"),
    )
    script = """
    snakemake "$@" --storage-azure-account-name "$AZURE_STORAGE_ACCOUNT" \\
      --azure-batch-account-url "$AZURE_BATCH_ENDPOINT" \\
      --azure-batch-subscription-id "$AZURE_SUBSCRIPTION_ID" \\
      --azure-batch-resource-group-name "$AZURE_RESOURCE_GROUP"
    """
    path = {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    here = Cli(named.home, tmp_path)
    here.ok("local", "exec", "--azure", "--", "sh", "-c", script, "sh", *options, env=path)
    made = blobs.get_blob_client("flow", "made.txt").download_blob().readall()
    assert made.startswith(b"on snakepool-")
