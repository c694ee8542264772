"""What is copied from: a file of this account, or whatever an HTTP URL answers."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from batch_emulator.files_share import tree
from batch_emulator.files_share.auth import Request
from batch_emulator.files_share.call import Call
from batch_emulator.files_share.faults import Fault, bad_header
from batch_emulator.files_share.names import BadNameError, parse_path
from batch_emulator.files_share.records import Item
from batch_emulator.files_share.routes.ranges import segments
from batch_emulator.files_share.sas import verify_sas

_HEADER = "x-ms-copy-source"
_TIMEOUT_S = 30.0
# [S] a source that gives less is given up: it would hold one of the few copies for ever
_LEAST_BYTES, _LEAST_WITHIN_S = 1024 * 1024, 60.0
_CHUNK = 1024 * 1024
_OK = (200, 206)


@dataclass(frozen=True, slots=True)
class Source:
    """An open source: its size, its parts with data, and what was kept of a file of ours.

    `descriptor` is that file, which can be copied without reading it here.
    """

    size: int
    parts: Iterator[tuple[int, bytes]]
    descriptor: int | None = None
    item: Item = field(default_factory=Item)
    status: os.stat_result | None = None


def is_ours(url: str, headers: Mapping[str, str], account: str) -> bool:
    """Whether a URL leads to a file of this account."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.netloc == headers.get("host") and parts.path.startswith(f"/{account}/")


@contextmanager
def opened(call: Call, span: tuple[int, int] | None = None) -> Generator[Source]:
    """The source that the request names, or first to last byte of it. Raises Fault."""
    url = call.header(_HEADER)
    try:
        parts = urlsplit(url)
    except ValueError as err:
        raise bad_header(_HEADER, url) from err
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise bad_header(_HEADER, url)
    before = f"/{call.shares.account.name}/"
    if is_ours(url, call.headers, call.shares.account.name):
        with _local(call, parts.path.removeprefix(before), parts.path, parts.query, span) as found:
            yield found
    else:
        with _remote(call, url, span) as found:
            yield found


@contextmanager
def _local(
    call: Call, path: str, raw_path: str, raw_query: str, span: tuple[int, int] | None
) -> Generator[Source]:
    """A file of ours: who signed with the key may read all, others need a SAS on the source."""
    if "sig=" in raw_query or call.grant is not None:
        request = Request("GET", raw_path, raw_query, {}, call.client)
        try:
            allowed = verify_sas(request, call.shares, call.now).permissions
        except Fault as err:
            raise Fault("CannotVerifyCopySource", err.details, status=403) from err
        if "r" not in allowed:
            raise Fault("CannotVerifyCopySource", status=403)
    name, _, inner = path.partition("/")
    share = call.shares.get(name)
    try:
        if share is None:
            raise Fault("ShareNotFound")
        with tree.at(call.shares.path(share.name), parse_path(inner)) as place:
            place.file()
            item = call.records.item(share.name, place.path, place.file().st_ino)
            descriptor = place.open(os.O_RDONLY)
    except (Fault, BadNameError) as err:
        raise Fault("CannotVerifyCopySource", {"Reason": str(err)}, status=404) from err
    try:
        status = os.fstat(descriptor)
        first, after = (span[0], span[1] + 1) if span else (0, status.st_size)
        if after > status.st_size:
            raise Fault("InvalidRange")
        parts = _data(descriptor, first, after)
        yield Source(after - first, parts, descriptor, item, status)
    finally:
        os.close(descriptor)


def _data(descriptor: int, first: int, after: int) -> Iterator[tuple[int, bytes]]:
    for begin, end in segments(descriptor, first, after):
        offset = begin
        while offset < end:
            data = os.pread(descriptor, min(_CHUNK, end - offset), offset)
            if not data:  # made shorter meanwhile
                return
            yield offset - first, data
            offset += len(data)


@contextmanager
def _remote(call: Call, url: str, span: tuple[int, int] | None) -> Generator[Source]:
    import httpx  # noqa: PLC0415 - copies from elsewhere are rare

    headers = {"Accept-Encoding": "identity"}
    if span:
        headers["Range"] = f"bytes={span[0]}-{span[1]}"
    if call.header("x-ms-copy-source-authorization"):
        headers["Authorization"] = call.header("x-ms-copy-source-authorization")
    try:
        with (
            httpx.Client(timeout=_TIMEOUT_S) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code not in _OK or (span and answer.status_code == _OK[0]):
                refused = answer.status_code if answer.is_client_error else 500
                details = {"CopySourceStatusCode": str(answer.status_code)}
                raise Fault("CannotVerifyCopySource", details, status=refused)
            size = int(answer.headers.get("content-length", "-1"))
            content_type = answer.headers.get("content-type")
            item = Item(headers={"Content-Type": content_type} if content_type else {})
            yield Source(size, _numbered(answer.iter_raw()), item=item)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as err:
        raise Fault("CannotVerifyCopySource", {"Reason": type(err).__name__}) from err


def _numbered(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """The chunks and where each begins. Raises Fault when they come too slowly."""
    offset = seen = 0
    since = time.monotonic()
    for chunk in chunks:
        yield offset, chunk
        offset += len(chunk)
        now = time.monotonic()
        if offset - seen >= _LEAST_BYTES:
            seen, since = offset, now
        elif now > since + _LEAST_WITHIN_S:
            raise Fault("CannotVerifyCopySource", {"Reason": "the source is too slow"})
