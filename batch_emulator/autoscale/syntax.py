"""What a formula is made of; `at` is the character where a part begins."""

from __future__ import annotations

from dataclasses import dataclass


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
class Name:
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

    One part for however many operands: a long sum is not a deep tree.
    """

    at: int
    first: Expression
    rest: tuple[tuple[str, int, Expression], ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """`a ? x : b ? y : z`, a chain of its own for the same reason."""

    at: int
    cases: tuple[tuple[Expression, Expression], ...]
    otherwise: Expression


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments."""

    at: int
    name: str
    arguments: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """`.name` of something, or with arguments `.name(...)`."""

    at: int
    target: Expression
    name: str
    arguments: tuple[Expression, ...] | None


Expression = Number | Text | Name | Unary | Chain | Choice | Call | Member


@dataclass(frozen=True, slots=True)
class Statement:
    """An assignment, or an expression alone when `target` is None."""

    at: int
    target: str | None
    value: Expression
