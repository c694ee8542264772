"""The files of a folder that are packed, and their order and modes."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from runner.core.recipe import code_archive
from runner.core.recipe.code_archive import pack_code, walk_code
from runner.protocol.errors import RunnerError
from tests.unit.core.recipe_maker import recipe


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def names(folder: Path, *excluded: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in walk_code(folder, excluded)]


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


def test_dangling_link_is_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"train.py": ""})
    (folder / "gone").symlink_to("nowhere")
    with pytest.raises(RunnerError) as caught:
        pack_code(recipe(folder=folder))
    assert "gone" in caught.value.what


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


def test_files_that_may_hold_credentials_cause_a_warning(tmp_path: Path) -> None:
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
    (warning,) = pack_code(recipe(folder=folder)).warnings
    listed = warning.partition(": ")[2].partition("; ")[0]
    assert listed.split(", ") == sorted(found)
    assert "exclude them with .runnerignore, and declare `secrets` in train.yaml" in warning


def test_excluded_and_named_credentials_cause_no_warning(tmp_path: Path) -> None:
    folder = write(tmp_path, **{"train.py": "x", ".env": "x", ".gitignore": ".env\n"})
    assert pack_code(recipe(folder=folder)).warnings == ()
    assert pack_code(recipe(folder=folder, files=("train.py", ".env"))).warnings == ()
