"""`runner data get`: names, and concurrent downloads."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest

from runner.azure.storage.stores import FileStore, StoredFile
from runner.core.progress import Progress, ignore_progress
from runner.core.storage_paths import parse_storage_path
from runner.flows.data.commands import files_to_remove
from runner.flows.data.stores import list_entries
from runner.flows.data.transfer import Download, get_files, plan_get
from runner.protocol.errors import RunnerError

CONTENT = b"what is stored"
DIGEST = hashlib.md5(CONTENT, usedforsecurity=False).digest()
FILE = StoredFile("x/a.bin", len(CONTENT), DIGEST, "1", None)
ENDS_S = 300


class _Contended:
    """While it sends the first time, `begin` is called."""

    def __init__(self, begin: Callable[[], object]) -> None:
        self._begin = begin
        self._calls = 0
        self._second, self._ended = Event(), Event()

    def ended(self) -> None:
        """Who came first has the file."""
        self._ended.set()

    def get(self, _file: StoredFile, part: Path, on_bytes: Callable[[int], None]) -> bytes:
        self._calls += 1
        first = self._calls == 1
        with part.open("r+b" if part.exists() else "w+b") as target:
            target.write(CONTENT[:4])
            if first:
                self._begin()
                self._second.wait(0.3)  # without a lock, the other one would be here now
            else:
                self._second.set()
                assert self._ended.wait(ENDS_S)
            target.write(CONTENT[4:])
            on_bytes(len(CONTENT))
        return DIGEST


def test_concurrent_downloads_of_a_file_both_succeed(tmp_path: Path) -> None:
    download = Download(FILE, tmp_path / "copy" / "a.bin", "new")
    begun = Event()
    others: list[Future[int]] = []

    def on_progress(progress: Progress) -> None:
        begun.set()

    with ThreadPoolExecutor(1) as pool:

        def begin() -> None:
            others.append(pool.submit(get_files, store, [download], on_progress))
            assert begun.wait(ENDS_S)

        contended = _Contended(begin)
        store = cast("FileStore", contended)
        assert get_files(store, [download], ignore_progress) == 1
        contended.ended()
        assert others[0].result(ENDS_S) == 1
    assert download.target.read_bytes() == CONTENT
    assert [path.name for path in download.target.parent.iterdir()] == ["a.bin"]


def test_download_works_on_a_file_system_without_locks(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    download = Download(FILE, tmp_path / "a.bin", "new")
    store = cast("FileStore", _Contended(lambda: None))
    assert get_files(store, [download], ignore_progress) == 1
    assert download.target.read_bytes() == CONTENT


class _Older:
    """A store whose blobs have the names of an older version. No request takes them for others."""

    def __init__(self, *paths: str) -> None:
        self._files = [StoredFile(path, len(CONTENT), DIGEST, path, None) for path in paths]

    def find(self, path: str) -> StoredFile | None:
        assert not path.endswith(".")
        return next((file for file in self._files if file.path == path), None)

    def list(self, folder: str) -> Iterator[StoredFile]:
        start = f"{folder}/" if folder else ""
        return (file for file in self._files if file.path.startswith(start))


@pytest.mark.parametrize(
    ("typed", "stored"),
    [
        ("d/notes.", "d/notes."),
        ("notes.", "notes."),
        ("d/a\x85b", "d/a\x85b"),
        ("d/\ue000", "d/\ue000"),
        ("d./x", "d./x"),
        ("d.", "d./x"),
        ("d%x2E/notes.", "d%x2E/notes."),
    ],
)
def test_blob_with_the_name_of_an_older_version_is_found(
    tmp_path: Path, typed: str, stored: str
) -> None:
    store = cast("FileStore", _Older("other", "d/notes", "notes", stored))
    place = parse_storage_path(f"work:{typed}", "data")
    [download] = plan_get(store, place, tmp_path / "new", ignore_progress)
    assert download.file.path == stored
    assert [file.path for file in files_to_remove(store, place, recursive=True)] == [stored]
    assert [entry.path for entry in list_entries(store, place, recursive=True)] == [stored]


def test_stored_path_is_preferred_to_the_name_of_an_older_version() -> None:
    store = cast("FileStore", _Older("notes%x2E", "notes."))
    [file] = files_to_remove(store, parse_storage_path("notes.", "data"), recursive=False)
    assert file.path == "notes%x2E"


@pytest.mark.parametrize("typed", ["a\\b", "two\nlines", "bad\udcff", "notes."])
def test_missing_name_is_reported(typed: str) -> None:
    store = cast("FileStore", _Older("a/b", "notes"))
    with pytest.raises(RunnerError) as refused:
        files_to_remove(store, parse_storage_path(typed, "data"), recursive=True)
    assert refused.value.code == "R-DATA-NONE"


def test_file_leaving_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path)
    store = cast("FileStore", _Older("d/link/x"))
    with pytest.raises(RunnerError) as refused:
        plan_get(store, parse_storage_path("d", "data"), tmp_path / "here", ignore_progress)
    assert refused.value.code == "R-DATA-LEAVES"
    assert str(tmp_path / "here" / "link" / "x") in refused.value.what
