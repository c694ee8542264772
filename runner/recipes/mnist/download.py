"""Download MNIST from public mirrors, or else use the digits in the package scikit-learn.

    python download.py fetch FOLDER    download the four files; complete files are not fetched again
    python download.py check FOLDER    check a folder with the four files

runner runs this before it submits, and reads JSON lines from its standard output
(docs/guides/recipes.md). `.runnerignore` keeps it out of the code archive, so that the hash of a
run's code does not depend on the mirrors.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import http.client
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from idx import NAMES, SIDE, UNSIGNED_BYTE, DataError, load_digits

MIRRORS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "https://storage.googleapis.com/cvdf-datasets/mnist/",
    "https://azureopendatastorage.blob.core.windows.net/mnist/",
    "https://raw.githubusercontent.com/fgnt/mnist/master/",
)

# Size and SHA-256 of the files as they were published in 1998; every mirror serves these bytes.
FILES = {
    "train-images-idx3-ubyte.gz": (
        9912422,
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    ),
    "train-labels-idx1-ubyte.gz": (
        28881,
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    ),
    "t10k-images-idx3-ubyte.gz": (
        1648877,
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    ),
    "t10k-labels-idx1-ubyte.gz": (
        4542,
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
}

# SHA-256 of the uncompressed images and labels, which also match files that were compressed again.
CONTENTS = {
    "train": (
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    "test": (
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
}

CHUNK = 1 << 16
MIRROR_TIMEOUT_S = 15.0
TRIES = 4  # per mirror, as long as each try receives some bytes
NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, TimeoutError, ConnectionError)

DIGITS = "sklearn-digits"
PACKAGE = "scikit-learn"
CSV = Path("sklearn") / "datasets" / "data" / "digits.csv.gz"
COUNT = 1797
SOURCE_SIDE = 8  # pixels of a source image
SOURCE_MAX = 16  # value of a black source pixel
DIGIT_SIDE = 20  # MNIST's digits are 20 pixels wide, in the middle of 28
MARGIN = 4
TEST_EVERY = 6
INSTALL_TIMEOUT_S = 600.0
NOTICE = (
    "NOT MNIST: no mirror could be reached, so this trains on the 1,797 handwritten digits"
    " that scikit-learn ships, enlarged from 8x8 to 28x28 pixels."
    " Pass --data FOLDER, or try again with a network, for the real one."
)


class DownloadError(Exception):
    """The data set cannot be used; the fields are those of the error that runner prints."""

    def __init__(self, code: str, what: str, why: str, fix: str) -> None:
        super().__init__(what)
        self.code, self.what, self.why, self.fix = code, what, why, fix


def main(verb: str, folder: Path) -> int:
    """Run the verb, and print progress and the result, or the error. Return the exit code."""
    try:
        emit(fetch(folder) if verb == "fetch" else check(folder))
    except DownloadError as err:
        emit({"code": err.code, "what": err.what, "why": err.why, "fix": err.fix})
        return 1
    return 0


def emit(document: dict) -> None:
    """Print one JSON line."""
    print(json.dumps(document), flush=True)


def check(folder: Path) -> dict:
    """Return the name of the data set in a folder, and a notice if it is not all of MNIST."""
    fix = "pass the folder that holds the four MNIST files: --data FOLDER"
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing:
        raise DownloadError(
            "R-DATA-PATH", f"{folder} has no {missing[0]}", f"MNIST is {', '.join(FILES)}", fix
        )
    try:
        splits = {split: load_digits(folder, split) for split in NAMES}
    except DataError as err:
        raise DownloadError(
            "R-DATA-FORMAT", f"{folder} does not hold MNIST files", str(err), fix
        ) from err
    except OSError as err:
        raise DownloadError("R-DATA-READ", f"cannot read {folder}", str(err), fix) from err
    result = {"name": "mnist", "files": list(FILES)}
    if all(content_hashes(digits) == CONTENTS[split] for split, digits in splits.items()):
        return result
    counts = f"{splits['train'].count:,} training and {splits['test'].count:,} test images"
    notice = f"not the complete MNIST: {counts} from {folder}"
    return {**result, "name": "mnist-custom", "notice": notice}


def content_hashes(digits) -> tuple[str, str]:
    """Return the SHA-256 of the uncompressed files of images and of labels."""
    return tuple(
        hashlib.sha256(idx_header(shape) + values).hexdigest()
        for shape, values in (
            ((digits.count, SIDE, SIDE), digits.images),
            ((digits.count,), digits.labels),
        )
    )


def idx_header(shape: tuple[int, ...]) -> bytes:
    """Return the header of an IDX file of unsigned bytes."""
    return struct.pack(f">HBB{len(shape)}I", 0, UNSIGNED_BYTE, len(shape), *shape)


def write_idx(path: Path, shape: tuple[int, ...], rows: Iterable[bytes]) -> None:
    """Write a gzipped IDX file. Its bytes depend only on its content."""
    with path.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        file.write(idx_header(shape))
        for row in rows:
            file.write(row)


def fetch(folder: Path) -> dict:
    """Download the files that are missing or damaged, or prepare the digits of scikit-learn."""
    mirrors = Mirrors()
    try:
        if download(folder, mirrors):
            return {"name": "mnist", "files": list(FILES)}
        ensure_digits(folder / DIGITS)
    except DownloadError as err:
        reasons = "; ".join(f"{url}: {why}" for url, why in mirrors.unreachable.items())
        raise DownloadError(
            "R-DATA-MISSING",
            "cannot download MNIST, nor the digits of scikit-learn",
            f"{reasons}; {err.what}: {err.why}",
            "check network and proxy, or pass a folder with the four files: --data FOLDER",
        ) from err
    except OSError as err:
        raise DownloadError(
            "R-HOME-WRITE",
            f"cannot write to {folder}",
            err.strerror or str(err),
            "make the folder writable, or set RUNNER_HOME to another one",
        ) from err
    return {"name": DIGITS, "source": "fallback", "notice": NOTICE, "folder": DIGITS}


@dataclass
class Mirrors:
    """Base URLs that end in a slash. `unreachable` has the reason for each that failed."""

    urls: tuple[str, ...] = field(default_factory=lambda: MIRRORS)
    unreachable: dict[str, str] = field(default_factory=dict)


def download(folder: Path, mirrors: Mirrors) -> bool:
    """Download all files. Return False if no mirror served one of them."""
    total = sum(size for size, _ in FILES.values())
    done = 0
    for name, (size, sha256) in FILES.items():
        path = folder / name

        def on_bytes(received: int, start: int = done) -> None:
            emit({"text": "downloading MNIST", "done": start + received, "total": total})

        complete = path.is_file() and path.stat().st_size == size and sha256_of(path) == sha256
        if not complete and not fetch_file(name, sha256, folder, mirrors, on_bytes):
            return False
        done += size
    return True


def fetch_file(
    name: str, sha256: str, folder: Path, mirrors: Mirrors, on_bytes: Callable[[int], None]
) -> bool:
    """Download `name` to `folder`. Return False if no mirror served it.

    `on_bytes` gets the bytes received so far. A partial download is continued by the next call.
    """
    part = folder / f".{name}.part"
    for url in mirrors.urls:
        if url in mirrors.unreachable:
            continue
        problem = try_mirror(url + name, part, on_bytes)
        if problem is None and sha256_of(part) == sha256:
            part.replace(folder / name)
            return True
        if problem is None:
            part.unlink(missing_ok=True)  # the next mirror cannot continue a wrong file
        mirrors.unreachable[url] = problem or f"{name} has a wrong SHA-256"
    return False


def try_mirror(url: str, part: Path, on_bytes: Callable[[int], None]) -> str | None:
    """Download from one mirror. Return None if it sent the whole file, or else the problem."""
    problem = ""
    for _ in range(TRIES):
        before = size_of(part)
        try:
            resume(url, part, on_bytes)
        except NETWORK_ERRORS as err:
            problem = str(getattr(err, "reason", None) or err) or type(err).__name__
            if size_of(part) <= before:
                return problem
        else:
            return None
    return problem


def resume(url: str, part: Path, on_bytes: Callable[[int], None]) -> None:
    """Download the rest of a file."""
    request = urllib.request.Request(url)  # noqa: S310  MIRRORS holds https only
    have = size_of(part)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        reply = urllib.request.urlopen(request, timeout=MIRROR_TIMEOUT_S)  # noqa: S310 - https
    except urllib.error.HTTPError as err:
        if err.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # everything was received before; the SHA-256 decides
        raise
    with reply:
        resumed = reply.status == http.client.PARTIAL_CONTENT
        have = have if resumed else 0
        expected = reply.length
        with part.open("ab" if resumed else "wb") as file:
            received = 0
            while chunk := reply.read(CHUNK):
                file.write(chunk)
                received += len(chunk)
                on_bytes(have + received)
    if expected is not None and received < expected:
        raise http.client.IncompleteRead(b"", expected - received)


def size_of(path: Path) -> int:
    """Return the size of a file, 0 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def ensure_digits(folder: Path) -> None:
    """Write the four files from the digits of scikit-learn, unless they exist."""
    if all((folder / name).is_file() for name in FILES):
        return
    emit({"text": f"no mirror of MNIST could be used; downloading the digits of {PACKAGE}"})
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as temporary:
        digits = read_csv(fetch_csv(Path(temporary) / "wheel"))
        written = Path(temporary) / "digits"
        written.mkdir()
        write_digits(digits, written)
        shutil.rmtree(folder, ignore_errors=True)
        written.rename(folder)


def write_digits(digits: list[tuple[list[int], int]], folder: Path) -> None:
    """Write the four files. Every sixth digit is a test digit, so both splits have all writers."""
    splits = {"t10k": digits[TEST_EVERY - 1 :: TEST_EVERY]}
    splits["train"] = [d for n, d in enumerate(digits) if n % TEST_EVERY != TEST_EVERY - 1]
    for name, split in splits.items():
        images = (enlarge(pixels) for pixels, _ in split)
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", (len(split), SIDE, SIDE), images)
        labels = (bytes((label,)) for _, label in split)
        write_idx(folder / f"{name}-labels-idx1-ubyte.gz", (len(split),), labels)


def enlarge(pixels: list[int]) -> bytes:
    """Return 8x8 values from 0 to 16 as 28x28 bytes: bilinear to 20x20, plus the margin."""
    taps = list(interpolation())
    wide = [
        [row[low] * (1 - part) + row[high] * part for low, high, part in taps]
        for row in (
            pixels[start : start + SOURCE_SIDE] for start in range(0, SOURCE_SIDE**2, SOURCE_SIDE)
        )
    ]
    margin = bytes(MARGIN)
    image = bytearray(MARGIN * SIDE)
    for low, high, part in taps:
        blend = (a * (1 - part) + b * part for a, b in zip(wide[low], wide[high], strict=True))
        image += margin + bytes(round(value * 255 / SOURCE_MAX) for value in blend) + margin
    return bytes(image + bytes(MARGIN * SIDE))


def interpolation() -> Iterator[tuple[int, int, float]]:
    """Yield, for each of the 20 target pixels, two source positions and the share of the second."""
    for target in range(DIGIT_SIDE):
        position = (target + 0.5) * SOURCE_SIDE / DIGIT_SIDE - 0.5
        position = min(max(position, 0.0), SOURCE_SIDE - 1.0)
        low = min(int(position), SOURCE_SIDE - 2)
        yield low, low + 1, position - low


def fetch_csv(target: Path) -> Path:
    """Install the wheel of scikit-learn below `target` and return the path of its digits."""
    uv = os.environ.get("RUNNER_UV") or shutil.which("uv")
    if not uv:
        raise no_digits("uv is missing: pip install 'azure-batch-runner[local]'")
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python", sys.executable]
    try:
        done = subprocess.run(
            [uv, "pip", "install", *options, "--target", str(target), PACKAGE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise no_digits(str(err)) from err
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines()]
        lines = [line for line in lines if line and not line.startswith("hint:")]
        raise no_digits(lines[-1][:300] if lines else "uv printed nothing")
    return target / CSV


def read_csv(path: Path) -> list[tuple[list[int], int]]:
    """Return the pixels and the label of each digit."""
    try:
        with gzip.open(path, "rt", encoding="ascii", newline="") as file:
            rows = [[int(float(cell)) for cell in row] for row in csv.reader(file)]
    except (OSError, EOFError, ValueError) as err:
        raise no_digits(f"cannot read them: {err}") from err
    if len(rows) != COUNT or any(len(row) != SOURCE_SIDE**2 + 1 for row in rows):
        raise no_digits("their number or size has changed")
    return [(row[:-1], row[-1]) for row in rows]


def no_digits(why: str) -> DownloadError:
    """Return the error for digits that cannot be used."""
    what = f"cannot use the digits of {PACKAGE}"
    return DownloadError("R-DATA-DIGITS", what, why, "check network and proxy")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
