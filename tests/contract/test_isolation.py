"""Tasks cannot reach the Python, the key and the files of the emulator."""

from __future__ import annotations

import errno
import io
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models

from batch_emulator.executor import isolation
from batch_emulator.executor.isolation import Isolation, IsolationError, choose_isolation
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.executor.node_python import own_python, python_for
from batch_emulator.files_share.shares import StorageAccount
from batch_emulator.folders import Owner
from tests import plain_http
from tests.contract.emulation import emulate
from tests.contract.server import KEY, Running, Things, eventually, serving

_CHOSEN = choose_isolation("auto", Path(tempfile.gettempdir(), "emulator-of-tests"))
root_only = pytest.mark.skipif(_CHOSEN.owner is None, reason=_CHOSEN.why)
ADMIN = models.UserIdentity(
    auto_user=models.AutoUserSpecification(elevation_level=models.ElevationLevel.ADMIN)
)
MODES = [pytest.param("user", marks=root_only), "environment"]


@pytest.fixture
def open_folder() -> Generator[Path]:
    """Yield a folder that every user can reach, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory(prefix="isolation-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(params=MODES)
def running(request: pytest.FixtureRequest, open_folder: Path) -> Generator[Running]:
    settings = {"isolation": request.param, "storage": StorageAccount("account", KEY)}
    with serving(open_folder / "data", settings=settings) as running:
        yield running


@pytest.fixture
def things(running: Running) -> Things:
    return Things(running.client)


def run(things: Things, pool: str, script: str, **more: Any) -> str:
    """Run a shell script as a task, which must succeed. Return its output."""
    job = things.job(pool)
    task = things.task(job, f"/bin/sh -c {shlex.quote('set -e; ' + script)}", **more)
    done = things.wait_task(job, task)
    assert done.execution_info is not None
    assert done.execution_info.exit_code == 0, things.text(job, task, "stderr.txt")
    return things.text(job, task)


def wheel(folder: Path, version: str) -> None:
    """Write a wheel of a package that this environment has in another version."""
    info = f"pydantic-{version}.dist-info"
    files = {
        "pydantic/__init__.py": f"VERSION = '{version}'\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: pydantic\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": "",
    }
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    (folder / f"pydantic-{version}-py3-none-any.whl").write_bytes(content.getvalue())


@pytest.mark.slow
def test_software_of_a_start_task_stays_on_its_node(things: Things, open_folder: Path) -> None:
    import pydantic

    wheel(open_folder, "1.10.0")
    install = f"pip3 install --no-index --find-links {open_folder} 'pydantic<2'"
    start = models.BatchStartTask(
        command_line=f"/bin/sh -c {shlex.quote(install)}", wait_for_success=True
    )
    pool = things.pool(target_dedicated_nodes=1, start_task=start)
    things.wait_nodes(pool, 1)
    script = 'python3 -c "import pydantic, sys; print(pydantic.VERSION, sys.prefix)"'
    version, prefix = run(things, pool, script).split()
    assert version == "1.10.0"
    assert Path(prefix).name == "python"
    assert Path(prefix) != Path(sys.prefix)
    assert Path(str(pydantic.__file__)).is_relative_to(sys.prefix)
    assert pydantic.VERSION.startswith("2.")
    other = things.pool(target_dedicated_nodes=1)
    things.wait_nodes(other, 1)
    assert "absent" in run(things, other, 'python3 -c "import pydantic" 2>&1 || echo absent')


@pytest.mark.slow
def test_path_on_a_node_excludes_folders_of_the_emulator(things: Things) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    path = run(things, pool, "echo $PATH; pip3 --version").splitlines()[0].split(":")
    assert path[0].endswith("/python/bin")
    assert path[1:7] == [
        f"{at}/{name}" for at in ("/usr/local", "/usr", "") for name in ("sbin", "bin")
    ]
    assert str(Path(sys.executable).parent) not in path


@root_only
@pytest.mark.parametrize("running", ["user"], indirect=True)
def test_task_of_another_user_cannot_read_private_files(running: Running, things: Things) -> None:
    data = running.emulator.settings.data_dir
    pool = things.pool(target_dedicated_nodes=1)
    looks = "; ".join(f"cat {data / name} && exit 3" for name in ("state.sqlite", "files.sqlite"))
    script = f"{looks}; ls {data} && exit 4; cat /proc/{os.getpid()}/environ && exit 5; id -u"
    script = f"export LC_ALL=C; {script}"
    job = things.job(pool)
    task = things.task(job, f"/bin/sh -c {shlex.quote(script)}")
    things.wait_task(job, task)
    assert things.text(job, task).split() == [str(_owner(running).uid)]
    assert things.text(job, task, "stderr.txt").count("Permission denied") == 4


@root_only
@pytest.mark.parametrize("running", ["user"], indirect=True)
def test_elevated_task_runs_as_the_user_of_the_emulator(things: Things) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    assert run(things, pool, "id -u", user_identity=ADMIN).strip() == "0"
    assert run(things, pool, "id -u; echo $USER").split()[1] == "_azbatch"


def test_task_can_write_to_its_folders_and_those_of_its_node(things: Things) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    folders = " ".join(f"$AZ_BATCH_{name}" for name in ("TASK_DIR", "TASK_WORKING_DIR"))
    shared = "$AZ_BATCH_NODE_SHARED_DIR $AZ_BATCH_NODE_STARTUP_DIR $AZ_BATCH_NODE_MOUNTS_DIR $HOME"
    script = f"for d in {folders} {shared}; do touch $d/mine; done; echo said > /dev/stdout"
    assert run(things, pool, script) == "said\n"


def test_tasks_can_use_files_of_the_job_preparation_task(things: Things) -> None:
    pool = things.pool(target_dedicated_nodes=1)
    prepare = models.BatchJobPreparationTask(command_line="/bin/sh -c 'echo ready > made'")
    job = things.job(pool, job_preparation_task=prepare)
    script = "cat $AZ_BATCH_JOB_PREP_WORKING_DIR/made && rm $AZ_BATCH_JOB_PREP_WORKING_DIR/made"
    task = things.task(job, f"/bin/sh -c '{script}'")
    done = things.wait_task(job, task)
    assert done.execution_info is not None
    assert (done.execution_info.exit_code, things.text(job, task)) == (0, "ready\n")


def test_task_reads_and_writes_a_mounted_share(running: Running, things: Things) -> None:
    shares = running.emulator.shares
    assert shares is not None
    share = models.AzureFileShareConfiguration(
        account_name="account",
        azure_file_url="http://127.0.0.1/account/data",
        account_key=KEY,
        relative_mount_path="data",
    )
    from batch_emulator.files_share.shares import Share

    shares.create(Share("data", 1, 1))
    mounts = [models.MountConfiguration(azure_file_share_configuration=share)]
    pool = things.pool(target_dedicated_nodes=1, mount_configuration=mounts)
    run(things, pool, "echo written > $AZ_BATCH_NODE_MOUNTS_DIR/data/by-a-task")
    assert (shares.path("data") / "by-a-task").read_text() == "written\n"


@pytest.mark.slow
@root_only
@pytest.mark.parametrize("umask", [0o027, 0o077])
def test_tasks_reach_their_folders_under_any_umask_of_root(open_folder: Path, umask: int) -> None:
    with emulate(open_folder / "data", "--isolation", "user", umask=umask) as emulation:
        job = emulation.job()
        done = emulation.run(job, "task", "/bin/sh -c 'echo x > made; python3 -c 1; umask'")
        assert done.execution_info is not None
        assert (done.execution_info.exit_code, emulation.stdout(job, "task")) == (0, "0022\n")


@root_only
def test_closed_node_folders_are_opened_for_their_tasks(open_folder: Path) -> None:
    chosen = choose_isolation("user", open_folder)
    layout = NodeLayout(chosen.folder / "nodes" / "pool" / "node" / "tasks")
    layout.create()
    closed = [layout.root, *layout.root.parents[:3], layout.workitems]
    for folder in closed:
        folder.chmod(0o700)
    chosen.prepare_node(layout)
    assert {folder.stat().st_mode & 0o777 for folder in closed} == {0o755}


def test_nodes_move_out_of_closed_folders_of_root(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        with pytest.raises(IsolationError, match="only root"):
            choose_isolation("user", tmp_path)
        assert choose_isolation("auto", tmp_path).why == "only root can run tasks as another user"
        return
    if _CHOSEN.owner is None:
        pytest.skip(_CHOSEN.why)
    tmp_path.chmod(0o700)
    chosen = choose_isolation("auto", tmp_path / "data")
    assert chosen.mode == "user"
    assert chosen.folder.parent == Path("/var/lib/batch-emulator")


@pytest.mark.parametrize("mode", MODES)
def test_other_users_cannot_read_the_state(open_folder: Path, mode: str) -> None:
    settings = {"isolation": mode, "storage": StorageAccount("account", KEY)}
    umask = os.umask(0)
    try:
        with serving(open_folder / "data", settings=settings):
            data = open_folder / "data"
            modes = {path.name: path.stat().st_mode & 0o777 for path in data.iterdir()}
            way = data.stat().st_mode & 0o777
    finally:
        os.umask(umask)
    assert {"state.sqlite", "state.sqlite-wal", "files.sqlite"} <= modes.keys()
    assert way == (0o700 if mode == "environment" else 0o710)
    databases = [mode for name, mode in modes.items() if ".sqlite" in name]
    assert set(databases) == {0o600}


def test_shares_move_with_a_change_of_isolation(tmp_path: Path) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    (data / "shares" / "s").mkdir(parents=True)
    (data / "nodes" / "pool" / "node").mkdir(parents=True)
    Isolation(elsewhere).settle(data)
    assert (elsewhere / "shares" / "s").is_dir()
    assert not (data / "nodes").exists()
    Isolation(data).settle(data)
    assert (data / "shares" / "s").is_dir()
    assert not (data / "outside").is_symlink()


@pytest.mark.parametrize("steps", range(5))
def test_shares_survive_a_kill_during_a_move_to_another_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    for number in range(3):
        (data / "shares" / f"s{number}").mkdir(parents=True)
    left = iter(range(steps))
    rename, copy = os.rename, shutil.copytree

    def step() -> None:
        if next(left, None) is None:
            raise _KilledError

    def rename_on_one_disk(source: Any, target: Any) -> None:
        step()
        if Path(source).parent != Path(target).parent:
            raise OSError(errno.EXDEV, "another disk")
        rename(source, target)

    def copy_in_part(source: Path, target: Path, **_: Any) -> None:
        target.mkdir()
        for one in sorted(source.iterdir()):
            step()
            copy(one, target / one.name)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", rename_on_one_disk)
        patched.setattr(shutil, "copytree", copy_in_part)
        with pytest.raises(_KilledError):
            Isolation(elsewhere).settle(data)
    Isolation(elsewhere).settle(data)
    assert sorted(path.name for path in (elsewhere / "shares").iterdir()) == ["s0", "s1", "s2"]
    assert not any(data.glob("*shares*"))
    assert not any(data.glob(".*"))


class _KilledError(BaseException):
    """Nothing runs any more."""


def test_health_reports_the_isolation_of_tasks(running: Running) -> None:
    answer = plain_http.get(f"{running.url}/_emulator/health").json()["isolation"]
    assert answer["mode"] == running.emulator.settings.isolation
    assert answer["uid"] == (_owner(running).uid if answer["mode"] == "user" else None)


@root_only
def test_python_in_a_closed_folder_is_not_chosen(tmp_path: Path) -> None:
    owner, closed = _CHOSEN.owner, tmp_path / "closed" / "python3"
    assert owner is not None
    closed.parent.mkdir(mode=0o700)
    closed.symlink_to("/usr/bin/python3")
    copied = closed.with_name("copy")
    copied.write_bytes(Path("/bin/true").read_bytes())
    copied.chmod(0o755)
    assert python_for(owner, [copied]) is None


def test_python_of_a_node_is_created_once(tmp_path: Path) -> None:
    layout = NodeLayout(tmp_path / "node" / "tasks")
    layout.create()
    own_python().make(layout.python, None)
    kept = layout.python / "bin" / "kept"
    kept.touch()
    own_python().make(layout.python, None)
    assert kept.exists()


@root_only
def test_python_of_a_node_is_owned_by_the_user_of_its_tasks(open_folder: Path) -> None:
    owner, folder = _CHOSEN.owner, open_folder / "python"
    assert owner is not None
    own_python().make(folder, None)
    own_python().make(folder, owner)
    assert {path.lstat().st_uid for path in (folder, *folder.rglob("*"))} == {owner.uid}


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return another folder than /var/lib/batch-emulator, without records of emulators."""
    monkeypatch.setattr(isolation, "_OUTSIDE", tmp_path / "records")
    return tmp_path / "records"


def uid_of(data_dir: Path) -> int:
    owner = choose_isolation("user", data_dir).owner
    assert owner is not None
    assert owner.uid == owner.gid
    return owner.uid


def stop(data_dir: Path) -> Path:
    """Release the lock of an emulator, as if its process ended, and return its record."""
    record = isolation._record_of(data_dir)
    isolation._CLAIMS.pop(record).close()
    return record


@root_only
@pytest.mark.attack
def test_each_emulator_has_a_user_of_its_own(records: Path, tmp_path: Path) -> None:
    found = {name: uid_of(tmp_path / name) for name in ("a", "b", "c")}
    assert len(set(found.values())) == len(found)
    assert {name: uid_of(tmp_path / name) for name in found} == found
    stop(tmp_path / "a")
    assert uid_of(tmp_path / "a") == found["a"]
    assert records.stat().st_mode & 0o777 == 0o711
    assert {path.stat().st_mode & 0o077 for path in records.rglob("*")} == {0}


@root_only
def test_two_emulators_that_start_together_have_different_users(
    records: Path, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(uid_of, [tmp_path / str(number) for number in range(8)]))
    assert len(set(found)) == len(found)
    assert len(list(records.iterdir())) == len(found)


@root_only
def test_user_that_has_a_name_or_a_process_is_not_taken(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = isolation._FIRST_UID
    monkeypatch.setattr(isolation, "_uids_of_processes", lambda: {first})
    monkeypatch.setattr(isolation, "_has_no_name", lambda uid: uid != first + 1)
    assert uid_of(tmp_path / "a") == first + 2
    monkeypatch.setattr(isolation, "_has_no_name", lambda uid: uid not in (first + 1, first + 2))
    assert uid_of(tmp_path / "a") == first + 3
    record = isolation._record_of(tmp_path / "a")
    for text in ("", "0", "x", str(isolation._LAST_UID + 1)):
        (record / "uid").write_text(text)
        assert uid_of(tmp_path / "a") == first + 3
    assert records.is_dir()


@root_only
@pytest.mark.attack
@pytest.mark.slow
def test_tasks_of_two_emulators_cannot_reach_each_other(open_folder: Path) -> None:
    settings = {"isolation": "user"}
    with (
        serving(open_folder / "one", settings=settings) as one,
        serving(open_folder / "two", settings=settings) as two,
    ):
        victim, attacker = Things(one.client), Things(two.client)
        pool = victim.pool(target_dedicated_nodes=1)
        job = victim.job(pool)
        secret = "echo secret > made; chmod 777 made .; echo $$ > pid; sleep 60"
        task = victim.task(job, f"/bin/sh -c {shlex.quote(secret)}")
        [node] = victim.wait_nodes(pool, 1)
        folder = one.emulator.launches.layout(pool, str(node.id)).task_dir(job, task) / "wd"
        eventually(lambda: (folder / "pid").is_file() and (folder / "pid").read_text())
        pid = (folder / "pid").read_text().strip()
        script = (
            f"cat {folder}/made && exit 3; ls {one.emulator.isolation.folder} && exit 4; "
            f"kill -9 {pid} && exit 5; cat /proc/{pid}/environ && exit 6; ls /proc/{pid}/cwd/ && "
            "exit 7; true"
        )
        run(attacker, attacker.pool(target_dedicated_nodes=1), script)
        os.kill(int(pid), 0)
        assert (folder / "made").read_text() == "secret\n"


@root_only
@pytest.mark.attack
def test_other_users_cannot_enter_folders_of_nodes(running: Running, things: Things) -> None:
    if running.emulator.isolation.owner is None:
        assert running.emulator.isolation.folder.stat().st_mode & 0o777 == 0o700
        return
    pool = things.pool(target_dedicated_nodes=1)
    run(things, pool, "echo secret > .env; chmod 644 .env")
    [env] = running.emulator.launches.nodes.rglob(".env")
    told = subprocess.run(
        ["/bin/cat", str(env)], user=65534, group=65534, extra_groups=[], check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert (told.returncode, told.stdout) == (1, "")


@root_only
def test_folders_follow_a_change_of_the_user(open_folder: Path) -> None:
    data = open_folder / "data"
    settings = {"isolation": "user"}
    with serving(data, settings=settings) as before:
        things = Things(before.client)
        pool = things.pool(target_dedicated_nodes=1)
        run(things, pool, "echo mine > $AZ_BATCH_NODE_SHARED_DIR/made; echo x > y")
        old = _owner(before).uid
        cache = before.emulator.isolation.folder / "cache"
        cache.mkdir()
    for path in (cache, *cache.parent.rglob("*")):
        assert path.lstat().st_uid in (0, old, os.geteuid())
    (isolation._record_of(data) / "uid").write_text(str(old + 500))
    with serving(data, settings=settings) as after:
        assert _owner(after).uid == old + 500
        nodes = after.emulator.launches.nodes
        eventually(lambda: all(path.lstat().st_uid != old for path in nodes.rglob("*")))
        assert cache.stat().st_uid == old + 500
        made = "$AZ_BATCH_NODE_SHARED_DIR/made"
        assert run(Things(after.client), pool, f"cat {made}; echo > {made}") == "mine\n"


@root_only
@pytest.mark.attack
def test_folders_of_emulators_that_are_gone_are_removed(
    records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    (victim / "d").mkdir(parents=True)
    kept = {"running", "stopped", "home", "unknown", "foreign", "nested", "share"}
    for name in {"gone", "gone-home"} | kept:
        home = tmp_path / name
        data = home / "local" / "batch" if "home" in name else home
        data.mkdir(parents=True)
        uid_of(data)
        record = isolation._record_of(data)
        (record / "nodes" / "p").mkdir(parents=True)
        (record / "nodes" / "p" / "link").symlink_to(victim)
        (record / "alias").symlink_to(victim)
        (record / "name").write_text(name)
        if name != "running":
            stop(data)
        if name == "home":
            shutil.rmtree(data)  # as a reset does
        elif name != "stopped":
            shutil.rmtree(home)
        if name == "share":
            (record / "shares" / "s" / "d").mkdir(parents=True)
            (record / "shares" / "s" / "d" / "f").touch()
        if name == "unknown":
            (record / "data-dir").unlink()
        if name == "foreign":
            os.chown(record, 65534, 65534)
        if name == "nested":  # a link in place of the record of the data dir
            (record / "data-dir").rename(victim / "data-dir")
            (record / "data-dir").symlink_to(victim / "data-dir")
    (records / "0123456789abcdef").symlink_to(victim)
    isolation.remove_abandoned()
    left = {(path / "name").read_text() for path in records.iterdir() if not path.is_symlink()}
    assert left == kept
    assert (records / "0123456789abcdef").is_symlink()
    assert sorted(path.name for path in victim.iterdir()) == ["d", "data-dir"]


def _owner(running: Running) -> Owner:
    owner = running.emulator.isolation.owner
    assert owner is not None
    return owner


def _plant(*folders: str) -> str:
    """Return a command that replaces programs wherever an ordinary task may write."""
    one = "printf '#!/bin/sh\\necho planted\\n' > $f && chmod 755 $f"
    names = "python3 pip3 id tool run.sh"
    loop = f"for n in {names}; do f=$d/$n; (rm -f $f; {one}) 2>/dev/null || true; done"
    return f"for d in {' '.join(folders)}; do {loop}; done"


@root_only
@pytest.mark.attack
@pytest.mark.parametrize("running", ["user"], indirect=True)
def test_ordinary_task_decides_nothing_that_an_elevated_one_executes(things: Things) -> None:
    start = models.BatchStartTask(
        command_line="/bin/sh -c 'echo echo own > run.sh; chmod 755 run.sh'",
        user_identity=ADMIN,
        wait_for_success=True,
    )
    pool = things.pool(target_dedicated_nodes=1, start_task=start, task_slots_per_node=2)
    things.wait_nodes(pool, 1)
    node = "$AZ_BATCH_NODE_ROOT_DIR/../python/bin"
    elevated = "$AZ_BATCH_NODE_ROOT_DIR/../elevated-python"
    job = things.job(pool)
    waits = "touch $AZ_BATCH_NODE_SHARED_DIR/begun; sleep 3; ./run.sh; echo ended"
    script = f"echo echo own > run.sh; chmod 755 run.sh; echo $PATH; {waits}"
    line = f"/bin/sh -c {shlex.quote(script)}"
    task = things.task(job, line, user_identity=ADMIN)
    wait = "while [ ! -e $AZ_BATCH_NODE_SHARED_DIR/begun ]; do sleep 0.1; done"
    other = "$AZ_BATCH_NODE_ROOT_DIR/workitems/*/*/*/wd"
    places = (node, f"{elevated}/bin", "$AZ_BATCH_NODE_STARTUP_DIR/wd", other)
    run(things, pool, f"{wait}; {_plant(*places, '$AZ_BATCH_NODE_SHARED_DIR')}")
    things.wait_task(job, task)
    said = things.text(job, task)
    assert "planted" not in said
    assert said.splitlines()[-2:] == ["own", "ended"]
    script = "python3 -c 'import os; print(os.getuid())'; id -u; tool || true"
    script += "; cat $AZ_BATCH_NODE_STARTUP_DIR/wd/run.sh"
    said = run(things, pool, script, user_identity=ADMIN)
    assert "planted" not in said
    assert said.split() == ["0", "0", "echo", "own"]


@pytest.mark.slow
@root_only
@pytest.mark.parametrize("running", ["user"], indirect=True)
def test_ordinary_tasks_use_what_an_elevated_start_task_installed(
    things: Things, open_folder: Path
) -> None:
    wheel(open_folder, "1.10.0")
    install = f"pip3 install --no-index --find-links {open_folder} 'pydantic<2'; echo v > made"
    start = models.BatchStartTask(
        command_line=f"/bin/sh -c {shlex.quote(install)}",
        user_identity=ADMIN,
        wait_for_success=True,
    )
    pool = things.pool(target_dedicated_nodes=1, start_task=start)
    things.wait_nodes(pool, 1)
    script = 'python3 -c "import pydantic; print(pydantic.VERSION)"; '
    script += "cat $AZ_BATCH_NODE_STARTUP_DIR/wd/made; pip3 --version"
    assert run(things, pool, script).split()[:3] == ["1.10.0", "v", "pip"]
