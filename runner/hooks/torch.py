"""PyTorch: everything with a state_dict, the random generators, the epoch and the batch.

    with Checkpoint(model=model, optimizer=optimizer, scheduler=scheduler) as training:
        for epoch in training.epochs(10):
            for images, labels in training.batches(loader):
                ...

The loop goes on at the epoch and the batch it was at. Batches of that epoch that are done are taken
from the loader once more and passed over, with the random generators as they were when the epoch
began, so the next one is the one it would have been; a loader with a state_dict of its own
(torchdata's StatefulDataLoader) goes there at once. Workers that outlive an epoch
(persistent_workers) draw random numbers nobody can restore. With several processes rank 0 saves.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from runner.hooks.random_states import random_states, restore_random_states
from runner.hooks.state import SaveError, StateFolder, default_folder, logger
from runner.hooks.timing import DeferredSigterm, SaveInterval

FILE = "state.pt"

_torch: Any = importlib.import_module("torch")


class OtherPartsError(Exception):
    """The state is of other parts than those that are to go on."""


class Checkpoint:
    """Saves `parts` every `interval_s` and on SIGTERM, and puts them back when it is made.

    Parts are whatever has `state_dict` and `load_state_dict`: models, optimizers, schedulers,
    scalers, averages. `folder` is $RUNNER_CHECKPOINT_DIR unless given; with neither it only
    counts. `interval_s` None saves every 10 s, less often where that would cost more than 2 % of
    the time. `values` is a dict of your own that is saved along, for what has no state_dict.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        interval_s: float | None = None,
        keep: int = 2,
        **parts: Any,
    ) -> None:
        place = folder if folder is not None else default_folder()
        self._states = None if place is None else StateFolder(place, keep, kind="torch")
        self._pace = SaveInterval(interval_s)
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
            self._put_back(self._found)

    def __enter__(self) -> Checkpoint:
        """Take over SIGTERM: first the state is saved, after the next batch."""
        if self._states is not None:
            self._sigterm.install()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give SIGTERM back."""
        self._sigterm.remove()

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`, from 0."""
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
        """The batches that are left of this epoch, of the loader that is trained on."""
        found, self._found = self._found, None
        self._loader = loader
        if found is None:
            self._generator_at_begin = _generator_state(loader)
            left = iter(loader)
        else:
            left = self._left(loader, found)
        for batch in left:
            yield batch
            self.step += 1
            self._save_if_due()

    def save(self) -> None:
        """Save now. A disk that does not take it is said, and the training goes on."""
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
        with self._pace.saving():
            try:
                self._states.save(lambda inside: _torch.save(state, inside / FILE))
            except SaveError as err:
                # The training is worth more than a state of it: the one saved last is still there.
                logger.warning("%s; the training goes on", err)
                return
        self._saved_at = (self.epoch, self.step)

    def _save_if_due(self, *, always: bool = False) -> None:
        if always or self._sigterm.asked or self._pace.due:
            self.save()
        self._sigterm.obey()

    def _load(self) -> dict[str, Any] | None:
        newest: Path | None = self._states.newest() if self._states else None
        if newest is None:
            return None
        # From the run's own folder, as its code is: it may hold any object.
        return _torch.load(newest / FILE, map_location="cpu", weights_only=False)

    def _put_back(self, found: dict[str, Any]) -> None:
        if set(found["parts"]) != set(self._parts):
            raise OtherPartsError(
                f"the state has {_names(found['parts'])}, this Checkpoint {_names(self._parts)}: "
                "train on with the code it was saved by, or begin in an empty folder"
            )
        for name, part in self._parts.items():
            part.load_state_dict(found["parts"][name])
        self.epoch, self.step, self.values = found["epoch"], found["step"], found["values"]
        self._saved_at = (self.epoch, self.step)

    def _left(self, loader: Any, found: dict[str, Any]) -> Iterator[Any]:
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
