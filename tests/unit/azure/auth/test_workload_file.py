"""The token of a CI job in a file, against a stand-in of the CI system."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from azure.core.exceptions import ClientAuthenticationError

from runner.azure.auth.workload_file import workload_token_file
from runner.protocol.azure.clouds import CHINA
from tests.loopback import listening

_JOB = {"ARM_CLIENT_ID": "c", "ARM_TENANT_ID": "t", "ARM_USE_OIDC": "true"}


class _Ci(BaseHTTPRequestHandler):
    numbers: itertools.count[int]

    def do_GET(self) -> None:
        (audience,) = parse_qs(urlsplit(self.path).query)["audience"]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"value": f"{next(self.numbers)} {audience}"}).encode())


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Generator[dict[str, str]]:
    """Yield the variables of a job that gets numbered tokens."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with listening(_Ci, numbers=itertools.count(1)) as url:
        request = {"ACTIONS_ID_TOKEN_REQUEST_URL": f"{url}/token?api=2"}
        yield {**_JOB, **request, "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "of-the-job"}


def test_file_has_a_token_that_is_renewed(job: dict[str, str]) -> None:
    found = workload_token_file(job, renew_s=0.02)
    assert (found["AZURE_CLIENT_ID"], found["AZURE_TENANT_ID"]) == ("c", "t")
    file = Path(found["AZURE_FEDERATED_TOKEN_FILE"])
    assert file.stat().st_mode & 0o077 == 0
    assert file.parent.stat().st_mode & 0o077 == 0
    deadline = time.monotonic() + 300
    while (text := file.read_text()).startswith("1 "):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert text.endswith(" api://AzureADTokenExchange")


def test_audience_is_that_of_the_cloud(job: dict[str, str]) -> None:
    found = workload_token_file({**job, "ARM_ENVIRONMENT": "china"})
    text = Path(found["AZURE_FEDERATED_TOKEN_FILE"]).read_text()
    assert text == f"1 {CHINA.exchange_audience}"


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"ARM_CLIENT_ID": "c", "ARM_TENANT_ID": "t", "ARM_CLIENT_SECRET": "s"},
        {**_JOB, "AZURE_FEDERATED_TOKEN_FILE": "/given"},
    ],
)
def test_other_sign_ins_need_no_file(env: dict[str, str]) -> None:
    assert workload_token_file(env) == {}


def test_job_without_permission_is_an_error() -> None:
    with pytest.raises(ClientAuthenticationError, match="id-token: write"):
        workload_token_file(_JOB)
