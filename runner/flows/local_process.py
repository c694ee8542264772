"""Detached processes and the ports they listen on."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING

from runner.core.home import not_writable
from runner.flows.local_state import ProcessRecord

if TYPE_CHECKING:
    import psutil

# Below the range from which kernels take ports for outgoing connections, so that a kept port is
# still free after a reboot.
_PORTS = range(20000, 30000)
_LOG_KEPT_BYTES = 8 << 20
_SAME_START_S = 1.0
_POLL_S = 0.01


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one service. `marker` is a word that only its command line has."""

    name: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    marker: str


def spawn(launch: Launch) -> ProcessRecord:
    """Start in a session of its own, so that neither Ctrl-C nor a closed terminal ends it."""
    import psutil  # noqa: PLC0415  in the [local] extra

    try:
        launch.log.parent.mkdir(parents=True, exist_ok=True)
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


def find(record: ProcessRecord | None, marker: str) -> psutil.Process | None:
    """The process, if it still runs and is ours: a pid can be stale, or recycled by a stranger."""
    import psutil  # noqa: PLC0415  in the [local] extra

    if record is None:
        return None
    try:
        process = psutil.Process(record.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        # The clock may have been set since, which shifts creation times; the marker decides then.
        same = abs(process.create_time() - record.created) < _SAME_START_S
        return process if same or _has_marker(process, marker) else None
    except psutil.Error:
        return None


def find_orphan(port: int, marker: str) -> ProcessRecord | None:
    """A service of ours that listens on the port though nobody recorded it."""
    import psutil  # noqa: PLC0415  in the [local] extra

    process = _listener(port)
    try:
        if process is not None and _has_marker(process, marker):
            return ProcessRecord(process.pid, process.create_time())
    except psutil.Error:
        return None
    return None


def find_leftovers(marker: str) -> list[psutil.Process]:
    """Services of ours that no state file knows of any more."""
    import psutil  # noqa: PLC0415  in the [local] extra

    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if marker in (process.info["cmdline"] or ())
    ]


def stop(processes: Sequence[psutil.Process], *, grace_s: float = 10.0) -> None:
    """Ask to end, then insist. Returns when all are gone."""
    import psutil  # noqa: PLC0415  in the [local] extra

    alive = list(processes)
    for end in (psutil.Process.terminate, psutil.Process.kill):
        for process in alive:
            try:
                end(process)
            except psutil.NoSuchProcess:
                continue
        alive = _wait_gone(alive, grace_s)


def _wait_gone(processes: Sequence[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that still run in the end; a zombie is gone, though psutil's own wait waits for it."""
    deadline = time.monotonic() + timeout_s
    alive = [process for process in processes if _runs(process)]
    while alive and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        alive = [process for process in alive if _runs(process)]
    return alive


def _runs(process: psutil.Process) -> bool:
    import psutil  # noqa: PLC0415  in the [local] extra

    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def port_is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def choose_port(taken: Sequence[int] = ()) -> int:
    """A free port, from a random place on."""
    while True:
        port = SystemRandom().choice(_PORTS)
        if port not in taken and port_is_free(port):
            return port


def port_owner(port: int) -> str:
    """`name (pid 42)` of who listens on the port, or an empty string when the system hides it."""
    import psutil  # noqa: PLC0415  in the [local] extra

    process = _listener(port)
    if process is None:
        return ""
    try:
        return f"{process.name()} (pid {process.pid})"
    except psutil.Error:
        return f"pid {process.pid}"


def _listener(port: int) -> psutil.Process | None:
    import psutil  # noqa: PLC0415  in the [local] extra

    try:
        for connection in psutil.net_connections("tcp"):
            address = connection.laddr
            listens = connection.status == psutil.CONN_LISTEN and address and address.port == port
            if listens and connection.pid:
                return psutil.Process(connection.pid)
    except (psutil.Error, OSError):  # macOS shows the connections of others to root only
        return None
    return None


def _has_marker(process: psutil.Process, marker: str) -> bool:
    return marker in process.cmdline()
