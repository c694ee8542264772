"""A mirror against tasks that rename, replace and fill its folder, and against a crash."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.executor.blob_client import BlobRequestError, Uploaded
from batch_emulator.executor.mirror import Mirror
from batch_emulator.folders import remove_tree
from tests.disks import needs_ordinary_user
from tests.planted import exchanging, linux_only
from tests.unit.emulator.blob_store import BlobStore, serve
from tests.unit.emulator.executor.test_mirror import drive, files


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


def test_renamed_and_recreated_folder_deletes_no_blobs(blobs: BlobStore, folder: Path) -> None:
    async def first(mirror: Mirror) -> None:
        await mirror.pull()
        folder.rename(folder.with_name("aside"))
        folder.mkdir()
        with pytest.raises(FileNotFoundError):
            await mirror.push()

    async def after_a_restart(mirror: Mirror) -> None:
        with pytest.raises(FileNotFoundError):
            await mirror.push()

    drive(blobs, folder, first)
    drive(blobs, folder, after_a_restart)
    assert sorted(blobs.containers["c"]) == ["a", "deep/er/b"]


def test_folder_replaced_by_a_link_is_neither_read_nor_written(
    blobs: BlobStore, folder: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "private").write_text("x")

    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        folder.rename(folder.with_name("aside"))
        folder.symlink_to(elsewhere)
        blobs.containers["c"]["new"] = b"3"
        with pytest.raises(FileNotFoundError):
            await mirror.push()
        with pytest.raises(FileNotFoundError):
            await mirror.pull()

    drive(blobs, folder, script)
    assert sorted(blobs.containers["c"]) == ["a", "deep/er/b", "new"]
    assert [path.name for path in elsewhere.iterdir()] == ["private"]


def test_file_behind_a_link_is_not_deleted_with_its_blob(
    blobs: BlobStore, folder: Path, tmp_path: Path
) -> None:
    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        (folder / "deep").rename(tmp_path / "moved")
        (folder / "deep").symlink_to(tmp_path / "moved")
        del blobs.containers["c"]["deep/er/b"]
        await mirror.pull()
        assert (tmp_path / "moved" / "er" / "b").read_text() == "2"

    drive(blobs, folder, script)


def test_push_does_not_follow_a_link_replacing_a_folder(
    blobs: BlobStore, folder: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "b").write_text("secret")

    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        (folder / "deep" / "er" / "b").write_text("written")
        storage = mirror._storage  # pyright: ignore[reportPrivateUsage]
        upload = storage.upload

        async def late(*given: Any, **options: Any) -> Uploaded:
            (folder / "deep" / "er").rename(tmp_path / "aside")
            (folder / "deep" / "er").symlink_to(private)
            return await upload(*given, **options)

        storage.upload = late
        await mirror.push()

    drive(blobs, folder, script)
    assert blobs.containers["c"]["deep/er/b"] == b"2"


def test_pull_does_not_follow_a_link_replacing_a_folder(
    blobs: BlobStore, folder: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()

    async def script(mirror: Mirror) -> None:
        storage = mirror._storage  # pyright: ignore[reportPrivateUsage]
        download = storage.download

        async def early(url: str, create: Callable[[], int]) -> str:
            etag = await download(url, create)
            if "deep" in url:
                (folder / "deep").symlink_to(private)
            return etag

        storage.download = early
        await mirror.pull()

    drive(blobs, folder, script)
    assert files(folder) == {"a": "1"}
    assert list(private.iterdir()) == []


def test_crash_during_a_pull_forgets_no_file(blobs: BlobStore, folder: Path) -> None:
    async def first(mirror: Mirror) -> None:
        hold = asyncio.Event()
        storage = mirror._storage  # pyright: ignore[reportPrivateUsage]
        download = storage.download

        async def until_the_second(url: str, create: Callable[[], int]) -> str:
            if "deep" in url:
                hold.set()
                await asyncio.Event().wait()
            return await download(url, create)

        storage.download = until_the_second
        pulling = asyncio.ensure_future(mirror.pull())
        await hold.wait()
        mirror.closed = True  # as after kill -9: it can no longer do anything
        pulling.cancel()
        await asyncio.gather(pulling, return_exceptions=True)

    async def after_the_restart(mirror: Mirror) -> None:
        blobs.containers["c"]["a"] = b"newer"
        await mirror.push()
        assert blobs.containers["c"]["a"] == b"newer"
        await mirror.pull()
        assert files(folder) == {"a": "newer", "deep/er/b": "2"}

    drive(blobs, folder, first)
    assert files(folder) == {"a": "1"}
    drive(blobs, folder, after_the_restart)


def test_partially_written_record_is_read_up_to_its_break(blobs: BlobStore, folder: Path) -> None:
    async def pull(mirror: Mirror) -> None:
        await mirror.pull()

    async def again(mirror: Mirror) -> None:
        blobs.requests.clear()
        await mirror.push()
        assert blobs.requests == []

    drive(blobs, folder, pull)
    with (folder.parent / "known.json").open("a") as file:
        file.write('{"name": "a", "et')
    drive(blobs, folder, again)


def test_refused_file_does_not_block_others(blobs: BlobStore, folder: Path) -> None:
    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        for name in ("b1", "b2", "b3"):
            (folder / name).write_text(name)
        blobs.failures["/account/c/b2"] = [400]
        with pytest.raises(BlobRequestError):
            await mirror.push()
        assert sorted(blobs.containers["c"]) == ["a", "b1", "b3", "deep/er/b"]

    drive(blobs, folder, script)


def test_names_outside_utf8_are_not_uploaded(blobs: BlobStore, folder: Path) -> None:
    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe")).write_text("x")
        (folder / "z").write_text("z")
        await mirror.push()
        assert sorted(blobs.containers["c"]) == ["a", "deep/er/b", "z"]

    drive(blobs, folder, script)


def test_blobs_with_invalid_file_names_do_not_block_others(blobs: BlobStore, folder: Path) -> None:
    async def script(mirror: Mirror) -> None:
        blobs.containers["c"]["b" * 300] = b"too long"
        blobs.containers["c"]["z"] = b"z"
        await mirror.pull()
        assert files(folder) == {"a": "1", "deep/er/b": "2", "z": "z"}
        (folder / "deep" / "er" / "b").unlink()
        (folder / "deep" / "er").rmdir()
        (folder / "deep" / "er").write_text("a file now")
        blobs.containers["c"] |= {"deep/er/c": b"3", "zz": b"zz"}
        await mirror.pull()
        assert (folder / "zz").read_text() == "zz"

    drive(blobs, folder, script)


@pytest.mark.slow
def test_folders_deeper_than_the_recursion_limit_are_walked(blobs: BlobStore, folder: Path) -> None:
    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        (folder / "z").write_text("z")
        deep = folder
        for _ in range(1500):
            deep = deep / "d"
            deep.mkdir()
        (deep / "f").write_text("f")
        try:
            await mirror.push()
        finally:
            remove_tree(folder / "d")  # pytest cannot
        assert blobs.containers["c"]["z"] == b"z"

    drive(blobs, folder, script)


@needs_ordinary_user
def test_unreadable_folder_keeps_its_blobs(blobs: BlobStore, folder: Path) -> None:
    async def script(mirror: Mirror) -> None:
        await mirror.pull()
        (folder / "z").write_text("z")
        (folder / "deep").chmod(0)
        try:
            await mirror.push()
        finally:
            (folder / "deep").chmod(0o755)
        assert sorted(blobs.containers["c"]) == ["a", "deep/er/b", "z"]

    drive(blobs, folder, script)


@linux_only
@pytest.mark.attack
def test_blobs_are_not_written_into_an_exchanged_folder(
    blobs: BlobStore, folder: Path, tmp_path: Path
) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (folder / "deep").mkdir()
    (folder / "aside").symlink_to(private)

    async def script(mirror: Mirror) -> None:
        for round_number in range(5):
            blobs.containers["c"] |= {f"deep/{round_number}-{n}": b"x" for n in range(20)}
            await mirror.pull()
            with suppress(BlobRequestError, OSError):
                await mirror.push()

    with exchanging(folder / "deep", folder / "aside"):
        drive(blobs, folder, script)
    assert list(private.iterdir()) == []
