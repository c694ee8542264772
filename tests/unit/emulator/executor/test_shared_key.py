"""Signatures are those of the official SDK for the same request."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from azure.core.pipeline import PipelineContext, PipelineRequest
from azure.core.rest import HttpRequest
from azure.storage.blob._shared.authentication import SharedKeyCredentialPolicy

from batch_emulator.executor.blob_client import BadKeyError, signer

KEY = base64.b64encode(b"a key").decode()
BLOB = "http://127.0.0.1:1/acc/c/x"


@pytest.mark.parametrize(
    ("method", "url", "headers"),
    [
        ("GET", "https://acc.blob.core.windows.net/c?restype=container&comp=list&prefix=a%2Fb", {}),
        ("GET", "http://127.0.0.1:1/acc/c/%C3%BC%20name?b=2&a=1", {}),
        ("PUT", BLOB, {"Content-Length": "5", "x-ms-blob-type": "BlockBlob"}),
        ("PUT", f"{BLOB}?comp=block&blockid=MDAw%3D%3D", {"Content-Length": "0"}),
        ("DELETE", BLOB, {"If-Match": '"0x1"', "x-ms-a": "one"}),
    ],
)
def test_signature_equals_that_of_the_sdk(method: str, url: str, headers: dict[str, str]) -> None:
    signed = signer("acc", KEY)(httpx.Request(method, url, headers=headers))
    same = {k: v for k, v in signed.headers.items() if k.startswith("x-ms-")}
    request: Any = HttpRequest(method, url, headers={**headers, **same})
    policy: Any = SharedKeyCredentialPolicy("acc", KEY)
    policy.on_request(PipelineRequest(request, PipelineContext(None)))
    assert signed.headers["Authorization"] == request.headers["Authorization"]


def test_invalid_key_is_named() -> None:
    with pytest.raises(BadKeyError):
        signer("acc", "%%%")
