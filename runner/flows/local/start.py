"""Start the services, storage first, and create the containers and the pool."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterable
from contextlib import suppress

from runner.azure.auth.credentials import Connection
from runner.azure.batch.pools import ensure_pool
from runner.azure.storage.blobs import ensure_containers
from runner.azure.storage.share_store import ensure_share
from runner.core.home import (
    HomePaths,
    full_disk,
    keep_reserve,
    make_private,
    not_writable,
    write_atomically,
)
from runner.core.progress import OnProgress, Progress
from runner.flows.local import services
from runner.flows.local.azurite import ensure_azurite
from runner.flows.local.services import (
    ServiceLaunch,
    choose_port,
    find_leftovers,
    find_orphan,
    port_is_free,
    port_owner,
    spawn,
    stop_process,
)
from runner.flows.local.state import (
    BATCH,
    BLOB,
    LocalState,
    ProcessRecord,
    ensure_keys,
    ensure_seed,
    find_process,
    find_service,
    load_isolation,
    load_state,
    local_outputs,
    make_node_cache,
    pool_spec,
    save_state,
)
from runner.protocol.errors import ExitCode, RunnerError

_MAX_NODES = 256
_MAX_SLOTS = 256
_MAX_PORT = 65535


def wanted_state(
    before: LocalState | None,
    nodes: int | None,
    slots: int | None,
    port: int | None,
    blob_port: int | None,
    azure_names: bool | None = None,
    *,
    ui: bool | None = None,
) -> LocalState:
    """Return the given sizes, ports and names, else the earlier values, else the defaults."""
    _check_range("--nodes", nodes, 0, _MAX_NODES)
    _check_range("--slots", slots, 1, _MAX_SLOTS)
    _check_range("--port", port, 1, _MAX_PORT)
    _check_range("--blob-port", blob_port, 1, _MAX_PORT)
    batch = port or (before.batch_port if before else choose_port((blob_port or 0,)))
    blob = blob_port or (before.blob_port if before else choose_port((batch,)))
    if batch == blob:
        raise RunnerError(
            "R-LOCAL-PORT",
            f"port {batch} was given for both services",
            fix="use different numbers for --port and --blob-port",
        )
    files = _other_port(before, before.files_port if before else 0, (batch, blob))
    has_page = bool(before and before.ui_port) if ui is None else ui
    page = before.ui_port if before else 0
    default_slots = max(1, (os.cpu_count() or 1) // 2)
    return LocalState(
        batch_port=batch,
        blob_port=blob,
        nodes=nodes if nodes is not None else before.nodes if before else 1,
        slots=slots or (before.slots if before else default_slots),
        batch=before.batch if before else None,
        blob=before.blob if before else None,
        files_port=files,
        azure_names=before is not None and before.azure_names
        if azure_names is None
        else azure_names,
        ui_port=_other_port(before, page, (batch, blob, files)) if has_page else 0,
    )


def _other_port(before: LocalState | None, port: int, taken: tuple[int, ...]) -> int:
    """Return the earlier port of Azure Files or of the page, unless another program listens on it.

    Without an earlier one (0), choose a port.
    """
    if before is None or not port or port in taken:
        return choose_port(taken)
    # If both ports are in use, an unrecorded emulator of this home listens on them, to be adopted.
    ours = before.batch is not None or not port_is_free(before.batch_port)
    return port if ours or port_is_free(port) else choose_port(taken)


def chosen_ports(
    before: LocalState | None, wanted: LocalState, given: tuple[int | None, ...]
) -> set[int]:
    """Return the ports that `wanted_state` chose: neither given nor kept from the earlier state."""
    kept = _all_ports(before) if before else ()
    return {*_all_ports(wanted)}.difference(kept, given, (0,))


def _all_ports(state: LocalState) -> tuple[int, ...]:
    return (state.batch_port, state.blob_port, state.files_port, state.ui_port)


def is_port_taken(ports: Iterable[int]) -> bool:
    """Return True if another program listens on one of the ports."""
    return not all(port_is_free(port) for port in ports)


def start(
    paths: HomePaths, before: LocalState | None, wanted: LocalState, on_progress: OnProgress
) -> str:
    """Start both services as in `wanted` and return what `ensure_pool` did."""
    for folder in (paths.local, paths.logs, paths.batch_data, paths.blob_data):
        if full := full_disk(folder):
            raise full
    make_folders(paths)
    state = _stop_changed(paths, before, wanted)
    keys = ensure_keys(paths, renew=state.batch is None and state.blob is None)
    keys = ensure_seed(paths, keys)
    if state.batch is None or state.blob is None:
        on_progress(Progress("services", "start", "starting the Azure Batch emulator and Azurite"))
    # Start storage first: the emulator restarts tasks immediately, and they download files.
    program = ensure_azurite(paths, on_progress)
    blob = services.blob_launch(paths, state.blob_port, keys, program)
    batch = services.batch_launch(paths, state, keys)
    state = _stop_outdated(paths, state, (blob, batch), on_progress)
    state = _ensure_started(paths, state, blob, state.blob_port)
    state = _ensure_started(paths, state, batch, state.batch_port)
    connection = Connection(local_outputs(state), keys)
    ensure_containers(connection)
    ensure_share(connection)
    cache = make_node_cache(paths, load_isolation(state))
    happened = ensure_pool(connection, pool_spec(state, keys["storage"], cache))
    write_atomically(paths.local_outputs, local_outputs(state).to_json())
    keep_reserve(paths)
    return happened


def undo(paths: HomePaths, before: LocalState | None) -> None:
    """Stop what a failed start has started, and restore the earlier state."""
    state = load_state(paths)
    if state is None:
        return
    restored = before or dataclasses.replace(state, batch=None, blob=None)
    for name in (BATCH, BLOB):
        if before is not None and state.record(name) == before.record(name):
            continue
        if process := find_service(paths, state, name):
            stop_process([process])
        restored = restored.with_record(name, None)
    with suppress(RunnerError):  # a full disk, which the failed start reports
        save_state(paths, restored)


def _stop_changed(paths: HomePaths, before: LocalState | None, wanted: LocalState) -> LocalState:
    """Stop services whose settings change. Return the new state."""
    moving = [
        name
        for name in (BATCH, BLOB)
        if before is not None and _fixed(before, name) != _fixed(wanted, name)
    ]
    for name in moving:
        current = _ports(before, name) if before else ()
        for port in _ports(wanted, name):
            if port not in current and not port_is_free(port):
                raise _port_in_use(name, port)
    settled = wanted
    for name in (BATCH, BLOB):
        process = find_service(paths, wanted, name)
        if process is not None and name in moving:
            stop_process([process])
        if process is None or name in moving:
            settled = settled.with_record(name, None)
    save_state(paths, settled)
    return settled


def _stop_outdated(
    paths: HomePaths,
    state: LocalState,
    launches: Iterable[ServiceLaunch],
    on_progress: OnProgress,
) -> LocalState:
    """Stop services that another version of runner started in another way. Return the new state."""
    for launch in launches:
        process = find_process(state.record(launch.name), launch.marker)
        if process is not None and services.is_outdated(process, launch):
            title = services.TITLES[launch.name]
            text = f"restarting {title} of another version of runner"
            on_progress(Progress("services", "progress", text))
            stop_process([process])
            state = state.with_record(launch.name, None)
    save_state(paths, state)
    return state


def _ensure_started(
    paths: HomePaths, state: LocalState, launch: ServiceLaunch, port: int
) -> LocalState:
    """Start the service unless it runs, and wait until it responds. Return the new state."""
    log_start = services.log_size(launch.log)
    record = state.record(launch.name)
    if record is None:
        orphan = _adoptable(launch, port)
        record = orphan or _start_process(launch, port)
        state = state.with_record(launch.name, record)
        try:
            save_state(paths, state)
        except RunnerError:
            if orphan is None:  # no later command could stop a process without a record
                stop_process(find_leftovers(launch.marker))
            raise
    services.wait_ready(launch, record, state, log_start)
    return state


def _adoptable(launch: ServiceLaunch, port: int) -> ProcessRecord | None:
    """Return this home's service that listens on the port, unless it must be restarted."""
    found = find_orphan(port, launch.marker)
    process = find_process(found, launch.marker)
    outdated = process is not None and services.is_outdated(process, launch)
    return None if outdated else found


def _start_process(launch: ServiceLaunch, port: int) -> ProcessRecord:
    stop_process(
        find_leftovers(launch.marker)
    )  # two services would damage the data that they share
    if not port_is_free(port):
        raise _port_in_use(launch.name, port)
    return spawn(launch)


def _port_in_use(name: str, port: int) -> RunnerError:
    owner = port_owner(port)
    option = "--port" if name == BATCH else "--blob-port"
    return RunnerError(
        "R-LOCAL-PORT",
        f"port {port} of {services.TITLES[name]} is in use",
        why=f"{owner} listens on it" if owner else "another program listens on it",
        fix=f"stop that program, or use another port: runner local up {option} {choose_port()}",
        exit_code=ExitCode.PREFLIGHT,
    )


def make_folders(paths: HomePaths) -> None:
    """Create the folders of the services with mode 700, regardless of the umask.

    If root runs the services, tasks have a separate user, who needs access to nodes and cache.
    """
    for folder in (paths.local, paths.logs, paths.batch_data, paths.blob_data, paths.cache):
        try:
            make_private(folder)
        except OSError as err:
            raise not_writable(folder, err) from err
    for folder in (paths.logs, paths.blob_data):
        folder.chmod(0o700)
    passed = 0o711 if os.geteuid() == 0 else 0o700
    paths.local.chmod(passed)
    for folder in (paths.home, paths.cache):
        found = folder.stat()
        mode = stat.S_IMODE(found.st_mode)
        if found.st_uid == os.geteuid() and (mode == 0o700 or mode & 0o022):
            folder.chmod(passed)


def _check_range(option: str, value: int | None, low: int, high: int) -> None:
    if value is not None and not low <= value <= high:
        raise RunnerError(
            "R-LOCAL-SIZE",
            f"{option} {value} is out of range",
            fix=f"use {option} between {low} and {high}",
        )


def _fixed(state: LocalState, name: str) -> tuple[object, ...]:
    """Return the settings that a service keeps while it runs.

    The emulator knows the port of Azurite, and names it to tasks.
    """
    if name != BATCH:
        return _ports(state, name)
    own = (state.blob_port, state.azure_names, state.faults, state.faults_digest, state.images)
    return (*_ports(state, name), *own)


def _ports(state: LocalState, name: str) -> tuple[int, ...]:
    if name != BATCH:
        return (state.blob_port,)
    page = (state.ui_port,) if state.ui_port else ()
    return (state.batch_port, state.files_port, *page)
