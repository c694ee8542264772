"""Runs with several pools: which pool a run starts in, and when it moves to the next one.

Everything here is pure: facts in, a decision with its reason out. A run only moves forward in its
list, so it moves at most as often as the list has pools, and every reader of the same facts decides
the same. `runner.core.job_moves` has the steps of the move.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from runner.contract import PoolOutput, StackOutputs
from runner.core.planning.pool_choice import (
    missing_resources,
    refuse_pool_of_other_team,
    runs_image,
)
from runner.core.pricing.machines import find_machine, machines
from runner.core.states import WaitCause
from runner.core.units import format_count, format_duration, parse_moment
from runner.protocol.codec import JsonDocument
from runner.protocol.errors import RunnerError
from runner.protocol.host import format_usd
from runner.protocol.run_spec import FallbackRule, PoolStay, Resources, RunSpec

MoveReason = Literal["waited", "evicted"]
EVICTION_WINDOW = timedelta(hours=1)
_ERROR_AGE = timedelta(hours=1)  # an older error says nothing about the capacity now
_EXPIRING = frozenset({"AllocationFailed", "ResizeFailed"})  # a quota does not change by itself


# -- the list of a run


def listed_pools(
    names: Sequence[str],
    models: Sequence[str],
    outputs: StackOutputs,
    rates: Mapping[str, float | None],
) -> tuple[PoolOutput, ...]:
    """Return the pools of a list, in order.

    Args:
        names: pools by name.
        models: GPU models, if there are no names; the pools of a model come from the cheapest on.
        outputs: the stack.
        rates: US dollars per hour of a node by pool; None if unknown.

    Raises:
        RunnerError: the stack has no such pool or model, or another team owns the pool.
    """
    if names:
        return tuple(_find_listed(name, outputs) for name in names)
    found: list[PoolOutput] = []
    for model in models:
        own = [pool for pool in outputs.pools if _model_of(pool).lower() == model.lower()]
        if not own:
            raise _no_model(model, outputs)
        found += sorted(own, key=lambda pool: _rate_order(rates.get(pool.id)))
    return tuple(found)


def _find_listed(name: str, outputs: StackOutputs) -> PoolOutput:
    refuse_pool_of_other_team(name, outputs)
    by_id = {pool.id.lower(): pool for pool in outputs.pools}
    if name.lower() in by_id:
        return by_id[name.lower()]
    near = difflib.get_close_matches(name.lower(), by_id, n=1)
    known = ", ".join(pool.id for pool in outputs.pools)
    raise RunnerError(
        "R-POOL-UNKNOWN",
        f"unknown pool {name!r} in the list of pools",
        why=f"pools of this stack: {known or 'none'}",
        fix=f"use {by_id[near[0]].id!r} instead"
        if near
        else "remove it from the list, or add the pool to the stack and run `runner up`",
    )


def _model_of(pool: PoolOutput) -> str:
    machine = find_machine(pool.vm_size)
    return (machine.gpu if machine else None) or ""


def _no_model(model: str, outputs: StackOutputs) -> RunnerError:
    here = sorted({found for pool in outputs.pools if (found := _model_of(pool))})
    known = sorted({each.gpu for each in machines() if each.gpu})
    near = difflib.get_close_matches(model.upper(), known, n=1)
    unknown = model.lower() not in {each.lower() for each in known}
    return RunnerError(
        "R-POOL-FIT",
        f"no pool of this stack has a GPU of model {model!r}",
        why=f"its pools have: {', '.join(here) or 'no GPUs'}",
        fix=f"did you mean {near[0]}?"
        if unknown and near
        else f"--gpu {','.join(here)}"
        if here
        else "add a pool with such a GPU to the stack, and run `runner up`",
    )


def _rate_order(rate: float | None) -> tuple[bool, float]:
    return rate is None, rate or 0.0


# -- the pool that a run starts in


@dataclass(frozen=True, slots=True)
class PoolChance(JsonDocument):
    """A pool of the list of a run, and whether it can start the run now.

    Attributes:
        usd_per_hour: Price of a node; None if it is unknown or the node is not billed.
        fits: False if it can never run the run.
        can_start: None if the services were not asked.
        why: The reason, in one line.
        chosen: True for the pool that the run starts in.
    """

    pool: str
    vm_size: str
    spot: bool
    usd_per_hour: float | None
    fits: bool = True
    can_start: bool | None = None
    why: str = ""
    chosen: bool = False

    @property
    def text(self) -> str:
        """The pool with its reason and price, in one line."""
        price = (
            "" if self.usd_per_hour is None else f"; {format_usd(1e6 * self.usd_per_hour)} per hour"
        )
        return f"{self.pool}: {'chosen: ' if self.chosen else ''}{self.why}{price}"


def explain_unfit(
    pool: PoolOutput, image: str | None, requested: Resources, required: Resources
) -> str:
    """Return why a pool of a list can never run the run; empty if it can."""
    if not runs_image(pool, image):
        return "runs containers only" if image is None else "runs no containers"
    missing = missing_resources(pool, requested) or missing_resources(pool, required)
    return f"has {missing}" if missing else ""


def judge_start(
    cause: WaitCause | None, *, may_grow: bool, ready: str, now: datetime
) -> PoolChance:
    """Return whether a pool can start a run now, and why, as a chance without a pool.

    Args:
        cause: why a run would wait in the pool; None if nothing is known to be in its way.
        may_grow: the pool can get more nodes than it has.
        ready: what the pool has, as text.
        now: the present.
    """
    blank = PoolChance("", "", spot=False, usd_per_hour=None)
    if cause is None:
        return replace(blank, can_start=True, why=ready)
    if cause.code in _EXPIRING and cause.since is not None and now - cause.since > _ERROR_AGE:
        ago = format_duration((now - cause.since).total_seconds())
        return replace(blank, can_start=True, why=f"{cause.code} {ago} ago, which is no longer new")
    if cause.code == "Busy":
        why = f"{ready}; it can get more nodes" if may_grow else "all of its nodes are busy"
        return replace(blank, can_start=may_grow, why=why)
    if cause.stuck or cause.code == "Preempted":
        ago = "" if cause.since is None else f" ({_ago(cause.since, now)})"
        return replace(blank, can_start=False, why=f"{cause.message}{ago}")
    return replace(blank, can_start=True, why=cause.message)


def _ago(since: datetime, now: datetime) -> str:
    passed = max((now - since).total_seconds(), 0.0)
    return f"for {format_duration(passed)}" if passed >= 1 else "just now"


def choose_start(chances: Sequence[PoolChance]) -> tuple[PoolChance, ...]:
    """Return the chances with the chosen one: the first that can start, else the first that fits.

    Raises:
        RunnerError: R-POOL-FIT, no pool fits.
    """
    fitting = [each for each in chances if each.fits]
    if not fitting:
        raise RunnerError(
            "R-POOL-FIT",
            "no pool of the list can run this run",
            why="; ".join(f"{each.pool} {each.why}" for each in chances),
            fix="name other pools: runner pool ls",
        )
    able = [each for each in fitting if each.can_start is not False]
    best = (able or fitting)[0]
    why = best.why if able else f"the first of the list, because none can start now: {best.why}"
    return tuple(replace(each, chosen=True, why=why) if each is best else each for each in chances)


# -- the move to the next pool


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """The next move of a run.

    Attributes:
        to: The pools after its present one, in order.
        due: When it moves; None if it does not wait, and only further evictions would move it.
        reason: Why it moves.
        since: Since when it waits for a node of its present pool.
        evictions: Evictions within the last hour in its present pool.
    """

    to: tuple[str, ...]
    due: datetime | None
    reason: MoveReason
    since: datetime | None = None
    evictions: int = 0

    def is_due(self, now: datetime) -> bool:
        """Return True if the run should move now."""
        return self.due is not None and self.due <= now

    def describe(self, now: datetime) -> str:
        """Return when and where the run moves, as text for users; empty without a time."""
        if self.due is None:
            return ""
        left = (self.due - now).total_seconds()
        why = ""
        if self.reason == "evicted":
            why = f" ({format_count(self.evictions, 'eviction')} within an hour)"
        elif self.since is not None:
            why = f" (waits since {self.since.astimezone(UTC):%H:%M} UTC)"
        if left > 0:
            return f"moves to {self.to[0]} in {_minutes(left)}{why}"
        late = f" for {_minutes(-left)}" if left <= -60 else ""
        return f"due to move to {self.to[0]}{late}{why}"


def _minutes(seconds: float) -> str:
    return f"{round(seconds / 60)} min" if seconds >= 60 else f"{max(round(seconds), 1)} s"


def later_pools(rule: FallbackRule, pool: str) -> tuple[str, ...]:
    """Return the pools of the list after this one; none if a person moved the run elsewhere."""
    names = [name.lower() for name in rule.pools]
    return rule.pools[names.index(pool.lower()) + 1 :] if pool.lower() in names else ()


def waits_since(spec: RunSpec, since: datetime | None) -> datetime | None:
    """Return since when a run waits in its present pool.

    Args:
        spec: the run.
        since: start of the wait of its task; None if it does not wait.
    """
    if since is None or not spec.moved_from:
        return since
    moved = parse_moment(spec.moved_from[-1].until)
    return since if moved is None else max(since, moved)


def plan_move(
    spec: RunSpec, since: datetime | None, evictions: Iterable[datetime], now: datetime
) -> PlannedMove | None:
    """Return the next move of a run, or None if it stays in its pool.

    Args:
        spec: the run.
        since: start of the wait of its task; None if it has a node.
        evictions: times of its evictions in its present pool.
        now: the present.
    """
    rule = spec.fallback
    later = later_pools(rule, spec.pool) if rule is not None else ()
    if rule is None or not later:
        return None
    recent = sorted(each for each in evictions if now - each < EVICTION_WINDOW)
    waiting = waits_since(spec, since)
    if len(recent) >= rule.evictions:
        return PlannedMove(later, recent[-1], "evicted", waiting, len(recent))
    due = None if waiting is None else waiting + timedelta(seconds=rule.after_s)
    return PlannedMove(later, due, "waited", waiting, len(recent))


def describe_stay(stay: PoolStay, rule: FallbackRule | None) -> str:
    """Return why a run left a pool, as text for users; empty if it is not known."""
    if stay.why == "waited" and rule is not None:
        return f"waited {format_duration(rule.after_s)} for a node of {stay.pool}"
    if stay.why == "evicted":
        return f"evicted too often in {stay.pool}"
    return ""
