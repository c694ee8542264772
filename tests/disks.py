"""Full disks: small real disks, and a fake `os.statvfs`; folders without permissions."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """Replaces `os.statvfs` of every disk; `changes` are the replaced fields."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._real = os.statvfs
        self.changes: dict[str, int] = {}
        monkeypatch.setattr(os, "statvfs", self._answer)

    def _answer(self, path: Any) -> os.statvfs_result:
        found = self._real(path)
        names = ("bsize", "frsize", "blocks", "bfree", "bavail", "files", "ffree", "favail")
        fields = (f"f_{name}" for name in (*names, "flag", "namemax"))
        values = [self.changes.get(name, int(getattr(found, name))) for name in fields]
        return os.statvfs_result(values)

    def fill(self) -> None:
        """Report 4,096 free bytes."""
        self.changes = {"f_bfree": 1, "f_bavail": 1, "f_frsize": 4096, "f_blocks": 1 << 20}

    def free(self) -> None:
        """Report the real values."""
        self.changes = {}


needs_ordinary_user = pytest.mark.skipif(os.geteuid() == 0, reason="root may enter every folder")


def lock(folder: Path) -> Path:
    """Create folders that their owner may not enter or change in an existing folder; return it."""
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "c").touch()
    (folder / "a" / "b").chmod(0o500)
    (folder / "a").chmod(0)
    return folder


@contextmanager
def small_disk(folder: Path, options: str = "size=64m") -> Generator[Path]:
    """Mount a small disk, or skip the test if that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine does not let us mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def filled(disk: Path) -> Generator[None]:
    """Fill a disk until the end of the block, including bytes that others free."""
    enough = threading.Event()

    def take() -> None:
        with (disk / "filler").open("wb", buffering=0) as file:
            while not enough.is_set():
                for size in (1 << 20, 1 << 12, 1):
                    with suppress(OSError):
                        while file.write(bytes(size)) == size:
                            pass
                time.sleep(0.002)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    try:
        while os.statvfs(disk).f_bfree:
            time.sleep(0.01)
        yield
    finally:
        enough.set()
        thread.join()
        (disk / "filler").unlink()


def fill(disk: Path) -> Path:
    """Fill a disk once. Return the file, which does not grow when others free bytes."""
    path = disk / "hog"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return path
