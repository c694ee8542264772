"""When a pool's metrics are sampled and its formula is evaluated.

A sample is due every 30 seconds and taken while something happens to the pool; while nothing
does, nobody wakes up: the samples of that time are filled in when they are wanted, and they are
what the last one was.
An evaluation that falls into a resize waits for its end [S].
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from batch_emulator.account import Account
from batch_emulator.model import AllocationState, Pool, PoolState
from batch_emulator.scheduling.actions import Action, Evaluate, Sample


def evaluation_due(pool: Pool, now: datetime) -> bool:
    """Whether the formula is to be evaluated now."""
    due = pool.autoscale.due
    ready = pool.state is PoolState.ACTIVE and pool.allocation is AllocationState.STEADY
    return due is not None and due <= now and ready


def timed(account: Account, pool: Pool, now: datetime) -> Iterator[Action]:
    """What is due on a pool whose timer has come."""
    if account.pools.get(pool.key) is not pool:
        return
    if pool.autoscale.sample_due <= now:
        yield Sample(pool)
    if evaluation_due(pool, now):
        yield Evaluate(pool)


def touched(pool: Pool, now: datetime) -> Iterator[Action]:
    """What a pool needs that something happened to."""
    if not pool.autoscale.sampling or pool.autoscale.sample_due <= now:
        yield Sample(pool)
    if evaluation_due(pool, now):
        yield Evaluate(pool)
