"""Keras 3: `hook = Checkpoint(); model.fit(…, initial_epoch=hook.epoch, callbacks=[…, hook])`.

What is saved: weights, optimizer, metrics, seed generators, random generators, epoch and batch,
the history. A training that goes on in the middle of an epoch goes through the batches it has
seen without training on them, so the next one is the one it would have been. For that the batches
of an epoch must follow from the random generators or the epoch: give data of your own its epoch
(`batches(first_epoch=hook.epoch)`), or, when it can save where it is, `Checkpoint(data=…)` and
`model.fit(hook.batches(), steps_per_epoch=…)`. To the bit this is shown on JAX; on other backends
dropout after an epoch's beginning may draw other numbers when the data is a generator.
"""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from runner.hooks.keras_state import Arrays, CountedBatches, ModelState, stateful
from runner.hooks.random_states import random_states, restore_random_states
from runner.hooks.state import FILE, SaveError, StateFolder, default_folder, logger, write_state
from runner.hooks.timing import DeferredSigterm, SaveInterval

_Callback: Any = importlib.import_module("keras").callbacks.Callback


class Checkpoint(_Callback):
    """Saves the training every `interval_s` and on SIGTERM, and goes on where the last one was.

    `folder` is $RUNNER_CHECKPOINT_DIR unless given; with neither it does nothing. `interval_s`
    None saves every 10 s, less often where that would cost more than 2 % of the time. `data` is an
    endless iterator with `get_state`/`set_state` or `state_dict`/`load_state_dict`. `also` are
    further such objects, and callbacks that count by themselves, as EarlyStopping. Put it last.
    """

    # Keras waits for the device after every batch when a callback is not.
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
        place = folder if folder is not None else default_folder()
        self._states = None if place is None else StateFolder(place, keep, kind="keras")
        self._pace = SaveInterval(interval_s)
        self._sigterm = DeferredSigterm()
        self._data = None if data is None else CountedBatches(data)
        self._also = [stateful(each) for each in also]
        self._found = self._load()
        self.epoch: int = self._found["epoch"] if self._found else 0
        """The epoch to begin with, from 0."""
        self.step: int = self._found["step"] if self._found else 0
        """How many batches of that epoch are done."""
        self._saved_at = (self.epoch, self.step) if self._found else None
        self._history: dict[str, list[Any]] = self._found["history"] if self._found else {}
        self._epochs: list[int] = self._found["history_epochs"] if self._found else []
        self._epoch_randomness: Any = None
        self._before_validation: tuple[Arrays, dict[str, Any]] | None = None
        self._skip = 0
        self._trained = 0  # batches, in this process
        if self._found and self._data:
            self._data.restore(self._found["data"])

    def batches(self) -> Iterator[Any]:
        """What to give to `fit` when there is `data`: the same batches, counted."""
        if self._data is None:
            raise ValueError("Checkpoint(data=…) was given no iterator to take batches from")
        return self._data.batches(self.step if self._found else 0)

    def on_train_begin(self, logs: Any = None) -> None:
        """Put the model where it was."""
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
        # For those who did not pass `initial_epoch=hook.epoch`.
        given: Any = self.params or {}
        last: int = given.get("epochs") or self.epoch
        self.model._initial_epoch = max(self.epoch, last) if found["stopped"] else self.epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Where the training goes on inside an epoch: the batches of it that are done pass by."""
        del logs
        if self._states is None:
            return
        self.epoch, self.step = epoch, 0
        self.model._initial_epoch = None
        found, self._found = self._found, None
        if found is not None:
            restore_random_states(found["epoch_randomness"])
        self._epoch_randomness = random_states()
        if found is None or not found["step"]:
            return
        ModelState(self.model).restore_metrics(found["metrics"])
        self._skip_batches(found)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Save when it is time. Here, not at the batch's end: that would wait for the device."""
        del logs
        if self._states is None:
            return
        if not self._skip and batch and (self._sigterm.asked or self._pace.due):
            self.step = batch
            self._save()
        self._sigterm.obey()
        self.step = batch + self.model.steps_per_execution
        self._trained += 0 if self._skip else self.model.steps_per_execution

    def on_test_begin(self, logs: Any = None) -> None:
        """Before a validation: it is about to begin the metrics anew."""
        del logs
        if self._states is None or self._epoch_randomness is None:
            return
        self._before_validation = ModelState(self.model).metrics(), random_states()
        if self._sigterm.asked or self._pace.due:
            self._save()
        self._sigterm.obey()

    def on_test_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A machine that goes away does not wait for the end of a validation."""
        del batch, logs
        if self._sigterm.asked:
            self._save()
            self._sigterm.obey()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The epoch is in the books: save when it is time."""
        if self._states is None:
            return
        self._before_validation = None
        self._epochs.append(epoch)
        values: dict[str, Any] = logs or {}
        for name, value in values.items():
            self._history.setdefault(name, []).append(value)
        self.epoch, self.step = epoch + 1, 0
        self._epoch_randomness = random_states()
        if self._sigterm.asked or self._pace.due:
            self._save()
        self._sigterm.obey()

    def on_train_end(self, logs: Any = None) -> None:
        """The end is saved too: what comes after the training can be lost as well."""
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
        """Make the train function take the done batches from the data, and do nothing else."""
        model, train = self.model, self.model.train_function
        logs = dict(model.get_metrics_result())
        self._skip = found["step"]

        def skip(*arguments: Any) -> Any:
            # (state, batches) on JAX, which answers (logs, state); (batches) elsewhere.
            batches = arguments[-1]
            if hasattr(batches, "__next__"):  # else they are taken already
                for _ in range(model.steps_per_execution):
                    next(batches)
            self._skip = max(self._skip - model.steps_per_execution, 0)
            if not self._skip:
                model.train_function = train
                restore_random_states(found["randomness"])
            return (logs, arguments[0]) if len(arguments) > 1 else logs

        model.train_function = skip

    def _load(self) -> dict[str, Any] | None:
        newest: Path | None = self._states.newest() if self._states else None
        if newest is None:
            return None
        with (newest / FILE).open("rb") as source:
            return pickle.load(source)  # noqa: S301 - from the run's own folder, as its code is

    def _save(self, *, stopped: bool = False) -> None:
        assert self._states is not None  # noqa: S101
        with self._pace.saving():
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
            try:
                self._states.save(lambda folder: write_state(folder, state))
            except SaveError as err:
                # The training is worth more than a state of it: the last one saved is still there.
                logger.warning("%s; the training goes on", err)
                return
        self._saved_at = (self.epoch, self.step)
