"""Find times of a clock without a fixed origin that are given a number somebody invented.

`time.monotonic()` counts from the start of the machine, so `0.0` and `-1.0` are not "long ago":
on a machine that has just started they are seconds away. A time that was never set is None.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator

_CLOCKS = ("monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")
_CALLS = {*_CLOCKS, *(f"{name}_ns" for name in _CLOCKS), "clock", "_clock"}
_MENTION = re.compile("|".join([*_CLOCKS, r"clock\(", r"loop(\(\))?\.time\("]))

_Pairs = Iterator[tuple[ast.AST, ast.expr]]


def mentions_clock(text: str) -> bool:
    """Return True if the source text may call such a clock."""
    return _MENTION.search(text) is not None


class Moments:
    """The names in a module that contain times of such clocks, and what they are given.

    A name contains a time if it is assigned one, compared with one, or subtracted from one.
    Durations do not count, whose names end with `_s` or are constants. Attributes are known by
    their name in the whole module, variables within a function. `shared` are attributes that
    contain times in other modules.
    """

    def __init__(self, tree: ast.Module, shared: Iterable[str] = ()) -> None:
        self._scopes: dict[ast.AST, int] = {}
        self._enter(tree, 0)
        self._gives = [pair for node in self._scopes for pair in _given(node)]
        self._meets = [pair for node in self._scopes for pair in _met(node)]
        self._names = {name for name in shared if name.startswith(".")}
        known = -1
        while known < len(self._names):
            known = len(self._names)
            for target, value in self._gives:
                self._learn(target, value)
            for left, right in self._meets:
                self._learn(left, right)
                self._learn(right, left)

    @property
    def attributes(self) -> set[str]:
        """Public attributes that contain times, as `.name`."""
        return {name for name in self._names if name[0] == "." and name[1] != "_"}

    def invented(self) -> dict[int, str]:
        """Return the expressions that give a time a number, by line."""
        both = [*self._meets, *((right, left) for left, right in self._meets)]
        found = {
            getattr(value, "lineno", 0): f"{ast.unparse(target)}: {ast.unparse(value)}"
            for target, value in (*self._gives, *both)
            if self._is_moment(target) and _has_number(value)
        }
        for node in self._scopes:  # such as the key of a sorted list
            choice = isinstance(node, ast.IfExp | ast.BoolOp)
            if choice and _has_number(node) and self._is_moment(node):
                found.setdefault(node.lineno, ast.unparse(node))
        return found

    def _enter(self, node: ast.AST, scope: int) -> None:
        """Record the outermost function around each node; 0 means none."""
        self._scopes[node] = scope
        if scope == 0 and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            scope = node.lineno
        for child in ast.iter_child_nodes(node):
            self._enter(child, scope)

    def _learn(self, target: ast.AST, value: ast.AST) -> None:
        if self._is_moment(value) and (name := self._name(target)) and not _is_duration(target):
            self._names.add(name)

    def _name(self, node: ast.AST) -> str:
        name = _name(node)
        return name if name.startswith(".") or not name else f"{self._scopes.get(node, 0)}:{name}"

    def _is_moment(self, node: ast.AST) -> bool:
        if self._name(node) in self._names:
            return True
        match node:
            case ast.Call() if _is_clock(node):
                return True
            case ast.BinOp(left, ast.Add(), right):
                return self._is_moment(left) or self._is_moment(right)
            case ast.BinOp(left, ast.Sub(), right):
                return self._is_moment(left) and not self._is_moment(right)
            case ast.NamedExpr(target, value):
                return self._is_moment(target) or self._is_moment(value)
            case _:
                return any(map(self._is_moment, _alternatives(node)))


def _given(node: ast.AST) -> _Pairs:
    """Yield the targets of a statement or definition, each with the value that it is given."""
    match node:
        case ast.Assign(targets, value):
            for target in targets:
                if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                    yield from zip(target.elts, value.elts, strict=False)
                else:
                    yield target, value
        case ast.AnnAssign(target, _, value) | ast.NamedExpr(target, value) if value is not None:
            yield target, value
            if isinstance(target, ast.Name):  # perhaps the field of a dataclass
                yield ast.Attribute(ast.Name("self"), target.id), value
        case ast.arguments():
            arguments = [*node.posonlyargs, *node.args]
            yield from zip(reversed(arguments), reversed(node.defaults), strict=False)
            both = zip(node.kwonlyargs, node.kw_defaults, strict=True)
            yield from ((argument, default) for argument, default in both if default is not None)
        case _:
            pass


def _met(node: ast.AST) -> _Pairs:
    """Yield pairs of expressions that are both times if one of them is."""
    match node:
        case ast.Compare(left, operators, others):
            sides = [left, *others]
            for operator, one, other in zip(operators, sides, others, strict=False):
                if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
                    yield one, other
        case ast.BinOp(left, ast.Sub(), right):
            if not isinstance(right, ast.Constant) and not _is_duration(right):
                yield left, right
        case ast.Call(ast.Name("min" | "max"), arguments):
            yield from itertools.pairwise(arguments)
        case _:
            pass


def _name(node: ast.AST) -> str:
    """Return `name` for a variable and `.name` for an attribute, also for an element of it."""
    match node:
        case ast.Name(name) | ast.arg(name):
            return name
        case ast.Attribute(_, name) | ast.Call(ast.Name("getattr"), [_, ast.Constant(name), *_]):
            return f".{name}"
        case ast.Subscript(value) | ast.Starred(value):
            return _name(value)
        case ast.Call(ast.Attribute(value, "get" | "setdefault" | "pop")):
            return _name(value)
        case _:
            return ""


def _is_duration(node: ast.AST) -> bool:
    name = _name(node).strip("._")
    return name.endswith(("_s", "_ns", "seconds")) or name.isupper()


def _is_clock(node: ast.Call) -> bool:
    match node.func:
        case ast.Name(name) | ast.Attribute(_, name) if name in _CALLS:
            return True
        case ast.Attribute(value, "time"):
            return "loop" in ast.unparse(value)
        case _:
            return False


def _alternatives(node: ast.AST) -> list[ast.expr]:
    """Return the expressions of which this one has the value, or one of the values."""
    found: list[ast.expr] = []
    match node:
        case ast.IfExp(_, body, orelse):
            found = [body, orelse]
        case ast.BoolOp(_, values) | ast.Tuple(values) | ast.List(values) | ast.Dict(_, values):
            found = values
        case ast.DictComp(_, value) | ast.ListComp(value):
            found = [value]
        case ast.Call(ast.Name("min" | "max"), arguments):
            found = arguments
        case ast.Call(ast.Attribute(_, "get" | "setdefault" | "pop" | "fromkeys"), [_, default]):
            found = [default]
        case ast.Call(ast.Name("getattr"), [_, _, default]):
            found = [default]
        case ast.Call(ast.Name("field"), _, keywords):
            found = [each.value for each in keywords if each.arg == "default"]
        case _:
            pass
    return found


def _has_number(node: ast.AST) -> bool:
    """Return True if the value, or one of the possible values, is a number in the source."""
    match node:
        case ast.Constant(value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(ast.USub(), operand):
            return _has_number(operand)
        case ast.Call(ast.Name("defaultdict"), [ast.Name("float" | "int"), *_]):
            return True
        case ast.Tuple(values) if not all(isinstance(each, ast.Constant) for each in values):
            return False  # perhaps a number and a time
        case _:
            return any(map(_has_number, _alternatives(node)))
