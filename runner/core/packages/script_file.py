"""The Python file that a command runs: find it in its folder, and parse it."""

from __future__ import annotations

import ast
import os
import re
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

SOURCES = "src"  # the folder of packages in the layout of packaging.python.org
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_PARSING = threading.Lock()


def find_module(folder: Path, name: str, *, is_run: bool = True) -> tuple[Path, Path] | None:
    """Return the file of a module and the folder above its first package: `folder`, or its `src`.

    Args:
        folder: the folder of the code.
        name: the dotted name of the module.
        is_run: True for `python -m`, which runs `__main__.py` of a package.
    """
    if not _MODULE.fullmatch(name):
        return None
    for root in (folder, folder / SOURCES):
        path = root.joinpath(*name.split("."))
        own = path / ("__main__.py" if is_run else "__init__.py")
        for file in (own, path.with_suffix(".py")):
            if os.path.isfile(file):  # noqa: PTH113  a name may be too long
                return file, root
    return None


def find_script(folder: Path, command: Sequence[str]) -> str | None:
    """Return the path of the script that a command runs, relative to the folder, or None.

    It is the first file that a word names, of any kind, or the file of `python -m MODULE`.
    """
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == "-m" and (found := find_module(folder, following)):
            return found[0].relative_to(folder).as_posix()
        name = PurePosixPath(word)
        if word.strip() and not name.is_absolute() and ".." not in name.parts:
            with suppress(OSError, ValueError):
                if (folder / name).is_file():
                    return str(name)
    return None


def is_file_in(folder: Path, name: str) -> bool:
    """Return True if the folder has a file with this relative path."""
    # os.path, because a sweep asks for the values of thousands of trials, and some are too long.
    return not os.path.isabs(name) and os.path.isfile(os.path.join(folder, name))  # noqa: PTH113, PTH117, PTH118


def parse_python(source: str | bytes) -> ast.Module:
    """Return the syntax tree of Python code.

    Threads must not call `ast.parse` directly: in Python 3.11, they share a counter of its depth,
    and one of them may fail with SystemError (python/cpython issue 106905).

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse` does.
    """
    with _PARSING:
        return ast.parse(source)
