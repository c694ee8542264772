"""Commands and their parameters: how a command is made, and what is read from one.

`place_parameters` puts parameters where a template names them in braces, and `expand_variables` the
values of variables where a node starts the command.

The parameters of a run are one set, wherever they came from. The recipe, `--set` and a sweep give
them by name. Others are words of the command, such as `--lr 0.1` and `lr=0.1`. `run.json` has the
former in `params` and `trial`, and all of them in `command`. `read_parameters` derives the set from
these keys, also for runs of earlier versions.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

from runner.protocol.task import NOTEBOOK_MODULE

if TYPE_CHECKING:
    from typing import Self  # the agent runs on Python 3.10

# How a script gets its parameters: `--name value`, `name=value`, or `name=value` in the grammar of
# Hydra, in which texts with special characters are quoted.
ParamsAs = Literal["flags", "key=value", "hydra"]
PARAMS_AS: tuple[ParamsAs, ...] = get_args(ParamsAs)
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
_NEGATIVE = re.compile(r"-(?:\d+|\d*\.\d+)", re.ASCII)  # what argparse takes for a number
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)
# The text has zeros that a number does not keep: `007`, `1.10`. It may be a version or a name.
_PADDED = re.compile(r"[-+]?0\d.*|[^.]*\.\d+0(?:[eE].*)?", re.ASCII)
_LONG = 100  # digits of a name, not of a number
_MOST_DIGITS = 17  # that a float has
_STORED = "$RUNNER_"  # begins the path of an input on the node
Words = Sequence[str | None]  # None: see `place_parameters`
Word = TypeVar("Word", bound="str | None")
# By the name of a parameter: the option for true and that for false; "" for none.
Switches = Mapping[str, Sequence[str]]
NO_SWITCHES: Switches = {}
NULL = "null"  # the text of a parameter that is left out
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


class _Written:
    """A number that is shown, and passed to a script, as it was written."""

    text: str

    def __new__(cls, value: float, text: str) -> Self:
        """Return the number with its text."""
        new: Any = super().__new__  # of the type of number
        found: Self = new(cls, value)
        found.text = text
        return found

    def __repr__(self) -> str:
        return self.text


class WrittenFloat(_Written, float):
    """A number as it was written: `1e3`, `1.10`."""


class WrittenInt(_Written, int):
    """A whole number as it was written: `007`, `0x1f`."""


class ParameterError(ValueError):
    """A script cannot get the value of a parameter; has the reason and the fix."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(what)
        self.why, self.fix = why, fix


def as_written(value: Any, text: str) -> Any:
    """Return a number that keeps its text, and other values unchanged."""
    if isinstance(value, bool) or str(value) == text:
        return value
    if isinstance(value, float):
        return WrittenFloat(value, text)
    return WrittenInt(value, text) if isinstance(value, int) else value


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
        if is_same_value(given, value):  # `value` may be a text, such as 1e3
            given = as_written(to_value(value), value) if isinstance(value, str) else value
        found[name] = given
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


def with_type_of(value: Any, example: Any) -> Any:
    """Return a text such as `1e3` as a number that keeps it, if the example is a number."""
    is_number = isinstance(example, int | float) and not isinstance(example, bool)
    if not is_number or not isinstance(value, str) or not _DECIMAL.fullmatch(value):
        return value
    return as_written(int(value) if _WHOLE.fullmatch(value) else float(value), value)


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


_REFERENCE = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)\})", re.ASCII)


def referenced_variables(command: Sequence[str]) -> list[str]:
    """Return the names of the variables that `expand_variables` replaces, in order."""
    if not any("$" in word for word in command):
        return []
    code = code_words(command)
    return [
        found[2] or found[3]
        for number, word in enumerate(command)
        if number not in code
        for found in _REFERENCE.finditer(word)
        if not found[1]
    ]


def expand_variables(command: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Replace `$NAME` and `${NAME}` by the values of variables, and `$$` by `$`.

    A word that an interpreter runs as code, such as the one after `sh -c`, is not changed.

    Raises:
        KeyError: a variable is not in `environment`; its argument is the name.
    """
    if not any("$" in word for word in command):
        return list(command)
    code = code_words(command)

    def value(found: re.Match[str]) -> str:
        return found[1] or environment[found[2] or found[3]]

    return [
        word if number in code else _REFERENCE.sub(value, word)
        for number, word in enumerate(command)
    ]


def expand_env(given: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Return variables with `$NAME` and `${NAME}` in them replaced, and `$$` by `$`.

    Args:
        given: the variables. Each may refer to others of them, and to itself for the value in
            `others`: `PATH: /opt/tool/bin:$PATH`.
        others: further variables. A name that is not set is not changed, except for that of the
            variable itself, which is empty.
    """
    found: dict[str, str] = {}

    def expand(name: str, pending: tuple[str, ...]) -> str:
        def value(match: re.Match[str]) -> str:
            wanted = match[2] or match[3]
            if match[1]:
                return match[1]
            if wanted in given and wanted not in pending:
                return expand(wanted, (*pending, wanted))
            return others.get(wanted, "" if wanted == name else match[0])

        if name not in found:
            text = _REFERENCE.sub(value, given[name])
            if pending[0] != name:
                return text
            found[name] = text
        return found[name]

    return {name: expand(name, (name,)) for name in given}


def to_arguments(
    params: Mapping[str, Any], params_as: ParamsAs, switches: Switches = NO_SWITCHES
) -> list[str]:
    """Return the script's arguments: `--name value` or `name=value` for each parameter.

    A parameter that is None is left out, except that Hydra gets `name=null`. A flag without a
    value, one of `switches`, is its option for true or for false.

    Raises:
        ParameterError: the script cannot read the value of a parameter.
    """
    return [
        word
        for name, value in params.items()
        for word in _to_words(name, value, params_as, switches)
    ]


def _to_words(name: str, value: object, params_as: ParamsAs, switches: Switches) -> list[str]:
    """Return the arguments of one parameter."""
    if value is None and params_as != "hydra":
        return []
    if params_as != "flags":
        return [f"{name}={_right_side(name, value, params_as)}"]
    options = switches.get(_plain(name))
    if options is None:
        text = to_text(value)
        # argparse reads `--lr -1e-5` as two options, without a value for the first.
        is_joined = len(text) > 1 and text[0] == "-" and not _NEGATIVE.fullmatch(text)
        return [f"--{name}={text}"] if is_joined else [f"--{name}", text]
    is_on = parse_bool(to_text(value))
    if is_on is None:
        raise ParameterError(
            f"invalid value {to_text(value)!r} for {name}",
            f"{options[0] or options[1]} is a flag, which takes no value",
            f"--set {name}=true, or {name}=false to leave it out",
        )
    option = options[0 if is_on else 1]
    return [option] if option else []


def parse_bool(text: str) -> bool | None:
    """Return the meaning of `true`, `no`, `1` and the like; None for another text."""
    word = text.strip().lower()
    return True if word in _TRUE else False if word in _FALSE else None


def argument_start(name: str, params_as: ParamsAs) -> str:
    """Return what the argument of a parameter begins with."""
    return f"--{name}" if params_as == "flags" else f"{name}="


def to_text(value: object) -> str:
    """Return the value of a parameter as an argument."""
    if value is None:
        return NULL
    return str(value).lower() if isinstance(value, bool) else str(value)


def _right_side(name: str, value: object, params_as: ParamsAs) -> str:
    """Return what follows the `=` of a value."""
    text = to_text(value)
    return _quote_for_hydra(name, text) if params_as == "hydra" and isinstance(value, str) else text


# `{{name}}`, or `{name}`; not `${name}` and `${{name}}`, which others replace.
_BRACES = re.compile(r"\$\{+[^{}\s]+\}+|\{\{([^{}\s]+)\}\}|\{([^{}\s]+)\}")
_NO_NAMES: frozenset[str] = frozenset()


def names_in_braces(words: Iterable[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names in braces, and those in double braces."""
    text = "\n".join(words)  # names contain no whitespace
    if "{" not in text:  # a sweep asks for thousands of commands
        return _NO_NAMES, _NO_NAMES
    found = _BRACES.findall(text)
    return frozenset(name for _, name in found if name), frozenset(one for one, _ in found if one)


def place_parameters(
    template: Iterable[str | None],
    params: Mapping[str, Any],
    params_as: ParamsAs,
    switches: Switches = NO_SWITCHES,
) -> list[str]:
    """Return the command of a template.

    `{name}` stands for the value of a parameter, `{{name}}` for the text `{name}`, and None for the
    arguments of the parameters that no word names. Other braces are not changed. A word that is
    only the name of a parameter without a value, None, is left out.

    Raises:
        ParameterError: the script cannot read the value of a parameter.
    """
    words = list(template)
    placed, _ = names_in_braces(word for word in words if word is not None)
    others = {name: value for name, value in params.items() if name not in placed}
    command: list[str] = []
    for word in words:
        if word is None:
            command += to_arguments(others, params_as, switches)
        elif not (word[:1] == "{" and word[1:-1] in params and params[word[1:-1]] is None):
            command.append(_fill(word, params, params_as))
    return command


def _fill(word: str, params: Mapping[str, Any], params_as: ParamsAs) -> str:
    """Return a word of a template with its values. An override of Hydra is quoted as one."""
    right = "" if word.startswith("-") else word.partition("=")[2]

    def text(found: re.Match[str]) -> str:
        escaped, name = found[1], found[2]
        if name in params:
            form = params_as if right == found[0] else "flags"
            if params[name] is None and form != "hydra":
                raise ParameterError(
                    f"{name} is null in {word!r}",
                    "null leaves out only a word that is the name in braces and nothing else",
                    f"write {{{name}}} as a word of its own, or use another value",
                )
            return _right_side(name, params[name], form)
        return f"{{{escaped}}}" if escaped in params else found[0]

    return _BRACES.sub(text, word)


_HYDRA_PLAIN = re.compile(r"[A-Za-z0-9_./+$-]*[A-Za-z0-9_]|[./]+", re.ASCII)
# A list, a mapping, or a text that is quoted already.
_HYDRA_WRITTEN = re.compile(r"\[.*\]|\{.*\}|'.*'|\".*\"", re.DOTALL)


def _quote_for_hydra(name: str, text: str) -> str:
    """Return a text as Hydra and the YAML of `OmegaConf.from_cli` both read it literally.

    Lists, mappings and quoted texts are not changed. Paths of the node may have any characters.
    Source: https://hydra.cc/docs/advanced/override_grammar/basic (2026-11-28).
    """
    is_path = "$RUNNER_" in text or "${RUNNER_" in text
    if (_HYDRA_PLAIN.fullmatch(text) and not is_path) or _HYDRA_WRITTEN.fullmatch(text):
        return text
    is_ambiguous = "\\" in text and ("'" in text or text.endswith("\\"))
    if is_ambiguous or any(ord(char) < 32 for char in text):
        raise ParameterError(
            f"Hydra cannot read {text!r} as the value of {name}",
            "a backslash beside a quote or at the end, or a control character, has no form "
            "that Hydra and OmegaConf both read literally",
            "quote the value as the script reads it: NAME=\"'VALUE'\"",
        )
    if "'" not in text:
        return f"'{text}'"
    escaped = text.replace('"', '\\"')
    return f'"{escaped}"'


def insert_parameters(
    params: Sequence[Word], args: Sequence[str], params_as: ParamsAs
) -> tuple[Word | str, ...]:
    """Return `args` of a script with its parameters, before the first option or `name=value`.

    Words before it are often a subcommand, and parsers expect the options of one after it. Hydra
    refuses overrides that an option separates, so they precede the first override among `args`.
    """
    given = (n for n, word in enumerate(args) if word.startswith("-") or "=" in word)
    if params_as == "hydra":
        given = iter(sorted(given, key=lambda n: args[n].startswith("-")))
    first = next(given, len(args))
    return *args[:first], *params, *args[first:]


def replace_arguments(
    command: Sequence[str],
    old: Mapping[str, Any],
    new: Mapping[str, Any],
    params_as: ParamsAs,
    switches: Switches = NO_SWITCHES,
) -> tuple[str, ...] | None:
    """Return the command with the arguments `old` replaced by `new`.

    Arguments of parameters that do not change keep their text: `1e-3` is the value 0.001. Return
    None if the command does not contain `old`.

    Raises:
        ParameterError: the script cannot read the value of a parameter.
    """
    if dict(old) == dict(new) and list(map(to_text, old.values())) == list(
        map(to_text, new.values())
    ):
        return tuple(command)
    before = {name: _to_words(name, old[name], params_as, switches) for name in old}
    earlier = {name: _earlier_words(name, old[name], params_as, before[name]) for name in old}
    for expected in (earlier, before):
        length = sum(map(len, expected.values()))
        for start in range(len(command) - length, -1, -1):
            found = _find_words(command[start : start + length], expected)
            if found is None:
                continue
            after: list[str] = []
            for name, value in new.items():
                is_kept = name in old and to_text(old[name]) == to_text(value)
                after += found[name] if is_kept else _to_words(name, value, params_as, switches)
            return (*command[:start], *after, *command[start + length :])
    return None


def _earlier_words(
    name: str, value: object, params_as: ParamsAs, words: Sequence[str]
) -> Sequence[str]:
    """Return the arguments of a parameter by earlier versions, given those of this one.

    They passed the text `None`, and never joined the name and the value.
    """
    if params_as != "flags":
        return words
    is_joined = len(words) == 1 and words[0].startswith(f"--{name}=")
    return [f"--{name}", str(value)] if value is None or is_joined else words


def _find_words(
    words: Sequence[str], expected: Mapping[str, Sequence[str]]
) -> dict[str, Sequence[str]] | None:
    """Return the words of each parameter if they are as expected, apart from the text of numbers.

    Return None for other words.
    """
    found: dict[str, Sequence[str]] = {}
    start = 0
    for name, wanted in expected.items():
        own = words[start : start + len(wanted)]
        if not all(map(_is_same_word, own, wanted)):
            return None
        found[name], start = own, start + len(wanted)
    return found


def _is_same_word(one: str, other: str) -> bool:
    if one == other:
        return True
    (name, equals, text), (wanted, _, value) = one.partition("="), other.partition("=")
    if not equals:
        text, value = one, other
    elif name != wanted:
        return False
    is_number = _DECIMAL.fullmatch(text) and _DECIMAL.fullmatch(value)
    return is_number is not None and float(text) == float(value)


_NOTEBOOK_DRIVER = ("python", "-m", NOTEBOOK_MODULE)


def notebook_command(name: str) -> tuple[str, ...]:
    """Return the command that executes a notebook of the code folder."""
    return *_NOTEBOOK_DRIVER, name


def find_notebook(command: Sequence[str]) -> str | None:
    """Return the notebook that a command executes, or None for another command."""
    length = len(_NOTEBOOK_DRIVER)
    is_notebook = tuple(command[:length]) == _NOTEBOOK_DRIVER
    return command[length] if is_notebook and command[length:] else None
