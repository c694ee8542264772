"""The second plan of a folder looks only at what may have changed, and has the same result."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.core.planning.plan import RunPlan
from runner.core.progress import ignore_progress
from runner.core.recipe import code_archive
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.settings import load_settings
from runner.flows.submit import git as git_module
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.pipeline import dry_run_services, plan_submission

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
OLD = 1_600_000_000


def git(folder: Path, *args: str) -> None:
    identity = ("-c", "user.email=a@example.org", "-c", "user.name=A", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *args]
    subprocess.run(command, check=True, capture_output=True)


def write(path: Path, text: str) -> None:
    """Write a file that has not changed for years, so that git compares no content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    os.utime(path, (OLD, OLD))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "agent"))
    made = tmp_path / "code"
    for number in range(220):
        write(made / f"pkg{number % 5}" / f"m{number}.py", f"x = {number:04}\n")
    for name in ("marked.py", "sparse.py", "gone.py", "train.py"):
        write(made / name, "print(1)\n")
    write(made / "text.md", "a\r\nb\r\n")
    write(made / ".gitattributes", "*.md text=auto\n")
    write(made / ".gitignore", "*.log\ntarget.txt\n")
    write(made / ".runnerignore", "*.tmp\n")
    write(made / "target.txt", "one\n")
    write(made / "other.txt", "two\n")
    (made / "link.txt").symlink_to("target.txt")
    git(made, "init", "-q")
    git(made, "add", "-A")
    git(made, "update-index", "--assume-unchanged", "marked.py")
    git(made, "update-index", "--skip-worktree", "sparse.py")
    git(made, "commit", "-q", "-m", "x")
    (made / "gone.py").unlink()
    write(made / "new.py", "x = 1\n")
    return made


def plan(folder: Path, home: Path) -> RunPlan:
    home.mkdir(exist_ok=True)
    settings = load_settings({}, cwd=folder, env={"RUNNER_HOME": str(home)})
    run = check_run(load_recipe(str(folder), cwd=folder), RunOptions())
    return plan_submission(run, dry_run_services(settings), ignore_progress).run


def as_if_kept_long_ago(home: Path) -> None:
    """Let the files be older than the kept archive, as they usually are."""
    (kept,) = (home / "cache" / "code").iterdir()
    os.utime(kept, (time.time() + 3600, time.time() + 3600))


def replace(path: Path, text: str) -> None:
    write(path.with_suffix(".part"), text)
    path.with_suffix(".part").replace(path)


def new_end_of_lines(folder: Path) -> None:
    replace(folder / "text.md", "a\nb\n")
    git(folder, "status")  # git compares the text and writes the new times into its index


def relink(folder: Path, target: str) -> None:
    (folder / "link.txt").unlink()
    (folder / "link.txt").symlink_to(target)


CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda folder: None,
    "text": lambda folder: write(folder / "pkg1/m1.py", "x = 'longer'\n"),
    "file of the same size and time": lambda folder: replace(folder / "pkg1/m1.py", "x = 9999\n"),
    "several files": lambda folder: [
        write(folder / f"pkg{n % 5}" / f"m{n}.py", "y = 1\n") for n in range(60)
    ],
    "mode": lambda folder: (folder / "pkg1/m1.py").chmod(0o755),
    "deleted file": lambda folder: (folder / "pkg1/m1.py").unlink(),
    "deleted file is back": lambda folder: write(folder / "gone.py", "print(1)\n"),
    "file becomes a folder": lambda folder: [
        (folder / "pkg1/m1.py").unlink(),
        write(folder / "pkg1/m1.py/a.py", ""),
    ],
    "file becomes a pipe": lambda folder: [
        (folder / "pkg1/m1.py").unlink(),
        os.mkfifo(folder / "pkg1/m1.py"),
    ],
    "new file": lambda folder: write(folder / "pkg1/newer.py", ""),
    "untracked file": lambda folder: write(folder / "new.py", "x = 2\n"),
    "file that git does not look at": lambda folder: replace(folder / "marked.py", "print(2)\n"),
    "file outside of a sparse checkout": lambda folder: replace(folder / "sparse.py", "print(2)\n"),
    "target of a link": lambda folder: replace(folder / "target.txt", "new\n"),
    "link": lambda folder: relink(folder, "other.txt"),
    "link to a folder": lambda folder: relink(folder, "pkg1"),
    "link that leads nowhere": lambda folder: (folder / "target.txt").unlink(),
    "end of lines that git converts": lambda folder: replace(folder / "text.md", "a\nb\n"),
    "end of lines, and new times in the index": new_end_of_lines,
    "rule of the runner": lambda folder: write(folder / ".runnerignore", "m1.py\n"),
    "second file of rules": lambda folder: write(folder / "pkg2/.runnerignore", "m2.py\n"),
    "ignored file of rules": lambda folder: [
        write(folder / ".git/info/exclude", ".runnerignore\n"),
        write(folder / "pkg2/.runnerignore", "m2.py\n"),
    ],
    "rule of git": lambda folder: write(folder / ".gitignore", "new.py\n"),
    "rule of the clone": lambda folder: write(folder / ".git/info/exclude", "new.py\n"),
    "file that is no longer tracked": lambda folder: git(folder, "rm", "-q", "--cached", "text.md"),
    "commit": lambda folder: [git(folder, "add", "-A"), git(folder, "commit", "-qm", "y")],
    "other repository": lambda folder: git(folder, "init", "-q", "vendored"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_second_plan_is_the_same_as_a_first_one(
    change: Callable[[Path], object], folder: Path, tmp_path: Path
) -> None:
    plan(folder, tmp_path / "home")
    as_if_kept_long_ago(tmp_path / "home")
    change(folder)
    for turn in range(2):  # the second one reads what the first one kept
        again, first = plan(folder, tmp_path / "home"), plan(folder, tmp_path / f"fresh{turn}")
        assert again.content == first.content
        assert again.warnings == first.warnings
        as_if_kept_long_ago(tmp_path / "home")


def test_change_just_after_a_plan_is_seen_although_size_and_times_are_the_same(
    folder: Path, tmp_path: Path
) -> None:
    before = plan(folder, tmp_path / "home").content.code
    write(folder / "pkg1/m1.py", "x = 9999\n")
    after = plan(folder, tmp_path / "home").content.code
    assert after == plan(folder, tmp_path / "fresh").content.code
    assert after.sha256 != before.sha256


@pytest.mark.parametrize("inside", [False, True], ids=["top", "folder in a repository"])
def test_only_files_that_may_have_changed_are_looked_at(
    inside: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if inside:
        shutil.rmtree(folder / ".git")
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", "-A", "code")
        git(tmp_path, "commit", "-q", "-m", "x")
    plan(folder, tmp_path / "home")
    as_if_kept_long_ago(tmp_path / "home")
    write(folder / "pkg1/m1.py", "x = 'longer'\n")
    looked_at: list[str] = []
    plain = code_archive.os.lstat

    def lstat(path: str) -> os.stat_result:
        looked_at.append(str(path))
        return plain(path)

    with monkeypatch.context() as patched:
        patched.setattr(code_archive.os, "lstat", lstat)
        patched.setattr(git_module, "_parse", pytest.fail)
        plan(folder, tmp_path / "home")
    assert str(folder / "pkg1/m1.py") in looked_at
    assert len(set(looked_at)) < 100


def test_second_work_tree_has_an_index_of_its_own(folder: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    git(folder, "worktree", "add", "-q", str(tree))
    first = plan(tree, tmp_path / "home").content.code
    as_if_kept_long_ago(tmp_path / "home")
    write(tree / "pkg1/m1.py", "x = 'longer'\n")
    git(tree, "add", "-A")
    second = plan(tree, tmp_path / "home").content.code
    assert second == plan(tree, tmp_path / "fresh").content.code
    assert second.sha256 != first.sha256
