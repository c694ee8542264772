"""Select the files of the code in a work tree of git: what git lists, and what rules leave out.

`runner.flows.submit.git` asks git. The plan of a dry run shows the counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from runner.core.recipe.code_archive import (
    RUNNER_RULES,
    CodeFiles,
    Rules,
    Search,
    first_verdict,
)
from runner.core.recipe.packed_blocks import Selection
from runner.core.units import format_count
from runner.protocol.run_spec import ExcludedPath

_MAX_COUNTED = 20_000  # files of a folder that is left out


@dataclass(frozen=True, slots=True)
class GitListing:
    """What git lists in a folder of a work tree. Paths are relative to the folder, with `/`.

    Attributes:
        tracked: Tracked files, some of which may be deleted.
        untracked: Files that git neither tracks nor ignores.
        ignored: What it ignores; a folder stands for its files.
        complete: False if git did not say what is ignored: it cannot be asked, or it ignores the
            whole folder. The rules in the folder are applied here then.
        notes: Warnings for the user.
        state: The same as long as the index of git and all of the above are the same. Empty if it
            is not known, or if files of other work trees are listed.
        changed: Tracked files that differ from the index, or may differ, deleted ones included.
        unwatched: Tracked files that git was told not to look at.
        is_last: True if `state` is that of the last archive. `tracked` is empty then.
    """

    tracked: tuple[str, ...] = ()
    untracked: tuple[str, ...] = ()
    ignored: tuple[ExcludedPath, ...] = ()
    complete: bool = True
    notes: tuple[str, ...] = ()
    state: str = ""
    changed: tuple[str, ...] = ()
    unwatched: tuple[str, ...] = ()
    is_last: bool = False


def select_listed(folder: Path, apart: Iterable[Path], listing: GitListing) -> CodeFiles:
    """Return the files and links below a folder that git lists, except for what rules leave out.

    Args:
        folder: the folder of the code.
        apart: as in `select_files`.
        listing: what git lists.
    """
    search = _ListedSearch.of(folder, apart)
    if listing.complete:
        search.add_listed(listing)
    else:
        search.add_tracked(listing.tracked)
        # Without a note, git works, but ignores the folder, which the user named.
        search.walk(search.rules_above() if listing.notes else [])
    found = search.found(listing.notes)
    if not listing.state or not listing.complete:
        return found
    files = search.rule_files()
    selection = Selection(listing.state, rule_files=files, unwatched=listing.unwatched)
    return replace(found, selection=selection)


@dataclass(slots=True)
class _ListedSearch(Search):
    """A search that begins with what git lists."""

    def add_listed(self, listing: GitListing) -> None:
        """Add what git lists, without what `.runnerignore` and the names of caches exclude."""
        folders = {"", *_folders_of((*listing.tracked, *listing.untracked))}
        rules = {name: self._runner_rules(name) for name in folders}
        has_rules = any(rules.values())
        self.excluded = {each.path: each for each in listing.ignored}
        self.add_tracked(listing.tracked)
        for name in listing.untracked:
            if not self.is_apart(name) and not self.leave_out(name, self.own_rule(name)):
                self.names.add(name)
        if not has_rules:
            return
        for name in sorted(self.names):
            verdict = self._verdict(name, rules)
            if verdict is not None and verdict[0]:
                self.names.discard(name)
                self.leave_out(name, verdict[1])
        if any(rule.reincludes for found in rules.values() for rule in found):
            self._walk_excluded("", rules)

    def _walk_excluded(self, folder: str, rules: dict[str, list[Rules]]) -> None:
        """Add files that git ignores and `.runnerignore` includes again."""
        if folder not in rules:
            rules[folder] = self._runner_rules(folder)
        for name, is_dir in self.entries(folder):
            verdict = self._verdict(name, rules)
            if is_dir:
                ignored = self.excluded.get(name)
                pruned = ignored is not None and ignored.rule != ""
                pruned = pruned or self.own_rule(name) is not None
                if (verdict[0] is False) if verdict else not pruned:
                    self._walk_excluded(name, rules)
            elif verdict is not None and not verdict[0]:
                self.names.add(name)
                self.excluded.pop(name, None)

    def add_tracked(self, names: Iterable[str]) -> None:
        """Add tracked files that are not sent as inputs."""
        if self.apart:
            names = [name for name in names if not self.is_apart(name)]
        self.names.update(names)

    def rule_files(self) -> tuple[str, ...]:
        """Return the `.runnerignore` files that count, and those above that would if they existed.

        A new one below the folder is listed by git, or is in a folder of which no file is sent.
        """
        above = (f"{base}/{RUNNER_RULES}" for base in self.parents())
        below = (f"{base}/{file}" for (base, file), found in self.loaded.items() if found)
        return tuple(sorted({*above, *(path for path in below if path.endswith(RUNNER_RULES))}))

    def _verdict(self, name: str, rules: Mapping[str, list[Rules]]) -> tuple[bool, str] | None:
        """Return what the innermost `.runnerignore` says about a name, or None."""
        parts = name.rstrip("/").split("/")[:-1]
        for depth in range(len(parts), -1, -1):
            folder = "".join(f"{part}/" for part in parts[:depth])
            verdict = first_verdict(reversed(rules.get(folder, [])), self.path(name))
            if verdict is not None:
                return verdict
        return None

    def _runner_rules(self, folder: str) -> list[Rules]:
        return [*([] if folder else self.above()), *self.load(folder, RUNNER_RULES)]


def _folders_of(names: Iterable[str]) -> set[str]:
    """Return the folders, ending with `/`, that contain the names."""
    found: set[str] = set()
    for name in names:
        folder = name.rpartition("/")[0]
        while folder and f"{folder}/" not in found:
            found.add(f"{folder}/")
            folder = folder.rpartition("/")[0]
    return found


@dataclass(frozen=True, slots=True)
class RuleCount:
    """How many files a rule leaves out; with `at_least`, there are more that were not counted."""

    rule: str
    files: int
    at_least: bool
    paths: tuple[str, ...]

    def __str__(self) -> str:
        more = "more than " if self.at_least else ""
        return f"{more}{format_count(self.files, 'file')} ({self.rule})"


def count_excluded(folder: Path, excluded: Iterable[ExcludedPath]) -> list[RuleCount]:
    """Return how many files each rule leaves out. Files beyond 20,000 are not counted."""
    by_rule: dict[str, list[str]] = {}
    for each in excluded:
        by_rule.setdefault(each.rule, []).append(each.path)
    found: list[RuleCount] = []
    for rule, paths in by_rule.items():
        files, at_least = 0, False
        for path in paths:
            below = _count_files(folder / path, _MAX_COUNTED) if path.endswith("/") else 1
            files, at_least = files + below, at_least or below >= _MAX_COUNTED
        if files:
            found.append(RuleCount(rule, files, at_least, tuple(paths)))
    return sorted(found, key=lambda each: -each.files)


def _count_files(folder: Path, most: int) -> int:
    files = 0
    for _, _, names in os.walk(folder):
        files += len(names)
        if files >= most:
            return most
    return files
