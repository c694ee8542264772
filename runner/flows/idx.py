"""The IDX format of MNIST (images and labels, gzip), with the standard library only."""

from __future__ import annotations

import gzip
import hashlib
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from runner.core.errors import ExitCode, RunnerError

IMAGES = 0x00000803  # unsigned bytes, three dimensions
LABELS = 0x00000801  # unsigned bytes, one dimension
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class IdxFile:
    """What an IDX file holds; `sha256` is of its uncompressed bytes, `highest` of labels only."""

    shape: tuple[int, ...]
    sha256: str
    highest: int


def read_idx(path: Path, magic: int) -> IdxFile:
    """Check one gzip file: magic number, shape, length. Raises RunnerError naming what is wrong."""
    dimensions = magic & 0xFF
    try:
        with gzip.open(path, "rb") as file:
            header = file.read(4 * (1 + dimensions))
            if not header:
                raise _refused(path, "it is empty")
            if len(header) < 4 * (1 + dimensions) or struct.unpack(">I", header[:4])[0] != magic:
                raise _refused(path, f"its first bytes are {header[:4].hex()}, not {magic:08x}")
            shape = struct.unpack(f">{dimensions}I", header[4:])
            digest = hashlib.sha256(header)
            size_bytes = highest = 0
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size_bytes += len(chunk)
                if magic == LABELS:  # a pass over 47 MB of pixels would take a second
                    highest = max(highest, *chunk)
    except (OSError, EOFError, zlib.error) as err:
        raise _refused(path, str(err)) from err
    expected = 1
    for extent in shape:
        expected *= extent
    if size_bytes != expected:
        raise _refused(path, f"it promises {expected} bytes ({shape}) and has {size_bytes}")
    return IdxFile(shape, digest.hexdigest(), highest)


def write_idx(path: Path, magic: int, shape: tuple[int, ...], rows: Iterable[bytes]) -> None:
    """Write a gzip IDX file whose bytes depend on its contents only."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        file.write(struct.pack(f">I{len(shape)}I", magic, *shape))
        for row in rows:
            file.write(row)


def _refused(path: Path, why: str) -> RunnerError:
    return RunnerError(
        "R-DATA-FORMAT",
        f"{path} is not a gzip IDX file of MNIST",
        why=why,
        fix="pass a folder with the four MNIST files: --data FOLDER",
        exit_code=ExitCode.PREFLIGHT,
    )
