"""What a recipe asks to have registered as a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model's name and what becomes of a run; `path` None takes every output."""

    name: str
    aliases: tuple[str, ...] = ()
    path: str | None = None
    description: str = ""

    def to_json(self) -> dict[str, Any]:
        """As run.json has it."""
        return {
            "name": self.name,
            "aliases": list(self.aliases),
            "path": self.path,
            "description": self.description,
        }
