"""Checkpoints for PyTorch: everything with a state_dict, random generators, epoch and batch.

    with Checkpoint(model=model, optimizer=optimizer, scheduler=scheduler) as training:
        for epoch in training.epochs(10):
            for images, labels in training.batches(loader):
                ...

The loop resumes at the saved epoch and batch. Completed batches of that epoch are taken from the
loader again and skipped, with the random generators as at the start of the epoch, so that the next
batch is the same as without an interruption. A loader with a state_dict of its own (torchdata's
StatefulDataLoader) is restored without reading them. The random numbers of workers that survive an
epoch (persistent_workers) cannot be restored. With several processes, only rank 0 saves.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from runner.hooks.state import (
    StateFolder,
    default_folder,
    random_states,
    restore_random_states,
)
from runner.hooks.timing import DeferredSigterm, SaveInterval

FILE = "state.pt"

_torch: Any = importlib.import_module("torch")


class OtherPartsError(Exception):
    """The saved state has different parts from this Checkpoint."""


class Checkpoint:
    """Restores `parts` when it is created, and saves them every `interval_s` and on SIGTERM.

    Args:
        folder: the folder of the states; by default $RUNNER_CHECKPOINT_DIR. Without a folder,
            nothing is saved.
        interval_s: seconds between two saves; by default 10, or more if saving takes more than 2 %
            of the time.
        keep: how many states to retain, at least two.
        parts: objects with `state_dict` and `load_state_dict`: models, optimizers, schedulers,
            scalers, averages.

    The dict `values` is saved too, for state without a state_dict.

    Raises:
        OtherPartsError: the saved state has other parts.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        interval_s: float | None = None,
        keep: int = 2,
        **parts: Any,
    ) -> None:
        path = folder if folder is not None else default_folder()
        self._states = None if path is None else StateFolder(path, keep, kind="torch")
        self._interval = SaveInterval(interval_s)
        self._sigterm = DeferredSigterm()
        self._parts = parts
        self._rank = _rank()
        self.epoch = 0
        self.step = 0
        self.values: dict[str, Any] = {}
        self._found = self._load()
        self._epoch_randomness: Any = None
        self._loader: Any = None
        self._generator_at_begin: Any = None
        self._saved_at: tuple[int, int] | None = None
        if self._found is not None:
            self._restore(self._found)

    def __enter__(self) -> Checkpoint:
        """Defer SIGTERM until the state is saved after the next batch."""
        if self._states is not None:
            self._sigterm.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Restore the previous handler of SIGTERM."""
        self._sigterm.remove()

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the remaining epochs of `count`, numbered from 0."""
        while self.epoch < count:
            found = self._found
            if found is not None and not self._rank:
                restore_random_states(found["epoch_randomness"])
            self._epoch_randomness = random_states()
            yield self.epoch
            self.epoch, self.step, self._found = self.epoch + 1, 0, None
            self._epoch_randomness = random_states()
            self._save_if_due(always=self.epoch >= count)

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the remaining batches of this epoch from the loader of the training data."""
        found, self._found = self._found, None
        self._loader = loader
        if found is None:
            self._generator_at_begin = _generator_state(loader)
            left = iter(loader)
        else:
            left = self._remaining(loader, found)
        for batch in left:
            yield batch
            self.step += 1
            self._save_if_due()

    def save(self) -> None:
        """Save now. If that fails, log a warning and continue the training."""
        if self._states is None or self._rank:
            return
        state = {
            "epoch": self.epoch,
            "step": self.step,
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
            "values": self.values,
            "randomness": random_states(),
            "epoch_randomness": self._epoch_randomness or random_states(),
            "generator": _generator_state(self._loader),
            "generator_at_begin": self._generator_at_begin,
            "loader": self._loader.state_dict() if hasattr(self._loader, "state_dict") else None,
        }
        with self._interval.saving():
            saved = self._states.try_save(lambda inside: _torch.save(state, inside / FILE))
        if saved:
            self._saved_at = (self.epoch, self.step)

    def _save_if_due(self, *, always: bool = False) -> None:
        if always or self._sigterm.requested or self._interval.due:
            self.save()
        self._sigterm.raise_deferred()

    def _load(self) -> dict[str, Any] | None:
        newest: Path | None = self._states.newest() if self._states else None
        if newest is None:
            return None
        # The folder is as trusted as the code of the run, so any object is allowed.
        return _torch.load(newest / FILE, map_location="cpu", weights_only=False)

    def _restore(self, found: dict[str, Any]) -> None:
        if set(found["parts"]) != set(self._parts):
            raise OtherPartsError(
                f"the state has {_names(found['parts'])}, this Checkpoint {_names(self._parts)}: "
                "use the code that saved it, or start with an empty folder"
            )
        for name, part in self._parts.items():
            part.load_state_dict(found["parts"][name])
        self.epoch, self.step, self.values = found["epoch"], found["step"], found["values"]
        self._saved_at = (self.epoch, self.step)

    def _remaining(self, loader: Any, found: dict[str, Any]) -> Iterator[Any]:
        if self.step and found["loader"] is not None and hasattr(loader, "load_state_dict"):
            self._generator_at_begin = found["generator_at_begin"]
            loader.load_state_dict(found["loader"])
            left: Iterator[Any] = iter(loader)
        else:
            generator = found["generator_at_begin" if self.step else "generator"]
            if generator is not None and getattr(loader, "generator", None) is not None:
                loader.generator.set_state(generator)
            self._generator_at_begin = _generator_state(loader)
            left = iter(loader)
            for _ in range(self.step):
                next(left, None)
        if self.step and not self._rank:
            restore_random_states(found["randomness"])
        return left


def _generator_state(loader: Any) -> Any:
    generator = getattr(loader, "generator", None)
    return None if generator is None else generator.get_state()


def _rank() -> int:
    distributed: Any = _torch.distributed
    return (
        distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0
    )


def _names(parts: dict[str, Any]) -> str:
    return ", ".join(sorted(parts)) or "no parts"
