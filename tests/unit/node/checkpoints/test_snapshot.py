"""Snapshots are states that the folder really had, while a script writes to it."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from runner.node.checkpoints import snapshot as snapshot_module
from runner.node.checkpoints.snapshot import (
    IncompleteFileError,
    Snapshot,
    Snapshotter,
    UnsettledError,
    list_folder,
)
from runner.node.script.command import FileId, OpenWriters, files_open_for_writing

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "checkpoints"
    made.mkdir()
    return made


@pytest.fixture
def snapshots(folder: Path, tmp_path: Path) -> Snapshotter:
    return Snapshotter(folder, tmp_path / "snapshots")


def settle(path: Path) -> None:
    """Set the times of all files to a minute ago."""
    then = time.time_ns() - 60 * 10**9
    os.utime(path, ns=(then, then))


def texts(snapshot: Snapshot) -> dict[str, str]:
    return {file.path: file.held.read_text() for file in snapshot.files}


def test_snapshot_keeps_files_replaced_or_deleted_later(
    folder: Path, snapshots: Snapshotter
) -> None:
    for name in ("a", "b"):
        (folder / name).write_text(name)
    taken = snapshots.take(list_folder(folder), strict=False)
    (folder / "new").write_text("other")
    (folder / "new").replace(folder / "a")
    (folder / "b").unlink()
    assert texts(taken) == {"a": "a", "b": "b"}


def test_leftovers_of_killed_agent_are_replaced(
    folder: Path, snapshots: Snapshotter, tmp_path: Path
) -> None:
    (folder / "a").write_text("a")
    (folder / "b").write_text("b")
    store = tmp_path / "snapshots"
    store.mkdir()
    for number in range(2):  # as an agent with the same pid left them
        os.link(folder / "b", store / f"{os.getpid()}.{number}.part")
    taken = snapshots.take(list_folder(folder), strict=False)
    assert texts(taken) == {"a": "a", "b": "b"}
    assert (folder / "b").read_text() == "b"
    for file in taken.files:
        assert file.held.samefile(folder / file.path), "linked, not copied"
    assert not list(store.glob("*.part"))


def test_folder_changing_during_snapshot_is_unsettled(folder: Path, snapshots: Snapshotter) -> None:
    (folder / "a").write_text("a")
    listing = list_folder(folder)
    (folder / "b").write_text("b")
    with pytest.raises(UnsettledError):
        snapshots.take(listing, strict=False)
    listing = list_folder(folder)
    (folder / "a").unlink()
    with pytest.raises(UnsettledError):
        snapshots.take(listing, strict=False)


@linux
def test_file_open_for_writing_is_unsettled(folder: Path) -> None:
    import subprocess

    (folder / "a").write_text("a")
    settle(folder / "a")
    script = (
        "import sys, time; f = open(sys.argv[1], 'ab'); print('x', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(folder / "a")], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        assert files_open_for_writing(folder) == {list_folder(folder).files["a"].id}
        writer.kill()
        writer.wait()
        assert files_open_for_writing(folder) == frozenset()


def test_file_written_in_place_is_taken_after_a_second(
    folder: Path, snapshots: Snapshotter, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert snapshot_module.RECENT_NS == 10**9
    monkeypatch.setattr(snapshot_module, "RECENT_NS", 3600 * 10**9)  # a second on a slow machine
    (folder / "a").write_text("a")
    with pytest.raises(UnsettledError):
        snapshots.take(list_folder(folder))
    monkeypatch.setattr(snapshot_module, "RECENT_NS", 0)
    assert texts(snapshots.take(list_folder(folder))) == {"a": "a"}


def test_partial_final_write_is_not_trusted(folder: Path, snapshots: Snapshotter) -> None:
    file, second = folder / "a", 10**9
    file.write_text("a")
    written = file.stat().st_mtime_ns
    for alive_ns, torn in ((0, {"a"}), (second // 2, {"a"}), (2 * second, set[str]())):
        assert snapshots.recently_written(list_folder(folder), written + alive_ns) == torn


def wait_for_a_tick(folder: Path) -> None:
    """Return when the time of files has advanced."""
    probe = folder.with_name("probe")
    probe.touch()
    began = probe.stat().st_mtime_ns
    while probe.stat().st_mtime_ns == began:
        probe.touch()


def test_links_of_snapshots_do_not_count_as_renames(
    folder: Path, snapshots: Snapshotter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "COPY_BYTES", 0)
    file = folder / "a"
    for text in ("one", "two"):
        file.write_text(text)  # in place: the first snapshot has a link to it
        wait_for_a_tick(folder)
        written = file.stat().st_mtime_ns
        taken = snapshots.take(list_folder(folder), strict=False)
        assert file.stat().st_ctime_ns > written
        assert snapshots.recently_written(list_folder(folder), written) == {"a"}
        wait_for_a_tick(folder)
        snapshots.keep_only(taken)
        assert snapshots.recently_written(list_folder(folder), written) == {"a"}


def test_rename_is_remembered_after_links_of_snapshots(
    folder: Path, snapshots: Snapshotter
) -> None:
    (folder / "new").write_text("one")
    written = (folder / "new").stat().st_mtime_ns
    wait_for_a_tick(folder)
    (folder / "new").rename(folder / "a")
    for _ in range(2):
        wait_for_a_tick(folder)
        snapshots.keep_only(snapshots.take(list_folder(folder), strict=False))
        assert snapshots.recently_written(list_folder(folder), written) == set()
    (folder / "a").write_text("two")
    assert snapshots.recently_written(list_folder(folder), written) == {"a"}


class Opened(OpenWriters):
    """Says that files are incomplete, with when they were last open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.files: dict[FileId, int] = {}

    def incomplete(self) -> dict[FileId, int]:
        return self.files


@pytest.fixture
def opened(folder: Path) -> Opened:
    return Opened(folder)


def test_incomplete_file_is_taken_only_if_allowed(
    folder: Path, tmp_path: Path, opened: Opened
) -> None:
    snapshots = Snapshotter(folder, tmp_path / "snapshots", opened)
    (folder / "a").write_text("half")
    settle(folder / "a")
    opened.files = {list_folder(folder).files["a"].id: time.time_ns() + 10**9}
    with pytest.raises(IncompleteFileError, match="a is open for writing, or was when"):
        snapshots.take(list_folder(folder), strict=False)
    taken = snapshots.take(list_folder(folder), strict=False, allow_incomplete=True)
    assert texts(taken) == {"a": "half"}
    opened.files = {}
    assert texts(snapshots.take(list_folder(folder))) == {"a": "half"}


def test_file_renamed_since_it_was_open_is_complete(
    folder: Path, tmp_path: Path, opened: Opened
) -> None:
    snapshots = Snapshotter(folder, tmp_path / "snapshots", opened)
    (folder / "new").write_text("whole")
    file = list_folder(folder).files["new"]
    opened.files = {file.id: file.mtime_ns}
    wait_for_a_tick(folder)
    (folder / "new").rename(folder / "a")
    assert texts(snapshots.take(list_folder(folder))) == {"a": "whole"}
    opened.files = {file.id: time.time_ns() + 10**9}  # renamed before it was closed
    with pytest.raises(IncompleteFileError):
        snapshots.take(list_folder(folder))


def test_renamed_file_is_taken_at_once(folder: Path, snapshots: Snapshotter) -> None:
    (folder / "a.new").write_text("a")
    time.sleep(0.02)  # more than a tick of the clock
    (folder / "a.new").replace(folder / "a")
    assert texts(snapshots.take(list_folder(folder))) == {"a": "a"}


def test_unchanged_file_is_not_read_again(
    folder: Path, snapshots: Snapshotter, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a").write_text("a")
    settle(folder / "a")
    first = snapshots.take(list_folder(folder))
    monkeypatch.setattr(snapshot_module, "hash_file", None)
    assert snapshots.take(list_folder(folder)).content == first.content


def test_snapshot_never_mixes_two_versions(folder: Path, snapshots: Snapshotter) -> None:
    """Each version is one folder, which is renamed into place."""
    done = threading.Event()

    def write() -> None:
        version = 0
        while not done.is_set():
            version += 1
            (folder / "new").mkdir()
            for number in range(5):
                (folder / "new" / str(number)).write_text(str(version))
            if (folder / "now").exists():
                (folder / "now").rename(folder / "old")
            (folder / "new").rename(folder / "now")
            for path in (folder / "old").glob("*"):
                path.unlink()
            if (folder / "old").exists():
                (folder / "old").rmdir()
            time.sleep(0.02)

    writer = threading.Thread(target=write)
    writer.start()
    taken = 0
    try:
        until = time.monotonic() + 120
        while time.monotonic() < until and taken < 10:
            try:
                found = texts(snapshots.take(list_folder(folder), strict=False))
            except UnsettledError:
                continue
            whole = {text for path, text in found.items() if path.startswith("now/")}
            count = sum(path.startswith("now/") for path in found)
            assert (len(whole), count) in ((1, 5), (0, 0))
            taken += count == 5
    finally:
        done.set()
        writer.join()
    assert taken > 0


def test_file_is_copied_if_it_cannot_be_linked(
    folder: Path, snapshots: Snapshotter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    (folder / "a").write_text("a")
    taken = snapshots.take(list_folder(folder), strict=False)
    (folder / "a").write_text("b")
    assert texts(taken) == {"a": "a"}


def test_small_file_that_is_rewritten_in_place_is_copied(
    folder: Path, snapshots: Snapshotter
) -> None:
    file = folder / "a"
    file.write_text("one")
    settle(file)
    linked = snapshots.take(list_folder(folder), strict=False)
    file.write_text("two")
    assert texts(linked) == {"a": "two"}, "the reason for a copy"
    settle(file)
    copied = snapshots.take(list_folder(folder), strict=False)
    file.write_text("three")
    assert texts(copied) == {"a": "two"}


@pytest.mark.parametrize("kind", ["pipe", "link", "other"])
def test_copy_of_a_file_that_was_replaced_is_refused(
    folder: Path, snapshots: Snapshotter, tmp_path: Path, kind: str
) -> None:
    """Reading a pipe would never end, and a link may lead to the file of another user."""
    file, outside = folder / "a", tmp_path / "outside"
    file.write_text("one")
    outside.write_text("two")
    settle(file)
    state = list_folder(folder).files["a"]
    file.rename(tmp_path / "kept")
    make = {"pipe": os.mkfifo, "link": lambda path: path.symlink_to(outside), "other": Path.touch}
    make[kind](file)
    with pytest.raises((UnsettledError, OSError)):
        snapshot_module._copy_small(file, tmp_path / "part", state, "a")
    assert not (tmp_path / "part").exists()


def test_missing_folder_is_listed_as_empty(tmp_path: Path) -> None:
    listing = list_folder(tmp_path / "gone")
    assert (listing.files, listing.folders) == ({}, ())


def test_file_name_outside_utf8_is_accepted(folder: Path, snapshots: Snapshotter) -> None:
    name = os.fsdecode(b"w\xff")
    (folder / name).write_text("x")
    assert texts(snapshots.take(list_folder(folder), strict=False)) == {name: "x"}


def test_file_rewritten_within_a_clock_tick_is_read_again(
    folder: Path, snapshots: Snapshotter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "SETTLED_NS", 1 << 60)
    file = folder / "model"
    file.write_text("one")
    before = file.stat()
    first = snapshots.take(list_folder(folder), strict=False)
    file.write_text("two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = snapshots.take(list_folder(folder), strict=False)
    assert first.listing == second.listing
    assert first.files[0].sha256 != second.files[0].sha256
