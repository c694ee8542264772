"""Ask git about the folder of the code: its files, its revision, and whether it has changes.

No program that the configuration of a repository names is started.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from runner.core.home import code_variables
from runner.core.recipe.code_archive import checkout_of
from runner.core.recipe.listed_files import GitListing
from runner.protocol.run_spec import ExcludedPath

_REVISION_TIMEOUT_S = 5.0
_LISTING_TIMEOUT_S = 120.0
_MAX_EXPLAINED = 2_000  # ignored names whose rule is asked for
_SUBMODULE_MODE = b"160000"
_SAFE = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")


def git_revision(folder: Path) -> tuple[str, bool] | None:
    """Return the HEAD of a folder's repository, and whether the folder has other changes.

    Returns None outside of git, without git, or if git is slow.
    """
    head = _ask(folder, "rev-parse", "HEAD")
    if head is None:
        return None
    options = _without_programs(folder)
    ask = ("status", "--porcelain", "--ignore-submodules=dirty", "--", ".")
    changes = _ask(folder, "--no-optional-locks", *options, *ask)
    return head, changes != ""


def list_code(folder: Path) -> GitListing | None:
    """Return what git lists in a folder, submodules and repositories in it included.

    Returns None outside of a work tree. Without git, or if it fails, the listing is not complete,
    and a note says why.
    """
    root = folder.resolve()
    top = checkout_of(root)
    if top is None:
        return None
    return _list(root, top, frozenset())


def _list(root: Path, top: Path, above: frozenset[Path]) -> GitListing:
    """List one work tree. `above` has those that contain it, so that links cannot lead back."""
    listed = _Question(root, "ls-files", "-t", "-s", "-c", "-o", "--exclude-standard", "-z")
    ignored = _Question(root, "ls-files", "-o", "-i", "--exclude-standard", "--directory", "-z")
    whole = _Question(root, "check-ignore", "-q", ".") if root != top else None
    text = listed.answer()
    if text is None:
        return GitListing(complete=False, notes=(_failure(listed.problem),))
    is_ignored = whole is not None and whole.answer() is not None
    tracked, untracked, nested = _parse(text)
    listing = GitListing(
        tuple(tracked),
        tuple(untracked),
        () if is_ignored else tuple(_explained(root, ignored.answer() or b"")),
        complete=not is_ignored,
        notes=tuple(listed.warnings()),
    )
    for name in nested:
        listing = _with_nested(listing, name, root / name, above | {top})
    return listing


def _with_nested(
    listing: GitListing, name: str, folder: Path, above: frozenset[Path]
) -> GitListing:
    """Return the listing with the files of a submodule, or of a repository that is none."""
    try:
        is_empty = not any(folder.iterdir())
    except OSError:  # not there, for example outside of a sparse checkout
        return listing
    if is_empty:
        fix = "if the code needs it, run `git submodule init` and `git submodule update`"
        return replace(listing, notes=(*listing.notes, f"the submodule {name} is empty; {fix}"))
    top = folder.resolve()
    if not (folder / ".git").exists() or top in above:
        return listing
    found = _list(top, top, above)
    if not found.complete:
        files = (path.relative_to(folder).as_posix() for path in folder.rglob("*"))
        found = replace(found, untracked=tuple(f for f in files if not (folder / f).is_dir()))
    return replace(
        listing,
        tracked=(*listing.tracked, *(f"{name}/{each}" for each in found.tracked)),
        untracked=(*listing.untracked, *(f"{name}/{each}" for each in found.untracked)),
        ignored=(
            *listing.ignored,
            *(ExcludedPath(f"{name}/{each.path}", f"{name}/{each.rule}") for each in found.ignored),
        ),
        notes=(*listing.notes, *found.notes),
    )


def _parse(text: bytes) -> tuple[list[str], list[str], list[str]]:
    """Return tracked and untracked files, and the folders of other work trees."""
    tracked: dict[str, None] = {}  # a file with conflicts is listed several times
    untracked: list[str] = []
    nested: list[str] = []
    for line in text.split(b"\0"):
        if line.startswith(b"? "):
            name = os.fsdecode(line[2:])
            if name.endswith("/"):
                nested.append(name[:-1])
            else:
                untracked.append(name)
        elif line:
            head, _, path = line.partition(b"\t")
            if head[2:8] == _SUBMODULE_MODE:
                nested.append(os.fsdecode(path))
            else:
                tracked[os.fsdecode(path)] = None
    return list(tracked), untracked, nested


def _explained(root: Path, names: bytes) -> Iterable[ExcludedPath]:
    """Yield ignored names with the rule that ignores them; a folder without one has only others."""
    if not names:
        return
    listed = names.rstrip(b"\0").split(b"\0")
    asked = b"\0".join(listed[:_MAX_EXPLAINED]) + b"\0"
    question = _Question(root, "check-ignore", "-v", "-z", "--stdin", given=asked)
    words = (question.answer(asked) or b"").split(b"\0")
    rules = {
        path: f"{_shown(os.fsdecode(source))}:{line.decode()}: {os.fsdecode(pattern)}"
        for source, line, pattern, path in zip(*(iter(words),) * 4, strict=False)
    }
    folders = [name for name in listed if name.endswith(b"/") and name in rules]
    for name in listed:
        if name not in rules and name.endswith(b"/"):
            continue  # its files are listed too
        if not any(name != each and name.startswith(each) for each in folders):
            yield ExcludedPath(os.fsdecode(name), rules.get(name, "ignored by git"))


def _shown(source: str) -> str:
    home = os.path.expanduser("~")  # noqa: PTH111
    return f"~{source[len(home) :]}" if source.startswith(f"{home}/") else source


class _Question:
    """A command of git that runs while others do."""

    def __init__(self, folder: Path, *args: str, given: bytes | None = None) -> None:
        self.problem = "git is not installed"
        self._errors = b""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = subprocess.Popen(
                ["git", "-C", str(folder), "--no-optional-locks", *_SAFE, *args],
                stdin=subprocess.PIPE if given is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**code_variables(os.environ), "LC_ALL": "C"},
            )
        except OSError as err:
            self.problem = f"git cannot be started: {err.strerror}"

    def answer(self, given: bytes | None = None) -> bytes | None:
        """Return what git printed, or None if it failed."""
        if self._process is None:
            return None
        try:
            text, self._errors = self._process.communicate(given, _LISTING_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            self.problem = f"git took more than {_LISTING_TIMEOUT_S:.0f} s"
            return None
        if self._process.returncode == 0:
            return text
        lines = self._errors.decode(errors="replace").strip().splitlines()
        if lines:
            self.problem = lines[0].removeprefix("fatal: ")
            advice = [line.strip() for line in lines[1:] if line.strip().startswith("git ")]
            self.problem += "".join(f" (`{each}` permits it)" for each in advice)
        else:
            self.problem = "git failed"
        return None

    def warnings(self) -> Iterable[str]:
        """Yield what git could not read."""
        for line in self._errors.decode(errors="replace").splitlines():
            if line.startswith("warning: could not open"):
                yield f"git: {line.removeprefix('warning: ')}; its files are not sent"


def _failure(problem: str) -> str:
    return (
        f"files were selected by .gitignore alone, because git cannot list them: {problem}; "
        "tracked files that a pattern matches are not sent"
    )


def _without_programs(folder: Path) -> list[str]:
    """Return options of git that start no program which the configuration of a repository names."""
    named = _ask(
        folder, "config", "--local", "--includes", "--name-only", "--get-regexp", r"^filter\."
    )
    filters = {
        key: "false" if key.endswith(".required") else "" for key in (named or "").splitlines()
    }
    values = [word for key, value in filters.items() for word in ("-c", f"{key}={value}")]
    return [*_SAFE, *values]


def _ask(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *args],
            capture_output=True,
            text=True,
            env=code_variables(os.environ),
            timeout=_REVISION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
