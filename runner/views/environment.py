"""Documents about the environment: the local services, and the checks of a stack."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from typing_extensions import TypedDict  # pydantic describes that of `typing` from Python 3.12 on

from runner.flows.local.lifecycle import LocalStatus


class ServiceLine(TypedDict):
    """A local service; `pid` is None if it does not run."""

    state: str
    pid: int | None
    endpoint: str
    log: str


class LocalDocument(TypedDict, total=False):
    """The document of `runner local status -o json`; services are there once they are set up.

    `page` is there after a start that serves the emulator's page: a link for one browser. `faults`
    and `images` are there if the emulator has rules for faults or folders of node images.
    """

    running: bool
    batch: ServiceLine
    blob: ServiceLine
    nodes: int
    slots: int
    home: str
    isolation: str | None
    refusal: str | None
    page: str
    faults: str
    images: list[str]


class TargetDocument(TypedDict):
    """Where the page works: its target, its folders and disk, and the versions of packages."""

    target: str
    stack: str | None
    team: str | None
    home: str
    folder: str
    disk_free_bytes: int
    disk_total_bytes: int
    versions: dict[str, str]


class CheckLine(TypedDict):
    """A check of `runner check -o json`: `state` is ok, note, failed or skipped."""

    check: str
    state: str
    detail: str
    fix: str
    code: str


def local_document(found: LocalStatus) -> LocalDocument:
    """Return the state of the local services."""
    documents = [asdict(service) for service in found.services]
    services: dict[str, Any] = {document.pop("name"): document for document in documents}
    sizes = {"nodes": found.nodes, "slots": found.slots, "home": found.home}
    kept_apart = found.isolation or None
    record = {"running": found.running, **services, **sizes, "isolation": kept_apart}
    given = {"page": found.page, "faults": found.faults, "images": list(found.images)}
    options = {name: value for name, value in given.items() if value}
    return cast("LocalDocument", {**record, "refusal": found.refusal or None, **options})
