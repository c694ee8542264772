"""Applications, their packages, and certificates, which nodes can install.

In Azure the resource manager creates applications; here the admin API does, and the data
plane lists them. A package is a zip file; nothing reads it before a node unpacks it, as in
the service.

API versions up to 2024-02-01 have certificates. The emulator has no PKCS#12 reader, so it does not
check that a PFX has the thumbprint that the client sends, and does not show its public part [S].
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from batch_emulator.domain.faults import Fault, bad_property
from batch_emulator.domain.model import Json, Pool, key_of
from batch_emulator.domain.validation.properties import require
from batch_emulator.domain.values import time_of, time_text

MAX_PACKAGE_BYTES = 16 * 1024**3  # [S]
# docs: letters, digits, hyphen and underscore; versions may have periods too
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_VERSION = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_INCOMING = ".incoming"
_RECORD = "application.json"


@dataclass(frozen=True, slots=True)
class Package:
    """One version of an application. `revision` counts how often its zip was replaced."""

    application: str
    version: str
    stored: datetime
    revision: int
    zip: Path

    @property
    def folder_name(self) -> str:
        """Return id, version and minute of storing, as seen on nodes of the service."""
        again = f"-{self.revision}" if self.revision else ""  # [S]
        return f"{self.application}{self.version}{self.stored:%Y-%m-%d-%H-%M}{again}"


@dataclass(slots=True)
class Application:
    """An application with its versions by key."""

    id: str
    display_name: str | None = None
    default_version: str | None = None
    allow_updates: bool = True
    versions: dict[str, Package] = field(default_factory=dict[str, Package])

    def summary(self) -> Json:
        """Return the application as the data plane shows it; its default name is the id [S]."""
        versions = [package.version for _, package in sorted(self.versions.items())]
        return {"id": self.id, "displayName": self.display_name or self.id, "versions": versions}


class Applications:
    """The applications of the account and their packages, in one folder.

    A change is on disk when its method returns.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._by_key: dict[str, Application] = {}
        shutil.rmtree(folder / _INCOMING, ignore_errors=True)
        self.read()

    def read(self) -> None:
        """Read the folder, after files were put there."""
        for record in sorted(self._folder.glob(f"*/{_RECORD}")):
            application = _to_application(json.loads(record.read_text()), record.parent)
            self._by_key[key_of(application.id)] = application

    def sorted(self) -> Iterator[tuple[str, Application]]:
        """Return the applications that have a version, by key."""
        return ((key, one) for key, one in sorted(self._by_key.items()) if one.versions)

    def require(self, application_id: str) -> Application:
        """Return the application of that id. Raises Fault."""
        found = self._by_key.get(key_of(application_id))
        if found is None:
            raise Fault("ApplicationNotFound")
        return found

    def find(self, reference: Mapping[str, Any]) -> Package | None:
        """Return the newest form of the package that an `applicationPackageReference` names."""
        application = self._by_key.get(key_of(short_id(reference)))
        if application is None:
            return None
        version = reference.get("version") or application.default_version
        return application.versions.get(key_of(version)) if version else None

    def check(self, references: Iterable[Mapping[str, Any]]) -> None:
        """Refuse references that cannot be resolved, as adding a pool does. Raises Fault.

        The service names a reference with its reason as one value (output of `az batch`, 2022).
        """
        for reference in references:
            if self.find(reference) is None:
                values = {reference_text(reference): self._reason(reference)}
                raise Fault("InvalidApplicationPackageReferences", values)

    def _reason(self, reference: Mapping[str, Any]) -> str:
        """Return why a reference cannot be satisfied; the last reason has our words [S]."""
        if key_of(short_id(reference)) not in self._by_key or reference.get("version"):
            return "The specified application package does not exist."
        return "The specified application has no default version."

    def _known_or_new(self, application_id: str) -> Application:
        if not _ID.fullmatch(application_id):
            raise bad_property("id", application_id, "1 to 64 letters, digits, '-' and '_'")
        return self._by_key.get(key_of(application_id)) or Application(application_id)

    def change(self, application_id: str, body: Json) -> Application:
        """Create an application, or change its name, default version and `allowUpdates`."""
        application = self._known_or_new(application_id)
        default: Any = body.get("defaultVersion", application.default_version)
        if default and key_of(str(default)) not in application.versions:
            raise bad_property("defaultVersion", default, "the application has no such version")
        application.default_version = default
        application.display_name = body.get("displayName", application.display_name)
        application.allow_updates = body.get("allowUpdates", application.allow_updates) is not False
        self._save(application)
        return application

    async def store(
        self, application_id: str, version: str, chunks: AsyncIterator[bytes], now: datetime
    ) -> Package:
        """Store or replace a package, and create its application if needed. Raises Fault."""
        application = self._known_or_new(application_id)
        if not _VERSION.fullmatch(version):
            raise bad_property("version", version, "1 to 64 letters, digits, '-', '_' and '.'")
        _require_updatable(application, version)
        incoming = self._folder / _INCOMING / uuid4().hex
        incoming.parent.mkdir(parents=True, exist_ok=True)
        try:
            await _write(incoming, chunks)
            # meanwhile, another request may have deleted it or stored the same version
            application = self._known_or_new(application_id)
            _require_updatable(application, version)
            return self._put(application, version, incoming, now)
        finally:
            incoming.unlink(missing_ok=True)

    def _put(
        self, application: Application, version: str, zip_file: Path, now: datetime
    ) -> Package:
        key = key_of(version)
        old = application.versions.get(key)
        revision = 0 if old is None else old.revision + 1
        target = self._folder_of(application) / _zip_name(key, revision)
        target.parent.mkdir(parents=True, exist_ok=True)
        zip_file.rename(target)
        package = Package(application.id, version, now, revision, target)
        application.versions[key] = package
        self._save(application)
        if old is not None:
            old.zip.unlink(missing_ok=True)
        return package

    def delete(self, application_id: str, version: str | None) -> None:
        """Delete a version, or (None) the application. Raises Fault."""
        application = self.require(application_id)
        if version is None:
            _require_updatable(application, *application.versions)
            del self._by_key[key_of(application.id)]
            (self._folder_of(application) / _RECORD).unlink()
            shutil.rmtree(self._folder_of(application), ignore_errors=True)
            return
        package = application.versions.get(key_of(version))
        if package is None:
            raise Fault("ResourceNotFound")
        _require_updatable(application, version)
        del application.versions[key_of(version)]
        if key_of(application.default_version or "") == key_of(version):
            application.default_version = None  # docs
        self._save(application)
        package.zip.unlink(missing_ok=True)

    def _folder_of(self, application: Application) -> Path:
        return self._folder / key_of(application.id)

    def _save(self, application: Application) -> None:
        record = {
            "id": application.id,
            "displayName": application.display_name,
            "defaultVersion": application.default_version,
            "allowUpdates": application.allow_updates,
            "versions": [
                {"version": one.version, "stored": time_text(one.stored), "revision": one.revision}
                for one in application.versions.values()
            ],
        }
        home = self._folder_of(application)
        home.mkdir(parents=True, exist_ok=True)
        _replace(home / _RECORD, json.dumps(record))
        self._by_key[key_of(application.id)] = application


def short_id(reference: Mapping[str, Any]) -> str:
    """Return the id of the application, for which pools may give a resource id (docs)."""
    return str(reference["applicationId"]).rpartition("/")[2]


def reference_text(reference: Mapping[str, Any]) -> str:
    """Return a reference as errors of the service name it."""
    version = reference.get("version")
    return f"{short_id(reference)}:{version}" if version else short_id(reference)


def _require_updatable(application: Application, *versions: str) -> None:
    known = any(key_of(version) in application.versions for version in versions)
    if known and not application.allow_updates:
        raise Fault("OperationInvalidForCurrentState", {"Reason": "allowUpdates is false"})


def _zip_name(key: str, revision: int) -> str:
    return f"v-{key}-{revision}.zip"


def _to_application(record: Json, home: Path) -> Application:
    application = Application(
        record["id"], record["displayName"], record["defaultVersion"], record["allowUpdates"]
    )
    for one in record["versions"]:
        key, revision = key_of(one["version"]), int(one["revision"])
        stored, zip_file = time_of(one["stored"]), home / _zip_name(key, revision)
        package = Package(application.id, one["version"], stored, revision, zip_file)
        application.versions[key] = package
    return application


async def _write(target: Path, chunks: AsyncIterator[bytes]) -> None:
    size = 0
    with await asyncio.to_thread(target.open, "wb") as file:
        async for chunk in chunks:
            size += len(chunk)
            if size > MAX_PACKAGE_BYTES:
                raise Fault("RequestBodyTooLarge", {"MaxLimit": str(MAX_PACKAGE_BYTES)})
            await asyncio.to_thread(file.write, chunk)
        file.flush()
        await asyncio.to_thread(os.fsync, file.fileno())


_MAX_BYTES = 10 * 1024  # docs
_THUMBPRINT = re.compile(r"[0-9A-Fa-f]{1,40}")
_PATH = re.compile(r"thumbprintalgorithm=([^,]*),thumbprint=([^,]*)", re.IGNORECASE)
_MAX_NAMED_POOLS = 100  # docs: about the first hundred pools that use a certificate


class Certificates:
    """The certificates of the account, in one file that only its owner can read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._by_thumbprint: dict[str, Json] = {}
        self.read()

    def read(self) -> None:
        """Read the file, after it was replaced."""
        if self._file.exists():
            self._by_thumbprint = json.loads(self._file.read_text())

    def newest(self) -> datetime | None:
        """Return the time of the last change; None without certificates."""
        return max((time_of(one["time"]) for one in self._by_thumbprint.values()), default=None)

    def add(self, body: Json, now: datetime) -> str:
        """Add a certificate and return its thumbprint. Raises Fault."""
        require(body, "thumbprint", "thumbprintAlgorithm", "data")
        thumbprint = thumbprint_of(body)
        if thumbprint in self._by_thumbprint:
            _require_not_deleting(self._by_thumbprint[thumbprint])
            raise Fault("CertificateExists")
        body.setdefault("certificateFormat", "pfx")
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
        """Return thumbprints and records in order."""
        return sorted(self._by_thumbprint.items())

    def find(self, path: str) -> Json:
        """Return the record that `thumbprintAlgorithm=…,thumbprint=…` names. Raises Fault."""
        match = _PATH.fullmatch(path)
        found = None
        if match is not None and match[1].lower() == "sha1":
            found = self._by_thumbprint.get(match[2].lower())
        if found is None:
            raise Fault("CertificateNotFound")
        return found

    def delete(self, record: Json, now: datetime, seconds: float) -> None:
        """Begin the deletion of a certificate, which `settle` ends. Raises Fault.

        Args:
            record: the certificate.
            now: the time of the request.
            seconds: how long the certificate is `deleting` (from tests of the .NET SDK, where it is
                so even if a pool uses it).
        """
        _require_not_deleting(record)
        record.pop("pools", None)
        _set_state(record, "deleting", now)
        record["decided"] = time_text(now + timedelta(seconds=seconds))
        self._save()

    def settle(self, pools: Collection[Pool], now: datetime) -> None:
        """End deletions that are due: a certificate is gone, or `deletefailed` if pools use it."""
        due = [
            one
            for one in self._by_thumbprint.values()
            if one["state"] == "deleting" and time_of(one["decided"]) <= now
        ]
        for record in due:
            decided = time_of(record.pop("decided"))
            users = [pool.id for pool in pools if record["thumbprint"] in _used_by(pool.spec)]
            if users:
                _set_state(record, "deletefailed", decided)
                record["pools"] = users[:_MAX_NAMED_POOLS]
            else:
                del self._by_thumbprint[record["thumbprint"]]
        if due:
            self._save()

    def cancel_deletion(self, record: Json, now: datetime) -> None:
        """Make a certificate active again whose deletion failed. Raises Fault."""
        _require_not_deleting(record)
        if record["state"] != "deletefailed":
            raise Fault("CertificateStateActive")
        _set_state(record, "active", now)
        record.pop("pools", None)
        self._save()

    def check(self, references: Iterable[Json]) -> None:
        """Refuse references to unknown certificates, as adding a pool does. Raises Fault."""
        for reference in references:
            require(reference, "thumbprint", "thumbprintAlgorithm")
            thumbprint = thumbprint_of(reference)
            if thumbprint not in self._by_thumbprint:
                raise Fault("InvalidCertificateReferences", {"Thumbprint": thumbprint})
            _require_not_deleting(self._by_thumbprint[thumbprint])

    def files(
        self, references: Iterable[Mapping[str, Any]], who: str
    ) -> Iterator[tuple[str, bytes]]:
        """Yield names and contents of the files of a task; `who` is starttask or task.

        The names are those on nodes: `sha1-THUMBPRINT.pfx` with the password in `….pfx.pw`.
        """
        for reference in references:
            record = self._by_thumbprint.get(thumbprint_of(reference))
            visible = reference.get("visibility") or [who]  # [S]: to both if absent
            if record is None or who not in [str(one).lower() for one in visible]:
                continue
            name = f"sha1-{record['thumbprint']}.{record['format']}"
            yield name, base64.b64decode(record["data"])
            if record["format"] == "pfx":
                yield f"{name}.pw", str(record["password"]).encode()

    def _save(self) -> None:
        _replace(self._file, json.dumps(self._by_thumbprint))


def thumbprint_of(body: Mapping[str, Any]) -> str:
    """Return a thumbprint in its compared form: without spaces, lower-case. Raises Fault."""
    algorithm = body.get("thumbprintAlgorithm", "sha1")
    if str(algorithm).lower() != "sha1":
        raise bad_property("thumbprintAlgorithm", algorithm, "it must be sha1")
    thumbprint = str(body["thumbprint"]).replace(" ", "")
    if not _THUMBPRINT.fullmatch(thumbprint):
        raise bad_property("thumbprint", thumbprint, "up to 40 hexadecimal digits")
    return thumbprint.lower()


def shown_certificate(record: Json, base_url: str) -> Json:
    """Return the certificate as the wire shows it: no data, no password."""
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
    """Return the URL of a certificate."""
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
        reason = "The specified data is an invalid format for a certificate"  # the service's text
        raise bad_property("data", "", reason) from err
    if len(data) > _MAX_BYTES:
        raise bad_property("data", "", f"at most {_MAX_BYTES} bytes")
    digest = hashlib.sha1(data, usedforsecurity=False).hexdigest()
    if body["certificateFormat"] == "cer" and digest != thumbprint:
        raise bad_property("thumbprint", thumbprint, "it is not the thumbprint of the data")


def _require_not_deleting(record: Json) -> None:
    """Refuse a change while a certificate is being deleted (docs: CertificateBeingDeleted)."""
    if record["state"] == "deleting":
        raise Fault("CertificateBeingDeleted")


def _set_state(record: Json, state: str, now: datetime) -> None:
    record["previous"], record["previous_time"] = record["state"], record["time"]
    record["state"], record["time"] = state, time_text(now)


def _replace(path: Path, text: str) -> None:
    """Replace a file that only its owner can read; a crash leaves the old one or the new one."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)
