"""Documents in blob: their bytes are those of the golden files, and old ones are read."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from runner.protocol.checkpoints import (
    CheckpointBlobs,
    CheckpointFile,
    CheckpointManifest,
    parse_checkpoint,
)
from runner.protocol.groups import RunGroup, parse_group
from runner.protocol.metrics import ExpectedRange, MetricPoint
from runner.protocol.models import ModelRequest, parse_aliases, parse_version, parse_version_summary
from runner.protocol.results import (
    AttemptEnd,
    AttemptStart,
    OutputFile,
    RunResult,
    StageEvent,
    parse_event_line,
    parse_result,
)
from runner.protocol.run_spec import (
    NOTIFY_VARIABLE,
    CheckpointRule,
    CodeRef,
    DataFile,
    DataRef,
    FallbackRule,
    KeepRule,
    NotifyRule,
    PoolStay,
    RecipeSpec,
    Resources,
    ResumeFrom,
    RunOrigin,
    RunSpec,
    SecretRef,
    parse_run,
    parse_run_spec,
)
from tests.unit.protocol.clients_documents import CREATED, GROUP_ID, RUN_ID
from tests.unit.protocol.documents import ATTEMPTED, GOLDEN, NOW, OLD, render

NOW_TEXT = NOW.isoformat()
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
OLD_ID = "digits-20261101-120000-aaaa"


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def raw(name: str) -> dict[str, Any]:
    return json.loads(golden(name))


def test_written_documents_equal_the_golden_ones() -> None:
    written = render()
    names = {path.name for path in GOLDEN.iterdir() if not path.name.startswith(OLD)}
    assert set(written) == names
    assert {name for name, body in written.items() if body != golden(name)} == set()


FULL = RunSpec(
    run_id=RUN_ID,
    experiment="cats",
    created=CREATED,
    recipe="cats",
    description="Tells cats from dogs, äöü",
    code=CodeRef("c" * 64, 4096, git_revision="0123456789abcdef0123456789abcdef01234567"),
    agent_sha256="a" * 64,
    command=("python", "-m", "train it", "--epochs", "5", "--optimizer", "adam"),
    params={"epochs": 5, "optimizer": "adam"},
    env={"TF_CPP_MIN_LOG_LEVEL": "2"},
    requirements_file="requirements.txt",
    requirements_sha256="d" * 64,
    python="3.12",
    data=DataRef(
        name="mnist",
        source="cache",
        notice="a notice",
        files=(DataFile("b.gz", 2, "b" * 64), DataFile("a.gz", 1, "a" * 64)),
        prefix="mnist/a423bfb963e538511b57de206f37911e949a12867c435151be9aa25e25bafcf5/",
    ),
    inputs=raw("run-full.json")["inputs"],
    secrets=(
        SecretRef("HF_TOKEN", env="HF_TOKEN"),
        SecretRef("WANDB_API_KEY", keyvault="https://team.vault.azure.net/secrets/wandb"),
    ),
    outputs=("model.keras", "*.json", "figures", "lists/words"),
    named_outputs={"RUNNER_OUTPUT_PLOTS": "figures", "RUNNER_OUTPUT_WORD_LIST": "lists/words"},
    metric_patterns={"loss": "loss=([0-9.]+)"},
    primary_metric="val_loss",
    goal="min",
    model=ModelRequest("cats", ("staging",), "model*", "Cats"),
    checkpoints=CheckpointRule(90, 5, 2 << 30),
    timeout_s=7200,
    retries=2,
    resources=Resources(1, 28 << 30, ("Standard_NC4as_T4_v3",), 1, "spot"),
    priority=7,
    after=("mnist-20261120-080910-x7m2",),
    account="batch",
    pool="local",
    vm_size="STANDARD_NC4AS_T4_V3",
    spot=True,
    job_id="cats_local-2",
    task_id=RUN_ID,
)
AGAIN = replace(
    FULL, created=CREATED + timedelta(days=1), agent_sha256="e" * 64, job_id="cats_local-2"
)
OLD_RUN = RunSpec(
    run_id=OLD_ID,
    experiment="digits",
    created=datetime(2026, 11, 1, 12, tzinfo=UTC),
    recipe="digits",
    source="script",
    code=CodeRef("c" * 64, 1),
    agent_sha256="a" * 64,
    command=("python", "digits.py"),
    account="local",
    pool="local",
    vm_size="STANDARD_D2S_V3",
    spot=True,
    job_id="digits_local",
    task_id=OLD_ID,
)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("run-full.json", FULL),
        (
            "run-reproduce.json",
            replace(
                AGAIN,
                run_id="cats-20261122-143005-gggg",
                task_id="cats-20261122-143005-gggg",
                constraints=("keras==3.12.0", "numpy==2.3.4"),
                model=ModelRequest("cats", ("staging",), "model*", "Cats", register=False),
                origin=RunOrigin("reproduce", RUN_ID),
                after=(),
            ),
        ),
        (
            "run-resume.json",
            replace(
                AGAIN,
                run_id="cats-20261122-143005-ffff",
                task_id="cats-20261122-143005-ffff",
                command=("python", "-m", "train it", "--epochs", "9", "--optimizer", "adam"),
                params={"epochs": 9, "optimizer": "adam"},
                resume_from=ResumeFrom(RUN_ID, 7),
                resources=replace(FULL.resources, nodes=2),
                origin=RunOrigin("resume", RUN_ID),
                after=(),
            ),
        ),
        ("old-run.json", OLD_RUN),
    ],
)
def test_client_and_agent_read_every_field_of_a_run(name: str, spec: RunSpec) -> None:
    assert parse_run(golden(name), "") == parse_run_spec(golden(name)) == spec


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*run-*.json")), ids=lambda path: path.stem)
def test_document_is_written_as_it_was_read(path: Path) -> None:
    assert list(parse_run(path.read_bytes(), "").to_json().items()) == list(raw(path.name).items())


OTHER_VALUES: dict[str, Any] = {
    "env": {"A": "b"},
    "requirements_file": "requirements.txt",
    "packages": ("papermill",),
    "live_outputs": ("a.ipynb",),
    "python": "3.12",
    "python_from": "requires-python of pyproject.toml",
    "secrets": (SecretRef("A", env="B"), SecretRef("C", keyvault="https://x")),
    "outputs": ("a", "b"),
    "named_outputs": {"RUNNER_OUTPUT_A": "a"},
    "metric_patterns": {"loss": "(.*)"},
    "primary_metric": "loss",
    "goal": "min",
    "expect": (ExpectedRange("loss", None, 0.5, fails=True), ExpectedRange("acc", 0.9, 1.0)),
    "model": ModelRequest("cats", ("a",), "b", "c", register=False),
    "checkpoints": CheckpointRule(1.5, 2, 3, sharded=True),
    "keep": KeepRule(7, ("data/**",)),
    "prepare": "make data",
    "max_cost_micros": 5_000_000,
    "launcher": "torchrun",
    "processes_per_node": 4,
    "hang_timeout_s": 600,
    "idle_timeout_s": 900,
    "keep_node_s": 1800,
    "params_as": "hydra",
    "switches": {"amp": ("--amp", "--no-amp")},
    "timeout_s": 90,
    "retries": 3,
    "resources": Resources(1, 2, ("a",), 3, "spot", 4),
    "priority": -5,
    "image": f"a@sha256:{'0' * 64}",
    "notify": NotifyRule(SecretRef(NOTIFY_VARIABLE, env="A"), ("cap",), "slack", 5, 0.5),
}


@pytest.mark.parametrize("name", [each.name for each in fields(RecipeSpec)])
def test_every_field_of_a_recipe_survives_writing_and_reading(name: str) -> None:
    changed = RecipeSpec(**{name: OTHER_VALUES[name]})
    assert changed != RecipeSpec(), "the value must not be the default"
    assert RecipeSpec.from_json(json.loads(json.dumps(changed.to_json()))) == changed


@pytest.mark.parametrize("name", [each.name for each in fields(RecipeSpec)])
def test_changes_of_a_loaded_run_are_written(name: str) -> None:
    before = parse_run(golden("run-full.json"), RUN_ID)
    written = replace(before, **{name: OTHER_VALUES[name]}).to_json()
    assert getattr(RunSpec.from_json(written), name) == OTHER_VALUES[name]


def test_moves_between_pools_are_read_and_written() -> None:
    stay = PoolStay("t4", "size", True, 2, "2026-11-21T15:00:00+00:00", "waited")
    rule = FallbackRule(("t4", "a10"), 60, 2)
    written = replace(FULL, moved_from=(stay,), fallback=rule).to_json()
    read = parse_run(json.dumps(written).encode(), RUN_ID)
    assert (read.moved_from, read.fallback) == ((stay,), rule)
    assert "fallback" not in FULL.to_json()["batch"]
    older = {**written["batch"], "moved_from": [{"pool": "t4", "requeued": 1}]}
    found = parse_run(json.dumps({**written, "batch": older}).encode(), RUN_ID)
    assert found.moved_from == (PoolStay("t4", None, False, 1),)


def test_client_reads_what_a_run_repeats_and_its_nodes() -> None:
    resumed = parse_run(golden("run-resume.json"), "")
    assert (resumed.origin, resumed.nodes) == (RunOrigin("resume", RUN_ID), 2)
    member = parse_run(golden("run-in-group.json"), "")
    assert (member.group, member.after) == (
        GROUP_ID,
        ("nightly-prepare-20261121-143005-aaaa",),
    )


def test_agent_reads_image_nodes_and_no_checkpoints() -> None:
    assert parse_run_spec(golden("run-no-checkpoints.json")).checkpoints is None
    assert parse_run_spec(golden("run-nodes.json")).nodes == 4
    assert parse_run_spec(golden("run-image.json")).image == f"ghcr.io/me/torch@sha256:{'9' * 64}"


def test_client_reads_every_field_of_a_result() -> None:
    result = parse_result(golden("result-succeeded.json"), ATTEMPTED)
    assert dict(result.metrics) == pytest.approx(
        {"val_loss": 0.25, "accuracy": 1.0, "bad": float("nan")}, nan_ok=True
    )
    assert replace(result, metrics={}) == RunResult(
        status="succeeded",
        attempt=2,
        exit_code=0,
        step=None,
        code=None,
        message=None,
        started=NOW,
        ended=NOW,
        stages_s={"code": 0.1, "environment": 2.345, "data": 0, "command": 61, "export": 0.4},
        metrics={},
        outputs=(
            OutputFile("figures/loss curve.png", 0, EMPTY_SHA256),
            OutputFile("model.keras", 5, hashlib.sha256(b"model").hexdigest()),
        ),
        output="attempts/2/output/",
        evicted=1,
        checkpoint=raw("result-succeeded.json")["checkpoint"],
    )


def test_client_reads_failed_and_cancelled_results() -> None:
    failed = parse_result(golden("result-failed.json"), "")
    assert (failed.status, failed.exit_code, failed.step, failed.code, failed.rank) == (
        "failed", 3, "command", "CommandFailed", 2,
    )  # fmt: skip
    assert failed.message == "the command ended with exit code 3"
    for name, code in (("blocked", "Blocked"), ("cancelled", "Cancelled")):
        result = parse_result(golden(f"result-{name}.json"), "")
        assert (result.status, result.code, result.attempt) == ("cancelled", code, 0)
        assert (result.started, result.ended) == (None, NOW)


def test_client_reads_a_result_of_the_first_version() -> None:
    result = parse_result(golden("old-result.json"), OLD_ID)
    assert (result.output, result.evicted, result.rank) == ("output/", None, 0)
    assert result.outputs == (OutputFile("model", 3, "00"),)
    assert (result.started, result.ended) == (
        datetime(2026, 11, 1, 12, 0, 5, tzinfo=UTC),
        datetime(2026, 11, 1, 12, 1, tzinfo=UTC),
    )
    assert (result.stages_s, result.metrics) == ({"command": 50.5}, {"accuracy": 0.5})


def test_client_reads_start_and_end_of_attempts() -> None:
    assert AttemptStart.load(golden("attempt-start-again.json")) == AttemptStart(
        attempt=2,
        node="tvmps_0123",
        started=NOW_TEXT,
        stdout_offset=120,
        stderr_offset=7,
        pool="local",
        work_dir="/mnt/batch/tasks/workitems/job/job-1/task/wd",
        dedicated=False,
        host="node-1",
        signs=True,
    )
    assert AttemptStart.load(golden("old-attempt-start.json")) == AttemptStart(
        attempt=1, node="tvm-1", started="2026-11-01T12:00:05+00:00", stdout_offset=0,
        stderr_offset=0, host="node-1",
    )  # fmt: skip
    assert AttemptEnd.load(golden("attempt-end.json")) == AttemptEnd(
        attempt=2, ended=NOW_TEXT, why="succeeded", exit_code=0, step=None,
        checkpoint=raw("attempt-end.json")["checkpoint"],
    )  # fmt: skip
    assert AttemptEnd.load(golden("attempt-end-lost.json")) == AttemptEnd(
        1, NOW_TEXT, "lost", None, "command", message="rank 1 is lost"
    )


def test_client_reads_events() -> None:
    lines = golden("events.jsonl").decode().splitlines()
    events = [parse_event_line(line, 1) for line in lines]
    assert events[:2] == [
        StageEvent(1, NOW_TEXT, "data", "start", "fetching mnist", None, None, None),
        StageEvent(1, NOW_TEXT, "data", "progress", "fetching mnist", 5, 10, "bytes"),
    ]
    assert [event and event.state for event in events[2:]] == [
        "progress", "end", "start", "failed", "end",
    ]  # fmt: skip


def test_client_reads_metrics() -> None:
    lines = golden("metrics.jsonl").decode().splitlines()
    points = [MetricPoint.load(line) for line in lines]
    assert points[0] == MetricPoint(NOW_TEXT, 2, 3, "loss", 0.1)
    nan, infinite = points[1:3]
    assert nan is not None
    assert (nan.name, nan.step) == ("é", None)
    assert nan.value != nan.value
    assert infinite == MetricPoint(NOW_TEXT, 2, 4, "up", float("-inf"))
    assert [point and (point.name, point.value, point.step) for point in points[3:]] == [
        ("acc", 1.0, 5), ("a", 1.0, 6), ("b", 2.5, 6),
    ]  # fmt: skip


def test_manifest_of_a_checkpoint_is_read() -> None:
    abc = hashlib.sha256(b"abc").hexdigest()
    files = f"{ATTEMPTED}/checkpoints/files/1/"
    body = golden("checkpoint-manifest.json")
    assert parse_checkpoint(body, CheckpointBlobs(ATTEMPTED), 7) == CheckpointManifest(
        number=7,
        attempt=1,
        time=NOW_TEXT,
        files=(
            CheckpointFile("état.pt", 3, abc, files + abc, 1763735477784871123, 0o644),
            CheckpointFile("sub/old", 0, EMPTY_SHA256, files + EMPTY_SHA256),
        ),
        links={"a": "sub/old", "newest": "état.pt"},
        folders=("empty",),
        step=300,
    )


def test_manifest_of_the_first_version_is_read() -> None:
    body = golden("old-checkpoint-manifest.json")
    blob = f"{OLD_ID}/checkpoints/files/1/{'1' * 64}"
    assert parse_checkpoint(body, CheckpointBlobs(OLD_ID), 2) == CheckpointManifest(
        number=2,
        attempt=1,
        time="2026-11-01T12:00:30+00:00",
        files=(CheckpointFile("state", 1, "1" * 64, blob),),
        links={},
        folders=(),
    )


def test_client_reads_groups_of_a_submission_and_of_a_schedule() -> None:
    prepare, merge = (f"nightly-{task}-20261121-143005" for task in ("prepare", "merge"))
    assert parse_group(golden("group.json"), GROUP_ID) == RunGroup(
        group_id=GROUP_ID,
        name="nightly",
        created=CREATED,
        job_id=GROUP_ID,
        pool="local",
        runs={"prepare": f"{prepare}-aaaa", "merge": f"{merge}-bbbb"},
        after={"prepare": (), "merge": ("prepare",)},
    )
    fired = parse_group(golden("group-scheduled.json"), "")
    assert (fired.job_id, fired.created) == ("nightly:job-1", NOW)
    assert fired.after == {"prepare": (), "merge": ("prepare",)}


def test_entries_of_the_index_are_read() -> None:
    lines = golden("index-succeeded.txt").decode().splitlines()
    entry = dict(line.removeprefix("x-ms-meta-").split("=", 1) for line in lines)
    spec = parse_run(entry["run"].encode(), ATTEMPTED)
    whole = parse_run(golden("run-retry.json"), ATTEMPTED)
    stored = (
        "run_id", "experiment", "created", "recipe", "params", "origin", "group", "after", "pool",
        "vm_size", "spot", "job_id", "task_id", "primary_metric", "goal",
    )  # fmt: skip
    assert {name: getattr(spec, name) for name in stored} == {
        name: getattr(whole, name) for name in stored
    }
    assert spec.data is not None
    assert spec.data.notice == "a notice"
    result = parse_result(entry["result"].encode(), ATTEMPTED)
    assert (result.status, result.attempt, result.evicted) == ("succeeded", 2, 1)


def test_documents_of_models_are_read() -> None:
    version = parse_version(golden("model-version.json"), "cats/versions/1.json")
    assert version == raw("model-version.json")
    removed = parse_version(golden("model-version-removed.json"), "cats/versions/1.json")
    assert removed == {**version, "deleted": NOW_TEXT}
    assert parse_aliases(golden("model-aliases.json"), "") == {
        "staging": {"version": 1, "applied": 1},
        "production": {"version": None, "applied": 1},
    }
    summary = golden("model-summary.txt").decode().strip().removeprefix("x-ms-meta-summary=")
    assert parse_version_summary(summary) == {
        "format": 1,
        "run_id": ATTEMPTED,
        "created": NOW_TEXT,
        "primary_metric": "val_loss",
        "goal": "min",
        "metrics": {"val_loss": 0.25},
        "size_bytes": 5,
        "file_count": 1,
    }
