"""Where code comes from: the git revision of a folder."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class GitRevision:
    """HEAD of the checkout a folder lies in; `dirty` when the folder differs from it."""

    revision: str
    dirty: bool


def git_revision(folder: Path) -> GitRevision | None:
    """The revision of a folder, or None outside of git, without git, or when git is slow."""
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    changes = _git(folder, "status", "--porcelain", "--", ".")
    return GitRevision(revision=head, dirty=changes != "")


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
