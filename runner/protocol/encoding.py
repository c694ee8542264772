"""Formats that client and agent share.

JSON from untrusted sources, UTC timestamps, sizes, and the forms in which a text may contain a
secret, which the agent replaces in logs and `runner bug-report` in everything that it collects.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote, quote_plus

# Shorter values, and shorter lines of values, could occur in any text by chance.
MIN_BYTES = 6
MIN_LINE_BYTES = 8
BASE64_WIDTHS = (76, 64)  # characters per line in MIME, as `base64` writes it, and in PEM


def parse_json(text: str | bytes) -> Any:
    """Return the decoded JSON. Raise ValueError if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def now_text() -> str:
    """Return the time now: UTC, ISO 8601 with microseconds."""
    # `datetime.UTC` requires Python 3.11, and the agent runs on 3.10.
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")  # noqa: UP017


def format_size(size_bytes: float) -> str:
    """Return a size for people, in powers of 1000: `812 B`, `4.1 kB`, `11 MB`, `3.2 TB`."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while abs(size_bytes) >= 999.5 and len(units) > 1:
        size_bytes /= 1000
        units.pop(0)
    digits = 0 if units[0] == "B" or abs(size_bytes) >= 9.95 else 1
    return f"{size_bytes:.{digits}f} {units[0]}"


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
