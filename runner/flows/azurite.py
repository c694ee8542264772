"""Azurite, the Azure Blob emulator: pinned with hashes, installed once for all."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from runner.core.errors import ExitCode, RunnerError
from runner.core.home import HomePaths, not_writable
from runner.core.progress import OnProgress, Progress
from runner.flows.file_lock import file_lock
from runner.flows.node_runtime import NodeRuntime, ensure_node, last_line

VERSION = "3.37.0"
_PACKAGE = Path(__file__).resolve().parent / "azurite_package"
_SCRIPT = Path("node_modules") / "azurite" / "dist" / "src" / "blob" / "main.js"
_INSTALL_TIMEOUT_S = 900.0
_NPM_CI = (
    "ci",
    "--omit=dev",
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--no-update-notifier",
    "--loglevel=error",
)

_NPM_DETAILS = frozenset({"code", "syscall", "errno", "address", "port", "path", "type"})


@dataclass(frozen=True, slots=True)
class AzuriteProgram:
    """The Node binary and the script of Azurite's blob service."""

    node: Path
    script: Path


def ensure_azurite(paths: HomePaths, on_event: OnProgress) -> AzuriteProgram:
    """Find or install Azurite. An interrupted install leaves nothing behind."""
    runtime = ensure_node(paths, on_event)
    target = paths.azurite(VERSION)
    if not (target / _SCRIPT).is_file():
        _install(target, runtime, on_event)
    return AzuriteProgram(runtime.node, target / _SCRIPT)


def _install(target: Path, runtime: NodeRuntime, on_event: OnProgress) -> None:
    def on_wait() -> None:
        on_event(Progress("azurite", "start", "waiting for another runner that installs Azurite"))

    lock = target.parent / ".lock"
    with file_lock(lock, what="installing Azurite", timeout_s=_INSTALL_TIMEOUT_S, on_wait=on_wait):
        if (target / _SCRIPT).is_file():
            on_event(Progress("azurite", "end", f"Azurite {VERSION}"))
            return
        on_event(Progress("azurite", "start", f"installing Azurite {VERSION} (once)"))
        try:
            _npm_ci(target, runtime)
        except RunnerError:
            on_event(Progress("azurite", "failed", "could not install Azurite"))
            raise
        on_event(Progress("azurite", "end", f"installed Azurite {VERSION}"))


def _npm_ci(target: Path, runtime: NodeRuntime) -> None:
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    except OSError as err:
        raise not_writable(target.parent, err) from err
    try:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(_PACKAGE / name, temporary / name)
        done = _run_npm(temporary, runtime)
        if done.returncode or not (temporary / _SCRIPT).is_file():
            raise _failed(_npm_reason(done.stderr + done.stdout))
        shutil.rmtree(target, ignore_errors=True)  # a version that lost its files
        temporary.rename(target)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise _failed(str(err)) from err
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run_npm(folder: Path, runtime: NodeRuntime) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "NODE_OPTIONS"}
    environment["PATH"] = f"{runtime.node.parent}{os.pathsep}{environment.get('PATH', '')}"
    return subprocess.run(
        [*runtime.npm, *_NPM_CI],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_INSTALL_TIMEOUT_S,
        check=False,
    )


def _npm_reason(text: str) -> str:
    """npm says it in the first line of its errors that is no `name value` detail."""
    marked = [line for line in text.splitlines() if line.startswith("npm error")]
    errors = [line.removeprefix("npm error").strip() for line in marked]
    telling = [line for line in errors if line and line.split()[0] not in _NPM_DETAILS]
    return telling[0][:300] if telling else last_line(text)


def _failed(why: str) -> RunnerError:
    return RunnerError(
        "R-LOCAL-AZURITE",
        f"could not install Azurite {VERSION}",
        why=why,
        fix="check network and proxy (npm config), then run the command again",
        exit_code=ExitCode.PREFLIGHT,
    )
