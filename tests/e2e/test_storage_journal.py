"""Azurite with its journal: acknowledged changes survive `kill -9`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import (
    BlobBlock,
    BlobServiceClient,
    BlobType,
    ContainerClient,
    ExponentialRetry,
)

from runner.core.home import HomePaths
from runner.core.progress import ignore_progress
from runner.flows.local import azurite, services
from runner.flows.local.state import (
    ACCOUNT,
    LocalState,
    ProcessRecord,
    ensure_keys,
    find_process,
    load_state,
)
from tests.e2e.conftest import Cli, new_home

FULL = Path("/dev/full")  # each write fails as on a full disk


class Storage:
    """Azurite as the local services start it, with a client that repeats nothing."""

    def __init__(self, home: Path) -> None:
        self.paths = HomePaths(new_home(home))
        self.paths.blob_data.mkdir(parents=True)
        self.state = LocalState(0, services.choose_port(), nodes=1, slots=1)
        self.keys = ensure_keys(self.paths)
        self.record: ProcessRecord | None = None

    def start(self, log: Path | None = None, journal: bool = True) -> ContainerClient:
        program = azurite.ensure_azurite(self.paths, ignore_progress)
        launch = services.blob_launch(self.paths, self.state.blob_port, self.keys, program)
        launch = replace(launch, log=log or launch.log)
        if not journal:
            program_at = launch.arguments.index(str(program.script))
            without = [launch.arguments[0], *launch.arguments[program_at:]]
            new = ("RUNNER_AZURITE_SCRIPTS", "BATCH_EMULATOR_STORAGE_SEED")
            of_older = {k: v for k, v in launch.environment.items() if k not in new}
            launch = replace(launch, arguments=without, environment=of_older)
        self.log = launch.log
        self.record = services.spawn(launch)
        services.wait_ready(launch, self.record, self.state, services.log_size(launch.log))
        return self.client(retry_total=0)

    def client(self, **retries: Any) -> ContainerClient:
        credential = {"account_name": ACCOUNT, "account_key": self.keys["storage"]}
        service = BlobServiceClient(self.state.blob_endpoint, credential, **retries)
        return service.get_container_client("work")

    def kill(self) -> None:
        if process := find_process(self.record, str(self.paths.blob_data)):
            process.kill()
            services.stop_process([process])

    def stop(self) -> None:
        if process := find_process(self.record, str(self.paths.blob_data)):
            services.stop_process([process])

    def journals(self) -> list[Path]:
        return sorted(self.paths.blob_data.glob("*.journal-*"))

    def journal(self) -> Path:
        [found] = [path for path in self.journals() if "extent" not in path.name]
        return found

    def database(self) -> Path:
        return self.paths.blob_data / "__azurite_db_blob__.json"


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    made = Storage(tmp_path / "home")
    yield made
    made.kill()


def read(container: ContainerClient, name: str) -> bytes:
    return container.download_blob(name).readall()


def append(container: ContainerClient, name: str, data: bytes) -> None:
    container.upload_blob(name, data, BlobType.APPENDBLOB)


def test_every_kind_of_change_survives_a_kill(storage: Storage) -> None:
    container = storage.start()
    container.create_container()
    container.upload_blob("kept", b"one")
    container.upload_blob("replaced", b"old")
    container.upload_blob("replaced", b"new", overwrite=True, metadata={"by": "test"})
    container.upload_blob("deleted", b"x")
    container.delete_blob("deleted")
    for line in (b"a\n", b"b\n"):
        append(container, "log", line)
    staged = container.get_blob_client("staged")
    staged.stage_block("1", b"first ")
    storage.kill()
    container = storage.start()
    staged = container.get_blob_client("staged")
    staged.stage_block("2", b"second")
    staged.commit_block_list([BlobBlock("1"), BlobBlock("2")])
    append(container, "log", b"c\n")
    storage.kill()
    container = storage.start()
    assert [read(container, name) for name in ("kept", "replaced", "staged", "log")] == [
        b"one",
        b"new",
        b"first second",
        b"a\nb\nc\n",
    ]
    assert container.get_blob_client("replaced").get_blob_properties().metadata == {"by": "test"}
    assert sorted(container.list_blob_names()) == ["kept", "log", "replaced", "staged"]


def test_change_with_a_partial_journal_line_is_not_applied(storage: Storage) -> None:
    container = storage.start()
    container.create_container()
    container.upload_blob("kept", b"one")
    container.upload_blob("torn", b"two")
    storage.kill()
    journal = storage.journal()
    journal.write_bytes(journal.read_bytes()[:-20])
    container = storage.start()
    assert list(container.list_blob_names()) == ["kept"]
    container.upload_blob("torn", b"again")
    assert read(container, "torn") == b"again"


def test_clean_stop_leaves_a_database_without_a_journal(storage: Storage) -> None:
    container = storage.start()
    container.create_container()
    container.upload_blob("kept", b"one")
    assert storage.journals()
    storage.stop()
    assert not storage.journals()
    assert read(storage.start(), "kept") == b"one"


def test_line_in_the_journal_does_not_grow_with_the_appends(storage: Storage) -> None:
    container = storage.start()
    container.create_container()
    for _ in range(200):
        append(container, "log", b"line\n")
    lines = storage.journal().read_bytes().splitlines()
    assert len(lines[-1]) < 2 * len(lines[3])
    storage.kill()
    assert read(storage.start(), "log") == 200 * b"line\n"


def test_change_that_cannot_be_written_is_not_acknowledged(storage: Storage) -> None:
    container = storage.start()
    container.create_container()
    storage.stop()
    container = storage.start()
    in_the_way = storage.paths.blob_data / "__azurite_db_blob__.json.journal-2"
    in_the_way.mkdir()  # makes writes fail, like a full disk
    clients = [
        container,
        storage.client(retry_policy=ExponentialRetry(0, 0, 2, random_jitter_range=0)),
    ]
    requests: list[Callable[[ContainerClient], object]] = [
        lambda client: client.upload_blob("late", b"one"),
        lambda client: client.create_container(),
        lambda client: list(client.list_blob_names()),
        lambda client: read(client, "late"),
        lambda client: client.get_blob_client("absent").get_blob_properties(),
    ]
    for request in requests:
        for client in clients:
            with pytest.raises(HttpResponseError) as caught:
                request(client)
            assert caught.value.status_code == 503
            assert "ErrorCode:ServerBusy" in str(caught.value)
    in_the_way.rmdir()
    container.upload_blob("late", b"two", overwrite=True)
    storage.kill()
    assert read(storage.start(), "late") == b"two"


@pytest.mark.skipif(not FULL.exists(), reason="needs Linux")
def test_unwritable_log_does_not_stop_storage(storage: Storage) -> None:
    container = storage.start(FULL)
    container.create_container()
    container.upload_blob("kept", b"one")
    assert read(container, "kept") == b"one"


def test_journals_contained_in_the_database_are_not_applied_again(storage: Storage) -> None:
    container = storage.start()
    container.create_container()
    for n in range(3):
        append(container, "log", b"%d" % n)
        container.upload_blob("counter", b"%d" % n, overwrite=True)
    container.upload_blob("deleted", b"x")
    container.delete_blob("deleted")
    journals = {path: path.read_bytes() for path in storage.journals()}
    storage.stop()  # saves, and removes the journals
    for path, content in journals.items():
        path.write_bytes(content)
    container = storage.start()
    assert sorted(container.list_blob_names()) == ["counter", "log"]
    assert (read(container, "log"), read(container, "counter")) == (b"012", b"2")
    append(container, "log", b"3")
    assert read(container, "log") == b"0123"


def change_until_saved(storage: Storage, container: ContainerClient) -> None:
    journal = storage.journal()
    deadline = time.monotonic() + 60
    large = container.upload_blob("large", b"")
    while journal.exists():
        assert time.monotonic() < deadline, "the database was not saved"
        large.set_blob_metadata({"by": 7000 * "x"})


@pytest.mark.slow  # 4 MiB of changes while other tests use the processors
@pytest.mark.parametrize("replaced", [True, False], ids=["database-replaced", "before"])
def test_kill_during_a_save_loses_nothing(storage: Storage, replaced: bool) -> None:
    container = storage.start()
    container.create_container()
    container.upload_blob("kept", b"one")
    for name in ("log", "deleted"):
        append(container, name, b"a")
    old = storage.database().read_bytes()
    first = storage.journal()
    link = storage.paths.blob_data / "first"
    link.hardlink_to(first)  # it stays complete after the save deletes the journal
    change_until_saved(storage, container)
    append(container, "log", b"b")
    append(container, "deleted", b"b")
    container.delete_blob("deleted")
    container.delete_blob("large")
    second = storage.journal()
    content = second.read_bytes()
    assert second != first
    assert b'["grow"' in content
    if replaced:
        storage.stop()
        second.write_bytes(content)
    else:
        storage.kill()
        storage.database().write_bytes(old)
        link.rename(first)
    container = storage.start()
    assert sorted(container.list_blob_names()) == ["kept", "log"]
    assert (read(container, "kept"), read(container, "log")) == (b"one", b"ab")


def after_large_journal(storage: Storage, lines: int) -> tuple[list[str], bytes, int]:
    """Continue the journal with one change that is made again in each of `lines` of 2 MB.

    Return the names of the blobs, the content of the log, and how often the change is saved.
    """
    pad = 1_000_001 * "ä"
    container = storage.start()
    container.create_container()
    append(container, "log", b"a")
    container.upload_blob("padded", b"", metadata={"by": "test"})
    storage.kill()
    with storage.journal().open("r+b") as journal:
        last = json.loads(journal.read().splitlines()[-1])
        last[2]["pad"] = pad
        line = json.dumps(last, ensure_ascii=False).encode() + b"\n"
        for _ in range(lines):
            journal.write(line)
    container = storage.start()
    append(container, "log", b"b")
    names, log = sorted(container.list_blob_names()), read(container, "log")
    storage.stop()
    return names, log, storage.database().read_text(encoding="utf-8").count(pad)


def test_lines_longer_than_a_read_block_are_read(storage: Storage) -> None:
    assert after_large_journal(storage, 3) == (["log", "padded"], b"ab", 1)


@pytest.mark.slow
def test_journal_longer_than_a_string_is_read(storage: Storage) -> None:
    assert after_large_journal(storage, 300) == (["log", "padded"], b"ab", 1)


def test_local_up_restarts_an_azurite_of_an_older_runner(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "home")
    cli = Cli(storage.paths.home, tmp_path)
    try:
        storage.start(journal=False).create_container()
        old = storage.record
        ports = ("--blob-port", storage.state.blob_port)
        cli.ok("local", "up", *ports)
        state = load_state(storage.paths)
        assert state is not None
        assert state.blob is not None
        assert old is not None
        assert (state.blob.pid != old.pid, find_process(old, "")) == (True, None)
        assert list(storage.client().list_blob_names()) == []  # its container is kept
        cli.ok("local", "up")
        again = load_state(storage.paths)
        assert again is not None
        assert again.blob == state.blob
    finally:
        cli.run("local", "down")


def test_journal_is_set_aside_if_the_database_was_saved_without_it(storage: Storage) -> None:
    container = storage.start()
    container.create_container()
    storage.stop()
    container = storage.start()
    container.upload_blob("before", b"one")
    storage.kill()
    container = storage.start(journal=False)
    container.upload_blob("between", b"two")
    storage.stop()
    assert storage.journals()
    container = storage.start()
    assert list(container.list_blob_names()) == ["between"]
    assert "does not continue the database" in storage.log.read_text()
    assert list(storage.paths.blob_data.glob("__azurite_db_blob__.json.unused-journal-*"))
    container.upload_blob("after", b"three")
    storage.kill()
    assert sorted(storage.start().list_blob_names()) == ["after", "between"]
