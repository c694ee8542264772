"""The SMB side of files and directories: attributes, times, permissions, ids, entity tags.

Source: "Create File", "Set File Properties" (learn.microsoft.com). The last write time is that
of the file; the creation time and a change time that was set are in the records.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from batch_emulator.domain.values import http_date
from batch_emulator.files_share.faults import FilesFault, bad_header, not_implemented
from batch_emulator.files_share.shares import Item, ShareRecords

_NS = 10**9
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,7}))?(?:Z|\+00:00)")
_KEY = re.compile(r"[0-9*]{1,64}")
_MAX_PERMISSION = 8 * 1024
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SYNONYMS = ("", "None")
_ATTRIBUTES = (
    "ReadOnly",
    "Hidden",
    "System",
    "Directory",
    "Archive",
    "Temporary",
    "Offline",
    "NotContentIndexed",
    "NoScrubData",
)
_KEPT = ("", "preserve")
_NFS_HEADERS = ("x-ms-mode", "x-ms-owner", "x-ms-group", "x-ms-file-file-type")
# The descriptor that a new file of a share inherits from its root.
DEFAULT_PERMISSION = (
    "O:SYG:SYD:(A;OICI;FA;;;BA)(A;OICI;FA;;;SY)(A;OICI;0x1301bf;;;AU)(A;OICI;0x1200a9;;;BU)"
)


def apply(
    headers: Mapping[str, str], item: Item, records: ShareRecords, now_ns: int, *, create: bool
) -> int | None:
    """Apply the SMB headers of a request to an item. Return the last write time to set, or None.

    Raises Fault.
    """
    for name in _NFS_HEADERS:
        if name in headers:
            raise not_implemented(f"NFS shares ({name})")
    attributes = _attributes(headers.get("x-ms-file-attributes", ""))
    if attributes is not None:
        item.attributes = attributes
    key = _permission(headers, records)
    if key is not None:
        item.permission_key = key
    if create:
        item.created_ns = now_ns
    created = _time(headers, "x-ms-file-creation-time", now_ns)
    if created is not None:
        item.created_ns = created
    item.changed_ns = _time(headers, "x-ms-file-change-time", now_ns)
    written = _time(headers, "x-ms-file-last-write-time", now_ns)
    return now_ns if written is None and create else written


def read_only(item: Item) -> bool:
    """Return True if the file or directory is read-only."""
    return "ReadOnly" in (item.attributes or "").split(" | ")


def headers_of(status: os.stat_result, item: Item, parent_id: int) -> dict[str, str]:
    """Return the SMB headers of an answer."""
    found = {
        "x-ms-file-attributes": attributes_of(status, item),
        "x-ms-file-creation-time": time_text(created_ns(status, item)),
        "x-ms-file-last-write-time": time_text(status.st_mtime_ns),
        "x-ms-file-change-time": time_text(item.changed_ns or status.st_ctime_ns),
        "x-ms-file-permission-key": item.permission_key or key_of(DEFAULT_PERMISSION),
        "x-ms-file-id": str(status.st_ino),
        "x-ms-file-parent-id": str(parent_id),
    }
    return found | version_headers(status, item)


def headers_of_written(status: os.stat_result, item: Item, parent_id: int) -> dict[str, str]:
    """Return the SMB headers of the answer to a change."""
    encrypted = {"x-ms-request-server-encrypted": "true"}
    return {**headers_of(status, item, parent_id), **encrypted}


def attributes_of(status: os.stat_result, item: Item) -> str:
    """Return the attributes; a file without a record has Archive, as one written over SMB."""
    known = item.attributes
    if not stat.S_ISDIR(status.st_mode):
        return known or "Archive"
    others = [word for word in (known or "").split(" | ") if word not in ("", "None", "Directory")]
    return " | ".join([*others, "Directory"])


def created_ns(status: os.stat_result, item: Item) -> int:
    """Return the creation time; without a record the earliest time on the disk."""
    return item.created_ns or min(status.st_mtime_ns, status.st_ctime_ns)


def modified_ns(status: os.stat_result, item: Item) -> int:
    """Return Last-Modified: the last change of a file, or of the properties of a directory."""
    if stat.S_ISDIR(status.st_mode):
        return item.modified_ns or status.st_mtime_ns
    return status.st_ctime_ns


def version_headers(status: os.stat_result, item: Item) -> dict[str, str]:
    """Return the headers ETag and Last-Modified."""
    return {
        "ETag": etag(status, item),
        "Last-Modified": http_date(moment(modified_ns(status, item))),
    }


def etag(status: os.stat_result, item: Item) -> str:
    """Return the entity tag, which differs after every change through REST or the folder."""
    if stat.S_ISDIR(status.st_mode):
        return etag_of(modified_ns(status, item))
    return etag_of(status.st_ctime_ns * 31 + status.st_mtime_ns + status.st_size + item.revision)


def etag_of(number: int) -> str:
    """Return an entity tag as the service spells it."""
    return f'"0x{number & (1 << 60) - 1:X}"'


def moment(time_ns: int) -> datetime:
    """Return an aware time, truncated to microseconds."""
    try:
        return _EPOCH + timedelta(microseconds=time_ns // 1000)
    except OverflowError:  # a task may set any time
        return _EPOCH


def time_text(time_ns: int) -> str:
    """Return an ISO 8601 time with seven digits after the second, as in SMB."""
    seconds = moment(time_ns).isoformat()[:19]  # strftime does not fill up years
    return f"{seconds}.{time_ns % _NS // 100:07}Z"


def set_times(descriptor: int, written_ns: int) -> None:
    """Set the last write time and the access time."""
    os.utime(descriptor, ns=(written_ns, written_ns))


def key_of(permission: str) -> str:
    """Return the key of a security descriptor in the form of the service."""
    digest = hashlib.sha256(permission.encode()).digest()
    first, second = digest[:8], digest[8:16]
    return f"{int.from_bytes(first) >> 1}*{int.from_bytes(second) >> 1}"


def keep_permission(text: str, records: ShareRecords) -> str:
    """Store a security descriptor and return its key. Raises Fault."""
    if len(text.encode("utf-8", "replace")) > _MAX_PERMISSION or "D:" not in text:
        raise FilesFault("FileInvalidPermission")
    key = key_of(text)
    records.put_permission(key, text)
    return key


def find_permission(key: str, records: ShareRecords) -> str:
    """Return the security descriptor of a key. Raises Fault."""
    text = records.permission(key) if _KEY.fullmatch(key) else None
    if text is None and key == key_of(DEFAULT_PERMISSION):
        return DEFAULT_PERMISSION
    if text is None:
        raise FilesFault("FileInvalidPermissionKey")
    return text


def _permission(headers: Mapping[str, str], records: ShareRecords) -> str | None:
    text = headers.get("x-ms-file-permission", "")
    key = headers.get("x-ms-file-permission-key", "")
    if text and key:
        raise bad_header("x-ms-file-permission", text)
    if key and key.lower() != "preserve":
        find_permission(key, records)
        return key
    if text.lower() in ("", "inherit", "preserve"):
        return None
    if headers.get("x-ms-file-permission-format", "sddl").lower() != "sddl":
        raise not_implemented("x-ms-file-permission-format: binary")
    return keep_permission(text, records)


def _attributes(text: str) -> str | None:
    """Return the attributes in the order given, None to keep them."""
    if text.lower() in _KEPT:
        return None
    words = [word.strip() for word in text.split("|")]
    known = {name.lower(): name for name in (*_ATTRIBUTES, *_SYNONYMS)}
    if any(word.lower() not in known for word in words):
        raise bad_header("x-ms-file-attributes", text)
    found = dict.fromkeys(known[word.lower()] for word in words)
    return " | ".join(found) if found else None


def _time(headers: Mapping[str, str], name: str, now_ns: int) -> int | None:
    text = headers.get(name, "")
    if text.lower() in _KEPT:
        return None
    if text.lower() == "now":
        return now_ns
    match = _TIME.fullmatch(text)
    try:
        seconds = datetime.fromisoformat(match.group(1)).replace(tzinfo=UTC) if match else None
    except ValueError:
        seconds = None
    if match is None or seconds is None:
        raise bad_header(name, text)
    hundreds = int((match.group(2) or "").ljust(7, "0"))
    return int((seconds - _EPOCH).total_seconds()) * _NS + hundreds * 100
