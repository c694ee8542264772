"""Azure Files of the emulator, with a client of the official SDK and hand-signed requests."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4

import httpx
import pytest

from batch_emulator.files_share.shares import Shares, StorageAccount
from batch_emulator.server import Server
from tests import plain_http

sdk: Any = pytest.importorskip("azure.storage.fileshare")

ACCOUNT = "filesaccount"
KEY = base64.b64encode(b"a key of the storage for tests").decode()
VERSION = "2024-11-04"


@dataclass
class Files:
    """The Azure Files service of a running emulator, and its shares."""

    url: str
    root: Path
    service: Any
    shares: Shares | None = None

    def connect(self, key: str = KEY) -> Any:
        """Return a client for a connection string, without retries."""
        connection = (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};"
            f"FileEndpoint={self.url};"
        )
        return sdk.ShareServiceClient.from_connection_string(
            connection, retry_total=0, use_env_settings=False
        )

    def share(self, **options: Any) -> Any:
        """Create a share."""
        return self.service.create_share(f"share-{uuid4().hex[:12]}", **options)

    def folder(self, share: Any) -> Path:
        """Return the folder of a share."""
        return self.root / share.share_name

    def send(
        self,
        method: str,
        path: str,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        *,
        key: str = KEY,
    ) -> httpx.Response:
        """Send a request signed by hand; `path` is relative to the account."""
        when = format_datetime(datetime.now(UTC), usegmt=True)
        given = {"x-ms-date": when, "x-ms-version": VERSION, **(headers or {})}
        full = f"/{ACCOUNT}{path}"
        text = string_to_sign(method, full, query, given, len(body))
        given["authorization"] = f"SharedKey {ACCOUNT}:{sign(text, key)}"
        target = self.url.removesuffix(f"/{ACCOUNT}") + full + (f"?{query}" if query else "")
        return plain(method, target, given, body)


def ranges_of(file: Any, **within: int) -> list[tuple[int, int]]:
    """Return first and last byte of each range of a file that was written."""
    return [(found.start, found.end) for found in file.list_ranges(**within)]


def string_to_sign(
    method: str, path: str, query: str, headers: Mapping[str, str], length: int
) -> str:
    """Return the string to sign as the documentation of Shared Key defines it."""
    lines = "".join(f"{n}:{v}\n" for n, v in sorted(headers.items()) if n.startswith("x-ms-"))
    values = "".join(
        f"\n{name}:{value}" for name, value in sorted(parse_qsl(query, keep_blank_values=True))
    )
    names = ("content-md5", "content-type", "", "if-modified-since", "if-match", "if-none-match")
    rest = [headers.get(name, "") for name in (*names, "if-unmodified-since", "range")]
    parts = [method, "", "", str(length or ""), *rest]
    return "\n".join(parts) + "\n" + lines + f"/{ACCOUNT}{path}{values}"


def sign(text: str, key: str = KEY) -> str:
    """Return the signature of a text."""
    digest = hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)
    return base64.b64encode(digest).decode()


def plain(
    method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes = b""
) -> httpx.Response:
    """Send an unsigned request."""
    return plain_http.request(method, url, content=body or None, headers=dict(headers or {}))


def code_of(answer: httpx.Response) -> tuple[int, str]:
    """Return status and error code, which must be equal in header and body."""
    code = answer.headers.get("x-ms-error-code", "")
    assert answer.request.method == "HEAD" or f"<Code>{code}</Code>" in answer.text
    return answer.status_code, code


def refusal(raised: pytest.ExceptionInfo[Any]) -> tuple[int, str]:
    """Return status and code of an error of the SDK."""
    error: Any = raised.value
    return error.status_code, str(getattr(error.error_code, "value", error.error_code))


@contextmanager
def serving_files(data_dir: Path) -> Generator[Files]:
    """Start an emulator with a storage account."""
    with Server(data_dir, storage=StorageAccount(ACCOUNT, KEY)) as server:
        assert server.files_url is not None
        files = Files(server.files_url, data_dir / "shares", None)
        files.service = files.connect()
        files.shares = server.emulator.shares if server.emulator else None
        yield files
