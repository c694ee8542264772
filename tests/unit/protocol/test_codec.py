"""Documents are written from the fields of their classes, and read back in any state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.protocol.checkpoints import CheckpointManifest
from runner.protocol.codec import DAMAGED, NOT_STORED, JsonDocument, wire, write
from runner.protocol.groups import LaterRun
from runner.protocol.metrics import MetricPoint
from runner.protocol.results import AttemptEnd, AttemptStart, RunResult, StageEvent
from runner.protocol.run_spec import RecipeSpec, RunSpec
from runner.protocol.sweeps import TrialSpec
from runner.protocol.waiting_trials import WaitingTrials


@dataclass(frozen=True, slots=True)
class Part(JsonDocument):
    name: str = field(metadata=NOT_STORED)
    size: int = 0


@dataclass(frozen=True, slots=True)
class Whole(JsonDocument):
    number: int
    at: datetime | None
    pool: str = field(default="", metadata=wire("batch.pool"))
    spot: bool = field(default=False, metadata=wire("batch.spot", omit="default"))
    limit: int | None = field(default=None, metadata=wire(omit="empty"))
    source: str = "folder"
    parts: tuple[Part, ...] = field(default=(), metadata=wire(by="name"))
    sizes: Mapping[str, float] = field(default_factory=dict[str, float])
    tag: str | None = field(default=None, metadata=wire(omit="always"))


@dataclass(frozen=True, slots=True)
class Derived(Whole):
    more: str = ""


NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
WHOLE = Whole(1, NOON, "cpu", spot=True, limit=3, parts=(Part("a", 2),), sizes={"x": 0.5})
DOCUMENT: dict[str, Any] = {
    "number": 1,
    "at": "2026-11-21T12:00:00+00:00",
    "batch": {"pool": "cpu", "spot": True},
    "limit": 3,
    "source": "folder",
    "parts": {"a": {"size": 2}},
    "sizes": {"x": 0.5},
}


def test_fields_are_keys_in_their_order() -> None:
    assert list(WHOLE.to_json().items()) == list(DOCUMENT.items())
    assert Whole.from_json(DOCUMENT) == WHOLE
    assert write(Derived(1, None, more="x"), Whole) == Whole(1, None).to_json()


def test_values_that_say_nothing_are_omitted() -> None:
    document = Whole(1, None, limit=0, tag="x").to_json()
    assert document == {
        "number": 1,
        "at": None,
        "batch": {"pool": ""},
        "source": "folder",
        "parts": {},
        "sizes": {},
    }


@pytest.mark.parametrize("empty", [None, "", 0, [], {}, False])
def test_empty_value_stands_for_the_default(empty: object) -> None:
    found = Whole.from_json({"number": "7", "source": empty, "parts": empty, "batch": empty})
    assert found == Whole(7, None)


def test_other_version_of_a_document_is_read() -> None:
    assert Whole.from_json({"number": 1, "unknown": [1], "limit": "3"}).limit == "3"
    with pytest.raises(KeyError, match="number"):
        Whole.from_json({"at": None})
    assert Whole.load(b"{") is None
    assert Whole.load('{"number": "x"}') is None
    assert Part.load("{}", name="a") == Part("a")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
KINDS: list[tuple[type[JsonDocument], dict[str, Any]]] = [
    (RunSpec, {"run_id": "r"}),
    (RecipeSpec, {}),
    (RunResult, {"status": "failed"}),
    (AttemptStart, {"attempt": 1}),
    (AttemptEnd, {"attempt": 1}),
    (StageEvent, {"stage": "code", "state": "end"}),
    (MetricPoint, {"name": "loss", "value": 1.5}),
    (TrialSpec, {"name": "1", "params": {}}),
    (WaitingTrials, {"group_id": "g", "run": {}, "trials": {}}),
]
LOCAL: dict[type, dict[str, Any]] = {StageEvent: {"attempt": 1}}


@pytest.mark.parametrize(("kind", "least"), KINDS)
@given(data=st.data())
def test_any_json_is_read_or_damaged(
    kind: type[JsonDocument], least: dict[str, Any], data: st.DataObject
) -> None:
    local = LOCAL.get(kind, {})
    keys = list(kind.from_json(least, **local).to_json())
    drawn = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, max_size=4))
    try:
        found = kind.from_json({**least, **drawn}, **local)
    except DAMAGED:
        return
    assert {*keys} - {*found.to_json()} <= {"output", "checkpoint"}


def test_formats_of_documents_are_stored() -> None:
    later = LaterRun("1", 2, "r", NOON)
    assert later.to_json() == {"format": 1, "run_id": "r", "created": NOON.isoformat()}
    manifest = CheckpointManifest(1, 1, "t", (), {"b": "x", "a": "y"}, (), step=3)
    assert list(json.loads(manifest.to_bytes())) == [
        *("format", "checkpoint", "attempt", "time", "step", "files", "links", "folders"),
    ]
    assert json.loads(replace(manifest, ranks=2).to_bytes())["ranks"] == 2
