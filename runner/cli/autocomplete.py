"""Shell completion of arguments and options, within two seconds and without error messages."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import typer

from runner.core.features import load_feature
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from runner.azure.auth.credentials import Connection
    from runner.core.settings import Settings

_MAX_VALUES = 50  # the newest IDs
_TIMEOUT_S = 2.0  # seconds to wait for a service; a token from `az` takes about 1 s


def complete_run(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return IDs of runs, newest first, or `@last`."""
    from runner.flows.runs.documents import list_newest_ids, runs_container

    if incomplete.startswith("@"):
        return ["@last"]
    return _from_services(
        ctx, lambda found: list_newest_ids(runs_container(found), incomplete), incomplete
    )


def complete_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return IDs of groups of `runner submit`, newest first."""
    from runner.flows.runs.group_documents import list_group_ids

    return _from_services(ctx, lambda found: list_group_ids(found, incomplete), incomplete)


def complete_run_or_group(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return IDs of groups, then of runs."""
    from runner.flows.runs.documents import list_newest_ids, runs_container
    from runner.flows.runs.group_documents import list_group_ids

    if incomplete.startswith("@"):
        return ["@last"]

    def names(found: Connection) -> list[str]:
        runs = list_newest_ids(runs_container(found), incomplete)
        return [*list_group_ids(found, incomplete), *runs]

    return _from_services(ctx, names, incomplete)


def complete_schedule(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of schedules."""
    found = load_feature("schedules.manage").list_schedules
    return _from_services(ctx, lambda given: [one.schedule_id for one in found(given)], incomplete)


def complete_experiment(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of experiments, those of the newest runs first."""
    from runner.flows.sweeps.experiments import newest_experiments

    return _from_services(ctx, newest_experiments, incomplete)


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return names of models."""
    from runner.flows.models.versions import model_names

    return _from_services(ctx, model_names, incomplete)


def complete_node(incomplete: str) -> list[str]:
    """Return nodes of the local services that can be evicted."""
    from runner.flows.local.evict import local_nodes

    def find() -> list[str]:
        return [node.id for node in local_nodes(_load_settings(target="local")) if node.evictable]

    return _matching(lambda: _within_timeout(find), incomplete)


def complete_recipe(incomplete: str) -> list[str]:
    """Return built-in recipes; if none matches, the shell completes file names."""
    from runner.core.recipe.builtin import builtin_names

    return _matching(builtin_names, incomplete)


def complete_param(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `name=` for each parameter of the recipe in the command line."""
    from runner.core.recipe.file import load_recipe

    # Typer does not assign the argument while an option has no value yet.
    ref = ctx.params.get("ref") or next(iter(ctx.args), None)
    if not isinstance(ref, str):
        return []
    return _matching(
        lambda: [f"{param.name}=" for param in load_recipe(ref, cwd=Path.cwd()).params], incomplete
    )


def complete_pool(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the pools of the target."""
    from runner.flows.environment.pools import pool_names

    return _matching(lambda: pool_names(_settings(ctx)), incomplete)


def complete_stack(incomplete: str) -> list[str]:
    """Return stacks with a file in this folder, or with cached outputs."""

    def names() -> list[str]:
        files = sorted(Path.cwd().glob("Pulumi.*.yaml"))
        found = [file.name.removeprefix("Pulumi.").removesuffix(".yaml") for file in files]
        cached = (_load_settings().home / "stacks").glob("*.json")
        return list(dict.fromkeys([*found, *sorted(file.stem for file in cached)]))

    return _matching(names, incomplete)


def complete_team(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the teams of the stack."""
    from runner.flows.environment.pools import team_names

    return _matching(lambda: team_names(_settings(ctx)), incomplete)


def complete_target(incomplete: str) -> list[str]:
    """Return the targets."""
    from runner.core.settings import TARGETS

    return _matching(lambda: tuple(TARGETS), incomplete)


def complete_error_code(incomplete: str) -> list[str]:
    """Return codes of errors and causes as the user spells them: in lower case, without `R-`."""
    from runner.core.explanations import load_explanations

    wanted = incomplete.upper()
    spelled = str.lower if incomplete.islower() else str
    whole = [code for code in load_explanations() if code.upper().startswith(wanted)]
    bare = [code.removeprefix("R-") for code in load_explanations() if incomplete]
    rest = [code for code in bare if code.upper().startswith(wanted) and code not in whole]
    return [incomplete + spelled(code[len(incomplete) :]) for code in (*whole, *rest)]


def complete_state(incomplete: str) -> list[str]:
    """Return states of runs, also after a comma."""
    from runner.core.states import RunState

    before, comma, _ = incomplete.rpartition(",")
    return _matching(lambda: [f"{before}{comma}{state.value}" for state in RunState], incomplete)


def _matching(names: Callable[[], Iterable[str]], incomplete: str) -> list[str]:
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except RunnerError:
        return []


def _from_services(
    ctx: Any, names: Callable[[Connection], Iterable[str]], incomplete: str
) -> list[str]:
    """Return names from the target's services, or nothing if they do not respond in time."""

    def ask() -> Iterable[str]:
        connection = _connection(ctx)
        connection.blob_service()  # load the SDK before the timeout starts
        return _within_timeout(lambda: names(connection))

    return _matching(ask, incomplete)[:_MAX_VALUES]


def _within_timeout(names: Callable[[], Iterable[str]]) -> list[str]:
    """Return the names, or nothing after the timeout.

    Uses a daemon thread, because a name lookup has no timeout and cannot be interrupted.
    """
    found: list[str] = []

    def ask() -> None:
        with suppress(Exception):  # a traceback would appear in the line that the user types
            found.extend(names())

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(_TIMEOUT_S)
    return list(found)


def _settings(ctx: Any) -> Settings:
    """Return the settings with the target, stack and team in the command line."""
    return _load_settings(**{name: ctx.params.get(name) for name in ("target", "stack", "team")})


def _load_settings(**given: object) -> Settings:
    from runner.core.settings import load_settings

    return load_settings(given, cwd=Path.cwd(), env=os.environ)


def _connection(ctx: Any) -> Connection:
    from runner.azure.auth.credentials import connect

    return connect(_settings(ctx))
