"""Select the files of a folder that are uploaded as code, and pack them with a stable hash.

The rules of `.gitignore` and `.runnerignore` are applied here; `listed_files` selects what git
lists instead. `.runnerignore` decides first. Caches, environments and files that may hold
credentials stay out unless git tracks them.
"""

from __future__ import annotations

import hashlib
import heapq
import marshal
import os
import re
import stat
import tarfile
import zlib
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from runner.core.recipe.packed_blocks import Block, PackedBlocks, Selection
from runner.core.recipe.recipe import Recipe
from runner.core.units import format_size
from runner.protocol.errors import RunnerError
from runner.protocol.paths import stored_path
from runner.protocol.run_spec import ExcludedPath
from runner.protocol.task import CODE_TIME, MAX_CODE_BYTES, MAX_CODE_FILES

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

RUNNER_RULES, GIT_RULES = ".runnerignore", ".gitignore"
NEVER_SENT = "caches and environments"
CREDENTIALS = "may hold credentials"
_CACHES = frozenset(
    {
        *(".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules"),
        *(".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"),
    }
)
_CACHE_NAMES = (".DS_Store", ".git")  # in a second work tree and a submodule, .git is a file
_CACHE_FILES = (".pyc", ".pyo", ".pyd")
# Names of files in which tools store credentials, without templates such as `.env.example`.
_CREDENTIALS = re.compile(
    r"(.*/)?(\.env(\.(?!example|sample|template|dist|defaults?)[^/]+)?|[._]netrc|\.pypirc|kaggle\.json"
    r"|\.git-credentials|\.aws/credentials|credentials\.json|client_secret[^/]*\.json"
    r"|[^/]*service[_-]?account[^/]*\.json|id_(rsa|dsa|ecdsa|ed25519)|[^/]+\.(p12|pfx))"
)


@dataclass(frozen=True, slots=True)
class CodeFiles:
    """The files of a folder that are uploaded, sorted, what is left out, and why."""

    names: tuple[str, ...]
    excluded: tuple[ExcludedPath, ...] = ()
    notes: tuple[str, ...] = ()
    selection: Selection = field(default_factory=Selection)


def may_hold_credentials(name: str) -> bool:
    """Return True if a file has a name under which tools store credentials."""
    return _CREDENTIALS.fullmatch(name) is not None


def checkout_of(folder: Path) -> Path | None:
    """Return the top of the work tree of git that a folder is in, or None."""
    return next((each for each in (folder, *folder.parents) if (each / ".git").exists()), None)


def select_files(folder: Path, apart: Iterable[Path] = ()) -> CodeFiles:
    """Return the files and links below a folder by the rules of the files in and above it.

    Args:
        folder: the folder of the code.
        apart: files and folders that are no code: inputs, outputs, the state of the runner.
    """
    search = Search.of(folder, apart)
    search.walk(search.rules_above())
    return search.found()


@dataclass(frozen=True, slots=True)
class Rules:
    """The patterns of one file, relative to its folder; `where` is the file as it is shown."""

    base: str
    where: str
    spec: GitIgnoreSpec
    lines: tuple[tuple[int, str], ...]

    @property
    def reincludes(self) -> bool:
        """Whether a rule includes again what another one excludes."""
        return any(text.startswith("!") for _, text in self.lines)

    def verdict(self, path: str) -> tuple[bool, str] | None:
        """Return whether an absolute path is ignored, and by what; None for no match."""
        found = self.spec.check_file(path[len(self.base) + 1 :])
        if found.include is None:
            return None
        number, text = self.lines[found.index or 0]
        return found.include, f"{self.where}:{number}: {text}"


@dataclass(slots=True)
class Search:
    """The state of one selection. Paths are relative to `root`; those of folders end with `/`."""

    root: Path
    apart: frozenset[str]
    _below_apart: tuple[str, ...] = ()
    names: set[str] = field(default_factory=set[str])
    excluded: dict[str, ExcludedPath] = field(default_factory=dict[str, ExcludedPath])
    loaded: dict[tuple[str, str], Rules | None] = field(
        default_factory=dict[tuple[str, str], "Rules | None"]
    )

    @classmethod
    def of(cls, folder: Path, apart: Iterable[Path]) -> Self:
        """Return a search in a folder, without what is kept apart."""
        root = folder.resolve()
        own = [path.resolve() for path in apart]
        below = [path.relative_to(root).as_posix() for path in own if path.is_relative_to(root)]
        return cls(root, frozenset(below), tuple(f"{each}/" for each in below))

    def found(self, notes: tuple[str, ...] = ()) -> CodeFiles:
        """Return the result."""
        excluded = sorted(self.excluded.values(), key=lambda each: each.path)
        return CodeFiles(tuple(sorted(self.names)), tuple(excluded), notes)

    def walk(self, above: list[Rules]) -> None:
        """Add the files by the rules in the folder, and by the rules of git from above it."""
        self._walk("", above, self.above())

    def _walk(self, folder: str, git: list[Rules], runner: list[Rules]) -> None:
        git = [*git, *self.load(folder, GIT_RULES)]
        runner = [*runner, *self.load(folder, RUNNER_RULES)]
        for name, is_dir in self.entries(folder):
            if name in self.names:
                continue
            rule = first_verdict(reversed(runner), self.path(name))
            if rule is None:
                rule = first_verdict(reversed(git), self.path(name))
                if not (rule and rule[0]) and (own := self.own_rule(name)):
                    rule = True, own
            if rule is not None and rule[0]:
                if not (is_dir and any(each.startswith(name) for each in self.names)):
                    self.leave_out(name, rule[1])
            elif is_dir:
                self._walk(name, git, runner)
            else:
                self.names.add(name)

    def rules_above(self) -> list[Rules]:
        """Return the rules from the top of the checkout down to the parent of the folder.

        Return none if they ignore the folder: a user who names an ignored folder wants its files.
        """
        found = [rule for each in self.parents() for rule in self._load_at(each, GIT_RULES)]
        lineage = [*self.parents()[1:], str(self.root)]
        if any(
            verdict[0]
            for each in lineage
            if (verdict := first_verdict([r for r in reversed(found) if each != r.base
                                   and each.startswith(f"{r.base}/")], f"{each}/"))
        ):  # fmt: skip
            return []
        return found

    def parents(self) -> list[str]:
        """Return the folders above `root`, from the top of its checkout."""
        top = checkout_of(self.root)
        if top is None or top == self.root:
            return []
        return [
            str(each) for each in reversed(self.root.parents) if each == top or top in each.parents
        ]

    def above(self) -> list[Rules]:
        """Return the rules of `.runnerignore` above the folder, unless they exclude all of it."""
        found = [rule for each in self.parents() for rule in self._load_at(each, RUNNER_RULES)]
        verdict = first_verdict(reversed(found), f"{self.root}/")
        return [] if verdict and verdict[0] else found

    def own_rule(self, name: str) -> str | None:
        """Return why a file or folder that git does not track stays out, or None."""
        parts = name.rstrip("/").split("/")
        inside = parts if name.endswith("/") else parts[:-1]
        if not _CACHES.isdisjoint(inside) or parts[-1] in _CACHE_NAMES:
            return NEVER_SENT
        if name.endswith(_CACHE_FILES):
            return NEVER_SENT
        return CREDENTIALS if may_hold_credentials(name) else None

    def leave_out(self, name: str, rule: str | None) -> bool:
        """Record a name that is left out; one below a folder of caches stands for that folder."""
        if rule is None:
            return False
        if rule == NEVER_SENT:
            parts = name.split("/")
            cache = next((n for n, part in enumerate(parts[:-1]) if part in _CACHES), None)
            name = name if cache is None else "/".join(parts[: cache + 1]) + "/"
        self.excluded[name] = ExcludedPath(name, rule)
        return True

    def is_apart(self, name: str) -> bool:
        """Return True if a path is, or is below, one that is kept apart."""
        path = name.rstrip("/")
        return path in self.apart or path.startswith(self._below_apart)

    def entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Yield the names of files, links and folders in a folder, without those kept apart."""
        with os.scandir(self.root / folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
        for entry in entries:
            is_dir = entry.is_dir(follow_symlinks=False)
            if not (is_dir or entry.is_symlink() or entry.is_file(follow_symlinks=False)):
                continue
            name = f"{folder}{entry.name}" + "/" * is_dir
            if not self.is_apart(name):
                yield name, is_dir

    def path(self, name: str) -> str:
        """Return the absolute path of a name."""
        return f"{self.root}/{name}"

    def load(self, folder: str, file: str) -> list[Rules]:
        """Return the rules of a file in a folder; empty without one."""
        return self._load_at(f"{self.root}/{folder}".rstrip("/"), file)

    def _load_at(self, base: str, file: str) -> list[Rules]:
        key = (base, file)
        if key not in self.loaded:
            self.loaded[key] = _load_rules(base, file, self.root)
        found = self.loaded[key]
        return [] if found is None else [found]


def first_verdict(rules: Iterable[Rules], path: str) -> tuple[bool, str] | None:
    """Return what the first rule that matches a path says: whether it is ignored, and by what."""
    return next((found for rule in rules if (found := rule.verdict(path)) is not None), None)


def _decode_rules(data: bytes) -> str:
    """Return the text of a file with rules. Windows PowerShell writes UTF-16."""
    is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return data.decode("utf-16" if is_utf16 else "utf-8-sig", errors="replace")


def _load_rules(base: str, file: str, root: Path) -> Rules | None:
    path = Path(f"{base}/{file}")
    if not os.path.isfile(path):  # noqa: PTH113  faster: most folders have no such file
        return None
    try:
        text = _decode_rules(path.read_bytes())
    except OSError:
        return None
    from pathspec import GitIgnoreSpec  # noqa: PLC0415  only a few folders have own rules

    numbered = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line]
    spec = GitIgnoreSpec.from_lines(line for _, line in numbered)
    return Rules(base, os.path.relpath(path, root), spec, tuple(numbered))


WARN_BYTES = 25_000_000
WARN_FILE_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """A tar.gz of the recipe's files. Sizes are before compression.

    Attributes:
        names: The paths of the files, sorted.
        excluded: What the rules leave out of the folder.
        credentials: Files whose names suggest that they contain credentials, without those that the
            recipe lists in `files`.
        notes: Warnings about files that cannot be sent.
    """

    data: bytes
    sha256: str
    files: int
    raw_bytes: int
    largest: tuple[tuple[str, int], ...]
    credentials: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    excluded: tuple[ExcludedPath, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return warnings for unusually large code, credentials, and files that cannot be sent."""
        own = (self._size_warning(), self._credentials_warning(), self._left_out_warning())
        return (*(text for text in own if text), *self.notes)

    def _credentials_warning(self) -> str | None:
        if not self.credentials:
            return None
        return (
            f"the code contains files that may hold credentials: {', '.join(self.credentials)}; "
            "exclude them with .runnerignore, and declare `secrets` in train.yaml"
        )

    def _left_out_warning(self) -> str | None:
        names = [stored_path(each.path) for each in self.excluded if each.rule == CREDENTIALS]
        if not names:
            return None
        return (
            f"not sent, because they may hold credentials: {_shortened(names)}; declare `secrets` "
            f"in train.yaml, or send one with a line such as !{names[0]} in .runnerignore"
        )

    def _size_warning(self) -> str | None:
        largest = self.largest[0][1] if self.largest else 0
        if self.raw_bytes <= WARN_BYTES and largest <= WARN_FILE_BYTES:
            return None
        names = ", ".join(f"{name} ({format_size(size)})" for name, size in self.largest)
        return (
            f"the code folder has {format_size(self.raw_bytes)} in {self.files} files, the largest "
            f"are {names}; exclude files with .runnerignore, and pass data with --input NAME=PATH"
        )


def pack_code(
    recipe: Recipe,
    apart: tuple[Path, ...] = (),
    chosen: CodeFiles | None = None,
    packed: PackedBlocks | None = None,
) -> CodeArchive:
    """Pack `recipe.files`, or the files of its folder that `select_files` returns.

    Args:
        recipe: the recipe.
        apart: as in `select_files`.
        chosen: the files to pack instead.
        packed: the blocks of the last archive.

    Raises:
        RunnerError: a link or name leaves the folder, the files are larger than 500 MB, or one
            cannot be read.
    """
    root = recipe.folder.resolve()
    if recipe.files is not None:
        chosen = CodeFiles(_find_listed(root, recipe.files))
    elif chosen is None:
        chosen = select_files(root, apart)
    added = _added(recipe)
    scan = _Scan(str(root), added)
    members = scan.add_all(sorted({*chosen.names, *added}))
    sizes = {member.name: member.size for member in members}
    _check_total_size(sizes)
    if len(sizes) < _MIN_CACHED:
        packed = None
    blocks = [_pack_block(block, packed) for block in _blocks_of(members)]
    notes = (*chosen.notes, *scan.notes(tuple(sizes)))
    if packed is not None:
        selection = _kept_selection(chosen, scan, sizes)
        selection = replace(selection, rules=_state_of_rules(recipe, apart, selection))
        # Without notes, `repack` can tell whether there is something to warn of.
        packed.save(Selection() if notes else selection, blocks)
    return _archive(blocks, chosen.excluded, notes, named=recipe.files is not None)


def state_of_last(recipe: Recipe, apart: tuple[Path, ...], packed: PackedBlocks) -> str:
    """Return the state of git for the last archive, or "" if other rules decide now."""
    selection = packed.selection
    return selection.state if _state_of_rules(recipe, apart, selection) == selection.rules else ""


def _state_of_rules(recipe: Recipe, apart: tuple[Path, ...], selection: Selection) -> str:
    """Return a hash of what decides besides git about the files of an archive."""
    added = sorted(name for name, _ in recipe.package_source.added)
    found = hashlib.blake2b(repr((_FORMAT, apart, added)).encode(), digest_size=16)
    for path in selection.rule_files:
        content = b"-"
        with suppress(OSError), open(path, "rb") as file:  # noqa: PTH123  faster
            content = b"+" + file.read()
        found.update(f"{path}:{len(content)}:".encode(errors="surrogateescape") + content)
    return found.hexdigest()


def repack(recipe: Recipe, packed: PackedBlocks, changed: Iterable[str]) -> CodeArchive | None:
    """Return the archive of a folder from which the same files are selected as for the last one.

    Only files that may have changed are looked at, with those of their blocks. Returns None if
    selected files appeared or disappeared, or if there may be something to warn of.

    Args:
        recipe: the recipe.
        packed: the last archive.
        changed: files that may have changed.
    """
    root, selection = recipe.folder.resolve(), packed.selection
    if any(os.path.lexists(f"{root}/{name}") for name in selection.absent):
        return None
    blocks = [(block, packed.bytes_of(block)) for block in packed.blocks]
    last_names = [block.names[-1] for block in packed.blocks]
    looked_at = {n for n, block in enumerate(packed.blocks) if not packed.is_old(block.newest_ns)}
    looked_at.update(bisect_left(last_names, name) for name in {*changed, *selection.unwatched})
    scan = _Scan(str(root), _added(recipe))
    for number in looked_at.difference([len(blocks)]):  # names behind the last one are not sent
        names = packed.blocks[number].names
        members = scan.add_all(names)
        if tuple(member.name for member in members) != names:
            return None
        blocks[number] = _pack_block(members, packed)
    found = _archive(blocks, selection.excluded, (), named=False)
    if any(scan.notes(found.names)):
        return None
    packed.save(selection, blocks)
    return found


def _kept_selection(chosen: CodeFiles, scan: _Scan, packed: Container[str]) -> Selection:
    names = frozenset(chosen.names)
    unwatched = names.intersection(chosen.selection.unwatched)
    return replace(
        chosen.selection,
        unwatched=tuple(sorted(unwatched.union(scan.links, scan.added))),
        absent=tuple(name for name in chosen.names if name not in packed),
        excluded=chosen.excluded,
    )


def _archive(
    blocks: Sequence[tuple[Block, bytes]],
    excluded: tuple[ExcludedPath, ...],
    notes: tuple[str, ...],
    *,
    named: bool,
) -> CodeArchive:
    """Return a gzip file with one part per block of files, as gzip allows (RFC 1952, 2.2)."""
    data = b"".join((*(content for _, content in blocks), _compress([_END])))
    names = tuple(chain.from_iterable(block.names for block, _ in blocks))
    sizes = dict(zip(names, chain.from_iterable(block.sizes for block, _ in blocks), strict=True))
    _check_total_size(sizes)
    return CodeArchive(
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        files=len(names),
        raw_bytes=sum(sizes.values()),
        largest=tuple(heapq.nlargest(5, sizes.items(), key=lambda item: item[1])),
        credentials=() if named else tuple(filter(may_hold_credentials, names)),
        names=names,
        excluded=excluded,
        notes=notes,
    )


def _added(recipe: Recipe) -> dict[str, bytes]:
    return {name: text.encode() for name, text in recipe.package_source.added}


def _find_listed(root: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    found: list[str] = []
    for name in sorted(names):
        path = Path(os.path.normpath(root / name))
        if not path.is_relative_to(root):
            raise _leaves_folder(name, root)
        if not path.is_file():
            raise RunnerError(
                "R-CODE-MISSING", f"no file {name} in {root}", fix="create it, or correct the name"
            )
        found.append(path.relative_to(root).as_posix())
    return tuple(dict.fromkeys(found))


class _Member(NamedTuple):
    """A file, or a link to the folder `link`, of an archive.

    `state` is what changes when the content of a file changes. `data` is the content of a file that
    the runner adds. It is a tuple, because thousands are made.
    """

    name: str
    path: str
    size: int
    executable: bool
    link: str | None = None
    state: tuple[int, ...] = ()
    data: bytes | None = None


@dataclass(slots=True)
class _Scan:
    """Look at selected files. Deleted ones and special files, such as pipes, are skipped."""

    root: str
    added: Mapping[str, bytes]
    links: list[str] = field(default_factory=list[str])
    _folder_links: list[_Member] = field(default_factory=list[_Member])
    _broken: list[str] = field(default_factory=list[str])

    def add_all(self, names: Iterable[str]) -> list[_Member]:
        """Return the members of these names, in their order."""
        return [member for name in names if (member := self._member(name)) is not None]

    def _member(self, name: str) -> _Member | None:
        content = self.added.get(name)
        if content is not None:
            return _Member(name, "", len(content), executable=False, data=content)
        path = f"{self.root}/{name}"
        try:
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode):
                return _file(name, path, found)
            return self._link(name, path) if stat.S_ISLNK(found.st_mode) else None
        except (FileNotFoundError, NotADirectoryError):  # deleted, but git still tracks it
            return None
        except OSError as err:
            raise _unreadable(path, err) from err

    def _link(self, name: str, path: str) -> _Member | None:
        self.links.append(name)
        try:
            found = os.stat(path)  # noqa: PTH116
        except OSError:  # the target does not exist, or the links are a loop
            self._broken.append(f"{stored_path(name)} -> {os.readlink(path)}")  # noqa: PTH115
            return None
        target = os.path.realpath(path)
        if target != self.root and not target.startswith(f"{self.root}/"):
            raise _leaves_folder(f"{name} -> {target}", self.root, target)
        if stat.S_ISDIR(found.st_mode):
            link = os.path.relpath(target, os.path.dirname(path))  # noqa: PTH120
            self._folder_links.append(_Member(name, path, 0, executable=False, link=link))
            return self._folder_links[-1]
        return _file(name, path, found) if stat.S_ISREG(found.st_mode) else None

    def notes(self, names: Sequence[str]) -> Iterator[str]:
        """Yield warnings about links that are skipped, or that lead nowhere on the node."""
        if self._broken:
            yield f"skipped links that lead nowhere: {_shortened(self._broken)}"
        empty: list[str] = []
        for member in self._folder_links:
            folder = os.path.dirname(member.name)  # noqa: PTH120
            target = os.path.normpath(os.path.join(folder, member.link or ""))  # noqa: PTH118
            if target != "." and not any(name.startswith(f"{target}/") for name in names):
                empty.append(f"{member.name} -> {target}")
        if empty:
            yield (
                f"links to folders that are not sent: {_shortened(empty)}; pass data with "
                "--data PATH or --input NAME=PATH"
            )


def _file(name: str, path: str, found: os.stat_result) -> _Member:
    executable = bool(found.st_mode & stat.S_IXUSR)
    state = (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev)
    return _Member(name, path, found.st_size, executable, None, state)


_MAX_NAMED = 5


def _shortened(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMED
    return ", ".join(names[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _check_total_size(sizes: dict[str, int]) -> None:
    total = sum(sizes.values())
    if len(sizes) > MAX_CODE_FILES:
        raise RunnerError(
            "R-CODE-TOO-LARGE",
            f"the code folder has {len(sizes):,} files, the limit is {MAX_CODE_FILES:,}",
            why="every node unpacks all of them",
            fix="exclude data and results in .runnerignore, and pass data with --data PATH",
        )
    if total <= MAX_CODE_BYTES:
        return
    name, size = max(sizes.items(), key=lambda item: item[1])
    raise RunnerError(
        "R-CODE-TOO-LARGE",
        f"the code folder has {format_size(total)}, the limit is {format_size(MAX_CODE_BYTES)}",
        why=f"the largest file is {name} ({format_size(size)})",
        fix="exclude data and results in .runnerignore, and pass data with --data PATH",
    )


_BLOCK_FILES = 8  # on average
_MIN_CACHED = 200  # files; fewer are packed in less time than the cache takes
_FORMAT = 1  # change it with the rules for what is sent
_END = bytes(2 * tarfile.BLOCKSIZE)
_LEVEL, _GZIP = 6, 31  # compression; zlib's code for the gzip format


def _blocks_of(members: Sequence[_Member]) -> Iterator[list[_Member]]:
    """Yield blocks of members. Where one ends depends on names only.

    So a changed file changes the bytes of its block.
    """
    block: list[_Member] = []
    for member in members:
        block.append(member)
        if zlib.crc32(member.name.encode(errors="surrogateescape")) % _BLOCK_FILES == 0:
            yield block
            block = []
    if block:
        yield block


def _pack_block(members: Sequence[_Member], packed: PackedBlocks | None) -> tuple[Block, bytes]:
    names, sizes = tuple(each.name for each in members), tuple(each.size for each in members)
    if packed is None:
        return Block("", 0, names, sizes), _compress(map(_tar_member, members))
    newest_ns = max(max(each.state[1:3], default=0) for each in members)
    # The same state may have other bytes after a restart of Python, which only costs time.
    state = marshal.dumps((_LEVEL, CODE_TIME, [tuple(each) for each in members]), 2)
    key, data = packed.once(state, newest_ns, lambda: _compress(map(_tar_member, members)))
    return Block(key, newest_ns, names, sizes), data


def _compress(parts: Iterator[bytes] | Sequence[bytes]) -> bytes:
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    return b"".join((*map(packer.compress, parts), packer.flush()))


def _tar_member(member: _Member) -> bytes:
    # uid and gid stay 0 and the time is the same for all, for a stable hash.
    info = tarfile.TarInfo(member.name)
    info.mtime = CODE_TIME
    data = member.data or b""
    if member.link is not None:
        info.type, info.linkname = tarfile.SYMTYPE, member.link
    else:
        if member.data is None:
            try:
                data = Path(member.path).read_bytes()
            except OSError as err:
                raise _unreadable(member.path, err) from err
        info.size, info.mode = len(data), 0o755 if member.executable else 0o644
    head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return head + data + bytes(-len(data) % tarfile.BLOCKSIZE)


def _leaves_folder(what: str, root: Path | str, target: str | None = None) -> RunnerError:
    instead = ", and pass data with --data PATH or --input NAME=PATH" if target else ""
    return RunnerError(
        "R-CODE-OUTSIDE",
        f"{what} leaves the folder of the recipe",
        why=f"only files in {root} are uploaded, so the file would be missing on the node",
        fix=f"copy the file into the folder, or exclude the link in .runnerignore{instead}",
    )


def _unreadable(path: str, err: OSError) -> RunnerError:
    return RunnerError(
        "R-CODE-UNREADABLE",
        f"cannot read {path}",
        why=err.strerror or str(err),
        fix="make it readable, or exclude it in .runnerignore",
    )
