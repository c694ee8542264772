"""Files of this machine that a transfer reads or writes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from runner.core.run_record import check_output_path


def target_within(folder: Path, path: str) -> Path:
    """Where a file that is named by others goes.

    Raises ValueError for a name, or a link on this machine, that leaves the folder.
    """
    target = folder / check_output_path(path)
    if not target.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path!r} leaves {folder}")
    return target


def is_there(target: Path, size_bytes: int, sha256: str) -> bool:
    """Whether a file is here already, with this content; without a hash nobody knows."""
    if not sha256 or not target.is_file() or target.stat().st_size != size_bytes:
        return False
    return sha256_of(target) == sha256


def sha256_of(path: Path) -> str:
    """The hash of a file's content, in hex."""
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def count_text(files: int) -> str:
    """How many files, as people say it."""
    return f"{files} file" if files == 1 else f"{files} files"
