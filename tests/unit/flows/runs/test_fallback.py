"""The steps of a fall-back, each taken by another client, against a model of the services."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from runner.azure.auth.credentials import Connection
from runner.azure.batch.pools import PoolView
from runner.contract import MOVER_POOL, PoolOutput
from runner.core.job_moves import JobNote, JobSnapshot, moved_spec
from runner.core.planning.fallback import PoolChance
from runner.core.states import TaskView
from runner.flows.runs import watch
from runner.flows.runs.events import MoveRefused
from runner.flows.runs.moving import fallback, job_steps
from runner.flows.runs.moving.fallback import Fallback, Fallbacks, FallbackState
from runner.flows.runs.watch import WatchOptions
from runner.protocol.errors import RunnerError
from runner.protocol.run_spec import FallbackRule, PoolStay, RunSpec
from tests.unit.core.recipe_maker import outputs, pool

RUN = "digits-20261121-143005-k3f9"
KEYS = {"storage": "AAAA", "batch": "AAAA"}
LONG_AGO = datetime.now(UTC) - timedelta(hours=2)
SPEC = RunSpec(
    run_id=RUN,
    pool="t4",
    job_id=RUN,
    task_id=RUN,
    fallback=FallbackRule(("t4", "a10", "v100"), after_s=60),
)


class Services:
    """The job, the run and the pools; a request changes the job only if it is as it was read."""

    def __init__(self) -> None:
        self.job = JobSnapshot(RUN, "active", "t4", "0")
        self.spec: RunSpec | None = SPEC
        self.task: TaskView | None = TaskView("active", since=LONG_AGO)
        self.pools = ["t4", "a10", "v100"]
        self.able = ["a10", "v100"]
        self.evictions: tuple[datetime, ...] = ()
        self.outputs = outputs(*(pool(name) for name in self.pools))

    def change(self, job: JobSnapshot, **values: Any) -> bool:
        if job.etag != self.job.etag:
            return False
        self.job = replace(self.job, etag=str(int(self.job.etag) + 1), **values)
        return True

    def find_run(self, *_: object) -> RunSpec:
        if self.spec is None:
            raise RunnerError("R-RUN-UNKNOWN", "no such run")
        return self.spec

    def record(
        self, _: object, spec: RunSpec, _task: TaskView, job: JobSnapshot, to: PoolOutput
    ) -> None:
        assert self.job.state == "disabled"
        assert job == self.job
        why = job.note.why if job.note else ""
        self.spec = moved_spec(spec, to, PoolStay(spec.pool, why=why))

    def judge(self, _: object, chances: list[PoolChance], *, nodes: int) -> tuple[PoolChance, ...]:
        return tuple(replace(each, can_start=each.pool in self.able) for each in chances)

    def views(self, _: object) -> list[PoolView]:
        return [
            PoolView(name, "size", "active", "steady", 1, 1, 1, 0, 0, None, (), "", "", (), False)
            for name in self.pools
        ]

    def go_on(self) -> None:
        """Let Batch complete a transition of the job."""
        after = {"disabling": "disabled", "enabling": "active"}
        if self.job.state in after:
            self.change(self.job, state=after[self.job.state])

    def step(self) -> FallbackState | None:
        """Take a step as a client that has just started, and is killed afterwards."""
        found = Fallback(cast("Connection", self), SPEC).step()
        self.go_on()
        return found

    def parts(self) -> list[Services]:
        return [self]


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> Services:
    made = Services()
    requests: dict[str, Callable[..., Any]] = {
        "note_job": lambda _, job, note: made.change(job, note=note),
        "disable_job": lambda _, job, running: made.change(job, state="disabling"),
        "change_pool": lambda _, job, to: made.change(job, pool=to),
        "enable_job": lambda _, job: made.change(job, state="enabling"),
        "raise_priority": lambda _, job: job.priority == 0 and made.change(job, priority=1),
        "read_job": lambda _, job_id: made.job if job_id == made.job.id else None,
        "list_open_jobs": lambda _: [made.job],
        "get_task": lambda *_: made.task,
        "find_run": made.find_run,
        "find_evictions": lambda *_: made.evictions,
        "judge_pools": made.judge,
        "record_pool": made.record,
        "list_pools": made.views,
    }
    for name, request in requests.items():
        for module in (fallback, job_steps):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, request)
    return made


def complete(services: Services, most: int = 12) -> int:
    """Take steps until the job is active without a note. Return their number."""
    for number in range(1, most + 1):
        services.step()
        if services.job.note is None and services.job.state == "active":
            return number
    raise AssertionError(f"not complete: {services.job}")


@pytest.mark.feature(41)
def test_move_is_completed_by_clients_that_are_killed_after_each_step(services: Services) -> None:
    assert complete(services) <= 8
    spec = services.find_run()
    assert (services.job.pool, spec.pool) == ("a10", "a10")
    assert [(stay.pool, stay.why) for stay in spec.moved_from] == [("t4", "waited")]


def test_pool_without_capacity_is_skipped_and_named(services: Services) -> None:
    services.able = ["v100"]
    complete(services)
    assert services.job.pool == "v100"
    services.spec, services.job = SPEC, JobSnapshot(RUN, "active", "t4", "0")
    services.able = []
    found = services.step()
    assert found is not None
    assert [line.partition(":")[0] for line in found.blocked] == ["a10", "v100"]
    assert services.job == JobSnapshot(RUN, "active", "t4", "0")


def test_claim_of_another_client_is_not_replaced(services: Services) -> None:
    services.step()
    claimed = services.job.note
    services.able = ["v100"]  # this client would have decided otherwise
    complete(services)
    assert claimed is not None
    assert services.job.pool == claimed.to == "a10"


def test_run_stays_if_its_new_pool_is_deleted_during_the_move(services: Services) -> None:
    while services.job.state != "disabled":
        services.step()
    services.pools = ["t4"]
    services.able = []
    complete(services)
    assert (services.job.pool, services.find_run().pool) == ("t4", "t4")


def test_job_is_enabled_if_its_run_has_ended_during_the_move(services: Services) -> None:
    while services.job.pool != "a10":
        services.step()
    services.task = None
    complete(services)
    assert services.job.state == "active"


@pytest.mark.parametrize("state", ["active", "disabled"])
def test_job_that_a_person_moves_or_pauses_is_left_alone(services: Services, state: str) -> None:
    services.job = replace(services.job, state=state, note=JobNote("pause", "digits"))
    before = services.job
    services.step()
    assert services.job == before


def test_changed_document_leads_to_no_pool_of_another_team(services: Services) -> None:
    whole = outputs(pool("t4"), pool("a10", team="vision"), pool("v100", team="vision"))
    services.outputs = replace(whole, pools=whole.pools[:1], team=None, whole=whole)
    found = services.step()
    assert found is not None
    assert found.blocked[0] == "a10: belongs to another team"
    services.job = replace(
        services.job, state="disabled", note=JobNote("fallback", RUN, "a10", "x")
    )
    complete(services)
    assert services.job.pool == "t4"


def test_changed_document_does_not_lead_to_the_pool_of_the_mover(services: Services) -> None:
    services.spec = replace(SPEC, fallback=FallbackRule(("t4", MOVER_POOL), after_s=60))
    services.pools, services.able = ["t4", MOVER_POOL], [MOVER_POOL]
    found = services.step()
    assert found is not None
    assert found.blocked == (f"{MOVER_POOL}: is for no run",)
    claim = JobNote("fallback", RUN, MOVER_POOL, "x")
    services.job = replace(services.job, state="disabled", note=claim)
    complete(services)
    assert services.job.pool == "t4"


def test_document_that_names_another_job_moves_nothing(services: Services) -> None:
    other = "digits-20261121-143005-aaaa"
    services.spec = replace(SPEC, job_id=other)
    assert services.step() is None
    services.job = replace(services.job, id=other)
    services.spec = replace(SPEC, run_id=other, job_id=RUN)
    assert Fallbacks(cast("Connection", services)).step().moving == ()
    assert services.job.note is None


def test_job_of_an_evicted_run_is_raised_once(services: Services) -> None:
    services.evictions = (datetime.now(UTC),)
    services.step()
    assert (services.job.priority, services.job.note) == (1, None)
    services.step()
    assert services.job.priority == 1
    assert services.job.note is not None


@pytest.mark.parametrize("rule", [None, FallbackRule(("a10", "t4"))])
def test_attempts_of_a_running_run_that_stays_are_not_read(
    services: Services, monkeypatch: pytest.MonkeyPatch, rule: FallbackRule | None
) -> None:
    def fail(*_: object) -> tuple[datetime, ...]:
        raise AssertionError("the attempts were read")

    monkeypatch.setattr(fallback, "find_evictions", fail)
    services.spec = replace(SPEC, fallback=rule)
    services.task = TaskView("running", since=LONG_AGO)
    assert services.step() == FallbackState(services.spec)


def test_deleted_run_ends_the_steps(services: Services) -> None:
    services.spec = None
    assert services.step() is None
    assert Fallbacks(cast("Connection", services)).step().problems == ()


def test_who_may_not_move_a_run_still_follows_it(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bool:
        raise RunnerError("R-ACCESS-DENIED", "the service refused access")

    for name in ("note_job", "raise_priority"):
        monkeypatch.setattr(fallback, name, refuse)
    watcher = watch._RunWatcher(Connection(services.outputs, KEYS), SPEC, WatchOptions())
    assert [*watcher._poll_fallback()] == [MoveRefused("the service refused access")]
    assert [*watcher._poll_fallback()] == [], "once"
    services.spec = replace(SPEC, fallback=None)
    services.evictions = (datetime.now(UTC),)
    watcher = watch._RunWatcher(Connection(services.outputs, KEYS), services.spec, WatchOptions())
    assert [*watcher._poll_fallback()] == []
