"""Adapter for Keras 3's `fit`: adds the checkpoint hook as the last callback."""

from __future__ import annotations

import importlib
from typing import Any

from runner.hooks.automatic import place
from runner.hooks.keras import Checkpoint
from runner.hooks.keras_state import CallbackCounters, ModelState

_keras: Any = importlib.import_module("keras")
_callbacks: Any = _keras.callbacks
_WITH_COUNTERS = (
    _callbacks.EarlyStopping,
    _callbacks.ReduceLROnPlateau,
    _callbacks.ModelCheckpoint,
)


@place.guarding("Keras", [name for name in vars(Checkpoint) if name.startswith("on_")])
class FitCheckpoint(Checkpoint):
    """The checkpoint hook; its errors do not stop the training."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_off = False
        self.sigterm = self._sigterm

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the model, and print a line about it."""
        params: Any = self.params or {}
        last: int = params.get("epochs") or 0
        resumed = ""
        if self._found and self.epoch >= last:
            resumed = "after its last epoch"
        elif self._found:
            resumed = f"in epoch {self.epoch + 1} of {last}, after {self.step} batches"
        super().on_train_begin(logs)
        place.say_start("the training with Keras", resumed)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Skip the completed batches, even if the metrics have no variables yet."""
        found = self._found
        if found is not None and len(found["metrics"]) != len(self.model.metrics_variables):
            found["metrics"] = ModelState(self.model).metrics()
        super().on_epoch_begin(epoch, logs)


def prepare(bound: Any) -> None:
    """Add the hook, unless the script resumes by itself."""
    given = bound.arguments
    model: Any = given["self"]
    callbacks: Any = given.get("callbacks") or []
    if given.get("initial_epoch") or isinstance(callbacks, _callbacks.CallbackList):
        return
    own: list[Any] = _keras.tree.flatten(callbacks)
    for each in own:
        if isinstance(each, (_callbacks.BackupAndRestore, Checkpoint)):
            return
        if place.is_inside(getattr(each, "filepath", None) or "/"):
            return
    optimizer = model.optimizer
    settings = [given.get("batch_size"), given.get("steps_per_epoch")]
    settings += [type(optimizer).__name__, optimizer.get_config()]
    folder = place.training_folder("keras", settings)
    if folder is None:
        return
    counters = [CallbackCounters(each) for each in own if isinstance(each, _WITH_COUNTERS)]
    hook = FitCheckpoint(folder, also=counters)
    if hook.epoch or hook.step:
        _build(model, given.get("x"), given.get("y"))
    given["callbacks"] = [*own, hook]


def _build(model: Any, x: Any, y: Any) -> None:
    """Create the variables. Keras on TensorFlow otherwise creates them in the first batch."""
    try:
        if hasattr(x, "element_spec"):
            batch = next(iter(x))
        else:
            parts = (x, y) if y is not None else (x,)
            batch = _keras.tree.map_structure(_first, parts)
        model._symbolic_build(data_batch=batch)
    except Exception:
        if not model.built:
            raise


def _first(array: Any) -> Any:
    return array[:1]
