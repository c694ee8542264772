"""Shares: create, delete, properties, metadata, access policies, statistics, permissions."""

from __future__ import annotations

import json
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, cast
from xml.etree import ElementTree as ET

from batch_emulator.files_share import leases, smb, xml_text
from batch_emulator.files_share.call import Call, Reply, metadata_headers
from batch_emulator.files_share.faults import Fault, bad_header, not_implemented
from batch_emulator.files_share.names import BadNameError
from batch_emulator.files_share.records import Share
from batch_emulator.files_share.sas import parse_time
from batch_emulator.values import http_date

_MAX_QUOTA_GIB = 102400
_MAX_POLICIES = 5
_MAX_POLICY_ID = 64
_TIERS = {t.lower(): t for t in ("TransactionOptimized", "Hot", "Cool", "Premium")}
_PERMISSIONS = frozenset("rcwdl")
_OF_PREMIUM_AND_NFS = (
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


def create(call: Call) -> Reply:
    """Create Share."""
    share = Share(call.share, call.now_ns, call.now_ns, metadata=call.metadata())
    _take(call, share)
    try:
        made = call.shares.create(share)
    except BadNameError as err:
        raise Fault("InvalidResourceName", {"Reason": str(err)}) from err
    if not made:
        raise Fault("ShareAlreadyExists")
    return Reply(201, _version(share))


def delete(call: Call) -> Reply:
    """Delete Share; there are no snapshots that could be in the way."""
    with call.shares.lock:
        share = call.found_share()
        _check_lease(call, share)
        call.shares.delete(share.name)
    return Reply(202)


def get_properties(call: Call) -> Reply:
    """Get Share Properties, or only its metadata."""
    share = call.found_share()
    _check_lease(call, share, writing=False)
    headers = {**_version(share), **metadata_headers(share.metadata)}
    if call.query.get("comp") == "metadata":
        return Reply(200, headers)
    own = {
        "x-ms-share-quota": str(share.quota_gib),
        "x-ms-access-tier": share.tier,
        "x-ms-access-tier-change-time": http_date(smb.moment(share.created_ns)),
        "x-ms-enabled-protocols": "SMB",
    }
    return Reply(200, {**headers, **own, **leases.state_headers(share.lease, call.now_ns)})


def set_properties(call: Call) -> Reply:
    """Set Share Properties: quota and tier."""
    with _changed(call) as share:
        _take(call, share)
    return Reply(200, _version(share))


def set_metadata(call: Call) -> Reply:
    """Set Share Metadata."""
    with _changed(call) as share:
        share.metadata = call.metadata()
    return Reply(200, _version(share))


def get_acl(call: Call) -> Reply:
    """Get Share ACL: the stored access policies."""
    share = call.found_share()
    _check_lease(call, share, writing=False)
    root = ET.Element("SignedIdentifiers")
    for policy in share.policies:
        element = ET.SubElement(root, "SignedIdentifier")
        xml_text.child(element, "Id", policy["id"])
        inner = ET.SubElement(element, "AccessPolicy")
        for name in ("Start", "Expiry", "Permission"):
            if policy[name.lower()]:
                xml_text.child(inner, name, policy[name.lower()])
    headers = {**_version(share), "Content-Type": xml_text.TYPE}
    return Reply(200, headers, xml_text.document(root))


def set_acl(call: Call) -> Reply:
    """Set Share ACL."""
    policies = _policies(call.body) if call.body else []
    with _changed(call) as share:
        share.policies = policies
    return Reply(200, _version(share))


def get_statistics(call: Call) -> Reply:
    """Get Share Stats: how much of the quota is used."""
    share = call.found_share()
    root = ET.Element("ShareStats")
    used = call.shares.usage(share.name)
    xml_text.child(root, "ShareUsage", -(-used // 1024**3))
    xml_text.child(root, "ShareUsageBytes", used)
    headers = {**_version(share), "Content-Type": xml_text.TYPE}
    return Reply(200, headers, xml_text.document(root))


def lease(call: Call) -> Reply:
    """Acquire, renew, change, release or break the lease of a share."""
    with call.shares.lock:
        share = call.found_share()
        outcome = leases.act(share.lease, call.headers, call.now_ns, share=True)
        share.lease = outcome.lease
        call.records.put_share(share)
    return Reply(outcome.status, {**_version(share), **outcome.headers})


def create_permission(call: Call) -> Reply:
    """Create Permission: keep a security descriptor, give back its key."""
    call.found_share()
    try:
        raw: Any = json.loads(call.body)
    except (ValueError, RecursionError) as err:
        raise Fault("InvalidInput", {"Reason": "the body is not JSON"}) from err
    body = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    if str(body.get("format") or "sddl").lower() != "sddl":
        raise not_implemented("Share_CreatePermission (binary)")
    text = body.get("permission")
    if not isinstance(text, str):
        raise Fault("FileInvalidPermission")
    key = smb.keep_permission(text, call.records)
    return Reply(201, {"x-ms-file-permission-key": key})


def get_permission(call: Call) -> Reply:
    """Get Permission."""
    call.found_share()
    text = smb.find_permission(call.header("x-ms-file-permission-key"), call.records)
    headers = {"Content-Type": "application/json"}
    return Reply(200, headers, json.dumps({"permission": text, "format": "sddl"}).encode())


def _version(share: Share) -> dict[str, str]:
    modified = http_date(smb.moment(share.modified_ns))
    return {"ETag": smb.etag_of(share.modified_ns), "Last-Modified": modified}


@contextmanager
def _changed(call: Call) -> Generator[Share]:
    """A share that is changed in the block and then kept."""
    with call.shares.lock:
        share = call.found_share()
        _check_lease(call, share, writing="x-ms-lease-id" in call.headers)
        yield share
        share.modified_ns = max(call.now_ns, share.modified_ns + 1)
        call.records.put_share(share)


def _check_lease(call: Call, share: Share, *, writing: bool = True) -> None:
    given = call.header("x-ms-lease-id")
    leases.check(share.lease, given, call.now_ns, kind="Share", writing=writing)


def _take(call: Call, share: Share) -> None:
    for name in _OF_PREMIUM_AND_NFS:
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
    root = xml_text.parse(body, "SignedIdentifiers")
    found: list[dict[str, str]] = []
    for element in root.findall("SignedIdentifier"):
        policy = {
            "id": xml_text.text_of(element, "Id"),
            "start": xml_text.text_of(element, "AccessPolicy/Start"),
            "expiry": xml_text.text_of(element, "AccessPolicy/Expiry"),
            "permission": xml_text.text_of(element, "AccessPolicy/Permission"),
        }
        _check_policy(policy)
        found.append(policy)
    if len(found) > _MAX_POLICIES or len({policy["id"] for policy in found}) != len(found):
        raise Fault("InvalidXmlDocument", {"Reason": "at most five policies, each with its own id"})
    return found


def _check_policy(policy: dict[str, str]) -> None:
    for time in filter(None, (policy["start"], policy["expiry"])):
        try:
            parse_time(time)
        except Fault as err:
            raise Fault("InvalidXmlNodeValue", {"Reason": f"{time[:64]} is not a time"}) from err
    right_id = 0 < len(policy["id"]) <= _MAX_POLICY_ID
    if not right_id or not set(policy["permission"]) <= _PERMISSIONS:
        raise Fault("InvalidXmlNodeValue", {"Reason": "the Id or the Permission"})
