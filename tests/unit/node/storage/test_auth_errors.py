"""Auth errors of storage: which are retried, and which are reported at once."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from runner.node.inputs.data_cache import DataCache
from runner.node.storage import auth
from runner.node.storage.auth import AuthErrors, ManagedIdentityCredential, SasCredential
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError, Transport
from runner.node.storage.retries import RetryBudget
from runner.protocol.run_spec import DataFile
from tests.unit.node.fake_blob import FakeBlobs

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
HEADERS = {"date": format_datetime(NOW, usegmt=True)}
HOUR = timedelta(hours=1)


def sas(starts: datetime, ends: datetime, more: str = "") -> SasCredential:
    return SasCredential(f"sv=1&st={starts:%Y-%m-%dT%H:%M:%SZ}&se={ends:%Y-%m-%dT%H:%M:%SZ}{more}")


def identity(service: FakeBlobs) -> ManagedIdentityCredential:
    url = service.url.replace("/account/runs", "/metadata/identity/oauth2/token")
    return ManagedIdentityCredential(None, url)


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("first", [True, False])
def test_temporary_auth_error_is_retried(
    container: ContainerClient, service: FakeBlobs, status: int, first: bool
) -> None:
    if not first:
        container.put("r/a", b"before")
    service.fault_code = "AuthorizationFailure"
    service.faults.extend([status] * 5)
    container.put("r/a", b"x")
    assert service.data("r/a") == b"x"


@pytest.mark.parametrize(
    "code", ["AuthorizationPermissionMismatch", "KeyBasedAuthenticationNotPermitted"]
)
def test_missing_sas_permission_is_not_retried(
    container: ContainerClient, service: FakeBlobs, code: str
) -> None:
    service.fault_code = code
    service.faults.append(403)
    with pytest.raises(StorageRequestError, match=f"PUT r/a: 403 {code} \\(") as caught:
        container.put("r/a", b"x")
    assert (caught.value.status, caught.value.is_retryable) == (403, False)
    assert len(service.requests) == 1


def test_expired_sas_error_names_its_expiry() -> None:
    access = AuthErrors(sas(NOW - HOUR, NOW - timedelta(minutes=1)))
    access.record_success()
    assert not access.is_retryable("AuthenticationFailed", b"", HEADERS)
    assert access.explain("AuthenticationFailed", b"", HEADERS) == (
        "the run's access to storage ended at 2026-03-01 11:59 UTC"
    )


def test_signature_that_the_service_does_not_know_is_explained_at_once() -> None:
    access = AuthErrors(sas(NOW - HOUR, NOW + HOUR, "&scope=&sig=x"))
    assert not access.is_retryable("AuthorizationFailure", b"", HEADERS)
    assert "`runner local up`" in access.explain("AuthorizationFailure", b"", HEADERS)


def test_sas_not_yet_valid_by_service_clock_is_retried() -> None:
    access = AuthErrors(sas(NOW + timedelta(minutes=5), NOW + HOUR))
    assert access.is_retryable("AuthenticationFailed", b"", HEADERS)


def test_missing_permission_of_user_delegation_sas_is_retried() -> None:
    access = AuthErrors(sas(NOW - HOUR, NOW + HOUR, "&skoid=1"))
    assert access.is_retryable("AuthorizationPermissionMismatch", b"", HEADERS)


def test_access_that_never_worked_is_retried_for_less_time(
    service: FakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, used = AuthErrors(identity(service)), AuthErrors(identity(service))
    used.record_success()
    for access in (new, used):
        assert access.is_retryable("AuthorizationPermissionMismatch", b"", HEADERS)
    later = time.monotonic() + auth.NEW_ROLE_S
    monkeypatch.setattr(auth, "time", SimpleNamespace(monotonic=lambda: later, time=time.time))
    assert not new.is_retryable("AuthorizationPermissionMismatch", b"", HEADERS)
    assert used.is_retryable("AuthorizationPermissionMismatch", b"", HEADERS)
    assert "Storage Blob Data Contributor" in new.explain(
        "AuthorizationPermissionMismatch", b"", {}
    )


def test_refused_token_is_renewed(
    service: FakeBlobs, retry_budget: RetryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "RENEW_AFTER_REFUSAL_S", 0.0)
    container = ContainerClient(Transport(service.url, identity(service), retry_budget))
    container.put("r/a", b"x")
    service.fault_code = "InvalidAuthenticationInfo"
    service.faults.extend([401])
    container.put("r/b", b"x")
    tokens = [
        headers["Authorization"] for _, _, headers in service.requests if "Metadata" not in headers
    ]
    assert len(tokens) == 3
    assert tokens[0] == tokens[1] != tokens[2]


def test_persistent_auth_error_explains_its_cause(
    service: FakeBlobs, retry_budget: RetryBudget
) -> None:
    container = ContainerClient(Transport(service.url, identity(service), retry_budget))
    container.put("r/a", b"x")
    retry_budget.shorten(0.2)
    service.fault_code = "AuthorizationPermissionMismatch"
    service.faults.extend([403] * 1000)
    with pytest.raises(StorageRequestError, match="lacks a role on the storage account") as caught:
        container.put("r/b", b"x")
    assert (caught.value.status, caught.value.is_retryable) == (403, True)


def test_download_resumes_after_temporary_auth_error(
    container: ContainerClient, service: FakeBlobs, retry_budget: RetryBudget, tmp_path: Path
) -> None:
    service.put("set/a", b"content")
    service.faults.extend([403, 401, 403])
    service.fault_code = "AuthorizationFailure"
    cache = DataCache(container.transport, tmp_path, retry_budget, lambda *_: None, lambda: None)
    folder = cache.ensure("set", [DataFile("a", 7, None)])
    assert (folder / "a").read_bytes() == b"content"


def test_refused_delete_is_not_retried(container: ContainerClient, service: FakeBlobs) -> None:
    service.fault_code = "AuthorizationFailure"
    service.faults.append(403)
    with pytest.raises(StorageRequestError, match="DELETE r/a: 403"):
        container.delete("r/a")
    assert len(service.requests) == 1
