"""Checkpoints for Keras 3.

    hook = Checkpoint()
    model.fit(..., initial_epoch=hook.epoch, callbacks=[..., hook])

A state contains weights, optimizer, metrics, seed generators, random generators, epoch, batch and
history. A training that resumes within an epoch skips the completed batches, so that the next batch
is the same as without an interruption. Therefore the random generators or the epoch must determine
the batches: pass the epoch to your own data (`batches(first_epoch=hook.epoch)`), or, if it can save
its position, use `Checkpoint(data=...)` and `model.fit(hook.batches(), steps_per_epoch=...)`. Tests
show identical results on JAX; on other backends, dropout may draw other numbers after the start of
an epoch if the data is a generator.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from typing import Any

from runner.hooks.keras_state import Arrays, CountedBatches, ModelState, stateful
from runner.hooks.state import (
    StateFolder,
    default_folder,
    random_states,
    read_state,
    restore_random_states,
    write_state,
)
from runner.hooks.timing import DeferredSigterm, SaveInterval

_Callback: Any = importlib.import_module("keras").callbacks.Callback


class Checkpoint(_Callback):
    """Resumes a training, and saves it every `interval_s` and on SIGTERM. Pass it as last callback.

    Args:
        folder: the folder of the states; by default $RUNNER_CHECKPOINT_DIR. Without a folder,
            nothing is saved.
        interval_s: seconds between two saves; by default 10, or more if saving takes more than 2 %
            of the time.
        keep: how many states to retain, at least two.
        data: an endless iterator with `get_state` and `set_state`, or `state_dict` and
            `load_state_dict`.
        also: further such objects, and callbacks with counters, such as EarlyStopping.
    """

    # Otherwise Keras waits for the device after every batch.
    async_safe = True
    model: Any
    params: Any

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        interval_s: float | None = None,
        keep: int = 2,
        data: Any = None,
        also: Sequence[Any] = (),
    ) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - Keras is not installed here
        path = folder if folder is not None else default_folder()
        self._states = None if path is None else StateFolder(path, keep, kind="keras")
        self._interval = SaveInterval(interval_s)
        self._sigterm = DeferredSigterm()
        self._data = None if data is None else CountedBatches(data)
        self._also = [stateful(each) for each in also]
        self._found: dict[str, Any] | None = read_state(self._states) if self._states else None
        self.epoch: int = self._found["epoch"] if self._found else 0
        """The epoch to begin with, counted from 0."""
        self.step: int = self._found["step"] if self._found else 0
        """The number of completed batches of that epoch."""
        self._saved_at = (self.epoch, self.step) if self._found else None
        self._history: dict[str, list[Any]] = self._found["history"] if self._found else {}
        self._epochs: list[int] = self._found["history_epochs"] if self._found else []
        self._epoch_randomness: Any = None
        self._before_validation: tuple[Arrays, dict[str, Any]] | None = None
        self._skip = 0
        self._trained = 0  # number of batches in this process
        if self._found and self._data:
            self._data.restore(self._found["data"])

    def batches(self) -> Iterator[Any]:
        """Yield the batches of `data`, and count them. Pass the result to `fit`."""
        if self._data is None:
            raise ValueError("batches() needs Checkpoint(data=...)")
        return self._data.batches(self.step if self._found else 0)

    def on_train_begin(self, logs: Any = None) -> None:
        """Restore the model."""
        del logs
        if self._states is None:
            return
        self._sigterm.install()
        found = self._found
        if found is None:
            return
        ModelState(self.model).restore(found["model"])
        for each, state in zip(self._also, found["also"], strict=False):
            each.restore(state)
        # In case `initial_epoch=hook.epoch` was not passed.
        params: Any = self.params or {}
        last: int = params.get("epochs") or self.epoch
        self.model._initial_epoch = max(self.epoch, last) if found["stopped"] else self.epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Skip the completed batches if the training resumes within this epoch."""
        del logs
        if self._states is None:
            return
        self.epoch, self.step = epoch, 0
        self.model._initial_epoch = None
        found, self._found = self._found, None
        if found is not None:
            restore_random_states(found["epoch_randomness"])
        self._epoch_randomness = random_states()
        if found is not None and found["step"]:
            self._skip_batches(found)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Save if it is due. Saving at the end of a batch would wait for the device."""
        del logs
        if self._states is None:
            return
        if not self._skip and batch:
            self.step = batch
            self._save_if_due()
        self._sigterm.raise_deferred()
        self.step = batch + self.model.steps_per_execution
        self._trained += 0 if self._skip else self.model.steps_per_execution

    def on_test_begin(self, logs: Any = None) -> None:
        """Record the metrics before the validation resets them."""
        del logs
        if self._states is None or self._epoch_randomness is None:
            return
        self._before_validation = ModelState(self.model).metrics(), random_states()
        self._save_if_due()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Save on SIGTERM during a validation."""
        del batch, logs
        if self._sigterm.requested:
            self._save()
            self._sigterm.raise_deferred()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Record the history, and save if it is due."""
        if self._states is None:
            return
        self._before_validation = None
        self._epochs.append(epoch)
        values: dict[str, Any] = logs or {}
        for name, value in values.items():
            self._history.setdefault(name, []).append(value)
        self.epoch, self.step = epoch + 1, 0
        self._epoch_randomness = random_states()
        self._save_if_due()

    def on_train_end(self, logs: Any = None) -> None:
        """Save the finished training, because later steps of the script may be interrupted."""
        del logs
        if self._states is None:
            return
        self.model._initial_epoch = None
        if self._saved_at != (self.epoch, self.step) or self.model.stop_training:
            self._save(stopped=bool(self.model.stop_training))
        history: Any = self.model.history
        history.history, history.epoch = dict(self._history), list(self._epochs)
        self._epoch_randomness = None
        self._sigterm.remove()

    def _skip_batches(self, found: dict[str, Any]) -> None:
        """Replace the train function until it has taken the completed batches from the data.

        The metrics are restored with the first batch that is skipped: TensorFlow builds them then.
        """
        model, train = self.model, self.model.train_function
        state, saved = ModelState(model), found["metrics"]
        logs: dict[str, Any] = {}
        if state.has_metrics(saved):
            state.restore_metrics(saved)
            logs.update(model.get_metrics_result())
            saved = None
        self._skip = found["step"]

        def skip(*arguments: Any) -> Any:
            nonlocal saved
            # (state, batches) on JAX, which returns (logs, state); (batches) on other backends.
            batches = arguments[-1]
            if hasattr(batches, "__next__"):  # otherwise Keras has already taken them
                batches = [next(batches) for _ in range(model.steps_per_execution)]
            if saved is not None:
                state.build_metrics(batches[0])
                state.restore_metrics(saved)
                logs.update(model.get_metrics_result())
                saved = None
            self._skip = max(self._skip - model.steps_per_execution, 0)
            if not self._skip:
                model.train_function = train
                restore_random_states(found["randomness"])
            return (logs, arguments[0]) if len(arguments) > 1 else logs

        model.train_function = skip

    def _save_if_due(self) -> None:
        if self._sigterm.requested or self._interval.due:
            self._save()
        self._sigterm.raise_deferred()

    def _save(self, *, stopped: bool = False) -> None:
        assert self._states is not None  # noqa: S101
        with self._interval.saving():
            model = ModelState(self.model)
            metrics, randomness = self._before_validation or (model.metrics(), random_states())
            state = {
                "epoch": self.epoch,
                "step": self.step,
                "stopped": stopped,
                "model": model.variables(),
                "metrics": metrics,
                "history": self._history,
                "history_epochs": self._epochs,
                "randomness": randomness,
                "epoch_randomness": self._epoch_randomness,
                "data": self._data.state_at(self._trained) if self._data else None,
                "also": [each.state() for each in self._also],
            }
            saved = self._states.try_save(lambda folder: write_state(folder, state))
        if saved:
            self._saved_at = (self.epoch, self.step)
