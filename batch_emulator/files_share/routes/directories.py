"""Directories: create, delete, properties, metadata, list, handles."""

from __future__ import annotations

import base64
import binascii
import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from xml.etree import ElementTree as ET

from batch_emulator.files_share import smb, xml_text
from batch_emulator.files_share.call import Call, Reply, metadata_headers
from batch_emulator.files_share.faults import Fault, bad_query
from batch_emulator.files_share.records import Item
from batch_emulator.files_share.tree import Place
from batch_emulator.values import http_date

_MAX_RESULTS = 5000
_INCLUDES = frozenset({"timestamps", "etag", "attributes", "permissionkey"})


def create(call: Call) -> Reply:
    """Create Directory."""
    item = Item(metadata=call.metadata(), modified_ns=call.now_ns)
    with call.shares.lock, call.place() as place:
        if place.status is not None:
            taken = "ResourceAlreadyExists" if place.is_directory else "ResourceTypeMismatch"
            raise Fault(taken)
        written_ns = smb.apply(call.headers, item, call.records, call.now_ns, create=True)
        os.mkdir(place.name, dir_fd=place.parent_fd)
        return Reply(201, _keep(call, place, item, written_ns))


def get_properties(call: Call) -> Reply:
    """Get Directory Properties, or only its metadata."""
    with call.place() as place:
        status = place.directory()
        item = call.item(place)
    headers = {**metadata_headers(item.metadata), "x-ms-server-encrypted": "true"}
    if call.query.get("comp") == "metadata":
        return Reply(200, {**headers, **smb.version_headers(status, item)})
    return Reply(200, {**headers, **smb.headers_of(status, item, place.parent_id)})


def set_properties(call: Call) -> Reply:
    """Set Directory Properties."""
    with _changed(call) as (place, item):
        written_ns = smb.apply(call.headers, item, call.records, call.now_ns, create=False)
        return Reply(200, _keep(call, place, item, written_ns))


def set_metadata(call: Call) -> Reply:
    """Set Directory Metadata."""
    with _changed(call) as (place, item):
        item.metadata = call.metadata()
        return Reply(200, _keep(call, place, item, None))


def delete(call: Call) -> Reply:
    """Delete Directory, which must be empty."""
    with call.shares.lock, call.place() as place:
        place.directory()
        if place.is_root:
            raise Fault("InvalidInput", {"Reason": "the root directory goes with its share"})
        if smb.read_only(call.item(place)):
            raise Fault("ReadOnlyAttribute")
        try:
            os.rmdir(place.name, dir_fd=place.parent_fd)
        except OSError as err:
            if err.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise Fault("DirectoryNotEmpty") from err
            raise
        call.records.delete_item(call.share, place.path)
    return Reply(202)


def list_entries(call: Call) -> Reply:
    """List Directories and Files, a page at a time; the marker is the last name, encoded."""
    include = set(filter(None, call.query.get("include", "").lower().split(",")))
    if not include <= _INCLUDES:
        raise bad_query("include", call.query["include"], ", ".join(sorted(_INCLUDES)))
    prefix, marker = call.query.get("prefix", ""), call.query.get("marker", "")
    most = call.number("maxresults", _MAX_RESULTS)
    extended = bool(include) or call.header("x-ms-file-extended-info").lower() == "true"
    with call.place() as place:
        status = place.directory()
        page = place.page(prefix, _name_of(marker), most or _MAX_RESULTS)
    root = ET.Element(
        "EnumerationResults",
        ServiceEndpoint=f"{call.base_url}/",
        ShareName=call.share,
        DirectoryPath=xml_text.legal(place.path),
    )
    for name, text in (("Marker", marker), ("MaxResults", most)):
        if text:
            xml_text.child(root, name, text)
    xml_text.named(root, "Prefix", prefix)
    if extended:
        xml_text.child(root, "DirectoryId", status.st_ino)
    entries = ET.SubElement(root, "Entries")
    for name, found in page.entries:
        path = f"{place.path}/{name}" if place.path else name
        item = call.records.item(call.share, path, found.st_ino)
        _entry(entries, name, found, item, include if extended else None)
    xml_text.child(root, "NextMarker", _marker_of(page.last))
    return Reply(200, {"Content-Type": xml_text.TYPE}, xml_text.document(root))


def list_handles(call: Call) -> Reply:
    """List Handles: mounts are folders here, so SMB holds nothing open."""
    with call.place() as place:
        if place.status is None:
            raise Fault("ResourceNotFound")
    root = ET.Element("EnumerationResults")
    ET.SubElement(root, "Entries")
    xml_text.child(root, "NextMarker")
    return Reply(200, {"Content-Type": xml_text.TYPE}, xml_text.document(root))


def close_handles(call: Call) -> Reply:
    """Force Close Handles: there are none."""
    if not call.header("x-ms-handle-id"):
        raise Fault("MissingRequiredHeader", {"HeaderName": "x-ms-handle-id"})
    with call.place() as place:
        if place.status is None:
            raise Fault("ResourceNotFound")
    closed = {"x-ms-number-of-handles-closed": "0", "x-ms-number-of-handles-failed": "0"}
    return Reply(200, closed)


@contextmanager
def _changed(call: Call) -> Generator[tuple[Place, Item]]:
    with call.shares.lock, call.place() as place:
        place.directory()
        yield place, call.item(place)


def _keep(call: Call, place: Place, item: Item, written_ns: int | None) -> dict[str, str]:
    """Write down what has changed; the headers that tell of it."""
    if written_ns is not None:
        times = (written_ns, written_ns)
        os.utime(place.name, ns=times, dir_fd=place.parent_fd, follow_symlinks=False)
    status = place.look().directory()
    item.modified_ns = max(call.now_ns, (item.modified_ns or 0) + 1)
    call.records.put_item(call.share, place.path, status.st_ino, item)
    encrypted = {"x-ms-request-server-encrypted": "true"}
    return {**smb.headers_of(status, item, place.parent_id), **encrypted}


def _entry(
    parent: ET.Element,
    name: str,
    status: os.stat_result,
    item: Item,
    include: set[str] | None,
) -> None:
    is_directory = stat.S_ISDIR(status.st_mode)
    element = ET.SubElement(parent, "Directory" if is_directory else "File")
    xml_text.named(element, "Name", name)
    if include is not None:
        xml_text.child(element, "FileId", status.st_ino)
    properties = ET.SubElement(element, "Properties")
    if not is_directory:
        xml_text.child(properties, "Content-Length", status.st_size)
    include = include or set()
    if "timestamps" in include:
        times = {
            "CreationTime": smb.created_ns(status, item),
            "LastAccessTime": status.st_atime_ns,
            "LastWriteTime": status.st_mtime_ns,
            "ChangeTime": item.changed_ns or status.st_ctime_ns,
        }
        xml_text.children(properties, {n: smb.time_text(t) for n, t in times.items()})
        modified = smb.moment(smb.modified_ns(status, item))
        xml_text.child(properties, "Last-Modified", http_date(modified))
    if "etag" in include:
        xml_text.child(properties, "Etag", smb.etag(status, item))
    if "attributes" in include:
        xml_text.child(element, "Attributes", smb.attributes_of(status, item))
    if "permissionkey" in include:
        key = item.permission_key or smb.key_of(smb.DEFAULT_PERMISSION)
        xml_text.child(element, "PermissionKey", key)


def _marker_of(name: str) -> str:
    return base64.urlsafe_b64encode(os.fsencode(name)).decode()


def _name_of(marker: str) -> str:
    try:
        return os.fsdecode(base64.b64decode(marker, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as err:
        raise bad_query("marker", marker, "it is none of ours") from err
