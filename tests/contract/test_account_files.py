"""An account leaves as one file and comes back, and starts from a seed of pools and jobs."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from batch_emulator import __main__ as program
from batch_emulator.account_files import start_with
from batch_emulator.options import OptionError, parser, settings_of
from batch_emulator.server import Server
from batch_emulator.storage import account_store, exports
from tests import plain_http
from tests.contract.server import ACCOUNT, KEY, Running, Things, client_for, eventually, serving
from tests.disks import Disk

BEARER = {"authorization": f"Bearer {KEY}"}
MACHINE = {
    "imageReference": {"publisher": "canonical", "offer": "ubuntu-24_04-lts", "sku": "server"},
    "nodeAgentSKUId": "batch.node.ubuntu 24.04",
}
# as `az batch pool show` of azure-cli 2.60 prints it: names and durations of its own, and nulls
SHOWN = {
    "allocationState": "steady",
    "applicationPackageReferences": None,
    "autoScaleFormula": None,
    "certificateReferences": None,
    "currentDedicatedNodes": 0,
    "eTag": "0x8DC000000000000",
    "enableAutoScale": False,
    "id": "shown",
    "identity": None,
    "resizeTimeout": "0:15:00",
    "state": "active",
    "targetDedicatedNodes": 0,
    "targetLowPriorityNodes": 0,
    "targetNodeCommunicationMode": "simplified",
    "taskSlotsPerNode": 2,
    "url": "https://mine.westeurope.batch.azure.com/pools/shown",
    "virtualMachineConfiguration": {
        "imageReference": MACHINE["imageReference"],
        "nodeAgentSkuId": MACHINE["nodeAgentSKUId"],
        "osDisk": None,
    },
    "vmSize": "standard_d2s_v3",
}
SEED: dict[str, Any] = {
    "version": 1,
    "pools": [SHOWN],
    "jobs": [{"id": "seeded", "poolInfo": {"poolId": "shown"}, "priority": 3}],
    "jobSchedules": [
        {
            "id": "hourly",
            "schedule": {"recurrenceInterval": "1:00:00"},
            "jobSpecification": {"poolInfo": {"poolId": "shown"}},
        }
    ],
}


def run(*arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "batch_emulator", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "BATCH_EMULATOR_KEY": KEY, **variables},
    )


def command(*arguments: object) -> tuple[int, str]:
    """Run `export` or `import` in this process. Return the exit code and what it printed."""
    with redirect_stdout(StringIO()) as printed, redirect_stderr(printed):
        code = program.main([str(each) for each in arguments])
    return code, printed.getvalue()


def send(running: Running | Server, path: str, content: bytes) -> Any:
    return plain_http.post(f"{running.url}/_emulator/{path}", headers=BEARER, content=content)


def reason_of(answer: Any) -> str:
    return answer.json()["values"][0]["value"]


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """Yield an emulator with an ended, a running and a waiting task, a package and a schedule."""
    with serving(tmp_path_factory.mktemp("full") / "data") as running:
        package = f"{running.url}/_emulator/applications/tool/versions/1"
        plain_http.put(package, headers=BEARER, content=b"a zip")
        send(running, "seed", json.dumps(SEED).encode())
        things = Things(running.client)
        things.pool(id="pool", target_dedicated_nodes=1)
        job = things.job("pool", id="job")
        things.wait_task(job, things.task(job, "/bin/sh -c 'exit 3'", id="ended"))
        things.task(job, "/bin/sleep 600", id="runs")
        things.wait_task(job, "runs", "running")
        things.task(job, "/bin/true", id="waits")
        yield running


@pytest.mark.feature(60)
def test_account_returns_with_its_tasks_and_new_nodes(full: Running, tmp_path: Path) -> None:
    exported = plain_http.get(f"{full.url}/_emulator/export", headers=BEARER).content
    before = full.client.get_task("job", "ended").as_dict()
    with serving(tmp_path / "other") as other:
        answer = send(other, "import", exported)
        assert (answer.status_code, answer.json()) == (200, {"pools": 2, "jobs": 3, "tasks": 3})
        after = other.client.get_task("job", "ended").as_dict()
        assert json.dumps(after) == json.dumps(before).replace(full.url, other.url)
        things = Things(other.client)
        [node] = things.wait_nodes("pool", 1)
        assert node.id != before["nodeInfo"]["nodeId"]
        running = things.wait_task("job", "runs", "running")
        assert running.node_info is not None
        assert running.node_info.node_id == node.id
        other.client.terminate_task("job", "runs")
        things.wait_task("job", "waits")
        assert other.client.get_job("seeded").priority == 3
        assert [a.id for a in other.client.list_applications()] == ["tool"]
    with serving(tmp_path / "other") as again:
        assert again.client.get_task("job", "ended").as_dict()["executionInfo"]["exitCode"] == 3


def test_account_returns_after_a_reset(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as running:
        things = Things(running.client)
        for name in ("used", "pool"):
            things.pool(id=name, target_dedicated_nodes=1)
            things.wait_nodes(name, 1)
        running.client.begin_delete_pool("used").result()
        account = running.emulator.account
        exported = plain_http.get(f"{running.url}/_emulator/export", headers=BEARER).content
        usage = dict(account.usage)
        assert usage
        assert send(running, "reset", b"").status_code == 204
        answer = send(running, "import", exported)
        assert (answer.status_code, answer.json()) == (200, {"pools": 1, "jobs": 0, "tasks": 0})
        assert account.usage == usage
        things.wait_nodes("pool", 1)


def test_imported_pool_has_the_image_of_this_emulator(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as running:
        Things(running.client).pool(id="pool")
        pool = running.emulator.account.pools["pool"]
        pool.image = "/of/another/machine"
        running.emulator.account.save_pool(pool)
        exported = plain_http.get(f"{running.url}/_emulator/export", headers=BEARER).content
    with serving(tmp_path / "other") as other:
        assert send(other, "import", exported).status_code == 200
        assert other.emulator.account.pools["pool"].image == ""


def test_import_into_an_account_that_is_not_empty_is_refused(full: Running) -> None:
    exported = plain_http.get(f"{full.url}/_emulator/export", headers=BEARER).content
    answer = send(full, "import", exported)
    assert (answer.status_code, answer.json()["code"]) == (409, "OperationInvalidForCurrentState")
    assert "2 pools, 3 jobs, 1 job schedule, 1 running task" in reason_of(answer)
    assert "POST /_emulator/reset" in reason_of(answer)


def test_commands_export_beside_a_running_emulator_and_import_without_one(
    full: Running, tmp_path: Path
) -> None:
    file, data_dir = tmp_path / "account.batch", full.emulator.settings.data_dir
    done = command("export", file, "--data-dir", data_dir)[1]
    assert done.startswith(f"exported 2 pools, 3 jobs, 3 tasks of account {ACCOUNT} to ")
    assert file.stat().st_mode & 0o777 == 0o600
    code, refused = command("import", file, "--data-dir", data_dir)
    assert code == 1
    assert "another emulator is running on" in refused
    assert "fix: " in refused
    done = command("import", file, "--data-dir", tmp_path / "new")[1]
    assert done.startswith(f"imported 2 pools, 3 jobs, 3 tasks of account {ACCOUNT} into ")
    refused = command("import", file, "--data-dir", tmp_path / "new")[1]
    assert "is not empty: it has 2 pools" in refused
    with serving(tmp_path / "new") as other:
        assert sorted(pool.id for pool in other.client.list_pools()) == ["pool", "shown"]


_KILLED = """
import sys, time
from batch_emulator.storage import exports
def never(_):
    print("writing", flush=True)
    time.sleep(600)
exports._files_of = never
from batch_emulator.__main__ import main
main(sys.argv[1:])
"""


def test_killed_export_leaves_the_old_file(tmp_path: Path) -> None:
    with serving(tmp_path / "data"):
        pass
    file = tmp_path / "account.batch"
    arguments = ("export", str(file), "--data-dir", str(tmp_path / "data"))
    assert command(*arguments)[0] == 0
    old = file.read_bytes()
    killed = subprocess.Popen([sys.executable, "-c", _KILLED, *arguments], stdout=subprocess.PIPE)
    assert killed.stdout is not None
    with killed.stdout:
        assert killed.stdout.readline() == b"writing\n"
        assert "another export writes" in command(*arguments)[1]
        killed.send_signal(signal.SIGKILL)
        killed.wait(300)
    assert file.read_bytes() == old
    assert command(*arguments)[0] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["account.batch", "data"]


def test_export_to_a_full_disk_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "data"):
        pass
    file = tmp_path / "account.batch"
    file.write_bytes(b"old")

    def fails(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(exports, "_write", fails)
    Disk(monkeypatch).fill()
    with pytest.raises(exports.ExportError, match=r"is full: 4096 bytes free; free some space"):
        exports.export_account(tmp_path / "data", file)
    assert file.read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["account.batch", "data"]


def test_import_is_all_or_nothing(
    full: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported = plain_http.get(f"{full.url}/_emulator/export", headers=BEARER).content
    with serving(tmp_path / "other") as other:
        with monkeypatch.context() as broken:
            broken.setattr(account_store, "TABLES", (*account_store.TABLES, "absent"))
            assert "nothing was imported" in reason_of(send(other, "import", exported))
        assert list(other.client.list_pools()) == []
        assert send(other, "import", exported).status_code == 200


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("PRAGMA user_version=99", "a newer emulator"),
        ("PRAGMA user_version=1", "an older emulator"),
        ("PRAGMA application_id=1", "it is not an exported account"),
        ("CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM pools; END", "it is damaged"),
        ("UPDATE pools SET record='{}'", "it is damaged"),
        ("INSERT INTO files VALUES ('applications/../../x', 0, x'00')", "a file 'applications/../"),
    ],
)
def test_file_that_cannot_be_imported_is_refused(
    full: Running, tmp_path: Path, statement: str, why: str
) -> None:
    file = tmp_path / "account.batch"
    exports.export_account(full.emulator.settings.data_dir, file)
    with closing(sqlite3.connect(file, isolation_level=None)) as database:
        database.execute(statement)
    with serving(tmp_path / "other") as other:
        answer = send(other, "import", file.read_bytes())
        assert why in reason_of(answer)
        assert str(tmp_path) not in reason_of(answer)
        assert list(other.client.list_pools()) == []


def test_cut_file_is_refused(full: Running, tmp_path: Path) -> None:
    exported = plain_http.get(f"{full.url}/_emulator/export", headers=BEARER).content
    (tmp_path / "cut").write_bytes(exported[: len(exported) // 2])
    with pytest.raises(exports.ExportError, match="it is damaged"):
        exports.check_export(tmp_path / "cut")


def test_seed_adds_what_azure_shows_and_leaves_what_exists(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as running:
        first = send(running, "seed", json.dumps(SEED).encode())
        assert first.json()["added"] == {
            "pools": ["shown"], "jobs": ["seeded"], "jobSchedules": ["hourly"]
        }  # fmt: skip
        pool = running.client.get_pool("shown")
        assert (pool.task_slots_per_node, pool.vm_size) == (2, "standard_d2s_v3")
        assert eventually(lambda: running.client.get_job("hourly:job-1")).state == "active"
        again = json.loads(json.dumps([SHOWN, running.client.get_job("seeded").as_dict()]))
        assert send(running, "seed", json.dumps(again).encode()).json() == {
            "added": {}, "existing": {"pools": ["shown"], "jobs": ["seeded"]}
        }  # fmt: skip


@pytest.mark.parametrize(
    ("seed", "why"),
    [
        ("{", "it is not JSON"),
        ({"version": 2, "pools": []}, "it has version 2, and this emulator reads 1"),
        ({"version": True, "pools": []}, "invalid version True: expected 1; change the seed"),
        ({"version": 1, "pool": []}, "unknown key 'pool'"),
        ({"version": 1, "pools": {}}, "'pools' is not a list"),
        ([{"name": "x"}], "no pool, job or job schedule"),
        (
            {**SEED, "jobs": [{"id": "ok", "poolInfo": {"poolId": "p"}}, {"id": "a b"}]},
            "job 'a b' is refused: MissingRequiredProperty (PropertyName: poolInfo)",
        ),
        (
            [{**SHOWN, "targetDedicatedNode": 4}],
            "The property 'targetDedicatedNode' does not exist",
        ),
        ([SHOWN, SHOWN], "pool 'shown' is refused: PoolExists"),
        ([{**SHOWN, "virtualMachineConfiguration": "x"}], "pool 'shown' is refused"),
        *(
            ([{"id": "j", "poolInfo": pool_info}], "job 'j' is refused: InvalidRequestBody")
            for pool_info in (
                7,
                [7],
                {"autoPoolSpecification": "x"},
                {"autoPoolSpecification": {"pool": ["x"]}},
            )
        ),
        (
            [{"id": "s", "schedule": {}, "jobSpecification": {"poolInfo": 7}}],
            "job schedule 's' is refused: InvalidRequestBody",
        ),
    ],
)
def test_seed_that_cannot_be_added_adds_nothing(tmp_path: Path, seed: Any, why: str) -> None:
    content = seed if isinstance(seed, str) else json.dumps(seed)
    with serving(tmp_path / "data") as running:
        answer = send(running, "seed", content.encode())
        assert answer.status_code == 400
        assert why in reason_of(answer)
        assert list(running.client.list_pools()) == []
        assert list(running.client.list_jobs()) == []


def test_seed_of_what_is_being_deleted_is_refused(tmp_path: Path) -> None:
    with serving(tmp_path / "data", delete_s=3600) as running:
        send(running, "seed", json.dumps(SEED).encode())
        running.client.begin_delete_pool("shown")
        answer = send(running, "seed", json.dumps(SEED).encode())
        assert (answer.status_code, reason_of(answer)) == (
            400, "pool 'shown' is being deleted; wait until it is gone"
        )  # fmt: skip


def test_seed_beyond_a_quota_adds_nothing(tmp_path: Path) -> None:
    with serving(tmp_path / "data", active_jobs=1) as running:
        assert "ActiveJobAndScheduleQuotaReached" in reason_of(
            send(running, "seed", json.dumps(SEED).encode())
        )
        assert list(running.client.list_pools()) == []


def test_emulator_starts_from_a_seed_and_runs_a_command_when_ready(tmp_path: Path) -> None:
    (tmp_path / "seed.json").write_text(json.dumps(SEED))
    hook = f'{sys.executable} -c "{_HOOK}" {tmp_path / "seen"}'
    arguments = [
        sys.executable, "-m", "batch_emulator", "--account", ACCOUNT, "--data-dir",
        str(tmp_path / "data"), "--seed-file", str(tmp_path / "seed.json"), "--on-ready", hook,
    ]  # fmt: skip
    env = {**os.environ, "BATCH_EMULATOR_KEY": KEY}
    started = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=env)
    assert started.stdout is not None
    with started.stdout:
        assert (
            started.stdout.readline()
            == f"seeded from {tmp_path / 'seed.json'}: added 3, 0 existed\n"
        )
        url = started.stdout.readline().split()[2]
        eventually(lambda: plain_http.get(f"{url}/_emulator/health").status_code == 200 or None)
        seen = json.loads((tmp_path / "seen").read_text())
        assert [pool.id for pool in client_for(url).list_pools()] == ["shown"]
        started.terminate()
        started.wait(300)
    assert (seen["url"], seen["status"]) == (url, 503)
    assert "the command of --on-ready" in seen["reason"]


_HOOK = """
import json, os, sys, urllib.error, urllib.request
url = os.environ['AZURE_BATCH_ENDPOINT']
try:
    urllib.request.urlopen(url + '/_emulator/health')
except urllib.error.HTTPError as err:
    found = dict(json.load(err), url=url, status=err.code)
    open(sys.argv[1], 'w').write(json.dumps(found))
"""


def test_start_imports_an_account_once_and_a_failed_command_ends_it(
    full: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "account.batch"
    exports.export_account(full.emulator.settings.data_dir, file)
    options = ("--account", ACCOUNT, "--key", KEY, "--data-dir", str(tmp_path / "new"))
    for expected in ("imported 2 pools, 3 jobs, 3 tasks", "was not imported: the account is not"):
        done = run(*options, "--seed-file", file, "--on-ready", "exit 3")
        assert expected in done.stdout
        assert done.returncode == 1
        assert "the command of --on-ready ended with exit code 3" in done.stderr
    assert program.main([*options, "--seed-file", str(tmp_path / "absent")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert program.main([*options, "--check", "--seed-file", str(file)]) == 0


def test_seed_may_come_from_a_pipe(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.write(writer, json.dumps(SEED).encode())
    os.close(writer)
    with serving(tmp_path / "data") as running, os.fdopen(reader):
        said: list[str] = []
        start_with(running.emulator, Path(f"/dev/fd/{reader}"), said.append)
        assert said == [f"seeded from /dev/fd/{reader}: added 3, 0 existed"]


@pytest.mark.parametrize(
    ("content", "why"),
    [(b'{"version": 2}', "version 2"), (b"{", "not JSON"), (b"{}", "no pool"), (None, "No such")],
)
def test_check_reads_the_seed_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, why: str
) -> None:
    file = tmp_path / "seed.json"
    if content is not None:
        file.write_bytes(content)
    options = ("--account", ACCOUNT, "--key", KEY, "--data-dir", str(tmp_path / "new"))
    assert program.main([*options, "--check", "--seed-file", str(file)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"error: cannot start with {file}"
    assert why in said[1]
    assert not (tmp_path / "new").exists()


def test_import_keeps_the_name_of_the_account_or_takes_another(tmp_path: Path) -> None:
    with serving(tmp_path / "data"):
        pass
    file, kept, other = tmp_path / "account.batch", tmp_path / "kept", tmp_path / "b"
    done = command("export", file, "--data-dir", tmp_path / "data")
    assert f"0 tasks of account {ACCOUNT} to " in done[1]
    assert f"0 tasks of account {ACCOUNT} into " in command("import", file, "--data-dir", kept)[1]
    assert command("import", file, "--data-dir", other, "--account", "other")[0] == 0
    assert list(map(account_store.stored_name, (kept, other))) == [ACCOUNT, "other"]
    assert command("--data-dir", kept, "--key", KEY, "--check")[0] == 0
    with pytest.raises(OptionError, match="missing --account"):
        settings_of(parser().parse_args(["--data-dir", str(tmp_path / "c"), "--key", KEY]), "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("export", "missing/e", "--data-dir", "data"), "fix: mkdir -p missing"),
        (("export", "account.batch/e", "--data-dir", "data"), "Not a directory"),
        (("export", "x" * 300, "--data-dir", "data"), "fix: use another file"),
        *(
            (("export", target, "--data-dir", "data"), "fix: use the path of a file")
            for target in ("", ".", "..", "other", "pipe", "link")
        ),
        *(
            (("export", f"{folder}{kept}", "--data-dir", "data"), "fix: use a file in another fold")
            for folder in ("data/", "other/../data/", "link/../data/")
            for kept in ("state.sqlite", "state.sqlite-wal", "lock", "account", "new", "nodes/x")
        ),
        (("import", "account.batch", "--data-dir", "account.batch/x"), "that can be written"),
        (("import", "account.batch", "--data-dir", "new", "--account", "a b"), "name as on Azure"),
        (("import", "none", "--data-dir", "new"), "use the path of an exported account"),
    ],
)
def test_fix_of_a_failed_command_fits_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with serving(tmp_path / "data"):
        pass
    assert command("export", "account.batch", "--data-dir", "data")[0] == 0
    (tmp_path / "other").mkdir()
    (tmp_path / "link").symlink_to("other")
    os.mkfifo(tmp_path / "pipe")
    before = kinds(tmp_path)
    code, printed = command(*words)
    assert (code, said in printed) == (1, True), printed
    assert kinds(tmp_path) == before


def kinds(folder: Path) -> dict[str, tuple[int, int]]:
    """Return mode and number of each file in a folder, which a replaced one does not keep."""
    found = {path.relative_to(folder).as_posix(): path.lstat() for path in folder.rglob("*")}
    return {name: (each.st_mode, each.st_ino) for name, each in found.items()}
