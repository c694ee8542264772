"""Resource files: what is downloaded into the working directory before a command starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def validate_resource_file(resource: Mapping[str, Any]) -> str | None:
    """The problem with a wire `resourceFile`, or None when it can be downloaded."""
    raise NotImplementedError
