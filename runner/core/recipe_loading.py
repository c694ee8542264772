"""From what the user typed to a Recipe: a built-in name, a folder, or a single script."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from runner.core.builtin_recipes import BUILTIN_FOLDER, RECIPE_FILE, builtin_names
from runner.core.document import Document, check_document, field_error, near, read_document
from runner.core.errors import RunnerError
from runner.core.recipe import Param, ParamValue, Recipe, RecipeSource
from runner.core.recipe_file import ParamFile, RecipeFile
from runner.core.resources import NO_RESOURCES
from runner.core.spec_checkpoints import to_rule
from runner.core.spec_inputs import to_inputs
from runner.core.spec_model import to_model
from runner.core.spec_outputs import output_variable
from runner.core.spec_secrets import to_secrets

_PYTHONS = ("python", "python3")
_CODE = "R-RECIPE"
_BUILTIN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def load_recipe(ref: str, *, cwd: Path) -> Recipe:
    """Load a built-in recipe by name, or a folder or script by path; a built-in name wins."""
    if not ref.strip() or "\0" in ref:
        raise _unknown(ref)
    if _BUILTIN_NAME.fullmatch(ref) and ref in builtin_names():
        return _from_folder(BUILTIN_FOLDER / ref, "builtin")
    path = _resolved(ref, cwd)
    if path.is_dir():
        return _from_folder(path, "folder")
    if path.is_file():
        return _from_file(path)
    raise _unknown(ref)


def list_recipes() -> tuple[Recipe, ...]:
    """All built-in recipes, by name."""
    return tuple(_from_folder(BUILTIN_FOLDER / name, "builtin") for name in builtin_names())


def _resolved(ref: str, cwd: Path) -> Path:
    try:
        return (cwd / Path(ref).expanduser()).resolve()
    except (OSError, RuntimeError) as err:  # a loop of links, or an unknown ~user
        raise RunnerError(
            f"{_CODE}-PATH",
            f"cannot resolve {ref!r}",
            why=str(err),
            fix="give the path of a folder or of a script",
        ) from err


def _unknown(ref: str) -> RunnerError:
    names = builtin_names()
    if (
        any(mark in ref for mark in ("/", "\\"))
        or ref.startswith((".", "~"))
        or ref.endswith(".py")
    ):
        return RunnerError(
            f"{_CODE}-UNKNOWN",
            f"no folder or script {ref!r}",
            fix=f"pass a folder, a .py file, or a built-in recipe: {', '.join(names)}",
        )
    return RunnerError(
        f"{_CODE}-UNKNOWN",
        f"no recipe {ref!r}",
        why=f"built-in recipes are: {', '.join(names)}",
        fix=near(ref, names) or "pass one of these, or the path of a folder or script",
    )


def _from_file(path: Path) -> Recipe:
    if path.name == RECIPE_FILE:
        return _from_folder(path.parent, "folder")
    if path.suffix != ".py":
        hint = "papermill runs a notebook" if path.suffix == ".ipynb" else "runner recipe new NAME"
        raise RunnerError(
            f"{_CODE}-PATH",
            f"{path} is not a Python script",
            why=f"a recipe is a folder, a {RECIPE_FILE} or a .py file",
            fix=f"runner submit {path.name}, if it has tasks"
            if path.suffix in (".yaml", ".yml")
            else f"write a {RECIPE_FILE} with a command next to it: {hint}",
        )
    files = [path.name]
    if (path.parent / "requirements.txt").is_file():
        files.append("requirements.txt")
    return _build(
        path.parent, "script", RecipeFile.model_validate({}), script=path.name, files=tuple(files)
    )


def _from_folder(folder: Path, source: RecipeSource) -> Recipe:
    file = folder / RECIPE_FILE
    if not file.is_file():
        return _build(folder, source, RecipeFile.model_validate({}), script=_only_script(folder))
    document = read_document(file, code=_CODE)
    parsed = check_document(document, RecipeFile, code=_CODE)
    _check_requirements(document, folder, parsed)
    if missing := missing_script(parsed.command or (), folder):
        problem = f"no file {missing!r} in {folder}"
        fix = near(missing, (path.name for path in folder.glob("*.py"))) or "create it"
        raise field_error(document, ("command",), problem, code=_CODE, fix=fix)
    if parsed.image is not None and parsed.python is not None:
        problem = "an image brings its own Python: no other one can be had in it"
        fix = f"drop this key, or choose an image with Python {parsed.python}"
        raise field_error(document, ("python",), problem, code=_CODE, fix=fix)
    script = None if parsed.command else _only_script(folder)
    return _build(folder, source, parsed, script=script)


def missing_script(command: Sequence[str], folder: Path) -> str | None:
    """The script that `python SCRIPT.py` names and the folder lacks; a node would find none.

    Other commands are not looked into: a shell or a launcher may make its files itself.
    """
    if len(command) < 2 or command[0] not in _PYTHONS or not command[1].endswith(".py"):
        return None
    script = Path(command[1])  # an absolute one is of an image, or of the node
    return None if script.is_absolute() or (folder / script).is_file() else command[1]


def _check_requirements(document: Document, folder: Path, parsed: RecipeFile) -> None:
    if parsed.requirements is None:
        return
    target = (folder / parsed.requirements).resolve()
    if not target.is_relative_to(folder.resolve()):
        problem, fix = "a link that leaves the recipe folder", "copy the file into the folder"
    elif not target.is_file():
        problem, fix = f"no file {parsed.requirements!r} in {folder}", "create it, or drop the key"
    else:
        return
    raise field_error(document, ("requirements",), problem, code=_CODE, fix=fix)


def _only_script(folder: Path) -> str:
    for name in ("train.py", "main.py"):
        if (folder / name).is_file():
            return name
    scripts = sorted(path.name for path in folder.glob("*.py"))
    if len(scripts) == 1:
        return scripts[0]
    found = f"it has {', '.join(scripts[:5])}" if scripts else "it has no .py file"
    raise RunnerError(
        f"{_CODE}-COMMAND",
        f"cannot tell what to run in {folder}",
        why=f"no command in a {RECIPE_FILE}, no train.py, no main.py; {found}",
        fix=f"name the script itself, or write a {RECIPE_FILE} with a command",
    )


def _build(
    folder: Path,
    source: RecipeSource,
    parsed: RecipeFile,
    *,
    script: str | None,
    files: tuple[str, ...] | None = None,
) -> Recipe:
    requirements = parsed.requirements
    if requirements is None and (folder / "requirements.txt").is_file():
        requirements = "requirements.txt"
    return Recipe(
        name=parsed.name or _slug(script if source == "script" else folder.name),
        description=parsed.description.strip(),
        folder=folder,
        source=source,
        command=tuple(parsed.command or ("python", script or "train.py")),
        params=tuple(_param(name, param) for name, param in parsed.params.items()),
        requirements=requirements,
        python=parsed.python,
        dataset=parsed.dataset,
        outputs=(*parsed.outputs, *parsed.named_outputs.values()),
        named_outputs={output_variable(n): p for n, p in parsed.named_outputs.items()},
        metric_patterns=dict(parsed.metrics.patterns),
        primary_metric=parsed.metrics.primary,
        goal=parsed.metrics.goal,
        env=dict(parsed.env),
        timeout_s=parsed.timeout,
        retries=parsed.retries,
        checkpoints=to_rule(parsed.checkpoints),
        estimate=parsed.estimate,
        files=files,
        inputs=to_inputs(parsed.inputs, folder),
        model=to_model(parsed.model),
        secrets=to_secrets(parsed.secrets),
        resources=parsed.resources.to_resources() if parsed.resources else NO_RESOURCES,
        priority=parsed.priority,
        after=tuple(parsed.after),
        image=parsed.image,
    )


def _param(name: str, param: ParamFile) -> Param:
    return Param(
        name=name,
        type=param.type,
        default=None if param.default is None else _typed(param, param.default),
        help=param.help,
        min=param.min,
        max=param.max,
        choices=tuple(_typed(param, choice) for choice in param.choices) if param.choices else None,
    )


def _typed(param: ParamFile, value: ParamValue) -> ParamValue:
    """`default: 1` of a float parameter is 1.0."""
    return float(value) if param.type == "float" and isinstance(value, int) else value


def _slug(name: str | None) -> str:
    """A recipe name from a folder or file name."""
    plain = unicodedata.normalize("NFKD", Path(name or "").stem).encode("ascii", "ignore").decode()
    cleaned = re.sub(r"[^A-Za-z0-9_-]+", "-", plain).strip("-_")
    return cleaned[:40].strip("-_") or "recipe"
