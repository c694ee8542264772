"""Reads the IDX format of MNIST, gzipped or not, with only the standard library.

The format: two zero bytes, the type (8 is unsigned byte), the number of dimensions, each dimension
as a big-endian 32-bit number, then the values.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

UNSIGNED_BYTE = 8
SIDE = 28  # pixels
CLASSES = 10
NAMES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}


class DataError(ValueError):
    """The data set cannot be used; the message names the file and the problem."""


@dataclass(frozen=True)
class Digits:
    """One split: `images` are count x 28 x 28 grey values, `labels` are 0 to 9, a byte each."""

    count: int
    images: bytes
    labels: bytes


def load_digits(folder: Path, split: str) -> Digits:
    """Load `train` or `test`. Raises DataError."""
    image_file, label_file = (find_file(folder, name) for name in NAMES[split])
    image_shape, images = read_idx(image_file, dimensions=3)
    label_shape, labels = read_idx(label_file, dimensions=1)
    if image_shape[1:] != (SIDE, SIDE):
        raise DataError(
            f"{image_file.name}: images are {image_shape[1]} x {image_shape[2]} pixels, "
            f"expected {SIDE} x {SIDE}"
        )
    if image_shape[0] != label_shape[0]:
        raise DataError(
            f"{image_file.name} has {image_shape[0]} images, "
            f"{label_file.name} has {label_shape[0]} labels"
        )
    if image_shape[0] == 0:
        raise DataError(f"{image_file.name}: no images")
    if max(labels) >= CLASSES:
        raise DataError(f"{label_file.name}: label {max(labels)} is not a digit")
    return Digits(image_shape[0], images, labels)


def find_file(folder: Path, name: str) -> Path:
    """Return the path of `name.gz` or `name` in the folder. Raises DataError."""
    for candidate in (folder / f"{name}.gz", folder / name):
        if candidate.is_file():
            return candidate
    raise DataError(f"{folder} has neither {name}.gz nor {name}")


def read_idx(path: Path, dimensions: int) -> tuple[tuple[int, ...], bytes]:
    """Return shape and values of a file of unsigned bytes. Raises DataError."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, gzip.BadGzipFile, zlib.error) as err:
        raise DataError(f"{path.name}: not a whole gzip file: {err}") from err
    header_size = 4 + 4 * dimensions
    magic = struct.pack(">HBB", 0, UNSIGNED_BYTE, dimensions)
    if raw[:4] != magic:
        raise DataError(
            f"{path.name}: starts with {raw[:4].hex() or 'nothing'}, expected {magic.hex()} "
            f"(IDX, unsigned bytes, {dimensions} dimensions)"
        )
    if len(raw) < header_size:
        raise DataError(f"{path.name}: incomplete header")
    shape = struct.unpack(f">{dimensions}I", raw[4:header_size])
    values = raw[header_size:]
    if len(values) != math.prod(shape):
        shown = " x ".join(map(str, shape))
        raise DataError(
            f"{path.name}: expected {shown} = {math.prod(shape)} bytes after the header, "
            f"got {len(values)}"
        )
    return shape, values
