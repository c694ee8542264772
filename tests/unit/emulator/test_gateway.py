"""The proxy of Azure's names: a service that closes connections, and what a command inherits."""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.gateway.__main__ import environment_of, run
from batch_emulator.gateway.proxy import Gateway, LocalServices
from batch_emulator.gateway.sign_in import NamedAccounts

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
