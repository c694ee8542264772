"""The proxy of Azure's names: a service that closes connections, and what a command inherits."""

from __future__ import annotations

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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.gateway import proxy
from batch_emulator.gateway.__main__ import environment_of, run
from batch_emulator.gateway.pools import arm_answer, pool_of
from batch_emulator.gateway.proxy import Gateway, LocalServices
from batch_emulator.gateway.sign_in import CLIENT, IDENTITY_PATH, NamedAccounts, resource_id

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
    with ThreadingHTTPServer(("127.0.0.1", 0), _Closing) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        local = f"http://127.0.0.1:{service.server_address[1]}"
        account = NamedAccounts("mine", "a2V5", "a2V5")
        gateway = Gateway(LocalServices(account, local, f"{local}/mine", f"{local}/mine"))
        gateway.start()
        yield gateway
        gateway.close()
        service.shutdown()


@pytest.fixture
def client(gateway: Gateway) -> Iterator[http.client.HTTPSConnection]:
    trusted = ssl.create_default_context(cadata=gateway.authority.pem.decode())
    address: Any = gateway.server_address
    client = http.client.HTTPSConnection(*address, context=trusted, timeout=60)
    client.set_tunnel(HOST, 443)
    yield client
    client.close()


def test_requests_reach_a_service_that_has_closed_its_connection(
    client: http.client.HTTPSConnection,
) -> None:
    for _ in range(2):
        client.request("POST", "/jobs", b"{}")
        answer = client.getresponse()
        assert (answer.status, answer.read()) == (200, b"{}")


def test_token_of_a_task_is_left_to_the_service(client: http.client.HTTPSConnection) -> None:
    client.request("GET", "/jobs/j", headers={"Authorization": "Bearer of-a-task"})
    assert client.getresponse().read() == b"Bearer of-a-task"


def test_one_continue_answers_a_request_that_expects_it(
    client: http.client.HTTPSConnection,
) -> None:
    client.request("POST", "/jobs", b"{}", {"Expect": "100-continue"})
    answer = client.getresponse()  # leaves out what is 100
    assert (answer.status, answer.read()) == (200, b"{}")


def test_answer_that_is_cut_is_not_followed_by_another(
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
def test_signal_before_the_command_has_started_ends_it(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen

    def late(*given: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return start(*given, **options)

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


@pytest.mark.parametrize("through_a_proxy", [False, True])
def test_tasks_of_nodes_reach_other_hosts(
    of_nodes: Gateway, monkeypatch: pytest.MonkeyPatch, through_a_proxy: bool
) -> None:
    first = Gateway(of_nodes.services, for_nodes=True)
    monkeypatch.setattr(proxy, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=_echo, args=(other,), daemon=True).start()
        host, port = other.getsockname()
        if through_a_proxy:
            asked = iter([{"https": f"http://us%65r:pass@127.0.0.1:{first.server_address[1]}"}, {}])
            monkeypatch.setattr(proxy, "getproxies", lambda: next(asked))
            monkeypatch.setattr(proxy, "proxy_bypass", lambda host: False)
        first.start()
        way = http.client.HTTPConnection("127.0.0.1", of_nodes.server_address[1], timeout=60)
        way.set_tunnel(host, port)
        way.connect()
        with way.sock:
            way.sock.sendall(b"hello")
            assert way.sock.recv(5) == b"HELLO"
    first.close()


@pytest.mark.parametrize("service", ["queue.core.windows.net", "eastus.service.batch.azure.com"])
def test_unserved_names_of_the_account_are_refused_to_tasks(
    of_nodes: Gateway, service: str
) -> None:
    way = http.client.HTTPConnection("127.0.0.1", of_nodes.server_address[1], timeout=60)
    way.set_tunnel(f"mine.{service}", 443)
    with pytest.raises(OSError, match="403"):
        way.connect()


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
def test_identity_gives_tokens_for_its_header_only(
    gateway: Gateway, query: str, header: str, status: int
) -> None:
    secret = gateway.tokens.identity_header if header == "right" else "another"
    client = http.client.HTTPConnection("127.0.0.1", gateway.server_address[1], timeout=60)
    client.request("GET", f"{IDENTITY_PATH}?{query}", headers={"X-IDENTITY-HEADER": secret})
    answer = client.getresponse()
    body = json.loads(answer.read())
    assert answer.status == status
    assert ("access_token" in body and gateway.tokens.is_valid(body["access_token"])) == (
        status == 200
    )


def test_pool_of_resource_manager_is_described_as_the_service_does() -> None:
    account = NamedAccounts("mine", "a2V5", "a2V5")
    path = f"{resource_id('Microsoft.Batch/batchAccounts', account)}/pools/p"
    document = {
        "identity": {"type": "UserAssigned"},
        "properties": {
            "vmSize": "STANDARD_D2S_V3",
            "deploymentConfiguration": {
                "virtualMachineConfiguration": {"nodeAgentSkuId": "batch.node.ubuntu 24.04"}
            },
            "scaleSettings": {"autoScale": {"formula": "$TargetDedicatedNodes = 1;"}},
            "interNodeCommunication": "Enabled",
            "taskSchedulingPolicy": {"nodeFillType": "Spread"},
        },
    }
    wanted = pool_of("PUT", path, account, json.dumps(document).encode())
    assert wanted is not None
    assert wanted.body == {
        "id": "p",
        "vmSize": "STANDARD_D2S_V3",
        "virtualMachineConfiguration": {"nodeAgentSKUId": "batch.node.ubuntu 24.04"},
        "enableAutoScale": True,
        "autoScaleFormula": "$TargetDedicatedNodes = 1;",
        "enableInterNodeCommunication": True,
        "taskSchedulingPolicy": {"nodeFillType": "spread"},
    }
    status, made = arm_answer(wanted, 201, {})
    assert (status, made["name"], made["identity"]) == (200, "p", document["identity"])
    refusal = {"code": "PoolExists", "message": {"value": "There is one.\nRequestId:1"}}
    assert arm_answer(wanted, 409, refusal) == (
        409,
        {"error": {"code": "PoolExists", "message": "There is one."}},
    )
    assert pool_of("GET", path, account, b"") is None


def test_proxies_of_the_caller_do_not_count_for_the_command(gateway: Gateway) -> None:
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
        "HTTPS_PROXY": gateway.url,
        "https_proxy": gateway.url,
    }
