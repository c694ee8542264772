"""A formula cut into tokens."""

from __future__ import annotations

import re
from typing import NamedTuple

from batch_emulator.autoscale.errors import FormulaSyntaxError, FormulaTooLongError

MAX_CHARACTERS = 8192  # docs: 8 KB

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n\f\v]+|//[^\n]*)
    |(?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    |(?P<name>\$?[A-Za-z_]\w*)
    |(?P<string>"[^"\n]*")
    |(?P<sign>\|\||&&|[<>=!]=|[-+*/<>=!?:;,.()])""",
    re.ASCII | re.VERBOSE,
)


class Token(NamedTuple):
    """A piece of a formula; `kind` is number, name, string, sign or end."""

    kind: str
    text: str
    at: int


def tokens(text: str) -> list[Token]:
    """The tokens of a formula, an `end` last; blanks and comments are dropped.

    Raises FormulaSyntaxError and FormulaTooLongError.
    """
    if len(text) > MAX_CHARACTERS:
        raise FormulaTooLongError(MAX_CHARACTERS, f"the formula has {len(text)} characters")
    found: list[Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            what = 'a string without its end "' if text[at] == '"' else f"'{text[at]}'"
            raise FormulaSyntaxError(at, f"Unexpected {what}")
        if match.lastgroup != "space":
            found.append(Token(match.lastgroup, match.group(), at))
        at = match.end()
    found.append(Token("end", "the end of the formula", len(text)))
    return found
