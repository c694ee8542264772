"""Synchronization of a folder and a container; unreachable files are never deleted."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from batch_emulator.executor import mirror
from batch_emulator.executor.blob_client import BlobClient, BlobRequestError
from batch_emulator.executor.mirror import Mirror
from tests.unit.emulator.blob_store import BlobStore, serve


@pytest.fixture
def blobs() -> Iterator[BlobStore]:
    with serve() as store:
        store.containers["c"] = {"a": b"1", "deep/er/b": b"2"}
        yield store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "node" / "mount"
    folder.mkdir(parents=True)
    return folder


Script = Callable[[Mirror], Awaitable[None]]


def drive(blobs: BlobStore, folder: Path, script: Script, *, read_only: bool = False) -> None:
    async def main() -> None:
        storage = BlobClient(retry_delay_s=0.001)
        known = folder.parent / "known.json"
        mirror = Mirror(storage, blobs.container_url("c"), folder, known, read_only=read_only)
        try:
            await script(mirror)
        finally:
            await storage.close()

    asyncio.run(main())


def files(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def aged(path: Path) -> None:
    """Set the time of a file to a minute ago."""
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns - 60_000_000_000))


def test_pull_adds_changes_and_deletes_files(blobs: BlobStore, folder: Path) -> None:
    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        assert files(folder) == {"a": "1", "deep/er/b": "2"}
        blobs.containers["c"] = {"a": b"changed", "new": b"3"}
        await mirror.pull()
        assert files(folder) == {"a": "changed", "new": "3"}

    drive(blobs, folder, script)


def test_push_adds_changes_and_deletes_blobs(blobs: BlobStore, folder: Path) -> None:
    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        (folder / "out").mkdir()
        (folder / "out" / "ü f").write_text("new")
        (folder / "a").write_text("changed")
        (folder / "deep" / "er" / "b").unlink()
        await mirror.push()
        assert blobs.containers["c"] == {"a": b"changed", "out/ü f": b"new"}
        blobs.requests.clear()
        await mirror.push()
        await mirror.pull()
        assert all(request.endswith(" list") for request in blobs.requests)

    drive(blobs, folder, script)


def test_file_changed_on_both_sides_keeps_the_version_of_the_node(
    blobs: BlobStore, folder: Path
) -> None:
    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        (folder / "a").write_text("here")
        (folder / "deep" / "er" / "b").write_text("kept")
        blobs.containers["c"] = {"a": b"there"}
        await mirror.pull()
        assert files(folder) == {"a": "here", "deep/er/b": "kept"}
        await mirror.push()
        assert blobs.containers["c"] == {"a": b"here", "deep/er/b": b"kept"}

    drive(blobs, folder, script)


def test_files_being_written_are_pushed_later(blobs: BlobStore, folder: Path) -> None:
    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        (folder / "log").write_text("half a li")
        (folder / "done").write_text("whole")
        aged(folder / "done")
        await mirror.push(settled_s=50)
        assert sorted(blobs.containers["c"]) == ["a", "deep/er/b", "done"]
        await mirror.push()
        assert blobs.containers["c"]["log"] == b"half a li"

    drive(blobs, folder, script)


def test_missing_folder_deletes_no_blobs(blobs: BlobStore, folder: Path) -> None:
    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        shutil.rmtree(folder)
        with pytest.raises(FileNotFoundError):
            await mirror.push()
        folder.mkdir()  # and closed, as when the node is removed
        mirror.closed = True
        await mirror.push()
        assert sorted(blobs.containers["c"]) == ["a", "deep/er/b"]

    drive(blobs, folder, script)


def test_mirror_remembers_files_across_restarts(blobs: BlobStore, folder: Path) -> None:
    async def first(mirror: Mirror) -> None:
        await mirror.pull()

    async def second(mirror: Mirror) -> None:
        (folder / "a").unlink()
        blobs.containers["c"]["deep/er/b"] = b"newer"
        blobs.requests.clear()
        await mirror.push()
        assert sorted(blobs.containers["c"]) == ["deep/er/b"]
        await mirror.pull()
        assert files(folder) == {"deep/er/b": "newer"}
        assert [one for one in blobs.requests if one.startswith("PUT")] == []

    drive(blobs, folder, first)
    drive(blobs, folder, second)


def test_read_only_container_is_never_written(blobs: BlobStore, folder: Path) -> None:
    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        (folder / "a").unlink()
        (folder / "x").write_text("x")
        await mirror.push()
        assert sorted(blobs.containers["c"]) == ["a", "deep/er/b"]

    drive(blobs, folder, script, read_only=True)


def test_unsafe_and_conflicting_blob_names_are_skipped(
    blobs: BlobStore, folder: Path, tmp_path: Path
) -> None:
    blobs.containers["c"] = {
        "../out": b"x",
        "/abs": b"x",
        "x/../../out": b"x",
        "dir": b"",
        "dir/file": b"1",
        "folder/": b"",
    }

    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        assert files(tmp_path / "node" / "mount") == {"dir/file": "1"}
        assert not (tmp_path / "node" / "out").exists()
        await mirror.push()
        assert len(blobs.containers["c"]) == 6

    drive(blobs, folder, script)


def test_links_are_not_followed(blobs: BlobStore, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_text("s")
    (folder / "deep").symlink_to(tmp_path / "outside")
    (folder / "l").symlink_to(tmp_path / "outside" / "secret")
    os.mkfifo(folder / "pipe")

    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        assert sorted(path.name for path in (tmp_path / "outside").iterdir()) == ["secret"]
        await mirror.push()
        assert sorted(blobs.containers["c"]) == ["a", "deep/er/b"]

    drive(blobs, folder, script)


def test_too_many_blobs_are_refused(
    blobs: BlobStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "MAX_BLOBS", 1)

    async def script(mirror: Mirror) -> None:
        with pytest.raises(BlobRequestError, match="more than 1 blobs"):
            await mirror.pull()
        assert files(folder) == {}

    drive(blobs, folder, script)
