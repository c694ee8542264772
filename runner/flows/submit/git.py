"""Ask git about the folder of the code: its files, its revision, and whether it has changes.

No program that the configuration of a repository names is started.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from runner.core.home import code_variables
from runner.core.recipe.code_archive import checkout_of
from runner.core.recipe.listed_files import GitListing
from runner.protocol.run_spec import ExcludedPath

_REVISION_TIMEOUT_S = 5.0
_LISTING_TIMEOUT_S = 120.0
_MAX_EXPLAINED = 2_000  # ignored names whose rule is asked for
_MAX_COMPARED = 200  # names on a command line
_SUBMODULE_MODE = b"160000"
_SAFE = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")


def git_revision(folder: Path, listing: GitListing | None = None) -> tuple[str, bool] | None:
    """Return the HEAD of a folder's repository, and whether the folder has other changes.

    Returns None outside of git, without git, or if git is slow. With a listing that knows what
    changed, only those files are compared.
    """
    asked = _Question(folder, "rev-parse", "HEAD", limit_s=_REVISION_TIMEOUT_S)
    names: tuple[str, ...] = (".",)
    if listing is not None and listing.state:
        ask = ("diff-index", "--cached", "--quiet", "--ignore-submodules=dirty", "HEAD", "--", ".")
        limit_s = _REVISION_TIMEOUT_S
        if listing.untracked or _Question(folder, *ask, limit_s=limit_s).answer() is None:
            head = asked.answer()
            return None if head is None else (head.decode().strip(), True)
        if len(listing.changed) <= _MAX_COMPARED:
            names = listing.changed
    head = asked.answer()
    if head is None:
        return None
    has_changes = _has_changes(folder, names) if names else False
    return None if has_changes is None else (head.decode().strip(), has_changes)


def _has_changes(folder: Path, names: Iterable[str]) -> bool | None:
    """Return True if files differ from HEAD, or None if git does not say so in time."""
    options = ("--literal-pathspecs", *_without_programs(folder))
    ask = ("status", "--porcelain", "--ignore-submodules=dirty", "--", *names)
    found = _Question(folder, *options, *ask, limit_s=_REVISION_TIMEOUT_S).answer()
    return None if found is None else found != b""


def list_code(folder: Path, last_state: Callable[[], str] = str) -> GitListing | None:
    """Return what git lists in a folder, submodules and repositories in it included.

    Returns None outside of a work tree. Without git, or if it fails, the listing is not complete,
    and a note says why.

    Args:
        folder: the folder of the code.
        last_state: returns the `state` of the last listing, or an empty text. It is called while
            git works.
    """
    root = folder.resolve()
    top = checkout_of(root)
    if top is None:
        return None
    return _list(root, top, frozenset(), last_state)


def _list(
    root: Path, top: Path, above: frozenset[Path], last_state: Callable[[], str] = str
) -> GitListing:
    """List one work tree. `above` has those that contain it, so that links cannot lead back."""
    index = _Index(top)
    new = _Question(root, "ls-files", "-o", "--exclude-standard", "-z")
    changed = _ask_changed(root)
    ignored = _Question(root, "ls-files", "-o", "-i", "--exclude-standard", "--directory", "-z")
    whole = _Question(root, "check-ignore", "-q", ".") if root != top else None
    last = last_state()
    text = new.answer()
    if text is None:
        return GitListing(complete=False, notes=(_failure(new.problem),))
    is_ignored = whole is not None and whole.answer() is not None
    untracked = _names(text)
    listing = GitListing(
        untracked=tuple(name for name in untracked if not name.endswith("/")),
        ignored=() if is_ignored else tuple(_explained(root, ignored.answer() or b"")),
        complete=not is_ignored,
        notes=tuple(new.warnings()),
    )
    differing = changed.answer()
    if differing is not None and not listing.notes and index.is_current():
        state = index.digest.copy()
        state.update(repr((untracked, listing)).encode(errors="surrogateescape"))
        listing = replace(listing, state=state.hexdigest(), changed=_names(differing))
        if listing.state == last:
            return replace(listing, is_last=True)
    listed = _Question(root, "ls-files", "-v", "-s", "-z")
    text = listed.answer()
    if text is None:
        return GitListing(complete=False, notes=(_failure(listed.problem),))
    tracked, nested, unwatched = _parse(text)
    nested += [name[:-1] for name in untracked if name.endswith("/")]
    known = not nested and index.is_current()
    listing = replace(
        listing,
        tracked=tuple(tracked),
        unwatched=tuple(unwatched),
        state=listing.state if known else "",
    )
    for name in nested:
        listing = _with_nested(listing, name, root / name, above | {top})
    return listing


class _Index:
    """The index of a work tree: git's list of tracked files, with their times and sizes."""

    def __init__(self, top: Path) -> None:
        self.digest = hashlib.blake2b(digest_size=16)
        self._found: tuple[int, ...] | None = None
        with suppress(OSError):
            folder = top / ".git"
            if folder.is_file():
                folder = top / folder.read_text(encoding="utf-8").removeprefix("gitdir:").strip()
            self._path = folder / "index"
            self._found = self._look()
            self.digest.update(self._path.read_bytes())

    def _look(self) -> tuple[int, ...]:
        found = self._path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def is_current(self) -> bool:
        """Return True if the index was read and is still the same; git writes a new file."""
        try:
            return self._found is not None and self._found == self._look()
        except OSError:
            return False


def _ask_changed(root: Path) -> _Question:
    """Ask for the tracked files whose times, size, or place on the disk differ from the index.

    Content is not compared, because filters such as those for line endings would hide changes.
    """
    exact = ("core.trustctime=true", "core.checkStat=default", "core.fileMode=true")
    options = [word for each in exact for word in ("-c", each)]
    ask = ("--name-only", "-z", "--no-ext-diff", "--ignore-submodules=dirty", "--relative")
    return _Question(root, *_without_programs(root), *options, "diff-files", *ask, "--", ".")


def _names(text: bytes) -> tuple[str, ...]:
    return tuple(map(os.fsdecode, text.split(b"\0")[:-1]))


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
    """Return tracked files, the folders of submodules, and files that git does not look at."""
    tracked: dict[str, None] = {}  # a file with conflicts is listed several times
    nested: list[str] = []
    unwatched: list[str] = []
    for line in text.split(b"\0")[:-1]:
        head, _, path = line.partition(b"\t")
        if head[2:8] == _SUBMODULE_MODE:
            nested.append(os.fsdecode(path))
            continue
        name = os.fsdecode(path)
        tracked[name] = None
        if head[:1] != b"H":  # in lower case: assumed unchanged; S: not in a sparse checkout
            unwatched.append(name)
    return list(tracked), nested, unwatched


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

    def __init__(
        self,
        folder: Path,
        *args: str,
        given: bytes | None = None,
        limit_s: float = _LISTING_TIMEOUT_S,
    ) -> None:
        self.problem = "git is not installed"
        self._limit_s = limit_s
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
            text, self._errors = self._process.communicate(given, self._limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            self.problem = f"git took more than {self._limit_s:.0f} s"
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
    ask = ("config", "--local", "--includes", "--name-only", "--get-regexp", r"^filter\.")
    named = _Question(folder, *ask, limit_s=_REVISION_TIMEOUT_S).answer() or b""
    filters = {
        key: "false" if key.endswith(".required") else "" for key in os.fsdecode(named).splitlines()
    }
    return [word for key, value in filters.items() for word in ("-c", f"{key}={value}")]
