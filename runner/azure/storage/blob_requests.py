"""Get Blob and Put Blob, a request each: through the SDK's pipeline, past its blob clients.

Of the 1.2 ms of processor time that `download_blob` takes for 64 KiB, one half goes into objects
that nobody asks for: a client for each blob, every header read into a model (docs/benchmarks.md).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote
from xml.etree import ElementTree

from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    IncompleteReadError,
    ServiceResponseError,
)
from azure.core.pipeline import Pipeline
from azure.core.pipeline.policies import HTTPPolicy, RetryPolicy, SansIOHTTPPolicy
from azure.core.pipeline.transport import HttpTransport
from azure.core.rest import HttpRequest, HttpResponse

from runner.azure.auth.credentials import retry_options

# Puts and gets with conditions are older than that; the node uses the same (node/transport.py).
_VERSION = "2021-12-02"
_TRIES = 3  # of a body that breaks off: the pipeline sees no more than its head

Policy = HTTPPolicy[Any, Any] | SansIOHTTPPolicy[Any, Any]


class BlobRequests:
    """Blobs of one container; `url` may end in a SAS. Methods raise the SDK's errors."""

    def __init__(self, url: str, transport: HttpTransport[Any, Any], *sign_in: Policy) -> None:
        self._url, _, self._sas = url.partition("?")
        self._pipeline: Pipeline[HttpRequest, HttpResponse] = Pipeline(
            transport, [RetryPolicy(**retry_options()), *sign_in]
        )

    def get(self, name: str, etag: str, first: int, length: int) -> bytes:
        """`length` bytes of that version of a blob, as they are stored."""
        headers = {"If-Match": f'"{etag}"', "x-ms-range": f"bytes={first}-{first + length - 1}"}
        for is_last in (False,) * (_TRIES - 1) + (True,):
            try:
                data = self._get(name, headers)
                if len(data) == length:
                    return data
            except (IncompleteReadError, ServiceResponseError):
                if is_last:
                    raise
        raise IncompleteReadError(f"{name}: not the bytes that were asked for")

    def put(self, name: str, data: bytes, md5: bytes, over: str | None) -> None:
        """Write a blob with its MD5 over the version `over`; None means over nothing."""
        headers = {
            "x-ms-blob-type": "BlockBlob",
            "x-ms-blob-content-md5": b64encode(md5).decode(),
            "Content-Type": "application/octet-stream",
            "Content-Length": str(len(data)),
            **({"If-Match": f'"{over}"'} if over else {"If-None-Match": "*"}),
        }
        response = self._send("PUT", name, headers, data)
        if response.status_code != 201:
            raise _refusal(response)

    def _get(self, name: str, headers: Mapping[str, str]) -> bytes:
        response = self._send("GET", name, headers, None, stream=True)
        if response.status_code not in (200, 206):
            response.read()
            raise _refusal(response)
        return b"".join(response.iter_raw())  # not decoded: a stored .gz stays one

    def _send(
        self, method: str, name: str, headers: Mapping[str, str], data: bytes | None, **how: bool
    ) -> HttpResponse:
        url = f"{self._url}/{quote(name, safe='~/')}?{self._sas}".rstrip("?")
        sent = {"x-ms-version": _VERSION, "User-Agent": "runner", **headers}
        request = HttpRequest(method, url, headers=sent, content=data)
        return self._pipeline.run(request, **how).http_response


def _refusal(response: HttpResponse) -> HttpResponseError:
    """The error as the SDK's clients raise it: by `error_code` it is told (faults.py)."""
    kind = ClientAuthenticationError if response.status_code == 401 else HttpResponseError
    err: Any = kind(message=_message(response), response=response)
    err.error_code = response.headers.get("x-ms-error-code", "")
    return err


def _message(response: HttpResponse) -> str | None:
    try:
        return ElementTree.fromstring(response.content).findtext("Message")  # noqa: S314  storage's own
    except (ElementTree.ParseError, LookupError, ValueError):  # a proxy's page, in any encoding
        return None
