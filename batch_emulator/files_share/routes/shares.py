"""The file service and its shares: list, create, delete, properties, metadata, access policies,
permissions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast
from xml.etree import ElementTree as ET

from batch_emulator.domain.values import http_date
from batch_emulator.files_share import faults, leases, smb
from batch_emulator.files_share.auth import parse_sas_time
from batch_emulator.files_share.call import FilesCall, FilesReply, metadata_headers, xml_reply
from batch_emulator.files_share.faults import FilesFault, bad_header, not_implemented
from batch_emulator.files_share.shares import Share

_MAX_QUOTA_GIB = 102400
_MAX_POLICIES = 5
_MAX_POLICY_ID = 64
_TIERS = {t.lower(): t for t in ("TransactionOptimized", "Hot", "Cool", "Premium")}
_PERMISSIONS = frozenset("rcwdl")
_PREMIUM_AND_NFS_HEADERS = (
    "x-ms-enabled-protocols",
    "x-ms-root-squash",
    "x-ms-enable-snapshot-virtual-directory-access",
    "x-ms-share-paid-bursting-enabled",
    "x-ms-share-paid-bursting-max-iops",
    "x-ms-share-paid-bursting-max-bandwidth-mibps",
    "x-ms-share-provisioned-iops",
    "x-ms-share-provisioned-bandwidth-mibps",
    "x-ms-enable-smb-directory-lease",
)


def create(call: FilesCall) -> FilesReply:
    """Create Share."""
    share = Share(call.share, call.now_ns, call.now_ns, metadata=call.metadata())
    _apply_headers(call, share)
    if not call.shares.create(share):
        raise FilesFault("ShareAlreadyExists")
    return FilesReply(201, _version(share))


def delete(call: FilesCall) -> FilesReply:
    """Delete Share. There are no snapshots, which could prevent this."""
    with call.shares.lock:
        share = call.found_share()
        call.check_lease(share.lease, "Share")
        call.shares.delete(share.name)
    return FilesReply(202)


def get_properties(call: FilesCall) -> FilesReply:
    """Get Share Properties, or only its metadata."""
    share = call.found_share()
    call.check_lease(share.lease, "Share", writing=False)
    headers = {**_version(share), **metadata_headers(share.metadata)}
    if call.query.get("comp") == "metadata":
        return FilesReply(200, headers)
    own = {
        "x-ms-share-quota": str(share.quota_gib),
        "x-ms-access-tier": share.tier,
        "x-ms-access-tier-change-time": http_date(smb.moment(share.created_ns)),
        "x-ms-enabled-protocols": "SMB",
    }
    return FilesReply(200, {**headers, **own, **leases.state_headers(share.lease, call.now_ns)})


def set_properties(call: FilesCall) -> FilesReply:
    """Set Share Properties: quota and tier."""
    with _changed(call) as share:
        _apply_headers(call, share)
    return FilesReply(200, _version(share))


def set_metadata(call: FilesCall) -> FilesReply:
    """Set Share Metadata."""
    with _changed(call) as share:
        share.metadata = call.metadata()
    return FilesReply(200, _version(share))


def get_acl(call: FilesCall) -> FilesReply:
    """Get Share ACL: the stored access policies."""
    share = call.found_share()
    call.check_lease(share.lease, "Share", writing=False)
    root = ET.Element("SignedIdentifiers")
    for policy in share.policies:
        element = ET.SubElement(root, "SignedIdentifier")
        faults.add_child(element, "Id", policy["id"])
        inner = ET.SubElement(element, "AccessPolicy")
        for name in ("Start", "Expiry", "Permission"):
            if policy[name.lower()]:
                faults.add_child(inner, name, policy[name.lower()])
    return xml_reply(root, _version(share))


def set_acl(call: FilesCall) -> FilesReply:
    """Set Share ACL."""
    policies = _policies(call.body) if call.body else []
    with _changed(call) as share:
        share.policies = policies
    return FilesReply(200, _version(share))


def get_statistics(call: FilesCall) -> FilesReply:
    """Get Share Stats: how much of the quota is used."""
    share = call.found_share()
    root = ET.Element("ShareStats")
    used = call.shares.usage(share.name)
    faults.add_child(root, "ShareUsage", -(-used // 1024**3))
    faults.add_child(root, "ShareUsageBytes", used)
    return xml_reply(root, _version(share))


def lease(call: FilesCall) -> FilesReply:
    """Acquire, renew, change, release or break the lease of a share."""
    with call.shares.lock:
        share = call.found_share()
        outcome = leases.act(share.lease, call.headers, call.now_ns, share=True)
        share.lease = outcome.lease
        call.records.put_share(share)
    return FilesReply(outcome.status, {**_version(share), **outcome.headers})


def create_permission(call: FilesCall) -> FilesReply:
    """Create Permission: store a security descriptor and return its key."""
    call.found_share()
    try:
        raw: Any = json.loads(call.body)
    except (ValueError, RecursionError) as err:
        raise FilesFault("InvalidInput", {"Reason": "the body is not JSON"}) from err
    body = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    if str(body.get("format") or "sddl").lower() != "sddl":
        raise not_implemented("Share_CreatePermission (binary)")
    text = body.get("permission")
    if not isinstance(text, str):
        raise FilesFault("FileInvalidPermission")
    key = smb.keep_permission(text, call.records)
    return FilesReply(201, {"x-ms-file-permission-key": key})


def get_permission(call: FilesCall) -> FilesReply:
    """Get Permission."""
    call.found_share()
    text = smb.find_permission(call.header("x-ms-file-permission-key"), call.records)
    headers = {"Content-Type": "application/json"}
    return FilesReply(200, headers, json.dumps({"permission": text, "format": "sddl"}).encode())


def _version(share: Share) -> dict[str, str]:
    modified = http_date(smb.moment(share.modified_ns))
    return {"ETag": smb.etag_of(share.modified_ns), "Last-Modified": modified}


@contextmanager
def _changed(call: FilesCall) -> Generator[Share]:
    """Yield a share that is stored after the block."""
    with call.shares.lock:
        share = call.found_share()
        call.check_lease(share.lease, "Share", writing="x-ms-lease-id" in call.headers)
        yield share
        share.modified_ns = max(call.now_ns, share.modified_ns + 1)
        call.records.put_share(share)


def _apply_headers(call: FilesCall, share: Share) -> None:
    for name in _PREMIUM_AND_NFS_HEADERS:
        if name in call.headers and not (
            name == "x-ms-enabled-protocols" and call.header(name).upper() == "SMB"
        ):
            raise not_implemented(f"premium and NFS shares ({name})")
    quota = call.header("x-ms-share-quota")
    if quota:
        if not re.fullmatch(r"[0-9]{1,6}", quota) or not 1 <= int(quota) <= _MAX_QUOTA_GIB:
            raise bad_header("x-ms-share-quota", quota)
        share.quota_gib = int(quota)
    tier = call.header("x-ms-access-tier")
    if tier:
        if tier.lower() not in _TIERS:
            raise bad_header("x-ms-access-tier", tier)
        share.tier = _TIERS[tier.lower()]


def _policies(body: bytes) -> list[dict[str, str]]:
    root = faults.parse_xml(body, "SignedIdentifiers")
    found: list[dict[str, str]] = []
    for element in root.findall("SignedIdentifier"):
        policy = {
            "id": faults.text_of(element, "Id"),
            "start": faults.text_of(element, "AccessPolicy/Start"),
            "expiry": faults.text_of(element, "AccessPolicy/Expiry"),
            "permission": faults.text_of(element, "AccessPolicy/Permission"),
        }
        _check_policy(policy)
        found.append(policy)
    if len(found) > _MAX_POLICIES or len({policy["id"] for policy in found}) != len(found):
        raise FilesFault(
            "InvalidXmlDocument", {"Reason": "at most five policies, each with its own id"}
        )
    return found


def _check_policy(policy: dict[str, str]) -> None:
    for time in filter(None, (policy["start"], policy["expiry"])):
        try:
            parse_sas_time(time)
        except FilesFault as err:
            raise FilesFault(
                "InvalidXmlNodeValue", {"Reason": f"{time[:64]} is not a time"}
            ) from err
    right_id = 0 < len(policy["id"]) <= _MAX_POLICY_ID
    if not right_id or not set(policy["permission"]) <= _PERMISSIONS:
        raise FilesFault("InvalidXmlNodeValue", {"Reason": "the Id or the Permission"})


_MAX_RESULTS = 5000
_LIST_INCLUDES = frozenset({"metadata", "snapshots", "deleted"})
_SERVICE_PROPERTIES = frozenset(
    {"Logging", "HourMetrics", "MinuteMetrics", "Cors", "ProtocolSettings"}
)
_MAX_CORS_RULES = 5
_METRICS = (
    "<Version>1.0</Version><Enabled>{}</Enabled>"
    "<RetentionPolicy><Enabled>false</Enabled></RetentionPolicy>"
)
_SERVICE_DEFAULTS = (
    "<StorageServiceProperties>"
    f"<HourMetrics>{_METRICS.format('false')}</HourMetrics>"
    f"<MinuteMetrics>{_METRICS.format('false')}</MinuteMetrics>"
    "<Cors/><ProtocolSettings><SMB><Multichannel><Enabled>false</Enabled></Multichannel></SMB>"
    "</ProtocolSettings></StorageServiceProperties>"
)


def get_service_properties(call: FilesCall) -> FilesReply:
    """Return the properties; metrics, CORS and protocol settings have no effect."""
    text = call.records.service() or _SERVICE_DEFAULTS
    return FilesReply(200, {"Content-Type": faults.XML_TYPE}, text.encode())


def set_service_properties(call: FilesCall) -> FilesReply:
    """Replace the given parts and keep the others."""
    given = faults.parse_xml(call.body, "StorageServiceProperties")
    names = [element.tag for element in given]
    if not set(names) <= _SERVICE_PROPERTIES or len(set(names)) != len(names):
        raise FilesFault(
            "InvalidXmlDocument", {"Reason": f"unknown or repeated elements in {names}"}
        )
    if len(given.findall("Cors/CorsRule")) > _MAX_CORS_RULES:
        raise FilesFault("InvalidXmlNodeValue", {"Reason": "more than five CORS rules"})
    with call.shares.lock:
        kept = ET.fromstring(call.records.service() or _SERVICE_DEFAULTS)  # noqa: S314 - our own text
        for element in given:
            old = kept.find(element.tag)
            if old is not None:
                kept.remove(old)
            kept.append(element)
        call.records.put_service(ET.tostring(kept, encoding="unicode"))
    return FilesReply(202)


def list_shares(call: FilesCall) -> FilesReply:
    """Return a page of shares by name; the marker is the first name of the next page."""
    include = call.include(_LIST_INCLUDES, "metadata, snapshots or deleted")
    prefix, marker = call.query.get("prefix", ""), call.query.get("marker", "")
    most = call.number("maxresults", _MAX_RESULTS)
    count = most or _MAX_RESULTS
    fitting = [s for s in call.records.shares() if s.name.startswith(prefix) and s.name >= marker]
    root = ET.Element("EnumerationResults", ServiceEndpoint=f"{call.base_url}/")
    for name, text in (("Prefix", prefix), ("Marker", marker), ("MaxResults", most)):
        if text:
            faults.add_child(root, name, text)
    shares = ET.SubElement(root, "Shares")
    for share in fitting[:count]:
        _add_share(shares, share, call, metadata="metadata" in include)
    faults.add_child(root, "NextMarker", fitting[count].name if len(fitting) > count else "")
    return xml_reply(root)


def _add_share(parent: ET.Element, share: Share, call: FilesCall, *, metadata: bool) -> None:
    element = ET.SubElement(parent, "Share")
    faults.add_child(element, "Name", share.name)
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
    faults.add_children(properties, texts)
    if "x-ms-lease-duration" in lease:
        faults.add_child(properties, "LeaseDuration", lease["x-ms-lease-duration"])
    if metadata:
        faults.add_children(ET.SubElement(element, "Metadata"), share.metadata)
