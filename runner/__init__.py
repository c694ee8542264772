"""Train on Azure Batch, or on a local emulator of it, with the same command.

    import runner

    run = runner.train("mnist", set={"epochs": 3}, wait=True)

The names below are functions and classes of `runner.api`, loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.api import (
        Command,
        Group,
        Metric,
        OnUpdate,
        Run,
        RunnerError,
        Runs,
        Update,
        compare,
        get_model,
        model,
        models,
        run,
        runs,
        submit,
        tensorboard,
        train,
    )
    from runner.api import data as data

__all__ = [
    "Command",
    "Group",
    "Metric",
    "OnUpdate",
    "Run",
    "RunnerError",
    "Runs",
    "Update",
    "compare",
    "data",
    "get_model",
    "model",
    "models",
    "run",
    "runs",
    "submit",
    "tensorboard",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from runner import api  # noqa: PLC0415  `import runner` costs nothing

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
