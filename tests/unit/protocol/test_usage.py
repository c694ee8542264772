"""What attempts used, from their records, and the copy of it in the index."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.protocol.paths import RunPaths
from runner.protocol.results import (
    ALIVE_STAGE,
    LIMIT_BYTES,
    HoldEnd,
    index_metadata,
    parse_event_line,
    sign_interval_s,
)
from runner.protocol.usage import (
    AttemptUsage,
    LostWork,
    find_lost_work,
    load_usage,
    loses_work,
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
        document |= more.get("start_json", {})
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
        lines += [
            {"time": at(second), "stage": ALIVE_STAGE, "state": "progress"}
            for second in more.get("signs", ())
        ]
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


SIGNS = {"signs": True}


def test_work_is_lost_only_with_the_node_and_if_it_will_be_repeated() -> None:
    usages = {
        why: AttemptUsage(1, 0, "n1", why=why) for why in ("", "lost", "terminated", "failed")
    }
    earlier = {
        why for why, usage in usages.items() if loses_work(usage, is_last=False, is_settled=True)
    }
    assert earlier == {"", "lost", "terminated"}
    waiting = loses_work(usages["terminated"], is_last=True, is_settled=False)
    ended = loses_work(usages["terminated"], is_last=True, is_settled=True)
    assert (waiting, ended) == (True, False)


def lost(usage: AttemptUsage, *, is_last: bool = False) -> tuple[float, float | None]:
    found = find_lost_work(usage, is_last=is_last)
    return found.least_ms / 1000, None if found.most_ms is None else found.most_ms / 1000


def test_lost_attempt_ends_at_the_start_of_the_next_one_at_the_latest() -> None:
    records = Records()
    records.attempt(1, 0, command=5, checkpoints={1: 20})
    records.attempt(2, 40, command=45)  # started over
    records.attempt(3, 60, command=65)
    one, two, _ = records.load(status="succeeded", ended=at(90))
    assert (one.ends_by, two.ends_by) == (ms(40), ms(60))
    assert (lost(one), lost(two)) == ((15, 35), (0, 15))


def test_work_since_the_restored_checkpoint_is_lost() -> None:
    records = Records()
    records.attempt(1, 0, command=5, checkpoints={1: 20, 2: 30})
    records.attempt(2, 40, 90, command=45, resumed=(1, 1))
    one, _ = records.load(status="succeeded")
    assert lost(one) == (10, 20)


def test_signs_of_life_limit_the_end_of_an_attempt_however_long_its_run_waits() -> None:
    records = Records()
    records.attempt(1, 0, command=5, signs=(10, 20, 30), start_json=SIGNS)
    assert lost(records.load()[0], is_last=True) == (25, 35)  # no other attempt
    assert lost(records.load(status="cancelled", ended=at(33))[0]) == (25, 28)
    records.attempt(2, 3000, 3300, command=3010)
    assert lost(records.load(status="succeeded")[0]) == (25, 35)


def test_attempt_lost_before_its_script_loses_its_preparation() -> None:
    records = Records()
    records.attempt(1, 0, start_json=SIGNS)
    records.attempt(2, 60, 90, command=65)
    assert lost(records.load(status="succeeded")[0]) == (0, 10)


def test_attempt_without_records_after_its_start_is_unlimited_only_without_signs() -> None:
    records = Records()
    records.attempt(1, 0, command=5)  # of an agent that writes none
    assert lost(records.load()[0], is_last=True) == (0, None)


def test_saved_work_of_a_waiting_run_is_not_lost() -> None:
    records = Records()
    records.attempt(1, 0, 60, why="terminated", command=5, checkpoints={1: 50})
    (found,) = records.load()
    assert lost(found, is_last=True) == (10, 10)


@pytest.mark.parametrize("notice", [0, None])
def test_rehearsed_eviction_has_its_planned_time(notice: int | None) -> None:
    records = Records()
    records.blobs[f"{RUN}/run.json"] = json.dumps(
        {"rehearsal": {"evictions": [[30, notice, None], [1, 0, None]]}}
    ).encode()
    records.attempt(1, 0, command=5, start_json={"evictions": 0, **SIGNS})
    records.attempt(2, 70, 100, command=75, start_json={"evictions": 1})
    one, _ = records.load(status="succeeded")
    assert find_lost_work(one, is_last=False) == LostWork(
        *((25_000, 25_000) if notice == 0 else (55_000, 55_000))
    )
    assert find_lost_work(one, is_last=False).is_measured


def test_other_end_of_a_rehearsed_attempt_is_a_bound() -> None:
    records = Records()
    records.blobs[f"{RUN}/run.json"] = b'{"rehearsal": {"evictions": [[30, 0, null]]}}'
    records.attempt(1, 0, command=5, start_json={"evictions": 0})  # killed, not evicted
    records.attempt(2, 20, 50, command=25, start_json={"evictions": 0})
    assert lost(records.load(status="succeeded")[0]) == (0, 15)
    records.blobs[f"{RUN}/run.json"] = b"{"
    records.attempt(2, 40, 50, command=45, start_json={"evictions": 1})
    assert lost(records.load(status="succeeded")[0]) == (0, 35)


def test_signs_of_life_become_rare_and_are_no_events() -> None:
    assert [sign_interval_s(age) for age in (0, 50, 1000, 86_400)] == [5, 5, 100, 300]
    assert parse_event_line('{"time": "", "stage": "alive", "state": "progress"}', 1) is None


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


def test_hold_of_a_node_is_read_for_a_result_that_has_one() -> None:
    records = Records()
    records.attempt(1, 0, 60, why="failed")
    assert records.load(status="failed", kept_until=at(600))[-1].held_by == ms(600)
    end = HoldEnd(1, at(90), "stopped").to_json()
    records.blobs[RunPaths(RUN).attempt_hold(1)] = json.dumps(end).encode()
    [found] = records.load(status="failed", kept_until=at(600))
    assert (found.held, found.held_by) == (ms(90), ms(600))
    assert parse_usage(json.dumps(usage_to_json([found]))) == (found,)
    assert records.load(status="failed")[-1].held is None
