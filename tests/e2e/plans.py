"""Plan submissions as the commands do."""

from __future__ import annotations

from pathlib import Path

from runner.azure.auth.credentials import Connection
from runner.core.progress import ignore_progress
from runner.core.recipe.options import RunOptions
from runner.core.recipe.recipe import Recipe
from runner.core.recipe.submit_file import load_submit_file
from runner.core.settings import Settings
from runner.flows.submit.check_and_read import CheckedRun, check_run
from runner.flows.submit.group import CheckedFile, check_file
from runner.flows.submit.pipeline import (
    Services,
    SubmissionPlan,
    dry_run_services,
    plan_submission,
)

NO_OPTIONS = RunOptions()


def plan_recipe(
    connection: Connection, settings: Settings, recipe: Recipe, options: RunOptions = NO_OPTIONS
) -> SubmissionPlan:
    """Return the plan of `runner train`."""
    return _plan(check_run(recipe, options), connection, settings)


def plan_file(connection: Connection, settings: Settings, path: Path) -> SubmissionPlan:
    """Return the plan of `runner submit`."""
    return _plan(check_file(load_submit_file(path)[0], path, RunOptions()), connection, settings)


def preview_recipe(
    settings: Settings, recipe: Recipe, options: RunOptions = NO_OPTIONS
) -> SubmissionPlan:
    """Return the plan of `runner train --dry-run`."""
    return plan_submission(check_run(recipe, options), dry_run_services(settings), ignore_progress)


def preview_file(settings: Settings, path: Path) -> SubmissionPlan:
    """Return the plan of `runner submit --dry-run`."""
    checked = check_file(load_submit_file(path)[0], path, RunOptions())
    return plan_submission(checked, dry_run_services(settings), ignore_progress)


def _plan(
    submission: CheckedRun | CheckedFile, connection: Connection, settings: Settings
) -> SubmissionPlan:
    services = Services(settings, connection.outputs, connection)
    return plan_submission(submission, services, ignore_progress)
