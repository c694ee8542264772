"""Call an adapter before each call of a framework's function.

An adapter is a module of this package with `prepare(bound)`. It may change the arguments of the
call, and may return a function to call afterwards. Its errors become warnings.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from runner.hooks.automatic import place


def change(framework: Any, name: str, methods: tuple[str, ...], adapter: str) -> None:
    """Wrap these methods of the class `name` so that the adapter is called first."""
    try:
        changed = getattr(framework, name)
        for method in methods:
            setattr(changed, method, wrap(getattr(changed, method), adapter))
    except Exception as err:  # noqa: BLE001 - the training must continue
        place.warn(adapter, err)


def wrap(original: Callable[..., Any], adapter: str) -> Callable[..., Any]:
    """Return a function that calls `prepare` of the adapter before each call of `original`."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        finish = None
        try:
            bound = signature.bind(*args, **kwargs)
            # Imported here, because the framework is imported only now.
            prepare = importlib.import_module(f"{__package__}.{adapter}").prepare
            finish = prepare(bound)
            args, kwargs = bound.args, bound.kwargs
        except Exception as err:  # noqa: BLE001 - the training must continue
            place.warn(adapter, err)
        try:
            return original(*args, **kwargs)
        finally:
            if finish is not None:
                try:
                    finish()
                except Exception as err:  # noqa: BLE001 - the training must continue
                    place.warn(adapter, err)

    return call
