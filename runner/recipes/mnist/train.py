"""Trains a small convolutional network on MNIST with Keras.

$KERAS_BACKEND chooses jax, tensorflow or torch; jax is the default. It also runs without the
runner: `python train.py --data DIR --output DIR`. The defaults of these options are
$RUNNER_DATA_DIR and $RUNNER_OUTPUT_DIR.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import sys
import time
from pathlib import Path

from idx import CLASSES, SIDE, DataError, Digits, load_digits

os.environ.setdefault("KERAS_BACKEND", "jax")
# The split does not depend on the seed, so that runs with different seeds are comparable.
SPLIT_SEED = 20_000
EVALUATION_BATCH = 500


def parse_arguments() -> argparse.Namespace:
    """Parse the command line. Parameters are also accepted with dashes instead of underscores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    environment = os.environ.get
    parser.add_argument("--data", type=Path, default=environment("RUNNER_DATA_DIR"))
    parser.add_argument("--output", type=Path, default=environment("RUNNER_OUTPUT_DIR", "output"))
    parser.add_argument("--metrics-file", type=Path, default=environment("RUNNER_METRICS_FILE"))
    for name, kind, default, least, text in (
        ("epochs", int, 8, 1, "passes over the training images"),
        ("batch_size", int, 128, 1, "images per step"),
        ("learning_rate", float, 0.004, 0, "highest learning rate"),
        ("weight_decay", float, 0.01, 0, "of AdamW"),
        ("dropout", float, 0.3, 0, "dropout rate of the dense layer"),
        ("shift", int, 2, 0, "shift training images by up to this many pixels"),
        ("subset", int, 0, 0, "number of training images; 0 uses all"),
        ("validation", int, 5000, 1, "validation images, at most a tenth of all"),
        ("seed", int, 0, 0, "of weights, order and shifts"),
    ):
        options = [f"--{name}"] + ([f"--{name.replace('_', '-')}"] if "_" in name else [])
        parser.add_argument(*options, type=at_least(least, kind), default=default, help=text)
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("--data is missing: the folder with the four IDX files of MNIST")
    return arguments


def at_least(least: int, kind: type):
    """Return an argument type: a number of that kind, at least `least`."""

    def number(text: str):
        value = kind(text)
        if not value >= least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    number.__name__ = kind.__name__  # argparse shows it in errors
    return number


def main() -> int:
    """Train, evaluate and export. Return the exit code."""
    arguments = parse_arguments()
    try:
        train, test = load_digits(arguments.data, "train"), load_digits(arguments.data, "test")
    except DataError as err:
        print(f"error: {err}", file=sys.stderr)
        return 1
    return Training(arguments, train, test).run()


class Training:
    """One training run, from the digits to the files in the output folder."""

    def __init__(self, arguments: argparse.Namespace, train: Digits, test: Digits) -> None:
        import numpy as np

        self.arguments = arguments
        self.np = np
        images, labels = self._arrays(train)
        order = np.random.default_rng(SPLIT_SEED).permutation(train.count)
        held_back = max(min(arguments.validation, train.count // 10), 1)
        used = order[held_back:]
        if arguments.subset:
            used = used[: arguments.subset]
        self.train = images[used], labels[used]
        self.validation = images[order[:held_back]], labels[order[:held_back]]
        self.test = self._arrays(test)

    def run(self) -> int:
        """Train, evaluate on the test images, and write the files."""
        started = time.perf_counter()
        import keras

        print(f"keras {keras.__version__} on {keras.backend.backend()}, {device_name()}")
        keras.utils.set_random_seed(self.arguments.seed)
        count = len(self.train[0])
        batch_size = min(self.arguments.batch_size, count)
        steps = count // batch_size
        model = build_model(self.arguments.dropout)
        self._compile(model, steps * self.arguments.epochs)
        print(
            f"{count} training, {len(self.validation[0])} validation, {len(self.test[0])} test "
            f"images; {model.count_params()} parameters; {steps} steps an epoch"
        )
        first_epoch, hooks = checkpoints()
        print("compiling the network with the first step: a few seconds", flush=True)
        model.fit(
            shifted_batches(
                *self.train, batch_size, self.arguments.shift, self.arguments.seed, first_epoch
            ),
            initial_epoch=first_epoch,
            epochs=self.arguments.epochs,
            steps_per_epoch=steps,
            shuffle=False,  # the batches are shuffled already
            validation_data=self.validation,
            validation_batch_size=EVALUATION_BATCH,
            callbacks=[progress(self.arguments), *hooks],
            verbose=0,
        )
        summary = self._measure(model)
        summary["seconds"] = round(time.perf_counter() - started, 1)
        self._export(model, summary)
        return 0

    def _arrays(self, digits: Digits):
        images = self.np.frombuffer(digits.images, self.np.uint8)
        labels = self.np.frombuffer(digits.labels, self.np.uint8)
        return images.reshape(digits.count, SIDE, SIDE, 1), labels.astype("int32")

    def _compile(self, model, steps: int) -> None:
        import keras

        peak = self.arguments.learning_rate
        warm_up = max(steps // 10, 1)
        schedule = keras.optimizers.schedules.CosineDecay(
            peak / 10, max(steps - warm_up, 1), 0.01, warmup_target=peak, warmup_steps=warm_up
        )
        model.compile(
            keras.optimizers.AdamW(schedule, weight_decay=self.arguments.weight_decay),
            keras.losses.SparseCategoricalCrossentropy(),
            metrics=["accuracy"],
        )

    def _measure(self, model) -> dict:
        np = self.np
        images, labels = self.test
        predicted = model.predict(images, batch_size=EVALUATION_BATCH, verbose=0)
        right = predicted[np.arange(len(labels)), labels]
        guesses = predicted.argmax(axis=1)
        confusion = np.zeros((CLASSES, CLASSES), int)
        np.add.at(confusion, (labels, guesses), 1)
        summary = {
            "test_accuracy": float((guesses == labels).mean()),
            "test_loss": float(-np.log(np.clip(right, 1e-7, 1.0)).mean()),
            "test_images": len(labels),
            "confusion": confusion.tolist(),  # a row for each true digit
        }
        accuracy, loss = summary["test_accuracy"], summary["test_loss"]
        print(f"test accuracy {accuracy:.4f}  test loss {loss:.4f}")
        write_metrics(self.arguments.metrics_file, None, test_accuracy=accuracy, test_loss=loss)
        return summary

    def _export(self, model, summary: dict) -> None:
        output = self.arguments.output
        output.mkdir(parents=True, exist_ok=True)
        model.save(output / "model.keras")
        model.save_weights(output / "model.weights.h5")
        (output / "model.json").write_text(model.to_json(indent=2), encoding="utf-8")
        (output / "metrics.json").write_text(json.dumps(summary), encoding="utf-8")
        names = ", ".join(sorted(path.name for path in output.iterdir()))
        print(f"wrote {names} to {output}")


def build_model(dropout: float):
    """Return a network with two strided convolutions and a dense layer, fast without a GPU.

    Its inputs are grey values from 0 to 255, its outputs the probability of each digit.
    """
    import keras
    from keras import layers

    def convolution(filters: int, size: int) -> list:
        return [
            layers.Conv2D(filters, size, strides=2, padding="same", use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
        ]

    return keras.Sequential(
        [
            layers.Input((SIDE, SIDE, 1)),
            layers.Rescaling(1 / 255),
            *convolution(16, 5),
            *convolution(32, 3),
            layers.Flatten(),
            layers.Dense(128, use_bias=False),
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
            layers.Dropout(dropout),
            layers.Dense(CLASSES, activation="softmax"),
        ],
        name="mnist",
    )


def device_name() -> str:
    """Return the device that the back end of Keras trains on, such as `gpu:0`."""
    import keras

    if keras.backend.backend() == "torch":  # Keras has no list of devices for it
        import torch

        return "gpu:0" if torch.cuda.is_available() else "cpu:0"
    return next(iter(keras.distribution.list_devices()), "cpu")


def checkpoints() -> tuple[int, list]:
    """Return the first epoch, and the callback that saves the training if checkpoints are on."""
    if not os.environ.get("RUNNER_CHECKPOINT_DIR"):
        return 0, []  # this is not a run, so the package runner may not be installed
    from runner.hooks.keras import Checkpoint

    hook = Checkpoint()
    if hook.epoch or hook.step:
        print(f"resuming in epoch {hook.epoch + 1} after {hook.step} of its steps")
    return hook.epoch, [hook]


def shifted_batches(images, labels, batch_size: int, shift: int, seed: int, first_epoch: int):
    """Yield batches forever, reshuffled every epoch, each image shifted by up to `shift` pixels.

    The batches of an epoch depend only on its number and the seed, so a training can resume at any
    epoch.
    """
    import numpy as np

    margin = ((0, 0), (shift, shift), (shift, shift), (0, 0))
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(images, margin), (SIDE, SIDE), axis=(1, 2)
    )
    # (image, y, x, channel, 28, 28) -> an image is windows[image, y, x, 0]
    for epoch in itertools.count(first_epoch):
        random = np.random.default_rng([seed, epoch])
        order = random.permutation(len(labels))
        moves = random.integers(0, 2 * shift + 1, (2, len(labels)))
        for start in range(0, len(labels) - batch_size + 1, batch_size):
            chosen = order[start : start + batch_size]
            y, x = moves[:, chosen]
            yield windows[chosen, y, x, 0][..., None], labels[chosen]


def progress(arguments: argparse.Namespace):
    """Return a callback that prints a line per epoch and writes the metrics."""
    import keras

    class Progress(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            del epoch, logs
            self.started = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            seconds = time.perf_counter() - self.started
            shown = "  ".join(f"{name} {value:.4f}" for name, value in logs.items())
            print(f"epoch {epoch + 1}/{arguments.epochs}  {shown}  {seconds:.1f} s", flush=True)
            write_metrics(
                arguments.metrics_file,
                epoch + 1,
                **{name: float(value) for name, value in logs.items()},
            )
            if math.isnan(logs["loss"]):
                sys.exit("error: the loss is not a number: lower --learning_rate")

    return Progress()


def write_metrics(path: Path | None, step: int | None, **values: float) -> None:
    """Append one JSON line, unless `path` is None."""
    if path is not None:
        with path.open("a", encoding="utf-8") as out:
            out.write(json.dumps({"step": step, **values} if step else values) + "\n")


if __name__ == "__main__":
    sys.exit(main())
