from __future__ import annotations

import hashlib
import http.client
from pathlib import Path

import pytest

from batch_emulator.gateway.client_variables import bundle_of, client_variables
from batch_emulator.gateway.proxy import Gateway
from batch_emulator.gateway.services import LocalServices
from batch_emulator.gateway.sign_in import NamedAccounts
from runner.node.storage import blobs as blobs_module
from runner.node.storage.auth import ManagedIdentityCredential, SasCredential
from runner.node.storage.blobs import ContainerClient, content_type
from runner.node.storage.http import StorageRequestError, StorageUnreachableError, Transport
from runner.node.storage.retries import RetryBudget
from tests.unit.node.fake_blob import FakeBlobs


def test_missing_blob_reads_as_none(container: ContainerClient) -> None:
    assert container.get("r/run.json") is None
    assert container.head("r/run.json") is None


def test_names_and_sas_are_quoted_correctly(container: ContainerClient, service: FakeBlobs) -> None:
    container.put("r/output/a b#ü?.txt", b"x")
    assert service.data("r/output/a b#ü?.txt") == b"x"
    _, path, headers = service.requests[-1]
    assert path.endswith("?sv=1&sig=s%2Bx")
    assert headers["x-ms-version"]


def test_requests_of_one_thread_share_a_connection(
    container: ContainerClient, service: FakeBlobs
) -> None:
    for number in range(5):
        container.put(f"r/{number}", b"x")
    assert service.connections == 1


@pytest.mark.parametrize("fault", [503, 500, 429, 408, "drop", "lose"])
def test_temporary_failure_is_retried(
    container: ContainerClient, service: FakeBlobs, fault: int | str
) -> None:
    service.faults.extend([fault, fault])
    container.put("r/a", b"content")
    assert service.data("r/a") == b"content"


def test_retry_budget_ends(
    service: FakeBlobs, container: ContainerClient, retry_budget: RetryBudget
) -> None:
    service.away.set()
    retry_budget.shorten(0.05)
    with pytest.raises(StorageUnreachableError, match="GET r/a"):
        container.get("r/a")


def test_only_one_writer_creates_a_blob(container: ContainerClient, service: FakeBlobs) -> None:
    assert container.create("r/result.json", b"mine")
    assert not container.create("r/result.json", b"theirs")
    assert service.data("r/result.json") == b"mine"


def test_create_with_lost_response_counts_as_ours(
    container: ContainerClient, service: FakeBlobs
) -> None:
    service.faults.append("lose")
    assert container.create("r/result.json", b"mine")


def test_create_by_another_writer_during_retry_is_not_ours(
    container: ContainerClient, service: FakeBlobs
) -> None:
    service.put("r/result.json", b"theirs")
    service.faults.append("drop")
    assert not container.create("r/result.json", b"mine")


def test_listing_follows_markers(container: ContainerClient, service: FakeBlobs) -> None:
    service.page_size = 2
    names = [f"r/attempts/{n}/start.json" for n in range(1, 6)]
    for name in [*names, "other/x"]:
        service.put(name, b"")
    assert container.list_names("r/attempts/") == names


def test_large_file_is_staged_in_blocks(
    container: ContainerClient, service: FakeBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_module, "STAGED_BLOCK_BYTES", 400)
    data = bytes(range(256)) * 5
    (tmp_path / "m").write_bytes(data)
    service.faults.extend([503, "drop"])
    sent = container.put_file("r/output/m", tmp_path / "m")
    assert sent == (len(data), hashlib.sha256(data).hexdigest())
    assert service.data("r/output/m") == data
    assert len(service.staged) == 4


def test_holes_of_a_sparse_file_are_sent_once(
    container: ContainerClient, service: FakeBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_module, "STAGED_BLOCK_BYTES", 400)
    data = bytes(800) + b"x" * 450 + bytes(350) + bytes(4000) + b"end"
    (tmp_path / "m").write_bytes(data)
    counted: list[int] = []
    sent = container.put_file("r/output/m", tmp_path / "m", counted.append)
    assert sent == (len(data), hashlib.sha256(data).hexdigest())
    assert service.data("r/output/m") == data
    assert len(service.staged) == 4, "a hole, two blocks with data, and the end"
    assert sum(counted) == len(data)


def test_refused_block_is_the_error_of_the_file(
    container: ContainerClient, service: FakeBlobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs_module, "STAGED_BLOCK_BYTES", 400)
    (tmp_path / "m").write_bytes(b"x" * 4000)
    service.faults.append(413)
    with pytest.raises(StorageRequestError, match="413"):
        container.put_file("r/output/m", tmp_path / "m")
    assert "r/output/m" not in service.blobs


def test_file_upload_restarts_after_lost_connection(
    container: ContainerClient, service: FakeBlobs, tmp_path: Path
) -> None:
    (tmp_path / "m").write_bytes(b"model" * 100)
    service.faults.append("drop")
    container.put_file("r/output/m.json", tmp_path / "m")
    assert service.data("r/output/m.json") == b"model" * 100
    assert service.blobs["r/output/m.json"].content_type == "application/json"


def test_unknown_suffix_is_binary() -> None:
    assert content_type("output/model.keras") == "application/octet-stream"
    assert content_type("logs/stdout.txt").startswith("text/plain")


def test_identity_token_is_fetched_once_and_sent(
    service: FakeBlobs, retry_budget: RetryBudget
) -> None:
    url = service.url.replace("/account/runs", "/metadata/identity/oauth2/token")
    credential = ManagedIdentityCredential("client-1", url)
    container = ContainerClient(Transport(service.url, credential, retry_budget))
    container.put("r/a", b"x")
    container.put("r/b", b"x")
    method, path, headers = service.requests[0]
    assert (method, headers["Metadata"]) == ("GET", "true")
    assert "client_id=client-1" in path
    assert "resource=https%3A%2F%2Fstorage.azure.com%2F" in path
    authorizations = [headers["Authorization"] for _, _, headers in service.requests[1:]]
    assert authorizations == ["Bearer token-1", "Bearer token-1"]


def test_proxy_and_identity_endpoint_of_a_host_are_used(
    service: FakeBlobs,
    retry_budget: RetryBudget,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    address = service.url.removesuffix("/runs")
    account = NamedAccounts("account", "a2V5", "a2V5")
    gateway = Gateway(LocalServices(account, address, address, address), for_nodes=True)
    gateway.start()
    bundle = tmp_path / "authorities.pem"
    bundle.write_bytes(bundle_of(gateway))
    for name, value in client_variables(gateway, str(bundle)).items():
        monkeypatch.setenv(name, value)
    url = "https://account.blob.core.windows.net/runs"
    try:
        transport = Transport(url, ManagedIdentityCredential("client-1"), retry_budget)
        ContainerClient(transport).put("r/a", b"x")
        transport.close()
    finally:
        gateway.close()
    assert service.data("r/a") == b"x"
    [(_, path, headers)] = service.requests
    assert path == "/account/runs/r/a"
    # Responses of the gateway to valid tokens only.
    assert headers["authorization"].startswith("SharedKey account:")


def test_host_outside_the_proxy_is_reached_directly(
    retry_budget: RetryBudget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://user:p%40ss@proxy.example:3128")
    monkeypatch.setenv("no_proxy", "blob.internal")
    seen: list[tuple[str, int, dict[str, str]]] = []

    def tunnel(
        connection: http.client.HTTPSConnection, host: str, _port: int, headers: dict[str, str]
    ) -> None:
        seen.append((f"{host} by {connection.host}", connection.port, headers))

    def unreachable(connection: http.client.HTTPSConnection) -> None:
        seen.append((connection.host, connection.port, {}))
        raise ConnectionRefusedError

    monkeypatch.setattr(http.client.HTTPSConnection, "set_tunnel", tunnel)
    monkeypatch.setattr(http.client.HTTPSConnection, "connect", unreachable)
    for host in ("blob.internal", "blob.example"):
        transport = Transport(f"https://{host}/runs", SasCredential("sig=s"), retry_budget)
        with pytest.raises(ConnectionRefusedError):
            transport.open("r/a")
    password = {"Proxy-Authorization": "Basic dXNlcjpwQHNz"}
    assert seen == [
        ("blob.internal", 443, {}),
        ("blob.example by proxy.example", 3128, password),
        ("proxy.example", 3128, {}),
    ]


@pytest.mark.parametrize("proxy", ["socks5://h:1080", "https://h", "http://h:port", "http://"])
def test_proxy_of_another_kind_is_not_used(
    retry_budget: RetryBudget, monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    monkeypatch.setenv("https_proxy", proxy)
    seen: list[str] = []

    def unreachable(connection: http.client.HTTPSConnection) -> None:
        seen.append(connection.host)
        raise ConnectionRefusedError

    monkeypatch.setattr(http.client.HTTPSConnection, "connect", unreachable)
    transport = Transport("https://blob.example/runs", SasCredential("sig=s"), retry_budget)
    with pytest.raises(ConnectionRefusedError):
        transport.open("r/a")
    assert seen == ["blob.example"]


def test_unavailable_metadata_service_is_retried(
    service: FakeBlobs, retry_budget: RetryBudget
) -> None:
    url = service.url.replace("/account/runs", "/metadata/identity/oauth2/token")
    service.faults.append("drop")
    container = ContainerClient(
        Transport(service.url, ManagedIdentityCredential(None, url), retry_budget)
    )
    container.put("r/a", b"x")
    assert service.data("r/a") == b"x"


def test_invalid_container_url_is_rejected() -> None:
    with pytest.raises(ValueError, match="not a container URL"):
        Transport("ftp://h/runs", ManagedIdentityCredential(None), RetryBudget())
