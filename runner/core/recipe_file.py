"""`train.yaml` as a human writes it: the keys, their types, and what is refused."""

from __future__ import annotations

import math
import re
import shlex
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)
from pydantic_core import PydanticCustomError

from runner.core.spec_checkpoints import Checkpoints, CheckpointsFile
from runner.core.spec_env import EnvFile
from runner.core.spec_form import Amount, Form
from runner.core.spec_image import ImageName
from runner.core.spec_inputs import Inputs
from runner.core.spec_model import Model
from runner.core.spec_outputs import OutputName, check_named_outputs
from runner.core.spec_resources import Priority, ResourcesFile, RunReference
from runner.core.spec_secrets import Secrets

_SHELL_WORDS = {"|", "||", "&&", ";", ">", ">>", "<", "&", "2>&1"}
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)

Scalar = bool | int | float | str


def _refuse(problem: str, fix: str) -> PydanticCustomError:
    # The text goes in as data: braces in it must not be read as a template.
    return PydanticCustomError("runner", "{problem}", {"problem": problem, "fix": fix})


def _argument_list(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        words = shlex.split(value)
    except ValueError as err:
        problem, fix = f"{value!r} cannot be split into words: {err}", "close it, or write a list"
        raise _refuse(problem, fix) from err
    if operators := [word for word in words if word in _SHELL_WORDS]:
        raise _refuse(
            f"{operators[0]!r} means nothing here: the command is not run by a shell",
            'write ["bash", "-c", "…"], or put it in a script',
        )
    return words


def relative_path(value: str) -> str:
    """A path below the recipe or output folder, in POSIX form; others are refused."""
    path = PurePosixPath(value)
    if not value.strip() or path.is_absolute() or ".." in path.parts or "\\" in value:
        raise _refuse(f"{value!r} leaves the folder", "write a path relative to it, without '..'")
    if any(ord(char) < 32 for char in value):
        raise _refuse(f"{value!r} has a control character", "rename it")
    return str(path)


def _python_version(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise _refuse(f"{value!r} is a number to YAML", f'quote it: python: "{value}"')
    return value


def _compiled(value: str) -> str:
    try:
        compiled = re.compile(value)
    except re.error as err:
        problem = f"{value!r} is not a regular expression: {err}"
        fix = "put \\ before ( [ * + ? . | that are meant as they stand"
        raise _refuse(problem, fix) from err
    if compiled.groups != 1 and "value" not in compiled.groupindex:
        raise _refuse(
            f"{value!r} has {compiled.groups} groups",
            "put ( ) around the number, once, or name its group: (?P<value>...)",
        )
    return value


def _expanded_param(value: object) -> object:
    """`epochs: 5` is short for `epochs: {default: 5}`; the type follows the default."""
    if not isinstance(value, bool | int | float | str | dict):
        problem = f"{value!r} is no value of a parameter"
        if value is None:
            problem = "nothing is said of the parameter"
        raise _refuse(problem, "write its default, or {type: int} if it has none")
    raw = cast("dict[str, Any]", value if isinstance(value, dict) else {"default": value})
    default = raw.get("default")
    if "type" not in raw and isinstance(default, bool | int | float | str):
        return {**raw, "type": type(default).__name__}
    return raw


Duration = Annotated[int, Amount("duration", "1s", "7d")]
Command = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    BeforeValidator(_argument_list, json_schema_input_type=str | list[str]),
    Field(min_length=1),
]
RelativePath = Annotated[str, AfterValidator(relative_path)]
Identifier = Annotated[
    str,
    Form(
        r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$",
        "the name of a parameter",
        "letters, digits, _ and -, 64 at most, and begins with a letter or _",
        "learning_rate",
    ),
]
RecipeName = Annotated[
    str,
    Form(
        r"^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$",
        "a name",
        "letters, digits, _ and -, 40 at most, and begins with a letter or digit",
        "cats-v2",
    ),
]
_DatasetName = Annotated[
    str,
    Form(
        r"^[a-z0-9][a-z0-9_-]{0,62}$",
        "the name of a data set",
        "small letters, digits, _ and -, 63 at most, and begins with a letter or digit",
        "mnist",
    ),
]
_Python = Annotated[
    str,
    Form(
        r"^3\.\d{1,2}(\.\d{1,2})?$",
        "a Python version",
        "two numbers or three, and the first is 3",
        'python: "3.11"',
    ),
]


_TYPED = {
    "bool": "write true or false, without quotes",
    "int": "write a whole number, or say type: float",
    "float": "write a number, like 0.5, or say type: str",
    "str": "put it in quotes, or leave `type` out",
}


class ParamFile(BaseModel):
    """One declared parameter."""

    model_config = _STRICT

    type: Literal["int", "float", "str", "bool"]
    default: Scalar | None = None
    help: str = ""
    min: float | None = None
    max: float | None = None
    choices: list[Scalar] | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _consistent(self) -> ParamFile:
        if self.type in {"str", "bool"} and (self.min is not None or self.max is not None):
            raise _refuse(
                f"min and max do not apply to a {self.type}", "remove them, or use choices"
            )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise _refuse(f"min {self.min:g} is above max {self.max:g}", "exchange them")
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
        raise _refuse(f"{value!r} is not of type {param.type}", _TYPED[param.type])
    if isinstance(value, float) and not math.isfinite(value):
        raise _refuse(f"{value!r} is not a finite number", "write a finite number, like 0.5")
    if param.choices is not None and value not in param.choices:
        problem = f"{value!r} is not among the choices {param.choices}"
        raise _refuse(problem, f"choose one of them, or add {value!r} to choices")
    if isinstance(value, str | bool):
        return
    if param.min is not None and value < param.min:
        raise _refuse(f"{value!r} is below min {param.min:g}", "raise it, or lower min")
    if param.max is not None and value > param.max:
        raise _refuse(f"{value!r} is above max {param.max:g}", "lower it, or raise max")


class MetricsFile(BaseModel):
    """What is measured: patterns are regular expressions over standard output with one group."""

    model_config = _STRICT

    primary: str | None = None
    goal: Literal["max", "min"] = "max"
    patterns: dict[str, Annotated[str, AfterValidator(_compiled)]] = Field(default_factory=dict)


class RecipeFile(BaseModel):
    """A recipe: what to run, with which parameters, and what it promises to write."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, title="train.yaml of runner"
    )

    name: RecipeName | None = Field(None, description="Defaults to the name of the folder.")
    description: str = ""
    command: Command | None = Field(
        None,
        description="Words or a list; no shell. Defaults to train.py, main.py or the only .py.",
    )
    requirements: RelativePath | None = Field(
        None,
        description="A requirements file in the folder. Defaults to requirements.txt if there.",
    )
    python: Annotated[_Python | None, BeforeValidator(_python_version)] = Field(
        None, description='A Python version in quotes, like "3.11".'
    )
    dataset: _DatasetName | None = None
    inputs: Inputs = Field(
        default_factory=dict,
        description="What the script finds at $RUNNER_INPUT_<NAME>: a path, a URL, blob:, run: ...",
    )
    image: ImageName | None = Field(
        None,
        description="A container image with python3 that the run takes place in; needs a pool that "
        "runs containers.",
    )
    secrets: Secrets = Field(
        default_factory=dict,
        description="Variables whose values stay secret: {env: NAME} here, or {keyvault: URL}.",
    )
    params: dict[
        Identifier,
        Annotated[
            ParamFile,
            BeforeValidator(_expanded_param, json_schema_input_type=Scalar | ParamFile),
        ],
    ] = Field(default_factory=dict)
    outputs: list[RelativePath] = Field(
        default_factory=list, description="Globs below $RUNNER_OUTPUT_DIR that must match a file."
    )
    named_outputs: Annotated[dict[OutputName, RelativePath], check_named_outputs] = Field(
        default_factory=dict,
        description="Folders below $RUNNER_OUTPUT_DIR, each at $RUNNER_OUTPUT_<NAME>; a run that "
        "leaves one empty fails.",
    )
    metrics: MetricsFile = Field(default_factory=MetricsFile)
    model: Model | None = Field(
        None, description="The model that every run which succeeds becomes a version of."
    )
    env: EnvFile = Field(default_factory=dict)
    timeout: Duration | None = Field(None, description="90m, 2h, 1d or seconds; at most 7 days.")
    retries: int = Field(0, ge=0, le=100)
    checkpoints: Checkpoints = Field(
        default_factory=CheckpointsFile,
        description="How $RUNNER_CHECKPOINT_DIR is kept in blob; false switches it off.",
    )
    estimate: str | None = Field(None, description="How long it takes, told before it starts.")
    resources: ResourcesFile | None = None
    priority: Priority = Field(0, description="-1000 to 1000; tasks of a higher one start first.")
    after: list[RunReference] = Field(
        default_factory=list, description="Runs that must have succeeded before this one starts."
    )
