"""Keys for nodes: made for one shell, kept under RUNNER_HOME for the owner only, then deleted."""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from runner.core.errors import ExitCode, RunnerError
from runner.core.home import HomePaths, not_writable

_BITS = 3072  # RSA: what Azure has always taken for Linux machines, ed25519 it has not


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A private key in a folder of its own; the folder's name is the user on the node."""

    folder: Path
    public: str

    @property
    def user(self) -> str:
        """The name that the key opens: different ones do not end each other."""
        return self.folder.name

    @property
    def private(self) -> Path:
        """For `ssh -i`."""
        return self.folder / "id"

    @property
    def known_hosts(self) -> Path:
        """The node's own key, once it was seen."""
        return self.folder / "known_hosts"

    def delete(self) -> None:
        """Forget it."""
        shutil.rmtree(self.folder, ignore_errors=True)


def make_key(home: Path, expires: datetime) -> NodeKey:
    """A new key pair. Raises RunnerError where RUNNER_HOME cannot be written."""
    keys = HomePaths(home).ssh
    private, public = _pair()
    folder = keys / f"runner-{secrets.token_hex(4)}"
    try:
        keys.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(mode=0o700)
        (folder / "expires").write_text(expires.isoformat(), encoding="utf-8")
        descriptor = os.open(folder / "id", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(private)
    except OSError as err:
        shutil.rmtree(folder, ignore_errors=True)
        raise not_writable(keys, err) from err
    return NodeKey(folder, public)


def prune_keys(home: Path, now: datetime) -> None:
    """Delete keys whose users have expired."""
    for folder in HomePaths(home).ssh.glob("runner-*"):
        try:
            expires = datetime.fromisoformat((folder / "expires").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # no date: somebody was killed while making it, or is making it now
            expires = datetime.fromtimestamp(folder.stat().st_mtime + 3600, UTC)
        if expires < now:
            shutil.rmtree(folder, ignore_errors=True)


def _pair() -> tuple[bytes, str]:
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  0.1 s
        from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415
    except ImportError as err:
        raise RunnerError(
            "R-REACH-KEY",
            "no SSH key can be made",
            why=f"the package cryptography does not load: {err}",
            fix="pip install --force-reinstall cryptography",
            exit_code=ExitCode.PREFLIGHT,
        ) from err
    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return private, f"{public.decode()} runner"
