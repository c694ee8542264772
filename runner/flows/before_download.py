"""What would refuse a submission after its data sets were downloaded refuses it before."""

from __future__ import annotations

from pathlib import Path

from runner.core.inputs import override_inputs
from runner.core.recipe import Recipe
from runner.core.settings import Settings
from runner.core.submit_file import SubmitFile
from runner.flows.datasets import is_cached
from runner.flows.dry_run import plan_submit, plan_train
from runner.flows.group_plan import GroupRequest, load_tasks, task_options
from runner.flows.prepare import TrainOptions


def check_before_download(recipe: Recipe, settings: Settings, options: TrainOptions) -> None:
    """Where data is still to be downloaded, plan and look up first. Raises RunnerError."""
    if _downloads(recipe, options, settings.home):
        plan_train(recipe, settings, options)


def check_file_before_download(
    file: SubmitFile, path: Path, settings: Settings, request: GroupRequest
) -> None:
    """The same for a file of tasks."""
    recipes = load_tasks(file, path.parent)
    asked = {name: task_options(file.tasks[name], path.parent, (), "") for name in recipes}
    if any(_downloads(recipe, asked[name], settings.home) for name, recipe in recipes.items()):
        plan_submit(file, path, settings, request)


def _downloads(recipe: Recipe, options: TrainOptions, home: Path) -> bool:
    inputs = override_inputs(recipe.inputs, options.inputs, Path.cwd())
    names = {spec.source for spec in inputs if spec.kind == "dataset"}
    if recipe.dataset is not None and options.data is None:
        names.add(recipe.dataset)
    return not all(is_cached(name, home) for name in names)
