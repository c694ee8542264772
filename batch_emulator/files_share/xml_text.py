"""XML as the service writes and reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import quote
from xml.etree import ElementTree as ET

from batch_emulator.files_share.faults import FilesFault

MAX_BYTES = 1024 * 1024
TYPE = "application/xml"
_MAX_DEPTH = 16

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(root: ET.Element) -> bytes:
    """An answer's body."""
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def child(parent: ET.Element, name: str, text: object = "") -> ET.Element:
    """Append an element with text in it, each character that XML cannot hold as `?`."""
    element = ET.SubElement(parent, name)
    element.text = legal(str(text))
    return element


def named(parent: ET.Element, name: str, text: str) -> ET.Element:
    """Append a name; one that XML cannot hold is percent-encoded and says so (2021-12-02)."""
    if not _ILLEGAL.search(text):
        return child(parent, name, text)
    element = child(parent, name, quote(text.encode("utf-8", "surrogateescape"), safe=""))
    element.set("Encoded", "true")
    return element


def children(parent: ET.Element, texts: Mapping[str, object]) -> None:
    """Append elements with text in them."""
    for name, text in texts.items():
        child(parent, name, text)


def parse(body: bytes, root: str) -> ET.Element:
    """A request's body, which is UTF-8 without entities and not deep. Raises Fault."""
    if len(body) > MAX_BYTES:
        raise FilesFault("InvalidXmlDocument", {"Reason": "too large"})
    try:
        text = body.decode("utf-8-sig")
        if "<!DOCTYPE" in text.upper():
            raise FilesFault("InvalidXmlDocument", {"Reason": "a document type"})
        element = _shallow(text)
    except (ET.ParseError, ValueError, LookupError) as err:
        raise FilesFault("InvalidXmlDocument", {"Reason": str(err)}) from err
    if element.tag != root:
        raise FilesFault("InvalidXmlDocument", {"Reason": f"the root must be {root}"})
    return element


def _shallow(text: str) -> ET.Element:
    parser = cast("Any", ET.XMLPullParser(("start", "end")))
    parser.feed(text)
    parser.close()
    found: ET.Element | None = None
    depth = 0
    for event, element in parser.read_events():
        found = element if found is None else found
        depth += 1 if event == "start" else -1
        if depth > _MAX_DEPTH:
            raise ValueError("too deep")
    if found is None:
        raise ValueError("no root")
    return found


def text_of(parent: ET.Element, path: str) -> str:
    """Text of an element below, "" where there is none."""
    return (parent.findtext(path) or "").strip()


def names_of(elements: Iterable[ET.Element]) -> list[str]:
    """Tags."""
    return [element.tag for element in elements]


def legal(text: str) -> str:
    """The text with `?` for what XML cannot hold."""
    return _ILLEGAL.sub("?", text)
