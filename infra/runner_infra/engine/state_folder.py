"""Find Pulumi's state folder, its stacks and stale locks, without Pulumi.

`runner down` therefore knows a stack that was never deployed if the extra is not installed.
"""

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


def remove_stale_locks(backend: str | None, stack: str) -> None:
    """Remove the stack's locks whose engine ran on this machine and has ended.

    A killed engine leaves its lock, and Pulumi does not check whether the owner is running, so the
    next deployment would need `pulumi cancel` first. Only backends that are folders are changed.
    """
    folder = _state_folder(backend)
    if folder is None:
        return
    for path in _locks(folder, stack):
        if _is_stale(path):
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.attrs").unlink(missing_ok=True)


def is_locked(backend: str | None, stack: str) -> bool:
    """Return True if the backend is a folder with a lock of an engine that may be running."""
    folder = _state_folder(backend)
    return folder is not None and not all(map(_is_stale, _locks(folder, stack)))


def has_stack(backend: str | None, stack: str) -> bool | None:
    """Return True if the folder has a state of the stack; None if the backend is not a folder."""
    folder = _state_folder(backend)
    if folder is None:
        return None
    stacks = folder / "stacks"
    return any(stacks.glob(f"*/{stack}.json*")) or any(stacks.glob(f"{stack}.json*"))


def load_state(backend: str | None, stack: str) -> Mapping[str, Any] | None:
    """Return the field `deployment` of a stack's state in a folder; empty if it has none.

    Return None if the backend is not a folder, or the file is compressed or damaged.
    """
    folder = _state_folder(backend)
    if folder is None:
        return None
    found = [*(folder / "stacks").glob(f"*/{stack}.json"), folder / f"stacks/{stack}.json"]
    files = [path for path in found if path.is_file()]
    if not files:
        return None if has_stack(backend, stack) else {}
    try:
        state: dict[str, Any] = json.loads(files[0].read_text("utf-8"))
        return state["checkpoint"].get("latest") or {}
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def state_backend(home: Path, env: Mapping[str, str]) -> str | None:
    """Return the URL of the state: PULUMI_BACKEND_URL, else a folder of `home`.

    Return None if Pulumi is signed in to a backend; only Pulumi knows its URL.
    """
    if env.get("PULUMI_BACKEND_URL"):
        return env["PULUMI_BACKEND_URL"]
    return None if (Path.home() / _LOGIN_FILE).is_file() else (home / "pulumi").as_uri()


def _state_folder(backend: str | None) -> Path | None:
    """Return the folder of `file:///path` or `file://~` (`pulumi login --local`), else None."""
    parts = urlsplit(backend or "")
    if parts.scheme != "file" or parts.netloc not in {"", "~"}:
        return None
    path = url2pathname(parts.path)
    start = Path.home() / path.lstrip("/") if parts.netloc else Path(path)
    return start / ".pulumi"


def _locks(folder: Path, stack: str) -> list[Path]:
    return list((folder / "locks").glob(f"*/*/{stack}/*.json"))


def _is_stale(path: Path) -> bool:
    try:
        lock: dict[str, Any] = json.loads(path.read_text("utf-8"))
        pid, host = int(lock["pid"]), str(lock["hostname"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return host == socket.gethostname() and not _is_running(pid)


def _is_running(pid: int) -> bool:
    """Return True if the process is a running engine, not a zombie or another program."""
    if sys.platform == "win32":  # signal 0 would end the process on Windows
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
