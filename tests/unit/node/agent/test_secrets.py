"""Secrets of key vaults, against a vault and a metadata service on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from runner.node.failures import StageFailedError
from runner.node.script.redaction import Redactor
from runner.node.settings import RunSecrets
from runner.node.storage.retries import RetryBudget
from tests.loopback import listening
from tests.unit.node.agent_task import RUN, Task

VALUE = "the-value-in-the-vault"


@dataclass
class Vault:
    """A key vault with one secret, and the node's metadata service."""

    url: str = ""
    status: int = 200
    location: str = ""
    faults: list[int] = field(default_factory=list)
    resources: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    vault: Vault

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        if parts.path == "/token":
            self.vault.resources.append(query["resource"])
            self._answer(200, {"access_token": "a-token", "expires_in": "3600"})
            return
        self.vault.asked.append(parts.path)
        assert query == {"api-version": "7.4"}
        if self.headers["Authorization"] != "Bearer a-token":
            self._answer(401, {})
        elif self.vault.faults:
            self._answer(self.vault.faults.pop(0), {})
        elif self.vault.status != 200:
            self._answer(self.vault.status, {"error": {"code": "Forbidden"}})
        else:
            self._answer(200, {"value": VALUE, "id": self.path})

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        if self.vault.location and status in (301, 302, 307):
            self.send_header("Location", self.vault.location)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def vault(monkeypatch: pytest.MonkeyPatch) -> Iterator[Vault]:
    vault = Vault()
    with listening(_Handler, vault=vault) as url:
        vault.url = url
        monkeypatch.setenv("RUNNER_IMDS_TOKEN_URL", f"{url}/token")
        yield vault


def of(url: str, redactor: Redactor | None = None) -> RunSecrets:
    return RunSecrets({}, {"TOKEN": url}, "client-1", redactor or Redactor())


def test_secret_is_read_with_the_nodes_identity_and_hidden(
    vault: Vault, retry_budget: RetryBudget
) -> None:
    redactor = Redactor()
    vault.faults = [503, 429]
    values = of(f"{vault.url}/secrets/hub", redactor).resolve(retry_budget)
    assert values == {"TOKEN": VALUE}
    assert set(vault.resources) == {"https://vault.azure.net"}
    assert vault.asked == ["/secrets/hub"] * 3
    assert redactor.text(f"x {VALUE}") == "x ***"


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, "assign the role Key Vault Secrets User"),
        (404, "the secret does not exist"),
        (400, "400, Bad Request"),
    ],
)
def test_refusal_has_a_fix(vault: Vault, retry_budget: RetryBudget, status: int, said: str) -> None:
    vault.status = status
    with pytest.raises(StageFailedError, match=said) as caught:
        of(f"{vault.url}/secrets/hub").resolve(retry_budget)
    assert (caught.value.step, caught.value.code) == ("secrets", "SecretUnavailable")


def test_token_is_sent_only_to_the_vault(vault: Vault, retry_budget: RetryBudget) -> None:
    with pytest.raises(StageFailedError, match="this is not the URL of a key vault"):
        of("https://vault.azure.net.example.org/secrets/hub").resolve(retry_budget)
    with pytest.raises(StageFailedError, match="this is not the URL of a key vault"):
        of("http://my.vault.azure.net/secrets/hub").resolve(retry_budget)
    assert vault.resources == []
    vault.status, vault.location = 302, f"{vault.url}/elsewhere"
    with pytest.raises(StageFailedError, match="302"):
        of(f"{vault.url}/secrets/hub").resolve(retry_budget)
    assert vault.asked == ["/secrets/hub"]


def test_script_gets_the_secret_and_its_log_does_not(vault: Vault, task: Task) -> None:
    task.settings = {"RUNNER_IMDS_TOKEN_URL": f"{vault.url}/token"}
    task.secrets = {"values": {}, "keyvault": {"TOKEN": f"{vault.url}/secrets/hub"}}
    task.submit("import os; print(os.environ['TOKEN'], len(os.environ['TOKEN']))")
    assert task.run() == 0, task.output
    assert task.text("logs/stdout.txt") == f"*** {len(VALUE)}\n"
    assert next(iter(task.json("result.json")["stages_s"])) == "secrets"


def test_unreadable_secret_fails_the_run(vault: Vault, task: Task) -> None:
    vault.status = 403
    task.settings = {"RUNNER_IMDS_TOKEN_URL": f"{vault.url}/token"}
    task.secrets = {"keyvault": {"TOKEN": f"{vault.url}/secrets/hub"}}
    task.submit("print(1)")
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["step"], result["code"]) == ("secrets", "SecretUnavailable")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="there is no /proc")
def test_script_finds_no_secret_in_the_environment_of_the_agent(task: Task) -> None:
    task.secrets = {"values": {"TOKEN": "hunter2-hunter2"}}
    task.submit(
        "import os, pathlib\n"
        "try:\n"
        "    text = pathlib.Path(f'/proc/{os.getppid()}/environ').read_bytes()\n"
        "except PermissionError:\n"
        "    text = b'refused'\n"
        "out = pathlib.Path(os.environ['RUNNER_OUTPUT_DIR']) / 'environ'\n"
        "out.write_bytes(text)\n",
        secrets=["TOKEN"],
    )
    assert task.run() == 0, task.output
    [name] = [name for name in task.service.blobs if name.endswith("/environ")]
    seen = task.service.data(name)
    assert seen == b"refused" or b"RUNNER_RUN_ID=mnist-1" in seen  # with namespaces, or without
    assert b"hunter2" not in seen
    assert b"secret-signature" not in seen


HIDDEN = "hunter2-hunter2"


@pytest.mark.slow
def test_secret_in_a_file_name_of_a_checkpoint_is_redacted(task: Task) -> None:
    task.secrets = {"values": {"TOKEN": HIDDEN}}
    task.submit(
        "import os\n"
        "folder = os.environ['RUNNER_CHECKPOINT_DIR'] + '/'\n"
        "open(folder + 'state', 'w').write('1')\n"
        "os.mkfifo(folder + 'pipe-of-' + os.environ['TOKEN'])\n"
        "raise SystemExit(3)\n"
    )
    assert task.run() == 3
    problem = "checkpoints do not contain pipe-of-***: it is neither a file nor a folder"
    assert task.json("result.json")["checkpoint"]["problem"] == problem
    assert task.json("attempts/1/end.json")["checkpoint"]["problem"] == problem
    assert HIDDEN not in task.output


def test_secret_in_a_skipped_checkpoint_is_redacted(task: Task) -> None:
    task.secrets = {"values": {"TOKEN": HIDDEN}}
    file = {
        "path": f"model-{HIDDEN}",
        "size_bytes": 1,
        "sha256": "a" * 64,
        "blob": f"{RUN}/checkpoints/files/1/a",
    }
    manifest = {"format": 1, "attempt": 1, "time": "", "step": None}
    for number, files in ((1, []), (2, [file]), (3, [{**file, "path": f"../{HIDDEN}"}])):
        body = json.dumps({**manifest, "checkpoint": number, "files": files}).encode()
        task.service.put(f"{RUN}/checkpoints/{number}/manifest.json", body)
    task.submit("print(1)")
    assert task.run() == 0, task.output
    resumed = task.json("attempts/1/resume.json")
    assert resumed["checkpoint"] == 1
    assert resumed["skipped"] == [
        "checkpoint 3: '../***' leaves the folder",
        "checkpoint 2 of attempt 1: model-*** is missing",
    ]
    assert task.json("result.json")["checkpoint"]["restored"] == resumed
    assert HIDDEN not in task.text("attempts/1/events.jsonl") + task.output


def test_password_of_a_secret_address_is_redacted_too() -> None:
    redactor = Redactor()
    RunSecrets({"PIP_INDEX_URL": "https://joe:hunter2secret@h/simple"}, {}, None, redactor)
    assert redactor.text("http://joe:hunter2secret@h, hunter2secret") == "http://joe:***@h, ***"
