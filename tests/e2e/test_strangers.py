"""Scripts with the habits of the systems that people come from, run unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli

Write = Callable[..., Path]

# As the low-priority MNIST walk-through: weights and architecture beside the script.
MNIST_CNN = """
epochs = 2
for epoch in range(epochs):
    print(f"Epoch {epoch + 1}/{epochs} - loss: {1 / (epoch + 1)} - acc: 0.9")
with open("model_json", "w") as json_file:
    json_file.write("{}")
with open("model.h5", "wb") as weights:
    weights.write(b"weights")
"""

# As the sample of the Chainer estimator: arguments, and a folder that Azure ML has created.
CHAINER = """
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--batchsize", type=int)
parser.add_argument("--output_dir", default="./outputs")
args = parser.parse_args()
with open(os.path.join(args.output_dir, "model.npz"), "wb") as model:
    model.write(b"npz")
with open("logs/train.log", "w") as log:
    log.write("done")
"""


@pytest.mark.feature(13)
@pytest.mark.feature(48)
def test_model_beside_the_script_comes_back_and_the_summary_says_from_where(
    cli: Cli, script: Write
) -> None:
    folder = script(MNIST_CNN, "mnist_cnn.py")
    done = cli.run("train", folder / "mnist_cnn.py")
    assert done.returncode == 0, done.stderr
    [model] = (cli.cwd / "outputs").glob("*/model.h5")
    assert model.read_bytes() == b"weights"
    assert (model.parent / "model_json").read_text() == "{}"
    assert "written to" in done.stderr
    assert "the folder of the script (2)" in done.stderr
    assert "the folder of the script (2)" in cli.ok("show", "@last")


@pytest.mark.feature(13)
def test_sample_of_the_chainer_estimator_runs_as_printed(cli: Cli, script: Write) -> None:
    arguments = ("--epochs", "10", "--batchsize", "128", "--output_dir", "./outputs")
    folder = script(CHAINER, "chainer_mnist.py")
    document = json.loads(cli.ok("train", folder, "-o", "json", "--", *arguments))
    sources = {file["path"]: file.get("source") for file in document["outputs"]}
    assert sources == {"outputs/model.npz": "code", "logs/train.log": "code"}
    model = Path(document["output_dir"]) / "outputs" / "model.npz"
    assert model.read_bytes() == b"npz"


def test_run_that_kept_nothing_warns(cli: Cli, script: Write) -> None:
    done = cli.run("train", script("print('trained')"))
    assert done.returncode == 0, done.stderr
    assert "warning: the run kept no file" in done.stderr
    assert "none: the script wrote no file" in cli.ok("show", "@last")


def test_downloaded_data_is_named_and_kept_on_demand(cli: Cli, script: Write) -> None:
    text = "import os\nos.mkdir('data')\nopen('data/train.bin', 'wb').truncate(40_000_000)"
    folder = script(text)
    done = cli.run("train", folder, "--no-download")
    assert "not kept" in done.stderr
    assert "data/ (40 MB): taken for downloaded data" in done.stderr
    document = cli.json("train", folder, "--no-download", "--keep", "data")
    assert [file["path"] for file in document["outputs"]] == ["data/train.bin"]
