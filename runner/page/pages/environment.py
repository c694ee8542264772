"""Where runs execute: the local services, or the checks and the preview of a stack, with fixes."""

from __future__ import annotations

import platform
import shutil
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, cast

from runner.core.home import existing_folder
from runner.flows.extras import DISTRIBUTION
from runner.flows.local import lifecycle
from runner.page.ask import Ask, WebPage
from runner.page.processes import CommandAnswer
from runner.page.rest import Endpoint
from runner.views.environment import CheckLine, LocalDocument, TargetDocument, local_document

_PACKAGES = ("azure-batch", "azure-storage-blob", "azure-identity", "starlette", "uv")
_SERVICES = ("batch", "blob")


def versions() -> dict[str, str]:
    """Return the versions of runner, Python and the packages that it needs."""
    found = {"runner": installed(DISTRIBUTION), "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = installed(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return {**found, "platform": platform.platform()}


async def read_local(ask: Ask) -> LocalDocument:
    """Return the state of the local services."""
    settings = ask.source.settings
    return await ask.source.work(lambda: local_document(lifecycle.status(settings)))


async def read_checks(ask: Ask) -> list[CheckLine]:
    """Return the checks of the stack. Raise RunnerError if they cannot begin."""
    return (await _checks(ask)).checked()


async def _checks(ask: Ask) -> CommandAnswer:
    return await ask.source.processes.answer(["check"], takes="stack")


async def read_preview(ask: Ask) -> dict[str, Any]:
    """Return what a deployment of the stack would change."""
    return (await _preview(ask)).checked()


async def _preview(ask: Ask) -> CommandAnswer:
    return await ask.source.processes.answer(["preview"], takes="stack")


async def read_target(ask: Ask) -> TargetDocument:
    """Return where runs execute, the disk of this machine, and versions."""
    settings = ask.source.settings
    usage = await ask.source.work(lambda: shutil.disk_usage(existing_folder(settings.home)))
    return {
        "target": settings.target.name,
        "stack": settings.stack if settings.target.has_stacks else None,
        "team": settings.team,
        "home": str(settings.home),
        "folder": str(Path.cwd()),
        "disk_free_bytes": usage.free,
        "disk_total_bytes": usage.total,
        "versions": versions(),
    }


async def read(ask: Ask) -> dict[str, Any]:
    """Return the values of `environment.html`.

    The checks and the preview of a stack need a process for seconds, so they run when asked for:
    `run=check` and `run=preview` in the address.
    """
    settings = ask.source.settings
    wanted = ask.text("run")
    local = await read_local(ask) if settings.target.runs_here else None
    found = await read_target(ask)
    checks = preview = None
    if settings.target.has_stacks and wanted == "check":
        checks = await _checks(ask)
    if settings.target.has_stacks and wanted == "preview":
        preview = await _preview(ask)
    services: dict[str, Any] = cast("dict[str, Any]", local or {})
    return {
        "title": "Environment",
        "settings": settings,
        "local": local,
        "services": {name: services[name] for name in _SERVICES if name in services},
        "found": found,
        "checks": checks,
        "preview": preview,
    }


ENDPOINTS = (
    Endpoint(
        "/environment",
        "Return the target, the folders and the disk of this machine, and versions.",
        TargetDocument,
        read_target,
    ),
    Endpoint(
        "/local",
        "Return the state of the local services.",
        LocalDocument,
        read_local,
        command="runner local status",
    ),
    Endpoint(
        "/checks",
        "Check everything that could fail a deployment of the stack.",
        list[CheckLine],
        read_checks,
        command="runner check",
    ),
    Endpoint(
        "/preview",
        "Return what a deployment of the stack would create, change and delete.",
        dict[str, Any],
        read_preview,
        command="runner preview",
    ),
)
PAGE = WebPage("/environment", "environment", read, every_s=0, label="Environment")
