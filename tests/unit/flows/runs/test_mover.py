"""The task that moves runs on a schedule: its code, its identity, and its old jobs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shlex
import subprocess
import time
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from azure.batch import models
from azure.core.exceptions import ResourceNotFoundError

from runner.azure.auth.credentials import Connection
from runner.azure.batch.mover_schedule import delete_old_jobs
from runner.azure.storage.blobs import BlobInfo
from runner.contract import MOVER_POOL, StackOutputs, parse_stack_outputs
from runner.core.progress import Progress
from runner.core.settings import Settings, load_settings
from runner.flows.runs.moving import mover
from runner.protocol.errors import ExitCode, RunnerError
from tests.unit.core.recipe_maker import outputs

EVERY = timedelta(minutes=30)
STACK = replace(
    outputs(),
    stack="prod",
    identity_client_id="nodes",
    identity_resource_id="/subscriptions/s/nodes",
    mover_client_id="mover",
    mover_identity_id="/subscriptions/s/mover",
    mover_every_s=1800,
)


class Archives:
    """The container for code, with the ages of its blobs in hours."""

    def __init__(self) -> None:
        self.blobs: dict[str, float | None] = {}

    def create_bytes(self, blob: str, *_: object) -> None:
        self.blobs.setdefault(blob, 0)

    def list(self, prefix: str) -> list[BlobInfo]:
        now = datetime.now(UTC)
        return [
            BlobInfo(name, 1, modified=None if age is None else now - timedelta(hours=age))
            for name, age in self.blobs.items()
            if name.startswith(prefix)
        ]

    def delete_all(self, blobs: Iterable[str], _: object) -> None:
        for blob in blobs:
            del self.blobs[blob]


class Batch:
    """The job schedule of an account, and the pool and the archives of the mover."""

    def __init__(self) -> None:
        self.archives = Archives()
        self.pools: list[str] = []
        self.schedule: Any = None
        self.deleted: list[str] = []
        self.jobs: list[Any] = []

    def get_job_schedule(self, _: str) -> Any:
        if self.schedule is None:
            raise ResourceNotFoundError("none")
        return self.schedule

    def create_job_schedule(self, body: models.BatchJobScheduleCreateOptions) -> None:
        self.schedule = body

    def update_job_schedule(self, _: str, body: models.BatchJobScheduleUpdateOptions) -> None:
        self.schedule = body

    def list_jobs_from_schedule(self, *_: object, **__: object) -> list[Any]:
        return self.jobs

    def begin_delete_job_schedule(self, _: str) -> Any:
        if self.schedule is None:
            raise ResourceNotFoundError("none")
        self.schedule = None
        return SimpleNamespace(wait=lambda: None)

    def begin_delete_job(self, job_id: str) -> None:
        self.deleted.append(job_id)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    env = {"RUNNER_HOME": str(tmp_path), "RUNNER_TARGET": "azure"}
    return load_settings({}, cwd=tmp_path, env=env)


@pytest.fixture
def batch(monkeypatch: pytest.MonkeyPatch) -> Batch:
    made = Batch()
    monkeypatch.setattr(Connection, "batch_client", lambda *_: made)
    monkeypatch.setattr(mover, "pack_mover", lambda: b"code")
    monkeypatch.setattr(mover, "code_container", lambda _: made.archives)
    monkeypatch.setattr(mover, "ensure_pool", lambda *_: made.pools.append(MOVER_POOL))
    monkeypatch.setattr(mover, "delete_pool", lambda _, pool: made.pools.remove(pool))
    return made


def use(monkeypatch: pytest.MonkeyPatch, stack: StackOutputs) -> None:
    monkeypatch.setattr(mover, "connect", lambda _: Connection(stack, None))


def test_task_on_azure_has_the_identity_of_the_mover_and_no_secret(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, batch: Batch
) -> None:
    use(monkeypatch, STACK)
    assert mover.start_mover(settings, EVERY) == "created"
    assert batch.schedule.schedule.recurrence_interval == EVERY
    job = batch.schedule.as_dict()["jobSpecification"]
    assert job["poolInfo"] == {"poolId": MOVER_POOL}
    task = job["jobManagerTask"]
    [file] = task["resourceFiles"]
    assert file["identityReference"] == {"resourceId": "/subscriptions/s/mover"}
    assert "?" not in file["httpUrl"]
    assert task["userIdentity"]["autoUser"]["elevationLevel"] == "nonadmin"
    variables = {one["name"]: one["value"] for one in task["environmentSettings"]}
    assert (variables["AZURE_CLIENT_ID"], variables["RUNNER_STACK"]) == ("mover", "prod")
    assert parse_stack_outputs(variables["RUNNER_MOVER_OUTPUTS"]) == STACK
    assert "runner pool fallback --target azure" in task["commandLine"]


def test_schedule_is_changed_only_if_its_task_or_interval_changes(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, batch: Batch
) -> None:
    use(monkeypatch, STACK)
    found = [mover.start_mover(settings, every) for every in (EVERY, EVERY, 2 * EVERY)]
    use(monkeypatch, replace(STACK, mover_client_id="new"))
    found.append(mover.start_mover(settings, 2 * EVERY))
    assert found == ["created", "kept", "changed", "changed"]
    assert batch.schedule.schedule.recurrence_interval == 2 * EVERY


def test_old_archives_of_other_versions_are_deleted(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, batch: Batch
) -> None:
    use(monkeypatch, STACK)
    own = f"mover/{hashlib.sha256(b'code').hexdigest()}.zip"
    kept = {own: 900.0, "mover/new.zip": 23.0, "mover/undated.zip": None, "code-of-runs": 900.0}
    batch.archives.blobs = {**kept, "mover/old.zip": 25.0}
    mover.start_mover(settings, EVERY)
    assert batch.archives.blobs == kept
    assert mover.stop_mover(settings)
    assert batch.archives.blobs == {"code-of-runs": 900.0}
    assert not mover.stop_mover(settings)


@pytest.mark.parametrize(("stack", "left"), [(STACK, [MOVER_POOL]), (outputs(), [])])
def test_pool_of_the_mover_ends_with_it_unless_the_stack_declares_it(
    monkeypatch: pytest.MonkeyPatch,
    settings: Settings,
    batch: Batch,
    stack: StackOutputs,
    left: list[str],
) -> None:
    key = None if stack is STACK else {"account": "a2V5"}
    monkeypatch.setattr(mover, "connect", lambda _: Connection(stack, key))
    monkeypatch.setattr(Connection, "resource_file", lambda *_: models.ResourceFile())
    if stack is STACK:
        batch.pools.append(MOVER_POOL)
    mover.start_mover(settings, EVERY)
    assert batch.pools == [MOVER_POOL]
    mover.stop_mover(settings)
    assert batch.pools == left


def test_stack_without_a_mover_is_refused(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, batch: Batch
) -> None:
    use(monkeypatch, replace(STACK, mover_client_id=None))
    with pytest.raises(RunnerError) as caught:
        mover.start_mover(settings, EVERY)
    assert caught.value.code == "R-MOVER-NONE"
    assert batch.schedule is None


def test_archive_has_the_code_and_pinned_requirements() -> None:
    archive = zipfile.ZipFile(io.BytesIO(mover.pack_mover()))
    names = archive.namelist()
    assert {"code/runner/__main__.py", "code/runner/core/pricing/prices.csv"} <= set(names)
    assert not [name for name in names if "__pycache__" in name or "/recipes/" in name]
    pins = archive.read("requirements.txt").decode().split()
    assert any(pin.startswith("azure-batch==15.") for pin in pins)
    assert not [pin for pin in pins if "pulumi" in pin or "batch-emulator" in pin]


def test_deployment_waits_until_the_roles_of_the_deployer_apply(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    denied = RunnerError("R-ACCESS-DENIED", "denied", exit_code=ExitCode.ACCESS)
    answers: list[object] = [denied, denied, "created"]

    def start(*_: object) -> str:
        answer = answers.pop(0)
        if isinstance(answer, RunnerError):
            raise answer
        return str(answer)

    monkeypatch.setattr(mover, "start_mover", start)
    own = SimpleNamespace(sleep=lambda _: None, monotonic=time.monotonic)
    monkeypatch.setattr(mover, "time", own)
    seen: list[Progress] = []
    mover.apply_mover(settings, STACK, seen.append)
    assert [each.state for each in seen] == ["start", "progress", "progress", "end"]
    assert seen[-1].message == "every 30 min, created"
    answers[:] = [denied]
    with pytest.raises(RunnerError):
        mover.apply_mover(settings, STACK, seen.append, wait_s=0)


def test_newest_jobs_of_the_mover_are_kept(batch: Batch) -> None:
    now = datetime(2026, 11, 29, tzinfo=UTC)
    batch.jobs = [
        SimpleNamespace(id=f"{MOVER_POOL}:job-{n}", creation_time=now + n * EVERY)
        for n in (*range(20, 0, -1), 22, 21)
    ]
    delete_old_jobs(Connection(STACK, None))
    assert batch.deleted == [f"{MOVER_POOL}:job-1", f"{MOVER_POOL}:job-2"]


def test_outputs_of_an_older_stack_have_no_mover() -> None:
    document = json.loads(STACK.to_json())
    for name in ("mover_client_id", "mover_identity_id", "mover_every_s"):
        del document[name]
    assert parse_stack_outputs(json.dumps(document)).mover_every_s is None


def test_archive_that_was_changed_is_not_executed(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, batch: Batch, tmp_path: Path
) -> None:
    use(monkeypatch, STACK)
    mover.start_mover(settings, EVERY)
    task = batch.schedule.as_dict()["jobSpecification"]["jobManagerTask"]
    (tmp_path / "mover.zip").write_bytes(b"another code")
    command = shlex.split(task["commandLine"])
    env = {**os.environ, "MOVER_SHA256": "0" * 64}
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (1, "mover.zip was changed\n")
