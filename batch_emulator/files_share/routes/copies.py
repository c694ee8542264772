"""Copy File and Put Range From URL. A copy is done when it is answered. [S]

The service copies in the background and says `pending` meanwhile; `success` at once is what it
says too when source and target lie in one account.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from batch_emulator.files_share import smb
from batch_emulator.files_share.call import Call, Reply, parse_range
from batch_emulator.files_share.faults import Fault, bad_header, not_implemented
from batch_emulator.files_share.records import Item
from batch_emulator.files_share.routes import files
from batch_emulator.files_share.routes.ranges import segments, whole_range, write
from batch_emulator.files_share.shares import GIB, INCOMING
from batch_emulator.files_share.sources import Source, opened
from batch_emulator.values import http_date

_CLONED_AT_ONCE = 64 * 1024 * 1024
_CRC64 = (
    "x-ms-source-content-crc64",
    "x-ms-source-if-match-crc64",
    "x-ms-source-if-none-match-crc64",
)


def start_copy(call: Call) -> Reply:
    """Copy File: into a file of its own first, which then takes the place."""
    with call.place() as place:  # refuse before anything is transferred
        files.check_replaceable(call, place)
    incoming = call.shares.root / INCOMING / uuid4().hex
    try:
        with opened(call) as source:
            size = _receive(call, source, incoming)
            item, headers = _described(call, source, size)
        with call.shares.lock, call.place() as place:
            item.lease = files.check_replaceable(call, place)
            written_ns = smb.apply(headers, item, call.records, call.now_ns, create=True)
            files.reserve(call, size - (place.status.st_size if place.status else 0))
            os.rename(incoming, place.name, dst_dir_fd=place.parent_fd)
            answer = files.keep(call, place, item, written_ns)
    finally:
        incoming.unlink(missing_ok=True)
    copied = {n: item.copy[n] for n in ("x-ms-copy-id", "x-ms-copy-status")}
    return Reply(202, {"ETag": answer["ETag"], "Last-Modified": answer["Last-Modified"], **copied})


def abort_copy(call: Call) -> Reply:
    """Abort Copy File: none is ever pending."""
    if not call.query.get("copyid"):
        raise Fault("MissingRequiredQueryParameter", {"QueryParameterName": "copyid"})
    if call.header("x-ms-copy-action").lower() != "abort":
        raise bad_header("x-ms-copy-action", call.header("x-ms-copy-action"))
    with call.place() as place:
        place.file()
    raise Fault("NoPendingCopyOperation")


def put_range_from_url(call: Call) -> Reply:
    """Put Range From URL: both ranges must be as long."""
    for name in _CRC64:
        if name in call.headers:
            raise not_implemented(f"File_UploadRangeFromURL ({name})")
    text = call.header("x-ms-source-range")
    first, last = whole_range(call)
    begin, end = parse_range("x-ms-source-range", text)
    if end is None or end - begin != last - first or call.body:
        raise bad_header("x-ms-source-range", text)
    if last - first >= files.MAX_RANGE:
        raise Fault("RequestBodyTooLarge", {"MaxLimit": str(files.MAX_RANGE)})
    data = bytearray(last - first + 1)
    with opened(call, (begin, end)) as source:
        for offset, part in source.parts:
            if offset + len(part) > len(data):
                raise Fault("InvalidRange")
            data[offset : offset + len(part)] = part
    return write(call, first, bytes(data))


def _receive(call: Call, source: Source, target: os.PathLike[str]) -> int:
    """Write the source to a file; its size. Raises Fault."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(target, flags, 0o666)
    room = call.found_share().quota_gib * GIB
    try:
        if source.size > room:
            raise Fault("ShareSizeLimitReached")
        size = source.size
        if source.descriptor is None or not _clone(source.descriptor, descriptor, size):
            size = max(size, _write(source, descriptor, room))
        os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)
    return size


def _clone(source: int, target: int, size: int) -> bool:
    """Let the kernel copy the parts with data; False when it cannot between these two."""
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


def _write(source: Source, target: int, room: int) -> int:
    """Write what is read; where it ends. Raises Fault."""
    end = 0
    for start, data in source.parts:
        end = start + len(data)
        if end > room:
            raise Fault("ShareSizeLimitReached")
        view, offset = memoryview(data), start
        while view:
            done = os.pwrite(target, view, offset)
            view, offset = view[done:], offset + done
    return end


def _described(call: Call, source: Source, size: int) -> tuple[Item, Mapping[str, str]]:
    """What is kept of the copy, and the SMB headers with the source's values filled in."""
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
