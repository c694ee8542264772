"""A file behind a URL: https only, also after redirects, with a limit on its size."""

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
# Larger inputs belong into blob, where they are listed, checked and read in parallel.
MAX_BYTES = 200 * 1024**3


class UrlRefusedError(StorageRequestError):
    """Trying again would not help; the message says all."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(status, "", message)

    def __str__(self) -> str:
        return str(self.args[0]).removesuffix(f": {self.status}")


class UrlSource:
    """Reads one URL as the data cache reads blobs; the name it is asked for does not matter."""

    def __init__(self, url: str, retry_budget: RetryBudget, *, hashed: bool = False) -> None:
        self._url = url
        self._retry_budget = retry_budget
        self._hashed = hashed  # a mixture of two versions would be noticed
        self._opener = urllib.request.build_opener(RedirectPolicy(self._may_follow))
        self._trouble_since: float | None = None
        self.etag: str | None = None
        check_url(url, url)

    def version(self) -> str | None:
        """What the server calls this version of the file; None where it does not say."""
        last: Exception | None = None
        for _ in self._retry_budget.tries():
            try:
                with self.open("", 0) as response:
                    headers = response.headers
                    etag, date = headers.get("ETag"), headers.get("Last-Modified")
                    # Only a strong one may continue a transfer that was cut (RFC 9110, 13.1.5).
                    self.etag = None if etag is None or etag.startswith("W/") else etag
                    return f"{etag} {date} {response.length}" if etag or date else None
            except (OSError, http.client.HTTPException) as err:
                last = err
        raise UrlRefusedError(f"GET {shown(self._url)}: no answer ({last})")

    def open(
        self, name: str, first_byte: int = 0, etag: str | None = None
    ) -> http.client.HTTPResponse:
        """Start reading at `first_byte`; a server without ranges answers 200, from the start.

        Raises StorageError for a refusal, OSError and HTTPException for passing trouble.
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
            self._raise_if_hopeless(err)
            raise
        self._trouble_since = None
        if etag and response.headers.get("ETag", etag) != etag:
            response.close()
            raise UrlRefusedError(f"GET {shown(self._url)}: it was changed while it was fetched")
        if (response.length or 0) + first_byte > MAX_BYTES:
            response.close()
            raise UrlRefusedError(f"GET {shown(self._url)}: larger than {MAX_BYTES >> 30} GiB")
        return response

    def _may_follow(self, url: str) -> bool:
        check_url(url, self._url)
        return True

    def _raise_if_hopeless(self, err: urllib.error.URLError) -> None:
        """A name that nobody knows, a wrong certificate: ten minutes would not help."""
        now = time.monotonic()
        self._trouble_since = self._trouble_since or now
        certificate = isinstance(err.reason, ssl.SSLCertVerificationError)
        if certificate or now - self._trouble_since > UNREACHABLE_AFTER_S:
            raise UrlRefusedError(f"GET {shown(self._url)}: {err.reason}") from err

    def close(self) -> None:
        """Nothing is kept between two reads."""


def check_url(url: str, first: str) -> None:
    """Raise StorageError unless `url` is https; http stays on this machine, where it began."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "http" and _is_loopback(url) and _is_loopback(first):
        return
    what = f"GET {shown(first)}"
    what += "" if url == first else f": redirected to {shown(url)}"
    raise UrlRefusedError(f"{what}: only https is fetched")


def shown(url: str) -> str:
    """The address as messages tell it: a query, or what is before an @, may be a secret."""
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
