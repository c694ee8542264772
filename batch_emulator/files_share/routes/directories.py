"""Directories: create, delete, properties, metadata, list and handles; rename of files and
directories.
"""

from __future__ import annotations

import base64
import binascii
import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from urllib.parse import urlsplit
from xml.etree import ElementTree as ET

from batch_emulator.domain.shared_key import SignedRequest
from batch_emulator.domain.values import http_date
from batch_emulator.files_share import faults, smb, tree
from batch_emulator.files_share.auth import verify_sas
from batch_emulator.files_share.call import FilesCall, FilesReply, metadata_headers, xml_reply
from batch_emulator.files_share.faults import FilesFault, bad_header, bad_query
from batch_emulator.files_share.shares import Item
from batch_emulator.files_share.tree import TreeEntry

_MAX_RESULTS = 5000
_INCLUDES = frozenset({"timestamps", "etag", "attributes", "permissionkey"})


def create(call: FilesCall) -> FilesReply:
    """Create Directory."""
    item = Item(metadata=call.metadata(), modified_ns=call.now_ns)
    with call.shares.lock, call.place() as place:
        if place.status is not None:
            taken = "ResourceAlreadyExists" if place.is_directory else "ResourceTypeMismatch"
            raise FilesFault(taken)
        written_ns = smb.apply(call.headers, item, call.records, call.now_ns, create=True)
        os.mkdir(place.name, dir_fd=place.parent_fd)
        call.shares.own(place.name, place.parent_fd)
        return FilesReply(201, _keep(call, place, item, written_ns))


def get_properties(call: FilesCall) -> FilesReply:
    """Get Directory Properties, or only its metadata."""
    with call.place() as place:
        status = place.directory()
        item = call.item(place)
    headers = {**metadata_headers(item.metadata), "x-ms-server-encrypted": "true"}
    if call.query.get("comp") == "metadata":
        return FilesReply(200, {**headers, **smb.version_headers(status, item)})
    return FilesReply(200, {**headers, **smb.headers_of(status, item, place.parent_id)})


def set_properties(call: FilesCall) -> FilesReply:
    """Set Directory Properties."""
    with _changed(call) as (place, item):
        written_ns = smb.apply(call.headers, item, call.records, call.now_ns, create=False)
        return FilesReply(200, _keep(call, place, item, written_ns))


def set_metadata(call: FilesCall) -> FilesReply:
    """Set Directory Metadata."""
    with _changed(call) as (place, item):
        item.metadata = call.metadata()
        return FilesReply(200, _keep(call, place, item, None))


def delete(call: FilesCall) -> FilesReply:
    """Delete Directory, which must be empty."""
    with call.shares.lock, call.place() as place:
        place.directory()
        if place.is_root:
            reason = "the root directory is deleted with its share"
            raise FilesFault("InvalidInput", {"Reason": reason})
        if smb.read_only(call.item(place)):
            raise FilesFault("ReadOnlyAttribute")
        try:
            os.rmdir(place.name, dir_fd=place.parent_fd)
        except OSError as err:
            if err.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise FilesFault("DirectoryNotEmpty") from err
            raise
        call.records.delete_item(call.share, place.path)
    return FilesReply(202)


def list_entries(call: FilesCall) -> FilesReply:
    """List Directories and Files, a page at a time; the marker is the last name, encoded."""
    include = call.include(_INCLUDES, ", ".join(sorted(_INCLUDES)))
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
        DirectoryPath=faults.legal_xml(place.path),
    )
    for name, text in (("Marker", marker), ("MaxResults", most)):
        if text:
            faults.add_child(root, name, text)
    faults.add_name(root, "Prefix", prefix)
    if extended:
        faults.add_child(root, "DirectoryId", status.st_ino)
    entries = ET.SubElement(root, "Entries")
    for name, found in page.entries:
        path = f"{place.path}/{name}" if place.path else name
        item = call.records.item(call.share, path, found.st_ino)
        _entry(entries, name, found, item, include if extended else None)
    faults.add_child(root, "NextMarker", _marker_of(page.last))
    return xml_reply(root)


def list_handles(call: FilesCall) -> FilesReply:
    """List Handles: none, because mounts are folders here and do not use SMB."""
    with call.place() as place:
        place.found()
    root = ET.Element("EnumerationResults")
    ET.SubElement(root, "Entries")
    faults.add_child(root, "NextMarker")
    return xml_reply(root)


def close_handles(call: FilesCall) -> FilesReply:
    """Force Close Handles: there are none."""
    if not call.header("x-ms-handle-id"):
        raise FilesFault("MissingRequiredHeader", {"HeaderName": "x-ms-handle-id"})
    with call.place() as place:
        place.found()
    closed = {"x-ms-number-of-handles-closed": "0", "x-ms-number-of-handles-failed": "0"}
    return FilesReply(200, closed)


@contextmanager
def _changed(call: FilesCall) -> Generator[tuple[TreeEntry, Item]]:
    with call.shares.lock, call.place() as place:
        place.directory()
        yield place, call.item(place)


def _keep(call: FilesCall, place: TreeEntry, item: Item, written_ns: int | None) -> dict[str, str]:
    """Store the changes and return the headers of the directory."""
    _set_times(place, written_ns)
    status = place.look().directory()
    item.modified_ns = max(call.now_ns, (item.modified_ns or 0) + 1)
    call.records.put_item(call.share, place.path, status.st_ino, item)
    return smb.headers_of_written(status, item, place.parent_id)


def _set_times(place: TreeEntry, written_ns: int | None) -> None:
    """Set the last write time and the access time of an entry, unless it keeps them."""
    if written_ns is not None:
        times = (written_ns, written_ns)
        os.utime(place.name, ns=times, dir_fd=place.parent_fd, follow_symlinks=False)


def _entry(
    parent: ET.Element,
    name: str,
    status: os.stat_result,
    item: Item,
    include: set[str] | None,
) -> None:
    is_directory = stat.S_ISDIR(status.st_mode)
    element = ET.SubElement(parent, "Directory" if is_directory else "File")
    faults.add_name(element, "Name", name)
    if include is not None:
        faults.add_child(element, "FileId", status.st_ino)
    properties = ET.SubElement(element, "Properties")
    if not is_directory:
        faults.add_child(properties, "Content-Length", status.st_size)
    include = include or set()
    if "timestamps" in include:
        times = {
            "CreationTime": smb.created_ns(status, item),
            "LastAccessTime": status.st_atime_ns,
            "LastWriteTime": status.st_mtime_ns,
            "ChangeTime": item.changed_ns or status.st_ctime_ns,
        }
        faults.add_children(properties, {n: smb.time_text(t) for n, t in times.items()})
        modified = smb.moment(smb.modified_ns(status, item))
        faults.add_child(properties, "Last-Modified", http_date(modified))
    if "etag" in include:
        faults.add_child(properties, "Etag", smb.etag(status, item))
    if "attributes" in include:
        faults.add_child(element, "Attributes", smb.attributes_of(status, item))
    if "permissionkey" in include:
        key = item.permission_key or smb.key_of(smb.DEFAULT_PERMISSION)
        faults.add_child(element, "PermissionKey", key)


def _marker_of(name: str) -> str:
    return base64.urlsafe_b64encode(os.fsencode(name)).decode()


def _name_of(marker: str) -> str:
    try:
        return os.fsdecode(base64.b64decode(marker, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError) as err:
        raise bad_query("marker", marker, "not a marker of this service") from err


def rename(call: FilesCall) -> FilesReply:
    """Move the file or directory of x-ms-file-rename-source to the path of the request."""
    is_directory = call.query.get("restype") == "directory"
    source, target = call.parse(_source(call)), call.parse(call.path)
    if not source or not target:
        raise FilesFault("InvalidInput", {"Reason": "the root directory cannot be renamed"})
    root = call.shares.path(call.found_share().name)
    with (
        call.shares.lock,
        tree.open_entry(root, source) as old,
        tree.open_entry(root, target) as new,
    ):
        moved = old.found()
        if old.is_directory != is_directory or not (old.is_directory or old.is_file):
            raise FilesFault("ResourceTypeMismatch")
        item = call.item(old)
        _check_source(call, item)
        if new.status is not None and new.status.st_ino != moved.st_ino:
            _check_target(call, new)
            name = new.name
        else:
            name = target[-1]  # even if only the case changes
        path = "/".join([*new.path.split("/")[:-1], name])
        return _moved(call, old, TreeEntry(new.parent_fd, new.parent_id, name, path, None), item)


def _moved(call: FilesCall, old: TreeEntry, new: TreeEntry, item: Item) -> FilesReply:
    headers = dict(call.headers)
    headers.setdefault("x-ms-file-change-time", "now")
    written_ns = smb.apply(headers, item, call.records, call.now_ns, create=False)
    if given := call.metadata():
        item.metadata = given
    if call.header("x-ms-content-type"):
        item.headers["Content-Type"] = call.header("x-ms-content-type")
    try:
        os.rename(old.name, new.name, src_dir_fd=old.parent_fd, dst_dir_fd=new.parent_fd)
    except OSError as err:
        if err.errno == errno.EINVAL:
            raise FilesFault(
                "InvalidInput", {"Reason": "a directory cannot be moved into itself"}
            ) from err
        raise
    call.records.move_items(call.share, old.path, new.path)
    _set_times(new, written_ns)
    status = new.look().found()
    item.revision += 1
    item.modified_ns = call.now_ns
    call.records.put_item(call.share, new.path, status.st_ino, item)
    return FilesReply(200, smb.headers_of_written(status, item, new.parent_id))


def _source(call: FilesCall) -> str:
    """Return the path of the source within the share. Raises Fault."""
    name = "x-ms-file-rename-source"
    text = call.header(name)
    if not text:
        raise FilesFault("MissingRequiredHeader", {"HeaderName": name})
    try:
        parts = urlsplit(text)
    except ValueError as err:
        raise bad_header(name, text) from err
    before = f"/{call.shares.account.name}/{call.share}/"
    if not parts.path.startswith(before):
        raise FilesFault("InvalidInput", {"Reason": "the source must be in the same share"})
    if call.grant is not None and not call.grant.whole_share:
        request = SignedRequest("PUT", parts.path, parts.query, {}, call.client)
        if "w" not in verify_sas(request, call.shares, call.now).permissions:
            raise FilesFault("AuthorizationPermissionMismatch")
    return parts.path.removeprefix(before)


def _check_source(call: FilesCall, item: Item) -> None:
    call.check_lease(item.lease, "File", header="x-ms-source-lease-id")
    if smb.read_only(item):
        raise FilesFault("ReadOnlyAttribute")


def _check_target(call: FilesCall, place: TreeEntry) -> None:
    """Check that the target is a file and may be replaced. Raises Fault."""
    if call.header("x-ms-file-rename-replace-if-exists").lower() != "true":
        raise FilesFault("ResourceAlreadyExists")
    if not place.is_file or call.query.get("restype") == "directory":
        raise FilesFault("ResourceTypeMismatch")
    item = call.item(place)
    call.check_lease(item.lease, "File", header="x-ms-destination-lease-id")
    ignored = call.header("x-ms-file-rename-ignore-readonly").lower() == "true"
    if smb.read_only(item) and not ignored:
        raise FilesFault("ReadOnlyAttribute")
