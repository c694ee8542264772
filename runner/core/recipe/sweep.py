"""The `sweep` block of train.yaml, and its changes by the command line and by Python.

The method `grid` makes one trial of every combination. `random` draws each trial with its own seed,
derived from the seed of the sweep and the number of the trial, so additional trials never change
earlier ones. A sampler of `runner/protocol/samplers.py` starts like `random`; later trials get
their parameters when they start, based on the reports of other trials
(`runner/node/agent/sweep_trial.py`).
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, model_validator

from runner.core.recipe.dimensions import (
    BLOBS,
    DISTRIBUTIONS,
    KINDS,
    MAX_TRIALS,
    Dimension,
    ParamSpace,
    Trial,
    Value,
    count_combinations,
    draw_trial,
    form_of_call,
    list_combinations,
    order_dimensions,
    to_dimension,
    to_named_dimension,
    to_yaml_value,
    with_declared_types,
)
from runner.core.recipe.keys import Command, key_error
from runner.core.yaml_files import (
    StrictModel,
    TextField,
    did_you_mean,
    explain_errors,
    one_of,
    read_inline,
)
from runner.protocol.errors import RunnerError
from runner.protocol.samplers import DEFAULT_SAMPLER, SAMPLER_NAMES, SAMPLERS, Method, learns
from runner.protocol.sweeps import StopRule
from runner.protocol.task import MAX_TASK_TRIALS

_DEFAULT_TRIALS = 20


Generator = Annotated[
    str,
    TextField(
        r"^[^:\\]+\.py:[A-Za-z_][A-Za-z0-9_]*$",
        "a generator",
        "a file below the recipe's folder, a colon and a function",
        "trials.py:make",
    ),
]


class EarlyStopFile(StrictModel):
    """The rule of early stopping, based on the values of a metric that trials report."""

    rule: Literal["median", "halving", "hyperband", "truncation", "bandit", "none"] = Field(
        "median", description="How trials are compared; see docs/guides/sweeps.md."
    )
    min_reports: int = Field(3, ge=3, description="Number of values before the first decision.")
    every: int = Field(1, ge=1, description="Number of values between two decisions.")
    factor: int = Field(
        3, ge=2, description="For halving and hyperband: one in this many trials continues."
    )
    brackets: int = Field(
        3, ge=1, description="For hyperband: number of brackets, which differ in their first rung."
    )
    share: float = Field(
        0.2, gt=0, lt=1, description="For truncation: share of the trials that stops."
    )
    slack: float = Field(
        0.2,
        gt=0,
        description="For bandit: allowed difference to the best trial, relative to its value.",
    )


class MergeFile(StrictModel, json_schema_extra=one_of("command", "recipe")):
    """A task that runs after all trials, with their outputs."""

    command: Command | None = Field(
        None, description="Command in the folder of the recipe: words or a list; no shell."
    )
    recipe: str | None = Field(None, min_length=1, description="A recipe, a folder or a script.")
    partial: bool = Field(False, description="Run the task even if some trials fail.")

    @model_validator(mode="after")
    def _one_source(self) -> MergeFile:
        if (self.command is None) == (self.recipe is None):
            problem = f"expected command or recipe, got {'both' if self.command else 'neither'}"
            raise key_error(problem, "write `command: python merge.py`, or `recipe: ./merge`")
        return self


def _expand_merge(value: object) -> object:
    return {"command": value} if isinstance(value, str) else value


Merge = Annotated[
    MergeFile, BeforeValidator(_expand_merge, json_schema_input_type=str | dict[str, Any])
]


# Names of other programs: for the same rule, and what has another name here.
_SAME_RULES = {
    **dict.fromkeys(("asha", "sha", "successive_halving", "successivehalving"), "halving"),
    **dict.fromkeys(("median_stopping", "medianstopping"), "median"),
}
_SAMPLERS_ELSEWHERE = frozenset(
    {"bayes", "bayesian", "bayesopt", "bohb", "optuna", "hyperopt", "gp", "skopt"}
)


def _expand_rule(value: object) -> object:
    if isinstance(value, str):
        return {"rule": _SAME_RULES.get(value.lower(), value)}
    if isinstance(value, dict):
        raw = cast("dict[str, Any]", value)
        return {**raw, "rule": _SAME_RULES.get(str(raw.get("rule")), raw.get("rule", "median"))}
    return value


def _check_method(value: object) -> object:
    """Return the method; raise an error for names of other programs."""
    name = value.lower() if isinstance(value, str) else ""
    rule = _SAME_RULES.get(name, name if name in ("hyperband", "median") else "")
    if rule:
        raise key_error(
            f"{value!r} is a rule of early stopping, not a method",
            f"use --early-stop {rule}, or write `early_stop: {rule}`",
            "the method chooses parameters, and the rule stops poor trials",
        )
    if name in _SAMPLERS_ELSEWHERE:
        raise key_error(f"unknown method {value!r}", "use tpe, which learns from results")
    same = {"grid_search": "grid", "gridsearch": "grid", "random_search": "random"}
    return same.get(name, value)


EarlyStop = Annotated[
    EarlyStopFile, BeforeValidator(_expand_rule, json_schema_input_type=str | dict[str, Any])
]


class SweepFile(StrictModel, json_schema_extra=one_of("params", "generator")):
    """The trials of a sweep."""

    params: dict[str, ParamSpace] = Field(
        default_factory=dict,
        description="Per parameter, a list, a distribution or another kind: docs/guides/sweeps.md.",
    )
    generator: Generator | None = Field(
        None, description="Instead of params: FILE.py:FUNCTION, a generator of one dict per trial."
    )
    method: Annotated[Method | None, BeforeValidator(_check_method)] = Field(
        None,
        description=f"Defaults to grid if all parameters are lists, else to {DEFAULT_SAMPLER} if "
        "there is a metric and no `repeat`, else to random.",
    )
    metric: str | None = Field(
        None,
        min_length=1,
        description="Metric that compares trials; defaults to the recipe's primary metric.",
    )
    goal: Literal["max", "min"] | None = Field(
        None, description="Whether to minimize or maximize `metric`; by default, its name decides."
    )
    early_stop: EarlyStop | None = Field(
        None,
        description="median, halving, hyperband, truncation, bandit or none; defaults to median "
        f"with method {SAMPLER_NAMES}.",
    )
    trials: int | None = Field(
        None,
        ge=1,
        le=MAX_TRIALS,
        description=f"Number of trials with method random or {SAMPLER_NAMES}; defaults to "
        f"{_DEFAULT_TRIALS}.",
    )
    repeat: int = Field(1, ge=1, le=MAX_TRIALS, description="Number of runs per trial.")
    seed: int = Field(0, description="Seed of random values: the same seed gives the same trials.")
    max_parallel: int | None = Field(
        None, ge=1, description="Maximum number of trials that run at the same time."
    )
    trials_per_task: int = Field(
        1,
        ge=1,
        le=MAX_TASK_TRIALS,
        description="Number of trials that a task of Batch runs one after another, for trials of "
        "a few seconds.",
    )
    merge: Merge | None = Field(
        None,
        description="A task after all trials, with their outputs in $RUNNER_INPUT_TRIALS.",
    )

    _given: tuple[Trial, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _consistent(self) -> SweepFile:
        if bool(self.params) == (self.generator is not None):
            problem = f"expected params or generator, got {'both' if self.params else 'neither'}"
            raise key_error(
                problem, "write `params: {lr: [0.1, 0.01]}`, or `generator: trials.py:make`"
            )
        if self.generator and (self.method or self.trials):
            raise key_error(
                "a generator decides the number of trials", "remove `method` and `trials`"
            )
        dimensions = [to_named_dimension(key, value) for key, value in self.params.items()]
        names = [name for each in dimensions for name in each.names]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise key_error(f"{name} has two entries in params", "remove one of them")
        order_dimensions(dimensions)
        drawn = [each.names[0] for each in dimensions if each.distribution]
        if self.method == "grid" and drawn:
            raise key_error(
                f"{drawn[0]} is a distribution, but a grid needs lists",
                f"use `method: random`, or write a list for {drawn[0]}",
            )
        if self.trials is not None and self._is_grid(drawn):
            raise key_error(
                "`trials` has no effect: a grid has one trial per combination",
                "remove `trials`, or use `method: random`",
            )
        return self

    def _is_grid(self, drawn: Sequence[str]) -> bool:
        return self.method == "grid" or (self.method is None and not drawn)

    def with_trials(self, trials: Sequence[Trial]) -> SweepFile:
        """Return a sweep with exactly these trials."""
        copy = self.model_copy()
        copy._given = tuple(trials)
        return copy

    def choose_method(self, metric: str | None) -> Method:
        """Return the method of the sweep. `metric` is the metric that compares trials, or None.

        Raises:
            RunnerError: R-SWEEP-METRIC, the method, early stopping or goal requires a metric;
                R-SWEEP, a sampler cannot repeat trials.
        """
        drawn = [key for key, value in self.params.items() if set(value) & set(DISTRIBUTIONS)]
        needs = {
            f"method: {self.method}": learns(self.method),
            "early_stop": self.stops_early,
            "goal": self.goal is not None,
        }
        if metric is None and any(needs.values()):
            raise RunnerError(
                "R-SWEEP-METRIC",
                f"sweep: `{next(name for name, wanted in needs.items() if wanted)}` requires a "
                "metric",
                why="neither the recipe nor the sweep names a metric",
                fix="use --metric NAME, or write `metric: NAME` in `sweep`",
            )
        if self.generator is not None or self._is_grid(drawn):
            return "grid"
        if self.method in SAMPLERS and self.repeat > 1:
            raise RunnerError(
                "R-SWEEP",
                f"sweep: `repeat` does not apply to `method: {self.method}`",
                why="the sampler chooses the parameters of each trial separately",
                fix="use more `trials` instead, or `method: random`",
            )
        return self.method or ("random" if metric is None or self.repeat > 1 else DEFAULT_SAMPLER)

    def with_types(self, types: Mapping[str, Callable[[str], Value]]) -> SweepFile:
        """Return the sweep with the values of parameters that `types` reads from their texts."""
        if not types or not self.params:
            return self
        params = {key: with_declared_types(key, raw, types) for key, raw in self.params.items()}
        return self.model_copy(update={"params": params})

    @property
    def stops_early(self) -> bool:
        """True if the sweep has a rule of early stopping."""
        return self.early_stop is not None and self.early_stop.rule != "none"

    def stop_rule(self, method: str) -> StopRule | None:
        """Return the rule of early stopping, or None."""
        if self.early_stop is not None:
            return StopRule.from_json(self.early_stop.model_dump()) if self.stops_early else None
        return StopRule() if learns(method) else None

    @property
    def blob_patterns(self) -> dict[str, str]:
        """The patterns of blobs, `container/prefix/*.csv`, by parameter."""
        patterns = ((key, value.get("files")) for key, value in self.params.items())
        return {
            key: found.removeprefix(BLOBS).strip("/")
            for key, found in patterns
            if isinstance(found, str) and found.startswith(BLOBS)
        }

    def with_blobs(self, names: Mapping[str, Sequence[str]]) -> SweepFile:
        """Return the sweep with the matching blobs of each parameter instead of its pattern."""
        params = {
            key: {**{k: v for k, v in value.items() if k != "files"}, "choice": list(names[key])}
            if key in names
            else value
            for key, value in self.params.items()
        }
        return self.model_copy(update={"params": params})

    def space(self, folder: Path) -> tuple[dict[str, Any], ...]:
        """Return the dimensions as the sampler reads them."""
        return tuple(each.to_json() for each in self.dimensions(folder))

    def dimensions(self, folder: Path) -> tuple[Dimension, ...]:
        """Return the parameters, each after those that it depends on.

        Args:
            folder: base of the globs in `files`.

        Raises:
            RunnerError: R-SWEEP-FILES, a glob matches nothing.
        """
        found = [to_dimension(key, value, folder) for key, value in self.params.items()]
        return tuple(order_dimensions(found))

    def list_trials(self, folder: Path) -> tuple[Trial, ...]:
        """Return the parameters of all trials.

        Raises:
            RunnerError: R-SWEEP-SIZE, there are more than `MAX_TRIALS`; R-SWEEP-FILES,
                R-SWEEP-BOUNDS.
        """
        if self._given:
            return self.repeated(self._given)
        dimensions = self.dimensions(folder)
        if self._is_grid([each.names[0] for each in dimensions if each.distribution]):
            return self.repeated(list_combinations(dimensions, {}), count_combinations(dimensions))
        numbers = range(self.trials or _DEFAULT_TRIALS)
        generators = (random.Random(f"{self.seed}/{number}") for number in numbers)  # noqa: S311
        return self.repeated(draw_trial(dimensions, rng) for rng in generators)

    def repeated(self, trials: Iterable[Trial], count: int | None = None) -> tuple[Trial, ...]:
        """Return each trial `repeat` times; `count` is their number, if known.

        Raises:
            RunnerError: R-SWEEP-SIZE, there are too many.
        """
        most = MAX_TRIALS // self.repeat
        found = list(itertools.islice(trials, most + 1))
        if len(found) > most:
            number = f"{count:,}" if count and self.repeat == 1 else f"more than {most:,}"
            times = f", {self.repeat} times each" if self.repeat > 1 else ""
            raise RunnerError(
                "R-SWEEP-SIZE",
                f"sweep: {number} trials{times}",
                why=f"a sweep has at most {MAX_TRIALS:,} trials",
                fix=f"let {self.generator or 'the generator'} yield fewer trials"
                if self.generator or self._given
                else "use fewer values, or try 100 combinations: --method random --trials 100",
            )
        return tuple(trial for trial in found for _ in range(self.repeat))


def change_sweep(
    sweep: SweepFile | None,
    params: Mapping[str, object],
    changes: Mapping[str, object],
    *,
    declared: Sequence[str] = (),
) -> SweepFile:
    """Return a sweep with other parameters and keys.

    Args:
        sweep: that of train.yaml, or None.
        params: entries of `params`, which replace entries with the same name.
        changes: other keys of `SweepFile`; None does not change a key.
        declared: names of the parameters that the recipe declares, for the error.

    Raises:
        RunnerError: R-SWEEP-EMPTY or R-SWEEP, the sweep is invalid.
    """
    document = {} if sweep is None else sweep.model_dump(exclude_defaults=True)
    document |= {name: value for name, value in changes.items() if value is not None}
    if params:
        document["params"] = {**document.get("params", {}), **params}
        document.pop("generator", None)
    if not document:
        raise RunnerError(
            "R-SWEEP-EMPTY",
            "the sweep has no parameters",
            why="train.yaml has no `sweep`, and no --param was given",
            fix=f"--param NAME=VALUE,VALUE with a NAME of {', '.join(declared)}"
            if declared
            else "--param learning_rate=0.1,0.01,0.001",
        )
    try:
        return SweepFile.model_validate(document)
    except ValidationError as err:
        first = explain_errors(document, SweepFile, err.errors())[0]
        where = ".".join(["sweep", *map(str, first.place)])
        raise RunnerError(
            "R-SWEEP", f"{where}: {first.what}", why=first.why, fix=first.fix
        ) from err


def replace_trials(
    sweep: SweepFile | None, trials: Iterable[object], changes: Mapping[str, object]
) -> SweepFile:
    """Return a sweep with these trials instead of those that its parameters define.

    Args:
        sweep: that of train.yaml, or None.
        trials: the parameters of each trial, as mappings; at most `MAX_TRIALS` + 1 are read.
        changes: as for `change_sweep`.

    Raises:
        RunnerError: R-SWEEP, a trial is invalid.
    """
    if changes.get("method") or changes.get("trials"):
        raise RunnerError(
            "R-SWEEP",
            "sweep: the given trials decide the parameters and the number of trials",
            fix="remove `method` and `trials`",
        )
    found = [to_yaml_value(each) for each in itertools.islice(trials, MAX_TRIALS + 1)]
    given = [cast("Trial", each) for each in found if isinstance(each, dict) and each]
    if len(given) < len(found) or not found:
        wrong: list[object] = [each for each in found if not isinstance(each, dict) or not each]
        raise RunnerError(
            "R-SWEEP",
            f"sweep: invalid trial {wrong[0]!r}" if wrong else "sweep: no trials",
            why="a trial is a dict of its parameters" if wrong else "the generator yielded nothing",
            fix='yield one dict per trial, like {"learning_rate": 0.1}',
        )
    values: dict[str, object] = {}
    for name in dict.fromkeys(name for trial in given for name in trial):
        values[name] = [trial[name] for trial in given if name in trial]
    own: dict[str, object] = {"params": {}, "method": None, "trials": None}
    return change_sweep(sweep and sweep.model_copy(update=own), values, changes).with_trials(given)


def parse_params(texts: Iterable[str]) -> dict[str, object]:
    """Return the values of `--param` options by name. Raise RunnerError: R-SWEEP-PARAM."""
    found: dict[str, object] = {}
    for name, value in map(parse_param, texts):
        if name in found:
            raise RunnerError(
                "R-SWEEP-PARAM",
                f"--param {name} is given twice",
                why="each parameter has one list of values, or one distribution",
                fix=f"write all values in one option: --param {name}=0.1,0.01",
            )
        found[name] = value
    return found


def parse_param(text: str) -> tuple[str, object]:
    """Return the name and the value of `NAME=0.1,0.01`, or of `NAME=` and YAML in one line.

    Values keep their text: `1e3`, `007`, `True` and dates arrive as with `--set`.

    Raises:
        RunnerError: R-SWEEP-PARAM, the text is invalid.
    """
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415  most commands read no YAML

    # `a, b: {zip: …}`, as train.yaml has it, is accepted, too.
    is_yaml = re.match(r"[^=:{}\[\]]+:\s+\S", text)
    name, equals, raw = text.partition(":" if is_yaml else "=")
    raw = raw.strip()
    if not equals or not name.strip() or not raw:
        raise RunnerError(
            "R-SWEEP-PARAM",
            f"invalid --param {text!r}: expected NAME=VALUES",
            fix=f"--param {name.strip() or 'learning_rate'}=0.1,0.01",
        )
    if name.strip().startswith("-"):
        raise RunnerError(
            "R-SWEEP-PARAM",
            f"invalid --param {text!r}",
            why="the name of a parameter has no dashes before it: the script gets --NAME VALUE",
            fix=f"--param {text.strip().lstrip('-')}",
        )
    if call := re.fullmatch(r"[\w.]*?(\w+)\(([^()]*)\)", raw):
        raise RunnerError(
            "R-SWEEP-PARAM",
            f"invalid --param {text!r}",
            why=f"{call[1]}(...) is not a value",
            fix=_correct_call(name.strip(), call[1], call[2]),
        )
    try:
        return name.strip(), read_inline(raw if raw[0] in "[{" else f"[{raw}]")
    except YAMLError as err:
        raise RunnerError(
            "R-SWEEP-PARAM",
            f"invalid --param {text!r}",
            why=str(err).splitlines()[0],
            fix=_correct_param(name.strip(), raw),
        ) from err


def _correct_call(name: str, word: str, arguments: str) -> str:
    """Return an option that is probably meant by a call such as `uniform(0, 1)`."""
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415  as above

    form = ""
    with suppress(YAMLError):
        form = form_of_call(word, read_inline(f"[{arguments}]"))
    if not form and word not in KINDS and (near := did_you_mean(word, KINDS)):
        return near
    return f"--param '{name}={form}'" if form else f"write a list of values: --param {name}=1,2"


def _correct_param(name: str, raw: str) -> str:
    """Return an option that is probably meant by a value that is not YAML."""
    if re.fullmatch(r"[\w./-]*[*?][\w./*?-]*", raw):
        return f"--param '{name}={{files: \"{raw}\"}}'"
    if re.fullmatch(r"\[[^][]*\](\s*,\s*\[[^][]*\])+", raw):
        texts = ", ".join(f'"{text}"' for text in re.findall(r"\[[^][]*\]", raw))
        return f"--param '{name}={{choice: [{texts}]}}'"
    return f"write YAML in one line, like --param '{name}={{uniform: [0, 1]}}' or {name}=[1, 2]"
