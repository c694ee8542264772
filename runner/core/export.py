"""Convert a run for other tools: points with steps, lineage as flat text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from runner.core.masking import Mask
from runner.protocol.metrics import MetricPoint
from runner.protocol.results import RunResult
from runner.protocol.run_spec import RunSpec

_QUERY = re.compile(r"(https?://[^\s\"'?]+)\?[^\s\"']*")


@dataclass(frozen=True, slots=True)
class ExportPoint:
    """One value of a metric; `time_s` is seconds since 1970."""

    name: str
    step: int
    value: float
    time_s: float


class StepCounter:
    """Assigns steps to values without one, per metric and from 1."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def point(self, point: MetricPoint) -> ExportPoint:
        """Return the point with a step and a time."""
        step = point.step
        if step is None:
            step = self._seen[point.name] = self._seen.get(point.name, 0) + 1
        return ExportPoint(point.name, step, point.value, _to_timestamp(point.time))


def final_points(points: Iterable[MetricPoint]) -> Iterator[ExportPoint]:
    """Yield the points. If several attempts reported a step, yield those of the last attempt."""
    seen = list(points)
    last: dict[tuple[str, int], int] = {}
    for point in seen:
        if point.step is not None:
            key = (point.name, point.step)
            last[key] = max(last.get(key, 0), point.attempt)
    counter = StepCounter()
    for point in seen:
        if point.step is None or point.attempt == last[point.name, point.step]:
            yield counter.point(point)


def lineage(spec: RunSpec, result: RunResult | None) -> dict[str, str]:
    """Return the known facts about origin and result of a run as flat text, without secrets."""
    raw = spec.to_json()
    found: dict[str, Any] = {
        "run_id": spec.run_id,
        "experiment": spec.experiment,
        "recipe": spec.recipe,
        "created": spec.created.isoformat(),
        "command": raw.get("command"),
        "code.sha256": _get_nested(raw, "code", "sha256"),
        "code.git_revision": _get_nested(raw, "code", "git_revision"),
        "code.git_dirty": _get_nested(raw, "code", "git_dirty"),
        "requirements.sha256": _get_nested(raw, "requirements", "sha256"),
        "python": raw.get("python"),
        "image": raw.get("image"),
        "data": _get_nested(raw, "data", "prefix"),
        "inputs": raw.get("inputs"),
        "pool": spec.pool,
        "vm_size": _get_nested(raw, "batch", "vm_size"),
        "spot": spec.spot,
        "after": raw.get("after"),
        "group": raw.get("group"),
        "resume_from": raw.get("resume_from"),
        "origin": raw.get("origin"),
        "model": raw.get("model"),
    }
    if result is not None:
        found |= {
            "status": result.status,
            "attempts": result.attempt,
            "exit_code": result.exit_code,
            "failure": ": ".join(filter(None, (result.code, result.message))),
            "outputs": {file.path: file.sha256 for file in result.outputs},
        }
    shown: dict[str, Any] = Mask().document(found)  # such as `--password VALUE` of the command
    return {
        name: _to_text(value) for name, value in shown.items() if value not in (None, "", [], {})
    }


def _get_nested(raw: Mapping[str, Any], part: str, name: str) -> Any:
    found = raw.get(part)
    return found.get(name) if isinstance(found, Mapping) else None  # pyright: ignore


def _to_text(value: Any) -> str:
    """Return a value as text, without the query of a URL, which may be a signature."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return _QUERY.sub(r"\1", text)


def _to_timestamp(text: str) -> float:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return 0.0
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()
