"""Find the files that a script wrote outside of `$RUNNER_OUTPUT_DIR`.

A script that was not written for runner writes to its own folder, to `./outputs`, to the value of
`--output_dir` or to its home folder. Files there that are new or changed since the command started
become outputs with the same relative path.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TypeVar

from runner.node.script.code_text import CodeText
from runner.protocol.codec import JsonDocument
from runner.protocol.paths import stored_path
from runner.protocol.results import LeftOut
from runner.protocol.run_spec import KeepRule, RunSpec

CONVENTIONAL = ("outputs", "output", "logs")
CODE, HOME, TEMP = "code", "home", "temp"  # sources, see `OutputFile`
OUTSIDE = "outside"  # the folder in the outputs for files from all other paths
ON_CONFLICT = "script-folder"  # the folder for files whose name $RUNNER_OUTPUT_DIR has too
# Folders that data sets are downloaded to: `data`, `nltk_data`, `MNIST`, `cifar-10-batches-py`.
_DATA_FOLDER = re.compile(
    r"(?!out|result|pred)(.*[_-])?(data|datasets?|downloads?)"
    r"|(fashion|k|e)?mnist|cifar-.*|svhn|coco.*|imagenet.*",
    re.IGNORECASE,
)
# Files with these names are results even in a folder of data.
_MODEL = re.compile(
    r".*\.(pt|pth|h5|hdf5|keras|npz|onnx|ckpt|safetensors|pkl|joblib|model|pb|tflite|gguf)"
    r"|.*model.*\.bin",
    re.IGNORECASE,
)
DATA_BYTES = 32 * 1000**2  # a folder of data with fewer bytes is kept
MAX_FILES = 20_000  # in one entry of the script's folder
MAX_LISTED = 50  # entries in `left_out`
MAX_ENTRIES = 200_000  # searched in each of the script's folder, its home, and all other folders
MAX_ENTRIES_OF_PATH = 50_000  # searched below one absolute path
SEARCH_S = 60.0  # time limit of a search if the attempt has no deadline
MAX_SHOWN = 800  # characters of a path in `left_out`
_ARGUMENT = "argument "  # precedes a recorded path, see `runner.hooks.written_paths`
_HEAD_BYTES = 4096  # read from a file to recognise a key
MAX_CACHE_ENTRIES = 2_000  # entries of caches that are searched for models

_CACHES = frozenset({
    "__pycache__", ".cache", ".ipynb_checkpoints", ".git", ".hg", ".svn", ".mypy_cache",
    ".pytest_cache", ".ruff_cache", ".tox", ".eggs", ".keras", ".torch", ".huggingface",
    ".triton", ".nv", ".conda", ".local", ".config", ".ssh", ".aws", ".azure", "node_modules",
})  # fmt: skip
# The caches in which a model may be a result. In the others, it is part of a package or a history.
_SEARCHED_CACHES = frozenset({".cache", ".keras", ".torch", ".local", ".ipynb_checkpoints"})
# A folder with one of these entries is an environment, a cache (bford.info/cachedir, 2026-11-23),
# or what setuptools writes beside an editable package (`*.egg-info`).
_MARKERS = ("pyvenv.cfg", "conda-meta", "CACHEDIR.TAG", "dependency_links.txt")
# Variables with the folders in which programs keep downloads and credentials.
_CACHE_VARIABLES = (
    "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME",
    "XDG_CACHE_HOME", "KERAS_HOME", "PIP_CACHE_DIR", "UV_CACHE_DIR", "MPLCONFIGDIR",
    "AZURE_CONFIG_DIR",
)  # fmt: skip
# Names of files with credentials, and (_PRIVATE) of files that contain credentials if only their
# owner may read them.
_SECRET = re.compile(
    r"token|stored_tokens|credentials?(\.(json|ya?ml|ini))?|_netrc|netrc|kaggle\.json"
    r"|id_(rsa|dsa|ecdsa|ed25519)|cookies?(\.(txt|sqlite))?|(.*[_.-])?service[_-]?account.*\.json"
)
_PRIVATE = re.compile(
    r"(.*[_.-])?(token|secret|credential|password|key|cookie)s?(\.[a-z]{1,5})?"
    r"|.*\.(pem|key|p12|pfx|ppk|jks|keystore)",
    re.IGNORECASE,
)
# Names of temporary files of libraries, and names that the module `tempfile` chooses.
_LEFTOVER = re.compile(
    r"pymp-.*|torchinductor_.*|torch_extensions.*|joblib_memmapping_folder_.*"
    r"|__autograph_generated_file.*|torch_geometric\..*"
)
_TEMPORARY = re.compile(r"tmp[a-z0-9_]{8}(\..*)?")
# Names of files and folders that a program needs only while it runs.
_SCRATCH = re.compile(
    r"\.?(tmp|temp|scratch)(dir|files?)?|.*\.(tmp|temp|swp|part|partial|crdownload)|core(\.\d+)?"
    r"|\.nfs.*|.*\.scratch",
    re.IGNORECASE,
)
_PLACEHOLDER = re.compile(r"\$?\{[^{}]*\}|%[\d.]*[sdfi]")
_SYSTEM = frozenset({
    "bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "proc", "run", "sbin", "sys", "usr",
})  # fmt: skip
# Shared folders. A file in one of them counts as the script's only if the code names it.
_SHARED = re.compile(r"/|/(tmp|var|var/tmp|home|home/[^/]+|root|opt|mnt|media|srv|Users|private)")
MAX_WILDCARDS = 4  # in a path

_Item = TypeVar("_Item")
_State = tuple[int, int, int, int, int]  # mode, size, mtime, ctime, inode


@dataclass(frozen=True)
class Collected(JsonDocument):
    """The files that a script wrote elsewhere, by their path as an output.

    Attributes:
        files: the path of each file on the node.
        sources: the kind of place that the script wrote it to, see `OutputFile`.
        left_out: files that are not kept.
    """

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    sources: Mapping[str, str] = field(default_factory=dict[str, str])
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True)
class _Found:
    """A file that the script wrote: its path on the node, and its name as an output."""

    path: str
    name: str
    source: str
    size_bytes: int
    is_readable: bool = True
    is_private: bool = False

    @property
    def group(self) -> str:
        """The top entry of the script's folder or home that contains the file; a folder ends in /.

        For other files, it is the folder of data that contains the file, or else the top folder of
        the file system. Limits apply to each group.
        """
        parts = self.name.split("/")
        depth = 1 if self.source == CODE else 2
        if self.source.startswith("/"):
            names = enumerate(parts[:-1], 1)
            depth = next((n for n, name in names if _DATA_FOLDER.fullmatch(name)), depth)
        return "/".join(parts[:depth]) + ("/" if len(parts) > depth else "")


class WrittenFiles:
    """The files that one command writes. Create it before the command, `collect` after its end.

    Args:
        code: the folder of the script, its working directory.
        output: `$RUNNER_OUTPUT_DIR`.
        places: further folders that belong only to this task, by source: HOME, TEMP.
        agent_paths: files and folders of the agent, which are never outputs.
        spec: the run.
        shared: folders of all tasks of the node. In them, only `code` and `places` are searched.
        recorded: a file with further paths that the command wrote to, one per line.
        inherited: variables of the command in addition to those of `spec`.
    """

    def __init__(
        self,
        code: Path,
        output: Path,
        places: Mapping[str, Path],
        agent_paths: Sequence[Path],
        spec: RunSpec,
        *,
        shared: Sequence[Path] = (),
        recorded: Path | None = None,
        inherited: Mapping[str, str] | None = None,
    ) -> None:
        self._code, self._output = os.path.realpath(code), Path(os.path.realpath(output))
        self._agent_paths = tuple(os.path.realpath(path) for path in (output, *agent_paths))
        self._recorded = recorded
        self._shared = tuple(os.path.realpath(path) for path in shared)
        self._roots = {self._code: CODE}
        for source, place in places.items():
            self._roots.setdefault(os.path.realpath(place), source)
        variables = {**(inherited or {}), **spec.env}
        caches = {os.path.realpath(variables.get(name) or "/") for name in _CACHE_VARIABLES}
        self._caches = {folder for folder in caches if not _SHARED.fullmatch(folder)}
        self._rule = spec.keep or KeepRule()
        self._is_off = spec.keep is None
        self._promised = (*spec.outputs, *self._rule.paths)
        self.code_text = CodeText(code, (*spec.command, *spec.env.values()))
        self._folders: tuple[str, ...] = ()
        self._before: dict[str, dict[str, _State]] = {}
        self._is_before_complete = True
        self._began_ns = time.time_ns()
        self._deadline = math.inf
        self._unsearched: dict[str, LeftOut] = {}
        self._skipped_caches: dict[str, str] = {}  # their names in `left_out`, by path

    def mentions(self, word: str) -> bool:
        """Return True if the code, its configuration or the command has this text."""
        return word in self.code_text.text

    @functools.cached_property
    def _absolute_paths(self) -> tuple[str, ...]:
        return tuple(self.code_text.absolute_paths())

    def metric_folders(self, *more: Path) -> Iterator[str]:
        """Yield the folders to which the script may write metrics: its own, and those it names."""
        yield from self._roots
        yield from (str(self._output), *map(str, more))
        for path in self._absolute_paths:
            for found in self._existing_paths(path):
                is_folder = os.path.isdir(found)  # noqa: PTH112 - never raises
                if is_folder and not self._is_foreign(found) and not _SHARED.fullmatch(found):
                    yield found

    def named_outputs(self) -> dict[str, str]:
        """Create the output folders for variables of Batch AI and Azure ML that the code uses.

        Returns:
            The folder for each variable. `$AZ_BATCHAI_OUTPUT_MODEL` is `$RUNNER_OUTPUT_DIR/model`.
        """
        named: dict[str, str] = {}
        for variable, name in self.code_text.named_outputs().items():
            folder = self._output / name
            with suppress(OSError):
                folder.mkdir(exist_ok=True)
                named[variable] = str(folder)
        return named

    def begin(self, command: Sequence[str]) -> None:
        """Create the folders that the script expects, and record the existing files."""
        self._folders = self.code_text.folders(command)
        for name in self.code_text.expected_folders(command):
            with suppress(OSError, ValueError):
                Path(self._code, name).mkdir(parents=True, exist_ok=True)
        self._began_ns = time.time_ns()
        mark = self._output.parent / ".began"  # use the file system's clock, like the files
        with suppress(OSError):
            mark.touch()
            self._began_ns = mark.stat().st_mtime_ns
            mark.unlink()
        self._deadline = time.monotonic() + SEARCH_S
        for root, source in self._roots.items():
            self._before[root] = dict(self._scan(root, source))
        self._is_before_complete = not self._unsearched

    def collect(self, left_s: float | None = None) -> Collected:
        """Return the files that the script wrote outside of `$RUNNER_OUTPUT_DIR`.

        Args:
            left_s: maximum seconds for the search, or None.
        """
        if self._is_off:
            return Collected()
        self._deadline = time.monotonic() + (SEARCH_S if left_s is None else max(left_s, 0.0))
        self._unsearched.clear()
        self._skipped_caches.clear()
        written = list(self._find_written())
        named = self._requested_names()
        found: dict[str, _Found] = {}
        requested: set[str] = set()
        for each in written:
            found.setdefault(each.path, each)
            if not named.isdisjoint(_with_parents(each.name)):
                requested.add(each.path)
        kept, left_out = self._choose(found.values(), requested)
        left_out.extend(self._find_models_in_caches())
        free_name = _Names(name for name, _ in self._scan(str(self._output), "output")).free_name
        files = {free_name(each.name): each for each in kept}
        return Collected(
            {name: each.path for name, each in files.items()},
            {name: each.source for name, each in files.items()},
            (*itertools.islice(self._unsearched.values(), MAX_LISTED), *shortened(left_out)),
        )

    def _find_written(self) -> Iterator[_Found]:
        for root, source in self._roots.items():
            before = self._before.get(root, {})
            for name, state in self._scan(root, source):
                known = before.get(name)
                is_old = not self._is_before_complete and state[3] < self._began_ns
                if known == state or (known is None and is_old):
                    continue
                path = f"{root}/{name}"
                shown = name if source == CODE else f"{source}/{name}"
                if stat.S_ISREG(state[0]):
                    # Check the owner's permission. Root may read everything.
                    may_read = bool(state[0] & stat.S_IRUSR) or os.getuid() == 0
                    yield _Found(path, shown, source, state[1], may_read)
                elif stat.S_ISLNK(state[0]):
                    yield from self._follow_link(path, shown, source)
        yield from self._find_elsewhere()

    def _find_elsewhere(self) -> Iterator[_Found]:
        """Return files that the script wrote at absolute paths in other folders.

        Such a path was recorded while the script wrote, or comes from the code, its configuration,
        an argument or a variable. Files there that belong to this user and have changed since the
        command started count as the script's. Single files are checked before folders, because a
        folder of data may contain more files than can be searched.
        """
        folders: dict[str, bool] = {}
        named = itertools.chain.from_iterable(map(self._existing_paths, self._absolute_paths))
        hits = itertools.chain(self._recorded_paths(), ((path, False) for path in named))
        for hit, is_argument in self._limited(hits, OUTSIDE, MAX_ENTRIES):
            if os.path.isdir(hit):  # noqa: PTH112 - never raises
                folders[hit] = is_argument and folders.get(hit, True)
            else:
                yield from self._find_outside(hit, is_argument)
        for folder, is_argument in folders.items():
            yield from self._find_outside(folder, is_argument)

    def _recorded_paths(self) -> Iterator[tuple[str, bool]]:
        """Return the recorded paths that exist, without caches and temporary files of libraries.

        Returns:
            Each path, and True if it is only known as an argument of a command.
        """
        if self._recorded is None:
            return
        recorded: dict[str, bool] = {}
        with suppress(OSError), self._recorded.open("rb") as lines:
            for line in lines:
                text = os.fsdecode(line.rstrip(b"\n").replace(b"\0", b"\n"))
                path = text.removeprefix(_ARGUMENT)
                recorded[path] = path != text and recorded.get(path, True)
        is_marked = functools.cache(_is_marked)
        for path, is_argument in recorded.items():
            if not path.startswith("/"):  # this line means that further paths were not recorded
                self._unsearched.setdefault(OUTSIDE, LeftOut(OUTSIDE, 0, "search"))
                continue
            parts = path.split("/")
            is_left = any(_LEFTOVER.fullmatch(p) or _TEMPORARY.fullmatch(p) for p in parts)
            if not os.path.lexists(path) or (is_left and not _MODEL.fullmatch(parts[-1])):
                continue
            folders = _with_parents(os.path.realpath(path))[:-1]  # without "/"
            names = {folder.rpartition("/")[2] for folder in folders}
            if _CACHES.isdisjoint(names) and not any(map(is_marked, folders)):
                yield path, is_argument

    def _find_outside(self, path: str, is_argument: bool) -> Iterator[_Found]:
        for target, _, size in self._find_changed(path, f"{OUTSIDE}{path}"):
            if not any(_is_below(target, root) for root in self._roots):
                is_private = _is_key(target) or (is_argument and _is_private_file(target))
                name = f"{OUTSIDE}{target}"
                yield _Found(target, name, target, size, is_private=is_private)

    def _existing_paths(self, path: str) -> Iterator[str]:
        """Return the existing files and folders that match a path with placeholders."""
        pattern = os.path.normpath(_PLACEHOLDER.sub("*", path.rstrip("\\")))
        first, _, _ = pattern.lstrip("/").partition("/")
        if not first or "*" in first or first in _SYSTEM or "/." in pattern or "\0" in pattern:
            return
        fixed = pattern.partition("*")[0].rpartition("/")[0]
        if "*" in pattern and _SHARED.fullmatch(fixed or "/") and _is_vague(pattern[len(fixed) :]):
            return
        if pattern.count("*") <= MAX_WILDCARDS:
            yield from self._matching("", "/" + pattern.lstrip("/"))

    def _matching(self, folder: str, pattern: str) -> Iterator[str]:
        """Return the existing paths below a folder that match a pattern such as `/a/b-*.pt`."""
        fixed, star, _ = pattern.partition("*")
        if not star:
            if os.path.lexists(folder + pattern):
                yield folder + pattern
            return
        parent = fixed.rpartition("/")[0]
        part, slash, rest = pattern[len(parent) + 1 :].partition("/")
        expected = re.compile(".*".join(map(re.escape, part.split("*"))), re.DOTALL)
        folder = f"{folder}{parent}/"
        for entry in self._limited(_entries(folder), OUTSIDE, MAX_ENTRIES):
            if expected.fullmatch(entry.name) and entry.name[0] != ".":
                found = folder + entry.name
                yield from self._matching(found, slash + rest) if slash else iter([found])

    def _follow_link(self, link: str, name: str, source: str) -> Iterator[_Found]:
        """Return the files that the script wrote at or below the target of one of its links."""
        with suppress(OSError, ValueError):
            found = os.stat(link)  # noqa: PTH116 - paths are text here
            target = os.path.realpath(link)
            if not _is_below(target, self._code):
                for path, below, size in self._find_changed(target, name):
                    yield _Found(path, f"{name}/{below}" if below else name, source, size)
            elif stat.S_ISREG(found.st_mode) and not self._is_foreign(target):
                yield _Found(link, name, source, found.st_size)

    def _find_changed(self, path: str, shown: str) -> Iterator[tuple[str, str, int]]:
        """Return the files at or below a path that this user changed since the command started.

        Returns:
            The real path of each file, its path relative to `path`, and its size in bytes.
        """
        is_shared = False
        if os.path.isdir(path):  # noqa: PTH112 - never raises
            path = os.path.realpath(path)
            if self._is_foreign(path) or _is_pseudo(path):
                return
            is_shared = _SHARED.fullmatch(path) is not None
            below = (name for name, _ in self._scan(path, shown, MAX_ENTRIES_OF_PATH, is_shared))
        else:
            below = iter([""])
        for name in below:
            with suppress(OSError, ValueError):
                full = f"{path}/{name}" if name else path
                found = os.stat(full)  # noqa: PTH116 - paths are text here
                is_new = found.st_ctime_ns >= self._began_ns and found.st_uid == os.getuid()
                if not (is_new and stat.S_ISREG(found.st_mode)):
                    continue
                target = os.path.realpath(full)
                if self._is_foreign(target) or (is_shared and name not in self.code_text.text):
                    continue
                if _is_secret(target, found.st_mode):
                    continue
                yield target, name, found.st_size

    def _is_foreign(self, target: str) -> bool:
        """Return True for files of the agent, the system or other tasks, and hidden files."""
        if self._is_of_agent(target):
            return True
        for root, source in self._roots.items():
            if _is_below(target, root):
                return source != CODE and "/." in target[len(root) :]
        first = target.lstrip("/").partition("/")[0]
        is_shared = any(_is_below(target, folder) for folder in (*self._shared, *self._caches))
        return first in _SYSTEM or "/." in target or is_shared

    def _scan(
        self, root: str, shown: str, limit: int = MAX_ENTRIES, is_flat: bool = False
    ) -> Iterator[tuple[str, _State]]:
        """Return files and links below a folder, without caches, environments and the agent's.

        Folders of other file systems are left out. If the limit or the time is exceeded, the rest
        is recorded as unsearched, with the name `shown`. `is_flat` excludes subfolders.
        """
        # Hidden entries are caches and credentials of programs, except in the script's folder.
        without_hidden = not _is_below(root, self._code)
        agent_and_others = (*self._agent_paths, *self._roots, *self._shared)
        skipped = {path for path in agent_and_others if path != root}
        device = _device(root)
        waiting = [""]
        while waiting:
            prefix = waiting.pop()
            folder = f"{root}/{prefix}"
            if prefix and _is_marked(folder):
                continue
            for entry in self._limited(_entries(folder), shown, limit):
                limit -= 1
                path = f"{folder}{entry.name}"
                if entry.name in _CACHES or (without_hidden and entry.name.startswith(".")):
                    if entry.name in _SEARCHED_CACHES or entry.name not in _CACHES:
                        name = f"{prefix}{entry.name}"
                        self._skipped_caches[path] = name if shown == CODE else f"{shown}/{name}"
                    continue
                if path in skipped or (without_hidden and _LEFTOVER.fullmatch(entry.name)):
                    continue
                with suppress(OSError):  # it was removed meanwhile
                    if entry.is_dir(follow_symlinks=False):
                        if not is_flat and _device(path) == device:
                            waiting.append(f"{prefix}{entry.name}/")
                    elif not entry.name.endswith((".pyc", ".DS_Store")):
                        yield prefix + entry.name, _state(entry.stat(follow_symlinks=False))

    def _find_models_in_caches(self) -> Iterator[LeftOut]:
        """Return the skipped caches and hidden files that contain a model of the script.

        A model is recognised by the suffix of its name. Outside of the script's folder, where
        downloaded models may be, its name must also be in the code. Folders of data are ignored.
        """
        files = ((cache, path) for cache in self._skipped_caches for path in _files_below(cache))
        sizes: dict[str, list[int]] = {}
        for cache, path in itertools.islice(files, MAX_CACHE_ENTRIES):
            if time.monotonic() >= self._deadline:
                return
            name = os.path.basename(path)  # noqa: PTH119 - paths are text here
            is_of_script = _is_below(path, self._code) or name in self.code_text.text
            if not (is_of_script and _MODEL.fullmatch(name)) or self._is_of_agent(path):
                continue
            if any(map(_DATA_FOLDER.fullmatch, path[len(cache) :].split("/")[:-1])):
                continue
            with suppress(OSError):
                found = os.lstat(path)
                if stat.S_ISREG(found.st_mode) and found.st_ctime_ns >= self._began_ns:
                    sizes.setdefault(cache, []).append(found.st_size)
        for cache, each in sizes.items():
            yield LeftOut(_shown(self._skipped_caches[cache]), sum(each), "cache", len(each))

    def _is_of_agent(self, path: str) -> bool:
        return any(_is_below(path, folder) for folder in self._agent_paths)

    def _limited(self, items: Iterable[_Item], shown: str, limit: int) -> Iterator[_Item]:
        """Yield the items until the limit or the time is exceeded; record the rest as left out."""
        for number, item in enumerate(items):
            if number >= limit or time.monotonic() >= self._deadline:
                shown = _shown(shown)
                self._unsearched.setdefault(shown, LeftOut(shown, 0, "search"))
                return
            yield item

    def _choose(
        self, found: Iterable[_Found], requested: set[str]
    ) -> tuple[list[_Found], list[LeftOut]]:
        """Return the files to keep within the limits, and those that are left out.

        Files whose path is in `requested` are kept regardless of the limits.
        """
        groups: dict[str, list[_Found]] = {}
        kept: list[_Found] = []
        left_out: list[LeftOut] = []
        for each in found:
            if not each.is_readable:
                left_out.append(LeftOut(_shown(each.name), each.size_bytes, "unreadable"))
            elif each.is_private:
                left_out.append(LeftOut(_shown(each.name), each.size_bytes, "private"))
            elif each.path in requested:
                kept.append(each)
            else:
                groups.setdefault(each.group, []).append(each)
        limited = [file for each in groups.items() for file in self._limit_group(*each, left_out)]
        room = self._rule.max_bytes
        for each in sorted(limited, key=lambda file: file.size_bytes):
            room -= each.size_bytes
            if room >= 0:
                kept.append(each)
            else:
                left_out.append(LeftOut(_shown(each.name), each.size_bytes, "size"))
        return kept, left_out

    def _limit_group(
        self, group: str, files: list[_Found], left_out: list[LeftOut]
    ) -> list[_Found]:
        """Return at most MAX_FILES files of a group, without data and temporary files.

        The others are added to `left_out`.
        """
        rest = sorted(files, key=lambda file: file.size_bytes)
        source = files[0].source
        if source == TEMP and _TEMPORARY.fullmatch(group.strip("/").partition("/")[2]):
            if unnamed := [file for file in rest if not self._is_result(file)]:
                left_out.append(_summary(group, unnamed, "temporary"))
            rest = [file for file in rest if self._is_result(file)]
        scratch = [file for file in rest if _is_scratch(file)]
        if scratch:
            left_out.append(_summary(group, scratch, "temporary"))
            rest = [file for file in rest if file not in scratch]
        if _is_data(group):
            data = [file for file in rest if not _MODEL.fullmatch(file.name)]
            if sum(file.size_bytes for file in data) > DATA_BYTES:
                left_out.append(_summary(group, data, "data"))
                rest = [file for file in rest if _MODEL.fullmatch(file.name)]
        if len(rest) > MAX_FILES:
            left_out.append(_summary(group, rest[MAX_FILES:], "count"))
        return rest[:MAX_FILES]

    def _is_result(self, file: _Found) -> bool:
        """Return True if the name of a temporary file is in the code or is that of a model."""
        return PurePosixPath(file.name).name in self.code_text.text or bool(
            _MODEL.fullmatch(file.name)
        )

    def _requested_names(self) -> set[str]:
        """Return the names of files and folders that are kept regardless of their size.

        These are conventional output folders, and those that the command or the recipe names.
        """
        named = {*CONVENTIONAL, *(str(PurePosixPath(folder)) for folder in self._folders)} - {"."}
        for pattern in self._promised:
            hits = {pattern.rstrip("/")}  # it may be a name from `left_out`: outside/data/model.bin
            # Not a pattern of this folder; `.` is an IndexError before Python 3.13.
            with suppress(ValueError, IndexError, NotImplementedError, OSError):
                for hit in Path(self._code).glob(pattern):
                    hits.add(hit.relative_to(self._code).as_posix())
            named |= hits - {"."}
        return named


class _Names:
    """The names of outputs that are in use."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._files = set(taken)
        self._folders = {part for name in self._files for part in _with_parents(name)} - self._files

    def free_name(self, name: str) -> str:
        """Return the name, or one in another folder if a file or folder of that name exists."""
        for number in itertools.count(1):
            path, *folders = _with_parents(name)
            if path not in self._folders and self._files.isdisjoint((path, *folders)):
                break
            first = name if number == 1 else name.partition("/")[2]
            name = f"{ON_CONFLICT}{f'-{number}' if number > 1 else ''}/{first}"
        self._files.add(name)
        self._folders.update(_with_parents(name)[1:])
        return name


def _is_scratch(file: _Found) -> bool:
    if file.source == TEMP or _MODEL.fullmatch(
        file.name
    ):  # the folder of temporary files has rules
        return False
    names = file.name.split("/")[:-1] if file.source == CODE else []
    return any(map(_SCRATCH.fullmatch, [*names, PurePosixPath(file.name).name]))


def _with_parents(name: str) -> list[str]:
    """Return the path and its folders: `a/b/c`, `a/b`, `a`."""
    parts = name.split("/")
    return ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _shown(name: str) -> str:
    """Return a path as `left_out` shows it: with the name of the blob, and of limited length."""
    stored = stored_path(name)
    return stored if len(stored) <= MAX_SHOWN else stored[:MAX_SHOWN] + "…"


def _is_vague(pattern: str) -> bool:
    """Return True if the first part of a pattern such as `/model-*.pt` is too unspecific."""
    return len(pattern.split("/")[1].replace("*", "")) < 3


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        yield from entries


def _files_below(path: str) -> Iterator[str]:
    """Yield a file itself, or the files below a folder, without following links."""
    if not os.path.isdir(path):  # noqa: PTH112 - never raises
        yield path
        return
    for folder, _, names in os.walk(path):
        yield from (f"{folder}/{name}" for name in names)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _is_marked(folder: str) -> bool:
    """Return True for a cache or an environment."""
    return any(os.path.lexists(f"{folder}/{name}") for name in _MARKERS)


def _is_secret(path: str, mode: int) -> bool:
    name = os.path.basename(path)  # noqa: PTH119 - paths are text here
    return bool(_SECRET.fullmatch(name) or (_is_private(mode) and _PRIVATE.fullmatch(name)))


def _is_private(mode: int) -> bool:
    """Return True if only the owner may read or write."""
    return not mode & (stat.S_IRWXG | stat.S_IRWXO)


def _is_private_file(path: str) -> bool:
    """Return True for a file that only its owner may read and that is not a model."""
    with suppress(OSError):
        mode = os.stat(path).st_mode  # noqa: PTH116 - paths are text here
        return _is_private(mode) and not _MODEL.fullmatch(os.path.basename(path))  # noqa: PTH119
    return False


def _is_key(path: str) -> bool:
    """Return True for a file that begins like a key or certificate, or is JSON with a key."""
    with suppress(OSError), open(path, "rb") as file:  # noqa: PTH123 - paths are text here
        head = file.read(_HEAD_BYTES)
        return head.startswith(b"-----BEGIN") or b'"private_key"' in head
    return False


def _device(folder: str) -> int | None:
    try:
        return os.stat(folder).st_dev  # noqa: PTH116 - paths are text here
    except OSError:
        return None


def _is_pseudo(folder: str) -> bool:
    """Return True for a file system of processes or devices, wherever it is mounted."""
    return _device(folder) in {_device("/proc"), _device("/sys"), _device("/dev")} - {_device("/")}


def _summary(group: str, files: Sequence[_Found], why: str) -> LeftOut:
    return LeftOut(_shown(group), sum(file.size_bytes for file in files), why, len(files))


def _is_data(group: str) -> bool:
    return group.endswith("/") and _DATA_FOLDER.fullmatch(PurePosixPath(group).name) is not None


def _state(found: os.stat_result) -> _State:
    return found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino


def shortened(left_out: list[LeftOut]) -> tuple[LeftOut, ...]:
    """Return the largest entries, one entry for all temporary files, and one for the rest."""
    temporary = [each for each in left_out if each.why == "temporary"]
    if len(temporary) > 1:
        size, files = sum(e.size_bytes for e in temporary), sum(e.files for e in temporary)
        left_out = [each for each in left_out if each.why != "temporary"]
        left_out.append(LeftOut(f"{TEMP}/", size, "temporary", files))
    entries = sorted(left_out, key=lambda each: -each.size_bytes)
    rest = entries[MAX_LISTED:]
    if rest:
        size, files = sum(e.size_bytes for e in rest), sum(e.files for e in rest)
        entries[MAX_LISTED:] = [LeftOut("others", size, rest[0].why, files)]
    return tuple(entries)
