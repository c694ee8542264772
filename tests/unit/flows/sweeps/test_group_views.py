"""Watching a group leaves most of the time to its runs."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any, cast

import pytest

from runner.azure.auth.credentials import Connection
from runner.core.states import RunState, RunStatus
from runner.flows.runs.rows import RunRow
from runner.flows.sweeps import groups
from runner.flows.sweeps.groups import GroupView, group_views
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup

EMPTY = cast("Connection", None)
GROUP = RunGroup(
    "g", "g", datetime(2026, 11, 28, tzinfo=UTC), "g", "local", {"a": "a-1"}, {"a": ()}
)
WAITING = GroupView(GROUP, {"a": RunRow("a-1", None, RunStatus(RunState.QUEUED, ""), None)})


class Clock:
    """A clock that only its own `sleep` and slow polls advance."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(groups, "time", clock)
    return clock


@pytest.mark.parametrize(("took", "pause"), [(0.05, 1.0), (0.4, 4.0), (9.0, 15.0)])
def test_pause_between_polls_grows_with_their_duration(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, took: float, pause: float
) -> None:
    def load(*_: Any) -> GroupView:
        clock.now += took
        return WAITING

    monkeypatch.setattr(groups, "load_group_view", load)
    assert [*islice(group_views(EMPTY, GROUP), 3)] == [WAITING] * 3
    assert clock.pauses == pytest.approx([pause, pause])


def test_failed_poll_is_repeated_after_a_second(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(*_: Any) -> GroupView:
        clock.now += 9.0
        raise RunnerError("R-SERVICES-DOWN", "the services do not respond", fix="wait")

    monkeypatch.setattr(groups, "load_group_view", load)
    assert [*islice(group_views(EMPTY, GROUP), 3)] == [None] * 3
    assert clock.pauses == [1.0, 1.0]
