"""Adapter for Chainer's `Trainer.run`: loads the newest snapshot first, then saves snapshots."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.hooks.automatic import place
from runner.hooks.state import (
    StateFolder,
    random_states,
    read_state,
    restore_random_states,
    write_state,
)
from runner.hooks.timing import DeferredSigterm, SaveInterval

_FILE = "trainer.npz"
_WHAT = "the training with Chainer"
_NAME = "runner_checkpoint"
_chainer: Any = importlib.import_module("chainer")
_Extension: Any = _chainer.training.Extension


@place.guarding(_WHAT, ("initialize", "save_if_due", "save"))
class SnapshotExtension(_Extension):
    """Saves a snapshot of the trainer after an iteration if one is due."""

    trigger = 1, "iteration"
    priority = -1000  # after the script's extensions, whose state is saved too
    default_name = _NAME

    def __init__(self, states: StateFolder) -> None:
        self._states = states
        self._found: dict[str, Any] | None = read_state(states)
        self._interval = SaveInterval()
        self.sigterm = DeferredSigterm()
        self.is_off = False

    def initialize(self, trainer: Any) -> None:
        """Handle SIGTERM from now on, and restore the random states of the snapshot."""
        del trainer
        self.sigterm.install()
        if self._found is not None:
            restore_random_states(self._found["randomness"])

    def __call__(self, trainer: Any) -> None:
        """Save if it is due."""
        self.save_if_due(trainer)

    def save_if_due(self, trainer: Any) -> None:
        """Save if it is due."""
        if self.sigterm.requested or self._interval.due:
            self.save(trainer)
        self.sigterm.raise_deferred()

    def save(self, trainer: Any, *, finished: bool = False) -> None:
        """Save a snapshot.

        Args:
            finished: True if the trigger that ends the training has fired, which happens only once.
        """

        def write(folder: Path) -> None:
            _chainer.serializers.save_npz(str(folder / _FILE), trainer)
            write_state(folder, {"finished": finished, "randomness": random_states()})

        with self._interval.saving():
            self._states.try_save(write)


def prepare(bound: Any) -> Callable[[], None] | None:
    """Add the extension and load the newest snapshot.

    Nothing is done if the script has a snapshot extension itself or trains on several processes.
    """
    trainer: Any = bound.arguments["self"]
    updater = trainer.updater
    if updater.iteration or "Multiprocess" in type(updater).__name__:
        return None
    optimizers: dict[str, Any] = updater.get_all_optimizers()
    settings = [
        [name, type(each).__name__, type(each.target).__name__, each.hyperparam.get_dict()]
        for name, each in sorted(optimizers.items())
    ]
    folder = place.training_folder("chainer", settings)
    if folder is None:
        return None
    states = StateFolder(folder, kind="chainer")
    newest = states.newest()
    saved: dict[str, Any] = read_state(states) or {}
    extension = SnapshotExtension(states)
    resumed = ""
    if newest is not None:
        _load(newest / _FILE, trainer, optimizers)
        if saved["finished"]:
            trainer.stop_trigger = _always
            resumed = "after its last iteration"
        else:
            resumed = f"after iteration {updater.iteration}"
    trainer.extend(extension)
    place.say_start(_WHAT, resumed)

    def finish() -> None:
        if trainer._done:
            extension.save(trainer, finished=True)
        extension.sigterm.remove()

    return finish


def _load(path: Path, trainer: Any, optimizers: dict[str, Any]) -> None:
    """Load the snapshot. Raise ValueError before any change if it is of another model."""
    numpy: Any = importlib.import_module("numpy")
    with numpy.load(str(path), allow_pickle=True) as saved:  # from the run's own folder
        for name, optimizer in optimizers.items():
            for inner, value in optimizer.target.namedparams():
                key = f"updater/model:{name}{inner}"
                shape = None if value.array is None else value.array.shape
                if key not in saved or (shape is not None and saved[key].shape != shape):
                    raise ValueError(f"the snapshot is of another model: {inner} differs")
    _chainer.serializers.load_npz(str(path), trainer)


def _always(trainer: Any) -> bool:
    del trainer
    return True
