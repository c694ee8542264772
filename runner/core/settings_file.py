"""runner.yaml and the user's config.yaml: the same keys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from runner.core.document import check_document, read_document


class SettingsFile(BaseModel):
    """Where to run, as a human writes it."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    target: Literal["local", "azure"] | None = None
    stack: str | None = Field(None, min_length=1)
    pool: str | None = Field(None, min_length=1)
    output_dir: str | None = Field(None, min_length=1)


def read_settings(path: Path) -> Iterator[tuple[str, str, int]]:
    """Name, value and line of every setting in the file."""
    document = read_document(path, code="R-CONFIG")
    parsed = check_document(document, SettingsFile, code="R-CONFIG")
    for name, value in parsed.model_dump(exclude_none=True).items():
        yield name, str(value), document.line((name,))
