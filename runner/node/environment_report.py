"""What an attempt ran with, for whoever repeats the run: interpreter, packages, machine."""

from __future__ import annotations

import json
import logging
import os
import platform
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runner.node.attempts import RunBlobs
from runner.node.blobs import Container
from runner.node.transport import StorageError

logger = logging.getLogger(__name__)

FILE = "environment.json"
_CPU_INFO = Path("/proc/cpuinfo")
_NVIDIA = Path("/proc/driver/nvidia")


def write_environment(runs: Container, blobs: RunBlobs, attempt: int, environment: Path) -> None:
    """Write `attempts/<n>/environment.json`. That it cannot be written is no failure."""
    try:
        body = json.dumps(describe(environment), indent=1).encode()
        runs.put(blobs.attempt(attempt, FILE), body)
    except (OSError, StorageError, ValueError) as err:
        logger.warning("what the run runs with could not be recorded: %s", err)


def describe(environment: Path) -> dict[str, Any]:
    """The environment in that folder, and this machine."""
    return {
        "python": _python(environment),
        "platform": sysconfig.get_platform(),
        "libc": " ".join(platform.libc_ver()),
        "cpu": _field(_CPU_INFO, "model name"),
        "cpus": len(os.sched_getaffinity(0)),
        "gpus": [_field(file, "Model") for file in sorted(_NVIDIA.glob("gpus/*/information"))],
        "driver": _first_line(_NVIDIA / "version"),
        "packages": packages(environment),
    }


def packages(environment: Path) -> dict[str, str]:
    """Versions by name, of what is installed from an index; None of its files is imported.

    What came from a folder or an address has no version that says what it is: it is left out.
    """
    found: dict[str, str] = {}
    for folder in environment.glob("lib/python*/site-packages/*.dist-info"):
        if (folder / "direct_url.json").exists():
            continue
        name, _, version = folder.name.removesuffix(".dist-info").partition("-")
        if version:
            found[name.replace("_", "-").lower()] = version
    return dict(sorted(found.items()))


def satisfies(environment: Path, constraints: Mapping[str, str]) -> bool:
    """Whether every package that is there has the version that is wanted."""
    there = packages(environment)
    return all(constraints.get(name, version) == version for name, version in there.items())


def _python(environment: Path) -> str:
    for line in _lines(environment / "pyvenv.cfg"):
        name, _, value = line.partition("=")
        if name.strip() in ("version_info", "version"):
            return value.strip()
    return platform.python_version() if environment == Path(sys.prefix) else ""


def _field(file: Path, name: str) -> str:
    for line in _lines(file):
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


def _first_line(file: Path) -> str:
    return next(iter(_lines(file)), "")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
