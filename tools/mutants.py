"""Points at which tools/mutation.py changes the code, and their stable identity.

A point is one small change inside of a top-level function or class: an operator, a constant, the
negation of a condition, or a call statement that is deleted. Docstrings, annotations, decorators,
log lines and the texts of errors are left out.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_HEAD = re.compile(r"(\w+)/([\w-]+)(?: \(([^)]*)\))?:(.*)")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,39}")
_LOGGING = frozenset({"logger", "log", "logging", "warnings"})
_TEXT_METHODS = frozenset({"__repr__", "__str__"})
# Changing these arguments has no effect that a program could detect, or changes only messages.
_INERT_KEYWORDS = frozenset(
    {
        "daemon",
        "description",
        "fix",
        "help",
        "name",
        "slots",
        "stacklevel",
        "strict",
        "title",
        "why",
    }
)
_ARITHMETIC: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_COMPARISONS: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


@dataclass(frozen=True)
class Group:
    """Top-level names that belong together; `names` maps old names to present ones.

    A present name may begin with its module, `package.module:NAME`, where several have that name.
    """

    layer: str
    label: str
    words: tuple[str, ...]
    names: Mapping[str, str]


@dataclass(frozen=True)
class Point:
    """One change: `after` in the place of the bytes from `start` to `end` of a file."""

    layer: str
    label: str
    function: str
    ordinal: int
    path: Path
    line: int
    start: int
    end: int
    before: str
    after: str
    words: tuple[str, ...]

    @property
    def id(self) -> str:
        """Return the identity, which does not change when the function moves to another file."""
        return f"{self.layer}/{self.label}:{self.function}#{self.ordinal}"

    def order(self, seed: int) -> str:
        """Return the rank of the point in the draw of this seed."""
        return hashlib.sha256(f"{seed} {self.id}".encode()).hexdigest()


def read_groups(text: str) -> list[Group]:
    """Parse tools/mutation_core.txt."""
    found: list[Group] = []
    for line in re.sub(r"\n\s+", " ", re.sub(r"(?m)^#.*\n", "", text)).splitlines():
        head = _HEAD.fullmatch(line.strip())
        if head is None:
            raise SystemExit(f"not a group of names: {line}")
        pairs = (name.split("=") for name in head[4].split())
        names = {pair[0]: pair[-1] for pair in pairs}
        found.append(Group(head[1], head[2], tuple((head[3] or "").split()), names))
    return found


def find_points(groups: Sequence[Group], sources: Sequence[Path]) -> tuple[list[Point], list[str]]:
    """Return the points of all groups, and the names without a definition."""
    trees = {path: ast.parse(path.read_bytes()) for path in sources}
    defined: dict[str, list[Path]] = {}
    nodes: dict[tuple[Path, str], ast.stmt] = {}
    for path, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                defined.setdefault(node.name, []).append(path)
                nodes[path, node.name] = node
    points: list[Point] = []
    missing: list[str] = []
    for group in groups:
        names = [name.rpartition(":")[2] for name in group.names.values()]
        share = [path for name in names for path in defined.get(name, ())]
        for old, name in group.names.items():
            module, _, name = name.rpartition(":")  # noqa: PLW2901
            there = [path for path in defined.get(name, ()) if _is_module(path, module)]
            # Of several definitions, take the one in the file that contains most of the group.
            best = max(there, key=lambda path: (share.count(path), str(path)), default=None)
            if best is None or (len(there) > 1 and share.count(best) < 2 <= len(group.names)):
                missing.append(f"{group.layer}/{group.label}:{old}")
                continue
            points += _points_of(group, old, nodes[best, name], best)
    return points, missing


def _is_module(path: Path, module: str) -> bool:
    """Return True if the file is that module. An empty name matches every file."""
    return not module or path.as_posix().endswith(f"/{module.replace('.', '/')}.py")


def mutated(source: bytes, point: Point) -> bytes:
    """Return the file's content with the change."""
    return source[: point.start] + point.after.encode() + source[point.end :]


def _points_of(group: Group, name: str, node: ast.stmt, path: Path) -> Iterator[Point]:
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for function, body in _functions(name, node):
        finder = _Finder()
        finder.visit_body(body)
        for ordinal, (place, after) in enumerate(finder.found):
            start = starts[place.lineno - 1] + place.col_offset
            end = starts[(place.end_lineno or 0) - 1] + (place.end_col_offset or 0)
            before = source[start:end].decode()
            yield Point(
                group.layer, group.label, function, ordinal, path, place.lineno, start, end,
                before, after.replace("$", before), group.words,
            )  # fmt: skip


def _functions(
    name: str, node: ast.stmt
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield the function, or the methods of the class, with their qualified names."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        returns = ast.unparse(node.returns) if node.returns else ""
        if node.name not in _TEXT_METHODS and not returns.endswith("Error"):
            yield name, node
    elif isinstance(node, ast.ClassDef):
        for child in node.body:
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _functions(f"{name}.{child.name}", child)


class _Finder(ast.NodeVisitor):
    """Collects (node, replacement) in the order of the source; `$` is the original code."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.stmt | ast.expr, str]] = []

    def visit_body(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """Visit defaults and statements: neither decorators nor annotations."""
        for default in (*function.args.defaults, *filter(None, function.args.kw_defaults)):
            self.visit(default)
        for statement in function.body:
            self.visit(statement)

    def _add(self, node: ast.stmt | ast.expr, after: str | ast.expr) -> None:
        self.found.append((node, after if isinstance(after, str) else f"({ast.unparse(after)})"))

    def _negate(self, test: ast.expr) -> None:
        self._add(test, "(not ($))")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.visit_body(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self.visit_body(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Skip the texts of errors."""

    def visit_Assert(self, node: ast.Assert) -> None:
        """Skip assertions, which only type checkers need."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Skip f-strings: their parts have no positions before Python 3.12."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_Expr(self, node: ast.Expr) -> None:
        value = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(value, ast.Call) and not _is_text(value):
            self._add(node, "pass")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _is_text(node):
            return
        self.visit(node.func)
        arguments = node.args[1:] if _called(node)[-1] == "cast" else node.args
        for argument in arguments:
            self.visit(argument)
        if _called(node)[-1] in ("get", "pop", "setdefault") and node.args:
            self._string(node.args[0])
        for keyword in node.keywords:
            if keyword.arg not in _INERT_KEYWORDS:
                self.visit(keyword.value)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) != "TYPE_CHECKING":
            self._negate(node.test)
            self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        if not isinstance(node.test, ast.Constant):
            self._negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        operator = _ARITHMETIC.get(type(node.op))
        texts = (ast.JoinedStr, ast.Constant)
        if operator and not any(
            isinstance(side, texts) and isinstance(getattr(side, "value", ""), str)
            for side in (node.left, node.right)
        ):
            changed = copy.copy(node)
            changed.op = operator()
            self._add(node, changed)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        changed = copy.copy(node)
        changed.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        self._add(node, changed)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._add(node, node.operand)
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        for number, operator in enumerate(node.ops):
            changed = copy.copy(node)
            changed.ops = [*node.ops]
            changed.ops[number] = _COMPARISONS[type(operator)]()
            self._add(node, changed)
        for side in (node.left, *node.comparators):
            self._string(side)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._string(node.slice)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key in node.keys:
            if key is not None:
                self._string(key)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self._string(node.value)
        self.generic_visit(node)

    def _string(self, node: ast.expr) -> None:
        """Add a point for a string that is one word, such as a key, a code or a state."""
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and _WORD.fullmatch(value):
            self._add(node, repr(f"{value}~"))

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._add(node, repr(not node.value))
        elif isinstance(node.value, int | float):
            self._add(node, repr(node.value + 1))


def _called(node: ast.Call) -> list[str]:
    """Return the dotted name that is called, or an empty string."""
    name = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
    return name.split(".")


def _is_text(node: ast.Call) -> bool:
    """Return True if the call writes a log line or creates an error."""
    name = _called(node)
    return name[0] in _LOGGING or name[-1].endswith("Error")
