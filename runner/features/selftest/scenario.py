"""The contract scenario: requests as data, in order, both valid and invalid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

VM_SIZE = "Standard_NC4as_T4_v3"
_STEPS = Path(__file__).with_name("scenario.yaml")

# The resources that the scenario creates: kind, name, and the path to delete it.
CREATED = (
    ("job", "job", "/jobs/{job}"),
    ("job", "stray", "/jobs/{stray}"),
    ("pool", "pool", "/pools/{pool}"),
    ("pool", "work", "/pools/{work}"),
)


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `scenario.yaml` describes its optional fields."""

    name: str
    method: str
    path: str
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    until: tuple[str, tuple[str, ...]] | None = None
    keep: Mapping[str, str] = field(default_factory=dict[str, str])
    on_node: bool = False
    operation: str = ""


def scenario() -> tuple[Request, ...]:
    """Return all steps. The caller deletes `CREATED` afterwards."""
    parser: Any = YAML(typ="safe", pure=True)
    return tuple(_request(**step) for step in parser.load(_STEPS)["steps"])


def _request(
    name: str, request: str, until: Mapping[str, list[str]] | None = None, **more: Any
) -> Request:
    method, _, path = request.partition(" ")
    [awaited] = [(key, tuple(values)) for key, values in until.items()] if until else [None]
    return Request(name, method, path, until=awaited, **more)
