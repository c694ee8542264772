"""One process of the agent executes the attempts of several runs in turn."""

from __future__ import annotations

import json
from typing import Any

from runner.node.agent.main import load_task, run_task
from runner.node.agent.records import RunRecords
from runner.node.script.redaction import Redactor
from runner.node.storage.retries import RetryBudget
from runner.node.termination import Termination
from runner.protocol.paths import RunPaths
from tests.unit.node.agent_task import RUN, Task

OTHER = "mnist-2"
SCRIPT = """
import json, os, pathlib
run_id, params = os.environ["RUNNER_RUN_ID"], json.load(open(os.environ["RUNNER_PARAMS"]))
print("run", run_id, f"loss={params['loss']}", flush=True)
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], run_id).write_text(run_id)
pathlib.Path("beside-" + run_id).write_text(run_id)
raise SystemExit(params["code"])
"""


def copy_run(task: Task, run_id: str, **changes: Any) -> None:
    """Store the run of the task again, with another ID."""
    run = {**task.json("run.json"), "run_id": run_id, **changes}
    task.service.put(f"{run_id}/run.json", json.dumps(run).encode())


def test_two_runs_in_one_process_share_nothing_of_their_attempts(task: Task) -> None:
    task.settings = {"AZ_BATCH_NODE_IS_DEDICATED": "true"}
    task.submit(SCRIPT, params={"loss": 0.5, "code": 3})
    copy_run(task, OTHER, params={"loss": 0.25, "code": 0}, outputs=[OTHER])
    environment = task.environment(task.start_folder(0))
    context = load_task(environment, RetryBudget(), Termination(lambda: None), Redactor())
    assert run_task(context, environment) == 3
    lost = {**task.json("attempts/1/start.json"), "log_offsets": {"stdout": 0, "stderr": 0}}
    task.service.put(f"{OTHER}/attempts/1/start.json", json.dumps(lost).encode())
    assert run_task(context, environment, RunRecords(context.runs, RunPaths(OTHER))) == 0
    first, second = (json.loads(task.service.data(f"{run}/result.json")) for run in (RUN, OTHER))
    assert (first["status"], first["attempt"], first["metrics"]) == ("failed", 1, {"loss": 0.5})
    assert (second["status"], second["attempt"]) == ("succeeded", 2)
    assert second["metrics"] == {"loss": 0.25}
    assert {file["path"] for file in first["outputs"]} == {RUN, f"beside-{RUN}"}
    assert {file["path"] for file in second["outputs"]} == {OTHER, f"beside-{OTHER}"}
    assert task.text("logs/stdout.txt") == f"run {RUN} loss=0.5\n"
    assert task.service.text(f"{OTHER}/logs/stdout.txt") == f"run {OTHER} loss=0.25\n"
    assert run_task(context, environment) == 3, "the outcome is decided"
