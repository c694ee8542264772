"""Parsing Python code from several threads."""

from __future__ import annotations

import ast
import sys
import time
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.core.packages.script_file import parse_python

_THREADS = 6
_TIMES = 15


class _Garbage:
    """Garbage that lets another thread run when it is collected."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


@pytest.fixture
def _frequent_switches() -> Generator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("_frequent_switches")
def test_threads_parse_python_at_once() -> None:
    source = Path(ast.__file__).read_bytes()
    expected = len(ast.parse(source).body)

    def parse(_: int) -> int:
        for _ in range(20):
            _Garbage()
        return len(parse_python(source).body)

    with ThreadPoolExecutor(_THREADS) as threads:
        found = [*threads.map(parse, range(_THREADS * _TIMES))]
    assert set(found) == {expected}
