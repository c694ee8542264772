"""Where to run: built-in < user config < ./runner.yaml < RUNNER_* < flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Target = Literal["local", "azure"]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one command; `origins` says for each name where its value came from."""

    target: Target
    stack: str
    pool: str | None
    output_dir: Path
    home: Path
    origins: Mapping[str, str]


def runner_home(env: Mapping[str, str]) -> Path:
    """The folder that holds state: `RUNNER_HOME`, else the platform's user data folder."""
    raise NotImplementedError


def load_settings(flags: Mapping[str, object], *, cwd: Path, env: Mapping[str, str]) -> Settings:
    """Merge all sources; flags whose value is None count as not given."""
    raise NotImplementedError
