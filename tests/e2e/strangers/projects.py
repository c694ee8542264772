"""Create folders with a script of another system, its framework, and its data."""

from __future__ import annotations

import gzip
import shutil
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SIZES = {"train": 300, "t10k": 100}
PIXELS = 28 * 28


@dataclass(frozen=True)
class System:
    """The command line for a script, and the expected outputs and metrics of the run."""

    script: str
    modules: tuple[str, ...]
    write_data: Callable[[Path, Path], None]
    words: tuple[str, ...]
    outputs: frozenset[str]
    metrics: frozenset[str]


def make_project(folder: Path, system: System, mnist: Path) -> Path:
    """Create a folder with the script, its framework and its data. Return it."""
    project = folder / Path(system.script).stem
    project.mkdir()
    shutil.copy(HERE / "scripts" / system.script, project)
    for name in ("small_network", *system.modules):
        shutil.copy(HERE / "frameworks" / f"{name}.py", project)
    system.write_data(project, mnist)
    return project


def _images(mnist: Path, part: str) -> bytes:
    with gzip.open(mnist / f"{part}-images-idx3-ubyte.gz") as file:
        return file.read(16 + SIZES[part] * PIXELS)[16:]


def _labels(mnist: Path, part: str) -> bytes:
    with gzip.open(mnist / f"{part}-labels-idx1-ubyte.gz") as file:
        return file.read(8 + SIZES[part])[8:]


def write_npz(project: Path, mnist: Path) -> None:
    """Write `mnist.npz` in the format of Keras and Chainer."""
    with zipfile.ZipFile(project / "mnist.npz", "w") as archive:
        for ours, part in (("train", "train"), ("test", "t10k")):
            size = SIZES[part]
            for name, data, shape in (
                (f"x_{ours}", _images(mnist, part), (size, 28, 28)),
                (f"y_{ours}", _labels(mnist, part), (size,)),
            ):
                header = str({"descr": "|u1", "fortran_order": False, "shape": shape})
                header = header.ljust(117) + "\n"
                start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header))
                archive.writestr(f"{name}.npy", start + header.encode() + data)


def write_ctf(project: Path, mnist: Path) -> None:
    """Write the text files of CNTK's sample: `|labels 0 1 ... |features 0 255 ...`."""
    for ours, part in (("Train", "train"), ("Test", "t10k")):
        images, labels = _images(mnist, part), _labels(mnist, part)
        with (project / f"{ours}-28x28_cntk_text.txt").open("w") as file:
            for number, label in enumerate(labels):
                pixels = images[number * PIXELS : (number + 1) * PIXELS]
                one_hot = " ".join("1" if digit == label else "0" for digit in range(10))
                file.write(f"|labels {one_hot} |features {' '.join(map(str, pixels))}\n")


def write_idx(project: Path, mnist: Path) -> None:
    """Write the four files of MNIST to `../data`, with the names in Azure ML's sample."""
    (project.parent / "data").mkdir()
    for ours, part in (("train", "train"), ("test", "t10k")):
        size = SIZES[part]
        for name, head, data in (
            ("images", struct.pack(">IIII", 2051, size, 28, 28), _images(mnist, part)),
            ("labels", struct.pack(">II", 2049, size), _labels(mnist, part)),
        ):
            with gzip.open(project.parent / "data" / f"{ours}-{name}.gz", "wb") as file:
                file.write(head + data)


SYSTEMS: Mapping[str, System] = {
    "low-priority walk-through": System(
        "mnist_cnn.py",
        ("keras", "numpy"),
        write_npz,
        (),
        frozenset({"model.h5", "model.weights.h5", "model_json"}),
        frozenset({
            "loss", "accuracy", "val_loss", "val_accuracy", "test_loss", "test_accuracy",
        }),
    ),
    "Chainer estimator": System(
        "chainer_mnist.py",
        ("chainer", "numpy", "azureml"),
        write_npz,
        ("--", "--epochs", "3", "--batchsize", "128", "--output_dir", "./outputs"),
        frozenset({"outputs/model.npz", "outputs/log"}),
        frozenset({"main/loss", "main/accuracy", "validation/main/accuracy", "Accuracy"}),
    ),
    "Batch AI quickstart": System(
        "ConvNet_MNIST.py",
        ("cntk",),
        write_ctf,
        (
            *("--input", "SAMPLE=.", "--", "-datadir", "$AZ_BATCHAI_INPUT_SAMPLE"),
            *("-outputdir", "$AZ_BATCHAI_OUTPUT_MODEL", "-epoch_size", "300"),
        ),
        frozenset(f"model/ConvNet_MNIST_{epoch}.dnn" for epoch in range(3)),
        frozenset({"loss", "metric", "evaluation_metric"}),
    ),
    "Azure ML with Keras": System(
        "keras_mnist.py",
        ("keras", "numpy", "azureml"),
        write_idx,
        ("--data", "../data", "--", "--data-folder", "$RUNNER_DATA_DIR", "--batch-size", "50"),
        frozenset({"outputs/model/model.json", "outputs/model/model.weights.h5"}),
        frozenset({
            "loss", "accuracy", "val_loss", "val_accuracy", "Loss", "Final test loss",
            "Final test accuracy",
        }),
    ),
}  # fmt: skip
