"""The local services: an Azure Batch emulator and Azurite, started and stopped together."""

from __future__ import annotations

from dataclasses import dataclass

from runner.contract import StackOutputs
from runner.core.progress import OnProgress
from runner.core.settings import Settings


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """One service as it is now. `pid` is None when it does not run."""

    name: str
    state: str
    pid: int | None
    endpoint: str
    log: str


@dataclass(frozen=True, slots=True)
class LocalStatus:
    """Both services, and how they were asked to run."""

    running: bool
    services: tuple[ServiceStatus, ...]
    nodes: int
    slots: int
    home: str


def ensure_running(settings: Settings, on_event: OnProgress) -> StackOutputs:
    """Start what does not run; a no-op within milliseconds when everything answers."""
    raise NotImplementedError


def up(
    settings: Settings,
    on_event: OnProgress,
    *,
    nodes: int | None = None,
    slots: int | None = None,
    port: int | None = None,
    blob_port: int | None = None,
) -> LocalStatus:
    """Start both services, make the containers and the pool `local`. None keeps what was chosen before."""
    raise NotImplementedError


def down(settings: Settings, on_event: OnProgress) -> bool:
    """Stop both services; False when nothing ran."""
    raise NotImplementedError


def status(settings: Settings) -> LocalStatus:
    """Ask both services."""
    raise NotImplementedError


def reset(settings: Settings, on_event: OnProgress) -> None:
    """Stop, then delete keys, accounts, pools, jobs and blobs; caches and data sets stay."""
    raise NotImplementedError


def shell_env(settings: Settings) -> dict[str, str]:
    """The variables with which other people's clients connect."""
    raise NotImplementedError
