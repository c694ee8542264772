"""Requests that no HTTP library would send, and headers and queries that no client means.

One bad connection never disturbs another; what is refused is refused with an error of the service.
"""

from __future__ import annotations

import base64
import json
import socket
import time
from urllib.parse import quote

import pytest

from tests.contract.server import POOL, Running, Things
from tests.contract.signed import send

LIMIT_S = 300


def raw(running: Running, *parts: bytes, pause_s: float = 0.0, shut: bool = True) -> bytes:
    """Send bytes to the port. Return all bytes until the server closes the connection."""
    host, _, port = running.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT_S) as connection:
        for part in parts:
            connection.sendall(part)
            time.sleep(pause_s)
        if shut:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return answer


def statuses(answer: bytes) -> list[int]:
    return [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]]


HEALTH = b"GET /_emulator/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


def test_requests_in_one_packet_are_answered_in_order(running: Running) -> None:
    unsigned = b"GET /pools HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = raw(running, HEALTH + unsigned + LAST, shut=False)
    assert statuses(answer) == [200, 403, 200]


def test_http_1_0_is_answered(running: Running) -> None:
    assert statuses(raw(running, b"GET /_emulator/health HTTP/1.0\r\n\r\n", shut=False)) == [200]


@pytest.mark.parametrize(
    "request_line",
    [
        b"\x00\xff\xfe",
        b"GET",
        b"BREW /pools HTTP/1.1",
        b"GET / HTTP/9.9",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1",
        b"\x16\x03\x01",
    ],
)
def test_invalid_http_closes_only_its_connection(running: Running, request_line: bytes) -> None:
    answer = raw(running, request_line + b"\r\nHost: localhost\r\n\r\n")
    assert all(400 <= status < 500 for status in statuses(answer))
    assert statuses(raw(running, LAST, shut=False)) == [200]


def test_slow_and_missing_bodies_do_not_block_others(running: Running) -> None:
    host, _, port = running.url.removeprefix("http://").partition(":")
    head = b"POST /pools HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
    waiting = [socket.create_connection((host, int(port))) for _ in range(50)]
    try:
        for connection in waiting:
            connection.sendall(head)
        assert send(running.url, "GET", "/pools").status_code == 200
    finally:
        for connection in waiting:
            connection.close()
    assert running.emulator.healthy


def test_two_content_lengths_are_refused(running: Running) -> None:
    lengths = b"Content-Length: 2\r\nContent-Length: 40\r\n"
    answer = raw(running, b"POST /pools HTTP/1.1\r\nHost: localhost\r\n" + lengths + b"\r\n{}")
    assert all(400 <= status < 500 for status in statuses(answer))


@pytest.mark.parametrize("method", ["TRACE", "OPTIONS", "PROPFIND", "PATCH", "PUT"])
def test_unsupported_method_is_405(running: Running, method: str) -> None:
    answer = send(running.url, method, "/nodecounts")
    assert (answer.status_code, answer.json()["code"]) == (405, "UnsupportedHttpVerb")


@pytest.mark.parametrize(
    "version", ["2020-13-45", "2019-02-30.1.0", "0000-00-00", "latest", "2017-09-01.6.0"]
)
def test_invalid_version_is_refused(running: Running, version: str) -> None:
    refused = send(running.url, "GET", "/pools", version=f"api-version={version}")
    assert (refused.status_code, refused.json()["code"]) == (400, "UnsupportedRequestVersion")


def test_missing_version_is_named(running: Running) -> None:
    refused = send(running.url, "GET", "/pools", version="")
    assert (refused.status_code, refused.json()["code"]) == (400, "MissingRequiredQueryParameter")
    [value] = refused.json()["values"]
    assert value["value"] == "api-version"


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "AAAA",
        "bnVsbA==",
        "W10=",
        "MQ==",
        "eyJhZnRlciI6IFtdfQ==",
        "eyJtYXgiOiAiYSJ9",
        "e30=" * 9,
        base64.b64encode(b"[" * 20_000).decode(),
    ],
)
def test_skip_token_of_another_list_causes_no_server_error(running: Running, token: str) -> None:
    answer = send(running.url, "GET", "/pools", query=f"$skiptoken={quote(token)}")
    assert answer.status_code in (200, 400)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    ["(" * 5000, "id eq '" + "a" * 30_000 + "'", " or ".join(["id eq 'a'"] * 2000), "id eq '\x00'",
     "not (id eq 'a')", "id eq", "eq eq eq", "id eq DateTime'2020-13-45'", "startswith(id)"],
)  # fmt: skip
def test_huge_or_malformed_filter_causes_no_server_error(running: Running, text: str) -> None:
    answer = send(running.url, "GET", "/pools", query=f"$filter={quote(text, safe='')}")
    assert answer.status_code in (200, 400)


@pytest.mark.parametrize("kind", ["", "text/plain", "application/xml", "application/json; odata=x"])
def test_content_type_is_ignored(running: Running, things: Things, kind: str) -> None:
    """Our choice [S]: a body is always read as JSON, because old clients send various types."""
    body = json.dumps({**POOL, "id": things.id("typed")}).encode()
    answer = send(running.url, "POST", "/pools", body=body, headers={"content-type": kind})
    assert answer.status_code == 201


@pytest.mark.slow
def test_body_of_64_mb_is_refused_without_blocking_others(running: Running) -> None:
    answer = send(running.url, "POST", "/pools", body=b" " * (64 * 1024 * 1024))
    assert (answer.status_code, answer.json()["code"]) == (413, "RequestBodyTooLarge")
    assert running.emulator.healthy


@pytest.mark.parametrize(
    "path",
    ["/pools/..%2F..%2Fetc", "/jobs/%00", "/pools/a%2Fb/nodes", "/pools/%F0%28", "/" + "a/" * 500,
     "/pools/x/nodes/y/files/..%2F..%2F..%2Fstate.sqlite", "/jobs/%E2%80%AE/tasks"],
)  # fmt: skip
def test_unknown_path_returns_an_error_body(running: Running, path: str) -> None:
    answer = send(running.url, "GET", path)
    assert answer.status_code in (400, 404)
    assert answer.json()["code"]


def test_ids_in_another_case_are_the_same(running: Running, things: Things, pool: str) -> None:
    job_id = things.job(pool)
    task_id = things.task(job_id)
    path = f"/JOBS/{job_id.upper()}/Tasks/{task_id.upper()}"
    assert send(running.url, "GET", path).json()["id"] == task_id
