"""A task that runs several trials of a sweep one after another."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from runner.protocol.sweeps import TrialSpec
from runner.protocol.waiting_trials import task_trials_setting, template_blob, trial_setting
from tests.unit.node.agent_task import RUN, Task

GROUP = "train-20261129-120000-aaaa"


def trial_ids(count: int) -> list[str]:
    """Return the run IDs of the trials of a task, whose first one is the run of `Task`."""
    return [RUN, *(f"mnist-{number}" for number in range(2, count + 1))]


def submit_trials(task: Task, script: str, params: Sequence[Any], **changes: Any) -> list[str]:
    """Submit a task with a trial for each of the parameters. Return their run IDs."""
    task.submit(script, group=GROUP, trial={}, batch={"task_id": RUN}, **changes)
    common = bytes(task.service.blobs.pop(f"{RUN}/run.json").data)
    task.service.put(template_blob(GROUP), common)
    changed = {
        run_id: {
            "run_id": run_id,
            "params": each,
            "trial": TrialSpec(str(number), number, each).to_json(),
        }
        for number, (run_id, each) in enumerate(
            zip(trial_ids(len(params)), params, strict=True), start=1
        )
    }
    place = {"url": task.service.url, "sas": f"sv=1&sig=signature-of-{RUN}"}
    first = {"runs": place, "data": place, "models": place, "inputs": {}}
    own = {
        run_id: {**first, "runs": {**place, "sas": f"sv=1&sig=signature-of-{run_id}"}}
        for run_id in changed
    }
    later = {run_id: (changed[run_id], own[run_id]) for run_id in [*changed][1:]}
    task.settings = {
        **task.settings,
        "RUNNER_STORAGE": json.dumps(first),
        "RUNNER_TRIAL": trial_setting(GROUP, changed[RUN]),
        "RUNNER_TASK_TRIALS": task_trials_setting(first, later),
    }
    return [*changed]


def result(task: Task, run_id: str) -> dict[str, Any]:
    """Return result.json of a trial."""
    return json.loads(task.service.data(f"{run_id}/result.json"))


def ended(task: Task, run_ids: Sequence[str]) -> list[str]:
    """Return the trials that have a result."""
    return [run_id for run_id in run_ids if f"{run_id}/result.json" in task.service.blobs]
