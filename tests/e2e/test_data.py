"""`runner data` against Azurite and the emulator's file share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.core.exceptions import ResourceExistsError

from runner.azure.auth.credentials import Connection, connect
from runner.azure.storage.stores import ChangedError, FileStore, SourceChangedError
from runner.core.progress import ignore_progress
from runner.core.settings import load_settings
from runner.core.storage_paths import SHARE_PARTS, StoragePath
from runner.flows.data import transfer
from runner.flows.data.stores import open_store
from runner.protocol.errors import RunnerError
from tests.e2e.conftest import Cli, until

MIB = 1024 * 1024
STORES = ("data", "share")


@pytest.fixture
def connection(cli: Cli) -> Connection:
    settings = load_settings({}, cwd=cli.cwd, env={"RUNNER_HOME": str(cli.home)})
    return connect(settings)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, connection: Connection) -> Generator[FileStore]:
    with open_store(connection, request.param) as opened:
        yield opened


@pytest.fixture
def blobs(connection: Connection) -> Generator[FileStore]:
    with open_store(connection, "data") as opened:
        yield opened


@pytest.fixture
def name() -> str:
    return f"t-{uuid4().hex[:8]}"


def write(folder: Path, **files: str) -> Path:
    for path, text in files.items():
        target = folder / path.replace("__", "/").replace("_txt", ".txt")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return folder


def put(store: FileStore, source: Path, path: str) -> int:
    uploads = transfer.plan_put(store, [source], StoragePath("data", path), ignore_progress)
    return transfer.put_files(store, uploads, ignore_progress)


def get(store: FileStore, path: str, local: Path) -> int:
    downloads = transfer.plan_get(store, StoragePath("data", path), local, ignore_progress)
    return transfer.get_files(store, downloads, ignore_progress)


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.smoke
@pytest.mark.parametrize("where", ["", "share:"])
@pytest.mark.feature(16)
def test_folder_is_uploaded_and_downloaded_unchanged(cli: Cli, name: str, where: str) -> None:
    write(cli.cwd / name, a_txt="a", sub__b_txt="b" * 5000, sub__empty_txt="")
    assert cli.ok("data", "put", name, f"{where}{name}").strip() == f"{where or 'data:'}{name}"
    again = cli.json("data", "put", name, f"{where}{name}")
    assert (again["sent"], again["unchanged"]) == (0, 3)
    rows = cli.json("data", "ls", f"{where}{name}")
    assert [(row["path"], row["files"]) for row in rows] == [
        (f"{name}/a.txt", None),
        (f"{name}/sub/", 2),
    ]
    cli.ok("data", "get", f"{where}{name}", "back")
    assert tree(cli.cwd / "back") == tree(cli.cwd / name)
    assert cli.json("data", "get", f"{where}{name}", "back")["unchanged"] == 3
    cli.ok("data", "get", f"{where}{name}/a.txt", "one.txt")
    assert (cli.cwd / "one.txt").read_text() == "a"
    refused = cli.run("data", "rm", f"{where}{name}")
    assert refused.returncode == 2
    assert "data rm -r" in refused.stderr
    assert cli.json("data", "rm", "-r", "-y", f"{where}{name}")["deleted"] == 3
    assert "R-DATA-NONE" in cli.run("data", "get", f"{where}{name}").stderr


def test_different_content_is_replaced_only_with_force(cli: Cli, name: str) -> None:
    folder = write(cli.cwd / name, a_txt="one", b_txt="same")
    cli.ok("data", "put", name)
    write(folder, a_txt="two", new_txt="new")
    refused = cli.run("data", "put", name)
    assert refused.returncode == 2
    assert "R-DATA-DIFFERS" in refused.stderr
    assert f"{name}/a.txt" in refused.stderr
    assert len(cli.json("data", "ls", "-r", name)) == 2  # nothing was sent, not even new.txt
    dry = cli.json("data", "put", name, "--force", "--dry-run")
    assert [row["state"] for row in dry] == ["different", "same", "new"]
    assert cli.json("data", "put", name, "--force")["sent"] == 2
    write(folder, a_txt="mine")
    kept = cli.run("data", "get", name)
    assert "R-DATA-DIFFERS" in kept.stderr
    assert (folder / "a.txt").read_text() == "mine"
    cli.ok("data", "get", name, "--force")
    assert (folder / "a.txt").read_text() == "two"


def test_data_commands_cannot_write_to_runs_and_models(cli: Cli) -> None:
    write(cli.cwd / "x", a_txt="a")
    for words in (("put", "x", "runs:x"), ("rm", "-r", "-y", "models:")):
        refused = cli.run("data", *words)
        assert refused.returncode == 2
        assert "R-DATA-OURS" in refused.stderr


@pytest.mark.feature(15)
@pytest.mark.feature(19)
def test_share_is_mounted_on_nodes_and_usable_as_input(cli: Cli, name: str) -> None:
    write(cli.cwd / name, a_txt="from the share")
    cli.ok("data", "put", name, f"share:{name}")
    script = cli.cwd / "look.py"
    script.write_text(
        "import os, pathlib\n"
        f"shared = pathlib.Path(os.environ['AZ_BATCH_NODE_MOUNTS_DIR'], 'shared', '{name}')\n"
        "print((shared / 'a.txt').read_text())\n"
        "(shared / 'b.txt').write_text('from the node')\n"
        "print('input', os.listdir(os.environ['RUNNER_INPUT_SET']))\n"
    )
    said = cli.ok("train", script, "--no-download", "--input", f"set=share:{name}")
    assert "from the share" in said
    assert "a.txt" in said.split("input ")[1]
    cli.ok("data", "get", f"share:{name}/b.txt", "b.txt")
    assert (cli.cwd / "b.txt").read_text() == "from the node"


def test_interrupted_transfer_of_a_large_file_resumes(
    blobs: FileStore, name: str, tmp_path: Path
) -> None:
    source = tmp_path / "big.bin"
    source.write_bytes(os.urandom(40 * MIB))
    sent: list[int] = []

    def fail_late(count: int) -> None:
        sent.append(count)
        if sum(sent) >= 24 * MIB:
            raise ConnectionError

    with pytest.raises(ConnectionError):
        blobs.put(name, source, fail_late, None)
    assert blobs.find(name) is None
    staged = _requests(blobs, lambda: blobs.put(name, source, lambda _: None, None))
    assert staged["stage"] <= 2  # three of five blocks had been uploaded
    stored = blobs.find(name)
    assert stored is not None
    assert stored.md5 == hashlib.md5(source.read_bytes(), usedforsecurity=False).digest()
    target = tmp_path / "back.part"
    target.write_bytes(source.read_bytes()[: 25 * MIB])
    fetched = _requests(blobs, lambda: blobs.get(stored, target, lambda _: None))
    assert fetched["range"] == 2  # 15 of 40 MiB
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.slow
def test_killed_upload_and_download_resume(cli: Cli, name: str) -> None:
    source = cli.cwd / "big.bin"
    source.write_bytes(os.urandom(96 * MIB))
    process = cli.start("data", "put", "big.bin", name)
    settings = load_settings({}, cwd=cli.cwd, env={"RUNNER_HOME": str(cli.home)})
    service = connect(settings).blob_service()
    blob = service.get_blob_client("data", name)

    def some_staged() -> bool:
        try:
            return len(blob.get_block_list("uncommitted")[1]) >= 2
        except Exception:  # noqa: BLE001 - not there yet
            return False

    until(lambda: some_staged() or process.poll() is not None)
    _kill(process)
    cli.ok("data", "put", "big.bin", name)
    process = cli.start("data", "get", name, "copy.bin")
    until(lambda: process.poll() is not None or _parts(cli.cwd, 8 * MIB))
    _kill(process)
    cli.ok("data", "get", name, "copy.bin")
    assert (cli.cwd / "copy.bin").read_bytes() == source.read_bytes()
    assert not _parts(cli.cwd, 0)
    cli.ok("data", "rm", "-y", name)


def test_file_changed_by_another_writer_is_not_overwritten(
    store: FileStore, name: str, tmp_path: Path
) -> None:
    mine, theirs = tmp_path / "mine.txt", tmp_path / "theirs.txt"
    mine.write_text("mine")
    theirs.write_text("theirs")
    uploads = transfer.plan_put(store, [mine], StoragePath("data", name), ignore_progress)
    store.put(name, theirs, lambda _: None, None)
    with pytest.raises(RunnerError) as refused:
        transfer.put_files(store, uploads, ignore_progress)
    assert refused.value.code == "R-DATA-CHANGED"
    get(store, name, tmp_path / "got.txt")
    assert (tmp_path / "got.txt").read_text() == "theirs"
    listed = store.find(name)
    assert listed is not None
    store.put(name, mine, lambda _: None, listed)
    for late in (
        lambda: store.put(name, theirs, lambda _: None, listed),
        lambda: store.get(listed, tmp_path / "late", lambda _: None),
        lambda: store.delete(listed),
    ):
        with pytest.raises(ChangedError):
            late()
    now = store.find(name)
    assert now is not None
    assert store.delete(now)
    assert not store.delete(now)


def test_source_changing_during_the_upload_is_not_stored(
    store: FileStore, name: str, tmp_path: Path
) -> None:
    source = tmp_path / "log.txt"
    source.write_bytes(b"x" * 20 * MIB)

    def grow(_: int) -> None:
        with source.open("ab") as out:
            out.write(b"more")

    with pytest.raises(SourceChangedError):
        store.put(name, source, grow, None)
    assert store.find(name) is None


@pytest.mark.feature(16)
def test_partial_upload_on_the_share_is_hidden_and_deleted(
    connection: Connection, name: str, tmp_path: Path
) -> None:
    parts = connection.share_client().get_directory_client(SHARE_PARTS)
    with contextlib.suppress(ResourceExistsError):
        parts.create_directory()
    old, young = (parts.get_file_client(f"{name}-{age}") for age in ("old", "young"))
    old.create_file(10, file_last_write_time=datetime.now(UTC) - timedelta(days=2))
    young.create_file(10)  # of a client that is sending it right now
    source = tmp_path / ("x" * 255)
    source.write_text("content")
    with open_store(connection, "share") as share:
        put(share, source, f"{name}/{source.name}")
        assert get(share, name, tmp_path / "back") == 1
        assert [file.path for file in share.list(name)] == [f"{name}/{source.name}"]
        assert all(not file.path.startswith(SHARE_PARTS) for file in share.list(""))
    left = {entry.name for entry in parts.list_directories_and_files()}
    assert f"{name}-young" in left
    assert f"{name}-old" not in left
    young.delete_file()


def test_damaged_file_in_storage_is_reported(
    connection: Connection, blobs: FileStore, name: str, tmp_path: Path
) -> None:
    source = tmp_path / "a.txt"
    source.write_text("content")
    put(blobs, source, name)
    blob = connection.blob_service().get_blob_client("data", name)
    settings = blob.get_blob_properties().content_settings
    settings.content_md5 = bytearray(16)
    blob.set_http_headers(settings)
    with pytest.raises(RunnerError) as refused:
        get(blobs, name, tmp_path / "back.txt")
    assert refused.value.code == "R-DATA-HASH"
    assert not (tmp_path / "back.txt").exists()
    assert not _parts(tmp_path, 0)


def test_names_that_leave_the_folder_are_refused(
    connection: Connection, blobs: FileStore, name: str, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path / "out")
    connection.blob_service().get_blob_client("data", f"{name}/link/x.txt").upload_blob(b"x")
    with pytest.raises(RunnerError) as refused:
        get(blobs, name, tmp_path / "here")
    assert refused.value.code == "R-DATA-LEAVES"
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("put", "nowhere"), "R-DATA-MISSING"),
        (("put", "empty", "x"), "R-DATA-EMPTY"),
        (("put", "file.txt", "../x"), "R-DATA-PATH"),
        (("put", "file.txt", "share:.Runner-Parts/x"), "R-DATA-PATH"),
        (("get", "no-such-thing"), "R-DATA-NONE"),
        (("ls", "nocontainer:"), "R-DATA-NO-CONTAINER"),
        (("ls", "Bad_Name:x"), "R-DATA-PATH"),
    ],
)
def test_invalid_data_commands_are_refused_with_a_fix(
    cli: Cli, words: tuple[str, ...], code: str
) -> None:
    (cli.cwd / "empty").mkdir()
    (cli.cwd / "file.txt").write_text("x")
    refused = cli.run("data", *words)
    assert refused.returncode in (2, 3)
    assert code in refused.stderr
    assert "fix:" in refused.stderr


def test_first_failed_transfer_stops_the_others(
    blobs: FileStore, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for number in range(64):
        (folder / f"{number}.bin").write_bytes(os.urandom(200_000))
    uploads = transfer.plan_put(blobs, [folder], StoragePath("data", name), ignore_progress)
    (folder / "40.bin").unlink()
    with pytest.raises(RunnerError) as refused:
        transfer.put_files(blobs, uploads, ignore_progress)
    assert refused.value.code == "R-DATA-UNREADABLE"
    assert len(list(blobs.list(name))) < 64


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process, which may have ended before."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def _parts(folder: Path, at_least: int) -> list[Path]:
    found: list[Path] = []
    for path in folder.rglob(".*.part"):
        with contextlib.suppress(FileNotFoundError):  # it was renamed when it was complete
            if path.stat().st_size >= at_least:
                found.append(path)
    return found


def _requests(store: Any, act: Callable[[], object]) -> dict[str, int]:
    """Count the blocks and ranges that `act` requests from the service."""
    counts = {"stage": 0, "range": 0}
    container = store._container
    send, fetch = container._stage_block, store._read_range

    def counted_send(*args: object) -> None:
        counts["stage"] += 1
        send(*args)

    def counted_range(*args: object) -> bytes:
        counts["range"] += 1
        return fetch(*args)

    container._stage_block, store._read_range = counted_send, counted_range
    try:
        act()
    finally:
        container._stage_block, store._read_range = send, fetch
    return counts
