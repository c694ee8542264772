"""`Trainer.fit` of Lightning: saves its checkpoints, and passes the newest one to it.

Lightning neither saves random states nor finds its place in the data of an epoch. So both are saved
beside its checkpoint, and batches that were trained are read again and skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.hooks.automatic import place
from runner.hooks.state import (
    SaveError,
    StateFolder,
    logger,
    random_states,
    read_state,
    restore_random_states,
    write_state,
)
from runner.hooks.timing import DeferredSigterm, SaveInterval

_FILE = "lightning.ckpt"
_WHAT = "the training with Lightning"
_lightning: Any = sys.modules.get("lightning.pytorch") or sys.modules["pytorch_lightning"]
# Of this class, as such callbacks are called last.
_Callback: Any = _lightning.callbacks.Checkpoint


class LightningCheckpoint(_Callback):
    """Saves a checkpoint of the trainer when it is due, after a batch or an epoch."""

    def __init__(self, states: StateFolder) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - not installed here
        self._states = states
        self._found: dict[str, Any] | None = read_state(states)
        self._interval = SaveInterval()
        self._epoch: dict[str, Any] = {}
        self._is_iterated = True  # before the start of an epoch, as the first one is
        self.sigterm = DeferredSigterm()
        self.is_off = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Handle SIGTERM from now on; skip the completed batches of an epoch."""
        del pl_module
        self.sigterm.install()
        found = self._found
        if found is None or not found["batches"]:
            return
        self._found, self._epoch = None, found["epoch"]
        fetcher = trainer.fit_loop._data_fetcher
        # Where the epoch began before its iterator was made, making it draws random numbers again.
        restore_random_states(self._epoch["randomness"])
        iter(fetcher)
        if self._epoch["is_iterated"]:
            restore_random_states(self._epoch["randomness"])
        for _ in range(found["batches"]):
            next(fetcher)
        fetcher.fetched = 0  # Lightning adds the completed batches
        restore_random_states(found["randomness"])

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Go on with the random states at the end of the last epoch."""
        del pl_module
        found, self._found = self._found, None
        if found is not None:
            restore_random_states(found["randomness"])
            self._is_iterated = False
        self._epoch = {"randomness": random_states(), "is_iterated": self._is_iterated}
        self._is_iterated = False
        if found is not None:
            iter(trainer.fit_loop._data_fetcher)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save if it is due, between two steps of the optimizer."""
        del pl_module, outputs, batch
        done = batch_idx + 1
        if trainer.is_last_batch or done % trainer.accumulate_grad_batches:
            return
        if self.sigterm.requested or self._interval.due:
            self._save(trainer, done)
        self.sigterm.raise_deferred()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Save if it is due, and at the end."""
        del pl_module
        last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        if last or self.sigterm.requested or self._interval.due:
            self._save(trainer, 0)
        self.sigterm.raise_deferred()

    def _save(self, trainer: Any, batches: int) -> None:
        state = {"batches": batches, "epoch": self._epoch, "randomness": random_states()}

        def write(folder: Path) -> None:
            trainer.save_checkpoint(str(folder / _FILE))
            write_state(folder, state)

        with self._interval.saving():
            try:
                self._states.save(write)
            except SaveError as err:
                logger.warning("%s; the training continues", err)


for _name in [name for name in LightningCheckpoint.__dict__ if name.startswith("on_")]:
    _guard = place.guarded(_WHAT, getattr(LightningCheckpoint, _name))
    setattr(LightningCheckpoint, _name, _guard)


def prepare(bound: Any) -> Callable[[], None] | None:
    """Add the callback, and resume, unless the script does or several processes train."""
    given: dict[str, Any] = bound.arguments
    trainer: Any = given["self"]
    if given.get("ckpt_path") or trainer.fast_dev_run or trainer.world_size > 1:
        return None
    model = given["model"]
    settings = [type(model).__name__, dict(getattr(model, "hparams", {}))]
    folder = place.training_folder("lightning", settings)
    if folder is None:
        return None
    states = StateFolder(folder, kind="lightning")
    newest = states.newest()
    callback = LightningCheckpoint(states)
    if newest is not None:
        given["ckpt_path"] = str(newest / _FILE)
        if "weights_only" in bound.signature.parameters:
            given["weights_only"] = False  # as trusted as the code of the run
    trainer.callbacks.append(callback)
    place.say_start(_WHAT, "from its newest checkpoint" if newest is not None else "")

    def finish() -> None:
        trainer.callbacks.remove(callback)
        callback.sigterm.remove()

    return finish
