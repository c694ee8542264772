"""What a shell offers for the words of a command; it is never told of errors, nor kept waiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import typer

from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.settings import Settings

_MAX_VALUES = 50  # ids at once, the newest
_TIMEOUT_S = 2.0  # with a service; `az`, which may be asked for a token, takes about one


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of runs, newest first, and `@last`."""
    from runner.flows.runs.documents import list_run_ids, runs_container

    if incomplete.startswith("@"):
        return ["@last"]
    return _known(ctx, lambda found: list_run_ids(runs_container(found), incomplete), incomplete)


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Ids of the groups that `runner submit` made, newest first."""
    from runner.flows.runs.groups import list_group_ids

    return _known(ctx, lambda found: list_group_ids(found, incomplete), incomplete)


def complete_run_or_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Groups first: of their runs there are many."""
    from runner.flows.runs.documents import list_run_ids, runs_container
    from runner.flows.runs.groups import list_group_ids

    if incomplete.startswith("@"):
        return ["@last"]

    def names(found: Connection) -> list[str]:
        runs = list_run_ids(runs_container(found), incomplete)
        return [*list_group_ids(found, incomplete), *runs]

    return _known(ctx, names, incomplete)


def complete_schedule(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of schedules."""
    from runner.flows.schedules.manage import list_schedules

    return _known(ctx, lambda found: [one.schedule_id for one in list_schedules(found)], incomplete)


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of models."""
    from runner.flows.models.versions import model_names

    return _known(ctx, model_names, incomplete)


def complete_node(incomplete: str) -> list[str]:
    """Nodes of the local services that can be evicted."""
    from runner.cli.options import open_settings
    from runner.flows.local.evict import node_ids

    return _offered(lambda: _soon(lambda: node_ids(open_settings("local", None))), incomplete)


def complete_recipe(incomplete: str) -> list[str]:
    """Built-in recipes; where none begins so, the shell offers files."""
    from runner.core.recipe.recipe import builtin_names

    return _offered(builtin_names, incomplete)


def complete_param(ctx: typer.Context, incomplete: str) -> list[str]:
    """`name=` of each parameter of the recipe that was typed before."""
    from runner.core.recipe.recipe import load_recipe

    # An option whose value is still to come leaves the argument where nobody has named it.
    ref = ctx.params.get("ref") or next(iter(ctx.args), None)
    if not isinstance(ref, str):
        return []
    return _offered(
        lambda: [f"{param.name}=" for param in load_recipe(ref, cwd=Path.cwd()).params], incomplete
    )


def complete_pool(ctx: typer.Context, incomplete: str) -> list[str]:
    """Pools of the target."""
    from runner.flows.environment.pools import pool_names

    return _offered(lambda: pool_names(_settings(ctx)), incomplete)


def complete_stack(incomplete: str) -> list[str]:
    """Stacks that a file here describes, or whose outputs this machine has."""
    from runner.cli.options import open_settings

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


def _known(ctx: Any, names: Callable[[Connection], Iterable[str]], incomplete: str) -> list[str]:
    """What the target's services know, if they say so in time."""

    def ask() -> Iterable[str]:
        connection = _connection(ctx)
        connection.blob_service()  # loads the SDK: that time is not the network's
        return _soon(lambda: names(connection))

    return _offered(ask, incomplete)[:_MAX_VALUES]


def _soon(names: Callable[[], Iterable[str]]) -> list[str]:
    """Nothing where no answer comes: a network may swallow what is sent to it.

    A thread, since looking up a name can be neither limited nor interrupted; it ends with us.
    """
    found: list[str] = []

    def ask() -> None:
        with suppress(Exception):  # of a thread it would be drawn into the line that is typed
            found.extend(names())

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_TIMEOUT_S)
    return list(found)


def _settings(ctx: Any) -> Settings:
    """With the target and stack of the words before."""
    from runner.cli.options import open_settings

    return open_settings(ctx.params.get("target"), ctx.params.get("stack"))


def _connection(ctx: Any) -> Connection:
    from runner.azure.auth.credentials import connect

    return connect(_settings(ctx))
