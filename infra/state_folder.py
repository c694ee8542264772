"""The state folder, looked at without the engine: what a killed one left, whether there is any."""

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
    """Remove locks of the stack whose engine ran on this machine and is gone.

    Pulumi leaves its lock when it is killed, and never looks whether its owner lives; without this
    the next deployment would have to begin with `pulumi cancel`. Other backends are left alone.
    """
    folder = _folder(backend)
    if folder is None:
        return
    for path in (folder / "locks").glob(f"*/*/{stack}/*.json"):
        if _is_dead(path):
            path.unlink(missing_ok=True)
            path.with_name(f"{path.name}.attrs").unlink(missing_ok=True)


def has_stack(backend: str | None, stack: str) -> bool | None:
    """Whether the folder has a state of the stack; None where the state is not in a folder."""
    folder = _folder(backend)
    if folder is None:
        return None
    stacks = folder / "stacks"
    return any(stacks.glob(f"*/{stack}.json*")) or any(stacks.glob(f"{stack}.json*"))


def state_backend(home: Path, env: Mapping[str, str]) -> str | None:
    """Where state is kept: what the environment says, else a folder of `home`.

    None where Pulumi is signed in: then its own files say.
    """
    if env.get("PULUMI_BACKEND_URL"):
        return env["PULUMI_BACKEND_URL"]
    return None if (Path.home() / _LOGIN_FILE).is_file() else (home / "pulumi").as_uri()


def _folder(backend: str | None) -> Path | None:
    """`file:///path`, or `file://~` (what `pulumi login --local` keeps): others are Pulumi's."""
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
    """Whether an engine has this pid: not a zombie, and not another program that got it since."""
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
