"""Listening, slow clients, and the end of the server."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from runner.core.settings import load_settings
from runner.page import server
from runner.page.access import Access
from runner.page.app import PageApp
from runner.page.server import Certificate, bind, names_of
from runner.page.source import Source
from runner.protocol.errors import RunnerError
from tests.logs import own_records


def test_port_in_use_is_an_error_and_the_default_takes_the_next() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(RunnerError) as raised:
            bind("127.0.0.1", port)
        assert raised.value.code == "R-PAGE-PORT"
        assert "--port 0" in (raised.value.fix or "")
    with bind("127.0.0.1", None) as one, bind("127.0.0.1", None) as two:
        assert one.getsockname()[1] != two.getsockname()[1]


def test_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(RunnerError, match=r"cannot listen on 192\.0\.2\.1"):
        bind("192.0.2.1", 0)


def test_hosts_are_those_of_this_machine() -> None:
    assert names_of("127.0.0.1", 80) == {"127.0.0.1:80", "localhost:80", "[::1]:80"}
    every = names_of("0.0.0.0", 8899)
    assert f"{socket.gethostname().lower()}:8899" in every
    assert "0.0.0.0:8899" in every
    assert names_of("2001:DB8::1", 1) >= {"[2001:db8::1]:1"}


def test_certificate_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("not a certificate", encoding="utf-8")
    for name in ("cert.pem", "missing.pem"):
        with pytest.raises(RunnerError) as raised:
            Certificate(tmp_path / name, tmp_path / name).check()
        assert raised.value.code == "R-PAGE-TLS"


async def endless(request: Request) -> Response:
    app: PageApp = request.app.state.page

    async def events() -> AsyncGenerator[bytes]:
        while True:
            yield b"data: x\n\n"
            await asyncio.sleep(3600)

    return StreamingResponse(app.live.until_closed(events()), media_type="text/event-stream")


async def served(tmp_path: Path, asgi: Starlette) -> tuple[server._Server, asyncio.Task[None], int]:
    settings = load_settings({"target": "local"}, cwd=tmp_path, env={"RUNNER_HOME": str(tmp_path)})
    page = PageApp(Source(settings), Access(frozenset()), None)
    asgi.state.page = page
    config = uvicorn.Config(
        asgi, log_config=None, lifespan="off", http=server._Protocol, timeout_graceful_shutdown=600
    )
    found = server._Server(config, page)
    listener = bind("127.0.0.1", 0)
    port = listener.getsockname()[1]
    serving = asyncio.create_task(found._serve([listener]))
    while not found.started:
        await asyncio.sleep(0.01)
    return found, serving, port


@pytest.mark.attack
def test_client_that_sends_no_header_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_HEADERS_WITHIN_S", 0.2)

    async def attack() -> bytes:
        found, serving, port = await served(tmp_path, Starlette())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n")
        received = await asyncio.wait_for(reader.read(), 300)
        writer.close()
        found.should_exit = True
        await serving
        return received

    assert asyncio.run(attack()) == b""


def test_server_ends_at_once_with_open_streams(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def interrupt() -> None:
        found, serving, port = await served(tmp_path, Starlette(routes=[Route("/", endless)]))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"data: x")
        found.should_exit = True
        await asyncio.wait_for(serving, 300)  # before `timeout_graceful_shutdown`
        writer.close()

    asyncio.run(interrupt())
    assert not own_records(caplog)
