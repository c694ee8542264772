"""Find MNIST: the user's folder, the cache, public mirrors, or the digits that scikit-learn
ships.

For the recipe `mnist` only: its folder is where this belongs.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import http.client
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from runner.core.home import HomePaths, not_writable
from runner.core.progress import OnProgress, Progress
from runner.flows.data.datasets import Dataset, DatasetFile, describe_file
from runner.flows.export.extras import install_command
from runner.flows.file_lock import file_lock
from runner.flows.local.azurite import find_uv, last_line
from runner.flows.transfers import sha256_of
from runner.protocol.errors import ExitCode, RunnerError

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


_DOWNLOAD_CHUNK = 1 << 16
_MIRROR_TIMEOUT_S = 15.0
_TRIES = 4  # per mirror, as long as each brings something
_TROUBLE = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)


@dataclass(slots=True)
class Mirrors:
    """Base URLs with a closing slash; `unreachable` ones are not asked again, with the reason."""

    urls: Sequence[str]
    unreachable: dict[str, str] = field(default_factory=dict[str, str])


def fetch(
    name: str,
    sha256: str,
    folder: Path,
    mirrors: Mirrors,
    on_bytes: Callable[[int], None],
) -> bool:
    """Bring `name` into `folder`; False when no mirror gave it.

    `on_bytes` gets the bytes there so far; a part stays beside the file for the next call.
    """
    part = folder / f".{name}.part"
    for url in mirrors.urls:
        if url in mirrors.unreachable:
            continue
        problem = _from_mirror(url + name, part, on_bytes)
        if problem is None and sha256_of(part) == sha256:
            part.replace(folder / name)
            return True
        if problem is None:
            part.unlink(missing_ok=True)  # a wrong file is of no use to the next mirror
        mirrors.unreachable[url] = problem or f"{name} has a wrong SHA-256"
    return False


def _from_mirror(url: str, part: Path, on_bytes: Callable[[int], None]) -> str | None:
    """None when the mirror said that this was all; else what went wrong."""
    problem = ""
    for _ in range(_TRIES):
        before = _size(part)
        try:
            _continue(url, part, on_bytes)
        except _TROUBLE as err:
            problem = str(getattr(err, "reason", None) or err) or type(err).__name__
            if _size(part) <= before:
                return problem
        except OSError as err:
            raise not_writable(part.parent, err) from err
        else:
            return None
    return problem


def _continue(url: str, part: Path, on_bytes: Callable[[int], None]) -> None:
    request = urllib.request.Request(url)  # noqa: S310  the table of mirrors holds https only
    have = _size(part)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        reply = urllib.request.urlopen(request, timeout=_MIRROR_TIMEOUT_S)  # noqa: S310
    except urllib.error.HTTPError as err:
        if err.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # all of it is there; the SHA-256 decides
        raise
    with reply:
        resumed = reply.status == http.client.PARTIAL_CONTENT
        have = have if resumed else 0
        expected = reply.length
        with part.open("ab" if resumed else "wb") as file:
            received = 0
            while chunk := reply.read(_DOWNLOAD_CHUNK):
                file.write(chunk)
                received += len(chunk)
                on_bytes(have + received)
    if expected is not None and received < expected:
        raise http.client.IncompleteRead(b"", expected - received)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://azureopendatastorage.blob.core.windows.net/mnist/",
    "https://raw.githubusercontent.com/fgnt/mnist/master/",
)

TRAIN_IMAGES = "train-images-idx3-ubyte.gz"
TRAIN_LABELS = "train-labels-idx1-ubyte.gz"
TEST_IMAGES = "t10k-images-idx3-ubyte.gz"
TEST_LABELS = "t10k-labels-idx1-ubyte.gz"

# The files as they were published in 1998; every mirror serves these bytes.
FILES = (
    DatasetFile(
        TRAIN_IMAGES, 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    DatasetFile(
        TRAIN_LABELS, 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    DatasetFile(
        TEST_IMAGES, 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    DatasetFile(
        TEST_LABELS, 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"
    ),
)

# SHA-256 of their uncompressed contents: a folder packed anew is still the real MNIST.
_CONTENTS = {
    TRAIN_IMAGES: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    TRAIN_LABELS: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    TEST_IMAGES: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    TEST_LABELS: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_LOCKED_FOR_S = 1200.0


def resolve(given: Path | None, home: Path, on_progress: OnProgress) -> Dataset:
    """The best MNIST there is; a fallback is announced in `notice`."""
    if given is not None:
        return _from_folder(given.expanduser().absolute())
    folder = HomePaths(home).data("mnist")
    if is_complete(folder):
        return Dataset("mnist", "cache", None, folder, FILES)
    with file_lock(folder.parent / ".lock", what="fetching MNIST", timeout_s=_LOCKED_FOR_S):
        if is_complete(folder):
            return Dataset("mnist", "cache", None, folder, FILES)
        mirrors = Mirrors(MIRRORS)
        if _download(folder, mirrors, on_progress):
            return Dataset("mnist", "mirror", None, folder, FILES)
        return _fallback(home, mirrors, on_progress)


def _from_folder(folder: Path) -> Dataset:
    missing = [file.name for file in FILES if not (folder / file.name).is_file()]
    if missing:
        raise RunnerError(
            "R-DATA-PATH",
            f"{folder} has no {missing[0]}",
            why=f"MNIST is the four files {', '.join(file.name for file in FILES)}",
            fix="pass the folder that holds them: --data FOLDER",
            exit_code=ExitCode.PREFLIGHT,
        )
    counts = [_check_part(folder, TRAIN_IMAGES, TRAIN_LABELS)]
    counts.append(_check_part(folder, TEST_IMAGES, TEST_LABELS))
    files = tuple(describe_file(folder, file.name) for file in FILES)
    if all(same for _, same in counts):
        return Dataset("mnist", "path", None, folder, files)
    notice = (
        f"not the complete MNIST: {counts[0][0]:,} training and {counts[1][0]:,} test images"
        f" from {folder}"
    )
    return Dataset("mnist-custom", "path", notice, folder, files)


def _check_part(folder: Path, images_name: str, labels_name: str) -> tuple[int, bool]:
    """Number of images, and whether they are exactly MNIST's."""
    images = read_idx(folder / images_name, IMAGES)
    labels = read_idx(folder / labels_name, LABELS)
    problem = ""
    if images.shape[1:] != (28, 28):
        problem = f"its images are {images.shape[1]}x{images.shape[2]}, not 28x28"
    elif images.shape[0] != labels.shape[0]:
        problem = f"{images.shape[0]} images and {labels.shape[0]} labels"
    elif images.shape[0] == 0:
        problem = "it has no images"
    elif labels.highest > 9:
        problem = f"a label is {labels.highest}"
    if problem:
        raise RunnerError(
            "R-DATA-FORMAT",
            f"{folder / images_name} does not fit the recipe",
            why=problem,
            fix="pass a folder with the four MNIST files: --data FOLDER",
            exit_code=ExitCode.PREFLIGHT,
        )
    known = (_CONTENTS[images_name], _CONTENTS[labels_name])
    return images.shape[0], (images.sha256, labels.sha256) == known


def is_complete(folder: Path) -> bool:
    """Whether all its files are there, as they were published."""
    if not all((folder / file.name).is_file() for file in FILES):
        return False
    return all(describe_file(folder, file.name) == file for file in FILES)


def _download(folder: Path, mirrors: Mirrors, on_progress: OnProgress) -> bool:
    total = sum(file.size_bytes for file in FILES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise not_writable(folder, err) from err
    on_progress(Progress("data", "start", "fetching MNIST", 0, total, "bytes"))
    done = 0
    for file in FILES:
        present = (folder / file.name).is_file() and describe_file(folder, file.name) == file
        start = done

        def on_bytes(received: int, start: int = start) -> None:
            step = Progress("data", "progress", "fetching MNIST", start + received, total, "bytes")
            on_progress(step)

        if not present and not fetch(file.name, file.sha256, folder, mirrors, on_bytes):
            on_progress(Progress("data", "failed", "no mirror of MNIST could be used"))
            return False
        done += file.size_bytes
    on_progress(Progress("data", "end", "MNIST", total, total, "bytes"))
    return True


def _fallback(home: Path, mirrors: Mirrors, on_progress: OnProgress) -> Dataset:
    try:
        folder = ensure_digits(HomePaths(home).data(NAME), on_progress)
    except RunnerError as err:
        reasons = "; ".join(f"{url}: {why}" for url, why in mirrors.unreachable.items())
        raise RunnerError(
            "R-DATA-MISSING",
            "MNIST could not be fetched, and neither could the digits of scikit-learn",
            why=f"{reasons}; {err.what}: {err.why}",
            fix="check network and proxy, or pass a folder with the four files: --data FOLDER",
            exit_code=ExitCode.PREFLIGHT,
        ) from err
    found = _from_folder(folder)
    notice = (
        "NOT MNIST: no mirror could be reached, so this trains on the 1,797 handwritten digits"
        " that scikit-learn ships, enlarged from 8x8 to 28x28 pixels."
        " Pass --data FOLDER, or try again with a network, for the real one."
    )
    return replace(found, name=NAME, source="fallback", notice=notice)
