"""What is remembered of the local services between commands: ports, sizes, process ids, keys."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from runner.core.home import HomePaths, not_writable
from runner.protocol.errors import ExitCode, RunnerError

ACCOUNT = "runnerlocal"  # the name of both accounts


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process we started; `created` (seconds since the epoch) tells it from a recycled pid."""

    pid: int
    created: float


@dataclass(frozen=True, slots=True)
class LocalState:
    """Ports and sizes, kept once chosen; a record is None when the service was stopped."""

    batch_port: int
    blob_port: int
    nodes: int
    slots: int
    batch: ProcessRecord | None = None
    blob: ProcessRecord | None = None
    files_port: int = 0  # of Azure Files, which the Batch emulator serves; 0 before it is chosen

    @property
    def batch_endpoint(self) -> str:
        """URL of the Batch account."""
        return f"http://127.0.0.1:{self.batch_port}"

    @property
    def blob_endpoint(self) -> str:
        """URL of the storage account."""
        return f"http://127.0.0.1:{self.blob_port}/{ACCOUNT}"

    @property
    def file_endpoint(self) -> str:
        """URL of the storage account's files."""
        return f"http://127.0.0.1:{self.files_port}/{ACCOUNT}"


def load_state(paths: HomePaths) -> LocalState | None:
    """The state, or None when nothing was ever set up."""
    try:
        raw: Any = json.loads(paths.local_state.read_text(encoding="utf-8"))
        for name in ("batch", "blob"):
            raw[name] = ProcessRecord(**raw[name]) if raw[name] else None
        return LocalState(**raw)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError) as err:
        raise RunnerError(
            "R-LOCAL-STATE",
            f"cannot read {paths.local_state}",
            why=str(err),
            fix="delete the file; keys, runs and jobs are elsewhere and stay",
            exit_code=ExitCode.PREFLIGHT,
        ) from err


def save_state(paths: HomePaths, state: LocalState) -> None:
    """Write the state, whole or not at all."""
    write_atomically(paths.local_state, json.dumps(dataclasses.asdict(state), indent=2))


def ensure_keys(paths: HomePaths) -> dict[str, str]:
    """The account keys ("batch", "storage"): random, made once per installation, mode 0600."""
    try:
        return _checked(json.loads(paths.keys.read_text(encoding="utf-8")))
    except FileNotFoundError:
        keys = {name: _new_key() for name in ("batch", "storage")}
        write_atomically(paths.keys, json.dumps(keys, indent=2))
        return keys
    except ValueError as err:
        raise RunnerError(
            "R-LOCAL-KEYS",
            f"{paths.keys} is damaged",
            why=str(err),
            fix="start over with runner local reset",
            exit_code=ExitCode.PREFLIGHT,
        ) from err


def _checked(raw: Any) -> dict[str, str]:
    keys = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    if not all(isinstance(keys.get(name), str) for name in ("batch", "storage")):
        raise ValueError("it has no keys 'batch' and 'storage'")
    return keys


def write_atomically(path: Path, text: str) -> None:
    """Replace the file by one only its owner can read."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        temporary.replace(path)
    except OSError as err:
        temporary.unlink(missing_ok=True)
        raise not_writable(path.parent, err) from err


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(64)).decode("ascii")
