"""`named_outputs:` of train.yaml: folders below $RUNNER_OUTPUT_DIR with variables of their own."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from runner.core.spec_form import Form

_GLOB = frozenset("*?[")


def output_variable(name: str) -> str:
    """`RUNNER_OUTPUT_<NAME>`: upper case, `-` becomes `_`."""
    return "RUNNER_OUTPUT_" + name.upper().replace("-", "_")


def _checked(value: dict[str, str]) -> dict[str, str]:
    taken = {"RUNNER_OUTPUT_DIR": "the folder of all outputs"}
    for name, path in value.items():
        variable = output_variable(name)
        if variable in taken:
            raise _refuse(f"{name!r} would be {variable}, as {taken[variable]} is", "rename it")
        taken[variable] = repr(name)
        if _GLOB & set(path):
            raise _refuse(f"{path!r} is a pattern", "name a folder; patterns go under outputs")
    return value


def _refuse(problem: str, fix: str) -> PydanticCustomError:
    return PydanticCustomError("runner", "{problem}", {"problem": problem, "fix": fix})


OutputName = Annotated[
    str,
    Form(
        r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$",
        "the name of an output",
        "letters, digits, _ and -, 64 at most, and begins with a letter or _",
        "weights",
    ),
]
check_named_outputs = AfterValidator(_checked)
