"""Train on Azure Batch, or on a local emulator of it, with the same command.

    import runner

    run = runner.train("mnist", set={"epochs": 3}, wait=True)

The names below are functions and classes of `runner.api`, which is imported on first use, and of
the optional feature of schedules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runner.api import (
        Budget,
        Command,
        Group,
        Metric,
        OnUpdate,
        Pool,
        Retried,
        Run,
        RunnerError,
        RunnerWarning,
        Runs,
        Table,
        Update,
        alias_model,
        budgets,
        compare,
        get_model,
        group,
        model,
        models,
        new_recipe,
        pool,
        pools,
        recipe,
        recipes,
        remove_budget,
        remove_model,
        retry_failed,
        run,
        runs,
        set_budget,
        settings,
        skus,
        submit,
        sweep,
        tensorboard,
        train,
        unalias_model,
    )
    from runner.api import data as data
    from runner.api import local as local
    from runner.features.schedules.api import Schedule, create_schedule, schedule, schedules

__version__: str
__all__ = [
    "Budget",
    "Command",
    "Group",
    "Metric",
    "OnUpdate",
    "Pool",
    "Retried",
    "Run",
    "RunnerError",
    "RunnerWarning",
    "Runs",
    "Schedule",
    "Table",
    "Update",
    "alias_model",
    "budgets",
    "compare",
    "create_schedule",
    "data",
    "get_model",
    "group",
    "local",
    "model",
    "models",
    "new_recipe",
    "pool",
    "pools",
    "recipe",
    "recipes",
    "remove_budget",
    "remove_model",
    "retry_failed",
    "run",
    "runs",
    "schedule",
    "schedules",
    "set_budget",
    "settings",
    "skus",
    "submit",
    "sweep",
    "tensorboard",
    "train",
    "unalias_model",
]
_OF_SCHEDULES = {"Schedule", "create_schedule", "schedule", "schedules"}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415  `import runner` costs nothing

        return version("azure-batch-runner")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _OF_SCHEDULES:
        from runner.core.features import load_feature  # noqa: PLC0415  `import runner` costs nothing

        return getattr(load_feature("schedules.api"), name)
    from runner import api  # noqa: PLC0415  `import runner` costs nothing

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
