"""The errors that the Files service answers, whose texts are in `faults.txt`, and its XML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast
from urllib.parse import quote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from batch_emulator.domain.faults import load_faults

FAULTS = load_faults("batch_emulator.files_share")


class FilesFault(Exception):  # noqa: N818 - the service's word for an error answer
    """An error answer. `details` become elements of its body, beside Code and Message."""

    def __init__(
        self, code: str, details: Mapping[str, str] | None = None, *, status: int | None = None
    ) -> None:
        default_status, message = FAULTS[code]
        super().__init__(code)
        self.code = code
        self.status = status or default_status
        self.message = message
        self.details = dict(details or {})


def not_implemented(what: str) -> FilesFault:
    """Return the FilesFault for a documented operation that is not emulated."""
    return FilesFault("NotImplemented", {"Operation": what})


def bad_header(name: str, value: str) -> FilesFault:
    """Return the FilesFault for an invalid header."""
    return FilesFault("InvalidHeaderValue", {"HeaderName": name, "HeaderValue": value[:256]})


def bad_query(name: str, value: str, reason: str) -> FilesFault:
    """Return the FilesFault for an invalid query parameter."""
    return FilesFault(
        "InvalidQueryParameterValue",
        {"QueryParameterName": name, "QueryParameterValue": value[:256], "Reason": reason},
    )


def error_body(fault: FilesFault, request_id: str, now: datetime) -> bytes:
    """Return the wire form; the message ends with the lines RequestId and Time."""
    time = f"{now:%Y-%m-%dT%H:%M:%S}.{now.microsecond:06}0Z"
    message = f"{fault.message}\nRequestId:{request_id}\nTime:{time}"
    fields = {"Code": fault.code, "Message": message, **fault.details}
    inner = "".join(f"<{name}>{_xml_text(value)}</{name}>" for name, value in fields.items())
    return f'<?xml version="1.0" encoding="utf-8"?><Error>{inner}</Error>'.encode()


def _xml_text(value: str) -> str:
    kept = "".join(c if c in "\n\t" or "\x20" <= c < "\ud800" else "?" for c in value)
    return escape(kept)


MAX_XML_BYTES = 1024 * 1024
XML_TYPE = "application/xml"
_MAX_DEPTH = 16

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def xml_document(root: ET.Element) -> bytes:
    """Return the body of an answer."""
    return ET.tostring(root, encoding="utf-8", xml_declaration=True)


def add_child(parent: ET.Element, name: str, text: object = "") -> ET.Element:
    """Append an element with text; `?` replaces characters that XML does not allow."""
    element = ET.SubElement(parent, name)
    element.text = legal_xml(str(text))
    return element


def add_name(parent: ET.Element, name: str, text: str) -> ET.Element:
    """Append a name, percent-encoded and marked so if XML does not allow it (2021-12-02)."""
    if not _ILLEGAL.search(text):
        return add_child(parent, name, text)
    element = add_child(parent, name, quote(text.encode("utf-8", "surrogateescape"), safe=""))
    element.set("Encoded", "true")
    return element


def add_children(parent: ET.Element, texts: Mapping[str, object]) -> None:
    """Append elements with text."""
    for name, text in texts.items():
        add_child(parent, name, text)


def parse_xml(body: bytes, root: str) -> ET.Element:
    """Parse the body of a request: UTF-8, no entities, limited depth. Raises Fault."""
    if len(body) > MAX_XML_BYTES:
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
    """Return the text of a child element, or ""."""
    return (parent.findtext(path) or "").strip()


def legal_xml(text: str) -> str:
    """Return the text with `?` for characters that XML does not allow."""
    return _ILLEGAL.sub("?", text)
