"""The request that a handler gets, and the reply that it returns."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias
from xml.etree import ElementTree as ET

from batch_emulator.files_share import leases, tree
from batch_emulator.files_share.auth import Grant
from batch_emulator.files_share.faults import (
    XML_TYPE,
    FilesFault,
    bad_header,
    bad_query,
    xml_document,
)
from batch_emulator.files_share.shares import Item, Lease, Share, ShareRecords, Shares
from batch_emulator.files_share.tree import TreeEntry, is_metadata_name, parse_path

_META = "x-ms-meta-"
_MAX_METADATA = 8 * 1024
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


@dataclass(frozen=True, slots=True)
class Content:
    """Bytes of an open file; the sender closes it."""

    descriptor: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class FilesReply:
    """An answer; `content` is streamed in place of `body`."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: bytes = b""
    content: Content | None = None


def xml_reply(root: ET.Element, headers: Mapping[str, str] | None = None) -> FilesReply:
    """Return an answer whose body is an XML document."""
    return FilesReply(200, {**(headers or {}), "Content-Type": XML_TYPE}, xml_document(root))


@dataclass(frozen=True, slots=True)
class FilesCall:
    """One authenticated request. Header and query names are lower-case; `path` is as sent."""

    shares: Shares
    method: str
    share: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    base_url: str
    now: datetime
    client: str  # address
    grant: Grant | None  # None: signed with the key, which allows everything

    @property
    def now_ns(self) -> int:
        """Return the time in nanoseconds since the epoch."""
        return int(self.now.timestamp() * 1e6) * 1000

    @property
    def records(self) -> ShareRecords:
        """Return the records of all shares."""
        return self.shares.records

    @property
    def may_overwrite(self) -> bool:
        """Return True if the request may replace a file; the right to create is not enough."""
        return self.grant is None or "w" in self.grant.permissions

    def header(self, name: str) -> str:
        """Return a header, or ""."""
        return self.headers.get(name, "")

    def found_share(self) -> Share:
        """Return the share of the path. Raises Fault."""
        share = self.shares.get(self.share)
        if share is None:
            raise FilesFault("ShareNotFound")
        return share

    def parse(self, path: str) -> tuple[str, ...]:
        """Return the components of a path, parsed as the headers request. Raises Fault."""
        dots = self.header("x-ms-allow-trailing-dot").lower() == "true"
        return parse_path(path, allow_trailing_dot=dots)

    @contextmanager
    def place(self) -> Generator[TreeEntry]:
        """Yield the entry of the path. Raises Fault."""
        share = self.found_share()
        with tree.open_entry(self.shares.path(share.name), self.parse(self.path)) as place:
            yield place

    def item(self, place: TreeEntry) -> Item:
        """Return the record of an entry."""
        inode = place.status.st_ino if place.status else 0
        return self.records.item(self.share, place.path, inode)

    def metadata(self) -> dict[str, str]:
        """Return the metadata in the headers. Raises Fault."""
        found = {n.removeprefix(_META): v for n, v in self.headers.items() if n.startswith(_META)}
        if not all(is_metadata_name(name) for name in found):
            raise FilesFault("InvalidMetadata")
        if sum(len(name) + len(value) for name, value in found.items()) > _MAX_METADATA:
            raise FilesFault("MetadataTooLarge")
        return found

    def include(self, allowed: frozenset[str], reason: str) -> set[str]:
        """Return the words of the query parameter `include`. Raises Fault."""
        words = set(filter(None, self.query.get("include", "").lower().split(",")))
        if not words <= allowed:
            raise bad_query("include", self.query["include"], reason)
        return words

    def check_lease(
        self,
        lease: Lease | None,
        kind: str,
        *,
        header: str = "x-ms-lease-id",
        writing: bool = True,
    ) -> None:
        """Check that the request may change a leased File or Share (`kind`). Raises Fault."""
        leases.check(lease, self.header(header), self.now_ns, kind=kind, writing=writing)

    def range(self) -> tuple[int, int | None] | None:
        """Return the first and last byte of x-ms-range, else of Range. Raises Fault."""
        name = "x-ms-range" if "x-ms-range" in self.headers else "range"
        text = self.header(name)
        return parse_range(name, text) if text else None

    def number(self, name: str, highest: int) -> int | None:
        """Return a query parameter from 1 to `highest`. Raises Fault."""
        text = self.query.get(name)
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise bad_query(name, text, "it must be a number")
        if not int(text) >= 1:
            raise FilesFault("OutOfRangeQueryParameterValue", {"QueryParameterName": name})
        return min(int(text), highest)


def parse_range(name: str, text: str) -> tuple[int, int | None]:
    """Return the first and last byte of a range. Raises Fault."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise bad_header(name, text)
    first, last = int(match.group(1)), int(match.group(2)) if match.group(2) else None
    if last is not None and last < first:
        raise bad_header(name, text)
    return first, last


def metadata_headers(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return metadata as headers of an answer."""
    return {_META + name: value for name, value in metadata.items()}


FilesHandler: TypeAlias = Callable[[FilesCall], FilesReply]
