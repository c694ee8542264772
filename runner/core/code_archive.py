"""The code of a run as one archive: the same files give the same bytes, and the same hash."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from dataclasses import dataclass
from pathlib import Path

from runner.core.errors import RunnerError
from runner.core.ignore import walk_code
from runner.core.recipe import Recipe
from runner.core.units import format_size

WARN_BYTES = 25 * 1024**2
WARN_FILE_BYTES = 10 * 1024**2
LIMIT_BYTES = 500 * 1024**2  # before compression; the archive is built in memory


@dataclass(frozen=True, slots=True)
class CodeArchive:
    """A tar.gz of the recipe's files and what to say about it; sizes are before compression."""

    data: bytes
    sha256: str
    files: int
    raw_bytes: int
    largest: tuple[tuple[str, int], ...]

    @property
    def warning(self) -> str | None:
        """What to tell the user when the code is suspiciously large."""
        largest = self.largest[0][1] if self.largest else 0
        if self.raw_bytes <= WARN_BYTES and largest <= WARN_FILE_BYTES:
            return None
        names = ", ".join(f"{name} ({format_size(size)})" for name, size in self.largest)
        return (
            f"the code folder holds {format_size(self.raw_bytes)} in {self.files} files; "
            f"the largest: {names}. A .runnerignore file keeps them out; what the script reads "
            "is an input: --input NAME=PATH"
        )


def pack_code(recipe: Recipe, excluded: tuple[Path, ...] = ()) -> CodeArchive:
    """Pack what `recipe.files` names, or its whole folder without what is ignored.

    Raises RunnerError for links and names that leave the folder, and for more than 500 MB.
    """
    root = recipe.folder.resolve()
    paths = (
        _named(root, recipe.files) if recipe.files is not None else list(walk_code(root, excluded))
    )
    sizes = {path.relative_to(root).as_posix(): _checked_size(path, root) for path in paths}
    _refuse_too_large(sizes)
    data = _archive(root, paths)
    return CodeArchive(
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        files=len(paths),
        raw_bytes=sum(sizes.values()),
        largest=tuple(sorted(sizes.items(), key=lambda item: -item[1])[:5]),
    )


def _named(root: Path, names: tuple[str, ...]) -> list[Path]:
    paths: list[Path] = []
    for name in sorted(names):
        path = Path(os.path.normpath(root / name))
        if not path.is_relative_to(root):
            raise _leaves_folder(name, root)
        if not path.is_file():
            raise RunnerError(
                "R-CODE-MISSING", f"{name} is not a file in {root}", fix="check the recipe's files"
            )
        paths.append(path)
    return paths


def _checked_size(path: Path, root: Path) -> int:
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
            fix="make it readable, or name it in .runnerignore",
        ) from err


def _refuse_too_large(sizes: dict[str, int]) -> None:
    total = sum(sizes.values())
    if total <= LIMIT_BYTES:
        return
    name, size = max(sizes.items(), key=lambda item: item[1])
    raise RunnerError(
        "R-CODE-TOO-LARGE",
        f"the code folder holds {format_size(total)}, the limit is {format_size(LIMIT_BYTES)}",
        why=f"the largest file is {name} ({format_size(size)})",
        fix="name data and results in .runnerignore; pass data with --data PATH",
    )


def _archive(root: Path, paths: list[Path]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0, compresslevel=6, filename="") as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in paths:
            _add(archive, root, path)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, root: Path, path: Path) -> None:
    member = tarfile.TarInfo(path.relative_to(root).as_posix())  # mtime, uid, gid stay 0
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
        f"{what} leaves the recipe's folder",
        why=f"only what lies in {root} is uploaded, so a node would not find it",
        fix="copy the file into the folder, or name the link in .runnerignore",
    )
