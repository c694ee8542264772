"""The files of a folder that are packed, and their order and modes."""

from __future__ import annotations

import io
import os
import tarfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runner.core.recipe import code_archive
from runner.core.recipe.code_archive import pack_code, select_files
from runner.core.recipe.listed_files import GitListing, select_listed
from runner.core.recipe.packed_blocks import PackedBlocks
from runner.protocol.errors import RunnerError
from runner.protocol.task import CODE_TIME
from tests.unit.core.recipe_maker import recipe


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(folder: Path, *apart: Path) -> list[str]:
    return list(select_files(folder, apart).names)


def members(data: bytes) -> dict[str, bytes | None]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found: dict[str, bytes | None] = {}
        for member in archive:
            content = archive.extractfile(member) if member.isreg() else None
            found[member.name] = content.read() if content else None
        return found


def test_caches_and_environments_are_never_code(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            "train.py": "",
            "lib/model.py": "",
            "lib/__pycache__/model.cpython-311.pyc": "",
            ".venv/bin/python": "",
            ".git/HEAD": "",
            ".ipynb_checkpoints/a.ipynb": "",
        },
    )
    assert names(tmp_path) == ["lib/model.py", "train.py"]


def test_runnerignore_takes_precedence_over_gitignore(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            ".gitignore": "*.bin\ndata/\n",
            ".runnerignore": "!small.bin\nnotes.txt\n",
            "small.bin": "",
            "large.bin": "",
            "data/a.csv": "",
            "notes.txt": "",
            "train.py": "",
        },
    )
    assert names(tmp_path) == [".gitignore", ".runnerignore", "small.bin", "train.py"]


def test_runnerignore_of_any_folder_takes_precedence_over_gitignore_of_any_other(
    tmp_path: Path,
) -> None:
    write(
        tmp_path,
        **{
            ".runnerignore": "!a/keep.bin\n",
            "a/.gitignore": "*.bin\n",
            "a/keep.bin": "",
            "a/x.bin": "",
        },
    )
    assert names(tmp_path) == [".runnerignore", "a/.gitignore", "a/keep.bin"]


def test_what_is_left_out_names_the_rule(tmp_path: Path) -> None:
    write(
        tmp_path,
        **{
            ".gitignore": "# data\n\n*.csv\nruns/\n",
            ".runnerignore": "notes.txt\n",
            "a.csv": "",
            "runs/1/log": "",
            "notes.txt": "",
            ".venv/pyvenv.cfg": "",
        },
    )
    assert {each.path: each.rule for each in select_files(tmp_path).excluded} == {
        "a.csv": ".gitignore:3: *.csv",
        "runs/": ".gitignore:4: runs/",
        "notes.txt": ".runnerignore:1: notes.txt",
        ".venv/": "caches and environments",
    }


def test_nested_ignore_files_are_relative_to_their_folder(tmp_path: Path) -> None:
    write(tmp_path, **{"a/.gitignore": "/out\n", "a/out/x": "", "a/b/out/y": "", "out/z": ""})
    assert names(tmp_path) == ["a/.gitignore", "a/b/out/y", "out/z"]


@pytest.mark.feature(14)
def test_rules_of_the_checkout_above_apply(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    write(tmp_path, **{".gitignore": "*.log\n", "models/a/train.py": "", "models/a/old.log": ""})
    assert names(tmp_path / "models" / "a") == ["train.py"]


def test_ignored_folder_is_packed_if_it_is_the_recipe(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    write(tmp_path, **{".gitignore": "scratch/\n", "scratch/x/train.py": ""})
    assert names(tmp_path / "scratch" / "x") == ["train.py"]


def test_output_folder_is_not_packed(tmp_path: Path) -> None:
    write(tmp_path, **{"train.py": "", "outputs/run/model.bin": ""})
    assert names(tmp_path, tmp_path / "outputs") == ["train.py"]


def test_same_files_give_the_same_bytes_whatever_their_age_and_owner(tmp_path: Path) -> None:
    first = write(tmp_path / "a", **{"train.py": "print(1)", "z.txt": "z"})
    second = write(tmp_path / "b", **{"z.txt": "z", "train.py": "print(1)"})
    os.utime(second / "train.py", (1, 1))
    (second / "train.py").chmod(0o600)
    packed = [pack_code(recipe(folder=folder)) for folder in (first, second)]
    assert packed[0].data == packed[1].data
    assert packed[0].sha256 == packed[1].sha256


def test_changed_file_changes_the_hash(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"train.py": "print(1)"})
    before = pack_code(recipe(folder=folder)).sha256
    write(tmp_path, **{"train.py": "print(2)"})
    assert pack_code(recipe(folder=folder)).sha256 != before


def test_times_of_packed_files_are_those_that_zip_can_store(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"train.py": "print(1)"})
    with tarfile.open(fileobj=io.BytesIO(pack_code(recipe(folder=folder)).data)) as archive:
        assert {member.mtime for member in archive} == {CODE_TIME}
    assert datetime.fromtimestamp(CODE_TIME, UTC).year > 1980


def many(folder: Path, count: int) -> Path:
    for number in range(count):
        write(folder, **{f"pkg{number % 7}/m{number}.py": f"x = {number}\n"})
        os.utime(folder / f"pkg{number % 7}/m{number}.py", (CODE_TIME, CODE_TIME))
    return folder


def test_archive_from_the_cache_is_the_same_as_a_new_one(tmp_path: Path) -> None:
    folder, cache = many(tmp_path / "code", 300), tmp_path / "cache"
    cache.mkdir()
    first = pack_code(recipe(folder=folder))
    for _ in range(2):
        assert (
            pack_code(recipe(folder=folder), packed=PackedBlocks(cache, folder)).data == first.data
        )
    (folder / "pkg1/m1.py").write_text("x = 2\n")
    (folder / "pkg2/m2.py").unlink()
    changed = pack_code(recipe(folder=folder), packed=PackedBlocks(cache, folder))
    assert changed.data == pack_code(recipe(folder=folder)).data != first.data
    found = members(changed.data)
    assert found["pkg1/m1.py"] == b"x = 2\n"
    assert "pkg2/m2.py" not in found


@pytest.mark.parametrize("text", [b"", b"{", b'{"a": 5}\nab', b"[1]\n", b"\xff\xfe"])
def test_damaged_cache_is_not_used(tmp_path: Path, text: bytes) -> None:
    folder, cache = many(tmp_path / "code", 250), tmp_path / "cache"
    cache.mkdir()
    first = pack_code(recipe(folder=folder), packed=PackedBlocks(cache, folder))
    (kept,) = cache.iterdir()
    kept.write_bytes(text)
    assert pack_code(recipe(folder=folder), packed=PackedBlocks(cache, folder)).data == first.data


def test_file_that_changed_just_before_it_was_cached_is_read_again(tmp_path: Path) -> None:
    folder, cache = many(tmp_path / "code", 250), tmp_path / "cache"
    cache.mkdir()
    pack_code(recipe(folder=folder), packed=PackedBlocks(cache, folder))
    path = folder / "pkg1/m1.py"
    before = path.stat()
    path.write_text("x = 7\n")  # the same size
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (
        members(pack_code(recipe(folder=folder), packed=PackedBlocks(cache, folder)).data)[
            "pkg1/m1.py"
        ]
        == b"x = 7\n"
    )


def test_executable_file_is_packed_as_executable(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"run.sh": "#!/bin/sh\n"})
    (folder / "run.sh").chmod(0o744)
    with tarfile.open(fileobj=io.BytesIO(pack_code(recipe(folder=folder)).data)) as archive:
        assert archive.getmember("run.sh").mode == 0o755


def test_single_script_is_packed_alone(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"train.py": "print(1)", "secret.txt": "no"})
    archive = pack_code(recipe(folder=folder, files=("train.py",)))
    assert members(archive.data) == {"train.py": b"print(1)"}


@pytest.mark.parametrize("name", ["../outside.py", "/etc/hostname", "a/../../outside.py"])
def test_named_file_outside_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "project", **{"train.py": ""})
    write(tmp_path, **{"outside.py": ""})
    with pytest.raises(RunnerError) as caught:
        pack_code(recipe(folder=folder, files=(name,)))
    assert caught.value.code == "R-CODE-OUTSIDE"


def test_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "project", **{"train.py": ""})
    write(tmp_path, **{"private.key": "secret"})
    (folder / "key").symlink_to(tmp_path / "private.key")
    with pytest.raises(RunnerError) as caught:
        pack_code(recipe(folder=folder))
    assert caught.value.code == "R-CODE-OUTSIDE"
    assert "key" in caught.value.what


def test_link_within_the_folder_is_packed_as_its_target(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"config/base.yaml": "x: 1"})
    (folder / "current.yaml").symlink_to("config/base.yaml")
    (folder / "latest").symlink_to("config")
    found = members(pack_code(recipe(folder=folder)).data)
    assert found["current.yaml"] == b"x: 1"
    assert found["latest"] is None, "a link to a folder stays a link"


def test_links_that_lead_nowhere_are_skipped_with_a_warning(tmp_path: Path) -> None:
    folder = write(tmp_path / "project", **{"train.py": ""})
    (folder / "gone").symlink_to("nowhere")
    (folder / "unmounted").symlink_to(tmp_path / "nas" / "data")
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    archive = pack_code(recipe(folder=folder))
    assert archive.names == ("train.py",)
    (warning,) = archive.warnings
    assert warning.startswith("skipped links that lead nowhere: a -> b, b -> a, gone -> nowhere")


def test_link_to_a_folder_that_is_not_sent_causes_a_warning(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"train.py": "", "data/x.csv": "", ".gitignore": "data/\n"})
    (folder / "current").symlink_to("data")
    (warning,) = pack_code(recipe(folder=folder)).warnings
    assert "current -> data" in warning
    assert "--data PATH" in warning


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_unreadable_file_is_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"train.py": "", "locked.txt": "x"})
    (folder / "locked.txt").chmod(0)
    with pytest.raises(RunnerError) as caught:
        pack_code(recipe(folder=folder))
    assert caught.value.code == "R-CODE-UNREADABLE"
    assert "locked.txt" in caught.value.what


def test_pipes_and_sockets_are_skipped(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"train.py": ""})
    os.mkfifo(folder / "pipe")
    assert names(folder) == ["train.py"]


@pytest.mark.feature(14)
def test_large_folder_causes_a_warning_with_its_largest_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, **{"train.py": "x", "weights.bin": "w" * 3000})
    assert pack_code(recipe(folder=folder)).warnings == ()
    monkeypatch.setattr(code_archive, "WARN_BYTES", 1000)
    (warning,) = pack_code(recipe(folder=folder)).warnings
    assert "weights.bin" in warning
    assert ".runnerignore" in warning


def test_single_large_file_causes_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.bin").write_bytes(b"x" * 900)
    (tmp_path / "large.bin").write_bytes(b"x" * 1100)
    monkeypatch.setattr(code_archive, "WARN_FILE_BYTES", 2000)
    assert pack_code(recipe(folder=tmp_path)).warnings == ()
    monkeypatch.setattr(code_archive, "WARN_FILE_BYTES", 1000)
    (warning,) = pack_code(recipe(folder=tmp_path)).warnings
    assert warning.index("large.bin") < warning.index("small.bin")
    assert "--input" in warning


def test_folder_above_the_limit_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path, **{"train.py": "x"})
    with (folder / "huge").open("wb") as sparse:
        sparse.truncate(code_archive.MAX_CODE_BYTES + 1)
    with pytest.raises(RunnerError) as caught:
        pack_code(recipe(folder=folder))
    assert caught.value.code == "R-CODE-TOO-LARGE"
    assert "the limit is 500 MB" in caught.value.what
    assert "huge" in caught.value.why


def test_folder_with_more_files_than_a_node_unpacks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_archive, "MAX_CODE_FILES", 2)
    folder = write(tmp_path, **{"a.py": "x", "b.py": "y"})
    assert pack_code(recipe(folder=folder)).files == 2
    (folder / "c.py").touch()
    with pytest.raises(RunnerError) as caught:
        pack_code(recipe(folder=folder))
    assert caught.value.code == "R-CODE-TOO-LARGE"
    assert caught.value.what == "the code folder has 3 files, the limit is 2"


def test_files_that_may_hold_credentials_are_left_out_with_a_warning(tmp_path: Path) -> None:
    found = (".env", "sub/.env.local", "sub/id_ed25519", ".aws/credentials", "kaggle.json")
    harmless = (
        ".env.example",
        "environment.py",
        "my.env",
        "credentials.py",
        "id_rsa.pub",
        "train.py",
    )
    folder = write(tmp_path, **dict.fromkeys((*found, *harmless), "x"))
    archive = pack_code(recipe(folder=folder))
    assert sorted(archive.names) == sorted(harmless)
    (warning,) = archive.warnings
    listed = warning.partition(": ")[2].partition("; ")[0]
    assert listed.split(", ") == sorted(found)
    assert "declare `secrets` in train.yaml" in warning


def test_credentials_that_git_tracks_or_a_rule_names_are_sent_with_a_warning(
    tmp_path: Path,
) -> None:
    write(tmp_path, **{"train.py": "x", ".env": "x", "id_rsa": "x", ".runnerignore": "!id_rsa\n"})
    listing = GitListing((".env",), ("id_rsa", "train.py"))
    archive = pack_code(recipe(folder=tmp_path), (), select_listed(tmp_path, (), listing))
    assert archive.names == (".env", "id_rsa", "train.py")
    (warning,) = archive.warnings
    assert "may hold credentials: .env, id_rsa; " in warning
    assert "exclude them with .runnerignore, and declare `secrets` in train.yaml" in warning


def test_excluded_and_named_credentials_cause_no_warning(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"train.py": "x", ".env": "x", ".gitignore": ".env\n"})
    assert pack_code(recipe(folder=folder)).warnings == ()
    assert pack_code(recipe(folder=folder, files=("train.py", ".env"))).warnings == ()


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
@pytest.mark.parametrize("name", [".gitignore", ".runnerignore"])
def test_rules_in_another_encoding_apply(tmp_path: Path, name: str, encoding: str) -> None:
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (tmp_path / name).write_bytes(f"{mark}*.log\r\n".encode(encoding))
    for each in ("a.log", "train.py"):
        (tmp_path / each).write_text("")
    assert set(select_files(tmp_path).names) == {name, "train.py"}


def test_file_with_the_place_of_a_repository_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    (tmp_path / "train.py").write_text("")
    assert select_files(tmp_path).names == ("train.py",)
