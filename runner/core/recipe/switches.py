"""The options of a script that take no value, found in its source.

A parameter of such an option is passed as the option alone, `--amp`, instead of `--amp true`. The
source is only parsed: `add_argument` of argparse and optparse, `option` of click, functions of
Typer with a bool, and `DEFINE_bool` of absl. `switches` of run.json has the result.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from runner.core.recipe.local_code import LocalCode

_MAX_SWITCHES = 200
_DECLARES = re.compile(rb"add_argument|add_option|option\b|DEFINE_bool|typer")
_ON = frozenset({"store_true", "store_const", "append_const", "count"})  # actions
_ABSL = frozenset({"DEFINE_bool", "DEFINE_boolean"})


def find_switches(code: LocalCode) -> dict[str, tuple[str, ...]]:
    """Return the option for true and the one for false of each flag of a program, by parameter.

    An option is "" if there is none. A name that is also an option with a value is left out.
    """
    found: dict[str, tuple[str, ...]] = {}
    others: set[str] = set()
    for source in code.sources():
        if _DECLARES.search(source.data) is None:
            continue
        uses_typer = any(each.top == "typer" for each in source.imports)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call):
                for name, words in _of_call(node).items():
                    if words is None:
                        others.add(_to_name(name))
                    else:
                        found.setdefault(_to_name(name), words)
            elif uses_typer and isinstance(node, ast.FunctionDef):
                found |= {n: words for n, words in _of_function(node) if n not in found}
    names = [name for name in found if name not in others]
    return {name: found[name] for name in names[:_MAX_SWITCHES]}


def _to_name(option: str) -> str:
    return option.lstrip("-").replace("-", "_")


def _of_call(call: ast.Call) -> dict[str, tuple[str, ...] | None]:
    """Return what the options that a call declares are for true and false, by name.

    None stands for an option with a value.
    """
    called = call.func
    function = called.attr if isinstance(called, ast.Attribute) else ""
    function = called.id if isinstance(called, ast.Name) else function
    texts = [each for each in map(_text, call.args) if each]
    named = {each.arg: each.value for each in call.keywords if each.arg}
    if function in _ABSL and texts:
        return {texts[0]: (f"--{texts[0]}", f"--no{texts[0]}")}
    options = [text for text in texts if text.startswith("-")]
    if options and function in ("add_argument", "add_option"):
        return _of_argparse(options, named)
    return _of_click(options, named) if options and function == "option" else {}


def _text(node: ast.expr | None) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def _of_argparse(
    options: list[str], named: dict[str, ast.expr]
) -> dict[str, tuple[str, ...] | None]:
    action, option, dest = named.get("action"), _longest(options), _text(named.get("dest"))
    names = [*options, *([dest] if dest else [])]
    if isinstance(action, ast.Name | ast.Attribute):
        kind = action.id if isinstance(action, ast.Name) else action.attr
        pair = (option, f"--no-{option.removeprefix('--')}")
        return dict.fromkeys(names, pair if kind == "BooleanOptionalAction" else None)
    if _text(action) in _ON:
        return dict.fromkeys(names, (option, ""))
    if _text(action) == "store_false":  # `--no-amp`, often with dest `amp`
        of_options: dict[str, tuple[str, ...] | None] = dict.fromkeys(options, (option, ""))
        is_own = not dest or dest in map(_to_name, options)
        return of_options if is_own else {**of_options, dest: ("", option)}
    return dict.fromkeys(names)


def _longest(options: Iterable[str]) -> str:
    """Return the first option with two dashes, else the first one."""
    listed = list(options)
    return next((each for each in listed if each.startswith("--")), listed[0])


def _of_click(options: list[str], named: dict[str, ast.expr]) -> dict[str, tuple[str, ...] | None]:
    for each in options:
        on, slash, off = each.partition("/")
        if slash:
            return {on.strip(): (on.strip(), off.strip())}
    given = [named.get(key) for key in ("is_flag", "count")]
    is_flag = any(isinstance(each, ast.Constant) and each.value is True for each in given)
    return dict.fromkeys(options, (_longest(options), "") if is_flag else None)


def _of_function(function: ast.FunctionDef) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the flags of a command of Typer: parameters of type bool with a default."""
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args]
    padding: list[ast.expr | None] = [None] * (len(given) - len(arguments.defaults))
    defaults: list[ast.expr | None] = [*padding, *arguments.defaults, *arguments.kw_defaults]
    for argument, default in zip([*given, *arguments.kwonlyargs], defaults, strict=True):
        if default is None or argument.annotation is None:
            continue
        kind = argument.annotation
        parts: list[ast.expr] = [kind, default]
        if isinstance(kind, ast.Subscript) and ast.unparse(kind.value).endswith("Annotated"):
            inner = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
            kind, parts = inner[0], [*inner[1:], default]
        if not (isinstance(kind, ast.Name) and kind.id == "bool"):
            continue
        named = [
            text
            for part in parts
            if isinstance(part, ast.Call)
            for text in map(_text, part.args)
            if text.startswith("-")
        ]
        option = argument.arg.replace("_", "-")
        words = (f"--{option}", f"--no-{option}")
        if named:
            pair = next((each for each in named if "/" in each), "")
            words = (
                tuple(part.strip() for part in pair.split("/", 1))
                if pair
                else (_longest(named), "")
            )
        yield argument.arg, words
