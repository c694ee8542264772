"""The index by time: what lists read of it, and how it stays complete beside older clients."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.progress import Progress, ignore_progress
from runner.flows.runs import index_upkeep
from runner.flows.runs.index_upkeep import compare_indexes, complete_index, rebuild_index
from runner.flows.runs.time_index import TimedEntry, TimeIndex
from runner.protocol.paths import make_run_id, newest_first
from runner.protocol.results import (
    BY_TIME_FOLDER,
    BY_TIME_MARK,
    INDEX_FOLDER,
    by_time_blob,
    complement_of,
    index_blob,
    index_blobs,
    index_metadata,
    parse_by_time,
)
from runner.protocol.waiting_trials import WaitingTrials, waiting_blob
from tests.unit.flows.runs.test_run_index import result_of, run_of

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
_NAMES = st.sampled_from(["mnist", "a-b_c", "x1-2", "zebra"])
_TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2099, 12, 31))  # noqa: DTZ001  as in IDs
_SUFFIXES = st.text("abc239", min_size=4, max_size=4)


class Storage:
    """The container of runs, in memory; `requests` are names of listings."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.metadata: dict[str, Mapping[str, str]] = {}
        self.requests: list[str] = []
        self.client: Any = type("Client", (), {"url": "http://storage/runs"})

    def add(self, run_id: str, *, over: bool = True, indexes: int = 2) -> str:
        """Add a run with entries in one, both or none of the indexes (2, 1, 0)."""
        run, result = run_of(run_id), result_of(run_id) if over else None
        self.blobs[f"{run_id}/run.json"] = json.dumps(run).encode()
        if result is not None:
            self.blobs[f"{run_id}/result.json"] = json.dumps(result).encode()
        for blob in index_blobs(run_id)[:indexes]:
            self.put_metadata(blob, index_metadata(run, result), overwrite=True)
        return run_id

    def put_metadata(self, blob: str, metadata: Mapping[str, str], *, overwrite: bool) -> None:
        if overwrite or blob not in self.blobs:
            self.blobs[blob], self.metadata[blob] = b"", dict(metadata)

    def read_metadata(self, blob: str) -> Mapping[str, str] | None:
        return self.metadata.get(blob)

    def read(self, blob: str) -> bytes | None:
        return self.blobs.get(blob)

    def size(self, blob: str) -> int | None:
        return len(self.blobs[blob]) if blob in self.blobs else None

    def delete(self, blob: str) -> bool:
        self.metadata.pop(blob, None)
        return self.blobs.pop(blob, None) is not None

    def names(self, prefix: str) -> list[str]:
        return sorted(name for name in self.blobs if name.startswith(prefix))

    def list(self, prefix: str) -> Iterator[Any]:
        yield from (type("Blob", (), {"name": name}) for name in self.names(prefix))

    def children(self, prefix: str = "") -> Iterator[str]:
        names = (name.partition("/") for name in self.names(prefix))
        yield from dict.fromkeys(folder + slash for folder, slash, _ in names)

    def folders(self, prefix: str = "") -> Iterator[str]:
        yield from (name.rstrip("/") for name in self.children(prefix) if name.endswith("/"))

    def list_metadata(self, prefix: str) -> list[tuple[str, Mapping[str, str]]]:
        return [(name, self.metadata.get(name, {})) for name in self.names(prefix)]

    def metadata_pages(
        self, prefix: str, first: int = 0, later: int = 0
    ) -> Iterator[tuple[list[tuple[str, Mapping[str, str]]], bool]]:
        listed, size = self.list_metadata(prefix), first or 3
        while True:
            self.requests.append(prefix)
            page, listed = listed[:size], listed[size:]
            yield page, bool(listed)
            if not listed:
                return
            size = 3


def container(storage: Storage) -> Any:
    return storage


@pytest.fixture
def storage() -> Storage:
    return Storage()


def ids_of(storage: Storage, first: int = 3, since: datetime | None = None) -> list[str]:
    index = TimeIndex.open(container(storage), first)
    assert index is not None
    return [each.run_id for second in index.seconds(since) for each in second]


@given(st.lists(st.tuples(_NAMES, _TIMES, _SUFFIXES), max_size=8))
def test_names_of_entries_sort_as_lists_do(made: list[tuple[str, datetime, str]]) -> None:
    ids = [make_run_id(*each) for each in made]
    names = sorted(map(by_time_blob, ids))
    stamps = [parse_by_time(name) for name in names]
    assert [each[1] for each in stamps if each] == sorted(
        ids, key=lambda run_id: (by_time_blob(run_id)[:22], run_id)
    )
    by_second = [each[:22] for each in names]
    assert by_second == [by_time_blob(run_id)[:22] for run_id in newest_first(ids)]
    assert all(name > BY_TIME_MARK for name in names), "the mark is the first blob"


def test_other_blobs_are_no_entries() -> None:
    run_id = "mnist-20261121-143005-k3f9"
    assert by_time_blob(run_id) == "by-time/79738878856994-mnist-20261121-143005-k3f9"
    assert parse_by_time(by_time_blob(run_id)) == ("79738878856994", run_id)
    for other in (f"by-time/79738878856995-{run_id}", "by-time/x", "by-time/\x1b", BY_TIME_MARK):
        assert parse_by_time(other) is None
    pattern = "night-********-******-****"
    assert by_time_blob(pattern) == f"by-time/**************-{pattern}"


def test_index_without_a_mark_is_not_used(storage: Storage) -> None:
    storage.add("mnist-20261121-143005-k3f9")
    assert TimeIndex.open(container(storage)) is None


def test_runs_of_a_second_are_read_completely_and_in_the_order_of_lists(storage: Storage) -> None:
    ids = [storage.add(f"mnist-20261121-143005-aaa{n}") for n in range(2, 9)]
    ids += [storage.add("zebra-20261121-143004-aaaa"), storage.add("again-20261121-143006-aaaa")]
    storage.put_metadata(BY_TIME_MARK, {}, overwrite=True)
    assert ids_of(storage) == newest_first(ids)
    index = TimeIndex.open(container(storage), 3)
    assert index is not None
    storage.requests.clear()
    assert [each.run_id for each in next(index.seconds())] == ["again-20261121-143006-aaaa"]
    assert not storage.requests, "the first page has the newest second"


def test_period_reads_only_its_pages(storage: Storage) -> None:
    ids = [storage.add(f"mnist-202611{day:02d}-120000-aaaa") for day in range(1, 25)]
    storage.put_metadata(BY_TIME_MARK, {}, overwrite=True)
    since = datetime(2026, 11, 23, 12, tzinfo=UTC)
    assert ids_of(storage, since=since) == [ids[23], ids[22]]
    assert len(storage.requests) == 1
    east = since.astimezone(tz=None)
    assert complement_of(east.astimezone(UTC)) == "79738876879999"


def test_runs_of_a_clock_in_the_future_are_the_newest(storage: Storage) -> None:
    ahead, now = storage.add("a-20391231-235959-aaaa"), storage.add("b-20261129-120000-aaaa")
    storage.put_metadata(BY_TIME_MARK, {}, overwrite=True)
    assert ids_of(storage) == [ahead, now]
    assert ids_of(storage, since=NOW - timedelta(days=1)) == [ahead, now]


def test_trials_that_wait_are_listed_once_and_their_list_is_deleted_in_the_end(
    storage: Storage,
) -> None:
    ids = [f"net-{number}-20261121-143005-abcd" for number in (1, 2, 3)]
    group_id = "net-20261121-143005-abcd"
    waiting = WaitingTrials(group_id, run_of("x"), {run_id: {} for run_id in ids})
    storage.blobs[waiting_blob(group_id)] = waiting.to_bytes()
    storage.put_metadata(BY_TIME_MARK, {}, overwrite=True)
    storage.add(ids[0])
    older = storage.add("mnist-20261120-143005-k3f9")
    assert ids_of(storage) == [*ids[::-1], older]
    assert waiting_blob(group_id) in storage.blobs
    for run_id in ids[1:]:
        storage.add(run_id)
    assert ids_of(storage) == [*ids[::-1], older]
    assert waiting_blob(group_id) not in storage.blobs


def test_entry_knows_sweep_experiment_and_outcome_without_being_parsed() -> None:
    run_id = "net-1-20261121-143005-abcd"
    run = run_of(
        run_id, experiment="my cats", group="net-20261121-143005-abcd", trial={"name": "1"}
    )
    entry = TimedEntry("", run_id, index_metadata(run, result_of(run_id, status="failed")))
    assert (entry.sweep_id, entry.status) == ("net-20261121-143005-abcd", "failed")
    assert entry.may_be_of("my cats")
    assert not entry.may_be_of("cats")
    plain = TimedEntry("", run_id, index_metadata(run_of(run_id), None))
    assert (plain.sweep_id, plain.status) == (None, None), "a run with a number in its name"
    torn = TimedEntry("", run_id, {"run": "{torn", "result": "{"})
    assert (torn.sweep_id, torn.status, torn.may_be_of("cats")) == (None, None, True)


def test_run_of_an_older_client_is_added_by_the_next_comparison(storage: Storage) -> None:
    old = [storage.add(f"old-20261121-14300{n}-aaaa", indexes=1) for n in range(3)]
    new = storage.add("new-20261122-143005-aaaa")
    storage.put_metadata(BY_TIME_MARK, {}, overwrite=True)
    assert ids_of(storage) == [new]
    changes = compare_indexes(container(storage), NOW)
    assert (changes.written, changes.deleted) == (3, 0)
    assert ids_of(storage) == [new, *old[::-1]]
    assert storage.metadata[by_time_blob(old[0])] == storage.metadata[index_blob(old[0])]
    assert compare_indexes(container(storage), NOW).written == 0


def test_outcome_that_an_older_agent_wrote_by_name_only_is_copied(storage: Storage) -> None:
    run_id = storage.add("old-20261121-143005-aaaa", over=False)
    result = index_metadata(run_of(run_id), result_of(run_id))
    storage.put_metadata(index_blob(run_id), result, overwrite=True)
    compare_indexes(container(storage), NOW)
    assert storage.metadata[by_time_blob(run_id)] == result


def test_entry_of_a_run_that_an_older_client_deleted_is_removed(storage: Storage) -> None:
    run_id = storage.add("gone-20261121-143005-aaaa")
    for blob in (index_blob(run_id), f"{run_id}/run.json", f"{run_id}/result.json"):
        storage.delete(blob)
    kept = storage.add("kept-20261121-143005-aaaa")
    storage.delete(index_blob(kept))
    assert compare_indexes(container(storage), NOW).deleted == 1
    assert ids_of(storage) == [kept]
    assert index_blob(kept) in storage.blobs, "the write of one entry had failed"


def test_comparison_keeps_what_an_agent_writes_meanwhile(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = storage.add("old-20261121-143005-aaaa", over=False, indexes=1)
    read = storage.read_metadata

    def read_late(blob: str) -> Mapping[str, str] | None:
        found = read(blob)
        result = index_metadata(run_of(run_id), result_of(run_id))
        storage.put_metadata(by_time_blob(run_id), result, overwrite=True)
        return found

    monkeypatch.setattr(storage, "read_metadata", read_late)
    compare_indexes(container(storage), NOW)
    assert "result" in storage.metadata[by_time_blob(run_id)]


def test_rebuild_finds_runs_without_any_entry_and_marks_the_index(storage: Storage) -> None:
    lone, whole = (storage.add(f"{n}-20261121-143005-aaaa", indexes=0) for n in ("lone", "whole"))
    broken = storage.add("torn-20261121-143005-aaaa", indexes=0)
    storage.blobs[f"{broken}/run.json"] = b"{"
    storage.add("byname-20261121-143005-aaaa", indexes=1)
    storage.add("both-20261121-143005-aaaa")
    found: list[Progress] = []
    changes = rebuild_index(container(storage), found.append, NOW)
    assert changes.written == 4
    assert len(ids_of(storage)) == 5
    assert storage.metadata[by_time_blob(broken)] == {}, "its documents show the error"
    assert "result" in storage.metadata[index_blob(lone)]
    assert found[-1].message == "4 entries written, 0 deleted"
    assert rebuild_index(container(storage), ignore_progress, NOW).written == 0
    assert whole in ids_of(storage)


def test_two_clients_that_rebuild_at_once_write_the_same(storage: Storage) -> None:
    for number in range(7):
        storage.add(f"old-20261121-14300{number}-aaaa", indexes=1)
    names = storage.names

    def interleaved(prefix: str) -> list[str]:
        storage.names = names  # type: ignore[method-assign]  # the other client runs once
        if prefix == INDEX_FOLDER:
            rebuild_index(container(storage), ignore_progress, NOW)
        return names(prefix)

    storage.names = interleaved  # type: ignore[method-assign]
    rebuild_index(container(storage), ignore_progress, NOW)
    assert len(ids_of(storage)) == 7


def test_submission_copies_few_runs_and_names_the_command_for_many(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(index_upkeep, "runs_container", lambda _: storage)
    monkeypatch.setattr(index_upkeep, "_MOST_AT_ONCE", 2)
    connection: Any = None
    for number in range(3):
        storage.add(f"old-20261121-14300{number}-aaaa", indexes=1)
    found: list[Progress] = []
    complete_index(connection, tmp_path / "compared" / "x", found.append)
    assert "runner index rebuild" in found[0].message
    assert TimeIndex.open(container(storage)) is None
    monkeypatch.setattr(index_upkeep, "_MOST_AT_ONCE", 3)
    complete_index(connection, tmp_path / "compared" / "x", found.append)
    assert len(ids_of(storage)) == 3
    assert (tmp_path / "compared" / "x").exists()
    assert len(found) == 1


def test_first_submission_marks_the_empty_index(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_upkeep, "runs_container", lambda _: storage)
    connection: Any = None
    complete_index(connection, None, ignore_progress)
    assert storage.names(BY_TIME_FOLDER) == [BY_TIME_MARK]
    assert ids_of(storage) == []
