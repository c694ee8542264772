"""Check a requirements file as far as its text shows, with the files that it includes.

The forms are those of pip ("Requirements File Format") and PEP 508. What needs an index or a
repository is left to the node.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from runner.core.packages.python_request import poetry_specifiers
from runner.protocol.errors import RunnerError

CODE = "R-REQUIREMENTS"
ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar")
_INCLUDES = ("-r", "--requirement", "-c", "--constraint")
_EDITABLE = ("-e", "--editable")
_FIND_LINKS = ("-f", "--find-links")
_WITH_VALUE = frozenset({
    "-i", "--index-url", "--pypi-url", "--extra-index-url", "--no-binary", "--only-binary",
    "--trusted-host", "--use-feature",
})  # fmt: skip
_ALONE = frozenset({"--no-index", "--prefer-binary", "--require-hashes", "--pre"})
_OF_ONE_LINE = re.compile(r"\s--(hash|config-settings?|global-option|install-option|editable)\b")
_OPTION = re.compile(r"(--[\w-]+|-\w)\s*=?\s*(.*)")
_COMMENT = re.compile(r"(^|\s)#.*")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_URL = re.compile(r"(?:(?:git|hg|svn|bzr)\+)?[a-z][a-z0-9.-]*://|file:", re.IGNORECASE)
_SSH = re.compile(r"[\w.-]+@[\w.-]+:(?!//)[\w./~-]+")
_GIT_HOSTS = ("github.com", "gitlab.com", "bitbucket.org", "huggingface.co")
# Most lines; `packaging` takes 15 ms to load, and reads the others.
_SIMPLE = re.compile(
    r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[[\w\s,.-]*\])?"
    r"\s*(?:(?:[=!<>~]=|[<>])\s*\d+(?:\.\d+)*(?:\.\*)?\s*(?:,\s*(?:[!<>]=|[<>])\s*\d+(?:\.\d+)*\s*)*)?",
    re.ASCII,
)
_NOT_SIMPLE = re.compile(r"[<>~]=?\s*[\d.]*\*|~=\s*\d+\s*(?:,|$)")  # not allowed, too
_EXACT = re.compile(r"[^=<>!~;]*==\s*v?([\d.]+)", re.ASCII)
_NAME = re.compile(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[[^]]*\])?\s*")


@dataclass(frozen=True, slots=True)
class ListedPackages:
    """What a file lists.

    Attributes:
        names: Normalized names of the packages.
        files: Files of the folder that the installation reads, relative to it.
        folders: Folders of the folder that are installed, relative to it.
        is_open: True if packages are installed whose dependencies are listed elsewhere.
        count: The number of packages.
    """

    names: frozenset[str] = frozenset()
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    is_open: bool = False
    count: int = 0


NONE_LISTED = ListedPackages()


def normalize_name(name: str) -> str:
    """Return the name of a package as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_requirements_file(folder: Path, name: str) -> ListedPackages:
    """Read a requirements file of a folder, and those that it includes.

    Raises:
        RunnerError: a line is no requirement, or refers to something that is not in the folder.
    """
    reader = _Reader(folder)
    reader.read(name)
    return reader.listed()


def check_lines(folder: Path, name: str, lines: Iterable[tuple[str, str]]) -> ListedPackages:
    """Check requirements that another file lists, each given as (place in the file, text).

    Raises:
        RunnerError: a text is no requirement, or refers to something that is not in the folder.
    """
    reader = _Reader(folder)
    for place, text in lines:
        reader.read_line(_Line(name, place, text), PurePosixPath(name).parent)
    return reader.listed()


def read_text(folder: Path, name: str) -> str:
    """Return the text of a file that lists packages. Raise RunnerError unless it is UTF-8."""
    try:
        data = (folder / name).read_bytes()
    except OSError as err:
        raise RunnerError(
            "R-REQUIREMENTS-MISSING",
            f"cannot read {folder / name}",
            why=err.strerror or str(err),
            fix="correct the name, or make the file readable",
        ) from err
    return decode_text(data, name, str(folder / name))


def decode_text(data: bytes, name: str, path: str) -> str:
    """Return the text of a file that lists packages. Raise RunnerError unless it is UTF-8."""
    shown = shlex.quote(path)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:4096]:
        raise RunnerError(
            CODE,
            f"{name} is not UTF-8 text",
            why="it is UTF-16, which `>` of Windows PowerShell writes",
            fix=f"iconv -f UTF-16 -t UTF-8 {shown} > utf8.tmp && mv utf8.tmp {shown}"
            if data.startswith((b"\xff\xfe", b"\xfe\xff"))
            else f"save {name} as UTF-8",
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = data.count(b"\n", 0, err.start) + 1
        raise RunnerError(
            CODE,
            f"{name} is not UTF-8 text",
            why=f"line {line} has the byte 0x{data[err.start]:02x}",
            fix=f"save {name} as UTF-8",
        ) from err


@dataclass(frozen=True, slots=True)
class _Line:
    """A logical line: `place` is `line 3`, or the place in a file of another format."""

    file: str
    place: str
    text: str

    def error(self, problem: str, why: str, fix: str, column: int = 0) -> RunnerError:
        at = f"{self.place}, column {column}" if column else self.place
        return RunnerError(CODE, f"{self.file}, {at}: {problem}", why=why, fix=fix)

    def refused(self, why: str, fix: str, column: int = 0) -> RunnerError:
        shown = self.text if len(self.text) <= 80 else f"{self.text[:77]}..."
        return self.error(f"{shown!r} is not a requirement", why, fix, column)


@dataclass(slots=True)
class _Reader:
    folder: Path
    names: set[str] = field(default_factory=set[str])
    files: dict[str, None] = field(default_factory=dict[str, None])
    folders: dict[str, None] = field(default_factory=dict[str, None])
    is_open: bool = False
    count: int = 0
    pins: dict[str, tuple[str, _Line]] = field(default_factory=dict[str, "tuple[str, _Line]"])

    def listed(self) -> ListedPackages:
        return ListedPackages(
            frozenset(self.names), tuple(self.files), tuple(self.folders), self.is_open, self.count
        )

    def read(self, name: str, *, constrains: bool = False) -> None:
        if name in self.files:
            return
        self.files[name] = None
        for line in _logical_lines(read_text(self.folder, name), name):
            self.read_line(line, PurePosixPath(name).parent, constrains=constrains)

    def read_line(self, line: _Line, beside: PurePosixPath, *, constrains: bool = False) -> None:
        """Read a line of a file in the folder `beside`."""
        if _VARIABLE.search(line.text):  # the node knows the values
            self.is_open = True
            self.count += 1
        elif line.text.startswith("-"):
            self._read_option(line, beside)
        else:
            self._read_requirement(line, line.text, constrains=constrains)

    def _read_option(self, line: _Line, beside: PurePosixPath) -> None:
        option = _OPTION.match(line.text)
        name, value = (option[1], option[2].strip("\"' ")) if option else (line.text, "")
        if name in _INCLUDES:
            self._include(line, beside, value, constrains=name in _INCLUDES[2:])
        elif name in _EDITABLE:
            self._read_requirement(line, value, constrains=False)
            self.is_open = True
        elif name in _FIND_LINKS:
            if not _URL.match(value):  # a path beside the file, or in the working directory
                near = os.path.normpath(beside / value)
                self._add_path(line, near if (self.folder / near).exists() else value)
        elif name in _WITH_VALUE:
            if not value:
                raise line.error(f"{name} has no value", "pip expects one", "add it")
        elif option is None:
            raise line.refused("it begins with -", _fix_requirement(line.text), 1)
        elif name not in _ALONE:
            raise line.error(
                f"unknown option {name}",
                "a requirements file has options such as -r, -c, -e and -i",
                "remove the line" if name not in ("-U", "--upgrade") else f"remove {name}",
            )

    def _include(self, line: _Line, beside: PurePosixPath, value: str, *, constrains: bool) -> None:
        if re.match(r"https?://", value):
            self.is_open = True
            return
        path = self._inside(line, value.removeprefix("file://"), self.folder / beside)
        if not path.is_file():
            raise self._missing(line, value, path)
        self.read(path.relative_to(self.folder).as_posix(), constrains=constrains)

    def _read_requirement(self, line: _Line, text: str, *, constrains: bool) -> None:
        if hashed := _OF_ONE_LINE.search(text):
            text = text[: hashed.start()].strip()
        if _SIMPLE.fullmatch(text) and not _NOT_SIMPLE.search(text):
            if text.endswith(".txt") and (self.folder / text).is_file():
                raise line.refused("it is the name of a file", f"write -r {text}")
            if not text.endswith(ARCHIVES):
                self._refuse_second_pin(line, text)
                self._add(text, constrains=constrains)
                return
        name, _, where = text.partition("@")
        if where and _NAME.fullmatch(name) and not _SSH.fullmatch(text):
            self._check_place(line, where.partition(" ;")[0].strip(), name.strip())
            self._add(name, constrains=constrains)
            return
        what = re.split(r"\s+;", text)[0].strip()
        if _SSH.fullmatch(what.removeprefix("git+")):
            host, _, path = what.removeprefix("git+").partition(":")
            raise line.refused(
                "an address of git begins with git+", f"write git+ssh://{host}/{path}"
            )
        if _URL.match(what):
            self._check_place(line, what, None)
            self.is_open = True
            self.count += 1
            if egg := re.search(r"[#&]egg=([\w.-]+)", what):
                self.names.add(normalize_name(egg[1]))
        elif what.startswith(".") or "/" in what or what.endswith(ARCHIVES) or "\\" in what:
            self._add_path(line, re.sub(r"\[[^]]*\]$", "", what))
            self.count += 1
        else:
            self._parse(line, text)
            self._add(text, constrains=constrains)

    def _add(self, text: str, *, constrains: bool) -> None:
        found = _NAME.match(text)
        if found and not constrains:
            self.names.add(normalize_name(found[1]))
            self.count += 1

    def _refuse_second_pin(self, line: _Line, text: str) -> None:
        """Raise RunnerError if another line wants another version of the same package."""
        found, named = _EXACT.fullmatch(text), _NAME.match(text)
        if found is None or named is None:
            return
        version = re.sub(r"(\.0+)+$", "", found[1])
        known, first = self.pins.setdefault(normalize_name(named[1]), (version, line))
        if known != version:
            where = first.place if first.file == line.file else f"{first.file}, {first.place}"
            raise line.error(
                f"{text} contradicts {first.text}", f"{where} asks for it", "remove one of the two"
            )

    def _check_place(self, line: _Line, url: str, name: str | None) -> None:
        """Check where a package is installed from."""
        if url.lower().startswith("file:"):
            path = unquote(url[len("file:") :].partition("#")[0])
            self._add_path(line, path.removeprefix("//localhost").removeprefix("//"))
            return
        if not _URL.match(url):
            if _SSH.fullmatch(url):
                host, _, path = url.partition(":")
                fix = f"write {name} @ git+ssh://{host}/{path}"
                raise line.refused("an address of git begins with git+", fix)
            self._add_path(line, url)
            return
        parts = urlsplit(url)
        scheme, path = parts.scheme.lower(), parts.path
        if "+" in scheme or path.lower().endswith(ARCHIVES) or scheme not in ("http", "https"):
            if scheme in ("git", "ssh"):
                raise line.refused("an address of git begins with git+", f"write git+{url}")
            return
        is_known = (parts.hostname or "").removeprefix("www.") in _GIT_HOSTS
        if path.endswith(".git") or ".git@" in path or (is_known and path.count("/") == 2):
            before = f"{name} @ " if name else ""
            raise line.refused(
                "the address of a repository begins with git+", f"write {before}git+{url}"
            )

    def _add_path(self, line: _Line, text: str) -> None:
        path = self._inside(line, text.partition("#")[0], self.folder)
        if not path.exists():
            raise self._missing(line, text, path)
        relative = path.relative_to(self.folder).as_posix()
        if path.is_file():
            self.files[relative] = None
            if not path.name.endswith(ARCHIVES):
                raise line.error(
                    f"{text} is neither a folder nor an archive of a package",
                    "pip installs folders with a pyproject.toml or setup.py, wheels and sdists",
                    f"to include another requirements file, write -r {text}"
                    if path.suffix in (".txt", ".in")
                    else "remove the line",
                )
            if path.name.endswith(".whl") and (name := path.name.split("-")[0]):
                self.names.add(normalize_name(name))
                self.is_open = True
            return
        self.folders[relative] = None
        self.is_open = True
        options = (*_FIND_LINKS, *_INCLUDES)
        has_project = any((path / each).is_file() for each in ("pyproject.toml", "setup.py"))
        if not has_project and not line.text.startswith(options):
            raise line.error(
                f"{text} is a folder without a Python project",
                "it has neither pyproject.toml nor setup.py",
                "remove the line, or add a pyproject.toml to the folder",
            )

    def _inside(self, line: _Line, text: str, base: Path) -> Path:
        """Return the path of a text, which has to be in the folder."""
        text = text.strip().strip("\"'")
        path = Path(os.path.normpath(base / text))
        if re.match(r"[A-Za-z]:[\\/]|\\\\|~", text):  # a path of Windows, or of a home
            path = Path("/elsewhere")
        root = Path(os.path.normpath(self.folder))
        if not path.is_relative_to(root):
            absolute = text.startswith("/") or path == Path("/elsewhere")
            raise line.error(
                f"{text} is outside of the folder that is sent",
                f"only files in {root} are sent to the node",
                "write NAME==VERSION of the package instead of a path of this machine"
                if absolute
                else f"copy it into {root}, or train a folder that contains both",
            )
        return path

    def _missing(self, line: _Line, text: str, path: Path) -> RunnerError:
        import difflib  # noqa: PLC0415

        beside = path.parent
        names = [each.name for each in beside.iterdir()] if beside.is_dir() else []
        near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.7)
        return line.error(
            f"no file or folder {text}",
            f"{path} does not exist",
            f"did you mean {near[0]}?" if near else "create it, or remove the line",
        )

    def _parse(self, line: _Line, text: str) -> None:
        """Raise RunnerError if a text is no requirement of PEP 508."""
        from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415  15 ms

        try:
            Requirement(text)
        except InvalidRequirement as err:
            problem, _, drawn = str(err).partition("\n")
            marked = re.search(r"^( *)(~*)\^", drawn.rpartition("\n")[2])
            column = len(marked[0]) - 4 if marked else 0  # four spaces precede the text
            raise line.refused(_lower(problem), _fix_requirement(text), column) from err


def _lower(problem: str) -> str:
    return problem[:1].lower() + problem[1:]


# What people write, and what they mean; \1 and \2 are groups of the expression.
_MEANT = (
    (r"([\"'])([^\"']+)\1,?", r"write \2"),
    (r"([\w.-]+)\s*[\u2010-\u2015\u2212]+\s*([\d.]+)", r"write \1==\2"),
    (r"([\w.-]+)\s*[\u2265]\s*([\d.]+)", r"write \1>=\2"),
    (r"([\w.-]+)\s*~=\s*(\d+)", r"write \1~=\2.0"),
    (r"([\w.-]+)\s*>=?\s*([\d.]+)\.\*", r"write \1>=\2"),
    (r"([\w.-]+)\s*<=?\s*([\d.]+)\.\*", r"write \1<\2"),
    (r"([\w.-]+\s*[=<>!~]=?\s*[\d.]+)\s*[:,;@]\s*\w*", r"write \1"),
    (r"[-*]\s+(\S.*)", r"write \1"),
    (r"([\w.-]+)=([\w.]+)(=[\w.]+)?", r"write \1==\2"),
    (r"[!%]?(?:python3? -m )?(?:uv )?pip3? install\s+(.+)", r"write \1"),
    (r"[!%]?(?:conda|mamba) install\s+(.+)", r"write the names of the packages, one per line: \1"),
    (r"([A-Za-z][\w.-]*)\s+v?(\d[\w.]*)", r"write \1==\2"),
)


def _fix_requirement(text: str) -> str:
    if found := re.fullmatch(r"([\w.-]+)\s*([~^]\s*\d[\w.]*)", text):  # of Poetry
        with suppress(ValueError):
            return f"write {found[1]}{poetry_specifiers(found[2])}"
    for expression, meant in _MEANT:
        if found := re.fullmatch(expression, text):
            return found.expand(meant)
    names = [name for name in re.split(r"[,\s]+", text) if name]
    if len(names) > 1 and all(_SIMPLE.fullmatch(name) for name in names):
        return f"write one package per line: {', '.join(names)}"
    return "write NAME or NAME==VERSION, or begin the line with # to leave it out"


def _logical_lines(text: str, file: str) -> Iterator[_Line]:
    """Yield the lines without comments; a backslash at the end joins a line with the next one."""
    first, joined = 0, ""
    for number, raw in enumerate([*text.splitlines(), ""], 1):
        first = first or number
        if raw.endswith("\\") and not raw.lstrip().startswith("#"):
            joined += raw[:-1]
            continue
        whole = _COMMENT.sub("", joined + raw).strip()
        if whole:
            yield _Line(file, f"line {first}", whole)
        first, joined = 0, ""
