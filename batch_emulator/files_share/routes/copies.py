"""Copy File and Put Range From URL, from a file of this account or an HTTP URL.

A copy is complete when it is answered [S]. The service copies in the background and answers
`pending`, but also answers `success` at once if source and target are in the same account.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from batch_emulator.domain.shared_key import SignedRequest
from batch_emulator.domain.values import http_date
from batch_emulator.files_share import smb, tree
from batch_emulator.files_share.auth import verify_sas
from batch_emulator.files_share.call import FilesCall, FilesReply, parse_range
from batch_emulator.files_share.faults import FilesFault, bad_header, not_implemented
from batch_emulator.files_share.routes import files
from batch_emulator.files_share.routes.files import segments, whole_range, write
from batch_emulator.files_share.shares import GIB, INCOMING, Item
from batch_emulator.files_share.tree import parse_path
from batch_emulator.proxies import client_options

_HEADER = "x-ms-copy-source"
_TIMEOUT_S = 30.0
# [S] a slower source is given up, because the number of simultaneous copies is limited
_LEAST_BYTES, _LEAST_WITHIN_S = 1024 * 1024, 60.0
_CHUNK = 1024 * 1024
_OK = (200, 206)


@dataclass(frozen=True, slots=True)
class CopySource:
    """An open source: its size, its parts with data, and the record of a local file.

    `descriptor` is that file, which the kernel can copy.
    """

    size: int
    parts: Iterator[tuple[int, bytes]]
    descriptor: int | None = None
    item: Item = field(default_factory=Item)
    status: os.stat_result | None = None


def is_ours(url: str, headers: Mapping[str, str], account: str) -> bool:
    """Return True if a URL names a file of this account."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.netloc == headers.get("host") and parts.path.startswith(f"/{account}/")


@contextmanager
def open_source(call: FilesCall, span: tuple[int, int] | None = None) -> Generator[CopySource]:
    """Open the source of the request, or a range of it. Raises Fault."""
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
    call: FilesCall, path: str, raw_path: str, raw_query: str, span: tuple[int, int] | None
) -> Generator[CopySource]:
    """Open a local file. A request that is not signed with the key needs a SAS for it."""
    if "sig=" in raw_query or call.grant is not None:
        request = SignedRequest("GET", raw_path, raw_query, {}, call.client)
        try:
            allowed = verify_sas(request, call.shares, call.now).permissions
        except FilesFault as err:
            raise FilesFault("CannotVerifyCopySource", err.details, status=403) from err
        if "r" not in allowed:
            raise FilesFault("CannotVerifyCopySource", status=403)
    name, _, inner = path.partition("/")
    share = call.shares.get(name)
    try:
        if share is None:
            raise FilesFault("ShareNotFound")
        with tree.open_entry(call.shares.path(share.name), parse_path(inner)) as place:
            place.file()
            item = call.records.item(share.name, place.path, place.file().st_ino)
            descriptor = place.open(os.O_RDONLY)
    except FilesFault as err:
        raise FilesFault("CannotVerifyCopySource", {"Reason": str(err)}, status=404) from err
    try:
        status = os.fstat(descriptor)
        first, after = (span[0], span[1] + 1) if span else (0, status.st_size)
        if after > status.st_size:
            raise FilesFault("InvalidRange")
        parts = _data(descriptor, first, after)
        yield CopySource(after - first, parts, descriptor, item, status)
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
def _remote(call: FilesCall, url: str, span: tuple[int, int] | None) -> Generator[CopySource]:
    import httpx  # noqa: PLC0415 - copies from other servers are rare

    headers = {"Accept-Encoding": "identity"}
    if span:
        headers["Range"] = f"bytes={span[0]}-{span[1]}"
    if call.header("x-ms-copy-source-authorization"):
        headers["Authorization"] = call.header("x-ms-copy-source-authorization")
    try:
        with (
            httpx.Client(timeout=_TIMEOUT_S, **client_options()) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            if answer.status_code not in _OK or (span and answer.status_code == _OK[0]):
                refused = answer.status_code if answer.is_client_error else 500
                details = {"CopySourceStatusCode": str(answer.status_code)}
                raise FilesFault("CannotVerifyCopySource", details, status=refused)
            size = int(answer.headers.get("content-length", "-1"))
            content_type = answer.headers.get("content-type")
            item = Item(headers={"Content-Type": content_type} if content_type else {})
            yield CopySource(size, _numbered(answer.iter_raw()), item=item)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as err:
        raise FilesFault("CannotVerifyCopySource", {"Reason": type(err).__name__}) from err


def _numbered(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks and their offsets. Raises Fault if they arrive too slowly."""
    offset = seen = 0
    since = time.monotonic()
    for chunk in chunks:
        yield offset, chunk
        offset += len(chunk)
        now = time.monotonic()
        if offset - seen >= _LEAST_BYTES:
            seen, since = offset, now
        elif now > since + _LEAST_WITHIN_S:
            raise FilesFault("CannotVerifyCopySource", {"Reason": "the source is too slow"})


_CLONED_AT_ONCE = 64 * 1024 * 1024
_CRC64 = (
    "x-ms-source-content-crc64",
    "x-ms-source-if-match-crc64",
    "x-ms-source-if-none-match-crc64",
)


def start_copy(call: FilesCall) -> FilesReply:
    """Copy File: into a temporary file, which then replaces the target."""
    with call.place() as place:  # refuse before the transfer
        files.check_replaceable(call, place)
    incoming = call.shares.root / INCOMING / uuid4().hex
    try:
        with open_source(call) as source:
            size = _receive(call, source, incoming)
            item, headers = _described(call, source, size)
        with call.shares.lock, call.place() as place:
            item.lease = files.check_replaceable(call, place)
            written_ns = smb.apply(headers, item, call.records, call.now_ns, create=True)
            files.reserve(call, size - (place.status.st_size if place.status else 0))
            call.shares.own(incoming)
            os.rename(incoming, place.name, dst_dir_fd=place.parent_fd)
            answer = files.keep(call, place, item, written_ns)
    finally:
        incoming.unlink(missing_ok=True)
    copied = {n: item.copy[n] for n in ("x-ms-copy-id", "x-ms-copy-status")}
    return FilesReply(
        202, {"ETag": answer["ETag"], "Last-Modified": answer["Last-Modified"], **copied}
    )


def abort_copy(call: FilesCall) -> FilesReply:
    """Abort Copy File: refused, because no copy is ever pending."""
    if not call.query.get("copyid"):
        raise FilesFault("MissingRequiredQueryParameter", {"QueryParameterName": "copyid"})
    if call.header("x-ms-copy-action").lower() != "abort":
        raise bad_header("x-ms-copy-action", call.header("x-ms-copy-action"))
    with call.place() as place:
        place.file()
    raise FilesFault("NoPendingCopyOperation")


def put_range_from_url(call: FilesCall) -> FilesReply:
    """Put Range From URL: both ranges must have the same length."""
    for name in _CRC64:
        if name in call.headers:
            raise not_implemented(f"File_UploadRangeFromURL ({name})")
    text = call.header("x-ms-source-range")
    first, last = whole_range(call)
    begin, end = parse_range("x-ms-source-range", text)
    if end is None or end - begin != last - first or call.body:
        raise bad_header("x-ms-source-range", text)
    if last - first >= files.MAX_RANGE:
        raise FilesFault("RequestBodyTooLarge", {"MaxLimit": str(files.MAX_RANGE)})
    data = bytearray(last - first + 1)
    with open_source(call, (begin, end)) as source:
        for offset, part in source.parts:
            if offset + len(part) > len(data):
                raise FilesFault("InvalidRange")
            data[offset : offset + len(part)] = part
    return write(call, first, bytes(data))


def _receive(call: FilesCall, source: CopySource, target: os.PathLike[str]) -> int:
    """Write the source to a file and return its size. Raises Fault."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(target, flags, 0o666)
    room = call.found_share().quota_gib * GIB
    try:
        if source.size > room:
            raise FilesFault("ShareSizeLimitReached")
        size = source.size
        if source.descriptor is None or not _clone(source.descriptor, descriptor, size):
            size = max(size, _write(source, descriptor, room))
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)
    return size


def _clone(source: int, target: int, size: int) -> bool:
    """Let the kernel copy the parts with data. Return False if it cannot."""
    if not hasattr(os, "copy_file_range"):  # macOS
        return False
    try:
        for begin, end in segments(source, 0, size):
            offset = begin
            while offset < end:
                count = min(_CLONED_AT_ONCE, end - offset)
                done = os.copy_file_range(source, target, count, offset, offset)
                if not done:  # made shorter meanwhile
                    return True
                offset += done
    except OSError as err:
        if err.errno in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            return False
        raise
    return True


def _write(source: CopySource, target: int, room: int) -> int:
    """Write the chunks and return the end offset. Raises Fault."""
    end = 0
    for start, data in source.parts:
        end = start + len(data)
        if end > room:
            raise FilesFault("ShareSizeLimitReached")
        view, offset = memoryview(data), start
        while view:
            done = os.pwrite(target, view, offset)
            view, offset = view[done:], offset + done
    return end


def _described(call: FilesCall, source: CopySource, size: int) -> tuple[Item, Mapping[str, str]]:
    """Return the record of the copy, and the SMB headers completed from the source."""
    known = source.item
    item = Item(metadata=call.metadata() or dict(known.metadata), headers=dict(known.headers))
    item.copy = {
        "x-ms-copy-id": str(uuid4()),
        "x-ms-copy-status": "success",
        "x-ms-copy-source": _without_sas(call.header("x-ms-copy-source")),
        "x-ms-copy-progress": f"{size}/{size}",
        "x-ms-copy-completion-time": http_date(call.now),
    }
    values: dict[str, str] = {}
    if source.status is not None:
        values = {
            "x-ms-file-attributes": smb.attributes_of(source.status, known),
            "x-ms-file-creation-time": smb.time_text(smb.created_ns(source.status, known)),
            "x-ms-file-last-write-time": smb.time_text(source.status.st_mtime_ns),
            "x-ms-file-change-time": smb.time_text(known.changed_ns or source.status.st_ctime_ns),
        }
        if call.header("x-ms-file-permission-copy-mode").lower() == "source":
            item.permission_key = known.permission_key
    filled = {
        name: values.get(name, "") if value.lower() == "source" else value
        for name, value in call.headers.items()
    }
    archive = call.header("x-ms-file-copy-set-archive").lower() == "true"
    attributes = filled.get("x-ms-file-attributes", "")
    if archive and "Archive" not in attributes:
        filled["x-ms-file-attributes"] = " | ".join(filter(None, [attributes, "Archive"]))
    return item, filled


def _without_sas(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
