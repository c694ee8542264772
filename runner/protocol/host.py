"""What client and agent do in the same way on the machine that they run on.

Variables for the processes that they start, the deletion of folders that scripts wrote to, sizes
and costs for people, responses over HTTP with all of their headers, and the forms in which a text
may contain a secret: the agent replaces them in logs, and `runner bug-report` in everything that
it collects. The emulator, which imports nothing of ours, has its own copies in `proxies.py` and
`folders.py`.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, quote_plus

if TYPE_CHECKING:
    from http.client import HTTPResponse

# Shorter values, and shorter lines of values, could occur in any text by chance.
MIN_BYTES = 6
MIN_LINE_BYTES = 8
BASE64_WIDTHS = (76, 64)  # characters per line in MIME, as `base64` writes it, and in PEM
_SMALLEST_MICROS = 100  # the last of four digits
_CENTS_SUFFICE_MICROS = 100_000


def exclude_loopback(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that exclude this machine from the proxies of an environment.

    A proxy on another machine cannot reach local services. Empty if there is no proxy.
    """
    # `::1` is left out: nothing of ours listens on it, and some clients cannot parse it.
    proxies = {name for name in environment if name.lower().endswith("_proxy")}
    if not proxies - {"no_proxy", "NO_PROXY"}:
        return {}
    given = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = [host.strip() for host in given.split(",") if host.strip()]
    excluded = "*" if "*" in hosts else ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost"]))
    return {"no_proxy": excluded, "NO_PROXY": excluded}


def remove_tree(folder: Path) -> None:
    """Delete a folder that a script could write to, as far as possible; it may be absent.

    The script may have taken the permissions of folders in it, or nested them deeply.
    """
    with suppress(RecursionError):  # before Python 3.13, from a thousand levels on
        shutil.rmtree(folder, ignore_errors=True)
    if folder.is_dir() and not folder.is_symlink():
        import subprocess  # noqa: PLC0415  rarely needed

        for command in ("chmod", "-R", "u+rwx"), ("rm", "-rf"):  # neither follows links
            with suppress(OSError):  # an image or Windows may lack them
                subprocess.run([*command, "--", str(folder)], check=False, capture_output=True)


def format_size(size_bytes: float) -> str:
    """Return a size for people, in powers of 1000: `812 B`, `4.1 kB`, `11 MB`, `3.2 TB`."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while abs(size_bytes) >= 999.5 and len(units) > 1:
        size_bytes /= 1000
        units.pop(0)
    digits = 0 if units[0] == "B" or abs(size_bytes) >= 9.95 else 1
    return f"{size_bytes:.{digits}f} {units[0]}"


def format_usd(micros: float | None, *, symbol: bool = False) -> str:
    """Return an amount in micro-dollars for people: `4.97 USD`, `0.0012 USD`, or `unknown`.

    Amounts below 10 cents have up to four digits, so that short runs can be compared. The smallest
    are `<0.0001 USD`, which is not the same as free.

    Args:
        micros: millionths of a US dollar; may be negative. None is unknown.
        symbol: Write `$4.97`.
    """
    if micros is None:
        return "unknown"
    sign, size = "-" if micros < 0 else "", abs(micros)
    if 0 < size < _SMALLEST_MICROS / 2:
        sign, size = ">-" if micros < 0 else "<", _SMALLEST_MICROS
    amount = f"{size / 1e6:,.2f}" if size >= _CENTS_SUFFICE_MICROS else f"{size / 1e6:.4f}"
    amount = re.sub(r"(\.\d\d\d*?)0+$", r"\1", amount)
    return f"{sign}${amount}" if symbol else f"{sign}{amount} USD"


def encode_forms(value: str) -> Iterator[bytes]:
    """Yield the value itself, and its forms in URLs, JSON, Python and base64."""
    raw = value.encode("utf-8", errors="surrogateescape")
    yield raw
    lines = [line.strip() for line in raw.splitlines()]
    if len(lines) > 1:
        yield from (line for line in lines if len(line) >= MIN_LINE_BYTES)
    if len(raw) < MIN_BYTES:
        return
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        yield quoted.encode()
        yield _lower_hex(quoted).encode()
    for ascii_only in (True, False):
        text = value
        for _ in range(2):  # also in JSON in a JSON string
            text = json.dumps(text, ensure_ascii=ascii_only)[1:-1]
            yield text.encode("utf-8", errors="surrogateescape")
    yield repr(value)[1:-1].encode("utf-8", errors="surrogateescape")
    for start in range(3):
        yield from _base64_inside(raw, start)
    whole = next(_base64_inside(raw, 0))
    for width in BASE64_WIDTHS:
        lines = [whole[first : first + width] for first in range(0, len(whole), width)]
        yield from (line for line in lines if len(line) >= MIN_LINE_BYTES)


def _lower_hex(quoted: str) -> str:
    head, *rest = quoted.split("%")
    return "%".join([head, *(part[:2].lower() + part[2:] for part in rest)])


def _base64_inside(raw: bytes, start: int) -> Iterator[bytes]:
    """Yield the base64 of `raw` inside a longer text.

    `start` (0 to 2) is the position of `raw` in that text modulo 3.
    """
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        encoded = encode(b"\0" * start + raw).rstrip(b"=")
        # The first and last characters contain bits of the neighbouring bytes.
        first = (0, 2, 3)[start]
        last = len(encoded) - (1 if (start + len(raw)) % 3 else 0)
        yield encoded[first:last]
        if not start:
            yield encode(raw)
            yield encoded


@functools.cache
def whole_response_class() -> type[HTTPResponse]:
    """Return a class of responses that refuses headers which end early.

    `http.client` takes the end of a connection for the end of the headers. A value or metadata that
    was cut off, or is missing, would then be read as what the service has stored. For the attribute
    `response_class` of an `HTTPConnection`, whose `getresponse` then raises `RemoteDisconnected`.
    """
    from http.client import HTTPResponse  # noqa: PLC0415  start-up time of the command line

    class WholeResponse(HTTPResponse):
        def begin(self) -> None:
            stream = self.fp
            lines: Any = _WholeLines(stream)
            self.fp = lines
            try:
                super().begin()
            finally:
                if self.fp is lines:  # a response without a body has closed it already
                    self.fp = stream

    return WholeResponse


class _WholeLines:
    """The stream of a response, whose lines end with a line feed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.close = stream.close

    def readline(self, limit: int = -1) -> bytes:
        """Return the next line. Raise RemoteDisconnected at the end of the connection."""
        from http.client import RemoteDisconnected  # noqa: PLC0415

        line: bytes = self._stream.readline(limit)
        if not line.endswith(b"\n") and len(line) != limit:
            raise RemoteDisconnected("the connection ended before the headers were complete")
        return line
