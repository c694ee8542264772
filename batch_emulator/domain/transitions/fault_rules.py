"""Load rules for faults on purpose, and follow those about quotas and spot capacity."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from batch_emulator.domain.account import Account, RuleTimer
from batch_emulator.domain.fault_rules import FaultRule, RuleSet
from batch_emulator.domain.transitions import eviction


def load(account: Account, found: RuleSet, now: datetime) -> None:
    """Load rules instead of all earlier ones; their times count from now."""
    account.faults.replace(found, now)
    _begin(account, now)


def add(account: Account, rule: FaultRule, now: datetime) -> None:
    """Load one rule after the others."""
    account.faults.add(rule, now)
    _begin(account, now)


def _begin(account: Account, now: datetime) -> None:
    for at in account.faults.times_after(now):
        account.set_timer(at, RuleTimer())
    follow(account, now)


def follow(account: Account, now: datetime) -> None:
    """Set the quotas and capacities that hold now."""
    quotas: dict[str, Any] = account.faults.quotas(now)
    limits = replace(account.configured, **quotas)
    for pool in account.pools.values():
        eviction.follow_capacity(account, pool, now)
    if limits != account.limits:
        account.limits = limits
        account.dirty_pools.update(account.pools)
