"""Rename File and Rename Directory, within one share."""

from __future__ import annotations

import errno
import os
from urllib.parse import urlsplit

from batch_emulator.files_share import leases, smb, tree
from batch_emulator.files_share.auth import Request
from batch_emulator.files_share.call import Call, Reply
from batch_emulator.files_share.faults import Fault, bad_header
from batch_emulator.files_share.records import Item
from batch_emulator.files_share.sas import verify_sas
from batch_emulator.files_share.tree import Place


def rename(call: Call) -> Reply:
    """Move what x-ms-file-rename-source names to the path of the request."""
    is_directory = call.query.get("restype") == "directory"
    source, target = call.parse(_source(call)), call.parse(call.path)
    if not source or not target:
        raise Fault("InvalidInput", {"Reason": "the root directory cannot be renamed"})
    root = call.shares.path(call.found_share().name)
    with call.shares.lock, tree.at(root, source) as old, tree.at(root, target) as new:
        if old.status is None:
            raise Fault("ResourceNotFound")
        if old.is_directory != is_directory or not (old.is_directory or old.is_file):
            raise Fault("ResourceTypeMismatch")
        item = call.item(old)
        _check_source(call, item)
        if new.status is not None and new.status.st_ino != old.status.st_ino:
            _check_target(call, new)
            name = new.name
        else:
            name = target[-1]  # also where only the case changes
        path = "/".join([*new.path.split("/")[:-1], name])
        return _moved(call, old, Place(new.parent_fd, new.parent_id, name, path, None), item)


def _moved(call: Call, old: Place, new: Place, item: Item) -> Reply:
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
            raise Fault("InvalidInput", {"Reason": "a directory cannot go into itself"}) from err
        raise
    call.records.move_items(call.share, old.path, new.path)
    if written_ns is not None:
        times = (written_ns, written_ns)
        os.utime(new.name, ns=times, dir_fd=new.parent_fd, follow_symlinks=False)
    status = new.look().status
    if status is None:
        raise Fault("ResourceNotFound")
    item.revision += 1
    item.modified_ns = call.now_ns
    call.records.put_item(call.share, new.path, status.st_ino, item)
    encrypted = {"x-ms-request-server-encrypted": "true"}
    return Reply(200, {**smb.headers_of(status, item, new.parent_id), **encrypted})


def _source(call: Call) -> str:
    """Path of the source within the share. Raises Fault."""
    name = "x-ms-file-rename-source"
    text = call.header(name)
    if not text:
        raise Fault("MissingRequiredHeader", {"HeaderName": name})
    try:
        parts = urlsplit(text)
    except ValueError as err:
        raise bad_header(name, text) from err
    before = f"/{call.shares.account.name}/{call.share}/"
    if not parts.path.startswith(before):
        raise Fault("InvalidInput", {"Reason": "the source must be in the same share"})
    if call.grant is not None and not call.grant.whole_share:
        request = Request("PUT", parts.path, parts.query, {}, call.client)
        if "w" not in verify_sas(request, call.shares, call.now).permissions:
            raise Fault("AuthorizationPermissionMismatch")
    return parts.path.removeprefix(before)


def _check_source(call: Call, item: Item) -> None:
    given = call.header("x-ms-source-lease-id")
    leases.check(item.lease, given, call.now_ns, kind="File", writing=True)
    if smb.read_only(item):
        raise Fault("ReadOnlyAttribute")


def _check_target(call: Call, place: Place) -> None:
    """What is there must be a file, and meant to be replaced."""
    if call.header("x-ms-file-rename-replace-if-exists").lower() != "true":
        raise Fault("ResourceAlreadyExists")
    if not place.is_file or call.query.get("restype") == "directory":
        raise Fault("ResourceTypeMismatch")
    item = call.item(place)
    given = call.header("x-ms-destination-lease-id")
    leases.check(item.lease, given, call.now_ns, kind="File", writing=True)
    ignored = call.header("x-ms-file-rename-ignore-readonly").lower() == "true"
    if smb.read_only(item) and not ignored:
        raise Fault("ReadOnlyAttribute")
