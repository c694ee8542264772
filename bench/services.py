"""Services for benchmarks: local services in a temporary home, or only the emulator."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

RUNNER = str(Path(sys.executable).with_name("runner"))
START_DEADLINE_S = 60.0


# Without a separate user for tasks, even for root, because benchmarks read the folders of nodes.
_ISOLATION = {"BATCH_EMULATOR_ISOLATION": "environment"}


@contextlib.contextmanager
def local_services(*, nodes: int = 1, slots: int = 1) -> Generator[dict[str, str]]:
    """Start emulator and Azurite in a temporary home. Yield the environment for `runner`.

    The installed Azurite and the caches are kept between benchmarks; runs and data are deleted.
    """
    with tempfile.TemporaryDirectory(prefix="runner-bench-") as folder:
        env = {**os.environ, **_ISOLATION, "RUNNER_HOME": folder, "RUNNER_TARGET": "local"}
        kept = Path(__file__).parents[1] / ".cache" / "services"
        for name in ("azurite", "cache", "node"):
            (kept / name).mkdir(parents=True, exist_ok=True)
            Path(folder, name).symlink_to(kept / name)
        subprocess.run(
            [RUNNER, "local", "up", "--nodes", str(nodes), "--slots", str(slots)],
            env=env, check=True, capture_output=True,
        )  # fmt: skip
        try:
            yield env
        finally:
            subprocess.run([RUNNER, "local", "down"], env=env, check=True, capture_output=True)


def storage_connection_string(env: dict[str, str]) -> str:
    """Return the connection string that `runner local env` prints."""
    exports = subprocess.run(
        [RUNNER, "local", "env"], env=env, check=True, capture_output=True, text=True
    ).stdout
    for words in map(shlex.split, exports.splitlines()):
        name, _, value = words[-1].partition("=")
        if name == "AZURE_STORAGE_CONNECTION_STRING":
            return value
    raise RuntimeError("runner local env prints no connection string")


@dataclass(frozen=True, slots=True)
class Emulator:
    """The endpoint, account and key of a running emulator."""

    endpoint: str
    account: str
    key: str
    pid: int = 0


@contextlib.contextmanager
def emulator() -> Generator[Emulator]:
    """Run only the emulator during the block, with a temporary data folder."""
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    with (
        tempfile.TemporaryDirectory(prefix="emulator-bench-") as folder,
        emulator_on(folder, key) as service,
    ):
        yield service


@contextlib.contextmanager
def emulator_on(folder: str, key: str) -> Generator[Emulator]:
    """Run the emulator during the block, on an existing data folder, which is kept."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "batch_emulator", "--host", "127.0.0.1", "--port", str(port),
         "--account", "bench", "--data-dir", folder, "--boot-seconds", "0.1",
         "--delete-seconds", "0"],
        env={**os.environ, **_ISOLATION, "BATCH_EMULATOR_KEY": key},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_until_healthy(f"http://127.0.0.1:{port}/_emulator/health", process)
        yield Emulator(f"http://127.0.0.1:{port}", "bench", key, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_DEADLINE_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url, timeout=2).close()
            return
        time.sleep(0.01)
    raise RuntimeError(f"the emulator did not answer at {url}")
