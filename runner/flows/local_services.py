"""The two local services: how each is started, and how it says that it is ready."""

from __future__ import annotations

import http.client
import os
import sys
import sysconfig
import time
from collections.abc import Mapping
from pathlib import Path

from runner.core.errors import ExitCode, RunnerError
from runner.core.home import HomePaths
from runner.flows.azurite import AzuriteProgram
from runner.flows.local_process import Launch, find
from runner.flows.local_state import ACCOUNT, LocalState, ProcessRecord

BATCH = "batch"
BLOB = "blob"
TITLES: Mapping[str, str] = {BATCH: "the Azure Batch emulator", BLOB: "Azurite"}
# A loaded two-core machine has needed 26 s for Azurite.
_READY_WITHIN_S = 120.0
_POLL_S = 0.03
_ANSWERS_WITHIN_S = 30.0  # a busy machine; who does not listen is told at once
# What reaches the tasks of this machine's environment: how to get to the network and to packages,
# never the rest.
_PASSED_TO_TASKS = (
    "*_proxy",
    "*_PROXY",
    "SSL_CERT_*",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "UV_*",
    "PIP_*",
)


def batch_launch(paths: HomePaths, ports: tuple[int, int, int], keys: Mapping[str, str]) -> Launch:
    """The emulator's command line; the keys go through the environment, out of `ps`.

    It serves Azure Files for Azurite's account on the second port; on the third is Azurite, whose
    containers pools can mount.
    """
    data = str(paths.batch_data)
    port, files_port, blob_port = ports
    patterns = [word for pattern in _PASSED_TO_TASKS for word in ("--pass-env", pattern)]
    address = ["--host", "127.0.0.1", "--port", str(port)]
    account = ["--account", ACCOUNT, "--data-dir", data]
    files = ["--storage-account", ACCOUNT, "--files-port", str(files_port)]
    files += ["--blob-endpoint", f"http://127.0.0.1:{blob_port}/{ACCOUNT}"]
    secrets = {"BATCH_EMULATOR_KEY": keys["batch"], "BATCH_EMULATOR_STORAGE_KEY": keys["storage"]}
    scripts = sysconfig.get_path("scripts")  # tasks find this environment's python3 and uv
    path = os.pathsep.join([scripts, os.environ.get("PATH", os.defpath)])
    return Launch(
        name=BATCH,
        arguments=[sys.executable, "-m", "batch_emulator", *address, *account, *files, *patterns],
        environment={**os.environ, **_no_proxy(), "PATH": path, **secrets},
        log=paths.logs / "batch.log",
        marker=data,
    )


def _no_proxy() -> dict[str, str]:
    """Tasks and the emulator reach Azurite past a proxy, which passes on only what is outside."""
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    value = ",".join(dict.fromkeys([*filter(None, given.split(",")), "127.0.0.1", "localhost"]))
    return {"no_proxy": value, "NO_PROXY": value}


def blob_launch(paths: HomePaths, port: int, key: str, program: AzuriteProgram) -> Launch:
    """Azurite's command line. It answers on loopback only, under a key of this installation."""
    data = str(paths.blob_data)
    address = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", data]
    # Storage SDKs send versions newer than Azurite knows; telemetry would leave this machine.
    # Its access log would hold the signatures of every SAS.
    flags = ["--skipApiVersionCheck", "--disableTelemetry", "--disableProductStyleUrl", "--silent"]
    environment = {k: v for k, v in os.environ.items() if k != "NODE_OPTIONS"}
    return Launch(
        name=BLOB,
        arguments=[str(program.node), str(program.script), *address, *flags],
        environment={**environment, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"},
        log=paths.logs / "azurite.log",
        marker=data,
    )


def marker(paths: HomePaths, name: str) -> str:
    """The word of the command line by which a service of this home is recognised."""
    return str(paths.batch_data if name == BATCH else paths.blob_data)


def answers(name: str, state: LocalState, *, timeout_s: float = _ANSWERS_WITHIN_S) -> bool:
    """Whether the service serves requests now."""
    port = state.batch_port if name == BATCH else state.blob_port
    path = "/_emulator/health" if name == BATCH else f"/{ACCOUNT}?comp=list"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        reply = connection.getresponse()
        reply.read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    if name == BATCH:
        return reply.status == http.client.OK
    return (reply.getheader("Server") or "").startswith("Azurite-Blob")  # 403: it wants a key


def wait_ready(launch: Launch, record: ProcessRecord, state: LocalState, log_start: int) -> None:
    """Poll until the service answers. Raises with the end of its log when it dies or is silent."""
    deadline = time.monotonic() + _READY_WITHIN_S
    while not answers(launch.name, state):
        died = find(record, launch.marker) is None
        if died or time.monotonic() > deadline:
            raise _not_ready(launch, log_start, died=died)
        time.sleep(_POLL_S)


def log_size(path: Path) -> int:
    """Where what is printed next will begin."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _not_ready(launch: Launch, log_start: int, *, died: bool) -> RunnerError:
    title = TITLES[launch.name]
    what = f"{title} ended while starting" if died else f"{title} does not answer"
    return RunnerError(
        "R-LOCAL-START",
        what,
        why=_log_end(launch.log, log_start),
        fix=f"read {launch.log}, then run the command again",
        exit_code=ExitCode.PREFLIGHT,
    )


def _log_end(path: Path, start: int) -> str:
    try:
        with path.open("rb") as log:
            log.seek(start)
            text = log.read(1 << 16).decode("utf-8", "replace")
    except OSError:
        text = ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"
