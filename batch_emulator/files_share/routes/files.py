"""Files: create, read, delete, properties, metadata, leases; ranges: put, clear and list."""

from __future__ import annotations

import base64
import ctypes
import errno
import hashlib
import itertools
import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from xml.etree import ElementTree as ET

from batch_emulator.files_share import faults, leases, smb
from batch_emulator.files_share.call import (
    Content,
    FilesCall,
    FilesReply,
    metadata_headers,
    xml_reply,
)
from batch_emulator.files_share.faults import FilesFault, bad_header, bad_query, not_implemented
from batch_emulator.files_share.shares import GIB, Item
from batch_emulator.files_share.tree import TreeEntry

MAX_RANGE = 4 * 1024 * 1024
_MAX_SIZE = 4 * 1024**4
_DEFAULT_TYPE = "application/octet-stream"
_CONTENT_HEADERS = {
    "x-ms-content-type": "Content-Type",
    "x-ms-content-encoding": "Content-Encoding",
    "x-ms-content-language": "Content-Language",
    "x-ms-content-disposition": "Content-Disposition",
    "x-ms-cache-control": "Cache-Control",
    "x-ms-content-md5": "Content-MD5",
}


def create(call: FilesCall) -> FilesReply:
    """Create File: a sparse file of the given size; a body, if any, is its first bytes."""
    if call.header("x-ms-type").lower() != "file":
        raise bad_header("x-ms-type", call.header("x-ms-type"))
    size = _size(call)
    if size is None:
        raise FilesFault("MissingRequiredHeader", {"HeaderName": "x-ms-content-length"})
    if len(call.body) > min(size, MAX_RANGE):
        raise FilesFault("InvalidRange")
    check_md5(call)
    item = Item(metadata=call.metadata(), headers=_content_headers(call))
    with call.shares.lock, call.place() as place:
        item.lease = check_replaceable(call, place)
        written_ns = smb.apply(call.headers, item, call.records, call.now_ns, create=True)
        reserve(call, size - (place.status.st_size if place.status else 0))
        new = os.O_EXCL if place.status is None else 0
        with (
            place.opened(os.O_RDWR | os.O_CREAT | new) as descriptor,
            call.shares.writing(os.fstat(descriptor).st_ino),
        ):
            call.shares.own(place.name, place.parent_fd)
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, size)
            if call.body:
                os.pwrite(descriptor, call.body, 0)
        return FilesReply(201, keep(call, place, item, written_ns))


def download(call: FilesCall) -> FilesReply:
    """Get File, whole or a range of it."""
    given = call.range()
    with call.place() as place:
        place.file()
        item = call.item(place)
        call.check_lease(item.lease, "File", writing=False)
        descriptor = place.open(os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        headers = _read_headers(call, place, status, item)
        if call.grant is not None:
            headers |= call.grant.overrides
        if given is None:
            content = Content(descriptor, 0, status.st_size)
            return FilesReply(200, headers, content=content)
        first, last = given
        if first >= status.st_size:
            raise FilesFault("InvalidRange")
        last = min(last, status.st_size - 1) if last is not None else status.st_size - 1
        length = last - first + 1
        headers["Content-Range"] = f"bytes {first}-{last}/{status.st_size}"
        if "Content-MD5" in headers:
            headers["x-ms-content-md5"] = headers.pop("Content-MD5")
        if call.header("x-ms-range-get-content-md5").lower() == "true":
            if length > MAX_RANGE:
                raise FilesFault("OutOfRangeInput", {"Reason": "an MD5 is given for up to 4 MiB"})
            headers["Content-MD5"] = md5_of(os.pread(descriptor, length, first))
        return FilesReply(206, headers, content=Content(descriptor, first, length))
    except BaseException:
        os.close(descriptor)
        raise


def get_properties(call: FilesCall) -> FilesReply:
    """Get File Properties, or only its metadata."""
    with call.place() as place:
        status = place.file()
        item = call.item(place)
    call.check_lease(item.lease, "File", writing=False)
    if call.query.get("comp") == "metadata":
        versions = smb.version_headers(status, item)
        return FilesReply(200, {**versions, **metadata_headers(item.metadata)})
    size = {"Content-Length": str(status.st_size), "x-ms-type": "File"}
    return FilesReply(200, {**_read_headers(call, place, status, item), **size})


def set_properties(call: FilesCall) -> FilesReply:
    """Set File Properties: size, content headers, SMB properties.

    Absent content headers are cleared, unless the request only resizes the file.
    """
    size, given = _size(call), _content_headers(call)
    with changed(call) as (place, item):
        status = place.file()
        if given or size is None:
            item.headers = given
        written_ns = smb.apply(call.headers, item, call.records, call.now_ns, create=False)
        if size is not None:
            reserve(call, size - status.st_size)
            with call.shares.writing(status.st_ino), place.opened(os.O_RDWR) as descriptor:
                os.ftruncate(descriptor, size)
            if written_ns is None and call.header("x-ms-file-last-write-time") != "preserve":
                written_ns = call.now_ns
        return FilesReply(200, keep(call, place, item, written_ns))


def set_metadata(call: FilesCall) -> FilesReply:
    """Set File Metadata."""
    with changed(call) as (place, item):
        item.metadata = call.metadata()
        return FilesReply(200, keep(call, place, item, None))


def delete(call: FilesCall) -> FilesReply:
    """Delete File."""
    with changed(call) as (place, _):
        status = place.file()
        os.unlink(place.name, dir_fd=place.parent_fd)
        call.records.delete_item(call.share, place.path)
        call.shares.grow(call.share, -status.st_size)
    return FilesReply(202)


def lease(call: FilesCall) -> FilesReply:
    """Acquire, change, release or break the lease of a file."""
    with call.shares.lock, call.place() as place:
        status = place.file()
        item = call.item(place)
        outcome = leases.act(item.lease, call.headers, call.now_ns, share=False)
        item.lease = outcome.lease
        call.records.put_item(call.share, place.path, status.st_ino, item)
        versions = smb.version_headers(status, item)
    return FilesReply(outcome.status, {**versions, **outcome.headers})


@contextmanager
def changed(call: FilesCall) -> Generator[tuple[TreeEntry, Item]]:
    """Yield a file whose record the request may change, too. Raises Fault."""
    with call.shares.lock, writable(call) as found:
        yield found


@contextmanager
def writable(call: FilesCall) -> Generator[tuple[TreeEntry, Item]]:
    """Yield a file that the request may change. Raises Fault."""
    with call.place() as place:
        place.file()
        item = call.item(place)
        call.check_lease(item.lease, "File")
        if smb.read_only(item) and call.query.get("comp") != "properties":
            raise FilesFault("ReadOnlyAttribute")
        yield place, item


def check_replaceable(call: FilesCall, place: TreeEntry) -> leases.Lease | None:
    """Check that a new file may be created here; return the lease to keep. Raises Fault."""
    if place.status is None:
        return None
    if not place.is_file:
        raise FilesFault("ResourceTypeMismatch")
    if not call.may_overwrite:
        raise FilesFault("AuthorizationPermissionMismatch")
    old = call.item(place)
    call.check_lease(old.lease, "File")
    if smb.read_only(old):
        raise FilesFault("ReadOnlyAttribute")
    return old.lease


def keep(call: FilesCall, place: TreeEntry, item: Item, written_ns: int | None) -> dict[str, str]:
    """Store the changes and return the headers of the file."""
    with place.opened(os.O_RDONLY) as descriptor:
        smb.set_times(descriptor, written_ns or os.fstat(descriptor).st_mtime_ns)
        status = os.fstat(descriptor)
    item.revision += 1
    call.records.put_item(call.share, place.path, status.st_ino, item)
    return smb.headers_of_written(status, item, place.parent_id)


def reserve(call: FilesCall, added: int) -> None:
    """Count bytes that are added to the share. Raises Fault if they exceed the quota."""
    if added > 0:
        quota = call.found_share().quota_gib * GIB
        if call.shares.usage(call.share) + added > quota:
            raise FilesFault("ShareSizeLimitReached")
    call.shares.grow(call.share, added)


def check_md5(call: FilesCall) -> None:
    """Compare the body with its Content-MD5. Raises Fault."""
    given = call.header("content-md5")
    if not given:
        return
    if not re.fullmatch(r"[A-Za-z0-9+/]{22}==", given):
        raise FilesFault("InvalidMd5")
    if md5_of(call.body) != given:
        raise FilesFault("Md5Mismatch")


def md5_of(data: bytes) -> str:
    """Return the MD5 in the form of headers."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _read_headers(
    call: FilesCall, place: TreeEntry, status: os.stat_result, item: Item
) -> dict[str, str]:
    return {
        "Content-Type": _DEFAULT_TYPE,
        **item.headers,
        **item.copy,
        "Accept-Ranges": "bytes",
        "x-ms-server-encrypted": "true",
        **smb.headers_of(status, item, place.parent_id),
        **metadata_headers(item.metadata),
        **leases.state_headers(item.lease, call.now_ns),
    }


def _size(call: FilesCall) -> int | None:
    text = call.header("x-ms-content-length")
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) > _MAX_SIZE:
        raise bad_header("x-ms-content-length", text)
    return int(text)


def _content_headers(call: FilesCall) -> dict[str, str]:
    found = {name: call.header(own) for own, name in _CONTENT_HEADERS.items() if call.header(own)}
    if "Content-MD5" in found and not re.fullmatch(r"[A-Za-z0-9+/]{22}==", found["Content-MD5"]):
        raise FilesFault("InvalidMd5")
    return found


_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_MAX_RESULTS = 10_000
_ZEROS = bytes(1024 * 1024)
_LIBC = ctypes.CDLL(None, use_errno=True)


def put(call: FilesCall) -> FilesReply:
    """Put Range: update or clear."""
    action = call.header("x-ms-write").lower()
    if action not in ("update", "clear"):
        raise bad_header("x-ms-write", action)
    first, last = whole_range(call)
    if action == "clear":
        if call.body:
            raise bad_header("content-length", str(len(call.body)))
        return clear(call, first, last)
    length = last - first + 1
    if length > MAX_RANGE:
        raise FilesFault("RequestBodyTooLarge", {"MaxLimit": str(MAX_RANGE)})
    if len(call.body) != length:
        raise bad_header("content-length", str(len(call.body)))
    check_md5(call)
    return write(call, first, call.body)


def write(call: FilesCall, first: int, data: bytes) -> FilesReply:
    """Write inside the file; a range beyond its end is refused."""
    mode = _time_mode(call)
    with writable(call) as (place, item), place.opened(os.O_RDWR) as descriptor:
        inode = os.fstat(descriptor).st_ino
        with call.shares.writing(inode):
            _check_inside(descriptor, first + len(data))
            view = memoryview(data)
            while view:
                done = os.pwrite(descriptor, view, first)
                view, first = view[done:], first + done
        headers = _written(call, place, item, descriptor, mode)
    return FilesReply(201, {**headers, "Content-MD5": md5_of(data)})


def clear(call: FilesCall, first: int, last: int) -> FilesReply:
    """Make a hole, or write zeros if the disk does not support holes."""
    mode = _time_mode(call)
    with writable(call) as (place, item), place.opened(os.O_RDWR) as descriptor:
        with call.shares.writing(os.fstat(descriptor).st_ino):
            _check_inside(descriptor, last + 1)
            if not _punch(descriptor, first, last - first + 1):
                _zero(descriptor, first, last + 1)
        return FilesReply(201, _written(call, place, item, descriptor, mode))


def list_ranges(call: FilesCall) -> FilesReply:
    """List Ranges, all of the file or those that touch x-ms-range."""
    if "prevsharesnapshot" in call.query:
        raise not_implemented("prevsharesnapshot")
    given = call.range() or (0, None)
    most = call.number("maxresults", _MAX_RESULTS)
    with call.place() as place:
        place.file()
        item = call.item(place)
        with place.opened(os.O_RDONLY) as descriptor:
            status = os.fstat(descriptor)
            end = status.st_size if given[1] is None else min(status.st_size, given[1] + 1)
            found = segments(descriptor, max(given[0], _offset(call)), end)
            root = ET.Element("Ranges")
            for first, after in itertools.islice(found, most):
                element = ET.SubElement(root, "Range")
                faults.add_children(element, {"Start": first, "End": after - 1})
            if (following := next(found, None)) is not None:
                faults.add_child(root, "NextMarker", following[0])
    size = {"x-ms-content-length": str(status.st_size)}
    return xml_reply(root, {**smb.version_headers(status, item), **size})


def _offset(call: FilesCall) -> int:
    """Return the offset of a page of ranges from its marker."""
    marker = call.query.get("marker", "0") or "0"
    if not re.fullmatch(r"[0-9]{1,18}", marker):
        raise bad_query("marker", marker, "not a marker of this service")
    return int(marker)


def segments(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each part with data between two offsets."""
    while start < end:
        try:
            first = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as err:
            if err.errno == errno.ENXIO:  # only a hole until the end
                return
            raise
        if first >= end:
            return
        start = min(end, os.lseek(descriptor, first, os.SEEK_HOLE))
        yield first, start


def whole_range(call: FilesCall) -> tuple[int, int]:
    """Return the range of the request, which must have both ends. Raises Fault."""
    given = call.range()
    if given is None:
        raise FilesFault("MissingRequiredHeader", {"HeaderName": "x-ms-range"})
    if given[1] is None:
        raise bad_header("x-ms-range", call.header("x-ms-range"))
    return given[0], given[1]


def _check_inside(descriptor: int, end: int) -> None:
    if end > os.fstat(descriptor).st_size:
        raise FilesFault("InvalidRange")


def _time_mode(call: FilesCall) -> str:
    """Return how the request changes the last write time. Raises Fault."""
    mode = call.header("x-ms-file-last-write-time").lower() or "now"
    if mode not in ("now", "preserve"):
        raise bad_header("x-ms-file-last-write-time", mode)
    return mode


def _written(
    call: FilesCall, place: TreeEntry, item: Item, descriptor: int, mode: str
) -> dict[str, str]:
    """Set the last write time and return the headers of the file."""
    before = (place.status or os.fstat(descriptor)).st_mtime_ns
    smb.set_times(descriptor, call.now_ns if mode == "now" else before)
    status = os.fstat(descriptor)
    return {
        **smb.version_headers(status, item),
        "x-ms-file-last-write-time": smb.time_text(status.st_mtime_ns),
        "x-ms-request-server-encrypted": "true",
    }


def _punch(descriptor: int, first: int, length: int) -> bool:
    """Free the blocks of a range. Return False if the disk cannot."""
    fallocate = getattr(_LIBC, "fallocate64", None) or getattr(_LIBC, "fallocate", None)
    if fallocate is None:
        return False
    offset, size = ctypes.c_int64(first), ctypes.c_int64(length)
    if fallocate(descriptor, _KEEP_SIZE | _PUNCH_HOLE, offset, size) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EOPNOTSUPP, errno.ENOSYS):
        return False
    raise OSError(code, os.strerror(code))


def _zero(descriptor: int, first: int, end: int) -> None:
    for begin, after in segments(descriptor, first, end):
        offset = begin
        while offset < after:
            offset += os.pwrite(descriptor, _ZEROS[: after - offset], offset)
