"""A folder for outputs that cannot be written is an error before the run, with its owner."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from runner.flows.runs.outputs import check_output_folder
from runner.protocol.errors import RunnerError


def test_new_and_writable_folders_pass(tmp_path: Path) -> None:
    check_output_folder(tmp_path)
    check_output_folder(tmp_path / "new" / "folder")
    assert list(tmp_path.iterdir()) == []


def test_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "outputs").touch()
    with pytest.raises(RunnerError, match="cannot write to") as caught:
        check_output_folder(tmp_path / "outputs" / "more")
    assert (caught.value.code, caught.value.why) == ("R-OUTPUT-FOLDER", "Not a directory")


def test_closed_folder_of_its_user_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root can write everywhere
    with pytest.raises(RunnerError) as caught:
        check_output_folder(tmp_path / "outputs")
    assert caught.value.why == "Permission denied"
    assert "chown" not in (caught.value.fix or "")


def test_folder_that_sudo_left_is_named_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(RunnerError) as caught:
        check_output_folder(tmp_path / "outputs")
    assert caught.value.why == f"{tmp_path} belongs to {tmp_path.owner()}"
    assert f"sudo chown -R {os.getuid()} {tmp_path};" in (caught.value.fix or "")


def test_train_refuses_before_anything_is_submitted(tmp_path: Path) -> None:
    (tmp_path / "outputs").touch()
    (tmp_path / "hello.py").write_text("print('hello')\n")
    done = subprocess.run(
        [sys.executable, "-m", "runner", "train", "hello.py", "--output-dir", "outputs"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "RUNNER_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3
    assert "error[R-OUTPUT-FOLDER]: cannot write to " in done.stderr
    assert not (tmp_path / "home").exists()
