"""The errors that the Files service answers (code, status and message, in one table), and its
XML.

Source: "Azure Files error codes" and "Common REST API error codes" (learn.microsoft.com).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, cast
from urllib.parse import quote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

FAULTS: Mapping[str, tuple[int, str]] = {
    # any storage service
    "AuthenticationFailed": (
        403,
        (
            "Server failed to authenticate the request. Make sure the value of Authorization "
            "header is formed correctly including the signature."
        ),
    ),
    "NoAuthenticationInformation": (
        401,
        (
            "Server failed to authenticate the request. Please refer to the information in the "
            "www-authenticate header."
        ),
    ),
    "InvalidAuthenticationInfo": (
        401,
        (
            "Server failed to authenticate the request. Please refer to the information in the "
            "www-authenticate header."
        ),
    ),
    "AuthorizationFailure": (403, "This request is not authorized to perform this operation."),
    "AuthorizationPermissionMismatch": (
        403,
        "This request is not authorized to perform this operation using this permission.",
    ),
    "AuthorizationProtocolMismatch": (
        403,
        "This request is not authorized to perform this operation using this protocol.",
    ),
    "AuthorizationResourceTypeMismatch": (
        403,
        "This request is not authorized to perform this operation using this resource type.",
    ),
    "AuthorizationServiceMismatch": (
        403,
        "This request is not authorized to perform this operation using this service.",
    ),
    "AuthorizationSourceIPMismatch": (
        403,
        "This request is not authorized to perform this operation using this source IP.",
    ),
    "ConditionHeadersNotSupported": (400, "Condition headers are not supported."),
    "ServerBusy": (
        503,
        "The server is currently unable to receive requests. Please retry your request.",
    ),
    "InternalError": (500, "Server encountered an internal error. Please try again."),
    "InvalidHeaderValue": (
        400,
        "The value for one of the HTTP headers is not in the correct format.",
    ),
    "InvalidInput": (400, "One of the request inputs is not valid."),
    "InvalidMd5": (
        400,
        (
            "The MD5 value specified in the request is invalid. "
            "The MD5 value must be 128 bits and Base64-encoded."
        ),
    ),
    "InvalidMetadata": (
        400,
        "The metadata specified is invalid. It has characters that are not permitted.",
    ),
    "InvalidQueryParameterValue": (
        400,
        "Value for one of the query parameters specified in the request URI is invalid.",
    ),
    "InvalidRange": (
        416,
        "The range specified is invalid for the current size of the resource.",
    ),
    "InvalidResourceName": (400, "The specified resource name contains invalid characters."),
    "InvalidUri": (400, "The requested URI does not represent any resource on the server."),
    "InvalidXmlDocument": (400, "XML specified is not syntactically valid."),
    "InvalidXmlNodeValue": (
        400,
        "The value for one of the XML nodes is not in the correct format.",
    ),
    "Md5Mismatch": (
        400,
        (
            "The MD5 value specified in the request did not match with the MD5 value calculated by "
            "the server."
        ),
    ),
    "MetadataTooLarge": (400, "The metadata specified exceeds the maximum permissible limit."),
    "MissingContentLengthHeader": (411, "The Content-Length header was not specified."),
    "MissingRequiredHeader": (
        400,
        "An HTTP header that's mandatory for this request is not specified.",
    ),
    "MissingRequiredQueryParameter": (
        400,
        "A query parameter that's mandatory for this request is not specified.",
    ),
    "OutOfRangeInput": (400, "One of the request inputs is out of range."),
    "OutOfRangeQueryParameterValue": (
        400,
        (
            "One of the query parameters specified in the request URI is outside the permissible "
            "range."
        ),
    ),
    "RequestBodyTooLarge": (
        413,
        "The request body is too large and exceeds the maximum permissible limit.",
    ),
    "ResourceAlreadyExists": (409, "The specified resource already exists."),
    "ResourceNotFound": (404, "The specified resource does not exist."),
    "ResourceTypeMismatch": (
        409,
        "The specified resource type does not match the type of the existing resource.",
    ),
    "UnsupportedHttpVerb": (405, "The resource doesn't support the specified HTTP verb."),
    "NotImplemented": (501, "This emulator does not implement the requested operation."),
    # Azure Files
    "CannotVerifyCopySource": (500, "Could not verify the copy source."),
    "CopyIdMismatch": (
        409,
        "The specified copy ID did not match the copy ID for the pending copy.",
    ),
    "DirectoryNotEmpty": (409, "The specified directory is not empty."),
    "FileInvalidPermission": (400, "The specified file permission is not valid."),
    "FileInvalidPermissionKey": (
        400,
        "The specified file permission key does not exist in the share.",
    ),
    "LeaseAlreadyPresent": (409, "There is already a lease present."),
    "LeaseIdMismatchWithFileOperation": (
        412,
        "The lease ID specified did not match the lease ID for the file.",
    ),
    "LeaseIdMismatchWithLeaseOperation": (
        409,
        "The lease ID specified did not match the lease ID for the file or share.",
    ),
    "LeaseIdMismatchWithShareOperation": (
        412,
        "The lease ID specified did not match the lease ID for the share.",
    ),
    "LeaseIdMissing": (
        412,
        "There is currently a lease on the resource and no lease ID was specified in the request.",
    ),
    "LeaseIsBrokenAndCannotBeRenewed": (
        409,
        "The lease ID matched, but the lease has been broken explicitly and cannot be renewed.",
    ),
    "LeaseLost": (
        412,
        "A lease ID was specified, but the lease for the resource has expired.",
    ),
    "LeaseNotPresentWithLeaseOperation": (409, "There is currently no lease on the resource."),
    "LeaseNotPresentWithFileOperation": (412, "There is currently no lease on the file."),
    "LeaseNotPresentWithShareOperation": (412, "There is currently no lease on the share."),
    "NoPendingCopyOperation": (409, "There is currently no pending copy operation."),
    "ParentNotFound": (404, "The specified parent path does not exist."),
    "ReadOnlyAttribute": (
        409,
        "The specified resource is read-only and cannot be modified at this time.",
    ),
    "ShareAlreadyExists": (409, "The specified share already exists."),
    "ShareNotFound": (404, "The specified share does not exist."),
    "ShareSizeLimitReached": (413, "The share's quota does not leave room for this."),
}


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


def names_of(elements: Iterable[ET.Element]) -> list[str]:
    """Return the tags of elements."""
    return [element.tag for element in elements]


def legal_xml(text: str) -> str:
    """Return the text with `?` for characters that XML does not allow."""
    return _ILLEGAL.sub("?", text)
