"""The forms that start runs and sweeps: made of what a recipe and RunOptions declare."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from runner.core.recipe.builtin import RECIPE_FILE
from runner.core.recipe.file import list_recipes, load_recipe
from runner.core.recipe.options import OPTIONS, RunOptions, parse_value, with_options
from runner.core.recipe.recipe import Param, Recipe
from runner.core.recipe.sweep import EarlyStopFile, SweepFile
from runner.core.units import format_names
from runner.page.forms import Action, Field, FieldKind, Values, texts
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import Capacity
from runner.protocol.samplers import Method

PREFIX_SET = "set."
PREFIX_PARAM = "param."
_OPTIONS = (
    "pool", "capacity", "gpus", "nodes", "timeout", "idle_timeout", "retries", "max_cost",
    "keep_node", "experiment",
)  # fmt: skip
_SWEEP_KEYS = ("method", "trials", "repeat", "max_parallel", "metric", "goal", "early_stop")
_CHOICES: dict[str, tuple[str, ...]] = {
    "capacity": get_args(Capacity),
    "method": get_args(Method),
    "goal": ("max", "min"),
    "early_stop": get_args(EarlyStopFile.model_fields["rule"].annotation),
}
_SKIPPED = frozenset({"node_modules", "__pycache__", "site-packages", "outputs"})
_NOT_PROGRAMS = frozenset({"setup.py", "conftest.py"})
_SUFFIXES = (".py", ".ipynb", ".sh")
_DEPTH = 3
_MOST_FOLDERS = 2000
_MOST_FOUND = 200


_LABELS = {
    "gpus": "GPUs",
    "max_cost": "Cost cap in USD",
    "timeout": "Time limit",
    "idle_timeout": "Idle timeout",
}


def _label(name: str) -> str:
    return _LABELS.get(name) or name.replace("_", " ").capitalize()


def _option_field(name: str) -> Field:
    """Return the entry of an option of RunOptions."""
    option = OPTIONS[name]
    is_number = RunOptions.__dataclass_fields__[name].type == "int | None"
    kind: FieldKind = "select" if name in _CHOICES else "number" if is_number else "text"
    usual = option.unset or "as the recipe says"
    low = 0 if is_number else None
    choices = ("", *_CHOICES[name]) if name in _CHOICES else ()
    return Field(name, _label(name), kind, choices, usual, option.help, low)


def _sweep_field(name: str) -> Field:
    """Return the entry of a key of `sweep` in train.yaml."""
    declared = SweepFile.model_fields[name]
    is_number = str(declared.annotation) in ("<class 'int'>", "int | None")
    kind: FieldKind = "select" if name in _CHOICES else "number" if is_number else "text"
    choices = ("", *_CHOICES[name]) if name in _CHOICES else ()
    help_ = declared.description or ""
    return Field(name, _label(name), kind, choices, "", help_, 1 if is_number else None)


_PARAMS_LINES = Field(
    "params", "Parameters", "lines", help="One NAME=VALUE per line: the script gets --NAME VALUE."
)
_VARIED_LINES = replace(
    _PARAMS_LINES,
    help="One NAME=VALUES per line: lr=0.1,0.01 tries both, and lr={loguniform: [0.0001, 0.1]} "
    "draws from a range.",
)
_RECIPE = Field("recipe", "Recipe", required=True)
OPTION_FIELDS = tuple(map(_option_field, _OPTIONS))
SWEEP_FIELDS = tuple(map(_sweep_field, _SWEEP_KEYS))


def param_field(param: Param) -> Field:
    """Return the entry of a parameter that a recipe declares."""
    usual = "" if param.default is None else _text(param.default)
    common: dict[str, Any] = {
        "name": PREFIX_SET + param.name, "label": param.name, "help": param.help, "usual": usual,
        "low": param.min, "high": param.max,
    }  # fmt: skip
    if param.choices is not None or param.type == "bool":
        allowed = param.choices if param.choices is not None else (True, False)
        return Field(**common, kind="select", choices=("", *map(_text, allowed)))
    is_number = param.type in ("int", "float")
    return Field(**common, kind="number" if is_number else "text", is_whole=param.type == "int")


def _text(value: object) -> str:
    """Return a value as a person types it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def vary_field(param: Param) -> Field:
    """Return the entry of the values of a parameter in a sweep."""
    return Field(
        PREFIX_PARAM + param.name,
        f"Values of {param.name}",
        help="A list as 0.1,0.01, or a distribution as {loguniform: [0.0001, 0.1]}.",
        usual="does not vary",
    )


@dataclass(frozen=True, slots=True)
class TrainForm:
    """The form of a recipe: its parameters and the options, for one run or for a sweep."""

    recipe: Recipe
    params: tuple[Field, ...]
    varied: tuple[Field, ...]
    options: tuple[Field, ...]
    sweep: tuple[Field, ...]


def train_form(recipe: Recipe, *, sweep: bool, pools: Sequence[str]) -> TrainForm:
    """Return the form of a recipe. `pools` are those of the target, if it answers."""
    options = tuple(
        replace(each, kind="select", choices=("", *pools))
        if each.name == "pool" and pools
        else each
        for each in OPTION_FIELDS
    )
    return TrainForm(
        recipe,
        tuple(map(param_field, recipe.params)) or (_VARIED_LINES if sweep else _PARAMS_LINES,),
        tuple(map(vary_field, recipe.params)) if sweep else (),
        options,
        SWEEP_FIELDS if sweep else (),
    )


def load_allowed(ref: str, folder: Path) -> Recipe:
    """Return a built-in recipe, or one below a folder. Raise RunnerError for another one."""
    recipe = load_recipe(ref, cwd=folder)
    if recipe.source == "builtin" or recipe.folder.resolve().is_relative_to(folder.resolve()):
        return recipe
    raise RunnerError(
        "R-PAGE-RECIPE",
        f"{ref!r} is outside of the folder of the page",
        why=f"the page starts built-in recipes, and those below {folder}",
        fix=f"start the page in a folder above {recipe.folder}",
    )


def check_train(values: Values) -> Values:
    """Return the values of a form that starts runs. Raise RunnerError for an invalid one."""
    given = texts(values, "recipe")
    if len(given) > 1:
        raise RunnerError("R-PAGE-QUERY", "a run has one recipe", fix="send one value of recipe")
    recipe = load_allowed("".join(given), Path.cwd())
    declared = {each.name: each for each in recipe.params}
    for name in values:
        param = declared.get(name.removeprefix(PREFIX_SET))
        if name.startswith(PREFIX_SET) and param is not None:
            for text in texts(values, name):
                parse_value(param, text)
    with_options(recipe, RunOptions(**_typed(values)))
    return values


def _typed(values: Values) -> dict[str, Any]:
    """Return the options of a form by name, with their types."""
    found: dict[str, Any] = {}
    for each in OPTION_FIELDS:
        text = "".join(texts(values, each.name)[:1]).strip()
        if not text:
            continue
        if each.kind == "number":
            try:
                found[each.name] = int(text)
            except ValueError as err:
                raise RunnerError(
                    "R-FLAG-VALUE",
                    f"invalid {OPTIONS[each.name].flag} {text[:40]!r}",
                    why="expected a whole number",
                    fix=f"{OPTIONS[each.name].flag} 1",
                ) from err
        else:
            found[each.name] = text
    return found


_FLAGS = {name: OPTIONS[name].flag for name in _OPTIONS}
TRAIN = Action(
    "train",
    "Train",
    ("train", "{recipe}", "--detach"),
    options={PREFIX_SET: "--set", "params": "--set", **_FLAGS},
    fields=(_RECIPE, _PARAMS_LINES, *OPTION_FIELDS),
    page="/new",
    reads_folder=True,
    prepare=check_train,
)
SWEEP = Action(
    "sweep",
    "Start the sweep",
    ("sweep", "start", "{recipe}", "--detach"),
    options={
        PREFIX_PARAM: "--param", PREFIX_SET: "--set", "params": "--param",
        **{name: f"--{name.replace('_', '-')}" for name in _SWEEP_KEYS}, **_FLAGS,
    },
    fields=(_RECIPE, _VARIED_LINES, *SWEEP_FIELDS, *OPTION_FIELDS),
    page="/new?kind=sweep",
    reads_folder=True,
    prepare=check_train,
)  # fmt: skip


def plan_action(action: Action) -> Action:
    """Return the action that only plans: with --dry-run, which starts nothing."""
    words = tuple("--dry-run" if word == "--detach" else word for word in action.words)
    return replace(action, words=words)


@dataclass(frozen=True, slots=True)
class FoundRecipe:
    """A recipe that the page can start: how it is referred to, and what it says of itself."""

    ref: str
    description: str = ""
    toolkit: str = ""
    dataset: str = ""
    takes: str = ""
    expected: str = ""
    variants: tuple[str, ...] = ()
    is_builtin: bool = False
    problem: str = ""


def find_recipes(folder: Path) -> list[FoundRecipe]:
    """Return the recipes and scripts below a folder, then the built-in recipes."""
    own = [_found(ref, folder) for ref in _local_refs(folder)]
    builtin = [_described(recipe.name, recipe) for recipe in list_recipes()]
    return [*own, *builtin]


def _found(ref: str, folder: Path) -> FoundRecipe:
    try:
        return _described(ref, load_recipe(ref, cwd=folder))
    except RunnerError as err:
        return FoundRecipe(ref, problem=err.summary)


def _described(ref: str, recipe: Recipe) -> FoundRecipe:
    expected = format_names([f"{each.metric} {each}" for each in recipe.expect])
    return FoundRecipe(
        ref,
        recipe.description,
        recipe.toolkit or "",
        recipe.dataset or "",
        recipe.estimate or "",
        expected if recipe.expect else "",
        recipe.variants,
        recipe.source == "builtin",
    )


def _local_refs(folder: Path) -> list[str]:
    """Return `./recipe` and `./script.py` below a folder, at most _MOST_FOUND."""
    found: list[str] = []
    for count, (path, names) in enumerate(_walk(folder)):
        if count >= _MOST_FOLDERS or len(found) >= _MOST_FOUND:
            break
        inside = path.relative_to(folder)
        if RECIPE_FILE in names:
            found.append(f"./{inside.as_posix()}" if inside.parts else ".")
        else:
            found += [f"./{(inside / name).as_posix()}" for name in names if _is_program(name)]
    return found[:_MOST_FOUND]


def find_files(folder: Path, suffixes: tuple[str, ...]) -> list[str]:
    """Return `./name` of the files below a folder with these suffixes; not those of a recipe."""
    found: list[str] = []
    for count, (path, names) in enumerate(_walk(folder)):
        if count >= _MOST_FOLDERS or len(found) >= _MOST_FOUND:
            break
        inside = path.relative_to(folder)
        if RECIPE_FILE not in names or path == folder:
            chosen = (name for name in names if name.endswith(suffixes) and name[0] != ".")
            found += [f"./{(inside / name).as_posix()}" for name in chosen]
    return found[:_MOST_FOUND]


def _walk(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the folders to the depth _DEPTH with their files; not those below a recipe."""
    for root, folders, files in os.walk(folder):
        path = Path(root)
        is_deep = len(path.relative_to(folder).parts) >= _DEPTH
        folders[:] = (
            []
            if is_deep or (RECIPE_FILE in files and path != folder)
            else sorted(each for each in folders if each[0] not in "._" and each not in _SKIPPED)
        )
        yield path, sorted(files)


def _is_program(name: str) -> bool:
    is_test = name.startswith(("test_", "_", "."))
    return name.endswith(_SUFFIXES) and not is_test and name not in _NOT_PROGRAMS
