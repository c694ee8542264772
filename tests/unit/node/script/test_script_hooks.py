"""The packages named runner that a script on a node can import."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.node.agent.attempt import NO_CHECKPOINTS_NOTICE, SEVERAL_NODES_NOTICE
from runner.node.script.workspace import PRIVATE_PACKAGE, START_FOLDER, own_script, python_path
from runner.protocol.checkpoints import CheckpointBlobs
from runner.protocol.task import NOTEBOOK_MODULE
from tests.unit.node.agent_task import RUN, Task
from tests.unit.node.node_group_task import NodeGroupTask

_SCRIPT = """
import importlib.util, os, pkgutil
import runner, runner.hooks
from runner.hooks import load_state, save_state
names = sorted(module.name for module in pkgutil.iter_modules(runner.__path__))
print(names, os.environ["PYTHONPATH"].split(os.pathsep)[1:])
save_state({"epoch": 3})
print(load_state(), os.listdir(os.environ["RUNNER_CHECKPOINT_DIR"]))
"""


@pytest.mark.slow
def test_script_can_import_only_the_hooks(task: Task) -> None:
    task.submit(_SCRIPT, env={"PYTHONPATH": "/mine"})
    assert task.run() == 0, task.text("logs/stderr.txt")
    first, second = task.text("logs/stdout.txt").splitlines()
    assert first == "['hooks'] ['/mine']"
    assert second == "{'epoch': 3} ['state-00000001']"


@pytest.mark.slow
def test_script_with_its_own_runner_package_keeps_it(task: Task) -> None:
    script = (
        "import pathlib, subprocess, sys\n"
        "pathlib.Path('runner.py').write_text('mine = 1')\n"
        "done = subprocess.run([sys.executable, '-c', 'import runner; print(runner.mine)'])\n"
        "sys.exit(done.returncode)\n"
    )
    task.submit(script)
    assert task.run() == 0, task.text("logs/stderr.txt")
    assert task.text("logs/stdout.txt") == "1\n"


_IMPORTED = "import runner.hooks, sys; print(runner.__file__, sys.path[-2:])"


def path_of(python_path: str, code: str, folder: Path) -> str:
    """Return what a program prints that Python starts in a folder with these modules."""
    (folder / "code").mkdir(exist_ok=True)
    (folder / "code/train.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder / "code", capture_output=True, text=True,
        env={"PATH": os.defpath, "PYTHONPATH": python_path}, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.strip()


def test_hooks_are_searched_after_every_other_module(tmp_path: Path) -> None:
    ours = tmp_path / "hooks"
    found = path_of(python_path("/a:/b", tmp_path), _IMPORTED, tmp_path)
    assert found == f"None {[str(ours), str(ours / START_FOLDER)]}"


@pytest.mark.parametrize("name", ["runner.py", "runner/__init__.py"])
@pytest.mark.parametrize("place", ["code", "given"])
def test_modules_of_the_user_are_not_hidden(tmp_path: Path, name: str, place: str) -> None:
    module = tmp_path / place / name
    module.parent.mkdir(parents=True)
    module.write_text("mine = 1")
    code = "import runner; print(runner.mine)"
    assert path_of(python_path(str(tmp_path / "given"), tmp_path), code, tmp_path) == "1"


@pytest.mark.parametrize("module", ["runner.tools", "runner.hooks"])
def test_folder_named_runner_and_the_hooks_are_found_together(tmp_path: Path, module: str) -> None:
    tools = tmp_path / "code/runner/tools.py"
    tools.parent.mkdir(parents=True)
    tools.touch()
    assert path_of(python_path(None, tmp_path), f"import {module}; print(1)", tmp_path) == "1"


def test_sitecustomize_of_the_user_does_not_hide_the_hooks(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "given/sitecustomize.py").write_text("import os\nos.environ['THEIRS'] = '1'")
    code = "import os, runner.hooks; print(os.environ['THEIRS'])"
    assert path_of(python_path(str(tmp_path / "given"), tmp_path), code, tmp_path) == "1"


def test_notebook_starts_beside_modules_with_our_names(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    for name in ("runner", "json", "queue", "types", "logging", "asyncio", "_runner_hooks"):
        (code / f"{name}.py").write_text(f"raise SystemExit('imported {name}')")
    words = own_script([sys.executable, "-m", NOTEBOOK_MODULE, "a.ipynb"], tmp_path)
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages/papermill.py").write_text("raise SystemExit('reached')")
    environment = {"PATH": os.defpath, "PYTHONPATH": str(tmp_path / "packages")}
    done = subprocess.run(
        words, cwd=code, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == "reached\n"
    assert own_script(["python", "train.py"], tmp_path) == ["python", "train.py"]


@pytest.mark.slow
def test_states_saved_without_pause_are_committed(
    task: Task, until: Callable[[Callable[[], object]], None]
) -> None:
    script = (
        "import os, time\nfrom runner.hooks import save_state\n"
        "while not os.path.exists('../../go'):\n"
        "    save_state({'filler': bytes(99_000)}); time.sleep(0.004)\n"
    )
    rule = {"interval_s": 0.3, "keep": 3, "max_bytes": 1 << 30}
    task.submit(script, checkpoints=rule)
    process = task.start()
    blobs = CheckpointBlobs(RUN)
    until(lambda: any((blobs.parse_number(name) or 0) >= 3 for name in list(task.service.blobs)))
    (task.folder / "task-0" / "go").touch()
    assert process.wait(120) == 0, task.text("logs/stderr.txt")


def test_start_files_have_the_syntax_of_python_3_5(tmp_path: Path) -> None:
    python_path(None, tmp_path)
    start = tmp_path / "hooks" / START_FOLDER
    assert [file.name for file in start.glob("*.py")] == ["sitecustomize.py"]
    files = [start / "sitecustomize.py", start / PRIVATE_PACKAGE / "written_paths.py"]
    assert all(ast.parse(file.read_text(), feature_version=(3, 5)).body for file in files)


def test_hooks_are_compiled_once_on_a_node(tmp_path: Path) -> None:
    compiled: list[dict[str, int]] = []
    for task in ("one", "two", "three"):
        work = tmp_path / task
        path = python_path(None, work, shared_dir=tmp_path / "shared")
        code = "import runner.hooks, sys; print(sys.modules['_runner_hooks.written_paths'])"
        environment = {"PATH": os.defpath, "PYTHONPATH": path}
        subprocess.run([sys.executable, "-c", code], env=environment, cwd=work, check=True)
        found = [*(tmp_path / "shared").rglob("*.pyc")]
        compiled.append({str(each): each.stat().st_mtime_ns for each in found})
    assert compiled[0] == compiled[1] == compiled[2]
    assert {name.rpartition("/")[2].partition(".")[0] for name in compiled[0]} >= {"written_paths"}


def test_hooks_are_in_the_folder_of_the_task_if_the_node_cannot_keep_them(tmp_path: Path) -> None:
    (tmp_path / "shared").touch()
    path = python_path(None, tmp_path, shared_dir=tmp_path / "shared")
    code = "import runner.hooks; print(runner.hooks.__file__)"
    environment = {"PATH": os.defpath, "PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment, cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == f"{tmp_path}/hooks/runner/hooks/__init__.py\n"


_UNAWARE = """
import os, sys
print([type(finder).__name__ for finder in sys.meta_path][0], "runner" in sys.modules)
for epoch in range(2): pass
"""


def notices(task: Task) -> list[str]:
    events = task.lines("attempts/1/events.jsonl")
    return [event["message"] for event in events if event["stage"] == "notice"]


@pytest.mark.slow
def test_plain_loop_gets_a_notice_that_an_eviction_restarts_it(task: Task) -> None:
    task.submit(_UNAWARE)
    assert task.run() == 0, task.text("logs/stderr.txt")
    assert task.text("logs/stdout.txt") == "FrameworkFinder False\n"
    assert [text for text in notices(task) if "RUNNER_CHECKPOINT_DIR" in text] == [
        NO_CHECKPOINTS_NOTICE
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "command", "is_told"),
    [
        ("dev", ["sleep", "0"], False),
        ("dev", ["sh", "-c", "true", "jupyter", "9"], False),
        ("dev", ["python", "train.py"], True),
        ("other", ["sleep", "0"], True),
    ],
)
def test_node_to_work_on_gets_no_notice_about_the_code_of_its_folder(
    task: Task, recipe: str, command: list[str], is_told: bool
) -> None:
    task.submit(_UNAWARE, recipe={"name": recipe}, command=command)
    assert task.run() == 0, task.text("logs/stderr.txt")
    assert (NO_CHECKPOINTS_NOTICE in notices(task)) is is_told


@pytest.mark.slow
@pytest.mark.parametrize("rule", [{"automatic": False}, None])
def test_automatic_checkpoints_can_be_switched_off(task: Task, rule: dict[str, Any] | None) -> None:
    task.submit(_UNAWARE, checkpoints=rule)
    assert task.run() == 0, task.text("logs/stderr.txt")
    assert "FrameworkFinder" not in task.text("logs/stdout.txt")


@pytest.mark.slow
@pytest.mark.parametrize(("keep", "is_there"), [(None, False), ({}, True)])
def test_paths_are_recorded_only_if_files_are_kept(task: Task, keep: Any, is_there: bool) -> None:
    task.submit("import sys; print('_runner_hooks.written_paths' in sys.modules)", keep=keep)
    assert task.run() == 0, task.text("logs/stderr.txt")
    assert task.text("logs/stdout.txt") == f"{is_there}\n"


@pytest.mark.slow
def test_script_that_saves_checkpoints_is_unchanged(task: Task) -> None:
    task.submit(_UNAWARE + "os.listdir(os.environ['RUNNER_CHECKPOINT_DIR'])")
    assert task.run() == 0, task.text("logs/stderr.txt")
    assert "FrameworkFinder" not in task.text("logs/stdout.txt")
    assert NO_CHECKPOINTS_NOTICE not in notices(task)


@pytest.mark.slow
def test_framework_on_several_nodes_gets_a_notice_about_checkpoints(
    node_group: NodeGroupTask,
) -> None:
    node_group.submit("# from transformers import Trainer", resources={"nodes": 2})
    assert node_group.run_node_group(2) == 0, node_group.output
    assert SEVERAL_NODES_NOTICE in notices(node_group)
