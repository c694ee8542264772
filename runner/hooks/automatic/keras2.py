"""Adapter for Keras 2's `fit` (`tf_keras`, and `tf.keras` before TensorFlow 2.16).

It adds a callback that saves the state. The random state of a compiled TensorFlow function cannot
be set. Therefore, after a resume, the order of arrays in memory is reproduced by reading the
batches of earlier epochs again. Dropout draws other numbers than without an interruption.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, cast

from runner.hooks.automatic import place
from runner.hooks.keras_state import CallbackCounters
from runner.hooks.state import (
    StateFolder,
    logger,
    random_states,
    read_state,
    restore_random_states,
    write_state,
)
from runner.hooks.timing import DeferredSigterm, SaveInterval

_WHAT = "the training with Keras"
_WITH_COUNTERS = ("EarlyStopping", "ReduceLROnPlateau", "ModelCheckpoint")


@place.guarding(
    _WHAT, ("begin", "begin_epoch", "begin_batch", "begin_validation", "end_epoch", "end")
)
class KerasTraining:
    """One call of `fit`: saves its state when it is due, and restores it.

    Args:
        states: the folder of the states.
        callbacks: the script's callbacks with counters.
        data: the argument `x` of `fit`.
        in_memory: True if the data are arrays. Keras shuffles them in one iterator for all epochs.
    """

    def __init__(
        self, states: StateFolder, callbacks: list[Any], data: Any, *, in_memory: bool
    ) -> None:
        self._states = states
        self._counters = [CallbackCounters(each) for each in callbacks]
        self._data, self._in_memory = data, in_memory
        self._interval = SaveInterval()
        self._found: dict[str, Any] | None = read_state(states)
        self._epoch: int = self._found["epoch"] if self._found else 0
        self._step: int = self._found["step"] if self._found else 0
        self._history: dict[str, Any] = self._found["history"] if self._found else {}
        self._epochs: list[int] = self._found["epochs"] if self._found else []
        self._skip = 0
        self._is_in_epoch = False
        self._metrics: Any = None  # copied before a validation resets them
        self._steps_per_epoch: int | None = None
        self.model: Any = None
        self.sigterm = DeferredSigterm()
        self.is_off = False

    def begin(self, params: dict[str, Any]) -> None:
        """Restore the model, and begin with the epoch that was interrupted."""
        self.sigterm.install()
        self._steps_per_epoch = params.get("steps")
        found, last = self._found, params.get("epochs") or 0
        resumed = ""
        if found is not None:
            self._build()
            self._assign(found, ("weights", "optimizer"))
            for each, values in zip(self._counters, found["counters"]):  # noqa: B905 - Python 3.8
                each.set_state(values)
            first = max(last, self._epoch) if found["stopped"] else self._epoch
            self.model._training_state = _FirstEpoch(first)
            resumed = f"in epoch {self._epoch + 1} of {last}, after {self._step} batches"
            if first >= last:
                resumed = "after its last epoch"
            else:
                self._resume_with_first_batch(found)
        place.say_start(_WHAT, resumed)

    def begin_epoch(self, epoch: int) -> None:
        """Remember the epoch."""
        self.model._training_state = None
        self._epoch, self._step, self._is_in_epoch = epoch, 0, True

    def begin_batch(self, step: int) -> None:
        """Save if it is due, before the batch."""
        if self._found is None and not self._skip:
            self._step = step
            if step:
                self._save_if_due()
        self._step = step + self._batches_per_call()

    def begin_validation(self) -> None:
        """Save if it is due, with the metrics of the training, which a validation resets."""
        if self._is_in_epoch:
            self._metrics = [v.numpy() for v in self._variables()["metrics"]]
            self._save_if_due()

    def end_epoch(self, epoch: int, logs: Any) -> None:
        """Record the history, and save if it is due."""
        self._metrics, self._is_in_epoch = None, False
        self._epochs.append(epoch)
        values: dict[str, Any] = logs or {}
        for name, value in values.items():
            self._history.setdefault(name, []).append(value)
        self._epoch, self._step = epoch + 1, 0
        self._save_if_due()

    def end(self) -> None:
        """Save the finished training, because later steps of the script may be interrupted."""
        if self._found is None:
            self._save(stopped=bool(self.model.stop_training))
        self.model._training_state = None
        history = self.model.history
        history.history, history.epoch = dict(self._history), list(self._epochs)
        self.sigterm.remove()

    def _build(self) -> None:
        """Create the weights. A model without an input shape has none before its first batch."""
        if self.model.built:
            return
        if hasattr(self._data, "element_spec"):
            batch = next(iter(self._data))
            self.model(batch[0] if isinstance(batch, tuple) else batch, training=False)
        else:
            self.model(_first_rows(self._data), training=False)

    def _resume_with_first_batch(self, found: dict[str, Any]) -> None:
        """Replace the train function until it has taken the completed batches from the data."""
        model, train = self.model, self.model.train_function

        def resume(iterator: Any) -> Any:
            self._found = None
            self._restore_metrics(train, iterator, found)
            if self._in_memory and found["steps_per_epoch"]:
                for _ in range(found["epoch"] * found["steps_per_epoch"]):
                    next(iterator)
            restore_random_states(found["randomness"])
            self._skip = found["step"]
            model.train_function = skip if self._skip else train
            return model.train_function(iterator)

        def skip(iterator: Any) -> Any:
            for _ in range(self._batches_per_call()):
                next(iterator)
            self._skip = max(self._skip - self._batches_per_call(), 0)
            if not self._skip:
                model.train_function = train
                restore_random_states(found["randomness"])
            return {metric.name: metric.result() for metric in model.metrics}

        model.train_function = resume

    def _restore_metrics(self, train: Any, iterator: Any, found: dict[str, Any]) -> None:
        """Restore the metrics of an incomplete epoch. Tracing the train function creates them."""
        try:
            if hasattr(train, "get_concrete_function"):
                train.get_concrete_function(iterator)
            self._assign(found, ("metrics",))
        except Exception as err:  # noqa: BLE001 - metrics do not change the training
            logger.warning("the metrics of the epoch do not include its first batches: %s", err)

    def _assign(self, found: dict[str, Any], names: tuple[str, ...]) -> None:
        groups = self._variables()
        for name in names:
            shapes = [tuple(value.shape) for value in found[name]]
            if [tuple(variable.shape) for variable in groups[name]] != shapes:
                raise ValueError(f"the state is of another model: its {name} differ")
        for name in names:
            for variable, value in zip(groups[name], found[name]):  # noqa: B905 - Python 3.8
                variable.assign(value)

    def _variables(self) -> dict[str, list[Any]]:
        model, optimizer = self.model, self.model.optimizer
        metrics = [variable for metric in model.metrics for variable in metric.variables]
        trained = model.trainable_variables
        variables: list[Any]
        if hasattr(optimizer, "_create_all_weights"):  # before Keras 2.11
            optimizer._create_all_weights(trained)
            hyper = [value for _, value in sorted(getattr(optimizer, "_hyper", {}).items())]
            variables = [*optimizer.weights, *(v for v in hyper if hasattr(v, "assign"))]
        else:
            optimizer.build(trained)
            found: Any = optimizer.variables  # a method in some versions
            variables = list(cast("list[Any]", found() if callable(found) else found))
            rate: Any = getattr(optimizer, "_learning_rate", None)
            if hasattr(rate, "assign") and all(each is not rate for each in variables):
                variables.append(rate)
        return {"weights": list(model.variables), "optimizer": variables, "metrics": metrics}

    def _batches_per_call(self) -> int:
        return int(getattr(self.model, "_steps_per_execution", None) or 1)

    def _save_if_due(self) -> None:
        is_due = self.sigterm.requested or self._interval.due
        if is_due and self._found is None and not self._skip:
            self._save()
        self.sigterm.raise_deferred()

    def _save(self, *, stopped: bool = False) -> None:
        with self._interval.saving():
            values = {n: [v.numpy() for v in group] for n, group in self._variables().items()}
            if self._metrics is not None:
                values["metrics"] = self._metrics
            state = {
                **values,
                "epoch": self._epoch,
                "step": self._step,
                "stopped": stopped,
                "steps_per_epoch": self._steps_per_epoch,
                "history": self._history,
                "epochs": self._epochs,
                "randomness": random_states(),
                "counters": [each.get_state() for each in self._counters],
            }
            self._states.try_save(lambda folder: write_state(folder, state))


class _FirstEpoch:
    """The object that Keras asks for the epoch and batch to begin with."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch

    def maybe_load_initial_counters_from_ckpt(self, *_: Any, **__: Any) -> tuple[int, int]:
        """Return the epoch and the batch."""
        return self._epoch, 0

    def maybe_load_initial_epoch_from_ckpt(self, *_: Any, **__: Any) -> int:
        """Return the epoch; before Keras 2.10."""
        return self._epoch


@functools.lru_cache(maxsize=None)  # noqa: UP033 - Python 3.8
def _callback_class(callbacks: str) -> Any:
    """Return the class of a callback that calls a KerasTraining.

    Args:
        callbacks: the module with the base class, which differs between packages of Keras.
    """
    base: Any = sys.modules[callbacks].Callback

    class TrainingCallback(base):
        def __init__(self, training: KerasTraining) -> None:
            super().__init__()  # pyright: ignore[reportUnknownMemberType]
            self._supports_tf_logs = True  # otherwise Keras copies all values after each batch
            self._training = training

        def set_model(self, model: Any) -> None:
            super().set_model(model)  # pyright: ignore[reportUnknownMemberType]
            self._training.model = model

        def on_train_begin(self, logs: Any = None) -> None:
            del logs
            self._training.begin(self.params or {})

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            del logs
            self._training.begin_epoch(epoch)

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            del logs
            self._training.begin_batch(batch)

        def on_test_begin(self, logs: Any = None) -> None:
            del logs
            self._training.begin_validation()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self._training.end_epoch(epoch, logs)

        def on_train_end(self, logs: Any = None) -> None:
            del logs
            self._training.end()

    return TrainingCallback


def prepare(bound: Any) -> None:
    """Add the callback, unless the script resumes by itself or several devices train."""
    given: dict[str, Any] = bound.arguments
    model: Any = given["self"]
    callbacks: Any = given.get("callbacks") or []
    if given.get("initial_epoch") or type(callbacks) not in (list, tuple):
        return
    own: list[Any] = list(callbacks)
    for each in own:
        path = getattr(each, "filepath", None) or "/"
        if type(each).__name__ == "BackupAndRestore" or place.is_inside(path):
            return
    # The module is `keras.src.engine.training`, without `src` in some versions, or the same in
    # tf_keras or TensorFlow.
    package = next(
        kind.__module__.rpartition(".engine.")[0]
        for kind in type(model).__mro__
        if kind.__module__.endswith(".engine.training")
    )
    if model.distribute_strategy.num_replicas_in_sync > 1:
        place.say_several()
        return
    optimizer = model.optimizer
    settings = [given.get("batch_size"), given.get("steps_per_epoch")]
    settings += [type(optimizer).__name__, optimizer.get_config()]
    folder = place.training_folder("keras", settings)
    if folder is None:
        return
    adapters: Any = sys.modules[f"{package}.engine.data_adapter"]
    x, y = given.get("x"), given.get("y")
    adapter = adapters.select_data_adapter(x, y)
    in_memory = issubclass(adapter, adapters.TensorLikeDataAdapter)
    counting = [each for each in own if type(each).__name__ in _WITH_COUNTERS]
    training = KerasTraining(StateFolder(folder, kind="keras"), counting, x, in_memory=in_memory)
    given["callbacks"] = [*own, _callback_class(f"{package}.callbacks")(training)]


def _first_rows(data: Any) -> Any:
    """Return the first row of an array, or of each array in a list or dict."""
    parts: Any = data
    if isinstance(data, dict):
        return {name: parts[name][:1] for name in parts}
    if isinstance(data, (list, tuple)):
        return [part[:1] for part in parts]
    return data[:1]
