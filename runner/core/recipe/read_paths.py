"""Find paths that the code reads and that exist on this machine, but will not exist on the node.

Only paths that the text shows are found: literals, constants, joined paths, defaults of options and
functions, arguments, values of parameters, and the configuration files that these name. A path is
not reported if the code writes it, asks whether it exists, or reads it inside of `try`.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from runner.core.recipe.inputs import input_variable
from runner.core.recipe.local_code import (
    LocalCode,
    SourceFile,
    called_name,
    is_file_in,
    shell_words,
)
from runner.protocol.run_spec import ExcludedPath

_MAX_CONFIG_BYTES, _MAX_TEXT, _MAX_FOUND = 400_000, 400, 20
_LITERAL = re.compile(rb"""(["'])((?:(?!\1)[^\\\n]){1,400})\1""")
_READS = re.compile(
    r"(im|mem)?(load|read)(?!y)(?!_?(state_dict|line|ext|lib))|genfromtxt|from_(csv|json|parquet|file|disk)"
    r"|(image|text|audio)_dataset_from_directory|flow_from_directory|ImageFolder|DatasetFolder"
    r"|listdir|scandir|iterdir|TFRecordDataset|TextLineDataset|VideoCapture|memmap"
)
_OPENS = re.compile(r"open|File|ZipFile|TarFile|Dataset")
_WRITES = re.compile(
    r"write|save|dump|to_(csv|json|parquet|pickle|feather|hdf|excel)|mkdir|makedirs|touch|rmtree|unlink"
    r"|copy|move|rename|download|urlretrieve|extract|export|unpack|fetch|clone|ModelCheckpoint"
    r"|FileHandler|SummaryWriter|CSVLogger|TensorBoard|Recorder|VideoWriter|symlink|snapshot"
)
_ASKS = re.compile(r"l?exists|isfile|isdir|is_file|is_dir|access")
_SEARCHES = frozenset({"glob", "rglob", "iglob", "walk"})  # they find nothing, without an error
_METHODS = frozenset({"read_text", "read_bytes", "iterdir", "open", "glob", "rglob", "walk"})
_FOR_INPUT = re.compile(
    r"data|input|train|test|val|path|file|csv|json|yaml|config|cfg|root|folder|corpus|vocab|image"
    r"|label|annot|source|src|weights|pretrain|embed"
)
_FOR_OUTPUT = re.compile(  # how a part of a name begins
    r"out|sav|log|ckpt|checkpoint|result|cache|tmp|temp|dest|dst|export|write|work|run|resume"
    r"|snapshot|stor|board|report|plot|fig|artifact|history|download|target|record|video|predict"
    r"|submission|metric|tensorboard|tb$|wandb|mlflow"
)
_FOR_MODEL = re.compile(r"model_?(dir|path|file)s?")  # read or written
_MODE = re.compile(r"[rwaxbtU+]{1,4}")
# Folders that a node has, too.
_SYSTEM = re.compile(
    r"/(dev|proc|sys|etc|usr|bin|sbin|lib\w*|run|var|boot|opt|snap|nix)(/|$)|/(tmp|home|root|mnt|media|srv)?/?$"
)
_CONFIG = re.compile(
    r"""(?m)(?:^|[{,])[ \t-]*["']?([\w./-]+)["']?[ \t]*[:=][ \t]*["']?([^"'#,\n{}\[\]]+)"""
)
_CONFIG_SUFFIXES = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg")


@dataclass(frozen=True, slots=True)
class UnsentPath:
    """A path that will not exist on the node.

    Attributes:
        where: What names it, such as `train.py:3`.
        path: The path as it is written.
        why: Why it will not exist.
        fix: What to do.
        verb: What is done with it.
    """

    where: str
    path: str
    why: str
    fix: str
    verb: str = "reads"

    def __str__(self) -> str:
        return (
            f"{self.where} {self.verb} {self.path}, which will not exist on the node: {self.why}; "
            f"{self.fix}"
        )


@dataclass(frozen=True, slots=True)
class SentCode:
    """What is sent, and what is beside it on this machine.

    Attributes:
        folder: The folder of the code, which is the working directory on the node.
        names: The files that are sent.
        excluded: What rules leave out.
        elsewhere: Files and folders that are sent as data or inputs.
        alone: The script, if it is sent without its folder.
    """

    folder: Path
    names: Collection[str]
    excluded: Sequence[ExcludedPath] = ()
    elsewhere: tuple[Path, ...] = ()
    alone: str | None = None


def find_unsent(
    code: SentCode,
    command: Sequence[str],
    arguments: Sequence[str],
    params: Mapping[str, object],
) -> tuple[UnsentPath, ...]:
    """Return the paths that the program, its local modules and its arguments read in vain.

    Args:
        code: what is sent.
        command: the words of the command that start the program.
        arguments: its further words, those of parameters included.
        params: the values of parameters by name.
    """
    places = _Places.of(code)
    found: dict[str, UnsentPath] = {}
    named = _in_arguments(places, arguments, params)
    program = LocalCode.of_command(code.folder, command)
    files = [word for word in command if is_file_in(code.folder, word)]
    if program.script is None and files:
        script = code.folder / files[-1]
        program = LocalCode.of_shell_script(code.folder, script)
        words = [word for word in shell_words(script) if "/" in word]
        texts = [(script.name, word.partition("=")[0], word.rpartition("=")[2]) for word in words]
        named = chain(named, _in_texts(places, texts))
    for each in named:
        found.setdefault(each.path, each)
    given = {word.lstrip("-").partition("=")[0].replace("-", "_") for word in arguments}
    given |= {name.replace("-", "_") for name in params}
    sources = list(program.sources())
    for each in _unsent_modules(places, program, sources):
        found.setdefault(each.path, each)
    if any(map(places.may_miss, sources)):
        for each in _Reads(places, given).of_files(sources):
            found.setdefault(each.path, each)
    whole = [each for each in found.values() if not _has_part(found, each.path)]
    return tuple(whole)[:_MAX_FOUND]


def _has_part(found: Iterable[str], path: str) -> bool:
    """Return True if another path that was found is below a path."""
    return any(each != path and each.startswith(f"{path.rstrip('/')}/") for each in found)


@dataclass(slots=True)
class _Places:
    """Answers whether a path exists here and will not exist on the node."""

    code: SentCode
    root: str
    current: str
    names: frozenset[str]
    folders: frozenset[str]
    last_parts: frozenset[str]
    _known: dict[str, str | None] = field(default_factory=dict[str, "str | None"])

    @classmethod
    def of(cls, code: SentCode) -> _Places:
        folders: set[str] = {"."}
        for name in code.names:
            folder = name.rpartition("/")[0]
            while folder and folder not in folders:
                folders.add(folder)
                folder = folder.rpartition("/")[0]
        last = frozenset(each.path.rstrip("/").rpartition("/")[2] for each in code.excluded)
        names = frozenset(code.names)
        return cls(code, str(code.folder.resolve()), os.getcwd(), names, frozenset(folders), last)  # noqa: PTH109

    def why_missing(self, path: str) -> str | None:
        """Return why a path will not exist on the node, or None if it will, or does not here."""
        if path not in self._known:
            self._known[path] = self._find_why(path)
        return self._known[path]

    def _find_why(self, path: str) -> str | None:
        if not path.strip("./ ") or len(path) > _MAX_TEXT or "\0" in path or "://" in path:
            return None
        if path.startswith("~"):
            home = os.path.expanduser(path)  # noqa: PTH111
            return "it is in your home folder" if home != path and self._exists(home) else None
        if os.path.isabs(path) and not path.startswith(f"{self.root}/"):  # noqa: PTH117
            is_own = not _SYSTEM.match(path) and self._exists(path)
            return "it is a path of this machine" if is_own else None
        here = os.path.normpath(os.path.join(self.root, path))  # noqa: PTH118
        if self._exists(here):
            return self._why_not_sent(here) if here != self.root else None
        return self._why_not_here(path)

    def _why_not_here(self, path: str) -> str | None:
        """Return why a path that exists in the current folder only will not exist on the node."""
        here = os.path.normpath(os.path.join(self.current, path))  # noqa: PTH118
        if self.current == self.root or not self._exists(here):
            return None
        if here == self.root or self.root.startswith(f"{here}/"):
            return None
        folder = os.path.basename(self.root)  # noqa: PTH119
        return f"it is relative to the current folder, but the script runs in {folder}"

    def _why_not_sent(self, here: str) -> str | None:
        if not here.startswith(f"{self.root}/"):
            return None if self.root.startswith(f"{here}/") else "it is outside of the folder"
        name = here[len(self.root) + 1 :]
        if self._is_sent(name):
            return None
        if self.code.alone is not None:
            return f"only {self.code.alone} is sent, without its folder"
        for each in self.code.excluded:
            if name == each.path.rstrip("/") or (
                each.path.endswith("/") and name.startswith(each.path)
            ):
                return f"{each.rule} leaves it out"
            if each.path.startswith(f"{name}/"):
                return f"{each.rule} leaves out what is in it"
        return None  # for example, an empty folder

    def _is_sent(self, name: str) -> bool:
        return name in self.names or name in self.folders

    def _exists(self, path: str) -> bool:
        try:
            if not os.path.exists(path):  # noqa: PTH110  asked for every literal
                return False
        except ValueError:
            return False
        real = Path(path).resolve()
        return not any(real == each or real.is_relative_to(each) for each in self.code.elsewhere)

    def may_miss(self, source: SourceFile) -> bool:
        """Return True if a literal of a file may be, or be a part of, a path that is not sent."""
        for _, raw in _LITERAL.findall(source.data):
            text = re.split(r"[*?\[]", raw.decode(errors="replace"))[0]
            if text.rstrip("/").rpartition("/")[2] in self.last_parts:
                return True
            if _is_plain(text) and self.why_missing(text) is not None:
                return True
        return False

    def fix(self, path: str, *, flag: str = "", in_place: bool = False) -> str:
        """Return what to do about a path that an option has as its default, or an argument."""
        name = re.sub(r"\W+", "_", Path(path).stem).strip("_").lower() or "data"
        name = f"_{name}" if name[0].isdigit() else name
        here = os.path.normpath(os.path.join(self.root, os.path.expanduser(path)))  # noqa: PTH111, PTH118
        quoted = path if path.startswith("~") else shlex.quote(os.path.relpath(here))
        is_folder = os.path.isdir(here)  # noqa: PTH112
        if is_folder and "data" in name:
            option, variable = f"--data {quoted}", "$RUNNER_DATA_DIR"
        else:
            option, variable = f"--input {name}={quoted}", input_variable(name)
            variable = f"${variable}"
        if flag:
            return f"pass it with {option} -- {flag} '{variable}'"
        if in_place:
            return f"pass it with {option}, and write '{variable}' in its place"
        alone = self.code.alone
        if alone is not None and here.startswith(f"{self.root}/"):
            return f"send the folder: runner train {shlex.quote(self.root)} --entry {alone}"
        add = ""
        if here.startswith(f"{self.root}/"):
            inside = here[len(self.root) + 1 :] + "/" * is_folder
            add = f"add the line !{inside} to .runnerignore to send it, or "
        return f"{add}pass it with {option}, and read {variable}"


def _is_plain(text: str) -> bool:
    """Return True if a text may be a path: no format, no pattern, no sentence."""
    return not any(char in text for char in "{}*?<>|%\n\t") and text.count(" ") < 3


def _unsent_modules(
    places: _Places, program: LocalCode, sources: Iterable[SourceFile]
) -> Iterator[UnsentPath]:
    """Yield the modules of the folder that the code imports and that rules leave out."""
    root = program.folder
    for source in sources:
        certain = (each for each in source.imports if program.is_certain(each, source))
        for file in (file for each in certain for file in program.files_of(each, source.path)):
            path = file.relative_to(root).as_posix()
            why = places.why_missing(path)
            for each in places.code.excluded:
                if why and f"{path}/".startswith(f"{each.path.rstrip('/')}/"):
                    name = source.path.relative_to(root).as_posix()
                    fix = f"add the line !{each.path} to .runnerignore to send it"
                    yield UnsentPath(name, path, why, fix, verb="imports")


def _in_arguments(
    places: _Places, arguments: Sequence[str], params: Mapping[str, object]
) -> Iterator[UnsentPath]:
    """Yield the paths among arguments and parameters, and in configuration files among them."""
    texts: list[tuple[str, str, str]] = []
    before = ""
    for word in arguments:
        name, equals, value = word.partition("=")
        if not word.startswith("-"):
            name, value = (before, word) if not equals else (name, value)
        texts.append((f"the argument {word}", name.lstrip("-"), value))
        before = word if word.startswith("-") and not equals else ""
    texts += [
        (f"the parameter {name}", name, value)
        for name, value in params.items()
        if isinstance(value, str)
    ]
    yield from _in_texts(places, texts)


def _in_texts(places: _Places, texts: Iterable[tuple[str, str, str]]) -> Iterator[UnsentPath]:
    """Yield the paths among (what names it, name of the option, value)."""
    for where, name, value in texts:
        is_path = "/" in value or "." in value or _FOR_INPUT.search(name.lower())
        if not is_path or not _is_plain(value) or value.startswith("$") or _is_output(name):
            continue
        if why := places.why_missing(value):
            yield UnsentPath(where, value, why, places.fix(value, in_place=True))
        elif value.endswith(_CONFIG_SUFFIXES):
            yield from _in_config(places, value)


def _in_config(places: _Places, name: str) -> Iterator[UnsentPath]:
    path = Path(places.root, name)
    try:
        if path.stat().st_size > _MAX_CONFIG_BYTES:
            return
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for match in _CONFIG.finditer(text):
        key, value = match[1].lower(), match[2].strip()
        if _is_output(key) or not _FOR_INPUT.search(key) or not _is_plain(value):
            continue
        if why := places.why_missing(value):
            line = text.count("\n", 0, match.start(1)) + 1
            yield UnsentPath(f"{name}:{line}", value, why, places.fix(value))


def _is_output(name: str) -> bool:
    parts = re.split(r"[^a-z0-9]+", name.lower())
    return any(map(_FOR_OUTPUT.match, parts)) or _FOR_MODEL.search(name.lower()) is not None


@dataclass(slots=True)
class _Reads:
    """What the code of a script and its modules reads, writes and asks for."""

    places: _Places
    given: Collection[str]
    _constants: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    _reads: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])
    _handled: set[str] = field(default_factory=set[str])
    _file: str = ""

    def of_files(self, sources: Sequence[SourceFile]) -> Iterator[UnsentPath]:
        folder = self.places.code.folder
        trees = [(each.path.relative_to(folder).as_posix(), each.tree) for each in sources]
        for self._file, tree in trees:
            with suppress(RecursionError):  # an expression with hundreds of parts
                self._collect_constants(tree)
        for self._file, tree in trees:
            for node in tree.body:
                with suppress(RecursionError):
                    self._visit(node, guarded=False)
        for where, path, flag in self._reads:
            if not self._is_handled(path) and (why := self.places.why_missing(path)):
                shown = path.removeprefix(f"{self.places.root}/")
                yield UnsentPath(where, shown, why, self.places.fix(path, flag=flag))

    def _is_handled(self, path: str) -> bool:
        """Return True if code writes a path or a folder above it, or asks whether it exists."""
        path = os.path.normpath(path)
        while path not in ("", "/", "."):
            if path in self._handled:
                return True
            path = os.path.dirname(path)  # noqa: PTH120
        return False

    def _collect_constants(self, tree: ast.Module) -> None:
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign):
                targets = [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and node.value is not None:  # type: ignore[union-attr]
                    value = self._value(node.value)  # type: ignore[union-attr]
                    known = self._constants.get(target.id, value)
                    self._constants[target.id] = value if known == value else None

    def _visit(self, node: ast.AST, *, guarded: bool) -> None:
        if isinstance(node, ast.Try):
            for each in node.body:
                self._visit(each, guarded=True)
            for each in (*node.handlers, *node.orelse, *node.finalbody):
                self._visit(each, guarded=guarded)
            return
        if isinstance(node, ast.If):
            self._visit(node.test, guarded=guarded)
            stops = any(_stops(each) for each in (*node.body, *node.orelse))
            if stops:  # the code would stop without the path
                self._unask(node.test)
            for each in (*node.body, *node.orelse):
                self._visit(each, guarded=guarded)
            return
        if isinstance(node, ast.Call):
            self._visit_call(node, guarded=guarded)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self._visit_defaults(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            self._visit_assignment(node)
        for child in ast.iter_child_nodes(node):
            self._visit(child, guarded=guarded)

    def _unask(self, test: ast.expr) -> None:
        for node in ast.walk(test):
            if isinstance(node, ast.Call):
                for path in self._paths(node):
                    self._handled.discard(os.path.normpath(path))

    def _visit_call(self, node: ast.Call, *, guarded: bool) -> None:
        called = called_name(node)
        if called in ("add_argument", "option", "Option", "Argument", "argument"):
            self._visit_option(node)
            return
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        path = self._value(owner) if owner is not None else None
        paths = [*self._paths(node), *([path] if path else [])]
        writes = _WRITES.search(called) is not None or _writing_mode(node)
        if writes or _ASKS.fullmatch(called) or _asks_for_download(node):
            self._handled.update(map(os.path.normpath, paths))
        elif guarded:
            return
        elif path and called in _METHODS:
            self._add(node, path)
        elif called in _SEARCHES:
            found = self._value(node.args[0]) if node.args else None
            self._add(node, re.split(r"[*?\[]", found)[0].rstrip("/") if found else "")
        elif _READS.match(called) or _OPENS.fullmatch(called):
            for each in self._paths(node):
                self._add(node, each)

    def _paths(self, node: ast.Call) -> list[str]:
        values = [*node.args, *(each.value for each in node.keywords)]
        found = (self._value(each) for each in values)
        return [each for each in found if each and _is_plain(each)]

    def _visit_option(self, node: ast.Call) -> None:
        names = [each.value for each in node.args if isinstance(each, ast.Constant)]
        flags = [each for each in names if isinstance(each, str) and each.startswith("-")]
        flag = max(flags, key=len, default="")
        if flag:
            default = next((each.value for each in node.keywords if each.arg == "default"), None)
            self._add_default(node, flag.lstrip("-"), default, flag)

    def _visit_defaults(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        arguments = [*node.args.posonlyargs, *node.args.args]
        defaults = node.args.defaults
        pairs = [
            *zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True),
            *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
        ]
        for argument, default in pairs:
            self._add_default(node, argument.arg, default)

    def _visit_assignment(self, node: ast.Assign | ast.AnnAssign) -> None:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        name = target.id if isinstance(target, ast.Name) else ""
        if name.isupper() or (name and isinstance(node, ast.AnnAssign)):
            self._add_default(node, name, node.value)

    def _add_default(
        self, node: ast.stmt | ast.expr, name: str, default: ast.expr | None, flag: str = ""
    ) -> None:
        plain = name.lower().replace("-", "_")
        if default is None or plain in self.given or _is_output(plain):
            return
        path = self._value(default)
        if path and _FOR_INPUT.search(plain) and _is_plain(path):
            self._add(node, path, flag)

    def _add(self, node: ast.stmt | ast.expr, path: str, flag: str = "") -> None:
        self._reads.append((f"{self._file}:{node.lineno}", path, flag))

    def _value(self, node: ast.expr | None) -> str | None:
        """Return the text of an expression, or None if the code does not show it."""
        found: str | None = None
        match node:
            case ast.Constant(value=str(text)):
                found = text
            case ast.Name(id="__file__"):
                found = f"{self.places.root}/{self._file}"
            case ast.Name(id=name):
                found = self._constants.get(name)
            case ast.JoinedStr(values=values):
                parts = [e.value if isinstance(e, ast.FormattedValue) else e for e in values]
                found = self._joined(parts, "".join)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                found = self._joined((left, right), "".join)
            case ast.BinOp(op=ast.Div(), left=left, right=right):
                found = self._joined((left, right), _join)
            case ast.Attribute(value=value, attr="parent"):
                found = self._joined((value,), _parent)
            case ast.Call():
                found = self._call_value(node)
            case _:
                pass
        return found

    def _call_value(self, node: ast.Call) -> str | None:
        called, args = called_name(node), node.args
        if called in ("getcwd", "cwd"):
            return self.places.root
        if isinstance(node.func, ast.Attribute):
            if called in ("resolve", "absolute", "as_posix", "expanduser") and not args:
                return self._value(node.func.value)
            if called == "joinpath":
                return self._joined((node.func.value, *args), _join)
        if called in ("Path", "PurePath", "PosixPath") or (called == "join" and _is_os(node.func)):
            return self._joined(args, _join) if args else None
        if called in ("str", "abspath", "expanduser", "normpath", "realpath", "fspath", "dirname"):
            return self._joined(args, _parent if called == "dirname" else "".join)
        return None

    def _joined(self, nodes: Sequence[ast.expr], join: Callable[[list[str]], str]) -> str | None:
        found = [self._value(each) for each in nodes]
        return None if None in found else join([each or "" for each in found])


def _join(parts: Sequence[str]) -> str:
    return os.path.join(*parts)  # noqa: PTH118


def _parent(parts: Sequence[str]) -> str:
    return os.path.dirname(parts[0])  # noqa: PTH120


def _is_os(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) or ast.unparse(function).endswith("path.join")


def _writing_mode(node: ast.Call) -> bool:
    modes = [*node.args[:2], *(each.value for each in node.keywords if each.arg == "mode")]
    texts = [each.value for each in modes if isinstance(each, ast.Constant)]
    return any(
        isinstance(text, str) and _MODE.fullmatch(text) and set("wax+") & set(text)
        for text in texts
    )


def _asks_for_download(node: ast.Call) -> bool:
    values = [each.value for each in node.keywords if each.arg == "download"]
    return any(not (isinstance(each, ast.Constant) and each.value is False) for each in values)


def _stops(node: ast.stmt) -> bool:
    """Return True if a statement ends the program."""
    if isinstance(node, ast.Raise):
        return True
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and called_name(call) in ("exit", "_exit", "quit", "abort")
