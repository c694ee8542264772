"""The state of a Keras training: variables of the model, callbacks, and iterators of data."""

from __future__ import annotations

import copy
import importlib
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

Arrays = list[tuple[str, Any]]
_NUMBERS = (bool, int, float, type(None))


class OtherModelError(Exception):
    """The saved state belongs to another model."""


class Stateful(NamedTuple):
    """Access to the state of an object: `state` returns a copy of it, `restore` sets it."""

    state: Callable[[], Any]
    restore: Callable[[Any], object]


class ModelState:
    """The variables of a compiled model: weights, seed generators, optimizer, metrics."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def variables(self) -> dict[str, Arrays]:
        """Return copies of all variables that a training changes, except those of metrics."""
        self._sync()
        return {name: _arrays(variables) for name, variables in self._groups().items()}

    def metrics(self) -> Arrays:
        """Return copies of the variables of metrics."""
        self._sync()
        return _arrays(self._model.metrics_variables)

    def restore(self, saved: dict[str, Arrays]) -> None:
        """Restore the variables. Raise OtherModelError before any change."""
        optimizer = self._model.optimizer
        if optimizer is not None and not optimizer.built:
            optimizer.build(self._model.trainable_variables)
        groups = self._groups(used_global_seeds=bool(saved["global seeds"]))
        for name, variables in groups.items():
            _check_same(name, variables, saved.get(name, []))
        for name, variables in groups.items():
            _assign(variables, saved[name])

    def has_metrics(self, saved: Arrays) -> bool:
        """Return True if the model and the state have the same number of metric variables."""
        return len(self._model.metrics_variables) == len(saved)

    def build_metrics(self, batch: Any) -> None:
        """Build the metrics for batches like this one, as JAX and PyTorch do before an epoch."""
        self._model._symbolic_build(data_batch=batch)

    def restore_metrics(self, saved: Arrays) -> None:
        """Restore the metrics of an incomplete epoch."""
        _check_same("metrics", self._model.metrics_variables, saved)
        _assign(self._model.metrics_variables, saved)

    def _groups(self, *, used_global_seeds: bool | None = None) -> dict[str, list[Any]]:
        optimizer = self._model.optimizer
        return {
            "weights and seeds": list(self._model.variables),
            "optimizer": [] if optimizer is None else list(optimizer.variables),
            "global seeds": _global_seeds(used_global_seeds),
        }

    def _sync(self) -> None:
        # On JAX the variables are empty during an epoch: the training loop has the values.
        if hasattr(self._model, "jax_state_sync"):
            self._model.jax_state_sync()


def stateful(thing: Any) -> Stateful:
    """Return access to the state of a callback, or of an object with methods for its state.

    Raises:
        TypeError: the object has no state that can be saved.
    """
    for take, put in (("get_state", "set_state"), ("state_dict", "load_state_dict")):
        if hasattr(thing, take) and hasattr(thing, put):
            return Stateful(partial(_copy_of, getattr(thing, take)), getattr(thing, put))
    if hasattr(thing, "on_train_begin"):
        attributes: dict[str, Any] = thing.__dict__
        return Stateful(partial(_plain_values, attributes), attributes.update)
    raise TypeError(
        f"{type(thing).__name__} has neither get_state and set_state nor state_dict and "
        "load_state_dict, and is not a callback: its state cannot be saved"
    )


class CountedBatches:
    """Counts the batches of an iterator and records its state before each.

    Keras prefetches batches, so the iterator's own state is ahead of the training.
    """

    def __init__(self, data: Any) -> None:
        self._data = data
        self._state = stateful(data)
        self._given = 0
        self._before: deque[tuple[int, Any]] = deque()

    def batches(self, done: int) -> Iterator[Any]:
        """Yield all batches of the iterator, after `done` copies of the first one to be skipped."""
        while True:
            self._before.append((self._given, self._state.state()))
            try:
                batch = next(self._data)
            except StopIteration:
                return
            for _ in range(done):
                yield batch
            done = 0
            self._given += 1
            yield batch

    def state_at(self, trained: int) -> Any:
        """Return the iterator's state before batch `trained`, counted from 0."""
        while self._before and self._before[0][0] < trained:
            self._before.popleft()
        return self._before[0][1] if self._before else self._state.state()

    def restore(self, state: Any) -> None:
        """Restore the iterator's state."""
        self._state.restore(state)


class CallbackCounters:
    """The numbers and arrays of a callback. Its strings may be paths of this node."""

    def __init__(self, callback: Any) -> None:
        self._values: dict[str, Any] = callback.__dict__

    def get_state(self) -> dict[str, Any]:
        """Return the numbers and arrays by attribute."""
        return {name: value for name, value in self._values.items() if _is_plain(value, _NUMBERS)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Set the attributes."""
        self._values.update(state)


def _copy_of(take: Callable[[], Any]) -> Any:
    return copy.deepcopy(take())


def _plain_values(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return copies of the attributes of a callback that are plain values or arrays."""
    return {k: copy.deepcopy(v) for k, v in attributes.items() if _is_plain(v)}


def _is_plain(value: Any, kinds: tuple[type, ...] = (*_NUMBERS, str)) -> bool:
    """Return True for values of these kinds, arrays, and lists of them."""
    if isinstance(value, (list, tuple)):
        return all(_is_plain(item, kinds) for item in cast("list[Any]", value))
    return isinstance(value, kinds) or type(value).__module__ == "numpy"


def _global_seeds(used: bool | None) -> list[Any]:
    """Return the state of Keras's global generator, which `keras.random` uses without a seed.

    Args:
        used: include it. None: include it if it was used in this process.
    """
    try:
        state: Any = importlib.import_module("keras.src.backend.common.global_state")
        seeds: Any = importlib.import_module("keras.src.random.seed_generator")
        exists = state.get_global_attribute(seeds.GLOBAL_SEED_GENERATOR) is not None
        return [seeds.global_seed_generator().state] if (exists if used is None else used) else []
    except (ImportError, AttributeError):  # not part of Keras's public interface
        return []


def _arrays(variables: list[Any]) -> Arrays:
    to_numpy: Any = importlib.import_module("keras").ops.convert_to_numpy
    return [(variable.path, to_numpy(variable).copy()) for variable in variables]


def _assign(variables: list[Any], saved: Arrays) -> None:
    for variable, (_, value) in zip(variables, saved, strict=True):
        variable.assign(value)


def _check_same(what: str, variables: list[Any], saved: Arrays) -> None:
    if len(variables) != len(saved):
        raise OtherModelError(
            f"the state has {len(saved)} variables of {what}, this model {len(variables)}: "
            "use the code that saved it, or start with an empty folder"
        )
    for variable, (path, value) in zip(variables, saved, strict=True):
        if tuple(variable.shape) != tuple(value.shape):
            raise OtherModelError(
                f"the state has {path} of shape {tuple(value.shape)}, this model {variable.path} "
                f"of {tuple(variable.shape)}: use the code that saved it, or start with an empty "
                "folder"
            )
