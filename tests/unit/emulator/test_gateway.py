"""The proxy of Azure's names: closed connections, and the environment of commands."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import pkcs12

from batch_emulator.gateway import __main__ as gateway_program
from batch_emulator.gateway import client_variables, java, proxy
from batch_emulator.gateway.authority import Authority
from batch_emulator.gateway.command import environment_of, run
from batch_emulator.gateway.pools import pool_of
from batch_emulator.gateway.proxy import Gateway
from batch_emulator.gateway.services import LocalServices
from batch_emulator.gateway.sign_in import (
    CLIENT,
    IDENTITY_PATH,
    NamedAccounts,
    answer_management,
    resource_id,
)
from batch_emulator.gateway.signatures import Signatures, StorageRequest
from batch_emulator.server import Server
from tests.loopback import QuietServer

HOST = "mine.westeurope.batch.azure.com"


class _Closing(BaseHTTPRequestHandler):
    """Closes each connection behind its first answer, without a word in it."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        promised = 100 if self.path == "/cut" else 2
        self.send_response_only(200)
        self.send_header("Content-Length", str(promised))
        self.end_headers()
        self.wfile.write(b"{}")
        self.close_connection = True

    def do_GET(self) -> None:
        text = self.headers["Authorization"].encode()
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with QuietServer(("127.0.0.1", 0), _Closing) as service:
        threading.Thread(target=service.serve_forever, args=(0.01,), daemon=True).start()
        local = f"http://127.0.0.1:{service.server_address[1]}"
        account = NamedAccounts("mine", "a2V5", "a2V5")
        gateway = Gateway(LocalServices(account, local, f"{local}/mine", f"{local}/mine"))
        gateway.start()
        yield gateway
        gateway.close()
        service.shutdown()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[http.client.HTTPSConnection]:
    client = _client(gateway, HOST)
    yield client
    client.close()


def _client(gateway: Gateway, host: str) -> http.client.HTTPSConnection:
    trusted = ssl.create_default_context(cadata=gateway.authority.pem.decode())
    address: Any = gateway.server_address
    client = http.client.HTTPSConnection(*address, context=trusted, timeout=300)
    client.set_tunnel(host, 443, _password(gateway))
    return client


def _password(gateway: Gateway) -> dict[str, str]:
    """Return the header that clients make of the URL of the proxy."""
    user, _, password = urlsplit(gateway.proxy_url).netloc.rpartition("@")[0].partition(":")
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Proxy-Authorization": f"Basic {text}"}


def test_request_is_repeated_on_a_closed_connection(
    client: http.client.HTTPSConnection,
) -> None:
    for _ in range(2):
        client.request("POST", "/jobs", b"{}")
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (200, b"{}")


def test_token_of_a_task_is_passed_to_the_service(client: http.client.HTTPSConnection) -> None:
    client.request("GET", "/jobs/j", headers={"Authorization": "Bearer of-a-task"})
    assert client.getresponse().read() == b"Bearer of-a-task"


def test_expecting_request_gets_one_continue(
    client: http.client.HTTPSConnection,
) -> None:
    client.request("POST", "/jobs", b"{}", {"Expect": "100-continue"})
    answer = client.getresponse()  # leaves out what is 100
    assert (answer.status, answer.read()) == (200, b"{}")


def test_truncated_response_is_followed_by_no_other(
    client: http.client.HTTPSConnection,
) -> None:
    client.request("POST", "/cut", b"{}")
    answer = client.getresponse()
    assert answer.status == 200
    with pytest.raises(http.client.IncompleteRead) as cut:
        answer.read()
    assert cut.value.partial == b"{}"


@pytest.fixture
def handlers() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("handlers")
def test_signal_before_its_start_ends_the_command(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def late(command: Any, **options: Any) -> Any:
        if command == ["sleep", "600"]:  # threads of other tests may start processes as well
            os.kill(os.getpid(), signal.SIGTERM)
        return start(command, **options)

    monkeypatch.setattr(subprocess, "Popen", late)
    assert run(gateway, ["sleep", "600"]) == 128 + signal.SIGTERM


@pytest.mark.usefixtures("handlers")
def test_ctrl_c_is_left_to_the_command(gateway: Gateway) -> None:
    script = "import os, signal; os.kill(os.getppid(), 2); print(signal.getsignal(2))"
    decides = "import signal; assert signal.getsignal(2) is signal.default_int_handler"
    assert run(gateway, [sys.executable, "-c", f"{script}; {decides}"]) == 0


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while part := connection.recv(100):
            connection.sendall(part.upper())


@pytest.fixture
def of_nodes(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gateway]:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    found = Gateway(gateway.services, for_nodes=True)
    found.start()
    yield found
    found.close()


def _tunnel(gateway: Gateway, host: str, port: int) -> http.client.HTTPConnection:
    way = http.client.HTTPConnection("127.0.0.1", gateway.server_address[1], timeout=300)
    way.set_tunnel(host, port, _password(gateway))
    return way


def test_tasks_of_nodes_reach_other_hosts(
    of_nodes: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=_echo, args=(other,), daemon=True).start()
        way = _tunnel(of_nodes, *other.getsockname())
        way.connect()
        with way.sock:
            way.sock.sendall(b"hello")
            assert way.sock.recv(5) == b"HELLO"


class _Upstream(BaseHTTPRequestHandler):
    """A proxy that records what it is asked for, and is itself the host behind it."""

    asked: list[tuple[str, str | None]]

    def do_CONNECT(self) -> None:
        self.asked.append((self.requestline, self.headers["Proxy-Authorization"]))
        self.send_response_only(200)
        self.end_headers()
        self.wfile.write(self.rfile.read(5).upper())

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Log nothing."""


@pytest.mark.parametrize("variable", ["https", "all"])
@pytest.mark.parametrize("scheme", ["http://", ""])
def test_tunnels_of_tasks_use_the_proxy_of_the_emulator(
    of_nodes: Gateway, monkeypatch: pytest.MonkeyPatch, variable: str, scheme: str
) -> None:
    asked = _Upstream.asked = []
    with QuietServer(("127.0.0.1", 0), _Upstream) as upstream:
        threading.Thread(target=upstream.serve_forever, args=(0.01,), daemon=True).start()
        url = f"{scheme}us%65r:pass@127.0.0.1:{upstream.server_address[1]}"
        monkeypatch.setattr(proxy, "getproxies", lambda: {variable: url})
        monkeypatch.setattr(proxy, "proxy_bypass", lambda host: False)
        way = _tunnel(of_nodes, "pypi.invalid", 443)
        way.connect()
        with way.sock:
            way.sock.sendall(b"hello")
            assert way.sock.recv(5) == b"HELLO"
        upstream.shutdown()
    ((line, authorization),) = asked
    assert line.startswith("CONNECT pypi.invalid:443 ")
    assert authorization == f"Basic {base64.b64encode(b'user:pass').decode()}"


@pytest.mark.parametrize(
    "host",
    [
        "mine.queue.core.windows.net",
        "mine.queue.core.windows.net.",
        "mine-secondary.blob.core.windows.net",
        "mine.eastus.service.batch.azure.com",
    ],
)
def test_tasks_are_refused_unserved_names_of_the_account(of_nodes: Gateway, host: str) -> None:
    with pytest.raises(OSError, match="403"):
        _tunnel(of_nodes, host, 443).connect()


@pytest.mark.parametrize("host", [HOST, "pypi.invalid"])
@pytest.mark.parametrize("headers", [{}, {"Proxy-Authorization": "Basic bG9jYWw6b3RoZXI="}])
@pytest.mark.parametrize("for_nodes", [False, True])
def test_proxy_requires_its_password(
    gateway: Gateway, of_nodes: Gateway, host: str, headers: dict[str, str], for_nodes: bool
) -> None:
    port = (of_nodes if for_nodes else gateway).server_address[1]
    way = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    way.set_tunnel(host, 443, headers)
    with pytest.raises(OSError, match="407"):
        way.connect()


def test_copy_from_a_malformed_url_is_refused(gateway: Gateway) -> None:
    client = _client(gateway, "mine.blob.core.windows.net")
    client.request("GET", "/a", headers={"x-ms-copy-source": "https://[/b"})
    assert client.getresponse().status == 400
    client.close()


def test_proxy_asks_clients_for_its_password(of_nodes: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", of_nodes.server_address[1]), 300) as way:
        way.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n".encode())
        answer = http.client.HTTPResponse(way, method="CONNECT")
        answer.begin()
    assert answer.status == 407
    assert answer.headers["Proxy-Authenticate"] == 'Basic realm="batch-emulator"'


@pytest.mark.parametrize(("for_nodes", "days"), [(False, 2), (True, 3650)])
def test_certificates_are_valid_long_enough(
    gateway: Gateway, of_nodes: Gateway, for_nodes: bool, days: int
) -> None:
    used = of_nodes if for_nodes else gateway
    client = _client(used, HOST)
    client.connect()
    assert isinstance(client.sock, ssl.SSLSocket)
    served = x509.load_der_x509_certificate(client.sock.getpeercert(binary_form=True) or b"")
    client.close()
    for certificate in (served, x509.load_pem_x509_certificate(used.authority.pem)):
        left = certificate.not_valid_after_utc - datetime.now(UTC)
        assert timedelta(days=days - 1) < left <= timedelta(days=days)


@pytest.mark.parametrize(
    ("query", "header", "status"),
    [
        ("resource=https://storage.azure.com", "right", 200),
        (f"resource=https://storage.azure.com&client_id={CLIENT}", "right", 200),
        ("resource=https://storage.azure.com&client_id=another", "right", 400),
        ("api-version=2019-08-01", "right", 400),
        ("resource=https://storage.azure.com", "wrong", 401),
    ],
)
def test_identity_endpoint_requires_its_header(
    gateway: Gateway, query: str, header: str, status: int
) -> None:
    secret = gateway.tokens.identity_header if header == "right" else "another"
    client = http.client.HTTPConnection("127.0.0.1", gateway.server_address[1], timeout=300)
    client.request("GET", f"{IDENTITY_PATH}?{query}", headers={"X-IDENTITY-HEADER": secret})
    answer = client.getresponse()
    body = json.loads(answer.read())
    assert answer.status == status
    audiences = frozenset({"https://storage.azure.com"})
    token = body.get("access_token")
    assert (token is not None and gateway.tokens.is_valid(token, audiences)) == (status == 200)


@pytest.mark.parametrize("name", ["client_id", "principal_id", "object_id"])
def test_identity_of_a_node_has_the_requested_client_id(of_nodes: Gateway, name: str) -> None:
    client = http.client.HTTPConnection("127.0.0.1", of_nodes.server_address[1], timeout=300)
    headers = {"X-IDENTITY-HEADER": of_nodes.tokens.identity_header}
    query = f"resource=https://storage.azure.com&{name}=of-my-pool"
    client.request("GET", f"{IDENTITY_PATH}?{query}", headers=headers)
    answer = client.getresponse()
    wanted = "of-my-pool" if name == "client_id" else CLIENT
    assert (answer.status, json.loads(answer.read())["client_id"]) == (200, wanted)


_BLOB = "mine.blob.core.windows.net"
_ANY_STORAGE = "https://storage.azure.com"


@pytest.mark.parametrize(
    ("audience", "host", "admitted"),
    [
        ("https://management.azure.com/", "management.azure.com", True),
        ("https://management.core.windows.net/", "management.azure.com", True),
        (_ANY_STORAGE, "management.azure.com", False),
        (f"{_ANY_STORAGE}/", _BLOB, True),
        (f"https://{_BLOB}", _BLOB, True),
        ("https://other.blob.core.windows.net", _BLOB, False),
        ("https://management.azure.com/", _BLOB, False),
        ("https://batch.core.windows.net/", HOST, True),
        (_ANY_STORAGE, HOST, False),
    ],
)
def test_tokens_are_valid_for_hosts_of_their_audience_only(
    gateway: Gateway, audience: str, host: str, admitted: bool
) -> None:
    token = gateway.tokens.issue(audience)
    client = _client(gateway, host)
    client.request("GET", "/subscriptions", headers={"Authorization": f"Bearer {token}"})
    answer = client.getresponse()
    body = answer.read()
    client.close()
    if host == HOST:  # the service checks the tokens that it issued to tasks
        assert body.startswith(b"SharedKey " if admitted else b"Bearer ")
    else:
        assert answer.status == (200 if admitted else 401)


_ACCOUNT = NamedAccounts("mine", "a2V5", "a2V5")
_POOL = f"{resource_id('Microsoft.Batch/batchAccounts', _ACCOUNT)}/pools/p"


def test_resource_manager_shows_the_linked_storage_account() -> None:
    batch = resource_id("Microsoft.Batch/batchAccounts", _ACCOUNT)
    status, found = answer_management("GET", batch, _ACCOUNT)
    linked = found["properties"]["autoStorage"]
    assert status == 200
    storage = resource_id("Microsoft.Storage/storageAccounts", _ACCOUNT)
    assert linked["storageAccountId"] == storage
    assert answer_management("GET", linked["storageAccountId"], _ACCOUNT)[0] == 200
    assert datetime.now(UTC) - datetime.fromisoformat(linked["lastKeySync"]) < timedelta(minutes=1)


def test_pool_of_resource_manager_has_the_format_of_the_service() -> None:
    rule = {"access": "Allow", "priority": 150, "sourceAddressPrefix": "*"}
    machine = {
        "imageReference": {"id": "/subscriptions/s/images/i"},
        "nodeAgentSkuId": "batch.node.ubuntu 24.04",
        "extensions": [{"name": "e", "settings": {"userName": "Admin", "inboundNatPools": 1}}],
    }
    properties = {
        "vmSize": "STANDARD_D2S_V3",
        "deploymentConfiguration": {"virtualMachineConfiguration": machine},
        "scaleSettings": {"autoScale": {"formula": "$TargetDedicatedNodes = 1;"}},
        "interNodeCommunication": "Enabled",
        "networkConfiguration": {
            "dynamicVnetAssignmentScope": "none",
            "endpointConfiguration": {"inboundNatPools": [{"networkSecurityGroupRules": [rule]}]},
        },
        "applicationPackages": [{"id": f"{_POOL}/../applications/app", "version": "1"}],
        "startTask": {"userIdentity": {"userName": "u"}},
        "mountConfiguration": [{"cifsMountConfiguration": {"userName": "u", "password": "Pack"}}],
        "metadata": [{"name": "Role", "value": "Admin"}],
        "taskSlotsPerNode": 2.0,
    }
    wanted = pool_of("PUT", _POOL, _ACCOUNT, json.dumps({"properties": properties}).encode())
    assert wanted is not None
    assert wanted.body == {
        "id": "p",
        "vmSize": "STANDARD_D2S_V3",
        "virtualMachineConfiguration": {
            "imageReference": {"virtualMachineImageId": "/subscriptions/s/images/i"},
            "nodeAgentSKUId": "batch.node.ubuntu 24.04",
            "extensions": machine["extensions"],
        },
        "enableAutoScale": True,
        "autoScaleFormula": "$TargetDedicatedNodes = 1;",
        "enableInterNodeCommunication": True,
        "networkConfiguration": {
            "dynamicVNetAssignmentScope": "none",
            "endpointConfiguration": {"inboundNATPools": [{"networkSecurityGroupRules": [rule]}]},
        },
        "applicationPackageReferences": [{"applicationId": "app", "version": "1"}],
        "startTask": {"userIdentity": {"username": "u"}},
        "mountConfiguration": [{"cifsMountConfiguration": {"username": "u", "password": "Pack"}}],
        "metadata": [{"name": "Role", "value": "Admin"}],
        "taskSlotsPerNode": 2,
    }
    assert type(wanted.body["taskSlotsPerNode"]) is int
    assert pool_of("GET", _POOL, _ACCOUNT, b"") is None


def _serialised(**other: Any) -> bytes:
    """Return a pool as azure-mgmt-batch 19.0 sends it."""
    image = {"publisher": "canonical", "offer": "ubuntu-24_04-lts", "sku": "server"}
    user = {"autoUser": {"scope": "Pool", "elevationLevel": "Admin"}}
    properties = {
        "vmSize": "STANDARD_D2S_V3",
        "deploymentConfiguration": {
            "virtualMachineConfiguration": {
                "imageReference": image,
                "nodeAgentSkuId": "batch.node.ubuntu 24.04",
                "nodePlacementConfiguration": {"policy": "Zonal"},
                "osDisk": {"caching": "ReadWrite"},
            }
        },
        "scaleSettings": {"fixedScale": {"targetDedicatedNodes": 0, "resizeTimeout": "PT20M"}},
        "interNodeCommunication": "Disabled",
        "networkConfiguration": {
            "dynamicVnetAssignmentScope": "none",
            "publicIPAddressConfiguration": {"provision": "NoPublicIPAddresses"},
        },
        "taskSchedulingPolicy": {"nodeFillType": "Pack"},
        "taskSlotsPerNode": 2,
        "startTask": {"commandLine": "true", "userIdentity": user},
        "metadata": [{"name": "Role", "value": "Admin"}],
        **other,
    }
    return json.dumps({"identity": {"type": "UserAssigned"}, "properties": properties}).encode()


def _read_pool(gateway: Gateway) -> dict[str, Any]:
    client = _client(gateway, HOST)
    token = gateway.tokens.issue("https://batch.core.windows.net/")
    headers = {"Authorization": f"Bearer {token}"}
    client.request("GET", "/pools/p?api-version=2024-07-01.20.0", headers=headers)
    pool: dict[str, Any] = json.loads(client.getresponse().read())
    client.close()
    return pool


_SAME = "The specified pool already exists."


def test_resource_manager_creates_pools_of_the_emulator(tmp_path: Path) -> None:
    with Server(tmp_path, account="mine") as server:
        account = NamedAccounts("mine", server.key, "a2V5")
        storage = f"{server.url}/mine"
        gateway = Gateway(LocalServices(account, server.url, storage, storage))
        gateway.start()
        client = _client(gateway, "management.azure.com")

        def put(content: bytes, version: str = "2025-06-01") -> tuple[int, Any]:
            token = gateway.tokens.issue("https://management.azure.com/")
            headers = {"Authorization": f"Bearer {token}"}
            client.request("PUT", f"{_POOL}?api-version={version}", content, headers)
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())

        try:
            for wrong in (b"{", b"[]", b"{}", _serialised(taskSlotsPerNode=float("inf")), _DEEP):
                status, body = put(wrong)
                assert (status, body["error"]["code"]) == (400, "InvalidRequestContent")
            status, body = put(_serialised(taskSlotsPerNode=1.5))
            assert (status, body["error"]["code"]) == (400, "InvalidRequestBody")
            status, body = put(_serialised(targetNodeCommunicationMode="Simplified"))
            assert (status, body["error"]["code"]) == (400, "InvalidRequestBody")
            status, body = put(_serialised(targetNodeCommunicationMode="Simplified"), "2024-07-01")
            assert status == 200, body
            assert (body["name"], body["identity"]) == ("p", {"type": "UserAssigned"})
            assert body["properties"]["provisioningState"] == "Succeeded"
            pool = _read_pool(gateway)
            assert pool["taskSchedulingPolicy"]["nodeFillType"] == "Pack"
            assert pool["networkConfiguration"]["dynamicVNetAssignmentScope"] == "none"
            assert pool["startTask"]["userIdentity"]["autoUser"]["elevationLevel"] == "admin"
            assert pool["metadata"] == [{"name": "Role", "value": "Admin"}]
            status, body = put(_serialised())
            assert (status, body["error"]) == (409, {"code": "PoolExists", "message": _SAME})
        finally:
            client.close()
            gateway.close()


_DEEP = b'{"properties": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    "variable",
    [
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
    ],
)
def test_bundle_includes_authorities_named_by_variables(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", *client_variables.BUNDLES):
        monkeypatch.delenv(name, raising=False)
    company = Authority(timedelta(days=1)).pem
    key = b"-----BEGIN PRIVATE KEY-----\nMAA=\n-----END PRIVATE KEY-----\n"
    named = tmp_path / "company.pem"
    named.write_bytes(key + company)
    monkeypatch.setenv(variable, str(tmp_path if variable == "SSL_CERT_DIR" else named))
    bundle = client_variables.bundle_of(gateway)
    assert company.strip() in bundle
    assert gateway.authority.pem.strip() in bundle
    assert b"PRIVATE KEY" not in bundle
    ssl.create_default_context(cadata=bundle.decode())


def test_bundle_includes_certifi_without_a_system_bundle(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", *client_variables.BUNDLES):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(client_variables, "SYSTEM", ("/nothing/here.pem",))
    nothing = SimpleNamespace(cafile=None)
    monkeypatch.setattr(client_variables.ssl, "get_default_verify_paths", lambda: nothing)
    certifi = pytest.importorskip("certifi")
    (first, *_) = Path(certifi.where()).read_bytes().split(b"-----END CERTIFICATE-----")
    assert first.partition(b"-----BEGIN")[2] in client_variables.bundle_of(gateway)


def test_command_ignores_the_proxies_of_the_caller(gateway: Gateway) -> None:
    inherited = {
        "NO_PROXY": ".windows.net",
        "no_proxy": ".azure.com",
        "ALL_PROXY": "http://elsewhere",
        "all_proxy": "http://elsewhere",
        "HTTPS_PROXY": "http://elsewhere",
    }
    found = environment_of(gateway, Path("bundle.pem"), inherited)
    proxies = {name: value for name, value in found.items() if name.lower().endswith("_proxy")}
    assert proxies == {
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "HTTPS_PROXY": gateway.proxy_url,
        "https_proxy": gateway.proxy_url,
        "NODE_USE_ENV_PROXY": "1",
    }
    assert found["IDENTITY_ENDPOINT"] == f"{gateway.url}{IDENTITY_PATH}"


def _without_password(port: int) -> http.client.HTTPSConnection:
    way = http.client.HTTPSConnection("127.0.0.1", port, timeout=300)
    way.set_tunnel("example.com", 443)
    return way


def test_port_of_java_serves_this_user_without_a_password(gateway: Gateway) -> None:
    with java.OwnUserPort(gateway) as own, pytest.raises(OSError, match="403"):
        _without_password(own.port).connect()


def test_port_of_java_closes_connections_of_other_users(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = os.geteuid() + 1
    with java.OwnUserPort(gateway) as own:
        monkeypatch.setattr(java.os, "geteuid", lambda: other)
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            _without_password(own.port).connect()


@pytest.mark.parametrize("host", ["127.0.0.1", "::ffff:127.0.0.1"])
def test_user_of_a_connection_is_found(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(family) as client:
        port = server.getsockname()[1]
        client.connect((host, port))
        client_port = client.getsockname()[1]
        assert java.user_of(client_port, port) == os.geteuid()
        assert java.user_of(port, client_port) == os.geteuid()
        assert java.user_of(client_port, client_port) is None


def test_trust_store_has_the_certificates_that_can_be_read(gateway: Gateway) -> None:
    company = Authority(timedelta(days=1)).pem
    broken = b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"
    store = java.trust_store(b"\n".join([company, broken, gateway.authority.pem]))
    found = pkcs12.load_pkcs12(store, b"changeit").additional_certs
    wanted = {x509.load_pem_x509_certificate(one) for one in (company, gateway.authority.pem)}
    assert {one.certificate for one in found} == wanted
    assert len({one.friendly_name for one in found}) == 2


def test_java_options_follow_those_of_the_caller() -> None:
    store, elsewhere = Path("/tmp/of me/a.p12"), "-Dhttps.proxyHost=elsewhere"
    found = java.java_variables(8443, store, {"_JAVA_OPTIONS": elsewhere, "JAVA_HOME": "/jdk"})
    ours = found["JAVA_TOOL_OPTIONS"]
    assert ours.startswith("-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=8443 ")
    assert ' "-Djavax.net.ssl.trustStore=/tmp/of me/a.p12" ' in ours
    assert found == {"JAVA_TOOL_OPTIONS": ours, "_JAVA_OPTIONS": f"{elsewhere} {ours}"}


@pytest.mark.usefixtures("handlers")
def test_command_gets_a_trust_store_for_java(gateway: Gateway) -> None:
    script = """
import os, shlex
given = dict(one[2:].split("=", 1) for one in shlex.split(os.environ["JAVA_TOOL_OPTIONS"]))
assert os.path.getsize(given["javax.net.ssl.trustStore"]) > 0
assert given["https.proxyHost"] == "127.0.0.1"
"""
    assert run(gateway, [sys.executable, "-c", script]) == 0


@pytest.mark.parametrize(("authorization", "kept"), [("Bearer t", False), ("SharedKey a:b", True)])
def test_date_is_passed_only_where_it_is_signed(
    gateway: Gateway, authorization: str, kept: bool
) -> None:
    host = "mine.blob.core.windows.net"
    headers = {"authorization": authorization, "date": "Sun, 29 Nov 2026 20:00:00 GMT"}
    request = StorageRequest("GET", "/c?restype=container", headers)
    Signatures(gateway.services, gateway.tokens, host).rewrite(
        request, "/mine", needs_signature=True
    )
    assert ("date" in request.headers) == kept
    assert ("x-ms-date" in request.headers) != kept


@pytest.mark.parametrize(
    ("absent", "what"),
    [
        ("AZURE_BATCH_ACCESS_KEY", "missing account key"),
        ("AZURE_STORAGE_KEY", "missing account key"),
        ("cryptography", "missing package cryptography"),
    ],
)
def test_missing_key_or_package_is_an_error(
    absent: str, what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in {"AZURE_BATCH_ACCESS_KEY", "AZURE_STORAGE_KEY"} - {absent}:
        monkeypatch.setenv(name, "YQ==")
    monkeypatch.delenv(absent, raising=False)
    if absent == "cryptography":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    urls = ("--batch", "http://127.0.0.1:1", "--blob", "http://b/a", "--file", "http://f/a")
    assert gateway_program.main(["--account", "a", *urls, "--", "true"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"error: {what}"
    assert [line[:7] for line in said[1:]] == ["  why: ", "  fix: "]
