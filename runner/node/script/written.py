"""Find what a script wrote elsewhere than in `$RUNNER_OUTPUT_DIR`.

A script that does not know us writes beside itself, to `./outputs`, to the value of `--output_dir`
or to its home folder. What is new or changed there since the command started becomes an output
under the same path.
"""

from __future__ import annotations

import glob
import itertools
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from runner.protocol.results import LeftOut
from runner.protocol.run_spec import KeepRule, RunSpec

CONVENTIONAL = ("outputs", "output", "logs")
CREATED = ("outputs", "logs")  # before the script starts, as Azure ML does
CODE, HOME, TEMP = "code", "home", "temp"  # sources, see `OutputFile`
OUTSIDE = "outside"  # the folder of the outputs for files at paths elsewhere
ON_CONFLICT = "script-folder"  # where $RUNNER_OUTPUT_DIR has a file of the same name
# Folders that data sets are downloaded to: `data`, `nltk_data`, `MNIST`, `cifar-10-batches-py`.
_DATA_FOLDER = re.compile(
    r"(.*[_-])?(data|datasets?|downloads?)|(fashion|k|e)?mnist|cifar-.*|svhn|coco.*|imagenet.*",
    re.IGNORECASE,
)
DATA_BYTES = 32 * 1000**2
MAX_FILES = 20_000  # below one entry of the script's folder
MAX_LISTED = 50  # entries of `left_out`
MAX_SOURCES, MAX_SOURCE_BYTES = 500, 1 << 20  # files of code that are searched

_CACHES = frozenset({
    "__pycache__", ".cache", ".ipynb_checkpoints", ".git", ".hg", ".svn", ".mypy_cache",
    ".pytest_cache", ".ruff_cache", ".tox", ".eggs", ".keras", ".torch", ".huggingface",
    ".triton", ".nv", ".conda", ".local", ".config", ".ssh", ".aws", ".azure", "node_modules",
})  # fmt: skip
# A folder that holds one of these is an environment or a cache (bford.info/cachedir, 2026-11-23).
_MARKERS = frozenset({"pyvenv.cfg", "conda-meta", "CACHEDIR.TAG"})
# Only what a script writes: a folder of a model may be an input, and nothing exports to one that
# exists. A path is rather a file, so only its folder is made.
_FOLDER_ARGUMENT = re.compile(
    r"--?(?:(?:out|output|outputs|save|log|logs|result|results)[-_]?(?:dir|folder|directory)"
    r"|job-dir|default_root_dir)"
)
_OUTPUT_ARGUMENT = re.compile(
    r"--?(?:o|(?:out|output|outputs|save|result|results)(?:[-_]?(?:to|path|file))?)"
)
# The names that Batch AI and Azure ML give to the folders of named outputs.
_NAMED_OUTPUT = re.compile(r"\b(AZ_BATCHAI_OUTPUT_|AZURE_ML_OUTPUT_)([A-Za-z0-9_]+)")
_MAKES_FOLDER = re.compile(r"^(?=.*(?:mkdir|makedirs)\s*\()(?!.*exist_ok).*$", re.MULTILINE)
_SOURCE_SUFFIXES = frozenset({
    ".py", ".sh", ".ipynb", ".r", ".jl", ".lua", ".pl", ".bs", ".yaml", ".yml", ".json", ".toml",
    ".cfg", ".ini",
})  # fmt: skip
# Absolute paths, in quotes or as words of a shell, and what stands for a value in them.
_ABSOLUTE_PATH = re.compile(
    r"""["'](/[^"'\n]+)["']|(?:^|[\s=>(])(/[^\s"'`,;()<>|&]+)""", re.MULTILINE
)
_PLACEHOLDER = re.compile(r"\$?\{[^{}]*\}|%[\d.]*[sdfi]")
_SYSTEM = frozenset({
    "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr",
})  # fmt: skip
# Folders of everybody: of these, only files count that the code names.
_SHARED = re.compile(r"/|/(tmp|var|var/tmp|home|home/[^/]+|root|opt|mnt|media|srv|Users|private)")
MAX_PATHS = 500

_State = tuple[int, int, int, int, int]  # mode, size, mtime, ctime, inode


@dataclass(frozen=True)
class Collected:
    """What a script wrote elsewhere, by the path that it gets as an output.

    Attributes:
        files: Where each file is.
        sources: Where the script wrote it, see `OutputFile`.
        left_out: What is not kept.
        kept_promises: Globs of `outputs` that match one of the files.
    """

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    left_out: tuple[LeftOut, ...] = ()
    kept_promises: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the document that `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Collected:
        """Read what `to_json` returned."""
        left_out = tuple(LeftOut.from_json(each) for each in raw["left_out"])
        return cls(raw["files"], raw["sources"], left_out, tuple(raw["kept_promises"]))


@dataclass(frozen=True)
class _Found:
    """A file that the script wrote: where it is, and the path it gets as an output."""

    path: Path
    name: str
    source: str
    size_bytes: int
    is_readable: bool = True

    @property
    def group(self) -> str:
        """The entry of the script's folder, or of its home folder, that it is or lies in."""
        parts = self.name.split("/")
        depth = 1 if self.source == CODE else 2
        return "/".join(parts[:depth]) + ("/" if len(parts) > depth else "")


class WrittenFiles:
    """What one command writes; made before it starts, `collect` after its processes ended.

    Args:
        code: the folder of the script, its working directory.
        output: `$RUNNER_OUTPUT_DIR`.
        places: further folders of this task alone, by their source: its home, its temporary files.
        ours: files and folders of the agent, which are never outputs.
    """

    def __init__(
        self,
        code: Path,
        output: Path,
        places: Mapping[str, Path],
        ours: Sequence[Path],
        spec: RunSpec,
    ) -> None:
        self._code = code
        self._output = output
        self._ours = tuple(Path(os.path.realpath(path)) for path in (output, *ours))
        self._roots = {code: CODE, **{path: source for source, path in places.items()}}
        self._rule = spec.keep or KeepRule()
        self._is_off = spec.keep is None
        self._promised = (*spec.outputs, *self._rule.paths)
        self._text = _read_sources(code)
        self._folders: tuple[str, ...] = ()
        self._words = (*spec.command, *spec.env.values())
        self._before: dict[Path, dict[str, _State]] = {}
        self._began_ns = 0

    def named_outputs(self) -> dict[str, str]:
        """Create the folders of outputs that the code names as Batch AI and Azure ML do.

        Returns:
            Their variables: `$AZ_BATCHAI_OUTPUT_MODEL` is `model` in `$RUNNER_OUTPUT_DIR`.
        """
        named: dict[str, str] = {}
        for match in _NAMED_OUTPUT.finditer("\n".join((self._text, *self._words))):
            folder = self._output / match[2].lower()
            with suppress(OSError):
                folder.mkdir(exist_ok=True)
                named[match[0]] = str(folder)
        return named

    def begin(self, command: Sequence[str]) -> None:
        """Create the folders that the script expects, and record what is there."""
        self._folders = tuple(_values(command, _FOLDER_ARGUMENT.fullmatch))
        for name in (*CREATED, *self._folders):
            self._create(name)
        for name in _values(command, _OUTPUT_ARGUMENT.fullmatch):
            if "/" in name:
                self._create(str(PurePosixPath(name).parent))
        mark = self._output.parent / ".began"  # by the clock of the file system
        with suppress(OSError):
            mark.touch()
            self._began_ns = mark.stat().st_mtime_ns
            mark.unlink()
        for root in self._roots:
            self._before[root] = dict(self._scan(root))

    def _create(self, name: str) -> None:
        """Create a folder for the script, unless the script would fail because it exists."""
        last = re.escape(PurePosixPath(name).name)
        if any(re.search(rf"\b{last}\b", m[0]) for m in _MAKES_FOLDER.finditer(self._text)):
            return
        with suppress(OSError):
            (self._code / name).mkdir(parents=True, exist_ok=True)

    def collect(self) -> Collected:
        """Return what the script wrote elsewhere than in its folder of outputs."""
        if self._is_off:
            return Collected()
        found = {each.path: each for each in self._written()}.values()
        insisted, promises = self._insisted(found)
        kept, left_out = self._choose(found, insisted)
        free_name = _Names(name for name, _ in self._scan(self._output)).free_name
        named = {free_name(each.name): each for each in kept}
        return Collected(
            {name: str(each.path) for name, each in named.items()},
            {name: each.source for name, each in named.items()},
            _shortened(left_out),
            promises,
        )

    def _written(self) -> Iterator[_Found]:
        for root, source in self._roots.items():
            before = self._before.get(root, {})
            for name, state in self._scan(root):
                if before.get(name) == state:
                    continue
                shown = name if source == CODE else f"{source}/{name}"
                if stat.S_ISREG(state[0]):
                    # Permission of the owner; nothing is denied to root.
                    may_read = bool(state[0] & stat.S_IRUSR) or os.getuid() == 0
                    yield _Found(root / name, shown, source, state[1], may_read)
                elif stat.S_ISLNK(state[0]):
                    yield from self._behind_link(root / name, shown, source)
        for path, size in self._elsewhere():
            yield _Found(path, f"{OUTSIDE}{path}", str(path), size)

    def _elsewhere(self) -> Iterator[tuple[Path, int]]:
        """Return files of other folders that the script wrote, with their sizes.

        An absolute path comes from the code, its configuration, an argument or a variable: what
        lies there, is ours and was changed since the command started, is taken for the script's.
        """
        text = "\n".join((self._text, *self._words))
        named = {found[1] or found[2] for found in _ABSOLUTE_PATH.finditer(text)}
        named |= {word for word in self._words if word.startswith("/")}
        for path in sorted(named)[:MAX_PATHS]:
            pattern = os.path.normpath(_PLACEHOLDER.sub("*", path.rstrip("\\")))
            first, _, rest = pattern.removeprefix("/").partition("/")
            if not first or "*" in first or first in _SYSTEM or "/." in pattern:
                continue
            fixed = os.path.dirname(pattern.partition("*")[0])  # noqa: PTH120 - ends with a slash
            if "*" in pattern and _SHARED.fullmatch(fixed) and _is_vague(pattern[len(fixed) :]):
                continue
            found = glob.iglob(pattern) if rest else iter([pattern])  # noqa: PTH207 - absolute
            for hit in map(Path, itertools.islice(found, MAX_FILES)):
                if hit.is_dir() and _SHARED.fullmatch(str(hit)):
                    below = (path for path in _entries(hit) if path.name in text)
                elif hit.is_dir():
                    below = (hit / name for name, _ in itertools.islice(self._scan(hit), MAX_FILES))
                else:
                    below = iter([hit])
                yield from self._fresh(below)

    def _fresh(self, paths: Iterable[Path]) -> Iterator[tuple[Path, int]]:
        """Return the files that this user changed since the command started, not the agent's."""
        for path in paths:
            with suppress(OSError):
                target = Path(os.path.realpath(path))
                found = target.stat()
                is_new = found.st_ctime_ns >= self._began_ns and found.st_uid == os.getuid()
                if not (is_new and stat.S_ISREG(found.st_mode)) or self._is_ours(target):
                    continue
                if not any(target.is_relative_to(os.path.realpath(root)) for root in self._roots):
                    yield target, found.st_size

    def _behind_link(self, link: Path, name: str, source: str) -> Iterator[_Found]:
        """Return what the script wrote where a link of its leads."""
        try:
            target = Path(os.path.realpath(link))
            found = target.stat()
        except OSError:
            return
        if self._is_ours(target):
            return
        if stat.S_ISREG(found.st_mode):
            if found.st_ctime_ns >= self._began_ns and not target.is_relative_to(self._code):
                yield _Found(target, name, source, found.st_size)
            elif target.is_relative_to(self._code):
                yield _Found(link, name, source, found.st_size)
        elif stat.S_ISDIR(found.st_mode) and not target.is_relative_to(self._code):
            for below, state in self._scan(target):
                if stat.S_ISREG(state[0]) and state[3] >= self._began_ns:
                    yield _Found(target / below, f"{name}/{below}", source, state[1])

    def _is_ours(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._ours)

    def _scan(self, root: Path) -> Iterator[tuple[str, _State]]:
        """Return files and links below a folder, without caches, environments and our own."""
        # What programs keep for themselves, credentials too, except in the folder of the script.
        hidden = not root.is_relative_to(self._code)
        skipped = {str(path) for path in (*self._ours, *self._roots) if path != root}
        waiting = [(str(root), "")]
        while waiting:
            folder, prefix = waiting.pop()
            try:
                with os.scandir(folder) as listing:
                    entries = list(listing)
            except OSError:
                continue
            if prefix and any(entry.name in _MARKERS for entry in entries):
                continue
            for entry in entries:
                if entry.name in _CACHES or (hidden and entry.name.startswith(".")):
                    continue
                if entry.path in skipped:
                    continue
                with suppress(OSError):  # it was removed meanwhile
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, f"{prefix}{entry.name}/"))
                    elif not entry.name.endswith((".pyc", ".DS_Store")):
                        yield prefix + entry.name, _state(entry.stat(follow_symlinks=False))

    def _choose(
        self, found: Iterable[_Found], insisted: set[str]
    ) -> tuple[list[_Found], list[LeftOut]]:
        """Return what is kept within the limits, and what is left out."""
        groups: dict[str, list[_Found]] = {}
        kept: list[_Found] = []
        left_out: list[LeftOut] = []
        for each in found:
            if not (each.is_readable and _is_blob_name(each.name)):
                left_out.append(LeftOut(_printable(each.name), each.size_bytes, "unreadable"))
            elif not insisted.isdisjoint(_with_parents(each.name)):
                kept.append(each)
            else:
                groups.setdefault(each.group, []).append(each)
        within: list[_Found] = []
        for group, files in groups.items():
            total = sum(file.size_bytes for file in files)
            if total > DATA_BYTES and _is_data(group) and files[0].source in (CODE, HOME, TEMP):
                left_out.append(LeftOut(group, total, "data", len(files)))
            elif len(files) > MAX_FILES:
                left_out.append(LeftOut(group, total, "count", len(files)))
            else:
                within += files
        room = self._rule.max_bytes
        for each in sorted(within, key=lambda file: file.size_bytes):
            room -= each.size_bytes
            if room >= 0:
                kept.append(each)
            else:
                left_out.append(LeftOut(each.name, each.size_bytes, "size"))
        return kept, left_out

    def _insisted(self, found: Iterable[_Found]) -> tuple[set[str], tuple[str, ...]]:
        """Return what is kept whatever its size, because somebody named it or its folder.

        Returns:
            Files and folders, and the globs of the recipe that match one of the files.
        """
        named = {*CONVENTIONAL, *(str(PurePosixPath(folder)) for folder in self._folders)} - {"."}
        written = {part for each in found for part in _with_parents(each.name)}
        promises: list[str] = []
        for pattern in self._promised:
            hits = {pattern.rstrip("/")}  # as `left_out` names it: `outside/data/model.bin`
            with suppress(ValueError, NotImplementedError, OSError):  # not a pattern of this folder
                hits |= {hit.relative_to(self._code).as_posix() for hit in self._code.glob(pattern)}
            named |= hits - {"."}
            if not hits.isdisjoint(written):
                promises.append(pattern)
        return named, tuple(promises)


class _Names:
    """The paths of outputs that are taken, and free ones."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._files = set(taken)
        self._folders = {part for name in self._files for part in _with_parents(name)} - self._files

    def free_name(self, name: str) -> str:
        """Return the name, below another folder if a file or folder of that name exists."""
        for number in itertools.count(1):
            path, *folders = _with_parents(name)
            if path not in self._folders and self._files.isdisjoint((path, *folders)):
                break
            first = name if number == 1 else name.partition("/")[2]
            name = f"{ON_CONFLICT}{f'-{number}' if number > 1 else ''}/{first}"
        self._files.add(name)
        self._folders.update(_with_parents(name)[1:])
        return name


def _with_parents(name: str) -> list[str]:
    """Return the path and its folders: `a/b/c`, `a/b`, `a`."""
    parts = name.split("/")
    return ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _is_blob_name(name: str) -> bool:
    """Return False for what storage refuses, or would take for another path."""
    return "\\" not in name and name == _printable(name)


def _printable(name: str) -> str:
    return name.encode(errors="replace").decode()


def _is_vague(pattern: str) -> bool:
    """Return True if the first part of `/model-*.pt` says too little to tell whose file it is."""
    return len(pattern.split("/")[1].replace("*", "")) < 3


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _is_data(group: str) -> bool:
    return group.endswith("/") and _DATA_FOLDER.fullmatch(PurePosixPath(group).name) is not None


def _state(found: os.stat_result) -> _State:
    return found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def _shortened(left_out: list[LeftOut]) -> tuple[LeftOut, ...]:
    """Return the largest entries, and one for the rest."""
    entries = sorted(left_out, key=lambda each: -each.size_bytes)
    rest = entries[MAX_LISTED:]
    if rest:
        size, files = sum(e.size_bytes for e in rest), sum(e.files for e in rest)
        entries[MAX_LISTED:] = [LeftOut("others", size, rest[0].why, files)]
    return tuple(entries)


def _read_sources(folder: Path) -> str:
    """Return the text of the code, which is searched for what it expects."""
    texts: list[str] = []
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in _SOURCE_SUFFIXES and len(texts) < MAX_SOURCES:
            with suppress(OSError):
                if path.is_file() and path.stat().st_size <= MAX_SOURCE_BYTES:
                    texts.append(path.read_text(encoding="utf-8", errors="replace"))
    return "\n".join(texts)


def _values(words: Sequence[str], names: Callable[[str], object]) -> Iterator[str]:
    """Return the values of arguments, as `--name VALUE` and `--name=VALUE`."""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        found = value if equals else following
        if names(name) and found and found[0] not in "-$":
            yield found
