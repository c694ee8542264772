"""`inputs:` of train.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from runner.core.inputs import InputKind, InputSpec, check_input, check_variables, parse_input
from runner.core.spec_form import Form

_KINDS: tuple[InputKind, ...] = ("blob", "share", "url", "dataset", "run", "path")
_ONE_OF = [{"required": [kind]} for kind in _KINDS if kind != "path"] + [
    {"required": ["path"], "not": {"required": ["run"]}}
]


_FORMS = (
    "write ./folder, https://…, blob:container/prefix, share:path, dataset:mnist or run:RUN/path"
)


def _refuse(problem: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("runner", "{problem}", {"problem": problem, "fix": fix})


class InputFile(BaseModel):
    """Where an input comes from: one of blob, share, url, dataset, run and path."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, json_schema_extra={"oneOf": cast("Any", _ONE_OF)}
    )

    blob: str | None = Field(None, description="container/prefix of the stack's storage account.")
    share: str | None = Field(None, description="A path on the file share that the pool mounts.")
    url: str | None = Field(None, description="A file, fetched by the node; https only.")
    sha256: str | None = Field(None, description="Of what the URL holds; else it is not checked.")
    dataset: str | None = Field(None, description="A data set by name.")
    path: str | None = Field(
        None, description="A file or folder of this machine; with run, which of its outputs."
    )
    run: str | None = Field(None, description="The outputs of another run: its id, or @last.")

    @model_validator(mode="after")
    def _consistent(self) -> InputFile:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if given == ["run", "path"]:
            given = ["run"]
        if len(given) != 1:
            found = f"got {' and '.join(given)}" if given else "got none"
            raise _refuse(f"an input has one source, {found}", f"one of {', '.join(_KINDS)}")
        if self.sha256 is not None and given != ["url"]:
            raise _refuse("sha256 goes with url only", "remove it")
        try:
            self.spec("x")
        except ValueError as err:
            raise _refuse(str(err), _FORMS) from err
        return self

    def spec(self, name: str) -> InputSpec:
        """As the rest of the program knows it. Raises ValueError."""
        kind: InputKind = next(kind for kind in _KINDS if getattr(self, kind) is not None)
        part = self.path if kind == "run" else None
        return check_input(InputSpec(name, kind, getattr(self, kind), self.sha256, part))


def _expanded(value: object) -> object:
    """`"./local"`, `"https://…"` and `"blob:container/prefix"` are short forms."""
    if not isinstance(value, str):
        return value
    try:
        spec = parse_input("x", value)
    except ValueError as err:
        raise _refuse(str(err), _FORMS) from err
    return {spec.kind: spec.source, **({"path": spec.part} if spec.part else {})}


def _distinct(value: dict[str, InputFile]) -> dict[str, InputFile]:
    try:
        check_variables(value)
    except ValueError as err:
        raise _refuse(str(err), "rename one of them") from err
    return value


Inputs = Annotated[
    dict[
        Annotated[
            str,
            Form(
                r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$",
                "the name of an input",
                "letters, digits, _ and -, 64 at most, and begins with a letter or _",
                "images",
            ),
        ],
        Annotated[InputFile, BeforeValidator(_expanded, json_schema_input_type=str | InputFile)],
    ],
    AfterValidator(_distinct),
]


def to_inputs(inputs: dict[str, InputFile], folder: Path) -> tuple[InputSpec, ...]:
    """The recipe's inputs; relative paths count from its folder."""
    specs = (file.spec(name) for name, file in inputs.items())
    return tuple(
        InputSpec(spec.name, spec.kind, spec.source, spec.sha256, spec.part, folder)
        for spec in specs
    )
