"""The index of runs: everything that a row needs in one listing, and never more than a copy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.azure.auth.credentials import Connection
from runner.azure.batch import jobs
from runner.azure.storage.blobs import BlobContainer, BlobInfo
from runner.core.job_moves import JobSnapshot
from runner.core.states import RunState, RunStatus, TaskView
from runner.flows.local.state import LocalState, local_outputs
from runner.flows.runs import history, live, stuck
from runner.flows.runs.documents import runs_container
from runner.flows.runs.history import (
    RunFilter,
    RunHistory,
    SweepLine,
    find_unfinished,
    list_grouped,
    list_runs,
    with_commands,
)
from runner.flows.runs.rows import RunRow
from runner.flows.runs.stuck import PoolFacts
from runner.flows.sweeps.experiments import load_leaderboard
from runner.flows.sweeps.groups import GroupView, load_group_view
from runner.flows.sweeps.ranking import MetricOrder, list_ranked, rank
from runner.protocol.commands import get_parameter
from runner.protocol.errors import RunnerError
from runner.protocol.groups import GROUPS_FOLDER, LaterRun, RunGroup, group_blob
from runner.protocol.paths import newest_first
from runner.protocol.results import (
    BY_TIME_MARK,
    LIMIT_BYTES,
    by_time_blob,
    index_blob,
    index_metadata,
    parse_result,
)
from runner.protocol.run_spec import parse_run
from runner.protocol.sweeps import TrialReport, TrialState
from runner.protocol.usage import AttemptUsage, to_milliseconds, usage_to_json
from runner.protocol.waiting_trials import WaitingTrials, waiting_blob

COUNT = 60
_NO_RUNS = ("groups/", "sweeps/")
NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
# Each run has three attempts; the first one started two minutes before the last.
FIRST = {"attempt": 1, "node": "n", "started": (NOW - timedelta(minutes=2)).isoformat()}
USAGE = usage_to_json(
    [
        AttemptUsage(number, 0, "n", started=to_milliseconds(NOW - timedelta(minutes=3 - number)))
        for number in (1, 2, 3)
    ]
)


def run_of(run_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "run_id": run_id,
        "experiment": "digits",
        "created": NOW.isoformat(),
        "recipe": {"name": "mnist", "description": "…", "source": "builtin"},
        "params": {"name": "two  blanks", "é": "\x7f\n"},
        "metrics": {"patterns": {"loss": "x"}, "primary": "acc", "goal": "max"},
        "batch": {"pool": "local", "spot": True, "job_id": "job", "task_id": run_id},
        **changes,
    }


def result_of(run_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "run_id": run_id,
        "status": "succeeded",
        "attempt": 3,
        "evicted": 1,
        "started": NOW.isoformat(),
        "ended": (NOW + timedelta(minutes=1)).isoformat(),
        "metrics": {"acc": 0.5, "loss": "NaN"},
        "outputs": [{"path": "model", "size_bytes": 1, "sha256": "0"}],
        **changes,
    }


def test_entry_contains_all_columns_of_a_row() -> None:
    entry = index_metadata(run_of("a"), result_of("a", message="m" * 1000))
    spec = parse_run(entry["run"].encode(), "a")
    full = parse_run(json.dumps(run_of("a")).encode(), "a")
    for name in ("experiment", "created", "recipe", "pool", "spot", "params", "primary_metric"):
        assert getattr(spec, name) == getattr(full, name)
    result = parse_result(entry["result"].encode(), "a")
    assert (result.status, result.attempt, result.evicted) == ("succeeded", 3, 1)
    assert result.metrics["acc"] == 0.5
    assert result.message == "m" * 300


@given(st.dictionaries(st.text(), st.text() | st.floats() | st.none(), max_size=5))
def test_entry_is_a_valid_header_value(params: dict[str, Any]) -> None:
    text = index_metadata(run_of("a", params=params), None)["run"]
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert repr(json.loads(text)["params"]) == repr(params)


def test_oversized_parts_of_an_entry_are_omitted() -> None:
    many = {f"metric{n}": 0.123456789 for n in range(500)}
    assert set(index_metadata(run_of("a"), result_of("a", metrics=many))) == {"run"}
    assert not index_metadata(run_of("a", params=many), result_of("a"))
    filled = index_metadata(run_of("a"), result_of("a"))
    assert sum(map(len, filled.values())) < LIMIT_BYTES


@pytest.fixture
def connection() -> Connection:
    outputs = local_outputs(LocalState(20001, 20002, 1, 1))
    return Connection(outputs, {"batch": "a2V5", "storage": "a2V5"})


Page = tuple[list[tuple[str, Mapping[str, str]]], bool]


def pages_of(index: Mapping[str, Mapping[str, str]], ids: Iterable[str], first: int) -> list[Page]:
    """Return the pages of an index by time of these runs; `index` has those by name."""
    found = [(by_time_blob(run_id), index.get(index_blob(run_id), {})) for run_id in ids]
    listed = [(BY_TIME_MARK, {}), *sorted(found, key=lambda each: each[0])]
    size = first or len(listed)
    rest = listed[size:]
    return [(listed[:size], bool(rest)), *([(rest, False)] if rest else [])]


class Store:
    """A container of runs, counting what is asked of it.

    Its index by time is complete if `is_marked` is set.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_marked: bool) -> None:
        self.is_marked = is_marked
        self.documents: dict[str, bytes] = {}
        self.starts: dict[str, bytes] = {}
        self.index: dict[str, Mapping[str, str]] = {}
        self.read: list[str] = []
        self.tasks: dict[str, TaskView] = {}
        monkeypatch.setattr(BlobContainer, "read", lambda _, blob: self._read(blob))
        monkeypatch.setattr(BlobContainer, "list", lambda _, prefix: iter(()))
        monkeypatch.setattr(BlobContainer, "list_metadata", lambda _, prefix: self.index.items())
        monkeypatch.setattr(BlobContainer, "metadata_pages", self._pages)
        monkeypatch.setattr(history, "list_run_ids", lambda _: self._ids())
        monkeypatch.setattr(live, "get_task", lambda _, job, task: self.tasks.get(task))
        monkeypatch.setattr(live, "list_tasks", lambda _, job: self.tasks)
        monkeypatch.setattr(live, "read_job", lambda _, job: JobSnapshot(job, "active", ""))
        self.pools: list[str] = []
        monkeypatch.setattr(stuck, "load_pool_facts", self._pool)

    def add(
        self,
        number: int,
        *,
        indexed: bool,
        over: bool,
        metrics: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> str:
        run_id = f"mnist-20261120-12{number:04d}-abcd"
        run, result = run_of(run_id, **changes), result_of(run_id)
        if metrics is not None:
            result["metrics"] = metrics
        self.documents[f"{run_id}/run.json"] = json.dumps(run).encode()
        if over:
            self.documents[f"{run_id}/result.json"] = json.dumps(result).encode()
            self.starts[f"{run_id}/attempts/1/start.json"] = json.dumps(FIRST).encode()
        if indexed and over:
            self.index[index_blob(run_id)] = index_metadata(run, result, USAGE)
        elif indexed:
            self.index[index_blob(run_id)] = index_metadata(run, None)
        return run_id

    def _read(self, blob: str) -> bytes | None:
        self.read.append(blob)
        return self.documents.get(blob) or self.starts.get(blob)

    def _pool(self, _: Connection, pool_id: str, *, log: bool) -> PoolFacts:
        assert not log, "a list has no logs"
        self.pools.append(pool_id)
        return PoolFacts(pool_id, None, ())

    def _pages(self, prefix: str, first: int = 0, later: int = 0) -> Iterator[Page]:
        ids = self._ids() if self.is_marked else []
        yield from pages_of(self.index, ids, first) if ids else [([], False)]

    def _ids(self) -> list[str]:
        runs = {name.split("/")[0] for name in self.documents if not name.startswith(_NO_RUNS)}
        return newest_first(list(runs))


@pytest.fixture(params=[False, True], ids=["index by name", "index by time"])
def store(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Store:
    return Store(monkeypatch, is_marked=request.param)


def rows_of(connection: Connection, **only: Any) -> list[RunRow]:
    return list(list_runs(connection, limit=None, only=RunFilter(**only)).rows)


def test_many_runs_are_listed_without_reading_one(connection: Connection, store: Store) -> None:
    for number in range(COUNT):
        store.add(number, indexed=True, over=True)
    rows = rows_of(connection)
    assert len(rows) == COUNT
    assert {row.status.state for row in rows if row.status} == {RunState.SUCCEEDED}
    assert {(row.attempts, row.evicted) for row in rows} == {(3, 1)}
    assert {row.took_s for row in rows} == {180}, "from the start of the first attempt"
    assert not store.read


def test_duration_of_an_entry_without_attempts_is_read(
    connection: Connection, store: Store
) -> None:
    run_id, *_ = (store.add(number, indexed=True, over=True) for number in range(COUNT))
    store.index[index_blob(run_id)] = index_metadata(run_of(run_id), result_of(run_id))
    assert {row.took_s for row in rows_of(connection)} == {180}
    assert store.read == [f"{run_id}/attempts/1/start.json"]
    del store.starts[f"{run_id}/attempts/1/start.json"]
    took = {row.run_id: row.took_s for row in rows_of(connection)}
    assert took[run_id] == 60, "the last attempt, which is all that is known"


def add_sweep(store: Store, trials: int, monkeypatch: pytest.MonkeyPatch) -> str:
    """Add a sweep whose first trial was resumed as another run, and one run beside it."""
    group_id = "mnist-20261120-130000-abcd"
    names = [f"mnist-{n:04d}-20261120-130000-abcd" for n in range(trials)]
    for run_id in (*names, "mnist-0000-20261120-140000-efgh"):
        run = run_of(run_id, group=group_id, trial={"name": run_id[6:10], "number": 1})
        result = result_of(run_id)
        store.documents[f"{run_id}/run.json"] = json.dumps(run).encode()
        store.documents[f"{run_id}/result.json"] = json.dumps(result).encode()
        store.index[index_blob(run_id)] = index_metadata(run, result)
    store.add(1, indexed=True, over=True)
    groups = [BlobInfo(group_blob(group_id), 1)]
    later = LaterRun("0000", 2, "mnist-0000-20261120-140000-efgh", NOW)
    store.documents[later.blob(group_id)] = json.dumps(later.to_json()).encode()
    sweep = RunGroup(
        group_id, "mnist", NOW, "job", "local", {run_id[6:10]: run_id for run_id in names},
        {run_id[6:10]: () for run_id in names}, trials={run_id[6:10]: {} for run_id in names},
    )  # fmt: skip
    store.documents[group_blob(group_id)] = json.dumps(sweep.to_json()).encode()
    found = {
        GROUPS_FOLDER: groups,
        LaterRun.folder(group_id): [BlobInfo(later.blob(group_id), 1)],
    }
    monkeypatch.setattr(BlobContainer, "list", lambda _, prefix: iter(found.get(prefix, ())))
    return group_id


def test_sweep_is_one_entry_of_the_list_with_its_resumed_trials(
    connection: Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_id = add_sweep(store, COUNT, monkeypatch)
    sweep, run = list_grouped(connection, limit=20).lines
    assert isinstance(sweep, SweepLine)
    assert (sweep.group_id, len(sweep.run_ids)) == (group_id, COUNT)
    assert sweep.states == {"succeeded": COUNT}
    assert "mnist-0000-20261120-140000-efgh" in sweep.run_ids
    assert isinstance(run, RunRow)
    assert not list_grouped(connection, limit=20, only=RunFilter("others")).lines


def test_trials_of_a_large_sweep_among_many_runs_are_counted_and_not_read(
    connection: Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_sweep(store, COUNT, monkeypatch)
    del store.documents["mnist-0000-20261120-140000-efgh/run.json"]
    del store.documents["mnist-0000-20261120-140000-efgh/result.json"]
    monkeypatch.setattr(history, "_MAX_INDEXED", COUNT - 1)
    sweep = list_grouped(connection, limit=20).lines[0]
    assert isinstance(sweep, SweepLine)
    assert (len(sweep.run_ids), len(sweep.rows)) == (COUNT, 0)
    assert len(store.read) <= 4


def report_trials(
    store: Store, states: Sequence[TrialState], monkeypatch: pytest.MonkeyPatch
) -> str:
    """Add a sweep whose first trials reported these states, among many runs."""
    group_id = add_sweep(store, COUNT, monkeypatch)
    del store.documents["mnist-0000-20261120-140000-efgh/run.json"]
    del store.documents["mnist-0000-20261120-140000-efgh/result.json"]
    monkeypatch.setattr(history, "_MAX_INDEXED", COUNT - 1)
    reports: dict[str, Mapping[str, str]] = {}
    for number in range(COUNT):  # their outcomes are not in the index yet
        run_id = f"mnist-{number:04d}-20261120-130000-abcd"
        run = json.loads(store.documents[f"{run_id}/run.json"])
        store.index[index_blob(run_id)] = index_metadata(run, None)
    for number, state in enumerate(states):
        run_id = f"mnist-{number:04d}-20261120-130000-abcd"
        report = TrialReport(f"{number:04d}", number, run_id, state)
        reports[report.blob(group_id)] = report.to_metadata()
    monkeypatch.setattr(BlobContainer, "list_metadata", lambda _, prefix: reports.items())
    return group_id


def test_large_sweep_among_many_runs_is_counted_by_its_reports(
    connection: Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[TrialState] = ["failed", "stopped", "running", "waiting", "running"]
    while len(states) < COUNT:
        states.insert(0, "succeeded")
    report_trials(store, states, monkeypatch)
    sweep = list_grouped(connection, limit=20).lines[0]
    assert isinstance(sweep, SweepLine)
    counted = {"succeeded": COUNT - 2, "failed": 1, "stopped early": 1}
    assert sweep.states == counted, "three outcomes are read"
    assert len(sweep.rows) == 3


def test_large_sweep_shows_how_many_trials_have_not_started(
    connection: Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[TrialState] = ["succeeded", "succeeded", "succeeded", "succeeded", "succeeded"]
    group_id = report_trials(store, done, monkeypatch)
    known = history.list_run_ids(runs_container(connection))
    monkeypatch.setattr(history, "list_run_ids", lambda _: known)
    ids = [f"mnist-{number:04d}-20261120-130000-abcd" for number in range(COUNT)]
    waiting = WaitingTrials(group_id, {"run_id": ""}, {run_id: {} for run_id in ids[6:]})
    waiting = waiting.cancel(ids[-3:], NOW, "stopped")
    store.documents[waiting_blob(group_id)] = waiting.to_bytes()
    monkeypatch.setattr(BlobContainer, "folders", lambda _, prefix: iter(ids[:10]))
    sweep = list_grouped(connection, limit=20).lines[0]
    assert isinstance(sweep, SweepLine)
    # The five runs with a folder and no report have a result, and are read.
    assert sweep.states == {"succeeded": 10, "cancelled": 3, "not started": COUNT - 13}
    monkeypatch.setattr(BlobContainer, "folders", lambda _, prefix: iter(ids))
    sweep = list_grouped(connection, limit=20).lines[0]
    assert isinstance(sweep, SweepLine)
    assert sweep.states == {"succeeded": 5, "started": COUNT - 5}


def test_trials_without_a_task_are_lost_and_no_document_of_theirs_is_read(
    connection: Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    group_id = add_sweep(store, COUNT, monkeypatch)
    ids = [f"mnist-{number:04d}-20261120-130000-abcd" for number in range(COUNT)]
    for run_id in ids:
        del store.documents[f"{run_id}/run.json"], store.documents[f"{run_id}/result.json"]
    store.index = {}
    documents = {run_id: run_of(run_id, group=group_id) for run_id in ids}
    waiting = WaitingTrials(group_id, {}, documents)
    store.documents[waiting_blob(group_id)] = waiting.to_bytes()
    monkeypatch.setattr(BlobContainer, "folders", lambda _, prefix: iter(()))
    rows = list_runs(connection, limit=None, ids=ids).rows
    assert {row.status.state for row in rows if row.status} == {RunState.LOST}
    assert len(rows) == COUNT
    assert store.read == [waiting_blob(group_id)]


def test_list_is_the_same_with_and_without_an_index(connection: Connection, store: Store) -> None:
    for number in range(COUNT):
        store.add(number, indexed=True, over=True)
    indexed = rows_of(connection)
    store.index.clear()
    plain = rows_of(connection)
    assert len(store.read) == 3 * COUNT, "run, result, and the start of the first attempt"

    def shown(row: RunRow) -> list[Any]:
        assert row.spec
        assert row.result
        return [
            *(row.status, row.attempts, row.evicted, row.took_s),
            *(row.spec.params, row.result.ended),
        ]

    assert list(map(repr, map(shown, indexed))) == list(map(repr, map(shown, plain)))


def test_newer_or_damaged_entry_is_ignored(connection: Connection, store: Store) -> None:
    for number in range(COUNT):
        store.add(number, indexed=True, over=True)
    newer = store.add(70, indexed=True, over=True, format=99)
    torn = store.add(71, indexed=True, over=True)
    store.index[index_blob(torn)] = {"run": "{torn"}
    other = store.add(72, indexed=True, over=True)
    store.index[index_blob(other)] = index_metadata(run_of("another"), None)
    rows = {row.run_id: row for row in rows_of(connection)}
    assert "newer" in rows[newer].problem
    assert rows[torn].result
    assert rows[other].result


def test_entry_of_a_deleted_run_shows_no_run(connection: Connection, store: Store) -> None:
    for number in range(COUNT):
        store.add(number, indexed=True, over=True)
    gone = store.add(70, indexed=True, over=True)
    del store.documents[f"{gone}/run.json"], store.documents[f"{gone}/result.json"]
    assert gone not in {row.run_id for row in rows_of(connection)}


def test_waiting_runs_are_listed_from_their_job(connection: Connection, store: Store) -> None:
    ids = [store.add(number, indexed=True, over=False) for number in range(COUNT)]
    store.tasks = {run_id: TaskView("active") for run_id in ids[1:]}
    rows = {row.run_id: row for row in rows_of(connection)}
    states = {run_id: row.status.state for run_id, row in rows.items() if row.status}
    assert states.pop(ids[0]) is RunState.LOST
    assert set(states.values()) == {RunState.QUEUED}
    assert store.read == [f"{ids[0]}/result.json"], "only a task that is gone may have ended"
    assert store.pools == ["local"], "one look at the pool serves all rows"
    reasons = {row.status.reason for run, row in rows.items() if row.status and run != ids[0]}
    assert reasons == {"pool local does not exist"}


def test_followed_group_asks_for_waiting_runs_by_their_tasks(
    connection: Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlobContainer, "names", lambda _, prefix: iter(()))
    ids = [store.add(number, indexed=False, over=False) for number in range(9)]
    store.tasks = {run_id: TaskView("active") for run_id in ids}
    names = {run_id: run_id for run_id in ids}
    group = RunGroup("g", "g", NOW, "job", "local", names, dict.fromkeys(ids, ()))
    queued = RunStatus(RunState.QUEUED, "")
    specs = {name: parse_run(json.dumps(run_of(name)).encode(), name) for name in ids}
    rows = {name: RunRow(name, specs[name], queued, None) for name in ids}
    view = load_group_view(connection, group, GroupView(group, rows))
    assert not store.read, "their documents are known"
    assert {row.status.state for row in view.rows.values() if row.status} == {RunState.QUEUED}

    store.tasks[ids[0]] = TaskView("completed")
    store.documents[f"{ids[0]}/result.json"] = json.dumps(result_of(ids[0])).encode()
    del store.tasks[ids[1]]  # a deleted task
    moved = run_of(ids[2])
    moved["batch"] |= {"job_id": "other", "task_id": "moved"}
    store.documents[f"{ids[2]}/run.json"] = json.dumps(moved).encode()
    del store.tasks[ids[2]]
    store.tasks["moved"] = TaskView("running")
    view = load_group_view(connection, group, view)
    states = {name: row.status.state for name, row in view.rows.items() if row.status}
    assert (states[ids[0]], states[ids[1]]) == (RunState.SUCCEEDED, RunState.LOST)
    assert states[ids[2]] not in (RunState.LOST, RunState.FAILED), "it moved to another job"
    assert list(states) == ids
    store.read.clear()
    load_group_view(connection, group, view)
    assert not [name for name in store.read if name.startswith(ids[0])], "it has ended"


def test_followed_sweep_needs_few_requests_for_each_trial(
    connection: Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"mnist-{number}-20261120-120000-abcd" for number in range(1, 10)]
    changes = {name: {"run_id": name, "batch": {"task_id": name}} for name in ids}
    group_id = "mnist-20261120-120000-abcd"
    waiting = WaitingTrials(group_id, {**run_of("x"), "group": group_id}, changes)
    store.documents[waiting_blob(group_id)] = waiting.to_bytes()
    store.tasks = {name: TaskView("active") for name in ids}
    started: set[str] = set()
    monkeypatch.setattr(BlobContainer, "folders", lambda *_: iter(started))
    monkeypatch.setattr(BlobContainer, "size", lambda _, name: len(store.documents.get(name, "")))
    names = dict(zip(map(str, range(1, 10)), ids, strict=True))
    trials = {name: {"n": name} for name in names}
    group = RunGroup(group_id, "mnist", NOW, "job", "local", names, {}, trials=trials)

    view = load_group_view(connection, group)
    assert store.read == [waiting_blob(group_id)]
    assert {row.status.state for row in view.rows.values() if row.status} == {RunState.QUEUED}

    ended, running = ids[0], ids[1]
    store.tasks |= {ended: TaskView("completed"), running: TaskView("running")}
    result = result_of(ended, attempt=1, evicted=0)
    store.documents[f"{ended}/result.json"] = json.dumps(result).encode()
    stage = {"time": NOW.isoformat(), "stage": "command", "state": "start"}
    events = f"{running}/attempts/1/events.jsonl"
    store.documents[events] = json.dumps(stage).encode()
    monkeypatch.setattr(BlobContainer, "names", lambda _, prefix: iter([f"{prefix}1/start.json"]))
    store.read.clear()
    view = load_group_view(connection, group, view)
    assert sorted(store.read) == [f"{ended}/result.json", events, f"{running}/result.json"]
    states = [row.status.state for row in view.rows.values() if row.status]
    assert states[:3] == [RunState.SUCCEEDED, RunState.RUNNING, RunState.QUEUED]
    assert (view.rows["1"].attempts, view.rows["2"].attempts) == (1, 1)

    started.update(ids[:2])
    for name in ids:
        store.documents[f"{name}/run.json"] = json.dumps(waiting.document(name)).encode()
    store.read.clear()
    board = load_leaderboard(connection, group, known=view.rows.values())
    assert not [name for name in store.read if name.startswith(ended)], "its row is known"
    assert {row.run_id for row in board.rows} == set(ids)


def test_row_of_a_trial_is_read_again_if_its_sampler_may_have_decided(
    connection: Connection, store: Store
) -> None:
    run_id = store.add(1, indexed=False, over=True, params={"n": 2}, trial={"decided": True})
    draw = parse_run(json.dumps(run_of(run_id, trial={"decided": False})).encode(), run_id)
    known = RunRow(
        run_id,
        draw,
        RunStatus(RunState.SUCCEEDED),
        parse_result(store.documents[f"{run_id}/result.json"], run_id),
    )
    group = RunGroup("g", "g", NOW, "job", "local", {"1": run_id}, {}, trials={"1": {"n": 1}})
    (row,) = load_leaderboard(connection, group, known=[known]).rows
    assert row.spec is not None
    assert row.spec.params == {"n": 2}


def test_result_missing_in_the_index_is_read_without_a_task(
    connection: Connection, store: Store
) -> None:
    for number in range(COUNT):
        store.add(number, indexed=True, over=False)
    store.documents["mnist-20261120-120003-abcd/result.json"] = json.dumps(
        result_of("mnist-20261120-120003-abcd")
    ).encode()
    rows = {row.run_id: row.status for row in rows_of(connection)}
    status = rows["mnist-20261120-120003-abcd"]
    assert status
    assert status.state is RunState.SUCCEEDED


def test_filters_are_by_experiment_state_and_time(connection: Connection, store: Store) -> None:
    for number in range(COUNT):
        store.add(number, indexed=True, over=number % 2 == 0)
    letters = store.add(80, indexed=True, over=True, experiment="letters")
    assert [row.run_id for row in rows_of(connection, experiment="letters")] == [letters]
    lost = rows_of(connection, states=frozenset({RunState.LOST}))
    assert len(lost) == COUNT / 2
    since = datetime(2026, 11, 20, 12, 0, 50, tzinfo=UTC)
    assert len(rows_of(connection, since=since)) == 11, "and one whose id is no time"
    found = list_runs(connection, limit=3, only=RunFilter(states=frozenset({RunState.LOST})))
    assert len(found.rows) == 3


def test_experiment_is_found_as_typed() -> None:
    body = json.dumps(run_of("mnist-20261121-143005-k3f9", experiment="my-cats")).encode()
    spec = parse_run(body, "mnist-20261121-143005-k3f9")
    row = RunRow(spec.run_id, spec, None, None)
    assert RunFilter("My Cats").accepts(row)
    assert RunFilter("my-cats").accepts(row)
    assert not RunFilter("my").accepts(row)


def ranked(connection: Connection, text: str, limit: int | None = None, **order: Any) -> list[Any]:
    found = list_ranked(connection, MetricOrder.parse(text, **order), limit=limit)
    return [row.metrics.get(text.lstrip("+-")) for row in found.rows]


def test_runs_are_sorted_by_a_metric_without_reading_one(
    connection: Connection, store: Store
) -> None:
    for number in range(COUNT):
        store.add(number, indexed=True, over=True, metrics={"acc": number, "loss": -number})
    store.add(70, indexed=True, over=True, metrics={})
    store.add(71, indexed=True, over=True, metrics={"acc": "NaN"})
    assert ranked(connection, "acc", 3) == [59, 58, 57], "all runs count, not the newest"
    assert ranked(connection, "loss", 2) == [-59, -58], "its name says that less is better"
    assert ranked(connection, "-loss", 2) == [0, -1]
    assert ranked(connection, "+acc", 2) == [0, 1]
    last = ranked(connection, "acc", reverse=True)
    assert (last[0], last[59], last[-1]) == (0, 59, None)
    assert last[60] != last[60], "NaN is after the numbers"
    assert not store.read


def test_goal_of_the_recipe_decides_which_run_is_best(connection: Connection, store: Store) -> None:
    for number in range(3):
        goal = {"primary": "acc", "goal": "min"}
        run_id = store.add(number, indexed=False, over=True, metrics={"acc": number})
        document = json.loads(store.documents[f"{run_id}/run.json"])
        store.documents[f"{run_id}/run.json"] = json.dumps({**document, "metrics": goal}).encode()
    specs = rows_of(connection)
    assert [row.metrics["acc"] for row in rank(specs, MetricOrder("acc"))] == [0, 1, 2]


def test_unknown_metric_names_similar_ones(connection: Connection, store: Store) -> None:
    assert ranked(connection, "anything") == []
    store.add(1, indexed=True, over=True, metrics={"test_accuracy": 1, "loss": 1})
    with pytest.raises(RunnerError) as caught:
        ranked(connection, "test_acuracy")
    assert (caught.value.code, caught.value.fix) == (
        "R-METRIC-UNKNOWN",
        "did you mean 'test_accuracy'?",
    )
    assert "loss, test_accuracy" in caught.value.why


def test_parameters_of_a_row_include_arguments(connection: Connection, store: Store) -> None:
    words = ["python", "train.py", "--learning-rate", "0.1", "--amp", "--epochs=3", "--bias", "-1"]
    words += ["seed=4", "--last"]
    for number in range(COUNT):
        store.add(number, indexed=True, over=True, command=words, params={"epochs": 9})
    row = rows_of(connection)[0]
    names = ("learning-rate", "learning_rate", "nothing")
    found = {name: get_parameter(row.params, name) for name in names}
    assert found == {"learning-rate": 0.1, "learning_rate": 0.1, "nothing": None}
    assert row.params == {
        "epochs": 9, "learning_rate": 0.1, "amp": True, "bias": -1, "seed": 4, "last": True,
    }  # fmt: skip
    assert with_commands(connection, RunHistory((row,), 0)).rows == (row,)
    assert not store.read, "the index has the command"
    long = index_metadata(run_of("a", command=["x" * 2000]), result_of("a"))
    assert "result" in long, "a long command takes the place of nothing"


def test_parameters_of_a_long_command_are_read_from_its_document(
    connection: Connection, store: Store
) -> None:
    words = ["python", "train.py", "--lr", "0.1", "--note", "x" * 2000]
    for number in range(COUNT):
        store.add(number, indexed=True, over=True, command=words)
    listed = RunHistory((rows_of(connection)[0],), 0)
    assert "lr" not in listed.rows[0].params
    (whole,) = with_commands(connection, listed).rows
    assert get_parameter(whole.params, "lr") == 0.1
    assert store.read == [f"{whole.run_id}/run.json"], "nothing else is needed"


def test_unfinished_runs_are_found_by_their_tasks(
    connection: Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [store.add(number, indexed=True, over=number > 2) for number in range(COUNT)]
    store.tasks = {ids[0]: TaskView("running"), ids[1]: TaskView("active")}
    monkeypatch.setattr(jobs, "unfinished_tasks", lambda *_: [("job", run) for run in store.tasks])
    monkeypatch.setattr(BlobContainer, "names", lambda _, prefix: iter(()))
    monkeypatch.setattr(live, "explain_queue_reason", lambda *given, **_: given[2])
    going_on = frozenset({RunState.QUEUED, RunState.PREPARING, RunState.RUNNING})
    found = list_runs(connection, limit=None, only=RunFilter(states=going_on))
    assert [row.run_id for row in found.rows] == [ids[1], ids[0]]
    if store.is_marked:
        assert not [name for name in store.read if ids[-1] in name]


def test_task_of_a_schedule_is_found_by_the_entry_of_its_run(
    connection: Connection, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = {"pool": "local", "spot": True, "job_id": "night:7", "task_id": "train"}
    fired = store.add(0, indexed=True, over=False, batch=batch)
    store.add(1, indexed=True, over=False)
    monkeypatch.setattr(jobs, "unfinished_tasks", lambda *_: [("night:7", "train"), ("x", "y")])
    store.tasks = {"train": TaskView("running")}
    monkeypatch.setattr(BlobContainer, "names", lambda _, prefix: iter(()))
    if store.is_marked:
        now = NOW + timedelta(days=1)
        assert find_unfinished(connection, now, timedelta(minutes=15)) == [fired]
