"""The parts of the local services that need neither the emulator nor Azurite."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from runner.azure.auth import credentials
from runner.cli.main import main
from runner.core.file_lock import file_lock
from runner.core.home import HomePaths
from runner.core.progress import Progress, ignore_progress
from runner.core.settings import Settings, load_settings
from runner.flows import active_work
from runner.flows.active_work import ActiveWork
from runner.flows.local import azurite, lifecycle, services, start
from runner.flows.local import state as local_state
from runner.flows.local.lifecycle import StoppedServices
from runner.flows.local.services import (
    ServiceLaunch,
    choose_port,
    find_orphan,
    last_error,
    port_is_free,
    port_owner,
    spawn,
    stop_process,
)
from runner.flows.local.start import make_folders, wanted_state
from runner.flows.local.state import (
    SEED,
    LocalState,
    ProcessRecord,
    ensure_keys,
    ensure_seed,
    find_process,
    load_isolation,
    load_state,
    make_node_cache,
    pool_spec,
    save_state,
    service_answers,
)
from runner.node.distributed.rendezvous import FIRST_PORT, PORTS
from runner.protocol.errors import RunnerError
from tests.disks import Disk

_SERVER = """
import socket, sys, time
server = socket.socket(); server.bind(("127.0.0.1", 0)); server.listen()
print(server.getsockname()[1], flush=True)
time.sleep(600)
"""


@pytest.fixture
def paths(tmp_path: Path) -> HomePaths:
    return HomePaths(tmp_path / "home")


@pytest.fixture
def server(tmp_path: Path) -> Generator[tuple[ServiceLaunch, ProcessRecord, int]]:
    """Yield a process with a marker, and the port on which it listens."""
    launch = ServiceLaunch(
        name="batch",
        arguments=[sys.executable, "-c", _SERVER, str(tmp_path / "data")],
        environment=dict(os.environ),
        log=tmp_path / "logs" / "batch.log",
        marker=str(tmp_path / "data"),
    )
    record = spawn(launch)
    text = ""
    while not text.endswith("\n"):
        assert psutil.pid_exists(record.pid)
        text = launch.log.read_text()
    yield launch, record, int(text)
    if psutil.pid_exists(record.pid):
        psutil.Process(record.pid).kill()
        psutil.Process(record.pid).wait()


def test_started_process_has_its_own_session_and_is_found_again(
    server: tuple[ServiceLaunch, ProcessRecord, int],
) -> None:
    launch, record, _ = server
    assert os.getsid(record.pid) == record.pid
    found = find_process(record, launch.marker)
    assert found is not None
    assert found.pid == record.pid


def test_recycled_pid_is_not_treated_as_ours(
    server: tuple[ServiceLaunch, ProcessRecord, int],
) -> None:
    _, record, _ = server
    assert find_process(ProcessRecord(record.pid, record.created - 100), "no such marker") is None
    assert find_process(None, "marker") is None


def test_process_is_found_by_its_marker_when_the_clock_was_set(
    server: tuple[ServiceLaunch, ProcessRecord, int],
) -> None:
    launch, record, _ = server
    assert find_process(ProcessRecord(record.pid, record.created - 3600), launch.marker) is not None


def test_zombie_counts_as_a_stopped_process(
    server: tuple[ServiceLaunch, ProcessRecord, int],
) -> None:
    launch, record, port = server
    found = find_process(record, launch.marker)
    assert found is not None
    stop_process([found])
    assert find_process(record, launch.marker) is None
    assert port_is_free(port)


def test_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    stubborn = (
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    log = tmp_path / "log"
    record = spawn(
        ServiceLaunch("batch", [sys.executable, "-c", stubborn], dict(os.environ), log, "x")
    )
    process = psutil.Process(record.pid)
    while "ready" not in log.read_text():
        assert process.status() != psutil.STATUS_ZOMBIE
    stop_process([process], grace_s=0.2)
    assert find_process(record, "x") is None


def test_owner_of_a_port_is_named_and_our_orphan_is_adopted(
    server: tuple[ServiceLaunch, ProcessRecord, int],
) -> None:
    launch, record, port = server
    assert not port_is_free(port)
    assert str(record.pid) in port_owner(port)
    adopted = find_orphan(port, launch.marker)
    assert adopted is not None
    assert adopted.pid == record.pid
    assert find_orphan(port, "another home") is None


def test_chosen_ports_avoid_agent_and_ephemeral_ports() -> None:
    first = choose_port()
    second = choose_port((first,))
    assert first != second
    assert all(FIRST_PORT + PORTS <= port < 32_768 for port in (first, second))


def test_keys_are_random_private_and_stored(paths: HomePaths, tmp_path: Path) -> None:
    keys = ensure_keys(paths)
    assert ensure_keys(paths) == keys
    assert keys != ensure_keys(HomePaths(tmp_path / "other"))
    assert len(set(keys.values())) == 3
    assert stat.S_IMODE(paths.keys.stat().st_mode) == 0o600


@pytest.mark.attack
def test_keys_of_an_earlier_version_get_a_private_seed(paths: HomePaths) -> None:
    paths.keys.parent.mkdir(parents=True)
    paths.keys.write_text('{"batch": "a", "storage": "b"}')
    paths.keys.chmod(0o644)
    assert ensure_keys(paths) == {"batch": "a", "storage": "b"}  # only a start adds the seed
    keys = ensure_seed(paths, ensure_keys(paths))
    assert ensure_seed(paths, keys) == keys == ensure_keys(paths)
    assert (keys["batch"], keys["storage"], len(keys[SEED]) > 80) == ("a", "b", True)
    assert stat.S_IMODE(paths.keys.stat().st_mode) == 0o600


@pytest.mark.parametrize("exists", [False, True])
def test_folders_are_private_under_any_umask(tmp_path: Path, exists: bool) -> None:
    paths = HomePaths(tmp_path / "new" / "home")
    before = os.umask(0)
    try:
        if exists:
            paths.cache.mkdir(parents=True)
        with file_lock(paths.local_lock, what="starting", timeout_s=1):
            make_folders(paths)
    finally:
        os.umask(before)
    passed = 0o711 if os.geteuid() == 0 else 0o700
    assert {path.stat().st_mode & 0o777 for path in (paths.home, paths.cache)} == {passed}
    assert paths.local.stat().st_mode & 0o777 == passed
    closed = {path.stat().st_mode & 0o777 for path in (paths.logs, paths.batch_data)}
    assert closed == {0o700}
    assert paths.local_lock.stat().st_mode & 0o777 == 0o600


def test_state_survives_and_damage_is_named(paths: HomePaths) -> None:
    assert load_state(paths) is None
    state = LocalState(1, 2, 3, 4, ProcessRecord(5, 6.5), None)
    save_state(paths, state)
    assert load_state(paths) == state
    for text in ("{", "[]", '{"batch": null, "blob": null}'):
        paths.local_state.write_text(text)
        with pytest.raises(RunnerError) as caught:
            load_state(paths)
        assert caught.value.code == "R-LOCAL-STATE"


def test_stored_sizes_are_kept_unless_options_are_given() -> None:
    before = LocalState(25001, 25002, nodes=3, slots=2, files_port=choose_port((25001, 25002)))
    assert wanted_state(before, None, None, None, None) == before
    changed = wanted_state(before, 0, 4, 25003, None)
    assert (changed.nodes, changed.slots) == (0, 4)
    assert (changed.batch_port, changed.blob_port) == (25003, 25002)


_SECRETS = {"batch": "secret", "storage": "secret", SEED: "secret"}


def test_azure_names_are_kept_until_disabled(paths: HomePaths) -> None:
    before = LocalState(25001, 25002, nodes=1, slots=1, files_port=3, azure_names=True)
    kept = wanted_state(before, None, None, None, None)
    off = wanted_state(before, None, None, None, None, azure_names=False)
    assert (kept.azure_names, off.azure_names) == (True, False)
    words = [services.batch_launch(paths, one, _SECRETS) for one in (kept, off)]
    assert ["--azure-names" in launch.arguments for launch in words] == [True, False]


def test_page_is_kept_on_its_port_until_disabled(paths: HomePaths) -> None:
    before = LocalState(25001, 25002, nodes=1, slots=1, files_port=choose_port((25001, 25002)))
    on = wanted_state(before, None, None, None, None, ui=True)
    assert on.ui_port not in (0, 25001, 25002, before.files_port)
    kept = wanted_state(on, None, None, None, None)
    off = wanted_state(on, None, None, None, None, ui=False)
    assert (before.ui_port, kept.ui_port, off.ui_port) == (0, on.ui_port, 0)
    words = [services.batch_launch(paths, one, _SECRETS).arguments for one in (kept, off)]
    assert [("--ui" in given, str(on.ui_port) in given) for given in words] == [
        (True, True),
        (False, False),
    ]


def test_state_without_a_page_can_be_read_by_earlier_versions(paths: HomePaths) -> None:
    state = LocalState(25001, 25002, nodes=1, slots=1, files_port=3)
    save_state(paths, state)
    assert "ui_port" not in paths.local_state.read_text()
    with_page = replace(state, ui_port=4)
    save_state(paths, with_page)
    assert load_state(paths) == with_page


def test_state_without_a_files_port_gets_one() -> None:
    before = LocalState(25001, 25002, nodes=3, slots=2)
    wanted = wanted_state(before, None, None, None, None)
    assert wanted.files_port not in (0, 25001, 25002)
    assert wanted.file_endpoint == f"http://127.0.0.1:{wanted.files_port}/runnerlocal"


def test_first_sizes_are_one_node_with_half_the_cores() -> None:
    first = wanted_state(None, None, None, None, None)
    assert first.nodes == 1
    assert first.slots == max(1, (os.cpu_count() or 1) // 2)


@pytest.mark.parametrize(
    ("nodes", "slots", "port", "blob_port"),
    [
        (-1, None, None, None),
        (None, 0, None, None),
        (None, None, 70000, None),
        (None, None, 25001, 25001),
    ],
)
def test_sizes_and_ports_out_of_range_are_refused(
    nodes: int | None, slots: int | None, port: int | None, blob_port: int | None
) -> None:
    with pytest.raises(RunnerError):
        wanted_state(None, nodes, slots, port, blob_port)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"batch": 5, "storage": "x"}'])
def test_damaged_keys_are_an_expected_error(paths: HomePaths, text: str) -> None:
    paths.local.mkdir(parents=True)
    paths.keys.write_text(text)
    with pytest.raises(RunnerError) as caught:
        ensure_keys(paths)
    assert caught.value.code == "R-LOCAL-KEYS"


_STATE = LocalState(1, 2, nodes=1, slots=1, files_port=3)


def test_keys_are_not_on_command_lines(paths: HomePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_OPTIONS", "--inspect")
    program = azurite.AzuriteProgram(Path("/node"), Path("/main.js"))
    for launch in (
        services.batch_launch(paths, _STATE, _SECRETS),
        services.blob_launch(paths, 2, _SECRETS, program),
    ):
        assert not [word for word in launch.arguments if "secret" in word]
        assert launch.marker in launch.arguments
        assert [name for name, value in launch.environment.items() if "secret" in value]
    blob = services.blob_launch(paths, 2, _SECRETS, program)
    assert "--disableTelemetry" in blob.arguments
    assert "NODE_OPTIONS" not in blob.environment


def test_services_and_tasks_reach_each_other_past_a_proxy(
    paths: HomePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "intranet,127.0.0.1")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    program = azurite.AzuriteProgram(Path("/node"), Path("/main.js"))
    for launch in (
        services.batch_launch(paths, _STATE, _SECRETS),
        services.blob_launch(paths, 2, _SECRETS, program),
    ):
        direct = {launch.environment[name] for name in ("no_proxy", "NO_PROXY")}
        assert direct == {"intranet,127.0.0.1,localhost"}


def test_start_task_links_a_cache_that_outlives_the_node(paths: HomePaths, tmp_path: Path) -> None:
    spec = pool_spec(LocalState(1, 2, nodes=1, slots=1), "key", make_node_cache(paths, None))
    import shlex

    shared = tmp_path / "shared"
    command = shlex.split(spec.start_command)
    environment = {**dict(spec.start_env), "AZ_BATCH_NODE_SHARED_DIR": str(shared)}
    for path in (os.environ["PATH"], "/usr/bin:/bin"):
        for _ in range(2):  # a reboot runs it again
            subprocess.run(command, env={**environment, "PATH": path}, check=True)
    assert (shared / "runner" / "cache").resolve() == paths.cache.resolve()
    assert os.access(shared / "runner" / "bin" / "uv", os.X_OK)


def test_lock_is_exclusive_and_released(tmp_path: Path) -> None:
    order: list[str] = []
    held, waited = threading.Event(), threading.Event()

    def second() -> None:
        held.wait(120)
        with file_lock(tmp_path / "lock", what="x", timeout_s=300, on_wait=waited.set):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with file_lock(tmp_path / "lock", what="x", timeout_s=1):
        held.set()
        assert waited.wait(120)
        order.append("first")
    thread.join(120)
    assert order == ["first", "second"]


def test_lock_that_is_never_freed_is_an_error(tmp_path: Path) -> None:
    with (
        file_lock(tmp_path / "lock", what="x", timeout_s=1),
        pytest.raises(RunnerError, match="another runner process has been busy"),
        file_lock(tmp_path / "lock", what="busy", timeout_s=0.1),
    ):
        pass


def _npm(folder: Path, body: str) -> azurite.NodejsRuntime:
    """Return a stand-in for npm, which fails on request."""
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{body}\n")
    npm.chmod(0o755)
    return azurite.NodejsRuntime(Path(sys.executable), (str(npm),))


_INSTALLS = """
mkdir -p node_modules/azurite/dist/src/blob
touch node_modules/azurite/dist/src/blob/main.js
echo once >> "$COUNT"
"""


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[azurite.NodejsRuntime]:
    """Return a list whose element is the Node.js runtime that an installation of Azurite finds."""
    box = [_npm(tmp_path, _INSTALLS)]
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    monkeypatch.setattr(azurite, "ensure_nodejs", lambda *_: box[0])
    return box


def test_concurrent_installations_of_azurite_run_once(
    paths: HomePaths, tmp_path: Path, runtime: list[azurite.NodejsRuntime]
) -> None:
    assert runtime
    threads = [
        threading.Thread(target=azurite.ensure_azurite, args=(paths, ignore_progress))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    program = azurite.ensure_azurite(paths, ignore_progress)
    assert program.script.is_file()
    assert (tmp_path / "count").read_text() == "once\n"


def test_failed_installation_leaves_no_files_and_is_explained(
    paths: HomePaths, tmp_path: Path, runtime: list[azurite.NodejsRuntime]
) -> None:
    good = runtime[0]
    runtime[0] = _npm(
        tmp_path,
        "mkdir node_modules\n"
        "echo 'npm error code ENOTFOUND\nnpm error syscall connect\nnpm error no net' >&2\n"
        "exit 1",
    )
    steps: list[Progress] = []
    with pytest.raises(RunnerError) as caught:
        azurite.ensure_azurite(paths, steps.append)
    assert caught.value.why == "no net"
    assert steps[-1].state == "failed"
    assert [path.name for path in paths.azurite("x").parent.iterdir()] == [".lock"]
    runtime[0] = _npm(tmp_path, _INSTALLS)
    assert good
    assert azurite.ensure_azurite(paths, ignore_progress).script.is_file()


def _of_earlier_lock(paths: HomePaths) -> Path:
    azurite.ensure_azurite(paths, ignore_progress)
    lock = paths.azurite(azurite.VERSION) / "package-lock.json"
    lock.write_text("{}")
    return lock


def test_packages_of_an_earlier_lock_file_are_renewed(
    paths: HomePaths, tmp_path: Path, runtime: list[azurite.NodejsRuntime]
) -> None:
    assert runtime
    lock = _of_earlier_lock(paths)
    for _ in range(2):
        azurite.ensure_azurite(paths, ignore_progress)
    assert (tmp_path / "count").read_text() == "once\nonce\n"
    assert '"azurite"' in lock.read_text()


def test_packages_of_an_earlier_lock_file_are_used_without_a_network(
    paths: HomePaths, tmp_path: Path, runtime: list[azurite.NodejsRuntime]
) -> None:
    _of_earlier_lock(paths)
    runtime[0] = _npm(tmp_path, "echo 'npm error no net' >&2\nexit 1")
    steps: list[Progress] = []
    assert azurite.ensure_azurite(paths, steps.append).script.is_file()
    assert "no net; using the old ones" in steps[-1].message


@pytest.mark.parametrize("is_ours", [True, False])
def test_our_nodejs_trusts_the_certificates_of_the_system(
    paths: HomePaths, tmp_path: Path, runtime: list[azurite.NodejsRuntime], *, is_ours: bool
) -> None:
    script = f'{_INSTALLS}\necho "$NODE_OPTIONS $npm_config_fetch_retries" > "$COUNT"'
    runtime[0] = replace(_npm(tmp_path, script), is_ours=is_ours)
    azurite.ensure_azurite(paths, ignore_progress)
    options, retries = (tmp_path / "count").read_text().rstrip("\n").split(" ")
    assert (options == "--use-system-ca") == is_ours
    assert retries == "3"


def test_lock_file_of_azurite_has_hashes_and_no_registry_address() -> None:
    folder = Path(azurite.__file__).parent / "azurite_package"
    text = (folder / "package-lock.json").read_text()
    assert '"resolved"' not in text
    assert text.count('"integrity"') > 100
    assert text.count('node_modules/axios": {') == 1  # none of its own below adal-node
    assert f'"azurite": "{azurite.VERSION}"' in (folder / "package.json").read_text()


def test_old_node_js_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, answer in (("node", "18.20.0 /usr/bin/node"), ("npm", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{answer}'\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(azurite, "find_uv", lambda: None)
    with pytest.raises(RunnerError) as caught:
        azurite.ensure_nodejs(HomePaths(tmp_path / "home"), ignore_progress)
    assert caught.value.code == "R-LOCAL-NODE"
    assert "20" in caught.value.fix


def test_missing_extra_names_the_pip_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"RUNNER_HOME": str(tmp_path), "RUNNER_CONFIG": str(tmp_path / "c.yaml")}
    (tmp_path / "c.yaml").touch()
    settings = load_settings({}, cwd=tmp_path, env=env)
    monkeypatch.setattr(local_state, "_PACKAGES", ("psutil", "no_such_package_here"))
    with pytest.raises(RunnerError) as caught:
        lifecycle.up(settings, ignore_progress)
    assert caught.value.fix.endswith("pip install 'azure-batch-runner[local]'")
    assert "no_such_package_here" in caught.value.why


def test_silent_port_does_not_answer() -> None:
    with socket.socket() as quiet:
        quiet.bind(("127.0.0.1", 0))
        quiet.listen()
        port = quiet.getsockname()[1]
        state = LocalState(port, port, 1, 1)
        assert not service_answers("batch", state, timeout_s=0.1)
        assert not service_answers("blob", state, timeout_s=0.1)


def test_service_that_fails_to_start_shows_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier start\n")
    start = services.log_size(log)
    launch = ServiceLaunch(
        "batch", [sys.executable, "-c", "raise SystemExit('no disk')"], dict(os.environ), log, "x"
    )
    record = spawn(launch)
    with pytest.raises(RunnerError) as caught:
        services.wait_ready(launch, record, LocalState(9, 9, 1, 1), start)
    assert caught.value.why == "no disk"
    assert str(log) in caught.value.fix


def test_start_on_a_full_disk_names_it_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(monkeypatch)
    settings = load_settings({}, cwd=tmp_path, env={"RUNNER_HOME": str(tmp_path / "home")})
    disk.fill()
    with pytest.raises(RunnerError) as caught:
        lifecycle.up(settings, ignore_progress)
    assert caught.value.code == "R-DISK-FULL"
    assert caught.value.what == f"cannot write to {tmp_path / 'home' / 'local'}"
    assert "4,096 of 4,294,967,296 bytes free" in caught.value.why
    assert not (tmp_path / "home" / "local").exists()


def test_service_on_a_full_disk_is_not_awaited(
    server: tuple[ServiceLaunch, ProcessRecord, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, record, _ = server
    Disk(monkeypatch).fill()
    with pytest.raises(RunnerError) as caught:
        services.wait_ready(launch, record, LocalState(9, 9, 1, 1), 0)
    assert caught.value.code == "R-DISK-FULL"


@pytest.mark.parametrize("chosen", [True, False])
def test_start_is_repeated_with_another_port_if_one_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: bool
) -> None:
    settings = load_settings({}, cwd=tmp_path, env={"RUNNER_HOME": str(tmp_path / "home")})
    seen: list[Progress] = []
    ports: list[int] = []
    with socket.socket() as other:

        def take_the_first(
            _paths: object, _before: object, wanted: LocalState, _on_event: object
        ) -> str:
            ports.append(wanted.batch_port)
            if len(ports) == 1:
                other.bind(("127.0.0.1", wanted.batch_port))
                other.listen()
                raise RunnerError("R-LOCAL-START", "the Azure Batch emulator ended while starting")
            return "created"

        monkeypatch.setattr(start, "start", take_the_first)
        port = None if chosen else services.choose_port()
        with nullcontext() if chosen else pytest.raises(RunnerError, match="ended while starting"):
            lifecycle.up(settings, seen.append, port=port)
    assert len(set(ports)) == (2 if chosen else 1)
    assert [event.state for event in seen] == ["end" if chosen else "failed"]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Return settings of services whose processes exist."""
    settings = load_settings({}, cwd=tmp_path, env={"RUNNER_HOME": str(tmp_path / "home")})
    save_state(HomePaths(settings.home), LocalState(9, 9, 1, 1))
    monkeypatch.setattr(lifecycle, "find_service", lambda *_: SimpleNamespace(pid=1))
    monkeypatch.setattr(credentials, "connect", lambda _: None)
    return settings


def test_services_that_do_not_answer_are_stopped_anyway(
    ran: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = threading.Event()

    def hang(*_: object) -> ActiveWork:
        stopped.wait()
        raise RunnerError("R-SERVICE-DOWN", "the service was stopped")

    monkeypatch.setattr(active_work, "find_active", hang)
    monkeypatch.setattr(lifecycle, "stop_process", lambda _: stopped.set())
    monkeypatch.setattr(lifecycle, "_ACTIVE_WITHIN_S", 0.01)
    assert lifecycle.down(ran, ignore_progress) == StoppedServices(ran=True)
    assert stopped.is_set()


@pytest.mark.parametrize("count", [1, 5, 6])
def test_down_names_what_starts_again(
    ran: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    ids = [f"mnist-x{number}" for number in range(count)]
    stopped: list[object] = []
    monkeypatch.setenv("RUNNER_HOME", str(ran.home))
    monkeypatch.setattr(active_work, "find_active", lambda *_: ActiveWork(ids, []))
    monkeypatch.setattr(lifecycle, "stop_process", stopped.extend)
    monkeypatch.setattr(lifecycle, "_ACTIVE_WITHIN_S", 600)
    assert main(["local", "down"]) == 0
    assert len(stopped) == 2
    shown = " ".join(capsys.readouterr().err.split())
    more = " and more" if count > 5 else ""
    assert f"unfinished: {', '.join(ids[:5])}{more}; they start again" in shown


def test_emulator_without_an_answer_does_not_count_as_an_old_one() -> None:
    port = choose_port(())
    with pytest.raises(RunnerError, match="does not respond") as raised:
        load_isolation(LocalState(port, port, nodes=1, slots=1))
    assert raised.value.fix == "runner local status"


@pytest.mark.parametrize(
    ("log", "why", "fix"),
    [
        ("", "it printed nothing", ""),
        ("Traceback\nModuleNotFoundError: No module named 'x'\n", "ModuleNotFoundError", ""),
        ("error: cannot use /data: locked\n", "cannot use /data: locked", ""),
        ("error: cannot isolate\n  why: a: b\n  fix: export X=1\n", "isolate: a: b", "export X=1"),
    ],
)
def test_error_of_a_service_that_ended_is_its_own(log: str, why: str, fix: str) -> None:
    said = last_error(log)
    assert why in said[0]
    assert said[1] == fix


def test_damaged_keys_are_replaced_for_services_that_do_not_run(paths: HomePaths) -> None:
    paths.local.mkdir(parents=True)
    paths.keys.write_text("{")
    keys = ensure_keys(paths, renew=True)
    assert ensure_keys(paths) == keys


def test_installations_need_no_writable_home(
    paths: HomePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(paths.home.parent))
    monkeypatch.delenv("UV_CACHE_DIR", raising=False)
    names = {"npm_config_cache", "UV_CACHE_DIR"}
    assert not names & azurite.npm_variables(paths).keys()
    monkeypatch.setenv("HOME", "/nonexistent")
    found = azurite.npm_variables(paths)
    assert {Path(found[name]).parent for name in names} == {paths.cache}
    monkeypatch.setenv("UV_CACHE_DIR", "/var/cache/uv")
    assert azurite.npm_variables(paths)["UV_CACHE_DIR"] == "/var/cache/uv"
