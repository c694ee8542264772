"""Which account and pools `runner down` asks for active runs and schedules."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.batch.schedules import ScheduleView
from runner.contract import MOVER_POOL
from runner.core.progress import Progress, Warnings
from runner.core.settings import load_settings
from runner.flows import active_work
from runner.flows.environment import deploy
from runner.protocol.errors import RunnerError
from runner_infra.engine import automation
from runner_infra.engine.steps import Change
from tests.unit.infra.stacks import plain_stack

_ACCOUNT, _POOL = "azure-native:batch:BatchAccount", "azure-native:batch:Pool"
_TASKS = {"T4": "run-1", "a100": "of-somebody-else"}
_SCHEDULES = {"t4": "nightly", "a100": "of-somebody-else"}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of requested accounts; the state has one Batch account without data."""
    found: list[str] = []

    def unfinished(
        connection: Connection,
        most: int,
        pools: Collection[str] | None,
        *,
        per_job: int,
        on_nodes: bool,
    ) -> list[tuple[str, str]]:
        assert 0 < per_job < most
        assert not on_nodes
        found.append(connection.outputs.batch_account)
        return [("job", task) for pool, task in _TASKS.items() if pools is None or pool in pools]

    def schedules(_: Connection) -> list[ScheduleView]:
        ended = ScheduleView("over", "completed", None, (), "t4")
        return [ended, *(ScheduleView(s, "active", None, (), p) for p, s in _SCHEDULES.items())]

    there = automation.Deployed(_ACCOUNT, "batch", "/subscriptions/s/x", protect=False)
    monkeypatch.setattr(automation, "deployed", lambda _: [there])
    monkeypatch.setattr(active_work, "unfinished_tasks", unfinished)
    monkeypatch.setattr(deploy, "list_schedules", schedules)
    monkeypatch.setattr(active_work, "runs_container", lambda _: None)
    monkeypatch.setattr(active_work, "owners_of", lambda *_: [])
    monkeypatch.setattr(deploy, "stored_bytes", lambda _: {})
    return found


def look(home: Path, monkeypatch: pytest.MonkeyPatch, state: Mapping[str, Any], kept: str) -> Any:
    monkeypatch.setattr(automation, "outputs", lambda _: dict(state))
    (home / "stacks").mkdir(parents=True)
    (home / "stacks/dev.json").write_text(kept)
    stack: Any = None
    settings = load_settings({"target": "azure"}, cwd=home, env={"RUNNER_HOME": str(home)})

    def progress(_: Progress) -> None: ...

    return deploy.find_remains(settings, stack, {}, progress, ask=True)


def test_account_in_the_state_is_queried_first(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = plain_stack().exports
    remains = look(tmp_path / "home", monkeypatch, exports, "half a document {")
    assert asked == [exports["batch_account"]]
    assert remains.active == list(_TASKS.values())
    assert remains.schedules == list(_SCHEDULES.values())


def test_trials_count_as_their_sweep(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def owners_of(_: object, tasks: Sequence[tuple[str, str]]) -> list[str]:
        assert [task for _, task in tasks] == list(_TASKS.values())
        return ["lr-sweep"]

    monkeypatch.setattr(active_work, "owners_of", owners_of)
    remains = look(tmp_path / "home", monkeypatch, plain_stack().exports, "")
    assert (len(asked), remains.active) == (1, ["lr-sweep"])


def test_tasks_are_named_if_the_runs_cannot_be_read(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def owners_of(*_: object) -> list[str]:
        raise RunnerError("R-STORAGE", "no storage account", why="it is deleted", fix="")

    monkeypatch.setattr(active_work, "owners_of", owners_of)
    remains = look(tmp_path / "home", monkeypatch, plain_stack().exports, "")
    assert (len(asked), remains.active) == (1, list(_TASKS.values()))


def test_stored_outputs_are_used_if_the_state_has_none(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports = plain_stack().exports
    look(tmp_path / "home", monkeypatch, {}, json.dumps(exports))
    assert asked == [exports["batch_account"]]


def test_only_the_pools_of_the_stack_count_in_an_adopted_account(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = "/subscriptions/s/resourceGroups/team/providers/Microsoft.Batch/batchAccounts/team"
    pool = automation.Deployed(_POOL, "pool", f"{account}/pools/T4", protect=False)
    monkeypatch.setattr(automation, "deployed", lambda _: [pool])
    remains = look(tmp_path / "home", monkeypatch, plain_stack().exports, "")
    assert len(asked) == 1
    assert (remains.active, remains.schedules) == (["run-1"], ["nightly"])


def test_schedule_of_the_mover_does_not_block(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = ScheduleView(MOVER_POOL, "active", None, (), MOVER_POOL)
    monkeypatch.setattr(deploy, "list_schedules", lambda _: [view])
    remains = look(tmp_path / "home", monkeypatch, plain_stack().exports, "")
    assert remains.schedules == []


def test_mover_ends_before_its_pool_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[object] = []
    monkeypatch.setattr(deploy, "deployed_connection", lambda *_: "account")
    monkeypatch.setattr(deploy, "delete_mover", ended.append)
    nothing: Any = None
    name = f"pool-{MOVER_POOL}"
    for op, pool in (("update", name), ("delete", "pool-t4")):
        change = Change(op, _POOL, pool)
        deploy.end_removed_mover(nothing, nothing, [change])
    assert ended == []
    deploy.end_removed_mover(nothing, nothing, [Change("delete", _POOL, name)])
    assert ended == ["account"]


def test_state_without_pools_queries_no_account(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = automation.Deployed("azure-native:storage:BlobContainer", "runs", "/x", protect=True)
    monkeypatch.setattr(automation, "deployed", lambda _: [kept])
    remains = look(tmp_path / "home", monkeypatch, plain_stack().exports, "")
    assert (asked, [*remains.active, *remains.schedules]) == ([], [])


def test_versions_of_an_image_are_kept_if_the_passphrase_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = RunnerError("R-PULUMI-PASSPHRASE", "wrong passphrase", why="", fix="")

    def refuse(_: object) -> None:
        raise wrong

    def delete(*_: object) -> None:
        pytest.fail("the versions were deleted")

    image = automation.Deployed("azure-native:compute:GalleryImage", "i", "/i", protect=False)
    monkeypatch.setattr(automation, "deployed", lambda _: [image])
    monkeypatch.setattr(automation, "check_passphrase", refuse)
    monkeypatch.setattr(deploy, "delete_versions_of", delete)
    settings = load_settings({"target": "azure"}, cwd=tmp_path, env={"RUNNER_HOME": str(tmp_path)})
    stack: Any = None
    with pytest.raises(RunnerError) as caught:
        deploy.destroy(settings, stack, {}, lambda _: None, Warnings(), everything=True)
    assert caught.value is wrong
