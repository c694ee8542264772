"""Start, stop and check the local services: the Azure Batch emulator and Azurite together."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import NoReturn

from runner.azure.auth.credentials import load_outputs
from runner.contract import StackOutputs
from runner.core.file_lock import file_lock
from runner.core.home import HomePaths, disk_reserve, not_writable
from runner.core.progress import OnProgress, Progress
from runner.core.settings import Settings
from runner.flows.child_python import command_of
from runner.flows.local.emulator_options import EmulatorOptions, with_files
from runner.flows.local.services import find_leftovers, stop_process
from runner.flows.local.state import (
    ACCOUNT,
    BATCH,
    BLOB,
    SEED,
    SEED_VARIABLE,
    LocalState,
    all_respond,
    check_extra,
    ensure_keys,
    find_service,
    load_isolation,
    load_state,
    local_outputs,
    new_page_link,
    refusal,
    save_state,
    service_answers,
    service_marker,
    services_down,
)
from runner.flows.local.task_folders import task_folder
from runner.protocol.errors import RunnerError
from runner.protocol.host import remove_tree

_STAGE = "services"
# Another program can take a chosen port before the service listens on it.
_PORT_TRIES = 4
_LOCK_TIMEOUT_S = 1200.0  # seconds: a first start may install Azurite over a slow connection
_ACTIVE_WITHIN_S = 5.0  # seconds: stopping services that do not answer takes that much longer


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The state of one service; `pid` is None if it does not run."""

    name: str
    state: str
    pid: int | None
    endpoint: str
    log: str


@dataclass(frozen=True, slots=True)
class LocalStatus:
    """The state of both services and their sizes; `isolation` of tasks is empty if they stopped."""

    running: bool
    services: tuple[ServiceStatus, ...]
    nodes: int
    slots: int
    home: str
    isolation: str = ""
    refusal: str = ""  # why the emulator starts no tasks, such as a full disk
    page: str = ""  # after a start, a link that signs one browser in to the emulator's page
    faults: str = ""  # path of the rules for faults on purpose
    images: tuple[str, ...] = ()  # REFERENCE=FOLDER of node images


def expected_outputs(settings: Settings) -> StackOutputs:
    """Return the outputs of the target, or those that local services will have once set up."""
    try:
        return load_outputs(settings)
    except RunnerError as err:
        if not settings.target.runs_here or err.code not in ("R-STACK-MISSING", "R-STACK-OUTPUTS"):
            raise
    from runner.flows.local import start  # noqa: PLC0415  loads the SDKs and psutil

    before = load_state(HomePaths(settings.home))
    return local_outputs(start.wanted_state(before, None, None, None, None))


def up(
    settings: Settings,
    on_progress: OnProgress,
    *,
    nodes: int | None = None,
    slots: int | None = None,
    port: int | None = None,
    blob_port: int | None = None,
    options: EmulatorOptions | None = None,
) -> LocalStatus:
    """Start both services, and create the containers and the pool. None keeps the earlier value."""
    from runner.flows.local import start  # noqa: PLC0415  loads the SDKs and psutil

    check_extra()
    options = options or EmulatorOptions()
    with _locked(settings, on_progress):
        paths = HomePaths(settings.home)
        before = load_state(paths)
        tries = 0
        while True:
            tries += 1
            names, ui = options.azure_names, options.ui
            wanted = start.wanted_state(before, nodes, slots, port, blob_port, names, ui=ui)
            wanted = with_files(paths, wanted, before, options)
            try:
                pool = start.start(paths, before, wanted, on_progress)
                break
            except BaseException as err:  # also Ctrl-C in the middle of a download
                start.undo(paths, before)
                chosen = start.chosen_ports(before, wanted, given=(port, blob_port))
                again = tries < _PORT_TRIES and isinstance(err, RunnerError)
                if again and start.is_port_taken(chosen):
                    continue
                on_progress(Progress(_STAGE, "failed", "the local services did not start"))
                raise
        again = ": its tasks start again" if pool == "recreated" else ""
        on_progress(Progress(_STAGE, "end", f"local services ready, pool {pool}{again}"))
    link = new_page_link(wanted, ensure_keys(paths)["batch"])
    return dataclasses.replace(status(settings), page=link)


@dataclass(frozen=True, slots=True)
class StoppedServices:
    """What `down` stopped. `active` names unfinished runs, sweeps, groups and other tasks.

    It is empty if the services did not answer soon enough.
    """

    ran: bool
    active: Sequence[str] = ()


def down(settings: Settings, on_progress: OnProgress) -> StoppedServices:
    """Stop both services."""
    check_extra()
    paths = HomePaths(settings.home)
    if load_state(paths) is None:
        return StoppedServices(ran=False)
    with disk_reserve(paths), _locked(settings, on_progress):
        state = load_state(paths)
        runs = state and all(find_service(paths, state, name) for name in (BATCH, BLOB))
        active = _find_active(settings) if runs else ()
        return StoppedServices(_stop_all(paths, on_progress), active)


def _find_active(settings: Settings) -> Sequence[str]:
    """Return the names of unfinished work, or nothing if the services do not answer soon."""
    found: list[str] = []

    def find() -> None:
        from runner.azure.auth.credentials import connect  # noqa: PLC0415  loads the SDKs
        from runner.flows.active_work import find_active  # noqa: PLC0415  as above

        with suppress(RunnerError):
            found.extend(find_active(connect(settings), None).names)

    # Requests to a service that hangs take minutes. They fail as soon as it is stopped.
    thread = threading.Thread(target=find, daemon=True)
    thread.start()
    thread.join(_ACTIVE_WITHIN_S)
    return tuple(found)


def status(settings: Settings) -> LocalStatus:
    """Return the state of both services."""
    check_extra()
    paths = HomePaths(settings.home)
    state = load_state(paths)
    if state is None:
        return LocalStatus(False, (), 0, 0, str(settings.home))
    found = tuple(_service_status(paths, state, name) for name in (BATCH, BLOB))
    running = all(service.state == "running" for service in found)
    isolation = _isolation_text(state) if running else ""
    refused = (refusal(state) or "") if found[0].pid is not None else ""
    sizes = (state.nodes, state.slots)
    return LocalStatus(
        running,
        found,
        *sizes,
        str(settings.home),
        isolation,
        refused,
        faults=state.faults,
        images=state.images,
    )


def _isolation_text(state: LocalState) -> str:
    try:
        isolation = load_isolation(state)
    except RunnerError:  # the emulator has stopped
        return ""
    return "" if isolation is None else str(isolation)


def reset(settings: Settings, on_progress: OnProgress) -> None:
    """Stop the services and delete all their data and keys; caches and data sets remain."""
    check_extra()
    paths = HomePaths(settings.home)
    if not paths.local.exists():
        return
    with _locked(settings, on_progress):
        _stop_everything(paths, on_progress)
        try:
            _delete_outside(paths)
            remove_tree(paths.local)
            if paths.local.exists():
                shutil.rmtree(paths.local)  # raises the reason
        except OSError as err:
            raise not_writable(paths.local, err) from err


def reset_state(settings: Settings, on_progress: OnProgress) -> None:
    """Stop the services and delete pools, jobs and tasks; runs, models, shares and keys remain."""
    check_extra()
    paths = HomePaths(settings.home)
    if not paths.batch_data.exists():
        return
    with _locked(settings, on_progress):
        _stop_everything(paths, on_progress)
        try:
            for name in ("nodes", "trash"):
                remove_tree(task_folder(paths) / name)
            for path in paths.batch_data.glob("state.sqlite*"):
                path.unlink(missing_ok=True)
        except OSError as err:
            raise not_writable(paths.batch_data, err) from err


def _delete_outside(paths: HomePaths) -> None:
    """Delete folders of tasks that the emulator created elsewhere, but not the cache."""
    folder = task_folder(paths)
    if folder != paths.batch_data:
        for name in ("nodes", "trash", "shares", "nfs", "cifs"):
            remove_tree(folder / name)


def shell_env(settings: Settings) -> dict[str, str]:
    """Return the environment variables with which other clients connect."""
    paths = HomePaths(settings.home)
    state = load_state(paths)
    if state is None or not all_respond(settings):
        raise services_down()
    keys = ensure_keys(paths)
    connection = {
        "DefaultEndpointsProtocol": "http",
        "AccountName": ACCOUNT,
        "AccountKey": keys["storage"],
        "BlobEndpoint": state.blob_endpoint,
        "FileEndpoint": state.file_endpoint,
    }
    return {
        "AZURE_BATCH_ACCOUNT": ACCOUNT,
        "AZURE_BATCH_ACCESS_KEY": keys["batch"],
        "AZURE_BATCH_ENDPOINT": state.batch_endpoint,
        "AZURE_STORAGE_ACCOUNT": ACCOUNT,
        "AZURE_STORAGE_KEY": keys["storage"],
        "AZURE_STORAGE_CONNECTION_STRING": "".join(f"{k}={v};" for k, v in connection.items()),
        "AZURE_STORAGE_BLOB_ENDPOINT": state.blob_endpoint,
        "AZURE_STORAGE_FILE_ENDPOINT": state.file_endpoint,
    }


def run_command(settings: Settings, command: Sequence[str], *, azure_names: bool) -> NoReturn:
    """Replace this process by a command with the variables of `shell_env`.

    Args:
        settings: The settings of the target.
        command: A program and its arguments.
        azure_names: Redirect Azure's host names to the local services, for this command only.

    Raises:
        RunnerError: the services are not running, or the program does not exist.
    """
    variables = shell_env(settings)
    words = list(command)
    if azure_names:
        options = [
            *("--account", variables["AZURE_BATCH_ACCOUNT"]),
            *("--batch", variables["AZURE_BATCH_ENDPOINT"]),
            *("--blob", variables["AZURE_STORAGE_BLOB_ENDPOINT"]),
            *("--file", variables["AZURE_STORAGE_FILE_ENDPOINT"]),
        ]
        words = command_of("batch_emulator.gateway", *options, "--", *command)
        variables[SEED_VARIABLE] = ensure_keys(HomePaths(settings.home)).get(SEED, "")
    sys.stdout.flush()
    sys.stderr.flush()
    ignored = signal.signal(
        signal.SIGPIPE, signal.SIG_DFL
    )  # the program would inherit from Python that the signal is ignored
    try:
        os.execvpe(words[0], words, {**os.environ, **variables})  # noqa: S606 - no shell is needed
    except OSError as err:
        signal.signal(signal.SIGPIPE, ignored)
        raise RunnerError(
            "R-LOCAL-EXEC",
            f"cannot run {words[0]}",
            why=err.strerror or str(err),
            fix="check the name of the program",
        ) from err


def _service_status(paths: HomePaths, state: LocalState, name: str) -> ServiceStatus:
    process = find_service(paths, state, name)
    answering = process is not None and service_answers(name, state)
    idle = "stopped" if state.record(name) is None else "died"
    return ServiceStatus(
        name=name,
        state="running" if answering else "not answering" if process else idle,
        pid=process.pid if process else None,
        endpoint=state.batch_endpoint if name == BATCH else state.blob_endpoint,
        log=str(paths.logs / ("batch.log" if name == BATCH else "azurite.log")),
    )


def _stop_all(paths: HomePaths, on_progress: OnProgress) -> bool:
    state = load_state(paths)
    if state is None:
        return False
    found = [find_service(paths, state, name) for name in (BATCH, BLOB)]
    processes = [process for process in found if process is not None]
    if processes:
        on_progress(Progress(_STAGE, "start", "stopping the local services"))
        stop_process(processes)
        on_progress(Progress(_STAGE, "end", "local services stopped"))
    save_state(paths, dataclasses.replace(state, batch=None, blob=None))
    return bool(processes)


def _stop_everything(paths: HomePaths, on_progress: OnProgress) -> None:
    """Stop the services, even if the state file is damaged and does not name them."""
    try:
        _stop_all(paths, on_progress)
    except RunnerError as err:
        on_progress(Progress(_STAGE, "progress", err.what))
    for name in (BATCH, BLOB):
        stop_process(find_leftovers(service_marker(paths, name)))


def _locked(settings: Settings, on_progress: OnProgress) -> AbstractContextManager[None]:
    def on_wait() -> None:
        on_progress(
            Progress(
                _STAGE, "start", "waiting for another runner process that starts or stops them"
            )
        )

    return file_lock(
        HomePaths(settings.home).local_lock,
        what="starting or stopping the local services",
        timeout_s=_LOCK_TIMEOUT_S,
        on_wait=on_wait,
    )
