"""`runner local exec`: programs that are written for Azure run on the local services unchanged."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

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


def _exec(cli: Cli, *command: object, azure: bool = True) -> str:
    return cli.ok("local", "exec", *(["--azure"] if azure else []), "--", *command)


@pytest.mark.parametrize("how", ["keys", "identity"])
def test_program_for_azure_runs_by_its_names_unchanged(cli: Cli, how: str) -> None:
    cli.ok("local", "up")
    assert _exec(cli, sys.executable, PROGRAM, how) == "in data 0.txt\nin data 1.txt\n"


def test_tokens_are_given_for_the_secret_of_the_command_only(cli: Cli) -> None:
    cli.ok("local", "up")
    assert "AADSTS7000215" in _exec(cli, sys.executable, PROGRAM, "wrong")


def test_other_hosts_and_other_keys_are_refused(cli: Cli) -> None:
    cli.ok("local", "up")
    assert _exec(cli, sys.executable, "-c", _OTHER_HOST) == "refused\n"
    assert _exec(cli, sys.executable, "-c", _WRONG_KEY) == "403\n"


def test_resource_manager_lists_accounts_and_keys_for_a_token(cli: Cli) -> None:
    cli.ok("local", "up")
    exports = cli.json("local", "env")
    keys = [exports[name] for name in ("AZURE_BATCH_ACCESS_KEY", "AZURE_STORAGE_KEY")]
    assert _exec(cli, sys.executable, "-c", _KEYS_OF_THE_ACCOUNTS).split() == [*keys, "401"]


def test_exec_without_names_gives_the_variables_of_env(cli: Cli) -> None:
    cli.ok("local", "up")
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    found = json.loads(_exec(cli, sys.executable, "-c", script, azure=False))
    exports = cli.json("local", "env")
    assert {name: found[name] for name in exports} == exports
    assert cli.run("local", "exec", "--", "sh", "-c", "exit 7").returncode == 7
    assert cli.run("local", "exec", "--", "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    assert "cannot run no-such-program" in cli.run("local", "exec", "--", "no-such-program").stderr
