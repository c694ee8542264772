"""The commit thread: problems are reported and cost only checkpoints."""

from __future__ import annotations

import errno
import itertools
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from runner.flows.runs.attempts import checkpoint_problem
from runner.node.checkpoints import committer
from runner.node.checkpoints import snapshot as folder_listing_module
from runner.node.checkpoints import snapshot as snapshot_module
from runner.node.checkpoints.committer import CheckpointCommitter, commit_pause_s
from runner.node.checkpoints.snapshot import (
    IncompleteFileError,
    Snapshot,
    Snapshotter,
    UnsettledError,
)
from runner.node.checkpoints.store import CheckpointStore
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog
from runner.node.storage.auth import SasCredential
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import Transport
from runner.node.storage.retries import RetryBudget
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import CheckpointRule
from tests.unit.node.fake_blob import FakeBlobs

if TYPE_CHECKING:
    from runner.azure.storage.blobs import BlobContainer

Until = Callable[[Callable[[], object]], None]


class Script:
    """A script that writes, and its commit thread."""

    def __init__(self, folder: Path, service: FakeBlobs) -> None:
        self.folder = folder / "checkpoints"
        self.folder.mkdir()
        self.runs = True
        self.lines = LineQueue()
        self.container = ContainerClient(
            Transport(service.url, SasCredential("s"), RetryBudget(0.0), 300.0)
        )
        self.thread = self.another()

    def another(self, interval_s: float = 0.05) -> CheckpointCommitter:
        return CheckpointCommitter(
            Snapshotter(self.folder, self.folder.with_name("snapshots")),
            CheckpointStore(self.container, RunPaths("r-1"), 1, 3),
            CheckpointRule(interval_s=interval_s, keep=3, max_bytes=1000),
            EventLog(self.lines),
            step=lambda: 7,
            script_runs=lambda: self.runs,
        )

    def write(self, text: str, name: str = "model") -> None:
        """Replace the file in one step."""
        new = self.folder.with_name("new")
        new.write_text(text)
        new.replace(self.folder / name)

    def written(self) -> bytes:
        self.lines.rewind(0)  # else the block of the last call is returned again
        return self.lines.peek()

    def messages(self, state: str = "failed") -> list[str]:
        events: list[dict[str, Any]] = [json.loads(line) for line in self.written().splitlines()]
        return [event["message"] for event in events if event["state"] == state]


@pytest.fixture
def script(tmp_path: Path, service: FakeBlobs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setattr(snapshot_module, "RECENT_NS", 0)
    monkeypatch.setattr(committer, "SETTLE_S", 60.0)  # no test writes all the time
    made = Script(tmp_path, service)
    yield made
    made.thread.finish(final=False)


def test_change_is_committed_with_its_step(script: Script, until: Until) -> None:
    script.thread.start()
    script.write("a")
    until(lambda: script.thread.committed)
    assert script.thread.last is not None
    assert (script.thread.last.step, script.messages()) == (7, [])
    assert script.messages("progress")[0].startswith("checkpoint 1 of attempt 1 (step 7), 1 B")


def test_files_written_before_the_thread_started_are_committed(
    script: Script, until: Until, service: FakeBlobs
) -> None:
    script.write("a")
    late = script.another()
    late.start()
    until(lambda: late.committed)
    late.finish(final=False)
    assert "r-1/checkpoints/1/manifest.json" in service.blobs


def test_young_attempt_commits_long_before_the_interval_ends(
    script: Script, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "FIRST_INTERVAL_S", 0.01)
    young = script.another(interval_s=3600)
    young.start()
    for count, text in enumerate("abc", start=1):
        script.write(text)
        until(lambda count=count: young.committed == count)
    young.finish(final=False)
    assert young.committed == 3


def test_requested_commit_takes_a_folder_that_is_written_all_the_time(
    script: Script, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "RECENT_NS", 3600 * 10**9)  # as if written just now
    script.write("a")
    late = script.another(interval_s=3600)
    late.start()
    late.request(settle_s=0)
    until(lambda: late.committed)
    assert not late.is_requested
    late.finish(final=False)


def test_file_that_is_written_in_place_during_uploads_is_committed(
    script: Script, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy node: every request takes longer than the time between two writes."""
    listed, done = ContainerClient.list_sizes, threading.Event()

    def list_slowly(client: ContainerClient, prefix: str) -> dict[str, int]:
        time.sleep(0.5)
        return listed(client, prefix)

    def write() -> None:
        for number in itertools.count():
            (script.folder / "model").write_text(str(number))
            if done.wait(0.3):
                return

    monkeypatch.setattr(ContainerClient, "list_sizes", list_slowly)
    writer = threading.Thread(target=write)
    writer.start()
    late = script.another(interval_s=3600)
    late.start()
    late.request(settle_s=0)
    try:
        until(lambda: late.committed)
    finally:
        done.set()
        writer.join()
        late.finish(final=False)
    assert late.last is not None
    assert [file.path for file in late.last.files] == ["model"]


def test_request_stays_pending_if_its_files_changed_before_their_upload(
    script: Script, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the script would be stopped, and its last write could not be trusted."""
    upload, pending = CheckpointStore.commit, list[bool]()

    def commit(store: CheckpointStore, *args: Any) -> object:
        pending.append(late.is_requested)
        if len(pending) == 2:
            raise UnsettledError("model was written to in place")
        return upload(store, *args)

    def take(snapshots: Snapshotter, *args: Any, **options: Any) -> Snapshot:
        pending.append(late.is_requested)
        return taken(snapshots, *args, **options)

    taken = Snapshotter.take
    monkeypatch.setattr(CheckpointStore, "commit", commit)
    script.write("a")
    monkeypatch.setattr(Snapshotter, "take", take)
    late = script.another(interval_s=3600)
    late.request(settle_s=0)
    late.start()
    until(lambda: late.committed)
    late.finish(final=False)
    assert pending == [True, False, True, False]


def test_request_is_pending_until_the_folder_settles(script: Script, until: Until) -> None:
    half = script.folder / "model"
    with half.open("w") as model:
        model.write("half")
        model.flush()
        late = script.another(interval_s=3600)
        late.start()
        late.request(settle_s=3600)
        assert late.is_requested
        assert not late.committed
    until(lambda: late.committed)
    assert not late.is_requested
    late.finish(final=False)


@pytest.mark.slow
def test_unreachable_storage_is_reported_once_and_retried(
    script: Script, service: FakeBlobs, until: Until
) -> None:
    service.away.set()
    script.write("a")
    script.thread.start()
    until(lambda: len(service.requests) > 10)
    assert len(script.messages()) == 1
    assert "could not commit a checkpoint" in str(script.thread.problem)
    service.away.clear()
    until(lambda: script.thread.committed)
    assert script.thread.problem is None


def test_commit_pause_follows_interval_and_duration() -> None:
    assert commit_pause_s(60, 1, failed=False) == 59
    assert commit_pause_s(60, 50, failed=False) == 50
    assert commit_pause_s(60, 600, failed=False) == 600
    assert commit_pause_s(60, 600, failed=True) == 60  # storage may work again


@pytest.fixture
def half_written(script: Script, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let the first file be open for writing. Return whether each try was allowed to take it."""
    tries: list[bool] = []
    take = Snapshotter.take

    def take_closed(self: Snapshotter, listing: Any, **how: bool) -> Any:
        tries.append(how.get("allow_incomplete", False))
        if not tries[-1] and (script.folder / "model").read_text() == "half":
            raise IncompleteFileError("model is open for writing")
        return take(self, listing, **how)

    monkeypatch.setattr(Snapshotter, "take", take_closed)
    monkeypatch.setattr(committer, "SETTLE_S", 0.0)
    script.write("half")
    return tries


def test_open_file_is_committed_once_it_is_closed(
    script: Script, until: Until, half_written: list[bool]
) -> None:
    script.thread.start()
    until(lambda: len(half_written) > 3)
    assert script.thread.committed == 0
    script.write("whole")
    until(lambda: script.thread.committed)
    assert (any(half_written), script.messages()) == (False, [])


def test_file_that_stays_open_is_committed_after_a_minute(
    script: Script, until: Until, half_written: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert committer.INCOMPLETE_WAIT_S == 60.0
    monkeypatch.setattr(committer, "INCOMPLETE_WAIT_S", 0.0)
    script.thread.start()
    until(lambda: script.thread.committed)
    assert half_written[-1]


def test_file_that_a_killed_script_left_open_is_not_committed(
    script: Script, half_written: list[bool]
) -> None:
    script.thread.start()
    script.thread.finish(final=True, alive_ns=time.time_ns(), timeout_s=60)
    assert script.thread.committed == 0
    assert script.messages() == ["could not take a checkpoint: model is open for writing"]
    assert not any(half_written)


def test_full_disk_is_reported_once_and_retried(
    script: Script, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []

    def full(*args: object) -> None:
        tries.append(args)
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Snapshotter, "_link", full)
        script.write("a")
        script.thread.start()
        until(lambda: len(tries) > 3)
    assert script.messages() == ["could not take a checkpoint: the node's disk is full"]
    until(lambda: script.thread.committed)


def test_nothing_is_committed_while_the_disk_is_full(
    script: Script, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.write("a")
    script.thread.start()
    until(lambda: script.thread.committed)
    full = ["the node's disk is full (9 of 9 MiB used)"]
    monkeypatch.setattr(committer, "full_disk_text", lambda _: full and full[0])
    script.write("half of it")
    until(script.messages)
    assert script.messages() == [f"no checkpoint is taken, as files may be incomplete: {full[0]}"]
    assert script.thread.committed == 1
    full.clear()
    until(lambda: script.thread.committed == 2)
    script.thread.finish(final=False)


def test_unreadable_file_is_named(
    script: Script, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(snapshot_module, "hash_file", refuse)
    script.write("a")
    script.thread.start()
    until(script.messages)
    problem = "could not take a checkpoint: [Errno 13] Permission denied: 'model'"
    assert script.messages() == [problem]


def test_size_problem_is_reported_again_after_a_commit(script: Script, until: Until) -> None:
    script.write("x" * 2000)
    script.thread.start()
    until(script.messages)
    script.write("x")
    until(lambda: script.thread.committed)
    script.write("x" * 2000)
    until(lambda: len(script.messages()) == 2)
    assert script.thread.committed == 1
    assert "max_size" in str(script.thread.problem)


def test_deleted_folder_leaves_the_checkpoints(
    script: Script, service: FakeBlobs, until: Until
) -> None:
    script.write("a")
    script.thread.start()
    until(lambda: script.thread.committed)
    shutil.rmtree(script.folder)
    script.thread.finish(final=True, timeout_s=120)
    assert (script.thread.committed, script.messages()) == (1, [])
    assert "r-1/checkpoints/1/manifest.json" in service.blobs


def test_file_instead_of_the_folder_is_reported(script: Script, until: Until) -> None:
    script.write("a")
    script.thread.start()
    until(lambda: script.thread.committed)
    shutil.rmtree(script.folder)
    script.folder.write_text("no folder")
    until(script.messages)
    assert "Not a directory" in script.messages()[0]


def test_snapshot_of_a_dead_script_is_dropped(script: Script, service: FakeBlobs) -> None:
    script.runs = False
    script.write("a")
    script.thread.start()
    script.thread.request()
    script.thread.finish(final=False)
    script.thread.join(60)
    assert [name for name in service.blobs if name.endswith("manifest.json")] == []


def test_later_attempt_stops_commits_of_earlier_one(
    script: Script, service: FakeBlobs, until: Until
) -> None:
    service.put("r-1/attempts/2/start.json", b"{}")
    script.write("a")
    script.thread.start()
    until(script.messages)
    assert script.messages() == ["a later attempt has begun: this one commits no more checkpoints"]
    assert [name for name in service.blobs if "/checkpoints/" in name] == []


def test_many_files_are_reported_once_and_committed(
    script: Script, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committer, "MANY_FILES", 3)
    monkeypatch.setattr(committer, "PROGRESS_EVERY_S", 0.0)
    for number in range(4):
        (script.folder / str(number)).write_text(f"{number}")
    script.thread.start()
    until(lambda: script.thread.committed == 1)
    script.write("more", "5")
    until(lambda: script.thread.committed == 2)
    script.thread.finish(final=True)
    assert len(script.messages()) == 1
    assert script.messages()[0].startswith("the checkpoint folder holds 4 files, each a request: ")
    assert "5 files" in str(script.thread.summary()["problem"])
    sent = [text for text in script.messages("progress") if "uploading" in text]
    assert "uploading a checkpoint: 4 of 4 requests" in sent
    assert checkpoint_problem_of(script) == script.thread.problem


def test_too_many_files_are_reported_and_not_read(
    script: Script, until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_listing_module, "MAX_FILES", 3)
    for number in range(4):
        (script.folder / str(number)).write_text(f"{number}")
    script.thread.start()
    until(script.messages)
    assert "nothing is committed" in script.messages()[0]
    assert checkpoint_problem_of(script) == script.messages()[0]
    (script.folder / "0").unlink()
    until(lambda: script.thread.committed == 1)
    script.thread.finish(final=True)
    assert script.thread.problem is None
    assert checkpoint_problem_of(script) is None


def checkpoint_problem_of(script: Script) -> str | None:
    """Return the problem that `runner show` reads during the run."""

    class Events:
        def read(self, name: str) -> bytes:
            assert name == "r-1/attempts/1/events.jsonl"
            return script.written()

    return checkpoint_problem(cast("BlobContainer", Events()), "r-1", 1)
