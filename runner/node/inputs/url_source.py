"""A file at a URL: https only, also after redirects, with a limit on its size."""

from __future__ import annotations

import http.client
import ipaddress
import ssl
import time
import urllib.error
import urllib.request
from urllib.parse import urlsplit

from runner.node.storage.http import TRANSIENT_STATUS, RedirectPolicy, StorageRequestError
from runner.node.storage.limits import RetryBudget

TIMEOUT_S = 30.0
UNREACHABLE_AFTER_S = 60.0
# Larger inputs should be blobs, which are listed, verified and read in parallel.
MAX_BYTES = 200 * 1024**3


class UrlRefusedError(StorageRequestError):
    """A refusal that a retry cannot change; the message is complete."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(status, "", message)

    def __str__(self) -> str:
        return str(self.args[0]).removesuffix(f": {self.status}")


class UrlSource:
    """A download source for the data cache with one file, whatever its name."""

    def __init__(self, url: str, retry_budget: RetryBudget, *, hashed: bool = False) -> None:
        self._url = url
        self._retry_budget = retry_budget
        self._hashed = hashed  # the hash detects a mixture of two versions
        self._opener = urllib.request.build_opener(RedirectPolicy(self._may_follow))
        self._failing_since: float | None = None
        self.etag: str | None = None
        check_url(url, url)

    def version(self) -> str | None:
        """Return the server's identifier of the file's version, or None."""
        last: Exception | None = None
        for _ in self._retry_budget.tries():
            try:
                with self.open("", 0) as response:
                    headers = response.headers
                    etag, date = headers.get("ETag"), headers.get("Last-Modified")
                    # Only a strong ETag allows to resume a transfer (RFC 9110, 13.1.5).
                    self.etag = None if etag is None or etag.startswith("W/") else etag
                    return f"{etag} {date} {response.length}" if etag or date else None
            except (OSError, http.client.HTTPException) as err:
                last = err
        raise UrlRefusedError(f"GET {shown(self._url)}: no answer ({last})")

    def open(
        self, name: str, first_byte: int = 0, etag: str | None = None
    ) -> http.client.HTTPResponse:
        """Start to read at `first_byte`; a server without ranges answers 200, from the start.

        Raises:
            StorageRequestError: the server refused the request, or a retry cannot help.
            OSError, HTTPException: a temporary failure.
        """
        del name
        request = urllib.request.Request(self._url)  # noqa: S310 - checked by check_url
        request.add_header("Accept-Encoding", "identity")
        if first_byte and (etag or self._hashed):
            request.add_header("Range", f"bytes={first_byte}-")
        if first_byte and etag:
            request.add_header("If-Range", etag)
        try:
            response: http.client.HTTPResponse = self._opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as err:
            err.close()
            if err.code in TRANSIENT_STATUS:
                raise ConnectionError(f"GET {shown(self._url)}: {err.code}") from err
            raise UrlRefusedError(
                f"GET {shown(self._url)}: {err.code} {err.reason}", err.code
            ) from err
        except urllib.error.URLError as err:
            self._raise_if_permanent(err)
            raise
        self._failing_since = None
        if etag and response.headers.get("ETag", etag) != etag:
            response.close()
            raise UrlRefusedError(f"GET {shown(self._url)}: it changed during the download")
        if (response.length or 0) + first_byte > MAX_BYTES:
            response.close()
            raise UrlRefusedError(f"GET {shown(self._url)}: larger than {MAX_BYTES >> 30} GiB")
        return response

    def _may_follow(self, url: str) -> bool:
        check_url(url, self._url)
        return True

    def _raise_if_permanent(self, err: urllib.error.URLError) -> None:
        """Raise UrlRefusedError for an invalid certificate, or after a minute of failures."""
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        certificate = isinstance(err.reason, ssl.SSLCertVerificationError)
        if certificate or now - self._failing_since > UNREACHABLE_AFTER_S:
            raise UrlRefusedError(f"GET {shown(self._url)}: {err.reason}") from err

    def close(self) -> None:
        """Do nothing: each read has its own connection."""


def check_url(url: str, first: str) -> None:
    """Raise UrlRefusedError unless `url` is https, or both are http addresses of this machine."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and _is_loopback(url) and _is_loopback(first):
        return
    what = f"GET {shown(first)}"
    what += "" if url == first else f": redirected to {shown(url)}"
    raise UrlRefusedError(f"{what}: only https is allowed")


def shown(url: str) -> str:
    """Return the address without its query and user part, which may be secrets."""
    parts = urlsplit(url)
    query = "?***" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}{query}"


def _is_loopback(url: str) -> bool:
    parts = urlsplit(url)
    if parts.scheme != "http":
        return False
    if parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
