"""The processes of the two local services: command lines, ports and readiness."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from runner.contract import LOCAL_VM_SIZE
from runner.core.home import HomePaths, full_disk, make_private, not_writable
from runner.flows.child_python import command_of
from runner.flows.local.azurite import (
    SCRIPTS,
    SCRIPTS_VARIABLE,
    AzuriteProgram,
    scripts_version,
)
from runner.flows.local.state import (
    ACCOUNT,
    BATCH,
    BLOB,
    SEED,
    SEED_VARIABLE,
    LocalState,
    ProcessRecord,
    find_process,
    has_marker,
    refusal,
    service_answers,
)
from runner.protocol.errors import RunnerError
from runner.protocol.host import exclude_loopback

if TYPE_CHECKING:
    import psutil


# Kernels take ports of outgoing connections from a higher range, so a stored port is still free
# after a reboot. The rendezvous server of nodes uses lower ports (rendezvous.py).
_PORTS = range(30_000, 32_500)
_LOG_KEPT_BYTES = 8 << 20
_PROCESS_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class ServiceLaunch:
    """The command of a service; `marker` is a word that only its command line contains."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    marker: str


def spawn(launch: ServiceLaunch) -> ProcessRecord:
    """Start a process that survives Ctrl-C and a closed terminal."""
    import psutil  # noqa: PLC0415  few commands need it

    try:
        make_private(launch.log.parent)
        if launch.log.is_file() and launch.log.stat().st_size > _LOG_KEPT_BYTES:
            launch.log.replace(launch.log.with_suffix(".old.log"))
        with launch.log.open("ab") as log:
            process = subprocess.Popen(
                list(launch.arguments),
                env=dict(launch.environment),
                cwd=launch.log.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as err:
        raise not_writable(launch.log.parent, err) from err
    return ProcessRecord(process.pid, psutil.Process(process.pid).create_time())


def find_orphan(port: int, marker: str) -> ProcessRecord | None:
    """Return the service of this home that listens on a port, although unrecorded, or None."""
    import psutil  # noqa: PLC0415  few commands need it

    process = _listener(port)
    try:
        if process is not None and has_marker(process, marker):
            return ProcessRecord(process.pid, process.create_time())
    except psutil.Error:
        return None
    return None


def is_outdated(process: psutil.Process, launch: ServiceLaunch) -> bool:
    """Return True if a running Azurite has other scripts or another seed.

    The emulator needs the same seed for Azure's names. Otherwise, its tasks are not interrupted.
    """
    import psutil  # noqa: PLC0415  few commands need it

    if launch.name == BATCH and "--azure-names" not in launch.arguments:
        return False
    try:
        found = process.environ()
    except psutil.Error:
        return False
    decisive = (SCRIPTS_VARIABLE, SEED_VARIABLE)
    return any(found.get(name) != launch.environment.get(name) for name in decisive)


def find_leftovers(marker: str) -> list[psutil.Process]:
    """Return all running processes of a service of this home, recorded or not."""
    import psutil  # noqa: PLC0415  few commands need it

    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if marker in (process.info["cmdline"] or ())
    ]


def stop_process(processes: Sequence[psutil.Process], *, grace_s: float = 10.0) -> None:
    """Terminate processes, kill those that remain, and wait for their end."""
    import psutil  # noqa: PLC0415  few commands need it

    alive = list(processes)
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in alive:
            try:
                end(process)
            except psutil.NoSuchProcess:
                continue
        alive = _wait_gone(alive, grace_s)


def _wait_gone(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait for processes. Return those that still run; zombies have ended, unlike in psutil."""
    deadline = time.monotonic() + timeout_s
    alive = [process for process in processes if _runs(process)]
    while alive and time.monotonic() < deadline:
        time.sleep(_PROCESS_POLL_S)
        alive = [process for process in alive if _runs(process)]
    return alive


def _runs(process: psutil.Process) -> bool:
    import psutil  # noqa: PLC0415  few commands need it

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def port_is_free(port: int) -> bool:
    """Return True if a server could listen on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_port(taken: Sequence[int] = ()) -> int:
    """Return a random free port."""
    while True:
        port = SystemRandom().choice(_PORTS)
        if port not in taken and port_is_free(port):
            return port


def port_owner(port: int) -> str:
    """Return `name (pid 42)` of the process that listens on a port, or "" if it is unknown."""
    import psutil  # noqa: PLC0415  few commands need it

    process = _listener(port)
    if process is None:
        return ""
    try:
        return f"{process.name()} (pid {process.pid})"
    except psutil.Error:
        return f"pid {process.pid}"


def _listener(port: int) -> psutil.Process | None:
    import psutil  # noqa: PLC0415  few commands need it

    try:
        for connection in psutil.net_connections("tcp"):
            address = connection.laddr
            listens = connection.status == psutil.CONN_LISTEN and address and address.port == port
            if listens and connection.pid:
                return psutil.Process(connection.pid)
    except (psutil.Error, OSError):  # macOS shows connections of other users only to root
        return None
    return None


TITLES: Mapping[str, str] = {BATCH: "the Azure Batch emulator", BLOB: "Azurite"}
_READY_TIMEOUT_S = 120.0  # seconds; a loaded two-core machine needed 26 s for Azurite
_POLL_S = 0.03
# Variables of this machine that tasks get, for access to the network and to packages.
_PASSED_TO_TASKS = (
    "*_proxy",
    "*_PROXY",
    "SSL_CERT_*",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "UV_*",
    "PIP_*",
)
# These would install packages of a task outside its node.
_NOT_PASSED = frozenset(
    {
        *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_LOG"),
        *("PIP_CACHE_DIR", "PIP_REQUIRE_VIRTUALENV", "UV_CACHE_DIR", "UV_SYSTEM_PYTHON"),
        *("UV_PROJECT_ENVIRONMENT", "UV_PYTHON", "UV_PYTHON_INSTALL_DIR", "UV_PYTHON_BIN_DIR"),
        *("UV_TOOL_DIR", "UV_TOOL_BIN_DIR", "UV_BREAK_SYSTEM_PACKAGES"),
    }
)


def batch_launch(paths: HomePaths, state: LocalState, keys: Mapping[str, str]) -> ServiceLaunch:
    """Return the command of the emulator. Keys are in its environment, which `ps` does not show.

    Its pools can mount the containers of Azurite and the shares of Azure Files.
    """
    data = str(paths.batch_data)
    patterns = [word for pattern in _PASSED_TO_TASKS for word in ("--pass-env", pattern)]
    address = ["--host", "127.0.0.1", "--port", str(state.batch_port)]
    account = ["--account", ACCOUNT, "--data-dir", data, "--vm-size", LOCAL_VM_SIZE]
    files = ["--storage-account", ACCOUNT, "--files-port", str(state.files_port)]
    files += ["--blob-endpoint", state.blob_endpoint]
    files += ["--azure-names"] if state.azure_names else []
    files += ["--ui", "--ui-port", str(state.ui_port)] if state.ui_port else []
    files += ["--faults", state.faults] if state.faults else []
    files += [word for image in state.images for word in ("--image", image)]
    secrets = {
        "BATCH_EMULATOR_KEY": keys["batch"],
        "BATCH_EMULATOR_STORAGE_KEY": keys["storage"],
        SEED_VARIABLE: keys[SEED],
    }
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_PASSED}
    return ServiceLaunch(
        name=BATCH,
        arguments=command_of("batch_emulator", *address, *account, *files, *patterns),
        environment={**inherited, **exclude_loopback(inherited), **secrets},
        log=paths.logs / "batch.log",
        marker=data,
    )


def blob_launch(
    paths: HomePaths, port: int, keys: Mapping[str, str], program: AzuriteProgram
) -> ServiceLaunch:
    """Return the command of Azurite, on loopback and with the keys of this installation."""
    data = str(paths.blob_data)
    address = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", data]
    # SDKs send API versions that Azurite does not know. Its telemetry would send data to Microsoft,
    # and its access log would contain the signature of every SAS.
    flags = ["--skipApiVersionCheck", "--disableTelemetry", "--disableProductStyleUrl", "--silent"]
    environment = {k: v for k, v in os.environ.items() if k != "NODE_OPTIONS"}
    return ServiceLaunch(
        name=BLOB,
        arguments=[
            str(program.node),
            *(word for script in SCRIPTS for word in ("--require", str(script))),
            str(program.script),
            *address,
            *flags,
        ],
        environment={
            **environment,
            **exclude_loopback(environment),  # Azurite reads the source of a copy from itself
            "AZURITE_ACCOUNTS": f"{ACCOUNT}:{keys['storage']}",
            SCRIPTS_VARIABLE: scripts_version(),
            SEED_VARIABLE: keys[SEED],
        },
        log=paths.logs / "azurite.log",
        marker=data,
    )


def wait_ready(
    launch: ServiceLaunch, record: ProcessRecord, state: LocalState, log_start: int
) -> None:
    """Wait until the service responds. Raise RunnerError with the end of its log if it does not.

    A service cannot log on a full disk. The emulator then reports the reason, if it responds.
    """
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while not service_answers(launch.name, state):
        full = full_disk(launch.log)
        if full is not None:
            raise full
        blocked = refusal(state) if launch.name == BATCH else None
        if blocked is not None:
            raise _blocked(launch, blocked)
        died = find_process(record, launch.marker) is None
        if died or time.monotonic() > deadline:
            raise _not_ready(launch, log_start, died=died)
        time.sleep(_POLL_S)


def log_size(path: Path) -> int:
    """Return the size of a log, 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _blocked(launch: ServiceLaunch, why: str) -> RunnerError:
    return RunnerError(
        "R-LOCAL-BLOCKED",
        f"{TITLES[launch.name]} cannot write to {launch.marker}",
        why=why,
        fix=f"free disk space or raise the quota, then run the command again; see {launch.log}",
    )


def _not_ready(launch: ServiceLaunch, log_start: int, *, died: bool) -> RunnerError:
    title = TITLES[launch.name]
    log = _log_since(launch.log, log_start)
    said = _parse_error(log)
    if said.get("code") == _STATE_FORMAT:
        return RunnerError(
            "R-LOCAL-STATE",
            f"another version of runner wrote the state in {launch.marker}",
            why=said.get("why", ""),
            fix="use that version, or delete local pools, jobs and tasks, but no runs or models: "
            "runner local reset --state",
        )
    what = f"{title} ended while starting" if died else f"{title} does not respond"
    why, fix = last_error(log)
    return RunnerError(
        "R-LOCAL-START", what, why=why, fix=fix or f"read {launch.log}, then run the command again"
    )


def last_error(log: str) -> tuple[str, str]:
    """Return the error and the fix in the log of an ended service; "" if they are missing.

    The emulator prints its errors as `error: ...`, `why: ...` and `fix: ...`.
    """
    said = _parse_error(log)
    if "error" in said:
        return ": ".join(said[part] for part in ("error", "why") if part in said), said.get(
            "fix", ""
        )
    lines = [line.strip()[:300] for line in log.splitlines() if line.strip()]
    return (lines or [_SILENT])[-1], ""


def _parse_error(log: str) -> dict[str, str]:
    """Return the parts of the error that ends a log; empty if there is none."""
    lines = [line.strip()[:300] for line in log.splitlines() if line.strip()]
    found: dict[str, str] = {}
    for line in reversed(lines[-4:]):
        part, colon, text = line.partition(": ")
        if not colon or part not in _ERROR_PARTS:
            break
        found[part] = text
        if part == "error":
            return found
    return {}


_ERROR_PARTS = ("error", "why", "fix", "code")
_STATE_FORMAT = "state-format"  # as in batch_emulator/__main__.py
_SILENT = "it printed nothing"


def _log_since(path: Path, start: int) -> str:
    try:
        with path.open("rb") as log:
            log.seek(start)
            return log.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""
