"""In a work tree of git, the files that git lists are sent."""

from __future__ import annotations

import gc
import io
import os
import shutil
import subprocess
import tarfile
import warnings
from pathlib import Path
from typing import Any

import pytest

from runner.core.recipe.code_archive import CodeArchive, pack_code
from runner.core.recipe.file import load_recipe
from runner.core.recipe.listed_files import GitListing, select_listed
from runner.flows.submit import git as git_module
from runner.flows.submit.check_and_read import warn_of_files
from runner.flows.submit.git import git_revision, list_code
from runner.protocol.errors import RunnerError
from tests.unit.core.recipe_maker import recipe

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(folder: Path, *args: str) -> str:
    identity = ("-c", "user.email=a@example.org", "-c", "user.name=A")
    more = ("-c", "protocol.file.allow=always", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *more, *args]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def checkout(root: Path, **files: str) -> Path:
    """Make a repository, and commit these files, also those that a pattern matches."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q")
    write(root, **files)
    git(root, "add", "-f", "-A")
    git(root, "commit", "-q", "-m", "x")
    return root


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
    return folder


def pack(folder: Path) -> CodeArchive:
    listing = list_code(folder)
    chosen = select_listed(folder, (), listing) if listing is not None else None
    return pack_code(recipe(folder=folder), (), chosen)


def sent(folder: Path) -> set[str]:
    return {name for name in pack(folder).names if not name.endswith("ignore")}


def listed(folder: Path) -> set[str]:
    """Return what git lists and what exists, which is the definition."""
    text = git(folder, "ls-files", "-co", "--exclude-standard", "-z")
    return {name for name in text.split("\0") if name and os.path.lexists(folder / name)}


def test_tracked_file_is_sent_although_a_pattern_matches_it(tmp_path: Path) -> None:
    files = {".gitignore": "*.json\ndata/\nvenv/\n", "config.json": "{}", "data/a.csv": "1"}
    root = checkout(tmp_path / "p", **files, **{"train.py": "", "venv/tool.py": ""})
    write(root, **{"other.json": "{}", "data/b.csv": "2", "new.py": ""})
    assert sent(root) == {"config.json", "data/a.csv", "train.py", "new.py", "venv/tool.py"}
    assert set(pack(root).names) == listed(root)


def test_deleted_and_replaced_files_are_left_out(tmp_path: Path) -> None:
    root = checkout(tmp_path / "p", **{"a.py": "", "b.py": "", "c": "", "d/e.py": "", "pipe": ""})
    (root / "a.py").unlink()
    git(root, "rm", "-q", "--cached", "b.py")
    (root / "c").unlink()
    write(root, **{"c/x.py": ""})
    shutil.rmtree(root / "d")
    (root / "d").write_text("now a file")
    (root / "pipe").unlink()
    os.mkfifo(root / "pipe")
    assert sent(root) == {"b.py", "c/x.py", "d"}


def test_folder_in_a_repository_gets_the_rules_from_above(tmp_path: Path) -> None:
    root = checkout(
        tmp_path / "p", **{".gitignore": "*.log\n", "models/a/train.py": "", "x.py": ""}
    )
    write(root, **{"models/a/old.log": "", "models/a/new.py": "", "models/b.py": ""})
    assert sent(root / "models" / "a") == {"train.py", "new.py"}
    (found,) = pack(root / "models" / "a").excluded
    assert (found.path, found.rule) == ("old.log", ".gitignore:1: *.log")


def test_ignored_folder_that_the_user_names_is_sent(tmp_path: Path) -> None:
    root = checkout(
        tmp_path / "p", **{".gitignore": "build/\n*.bin\n", "x.py": "", "build/kept.py": ""}
    )
    own = {"train.py": "", ".gitignore": "*.log\n", "a.log": "", "w.bin": ""}
    write(root / "build" / "exp1", **own)
    assert sent(root / "build" / "exp1") == {"train.py", "w.bin"}
    assert sent(root) == {"x.py", "build/kept.py"}


def test_excludes_of_the_user_and_of_the_clone_count(tmp_path: Path, home: Path) -> None:
    root = checkout(tmp_path / "p", **{"train.py": ""})
    write(home, **{"config/git/ignore": "*.swp\n"})
    (root / ".git" / "info" / "exclude").write_text("/local\n")
    write(root, **{"a.swp": "", "local/x": "", "sub/local": ""})
    assert sent(root) == {"train.py", "sub/local"}
    rules = {each.path: each.rule for each in pack(root).excluded}
    assert rules["a.swp"] == "~/config/git/ignore:1: *.swp"
    assert rules["local/"] == ".git/info/exclude:1: /local"


@pytest.mark.parametrize(
    "name", ["ü.py", 'a"b.py', "a\tb.py", "a\nb.py", " lead.py", "-x.py", "? y"]
)
def test_odd_names_are_sent(tmp_path: Path, name: str) -> None:
    root = checkout(tmp_path / "p", **{"train.py": "", name: ""})
    write(root, **{f"new {name}": "", f"d/{name}": ""})
    assert sent(root) == {"train.py", name, f"new {name}", f"d/{name}"}


def test_name_that_is_not_utf8_is_sent(tmp_path: Path) -> None:
    root = checkout(tmp_path / "p", **{"train.py": ""})
    name = os.fsdecode(b"caf\xe9.py")
    write(root, **{name: "x"})
    packed = pack(root)
    assert name in packed.names
    with tarfile.open(fileobj=io.BytesIO(packed.data)) as archive:
        assert name in archive.getnames()


def test_submodules_are_sent_also_nested_ones(tmp_path: Path) -> None:
    inner = checkout(tmp_path / "inner", **{"deep.py": "", ".gitignore": "*.tmp\n"})
    middle = checkout(tmp_path / "middle", **{"mid.py": ""})
    git(middle, "submodule", "add", "-q", str(inner), "inner")
    git(middle, "commit", "-q", "-m", "y")
    root = checkout(tmp_path / "p", **{"train.py": ""})
    git(root, "submodule", "add", "-q", str(middle), "libs/middle")
    git(root, "commit", "-q", "-m", "y")
    assert sent(root) == {
        ".gitmodules",
        "train.py",
        "libs/middle/.gitmodules",
        "libs/middle/mid.py",
    }
    (note,) = pack(root).warnings
    assert "the submodule inner is empty" in note
    assert "git submodule update" in note
    git(root, "submodule", "update", "-q", "--init", "--recursive")
    write(root, **{"libs/middle/inner/new.py": "", "libs/middle/inner/x.tmp": ""})
    deep = {f"libs/middle/inner/{name}" for name in ("deep.py", "new.py")}
    assert sent(root) >= {"train.py", "libs/middle/mid.py", *deep}
    assert "libs/middle/inner/x.tmp" not in sent(root)
    assert pack(root).warnings == ()


def test_clone_inside_of_the_folder_is_sent(tmp_path: Path) -> None:
    root = checkout(tmp_path / "p", **{"train.py": ""})
    checkout(root / "yolo", **{"net.py": "", ".gitignore": "*.pt\n"})
    write(root, **{"yolo/w.pt": "", "yolo/new.py": ""})
    assert sent(root) == {"train.py", "yolo/net.py", "yolo/new.py"}


def test_sparse_checkout_and_second_work_tree_are_sent_as_they_are(tmp_path: Path) -> None:
    root = checkout(tmp_path / "p", **{"a/x.py": "", "b/y.py": "", "train.py": ""})
    git(root, "worktree", "add", "-q", str(tmp_path / "second"), "-b", "second")
    assert sent(tmp_path / "second") == {"a/x.py", "b/y.py", "train.py"}
    git(root, "sparse-checkout", "set", "a")
    assert sent(root) == {"a/x.py", "train.py"}


def test_untracked_credentials_and_caches_stay_out(tmp_path: Path) -> None:
    root = checkout(tmp_path / "p", **{"train.py": "", ".env": "tracked"})
    write(root, **{"id_rsa": "", ".venv/x.py": "", "a/__pycache__/t.pyc": "", "b.pyc": ""})
    packed = pack(root)
    assert set(packed.names) == {"train.py", ".env"}
    assert [each.path for each in packed.excluded] == [
        ".venv/",
        "a/__pycache__/",
        "b.pyc",
        "id_rsa",
    ]
    known, left_out = packed.warnings
    assert "may hold credentials: .env;" in known
    assert "not sent, because they may hold credentials: id_rsa;" in left_out


def test_runnerignore_excludes_and_includes_on_top_of_git(tmp_path: Path) -> None:
    rules = "/docs/\n!weights/small.bin\n!.env\n!cache/\n"
    own = {".gitignore": "*.bin\ncache/\ndata/\n", ".runnerignore": rules, "docs/a.md": ""}
    root = checkout(tmp_path / "p", **own, **{"train.py": ""})
    ignored = {"weights/small.bin": "", "weights/big.bin": "", "cache/x": "", "data/y": ""}
    write(
        root, **ignored, **{".env": "x", "sub/.runnerignore": "*.txt\n!/data/\n", "sub/a.txt": ""}
    )
    assert sent(root) == {"train.py", "weights/small.bin", "cache/x", ".env"}
    rules_of = {each.path: each.rule for each in pack(root).excluded}
    assert rules_of["docs/a.md"] == ".runnerignore:1: /docs/"
    assert rules_of["sub/a.txt"] == "sub/.runnerignore:1: *.txt"
    assert rules_of["data/"] == ".gitignore:3: data/"


def test_without_git_the_rules_of_gitignore_apply_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = checkout(tmp_path / "p", **{"train.py": "", ".gitignore": "*.json\n", "c.json": "{}"})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sent(root) == {"train.py"}
    (warning,) = pack(root).warnings
    assert "git cannot list them: git cannot be started: No such file or directory" in warning


def test_repository_that_git_refuses_is_read_with_a_warning(tmp_path: Path) -> None:
    root = checkout(tmp_path / "p", **{"train.py": "", ".gitignore": "*.log\n", "sub/a.log": ""})
    (root / ".git" / "HEAD").write_text("broken")
    assert sent(root) == {"train.py"}
    (warning,) = pack(root).warnings
    assert "not a git repository" in warning


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner")
def test_repository_of_another_user_names_the_way_out(tmp_path: Path) -> None:
    root = checkout(tmp_path / "p", **{"train.py": ""})
    for path in (root, root / ".git"):
        os.chown(path, 12345, 12345)
    (warning,) = pack(root).warnings
    assert "dubious ownership" in warning
    assert f"git config --global --add safe.directory {root}" in warning


def test_folder_outside_of_git_is_not_asked_about(tmp_path: Path) -> None:
    write(tmp_path / "p", **{"train.py": "", ".gitignore": "*.log\n", "a.log": ""})
    assert list_code(tmp_path / "p") is None
    assert sent(tmp_path / "p") == {"train.py"}


def test_empty_repository_has_only_new_files(tmp_path: Path) -> None:
    root = tmp_path / "p"
    root.mkdir()
    git(root, "init", "-q")
    assert list_code(root) == GitListing()
    write(root, **{"train.py": ""})
    assert sent(root) == {"train.py"}


def test_programs_of_the_repository_are_not_started(tmp_path: Path) -> None:
    root = checkout(tmp_path / "p", **{"train.py": ""})
    mark = tmp_path / "started"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    git(root, "config", "core.fsmonitor", str(program))
    assert sent(root) == {"train.py"}
    assert not mark.exists()


def test_hash_does_not_depend_on_git(tmp_path: Path) -> None:
    files = {"train.py": "1", "b/c.py": "2", "b.py": "3", "b-a.py": "4", "Z.py": "5"}
    root = checkout(tmp_path / "p", **files)
    write(tmp_path / "q", **files)
    assert pack(root).sha256 == pack(tmp_path / "q").sha256


@pytest.mark.parametrize(
    ("rules", "entry", "rule"),
    [
        ({".gitignore": "*\n"}, "train.py", ".gitignore:1: *"),
        ({".runnerignore": "# mine\n*.py\n"}, "train.py", ".runnerignore:2: *.py"),
        ({".gitignore": "jobs/\n"}, "jobs/fit.py", ".gitignore:1: jobs/"),
        ({".gitignore": "fit.*\n"}, "jobs.fit", ".gitignore:1: fit.*"),
        ({".gitignore": "*.sh\n"}, "run.sh", ".gitignore:1: *.sh"),
    ],
)
@pytest.mark.parametrize("in_git", [True, False])
def test_script_that_a_rule_leaves_out_is_refused(
    tmp_path: Path, rules: dict[str, str], entry: str, rule: str, in_git: bool
) -> None:
    files = ("train.py", "jobs/__init__.py", "jobs/fit.py", "run.sh")
    write(tmp_path, **rules, **dict.fromkeys(files, "print(1)\n"))
    if in_git:
        git(tmp_path, "init", "-q")
    with pytest.raises(RunnerError) as caught:
        warn_of_files(load_recipe(".", cwd=tmp_path, entry=entry), tmp_path / "home")
    assert caught.value.code == "R-CODE-LEFT-OUT"
    assert caught.value.why == f"{rule} leaves it out"
    subprocess.run(caught.value.fix, shell=True, check=True)
    warn_of_files(load_recipe(".", cwd=tmp_path, entry=entry), tmp_path / "home")


def test_tracked_script_is_sent_although_a_pattern_matches_it(tmp_path: Path) -> None:
    folder = checkout(tmp_path / "p", **{".gitignore": "*\n", "train.py": "print(1)\n"})
    assert warn_of_files(load_recipe(".", cwd=folder), tmp_path / "home") == ()


def test_revision_leaves_no_git_running(tmp_path: Path) -> None:
    root = checkout(tmp_path / "code", **{"train.py": "1"})
    write(root, **{"new.py": "2"})
    listing = list_code(root)
    gc.collect()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert git_revision(root, listing) == (git(root, "rev-parse", "HEAD").strip(), True)
        gc.collect()
    assert [str(each.message) for each in found] == []


def test_revision_is_unknown_if_git_is_too_slow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = checkout(tmp_path / "code", **{"train.py": "1"})
    answer = git_module._Question.answer

    def late(self: Any, given: bytes | None = None) -> bytes | None:
        found = answer(self, given)
        return None if "status" in self._process.args else found

    monkeypatch.setattr(git_module._Question, "answer", late)
    assert git_revision(root) is None
