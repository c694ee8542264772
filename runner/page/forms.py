"""An action: a command of `runner` with the form that fills it in, and what it would destroy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any, Literal

from runner.protocol.errors import RunnerError

# Values of a form by name; several values of one name are a sequence.
Values = Mapping[str, str | Sequence[str]]
FieldKind = Literal["text", "number", "select", "check", "lines"]
# The options with which a command finds its services: --target, --stack and --team; --stack; none.
Takes = Literal["target", "stack", ""]


def texts(values: Values, name: str) -> list[str]:
    """Return the values of a name that are not empty."""
    found = values.get(name, ())
    return [text for text in ((found,) if isinstance(found, str) else found) if text]


def to_values(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the pairs of a query or a form by name."""
    values: dict[str, list[str]] = {}
    for name, text in pairs:
        values.setdefault(name, []).append(text)
    return values


@dataclass(frozen=True, slots=True)
class Field:
    """An entry of a form.

    Attributes:
        name: The name of its value.
        label: Its text.
        kind: `check` is an option without a value, `lines` has one value per line.
        choices: The values of a `select`; an empty one stands for the usual value.
        usual: The text that an empty entry shows: what applies without a value.
        help: One sentence.
        low: The least number; `high` the greatest.
        required: True if it must not be empty.
    """

    name: str
    label: str
    kind: FieldKind = "text"
    choices: tuple[str, ...] = ()
    usual: str = ""
    help: str = ""
    low: float | None = None
    high: float | None = None
    required: bool = False
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Loss:
    """What a command would destroy: another command that counts it, and its document in words."""

    words: tuple[str, ...]
    describe: Callable[[Any, Values], str]
    takes: Takes = "target"


@dataclass(frozen=True, slots=True)
class Action:
    """A command that a button starts.

    Attributes:
        name: The last part of its address.
        title: The text of the button.
        words: The words of the command. `{name}` is a value of the form: each of them, if there
            are several, and none, if a field of that name may be empty.
        asks: What the page asks before it starts; empty if it can be undone.
        options: Options of the command by the name of a value; a value that is empty is left out.
            A name with a dot at its end stands for all values that begin with it:
            `{"set.": "--set"}` makes `--set=lr=0.1` of `set.lr`.
        after: Where the browser may go afterwards; `{name}` as in `words`.
        fields: What a person may enter before it starts.
        loss: What it would destroy.
        takes: The options with which it finds its services.
        prints_json: True if it has `-o json`.
        page: The address of its form, if it has one of its own.
        reads_folder: True if its values name files below the folder of the server.
        prepare: Returns the values of the command for those of the form, in a thread. Raises
            RunnerError for an invalid one.
    """

    name: str
    title: str
    words: tuple[str, ...]
    asks: str = ""
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    after: str = "/runs"
    fields: tuple[Field, ...] = ()
    loss: Loss | None = None
    takes: Takes = "target"
    prints_json: bool = True
    page: str = ""
    reads_folder: bool = False
    prepare: Callable[[Values], Values] = lambda values: values

    @property
    def names(self) -> tuple[str, ...]:
        """The values that its words need."""
        optional = {each.name for each in self.fields if not each.required}
        return tuple(name for name in _names(self.words) if name not in optional)

    def argv(self, values: Values) -> list[str]:
        """Return the command for the values of a form. Raise RunnerError if one is missing."""
        return self._fill(self.words, values, self._options(values))

    def loss_argv(self, values: Values) -> list[str]:
        """Return the command that counts what would be lost."""
        return [] if self.loss is None else self._fill(self.loss.words, values, [])

    def target(self, values: Values) -> str:
        """Return where the browser may go afterwards."""
        from urllib.parse import quote  # noqa: PLC0415

        firsts = {name: quote("".join(texts(values, name)[:1]), safe="") for name in values}
        try:
            return self.after.format_map(firsts)
        except KeyError:
            return "/runs"

    def _fill(self, words: Sequence[str], values: Values, options: Sequence[str]) -> list[str]:
        """Return literal words, options, and values; after `--` if one begins with `-`."""
        optional = {each.name for each in self.fields if not each.required}
        filled: list[tuple[bool, str]] = []  # whether a word is a value, and the word
        for template in words:
            names = _names((template,))
            if not names:
                filled.append((False, template))
            elif template == f"{{{names[0]}}}":
                found = texts(values, names[0])
                if not found and names[0] not in optional:
                    raise _missing(names[0])
                filled += [(True, text) for text in found]
            else:
                found = {name: "".join(texts(values, name)[:1]) for name in names}
                for name in names:
                    if not found[name]:
                        raise _missing(name)
                filled.append((not template.startswith("-"), template.format_map(found)))
        given = [text for is_value, text in filled if is_value]
        for text in (*given, *options):
            if "\0" in text:
                raise RunnerError(
                    "R-PAGE-QUERY",
                    f"a value of the form has a null character: {text[:40]!r}",
                    fix="remove it",
                )
        if not any(text.startswith("-") for text in given):
            return [*(text for _, text in filled), *options]
        literal = [text for is_value, text in filled if not is_value]
        return [*literal, *options, "--", *given]

    def _options(self, values: Values) -> list[str]:
        by_name = {each.name: each for each in self.fields}
        words: list[str] = []
        for name, option in self.options.items():
            if name.endswith("."):
                for each in values:
                    if each.startswith(name):
                        found = texts(values, each)
                        words += [f"{option}={each.removeprefix(name)}={text}" for text in found]
                continue
            declared = by_name.get(name)
            for text in texts(values, name):
                if declared.kind == "check" if declared else text == "on":
                    words.append(option)
                elif declared is not None and declared.kind == "lines":
                    lines = (line.strip() for line in text.splitlines())
                    words += [f"{option}={line}" for line in lines if line]
                else:
                    words.append(f"{option}={text.strip()}")
        return words


def _names(words: Iterable[str]) -> tuple[str, ...]:
    found = (name for word in words for _, name, _, _ in Formatter().parse(word))
    return tuple(dict.fromkeys(filter(None, found)))


def need(name: str) -> Callable[[Values], Values]:
    """Return what checks, before a command starts, that a form has a value for an option."""

    def check(values: Values) -> Values:
        if not texts(values, name):
            raise _missing(name)
        return values

    return check


def _missing(name: str) -> RunnerError:
    return RunnerError(
        "R-PAGE-FORM", f"{name} is missing", why="the command needs it", fix=f"fill in {name}"
    )
