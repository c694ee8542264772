"""Deletion of runs: selected and kept runs, and the state after a killed deletion."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.batch import jobs
from runner.azure.storage.blobs import BlobContainer, BlobInfo
from runner.core.job_moves import JobSnapshot
from runner.core.progress import ignore_progress
from runner.core.states import RunState, TaskView
from runner.flows import removal
from runner.flows.local.state import LocalState, local_outputs
from runner.flows.models.versions import Model, ModelVersion
from runner.flows.removal import RemovalPlan, RunSelection, plan_removal, remove_runs
from runner.flows.runs import live
from runner.flows.runs.documents import find_run, runs_container
from runner.flows.runs.history import list_runs
from runner.protocol.errors import RunnerError
from runner.protocol.groups import group_blob
from runner.protocol.paths import deleting_mark, deleting_note
from runner.protocol.results import (
    BY_TIME_FOLDER,
    BY_TIME_MARK,
    index_blobs,
    index_metadata,
)
from runner.protocol.waiting_trials import WaitingTrials, waiting_blob
from tests.unit.flows.runs.test_run_index import Page, result_of, run_of

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
OLD = NOW - timedelta(days=40)


class KilledError(Exception):
    """The process was killed at this request."""


class Account:
    """The container of runs and the tasks of Batch, in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_marked: bool = False) -> None:
        self.is_marked = is_marked
        self.blobs: dict[str, bytes] = {}
        self.index: dict[str, Mapping[str, str]] = {}
        self.modified: dict[str, datetime] = {}
        self.tasks: dict[str, dict[str, TaskView]] = {}
        self.models: list[Model] = []
        self.requests_left: int | None = None
        stand_ins: dict[str, Callable[..., Any]] = {
            "read": lambda _, blob: self.blobs.get(blob),
            "size": lambda _, blob: len(self.blobs[blob]) if blob in self.blobs else None,
            "list": lambda _, prefix: self._list(prefix),
            "children": lambda _, prefix="": self._children(prefix),
            "list_metadata": lambda _, prefix: self._metadata(prefix),
            "metadata_pages": lambda _, prefix, first=0, later=0: self._pages(first),
            "sizes": lambda _, prefix="": self._sizes(prefix),
            "names": lambda _, prefix: [name for name in self.blobs if name.startswith(prefix)],
            "put_metadata": lambda _, blob, found, overwrite: self._put(blob, found, overwrite),
            "stat": lambda _, blob: next(self._list(blob), None),
            "create": lambda _, blob, document: self._create(blob, document),
            "delete": lambda _, blob, etag="": self._delete(blob),
            "update": lambda _, blob, change: self._update(blob, change),
            "delete_all": lambda _, blobs, on_deleted: self._delete_all(blobs, on_deleted),
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(BlobContainer, name, stand_in)
        monkeypatch.setattr(live, "get_task", lambda _, job, task: self.tasks[job].get(task))
        monkeypatch.setattr(live, "list_tasks", lambda _, job: self.tasks[job])
        monkeypatch.setattr(live, "read_job", lambda _, job: JobSnapshot(job, "active", ""))
        monkeypatch.setattr(live, "explain_queue_reason", lambda *given: given[2])
        monkeypatch.setattr(jobs, "unfinished_tasks", lambda *_: self._unfinished())
        monkeypatch.setattr(removal, "list_tasks", lambda _, job: self.tasks.get(job, {}))
        monkeypatch.setattr(
            removal, "delete_tasks", lambda _, job, ids: self._delete_tasks(job, ids)
        )
        monkeypatch.setattr(removal, "list_models", lambda _: self.models)
        monkeypatch.setattr(removal, "in_parallel", lambda function, items: [*map(function, items)])

    def add(
        self,
        name: str,
        created: datetime = OLD,
        *,
        status: str | None = "succeeded",
        phase: Any = "completed",
        **changes: Any,
    ) -> str:
        run_id = f"{name}-{created:%Y%m%d-%H%M%S}-abcd"
        batch = {"pool": "local", "spot": True, "job_id": f"{name}_local", "task_id": run_id}
        archives = {"code": {"sha256": f"code-of-{name}"}, "agent": {"sha256": "agent"}}
        run = run_of(run_id, created=created.isoformat(), batch=batch, **archives, **changes)
        result = None if status is None else result_of(run_id, status=status)
        self.blobs[f"{run_id}/run.json"] = json.dumps(run).encode()
        for file in ("logs/stdout.txt", "checkpoints/1/manifest.json", "output/model"):
            self.blobs[f"{run_id}/{file}"] = b"0123456789"
        if result is not None:
            self.blobs[f"{run_id}/result.json"] = json.dumps(result).encode()
        for sha256 in (f"code-of-{name}", "agent"):
            self.blobs[f"code/{sha256}"] = b"archive"
            self.modified[f"code/{sha256}"] = OLD
        for blob in index_blobs(run_id):
            self.index[blob] = index_metadata(run, result)
            self.blobs[blob] = b""
        self.tasks[f"{name}_local"] = {run_id: TaskView(phase)} if phase else {}
        return run_id

    def remove(self, selection: RunSelection) -> RemovalPlan:
        plan = plan_removal(CONNECTION, selection, NOW)
        remove_runs(CONNECTION, plan, ignore_progress, NOW)
        return plan

    def of(self, run_id: str) -> list[str]:
        return [blob for blob in self.blobs if run_id in blob]

    def listed(self) -> list[str]:
        return [row.run_id for row in list_runs(CONNECTION, limit=None).rows]

    def _list(self, prefix: str) -> Iterator[BlobInfo]:
        names = [name for name in self.blobs if name.startswith(prefix)]
        for name in names:
            yield BlobInfo(name, len(self.blobs[name]), modified=self.modified.get(name))

    def _children(self, prefix: str) -> Iterator[str]:
        names = [name.partition("/") for name in self.blobs if name.startswith(prefix)]
        yield from dict.fromkeys(folder + slash for folder, slash, _ in names)

    def _metadata(self, prefix: str) -> list[tuple[str, Mapping[str, str]]]:
        return [each for each in self.index.items() if each[0].startswith(prefix)]

    def _put(self, blob: str, metadata: Mapping[str, str], overwrite: bool) -> None:
        self._request()
        if overwrite or blob not in self.blobs:
            self.blobs[blob], self.index[blob] = b"", metadata

    def _sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        yield from ((name, len(self.blobs[name])) for name in self.blobs if name.startswith(prefix))

    def _pages(self, first: int) -> Iterator[Page]:
        listed = [(BY_TIME_MARK, {}), *sorted(self._metadata(BY_TIME_FOLDER))]
        size = first or len(listed)
        if self.is_marked:
            yield listed[:size], len(listed) > size
            yield listed[size:], False

    def _unfinished(self) -> list[tuple[str, str]]:
        return [
            (job, name)
            for job, tasks in self.tasks.items()
            for name, task in tasks.items()
            if task.phase != "completed"
        ]

    def _request(self) -> None:
        if self.requests_left is not None:
            if self.requests_left == 0:
                raise KilledError
            self.requests_left -= 1

    def _create(self, blob: str, document: Mapping[str, Any]) -> bool:
        self._request()
        if blob in self.blobs:
            return False
        self.blobs[blob] = json.dumps(document).encode()
        return True

    def _update(self, blob: str, change: Callable[[bytes], bytes | None]) -> bool:
        if blob not in self.blobs:
            return False
        self._request()
        content = change(self.blobs.pop(blob))
        self.blobs |= {} if content is None else {blob: content}
        return content is not None

    def _delete(self, blob: str) -> bool:
        self._request()
        self.index.pop(blob, None)
        return self.blobs.pop(blob, None) is not None

    def _delete_all(self, blobs: Iterable[str], on_deleted: Callable[[int], object]) -> None:
        for blob in blobs:
            self._delete(blob)
            on_deleted(1)

    def _delete_tasks(self, job: str, task_ids: Collection[str]) -> bool:
        self._request()
        tasks = self.tasks.pop(job, {})
        rest = {name: task for name, task in tasks.items() if name not in task_ids}
        self.tasks |= {job: rest} if rest else {}
        return not rest


CONNECTION = Connection(
    local_outputs(LocalState(20001, 20002, 1, 1)), {"batch": "a2V5", "storage": "a2V5"}
)


@pytest.fixture(params=[False, True], ids=["index by name", "index by time"])
def account(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Account:
    return Account(monkeypatch, is_marked=request.param)


@pytest.mark.feature(58)
def test_removed_run_leaves_no_blob_task_or_unused_code(account: Account) -> None:
    gone, stays = account.add("digits"), account.add("words")
    plan = account.remove(RunSelection(references=(gone,)))
    assert [(run.run_id, run.state, run.blobs) for run in plan.runs] == [(gone, "succeeded", 5)]
    assert not account.of(gone)
    assert "digits_local" not in account.tasks
    assert "code/code-of-digits" not in account.blobs
    assert {"code/code-of-words", "code/agent"} <= set(account.blobs)
    assert account.listed() == [stays]
    assert len(account.of(stays)) == 7


def test_code_possibly_used_by_a_submission_is_kept(account: Account) -> None:
    gone = account.add("digits")
    account.modified["code/code-of-digits"] = NOW - timedelta(hours=3)
    account.remove(RunSelection(references=(gone,)))
    assert "code/code-of-digits" in account.blobs


def test_code_is_kept_while_a_document_is_unreadable(account: Account) -> None:
    gone, broken = account.add("digits"), account.add("words")
    for blob in index_blobs(broken):
        account.index[blob] = {}
    account.blobs[f"{broken}/run.json"] = b"{"
    account.remove(RunSelection(references=(gone,)))
    assert "code/code-of-digits" in account.blobs


@pytest.mark.parametrize(
    "selection",
    [
        RunSelection(references=("digits-",)),
        RunSelection(experiment="digits"),
        RunSelection(older_than=timedelta(days=30)),
        RunSelection(states=frozenset({RunState.FAILED})),
    ],
)
@pytest.mark.parametrize("is_marked", [False, True])
def test_removal_killed_at_any_request_is_finished_by_repeating_it(
    monkeypatch: pytest.MonkeyPatch, selection: RunSelection, is_marked: bool
) -> None:
    finished = False
    for requests in range(50):
        account = Account(monkeypatch, is_marked=is_marked)
        run_id = account.add("digits", status="failed")
        recent = account.add("words", NOW - timedelta(days=1), experiment="words")
        account.requests_left = requests
        try:
            account.remove(selection)
            finished = True
        except KilledError:
            pass
        account.requests_left = None
        listed = account.listed()
        assert listed in ([recent, run_id], [recent])
        if run_id in listed:
            marks = {deleting_mark(run_id), deleting_note(run_id)}
            assert len(set(account.of(run_id)) - marks) == 7, "a listed run is whole"
        elif f"{run_id}/run.json" not in account.blobs and account.of(run_id):
            with pytest.raises(RunnerError) as refused:
                find_run(CONNECTION, run_id)
            assert refused.value.fix == f"runner rm {run_id}"
            with pytest.raises(RunnerError) as refused:
                find_run(CONNECTION, "digits-")
            assert refused.value.fix == f"runner rm {run_id}"
        if account.of(run_id):
            account.remove(selection)
        assert not account.of(run_id)
        assert "digits_local" not in account.tasks
        assert len(account.of(recent)) == 7
        if finished:
            return
    pytest.fail("50 requests for one run")


def test_active_run_is_refused_with_the_command_that_ends_it(account: Account) -> None:
    run_id = account.add("digits", status=None, phase="running")
    with pytest.raises(RunnerError) as refused:
        account.remove(RunSelection(references=(run_id,)))
    assert (refused.value.code, refused.value.fix) == ("R-RUN-IN-USE", f"runner cancel {run_id}")
    assert len(account.of(run_id)) == 6


def test_run_with_an_ending_task_is_kept(account: Account) -> None:
    run_id = account.add("digits", status="cancelled", phase="running")
    plan = plan_removal(CONNECTION, RunSelection(experiment="digits"), NOW)
    assert [(kept.run_id, kept.why) for kept in plan.kept] == [(run_id, "its task has not ended")]


def test_named_run_is_removed_once_its_task_has_ended(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = account.add("digits", status="cancelled", phase="running")

    def end_task(_: float) -> None:
        account.tasks["digits_local"][run_id] = TaskView("completed")

    monkeypatch.setattr("runner.flows.removal.time.sleep", end_task)
    account.remove(RunSelection(references=(run_id,)))
    assert not account.of(run_id)


def test_run_in_the_middle_of_its_submission_is_kept(account: Account) -> None:
    account.add("digits", NOW - timedelta(minutes=2), status=None, phase=None)
    lost = account.add("words", status=None, phase=None)
    plan = plan_removal(CONNECTION, RunSelection(states=frozenset({RunState.LOST})), NOW)
    assert [run.run_id for run in plan.runs] == [lost]
    assert plan.kept[0].why == "it was submitted 2 min ago and may not have a task yet"


def test_run_needed_by_others_is_kept_with_the_reason(account: Account) -> None:
    names = ("before", "read", "resumed", "template", "model", "free")
    ids = {name: account.add(name) for name in names}
    waiting = account.add(
        "waiting",
        status=None,
        phase="active",
        after=[ids["before"]],
        inputs={"words": {"kind": "run", "run_id": ids["read"]}},
        resume_from={"run_id": ids["resumed"], "checkpoint": None},
    )
    template = run_of("x", after=[ids["template"]])
    account.blobs["schedules/nightly/i1/group.json"] = json.dumps(
        {"tasks": {"train": {"run": template}}}
    ).encode()
    version = ModelVersion("mnist", 3, {"run_id": ids["model"]})
    removed = ModelVersion("mnist", 2, {"run_id": ids["free"], "deleted": "2026-11-01"})
    account.models = [Model("mnist", (removed, version))]
    plan = plan_removal(CONNECTION, RunSelection(older_than=timedelta(days=30)), NOW)
    assert [run.run_id for run in plan.runs] == [ids["free"]]
    fixes = {kept.run_id: kept.fix for kept in plan.kept}
    assert fixes == {
        **dict.fromkeys((waiting, ids["before"], ids["read"], ids["resumed"]),
                        f"runner cancel {waiting}"),
        ids["template"]: "runner schedule rm nightly",
        ids["model"]: "runner models rm mnist@3",
    }  # fmt: skip


@pytest.mark.parametrize("named", [True, False])
def test_run_needed_by_a_new_submission_is_kept_whole(account: Account, named: bool) -> None:
    used, free = account.add("digits"), account.add("words")
    chosen = RunSelection(references=(used, free))
    older = RunSelection(older_than=timedelta(days=30))
    plan = plan_removal(CONNECTION, chosen if named else older, NOW)
    before = dict(account.blobs)
    fresh = account.add("next", NOW, status=None, phase=None, after=[used])
    if named:
        with pytest.raises(RunnerError) as refused:
            remove_runs(CONNECTION, plan, ignore_progress, NOW)
        assert (refused.value.code, refused.value.fix) == ("R-RUN-IN-USE", f"runner cancel {fresh}")
        assert before.items() <= account.blobs.items()
        assert account.listed() == [fresh, free, used]
    else:
        removed = remove_runs(CONNECTION, plan, ignore_progress, NOW).plan
        assert [run.run_id for run in removed.runs] == [free]
        assert [(kept.run_id, kept.fix) for kept in removed.kept] == [
            (used, f"runner cancel {fresh}")
        ]
        assert account.listed() == [fresh, used]
        assert len(account.of(used)) == 7


def test_failed_second_check_hides_no_run(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = account.add("digits")
    plan = plan_removal(CONNECTION, RunSelection(references=(run_id,)), NOW)

    def fail(_: Connection) -> list[Model]:
        raise RunnerError("R-SERVICE", "the service does not answer")

    monkeypatch.setattr(removal, "list_models", fail)
    with pytest.raises(RunnerError):
        remove_runs(CONNECTION, plan, ignore_progress, NOW)
    assert account.listed() == [run_id]


def test_unreadable_model_keeps_every_succeeded_run(account: Account) -> None:
    good, bad = account.add("digits"), account.add("words", status="failed")
    account.models = [Model("mnist", (ModelVersion("mnist", 3, None, problem="damaged"),))]
    plan = plan_removal(CONNECTION, RunSelection(older_than=timedelta(days=30)), NOW)
    assert [run.run_id for run in plan.runs] == [bad]
    assert [(kept.run_id, kept.why) for kept in plan.kept] == [
        (good, "model mnist@3 cannot be read, and may come from this run")
    ]


def test_group_is_removed_with_the_last_of_its_runs(account: Account) -> None:
    group_id = "study-20261014-120000-abcd"
    one, two = (account.add(name, group=group_id) for name in ("one", "two"))
    tasks = {name: {"run_id": run, "after": []} for name, run in (("a", one), ("b", two))}
    document = {"format": 1, "group_id": group_id, "name": "study", "created": OLD.isoformat()}
    document |= {"job_id": "j", "pool": "local", "tasks": tasks}
    account.blobs[group_blob(group_id)] = json.dumps(document).encode()
    account.remove(RunSelection(references=(one,)))
    assert group_blob(group_id) in account.blobs
    account.remove(RunSelection(references=(group_id,)))
    assert not account.of(two)
    assert group_blob(group_id) not in account.blobs


def test_sweep_is_removed_except_for_the_run_that_a_model_needs(account: Account) -> None:
    group_id = "study-20261014-120000-abcd"
    one, two, three = (account.add(name, group=group_id) for name in ("one", "two", "three"))
    tasks = {run: {"run_id": run, "after": [], "trial": {"lr": 1}} for run in (one, two, three)}
    document = {"format": 1, "group_id": group_id, "name": "study", "created": OLD.isoformat()}
    document |= {"job_id": "j", "pool": "local", "tasks": tasks}
    account.blobs[group_blob(group_id)] = json.dumps(document).encode()
    versions = (ModelVersion("cats", 1, {"run_id": two}), ModelVersion("dogs", 4, {"run_id": two}))
    account.models = [Model(each.name, (each,)) for each in versions]
    with pytest.raises(RunnerError) as refused:
        plan_removal(CONNECTION, RunSelection(references=(group_id, two)), NOW)
    assert refused.value.code == "R-RUN-IN-USE", "the run itself was named"
    removed = account.remove(RunSelection(references=(group_id,)))
    assert {run.run_id for run in removed.runs} == {one, three}
    assert [(kept.run_id, kept.why, kept.fix) for kept in removed.kept] == [
        (two, "it is the origin of model cats@1, dogs@4", "runner models rm cats@1")
    ]
    assert account.of(two)
    assert group_blob(group_id) in account.blobs
    again = account.remove(RunSelection(references=(group_id,)))
    assert (again.runs, [kept.run_id for kept in again.kept]) == ((), [two])
    account.models = []
    account.remove(RunSelection(references=(group_id,)))
    assert not account.of(two)
    assert group_blob(group_id) not in account.blobs


def test_sweep_with_a_trial_that_has_not_ended_is_not_removed(account: Account) -> None:
    group_id = "study-20261014-120000-abcd"
    one = account.add("one", group=group_id)
    two = account.add("two", NOW, status=None, phase="running", group=group_id)
    tasks = {run: {"run_id": run, "after": [], "trial": {"lr": 1}} for run in (one, two)}
    document = {"format": 1, "group_id": group_id, "name": "study", "created": OLD.isoformat()}
    document |= {"job_id": "j", "pool": "local", "tasks": tasks}
    account.blobs[group_blob(group_id)] = json.dumps(document).encode()
    with pytest.raises(RunnerError) as refused:
        plan_removal(CONNECTION, RunSelection(references=(group_id,)), NOW)
    assert (refused.value.code, refused.value.fix) == ("R-RUN-IN-USE", f"runner cancel {two}")


def test_trial_that_never_started_is_removed_from_the_document_of_its_sweep(
    account: Account,
) -> None:
    group_id = "net-20261014-120000-abcd"
    one, two = (f"net-{number}-20261014-120000-abcd" for number in (1, 2))
    batch = {"pool": "local", "spot": True, "job_id": "j", "task_id": one}
    archives = {"code": {"sha256": "code"}, "agent": {"sha256": "agent"}}
    common = run_of(one, created=OLD.isoformat(), batch=batch, group=group_id, **archives)
    trials = {one: {}, two: {"run_id": two, "batch": {"task_id": two}}}
    waiting = WaitingTrials(group_id, common, trials).cancel([one, two], NOW, "enough")
    account.blobs[waiting_blob(group_id)] = waiting.to_bytes()
    account.tasks["j"] = {}
    assert account.listed() == [two, one]
    account.remove(RunSelection(references=(one,)))
    assert account.listed() == [two]
    account.remove(RunSelection(references=(two,)))
    assert waiting_blob(group_id) not in account.blobs


def test_damaged_run_is_removed_by_its_id(account: Account) -> None:
    run_id = account.add("digits")
    account.blobs[f"{run_id}/run.json"] = b"{"
    plan = account.remove(RunSelection(references=(run_id,)))
    assert plan.runs[0].state == "unreadable"
    assert not account.of(run_id)


def test_run_of_a_newer_runner_is_kept(account: Account) -> None:
    run_id = account.add("digits")
    account.blobs[f"{run_id}/run.json"] = b'{"format": 99}'
    with pytest.raises(RunnerError) as refused:
        account.remove(RunSelection(references=(run_id,)))
    assert refused.value.why == "a newer version of runner wrote it; nothing was deleted"


def test_unknown_reference_deletes_nothing(account: Account) -> None:
    run_id = account.add("digits")
    with pytest.raises(RunnerError) as refused:
        account.remove(RunSelection(references=(run_id, "dogs")))
    assert refused.value.code == "R-RUN-UNKNOWN"
    assert len(account.of(run_id)) == 7


def test_retention_removes_only_runs_that_are_older(account: Account) -> None:
    recent = account.add("words", datetime.now(UTC) - timedelta(days=1))
    assert not removal.remove_expired(CONNECTION, timedelta(days=2), ignore_progress).runs
    old = account.add("digits")
    plan = removal.remove_expired(CONNECTION, timedelta(days=2), ignore_progress)
    assert [run.run_id for run in plan.runs] == [old]
    assert account.listed() == [recent]


def test_interrupt_ends_a_deletion_at_once_and_the_next_one_finishes_it(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [account.add(f"digits{n}") for n in range(5)]
    selection = RunSelection(older_than=timedelta(days=30))
    plan = plan_removal(CONNECTION, selection, NOW)

    def interrupt(_: Connection) -> list[Model]:
        account.requests_left = 0  # nothing is sent after it
        raise KeyboardInterrupt

    monkeypatch.setattr(removal, "list_models", interrupt)
    with pytest.raises(KeyboardInterrupt):
        remove_runs(CONNECTION, plan, ignore_progress, NOW)
    account.requests_left = None
    assert all(f"{run_id}/run.json" in account.blobs for run_id in ids)
    monkeypatch.setattr(removal, "list_models", lambda _: account.models)
    account.remove(selection)
    assert not [blob for run_id in ids for blob in account.of(run_id)]


def test_marks_of_an_interrupted_deletion_are_forgotten_by_the_next_one(account: Account) -> None:
    stays, goes = account.add("words", NOW - timedelta(days=1)), account.add("digits")
    for blob in (deleting_mark(stays), deleting_note(stays)):
        account.blobs[blob] = b"{}"
    account.index[deleting_note(stays)] = {"state": "succeeded"}
    account.modified[deleting_mark(stays)] = NOW - timedelta(minutes=5)
    account.remove(RunSelection(older_than=timedelta(days=30)))
    assert not account.of(goes)
    assert deleting_mark(stays) in account.blobs, "another client may be about to delete it"
    account.add("digits")
    account.modified[deleting_mark(stays)] = OLD
    account.remove(RunSelection(older_than=timedelta(days=30)))
    assert len(account.of(stays)) == 7
    assert stays in account.listed()


def test_interrupted_deletions_are_found_by_one_listing(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.is_marked = True
    ids = [account.add(f"digits{n}") for n in range(9)]
    plan = plan_removal(CONNECTION, RunSelection(older_than=timedelta(days=30)), NOW)
    for run in plan.runs:
        removal._mark(runs_container(CONNECTION), run)  # pyright: ignore[reportPrivateUsage]
        for blob in (*index_blobs(run.run_id), f"{run.run_id}/run.json"):
            account.blobs.pop(blob, None)
            account.index.pop(blob, None)
    recent = account.add("words", NOW - timedelta(days=1))
    read: list[str] = []
    monkeypatch.setattr(BlobContainer, "read", lambda _, blob: read.append(blob))
    plan = plan_removal(CONNECTION, RunSelection(experiment="nothing"), NOW)
    assert {run.run_id for run in plan.runs} == set(ids)
    assert {run.spec.job_id for run in plan.runs} == {f"digits{n}_local" for n in range(9)}
    assert not read
    assert len(account.of(recent)) == 7
