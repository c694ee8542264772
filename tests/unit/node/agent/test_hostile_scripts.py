"""Scripts that harm their own folders: the next attempt on the node runs all the same."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.node.environment.building import remove_environment
from runner.node.inputs.stage import InputFetch, fetch_inputs
from runner.node.script.workspace import RESTORE_PART, TempFolder, make_dirs, unpack_code
from runner.node.storage.retries import RetryBudget
from tests.disks import lock, needs_ordinary_user
from tests.unit.node.agent_task import Task


def link(path: Path) -> None:
    path.rmdir()
    elsewhere = path.with_name("elsewhere")
    elsewhere.mkdir(exist_ok=True)
    (elsewhere / "kept").touch()
    path.symlink_to(elsewhere)


def file(path: Path) -> None:
    path.rmdir()
    path.write_text("")


@needs_ordinary_user
def test_folder_without_permissions_is_recreated(tmp_path: Path) -> None:
    dirs = make_dirs(tmp_path)
    for folder in (dirs.code, dirs.output, dirs.checkpoints, dirs.logs):
        lock(folder).chmod(0)
    dirs = make_dirs(tmp_path)
    for folder in (dirs.code, dirs.output, dirs.checkpoints, dirs.logs):
        assert list(folder.iterdir()) == []


def _delete_inputs(folder: Path) -> None:
    access: Any = None  # no input is downloaded
    fetch_inputs(InputFetch(access, folder, folder.parent, RetryBudget(), print, print), {})


def _unpack(folder: Path) -> None:
    archive = folder.with_name("code.tar.gz")
    tarfile.open(archive, "w:gz").close()
    unpack_code(archive, folder, hashlib.sha256(archive.read_bytes()).hexdigest())


# What deletes the folders of an earlier attempt, with the name of the folder.
DELETIONS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "restored checkpoints": (
        f"checkpoints{RESTORE_PART}0",
        lambda folder: make_dirs(folder.parent),
    ),
    "code": ("code", _unpack),
    "inputs": ("inputs", _delete_inputs),
    "environment": ("env", remove_environment),
}


@needs_ordinary_user
@pytest.mark.parametrize(("name", "delete"), DELETIONS.values(), ids=DELETIONS)
def test_locked_leftovers_are_deleted(
    tmp_path: Path, name: str, delete: Callable[[Path], object]
) -> None:
    (tmp_path / name).mkdir()
    delete(lock(tmp_path / name))
    assert not (tmp_path / name / "a").exists()
    assert not list(tmp_path.glob(f"{name}*/a"))


@needs_ordinary_user
def test_locked_temporary_files_are_deleted(tmp_path: Path) -> None:
    temp = TempFolder(tmp_path)
    temp.create(())
    assert temp.path is not None
    lock(temp.path)
    temp.remove()
    assert not temp.path.exists()


def test_deeply_nested_folders_are_deleted(tmp_path: Path) -> None:
    """Python cannot delete a thousand levels before 3.13, and the agent runs on 3.10."""
    folder = tmp_path / "output"
    folder.mkdir()
    nest = "for _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')"
    subprocess.run([sys.executable, "-c", f"import os\n{nest}"], cwd=folder, check=True)
    try:
        assert list(make_dirs(tmp_path).output.iterdir()) == []
    finally:  # pytest cannot delete it either
        subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.mark.parametrize("harm", [link, file, Path.rmdir])
def test_folder_replaced_by_a_file_is_recreated(tmp_path: Path, harm: Any) -> None:
    harm(make_dirs(tmp_path).output)
    found = make_dirs(tmp_path).output
    assert found.is_dir()
    assert not found.is_symlink()
    assert list(found.iterdir()) == []
    assert (tmp_path / "elsewhere" / "kept").exists() == (harm is link), "it is not ours to delete"


def test_leftovers_of_killed_restores_are_deleted(tmp_path: Path) -> None:
    part = tmp_path / f"checkpoints{RESTORE_PART}0123"
    part.mkdir()
    (part / "weights").write_text("half")
    make_dirs(tmp_path)
    assert not part.exists()


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["OUTPUT_DIR", "CHECKPOINT_DIR"])
def test_script_that_deletes_its_folder_has_an_outcome(task: Task, folder: str) -> None:
    script = f"import os, shutil\nshutil.rmtree(os.environ['RUNNER_{folder}'])\nprint('done')\n"
    rule = {"interval_s": 0.1, "keep": 3, "max_bytes": 1 << 30}
    task.submit(script, checkpoints=rule)
    assert task.run() == 0, task.output
    assert task.json("result.json")["status"] == "succeeded"
    assert task.text("logs/stdout.txt") == "done\n"


@pytest.mark.slow
def test_script_that_deletes_everything_has_an_outcome(task: Task) -> None:
    script = (
        "import os, shutil, pathlib\n"
        "print('before', flush=True)\n"
        "for path in pathlib.Path.cwd().parent.iterdir():\n"
        "    shutil.rmtree(path, ignore_errors=True)\n"
        "print('after', flush=True)\n"
        "raise SystemExit(3)\n"
    )
    task.submit(script)
    assert task.run() == 3, task.output
    result = task.json("result.json")
    assert (result["code"], result["exit_code"]) == ("CommandFailed", 3)


@pytest.mark.slow
def test_failure_names_the_resumed_checkpoint(task: Task) -> None:
    script = (
        "import os, pathlib\n"
        "path = pathlib.Path(os.environ['RUNNER_CHECKPOINT_DIR']) / 'weights'\n"
        "if not path.exists():\n"
        "    path.write_text('not what it reads')\n"
        "raise SystemExit(4)\n"
    )
    task.submit(script, retries=1)
    assert task.run() == 4, task.output
    assert task.run() == 4, task.output
    message = task.json("result.json")["message"]
    assert message == (
        "python train.py exited with code 4 after resuming from checkpoint 1 of attempt 1"
    )
    events = [json.dumps(event) for event in task.lines("attempts/2/events.jsonl")]
    assert any("resuming from checkpoint 1" in event for event in events)
