"""Named inputs of a run, from a recipe or `--input NAME=SPEC`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qsl, urlsplit

from runner.protocol.errors import RunnerError

# The kind `trials` are the results of all trials of a sweep, the input of its merge task.
InputKind = Literal["path", "blob", "url", "share", "dataset", "run", "trials"]
VARIABLE_PREFIX = "RUNNER_INPUT_"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_CONTAINER = re.compile(r"[a-z0-9](?:-?[a-z0-9]){2,62}")  # naming rules of the storage REST docs
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PREFIX_KINDS: tuple[InputKind, ...] = ("blob", "share", "dataset", "run")
_FORMS = "NAME=./folder, NAME=https://…, NAME=blob:container/prefix or NAME=run:RUN"
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
# Query parameters that grant access to anyone who knows them, so run.json must not contain them.
_SIGNATURE_PARAMETERS = frozenset(
    {"sig", "x-amz-signature", "x-goog-signature", "signature", "token"}
)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input, from a recipe or an option.

    Attributes:
        source: Depending on `kind`: a path, `container/prefix`, a URL, a path on the share, or the
            name of a data set or a run.
        part: A path below the outputs of a run.
        base: The folder of a relative path.
    """

    name: str
    kind: InputKind
    source: str
    sha256: str | None = None
    part: str | None = None
    base: Path | None = None

    @property
    def variable(self) -> str:
        """The environment variable with the path of the input."""
        return input_variable(self.name)


def input_variable(name: str) -> str:
    """Return `RUNNER_INPUT_<NAME>`: upper case, `-` becomes `_`."""
    return VARIABLE_PREFIX + name.upper().replace("-", "_")


_INPUT_VARIABLE = re.compile(
    r"(?:RUNNER_INPUT_|AZ_BATCHAI_INPUT_|AZURE_ML_INPUT_|AZUREML_DATAREFERENCE_)(\w+)"
)
_OUTPUT_VARIABLE = re.compile(r"RUNNER_OUTPUT_(\w+)")


def advise_variable(name: str) -> str:
    """Return how to set a variable of the data, an input or an output; "" for another variable."""
    if name == "RUNNER_DATA_DIR":
        return "pass the data with --data PATH, or set `dataset` in train.yaml"
    if found := _INPUT_VARIABLE.fullmatch(name):
        return f"pass the input: --input {found[1]}=PATH"
    if found := _OUTPUT_VARIABLE.fullmatch(name):
        return f"add {found[1].lower()} to `named_outputs` in train.yaml"
    return ""


def parse_input(name: str, text: str, base: Path | None = None) -> InputSpec:
    """Read the short form: a URL, `blob:…`, `share:…`, `dataset:…`, `run:RUN/path`, else a path.

    Raises ValueError with the reason if the text is invalid.
    """
    head, colon, rest = text.partition(":")
    if text.startswith(("https://", "http://")):
        return check_input(InputSpec(name, "url", text))
    for kind in _PREFIX_KINDS:
        if colon and head == kind:
            run, slash, part = rest.partition("/")
            if kind == "run":
                return check_input(InputSpec(name, kind, run, part=part if slash else None))
            return check_input(InputSpec(name, kind, rest))
    return check_input(InputSpec(name, "path", text, base=base))


def check_input(spec: InputSpec) -> InputSpec:
    """Return the input with a normalized source. Raise ValueError with the reason."""
    if not spec.source.strip():
        raise ValueError(f"the {spec.kind} is empty")
    if spec.kind == "url":
        _check_url(spec.source)
        if spec.sha256 is not None and not _SHA256.fullmatch(spec.sha256):
            raise ValueError("invalid sha256: expected 64 hexadecimal digits in lower case")
    elif spec.kind == "blob":
        return replace(spec, source=_check_container_path(spec.source))
    elif spec.kind == "share":
        return replace(spec, source=_check_relative(spec.source, "the share"))
    elif spec.kind == "run" and spec.part:
        return replace(spec, part=_check_relative(spec.part, "the outputs"))
    return spec


def check_variables(names: Iterable[str]) -> None:
    """Raise ValueError if two inputs have the same variable."""
    taken: dict[str, str] = {}
    for name in names:
        other = taken.setdefault(input_variable(name), name)
        if other != name:
            raise ValueError(
                f"inputs {other!r} and {name!r} have the same variable {input_variable(name)}"
            )


def override_inputs(
    inputs: tuple[InputSpec, ...], given: Iterable[str], cwd: Path
) -> tuple[InputSpec, ...]:
    """Return the inputs, with those of `NAME=SPEC` texts added or replaced.

    Raises:
        RunnerError: a text is invalid, or two inputs have the same variable.
    """
    found = {spec.name: spec for spec in inputs}
    for text in given:
        name, equals, source = text.partition("=")
        name = name.strip()
        if not equals or not _NAME.fullmatch(name):
            raise RunnerError(
                "R-INPUT-FORM",
                f"invalid --input {text!r}: expected NAME=SPEC",
                fix=f"use a form such as {_FORMS}",
            )
        try:
            found[name] = parse_input(name, source, cwd)
        except ValueError as err:
            raise RunnerError(
                "R-INPUT-FORM", f"invalid --input {name}: {err}", fix=f"use a form such as {_FORMS}"
            ) from err
    try:
        check_variables(found)
    except ValueError as err:
        raise RunnerError("R-INPUT-CLASH", str(err), fix="rename one of the inputs") from err
    return tuple(found.values())


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host = parts.hostname
        _ = parts.port
    except ValueError as err:
        raise ValueError(f"invalid URL: {err}") from err
    if not host or any(ord(char) <= 32 or ord(char) == 127 for char in url):
        raise ValueError(f"invalid URL {url!r}")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK):
        raise ValueError("a URL must begin with https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL contains a user or password, which would be stored in run.json")
    if _SIGNATURE_PARAMETERS & {
        key.lower() for key, _ in parse_qsl(parts.query, keep_blank_values=True)
    }:
        raise ValueError(
            "the URL contains a signature, which would be stored in run.json; "
            "copy the file to the stack's storage, and use blob:container/path"
        )


def _check_container_path(text: str) -> str:
    container, _, prefix = text.strip("/").partition("/")
    if not _CONTAINER.fullmatch(container):
        raise ValueError(f"invalid container name {container!r}; expected container/prefix")
    return f"{container}/{_check_relative(prefix, 'the container')}" if prefix else container


def _check_relative(text: str, where: str) -> str:
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\\" in text or any(ord(char) < 32 for char in text):
        raise ValueError(f"{text!r} is not a path inside {where}")
    return "/".join(parts)
