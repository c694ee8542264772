"""The file service itself: its properties, and the list of shares."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from batch_emulator.files_share import leases, smb, xml_text
from batch_emulator.files_share.call import Call, Reply
from batch_emulator.files_share.faults import Fault, bad_query
from batch_emulator.files_share.records import Share
from batch_emulator.values import http_date

_MAX_RESULTS = 5000
_INCLUDES = frozenset({"metadata", "snapshots", "deleted"})
_PARTS = frozenset({"Logging", "HourMetrics", "MinuteMetrics", "Cors", "ProtocolSettings"})
_MAX_CORS_RULES = 5
_METRICS = (
    "<Version>1.0</Version><Enabled>{}</Enabled>"
    "<RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>"
)
_DEFAULTS = (
    "<StorageServiceProperties>"
    f"<HourMetrics>{_METRICS.format('false')}</HourMetrics>"
    f"<MinuteMetrics>{_METRICS.format('false')}</MinuteMetrics>"
    "<Cors/><ProtocolSettings><SMB><Multichannel><Enabled>false</Enabled></Multichannel></SMB>"
    "</ProtocolSettings></StorageServiceProperties>"
)


def get_properties(call: Call) -> Reply:
    """What was set; metrics, CORS and protocol settings are kept without effect."""
    text = call.records.service() or _DEFAULTS
    return Reply(200, {"Content-Type": xml_text.TYPE}, text.encode())


def set_properties(call: Call) -> Reply:
    """Replace the parts that are given; the others stay."""
    given = xml_text.parse(call.body, "StorageServiceProperties")
    names = xml_text.names_of(given)
    if not set(names) <= _PARTS or len(set(names)) != len(names):
        raise Fault("InvalidXmlDocument", {"Reason": f"unknown or repeated elements in {names}"})
    if len(given.findall("Cors/CorsRule")) > _MAX_CORS_RULES:
        raise Fault("InvalidXmlNodeValue", {"Reason": "more than five CORS rules"})
    with call.shares.lock:
        kept = ET.fromstring(call.records.service() or _DEFAULTS)  # noqa: S314 - our own text
        for element in given:
            old = kept.find(element.tag)
            if old is not None:
                kept.remove(old)
            kept.append(element)
        call.records.put_service(ET.tostring(kept, encoding="unicode"))
    return Reply(202)


def list_shares(call: Call) -> Reply:
    """A page of shares by name; the marker is the first name of the next page."""
    include = set(filter(None, call.query.get("include", "").lower().split(",")))
    if not include <= _INCLUDES:
        raise bad_query("include", call.query["include"], "metadata, snapshots or deleted")
    prefix, marker = call.query.get("prefix", ""), call.query.get("marker", "")
    most = call.number("maxresults", _MAX_RESULTS)
    count = most or _MAX_RESULTS
    fitting = [s for s in call.records.shares() if s.name.startswith(prefix) and s.name >= marker]
    root = ET.Element("EnumerationResults", ServiceEndpoint=f"{call.base_url}/")
    for name, text in (("Prefix", prefix), ("Marker", marker), ("MaxResults", most)):
        if text:
            xml_text.child(root, name, text)
    shares = ET.SubElement(root, "Shares")
    for share in fitting[:count]:
        _share(shares, share, call, metadata="metadata" in include)
    xml_text.child(root, "NextMarker", fitting[count].name if len(fitting) > count else "")
    return Reply(200, {"Content-Type": xml_text.TYPE}, xml_text.document(root))


def _share(parent: ET.Element, share: Share, call: Call, *, metadata: bool) -> None:
    element = ET.SubElement(parent, "Share")
    xml_text.child(element, "Name", share.name)
    properties = ET.SubElement(element, "Properties")
    lease = leases.state_headers(share.lease, call.now_ns)
    texts = {
        "Last-Modified": http_date(smb.moment(share.modified_ns)),
        "Etag": smb.etag_of(share.modified_ns),
        "Quota": share.quota_gib,
        "AccessTier": share.tier,
        "LeaseStatus": lease["x-ms-lease-status"],
        "LeaseState": lease["x-ms-lease-state"],
    }
    xml_text.children(properties, texts)
    if "x-ms-lease-duration" in lease:
        xml_text.child(properties, "LeaseDuration", lease["x-ms-lease-duration"])
    if metadata:
        xml_text.children(ET.SubElement(element, "Metadata"), share.metadata)
