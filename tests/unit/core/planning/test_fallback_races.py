"""Races of several clients that move one run: seeded, and killed at every step.

The service, the documents and the clients are models; what the clients decide are the functions of
the product. A client reads the job, then run.json, decides, and sends one conditional request. The
scheduler interleaves these four parts of all clients, kills clients, evicts nodes, leaves agents on
unreachable nodes, and lets a person move the job.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from runner.contract import PoolOutput
from runner.core.job_moves import (
    JobNote,
    JobSnapshot,
    JobStep,
    may_claim,
    moved_spec,
    next_fallback_step,
    next_step,
)
from runner.core.planning.fallback import plan_move
from runner.protocol.run_spec import FallbackRule, PoolStay, RunSpec

RUN = "digits-20261121-143005-k3f9"
POOLS = ("t4", "a10", "v100", "dedicated")
START = datetime(2026, 11, 21, 14, 30, tzinfo=UTC)
RULE = FallbackRule(POOLS, after_s=60, evictions=2)
PAUSE = JobNote("pause", "digits")
SPEC = RunSpec(run_id=RUN, pool="t4", job_id=RUN, task_id=RUN, fallback=RULE)


@dataclass
class Agent:
    """An agent on a node. One that Batch lost goes on until it sees a later attempt."""

    attempt: int
    pool: str
    lost: bool = False


@dataclass
class World:
    """The service and blob storage, which change only by the requests below."""

    random: random.Random
    job: JobSnapshot = field(default=JobSnapshot(RUN, "active", "t4", "0"))
    spec: RunSpec = SPEC
    spec_etag: int = 0
    now: datetime = START
    waits_since: datetime | None = START
    agents: list[Agent] = field(default_factory=list[Agent])
    attempts: int = 0
    evictions: list[tuple[datetime, str]] = field(default_factory=list[tuple[datetime, str]])
    checkpoints: list[int] = field(default_factory=list[int])
    person_acts: bool = False
    is_paused: bool = False  # by a person, until the person continues it
    is_calm: bool = False  # nothing new happens: only what has begun goes on

    def change(self, before: JobSnapshot, **values: object) -> bool:
        """Change the job if it is as it was read."""
        if self.job.etag != before.etag:
            return False
        self._set(**values)
        return True

    def _set(self, **values: object) -> None:
        self.job = replace(self.job, etag=str(int(self.job.etag) + 1), **values)  # type: ignore[arg-type]

    @property
    def owners(self) -> list[Agent]:
        """The agents that Batch runs."""
        return [agent for agent in self.agents if not agent.lost]

    def happen(self) -> None:
        """Let the service, the agents or the time go on."""
        kinds = ("state", "state", "start", "agent", "agent", "evict", "time", "pause")
        kind = self.random.choice(kinds[: 5 if self.is_calm else None])
        if self.is_paused and (self.is_calm or self.random.random() < 0.05):
            # One person at a time: nobody unpauses a job while it is being moved.
            if self.job.note != PAUSE:
                self.is_paused = False
            elif self.job.pool == self.spec.pool:
                self.is_paused = False
                self._set(state="active", note=None)
        if kind == "state" and self.job.state == "disabling":
            self._stop()
            self._set(state="disabled")
        elif kind == "state" and self.job.state == "enabling":
            self._set(state="active")
        elif kind == "start" and self.random.random() < 0.3:
            self._start()
        elif kind == "evict" and self.owners and self.random.random() < 0.5:
            self.evictions.append((self.now, self.job.pool))
            self._stop()
        elif kind == "agent":
            self._work()
        elif kind == "time":
            self.now += timedelta(seconds=self.random.choice((1, 5, 70)))
        elif kind == "pause" and self.job.note is None and self.random.random() < 0.1:
            self.is_paused = True
            self._stop()
            self._set(state="disabled", note=PAUSE)

    def _stop(self) -> None:
        for agent in self.owners:
            agent.lost = True
            if self.random.random() < 0.7:  # else its node is unreachable, and it goes on
                self.agents.remove(agent)
            self.waits_since = self.now

    def _start(self) -> None:
        """Start the task as Batch does: if its job is active, once, in the pool of the job."""
        if self.job.state != "active" or self.owners:
            return
        assert self.spec.pool == self.job.pool, "an attempt starts in a pool that is not recorded"
        self.attempts += 1
        self.agents.append(Agent(self.attempts, self.job.pool))
        self.waits_since = None

    def _work(self) -> None:
        """Let an agent commit a checkpoint, unless a later attempt has begun."""
        if not self.agents:
            return
        agent = self.random.choice(self.agents)
        if agent.attempt < self.attempts:
            self.agents.remove(agent)  # as `CheckpointStore.is_superseded`: it commits no more
            return
        assert not self.checkpoints or self.checkpoints[-1] <= agent.attempt
        self.checkpoints.append(agent.attempt)


def client(world: World) -> Generator[None]:
    """Take steps for ever, as `Fallback.step` does; the world may change at each `yield`."""
    requested: JobNote | None = None
    while True:
        job = world.job
        yield
        spec, etag, since, now = world.spec, world.spec_etag, world.waits_since, world.now
        here = [moment for moment, pool in world.evictions if pool == spec.pool]
        yield
        if job.note is None or job.note.action != "fallback":
            planned = plan_move(spec, since, here, now) if may_claim(job) else None
            if planned is not None and planned.is_due(now):
                able = [to for to in planned.to if world.random.random() < 0.8]
                yield
                if able:
                    note = JobNote("fallback", RUN, able[0], planned.reason)
                    world.change(job, note=note)
            continue
        claim = job.note
        recorded = job.is_in(claim.to) and spec.pool == claim.to
        step = next_fallback_step(job, claim, is_recorded=recorded, is_requested=requested == claim)
        if step is JobStep.RECORD:
            yield from record(world, job, spec, etag, claim)
            continue
        yield
        if send(world, job, step, claim) and step is JobStep.DISABLE:
            requested = claim


def record(
    world: World, job: JobSnapshot, spec: RunSpec, etag: int, claim: JobNote
) -> Generator[None, None, bool]:
    """Write run.json as `record_pool` does: read it, read the job again, write with If-Match."""
    spec, etag = world.spec, world.spec_etag
    yield
    now = world.job
    yield
    if (now.state, now.pool, now.note) != (job.state, job.pool, job.note):
        return False
    if world.spec_etag == etag and spec.pool == claim.to:
        world.spec_etag += 1  # the same content, so that the write of a late client is refused
        return True
    if world.spec_etag == etag:
        to = PoolOutput(claim.to, "size", 1, 4, True, 1)
        world.spec = moved_spec(spec, to, PoolStay(spec.pool, until=world.now.isoformat()))
        world.spec_etag += 1
        return True
    return False


def send(world: World, job: JobSnapshot, step: JobStep, note: JobNote) -> bool:
    changes: dict[JobStep, dict[str, object]] = {
        JobStep.NOTE: {"note": note},
        JobStep.DISABLE: {"state": "disabling"},
        JobStep.MOVE: {"pool": note.to},
        JobStep.ENABLE: {"state": "enabling"},
        JobStep.CLEAR: {"note": None},
    }
    if step not in changes:
        return False
    if step is JobStep.MOVE:
        assert job.state == "disabled"
    return world.change(job, **changes[step])


def person(world: World) -> Generator[None]:
    """Move the job back to its first pool, as `runner sweep move` does."""
    wanted, requested, written = JobNote("move", "digits", "t4"), False, True
    while True:
        job = world.job
        written = written and not (job.note is not None and job.note.action == "fallback")
        recorded = world.spec.pool == "t4" and written
        yield
        step = next_step(job, wanted, is_recorded=recorded, is_requested=requested)
        if step is JobStep.DONE:
            return
        if step is JobStep.RECORD:
            written = yield from record(world, job, world.spec, world.spec_etag, wanted)
            continue
        requested |= send(world, job, step, wanted) and step is JobStep.DISABLE
        yield


def race(seed: int, steps: int = 150) -> World:
    """Run one race. Return the world after one client completed what the others left."""
    chance = random.Random(seed)
    world = World(chance)
    clients = [client(world) for _ in range(chance.randint(2, 4))]
    people: list[Generator[None]] = []
    frozen, until = 0, chance.randint(0, steps)  # a laptop that sleeps, and goes on later
    for number in range(steps):
        if chance.random() < 0.5:
            world.happen()
        one = chance.randrange(len(clients))
        if one == frozen and number < until:
            continue
        if number % 50 == 0:
            frozen, until = one, number + chance.randint(20, 50)
        if chance.random() < 0.05:
            clients[one] = client(world)  # killed, and another one begins
        next(clients[one])
        if not people and chance.random() < 0.002:
            world.person_acts = True
            people.append(person(world))
        if people and chance.random() < 0.3:
            next(people[0], None)
        check(world)
    last = client(world)
    world.is_calm = True
    for each in (*people, last):
        for _ in range(100):
            next(each, None)
            world.happen()
            check(world)
    return world


def check(world: World) -> None:
    """Assert what holds at any time."""
    assert len(world.owners) <= 1
    paused = world.is_paused and world.job.note == PAUSE
    assert not paused or world.job.state == "disabled", "a paused job starts nothing"
    assert all(agent.pool == world.job.pool for agent in world.owners)
    stays = [*(stay.pool for stay in world.spec.moved_from), world.spec.pool]
    assert all(before != after for before, after in pairwise(stays))
    if not world.person_acts:
        places = [POOLS.index(pool) for pool in stays]
        assert places == sorted(set(places)), "a run moves forward, and to each pool once"


_RACES = [range(150), pytest.param(range(150, 1150), marks=pytest.mark.slow)]


@pytest.mark.feature(41)
@pytest.mark.parametrize("seeds", _RACES)
def test_races_leave_one_owner_in_the_recorded_pool(seeds: range) -> None:
    moved = evicted = 0
    for seed in seeds:
        world = race(seed)
        moved += len(world.spec.moved_from)
        evicted += len(world.evictions)
        assert world.job.state == "active", seed
        assert world.job.note is None, seed
        assert world.spec.pool == world.job.pool, seed
    assert moved > len(seeds) // 2
    assert evicted > len(seeds) // 2
