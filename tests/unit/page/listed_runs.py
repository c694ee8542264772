"""Runs for pages, without services."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.core.settings import load_settings
from runner.page.access import Access
from runner.page.app import PageApp
from runner.page.assets import Assets
from runner.page.memory.points import GrowingMetrics, MetricPoints
from runner.page.memory.run_facts import FactsMemory, RunFacts
from runner.page.memory.run_table import RunEntry, RunTable
from runner.page.source import Source
from tests.unit.page.asgi_client import AsgiClient

HOST = "127.0.0.1:8899"
HOSTILE = "<script>alert(1)</script>\"'&"
START = datetime(2026, 11, 1, tzinfo=UTC)
START_MS = 1_793_491_200_000
HOUR = 3_600_000


def run_id(number: int, name: str = "mnist") -> str:
    """Return the ID of a run that was submitted `number` minutes after START."""
    return f"{name}-{START + timedelta(minutes=number):%Y%m%d-%H%M%S}-{number:04d}"


def entry(number: int = 0, **more: Any) -> RunEntry:
    """Return a run that succeeded, submitted `number` minutes after START."""
    fields: dict[str, Any] = {
        "state": "succeeded", "label": "succeeded", "is_over": True, "recipe": "mnist",
        "experiment": "first", "pool": "t4", "vm_size": "known", "spot": True,
        "created": START + timedelta(minutes=number), "took_s": 60.0, "attempts": 1, **more,
    }  # fmt: skip
    return RunEntry(fields.pop("run_id", run_id(number)), **fields)


def series(*values: float, name: str = "loss") -> MetricPoints:
    """Return a metric with one value per step and second."""
    found = GrowingMetrics({})
    lines = [
        {"time": f"2026-11-01T00:00:{n:02d}+00:00", "attempt": 1, "step": n, "name": name}
        for n in range(len(values))
    ]
    found.add(json.dumps({**line, "value": values[n]}) for n, line in enumerate(lines))
    return found.by_name()[name]


def local_connection() -> Any:
    """Return what the prices of nodes of this machine need."""
    target = SimpleNamespace(is_billed=False)
    return SimpleNamespace(outputs=SimpleNamespace(location="local"), target=target, home=None)


class _Table:
    """A table with given runs."""

    is_complete, is_cut = True, False

    def __init__(self, entries: list[RunEntry]) -> None:
        self.entries = tuple(entries)

    async def read(self, _: Source, *, wait_s: float = 0.0) -> tuple[RunEntry, ...]:
        del wait_s
        return self.entries

    def find(self, wanted: str) -> RunEntry | None:
        return next((each for each in self.entries if each.run_id == wanted), None)


class _Facts(FactsMemory):
    """Facts that are known already."""

    def __init__(self, facts: Mapping[str, RunFacts]) -> None:
        super().__init__()
        self._known = dict(facts)

    async def gather(self, source: Source, entries: Any, **_: Any) -> dict[str, RunFacts]:
        return {e.run_id: self._known[e.run_id] for e in entries if e.run_id in self._known}


def client_with(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    entries: list[RunEntry],
    facts: Mapping[str, RunFacts] | None = None,
    *,
    answers: Mapping[str, Any] | None = None,
    read_only: bool = False,
) -> AsgiClient:
    """Return a browser that is signed in at a page with these runs.

    Args:
        folder: RUNNER_HOME.
        monkeypatch: Replaces the reads.
        entries: The runs, newest first.
        facts: What is known of them.
        answers: What other reads return, by the first part of their keys.
        read_only: True if the reader may change nothing.
    """
    settings = load_settings({"target": "local"}, cwd=folder, env={"RUNNER_HOME": str(folder)})
    source = Source(settings)
    kept: dict[type, Any] = {RunTable: _Table(entries), FactsMemory: _Facts(facts or {})}
    monkeypatch.setattr(source, "kept", kept.__getitem__)
    connection = SimpleNamespace(
        outputs=SimpleNamespace(location="local"),
        target=SimpleNamespace(is_billed=False),
        home=None,
    )

    async def call(function: Callable[[Any], Any]) -> Any:
        return function(connection)

    async def read(key: Any, *_: object, **__: object) -> Any:
        return (answers or {})[key[0]]

    monkeypatch.setattr(source, "call", call)
    monkeypatch.setattr(source, "read", read)
    app = PageApp(source, Access(frozenset({HOST}), read_only=read_only), Assets())
    client = AsgiClient(app.asgi, HOST)
    client.get(f"/?token={app.access.link_token}")
    return client
