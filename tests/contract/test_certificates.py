"""Certificates, for clients of api-versions that have them."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.contract.server import POOL, Running, Things, serving
from tests.contract.signed import send

PFX = base64.b64encode(b"what a PFX file holds").decode()
CER = b"the DER form of a certificate"
CER_THUMBPRINT = hashlib.sha1(CER, usedforsecurity=False).hexdigest()
CER_BODY = {"data": base64.b64encode(CER).decode(), "certificateFormat": "cer"}


def post(running: Running, path: str, body: Any = None) -> httpx.Response:
    content = b"" if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json; odata=minimalmetadata"} if content else {}
    return send(running.url, "POST", path, body=content, headers=headers)


def add(running: Running, thumbprint: str, **changes: Any) -> httpx.Response:
    body = {
        "thumbprint": thumbprint,
        "thumbprintAlgorithm": "sha1",
        "data": PFX,
        "certificateFormat": "pfx",
        "password": "secret",
        **changes,
    }
    return post(running, "/certificates", body)


def path_of(thumbprint: str) -> str:
    return f"/certificates(thumbprintAlgorithm=sha1,thumbprint={thumbprint})"


def get(running: Running, thumbprint: str) -> httpx.Response:
    return send(running.url, "GET", path_of(thumbprint))


@pytest.fixture
def thumbprint(running: Running, things: Things) -> str:
    """Add a certificate. Return its thumbprint."""
    digest = hashlib.sha1(things.id().encode(), usedforsecurity=False).hexdigest()
    assert add(running, digest).status_code == 201
    return digest


def test_new_certificate_is_located_in_the_case_of_the_service(running: Running) -> None:
    digest = hashlib.sha1(b"located", usedforsecurity=False).hexdigest()
    added, named = add(running, digest), f"(ThumbprintAlgorithm=sha1,Thumbprint={digest})"
    assert added.headers["location"] == f"{running.url}/certificates{named}"
    assert added.headers["dataserviceid"] == added.headers["location"]
    assert get(running, digest).json()["url"] == f"{running.url}{path_of(digest)}"


def pool_with(running: Running, things: Things, thumbprint: str, **changes: Any) -> str:
    pool = things.id("pool")
    reference = {"thumbprint": thumbprint, "thumbprintAlgorithm": "sha1", **changes}
    body = {
        "id": pool,
        **POOL,
        "targetDedicatedNodes": 1,
        "certificateReferences": [reference],
        "startTask": {
            "commandLine": "/bin/sh -c 'ls $AZ_BATCH_CERTIFICATES_DIR'",
            "waitForSuccess": True,
        },
    }
    answer = post(running, "/pools", body)
    assert answer.status_code == 201, answer.text
    return pool


def test_added_certificate_is_shown_without_its_secrets(running: Running, thumbprint: str) -> None:
    answer = get(running, thumbprint.upper())
    assert answer.status_code == 200
    shown = answer.json()
    assert (shown["thumbprint"], shown["state"]) == (thumbprint, "active")
    assert shown["url"] == running.url + path_of(thumbprint)
    assert "secret" not in answer.text
    assert PFX not in answer.text
    listed = send(running.url, "GET", "/certificates", query="%24filter=state eq 'active'").json()
    assert thumbprint in [one["thumbprint"] for one in listed["value"]]


def test_public_data_of_a_cer_file_is_shown(running: Running) -> None:
    spaced = " ".join([CER_THUMBPRINT[:20].upper(), CER_THUMBPRINT[20:]])
    added = add(running, spaced, **CER_BODY, password=None)
    assert added.status_code == 201, added.text
    assert get(running, CER_THUMBPRINT).json()["publicData"] == CER_BODY["data"]
    assert send(running.url, "DELETE", path_of(CER_THUMBPRINT)).status_code == 202


@pytest.mark.parametrize(
    "changes",
    [
        {"thumbprint": "xyz"},
        {"thumbprint": "a" * 41},
        {"thumbprintAlgorithm": "md5"},
        {"data": "#####..."},
        {"data": base64.b64encode(bytes(20_000)).decode()},
        {"certificateFormat": "pem"},
        {**CER_BODY, "password": None},
        {**CER_BODY, "thumbprint": CER_THUMBPRINT},
    ],
)
def test_invalid_certificate_is_refused(running: Running, changes: dict[str, Any]) -> None:
    answer = (
        add(running, "ab", **changes) if "thumbprint" not in changes else add(running, **changes)
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidPropertyValue")
    assert "secret" not in answer.text


def test_same_thumbprint_twice_is_a_conflict(running: Running, thumbprint: str) -> None:
    answer = add(running, thumbprint.upper())
    assert (answer.status_code, answer.json()["code"]) == (409, "CertificateExists")


@pytest.mark.parametrize(
    "path", [path_of("ff"), "/certificates(thumbprint=ff)", "/certificates(x)"]
)
def test_unknown_certificate_is_not_found(running: Running, path: str) -> None:
    answer = send(running.url, "GET", path)
    assert (answer.status_code, answer.json()["code"]) == (404, "CertificateNotFound")


def test_unused_certificate_is_deleted(running: Running, thumbprint: str) -> None:
    assert send(running.url, "DELETE", path_of(thumbprint)).status_code == 202
    assert get(running, thumbprint).status_code == 404


def test_failed_deletion_of_a_used_certificate_can_be_cancelled(
    running: Running, things: Things, thumbprint: str
) -> None:
    pool = pool_with(running, things, thumbprint)
    cancel = f"{path_of(thumbprint)}/canceldelete"
    early = post(running, cancel)
    assert (early.status_code, early.json()["code"]) == (409, "CertificateStateActive")
    assert send(running.url, "DELETE", path_of(thumbprint)).status_code == 202
    shown = get(running, thumbprint).json()
    assert (shown["state"], shown["previousState"]) == ("deletefailed", "deleting")
    assert shown["deleteCertificateError"]["code"] == "PoolsReferencingCertificate"
    assert shown["deleteCertificateError"]["values"] == [{"name": "Pools", "value": pool}]
    assert post(running, cancel).status_code == 204
    assert get(running, thumbprint).json()["state"] == "active"


def test_pool_with_a_missing_certificate_is_refused(running: Running) -> None:
    reference = {"thumbprint": "ee", "thumbprintAlgorithm": "sha1"}
    body = {"id": "p", **POOL, "certificateReferences": [reference]}
    answer = post(running, "/pools", body)
    assert (answer.status_code, answer.json()["code"]) == (409, "InvalidCertificateReferences")


def test_tasks_see_only_the_certificates_visible_to_them(
    running: Running, things: Things, thumbprint: str
) -> None:
    pool = pool_with(running, things, thumbprint, visibility=["task"])
    [node] = things.wait_nodes(pool, 1, "idle")
    seen = running.client.download_node_file(pool, str(node.id), "startup/stdout.txt")
    assert b"".join(seen) == b""
    job = things.job(pool)
    task = things.task(job, "/bin/sh -c 'cd $AZ_BATCH_CERTIFICATES_DIR && ls && cat *'")
    things.wait_task(job, task)
    name = f"sha1-{thumbprint}.pfx"
    assert things.text(job, task) == f"{name}\n{name}.pw\nwhat a PFX file holdssecret"


def test_certificates_survive_a_restart_with_private_permissions(tmp_path: Path) -> None:
    with serving(tmp_path) as running:
        assert add(running, "ab12").status_code == 201
    assert (tmp_path / "certificates.json").stat().st_mode & 0o777 == 0o600
    with serving(tmp_path) as running:
        assert get(running, "ab12").json()["state"] == "active"
