"""The grammar of the formula language: tokens, syntax and the parser.

`at` is the position that an error in a part reports: that of its first character, or of the
parenthesis of a method call, as on the service (Azure/batch-shipyard#138, read 2026-11-22).

    formula    := statement (';' statement)* ';'?
    statement  := NAME '=' expression | expression
    expression := or ('?' expression ':' expression)?
    or         := and ('||' and)*
    and        := equality ('&&' equality)*
    equality   := relation (('==' | '!=') relation)*
    relation   := sum (('<' | '<=' | '>' | '>=') sum)*
    sum        := product (('+' | '-') product)*
    product    := unary (('*' | '/') unary)*
    unary      := ('-' | '!') unary | member
    member     := primary ('.' NAME ('(' arguments? ')')?)*
    primary    := NUMBER | STRING | NAME | NAME '(' arguments? ')' | '(' expression ')'
    arguments  := expression (',' expression)*
    NAME       := '$'? [A-Za-z_] [A-Za-z0-9_]*

The precedence is that of C [S]: the docs state none, and this one gives the published results.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import isinf
from typing import NamedTuple

from batch_emulator.autoscale.values import FormulaSyntaxError, FormulaTooLongError


@dataclass(frozen=True, slots=True)
class Number:
    """A double."""

    at: int
    value: float


@dataclass(frozen=True, slots=True)
class Text:
    """A string."""

    at: int
    value: str


@dataclass(frozen=True, slots=True)
class NameReference:
    """A variable, a constant or an enum word."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Unary:
    """`-` or `!`."""

    at: int
    sign: str
    operand: Expression


@dataclass(frozen=True, slots=True)
class Chain:
    """Operands joined by operators of one precedence, from left to right.

    One node for any number of operands, so that a long sum is not a deep tree.
    """

    at: int
    first: Expression
    rest: tuple[tuple[str, int, Expression], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """`a ? x : b ? y : z` as one node, for the same reason as in `Chain`."""

    at: int
    cases: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function with its arguments."""

    at: int
    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class MemberAccess:
    """`.name` of a value, or `.name(...)` with arguments."""

    at: int
    target: Expression
    name: str
    arguments: tuple[Expression, ...] | None


Expression = Number | Text | NameReference | Unary | Chain | Choice | FunctionCall | MemberAccess


@dataclass(frozen=True, slots=True)
class Statement:
    """An assignment, or an expression if `target` is None."""

    at: int
    target: str | None
    value: Expression


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
    """Return the tokens of a formula and a final `end`, without whitespace and comments.

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


MAX_STATEMENTS = 100  # docs
MAX_DEPTH = 50  # [S] of nested expressions; bounds the stack here and in the evaluation
_MAX_MEMBERS = 3  # [S] in a chain; no valid formula needs more

_POWER = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4,
    "+": 5, "-": 5, "*": 6, "/": 6,
}  # fmt: skip


def parse(text: str) -> list[Statement]:
    """Return the statements of a formula. Raises FormulaSyntaxError or FormulaTooLongError."""
    return _FormulaParser(tokens(text)).formula()


class _FormulaParser:
    def __init__(self, found: list[Token]) -> None:
        self._tokens = found
        self._next = 0
        self._depth = 0

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _is(self, sign: str) -> bool:
        token = self._tokens[self._next]
        return token.text == sign and token.kind == "sign"

    def _expect(self, sign: str) -> None:
        if not self._is(sign):
            raise self._unexpected(f"'{sign}'")
        self._next += 1

    def _unexpected(self, wanted: str) -> FormulaSyntaxError:
        token = self._token
        found = token.text if token.kind == "end" else f"'{token.text[:40]}'"
        return FormulaSyntaxError(token.at, f"Unexpected {found}, expected {wanted}")

    def _enter(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise FormulaSyntaxError(self._token.at, f"Nested deeper than {MAX_DEPTH}")

    def formula(self) -> list[Statement]:
        """Return all statements."""
        statements: list[Statement] = []
        while True:
            if len(statements) == MAX_STATEMENTS:
                raise FormulaSyntaxError(self._token.at, f"More than {MAX_STATEMENTS} statements")
            statements.append(self._statement())
            if self._token.kind == "end":
                return statements
            self._expect(";")
            if self._token.kind == "end":
                return statements

    def _statement(self) -> Statement:
        first = self._token
        following = self._tokens[min(self._next + 1, len(self._tokens) - 1)]
        if first.kind == "name" and following.text == "=" and following.kind == "sign":
            self._next += 2
            return Statement(first.at, first.text, self._expression())
        return Statement(first.at, None, self._expression())

    def _expression(self) -> Expression:
        self._enter()
        at = self._token.at
        value = self._binary(1)
        cases: list[tuple[Expression, Expression]] = []
        while self._is("?"):
            self._next += 1
            then = self._expression()
            self._expect(":")
            cases.append((value, then))
            value = self._binary(1)
        self._depth -= 1
        return Choice(at, tuple(cases), value) if cases else value

    def _binary(self, least: int) -> Expression:
        at = self._token.at
        value = self._unary()
        while True:
            power = self._power()
            if power < least:
                return value
            rest: list[tuple[str, int, Expression]] = []
            while self._power() == power:
                sign = self._take()
                rest.append((sign.text, sign.at, self._binary(power + 1)))
            value = Chain(at, value, tuple(rest))

    def _power(self) -> int:
        token = self._tokens[self._next]
        return _POWER.get(token.text, 0) if token.kind == "sign" else 0

    def _unary(self) -> Expression:
        signs: list[Token] = []
        while self._is("-") or self._is("!"):
            self._enter()
            signs.append(self._take())
        value = self._member()
        for sign in reversed(signs):
            self._depth -= 1
            value = Unary(sign.at, sign.text, value)
        return value

    def _member(self) -> Expression:
        value = self._primary()
        count = 0
        while self._is("."):
            self._next += 1
            count += 1
            if count > _MAX_MEMBERS:
                raise FormulaSyntaxError(self._token.at, f"More than {_MAX_MEMBERS} members")
            if self._token.kind != "name":
                raise self._unexpected("the name of a member")
            name, at = self._take().text, self._token.at
            arguments = self._arguments() if self._is("(") else None
            value = MemberAccess(value.at if arguments is None else at, value, name, arguments)
        return value

    def _primary(self) -> Expression:
        token = self._token
        if token.kind == "number":
            return self._number()
        if token.kind == "string":
            self._next += 1
            return Text(token.at, token.text[1:-1])
        if token.kind == "name":
            self._next += 1
            if self._is("("):
                return FunctionCall(token.at, token.text, self._arguments())
            return NameReference(token.at, token.text)
        if self._is("("):
            self._next += 1
            value = self._expression()
            self._expect(")")
            return value
        raise self._unexpected("a value")

    def _number(self) -> Number:
        token = self._take()
        value = float(token.text)
        if isinf(value):
            raise FormulaSyntaxError(token.at, f"'{token.text[:40]}' is not a number")
        return Number(token.at, value)

    def _arguments(self) -> tuple[Expression, ...]:
        self._expect("(")
        found: list[Expression] = []
        if not self._is(")"):
            found.append(self._expression())
            while self._is(","):
                self._next += 1
                found.append(self._expression())
        self._expect(")")
        return tuple(found)
