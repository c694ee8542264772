"""A signed-in target for programs that call the flows."""

from __future__ import annotations

from dataclasses import dataclass

from runner.azure.auth.credentials import Connection, connect
from runner.core.settings import Settings


@dataclass(frozen=True, slots=True)
class Session:
    """Settings, and a connection to the services of their target."""

    settings: Settings
    connection: Connection


def open_session(settings: Settings) -> Session:
    """Return a session. Raise RunnerError if the services of the target are not running."""
    return Session(settings, connect(settings))
