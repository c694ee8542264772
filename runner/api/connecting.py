"""Where the functions of the API go: the target that the settings, or their arguments, name."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runner.core.settings import Settings
    from runner.flows.session import Session


def connect(target: str | None, stack: str | None) -> Session:
    """A session on services that are expected to run."""
    from runner.flows.session import open_session

    return open_session({"target": target, "stack": stack}, cwd=Path.cwd(), env=os.environ)


def settings_of(target: str | None, stack: str | None, pool: str | None = None) -> Settings:
    """Where a call goes."""
    from runner.flows.session import read_settings

    flags = {"target": target, "stack": stack, "pool": pool}
    return read_settings(flags, cwd=Path.cwd(), env=os.environ)
