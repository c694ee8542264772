"""Pack the code of a recipe as one archive with a stable hash, without the files that `.gitignore`
and `.runnerignore` exclude.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from runner.core.recipe.recipe import Recipe
from runner.core.units import format_size
from runner.protocol.errors import RunnerError
from runner.protocol.task import MAX_CODE_BYTES, MAX_CODE_FILES

IGNORE_FILES = (".gitignore", ".runnerignore")  # rules of the later file win
_ALWAYS_IGNORED = (
    *(".git/", ".hg/", ".svn/", "__pycache__/", "*.py[cod]", ".venv/", "venv/", "node_modules/"),
    *(".ipynb_checkpoints/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/", ".DS_Store"),
)


@dataclass(frozen=True, slots=True)
class _Rules:
    """The patterns of one ignore file, relative to its folder."""

    base: Path
    spec: GitIgnoreSpec

    def verdict(self, path: Path, *, is_dir: bool) -> bool | None:
        """Return True to ignore, False to include again, None for no match."""
        relative = path.relative_to(self.base).as_posix() + ("/" if is_dir else "")
        return self.spec.check_file(relative).include


def walk_code(folder: Path, excluded: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the files and links below `folder`, sorted, without ignored and `excluded` ones."""
    root = folder.resolve()
    always = _Rules(root, GitIgnoreSpec.from_lines(_ALWAYS_IGNORED))
    skipped = frozenset(path.resolve() for path in excluded)
    yield from _walk(root, [always, *_rules_above(root), *_rules_in(root)], skipped)


def _walk(folder: Path, rules: list[_Rules], skipped: frozenset[Path]) -> Iterator[Path]:
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        path = Path(entry.path)
        is_dir = entry.is_dir(follow_symlinks=False)
        if path in skipped or _is_ignored(path, rules, is_dir=is_dir):
            continue
        if is_dir:
            yield from _walk(path, [*rules, *_rules_in(path)], skipped)
        elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
            yield path


def _is_ignored(path: Path, rules: list[_Rules], *, is_dir: bool) -> bool:
    verdicts = (rule.verdict(path, is_dir=is_dir) for rule in reversed(rules))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _rules_in(folder: Path) -> list[_Rules]:
    found: list[_Rules] = []
    for name in IGNORE_FILES:
        try:
            lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # most folders have no ignore file
            continue
        found.append(_Rules(folder, GitIgnoreSpec.from_lines(lines)))
    return found


def _rules_above(root: Path) -> list[_Rules]:
    """Return the rules from the top of the git checkout down to the parent of `root`.

    Return none if they ignore `root` itself: a user who names an ignored folder wants its contents.
    """
    top = next((parent for parent in (root, *root.parents) if (parent / ".git").exists()), None)
    if top is None or top == root:
        return []
    between = [
        parent for parent in reversed(root.parents) if parent == top or top in parent.parents
    ]
    rules = [rule for parent in between for rule in _rules_in(parent)]
    lineage = [*(p for p in between if p != top), root]
    if any(_is_ignored(p, [r for r in rules if r.base in p.parents], is_dir=True) for p in lineage):
        return []
    return rules


# Names of files in which tools store credentials, without templates such as `.env.example`.
_CREDENTIALS = re.compile(
    r"(.*/)?(\.env(\.(?!example|sample|template|dist|defaults?)[^/]+)?|[._]netrc|\.pypirc|kaggle\.json"
    r"|\.git-credentials|\.aws/credentials|credentials\.json|client_secret[^/]*\.json"
    r"|[^/]*service[_-]?account[^/]*\.json|id_(rsa|dsa|ecdsa|ed25519)|[^/]+\.(p12|pfx))"
)
WARN_BYTES = 25_000_000
WARN_FILE_BYTES = 10_000_000


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """A tar.gz of the recipe's files. Sizes are before compression.

    `credentials` are files whose names suggest that they contain credentials. Files that the recipe
    lists in `files` are not reported.
    """

    data: bytes
    sha256: str
    files: int
    raw_bytes: int
    largest: tuple[tuple[str, int], ...]
    credentials: tuple[str, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return a warning for code that is unusually large, and one for credentials."""
        return tuple(text for text in (self._size_warning(), self._credentials_warning()) if text)

    def _credentials_warning(self) -> str | None:
        if not self.credentials:
            return None
        return (
            f"the code contains files that may hold credentials: {', '.join(self.credentials)}; "
            "exclude them with .runnerignore, and declare `secrets` in train.yaml"
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


def pack_code(recipe: Recipe, excluded: tuple[Path, ...] = ()) -> CodeArchive:
    """Pack `recipe.files`, or the whole folder without ignored files.

    Raises:
        RunnerError: a link or name leaves the folder, or the files are larger than 500 MB.
    """
    root = recipe.folder.resolve()
    paths = (
        _find_listed(root, recipe.files)
        if recipe.files is not None
        else list(walk_code(root, excluded))
    )
    sizes = {path.relative_to(root).as_posix(): _check_size(path, root) for path in paths}
    _check_total_size(sizes)
    data = _build_archive(root, paths)
    return CodeArchive(
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        files=len(paths),
        raw_bytes=sum(sizes.values()),
        largest=tuple(sorted(sizes.items(), key=lambda item: -item[1])[:5]),
        credentials=tuple(filter(_CREDENTIALS.fullmatch, sizes)) if recipe.files is None else (),
    )


def _find_listed(root: Path, names: tuple[str, ...]) -> list[Path]:
    paths: list[Path] = []
    for name in sorted(names):
        path = Path(os.path.normpath(root / name))
        if not path.is_relative_to(root):
            raise _leaves_folder(name, root)
        if not path.is_file():
            raise RunnerError(
                "R-CODE-MISSING", f"no file {name} in {root}", fix="create it, or correct the name"
            )
        paths.append(path)
    return paths


def _check_size(path: Path, root: Path) -> int:
    if path.is_symlink():
        target = path.resolve()
        if not target.is_relative_to(root):
            raise _leaves_folder(f"{path.relative_to(root)} -> {target}", root)
        if target.is_dir():
            return 0
    try:
        return path.stat().st_size
    except OSError as err:
        raise RunnerError(
            "R-CODE-UNREADABLE",
            f"cannot read {path}",
            why=err.strerror or str(err),
            fix="make it readable, or exclude it in .runnerignore",
        ) from err


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


def _build_archive(root: Path, paths: list[Path]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=6, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in paths:
            _add_file(archive, root, path)
    return buffer.getvalue()


def _add_file(archive: tarfile.TarFile, root: Path, path: Path) -> None:
    member = tarfile.TarInfo(
        path.relative_to(root).as_posix()
    )  # mtime, uid and gid stay 0, for a stable hash
    if path.is_symlink() and path.is_dir():
        member.type = tarfile.SYMTYPE
        member.linkname = os.path.relpath(path.resolve(), path.parent)
        archive.addfile(member)
        return
    data = path.read_bytes()
    member.size = len(data)
    member.mode = 0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644
    archive.addfile(member, io.BytesIO(data))


def _leaves_folder(what: str, root: Path) -> RunnerError:
    return RunnerError(
        "R-CODE-OUTSIDE",
        f"{what} leaves the folder of the recipe",
        why=f"only files in {root} are uploaded, so the file would be missing on the node",
        fix="copy the file into the folder, or exclude the link in .runnerignore",
    )
