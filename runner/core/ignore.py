"""What of a folder is code: `.gitignore` up and down the tree, then `.runnerignore`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".runnerignore")  # the later one has the last word
_ALWAYS = (
    ".git/",
    ".hg/",
    ".svn/",
    "__pycache__/",
    "*.py[cod]",
    ".venv/",
    "venv/",
    "node_modules/",
    ".ipynb_checkpoints/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".DS_Store",
)


@dataclass(frozen=True, slots=True)
class _Rules:
    """The patterns of one ignore file, relative to the folder it lies in."""

    base: Path
    spec: GitIgnoreSpec

    def verdict(self, path: Path, *, is_dir: bool) -> bool | None:
        """True ignores, False re-includes, None says nothing."""
        relative = path.relative_to(self.base).as_posix() + ("/" if is_dir else "")
        return self.spec.check_file(relative).include


def walk_code(folder: Path, excluded: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Files and links below `folder`, sorted, without what is ignored or `excluded`."""
    root = folder.resolve()
    always = _Rules(root, GitIgnoreSpec.from_lines(_ALWAYS))
    skipped = frozenset(path.resolve() for path in excluded)
    yield from _walk(root, [always, *_rules_above(root), *_rules_in(root)], skipped)


def _walk(folder: Path, rules: list[_Rules], skipped: frozenset[Path]) -> Iterator[Path]:
    with os.scandir(folder) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        path = Path(entry.path)
        is_dir = entry.is_dir(follow_symlinks=False)
        if path in skipped or _ignored(path, rules, is_dir=is_dir):
            continue
        if is_dir:
            yield from _walk(path, [*rules, *_rules_in(path)], skipped)
        elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
            yield path


def _ignored(path: Path, rules: list[_Rules], *, is_dir: bool) -> bool:
    verdicts = (rule.verdict(path, is_dir=is_dir) for rule in reversed(rules))
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _rules_in(folder: Path) -> list[_Rules]:
    found: list[_Rules] = []
    for name in IGNORE_FILES:
        try:
            lines = (folder / name).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:  # most folders have none
            continue
        found.append(_Rules(folder, GitIgnoreSpec.from_lines(lines)))
    return found


def _rules_above(root: Path) -> list[_Rules]:
    """Rules from the top of the git checkout down to the parent of `root`.

    None where they ignore `root` itself: who names an ignored folder means its contents.
    """
    top = next((parent for parent in (root, *root.parents) if (parent / ".git").exists()), None)
    if top is None or top == root:
        return []
    between = [
        parent for parent in reversed(root.parents) if parent == top or top in parent.parents
    ]
    rules = [rule for parent in between for rule in _rules_in(parent)]
    lineage = [*(p for p in between if p != top), root]
    if any(_ignored(p, [r for r in rules if r.base in p.parents], is_dir=True) for p in lineage):
        return []
    return rules
