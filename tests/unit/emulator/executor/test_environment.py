from pathlib import Path

import pytest

from batch_emulator.domain.model import ExecutionKind
from batch_emulator.executor.layout import NodeLayout
from batch_emulator.launches import NodeFacts, task_environment

LAYOUT = NodeLayout(Path("/node/tasks"))
NODE = NodeFacts("acc", "https://acc/", "pool", "tvm-1", True, LAYOUT)


def environment(kind: ExecutionKind, **options: object) -> dict[str, str]:
    task_dir = LAYOUT.startup if kind is ExecutionKind.START else LAYOUT.task_dir("job", "t")
    return task_environment(NODE, kind, task_dir, job_id="job", task_id="t", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", list(ExecutionKind))
def test_every_task_has_variables_for_account_pool_node_and_folders(kind: ExecutionKind) -> None:
    seen = environment(kind)
    folder = (
        "/node/tasks/startup"
        if kind is ExecutionKind.START
        else "/node/tasks/workitems/job/job-1/t"
    )
    assert seen["AZ_BATCH_ACCOUNT_NAME"] == "acc"
    assert seen["AZ_BATCH_ACCOUNT_URL"] == "https://acc/"
    assert seen["AZ_BATCH_POOL_ID"] == "pool"
    assert seen["AZ_BATCH_NODE_ID"] == "tvm-1"
    assert seen["AZ_BATCH_NODE_IS_DEDICATED"] == "true"
    assert seen["AZ_BATCH_NODE_ROOT_DIR"] == "/node/tasks"
    assert seen["AZ_BATCH_NODE_SHARED_DIR"] == "/node/tasks/shared"
    assert seen["AZ_BATCH_NODE_STARTUP_DIR"] == "/node/tasks/startup"
    assert seen["AZ_BATCH_NODE_MOUNTS_DIR"] == "/node/tasks/fsmounts"
    assert seen["AZ_BATCH_TASK_DIR"] == folder
    assert seen["AZ_BATCH_TASK_WORKING_DIR"] == seen["HOME"] == f"{folder}/wd"
    assert seen["AZ_BATCH_CERTIFICATES_DIR"] == f"{folder}/certs"


def test_start_task_has_no_job(tmp_path: Path) -> None:
    start, ordinary = environment(ExecutionKind.START), environment(ExecutionKind.TASK)
    assert set(ordinary) - set(start) == {"AZ_BATCH_JOB_ID", "AZ_BATCH_TASK_ID"}
    assert start["AZ_BATCH_TASK_USER"] == "_azbatchtask_start"
    assert ordinary["AZ_BATCH_TASK_USER"] == "_azbatch"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (ExecutionKind.START, False),
        (ExecutionKind.PREPARATION, False),
        (ExecutionKind.RELEASE, True),
        (ExecutionKind.TASK, True),
    ],
)
def test_variables_name_the_folders_of_the_preparation_task(
    kind: ExecutionKind, told: bool
) -> None:
    seen = environment(kind, preparation_task_id="jobpreparation")
    prepared = "/node/tasks/workitems/job/job-1/jobpreparation"
    assert seen.get("AZ_BATCH_JOB_PREP_DIR") == (prepared if told else None)
    assert seen.get("AZ_BATCH_JOB_PREP_WORKING_DIR") == (f"{prepared}/wd" if told else None)


def test_task_settings_override_job_settings_which_override_the_node() -> None:
    seen = environment(
        ExecutionKind.TASK,
        extra={"A": "node", "B": "node", "CUDA_VISIBLE_DEVICES": "0"},
        job_settings=[{"name": "A", "value": "job"}, {"name": "B", "value": "job"}],
        task_settings=[{"name": "A", "value": "task"}, {"name": "EMPTY"}],
    )
    assert [seen[n] for n in ("A", "B", "CUDA_VISIBLE_DEVICES", "EMPTY")] == [
        "task",
        "job",
        "0",
        "",
    ]


def test_task_settings_cannot_override_batch_variables() -> None:
    seen = environment(
        ExecutionKind.TASK, task_settings=[{"name": "AZ_BATCH_TASK_ID", "value": "other"}]
    )
    assert seen["AZ_BATCH_TASK_ID"] == "t"


def test_node_folders_are_created_and_deleted(tmp_path: Path) -> None:
    layout = NodeLayout(tmp_path / "tasks")
    layout.create()
    made = {p.relative_to(layout.root).as_posix() for p in layout.root.rglob("*")}
    assert made == {
        "startup",
        "startup/wd",
        "shared",
        "applications",
        "fsmounts",
        "volatile",
        "workitems",
    }
    layout.delete()
    assert not layout.root.exists()
    layout.delete()
