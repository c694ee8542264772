"""`Trainer.train` of Hugging Face: saves its checkpoints, and passes the newest one to it."""

from __future__ import annotations

import functools
import importlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.hooks.automatic import place
from runner.hooks.state import SaveError, StateFolder, logger
from runner.hooks.timing import DeferredSigterm, SaveInterval

_Callback: Any = importlib.import_module("transformers").TrainerCallback
_WHAT = "the training with Hugging Face's Trainer"


class TrainerCheckpoint(_Callback):
    """Saves a checkpoint of the Trainer when it is due, after a step."""

    def __init__(self, trainer: Any, states: StateFolder) -> None:
        self._trainer = trainer
        self._states = states
        self._interval = SaveInterval()
        self._saved_at = -1
        self.sigterm = DeferredSigterm()
        self.is_off = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Handle SIGTERM from now on."""
        del args, control
        self._saved_at = state.global_step
        self.sigterm.install()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save if it is due."""
        del args, control
        if self.sigterm.requested or self._interval.due:
            self._save(state.global_step)
        self.sigterm.raise_deferred()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the end too, as an evaluation after it can be interrupted as well."""
        del args, control
        self._save(state.global_step)
        self.sigterm.remove()

    def _save(self, step: int) -> None:
        if step == self._saved_at:
            return
        with self._interval.saving():
            try:
                self._states.save(self._write)
            except SaveError as err:
                logger.warning("%s; the training continues", err)
                return
        self._saved_at = step

    def _write(self, folder: Path) -> None:
        """Save as the Trainer does, but in this folder, and without what it does around that."""
        trainer, args = self._trainer, self._trainer.args
        changed = {"push_to_hub": False, "save_total_limit": None, "save_only_model": False}
        before = {name: getattr(args, name, None) for name in changed}
        best = trainer.state.best_model_checkpoint
        trainer._get_output_dir = functools.partial(_same, str(folder))
        try:
            for name, value in changed.items():
                setattr(args, name, value)
            trainer._save_checkpoint(trainer.model_wrapped, trial=None)
        finally:
            del trainer._get_output_dir
            trainer.state.best_model_checkpoint = best
            for name, value in before.items():
                setattr(args, name, value)
        (inner,) = folder.iterdir()
        for path in list(inner.iterdir()):
            shutil.move(str(path), str(folder / path.name))
        inner.rmdir()


def _same(value: str, *args: Any, **kwargs: Any) -> str:
    del args, kwargs
    return value


for _name in ("on_train_begin", "on_step_end", "on_train_end"):
    _guard = place.guarded(_WHAT, getattr(TrainerCheckpoint, _name))
    setattr(TrainerCheckpoint, _name, _guard)


def prepare(bound: Any) -> Callable[[], None] | None:
    """Add the callback, and resume, unless the script does or the case is a special one."""
    given: dict[str, Any] = bound.arguments
    trainer: Any = given["self"]
    args = trainer.args
    if given.get("resume_from_checkpoint") or given.get("trial") is not None:
        return None
    if args.world_size > 1 or place.is_inside(args.output_dir):
        return None
    if getattr(trainer, "is_deepspeed_enabled", False) or getattr(
        trainer, "is_fsdp_enabled", False
    ):
        return None
    settings = [type(trainer.model).__name__, args.learning_rate, args.seed]
    settings += [args.per_device_train_batch_size, args.gradient_accumulation_steps]
    folder = place.training_folder("transformers", settings)
    if folder is None:
        return None
    states = StateFolder(folder, kind="trainer")
    found = states.newest()
    if found is not None:
        given["resume_from_checkpoint"] = str(found)
    callback = TrainerCheckpoint(trainer, states)
    trainer.add_callback(callback)
    place.say_start(_WHAT, "from its newest checkpoint" if found is not None else "")
    return lambda: trainer.remove_callback(callback)
