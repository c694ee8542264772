"""The `sweep` block of train.yaml: its grammar, and the parameters of each trial.

A key of `params` is the name of a parameter, or of several with commas. Its value is a list of
values, or one of these:

- `{choice: [adam, sgd]}`: the list, which may have a condition (`when`);
- `{range: [1, 9, 2]}`: whole numbers from the first to the second inclusive, in steps;
- `{files: "data/*.csv"}`: the files of the recipe's folder, one trial each;
- `{files: "blob:container/prefix/*.csv"}`: blobs, one trial each;
- for several parameters: `{zip: [[1, 2], [3, 4]]}`, `{combinations: [1, 2, 3]}` or
  `{permutations: [1, 2, 3]}`;
- a distribution to draw from, like `{loguniform: [1e-5, 1e-1]}`.

`when` limits a parameter to trials in which other parameters have certain values. The method `grid`
makes one trial of every combination. `random` draws each trial with its own seed, derived from the
seed of the sweep and the number of the trial, so additional trials never change earlier ones. `tpe`
starts like `random`; later trials get their parameters when they start, based on the reports of
other trials (`runner/node/agent/sweep_trial.py`).
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from runner.core.recipe.keys import Command, key_error
from runner.core.yaml_files import StrictModel, TextField, did_you_mean, explain_errors, one_of
from runner.protocol.errors import RunnerError
from runner.protocol.sweeps import StopRule

Value = bool | int | float | str
Trial = dict[str, Value]

BLOBS = "blob:"  # prefix of a pattern in `files` that matches blobs
MAX_TRIALS = 10_000
DEFAULT_TRIALS = 20
_MAX_DRAWS = 1000  # maximum number of draws to get a value between `min` and `max`
_MAX_SHAPE = 1e9  # with much larger shapes, Python's gammavariate never ends
_DIGITS = 6  # significant digits of a drawn number


@dataclass(frozen=True, slots=True)
class _Distribution:
    """A distribution: how to draw a number, and the rule for its arguments in words and as code."""

    arguments: tuple[str, ...]
    draw: Callable[..., float]
    rule: str
    holds: Callable[[tuple[float, ...]], bool]
    whole: bool = False


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _positive(numbers: tuple[float, ...]) -> bool:
    return min(numbers) > 0


# Python's `random` draws them (https://docs.python.org/3/library/random.html, read 2026-11-23).
DISTRIBUTIONS: Mapping[str, _Distribution] = {
    "uniform": _Distribution(
        ("low", "high"), random.Random.uniform, "low < high", lambda n: n[0] < n[1]
    ),
    "loguniform": _Distribution(
        ("low", "high"),
        _log_uniform,
        "0 < low < high",
        lambda n: 0 < n[0] < n[1],
    ),
    "integers": _Distribution(
        ("low", "high"),
        random.Random.randint,
        "low < high, both whole",
        lambda n: n[0] < n[1] and n[0].is_integer() and n[1].is_integer(),
        whole=True,
    ),
    "normal": _Distribution(
        ("mean", "deviation"),
        random.Random.gauss,
        "deviation > 0",
        lambda n: n[1] > 0,
    ),
    "lognormal": _Distribution(
        ("mean", "deviation"),
        random.Random.lognormvariate,
        "deviation > 0",
        lambda n: n[1] > 0,
    ),
    "triangular": _Distribution(
        ("low", "high", "mode"),
        random.Random.triangular,
        "low <= mode <= high",
        lambda n: n[0] < n[1] and n[0] <= n[2] <= n[1],
    ),
    "beta": _Distribution(
        ("alpha", "beta"),
        random.Random.betavariate,
        "0 < alpha < 1e9 and 0 < beta < 1e9",
        lambda n: min(n) > 0 and max(n) < _MAX_SHAPE,
    ),
    "gamma": _Distribution(
        ("shape", "scale"),
        random.Random.gammavariate,
        "0 < shape < 1e9 and scale > 0",
        lambda n: 0 < n[0] < _MAX_SHAPE and n[1] > 0,
    ),
    "exponential": _Distribution(("rate",), random.Random.expovariate, "rate > 0", _positive),
    "pareto": _Distribution(("shape",), random.Random.paretovariate, "shape > 0", _positive),
    "weibull": _Distribution(
        ("scale", "shape"), random.Random.weibullvariate, "scale > 0 and shape > 0", _positive
    ),
}
_LIST_KINDS = ("choice", "range", "files")
_JOINT_KINDS = ("zip", "combinations", "permutations")
_KINDS = (*_LIST_KINDS, *_JOINT_KINDS, *DISTRIBUTIONS)


@dataclass(frozen=True, slots=True)
class Dimension:
    """One parameter, or several that are set together.

    Attributes:
        names: The parameters.
        rows: The values, one per name in each row; empty for a distribution.
        distribution: Name of the distribution, or None; `arguments` are its arguments.
        when: The values of other parameters that are required for these parameters.
        low: The smallest allowed value of a distribution.
        high: The largest allowed value of a distribution.
    """

    names: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...] = ()
    distribution: str | None = None
    arguments: tuple[float, ...] = ()
    when: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    low: float = -math.inf
    high: float = math.inf

    def applies(self, trial: Trial) -> bool:
        """Return True if the trial has the values that `when` requires."""
        return all(name in trial and trial[name] in values for name, values in self.when)

    def to_json(self) -> dict[str, Any]:
        """Return the dimension as the document that the sampler reads."""
        common = {"names": list(self.names), "when": [[name, list(v)] for name, v in self.when]}
        if self.distribution is None:
            return {**common, "kind": "rows", "rows": [list(row) for row in self.rows]}
        if self.distribution not in ("uniform", "loguniform", "integers"):
            return {**common, "kind": self.distribution}
        low, high = max(self.arguments[0], self.low), min(self.arguments[1], self.high)
        return {**common, "kind": self.distribution, "low": low, "high": high}

    def draw(self, rng: random.Random) -> tuple[Value, ...]:
        """Return a value for each name.

        Raises:
            RunnerError: R-SWEEP-BOUNDS, hardly any value of the distribution is within its bounds.
        """
        if self.distribution is None:
            return rng.choice(self.rows)
        known = DISTRIBUTIONS[self.distribution]
        arguments = map(int, self.arguments) if known.whole else self.arguments
        arguments = tuple(arguments)
        for _ in range(_MAX_DRAWS):
            try:
                number = known.draw(rng, *arguments)
            except OverflowError:  # for example, e to the power of 1000
                continue
            if self.low <= number <= self.high and math.isfinite(number):
                return (number if known.whole else float(f"{number:.{_DIGITS}g}"),)
        raise RunnerError(
            "R-SWEEP-BOUNDS",
            f"sweep: found no value of {self.names[0]} between {self.low:g} and {self.high:g}",
            why=f"{_MAX_DRAWS} values of {self.distribution}{list(self.arguments)} were outside",
            fix=f"change min and max of {self.names[0]}, or its distribution",
        )


def _to_yaml_value(value: object) -> object:
    """Return a Python value as YAML would contain it: a tuple, range or NumPy array as a list."""
    if hasattr(value, "tolist"):
        value = cast("Any", value).tolist()
    if isinstance(value, list | tuple | range):
        values = itertools.islice(cast("Iterable[object]", value), MAX_TRIALS + 1)
        return [_to_yaml_value(each) for each in values]
    if isinstance(value, dict):
        return {
            name: _to_yaml_value(each) for name, each in cast("dict[str, object]", value).items()
        }
    return value


def _check_param(value: object) -> object:
    """Check one parsed entry of `params`. Return it as a mapping."""
    value = _to_yaml_value(value)
    if isinstance(value, list):
        return {"choice": cast("list[object]", value)}
    if not isinstance(value, dict):
        if not is_value(value):
            fix = "use a list of values, or a distribution, like {uniform: [0, 1]}"
            raise key_error(f"{value!r} is not a list of values", fix)
        raise key_error(
            f"{value!r} is a single value",
            f"write a list, like [{value}, …], or pass the value with --set",
        )
    raw = cast("dict[str, Any]", value)
    kinds = [key for key in raw if key in _KINDS]
    others = [key for key in raw if key not in (*_KINDS, "when", "min", "max")]
    if others:
        raise key_error(
            f"{others[0]!r} is not a distribution",
            did_you_mean(str(others[0]), _KINDS) or f"use one of {', '.join(_KINDS)}",
        )
    if len(kinds) != 1:
        problem = f"expected one of {', '.join(_KINDS)}, got {' and '.join(kinds) or 'none'}"
        raise key_error(problem, "write a list, or {uniform: [0, 1]}")
    return raw


ParamSpace = Annotated[
    dict[str, Any],
    BeforeValidator(_check_param, json_schema_input_type=list[Value] | dict[str, Any]),
]


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


def _expand_rule(value: object) -> object:
    return {"rule": value} if isinstance(value, str) else value


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
    method: Literal["grid", "random", "tpe"] | None = Field(
        None,
        description="Defaults to grid if all parameters are lists, else to tpe if there is a "
        "metric and no `repeat`, else to random.",
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
        "with method tpe.",
    )
    trials: int | None = Field(
        None,
        ge=1,
        le=MAX_TRIALS,
        description=f"Number of trials with method random or tpe; defaults to {DEFAULT_TRIALS}.",
    )
    repeat: int = Field(1, ge=1, le=MAX_TRIALS, description="Number of runs per trial.")
    seed: int = Field(0, description="Seed of random values: the same seed gives the same trials.")
    max_parallel: int | None = Field(
        None, ge=1, description="Maximum number of trials that run at the same time."
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
        dimensions = [_named_dimension(key, value) for key, value in self.params.items()]
        names = [name for each in dimensions for name in each.names]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise key_error(f"{name} has two entries in params", "remove one of them")
        _order_dimensions(dimensions)
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

    def choose_method(self, metric: str | None) -> Literal["grid", "random", "tpe"]:
        """Return the method of the sweep. `metric` is the metric that compares trials, or None.

        Raises:
            RunnerError: R-SWEEP-METRIC, the method, early stopping or goal requires a metric;
                R-SWEEP, a sampler cannot repeat trials.
        """
        drawn = [key for key, value in self.params.items() if set(value) & set(DISTRIBUTIONS)]
        needs = {
            "method: tpe": self.method == "tpe",
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
        if self.method == "tpe" and self.repeat > 1:
            raise RunnerError(
                "R-SWEEP",
                "sweep: `repeat` does not apply to `method: tpe`",
                why="the sampler chooses the parameters of each trial separately",
                fix="use more `trials` instead, or `method: random`",
            )
        return self.method or ("random" if metric is None or self.repeat > 1 else "tpe")

    @property
    def stops_early(self) -> bool:
        """True if the sweep has a rule of early stopping."""
        return self.early_stop is not None and self.early_stop.rule != "none"

    def stop_rule(self, method: str) -> StopRule | None:
        """Return the rule of early stopping, or None."""
        if self.early_stop is not None:
            return StopRule.from_json(self.early_stop.model_dump()) if self.stops_early else None
        return StopRule() if self.early_stop is None and method == "tpe" else None

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
        found = [_dimension(key, value, folder) for key, value in self.params.items()]
        return tuple(_order_dimensions(found))

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
            return self.repeated(_combinations(dimensions, {}), _count_combinations(dimensions))
        numbers = range(self.trials or DEFAULT_TRIALS)
        generators = (random.Random(f"{self.seed}/{number}") for number in numbers)  # noqa: S311
        return self.repeated(_draw_trial(dimensions, rng) for rng in generators)

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


def _combinations(dimensions: Sequence[Dimension], trial: Trial) -> Iterator[Trial]:
    """Yield every combination; the last parameter changes fastest."""
    if not dimensions:
        yield trial
        return
    first, rest = dimensions[0], dimensions[1:]
    if not first.applies(trial):
        yield from _combinations(rest, trial)
        return
    for row in first.rows:
        yield from _combinations(rest, {**trial, **dict(zip(first.names, row, strict=True))})


def _count_combinations(dimensions: Sequence[Dimension]) -> int | None:
    """Return the number of combinations, or None if it is known only after building them."""
    counts = [len(each.rows) for each in dimensions]
    if any(each.when for each in dimensions) or max(counts, default=0) > MAX_TRIALS:
        return None
    return math.prod(counts)


def _draw_trial(dimensions: Sequence[Dimension], rng: random.Random) -> Trial:
    trial: Trial = {}
    for each in dimensions:
        values = each.draw(
            rng
        )  # draw even if it does not apply, so that other parameters keep their values
        if each.applies(trial):
            trial |= zip(each.names, values, strict=True)
    return trial


def _dimension(key: str, raw: Mapping[str, Any], folder: Path | None = None) -> Dimension:
    """Return the parameters of an entry. If `folder` is None, do not search `files`."""
    names = tuple(name.strip() for name in key.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise key_error(
            f"{key!r} is not a list of parameter names", 'write "a, b" for two parameters'
        )
    [kind] = (each for each in raw if each in _KINDS)
    when = _parse_condition(raw.get("when"))
    if kind in DISTRIBUTIONS:
        if len(names) > 1:
            raise key_error(
                f"{kind} gives one value, not {len(names)}", "write one entry per parameter"
            )
        numbers = _parse_arguments(kind, raw[kind])
        low, high = _parse_bounds(raw)
        return Dimension(names, (), kind, numbers, when, low, high)
    if "min" in raw or "max" in raw:
        raise key_error(f"min and max do not apply to {kind}", "remove them")
    return Dimension(names, _parse_rows(names, kind, raw[kind], folder), when=when)


def _named_dimension(key: str, raw: Mapping[str, Any]) -> Dimension:
    """Return the parameters of an entry. Name the entry in an error."""
    try:
        return _dimension(key, raw)
    except PydanticCustomError as err:
        context = err.context or {}
        problem, why = f"{key}: {context['problem']}", context.get("why", "")
        raise key_error(problem, context["fix"], why) from err


def _parse_condition(raw: object) -> tuple[tuple[str, tuple[Value, ...]], ...]:
    if raw is None:
        return ()
    if not isinstance(raw, dict) or not raw:
        raise key_error("`when` names no parameter", "write `when: {optimizer: sgd}`")
    return tuple(
        (name, tuple(_check_scalars(_to_list(value))))
        for name, value in cast("dict[str, Any]", raw).items()
    )


def _to_list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else [value]


def _parse_arguments(kind: str, raw: object) -> tuple[float, ...]:
    known = DISTRIBUTIONS[kind]
    numbers = _to_list(raw)
    example = f"{kind}: [{', '.join(known.arguments)}]"
    given = tuple(
        float(number)
        for number in numbers
        if isinstance(number, int | float) and not isinstance(number, bool)
    )
    if len(given) < len(numbers) or len(given) != len(known.arguments):
        raise key_error(f"invalid arguments {raw!r} for {kind}", f"write `{example}`")
    if not all(map(math.isfinite, given)) or not known.holds(given):
        problem = f"invalid arguments {list(given)} for `{example}`"
        if not all(map(math.isfinite, given)):
            raise key_error(problem, "use finite numbers", "no values can be drawn between them")
        raise key_error(problem, f"use numbers where {known.rule}", f"{kind} needs {known.rule}")
    return given


def _parse_bounds(raw: Mapping[str, Any]) -> tuple[float, float]:
    low, high = raw.get("min", -math.inf), raw.get("max", math.inf)
    if not all(isinstance(each, int | float) for each in (low, high)) or not low < high:
        raise key_error(
            f"no value is between min {low} and max {high}", "use numbers, min below max"
        )
    return float(low), float(high)


def _parse_rows(
    names: Sequence[str], kind: str, raw: object, folder: Path | None
) -> tuple[tuple[Value, ...], ...]:
    if kind in _JOINT_KINDS and len(names) == 1:
        raise key_error(f"{kind} needs several parameters", f'write "{names[0]}, b" as the key')
    if kind == "files":
        return tuple((name,) for name in _find_files(names[0], raw, folder))
    if not isinstance(raw, list) or not raw:
        raise key_error(
            f"{kind} has no values",
            "write a list with at least one value",
            "without values, the sweep has no trials",
        )
    values = cast("list[object]", raw)
    if kind == "range":
        return tuple((number,) for number in _parse_range(values))
    if kind == "zip":
        columns = [_check_scalars(each) for each in values]
        if len(columns) != len(names) or len({len(each) for each in columns}) != 1:
            problem = f"zip needs {len(names)} lists of the same length, one for each parameter"
            raise key_error(problem, "write `zip: [[1, 2], [3, 4]]`")
        return tuple(zip(*columns, strict=True))
    if kind in ("combinations", "permutations"):
        choose = itertools.combinations if kind == "combinations" else itertools.permutations
        rows = tuple(itertools.islice(choose(_check_scalars(values), len(names)), MAX_TRIALS + 1))
        if not rows:
            problem = f"{kind} of {len(names)} parameters need at least {len(names)} values"
            raise key_error(problem, "add values")
        return rows
    if len(names) == 1:
        return tuple((value,) for value in _check_scalars(values))
    if not all(isinstance(row, list) for row in values):
        raise key_error(
            f"each entry needs {len(names)} values, one for each parameter",
            "write [[1, 2], [3, 4]]; for all combinations, write one entry per parameter",
        )
    rows = tuple(tuple(_check_scalars(row)) for row in values)
    if any(len(row) != len(names) for row in rows):
        problem = f"each entry needs {len(names)} values, one for each parameter"
        raise key_error(problem, "write [[1, 2], [3, 4]]")
    return rows


def _parse_range(values: Sequence[object]) -> Sequence[int]:
    if len(values) not in (2, 3) or not all(type(value) is int for value in values):
        raise key_error(
            f"{list(values)} is not a range",
            "write `range: [first, last]` or `[first, last, step]`, or the values as a list",
            "a range consists of two or three whole numbers",
        )
    first, last, step = cast("tuple[int, int, int]", (*values, 1)[:3])
    numbers = range(first, last + (1 if step > 0 else -1), step) if step else ()
    if not numbers:
        why = (
            "the step is 0" if step == 0 else f"steps of {step} do not lead from {first} to {last}"
        )
        fix = f"write `range: [{min(first, last)}, {max(first, last)}]`"
        raise key_error(f"range {list(values)} is empty", fix, why)
    return numbers[: MAX_TRIALS + 1]


def _find_files(name: str, raw: object, folder: Path | None) -> list[str]:
    if not isinstance(raw, str) or not raw or Path(raw).is_absolute() or ".." in Path(raw).parts:
        raise key_error(f"{raw!r} is not a pattern below the folder", 'write `files: "data/*.csv"`')
    if folder is None or raw.startswith(BLOBS):
        return ["?"]
    found = sorted(path for path in folder.glob(raw) if path.is_file())
    if not found:
        is_folder = (folder / raw).is_dir()
        raise RunnerError(
            "R-SWEEP-FILES",
            f"sweep: no file for {name} matches {raw!r}",
            why=f"it is a folder in {folder}" if is_folder else f"there is none in {folder}",
            fix=f'write `files: "{raw.rstrip("/")}/*"`'
            if is_folder
            else "correct the glob in `files`",
        )
    return [path.relative_to(folder).as_posix() for path in found]


def matches_blob(name: str, pattern: str) -> bool:
    """Return True if a pattern matches the blob: `*` stays within a folder, `**` does not.

    A pattern without `*`, `?` and `[` is a blob, or a folder with all its blobs.
    """
    if not any(char in pattern for char in "*?["):
        return name == pattern or not pattern or name.startswith(f"{pattern}/")
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]+\])", pattern)
    regex = "".join(
        known.get(part) or (part.replace("[!", "[^") if part[:1] == "[" else re.escape(part))
        for part in parts
    )
    return re.fullmatch(regex, name, re.DOTALL) is not None


def is_value(value: object) -> bool:
    """Return True for a text, a bool or a finite number."""
    return isinstance(value, bool | int | str) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _check_scalars(raw: object) -> list[Value]:
    if not isinstance(raw, list) or not raw:
        raise key_error(f"{raw!r} is not a list of values", "write a list with at least one value")
    for value in cast("list[object]", raw):
        if not is_value(value):
            fix = "use text, true, false or a finite number"
            if isinstance(value, date | list):
                fix = f'quote it: "{value}"'
            raise key_error(f"{value!r} cannot be the value of a parameter", fix)
    return cast("list[Value]", raw)


def _order_dimensions(dimensions: Sequence[Dimension]) -> list[Dimension]:
    """Return the dimensions, each after those that it depends on, otherwise in file order."""
    waiting, ordered, known = list(dimensions), list[Dimension](), set[str]()
    names = [name for each in dimensions for name in each.names]
    while waiting:
        ready = next((d for d in waiting if {name for name, _ in d.when} <= known), None)
        if ready is None:
            first = waiting[0]
            missing = next((name for name, _ in first.when if name not in names), None)
            problem = (
                f"unknown parameter {missing!r} in `when` of {first.names[0]}"
                if missing
                else f"{', '.join(d.names[0] for d in waiting)} depend on each other"
            )
            raise key_error(problem, did_you_mean(missing or "", names) or "correct `when`")
        waiting.remove(ready)
        ordered.append(ready)
        known |= set(ready.names)
    return ordered


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
    found = [_to_yaml_value(each) for each in itertools.islice(trials, MAX_TRIALS + 1)]
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

    The values of `NAME=007,010` and of dates are texts, as with `--set`.

    Raises:
        RunnerError: R-SWEEP-PARAM, the text is invalid.
    """
    import difflib  # noqa: PLC0415  only a mistake needs it

    from ruamel.yaml import YAML  # noqa: PLC0415  most commands read no YAML
    from ruamel.yaml.error import YAMLError  # noqa: PLC0415

    name, equals, raw = text.partition("=")
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
        kind = next(iter(difflib.get_close_matches(call[1], _KINDS, 1)), "uniform")
        raise RunnerError(
            "R-SWEEP-PARAM",
            f"invalid --param {text!r}",
            why=f"{call[1]}(...) is not a value",
            fix=f"--param '{name.strip()}={{{kind}: [{call[2].strip()}]}}'",
        )
    parser: Any = YAML(typ="safe", pure=True)
    as_text: Any = YAML(typ="base", pure=True)
    try:
        if raw[0] in "[{":
            return name.strip(), parser.load(raw)
        values, written = parser.load(f"[{raw}]"), as_text.load(f"[{raw}]")
        is_changed = any(map(_loses_text, values, written))
        return name.strip(), written if is_changed else values
    except YAMLError as err:
        raise RunnerError(
            "R-SWEEP-PARAM",
            f"invalid --param {text!r}",
            why=str(err).splitlines()[0],
            fix=_correct_param(name.strip(), raw),
        ) from err


def _correct_param(name: str, raw: str) -> str:
    """Return an option that is probably meant by a value that is not YAML."""
    if re.fullmatch(r"[\w./-]*[*?][\w./*?-]*", raw):
        return f"--param '{name}={{files: \"{raw}\"}}'"
    if re.fullmatch(r"\[[^][]*\](\s*,\s*\[[^][]*\])+", raw):
        texts = ", ".join(f'"{text}"' for text in re.findall(r"\[[^][]*\]", raw))
        return f"--param '{name}={{choice: [{texts}]}}'"
    return f"write YAML in one line, like --param '{name}={{uniform: [0, 1]}}' or {name}=[1, 2]"


def _loses_text(value: object, written: object) -> bool:
    """Return True for an ID such as 007 or 0x1f, which is no number, and for a date."""
    return isinstance(value, date) or (type(value) is int and str(value) != written)
