"""Adapter for Hugging Face's `Trainer.train`: saves checkpoints, and passes the newest one."""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runner.hooks.automatic import place, ranks
from runner.hooks.state import StateFolder
from runner.hooks.timing import DeferredSigterm, SaveInterval

_Callback: Any = importlib.import_module("transformers").TrainerCallback
_WHAT = "the training with Hugging Face's Trainer"
# Methods that load what `_save_checkpoint` saved, in some versions without `weights_only=False`.
_LOADS = ("_load_rng_state", "_load_optimizer_and_scheduler")
_FULL, _STRICT = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_WEIGHTS_ONLY_LOAD"


@place.guarding(_WHAT, ("on_train_begin", "random_files", "save"))
class TrainerCheckpoint(_Callback):
    """Saves a checkpoint of the Trainer after a step if one is due."""

    def __init__(self, trainer: Any, states: StateFolder) -> None:
        self._trainer = trainer
        self._states = states
        self._interval = SaveInterval()
        self._saved_at = -1
        self.sigterm = DeferredSigterm()
        self.is_off = False
        several = trainer.args.world_size > 1
        self._common = ranks.CommonSaves(self._interval, self.sigterm) if several else None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Handle SIGTERM from now on."""
        del args, control
        self._saved_at = state.global_step
        self.sigterm.install()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save if it is due."""
        del args, control
        if self._common is not None:
            self._end_step_together(state.global_step)
            return
        if self.sigterm.requested or self._interval.due:
            self.save(state.global_step)
        if not self.is_off:
            self.sigterm.raise_deferred()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the finished training, because a later evaluation may be interrupted."""
        del args, control
        if self._common is None:
            self.save(state.global_step)
        else:
            self._end_step_together(state.global_step, now=True)
        self.sigterm.remove()

    def _end_step_together(self, step: int, *, now: bool = False) -> None:
        """Save on all ranks or on none.

        It is not guarded: if it failed on one rank only, the others would wait for ever.
        """
        assert self._common is not None  # noqa: S101
        if self._common.is_due(failed=self.is_off, now=now):
            others = ranks.gather(self.random_files())
            if ranks.rank() == 0:
                self.save(step, others)
            else:
                with self._interval.saving():
                    pass
            self.sigterm.raise_deferred()
        elif self._common.has_failed:
            self.is_off = True
            self.sigterm.remove()

    def random_files(self) -> dict[str, bytes]:
        """Return the files with the random states of this rank, by name."""
        with tempfile.TemporaryDirectory() as folder:
            self._trainer._save_rng_state(folder)
            return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

    def save(self, step: int, others: list[dict[str, bytes]] | None = None) -> None:
        """Save the Trainer's checkpoint, with the random states of the other ranks."""
        if step == self._saved_at:
            return
        with self._interval.saving():
            write = functools.partial(self._write, others=others or [])
            saved = self._states.try_save(write)
        if saved:
            self._saved_at = step

    def _write(self, folder: Path, others: list[dict[str, bytes]]) -> None:
        """Write the Trainer's checkpoint to this folder, without its side effects elsewhere."""
        trainer, args = self._trainer, self._trainer.args
        changed: dict[str, Any]
        changed = {"push_to_hub": False, "save_total_limit": None, "save_only_model": False}
        if self._common is not None:
            changed["save_strategy"] = "no"  # otherwise it waits for the other ranks
            trainer.store_flos = _nothing  # waits for the other ranks too
        before = {name: getattr(args, name, None) for name in changed}
        best = trainer.state.best_model_checkpoint
        trainer._get_output_dir = functools.partial(_same, str(folder))
        try:
            for name, value in changed.items():
                setattr(args, name, value)
            trainer._save_checkpoint(trainer.model_wrapped, trial=None)
        finally:
            del trainer._get_output_dir
            trainer.__dict__.pop("store_flos", None)
            trainer.state.best_model_checkpoint = best
            for name, value in before.items():
                setattr(args, name, value)
        (inner,) = folder.iterdir()
        for path in list(inner.iterdir()):
            shutil.move(str(path), str(folder / path.name))
        inner.rmdir()
        for files in others:
            for name, content in files.items():
                (folder / name).write_bytes(content)


def _same(value: str, *args: Any, **kwargs: Any) -> str:
    del args, kwargs
    return value


def _nothing() -> None:
    return


@contextmanager
def _full_loads() -> Generator[None]:
    """Let `torch.load` read all types in the block, as it did before PyTorch 2.6.

    The checkpoint is the run's own. A caller that chooses with `weights_only` is not affected.
    """
    if _FULL in os.environ or _STRICT in os.environ:
        yield
        return
    os.environ[_FULL] = "1"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=f".*{_FULL}")
            yield
    finally:
        os.environ.pop(_FULL, None)


def _load_fully(trainer: Any) -> Callable[[], None]:
    """Let the Trainer load all types from its checkpoint. Return a function that undoes this."""
    changed = [name for name in _LOADS if hasattr(trainer, name) and name not in vars(trainer)]
    for name in changed:
        setattr(trainer, name, _full_loads()(getattr(trainer, name)))

    def undo() -> None:
        for name in changed:
            delattr(trainer, name)

    return undo


def prepare(bound: Any) -> Callable[[], None] | None:
    """Add the callback and resume, unless the script resumes by itself or cannot be saved."""
    given: dict[str, Any] = bound.arguments
    trainer: Any = given["self"]
    args = trainer.args
    if given.get("resume_from_checkpoint") or given.get("trial") is not None:
        return None
    if place.is_inside(args.output_dir):
        return None
    several = args.world_size > 1
    names = ("is_deepspeed_enabled", "is_fsdp_enabled", "is_tp_enabled")
    if any(getattr(trainer, name, False) for name in names) or (
        several and (args.parallel_mode.value != "distributed" or place.is_on_several_nodes())
    ):
        place.say_several()
        return None
    settings = [type(trainer.model).__name__, args.learning_rate, args.seed]
    settings += [args.per_device_train_batch_size, args.gradient_accumulation_steps]
    if several:
        settings.append(args.world_size)

    def find() -> tuple[Path, Path | None] | None:
        folder = place.training_folder("transformers", settings, of_ranks=several)
        return None if folder is None else (folder, StateFolder(folder, kind="trainer").newest())

    place_and_state = ranks.choose_on_first("transformers", find) if several else find()
    if place_and_state is None:
        return None
    folder, found = place_and_state
    undo = _nothing
    if found is not None:
        given["resume_from_checkpoint"] = str(found)
        undo = _load_fully(trainer)
    callback = TrainerCheckpoint(trainer, StateFolder(folder, kind="trainer"))
    trainer.add_callback(callback)
    if not several or ranks.rank() == 0:
        place.say_start(_WHAT, "from its newest checkpoint" if found is not None else "")

    def finish() -> None:
        undo()
        trainer.remove_callback(callback)

    return finish
