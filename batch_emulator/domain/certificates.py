"""Certificates, which clients up to 2024-02-01 know: kept, shown, and files of tasks.

What a client sends is believed where only a PKCS#12 reader could tell: whether a PFX has the
thumbprint it is added under, and its public part, which is therefore not shown [S].
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import Json, Pool
from batch_emulator.domain.validation.properties import require, require_choice
from batch_emulator.domain.values import time_text

_MAX_BYTES = 10 * 1024  # docs
_THUMBPRINT = re.compile(r"[0-9A-Fa-f]{1,40}")
_PATH = re.compile(r"thumbprintalgorithm=([^,]*),thumbprint=([^,]*)", re.IGNORECASE)
_IN_USE = 100  # docs: about the first hundred are named


class Certificates:
    """The certificates of the account, in one file that only its owner reads."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._by_thumbprint: dict[str, Json] = {}
        if file.exists():
            self._by_thumbprint = json.loads(file.read_text())

    def add(self, body: Json, now: datetime) -> str:
        """Add one; its thumbprint. Raises Fault."""
        require(body, "thumbprint", "thumbprintAlgorithm", "data")
        thumbprint = thumbprint_of(body)
        if thumbprint in self._by_thumbprint:
            raise Fault("CertificateExists")
        body.setdefault("certificateFormat", "pfx")
        require_choice(body, "certificateFormat", "pfx", "cer")
        _check_data(body, thumbprint)
        self._by_thumbprint[thumbprint] = {
            "thumbprint": thumbprint,
            "data": body["data"],
            "format": body["certificateFormat"],
            "password": body.get("password", ""),
            "state": "active",
            "time": time_text(now),
        }
        self._save()
        return thumbprint

    def sorted(self) -> list[tuple[str, Json]]:
        """Thumbprints and records in their order."""
        return sorted(self._by_thumbprint.items())

    def find(self, path: str) -> Json:
        """The record that `thumbprintAlgorithm=…,thumbprint=…` names. Raises Fault."""
        match = _PATH.fullmatch(path)
        found = None
        if match is not None and match[1].lower() == "sha1":
            found = self._by_thumbprint.get(match[2].lower())
        if found is None:
            raise Fault("CertificateNotFound")
        return found

    def delete(self, record: Json, pools: Iterable[Pool], now: datetime) -> None:
        """Delete it at once, or (it is used by pools) have it in `deletefailed` (docs)."""
        users = [pool.id for pool in pools if record["thumbprint"] in _used_by(pool.spec)]
        if users:
            _move(record, "deletefailed", now)
            record["pools"] = users[:_IN_USE]
        else:
            del self._by_thumbprint[record["thumbprint"]]
        self._save()

    def cancel_deletion(self, record: Json, now: datetime) -> None:
        """Back to active after a deletion that failed. Raises Fault."""
        if record["state"] != "deletefailed":
            raise Fault("CertificateStateActive")
        _move(record, "active", now)
        record.pop("pools", None)
        self._save()

    def check(self, references: Iterable[Json]) -> None:
        """Refuse references to what is not there, as adding a pool does. Raises Fault."""
        for reference in references:
            require(reference, "thumbprint", "thumbprintAlgorithm")
            thumbprint = thumbprint_of(reference)
            if thumbprint not in self._by_thumbprint:
                raise Fault("InvalidCertificateReferences", {"Thumbprint": thumbprint})

    def write(self, references: Iterable[Mapping[str, Any]], who: str, folder: Path) -> None:
        """Put files into a task's folder; `who` is starttask or task. Raises OSError.

        Names as nodes have them: `sha1-THUMBPRINT.pfx` with the password in `….pfx.pw`.
        """
        for reference in references:
            record = self._by_thumbprint.get(thumbprint_of(reference))
            visible = reference.get("visibility") or [who]  # [S]: to all when nothing is said
            if record is None or who not in [str(one).lower() for one in visible]:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            name = f"sha1-{record['thumbprint']}.{record['format']}"
            _write_private(folder / name, base64.b64decode(record["data"]))
            if record["format"] == "pfx":
                _write_private(folder / f"{name}.pw", str(record["password"]).encode())

    def _save(self) -> None:
        new = self._file.with_name(f"{self._file.name}.new")
        _write_private(new, json.dumps(self._by_thumbprint).encode())
        new.rename(self._file)


def thumbprint_of(body: Mapping[str, Any]) -> str:
    """A thumbprint in the form that is compared: without spaces, lower-case. Raises Fault."""
    algorithm = body.get("thumbprintAlgorithm", "sha1")
    if str(algorithm).lower() != "sha1":
        raise bad_property("thumbprintAlgorithm", algorithm, "it must be sha1")
    thumbprint = str(body["thumbprint"]).replace(" ", "")
    if not _THUMBPRINT.fullmatch(thumbprint):
        raise bad_property("thumbprint", thumbprint, "up to 40 hexadecimal digits")
    return thumbprint.lower()


def shown(record: Json, base_url: str) -> Json:
    """The certificate as the wire shows it: no data, no password."""
    thumbprint = record["thumbprint"]
    body: Json = {
        "thumbprint": thumbprint,
        "thumbprintAlgorithm": "sha1",
        "url": certificate_url(base_url, thumbprint),
        "state": record["state"],
        "stateTransitionTime": record["time"],
    }
    if "previous" in record:
        body["previousState"] = record["previous"]
        body["previousStateTransitionTime"] = record["previous_time"]
    if record["format"] == "cer":
        body["publicData"] = record["data"]
    if record["state"] == "deletefailed":
        body["deleteCertificateError"] = {
            "code": "PoolsReferencingCertificate",
            "message": "The specified certificate is being used by the below mentioned pool(s)",
            "values": [{"name": "Pools", "value": ",".join(record["pools"])}],
        }
    return body


def certificate_url(base_url: str, thumbprint: str) -> str:
    """Where a certificate is found."""
    return f"{base_url}/certificates(thumbprintAlgorithm=sha1,thumbprint={thumbprint})"


def _used_by(spec: Json) -> set[str]:
    references: list[Json] = spec.get("certificateReferences") or []
    return {thumbprint_of(one) for one in references}


def _check_data(body: Json, thumbprint: str) -> None:
    if body["certificateFormat"] == "cer" and body.get("password"):
        raise bad_property("password", "", "it must be omitted for the format cer")
    try:
        data = base64.b64decode(body["data"], validate=True)
    except (binascii.Error, ValueError, TypeError) as err:
        reason = "The specified data is an invalid format for a certificate"  # seen so
        raise bad_property("data", "", reason) from err
    if len(data) > _MAX_BYTES:
        raise bad_property("data", "", f"at most {_MAX_BYTES} bytes")
    digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
    if body["certificateFormat"] == "cer" and digest != thumbprint:
        raise bad_property("thumbprint", thumbprint, "it is not that of the data")


def _move(record: Json, state: str, now: datetime) -> None:
    record["previous"], record["previous_time"] = record["state"], record["time"]
    record["state"], record["time"] = state, time_text(now)


def _write_private(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
