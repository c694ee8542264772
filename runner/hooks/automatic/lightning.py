"""Adapter for Lightning's `Trainer.fit`: saves its checkpoints, and passes the newest one to it.

Lightning saves neither random states nor the position in the data of an epoch. Both are saved
beside its checkpoint. After a resume, completed batches are read again and skipped.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.hooks.automatic import place, ranks
from runner.hooks.state import (
    StateFolder,
    random_states,
    read_state,
    restore_random_states,
    write_state,
)
from runner.hooks.timing import DeferredSigterm, SaveInterval

_FILE = "lightning.ckpt"
_WHAT = "the training with Lightning"
_lightning: Any = sys.modules.get("lightning.pytorch") or sys.modules["pytorch_lightning"]
# A subclass of Checkpoint, because Lightning calls these callbacks last.
_Callback: Any = _lightning.callbacks.Checkpoint


@place.guarding(_WHAT, ("on_train_start", "on_train_epoch_start", "save", "save_of_ranks"))
class LightningCheckpoint(_Callback):
    """Saves a checkpoint of the trainer after a batch or an epoch if one is due.

    Args:
        several: True if several processes train, which then save at the same step.
    """

    def __init__(self, *, several: bool = False) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType] - not installed here
        self._states: StateFolder | None = None
        self._found: dict[str, Any] | None = None
        self._interval = SaveInterval()
        self._epoch: dict[str, Any] = {}
        self._is_iterated = True  # the data was iterated before the epoch began
        self._is_due = False  # save after the next batch that allows it
        self.sigterm = DeferredSigterm()
        self.is_off = False
        self._common = ranks.CommonSaves(self._interval, self.sigterm) if several else None

    def use(self, folder: Path) -> None:
        """Set the folder of the states, and read the newest one."""
        self._states = StateFolder(folder, kind="lightning")
        found: dict[str, Any] | None = read_state(self._states)
        if found is not None and self._common is not None:
            found = found["ranks"][ranks.rank()]
        self._found = found

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Handle SIGTERM from now on; skip the completed batches of an epoch."""
        del pl_module
        self.sigterm.install()
        found = self._found
        if found is None or not found["batches"]:
            return
        self._found, self._epoch = None, found["epoch"]
        fetcher = trainer.fit_loop._data_fetcher
        _set_epoch(fetcher, trainer.fit_loop.epoch_progress.current.processed)
        # If the state is older than the epoch's iterator, creating the iterator draws numbers.
        restore_random_states(self._epoch["randomness"])
        iter(fetcher)
        if self._epoch["is_iterated"]:
            restore_random_states(self._epoch["randomness"])
        for _ in range(found["batches"]):
            next(fetcher)
        fetcher.fetched = 0  # Lightning adds the completed batches
        restore_random_states(found["randomness"])

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Restore the random states of the end of the last epoch."""
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
        """Save if it is due and no gradients are being accumulated."""
        del pl_module, outputs, batch
        self._decide()
        done = batch_idx + 1
        if trainer.is_last_batch or done % trainer.accumulate_grad_batches:
            return
        if self._is_due:
            self._save_state(trainer, done)
            self.sigterm.raise_deferred()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Save if it is due or the training is finished."""
        del pl_module
        last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        self._decide(now=bool(last))
        is_due = self._is_due
        if is_due or (last and self._common is None):
            self._save_state(trainer, 0)
        if is_due:
            self.sigterm.raise_deferred()

    def _decide(self, *, now: bool = False) -> None:
        """Set `_is_due` to the same value on all ranks.

        It is not guarded: if it failed on one rank only, the others would wait for ever.
        """
        if self._common is None:
            self._is_due = not self.is_off and (self.sigterm.requested or self._interval.due)
            return
        self._is_due = self._common.is_due(failed=self.is_off, now=now) or self._is_due
        if self._common.has_failed:
            self.is_off, self._is_due = True, False
            self.sigterm.remove()

    def _save_state(self, trainer: Any, batches: int) -> None:
        self._is_due = False
        state: dict[str, Any]
        state = {"batches": batches, "epoch": self._epoch, "randomness": random_states()}
        if self._common is None:
            self.save(trainer, state)
        else:
            state = {"ranks": ranks.gather(state)}
            self.save_of_ranks(trainer, state)

    def save(self, trainer: Any, state: dict[str, Any]) -> None:
        """Save a state of a single process."""
        self._write(state, trainer.save_checkpoint)

    def save_of_ranks(self, trainer: Any, state: dict[str, Any]) -> None:
        """Save the states of all ranks on rank 0. The ranks do not wait for the write."""
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        if ranks.rank() == 0:
            io = trainer.strategy.checkpoint_io
            self._write(state, lambda path: io.save_checkpoint(checkpoint, path))

    def _write(self, state: dict[str, Any], save: Callable[[str], Any]) -> None:
        assert self._states is not None  # noqa: S101

        def write(folder: Path) -> None:
            save(str(folder / _FILE))
            write_state(folder, state)

        with self._interval.saving():
            self._states.try_save(write)


def _set_epoch(fetcher: Any, epoch: int) -> None:
    """Set the epoch of samplers, which shuffle by it. Lightning sets it after `on_train_start`."""
    for loader in fetcher.combined_loader.flattened:
        batches: Any = getattr(loader, "batch_sampler", None)
        samplers: list[Any] = [getattr(loader, "sampler", None), batches]
        samplers.append(getattr(batches, "sampler", None))
        for each in samplers:
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)


def prepare(bound: Any) -> Callable[[], None] | None:
    """Add the callback and resume.

    Nothing is done if the script resumes by itself, or trains with an unsupported strategy.
    """
    given: dict[str, Any] = bound.arguments
    trainer: Any = given["self"]
    if given.get("ckpt_path") or trainer.fast_dev_run:
        return None
    model = given["model"]
    settings = [type(model).__name__, dict(getattr(model, "hparams", {}))]
    if trainer.world_size > 1:
        return _prepare_ranks(trainer, [*settings, trainer.world_size])
    folder = place.training_folder("lightning", settings)
    if folder is None:
        return None
    newest = StateFolder(folder, kind="lightning").newest()
    callback = LightningCheckpoint()
    callback.use(folder)
    if newest is not None:
        given["ckpt_path"] = str(newest / _FILE)
        if "weights_only" in bound.signature.parameters:
            given["weights_only"] = False  # the run's own checkpoint is trusted
    trainer.callbacks.append(callback)
    place.say_start(_WHAT, "from its newest checkpoint" if newest is not None else "")
    return _finish(trainer, callback)


def _finish(trainer: Any, callback: LightningCheckpoint) -> Callable[[], None]:
    def finish() -> None:
        trainer.callbacks.remove(callback)
        callback.sigterm.remove()

    return finish


def _prepare_ranks(trainer: Any, settings: Any) -> Callable[[], None] | None:
    """Prepare a training on several ranks, which agree once the trainer has connected them."""
    launcher: Any = trainer.strategy.launcher
    is_known = type(trainer.strategy).__name__ == "DDPStrategy" and (
        launcher is None or type(launcher).__name__ == "_SubprocessScriptLauncher"
    )
    if not is_known or trainer.num_nodes > 1 or place.is_on_several_nodes():
        place.say_several()
        return None
    callback = LightningCheckpoint(several=True)
    connector = trainer._checkpoint_connector
    load = connector.resume_start

    def find() -> tuple[Path, Path | None] | None:
        folder = place.training_folder("lightning", settings, of_ranks=True)
        if folder is None:
            return None
        return folder, StateFolder(folder, kind="lightning").newest()

    def resume_start(path: Any = None, *args: Any, **kwargs: Any) -> Any:
        found = ranks.choose_on_first("lightning", find)
        if found is None:
            callback.is_off = True
            return load(path, *args, **kwargs)
        callback.use(found[0])
        if found[1] is not None:
            path = str(found[1] / _FILE)
            if "weights_only" in inspect.signature(load).parameters:
                args, kwargs = (), {"weights_only": False}  # the run's own checkpoint is trusted
        if ranks.rank() == 0:
            place.say_start(_WHAT, "from its newest checkpoint" if found[1] is not None else "")
        return load(path, *args, **kwargs)

    connector.resume_start = resume_start
    trainer.callbacks.append(callback)
    remove = _finish(trainer, callback)

    def finish() -> None:
        del connector.resume_start
        remove()

    return finish
