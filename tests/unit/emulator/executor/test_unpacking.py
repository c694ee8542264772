"""Untrusted zip files: extracted files stay in the folder and within limits."""

from __future__ import annotations

import io
import stat
import struct
import threading
import zipfile
from pathlib import Path

import pytest

from batch_emulator.executor.application_packages import MAX_BYTES, BrokenArchiveError, unpack


def archive(tmp_path: Path, *members: tuple[str | zipfile.ZipInfo, bytes]) -> Path:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as opened:
        for name, data in members:
            opened.writestr(name, data)
    return path


def member(name: str, mode: int) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = mode << 16
    return info


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "outer" / "target"
    folder.mkdir(parents=True)
    return folder


def unpacked(path: Path, target: Path, max_bytes: int = MAX_BYTES) -> None:
    unpack(path, target, threading.Event(), max_bytes=max_bytes)


def test_files_folders_and_modes_are_unpacked(tmp_path: Path, target: Path) -> None:
    run = member("bin/run", stat.S_IFREG | 0o755)
    plain = zipfile.ZipInfo("read.me")
    plain.create_system = 0  # from a machine without file modes
    unpacked(archive(tmp_path, (run, b"#!"), ("empty/", b""), (plain, b"x")), target)
    assert (target / "bin" / "run").read_bytes() == b"#!"
    assert stat.S_IMODE((target / "bin" / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "read.me").stat().st_mode) == 0o644
    assert (target / "empty").is_dir()


def test_modes_are_limited_to_permission_bits(tmp_path: Path, target: Path) -> None:
    unpacked(archive(tmp_path, (member("run", stat.S_IFREG | 0o6111), b"")), target)
    assert stat.S_IMODE((target / "run").stat().st_mode) == 0o711


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/abs", "..\\x", "C:\\x", "a/../x"])
def test_names_leaving_the_folder_are_refused(tmp_path: Path, target: Path, name: str) -> None:
    with pytest.raises(BrokenArchiveError, match="leads out"):
        unpacked(archive(tmp_path, (name, b"x")), target)
    assert not (target.parent / "x").exists()


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(tmp_path: Path, target: Path, kind: int) -> None:
    path = archive(tmp_path, (member("l", kind | 0o777), b"/etc"), ("l/passwd", b"x"))
    with pytest.raises(BrokenArchiveError, match="link or a device"):
        unpacked(path, target)


def test_zip_bomb_is_stopped(tmp_path: Path, target: Path) -> None:
    path = archive(tmp_path, ("a", bytes(10_000_000)), ("b", bytes(10_000_000)))
    assert path.stat().st_size < 100_000
    with pytest.raises(BrokenArchiveError, match="more bytes"):
        unpacked(path, target, max_bytes=15_000_000)
    written = sum(file.stat().st_size for file in target.iterdir())
    assert written <= 15_000_000


def test_zip_bomb_with_a_false_size_is_stopped(tmp_path: Path, target: Path) -> None:
    path = archive(tmp_path, ("a", bytes(5_000_000)))
    data = path.read_bytes().replace(struct.pack("<I", 5_000_000), struct.pack("<I", 10))
    path.write_bytes(data)
    with pytest.raises(BrokenArchiveError):
        unpacked(path, target, max_bytes=1000)
    assert sum(file.stat().st_size for file in target.iterdir()) <= 1000


@pytest.mark.parametrize("data", [b"", b"PK\x05\x06", b"no zip", bytes(1000)])
def test_other_formats_than_zip_are_refused(tmp_path: Path, target: Path, data: bytes) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(data)
    with pytest.raises(BrokenArchiveError):
        unpacked(path, target)


def test_damaged_and_truncated_archives_are_refused(tmp_path: Path, target: Path) -> None:
    whole = io.BytesIO(archive(tmp_path, ("a", bytes(range(256)) * 100)).read_bytes()).getvalue()
    for broken in (whole[:-30], whole[:60] + b"\xff\xff\xff" + whole[63:]):
        (tmp_path / "b.zip").write_bytes(broken)
        with pytest.raises(BrokenArchiveError):
            unpacked(tmp_path / "b.zip", target)


def test_duplicate_name_is_refused(tmp_path: Path, target: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        path = archive(tmp_path, ("a", b"1"), ("a", b"2"))
    with pytest.raises(OSError, match="exists"):
        unpacked(path, target)


def test_unpacking_can_be_cancelled(tmp_path: Path, target: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(BrokenArchiveError, match="given up"):
        unpack(archive(tmp_path, ("a", b"x")), target, stop)
