"""Scripts that harm their own folders: the next attempt on the node runs all the same."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from runner.node.script.workspace import RESTORE_PART, make_dirs
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


def locked(path: Path) -> None:
    (path / "a" / "b").mkdir(parents=True)
    (path / "a" / "b" / "c").touch()
    (path / "a" / "b").chmod(0o500)
    (path / "a").chmod(0)


@pytest.mark.skipif(os.geteuid() == 0, reason="no rights are taken away from root")
def test_folder_without_permissions_is_recreated(tmp_path: Path) -> None:
    locked(make_dirs(tmp_path).output)
    assert list(make_dirs(tmp_path).output.iterdir()) == []


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
