from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.node.script import shipper as lines_module
from runner.node.script import shipper as sync_module
from runner.node.script.shipper import FileSource, LineQueue, Shipper, finish_all, ship_rest
from runner.node.storage.blobs import MAX_APPEND_BYTES, AppendBlob, ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.node.storage.retries import RetryBudget
from tests.unit.node.fake_blob import FakeBlobs

NAME = "r/logs/stdout.txt"
Until = Callable[[Callable[[], object]], None]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stdout.txt"


@pytest.fixture
def shipper(log: Path, container: ContainerClient) -> Iterator[Shipper]:
    started = Shipper(FileSource(log), AppendBlob(container, NAME))
    started.start()
    yield started
    started._ending.set()
    started.join(120)  # its warnings must not appear in other tests


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as out:
        out.write(data)


def ship_first_line(log: Path, service: FakeBlobs, until: Until) -> None:
    append(log, b"first\n")
    until(lambda: service.blobs.get(NAME) and service.data(NAME) == b"first\n")


def set_blocks(blob: AppendBlob, number: int) -> None:
    blob._blob = replace(blob._blob, blocks=number)


def test_line_above_block_size_is_dropped() -> None:
    queue = LineQueue()
    for line in (b"a", b"x" * MAX_APPEND_BYTES, b"b"):
        queue.put(line)
    assert queue.peek() == b"a\nb\n"


def test_log_without_content_needs_no_request(shipper: Shipper, service: FakeBlobs) -> None:
    shipper.finish()
    assert not service.requests


def test_last_append_shows_that_storage_has_the_whole_log(
    log: Path, container: ContainerClient, service: FakeBlobs
) -> None:
    shipper = Shipper(FileSource(log), AppendBlob(container, NAME), first_wait_s=600)
    shipper.start()
    append(log, b"a line\n")
    shipper.finish()
    assert service.data(NAME) == b"a line\n"
    assert [method for method, _, _ in service.requests] == ["PUT", "PUT"]


def test_line_is_in_blob_while_the_script_runs(
    shipper: Shipper,
    service: FakeBlobs,
    log: Path,
    until: Until,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    wait = shipper._ending.wait
    monkeypatch.setattr(shipper._ending, "wait", lambda s: waits.append(s) or wait(s))
    for number in range(5):
        line = b"line %d\n" % number
        append(log, line)
        until(lambda line=line: service.blobs.get(NAME) and line in service.data(NAME))
    shipper.finish()
    assert len(waits) >= 4
    # At most two of them are between a line and its request.
    assert 2 * max(waits) < 0.3


def test_temporary_auth_error_loses_nothing(
    shipper: Shipper, service: FakeBlobs, log: Path, until: Until
) -> None:
    ship_first_line(log, service, until)
    service.faults.extend([403, 401, 403])
    append(log, b"a line\n")
    until(lambda: b"a line" in service.data(NAME))
    shipper.finish()
    assert (service.data(NAME), len(service.faults)) == (b"first\na line\n", 0)


@pytest.mark.slow
def test_retryable_auth_error_is_retried_while_script_runs(
    shipper: Shipper,
    service: FakeBlobs,
    log: Path,
    until: Until,
    retry_budget: RetryBudget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_module, "AFTER_OUTAGE_S", 0.01)
    monkeypatch.setattr(retry_budget, "_normal_s", 0.03)
    ship_first_line(log, service, until)
    service.faults.extend([403] * 40)  # several series of attempts give up
    append(log, b"a line\n")
    until(lambda: b"a line" in service.data(NAME))
    shipper.finish()
    assert service.data(NAME) == b"first\na line\n"


def test_permanent_auth_error_ends_the_shipping(
    log: Path, container: ContainerClient, service: FakeBlobs
) -> None:
    service.refuse_for_good()
    append(log, b"a line\n")
    shipper = Shipper(FileSource(log), AppendBlob(container, NAME))
    shipper.start()
    shipper.join(120)
    assert not shipper.is_alive()
    with pytest.raises(StorageRequestError, match="403 AuthenticationFailed"):
        shipper.finish()


def test_finish_ships_the_rest_at_once(
    shipper: Shipper, service: FakeBlobs, log: Path, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.setattr(sync_module, "append_interval_s", lambda _: 60.0)
    append(log, b"first\n")
    until(lambda: service.blobs.get(NAME) and service.data(NAME))
    append(log, b"second, no newline")
    shipper.finish(timeout_s=120)
    assert service.text(NAME) == "first\nsecond, no newline"


def test_backlog_is_shipped_at_once_and_its_last_block_waits_for_more_output(
    container: ContainerClient,
    service: FakeBlobs,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    until: Until,
) -> None:
    waits: list[int] = []
    monkeypatch.setattr(sync_module, "MAX_APPEND_BYTES", 10)
    monkeypatch.setattr(sync_module, "append_interval_s", lambda n: waits.append(n) or 600.0)
    append(log, b"123456789\n" * 3 + b"rest\n")
    shipper = Shipper(FileSource(log), AppendBlob(container, NAME))
    shipper.start()
    until(lambda: service.blobs.get(NAME) and service.data(NAME) == log.read_bytes())
    shipper.finish(timeout_s=120)
    assert waits == [4]


def test_outage_delays_lines_and_loses_none(
    shipper: Shipper,
    service: FakeBlobs,
    log: Path,
    until: Until,
    retry_budget: RetryBudget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_module, "AFTER_OUTAGE_S", 0.01)
    monkeypatch.setattr(retry_budget, "_normal_s", 0.03)
    append(log, b"before\n")
    until(lambda: service.blobs.get(NAME) and service.data(NAME))
    service.away.set()
    append(log, b"during\n")
    seen = len(service.requests)
    until(lambda: len(service.requests) > seen + 6)  # several series of attempts gave up
    service.away.clear()
    append(log, b"after\n")
    until(lambda: b"after" in service.data(NAME))
    shipper.finish()
    assert service.text(NAME) == "before\nduring\nafter\n"


def test_permanent_error_is_raised_by_finish(
    shipper: Shipper, service: FakeBlobs, log: Path, until: Until
) -> None:
    ship_first_line(log, service, until)
    service.faults.append(400)
    append(log, b"x\n")
    until(lambda: not shipper.is_alive())
    with pytest.raises(StorageRequestError, match="400"):
        shipper.finish()


def test_every_shipper_is_finished_after_a_failure(
    container: ContainerClient, service: FakeBlobs, tmp_path: Path
) -> None:
    service.faults.append(400)
    for name in ("a", "b"):
        append(tmp_path / name, b"text")
    first = Shipper(FileSource(tmp_path / "a"), AppendBlob(container, "r/a"))
    first.start()
    first.join()
    second = Shipper(FileSource(tmp_path / "b"), AppendBlob(container, "r/b"))
    second.start()
    with pytest.raises(StorageRequestError):
        finish_all([first, second])
    assert service.data("r/b") == b"text"


def test_every_shipper_is_finished_after_an_unexpected_error(
    container: ContainerClient, service: FakeBlobs, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        append(tmp_path / name, b"text")
    first = Shipper(FileSource(tmp_path / "a", {}.__getitem__), AppendBlob(container, "r/a"))
    second = Shipper(FileSource(tmp_path / "b"), AppendBlob(container, "r/b"))
    for shipper in (first, second):
        shipper.start()
    with pytest.raises(KeyError):
        finish_all([first, second])
    assert service.data("r/b") == b"text"


def test_large_log_uses_little_memory(container: ContainerClient, log: Path) -> None:
    with log.open("wb") as out:
        out.truncate(64 * 1024 * 1024)  # sparse: 64 MiB of zeros
    sent: list[int] = []

    class Sink(AppendBlob):
        def append(self, data: bytes) -> None:
            sent.append(len(data))

    tracemalloc.start()
    try:
        shipper = Shipper(FileSource(log), Sink(container, NAME))
        shipper.start()
        shipper.finish()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(sent) == 64 * 1024 * 1024
    assert max(sent) == MAX_APPEND_BYTES
    assert peak < 4 * MAX_APPEND_BYTES


def test_full_blob_reserves_blocks_for_the_final_flush(
    container: ContainerClient, service: FakeBlobs, log: Path, until: Until
) -> None:
    blob = AppendBlob(container, NAME)
    blob.open()
    polls: list[bool] = []
    shipper = Shipper(FileSource(log), blob, polls.append)
    blob.open = lambda: set_blocks(blob, 49_900)  # as after a year of output
    append(log, b"late\n")
    shipper.start()
    until(lambda: len(polls) > 2)
    said = "\n[runner: the log has no blocks left: the rest follows after the script]\n"
    assert service.text(NAME) == said
    shipper.finish()
    assert service.text(NAME) == said + "late\n"


def test_bytes_beyond_the_last_block_are_counted_in_the_log(
    container: ContainerClient, service: FakeBlobs, log: Path, until: Until
) -> None:
    blob = AppendBlob(container, NAME)
    blob.open()
    shipper = Shipper(FileSource(log), blob)
    blob.open = lambda: set_blocks(blob, 49_997)
    with log.open("wb") as out:
        out.truncate(10 * 1024 * 1024)
    shipper.start()
    until(lambda: service.data(NAME))
    shipper.finish()
    data = service.data(NAME)
    assert data.count(b"\0") == MAX_APPEND_BYTES
    assert data.endswith(b"[runner: 6291456 bytes of log are missing]\n")


def test_block_of_lines_never_splits_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines_module, "MAX_APPEND_BYTES", 10)
    queue = LineQueue()
    for line in (b"aaaa", b"bbbb", b"cccc"):
        queue.put(line)
    assert queue.peek() == b"aaaa\nbbbb\n"
    assert queue.peek() == b"aaaa\nbbbb\n"
    queue.advance()
    assert queue.peek() == b"cccc\n"


def test_block_of_lines_is_the_same_until_it_was_shipped() -> None:
    """A failed append may have been executed, and is only recognised if it has the same lines."""
    queue = LineQueue()
    queue.put(b"one")
    assert queue.peek() == b"one\n"
    queue.put(b"two")
    assert queue.peek() == b"one\n"
    assert queue.is_behind
    queue.advance()
    assert queue.peek() == b"two\n"


def test_lines_written_during_an_outage_are_there_once(
    container: ContainerClient,
    service: FakeBlobs,
    until: Until,
    retry_budget: RetryBudget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_module, "AFTER_OUTAGE_S", 0.01)
    monkeypatch.setattr(retry_budget, "_normal_s", 0.03)
    queue = LineQueue()
    shipper = Shipper(queue, AppendBlob(container, NAME))
    shipper.start()
    queue.put(b"before")
    until(lambda: service.blobs.get(NAME) and service.data(NAME) == b"before\n")
    service.done_when_lost, service.away_from = True, len(service.requests) + 1
    queue.put(b"written, not answered")
    until(lambda: len(service.requests) > (service.away_from or 0) + 6)
    queue.put(b"during")
    service.away_from = None
    until(lambda: b"during" in service.data(NAME))
    shipper.finish()
    assert service.text(NAME) == "before\nwritten, not answered\nduring\n"


def test_outage_with_a_full_log_does_not_end_the_shipping(
    container: ContainerClient,
    service: FakeBlobs,
    log: Path,
    until: Until,
    retry_budget: RetryBudget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sync_module, "AFTER_OUTAGE_S", 0.01)
    monkeypatch.setattr(retry_budget, "_normal_s", 0.03)
    blob = AppendBlob(container, NAME)
    blob.open()
    shipper = Shipper(FileSource(log), blob)
    blob.open = lambda: set_blocks(blob, 49_900)
    service.away.set()
    append(log, b"late\n")
    seen = len(service.requests)
    shipper.start()
    until(lambda: len(service.requests) > seen + 6)
    service.away.clear()
    shipper.finish()
    assert service.text(NAME).endswith("late\n")


@pytest.mark.parametrize("shipped", [0, 4, 8, 9, 14])
def test_rest_of_a_log_is_appended_where_it_ended(
    container: ContainerClient,
    service: FakeBlobs,
    log: Path,
    shipped: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lines_module, "MAX_APPEND_BYTES", 6)
    text = b"one\ntwo\nthree\n"
    append(log, text)
    blob = AppendBlob(container, NAME)
    blob.open()
    blob.append(b"earlier attempt\n" + text[:shipped])
    source = FileSource(log)
    source.freeze()
    assert ship_rest(source, container, NAME, 16) == len(text) - shipped
    assert service.data(NAME) == b"earlier attempt\n" + text


@pytest.mark.parametrize(("start", "end"), [(16, b"twx\n"), (16, b"two\nthree\nfour\n"), (99, b"")])
def test_nothing_is_appended_to_the_log_of_another_attempt(
    container: ContainerClient, service: FakeBlobs, log: Path, start: int, end: bytes
) -> None:
    append(log, b"one\ntwo\nthree\n")
    blob = AppendBlob(container, NAME)
    blob.open()
    blob.append(b"earlier attempt\none\n" + end)
    source = FileSource(log)
    source.freeze()
    assert ship_rest(source, container, NAME, start) == 0
    assert service.data(NAME) == b"earlier attempt\none\n" + end


def test_producer_waits_while_too_much_is_pending(
    monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.setattr(lines_module, "MAX_PENDING_BYTES", 10)
    queue = LineQueue()
    queue.put(b"x" * 20)
    producer = threading.Thread(target=queue.put, args=(b"late",), kwargs={"wait": True})
    producer.start()
    assert producer.is_alive()
    assert queue.peek() == b"x" * 20 + b"\n"
    queue.advance()
    until(lambda: not producer.is_alive())
    assert queue.peek() == b"late\n"


def test_queue_lines_are_json_lines_in_blob(container: ContainerClient, service: FakeBlobs) -> None:
    queue = LineQueue()
    shipper = Shipper(queue, AppendBlob(container, "r/events.jsonl"))
    shipper.start()
    for number in range(100):
        queue.put(json.dumps({"n": number}).encode())
    shipper.finish()
    found = [json.loads(line)["n"] for line in service.text("r/events.jsonl").splitlines()]
    assert found == list(range(100))
