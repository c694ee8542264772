"""What a shell offers for runs, schedules and recipes; it is never told of errors."""

from __future__ import annotations

from runner.core.errors import RunnerError

_MOST = 50  # ids at once, the newest


def complete_run(incomplete: str) -> list[str]:
    """Ids of runs, newest first, and `@last`."""
    from runner.cli.run_options import open_connection
    from runner.flows.run_documents import list_run_ids, runs_container

    if incomplete.startswith("@"):
        return ["@last"]
    try:
        ids = list_run_ids(runs_container(open_connection(None, None)), incomplete)
    except RunnerError:
        return []
    return ids[:_MOST]


def complete_schedule(incomplete: str) -> list[str]:
    """Names of schedules."""
    from runner.cli.run_options import open_connection
    from runner.flows.schedules import list_schedules

    try:
        found = list_schedules(open_connection(None, None))
    except RunnerError:
        return []
    return [one.schedule_id for one in found if one.schedule_id.startswith(incomplete)]


def complete_recipe(incomplete: str) -> list[str]:
    """Built-in recipes; where none begins so, the shell offers files."""
    from runner.core.builtin_recipes import builtin_names

    return [name for name in builtin_names() if name.startswith(incomplete)]
