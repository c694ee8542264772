from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.protocol import git_requirements
from runner.protocol.git_requirements import GitAddress, find_git_addresses, pin, resolve
from tests.package_index import git, make_repository, served, write_package

SHA = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("gpkg @ git+https://h/a/gpkg.git@main", "https://h/a/gpkg.git@main"),
        ("gpkg[x]@git+https://h/gpkg.git@feature/x ; os_name == 'posix'", "https://h/gpkg.git@feature/x"),
        ("git+https://h/gpkg.git", "https://h/gpkg.git@HEAD"),
        ("git+https://h/gpkg.git@v1#egg=gpkg&subdirectory=a", "https://h/gpkg.git@v1"),
        ("-e git+ssh://git@h/o/gpkg.git@main#egg=gpkg", "ssh://h/o/gpkg.git@main"),
        ("gpkg @ git+https://joe:${PW}@h/gpkg.git@main", "https://h/gpkg.git@main"),
        ("gpkg @ git+https://ghp_token@h/gpkg.git", "https://h/gpkg.git@HEAD"),
        ("gpkg @ git+file:///srv/gpkg@main  # ours", "file:///srv/gpkg@main"),
        ('dependencies = ["six", "gpkg @ git+https://h/gpkg.git@main"]', "https://h/gpkg.git@main"),
        ('gpkg = { git = "https://h/gpkg.git", branch = "main" }', "https://h/gpkg.git@main"),
        (
            """# /// script
# dependencies = ["gpkg @ git+https://h/gpkg.git@main"]
# ///
# git+https://h/other.git
""",
            "https://h/gpkg.git@main",
        ),
        ('gpkg = {tag = "v1", git = "https://h/gpkg.git"}', "https://h/gpkg.git@v1"),
    ],
)  # fmt: skip
def test_address_is_found_in_each_form(line: str, key: str) -> None:
    [found] = find_git_addresses(line)
    assert found.key == key
    assert not found.is_commit


@pytest.mark.parametrize("line", ["# git+https://h/x.git@main", "six  # git+https://h/x", "six"])
def test_comments_have_no_addresses(line: str) -> None:
    assert not find_git_addresses(line)


def test_commit_is_no_branch() -> None:
    [found] = find_git_addresses(f"git+https://h/gpkg.git@{SHA}")
    assert found.is_commit
    assert resolve([found], {}, {}) == ({}, {})


def test_pinned_text_keeps_user_fragment_and_marker() -> None:
    text = "g[x] @ git+https://joe:${PW}@h/g.git@main#subdirectory=a ; os_name == 'posix'"
    expected = text.replace("@main", f"@{SHA}")
    assert pin(text, {"https://h/g.git@main": SHA}) == expected
    assert pin("git+https://h/g.git", {"https://h/g.git@HEAD": SHA}) == f"git+https://h/g.git@{SHA}"
    assert pin(text, {"https://h/g.git@HEAD": SHA}) == text


@pytest.fixture
def repository(tmp_path: Path) -> tuple[Path, str]:
    source = write_package(tmp_path / "source", "gpkg", "V = 1\n")
    return tmp_path / "gpkg.git", make_repository(source, tmp_path / "gpkg.git")


def test_branches_tags_and_the_default_branch_are_resolved(
    tmp_path: Path, repository: tuple[Path, str]
) -> None:
    bare, first = repository
    source = tmp_path / "source"
    git(source, "-c", "user.email=a@b", "-c", "user.name=x", "tag", "-am", "one", "v1")
    git(source, "push", "-q", str(bare), "v1")
    (source / "gpkg.py").write_text("V = 2\n")
    second = make_repository(source, bare)
    with served(tmp_path) as host:
        for url in (f"file://{bare}", f"http://{host}/gpkg.git"):
            asked = [GitAddress(url, name) for name in ("", "main", "v1", "gone")]
            found, problems = resolve(asked, {}, os.environ)
            assert found == {f"{url}@HEAD": second, f"{url}@main": second, f"{url}@v1": first}
            assert problems == {f"{url}@gone": "the repository has no branch or tag 'gone'"}


def test_password_of_an_address_is_used_and_not_shown(
    tmp_path: Path, repository: tuple[Path, str]
) -> None:
    with served(tmp_path, "joe:hunter2secret") as host:
        address = GitAddress(f"http://joe:${{PW}}@{host}/gpkg.git", "main")
        found, _ = resolve([address], {"PW": "hunter2secret"}, os.environ)
        assert found == {f"http://{host}/gpkg.git@main": repository[1]}
        _, problems = resolve([address], {"PW": "wrong-password"}, os.environ)
        assert "wrong-password" not in repr((problems, address))
        _, unknown = resolve([address], {}, os.environ)
    assert unknown == {f"http://{host}/gpkg.git@main": "the value of ${PW} is not known here"}


def test_problem_is_a_reason_and_no_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    _, refused = resolve([GitAddress("http://127.0.0.1:1/x.git")], {}, os.environ)
    assert "127.0.0.1" in refused["http://127.0.0.1:1/x.git@HEAD"]
    _, missing = resolve([GitAddress("https://h/x.git")], {}, {"PATH": "/nowhere"})
    assert missing == {"https://h/x.git@HEAD": "git is not installed"}
    monkeypatch.setattr(git_requirements, "TIMEOUT_S", 0.0)
    _, late = resolve([GitAddress("http://127.0.0.1:1/x.git")], {}, os.environ)
    assert "no answer" in late["http://127.0.0.1:1/x.git@HEAD"]
