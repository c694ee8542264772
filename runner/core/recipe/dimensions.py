"""The parameters of a sweep: how they are written, and which values their trials get.

A key of `params` is the name of a parameter, or of several with commas. Its value is a list of
values, or one of these:

- `{choice: [adam, sgd]}`: the list, which may have a condition (`when`);
- `{range: [1, 9, 2]}`: whole numbers from the first to the second inclusive, in steps;
- `{files: "data/*.csv"}`: the files of the recipe's folder, one trial each;
- `{files: "blob:container/prefix/*.csv"}`: blobs, one trial each;
- for several parameters: `{zip: [[1, 2], [3, 4]]}`, `{combinations: [1, 2, 3]}` or
  `{permutations: [1, 2, 3]}`;
- a distribution to draw from, like `{loguniform: [1e-5, 1e-1]}`.

`when` limits a parameter to trials in which other parameters have certain values.

The script gets a value as it was written, so a number whose text Python would change, such as
`1e3`, is a text here. `null` leaves a parameter out.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from runner.core.recipe.keys import key_error
from runner.core.yaml_files import WrittenBool, did_you_mean
from runner.protocol.commands import WrittenFloat, WrittenInt, is_same_value, to_text
from runner.protocol.errors import RunnerError

Value = bool | int | float | str | None
Trial = dict[str, Value]

BLOBS = "blob:"  # prefix of a pattern in `files` that matches blobs
MAX_TRIALS = 10_000
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
KINDS = (*_LIST_KINDS, *_JOINT_KINDS, *DISTRIBUTIONS)
# Other programs' words for the same thing.
_SAME_KINDS = {
    **dict.fromkeys(("gauss", "gaussian", "norm"), "normal"),
    **dict.fromkeys(("log_uniform", "log-uniform", "reciprocal"), "loguniform"),
    **dict.fromkeys(("log_normal", "lognorm"), "lognormal"),
    **dict.fromkeys(("values", "categorical", "grid", "grid_search", "options"), "choice"),
}
# Words that mean something else here, and how their values are written.
_QUANTIZED = {"quniform": "uniform", "qloguniform": "loguniform", "qnormal": "normal"}
_INTEGERS = ("randint", "int", "int_uniform", "uniform_int", "qrandint", "randrange")
_STOP_RULES = {"asha": "halving", "sha": "halving", "hyperband": "hyperband", "median": "median"}
_RANGE = re.compile(r"\s*([-+\d.eE]*\d)\s*\.{2,3}\s*([-+\d.eE]*\d)\s*(:\s*\w+\s*)?")
_SCALES = ("log", "log10", "log_scale", "logscale", "scale", "prior")
_MAX_EXPONENT = 100  # of a number that an error proposes
_MAX_STEPS = 20  # values of a list that an error proposes


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


def to_yaml_value(value: object) -> object:
    """Return a Python value as YAML would contain it: a tuple, range or NumPy array as a list."""
    if hasattr(value, "tolist"):
        value = cast("Any", value).tolist()
    if isinstance(value, list | tuple | range):
        values = itertools.islice(cast("Iterable[object]", value), MAX_TRIALS + 1)
        return [to_yaml_value(each) for each in values]
    if isinstance(value, dict):
        return {
            name: to_yaml_value(each) for name, each in cast("dict[str, object]", value).items()
        }
    return value


def _check_param(value: object) -> object:
    """Check one parsed entry of `params`. Return it as a mapping."""
    value = to_yaml_value(value)
    if isinstance(value, list):
        values = cast("list[object]", value)
        _refuse_range(values[0] if len(values) == 1 else None)
        return {"choice": values}
    if not isinstance(value, dict):
        _refuse_range(value)
        if not is_value(value):
            fix = "use a list of values, or a distribution, like {uniform: [0, 1]}"
            raise key_error(f"{value!r} is not a list of values", fix)
        raise key_error(
            f"{value!r} is a single value",
            f"write a list, like [{value}, …], or pass the value with --set",
        )
    given = cast("dict[str, Any]", value)
    raw = {_SAME_KINDS.get(str(key), key): each for key, each in given.items()}
    kinds = [key for key in raw if key in KINDS]
    others = [key for key in raw if key not in (*KINDS, "when", "min", "max")]
    if others:
        raise key_error(
            f"{others[0]!r} is not a distribution",
            _own_form(str(others[0]), raw)
            or did_you_mean(str(others[0]), KINDS)
            or f"use one of {', '.join(KINDS)}",
        )
    if len(kinds) != 1:
        problem = f"expected one of {', '.join(KINDS)}, got {' and '.join(kinds) or 'none'}"
        fix = "" if kinds else _between(raw.get("min"), raw.get("max"))
        raise key_error(problem, (fix and f"write {fix}") or "write a list, or {uniform: [0, 1]}")
    return raw


def _refuse_range(value: object) -> None:
    """Raise an error for a text such as `1e-4..1e-1`, with the distribution that it means."""
    found = _RANGE.fullmatch(value) if isinstance(value, str) else None
    low, high = (_number(found[1]), _number(found[2])) if found else (None, None)
    if isinstance(low, int | float) and isinstance(high, int | float) and low > high:
        low, high = high, low
    if found and (form := _between(low, high)):
        if (found[3] or "").strip(": ").startswith("log"):
            form = f"{{loguniform: [{low}, {high}]}}"
        raise key_error(
            f"{value!r} is a text, not a range", f"write {form}", "a list has single values"
        )


def _number(text: str) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return WrittenFloat(float(text), text)
    except ValueError:
        return None


def _between(low: object, high: object, *, is_log: bool = False) -> str:
    """Return how values between two numbers are written; empty if they are no numbers."""
    if not isinstance(low, int | float) or not isinstance(high, int | float) or low >= high:
        return ""
    if is_log and low > 0:
        return f"{{loguniform: [{low}, {high}]}}"
    if isinstance(low, int) and isinstance(high, int):
        return f"{{range: [{low}, {high}]}}"
    kind = "loguniform" if low > 0 and high / low >= 100 else "uniform"
    return f"{{{kind}: [{low}, {high}]}}"


def _own_form(word: str, raw: Mapping[str, Any]) -> str:
    """Return the fix for a word of another program; empty for an unknown word."""
    value = raw.get(word)
    numbers = cast("list[Any]", value) if isinstance(value, list) else []
    is_numeric = all(isinstance(each, int | float) for each in numbers)
    if word in _STOP_RULES:
        return f"{word} stops poor trials early: use --early-stop {_STOP_RULES[word]}"
    if word in _INTEGERS and len(numbers) >= 2 and is_numeric:
        return f"write {{integers: [{numbers[0]}, {numbers[1]}]}}, which includes both"
    if word in _QUANTIZED and len(numbers) == 3 and is_numeric:
        low, high, step = numbers
        count = int((high - low) / step + 1e-9) + 1 if step > 0 else 0
        if word == "quniform" and 1 < count <= _MAX_STEPS:
            values = ", ".join(f"{low + n * step:.6g}" for n in range(count))
            return f"write {{choice: [{values}]}}"
        return f"write {{{_QUANTIZED[word]}: [{low}, {high}]}}: values are not rounded"
    if word in (*_SCALES, "distribution", "type", "bounds"):
        form = _form_of_bounds(word, raw)
        return form and f"write {form}"
    return ""


def _form_of_bounds(word: str, raw: Mapping[str, Any]) -> str:
    """Return the distribution between `min` and `max`, or `bounds`, that other keys name."""
    value = raw.get(word)
    named = str(raw.get("distribution") or "").removesuffix("_values").replace("log_", "log")
    ends: list[Any] = [raw.get("min"), raw.get("max")]
    for listed in (raw.get("bounds"), value):
        if isinstance(listed, list):
            ends = cast("list[Any]", listed)
    low, high = (*ends, None, None)[:2]
    if named in DISTRIBUTIONS and isinstance(low, int | float):
        return f"{{{named}: [{low}, {high}]}}"
    is_log = word in _SCALES and (not isinstance(value, str) or value.startswith("log"))
    return _between(low, high, is_log=is_log)


def form_of_call(word: str, values: Sequence[object]) -> str:
    """Return how a call such as `loguniform(1e-5, 1e-1)` is written; empty for an unknown one.

    Args:
        word: the name of the function, in Python, NumPy, Ray Tune, Optuna and others.
        values: its arguments.
    """
    if len(values) == 1 and isinstance(values[0], list):
        values = cast("list[object]", values[0])
    kind = _SAME_KINDS.get(word, word)
    if word in _SCALES and len(values) == 2:
        kind = "loguniform"
    numbers = [each for each in values if isinstance(each, int | float)]
    is_numeric = len(numbers) == len(values)
    if word in ("range", "arange") and is_numeric and numbers:
        first, last, step = (0, *numbers, 1)[:3] if len(numbers) == 1 else (*numbers, 1)[:3]
        steps = (first + n * step for n in range(_MAX_STEPS + 1))
        listed = [each for each in steps if (each < last if step > 0 else each > last)]
        return _choice(listed) if step else ""
    if word in ("linspace", "logspace", "geomspace") and is_numeric and len(numbers) >= 2:
        first, last, count = (*numbers, 10)[:3]
        return _choice(_spaced(word, first, last, int(count))) if first < last else ""
    if kind in DISTRIBUTIONS:
        try:
            _parse_arguments(kind, list(values))
        except PydanticCustomError:
            return ""
    form = f"{{{kind}: [{', '.join(map(to_text, values))}]}}"
    if kind not in (*DISTRIBUTIONS, "choice"):
        form = _own_form(word, {word: values}).removeprefix("write ").partition("}")[0] + "}"
    return form if form.startswith("{") else ""


def _choice(values: Sequence[float]) -> str:
    if not 1 < len(values) <= _MAX_STEPS:
        return ""
    return f"{{choice: [{', '.join(f'{each:.{_DIGITS}g}' for each in values)}]}}"


def _spaced(word: str, first: float, last: float, count: int) -> list[float]:
    """Return the values of a function of NumPy; empty if they are too many, or undefined."""
    if not 1 < count <= _MAX_STEPS or (word == "geomspace" and first <= 0):
        return []
    if word == "logspace" and max(-first, last) > _MAX_EXPONENT:
        return []
    if word == "geomspace":
        return [first * (last / first) ** (n / (count - 1)) for n in range(count)]
    even = [first + (last - first) * n / (count - 1) for n in range(count)]
    return even if word == "linspace" else [10.0**each for each in even]


ParamSpace = Annotated[
    dict[str, Any],
    BeforeValidator(_check_param, json_schema_input_type=list[Value] | dict[str, Any]),
]


def list_combinations(dimensions: Sequence[Dimension], trial: Trial) -> Iterator[Trial]:
    """Yield every combination; the last parameter changes fastest."""
    if not dimensions:
        yield trial
        return
    first, rest = dimensions[0], dimensions[1:]
    if not first.applies(trial):
        yield from list_combinations(rest, trial)
        return
    for row in first.rows:
        yield from list_combinations(rest, {**trial, **dict(zip(first.names, row, strict=True))})


def count_combinations(dimensions: Sequence[Dimension]) -> int | None:
    """Return the number of combinations, or None if it is known only after building them."""
    counts = [len(each.rows) for each in dimensions]
    if any(each.when for each in dimensions) or max(counts, default=0) > MAX_TRIALS:
        return None
    return math.prod(counts)


def draw_trial(dimensions: Sequence[Dimension], rng: random.Random) -> Trial:
    """Return a trial with a value of each dimension that applies."""
    trial: Trial = {}
    for each in dimensions:
        values = each.draw(
            rng
        )  # draw even if it does not apply, so that other parameters keep their values
        if each.applies(trial):
            trial |= zip(each.names, values, strict=True)
    return trial


def to_dimension(key: str, raw: Mapping[str, Any], folder: Path | None = None) -> Dimension:
    """Return the parameters of an entry. If `folder` is None, do not search `files`."""
    names = tuple(name.strip() for name in key.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise key_error(
            f"{key!r} is not a list of parameter names", 'write "a, b" for two parameters'
        )
    [kind] = (each for each in raw if each in KINDS)
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


def to_named_dimension(key: str, raw: Mapping[str, Any]) -> Dimension:
    """Return the parameters of an entry. Name the entry in an error."""
    try:
        return to_dimension(key, raw)
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
    if isinstance(raw, dict):
        ends = cast("dict[str, Any]", raw)
        low, high = ends.get("min", ends.get("low")), ends.get("max", ends.get("high"))
        if isinstance(low, int | float) and isinstance(high, int | float):
            example = f"{kind}: [{low}, {high}]"
    given = tuple(
        float(number)
        for number in numbers
        if isinstance(number, int | float) and not isinstance(number, bool | WrittenBool)
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
    if len(values) not in (2, 3) or not all(
        isinstance(value, int) and not isinstance(value, bool | WrittenBool) for value in values
    ):
        raise key_error(
            f"{list(values)} is not a range",
            "write `range: [first, last]` or `[first, last, step]`, or the values as a list",
            "a range consists of two or three whole numbers",
        )
    first, last, step = map(int, cast("tuple[int, int, int]", (*values, 1)[:3]))
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
    """Return True for a text, a bool, a finite number or None."""
    return isinstance(value, bool | int | str | None) or (
        isinstance(value, float) and math.isfinite(value)
    )


def _check_scalars(raw: object) -> list[Value]:
    if not isinstance(raw, list) or not raw:
        raise key_error(f"{raw!r} is not a list of values", "write a list with at least one value")
    for value in cast("list[object]", raw):
        if not is_value(value):
            fix = "use text, true, false, null or a finite number"
            if isinstance(value, date | list):
                fix = f'quote it: "{value}"'
            raise key_error(f"{value!r} cannot be the value of a parameter", fix)
    values = cast("list[Value]", raw)
    if any(isinstance(value, WrittenFloat | WrittenInt) for value in values):
        return [value if value is None else to_text(value) for value in values]
    return values


def order_dimensions(dimensions: Sequence[Dimension]) -> list[Dimension]:
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
        ordered.append(_with_written_values(ready, ordered))
        known |= set(ready.names)
    return ordered


def _with_written_values(dimension: Dimension, before: Sequence[Dimension]) -> Dimension:
    """Return the dimension with the values in its condition as the rows of others have them."""
    if not dimension.when:
        return dimension
    rows = {name: (each.names.index(name), each.rows) for each in before for name in each.names}
    when = tuple(
        (name, tuple(_as_in_rows(value, *rows[name]) for value in values))
        for name, values in dimension.when
    )
    return replace(dimension, when=when)


def _as_in_rows(value: Value, place: int, rows: Sequence[Sequence[Value]]) -> Value:
    return next((row[place] for row in rows if is_same_value(row[place], value)), value)


def with_declared_types(
    key: str, raw: Mapping[str, Any], types: Mapping[str, Callable[[str], Value]]
) -> dict[str, Any]:
    """Return an entry of `params` whose texts have the types that a recipe declares.

    Args:
        key: the names of the parameters.
        raw: the entry.
        types: reads a text as a value of each parameter with a declared type.
    """
    names = [name.strip() for name in key.split(",")]

    def convert(name: str, value: Any) -> Any:
        is_text = isinstance(value, str | WrittenFloat | WrittenInt)
        return types[name](str(value)) if name in types and is_text else value

    def convert_all(names: Iterable[str], values: object) -> Any:
        if not isinstance(values, list):
            return values
        given = cast("list[Any]", values)
        return [convert(name, value) for name, value in zip(names, given, strict=False)]

    changed = dict(raw)
    for kind, values in raw.items():
        if not isinstance(values, list):
            continue
        given = cast("list[Any]", values)
        if kind == "zip":
            changed[kind] = [
                convert_all(itertools.repeat(name), each)
                for name, each in zip(names, given, strict=False)
            ]
        elif kind in ("combinations", "permutations") or (kind == "choice" and len(names) == 1):
            if types.keys() >= set(names):
                changed[kind] = convert_all(itertools.repeat(names[0]), given)
        elif kind == "choice":
            changed[kind] = [convert_all(names, row) for row in given]
    if isinstance(raw.get("when"), dict):
        when = cast("dict[str, Any]", raw["when"])
        changed["when"] = {
            name: convert_all(itertools.repeat(name), _to_list(value))
            for name, value in when.items()
        }
    return changed
