"""Reports and pools for pages, without services."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.azure.batch.pools import NodeView, PoolAutoscale, PoolProblem, PoolView
from runner.core.pricing.ledger import NodeCosts, RunUsage, compute_ledger
from runner.core.settings import load_settings
from runner.flows.costs.report import CostReport, CostRow
from runner.flows.environment.pools import NodeStatus, PoolStatus
from runner.flows.runs.rows import RunRow
from runner.page.access import Access
from runner.page.app import PageApp
from runner.page.assets import Assets
from runner.page.source import Source
from runner.protocol.usage import AttemptUsage
from tests.unit.page.asgi_client import AsgiClient

HOST = "127.0.0.1:8899"
HOUR = 3_600_000
START = 1_795_910_400_000  # 2026-11-29 00:00 UTC
AWKWARD = '<script>alert("1")</script>\'&'


def rate(vm_size: str, spot: bool) -> int | None:
    """Return a price of the size `known`."""
    return {"known": 100_001 if spot else 526_003}.get(vm_size)


def attempt(number: int, start: int, end: int | None, **more: Any) -> AttemptUsage:
    """Return an attempt on a spot node, with times in milliseconds since START."""
    why = "succeeded" if end is not None else ""
    times = {name: START + ms for name, ms in more.items() if isinstance(ms, int)}
    fields: dict[str, Any] = {"node": "tvm-1", "dedicated": False, "command": START + start}
    fields |= {"why": why, **more, **times}
    ended = None if end is None else START + end
    return AttemptUsage(number, 0, started=START + start, ended=ended, **fields)


def run_usage(name: str, *attempts: AttemptUsage, **more: Any) -> RunUsage:
    """Return a run on the pool `t4`."""
    fields: dict[str, Any] = {"pool": "t4", "vm_size": "known", "status": "succeeded", **more}
    return RunUsage(name, spot=True, attempts=attempts, **fields)


def report_of(*runs: RunUsage, is_free: bool = False, now: int = 1000 * HOUR) -> CostReport:
    """Return the report of runs, with charges."""
    ledger = compute_ledger(runs, rate, now_ms=START + now, keep_charges=True)
    total = NodeCosts()
    for spent in ledger.runs.values():
        total.add(spent)
    rows = tuple(CostRow(name, (name,), spent) for name, spent in ledger.runs.items())
    history = tuple(RunRow(each.run_id, None, None, None) for each in runs)
    gaps = tuple(ledger.gaps)
    return CostReport("run", rows, total, gaps, (), "here", is_free, ledger, history)


def pool(name: str = "t4", **more: Any) -> PoolStatus:
    """Return a pool with two nodes and awkward texts."""
    problem = PoolProblem("AllocationFailed", AWKWARD)
    scale = PoolAutoscale(
        f"$TargetDedicatedNodes = 0; // {AWKWARD}", 300.0, None, {"$Tasks": "1"}, problem
    )
    fields: dict[str, Any] = {
        "vm_size": "known", "state": "active", "allocation": "resizing", "slots": 2, "spot": 2,
        "spot_target": 3, "dedicated": 0, "dedicated_target": 0, "autoscale": scale,
        "resize_errors": (problem,), "image": "image", "node_agent": "agent", "mounts": (),
        "inter_node": False, **more,
    }  # fmt: skip
    view = PoolView(id=name, **fields)
    return PoolStatus(view, {True: {"idle": 1, "unusable": 1}}, 1, None, None, is_billed=True)


def node(name: str, state: str = "idle", **more: Any) -> NodeStatus:
    """Return a node; an unusable one has a problem and a log."""
    is_broken = state == "unusable"
    problem = PoolProblem("Broken", AWKWARD) if is_broken else None
    view = NodeView(name, state, True, 0, 1, None, problem, None, **more)
    return NodeStatus(view, (AWKWARD, "\x1b[31mred") if is_broken else ())


def client_of(
    answers: Mapping[str, Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    read_only: bool = False,
) -> AsgiClient:
    """Return a browser that is signed in at a page which reads these answers.

    Args:
        answers: What a read returns, by its key or by the first part of it.
        folder: RUNNER_HOME.
        monkeypatch: Replaces the reads.
        read_only: True if the reader may change nothing.
    """
    env = {"RUNNER_HOME": str(folder)}
    source = Source(load_settings({"target": "local"}, cwd=folder, env=env))

    async def read(key: Any, *_: object, **__: object) -> Any:
        return answers[key if isinstance(key, str) else key[0]]

    monkeypatch.setattr(source, "read", read)
    app = PageApp(source, Access(frozenset({HOST}), read_only=read_only), Assets())
    client = AsgiClient(app.asgi, HOST)
    client.get(f"/?token={app.access.link_token}")
    return client
