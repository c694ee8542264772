"""Processes that replace files and folders all the time, as a task that attacks the emulator."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

_EXCHANGE = """\
import ctypes, os, sys
rename, first, second = ctypes.CDLL(None).renameat2, *map(os.fsencode, sys.argv[1:])
print("ready", flush=True)
while True:
    rename(-100, first, -100, second, 2)  # AT_FDCWD, RENAME_EXCHANGE
"""
_LINK = """\
import os, sys
target, link = sys.argv[1:]
print("ready", flush=True)
while True:
    try:
        os.symlink(target, link)
    except OSError:
        pass
"""

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is a call of Linux")


@contextmanager
def exchanging(first: Path, second: Path) -> Generator[None]:
    """Exchange two paths again and again, in another process."""
    with _running(_EXCHANGE, first, second):
        yield


@contextmanager
def linking(link: Path, target: Path) -> Generator[None]:
    """Create a link whenever its name is free, in another process."""
    with _running(_LINK, target, link):
        yield


@contextmanager
def _running(script: str, *arguments: Path) -> Generator[None]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield
        finally:
            process.kill()
