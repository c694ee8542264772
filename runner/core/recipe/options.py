"""The options of a run: what a person sets on the command line, in Python or in a file.

`with_options` applies them to a recipe, and `resolve_params` the values of `--set`.

A field of RunOptions declares all that is known about an option. The command line and the Python
API derive from these fields. Keys of files have the same names, and classes of their own, which
pydantic reads: their values are those of YAML, and name file and line in errors. Functions import
what they need themselves, because `runner --help` loads this module.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, get_args

from runner.protocol.errors import RunnerError
from runner.protocol.launchers import LAUNCHERS, Launcher
from runner.protocol.task import KEPT_NODE, MAX_GPUS, MAX_NODES, PRIORITIES, RETRIES

if TYPE_CHECKING:
    from runner.core.recipe.inputs import InputSpec
    from runner.core.recipe.recipe import Param, ParamValue, Recipe
    from runner.protocol.commands import ParamsAs
    from runner.protocol.run_spec import Capacity, KeepRule, NotifyRule, RecipeSpec, Resources

OFF = "off"  # value of --notify and --keep-node
_Choice = TypeVar("_Choice", bound=str)
_NAMES = tuple(LAUNCHERS)
_NAME = re.compile(r"[A-Za-z_][\w.-]*")
# `+name` adds a key in Hydra, `group/option` and `group@package` choose a config.
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w./@:-]*")


class RunOption(NamedTuple):
    """How an option is written, and what it changes.

    Attributes:
        help: One sentence.
        flag: Option of the command line; `--` stands for `--` and the name of the field. Empty for
            the words after `--`.
        key: Key in train.yaml, or in a file of `runner submit`; by default the name of the field.
        sets: Field of the recipe that gets the value, by default as `key`; empty if the value is
            used elsewhere.
        short: Short form of the flag.
        metavar: Form of the value, for `--help`.
        unset: What applies if it is not set, for `--help`.
        completes: What the shell completes: the end of the name of a function in `autocomplete`.
        check: Returns the value for the recipe, given recipe, flag and typed value. Raises
            RunnerError.
        choice_flags: Flags that stand for a value: one and its opposite.
        old_flag: Former name of the flag, which works with a warning.
    """

    help: str
    flag: str = "--"
    key: str = ""
    sets: str | None = None
    short: str = ""
    metavar: str | None = None
    unset: str | None = None
    completes: str = ""
    check: Callable[[Recipe, str, Any], Any] | None = None
    choice_flags: Mapping[str, str] = {}
    old_flag: str = ""


def _option(help_: str, *, default: Any = None, **more: Any) -> Any:
    metadata = {"option": RunOption(help_, **more)}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def _check_data(_: Recipe, flag: str, path: Path) -> Path:
    if path.exists():
        return path
    raise RunnerError(
        "R-DATA-MISSING",
        f"{flag} {path}: no such file or folder",
        fix="use the folder that contains the files of the data set",
    )


def _to_inputs(recipe: Recipe, _: str, texts: Iterable[str]) -> tuple[InputSpec, ...]:
    from runner.core.recipe.inputs import override_inputs  # noqa: PLC0415

    return override_inputs(recipe.inputs, texts, Path.cwd())


def _extend_env(recipe: Recipe, flag: str, given: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the recipe and of the option, which win."""
    for name, value in given.items():
        _check_variable(flag, name, value)
    return {**recipe.env, **given}


def _extend_packages(recipe: Recipe, flag: str, given: tuple[str, ...]) -> tuple[str, ...]:
    """Return the packages of the recipe and of the option."""
    from runner.core.recipe.keys import explain_invalid_package  # noqa: PLC0415  loads pydantic

    for text in given:
        if refused := explain_invalid_package(text):
            what, fix = refused
            raise RunnerError("R-FLAG-VALUE", f"{flag}: {what}", fix=fix)
    return (*recipe.packages, *(text.strip() for text in given))


def _check_variable(flag: str, name: str, value: str) -> None:
    """Raise RunnerError for a variable that `env` of train.yaml does not accept."""
    from runner.core.recipe.keys import explain_invalid_variable  # noqa: PLC0415  loads pydantic

    if refused := explain_invalid_variable(name, value):
        what, why, fix = refused
        raise RunnerError("R-ENV", f"{flag} {name}: {what}", why=why, fix=fix)


def _in(allowed: range) -> Callable[[Recipe, str, int], int]:
    """Return a check for whole numbers."""

    def check(_: Recipe, flag: str, value: int) -> int:
        if value in allowed:
            return value
        least, most = allowed.start, allowed.stop - 1
        raise RunnerError(
            "R-FLAG-VALUE",
            f"invalid {flag} {value}",
            why=f"allowed: {least} to {most}",
            fix=f"{flag} {min(max(value, least), most)}",
        )

    return check


def _choose(flag: str, name: str, choices: Sequence[_Choice], usual: str) -> _Choice:
    """Return the choice of this name. Raise RunnerError if there is none."""
    import difflib  # noqa: PLC0415

    for choice in choices:
        if choice == name:
            return choice
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.4)
    raise RunnerError(
        "R-FLAG-VALUE",
        f"unknown {flag} {name}",
        why=f"allowed: {', '.join(choices)}",
        fix=f"{flag} {near[0] if near else usual}",
    )


def _to_params_as(_: Recipe, flag: str, name: str) -> ParamsAs:
    from runner.protocol.run_spec import PARAMS_AS  # noqa: PLC0415

    return _choose(flag, name, PARAMS_AS, "key=value")


def _to_capacity(_: Recipe, flag: str, name: str) -> Capacity:
    from runner.protocol.run_spec import Capacity  # noqa: PLC0415

    return _choose(flag, name, get_args(Capacity), "spot")


def _to_launcher(recipe: Recipe, flag: str, name: str) -> Launcher:
    """Return the launcher. Raise RunnerError if it is unknown or does not fit the recipe."""
    launcher = _choose(flag, name, _NAMES, "torchrun")
    processes = recipe.processes_per_node or 1
    if processes > 1 and LAUNCHERS[launcher].start == "command":
        raise RunnerError(
            "R-FLAG-VALUE",
            f"{flag} {name} does not fit the recipe",
            why=f"it starts one process on each node, but the recipe has `processes_per_node: "
            f"{processes}`",
            fix=f"{flag} torchrun",
        )
    return launcher


def _seconds_from(least: str) -> Callable[[Recipe, str, str], int]:
    """Return a check for durations from `least` to a week."""

    def check(_: Recipe, flag: str, text: str) -> int:
        from runner.core.units import parse_duration_flag  # noqa: PLC0415

        return int(parse_duration_flag(flag.removeprefix("--"), text, least, "7d").total_seconds())

    return check


def _to_keep_node(_: Recipe, flag: str, text: str) -> int | None:
    return parse_keep_node(text, flag)


def parse_keep_node(text: str, flag: str = "--keep-node") -> int | None:
    """Return the seconds of --keep-node, None for `off`. Raise RunnerError."""
    from runner.core.units import parse_duration_flag  # noqa: PLC0415

    if text == OFF:
        return None
    return int(parse_duration_flag(flag.removeprefix("--"), text, *KEPT_NODE).total_seconds())


def _to_micros(_: Recipe, _flag: str, usd: str) -> int:
    from runner.core.pricing.cost import to_micros  # noqa: PLC0415

    return to_micros(usd)


def _to_pools(_: Recipe, flag: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    return _split_list(flag, texts, "pools", "t4-spot,t4-dedicated")


def _to_gpu_models(_: Recipe, flag: str, texts: tuple[str, ...]) -> tuple[str, ...]:
    found = _split_list(flag, texts, "GPU models", "T4,A10")
    if all(text.isdecimal() for text in found):
        raise RunnerError(
            "R-FLAG-VALUE",
            f"{flag} {found[0]}: expected GPU models, not a number",
            why=f"{flag} names models in the order of preference",
            fix=f"--gpus {found[0]}, or {flag} T4,A10",
        )
    return found


def _split_list(flag: str, texts: tuple[str, ...], kind: str, example: str) -> tuple[str, ...]:
    """Return the names of a flag with commas between them. Raise RunnerError."""
    from runner.core.recipe.keys import explain_invalid_list  # noqa: PLC0415  loads pydantic

    found = tuple(name for text in texts for part in text.split(",") if (name := part.strip()))
    if problem := explain_invalid_list(found, kind):
        raise RunnerError("R-FLAG-VALUE", f"{flag}: {problem[0]}", fix=f"{flag} {example}")
    return found


def _to_fallback_after(_: Recipe, flag: str, text: str) -> int:
    from runner.core.units import parse_duration_flag  # noqa: PLC0415

    return int(parse_duration_flag(flag.removeprefix("--"), text, "1m", "7d").total_seconds())


def _extend_keep(recipe: Recipe, _: str, paths: tuple[str, ...]) -> KeepRule:
    from runner.protocol.run_spec import KeepRule  # noqa: PLC0415

    rule = recipe.keep or KeepRule(max_bytes=0)  # for `keep: false`
    return replace(rule, paths=(*rule.paths, *paths))


def _to_notify(recipe: Recipe, flag: str, text: str) -> NotifyRule | None:
    return parse_notify(text, recipe.notify, flag)


def parse_notify(text: str, rule: NotifyRule | None, flag: str = "--notify") -> NotifyRule | None:
    """Return the rule, or the default one, with the source of the URL in --notify; None for `off`.

    Raises:
        RunnerError: R-NOTIFY-SOURCE, the text is neither a variable nor a secret of a key vault.
    """
    from runner.core.recipe.secrets import check_source  # noqa: PLC0415
    from runner.protocol.run_spec import NOTIFY_VARIABLE, NotifyRule, SecretRef  # noqa: PLC0415

    if text == OFF:
        return None
    is_vault = "://" in text
    url = SecretRef(NOTIFY_VARIABLE, None if is_vault else text, text if is_vault else None)
    try:
        check_source(url)
    except ValueError as err:
        # The text may be the URL itself, so the message does not repeat it.
        raise RunnerError(
            "R-NOTIFY-SOURCE",
            f"invalid {flag}: expected where the URL of the webhook is, not the URL",
            why=f"the URL is a credential, and commands are in the history of the shell; {err}",
            fix=f"read -rs NOTIFY_URL && export NOTIFY_URL, and then {flag} NOTIFY_URL",
        ) from None
    return NotifyRule(url) if rule is None else replace(rule, url=url)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of a run as typed; None or empty if not given.

    A field has the name of the argument in Python.
    """

    args: tuple[str, ...] = _option(
        "Arguments of the script; {NAME} stands for the value of a parameter.",
        default=(),
        flag="",
        sets="",
        metavar="-- ARGS",
    )
    entry: str | None = _option(
        "Script, notebook or module to run, if RECIPE is a folder.", sets="", metavar="SCRIPT"
    )
    set: tuple[str, ...] = _option(
        "Parameter of the recipe, or `--NAME VALUE` of a script.",
        default=(),
        key="params",
        sets="",
        short="-s",
        metavar="NAME=VALUE",
        completes="param",
    )
    params_as: str | None = _option(
        "How the script gets parameters: flags (--name value), key=value or hydra.",
        metavar="FORM",
        check=_to_params_as,
        unset="hydra if the script uses Hydra or OmegaConf, else flags",
    )
    packages: tuple[str, ...] = _option(
        "Package to install, unless the requirements list it: numpy, 'torch>=2.4'.",
        default=(),
        flag="--package",
        metavar="NAME",
        check=_extend_packages,
    )
    env: Mapping[str, str] = _option(
        "Environment variable of the script, not for secrets; NAME alone passes that of this "
        "machine.",
        default=dict,
        metavar="NAME[=VALUE]",
        check=_extend_env,
    )
    data: Path | None = _option(  # noqa: RUF009  returns a field
        "File or folder with the data set.", sets="", check=_check_data
    )
    inputs: tuple[str, ...] = _option(
        "Input: a path, https://…, blob:CONTAINER/PREFIX, run:RUN/PATH, dataset:NAME or "
        "share:PATH.",
        default=(),
        flag="--input",
        short="-i",
        metavar="NAME=SPEC",
        check=_to_inputs,
    )
    pool: str | None = _option(
        "Pool to run on.", sets="", unset="the first that meets the requirements", completes="pool"
    )
    pools: tuple[str, ...] = _option(
        "Pools that the run may use, in order: it starts in the first that can start it, and moves "
        "to the next one if it waits or is evicted too often.",
        default=(),
        flag="--pools",
        metavar="POOL,POOL",
        check=_to_pools,
    )
    gpu: tuple[str, ...] = _option(
        "GPU models instead of --pools, in order: T4,A10.",
        default=(),
        metavar="MODEL,MODEL",
        check=_to_gpu_models,
    )
    fallback_after: str | None = _option(
        "Time that the run waits in one of its pools: 20m, 1h.",
        sets="fallback_after_s",
        metavar="TIME",
        unset="20m, unless the recipe sets another",
        check=_to_fallback_after,
    )
    fallback_evictions: int | None = _option(
        "Number of evictions within an hour after which it leaves one of its pools.",
        metavar="N",
        unset="3, unless the recipe sets another",
        check=_in(range(1, 101)),
    )
    experiment: str | None = _option(
        "Experiment that the run belongs to.",
        sets="",
        short="-e",
        unset="the recipe's name",
    )
    gpus: int | None = _option(
        "Minimum number of GPUs per node.",
        key="resources.gpus",
        metavar="N",
        check=_in(range(MAX_GPUS + 1)),
    )
    nodes: int | None = _option(
        "Number of nodes that the run uses at once.",
        key="resources.nodes",
        metavar="N",
        check=_in(range(1, MAX_NODES + 1)),
    )
    launcher: str | None = _option(
        f"Launcher of the command: {', '.join(_NAMES[:-1])} or {_NAMES[-1]}.",
        metavar="NAME",
        unset="python, unless the recipe names another",
        check=_to_launcher,
    )
    capacity: Capacity | None = _option(  # noqa: RUF009  returns a field
        "Kind of nodes to run on: spot, dedicated or spot-then-dedicated.",
        key="resources.capacity",
        metavar="KIND",
        check=_to_capacity,
        choice_flags={"--spot": "spot", "--dedicated": "dedicated"},
    )
    priority: int | None = _option(
        "Priority from -1000 to 1000; runs with a higher priority start first.",
        check=_in(PRIORITIES),
    )
    after: tuple[str, ...] = _option(
        "Start after this run has succeeded.", default=(), metavar="RUN", completes="run"
    )
    timeout: str | None = _option(
        "Time limit of the command: 90m, 2h, 1d.",
        sets="timeout_s",
        metavar="TIME",
        unset="none, unless the recipe sets one",
        check=_seconds_from("1s"),
        old_flag="--max-time",
    )
    idle_timeout: str | None = _option(
        "End the run after its GPUs (without GPUs: its CPUs) were idle for this long: 30m, 2h.",
        sets="idle_timeout_s",
        metavar="TIME",
        unset="none, unless the recipe sets one",
        check=_seconds_from("5s"),
    )
    keep_node: str | None = _option(
        "Keep the node for this long if the run fails, for `runner ssh`: 30m, 2h; off switches it "
        "off.",
        sets="keep_node_s",
        metavar="TIME",
        unset="not kept, unless the recipe sets a time",
        check=_to_keep_node,
    )
    max_cost: str | None = _option(
        "Cost cap in USD: the job ends before its nodes cost more.",
        sets="max_cost_micros",
        metavar="USD",
        check=_to_micros,
    )
    retries: int | None = _option(
        "Maximum number of additional attempts after a failure.",
        unset="0, unless the recipe sets another",
        check=_in(RETRIES),
    )
    keep: tuple[str, ...] = _option(
        "Keep these files of the script's folder at any size.",
        default=(),
        metavar="GLOB",
        check=_extend_keep,
    )

    notify: str | None = _option(
        "Variable of this machine, or URL of a secret in a key vault, with the URL of a webhook "
        "(Teams, Slack or JSON) that is told how the run goes; off switches it off.",
        metavar="NAME",
        unset="none, unless the recipe sets one",
        check=_to_notify,
    )

    @property
    def resources(self) -> Resources:
        """The resources that a pool in `pool` must have."""
        from runner.protocol.run_spec import Resources  # noqa: PLC0415

        return Resources(gpus=self.gpus, nodes=self.nodes or 1, capacity=self.capacity)


def _declared() -> Iterator[tuple[str, RunOption]]:
    """Yield the options by name, with the flag, key and field of the recipe that a name implies."""
    for each in fields(RunOptions):
        option: RunOption = each.metadata["option"]
        flag = f"--{each.name.replace('_', '-')}" if option.flag == "--" else option.flag
        key = option.key or each.name
        sets = key if option.sets is None else option.sets
        yield each.name, option._replace(flag=flag, key=key, sets=sets)


OPTIONS: Mapping[str, RunOption] = dict(_declared())


def is_repeatable(name: str) -> bool:
    """Return True if an option has several values."""
    return str(RunOptions.__dataclass_fields__[name].type).startswith(("tuple", "Mapping"))


def with_options(recipe: Recipe, options: RunOptions) -> Recipe:
    """Return the recipe with the options applied. Raise RunnerError for an invalid option."""
    _refuse_several_lists(options)
    changes: dict[str, dict[str, Any]] = {"": {}, "resources": {}}
    for name, option in OPTIONS.items():
        value = getattr(options, name)
        if value in (None, (), {}):
            continue
        if option.check is not None:
            value = option.check(recipe, option.flag, value)
        if option.sets:
            part, _, changed = option.sets.rpartition(".")
            changes[part][changed] = value
    if options.pool or options.pools or options.gpu:  # in place of the pools of the recipe
        changes[""] = {"pools": (), "gpu": (), **changes[""]}
    return replace(
        recipe, resources=replace(recipe.resources, **changes["resources"]), **changes[""]
    )


def _refuse_several_lists(options: RunOptions) -> None:
    """Raise RunnerError if several options choose the pool."""
    given = {"--pool": options.pool, "--pools": options.pools, "--gpu": options.gpu}
    first, *others = [flag for flag, value in given.items() if value] or [""]
    if others:
        raise RunnerError(
            "R-USAGE",
            f"{first} and {others[0]} exclude each other",
            why="each of them chooses the pools of the run",
            fix=f"remove {first}",
        )


def parse_env(texts: Iterable[str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of `--env NAME=VALUE`; `NAME` alone gets its value from `environment`.

    Messages do not repeat the texts, which may contain secrets.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name:
            raise RunnerError("R-ENV", "invalid --env: expected NAME=VALUE", fix="--env NAME=VALUE")
        if not equals:
            _check_variable("--env", name, "")
            if name not in environment:
                raise RunnerError(
                    "R-ENV",
                    f"--env {name}: no value, and this machine has no such variable",
                    why=f"--env {name} passes ${name} of this machine",
                    fix=f"--env {name}=VALUE",
                )
            value = environment[name]
        found[name] = value
    return found


def resolve_params(
    params: tuple[Param, ...],
    overrides: Iterable[str],
    notebook: str | None = None,
    recipe: RecipeSpec | None = None,
    words: Sequence[str] = (),
) -> dict[str, ParamValue]:
    """Return the value of each parameter: its override, else its default.

    Parameters without a value are omitted. If a script declares no parameters, all names are
    allowed and values are the texts as typed, because only the script knows its arguments. The text
    `null` is None, which leaves a parameter out, but Hydra gets it.

    Args:
        params: the declared parameters.
        overrides: `NAME=VALUE` texts.
        notebook: the notebook that declares the parameters, or None for a script.
        recipe: says how the script gets the parameters; None stands for flags.
        words: the words of the command; a name that they have in braces needs no declaration.

    Raises:
        RunnerError: an override is invalid.
    """
    from runner.protocol.commands import NULL, names_in_braces  # noqa: PLC0415

    declared = {param.name: param for param in params}
    values: dict[str, ParamValue] = {
        param.name: param.default for param in params if param.default is not None
    }
    params_as = "flags" if recipe is None else recipe.params_as
    allowed = _NAME if params_as == "flags" else _KEY
    given: dict[str, str] = {}
    for text in overrides:
        name, raw = _split(text)
        if name in given:
            raise _set_twice(name, given[name], raw)
        given[name] = raw
        is_null = raw == NULL and notebook is None and params_as != "hydra"
        if name in declared:
            is_null = is_null and NULL not in (declared[name].choices or ())
            values[name] = None if is_null else parse_value(declared[name], raw)
            continue
        is_free = not declared and notebook is None and allowed.fullmatch(name)
        if not is_free and name not in names_in_braces(words)[0]:
            raise _unknown_param(name, tuple(declared), notebook, params_as)
        values[name] = None if is_null else raw
    return values


def parse_value(param: Param, raw: str) -> ParamValue:
    """Return the text as a value of the parameter's type. Raise RunnerError if it is invalid."""
    value = _convert(param, raw)
    if param.choices is not None and value not in param.choices:
        allowed = ", ".join(str(choice) for choice in param.choices)
        raise _invalid_value(param, raw, f"allowed values: {allowed}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if param.min is not None and value < param.min:
            raise _invalid_value(param, raw, f"must be at least {_format_limit(param.min)}")
        if param.max is not None and value > param.max:
            raise _invalid_value(param, raw, f"must be at most {_format_limit(param.max)}")
    return value


def _split(text: str) -> tuple[str, str]:
    name, equals, raw = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise RunnerError(
            "R-SET-FORM",
            f"invalid --set {text!r}: expected NAME=VALUE",
            fix=f"-- {shlex.quote(text)}"  # Hydra: removes an entry
            if name.startswith("~")
            else f"--set {name or 'epochs'}=VALUE",
        )
    return name, raw


def _set_twice(name: str, first: str, second: str) -> RunnerError:
    return RunnerError(
        "R-SET-FORM",
        f"--set {name} is given twice",
        why=f"its values are {first!r} and {second!r}, and a run has one",
        fix=f"--set {name}={shlex.quote(second)} once, or a sweep with a trial for each value",
    )


def _convert(param: Param, raw: str) -> ParamValue:
    if param.type == "str":
        return raw
    if param.type == "bool":
        return _parse_bool(param, raw)
    if param.type in ("list", "any"):
        from runner.core.recipe.notebook import parse_text  # noqa: PLC0415

        found = parse_text(raw)
        if param.type == "list" and not isinstance(found, list):
            raise _invalid_value(param, raw, "must be a list, like [1, 2]")
        return found
    from runner.protocol.commands import as_written  # noqa: PLC0415

    try:
        value = int(raw) if param.type == "int" else float(raw)
    except ValueError as err:
        kind = "a whole number" if param.type == "int" else "a number"
        raise _invalid_value(param, raw, f"must be {kind}") from err
    if not math.isfinite(value):
        raise _invalid_value(param, raw, "must be a finite number")
    return as_written(value, raw.strip()) if param.is_inferred else value


def _parse_bool(param: Param, raw: str) -> bool:
    from runner.protocol.commands import parse_bool  # noqa: PLC0415

    value = parse_bool(raw)
    if value is None:
        raise _invalid_value(param, raw, "must be true or false")
    return value


def _format_limit(limit: float) -> str:
    return str(int(limit)) if float(limit).is_integer() else str(limit)


def _invalid_value(param: Param, raw: str, why: str) -> RunnerError:
    return RunnerError(
        "R-SET-VALUE",
        f"invalid value {raw!r} for parameter {param.name!r}",
        why=why,
        fix=f"--set {param.name}={_example(param)}   (type {param.type})",
    )


def _example(param: Param) -> str:
    default = param.default
    if default is not None and not (isinstance(default, float) and not math.isfinite(default)):
        return str(default)
    return str(param.choices[0]) if param.choices else "VALUE"


def _unknown_param(
    name: str, known: tuple[str, ...], notebook: str | None, params_as: ParamsAs
) -> RunnerError:
    import difflib  # noqa: PLC0415  only for an error

    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    fix = (
        "did you mean " + " or ".join(near) + "?" if near else "use one of the declared parameters"
    )
    if notebook is not None:
        from runner.core.recipe.notebook import unknown_param  # noqa: PLC0415

        return unknown_param(notebook, name, known, fix)
    if not known:
        from runner.protocol.commands import to_arguments  # noqa: PLC0415

        why = f"the script would receive it as {to_arguments({name: ''}, params_as)[0]}"
        plain = name.lstrip("-")
        fix = (
            f"write the name without dashes: {plain}"
            if plain != name and _NAME.fullmatch(plain)
            else "use letters, digits, _, - and . in the name"
        )
    else:
        why = f"declared parameters: {', '.join(known)}"
    return RunnerError("R-SET-UNKNOWN", f"parameter {name!r} is not declared", why=why, fix=fix)
