"""MNIST: the user's folder, the cache, public mirrors, or the digits that scikit-learn ships."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runner.core.errors import ExitCode, RunnerError
from runner.core.home import HomePaths, not_writable
from runner.core.progress import OnProgress, Progress
from runner.flows import digits
from runner.flows.datasets import DataFile, Dataset, describe
from runner.flows.download import Mirrors, fetch
from runner.flows.file_lock import file_lock
from runner.flows.idx import IMAGES, LABELS, read_idx

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
    DataFile(
        TRAIN_IMAGES, 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"
    ),
    DataFile(
        TRAIN_LABELS, 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"
    ),
    DataFile(
        TEST_IMAGES, 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"
    ),
    DataFile(TEST_LABELS, 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
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
    files = tuple(describe(folder, file.name) for file in FILES)
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
    return all(describe(folder, file.name) == file for file in FILES)


def _download(folder: Path, mirrors: Mirrors, on_progress: OnProgress) -> bool:
    total = sum(file.size_bytes for file in FILES)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise not_writable(folder, err) from err
    on_progress(Progress("data", "start", "fetching MNIST", 0, total, "bytes"))
    done = 0
    for file in FILES:
        present = (folder / file.name).is_file() and describe(folder, file.name) == file
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
        folder = digits.ensure_digits(HomePaths(home).data(digits.NAME), on_progress)
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
    return replace(found, name=digits.NAME, source="fallback", notice=notice)
