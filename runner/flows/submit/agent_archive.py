"""Pack the agent into one file that any `python3` can run.

`python -m runner.flows.submit.agent_archive OUT` writes it to a file.
"""

from __future__ import annotations

import hashlib
import io
import marshal
import os
import sys
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from types import CodeType
from typing import Any, cast

from runner.core.home import HomePaths, is_private, make_private, runner_home

# The earliest date of the zip format. It is fixed, so that equal sources give equal bytes.
EPOCH = (1980, 1, 1, 0, 0, 0)
_UNCHECKED_HASH = 0b01
_SLICE = b":"  # TYPE_SLICE of Python/marshal.c since CPython 3.14
MAIN = "from runner.node.agent.main import start\n\nstart()\n"


def build_agent() -> bytes:
    """Return the agent as a `.pyz`, cached in the home, because compiling takes half a second.

    Its bytes depend only on the sources and the version of Python. It is not compressed, because
    compressed bytes differ between zlib versions, and because it then starts faster.
    """
    sources = read_sources()
    digest = hashlib.sha256(MAGIC_NUMBER)
    for name, content in sources.items():
        digest.update(f"{name}:{len(content)}:".encode() + content)
    kept = HomePaths(runner_home(os.environ)).cache / "agent" / f"{digest.hexdigest()}.pyz"
    with suppress(OSError):
        make_private(kept.parent)
    if not is_private(kept.parent):  # its files would be executed, whoever wrote them
        return pack(sources)
    with suppress(OSError):
        return kept.read_bytes()
    packed = pack(sources)
    with suppress(OSError):
        part = kept.with_name(f"{kept.stem}.{os.getpid()}.part")
        part.write_bytes(packed)
        part.replace(kept)
        for other in kept.parent.glob("*.pyz"):
            if other != kept:
                other.unlink(missing_ok=True)
    return packed


def read_sources() -> dict[str, bytes]:
    """Return the modules of the agent by their names in the archive."""
    root = Path(__file__).parents[2]
    found: dict[str, bytes] = {}
    for package in ("hooks", "node", "protocol"):
        for source in sorted((root / package).rglob("*.py")):
            name = source.relative_to(root).as_posix()
            if name != "node/__main__.py":
                found[f"runner/{name}"] = source.read_text(encoding="utf-8").encode()
    return found


def pack(sources: Mapping[str, bytes]) -> bytes:
    """Return an archive with these modules and their byte code."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        _add(archive, "__main__.py", MAIN.encode())
        _add(archive, "runner/__init__.py", b"")
        for name, source in sources.items():
            _add(archive, name, source)
            # Scripts import the hooks with their own Python.
            compiled = None if name.startswith("runner/hooks/") else _compiled(source, name)
            if compiled is not None:
                _add(archive, f"{name}c", compiled)
    return b"#!/usr/bin/env python3\n" + packed.getvalue()


def _compiled(source: bytes, name: str) -> bytes | None:
    """Return the byte code of a module for nodes with the Python of this machine.

    Byte code saves a third of a second of each start, which matters for short trials of a sweep.
    Another Python ignores it because of its magic number, and compiles the source. Python does not
    compare it with the source ("unchecked hash-based", PEP 552). None if a future Python has
    constants that `_marshal` does not know: every Python can start the agent without byte code.
    """
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    flags = _UNCHECKED_HASH.to_bytes(4, "little")
    try:
        return MAGIC_NUMBER + flags + source_hash(source) + _marshal(code)
    except ValueError:
        return None


def _marshal(code: CodeType) -> bytes:
    """Return the marshalled code, with the same bytes in every process.

    Later versions of marshal than 2 write references, which depend on other objects in memory.
    Version 2 cannot write slices, which are constants since Python 3.14, although every version can
    read them. They are written as bytes and exchanged afterwards.
    """
    slices: dict[bytes, bytes] = {}
    packed = marshal.dumps(_replace_slices(code, slices), 2)
    for placeholder, written in slices.items():
        packed = packed.replace(placeholder, written)
    return packed


def _replace_slices(constant: object, slices: dict[bytes, bytes]) -> Any:
    """Return the constant with placeholders, and add to `slices` what stands for each of them."""
    if isinstance(constant, CodeType):
        constants = tuple(_replace_slices(each, slices) for each in constant.co_consts)
        return constant.replace(co_consts=constants)
    if isinstance(constant, tuple):
        return tuple(_replace_slices(each, slices) for each in cast("tuple[object, ...]", constant))
    if isinstance(constant, slice):
        found = cast("slice[Any, Any, Any]", constant)
        parts: tuple[Any, ...] = (found.start, found.stop, found.step)
        written = _SLICE + b"".join(marshal.dumps(part, 2) for part in parts)
        placeholder = b"slice:" + hashlib.sha256(written).digest()
        slices[marshal.dumps(placeholder, 2)] = written
        return placeholder
    return constant


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, EPOCH)
    info.external_attr = 0o644 << 16
    info.create_system = 3  # Unix, even if packed on Windows
    archive.writestr(info, content)


def main() -> None:
    """Write the agent to the path on the command line."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m runner.flows.submit.agent_archive OUT")
    Path(sys.argv[1]).write_bytes(build_agent())


if __name__ == "__main__":
    main()
