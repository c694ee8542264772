"""Interrupt trainings with Keras at many points, and compare with the uninterrupted result.

`python keras_program.py FOLDER` with an interpreter that has Keras prints a JSON object.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "jax")
from runner.hooks.keras import Checkpoint

keras: Any = importlib.import_module("keras")
np: Any = importlib.import_module("numpy")
COUNT, BATCH, EPOCHS = 96, 16, 3
STEPS = COUNT // BATCH
_chance = np.random.default_rng(0)
POINTS = _chance.normal(size=(COUNT, 8)).astype("float32")
LABELS = (POINTS.sum(1) > 0).astype("int32")


def build() -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.layers.Input((8,)),
            keras.layers.Dense(16),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    rate = keras.optimizers.schedules.CosineDecay(0.01, 100)
    model.compile(
        keras.optimizers.AdamW(rate), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model


def batch(number: int) -> tuple[Any, Any]:
    epoch, step = divmod(number, STEPS)
    order = np.random.default_rng([7, epoch]).permutation(COUNT)
    chosen = order[step * BATCH : (step + 1) * BATCH]
    return POINTS[chosen], LABELS[chosen]


class Batches:
    """An endless iterator with a state."""

    def __init__(self) -> None:
        self.number = 0

    def __next__(self) -> tuple[Any, Any]:
        self.number += 1
        return batch(self.number - 1)

    def get_state(self) -> int:
        return self.number

    def set_state(self, state: int) -> None:
        self.number = state


class Stop(keras.callbacks.Callback):
    """Interrupts before a batch of the training or validation."""

    def __init__(self, epoch: int, step: int, *, validation: bool = False) -> None:
        super().__init__()
        self.at = (epoch, step, validation)
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch, False) == self.at:
            raise KeyboardInterrupt

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        if (self.epoch, batch, True) == self.at:
            raise KeyboardInterrupt


class AlsoInValidation(Checkpoint):
    """Also saves in validation, where SIGTERM would cause a save."""

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._save()


def data(kind: str, hook: Checkpoint | None) -> dict[str, Any]:
    first = hook.epoch if hook else 0
    if kind == "generator":
        found: Iterator[Any] = (batch(n) for n in itertools.count(first * STEPS))
        return {"x": found, "steps_per_epoch": STEPS}
    if kind == "iterator":
        found = hook.batches() if hook else (batch(n) for n in itertools.count())
        return {"x": found, "steps_per_epoch": STEPS}
    return {"x": POINTS, "y": LABELS, "batch_size": BATCH}


def train(kind: str, folder: Path | None, stops: list[Stop], hook_class: Any = Checkpoint) -> Any:
    """Return weights and history; restart after each stop."""
    for stop in [*stops, None]:
        model = build()
        hook = None
        if folder is not None:
            hook = hook_class(folder, interval_s=0, data=Batches() if kind == "iterator" else None)
        callbacks = [each for each in (hook, stop) if each is not None]
        try:
            history = model.fit(
                **data(kind, hook),
                epochs=EPOCHS,
                initial_epoch=hook.epoch if hook else 0,
                callbacks=callbacks,
                validation_data=(POINTS[:32], LABELS[:32]),
                validation_batch_size=16,
                verbose=0,
            )
        except KeyboardInterrupt:
            continue
        weights = [value.tobytes() for value in model.get_weights()]
        return weights, history.history, history.epoch
    raise AssertionError("every start was stopped")


def main() -> None:
    """Try all cases, each with several stops."""
    folder = Path(sys.argv[1])
    stops: dict[str, Any] = {
        "in the middle": ([(1, 3), (1, 5), (2, 1)], False, Checkpoint),
        "at the edges": ([(0, 1), (0, 2), (1, 0), (2, 5)], False, Checkpoint),
        "while validating": ([(0, 1), (1, 0)], True, AlsoInValidation),
    }
    same: dict[str, bool] = {}
    for kind in ("generator", "iterator", "arrays"):
        calm = train(kind, None, [])
        for name, (points, validation, hook_class) in stops.items():
            made = [Stop(*point, validation=validation) for point in points]
            got = train(kind, folder / f"{kind} {name}", made, hook_class)
            same[f"{kind}, stopped {name}"] = got == calm
        done = train(kind, folder / f"{kind} in the middle", [])
        same[f"{kind}, begun after its end"] = done == calm
    sys.stdout.write(json.dumps(same))


if __name__ == "__main__":
    main()
