"""A `runner` with MLflow, TensorBoard and a notebook kernel, in a separate environment."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.e2e.conftest import Cli

ROOT = Path(__file__).parents[2]
_LOCK = ROOT / "requirements" / "extras.lock"
_OURS = ("--editable", str(ROOT / "batch_emulator"), "--editable", str(ROOT))


@dataclass(frozen=True)
class Extras:
    """A `runner` with MLflow and TensorBoard."""

    bin: Path

    def __call__(self, cli: Cli, *words: object) -> subprocess.CompletedProcess[str]:
        command = [str(self.bin / "runner"), *map(str, words)]
        return subprocess.run(
            command, env=cli.env, cwd=cli.cwd, capture_output=True, text=True, check=False
        )

    def json(self, cli: Cli, *words: object) -> Any:
        done = self(cli, *words, "-o", "json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def python(self, program: str, *words: str) -> Any:
        done = subprocess.run(
            [str(self.bin / "python"), "-c", program, *words],
            env={**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


def ensure_extras() -> Extras:
    """Return the environment, which is kept with the checkout under the hash of its lock file."""
    uv = Path(sys.executable).with_name("uv")
    name = hashlib.sha256(_LOCK.read_bytes() + f"{sys.version}{_OURS}".encode()).hexdigest()[:16]
    folder = (
        ROOT / ".cache" / "extras" / f"{name}-{hashlib.sha256(str(ROOT).encode()).hexdigest()[:8]}"
    )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest workers share the folder
        _install(uv, folder)
    return Extras(folder / "bin")


def _install(uv: Path, folder: Path) -> None:
    if not (folder / "ready").exists():
        for words in (
            ["venv", "--clear", "--python", sys.executable, str(folder)],
            ["pip", "install", "--require-hashes", "-r", str(_LOCK)],
            ["pip", "install", "--no-deps", *_OURS],
        ):
            python = ["--python", str(folder / "bin" / "python")] if words[0] == "pip" else []
            done = subprocess.run(
                [str(uv), *words, *python], capture_output=True, text=True, check=False
            )
            if done.returncode:
                pytest.skip(f"the extras cannot be installed: {done.stderr[-300:]}")
        (folder / "ready").touch()
