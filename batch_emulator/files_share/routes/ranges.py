"""Ranges of files: put, clear, list.

A range that holds data is one that the disk holds: holes of the sparse file are the ranges never
written or cleared. Disks count in blocks, so a listed range may begin and end up to a block
outside of what was written. [S]
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

from batch_emulator.files_share import smb, xml_text
from batch_emulator.files_share.call import Call, Reply
from batch_emulator.files_share.faults import Fault, bad_header, bad_query, not_implemented
from batch_emulator.files_share.records import Item
from batch_emulator.files_share.routes.files import MAX_RANGE, check_md5, md5_of, writable
from batch_emulator.files_share.tree import Place

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_MAX_RESULTS = 10_000
_ZEROS = bytes(1024 * 1024)
_LIBC = ctypes.CDLL(None, use_errno=True)


def put(call: Call) -> Reply:
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
        raise Fault("RequestBodyTooLarge", {"MaxLimit": str(MAX_RANGE)})
    if len(call.body) != length:
        raise bad_header("content-length", str(len(call.body)))
    check_md5(call)
    return write(call, first, call.body)


def write(call: Call, first: int, data: bytes) -> Reply:
    """Write inside the file as it is; a range beyond its end is refused."""
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
    return Reply(201, {**headers, "Content-MD5": md5_of(data)})


def clear(call: Call, first: int, last: int) -> Reply:
    """Make a hole, or write zeros where the disk makes none."""
    mode = _time_mode(call)
    with writable(call) as (place, item), place.opened(os.O_RDWR) as descriptor:
        with call.shares.writing(os.fstat(descriptor).st_ino):
            _check_inside(descriptor, last + 1)
            if not _punch(descriptor, first, last - first + 1):
                _zero(descriptor, first, last + 1)
        return Reply(201, _written(call, place, item, descriptor, mode))


def list_ranges(call: Call) -> Reply:
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
                xml_text.children(element, {"Start": first, "End": after - 1})
            if (following := next(found, None)) is not None:
                xml_text.child(root, "NextMarker", following[0])
    headers = {
        **smb.version_headers(status, item),
        "x-ms-content-length": str(status.st_size),
        "Content-Type": xml_text.TYPE,
    }
    return Reply(200, headers, xml_text.document(root))


def _offset(call: Call) -> int:
    """Where a page of ranges begins, as the marker says."""
    marker = call.query.get("marker", "0") or "0"
    if not re.fullmatch(r"[0-9]{1,18}", marker):
        raise bad_query("marker", marker, "it is none of ours")
    return int(marker)


def segments(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """First byte, and the one after the last, of each part with data between two offsets."""
    while start < end:
        try:
            first = os.lseek(descriptor, start, os.SEEK_DATA)
        except OSError as err:
            if err.errno == errno.ENXIO:  # nothing but a hole until the end
                return
            raise
        if first >= end:
            return
        start = min(end, os.lseek(descriptor, first, os.SEEK_HOLE))
        yield first, start


def whole_range(call: Call) -> tuple[int, int]:
    """The range of a request that must have one with both ends. Raises Fault."""
    given = call.range()
    if given is None:
        raise Fault("MissingRequiredHeader", {"HeaderName": "x-ms-range"})
    if given[1] is None:
        raise bad_header("x-ms-range", call.header("x-ms-range"))
    return given[0], given[1]


def _check_inside(descriptor: int, end: int) -> None:
    if end > os.fstat(descriptor).st_size:
        raise Fault("InvalidRange")


def _time_mode(call: Call) -> str:
    """What becomes of the last write time. Raises Fault."""
    mode = call.header("x-ms-file-last-write-time").lower() or "now"
    if mode not in ("now", "preserve"):
        raise bad_header("x-ms-file-last-write-time", mode)
    return mode


def _written(call: Call, place: Place, item: Item, descriptor: int, mode: str) -> dict[str, str]:
    """Set the last write time; the headers that tell of it."""
    before = (place.status or os.fstat(descriptor)).st_mtime_ns
    smb.set_times(descriptor, call.now_ns if mode == "now" else before)
    status = os.fstat(descriptor)
    return {
        **smb.version_headers(status, item),
        "x-ms-file-last-write-time": smb.time_text(status.st_mtime_ns),
        "x-ms-request-server-encrypted": "true",
    }


def _punch(descriptor: int, first: int, length: int) -> bool:
    """Give the blocks of a range back to the disk; False when it cannot."""
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
