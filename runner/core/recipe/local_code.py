"""The Python code of a program: its script, and the modules of its folder that it imports.

`LocalCode` follows imports as Python does, but only reads text. Whoever searches the code for
imports, options or paths iterates over `LocalCode.sources`, which parses each file once.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

from runner.core.packages.script_file import SOURCES, find_module, is_file_in, parse_python
from runner.core.recipe.notebook import SUFFIX, parse_code

MAX_FILES = 100  # of one program, that are read: the nearest to the script
MAX_BYTES = 1 << 20  # of one program, and of one file: parsing takes 0.3 s
_MAX_IMPORTS = 5_000  # of one file
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return, ast.Raise, ast.Assert)
_CALLS_FUNCTION = re.compile(r"import sys; from ([\w.]+) import")  # begins code for `python -c`
_IMPORT = re.compile(
    rb"(?m)^[ \t]*(?:from[ \t]+(\.*)([\w.]*)[ \t]+import\b([^\n]*)|import[ \t]+([\w., \t]+))"
)


@dataclass(frozen=True, slots=True)
class Imported:
    """One name of an `import` statement, or one `from ... import` statement.

    Attributes:
        module: The dotted name, without the dots of a relative import; may be empty.
        level: The number of these dots; 0 for an absolute import.
        names: What a `from` statement imports: modules of the package, or other names in it.
        is_guarded: True within `try` or `with suppress(...)`, or if the text could not be parsed:
            the program may run without the module.
        is_conditional: True within `if`, except for `if __name__ == ...`.
        in_function: True within a function, which may never run.
    """

    module: str
    level: int = 0
    names: tuple[str, ...] = ()
    is_guarded: bool = False
    is_conditional: bool = False
    in_function: bool = False

    @property
    def top(self) -> str:
        """The first part of the name of the module; empty for a relative import."""
        return "" if self.level else self.module.partition(".")[0]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Python file or a notebook.

    Attributes:
        path: The file.
        data: Its content, not much more than `MAX_BYTES` of it; empty if it cannot be read.
    """

    path: Path
    data: bytes

    @property
    def tree(self) -> ast.Module:
        """Its code; empty if it is not valid Python, or too large."""
        return _parse(self.data, self._notebook) or ast.Module([], [])

    @property
    def is_valid(self) -> bool:
        """True if it is valid Python."""
        return _parse(self.data, self._notebook) is not None

    @property
    def imports(self) -> tuple[Imported, ...]:
        """Its imports in order. Those of code that is not valid are found in its text."""
        return _find_imports(self.data, self._notebook)

    @property
    def _notebook(self) -> Path | None:
        return self.path if self.path.suffix == SUFFIX else None


def read_source(path: Path) -> SourceFile:
    """Return a file of code."""
    data = b""
    with suppress(OSError), path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    return SourceFile(path, data)


# By content, because a file may change. Few trees are kept: they are large, and slow to collect.
@lru_cache(maxsize=2)
def _parse(data: bytes, notebook: Path | None) -> ast.Module | None:
    if notebook is not None:
        return parse_code(notebook)
    if len(data) <= MAX_BYTES:
        with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            return parse_python(data)
    return None  # the run reports it better


@lru_cache(maxsize=2 * MAX_FILES)
def _find_imports(data: bytes, notebook: Path | None) -> tuple[Imported, ...]:
    tree = _parse(data, notebook)
    if tree is not None:
        with suppress(RecursionError):  # a condition with hundreds of operators
            return tuple(dict.fromkeys(islice(_imports_of(tree), _MAX_IMPORTS)))
    return tuple(dict.fromkeys(islice(_imports_of_text(data), _MAX_IMPORTS)))


def _imports_of(tree: ast.Module) -> Iterator[Imported]:
    """Yield the imports of a module in the order of its text, except those for type checkers."""
    pending = [(statement, Imported("")) for statement in reversed(tree.body)]
    while pending:
        statement, place = pending.pop()
        if isinstance(statement, ast.Import):
            yield from (replace(place, module=alias.name) for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            names = tuple(alias.name for alias in statement.names if alias.name != "*")
            module = statement.module or ""
            yield replace(place, module=module, level=statement.level, names=names)
        elif inside := _inside(statement):
            within = _within(place, statement)
            pending += [(each, within) for each in reversed(inside)]


def _inside(statement: ast.stmt) -> list[ast.stmt]:
    """Return the imports and compound statements directly inside of a statement."""
    found = list[ast.stmt]()
    if not (isinstance(statement, ast.If) and _is_for_types(statement.test)):
        found += getattr(statement, "body", ())
    for part in (*getattr(statement, "handlers", ()), *getattr(statement, "cases", ())):
        found += part.body
    found += (*getattr(statement, "orelse", ()), *getattr(statement, "finalbody", ()))
    return [each for each in found if not isinstance(each, _SIMPLE)]


def _within(place: Imported, statement: ast.stmt) -> Imported:
    """Return the place of the statements inside of a compound statement."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        return replace(place, in_function=True)
    if isinstance(statement, ast.Try | ast.TryStar):
        return replace(place, is_guarded=True)
    if isinstance(statement, ast.With | ast.AsyncWith):
        suppresses = any("suppress" in ast.unparse(each.context_expr) for each in statement.items)
        return replace(place, is_guarded=place.is_guarded or suppresses)
    if isinstance(statement, ast.If) and not _is_for_types(statement.test):
        is_main = "__name__" in ast.unparse(statement.test)
        return replace(place, is_conditional=place.is_conditional or not is_main)
    return place


def _is_for_types(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", "")
    return name == "TYPE_CHECKING"


def _imports_of_text(data: bytes) -> Iterator[Imported]:
    """Yield the imports of code that this Python cannot parse, such as that of another version."""
    for match in _IMPORT.finditer(data.removeprefix(b"\xef\xbb\xbf")):
        dots, module, names, plain = (each.decode(errors="replace") for each in match.groups(b""))
        if match[4] is None:
            found = tuple(re.findall(r"\w+", names))
            yield Imported(module, len(dots), found, is_guarded=True)
        for each in plain.split(","):
            if words := each.split():
                yield Imported(words[0], is_guarded=True)


class LocalCode:
    """The code of a program.

    Attributes:
        folder: The folder of the code, in which the program runs.
        script: The Python file or notebook that it starts first, or None.
    """

    def __init__(self, folder: Path, started: Mapping[Path, Path | None]) -> None:
        """Take the files that a program starts.

        Args:
            folder: the folder of the code.
            started: for each file, the folder in which Python finds it as a module, as for
                `python -m MODULE`; None for a file that is started by its path.
        """
        self.folder = folder
        self.script = next(iter(started), None)
        self._started = dict(started)
        self._sources = folder / SOURCES
        # Where Python searches; further folders only if PYTHONPATH has them.
        self._own = tuple(dict.fromkeys(root or file.parent for file, root in started.items()))
        self._roots = tuple(dict.fromkeys((*self._own, folder, self._sources)))
        self._files: dict[Path, Path | None] = {}

    @classmethod
    def of_command(cls, folder: Path, command: Sequence[str]) -> LocalCode:
        """Return the code of the first program among the words of a command."""
        return cls(folder, dict(islice(_programs(folder, command), 1)))

    @classmethod
    def of_shell_script(cls, folder: Path, script: Path) -> LocalCode:
        """Return the code of all programs that a shell script names."""
        return cls(folder, dict(_programs(folder, list(shell_words(script)))))

    def sources(self, *, only_certain: bool = False) -> Iterator[SourceFile]:
        """Yield the files that are started and those that they import, each once, within limits.

        Args:
            only_certain: follow only imports that are certain to be executed, see `is_certain`.
        """
        pending, left = deque(dict.fromkeys((*self._started, *self._packages()))), MAX_BYTES
        seen = set(pending)
        for _ in range(MAX_FILES):
            if not pending or left <= 0:
                return
            source = read_source(pending.popleft())
            left -= len(source.data)
            yield source
            for each in source.imports:
                if not only_certain or self.is_certain(each, source):
                    new = [file for file in self.files_of(each, source.path) if file not in seen]
                    seen.update(new)
                    pending += new

    def is_certain(self, imported: Imported, source: SourceFile) -> bool:
        """Return True if an import is executed whenever the program runs, as far as text shows.

        The functions of a script are expected to run, those of other modules are not.
        """
        if imported.is_guarded or imported.is_conditional:
            return False
        return source.path in self._started or not imported.in_function

    def files_of(self, imported: Imported, importer: Path) -> list[Path]:
        """Return the files of the folder that an import executes; none if it is elsewhere."""
        if imported.level:
            base = importer.parents[min(imported.level, len(importer.parents)) - 1]
            is_inside = base.is_relative_to(self.folder)
            return self._files_below(base, imported) if is_inside else []
        # An importer may have added its own folder to sys.path.
        roots = self._roots_of(imported.top, self._roots) or (importer.parent,)
        return [file for root in roots for file in self._files_below(root, imported)]

    def is_beyond(self, imported: Imported) -> bool:
        """Return True if Python finds a module only if PYTHONPATH has the folder of the code."""
        if not imported.top or self.folder in self._own:
            return False
        is_here = self._find_file(self.folder / imported.top) is not None
        return is_here and self._roots_of(imported.top, self._roots) == (self.folder,)

    @property
    def needs_sources(self) -> bool:
        """True if Python finds a module of the program only if PYTHONPATH has the folder `src`."""
        if not self._sources.is_dir():
            return False
        if self._sources in self._started.values():
            return True
        return self._sources not in self._own and any(
            self._sources in self._roots_of(each.top, self._roots)
            and self._files_below(self._sources, each)
            for source in self.sources()
            for each in source.imports
            if each.top
        )

    def _packages(self) -> Iterator[Path]:
        """Yield the files of the packages of modules, which Python imports before them."""
        modules = [(file, root) for file, root in self._started.items() if root is not None]
        for file, root in modules:
            for parent in reversed(file.relative_to(root).parents[:-1]):
                package = root / parent / "__init__.py"
                if package.is_file():
                    yield package

    def _roots_of(self, top: str, roots: Iterable[Path]) -> tuple[Path, ...]:
        """Return the folder that has a module or package, else all that have a part of it.

        A folder without `__init__.py` is a part of a package if no other folder has the package:
        docs.python.org/3/reference/import.html#namespace-packages.
        """
        parts = list[Path]()
        for root in roots:
            if self._find_file(root / top) is not None:
                return (root,)
            if os.path.isdir(root / top):  # noqa: PTH112  asked for each import
                parts.append(root)
        return tuple(parts)

    def _files_below(self, root: Path, imported: Imported) -> list[Path]:
        """Return the files that an import executes if the module is below a folder."""
        path, found = root, list[Path]()
        for part in imported.module.split(".") if imported.module else ():
            path /= part
            if (file := self._find_file(path)) is not None:
                found.append(file)
        inside = (self._find_file(path / name) for name in imported.names)
        return [*found, *(file for file in inside if file is not None)]

    def _find_file(self, path: Path) -> Path | None:
        """Return the file of a module by its path without suffix; a package is before a file."""
        if path not in self._files:
            candidates = (path / "__init__.py", path.parent / f"{path.name}.py")
            self._files[path] = next((e for e in candidates if os.path.isfile(e)), None)  # noqa: PTH113
        return self._files[path]


def _programs(folder: Path, words: Sequence[str]) -> Iterator[tuple[Path, Path | None]]:
    """Yield the files that words start, with the folder in which Python finds a module."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "-m" and (found := find_module(folder, following)):
            yield found
        elif word == "-c" and (called := _CALLS_FUNCTION.match(following)):
            if found := find_module(folder, called[1], is_run=False):
                yield found
        elif word.endswith((".py", SUFFIX)) and is_file_in(folder, word):
            yield folder / word, None


def called_name(call: ast.Call) -> str:
    """Return the last part of the name of the called function; empty if it has none."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def shell_words(script: Path) -> Iterator[str]:
    """Yield the words of a shell script, without those of lines that are not complete."""
    with suppress(OSError):
        for line in script.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):
                yield from shlex.split(line, comments=True)
