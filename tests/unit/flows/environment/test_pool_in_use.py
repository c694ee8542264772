"""A pool that is in use: what uses it, and the command that cancels all of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.batch.pools import PoolView
from runner.azure.storage.blobs import BlobContainer
from runner.core.settings import Settings, load_settings
from runner.core.states import RunState, RunStatus
from runner.flows import active_work
from runner.flows.environment import pools
from runner.flows.local.state import LocalState, local_outputs
from runner.flows.runs.cancel import Cancelled
from runner.flows.runs.history import RunHistory
from runner.flows.runs.rows import RunRow
from runner.flows.sweeps import cancel
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup, group_blob
from runner.protocol.run_spec import RunSpec
from tests.unit.command_lines import commands_in

STAMP = "20261125-120000-abcd"
SWEEP, OTHER, RUN, RESUMED = f"cats-{STAMP}", f"dogs-{STAMP}", f"fish-{STAMP}", f"again-{STAMP}"
TRIALS = [f"cats-{number}-{STAMP}" for number in range(4)]
DOCUMENTS = {group_blob(SWEEP): b"{}", group_blob(OTHER): b"{}"} | {
    f"{spec.run_id}/run.json": json.dumps(spec.to_json()).encode()
    for spec in (RunSpec(run_id=RUN), RunSpec(run_id=RESUMED, group=SWEEP))
}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings({"target": "local"}, cwd=tmp_path, env={})


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Any:
    def refuse(*tasks: str) -> RunnerError:
        outputs = local_outputs(LocalState(20001, 20002, 1, 1))
        keys = {"batch": "a2V5", "storage": "a2V5"}
        view = PoolView(
            *("gpus", "Standard_NC4as_T4_v3", "active", "steady"),
            *(1, 0, 0, 0, 0, None, (), "", "", (), False),
        )
        active = [("job", task) for task in tasks]
        document = DOCUMENTS.get
        size: Any = lambda _, blob: len(DOCUMENTS[blob]) if blob in DOCUMENTS else None  # noqa: E731
        monkeypatch.setattr(pools, "connect", lambda _: Connection(outputs, keys))
        monkeypatch.setattr(pools, "get_pool", lambda *_: view)
        monkeypatch.setattr(active_work, "unfinished_tasks", lambda *_, **__: active)
        monkeypatch.setattr(pools, "list_schedules", lambda _: [])
        monkeypatch.setattr(BlobContainer, "size", size)
        monkeypatch.setattr(BlobContainer, "read", lambda _, blob: document(blob))
        with pytest.raises(RunnerError) as caught:
            pools.plan_pool_removal(settings, "gpus")
        assert caught.value.code == "R-POOL-IN-USE"
        return caught.value

    return refuse


@pytest.mark.parametrize(
    ("tasks", "shown", "command"),
    [
        ([RUN], RUN, f"runner cancel {RUN}"),
        ([*TRIALS, RESUMED], SWEEP, f"runner cancel {SWEEP}"),
        ([*TRIALS, RUN], f"{SWEEP}, {RUN}", "runner cancel --pool gpus"),
        ([RUN, "of-another-program"], RUN, f"runner cancel {RUN}"),
        (["of-another-program"], "of-another-program", "az batch job terminate --job-id job"),
    ],
)
def test_fix_cancels_everything_on_the_pool(
    refusal: Any, tasks: Sequence[str], shown: str, command: str
) -> None:
    err = refusal(*tasks)
    assert err.why.startswith(f"active: {shown}; ")
    assert command in [*commands_in(err.fix)]


def test_everything_on_a_pool_is_cancelled_and_nothing_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def row(run_id: str, pool: str, group: str | None = None) -> RunRow:
        spec = RunSpec(run_id=run_id, pool=pool, group=group)
        return RunRow(run_id, spec, RunStatus(RunState.QUEUED, ""), None)

    rows = (
        *(row(run_id, "gpus", SWEEP) for run_id in TRIALS),
        row(f"dogs-1-{STAMP}", "GPUS", OTHER),
        row(f"dogs-2-{STAMP}", "cpus", OTHER),
        row(RUN, "gpus"),
        row(RESUMED, "cpus"),
    )
    cancelled = Cancelled(RunState.CANCELLED, changed=True)
    groups: list[str] = []
    runs: list[str] = []

    def cancel_group(_: Connection, group: RunGroup, __: Any) -> dict[str, Cancelled]:
        groups.append(group.group_id)
        return dict.fromkeys(group.runs, cancelled)

    def cancel_run(_: Connection, spec: RunSpec) -> Cancelled:
        runs.append(spec.run_id)
        return cancelled

    trials = {str(number): run_id for number, run_id in enumerate(TRIALS)}
    sweep = RunGroup(SWEEP, "cats", datetime(2026, 11, 25, tzinfo=UTC), SWEEP, "gpus", trials, {})
    found = {each.run_id: each.spec for each in rows}
    monkeypatch.setattr(cancel, "list_runs", lambda *_, **__: RunHistory(rows, 0))
    monkeypatch.setattr(cancel, "find_unfinished", lambda *_: list(found))
    monkeypatch.setattr(cancel, "find_group", lambda *_: sweep)
    monkeypatch.setattr(cancel, "find_run", lambda _, run_id: found[run_id])
    monkeypatch.setattr(cancel, "cancel_group", cancel_group)
    monkeypatch.setattr(cancel, "cancel_run", cancel_run)
    connection = Connection(local_outputs(LocalState(20001, 20002, 1, 1)), {})
    done = cancel.cancel_pool(connection, "gpus")
    assert list(done) == [*TRIALS, f"dogs-1-{STAMP}", RUN]
    assert groups == [SWEEP], "the other one has runs on another pool"
    assert runs == [f"dogs-1-{STAMP}", RUN]
