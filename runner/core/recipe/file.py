"""The keys of `train.yaml`, and how a built-in recipe, folder or script is loaded as a Recipe."""

from __future__ import annotations

import math
import os
import re
import shlex
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PrivateAttr,
    WrapValidator,
    model_validator,
)

from runner.core.packages.sources import NO_PACKAGES, PackageSource, find_packages
from runner.core.pricing.cost import to_micros
from runner.core.recipe import keys
from runner.core.recipe.builtin import BUILTIN_FOLDER, RECIPE_FILE, TEMPLATE, builtin_names
from runner.core.recipe.entry import (
    correct_program,
    detect_params_as,
    explain_entry,
    explain_syntax,
    folder_command,
    has_entry,
    script_command,
)
from runner.core.recipe.local_code import SOURCES, LocalCode
from runner.core.recipe.notebook import (
    PACKAGES,
    SUFFIX,
    executed_name,
    merge_params,
)
from runner.core.recipe.recipe import (
    Param,
    ParamValue,
    Recipe,
    RecipeSource,
)
from runner.core.recipe.shell_text import refuse_unreadable_scripts
from runner.core.recipe.sweep import SweepFile
from runner.core.recipe.switches import find_switches
from runner.core.yaml_files import (
    Amount,
    Document,
    StrictModel,
    TextField,
    check_document,
    did_you_mean,
    field_error,
    format_value,
    read_document,
    without_text,
)
from runner.protocol.commands import (
    ParamsAs,
    WrittenFloat,
    WrittenInt,
    find_notebook,
    to_text,
)
from runner.protocol.errors import RunnerError
from runner.protocol.launchers import LAUNCHERS, Launcher
from runner.protocol.run_spec import (
    FALLBACK_AFTER_S,
    FALLBACK_EVICTIONS,
    NO_RESOURCES,
    WORKSPACE,
)
from runner.protocol.task import KEPT_NODE


def _keep_text(value: object, check: Callable[[object], object]) -> object:
    """Check a value; a number keeps its text, which pydantic would drop."""
    checked = check(value)
    return value if isinstance(value, WrittenFloat | WrittenInt) else checked


Scalar = Annotated[bool | int | float | str, WrapValidator(_keep_text)]


_PYTHON_VERSION = re.compile(r"3\.\d{1,2}(\.\d{1,2})?")
_MEANT_FILES = ("train.yml", "Train.yaml", "Train.yml", "train.yaml.txt")


def relative_path(value: str) -> str:
    """Return the path in POSIX form. Raise an error if it leaves its folder."""
    path = PurePosixPath(value)
    if not value.strip() or path.is_absolute() or ".." in path.parts or "\\" in value:
        raise keys.key_error(
            f"{value!r} leaves the folder", "use a path relative to the folder, without '..'"
        )
    if any(ord(char) < 32 for char in value):
        raise keys.key_error(f"{value!r} has a control character", "rename it")
    return str(path)


def _check_python_version(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        text = str(value)
        if not _PYTHON_VERSION.fullmatch(text):
            return text  # the pattern refuses it
        raise keys.key_error(f"YAML reads {text} as a number", f'quote it: python: "{text}"')
    if isinstance(value, str) and not _PYTHON_VERSION.fullmatch(value):
        found = re.search(r"3\.\d+(\.\d+)?", value)
        if found:
            raise keys.key_error(
                f"{value!r} is not a Python version",
                f'write it like python: "{found[0]}"',
                "it has two or three numbers, and nothing else",
            )
    return value


def _refuse_packages(value: object) -> object:
    if isinstance(value, list):
        raise keys.key_error(
            "it is a list of packages",
            "use the key `packages` for the list",
            "the key names a file with packages",
        )
    return value


def _check_pattern(value: str) -> str:
    try:
        compiled = re.compile(value)
    except re.error as err:
        problem = f"{value!r} is not a regular expression: {err}"
        fix = "escape literal ( [ * + ? . | with \\"
        raise keys.key_error(problem, fix) from err
    if compiled.groups != 1 and "value" not in compiled.groupindex:
        raise keys.key_error(
            f"{value!r} has {compiled.groups} groups, expected one",
            "put ( ) around the number only, or name its group: (?P<value>...)",
        )
    return value


def _expand_param(value: object) -> object:
    """`epochs: 5` is short for `epochs: {default: 5}`; the type follows the default."""
    if not isinstance(value, bool | int | float | str | dict):
        problem = f"{format_value(value)} cannot be the value of a parameter"
        fix = "write a default value, or {type: int} for a parameter without one"
        if value is None:
            problem = "the parameter has no value"
        elif isinstance(value, date):
            fix = f"put it in quotes: '{format_value(value)}'"
        raise keys.key_error(problem, fix)
    raw = cast("dict[str, Any]", value if isinstance(value, dict) else {"default": value})
    default: object = raw.get("default")
    kinds = (kind for kind in (bool, int, float, str) if isinstance(default, kind))
    if "type" not in raw and (kind := next(kinds, None)) is not None:
        return {**raw, "type": kind.__name__}
    return raw


def _read_param(value: object, check: Callable[[object], ParamFile]) -> ParamFile:
    """Return a declared parameter; remember whether it has its type from the default."""
    value = without_text(value)
    expanded = _expand_param(value)
    parsed = check(expanded)
    return parsed.with_inferred_type() if expanded is not value else parsed


Duration = Annotated[int, Amount("duration", "1s", "7d")]
StallTime = Annotated[int, Amount("duration", "5s", "7d")]
KeepTime = Annotated[int, Amount("duration", *KEPT_NODE)]
RelativePath = Annotated[str, AfterValidator(relative_path)]
Identifier = Annotated[
    str,
    TextField(
        r"^[A-Za-z_][A-Za-z0-9_.-]{0,63}$",
        "the name of a parameter",
        "up to 64 letters, digits, _, . and -, and begins with a letter or _",
        "learning_rate",
    ),
]
RecipeName = Annotated[
    str,
    TextField(
        r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$",
        "a name",
        "up to 40 letters, digits, _ and -, and begins with a letter or digit",
        "cats-v2",
    ),
]
VariantName = Annotated[
    str,
    TextField(
        r"^[a-z0-9][a-z0-9_-]{0,39}$",
        "the name of a variant",
        "up to 40 lower-case letters, digits, _ and -, and begins with a letter or digit",
        "small",
    ),
]
_DatasetName = Annotated[
    str,
    TextField(
        r"^[a-z0-9][a-z0-9_-]{0,62}$",
        "the name of a data set",
        "up to 63 lower-case letters, digits, _ and -, and begins with a letter or digit",
        "mnist",
    ),
]
_Python = Annotated[
    str,
    TextField(
        f"^{_PYTHON_VERSION.pattern}$",
        "a Python version",
        "two or three numbers, of which the first is 3",
        'python: "3.11"',
    ),
]


_TYPE_FIXES = {
    "bool": "write true or false, without quotes",
    "int": "write a whole number, or `type: float`",
    "float": "write a number, like 0.5, or `type: str`",
    "str": "",  # says how the value is written
}


class ParamFile(StrictModel):
    """One declared parameter."""

    type: Literal["int", "float", "str", "bool"]
    default: Scalar | None = None
    help: str = ""
    min: float | None = None
    max: float | None = None
    choices: list[Scalar] | None = Field(default=None, min_length=1)

    _is_inferred: bool = PrivateAttr(default=False)

    @property
    def is_inferred(self) -> bool:
        """True if the type is that of the default."""
        return self._is_inferred

    def with_inferred_type(self) -> ParamFile:
        """Return the parameter with a type that the file does not declare."""
        copy = self.model_copy()
        copy._is_inferred = True
        return copy

    @model_validator(mode="after")
    def _consistent(self) -> ParamFile:
        if self.type in {"str", "bool"} and (self.min is not None or self.max is not None):
            raise keys.key_error(
                f"min and max do not apply to a {self.type}", "remove them, or use choices"
            )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise keys.key_error(f"min {self.min:.15g} is above max {self.max:.15g}", "swap them")
        for value in [*(self.choices or []), *([] if self.default is None else [self.default])]:
            _check_value(self, value)
        return self


def _check_value(param: ParamFile, value: Scalar) -> None:
    fits = {
        "bool": isinstance(value, bool),
        "int": isinstance(value, int) and not isinstance(value, bool),
        "float": isinstance(value, int | float) and not isinstance(value, bool),
        "str": isinstance(value, str),
    }
    if not fits[param.type]:
        fix = _TYPE_FIXES[param.type]
        if param.type == "str":
            fix = f'put it in quotes: "{to_text(value)}", or remove `type`'
        raise keys.key_error(f"{value!r} is not of type {param.type}", fix)
    if isinstance(value, float) and not math.isfinite(value):
        raise keys.key_error(f"{value!r} is not a finite number", "write a finite number, like 0.5")
    if param.choices is not None and value not in param.choices:
        problem = f"{value!r} is not one of the choices {param.choices}"
        raise keys.key_error(problem, f"use one of them, or add {value!r} to `choices`")
    if isinstance(value, str | bool):
        return
    if param.min is not None and value < param.min:
        raise keys.key_error(
            f"{value!r} is below min {param.min:.15g}", "use a larger value, or lower `min`"
        )
    if param.max is not None and value > param.max:
        raise keys.key_error(
            f"{value!r} is above max {param.max:.15g}", "use a smaller value, or raise `max`"
        )


class MetricsSection(StrictModel):
    """The metrics: patterns are regular expressions over standard output with one group."""

    primary: str | None = None
    goal: Literal["max", "min"] = "max"
    patterns: dict[str, Annotated[str, AfterValidator(_check_pattern)]] = Field(
        default_factory=dict
    )


class RecipeFile(StrictModel, title="train.yaml of runner"):
    """A recipe: command, parameters, resources and outputs."""

    name: RecipeName | None = Field(None, description="Defaults to the name of the folder.")
    description: str = ""
    command: keys.Command | None = Field(
        None,
        description="Words or a list; no shell. $NAME stands for the value of a variable. Defaults "
        "to the entry, with its interpreter.",
    )
    entry: RelativePath | None = Field(
        None,
        description="The script, or a module of a package. Defaults to train.py, main.py or the "
        "only .py.",
    )
    requirements: Annotated[RelativePath | None, BeforeValidator(_refuse_packages)] = Field(
        None,
        description="A requirements file in the folder. Defaults to requirements.txt, the "
        "metadata of the script, or the dependencies of pyproject.toml.",
    )
    packages: list[keys.Package] = Field(
        default_factory=list,
        description="Packages to install, unless the requirements list them: [numpy, torch>=2.4].",
    )
    python: Annotated[_Python | None, BeforeValidator(_check_python_version)] = Field(
        None, description='A Python version in quotes, like "3.11".'
    )
    dataset: _DatasetName | None = None
    inputs: keys.Inputs = Field(
        default_factory=dict,
        description="Inputs of the script, at $RUNNER_INPUT_<NAME>: a path, a URL, blob:, run: ...",
    )
    image: keys.ImageName | None = Field(
        None,
        description="A container image for the run; requires a pool that runs containers.",
    )
    secrets: keys.Secrets = Field(
        default_factory=dict,
        description="Variables with secret values: {env: NAME} of this machine or {keyvault: URL}.",
    )
    notify: keys.Notify = Field(
        None,
        description="A webhook that the node tells of success, failure, evictions and a near cap: "
        "{url: {env: SLACK_WEBHOOK}}.",
    )
    params: dict[
        Identifier,
        Annotated[ParamFile, WrapValidator(_read_param, json_schema_input_type=Scalar | ParamFile)],
    ] = Field(default_factory=dict)
    outputs: list[RelativePath] = Field(
        default_factory=list,
        description="Globs below $RUNNER_OUTPUT_DIR or the folder of the script, each of which "
        "must match a file that the script wrote.",
    )
    named_outputs: Annotated[dict[keys.OutputName, RelativePath], keys.check_named_outputs] = Field(
        default_factory=dict,
        description="Folders below $RUNNER_OUTPUT_DIR, each at $RUNNER_OUTPUT_<NAME>; a run that "
        "leaves one empty fails.",
    )
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    expect: keys.Expect = Field(
        default_factory=dict,
        description="Ranges of the last values of metrics: [0.97, 1], or {min: 0.97, outside: "
        "fail}. A run outside of one warns, or fails.",
    )
    model: keys.Model | None = Field(
        None, description="Each successful run is registered as a version of this model."
    )
    env: keys.EnvFile = Field(default_factory=dict)
    launcher: Launcher = Field(
        "python",
        description="What starts the command: python runs it once on each node, torchrun and mpi "
        "start a process for each GPU; the others set what their framework reads.",
    )
    processes_per_node: int | None = Field(
        None,
        ge=1,
        le=256,
        description="For torchrun, mpi, horovod, chainermn and cntk; default: the number of GPUs, "
        "or 1.",
    )
    hang_timeout: StallTime | None = Field(
        None,
        description="If no node writes a log line, a metric or a checkpoint for this long, dump "
        "the stacks of all processes and fail the attempt: 30m, 2h.",
    )
    idle_timeout: StallTime | None = Field(
        None,
        description="If the GPUs of all nodes, or their CPUs where there are none, are idle for "
        "this long while the script runs, fail the run: 30m, 2h.",
    )
    keep_node: KeepTime | None = Field(
        None,
        description="Keep the node of a run that failed for this long, for `runner ssh`: 30m, 2h; "
        "at most a day.",
    )
    prepare: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="Shell commands that run once on each node of a job, before the first script "
        "there, or before every script if they leave files in the task's own folders, or with "
        "`image`; a run fails if one of them does.",
    )
    timeout: Duration | None = Field(
        None,
        description="For `prepare` and the command: 90m, 2h, 1d or seconds; at most 7 days.",
    )
    retries: keys.Retries = 0
    checkpoints: keys.Checkpoints = Field(
        default_factory=keys.CheckpointsFile,
        description="How $RUNNER_CHECKPOINT_DIR is kept in blob; false switches it off.",
    )
    keep: keys.Keep = Field(
        default_factory=keys.KeepFile,
        description="What else the script writes and is kept; false keeps $RUNNER_OUTPUT_DIR only.",
    )
    max_cost: float | None = Field(
        None,
        gt=0,
        le=1_000_000,
        strict=False,
        description="Cap of the costs of its nodes in US dollars; its job ends before they exceed "
        "it.",
    )
    estimate: str | None = Field(None, description="Expected duration, shown before the start.")
    toolkit: str | None = Field(
        None, description="The framework of the script, shown in lists of recipes."
    )
    variants: dict[VariantName, dict[str, Any]] = Field(
        default_factory=dict,
        description="Named changes of these keys: `runner train RECIPE:VARIANT`.",
    )
    resources: keys.ResourcesFile | None = None
    pools: keys.Pools = Field(
        default_factory=list,
        description="Pools that a run may use, in order: it starts in the first that can start it, "
        "and moves to the next one if it waits or is evicted too often.",
    )
    gpu: keys.GpuModels = Field(
        default_factory=list,
        description="GPU models instead of `pools`, in order: the pools of each are used from the "
        "cheapest on, [T4, A10].",
    )
    fallback_after: Annotated[int, Amount("duration", "1m", "7d")] = Field(
        FALLBACK_AFTER_S, description="Time that a run waits in one of `pools`: 20m, 1h."
    )
    fallback_evictions: int = Field(
        FALLBACK_EVICTIONS,
        ge=1,
        le=100,
        description="Number of evictions within an hour after which a run leaves one of `pools`.",
    )
    priority: keys.Priority = Field(
        0, description="-1000 to 1000; tasks with a higher priority start first."
    )
    after: list[keys.RunReference] = Field(
        default_factory=list, description="Runs that must have succeeded before this one starts."
    )
    params_as: ParamsAs | None = Field(
        None,
        description="How the script gets parameters: flags (--name value), key=value, or hydra "
        "(key=value in Hydra's grammar, the default if the script uses Hydra or OmegaConf).",
    )
    sweep: SweepFile | None = Field(
        None, description="The trials of a sweep; a single run ignores it."
    )

    @model_validator(mode="after")
    def _check_pools(self) -> RecipeFile:
        if self.pools and self.gpu:
            raise keys.key_error("`pools` and `gpu` exclude each other", "remove one of the two")
        return self

    @model_validator(mode="after")
    def _check_launcher(self) -> RecipeFile:
        if (self.processes_per_node or 1) > 1 and LAUNCHERS[self.launcher].start == "command":
            raise keys.key_error(
                f"`processes_per_node: {self.processes_per_node}` has no effect with the launcher "
                f"{self.launcher}, which starts one process on each node",
                "add launcher: torchrun, or launcher: mpi",
            )
        return self


_PYTHONS = ("python", "python3")
_CODE = "R-RECIPE"
_BUILTIN_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
_VARIANT_REFERENCE = re.compile(r"(.+?)((?::[a-z0-9][a-z0-9_-]*)+)", re.DOTALL)


def load_recipe(ref: str, *, cwd: Path, entry: str | None = None) -> Recipe:
    """Load a built-in recipe by name, or a folder or a single script by path relative to `cwd`.

    Args:
        ref: name or path, with variants after colons: `mnist:torch`; a built-in name wins.
        cwd: base of a relative path.
        entry: script of the folder to use instead of the one in train.yaml or with a usual name.

    Raises:
        RunnerError: the recipe is missing or invalid; `NEEDS_FOLDER` if a script needs its folder.
    """
    if not ref.strip() or "\0" in ref:
        raise _unknown(ref)
    name, variants = _split_variants(ref, cwd)
    own = BUILTIN_FOLDER / name
    if _BUILTIN_NAME.fullmatch(name) and name != TEMPLATE and (own / RECIPE_FILE).is_file():
        return _from_folder(own, "builtin", entry, variants=variants)
    path = _resolve(name, cwd)
    if path.is_file() and path.name == RECIPE_FILE:
        path = path.parent
    if path.is_dir():
        return _from_folder(path, "folder", entry, variants=variants)
    if path.is_file():
        if variants:
            raise _no_variant(name, variants[0], ())
        return _from_file(path, entry)
    raise _unknown(name)


def _split_variants(ref: str, cwd: Path) -> tuple[str, tuple[str, ...]]:
    """Return the name or path, and the variants after it, of `mnist:torch:small`."""
    found = _VARIANT_REFERENCE.fullmatch(ref)
    if found is None or _resolve(ref, cwd).exists():
        return ref, ()
    return found[1], tuple(found[2].split(":")[1:])


def load_workspace(ref: str, *, cwd: Path, command: tuple[str, ...]) -> Recipe:
    """Load a folder for a command, with environment and data of its train.yaml, if any.

    Raises:
        RunnerError: the folder does not exist, or train.yaml is invalid.
    """
    folder = _resolve(ref, cwd)
    if not folder.is_dir():
        raise RunnerError(
            f"{_CODE}-UNKNOWN",
            f"no folder {ref!r}",
            fix="use an existing folder, or . for the current one",
        )
    return replace(
        _from_folder(folder, "folder", command=command),
        name=WORKSPACE, params=(), outputs=(), named_outputs={}, model=None, after=(), retries=0,
        sweep=None,
    )  # fmt: skip


def list_recipes() -> tuple[Recipe, ...]:
    """Return all built-in recipes, by name."""
    return tuple(_from_folder(BUILTIN_FOLDER / name, "builtin") for name in builtin_names())


def _apply_variants(document: Document, names: Sequence[str]) -> tuple[Document, RecipeFile]:
    """Return the document with the keys of these variants, applied in order."""
    parsed = check_document(document, RecipeFile, code=_CODE)
    for name in names:
        if name not in parsed.variants:
            raise _no_variant(str(document.path.parent), name, tuple(parsed.variants))
        changes = parsed.variants[name]
        for key in ("name", "variants"):
            if key in changes:
                problem, fix = "a variant cannot change this key", "remove the key"
                raise field_error(document, ("variants", name, key), problem, code=_CODE, fix=fix)
        tree = document.find_tree
        merged = _merge(document.data, changes)
        # The recipe is valid without the variant, so any problem is in the lines of the variant.
        document = Document(document.path, merged, lambda t=tree, n=name: t()["variants"][n])
        parsed = check_document(document, RecipeFile, code=_CODE)
        document = Document(document.path, merged, tree)
    return document, parsed


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any], *, params: bool = False) -> Any:
    """Return `base` with the changes: mappings are merged, and parameters get a new default."""
    result = dict(base)
    for key, value in changes.items():
        old: Any = base.get(key)
        if isinstance(old, dict) and isinstance(value, dict):
            known = cast("dict[str, Any]", value)
            result[key] = _merge(cast("dict[str, Any]", old), known, params=key == "params")
        elif params and isinstance(old, dict):
            result[key] = {**cast("dict[str, Any]", old), "default": value}
        else:
            result[key] = value
    return result


def _no_variant(name: str, variant: str, known: Sequence[str]) -> RunnerError:
    return RunnerError(
        f"{_CODE}-VARIANT",
        f"{name} has no variant {variant!r}",
        why=f"its variants are: {', '.join(known)}" if known else "the recipe has no variants",
        fix=did_you_mean(variant, known)
        or (f"use {known[0]!r}, or no variant" if known else "remove the ':'"),
    )


def _resolve(ref: str, cwd: Path) -> Path:
    try:
        path = (cwd / Path(ref).expanduser()).resolve()
        path.exists()  # fails for a name that is too long
        return path
    except (OSError, RuntimeError, UnicodeError) as err:  # a loop of links, an unknown ~user
        raise RunnerError(
            f"{_CODE}-PATH",
            f"cannot resolve {ref!r}",
            why=str(err),
            fix="use the path of an existing folder or script",
        ) from err


def _unknown(ref: str) -> RunnerError:
    names = builtin_names()
    if (
        any(mark in ref for mark in ("/", "\\"))
        or ref.startswith((".", "~"))
        or ref.endswith((".py", SUFFIX))
    ):
        return RunnerError(
            f"{_CODE}-UNKNOWN",
            f"no folder or script {ref!r}",
            fix=f"use an existing folder or script, or a built-in recipe: {', '.join(names)}",
        )
    return RunnerError(
        f"{_CODE}-UNKNOWN",
        f"unknown recipe {ref!r}",
        why=f"built-in recipes: {', '.join(names)}",
        fix=did_you_mean(ref, names) or "use one of these, or the path of a folder or script",
    )


def _from_file(path: Path, entry: str | None) -> Recipe:
    if entry is not None:
        raise RunnerError(
            "R-RECIPE-ENTRY",
            f"unexpected --entry {entry}: {path.name} is a script, not a folder",
            fix=f"runner train {shlex.quote(str(path.parent))} --entry {shlex.quote(entry)}",
        )
    command = script_command(path)
    packages = find_packages(path.parent, command)
    if packages.listed.folders:
        raise _installs_folder(path, packages)
    files = tuple(dict.fromkeys((path.name, *packages.files)))
    parsed = RecipeFile.model_validate({})
    return _build(path.parent, "script", parsed, command=command, files=files, packages=packages)


def _installs_folder(script: Path, packages: PackageSource) -> RunnerError:
    """Return the error for a script that is sent without a folder that its packages need."""
    folder = packages.listed.folders[0]
    what = "its own folder" if folder == "." else f"the folder {folder}"
    return RunnerError(
        "R-RECIPE-ALONE",
        f"{packages.origin} of {script.name} installs {what}, which would not be uploaded",
        why="only the script and the files that list its packages are uploaded",
        fix=f"runner train {shlex.quote(str(script.parent))} --entry {shlex.quote(script.name)}",
    )


def _from_folder(
    folder: Path,
    source: RecipeSource,
    entry: str | None = None,
    command: tuple[str, ...] | None = None,
    variants: tuple[str, ...] = (),
) -> Recipe:
    file = folder / RECIPE_FILE
    chosen = command if entry is None else folder_command(folder, entry)
    if not file.is_file():
        if variants:
            raise _no_variant(folder.name, variants[0], ())
        command = chosen or folder_command(folder)
        return _build(
            folder, source, RecipeFile.model_validate({}), command=command, is_chosen=not chosen
        )
    document = read_document(file, code=_CODE)
    document, parsed = _apply_variants(document, variants)
    _check_files(document, folder, parsed)
    if source != "builtin":
        _check_program(document, folder, parsed.command or ())
    command = chosen or tuple(parsed.command or ()) or folder_command(folder, parsed.entry)
    is_chosen = not (chosen or parsed.command or parsed.entry)
    return _build(folder, source, parsed, command=command, is_chosen=is_chosen)


def _check_files(document: Document, folder: Path, parsed: RecipeFile) -> None:
    """Check that the files of a train.yaml exist, and that its keys agree. Raise RunnerError."""
    _check_requirements(document, folder, parsed)
    if parsed.entry is not None and parsed.command is not None:
        problem = "`entry` and `command` exclude each other"
        raise field_error(document, ("entry",), problem, code=_CODE, fix="remove one of the two")
    if parsed.entry is not None and not has_entry(folder, parsed.entry):
        problem = f"no file {parsed.entry!r} in {folder}"
        fix = did_you_mean(parsed.entry, (path.name for path in folder.glob("*.py"))) or "create it"
        raise field_error(document, ("entry",), problem, code=_CODE, fix=fix)
    if missing := missing_script(parsed.command or (), folder):
        problem = f"no file {missing!r} in {folder}"
        fix = did_you_mean(missing, (path.name for path in folder.glob("*.py"))) or "create it"
        raise field_error(document, ("command",), problem, code=_CODE, fix=fix)
    if parsed.image is not None and parsed.python is not None:
        problem = "`python` cannot be combined with `image`, which contains its own Python"
        fix = f"remove `python`, or use an image with Python {parsed.python}"
        raise field_error(document, ("python",), problem, code=_CODE, fix=fix)


def _check_program(document: Document, folder: Path, command: Sequence[str]) -> None:
    """Check that the program of a command is one that the node can start. Raise RunnerError."""
    if command and (fix := correct_program(folder, command)):
        problem = f"{command[0]} is not a program that the node can start"
        why = "it has no permission to be executed, or no #! line that names its interpreter"
        raise field_error(document, ("command",), problem, code=_CODE, why=why, fix=fix)


def missing_script(command: Sequence[str], folder: Path) -> str | None:
    """Return the script that `python SCRIPT.py` names if the folder lacks it, else None.

    Other commands are not checked: a shell or a launcher may create its files itself.
    """
    if len(command) < 2 or command[0] not in _PYTHONS or not command[1].endswith(".py"):
        return None
    script = Path(command[1])  # an absolute path is in an image or on the node
    is_here = os.path.isfile(folder / script)  # noqa: PTH113  a name may be too long
    return None if script.is_absolute() or is_here else command[1]


def _check_requirements(document: Document, folder: Path, parsed: RecipeFile) -> None:
    if parsed.requirements is None:
        return
    target = (folder / parsed.requirements).resolve()
    if not target.is_relative_to(folder.resolve()):
        problem, fix = "the link leaves the recipe folder", "copy the file into the folder"
    elif not target.is_file():
        problem, fix = (
            f"no file {parsed.requirements!r} in {folder}",
            "create it, or remove the key",
        )
    else:
        return
    raise field_error(document, ("requirements",), problem, code=_CODE, fix=fix)


def _build(
    folder: Path,
    source: RecipeSource,
    parsed: RecipeFile,
    *,
    command: tuple[str, ...],
    files: tuple[str, ...] | None = None,
    is_chosen: bool = False,
    packages: PackageSource | None = None,
) -> Recipe:
    params = tuple(_to_param(name, param) for name, param in parsed.params.items())
    notebook = find_notebook(command)
    if notebook is not None:
        params = merge_params(folder / notebook, params)
    params_as, switches, notes, env = parsed.params_as or "flags", {}, (), dict(parsed.env)
    if source != "builtin":
        code = LocalCode.of_command(folder, command)
        params_as = parsed.params_as or detect_params_as(code)
        switches = _find_switches(code, params_as)
        notes = (
            *_misnamed(folder),
            *explain_syntax(folder, command),
            *explain_entry(code, command, is_chosen=is_chosen),
        )
        if "PYTHONPATH" not in env and code.needs_sources:
            env["PYTHONPATH"] = SOURCES
        refuse_unreadable_scripts(folder, command, parsed.prepare)
    if packages is None:
        packages = _packages_of(folder, source, parsed, command)
    return Recipe(
        name=parsed.name or _slug(files[0] if files else folder.name),
        description=parsed.description.strip(),
        folder=folder,
        source=source,
        command=command,
        params=params,
        requirements_file=packages.file,
        package_source=packages,
        packages=(*(() if notebook is None else PACKAGES), *parsed.packages),
        live_outputs=() if notebook is None else (executed_name(notebook),),
        python=packages.python,
        python_from=packages.python_from,
        dataset=parsed.dataset,
        outputs=(*parsed.outputs, *parsed.named_outputs.values()),
        named_outputs={keys.output_variable(n): p for n, p in parsed.named_outputs.items()},
        metric_patterns=dict(parsed.metrics.patterns),
        primary_metric=parsed.metrics.primary,
        goal=parsed.metrics.goal,
        expect=keys.to_expected(parsed.expect),
        env=env,
        timeout_s=parsed.timeout,
        retries=parsed.retries,
        checkpoints=keys.to_rule(parsed.checkpoints),
        keep=keys.to_keep_rule(parsed.keep),
        estimate=parsed.estimate,
        files=files,
        inputs=keys.to_inputs(parsed.inputs, folder),
        model=keys.to_model(parsed.model),
        secrets=keys.to_secrets(parsed.secrets),
        notify=keys.to_notify(parsed.notify),
        resources=parsed.resources.to_resources() if parsed.resources else NO_RESOURCES,
        priority=parsed.priority,
        after=tuple(parsed.after),
        image=parsed.image,
        prepare=parsed.prepare,
        max_cost_micros=None if parsed.max_cost is None else to_micros(parsed.max_cost),
        launcher=parsed.launcher,
        processes_per_node=parsed.processes_per_node,
        hang_timeout_s=parsed.hang_timeout,
        idle_timeout_s=parsed.idle_timeout,
        keep_node_s=parsed.keep_node,
        params_as=params_as,
        switches=switches,
        sweep=parsed.sweep,
        toolkit=parsed.toolkit,
        variants=tuple(parsed.variants),
        notes=notes,
        pools=tuple(parsed.pools),
        gpu=tuple(parsed.gpu),
        fallback_after_s=parsed.fallback_after,
        fallback_evictions=parsed.fallback_evictions,
    )


def _packages_of(
    folder: Path, source: RecipeSource, parsed: RecipeFile, command: Sequence[str]
) -> PackageSource:
    """Return the packages of a recipe; those of a built-in one are in the file that it names."""
    if source == "builtin":
        return PackageSource(parsed.requirements, parsed.requirements, parsed.python)
    return find_packages(
        folder,
        command,
        parsed.requirements,
        python=parsed.python,
        is_in_image=parsed.image is not None,
        prepares=parsed.prepare is not None,
    )


def _misnamed(folder: Path) -> tuple[str, ...]:
    """Return a warning about a file that was probably meant as train.yaml, if there is none."""
    if (folder / RECIPE_FILE).is_file():
        return ()
    return tuple(
        f"{name} is not read, because a recipe is in {RECIPE_FILE}; if it is one: "
        f"mv {shlex.quote(str(folder / name))} {shlex.quote(str(folder / RECIPE_FILE))}"
        for name in _MEANT_FILES
        if (folder / name).is_file()
    )


def _find_switches(code: LocalCode, params_as: ParamsAs) -> dict[str, tuple[str, ...]]:
    """Return the flags of a script that takes flags; those of a notebook are no options."""
    is_script = code.script is not None and code.script.suffix == ".py"
    return find_switches(code) if is_script and params_as == "flags" else {}


def command_recipe(
    name: str,
    folder: Path,
    command: tuple[str, ...],
    params: tuple[Param, ...],
    requirements: str | None,
) -> Recipe:
    """Return the recipe of a command in a folder, without train.yaml."""
    refuse_unreadable_scripts(folder, command, None)
    code = LocalCode.of_command(folder, command)
    params_as = detect_params_as(code)
    packages = find_packages(folder, command, requirements) if requirements else NO_PACKAGES
    return Recipe(
        name=name,
        description="",
        folder=folder,
        source="folder",
        command=command,
        params=params,
        requirements_file=packages.file,
        package_source=packages,
        python=packages.python,
        python_from=packages.python_from,
        params_as=params_as,
        switches=_find_switches(code, params_as),
    )


def _to_param(name: str, param: ParamFile) -> Param:
    return Param(
        name=name,
        type=param.type,
        default=None if param.default is None else _convert(param, param.default),
        help=param.help,
        min=param.min,
        max=param.max,
        choices=tuple(_convert(param, choice) for choice in param.choices)
        if param.choices
        else None,
        is_inferred=param.is_inferred,
    )


def _convert(param: ParamFile, value: ParamValue) -> ParamValue:
    """Return the value in the type of the parameter: 1 becomes 1.0 for a float.

    A number keeps its text if the recipe declares no type.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or param.is_inferred:
        return value
    return float(value) if param.type == "float" else int(value)


def _slug(name: str) -> str:
    """Return a recipe name for a folder or file name."""
    plain = unicodedata.normalize("NFKD", Path(name).stem).encode("ascii", "ignore").decode()
    cleaned = re.sub(r"[^A-Za-z0-9_-]+", "-", plain).strip("-_")
    return cleaned[:40].strip("-_") or "recipe"
