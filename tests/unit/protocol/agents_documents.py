"""Render every document that the agent writes to blob storage, with fixed IDs and times."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from runner.node.agent.model_registration import AgentModelStore, register_model
from runner.node.agent.records import NO_LOGS, RunRecords
from runner.node.agent.scheduled_group import fire
from runner.node.agent.scheduled_run import with_run_id
from runner.node.agent.unstarted import BLOCKED_CODE
from runner.node.checkpoints.restore import CheckpointRestore
from runner.node.failures import StageFailedError
from runner.node.script.metrics import MetricLog, MetricsFileReader
from runner.node.script.outputs import write_list
from runner.node.script.redaction import Redactor
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog
from runner.node.settings import NodeSettings
from runner.node.storage.auth import SasCredential
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import Transport
from runner.node.storage.retries import RetryBudget
from runner.protocol.checkpoints import CheckpointFile, CheckpointManifest
from runner.protocol.models import ModelRegistry
from runner.protocol.paths import RunPaths
from runner.protocol.results import AttemptEnd, OutputFile, RunResult
from runner.protocol.schedules import GroupAccess
from tests.unit.node.attempt_parts import context_of
from tests.unit.node.fake_blob import FakeBlobs

NOW_TEXT = "2026-11-21T15:31:17.784871+00:00"
OUTPUTS = [
    OutputFile("figures/loss curve.png", 0, hashlib.sha256(b"").hexdigest()),
    OutputFile("model.keras", 5, hashlib.sha256(b"model").hexdigest()),
]
CONTENTS = {"état.pt": b"abc", "sub/old": b""}
METRICS = {"val_loss": 0.25, "accuracy": 1.0, "bad": "NaN"}
STAGES = {"code": 0.1, "environment": 2.345, "data": 0.0, "command": 61.0, "export": 0.4}


class Tasks:
    """A Batch job that accepts every task."""

    def add(self, bodies: list[dict[str, Any]]) -> None:
        assert bodies


def _node(run_id: str) -> NodeSettings:
    return NodeSettings(
        run_id=run_id,
        work_dir=Path("/mnt/batch/tasks/workitems/job/job-1/task/wd"),
        shared_dir=Path("/mnt/batch/tasks/shared"),
        node="tvmps_0123",
        pool="local",
        dedicated=False,
        host="node-1",
    )


def _attempts(folder: Path, runs: ContainerClient, run_id: str) -> dict[str, str]:
    """Run two attempts: the first is lost with another node of the run, the second succeeds."""
    blobs, node = RunPaths(run_id), _node(run_id)
    records = RunRecords(runs, blobs)
    records.claim_attempt(node, NO_LOGS)
    checkpoint = _checkpoint(run_id)
    for file in checkpoint.files:
        runs.put(file.blob, CONTENTS[file.path])
    runs.create(f"{run_id}/checkpoints/7/manifest.json", checkpoint.to_bytes())
    lost = "rank 1 is lost"
    records.write_end(AttemptEnd(1, NOW_TEXT, "lost", None, "command", message=lost))
    number = records.claim_attempt(node, {"stdout": 120, "stderr": 7})
    (folder / "checkpoints").mkdir()
    context = context_of(runs, run_id=run_id, checkpoints=folder / "checkpoints")
    resume = CheckpointRestore(context, folder / "snapshots")
    restored = resume.restore(number, None)
    assert restored is not None
    told = {"restored": restored.to_json(), "last": 9, "committed": 2, "problem": None}
    rank = RunPaths(run_id, 1)
    RunRecords(runs, rank).write_node_start(node, number)
    write_list(runs, rank.attempt_outputs(number), OUTPUTS)
    end = AttemptEnd(number, NOW_TEXT, "succeeded", 0, None, checkpoint=told)
    records.write_end(end)
    result = RunResult(
        status="succeeded",
        attempt=number,
        exit_code=0,
        started=datetime.fromisoformat(NOW_TEXT),
        stages_s=STAGES,
        metrics={name: float(value) for name, value in METRICS.items()},
        outputs=tuple(OUTPUTS),
        checkpoint=told,
    )
    records.commit_attempt(result)
    return {
        "attempt-start.json": f"{run_id}/attempts/1/start.json",
        "attempt-end-lost.json": f"{run_id}/attempts/1/end.json",
        "attempt-start-again.json": f"{run_id}/attempts/2/start.json",
        "attempt-resume.json": f"{run_id}/attempts/2/resume.json",
        "attempt-end.json": f"{run_id}/attempts/2/end.json",
        "node-start.json": f"{run_id}/nodes/1/attempts/2/start.json",
        "node-outputs.json": f"{run_id}/nodes/1/attempts/2/outputs.json",
        "checkpoint-manifest.json": f"{run_id}/checkpoints/7/manifest.json",
        "result-succeeded.json": f"{run_id}/result.json",
    }


def _checkpoint(run_id: str) -> CheckpointManifest:
    def file(path: str, mtime_ns: int = 0, mode: int | None = None) -> CheckpointFile:
        sha256 = hashlib.sha256(CONTENTS[path]).hexdigest()
        blob = f"{run_id}/checkpoints/files/1/{sha256}"
        return CheckpointFile(path, len(CONTENTS[path]), sha256, blob, mtime_ns, mode)

    return CheckpointManifest(
        number=7,
        attempt=1,
        time=NOW_TEXT,
        files=(file("état.pt", 1763735477784871123, 0o644), file("sub/old")),
        links={"newest": "état.pt", "a": "sub/old"},
        folders=("empty",),
        step=300,
    )


def _failures(runs: ContainerClient) -> dict[str, str]:
    failed, blocked = "cats-20261121-143005-hhhh", "cats-20261121-143005-iiii"
    failure = StageFailedError("command", "CommandFailed", "the command ended with exit code 3", 3)
    failure.rank = 2
    started = datetime.fromisoformat(NOW_TEXT)
    result = RunResult(status="succeeded", attempt=1, started=started, stages_s={"code": 0.1})
    RunRecords(runs, RunPaths(failed)).commit_attempt(result, failure)
    why = f"blocked by {failed}, which failed"
    RunRecords(runs, RunPaths(blocked)).commit_unstarted("cancelled", BLOCKED_CODE, why)
    return {
        "result-failed.json": f"{failed}/result.json",
        "result-blocked.json": f"{blocked}/result.json",
    }


def _models(
    service: FakeBlobs, runs: ContainerClient, run_id: str, metadata: Callable[[str], bytes]
) -> dict[str, bytes]:
    """Register a version of a model. Return its documents, aliases, and the run's record of it."""
    result = json.loads(service.data(f"{run_id}/result.json"))
    service.put(f"{run_id}/{result['output']}model.keras", b"model")
    register_model(runs, None, RunPaths(run_id), Redactor())
    problem = service.data(f"{run_id}/models/cats.json")
    text = json.dumps(json.loads(problem)["problem"]).encode()
    register_model(runs, runs, RunPaths(run_id), Redactor())
    registry = ModelRegistry(AgentModelStore(runs, runs), "cats")
    registry.set_alias("production", 1)
    registry.set_alias("production", None)
    return {
        "model-version.json": service.data("cats/versions/1.json"),
        "model-summary.txt": metadata("cats/versions/1.json"),
        "model-aliases.json": service.data("cats/aliases.json"),
        "model-record.json": service.data(f"{run_id}/models/cats.json"),
        "model-record-problem.json": problem.replace(text, b'"..."'),
    }


def _scheduled(service: FakeBlobs, runs: ContainerClient) -> dict[str, str]:
    """Fire the two schedules of the client. Return the documents that this writes."""
    place = {"RUNNER_SCHEDULE": "each-night/aaaaaaaa"}
    task = {"AZ_BATCH_JOB_ID": "each-night:job-1", "AZ_BATCH_TASK_ID": "run"}
    run_id = with_run_id(place | task, runs)["RUNNER_RUN_ID"]
    container = {"url": "http://here/runs", "sas": "sv=1"}
    access = GroupAccess({"runs": container, "identity_client_id": None, "inputs": {}}, {})
    tasks: Any = Tasks()
    assert fire(runs, tasks, "nightly/aaaaaaaa", "nightly:job-1", access)
    firing = "schedules/nightly/aaaaaaaa/firings/nightly_job-1.json"
    group = json.loads(service.data(firing))
    return {
        "schedule-firing.json": "schedules/each-night/aaaaaaaa/firings/each-night_job-1.json",
        "run-scheduled.json": f"{run_id}/run.json",
        "schedule-group-firing.json": firing,
        "group-scheduled.json": f"groups/{group['group_id']}.json",
        "run-scheduled-in-group.json": f"{group['runs']['merge']}/run.json",
    }


def _lines(folder: Path) -> dict[str, bytes]:
    """Return lines of events.jsonl and of metrics.jsonl."""
    queue = LineQueue()
    events = EventLog(queue)
    with events.stage("data", "fetching mnist") as report:
        report("fetching mnist", 5, 10, "bytes")
        report("fetching mnist", 10, 10, "bytes")
        events.summarise("10 bytes, é")
    with contextlib.suppress(StageFailedError), events.stage("export"):
        raise StageFailedError("export", "OutputMissing", "the script promised model.keras")
    events.add("checkpoint", "end", "checkpoint 3", done=3, unit="files")
    shipped = queue.peek()
    queue = LineQueue()
    metrics = MetricLog(2, queue)
    metrics.add("loss", 0.1, 3)
    metrics.add("é", float("nan"), None)
    metrics.add("up", float("-inf"), 4)
    path = folder / "metrics.jsonl"
    path.write_text(
        '{"name": "acc", "value": 1, "step": 5}\n{"step": 6, "a": true, "b": 2.5, "c": "x"}\n',
        encoding="utf-8",
    )
    file = MetricsFileReader(path, metrics)
    file.poll(final=True)
    file.close()
    return {"events.jsonl": shipped, "metrics.jsonl": queue.peek()}


def render(
    folder: Path, service: FakeBlobs, run_id: str, metadata: Callable[[str], bytes]
) -> dict[str, bytes]:
    """Return all documents by file name. The client has written the run and the schedules."""
    runs = ContainerClient(
        Transport(service.url, SasCredential("sv=1&sig=s"), RetryBudget(20.0), 60.0)
    )
    names = _attempts(folder, runs, run_id) | _failures(runs) | _scheduled(service, runs)
    return {
        **{file: service.data(blob) for file, blob in names.items()},
        **_lines(folder),
        "index-succeeded.txt": metadata(f"index/{run_id}"),
        **_models(service, runs, run_id, metadata),
    }
