"""Documents about the registered models and their versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict  # pydantic describes that of `typing` from Python 3.12 on

from runner.flows.models.versions import Model, ModelVersion
from runner.views.json_text import Measured


class RegisteredModel(TypedDict):
    """A model of `runner models ls -o json`: its best version, and age and size of the latest."""

    model: str
    versions: int
    latest: int | None
    best: int | None
    metric: str | None
    value: Measured | None
    created: str | None
    size_bytes: int | None


class VersionLine(TypedDict):
    """A version of `runner models ls NAME -o json`."""

    name: str
    version: int
    aliases: list[str]
    metric: str | None
    value: Measured | None
    created: str | None
    deleted: str | None
    size_bytes: int
    files: int
    run_id: str | None
    problem: str


def registered_model(model: Model) -> RegisteredModel:
    """Return the document of one model of a list."""
    latest, best = model.latest, model.best
    shown = best or latest
    return {
        "model": model.name,
        "versions": len(model.live),
        "latest": latest.version if latest else None,
        "best": best.version if best else None,
        "metric": shown.primary_metric if shown else None,
        "value": shown.metric(shown.primary_metric) if shown else None,
        "created": _created(latest),
        "size_bytes": latest.size_bytes if latest else None,
    }


def version_line(version: ModelVersion) -> VersionLine:
    """Return the document of one version of a list."""
    document: Mapping[str, Any] = version.document or {}
    return {
        "name": version.name,
        "version": version.version,
        "aliases": list(version.aliases),
        "metric": version.primary_metric,
        "value": version.metric(version.primary_metric),
        "created": _created(version),
        "deleted": document.get("deleted"),
        "size_bytes": version.size_bytes,
        "files": version.file_count,
        "run_id": document.get("run_id"),
        "problem": version.problem,
    }


def version_document(version: ModelVersion) -> dict[str, Any]:
    """Return the document of `runner models show -o json`: what is stored, and the aliases."""
    return {**(version.document or {}), "aliases": list(version.aliases)}


def _created(version: ModelVersion | None) -> str | None:
    return None if version is None else (version.document or {}).get("created")
