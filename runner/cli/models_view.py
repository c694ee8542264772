"""How models and versions are shown."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from runner.flows.models import Model, ModelVersion

MODEL_COLUMNS = ("model", "versions", "latest", "best", "metric", "age", "size")
VERSION_COLUMNS = ("version", "aliases", "metric", "age", "size", "files", "run")
SPARE = ("files", "size", "age")  # in a narrow terminal


def model_row(model: Model, *, as_text: bool) -> dict[str, Any]:
    """One line of `models ls`; of the best version the metric, of the latest age and size."""
    latest, best = model.latest, model.best
    shown = best or latest
    plain = {
        "model": model.name,
        "versions": len(model.live),
        "latest": latest.version if latest else None,
        "best": best.version if best else None,
    }
    if as_text:
        return {
            **plain,
            "metric": _metric(shown),
            "age": _age(latest),
            "size": _size(latest),
        }
    return {
        **plain,
        "metric": shown.primary_metric if shown else None,
        "value": shown.metric(shown.primary_metric) if shown else None,
        "created": _created(latest),
        "size_bytes": latest.size_bytes if latest else None,
    }


def version_row(version: ModelVersion, *, as_text: bool) -> dict[str, Any]:
    """One line of `models ls NAME`."""
    document: Mapping[str, Any] = version.document or {}
    if as_text:
        deleted = ("deleted",) if version.deleted else ()
        broken = ("cannot be read",) if version.problem else ()
        return {
            "version": version.version,
            "aliases": ", ".join((*version.aliases, *deleted, *broken)),
            "metric": _metric(version),
            "age": _age(version),
            "size": "" if version.deleted else _size(version),
            "files": None if version.deleted else version.file_count,
            "run": document.get("run_id"),
        }
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


def version_pairs(version: ModelVersion) -> dict[str, str]:
    """`models show` for people."""
    from runner.cli.run_text import local_time, metric
    from runner.core.units import format_size

    document: Mapping[str, Any] = version.document or {}
    pairs = {
        "deleted": str(document.get("deleted") or ""),
        "description": str(document.get("description") or ""),
        "aliases": ", ".join(version.aliases),
        "registered": local_time(version.created) if version.created else "",
        "run": f"{document.get('run_id')}, attempt {document.get('attempt')}",
    }
    metrics: Mapping[str, Any] = document.get("metrics") or {}
    names = sorted(metrics, key=lambda name: name != version.primary_metric)
    for name in names:
        value = version.metric(name)
        pairs[name] = str(metrics[name]) if value is None else metric(value)
    pairs |= _lineage(cast("Mapping[str, Any]", document.get("lineage") or {}))
    for file in version.files:
        text = f"{format_size(int(file['size_bytes']))}, sha256 {str(file['sha256'])[:12]}"
        pairs[str(file["path"])] = text
    return {name: text for name, text in pairs.items() if text}


def _lineage(lineage: Mapping[str, Any]) -> dict[str, str]:
    import shlex

    code, data, image = (_part(lineage, name) for name in ("code", "data", "image"))
    git = str(code.get("git_revision") or "")
    dirty = " and changes" if code.get("git_dirty") else ""
    pairs = {
        "recipe": str(_part(lineage, "recipe").get("name") or ""),
        "experiment": str(lineage.get("experiment") or ""),
        "command": shlex.join(str(word) for word in lineage.get("command") or ()),
        "code": f"sha256 {str(code.get('sha256'))[:12]}"
        + (f", git {git[:12]}{dirty}" if git else ""),
    }
    if data:
        manifest = str(data.get("manifest_sha256") or "")[:12]
        pairs["data"] = f"{data.get('name')} from {data.get('source')}, sha256 {manifest}"
    if requirements := _part(lineage, "requirements"):
        pairs["packages"] = (
            f"{requirements.get('file')}, sha256 {str(requirements.get('sha256'))[:12]}"
        )
    if image:
        pairs["image"] = f"{image.get('name')} {image.get('digest') or ''}".strip()
    return pairs


def _part(lineage: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Any = lineage.get(name)
    return cast("Mapping[str, Any]", found) if isinstance(found, dict) else {}


def _metric(version: ModelVersion | None) -> str:
    from runner.cli.run_text import metric

    name = version.primary_metric if version else None
    value = version.metric(name) if version else None
    return "" if name is None or value is None else f"{name} {metric(value)}"


def _created(version: ModelVersion | None) -> str | None:
    return None if version is None else (version.document or {}).get("created")


def _age(version: ModelVersion | None) -> str:
    from runner.core.units import format_age

    if version is None or version.created is None:
        return ""
    return format_age(datetime.now(UTC) - version.created)


def _size(version: ModelVersion | None) -> str:
    from runner.core.units import format_size

    return "" if version is None else format_size(version.size_bytes)
