"""A script that succeeded is not run again because its outputs could not be exported at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.node.agent_task import RUN, Task

Until = Callable[[Callable[[], object]], None]
SCRIPT = (
    "import os\nprint('ran in', os.environ['RUNNER_ATTEMPT'], 'loss=0.5', flush=True)\n"
    "open(os.environ['RUNNER_METRICS_FILE'], 'w').write('{\"acc\": 0.9}\\n')\n"
    "open(os.environ['RUNNER_OUTPUT_DIR'] + '/model', 'w').write('weights')\n"
)


def assert_only_exported(task: Task, attempt: int) -> None:
    result = task.json("result.json")
    assert (result["status"], result["attempt"]) == ("succeeded", attempt)
    assert [file["path"] for file in result["outputs"]] == ["model"]
    assert task.service.data(f"{RUN}/{result['output']}model") == b"weights"
    assert result["metrics"] == {"loss": 0.5, "acc": 0.9}
    assert task.text("logs/stdout.txt") == "ran in 1 loss=0.5\n"
    assert len(task.text("metrics.jsonl").splitlines()) == 2
    assert "environment" not in result["stages_s"]
    assert task.has(f"attempts/{attempt}/environment.json")


@pytest.mark.slow
def test_next_attempt_completes_a_refused_export(task: Task) -> None:
    task.submit(SCRIPT, retries=1, outputs=["model"])
    task.service.refuse_put = f"{RUN}/output/model"
    assert task.run() == 1
    assert "the outputs are still in " in task.output
    assert not task.has("result.json")
    task.service.refuse_put = ""
    assert task.run(again_in=0) == 0, task.output
    assert "the command of attempt 1 succeeded here" in task.output
    assert_only_exported(task, attempt=2)


@pytest.mark.slow
def test_next_attempt_repeats_only_the_export_of_a_killed_agent(task: Task, until: Until) -> None:
    task.submit(SCRIPT)
    task.service.hold_put = f"{RUN}/output/model"
    process = task.start()
    until(lambda: task.service.held and len(task.text("metrics.jsonl").splitlines()) == 2)
    until(lambda: task.text("logs/stdout.txt").endswith("\n"))
    process.kill()
    process.wait()
    task.service.hold_put = ""
    assert task.run(again_in=0) == 0, task.output
    assert_only_exported(task, attempt=2)


@pytest.mark.slow
def test_rebooted_node_runs_the_script_again(task: Task) -> None:
    task.submit(SCRIPT, retries=1)
    task.service.refuse_put = f"{RUN}/output/model"
    assert task.run() == 1
    task.service.refuse_put = ""
    mark = Path(task.folder, "task-0", "wd", "finished.json")
    before = json.loads(mark.read_text())
    mark.write_text(json.dumps({**before, "of": [*before["of"][:2], "another boot"]}))
    assert task.run(again_in=0) == 0, task.output
    assert "ran in 2" in task.text("logs/stdout.txt")


@pytest.mark.slow
def test_failed_promise_is_not_exported_again(task: Task) -> None:
    task.submit(SCRIPT, retries=1, outputs=["other"])
    assert task.run() == 1
    assert task.run(again_in=0) == 1
    assert "ran in 2" in task.text("logs/stdout.txt")
    assert task.json("result.json")["code"] == "OutputMissing"


def test_damaged_mark_is_ignored(task: Task) -> None:
    task.submit(SCRIPT)
    for text in ("", "{", "[]", '{"of": 3}', "[" * 100_000):
        folder = task.folder / "task-0" / "wd"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "output").mkdir(exist_ok=True)
        (folder / "finished.json").write_text(text)
    assert task.run(again_in=0) == 0, task.output
    assert "ran in 1" in task.text("logs/stdout.txt")
