"""Types of the keys of `train.yaml` with their own grammar, and their conversion for a Recipe."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from runner.core.recipe.inputs import (
    InputKind,
    InputSpec,
    check_input,
    check_variables,
    parse_input,
)
from runner.core.recipe.secrets import check_secret, check_source
from runner.core.recipe.shell_text import (
    SHELL_OPERATORS,
    find_shell_syntax,
    find_shell_word,
    in_shell,
    join_lines,
)
from runner.core.yaml_files import Amount, StrictModel, TextField, one_of
from runner.protocol.metrics import ExpectedRange
from runner.protocol.models import ALIAS_PATTERN, COMPUTED_ALIASES, NAME_PATTERN, ModelRequest
from runner.protocol.run_spec import (
    NOTIFY_VARIABLE,
    Capacity,
    CheckpointRule,
    KeepRule,
    NotifyRule,
    Resources,
    SecretRef,
)
from runner.protocol.task import MAX_GPUS, MAX_NODES, PRIORITIES, RETRIES


def key_error(problem: str, fix: str, why: str = "") -> PydanticCustomError:
    """Return the error for a value of train.yaml; file, line and key are added when it is shown."""
    # The text is passed as data, so that braces in it are not read as a template.
    context = {"problem": problem, "fix": fix, **({"why": why} if why else {})}
    return PydanticCustomError("runner", "{problem}", context)


# Prefixes of variables that the agent and Batch set. They would replace those of `env`.
_RESERVED_PREFIXES = ("RUNNER_", "AZ_BATCH_")


def _check_variable(name: str) -> str:
    if name.upper().startswith(_RESERVED_PREFIXES):
        raise key_error(
            f"{name} is reserved for {'runner' if name.upper().startswith('R') else 'Batch'}",
            "use another name",
            f"names that begin with {' or '.join(_RESERVED_PREFIXES)} are reserved",
        )
    return name


def _check_variable_value(value: str) -> str:
    if "\0" in value:
        raise key_error("the value has a NUL character", "remove it")
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes of a command line
        raise key_error("the value is not UTF-8", "remove the bytes that are not UTF-8") from None
    return value


EnvFile = dict[
    Annotated[
        str,
        TextField(
            r"^[A-Za-z_][A-Za-z0-9_]*$",
            "the name of a variable",
            "letters, digits and _, and does not begin with a digit",
            "OMP_NUM_THREADS",
        ),
        AfterValidator(_check_variable),
    ],
    Annotated[str, AfterValidator(_check_variable_value)],
]


def explain_invalid_variable(name: str, value: str) -> tuple[str, str, str] | None:
    """Return what, why and fix if `env` does not accept a variable, else None."""
    try:
        TypeAdapter(EnvFile).validate_python({name: value})
    except ValidationError as err:
        context = err.errors()[0].get("ctx", {})  # of `key_error` or TextField
        return context["problem"], context.get("why", ""), context["fix"]
    return None


# A name, extras, and versions or an address: packaging.python.org, "Dependency specifiers".
_PACKAGE = re.compile(
    r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?\s*(?:\[[\w\s,.-]*\])?"
    r"\s*(?:@\s*\S[^;]*|[<>=!~]=[^;@]*|[<>][^;@]*)?(?:;.*)?",
    re.ASCII,
)


def explain_invalid_package(text: str) -> tuple[str, str] | None:
    """Return what and fix if `packages` does not accept a text, else None."""
    if text.isprintable() and _PACKAGE.fullmatch(text.strip()):
        return None
    names = [part.strip() for part in text.split(",")]
    if len(names) > 1 and all(_PACKAGE.fullmatch(name) for name in names):
        return f"{text!r} is not one package", f"give each of them by itself: {', '.join(names)}"
    return (
        f"{text!r} is not the name of a package",
        "write names as in numpy or torch>=2.4; paths and options go into requirements.txt",
    )


def _check_package(value: str) -> str:
    if refused := explain_invalid_package(value):
        raise key_error(*refused)
    return value.strip()


Package = Annotated[str, AfterValidator(_check_package)]


# distribution/reference: [domain/]path[:tag][@digest]; a path is in lower case.
_IMAGE_PATH_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE_NAME = re.compile(
    rf"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{{1,5}})?/)?{_IMAGE_PATH_PART}(?:/{_IMAGE_PATH_PART})*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)


def _check_image(value: str) -> str:
    if len(value) > 255 or _IMAGE_NAME.fullmatch(value) is None:
        raise key_error(
            f"invalid image name {value!r}",
            "write repository:tag or registry.example/repository:tag, in lower case",
        )
    return value


ImageName = Annotated[str, AfterValidator(_check_image), Field(max_length=255)]


_GLOB_CHARACTERS = frozenset("*?[")


def output_variable(name: str) -> str:
    """Return `RUNNER_OUTPUT_<NAME>`: upper case, `-` becomes `_`."""
    return "RUNNER_OUTPUT_" + name.upper().replace("-", "_")


def _check_output_names(value: dict[str, str]) -> dict[str, str]:
    taken = {"RUNNER_OUTPUT_DIR": "the folder of all outputs"}
    for name, path in value.items():
        variable = output_variable(name)
        if variable in taken:
            raise key_error(
                f"{name!r} has the same variable {variable} as {taken[variable]}", "rename it"
            )
        taken[variable] = repr(name)
        if _GLOB_CHARACTERS & set(path):
            raise key_error(
                f"{path!r} is a pattern", "use a folder here, and patterns in `outputs`"
            )
    return value


OutputName = Annotated[
    str,
    TextField(
        r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$",
        "the name of an output",
        "letters, digits, _ and -, 64 at most, and begins with a letter or _",
        "weights",
    ),
]
check_named_outputs = AfterValidator(_check_output_names)


_MODEL_NAME_RULE = (
    "lower-case letters, digits, _ and -, 63 at most, and begins with a letter or digit"
)
_ALIAS_RULE = "lower-case letters, digits, _ and -, 63 at most, and begins with a letter"


def _check_alias(alias: str) -> str:
    if alias in COMPUTED_ALIASES:
        raise key_error(
            f"{alias!r} is computed from the versions", "remove it; NAME@latest works anyway"
        )
    return alias


def _check_output_path(path: str) -> str:
    pure = PurePosixPath(path)
    if not path.strip() or pure.is_absolute() or ".." in pure.parts or "\\" in path:
        raise key_error(f"{path!r} leaves the outputs", "use a path relative to $RUNNER_OUTPUT_DIR")
    return str(pure)


def _expand_model(value: object) -> object:
    """`model: cats` is short for `model: {name: cats}`."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise key_error(f"YAML reads {value!r} as a number", f'put it in quotes: model: "{value}"')
    return {"name": value} if isinstance(value, str) else value


class ModelFile(StrictModel):
    """The model to which each successful run is added as a version."""

    name: Annotated[
        str, TextField(NAME_PATTERN, "the name of a model", _MODEL_NAME_RULE, "cats-v2")
    ]
    aliases: list[
        Annotated[
            str,
            TextField(ALIAS_PATTERN, "an alias", _ALIAS_RULE, "production"),
            AfterValidator(_check_alias),
        ]
    ] = Field(default_factory=list, description="Aliases to set to each new version.")
    path: Annotated[str, AfterValidator(_check_output_path)] | None = Field(
        None, description="A file, a glob or a folder below the outputs. Defaults to all outputs."
    )
    description: str = ""


Model = Annotated[ModelFile, BeforeValidator(_expand_model, json_schema_input_type=str | ModelFile)]


def to_model(parsed: ModelFile | None) -> ModelRequest | None:
    """Return the request of the recipe, or None."""
    if parsed is None:
        return None
    return ModelRequest(parsed.name, tuple(parsed.aliases), parsed.path, parsed.description.strip())


class ExpectedFile(StrictModel):
    """The expected range of the last value of a metric."""

    min: float | None = None
    max: float | None = None
    outside: Literal["warn", "fail"] = Field(
        "warn", description="Effect of a metric outside the range on the run."
    )

    @model_validator(mode="after")
    def _consistent(self) -> ExpectedFile:
        low, high = self.min, self.max
        if low is None and high is None:
            raise key_error(
                "the range is empty: it has no min and no max", "write [0.97, 1], or {min: 0.97}"
            )
        if not all(math.isfinite(end) for end in (low, high) if end is not None):
            raise key_error(
                "min and max must be finite numbers", "leave out min or max for an open range"
            )
        if low is not None and high is not None and low > high:
            raise key_error(f"min {low:.15g} is above max {high:.15g}", "swap them")
        return self


def _expand_range(value: object) -> object:
    """`[0.97, 1]` is short for `{min: 0.97, max: 1}`."""
    if not isinstance(value, list):
        return value
    ends = cast("list[object]", value)
    if len(ends) != 2:
        raise key_error(f"{ends!r} is not a range", "write [0.97, 1], or {min: 0.97}")
    return {"min": ends[0], "max": ends[1]}


MetricName = Annotated[str, Field(min_length=1, max_length=128)]
Expect = dict[
    MetricName,
    Annotated[
        ExpectedFile,
        BeforeValidator(_expand_range, json_schema_input_type=list[float] | ExpectedFile),
    ],
]


def to_expected(parsed: Expect) -> tuple[ExpectedRange, ...]:
    """Return the ranges of the recipe."""
    return tuple(
        ExpectedRange(name, each.min, each.max, fails=each.outside == "fail")
        for name, each in parsed.items()
    )


Priority = Annotated[int, Field(ge=PRIORITIES.start, le=PRIORITIES.stop - 1)]
Retries = Annotated[int, Field(ge=RETRIES.start, le=RETRIES.stop - 1)]
RunReference = Annotated[
    str,
    TextField(
        r"^(@last|[a-z0-9][a-z0-9_-]{0,63})$",
        "a run",
        "a run ID, a prefix of one, or @last",
        "mnist-20261121-143005-k3f9",
    ),
]


PoolName = Annotated[
    str,
    TextField(
        r"^[A-Za-z0-9_-]{1,64}$",
        "the ID of a pool",
        "up to 64 letters, digits, _ and -",
        "t4-spot",
    ),
]


def _check_list(name: str, values: list[str]) -> list[str]:
    problem = explain_invalid_list(values, name)
    if problem is not None:
        raise key_error(*problem)
    return values


def explain_invalid_list(values: Sequence[str], name: str) -> tuple[str, str] | None:
    """Return the problem of a list of pools or GPU models, and the fix; None if it is valid."""
    if not values:
        return f"the list of {name} is empty", f"name {name} in the order of preference"
    seen: set[str] = set()
    for value in values:
        if value.lower() in seen:
            return f"{value!r} is listed twice", "remove one of the two"
        seen.add(value.lower())
    return None


Pools = Annotated[list[PoolName], AfterValidator(partial(_check_list, "pools"))]
GpuModels = Annotated[
    list[Annotated[str, Field(min_length=1)]], AfterValidator(partial(_check_list, "GPU models"))
]


class ResourcesFile(StrictModel):
    """Requirements on a node, which select a pool of the stack."""

    gpus: int | None = Field(
        None,
        ge=0,
        le=MAX_GPUS,
        description="Minimum number of GPUs per node; the pool with the fewest is used.",
    )
    memory: Annotated[int, Amount("size", "1B")] | None = Field(
        None, description="Minimum memory of the node: 28GiB, 64GB."
    )
    gpu_memory: Annotated[int, Amount("size", "1B")] | None = Field(
        None, description="Minimum memory of each GPU: 16GiB, 40GB."
    )
    vm_sizes: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, min_length=1, description="Allowed VM sizes, such as Standard_NC4as_T4_v3."
    )
    nodes: int = Field(
        1, ge=1, le=MAX_NODES, description="Number of nodes that run the command at once."
    )
    capacity: Capacity | None = Field(
        None, description="Spot nodes, dedicated nodes, or spot nodes with a dedicated fallback."
    )

    def to_resources(self) -> Resources:
        """Return the resources of the recipe."""
        return Resources(
            gpus=self.gpus,
            memory_bytes=self.memory,
            vm_sizes=tuple(self.vm_sizes or ()),
            nodes=self.nodes,
            capacity=self.capacity,
            gpu_memory_bytes=self.gpu_memory,
        )


class CheckpointsFile(StrictModel):
    """How `$RUNNER_CHECKPOINT_DIR` is committed to blob while the script runs."""

    interval: Annotated[
        int,
        Amount("duration", "1s", "24h"),
        Field(description="Time between two checkpoints: 30s, 5m, 1h or seconds."),
    ] = 60
    keep: int = Field(default=3, ge=1, le=100, description="Number of checkpoints that are kept.")
    max_size: Annotated[
        int,
        Amount("size", "1B", "8TiB"),
        Field(
            description="Maximum size of the folder; a larger one is not committed: 10GiB, 500MB."
        ),
    ] = 10 << 30
    automatic: bool = Field(
        default=True,
        description="Save checkpoints of Keras, Lightning and others for a script that saves none.",
    )
    sharded: bool = Field(
        default=False,
        description="On several nodes, commit the folders of all ranks as one checkpoint.",
    )


def _expand_checkpoints(value: object) -> object:
    if value is None:
        raise key_error("`checkpoints` has no value", "write false, or interval: 60s")
    if isinstance(value, str) and value.lower() in ("no", "off", "n", "none", "never"):
        raise key_error(f"YAML 1.2 reads {value} as text", "write false")
    if isinstance(value, str) and value.lower() in ("yes", "on", "y"):
        raise key_error(f"YAML 1.2 reads {value} as text", "write true, or remove the key")
    return {} if value is True else (None if value is False else value)


# `false` switches checkpoints off and becomes None; `true` is the default.
Checkpoints = Annotated[
    CheckpointsFile | None,
    BeforeValidator(_expand_checkpoints, json_schema_input_type=CheckpointsFile | bool),
]


def to_rule(parsed: CheckpointsFile | None) -> CheckpointRule | None:
    """Return the rule of the recipe; None switches checkpoints off."""
    if parsed is None:
        return None
    return CheckpointRule(
        parsed.interval,
        parsed.keep,
        parsed.max_size,
        automatic=parsed.automatic,
        sharded=parsed.sharded,
    )


class KeepFile(StrictModel):
    """Which files that the script writes outside of `$RUNNER_OUTPUT_DIR` are kept."""

    max_size: Annotated[
        int,
        Amount("size", "0B", "8TiB"),
        Field(description="Maximum total size; the largest files are left out: 10GiB, 500MB."),
    ] = 10 << 30
    paths: list[str] = Field(
        default_factory=list,
        description="Globs in the folder of the script; matching files are kept at any size.",
    )


def _expand_keep(value: object) -> object:
    if value is None:
        raise key_error("`keep` has no value", "write false, or max_size: 20GB")
    return {} if value is True else (None if value is False else value)


# `false` keeps only $RUNNER_OUTPUT_DIR and becomes None; `true` is the default.
Keep = Annotated[
    KeepFile | None, BeforeValidator(_expand_keep, json_schema_input_type=KeepFile | bool)
]


def to_keep_rule(parsed: KeepFile | None) -> KeepRule | None:
    """Return the rule of the recipe; None keeps `$RUNNER_OUTPUT_DIR` only."""
    return None if parsed is None else KeepRule(parsed.max_size, tuple(parsed.paths))


_INPUT_KINDS: tuple[InputKind, ...] = ("blob", "share", "url", "dataset", "run", "path")
_ONE_SOURCE_SCHEMA = [{"required": [kind]} for kind in _INPUT_KINDS if kind != "path"] + [
    {"required": ["path"], "not": {"required": ["run"]}}
]


_INPUT_FORMS = (
    "use ./folder, https://…, blob:container/prefix, share:path, dataset:mnist or run:RUN/path"
)


class InputFile(StrictModel, json_schema_extra={"oneOf": cast("Any", _ONE_SOURCE_SCHEMA)}):
    """The source of an input: one of blob, share, url, dataset, run and path."""

    blob: str | None = Field(None, description="container/prefix of the stack's storage account.")
    share: str | None = Field(None, description="A path on the file share that the pool mounts.")
    url: str | None = Field(None, description="A file, fetched by the node; https only.")
    sha256: str | None = Field(
        None, description="SHA-256 of the file at the URL; without it, the file is not verified."
    )
    dataset: str | None = Field(None, description="Name of a data set.")
    path: str | None = Field(
        None, description="A file or folder of this machine; with `run`, a path below its outputs."
    )
    run: str | None = Field(None, description="Another run, for its outputs: an ID, or @last.")

    @model_validator(mode="after")
    def _consistent(self) -> InputFile:
        given = [kind for kind in _INPUT_KINDS if getattr(self, kind) is not None]
        if given == ["run", "path"]:
            given = ["run"]
        if len(given) != 1:
            found = f"got {' and '.join(given)}" if given else "got none"
            raise key_error(
                f"expected one source, {found}", f"use one of {', '.join(_INPUT_KINDS)}"
            )
        if self.sha256 is not None and given != ["url"]:
            raise key_error("`sha256` requires `url`", "remove it")
        try:
            self.spec("x")
        except ValueError as err:
            raise key_error(str(err), _INPUT_FORMS) from err
        return self

    def spec(self, name: str) -> InputSpec:
        """Return the input. Raise ValueError with the reason."""
        kind: InputKind = next(kind for kind in _INPUT_KINDS if getattr(self, kind) is not None)
        part = self.path if kind == "run" else None
        return check_input(InputSpec(name, kind, getattr(self, kind), self.sha256, part))


def _expand_input(value: object) -> object:
    """`"./local"`, `"https://…"` and `"blob:container/prefix"` are short forms."""
    if not isinstance(value, str):
        return value
    try:
        spec = parse_input("x", value)
    except ValueError as err:
        raise key_error(str(err), _INPUT_FORMS) from err
    return {spec.kind: spec.source, **({"path": spec.part} if spec.part else {})}


def _check_input_names(value: dict[str, InputFile]) -> dict[str, InputFile]:
    try:
        check_variables(value)
    except ValueError as err:
        raise key_error(str(err), "rename one of them") from err
    return value


Inputs = Annotated[
    dict[
        Annotated[
            str,
            TextField(
                r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$",
                "the name of an input",
                "letters, digits, _ and -, 64 at most, and begins with a letter or _",
                "images",
            ),
        ],
        Annotated[
            InputFile, BeforeValidator(_expand_input, json_schema_input_type=str | InputFile)
        ],
    ],
    AfterValidator(_check_input_names),
]


def to_inputs(inputs: dict[str, InputFile], folder: Path) -> tuple[InputSpec, ...]:
    """Return the recipe's inputs; relative paths start at its folder."""
    specs = (file.spec(name) for name, file in inputs.items())
    return tuple(
        InputSpec(spec.name, spec.kind, spec.source, spec.sha256, spec.part, folder)
        for spec in specs
    )


class SecretFile(StrictModel, json_schema_extra=one_of("env", "keyvault")):
    """The source of a secret: env or keyvault."""

    env: str | None = Field(None, description="A variable of the machine that submits the run.")
    keyvault: str | None = Field(
        None, description="URL of a secret in a key vault, which the identity of the node reads."
    )


def _check_secrets(value: dict[str, SecretFile]) -> dict[str, SecretFile]:
    for name, file in value.items():
        try:
            check_secret(SecretRef(name, file.env, file.keyvault))
        except ValueError as err:
            # The text may be the secret itself, so the message does not repeat it.
            raise key_error(f"{name}: {err}", f"write {name}: {{env: {name}}}") from None
    return value


def _check_reference(value: object) -> object:
    if isinstance(value, dict):
        sources = cast("dict[object, object]", value)
        if all(isinstance(source, str) for source in sources.values()):
            return sources
    # The text may be the secret itself, so the message does not repeat it.
    raise key_error("expected a reference to a secret, not its value", "write {env: NAME}")


Secrets = Annotated[
    dict[str, Annotated[SecretFile, BeforeValidator(_check_reference)]],
    AfterValidator(_check_secrets),
]


class NotifyFile(StrictModel):
    """A webhook that is told how a run goes."""

    url: Annotated[SecretFile, BeforeValidator(_check_reference)] = Field(
        description="Where the URL is, which is a secret: {env: NAME} of this machine, or "
        "{keyvault: URL}."
    )
    on: list[Literal["success", "failure", "evictions", "cap"]] = Field(
        default_factory=lambda: ["success", "failure", "evictions", "cap"],
        min_length=1,
        description="Events to send; all by default.",
    )
    format: Literal["json", "slack", "teams"] | None = Field(
        None, description="Form of the messages; by default that of the host of the URL, or json."
    )
    evictions: int = Field(
        3, ge=1, le=100, description="Number of evictions within an hour for `evictions`."
    )
    cap_share: float = Field(
        0.8,
        gt=0,
        lt=1,
        strict=False,
        description="Share of `timeout` or `max_cost` for `cap`.",
    )

    @model_validator(mode="after")
    def _check_url(self) -> NotifyFile:
        try:
            check_source(SecretRef(NOTIFY_VARIABLE, self.url.env, self.url.keyvault))
        except ValueError as err:
            # The text may be the URL itself, so the message does not repeat it.
            raise key_error(f"url: {err}", "write url: {env: NAME}") from None
        return self


def _check_notify(value: object) -> object:
    if value is None or isinstance(value, NotifyFile):
        return value
    if isinstance(value, dict):
        return cast("dict[object, object]", value)
    # The text may be the URL itself, so the message does not repeat it.
    raise key_error("expected where the URL of the webhook is", "write {url: {env: NAME}}")


Notify = Annotated[
    NotifyFile | None,
    BeforeValidator(_check_notify, json_schema_input_type=NotifyFile | None),
]


def to_notify(file: NotifyFile | None) -> NotifyRule | None:
    """Return the rule of notifications, or None without one."""
    if file is None:
        return None
    url = SecretRef(NOTIFY_VARIABLE, file.url.env, file.url.keyvault)
    return NotifyRule(url, tuple(file.on), file.format, file.evictions, file.cap_share)


def to_secrets(secrets: dict[str, SecretFile]) -> tuple[SecretRef, ...]:
    """Return the recipe's secrets."""
    return tuple(SecretRef(name, file.env, file.keyvault) for name, file in secrets.items())


_NO_SHELL = "commands do not run in a shell"
_PLAIN_COMMAND = re.compile(r"python3? [\w./-][\w./ -]*", re.ASCII)


def _split_command(value: object) -> object:
    if isinstance(value, list):
        return _check_words(cast("list[object]", value))
    if not isinstance(value, str):
        return value
    if _PLAIN_COMMAND.fullmatch(value):
        return value.split()
    text = join_lines(value)
    try:
        words = shlex.split(text)
    except ValueError as err:
        problem, fix = (
            f"cannot split {value!r} into words: {err}",
            "close the quote, or write a list",
        )
        raise key_error(problem, fix) from err
    syntax = find_shell_word(words) if words else None
    if syntax := find_shell_syntax(text) or syntax:
        raise key_error(f"unexpected {syntax!r}: {_NO_SHELL}", in_shell(text, syntax))
    return words


def _check_words(value: list[object]) -> object:
    words = [word for word in value if isinstance(word, str)]
    if not words or len(words) < len(value):
        return value
    if words[0] in ("python", "python3") and SHELL_OPERATORS.isdisjoint(words):
        return value
    if len(words) == 1 and " " in words[0].strip() and not words[0].startswith((".", "/")):
        problem = f"{words[0]!r} is one word, the name of a program with spaces"
        raise key_error(problem, f"command: {words[0]}")
    if syntax := find_shell_word(words):
        text = " ".join(w if w in SHELL_OPERATORS else shlex.quote(w) for w in words)
        if "=" in words[0]:
            text = f"{words[0]} {shlex.join(words[1:])}"
        raise key_error(f"unexpected {syntax!r}: {_NO_SHELL}", in_shell(text, syntax))
    return words


Command = Annotated[
    list[Annotated[str, Field(min_length=1)]],
    BeforeValidator(_split_command, json_schema_input_type=str | list[str]),
    Field(min_length=1),
]
