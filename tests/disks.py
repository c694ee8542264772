"""Disks that are full: real ones of a few megabytes, and what the system says about one."""

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
    """Replaces what the system says about every disk; `changes` are fields of `os.statvfs`."""

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
        """Leave 4,096 bytes."""
        self.changes = {"f_bfree": 1, "f_bavail": 1, "f_frsize": 4096, "f_blocks": 1 << 20}

    def free(self) -> None:
        """Say the truth."""
        self.changes = {}


@contextmanager
def small_disk(folder: Path, options: str = "size=64m") -> Generator[Path]:
    """Mount a small disk; skip the test where that is not allowed."""
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
    """Take every byte of a disk, also those that others free, until the end."""
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
    """Take every byte of a disk, but none that others free later. Return the file."""
    path = disk / "hog"
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
    return path
