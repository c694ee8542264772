"""The mover: a task on a schedule that moves runs while no client is attached.

It executes `runner pool fallback` with the code of this package, in a pool that no run may use. On
Azure, that pool has an identity of its own, so that the task needs no secret.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import re
import shlex
import sys
import time
import zipfile
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.mover_schedule import delete_mover, put_mover
from runner.azure.batch.pools import PoolSpec, delete_pool, ensure_pool
from runner.azure.storage.blobs import BlobInfo
from runner.contract import LOCAL_VM_SIZE, MOVER_POOL, StackOutputs
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings
from runner.core.units import format_duration
from runner.flows.runs.documents import code_container
from runner.protocol.errors import ExitCode, RunnerError

_FOLDER = "mover/"  # of the container for code; `runner rm` deletes nothing there
_ARCHIVE = "mover.zip"
_LOCAL_LIFETIME = timedelta(days=3 * 366)  # as that of other schedules
_LEFT_OUT = ("recipes", "explanations")  # what the command does not need
_DISTRIBUTION, _OWN = "azure-batch-runner", "batch-emulator"
# New roles apply after some minutes. Our choice, which a person still waits for.
_ROLES_S, _PAUSE_S = 600.0, 15.0
_UNUSED = timedelta(days=1)  # age of archives of other versions that are deleted
_SCRIPT = Path(__file__).with_suffix(".sh")


def start_mover(settings: Settings, every: timedelta) -> str:
    """Let a task move runs at an interval. Return `created`, `changed` or `kept`.

    The local services get the pool of the task, which signs in with their keys on this machine.

    Raises:
        RunnerError: R-MOVER-NONE, the stack declares no mover; or the services refuse.
    """
    connection = connect(settings.for_whole_stack())
    outputs = connection.outputs
    archive = pack_mover()
    sha256 = hashlib.sha256(archive).hexdigest()
    variables = {"MOVER_SHA256": sha256}
    if connection.uses_identity:
        if outputs.mover_client_id is None or outputs.mover_identity_id is None:
            raise _no_mover(outputs)
        connection = copy(connection)
        connection.outputs = replace(outputs, identity_resource_id=outputs.mover_identity_id)
        variables |= {
            "RUNNER_MOVER_OUTPUTS": json.dumps(
                json.loads(outputs.to_json()), separators=(",", ":")
            ),
            "RUNNER_STACK": outputs.stack or "dev",
            "AZURE_CLIENT_ID": outputs.mover_client_id,
        }
    else:
        spec = PoolSpec(MOVER_POOL, LOCAL_VM_SIZE, 1, 1, "/bin/true")
        ensure_pool(connection, spec)
        variables |= {"MOVER_PYTHON": sys.executable, "RUNNER_HOME": str(settings.home)}
    script = _SCRIPT.read_text(encoding="utf-8")
    blob = f"{_FOLDER}{sha256}.zip"
    code_container(connection).create_bytes(blob, archive, "application/zip")
    made_from = json.dumps([sha256, script, variables, every.total_seconds()])
    done = put_mover(
        connection,
        hashlib.sha256(made_from.encode()).hexdigest(),
        every=every,
        command_line=f"/bin/sh -c {shlex.quote(script)}",
        files=[connection.resource_file(blob, _ARCHIVE, _LOCAL_LIFETIME)],
        variables=variables,
        # Local tasks run as a user who cannot read the keys; an elevated one runs as this user.
        elevated=not connection.uses_identity,
    )
    # Another client may be about to schedule its archive, so that only old ones are deleted.
    before = datetime.now(UTC) - _UNUSED
    _delete_archives(
        connection,
        lambda one: one.name != blob and one.modified is not None and one.modified < before,
    )
    return done


def _no_mover(outputs: StackOutputs) -> RunnerError:
    return RunnerError(
        "R-MOVER-NONE",
        "the stack has no mover",
        why="its task needs a pool and an identity of its own, which the stack declares",
        fix=f"add `runner:mover: {{every: 30m}}` to Pulumi.{outputs.stack or 'dev'}.yaml, and "
        "deploy it",
        exit_code=ExitCode.PREFLIGHT,
    )


def pack_mover() -> bytes:
    """Return the code of this package with its requirements, as a zip file.

    Its bytes depend only on the files and the versions of installed packages: it is not compressed.
    """
    packed = io.BytesIO()
    root = Path(__file__).parents[3]
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(root.rglob("*")):
            name = file.relative_to(root)
            if name.parts[0] in _LEFT_OUT or "__pycache__" in name.parts or not file.is_file():
                continue
            _add(archive, f"code/runner/{name.as_posix()}", file.read_bytes())
        _add(archive, "requirements.txt", _requirements().encode())
    return packed.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name)  # with the earliest date
    info.external_attr = 0o644 << 16
    info.create_system = 3  # Unix, even if packed on Windows
    archive.writestr(info, content)


def _requirements() -> str:
    """Return the requirements of this package, in the versions that are installed here."""
    pinned: list[str] = []
    for text in importlib.metadata.requires(_DISTRIBUTION) or ():
        requirement, _, marker = text.partition(";")
        name = re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0]
        if "extra" not in marker and name.lower() != _OWN:
            pinned.append(f"{name}=={importlib.metadata.version(name)}")
    return "\n".join([*sorted(pinned), ""])


def stop_mover(settings: Settings) -> bool:
    """End the schedule of the mover, and delete its archives. Return False if there is none.

    On the local services, its pool is deleted, too; on Azure, the stack declares it.
    """
    connection = connect(settings.for_whole_stack())
    ended = delete_mover(connection)
    if not connection.uses_identity:
        delete_pool(connection, MOVER_POOL)
    _delete_archives(connection, lambda _: True)
    return ended


def _delete_archives(connection: Connection, is_old: Callable[[BlobInfo], bool]) -> None:
    container = code_container(connection)
    container.delete_all([blob.name for blob in container.list(_FOLDER) if is_old(blob)], int)


def apply_mover(
    settings: Settings, outputs: StackOutputs, on_progress: OnProgress, *, wait_s: float = _ROLES_S
) -> None:
    """Start the mover that a deployed stack declares; the roles of the deployer may be new.

    Raises:
        RunnerError: the services refuse the deployer for longer than roles need to apply.
    """
    if outputs.mover_every_s is None:
        return
    every = timedelta(seconds=outputs.mover_every_s)
    on_progress(Progress("mover", "start", "scheduling the task that moves runs"))
    happened = _when_allowed(lambda: start_mover(settings, every), on_progress, wait_s)
    on_progress(Progress("mover", "end", f"every {format_duration(every)}, {happened}"))


def _when_allowed(start: Callable[[], str], on_progress: OnProgress, wait_s: float) -> str:
    until = time.monotonic() + wait_s
    while True:
        try:
            return start()
        except RunnerError as err:
            if err.exit_code != ExitCode.ACCESS or time.monotonic() >= until:
                raise
            on_progress(Progress("mover", "progress", "waiting until your roles apply"))
        time.sleep(_PAUSE_S)
