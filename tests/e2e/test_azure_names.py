"""`runner local exec`: programs that are written for Azure run on the local services unchanged."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.clients.environments import python_of
from tests.clients.test_languages import JAVA_BUILD, Program
from tests.e2e.conftest import Cli

PROGRAM = Path(__file__).with_name("quickstart.py")
_OTHER_HOST = """
import requests
try:
    requests.get("https://example.com/", timeout=30)
except requests.exceptions.ProxyError as err:
    print("refused" if "403" in str(err) else err)
"""
_WRONG_KEY = """
import base64, os
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import BlobServiceClient
account = os.environ["AZURE_STORAGE_ACCOUNT"]
key = base64.b64encode(b"another").decode()
client = BlobServiceClient(f"https://{account}.blob.core.windows.net", key)
try:
    list(client.list_containers())
except HttpResponseError as err:
    print(err.status_code)
"""
_KEYS_OF_THE_ACCOUNTS = """
import os, requests
from azure.identity import DefaultAzureCredential
token = DefaultAzureCredential().get_token("https://management.azure.com/.default").token
subscription = os.environ["AZURE_SUBSCRIPTION_ID"]
base = "https://management.azure.com"
headers = {"Authorization": f"Bearer {token}"}
for kind in ("Microsoft.Batch/batchAccounts", "Microsoft.Storage/storageAccounts"):
    url = f"{base}/subscriptions/{subscription}/providers/{kind}?api-version=2024-02-01"
    [account] = requests.get(url, headers=headers, timeout=60).json()["value"]
    keys = requests.post(f"{base}{account['id']}/listKeys", headers=headers, timeout=60).json()
    print(keys["primary"] if "primary" in keys else keys["keys"][0]["value"])
print(requests.get(url, timeout=60).status_code)
"""

_HTTPS_ONLY = """
import os, requests
from datetime import UTC, datetime, timedelta
from azure.identity import ManagedIdentityCredential
from azure.storage import blob, fileshare
from runner.azure.auth.credentials import Connection
from runner.contract import StackOutputs
account, key = os.environ["AZURE_STORAGE_ACCOUNT"], os.environ["AZURE_STORAGE_KEY"]
endpoint = os.environ["AZURE_STORAGE_BLOB_ENDPOINT"]
blobs = blob.BlobServiceClient(endpoint, ManagedIdentityCredential())
blobs.create_container("https-only")
blobs.get_blob_client("https-only", "a b.txt").upload_blob("blob ")
now = datetime.now(UTC)
until = {"expiry": now + timedelta(hours=1), "protocol": "https"}
read = blob.BlobSasPermissions(read=True)
of_user = blobs.get_user_delegation_key(now - timedelta(minutes=1), until["expiry"])
by = {"permission": read, **until}
types, rights = blob.ResourceTypes(object=True), blob.AccountSasPermissions(read=True)
signatures = [
    blob.generate_blob_sas(account, "https-only", "a b.txt", account_key=key, **by),
    blob.generate_blob_sas(account, "https-only", "a b.txt", user_delegation_key=of_user, **by),
    blob.generate_container_sas(account, "https-only", key, **by),
    blob.generate_account_sas(account, key, types, rights, **until),
]
stack = {name: None for name in StackOutputs.__dataclass_fields__}
stack["batch_endpoint"] = os.environ["AZURE_BATCH_ENDPOINT"]
azure = StackOutputs(**{**stack, "blob_endpoint": endpoint, "storage_account": account})
ours = Connection(azure, None).sign_reads("https-only", until["expiry"])("a b.txt")
url = f"https://{account}.blob.core.windows.net/https-only/a%20b.txt"
signatures.append(ours.removeprefix(f"{url}?"))
found = [requests.get(f"{url}?{sas}", timeout=60).text for sas in signatures]
changed = [requests.get(f"{url}?{sas}x", timeout=60).status_code for sas in signatures]
shares = fileshare.ShareServiceClient(os.environ["AZURE_STORAGE_FILE_ENDPOINT"], key)
shares.create_share("https-only").get_file_client("f").upload_file(b"file")
sas = fileshare.generate_file_sas(account, "https-only", ["f"], key, **by)
url = f"https://{account}.file.core.windows.net/https-only/f"
print(*found, requests.get(f"{url}?{sas}", timeout=60).text, *set(changed), sep="")
"""

_DELETED_TOGETHER = """
import base64, os
from datetime import UTC, datetime, timedelta
from azure.core.pipeline.policies import SansIOHTTPPolicy
from azure.identity import ManagedIdentityCredential
from azure.storage import blob
account, key = os.environ["AZURE_STORAGE_ACCOUNT"], os.environ["AZURE_STORAGE_KEY"]
endpoint = os.environ["AZURE_STORAGE_BLOB_ENDPOINT"]
of_key = blob.ContainerClient(endpoint, "together", key)
of_key.create_container()
until = {"expiry": datetime.now(UTC) + timedelta(hours=1), "protocol": "https"}
rights = blob.ContainerSasPermissions(delete=True)
sas = blob.generate_container_sas(account, "together", key, permission=rights, **until)
wrong = base64.b64encode(b"another").decode()
class Signing(SansIOHTTPPolicy):  # requests with the wrong key, in a batch with the right one
    def on_request(self, request):
        request.http_request.headers["Authorization"] = f"SharedKey {account}:{wrong}"
for credential in (key, ManagedIdentityCredential(), sas, None):
    for name in ("a", "b c/ü", "d"):
        of_key.upload_blob(name, b"", overwrite=True)
    client = blob.ContainerClient(endpoint, "together", credential or key)
    kept = client._credential_policy
    if credential is None:
        client._credential_policy = Signing()
    names = ("a", "b c/ü", "missing")
    answers = client.delete_blobs(*names, raise_on_any_failure=False)
    print(*(answer.status_code for answer in answers), *of_key.list_blob_names())
"""


def _exec(cli: Cli, *command: object, azure: bool = True) -> str:
    return cli.ok("local", "exec", *(["--azure"] if azure else []), "--", *command)


@pytest.mark.parametrize("how", ["keys", "identity"])
def test_program_for_azure_runs_unchanged(cli: Cli, how: str) -> None:
    cli.ok("local", "up")
    script = f"echo | '{sys.executable}' '{PROGRAM}' {how}"
    assert _exec(cli, "sh", "-c", script) == "in data0.txt\nin data1.txt\nDelete job and pool? "


@pytest.mark.slow
@pytest.mark.timeout(1500)  # it may install its client
def test_program_for_the_earlier_sdk_runs_unchanged(cli: Cli) -> None:
    python = python_of("quickstart-14.2.0", "azure-batch==14.2.0", "azure-storage-blob==12.26.0")
    cli.ok("local", "up")
    earlier = PROGRAM.with_name("quickstart_track1.py")
    script = f"echo | '{python}' '{earlier}'"
    assert _exec(cli, "sh", "-c", script) == "in data0.txt\nin data1.txt\nDelete job and pool? "


_AIRFLOW = """
import json, os
endpoint = json.dumps({"account_url": os.environ["AZURE_BATCH_ENDPOINT"]})
os.environ["AIRFLOW_CONN_AZURE_BATCH_DEFAULT"] = json.dumps(
    {"conn_type": "azure_batch", "extra": endpoint}
)
from airflow.providers.microsoft.azure.operators.batch import AzureBatchOperator
operator = AzureBatchOperator(
    task_id="batch",
    batch_pool_id="airflow",
    batch_pool_vm_size="standard_d2s_v3",
    batch_job_id="airflow",
    batch_task_id="hello",
    batch_task_command_line="/bin/sh -c 'echo from Airflow'",
    use_latest_verified_vm_image_and_sku=True,
    vm_publisher="canonical",
    vm_offer="ubuntu-24_04-lts",
    vm_sku="server",
    sku_starts_with="server",
    vm_node_agent_sku_id="batch.node.ubuntu 24.04",
    target_dedicated_nodes=1,
)
operator.execute({})
client = operator.hook.connection
print(b"".join(client.download_task_file("airflow", "hello", "stdout.txt")).decode(), end="")
client.begin_delete_job("airflow")
client.begin_delete_pool("airflow")
"""


@pytest.mark.slow
@pytest.mark.timeout(1500)  # it may install its client
def test_operator_of_airflow_runs_a_task_unchanged(cli: Cli, tmp_path: Path) -> None:
    package = "apache-airflow-providers-microsoft-azure"
    python = python_of("airflow", f"{package}==15.2.1", "apache-airflow==3.3.2")
    cli.ok("local", "up")
    home = {"AIRFLOW_HOME": str(tmp_path / "airflow")}
    found = cli.ok("local", "exec", "--azure", "--", python, "-c", _AIRFLOW, env=home)
    assert "from Airflow" in found.splitlines()  # within its log


def test_https_only_and_user_delegation_sas_are_accepted(cli: Cli) -> None:
    cli.ok("local", "up")
    assert _exec(cli, sys.executable, "-c", _HTTPS_ONLY) == "blob blob blob blob blob file403\n"


@pytest.mark.slow
def test_blobs_are_deleted_in_one_request_if_each_is_signed(cli: Cli) -> None:
    """Requests have the key, a token or a SAS; those with another key are refused one by one."""
    cli.ok("local", "up")
    deleted, refused = "202 202 404 d\n", "403 403 403 a b c/ü d\n"
    printed = _exec(cli, sys.executable, "-c", _DELETED_TOGETHER)
    assert printed == 3 * deleted + refused


def test_token_needs_the_client_secret_of_the_command(cli: Cli) -> None:
    cli.ok("local", "up")
    assert "AADSTS7000215" in _exec(cli, sys.executable, PROGRAM, "wrong")


def test_other_hosts_and_other_keys_are_refused(cli: Cli) -> None:
    cli.ok("local", "up")
    assert _exec(cli, sys.executable, "-c", _OTHER_HOST) == "refused\n"
    assert _exec(cli, sys.executable, "-c", _WRONG_KEY) == "403\n"


def test_resource_manager_lists_accounts_and_keys_with_a_token(cli: Cli) -> None:
    cli.ok("local", "up")
    exports = cli.json("local", "env")
    keys = [exports[name] for name in ("AZURE_BATCH_ACCESS_KEY", "AZURE_STORAGE_KEY")]
    assert _exec(cli, sys.executable, "-c", _KEYS_OF_THE_ACCOUNTS).split() == [*keys, "401"]


@pytest.mark.smoke
def test_client_of_the_guide_connects(cli: Cli) -> None:
    cli.ok("local", "up")
    page = (Path(__file__).parents[2] / "docs/guides/local.md").read_text(encoding="utf-8")
    code = page.split("python -c '", 1)[1].split("'\n", 1)[0]
    assert "'local'" in _exec(cli, sys.executable, "-c", code, azure=False)


def test_exec_without_names_sets_the_variables_of_env(cli: Cli) -> None:
    cli.ok("local", "up")
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    found = json.loads(_exec(cli, sys.executable, "-c", script, azure=False))
    exports = cli.json("local", "env")
    assert {name: found[name] for name in exports} == exports
    assert cli.run("local", "exec", "--", "sh", "-c", "exit 7").returncode == 7
    assert cli.run("local", "exec", "--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    assert "cannot run no-such-program" in cli.run("local", "exec", "--", "no-such-program").stderr


@pytest.mark.slow
@pytest.mark.timeout(1500)  # it may download its packages
def test_java_program_signs_in_and_uses_blobs(cli: Cli) -> None:
    program = Program(
        "java-storage",
        (*JAVA_BUILD, ("javac", "-cp", "lib/*", "-d", "out", "Storage.java")),
        ("java",),
    )
    folder = program.build()
    cli.ok("local", "up")
    printed = _exec(cli, "java", "-cp", f"{folder}/lib/*:{folder}/out", "Storage")
    assert printed.splitlines()[-1] == "from java"
