"""What a shell offers for the words of a command; it is never told of errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from runner.core.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.credentials import Connection
    from runner.core.settings import Settings

_MOST = 50  # ids at once, the newest


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of runs, newest first, and `@last`."""
    from runner.flows.run_documents import list_run_ids, runs_container

    if incomplete.startswith("@"):
        return ["@last"]
    return _offered(lambda: list_run_ids(runs_container(_connection(ctx)), incomplete), incomplete)[
        :_MOST
    ]


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the groups that `runner submit` made, newest first."""
    from runner.flows.groups import list_group_ids

    return _offered(lambda: list_group_ids(_connection(ctx), incomplete), incomplete)[:_MOST]


def complete_run_or_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Groups first: of their runs there are many."""
    groups = [] if incomplete.startswith("@") else complete_group(ctx, incomplete)
    return [*groups, *complete_run(ctx, incomplete)][:_MOST]


def complete_schedule(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of schedules."""
    from runner.flows.schedules import list_schedules

    return _offered(
        lambda: [one.schedule_id for one in list_schedules(_connection(ctx))], incomplete
    )


def complete_recipe(incomplete: str) -> list[str]:
    """Built-in recipes; where none begins so, the shell offers files."""
    from runner.core.builtin_recipes import builtin_names

    return _offered(builtin_names, incomplete)


def complete_param(ctx: typer.Context, incomplete: str) -> list[str]:
    """`name=` of each parameter of the recipe that was typed before."""
    from runner.core.recipe import load_recipe

    # An option whose value is still to come leaves the argument where nobody has named it.
    ref = ctx.params.get("ref") or next(iter(ctx.args), None)
    if not isinstance(ref, str):
        return []
    return _offered(
        lambda: [f"{param.name}=" for param in load_recipe(ref, cwd=Path.cwd()).params], incomplete
    )


def complete_pool(ctx: typer.Context, incomplete: str) -> list[str]:
    """Pools of the target."""
    from runner.flows.pools import pool_names

    return _offered(lambda: pool_names(_settings(ctx)), incomplete)


def complete_stack(incomplete: str) -> list[str]:
    """Stacks that a file here describes, or whose outputs this machine has."""
    from runner.cli.run_options import open_settings

    def names() -> list[str]:
        files = sorted(Path.cwd().glob("Pulumi.*.yaml"))
        found = [file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in files]
        kept = (open_settings(None, None).home / "stacks").glob("*.json")
        return list(dict.fromkeys([*found, *sorted(file.stem for file in kept)]))

    return _offered(names, incomplete)


def complete_target(incomplete: str) -> list[str]:
    """Where runs can be."""
    return _offered(lambda: ("local", "azure"), incomplete)


def complete_state(incomplete: str) -> list[str]:
    """States of runs; several are joined by commas."""
    from runner.core.states import RunState

    before, comma, _ = incomplete.rpartition(",")
    return _offered(lambda: [f"{before}{comma}{state.value}" for state in RunState], incomplete)


def _offered(names: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except RunnerError:
        return []


def _settings(ctx: Any) -> Settings:
    """With the target and stack of the words before."""
    from runner.cli.run_options import open_settings

    return open_settings(ctx.params.get("target"), ctx.params.get("stack"))


def _connection(ctx: Any) -> Connection:
    from runner.azure.credentials import connect

    return connect(_settings(ctx))
