"""The parameters of a run: one set, wherever they came from.

The recipe, `--set` and a sweep give parameters by name. Others are words of the command, such as
`--lr 0.1` and `lr=0.1`. `run.json` has the former in `params` and `trial`, and all of them in
`command`. `read_parameters` derives the set from these keys, also for runs of earlier versions.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

_INTERPRETER = re.compile(r"(?:python[\d.]*|(?:ba|da|z|k|a)?sh)")
_VALUE_OPTION = re.compile(r"[-+][A-Za-z]*[oOWX]")  # `bash -euo pipefail`, `python -W error`
_CODE_OPTION = re.compile(r"-[A-Za-z]*c")  # `sh -c CODE`, `bash -lc CODE`, `python -c CODE`
_SHELL = re.compile(r"(?:ba|da|z|k|a)?sh")
_OPERATOR = re.compile(r"[();<>|&\n]+")  # between the commands of a shell
_SCRIPT = re.compile(r".*\.(?:py|sh|ipynb|R|r|jl|lua|pl|bs)")
# Modules and programs that start a script, which is a later word of the command.
_LAUNCHERS = frozenset(
    {
        *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
        *("deepspeed.launcher.runner", "cProfile", "coverage", "pdb", "horovod.runner", "mpi4py"),
    }
)
_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.:/-]*)(?:=(?P<value>.*))?", re.DOTALL)
_JOINED = re.compile(r"-(?P<name>[A-Za-z])(?P<value>\d[\d.]*)")  # `-b64`
# `lr=0.1`, and overrides of Hydra: `+lr=0.1`, `db/pool@main=small`. Not `https://host/a=b`.
_ASSIGNMENT = re.compile(r"\+{0,2}(?P<name>[A-Za-z_](?:[\w.@:-]|/(?!/))*)=(?P<value>.*)", re.DOTALL)
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"", re.DOTALL)
_WHOLE = re.compile(r"[-+]?\d+", re.ASCII)
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)
# The text has zeros that a number does not keep: `007`, `1.10`. It may be a version or a name.
_PADDED = re.compile(r"[-+]?0\d.*|[^.]*\.\d+0(?:[eE].*)?", re.ASCII)
_LONG = 100  # digits of a name, not of a number
_MOST_DIGITS = 17  # that a float has
_STORED = "$RUNNER_"  # begins the path of an input on the node
Words = Sequence[str | None]  # None: see `place_parameters`


@dataclass(frozen=True, slots=True)
class Arguments:
    """The words after the script of a command: `named` values in order, and `others`."""

    named: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])
    others: list[str] = field(default_factory=list[str])


def read_parameters(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a `run.json` by name, the declared ones first.

    - `--set lr=0.1` and `-- --lr 0.1` are the same to the script, so numbers are numbers in both.
    - An option has the name that argparse gives it: `--batch-size 8` is `batch_size`.
    - A flag without a value is True.
    - An option that occurs several times, or has several numbers, has a list of values. Of several
      values of a declared parameter, the last one counts.
    """
    given = read_arguments(run.get("command") or ()).named
    found: dict[str, Any] = {}
    for name, declared in _declared(run).items():
        values = given.pop(_plain(name), [])
        is_replaced = len(values) > 1 and not is_same_value(values[-1], declared)
        value = values[-1] if is_replaced else declared
        found[name.lstrip("+")] = to_value(value) if isinstance(value, str) else value
    return found | {name: v[0] if len(v) == 1 else v for name, v in given.items()}


def _declared(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that have a name in `run.json`. `resume --set` replaces swept ones.

    A swept file has its name in `trial`, and in `params` the path that the script gets.
    """
    swept: Mapping[str, Any] = _part(run, "trial").get("params") or {}
    params: Mapping[str, Any] = run.get("params") or {}
    return {**swept, **{n: v for n, v in params.items() if n not in swept or not _is_file(v)}}


def _is_file(value: object) -> bool:
    return isinstance(value, str) and (value.startswith(_STORED) or "$$" in value)


def _part(run: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return run.get(name) or {}


def swept_parameters(params: Mapping[str, Any], swept: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a run for the parameters of its sweep.

    Args:
        params: `read_parameters` of the run. Words after `--` may have replaced swept values.
        swept: the values of the trial.
    """
    found: dict[str, Any] = {}
    for name, value in swept.items():
        given = params.get(name.lstrip("+"), value)
        found[name] = value if is_same_value(given, value) else given  # `value` may be a text
    return found


def other_arguments(run: Mapping[str, Any]) -> list[str]:
    """Return the words of the command that belong to no parameter, without the script."""
    return read_arguments(run.get("template") or run.get("command") or ()).others


def get_parameter(params: Mapping[str, Any], name: str) -> Any:
    """Return a parameter, or None. `-` and `_` are equivalent, and `+name` is `name`."""
    wanted = _plain(name)
    return params.get(name, next((v for each, v in params.items() if _plain(each) == wanted), None))


def is_same_value(one: object, other: object) -> bool:
    """Return True for equal values. Texts are compared by `to_value`: "0.1" and "1e-1" are 0.1."""
    return _comparable(one) == _comparable(other)


def to_value(text: str) -> Any:
    """Return a text of a command as number or bool, if it is one and its spelling is irrelevant.

    `007` and `1.10` stay texts, because they may be names and versions.
    """
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if not _DECIMAL.fullmatch(text) or _PADDED.fullmatch(text):
        return text
    if _WHOLE.fullmatch(text):
        return int(text) if len(text) < _LONG else text
    digits = re.sub("[^0-9]", "", re.split("[eE]", text)[0]).lstrip("0")
    value = float(text)
    return value if math.isfinite(value) and len(digits) <= _MOST_DIGITS else text


def _comparable(value: object) -> object:
    value = to_value(value) if isinstance(value, str) else value
    if isinstance(value, bool):
        return ("bool", value)  # True is not equal to 1
    if isinstance(value, list | tuple):
        return [_comparable(each) for each in cast("Iterable[object]", value)]
    return "nan" if value != value else value  # noqa: PLR0124  NaN is not equal to itself


def _plain(name: str) -> str:
    return name.lstrip("+").replace("-", "_")


def read_arguments(command: Words) -> Arguments:
    """Return the arguments of the scripts of a command, also of those in `sh -c CODE`."""
    found = Arguments()
    if (code := _shell_code(command)) is None:
        _read_words(command[_first_argument(command) or 1 :], found)
        return found
    _read_words(command[command.index(code) + 1 :], found)  # `$1` and so on
    for words in _shell_commands(code):
        if first := _first_argument(words):
            _read_words(words[first:], found)
        else:  # another program, such as `cd`
            found.others.extend(words)
    return found


def _shell_code(command: Words) -> str | None:
    """Return the code of `sh -c CODE`, or None for another command."""
    position = min(code_words(command), default=0)
    is_shell = _SHELL.fullmatch(_program(command[0] or "")) if position else None
    return command[position] if is_shell and position < len(command) else None


def _shell_commands(code: str) -> list[list[str]]:
    """Return the words of each command of a shell; [] for code that cannot be read."""
    lexer = shlex.shlex(code, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    commands: list[list[str]] = [[]]
    try:
        for word in lexer:
            if _OPERATOR.fullmatch(word):
                commands.append([])
            else:
                commands[-1].append(word)
    except ValueError:  # an open quote
        return [[code]]
    return commands


def _first_argument(command: Words) -> int:
    """Return the position after the script or module of a command, or 0 without one."""
    code = code_words(command)
    for number, word in enumerate(command):
        if word is None:
            continue
        if number in code:
            return number + 1
        if word == "-m" and number and command[number + 1 : number + 2]:
            if command[number + 1] not in _LAUNCHERS:
                return number + 2
        elif _SCRIPT.fullmatch(word):
            return number + 1
    return 0


def _read_words(words: Words, found: Arguments) -> None:
    position = 0
    while position < len(words):
        word, position = words[position], position + 1
        if word is None:
            continue
        if named := _JOINED.fullmatch(word) or _OPTION.fullmatch(word):
            text = named["value"]
            values = [to_value(text)] if text is not None else []
            if text is None:
                values = _values_of_option(words[position:])
                position += len(values)
            found.named.setdefault(_plain(named["name"]), []).extend(values or [True])
        elif named := _ASSIGNMENT.fullmatch(word):  # the last one counts
            text = named["value"]
            value = text[1:-1] if _QUOTED.fullmatch(text) else to_value(text)
            found.named[_plain(named["name"])] = [value]
        else:
            found.others.append(word)


def _values_of_option(words: Words) -> list[Any]:
    """Return the values of an option: the next word, and further numbers after a number."""
    values: list[Any] = []
    for word in words:
        is_number = word is not None and _DECIMAL.fullmatch(word) is not None
        if word is None or (word.startswith("-") and not is_number and word != "-"):
            break
        if _ASSIGNMENT.fullmatch(word) or (values and not is_number):  # `--multirun lr=0.1`
            break
        values.append(to_value(word))
        if not is_number:
            break
    return values


def _program(word: str) -> str:
    return word.rstrip("/").rpartition("/")[2]


def code_words(command: Words) -> set[int]:
    """Return the positions of the words that an interpreter of the command runs as code."""
    found: set[int] = set()
    for number, word in enumerate(command):
        if word is None or not _INTERPRETER.fullmatch(_program(word)):
            continue
        value_follows = False
        for option, text in enumerate(command[number + 1 :], start=number + 1):
            if value_follows:  # `bash -o pipefail -c CODE`
                value_follows = False
            elif text is None or not text.startswith(("-", "+")):
                break
            elif _CODE_OPTION.fullmatch(text):
                found.add(option + 1)
                break
            else:
                value_follows = bool(_VALUE_OPTION.fullmatch(text))
    return found
