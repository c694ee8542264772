"""The state folder, without the engine: locks of killed engines, and whether a stack exists."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

_ENGINE = "pulumi"
_LOGIN_FILE = ".pulumi/credentials.json"


def release_dead(backend: str | None, stack: str) -> None:
    """Remove the stack's locks whose engine ran on this machine and has ended.

    A killed Pulumi leaves its lock, and Pulumi does not check whether the owner still runs. Without
    this, `pulumi cancel` would be needed before the next deployment. Backends that are not folders
    are left alone.
    """
    folder = _folder(backend)
    if folder is None:
        return
    for path in (folder / "locks").glob(f"*/*/{stack}/*.json"):
        if _is_dead(path):
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.attrs").unlink(missing_ok=True)


def has_stack(backend: str | None, stack: str) -> bool | None:
    """Return whether the folder has a state of the stack; None if the backend is not a folder."""
    folder = _folder(backend)
    if folder is None:
        return None
    stacks = folder / "stacks"
    return any(stacks.glob(f"*/{stack}.json*")) or any(stacks.glob(f"{stack}.json*"))


def state_backend(home: Path, env: Mapping[str, str]) -> str | None:
    """Return the URL of the state: PULUMI_BACKEND_URL, else a folder of `home`.

    None if Pulumi is signed in to a backend, which its own files name.
    """
    if env.get("PULUMI_BACKEND_URL"):
        return env["PULUMI_BACKEND_URL"]
    return None if (Path.home() / _LOGIN_FILE).is_file() else (home / "pulumi").as_uri()


def _folder(backend: str | None) -> Path | None:
    """Return the folder of `file:///path` or `file://~` (`pulumi login --local`), else None."""
    parts = urlsplit(backend or "")
    if parts.scheme != "file" or parts.netloc not in {"", "~"}:
        return None
    path = url2pathname(parts.path)
    start = Path.home() / path.lstrip("/") if parts.netloc else Path(path)
    return start / ".pulumi"


def _is_dead(path: Path) -> bool:
    try:
        lock: dict[str, Any] = json.loads(path.read_text("utf-8"))
        pid, host = int(lock["pid"]), str(lock["hostname"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return host == socket.gethostname() and not _is_running(pid)


def _is_running(pid: int) -> bool:
    """Return whether the process is an engine, not a zombie or another program with its pid."""
    if sys.platform == "win32":  # signal 0 would end the process there
        return True
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text("utf-8")
        except OSError:
            return False
        name, _, rest = text.rpartition(") ")
        return name.partition("(")[2].startswith(_ENGINE) and not rest.startswith("Z")
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
