"""Files: create, read, delete, properties, metadata, leases."""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Generator
from contextlib import contextmanager

from batch_emulator.files_share import leases, smb
from batch_emulator.files_share.call import Call, Content, Reply, metadata_headers
from batch_emulator.files_share.faults import Fault, bad_header
from batch_emulator.files_share.records import Item
from batch_emulator.files_share.shares import GIB
from batch_emulator.files_share.tree import Place

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


def create(call: Call) -> Reply:
    """Create File: of a size, sparse, and with its first bytes where the request has a body."""
    if call.header("x-ms-type").lower() != "file":
        raise bad_header("x-ms-type", call.header("x-ms-type"))
    size = _size(call)
    if size is None:
        raise Fault("MissingRequiredHeader", {"HeaderName": "x-ms-content-length"})
    if len(call.body) > min(size, MAX_RANGE):
        raise Fault("InvalidRange")
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
            os.ftruncate(descriptor, 0)
            os.ftruncate(descriptor, size)
            if call.body:
                os.pwrite(descriptor, call.body, 0)
        return Reply(201, keep(call, place, item, written_ns))


def download(call: Call) -> Reply:
    """Get File, whole or a range of it."""
    given = call.range()
    with call.place() as place:
        place.file()
        item = call.item(place)
        _check_lease(call, item, writing=False)
        descriptor = place.open(os.O_RDONLY)
    try:
        status = os.fstat(descriptor)
        headers = _read_headers(call, place, status, item)
        if call.grant is not None:
            headers |= call.grant.overrides
        if given is None:
            content = Content(descriptor, 0, status.st_size)
            return Reply(200, headers, content=content)
        first, last = given
        if first >= status.st_size:
            raise Fault("InvalidRange")
        last = min(last, status.st_size - 1) if last is not None else status.st_size - 1
        length = last - first + 1
        headers["Content-Range"] = f"bytes {first}-{last}/{status.st_size}"
        if "Content-MD5" in headers:
            headers["x-ms-content-md5"] = headers.pop("Content-MD5")
        if call.header("x-ms-range-get-content-md5").lower() == "true":
            if length > MAX_RANGE:
                raise Fault("OutOfRangeInput", {"Reason": "an MD5 is given for up to 4 MiB"})
            headers["Content-MD5"] = md5_of(os.pread(descriptor, length, first))
        return Reply(206, headers, content=Content(descriptor, first, length))
    except BaseException:
        os.close(descriptor)
        raise


def get_properties(call: Call) -> Reply:
    """Get File Properties, or only its metadata."""
    with call.place() as place:
        status = place.file()
        item = call.item(place)
    _check_lease(call, item, writing=False)
    if call.query.get("comp") == "metadata":
        versions = smb.version_headers(status, item)
        return Reply(200, {**versions, **metadata_headers(item.metadata)})
    size = {"Content-Length": str(status.st_size), "x-ms-type": "File"}
    return Reply(200, {**_read_headers(call, place, status, item), **size})


def set_properties(call: Call) -> Reply:
    """Set File Properties: size, content headers, SMB properties.

    Content headers that are left out are cleared, except by who only resizes.
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
        return Reply(200, keep(call, place, item, written_ns))


def set_metadata(call: Call) -> Reply:
    """Set File Metadata."""
    with changed(call) as (place, item):
        item.metadata = call.metadata()
        return Reply(200, keep(call, place, item, None))


def delete(call: Call) -> Reply:
    """Delete File."""
    with changed(call) as (place, _):
        status = place.file()
        os.unlink(place.name, dir_fd=place.parent_fd)
        call.records.delete_item(call.share, place.path)
        call.shares.grow(call.share, -status.st_size)
    return Reply(202)


def lease(call: Call) -> Reply:
    """Acquire, change, release or break the lease of a file."""
    with call.shares.lock, call.place() as place:
        status = place.file()
        item = call.item(place)
        outcome = leases.act(item.lease, call.headers, call.now_ns, share=False)
        item.lease = outcome.lease
        call.records.put_item(call.share, place.path, status.st_ino, item)
        versions = smb.version_headers(status, item)
    return Reply(outcome.status, {**versions, **outcome.headers})


@contextmanager
def changed(call: Call) -> Generator[tuple[Place, Item]]:
    """A file whose record the request changes too. Raises Fault."""
    with call.shares.lock, writable(call) as found:
        yield found


@contextmanager
def writable(call: Call) -> Generator[tuple[Place, Item]]:
    """A file that the request may change. Raises Fault."""
    with call.place() as place:
        place.file()
        item = call.item(place)
        _check_lease(call, item)
        if smb.read_only(item) and call.query.get("comp") != "properties":
            raise Fault("ReadOnlyAttribute")
        yield place, item


def check_replaceable(call: Call, place: Place) -> leases.Lease | None:
    """Whether a new file may come to this place; the lease that goes on. Raises Fault."""
    if place.status is None:
        return None
    if not place.is_file:
        raise Fault("ResourceTypeMismatch")
    if not call.may_overwrite:
        raise Fault("AuthorizationPermissionMismatch")
    old = call.item(place)
    _check_lease(call, old)
    if smb.read_only(old):
        raise Fault("ReadOnlyAttribute")
    return old.lease


def keep(call: Call, place: Place, item: Item, written_ns: int | None) -> dict[str, str]:
    """Write down what has changed; the headers that tell of it."""
    with place.opened(os.O_RDONLY) as descriptor:
        smb.set_times(descriptor, written_ns or os.fstat(descriptor).st_mtime_ns)
        status = os.fstat(descriptor)
    item.revision += 1
    call.records.put_item(call.share, place.path, status.st_ino, item)
    encrypted = {"x-ms-request-server-encrypted": "true"}
    return {**smb.headers_of(status, item, place.parent_id), **encrypted}


def reserve(call: Call, added: int) -> None:
    """Count bytes that are added to the share. Raises Fault when the quota has no room."""
    if added > 0:
        quota = call.found_share().quota_gib * GIB
        if call.shares.usage(call.share) + added > quota:
            raise Fault("ShareSizeLimitReached")
    call.shares.grow(call.share, added)


def check_md5(call: Call) -> None:
    """Compare the body with its Content-MD5. Raises Fault."""
    given = call.header("content-md5")
    if not given:
        return
    if not re.fullmatch(r"[A-Za-z0-9+/]{22}==", given):
        raise Fault("InvalidMd5")
    if md5_of(call.body) != given:
        raise Fault("Md5Mismatch")


def md5_of(data: bytes) -> str:
    """The MD5 as headers carry it."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()


def _check_lease(call: Call, item: Item, *, writing: bool = True) -> None:
    given = call.header("x-ms-lease-id")
    leases.check(item.lease, given, call.now_ns, kind="File", writing=writing)


def _read_headers(call: Call, place: Place, status: os.stat_result, item: Item) -> dict[str, str]:
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


def _size(call: Call) -> int | None:
    text = call.header("x-ms-content-length")
    if not text:
        return None
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) > _MAX_SIZE:
        raise bad_header("x-ms-content-length", text)
    return int(text)


def _content_headers(call: Call) -> dict[str, str]:
    found = {name: call.header(own) for own, name in _CONTENT_HEADERS.items() if call.header(own)}
    if "Content-MD5" in found and not re.fullmatch(r"[A-Za-z0-9+/]{22}==", found["Content-MD5"]):
        raise Fault("InvalidMd5")
    return found
