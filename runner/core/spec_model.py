"""`model` of train.yaml: a name, or a name with aliases and a choice of outputs."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from runner.core.model_spec import ModelSpec
from runner.core.spec_form import Form

# The registry on the node checks them too (runner/node/model_documents.py).
NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
ALIAS_PATTERN = r"^[a-z][a-z0-9_-]{0,62}$"
_RULE = "small letters, digits, _ and -, 63 at most, and begins with a letter or digit"
_ALIAS_RULE = "small letters, digits, _ and -, 63 at most, and begins with a letter"
_WORKED_OUT = ("latest", "best")


def _refuse(problem: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("runner", "{problem}", {"problem": problem, "fix": fix})


def _settable(alias: str) -> str:
    if alias in _WORKED_OUT:
        raise _refuse(f"{alias!r} is worked out from the versions", "drop it; NAME@latest works")
    return alias


def _below_outputs(path: str) -> str:
    pure = PurePosixPath(path)
    if not path.strip() or pure.is_absolute() or ".." in pure.parts or "\\" in path:
        raise _refuse(f"{path!r} leaves the outputs", "write it relative to $RUNNER_OUTPUT_DIR")
    return str(pure)


def _expanded(value: object) -> object:
    """`model: cats` is short for `model: {name: cats}`."""
    return {"name": value} if isinstance(value, str) else value


class ModelFile(BaseModel):
    """The model that every run which succeeds becomes a version of."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Form(NAME_PATTERN, "the name of a model", _RULE, "cats-v2")]
    aliases: list[
        Annotated[
            str,
            Form(ALIAS_PATTERN, "an alias", _ALIAS_RULE, "production"),
            AfterValidator(_settable),
        ]
    ] = Field(default_factory=list, description="Set to each new version.")
    path: Annotated[str, AfterValidator(_below_outputs)] | None = Field(
        None, description="A file, a glob or a folder below the outputs. Defaults to all of them."
    )
    description: str = ""


Model = Annotated[ModelFile, BeforeValidator(_expanded, json_schema_input_type=str | ModelFile)]


def to_model(parsed: ModelFile | None) -> ModelSpec | None:
    """What the recipe holds of it."""
    if parsed is None:
        return None
    return ModelSpec(parsed.name, tuple(parsed.aliases), parsed.path, parsed.description.strip())
