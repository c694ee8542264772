"""Output files: what is uploaded to blob containers after a command ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def validate_output_file(output: Mapping[str, Any]) -> str | None:
    """The problem with a wire `outputFile`, or None when it can be uploaded."""
    raise NotImplementedError
