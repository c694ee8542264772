"""What attempts used, from their records, and the copy of it in the index."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.protocol.results import LIMIT_BYTES, index_metadata
from runner.protocol.usage import (
    AttemptUsage,
    load_usage,
    parse_usage,
    to_milliseconds,
    usage_to_json,
)

RUN = "r"


def at(second: int) -> str:
    return f"2026-11-21T10:{second // 60:02d}:{second % 60:02d}+00:00"


def ms(second: int) -> int:
    found = to_milliseconds(at(second))
    assert found is not None
    return found


class Records:
    """The documents of one run."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def attempt(self, number: int, start: int, end: int | None = None, **more: Any) -> None:
        """Add an attempt; `why`, `command`, `checkpoints` (second by number) and `resumed`."""
        folder = f"{RUN}/attempts/{number}/"
        node = more.get("node", "tvm-1")
        times = {"booted": at(0), "created": at(1), "ready": at(2)}
        document = {"attempt": number, "node": node, "started": at(start), "dedicated": False}
        self._put(f"{folder}start.json", {**document, "node_times": times})
        if end is not None:
            why = {"attempt": number, "ended": at(end), "why": more.get("why", "succeeded")}
            self._put(f"{folder}end.json", {**why, "node_ends": at(end + 5)})
        lines = [{"time": at(start), "stage": "code", "state": "start"}]
        if "command" in more:
            lines.append({"time": at(more["command"]), "stage": "command", "state": "start"})
        for checkpoint, second in more.get("checkpoints", {}).items():
            state = {"stage": "checkpoint", "state": "progress", "checkpoint": checkpoint}
            lines.append({"time": at(second), **state})
        text = "\n".join(map(json.dumps, lines)) + '\n{"time": "2026-11-2'
        self.blobs[f"{folder}events.jsonl"] = text.encode()
        if "resumed" in more:
            of, checkpoint = more["resumed"]
            resumed = {"run_id": RUN, "attempt": of, "checkpoint": checkpoint}
            self._put(f"{folder}resume.json", resumed)

    def _put(self, name: str, document: dict[str, Any]) -> None:
        self.blobs[name] = json.dumps(document).encode()

    def load(self, **more: Any) -> tuple[AttemptUsage, ...]:
        found: dict[str, Any] = {"nodes": 1, **more}
        return load_usage(self.blobs.get, RUN, **found)


def test_times_of_an_attempt_and_its_node_are_read() -> None:
    records = Records()
    records.attempt(1, 10, 60, why="terminated", command=15, checkpoints={1: 20, 2: 30})
    assert records.load() == (
        AttemptUsage(
            1, 0, "tvm-1", dedicated=False, booted=ms(0), created=ms(1), ready=ms(2),
            started=ms(10), command=ms(15), ended=ms(60), seen=ms(30), why="terminated",
            node_ends=ms(65), saved=ms(30),
        ),
    )  # fmt: skip


def test_work_is_kept_up_to_the_resumed_checkpoint() -> None:
    records = Records()
    records.attempt(1, 0, 60, why="terminated", command=5, checkpoints={1: 20, 2: 40})
    records.attempt(2, 100, None, command=110, checkpoints={3: 120}, resumed=(1, 2))
    records.attempt(3, 200, 300, command=210, resumed=(1, 1))
    assert [each.kept for each in records.load(status="succeeded")] == [ms(20), None, None]
    records.attempt(4, 400, None, resumed=(2, 3))
    assert [each.kept for each in records.load()] == [ms(40), ms(120), None, None]


def test_no_work_is_kept_if_the_script_starts_over() -> None:
    records = Records()
    records.attempt(1, 0, 60, why="terminated", command=5, checkpoints={1: 20})
    records.attempt(2, 100, 200, command=110)
    assert [each.kept for each in records.load(status="succeeded")] == [None, None]


def test_a_checkpoint_counts_while_its_run_waits() -> None:
    records = Records()
    records.attempt(1, 0, 60, why="terminated", command=5, checkpoints={1: 20})
    records.attempt(2, 100)
    assert [each.kept for each in records.load()] == [ms(20), None]


def test_successful_script_is_kept_by_the_export() -> None:
    records = Records()
    records.attempt(1, 0, 60, why="failed", command=5)
    records.attempt(2, 100, 200)
    assert [each.kept for each in records.load(status="succeeded")] == [ms(60), None]


def test_result_ends_an_attempt_without_an_end() -> None:
    records = Records()
    records.attempt(1, 0, command=5)
    (found,) = records.load(status="succeeded", ended=at(90))
    assert (found.ended, found.why) == (ms(90), "succeeded")
    (found,) = records.load(status="cancelled", ended=at(90))  # the client decided, not the node
    assert (found.ended, found.why) == (None, "")


def test_other_nodes_of_a_run_have_their_own_times() -> None:
    records = Records()
    records.attempt(1, 10, 60, command=15)
    other = {"attempt": 1, "node": "tvm-2", "started": at(12), "rank": 1}
    records.blobs[f"{RUN}/nodes/1/attempts/1/start.json"] = json.dumps(other).encode()
    primary, worker = records.load(nodes=3)
    assert (primary.node, worker.node, worker.rank) == ("tvm-1", "tvm-2", 1)
    assert (worker.started, worker.ended, worker.created) == (ms(12), ms(60), None)
    assert worker.node_ends is None


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"attempt": "x"}', b'{"attempt": 1e999}'])
def test_a_half_written_start_is_an_attempt_without_a_node(content: bytes) -> None:
    records = Records()
    records.attempt(1, 10, 60)
    records.blobs[f"{RUN}/attempts/1/start.json"] = content
    (found,) = records.load()
    assert (found.node, found.started) == ("", None)


_MILLISECONDS = st.none() | st.integers(0, 2**45)


@given(
    st.lists(
        st.builds(
            AttemptUsage,
            attempt=st.integers(1, 99),
            rank=st.integers(0, 9),
            node=st.text(max_size=20),
            pool=st.text(max_size=20),
            dedicated=st.none() | st.booleans(),
            **{
                name: _MILLISECONDS
                for name in asdict(AttemptUsage(1, 0, ""))
                if name not in ("attempt", "rank", "node", "pool", "dedicated", "why")
            },
        ),
        max_size=5,
    )
)
def test_index_returns_written_entries(attempts: list[AttemptUsage]) -> None:
    metadata = index_metadata({"run_id": RUN}, None, usage_to_json(attempts))
    assert parse_usage(metadata["attempts"]) == tuple(attempts)


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", '{"version": 2, "fields": [], "rows": []}', '{"version": 1}',
        '{"version": 1, "fields": ["attempt", "rank", "node"], "rows": [[1, 0]]}',
        '{"version": 1, "fields": ["attempt", "rank", "node"], "rows": [["1", 0, "n"]]}',
        '{"version": 1, "fields": ["attempt", "rank", "node"], "rows": [[true, 0, "n"]]}',
        '{"version": 1, "fields": ["attempt", "rank", "node"], "rows": [[1, 0, null]]}',
        '{"version": 1, "fields": ["attempt", "rank", "node", "seen"], "rows": [[1, 0, "n", 1.5]]}',
    ],
)  # fmt: skip
def test_an_entry_of_a_newer_version_or_a_damaged_one_is_not_read(text: str) -> None:
    assert parse_usage(text) is None


def test_fields_of_a_newer_runner_are_ignored() -> None:
    text = '{"version": 1, "fields": ["attempt", "rank", "node", "new"], "rows": [[1, 0, "n", 7]]}'
    assert parse_usage(text) == (AttemptUsage(1, 0, "n"),)


def test_oversized_index_entry_omits_attempts_first() -> None:
    many = [AttemptUsage(n, 0, "tvm-0123456789", started=ms(n)) for n in range(1, 200)]
    metadata = index_metadata({"run_id": RUN}, {"status": "failed"}, usage_to_json(many))
    assert set(metadata) == {"run", "result"}
    assert sum(map(len, metadata.values())) < LIMIT_BYTES


@pytest.mark.parametrize("text", [None, "", "yesterday", "2026-11-21T10:00:00", "9999-99-99"])
def test_time_without_a_zone_is_invalid(text: str | None) -> None:
    assert to_milliseconds(text) is None
