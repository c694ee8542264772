"""What `runner data get` does where others do the same at that moment."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, cast

from runner.azure.storage.stores import FileStore, StoredFile
from runner.core.progress import Progress, ignore_progress
from runner.flows.data.transfer import Download, get_files

CONTENT = b"what is stored"
DIGEST = hashlib.md5(CONTENT, usedforsecurity=False).digest()
FILE = StoredFile("x/a.bin", len(CONTENT), DIGEST, "1", None)
ENDS_S = 60


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
                self._second.wait(0.3)  # if nothing keeps the other out, it is in here now
            else:
                self._second.set()
                assert self._ended.wait(ENDS_S)
            target.write(CONTENT[4:])
            on_bytes(len(CONTENT))
        return DIGEST


def test_two_who_get_the_same_file_at_once_both_have_it(tmp_path: Path) -> None:
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


def test_file_system_without_locks_is_no_hindrance(tmp_path: Path, monkeypatch: Any) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", refuse)
    download = Download(FILE, tmp_path / "a.bin", "new")
    store = cast("FileStore", _Contended(lambda: None))
    assert get_files(store, [download], ignore_progress) == 1
    assert download.target.read_bytes() == CONTENT
