"""What an attempt says of its last lines."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from runner.node.agent import records
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog


@pytest.mark.parametrize(("bound_s", "named"), [(600.0, []), (-1.0, ["logs"])])
def test_slow_upload_of_a_log_is_reported_with_its_time(
    monkeypatch: pytest.MonkeyPatch, bound_s: float, named: list[str]
) -> None:
    monkeypatch.setattr(records, "LONG_FLUSH_S", bound_s)
    sent: list[str] = []
    streams: Any = SimpleNamespace(
        finish_script=lambda timeout_s: sent.append("script"),
        finish_events=lambda timeout_s: sent.append("events"),
    )
    events = EventLog(LineQueue())
    attempt: Any = SimpleNamespace(streams=streams, events=events, devices=None)
    nothing: Any = SimpleNamespace()
    records.AttemptOutcome(nothing, nothing, 1, "", attempt)._flush()
    assert sent == ["script", "events"]
    assert list(events.stages_s) == named
