"""The stand-ins of services execute nothing for a client that is killed as it sends a request."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

import pytest

from tests.arm_server import TOKEN, ArmServer, resource_id
from tests.unit.emulator import blob_store
from tests.unit.node.fake_batch import serve_fake_batch
from tests.unit.node.fake_blob import serve_fake_blobs

killed_in = pytest.mark.parametrize("sent", [b"", b"{}"], ids=["its headers", "its body"])


def send_and_die(method: str, url: str, sent: bytes, **headers: str) -> None:
    """Send a part of a body of 9 bytes, and await that the server ends the connection."""
    parts = urlsplit(url)
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"{method} {parts.path}?{parts.query} HTTP/1.1\r\nContent-Length: 9\r\n{lines}\r\n"
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as connection:
        connection.sendall(head.encode() + sent)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""


@killed_in
def test_fake_blobs_of_agents_store_nothing_of_a_killed_client(sent: bytes) -> None:
    with serve_fake_blobs() as service:
        send_and_die("PUT", f"{service.url}/r/start.json", sent, x_ms_blob_type="BlockBlob")
        assert (service.blobs, service.requests) == ({}, [])


@killed_in
def test_blob_store_of_the_emulator_stores_nothing_of_a_killed_client(sent: bytes) -> None:
    with blob_store.serve() as store:
        store.containers["out"] = {}
        send_and_die("PUT", store.blob_url("out", "a"), sent, x_ms_blob_type="BlockBlob")
        assert (store.containers["out"], store.requests) == ({}, [])


@killed_in
def test_fake_batch_adds_nothing_for_a_killed_client(
    sent: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with serve_fake_batch() as batch:
        send_and_die("POST", f"{batch.url}/jobs/j/addtaskcollection", sent)
        assert (batch.tasks, batch.requests) == ({}, [])
    assert capsys.readouterr().err == ""


@killed_in
def test_resource_manager_changes_nothing_for_a_killed_client(
    sent: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    with ArmServer() as arm:
        group = resource_id("g", "")
        arm.state.resources[group] = {"id": group}
        send_and_die(
            "PUT", f"{arm.url}{group}?api-version=1", sent, Authorization=f"Bearer {TOKEN}"
        )
        assert arm.state.resources == {group: {"id": group}}
        assert arm.state.requests == []
    assert capsys.readouterr().err == ""
