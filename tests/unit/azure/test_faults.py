"""Service errors become errors people can act on, by code and never by text."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
)
from urllib3.connection import HTTPConnection
from urllib3.exceptions import NewConnectionError

from runner.azure.arm.client import service_fault
from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import get_task
from runner.azure.faults import RETRIES, SERVICES_DOWN, error_code, to_runner_error
from runner.azure.storage.blobs import BlobContainer
from runner.protocol.errors import ExitCode, RunnerError
from tests.faulty_line import faulty_line
from tests.unit.core.recipe_maker import outputs
from tests.unit.node.fake_blob import serve_fake_blobs

KEY = "a2V5a2V5a2V5a2V5"


def batch_error(code: str) -> HttpResponseError:
    return HttpResponseError(message="text nobody parses", model=SimpleNamespace(code=code))


def storage_error(code: str) -> HttpResponseError:
    error: Any = HttpResponseError(message="text nobody parses")
    error.error_code = code
    return error


def test_reason_of_the_service_is_shown() -> None:
    full = "the disk of /data, mounted at /, is full: 0 bytes free"
    values = [SimpleNamespace(key="Reason", value=full), SimpleNamespace(key="JobId", value="x")]
    model = SimpleNamespace(code="ServerBusy", error_values=values)
    mapped = to_runner_error(HttpResponseError(message="text", model=model), "adding tasks")
    assert (mapped.code, mapped.exit_code) == ("R-STORAGE-FULL", ExitCode.CAPACITY)
    assert mapped.why == f"while adding tasks: ServerBusy, {full}"


def test_full_disk_in_the_status_line_of_azurite_is_shown() -> None:
    error = storage_error("ServerBusy")
    error.reason = "the disk of /data is full"
    assert to_runner_error(error, "x").why == "while x: ServerBusy, the disk of /data is full"
    error.reason = "The server is busy."
    assert to_runner_error(error, "x").why == "while x: ServerBusy"


@pytest.mark.parametrize(
    ("error", "code", "exit_code"),
    [
        (batch_error("AuthenticationFailed"), "R-ACCESS-DENIED", ExitCode.ACCESS),
        (batch_error("PoolNotFound"), "R-POOL-MISSING", ExitCode.PREFLIGHT),
        (batch_error("ActiveJobAndScheduleQuotaReached"), "R-QUOTA", ExitCode.CAPACITY),
        (storage_error("AuthorizationFailure"), "R-ACCESS-DENIED", ExitCode.ACCESS),
        (storage_error("ContainerNotFound"), "R-CONTAINER-MISSING", ExitCode.PREFLIGHT),
        (ClientAuthenticationError(message="no login"), "R-AZURE-SIGN-IN", ExitCode.ACCESS),
        (ServiceRequestError(message="refused"), SERVICES_DOWN, ExitCode.PREFLIGHT),
        (batch_error("SomethingNew"), "R-SERVICE", ExitCode.PREFLIGHT),
    ],
)
def test_table_maps_codes(error: Any, code: str, exit_code: ExitCode) -> None:
    mapped = to_runner_error(error, "testing")
    assert (mapped.code, mapped.exit_code) == (code, exit_code)
    assert mapped.fix
    assert "testing" in mapped.why


@pytest.mark.parametrize("has_az", [True, False])
def test_every_client_says_the_same_without_a_sign_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_az: bool
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if has_az:
        (tmp_path / "az").write_text("#!/bin/sh\n")
        (tmp_path / "az").chmod(0o700)
    error = ClientAuthenticationError("failed\n\tAzureCliCredential: Please run 'az login'\n")
    data, management = to_runner_error(error, "testing"), service_fault(error, "testing")
    assert (data.code, str(data)) == ("R-AZURE-SIGN-IN", str(management))
    assert data.why == "while testing: neither variables nor `az` sign in: Please run 'az login'"
    begin = "run `az login`, or" if has_az else "install the Azure CLI (https://"
    assert data.fix.startswith(begin)
    assert "run `az login`, or set ARM_CLIENT_ID" in data.fix


@pytest.mark.parametrize(
    ("ahead_min", "said"),
    [(20, "is 20 min ahead"), (-90, "is 1 h 30 min behind"), (3, "rejected the sign-in")],
)
def test_wrong_clock_is_named_as_the_cause_of_a_rejected_sign_in(ahead_min: int, said: str) -> None:
    error: Any = batch_error("AuthenticationFailed")
    theirs = datetime.now(UTC) - timedelta(minutes=ahead_min)
    error.response = SimpleNamespace(headers={"Date": format_datetime(theirs, usegmt=True)})
    mapped = to_runner_error(error, "testing")
    assert said in mapped.what
    assert ("correct the clock" in mapped.fix) is (abs(ahead_min) > 5)
    error.response.headers["Date"] = "yesterday"
    assert to_runner_error(error, "testing").code == "R-ACCESS-DENIED"


def test_code_is_found_in_errors_of_both_sdks() -> None:
    assert error_code(batch_error("TaskExists")) == "TaskExists"
    assert error_code(storage_error("BlobNotFound")) == "BlobNotFound"
    assert error_code(HttpResponseError(message="x")) == ""


@pytest.fixture
def nobody() -> Iterator[Connection]:
    """Yield services on a port that is reserved and has no listener."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        port = kept.getsockname()[1]
        stack = replace(
            outputs(),
            batch_endpoint=f"http://127.0.0.1:{port}",
            blob_endpoint=f"http://127.0.0.1:{port}/storage",
        )
        yield Connection(stack, {"batch": KEY, "storage": KEY})


def test_refused_batch_connection_is_reported_quickly_with_the_fix(nobody: Connection) -> None:
    nobody.batch_client()  # the import of the SDK is not timed
    start = time.monotonic()
    with pytest.raises(RunnerError) as caught:
        get_task(nobody, "job", "task")
    assert caught.value.code == SERVICES_DOWN
    assert caught.value.fix == "runner local up"
    assert time.monotonic() - start < 100  # the SDKs' own retries take minutes


@pytest.mark.slow
def test_refused_blob_connection_is_reported_quickly_with_the_fix(nobody: Connection) -> None:
    service = nobody.blob_service()
    start = time.monotonic()
    with pytest.raises(RunnerError) as caught:
        BlobContainer(service, "runs").read("x")
    assert (caught.value.code, caught.value.fix) == (SERVICES_DOWN, "runner local up")
    assert time.monotonic() - start < 100  # the SDKs' own retries take minutes


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["request", "answer"])
def test_fix_for_responding_services_does_not_start_them(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("azure.core.pipeline.transport.RequestsTransport.sleep", lambda *_: None)
    with serve_fake_blobs() as service:
        service.put("x", b"content")
        once = [
            *repeat(fault, 1 + RETRIES),
            "",
        ]  # all attempts of a request, without later requests
        faults = chain(once, once, repeat(""))
        with faulty_line(service.url, faults) as (url, _):
            line = url.partition("/account")[0]
            stack = replace(outputs(), batch_endpoint=line, blob_endpoint=f"{line}/account")
            broken = Connection(stack, {"batch": KEY, "storage": KEY})
            for ask in (
                lambda: get_task(broken, "job", "task"),
                lambda: BlobContainer(broken.blob_service(), "runs").read("x"),
            ):
                with pytest.raises(RunnerError) as caught:
                    ask()
                assert (caught.value.code, caught.value.fix) == (
                    SERVICES_DOWN,
                    "run the same command again",
                )
            assert BlobContainer(broken.blob_service(), "runs").read("x") == b"content"


def test_broken_connection_to_another_machine_suggests_no_local_up() -> None:
    error = ServiceRequestError("refused", error=NewConnectionError(HTTPConnection("a.test"), "x"))
    mapped = to_runner_error(error, "testing")
    assert mapped.what == "cannot connect to the services"
    assert mapped.fix == "check the network, and run the same command again"
