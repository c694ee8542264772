"""Commits and restores: a restored checkpoint is complete and the newest possible one."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.node.checkpoints import snapshot as snapshot_module
from runner.node.checkpoints import store as checkpoint_store_module
from runner.node.checkpoints.restore import (
    CheckpointRestore,
    RestoredCheckpoint,
    find_checkpoints,
)
from runner.node.checkpoints.snapshot import Snapshotter, UnsettledError, list_folder
from runner.node.checkpoints.store import CheckpointStore
from runner.node.failures import StageFailedError
from runner.node.storage.auth import SasCredential
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError, Transport
from runner.node.storage.retries import RetryBudget
from runner.protocol.checkpoints import CheckpointManifest
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import ResumeFrom
from tests.repetition import slow_after
from tests.unit.node.attempt_parts import context_of
from tests.unit.node.fake_blob import FakeBlobs

RUN = "mnist-1"


class Attempt:
    """The folder and the checkpoints of one attempt."""

    def __init__(self, tmp_path: Path, service: FakeBlobs, number: int, keep: int = 2) -> None:
        self.number = number
        self.folder = tmp_path / f"{number}" / "checkpoints"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.retry_budget = RetryBudget(0.0)
        transport = Transport(service.url, SasCredential("s"), self.retry_budget, 60.0)
        self.container = ContainerClient(transport)
        self.snapshots = Snapshotter(self.folder, self.folder.with_name("snapshots"))
        self.store = CheckpointStore(self.container, RunPaths(RUN), number, keep)

    def write(self, version: int, files: int = 3) -> None:
        for number in range(files):
            (self.folder / f"w{number}").write_text(f"{version}.{number}" * 10)

    def commit(self, step: int | None = None) -> CheckpointManifest:
        taken = self.snapshots.take(list_folder(self.folder), strict=False)
        made = self.store.commit(taken, step)
        self.snapshots.keep_only(taken)
        return made

    def restore(
        self, resume_from: ResumeFrom | None = None, local: Path | None = None
    ) -> RestoredCheckpoint | None:
        context = context_of(
            self.container, run_id=RUN, retry_budget=self.retry_budget, checkpoints=self.folder
        )
        resume = CheckpointRestore(context, local or self.folder.with_name("nothing"))
        return resume.restore(self.number, resume_from)

    def version(self) -> str:
        """Return the version in all files, which must be equal."""
        texts = [path.read_text() for path in sorted(self.folder.iterdir())]
        versions = {text.partition(".")[0] for text in texts}
        assert len(versions) == 1, texts
        assert texts == [f"{v}.{n}" * 10 for v in versions for n in range(len(texts))]
        return versions.pop()


Make = Callable[..., Attempt]


@pytest.fixture
def make(tmp_path: Path, service: FakeBlobs) -> Make:
    return lambda number, **more: Attempt(tmp_path, service, number, **more)


def commits(attempt: Attempt, count: int, first: int = 1) -> None:
    for version in range(first, first + count):
        attempt.write(version)
        attempt.commit()


def test_newest_checkpoint_is_restored(make: Make) -> None:
    commits(make(1), 3)
    second = make(2)
    restored = second.restore()
    assert restored is not None
    assert (restored.checkpoint.number, restored.skipped) == (3, ())
    assert second.version() == "3"


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_interrupted_commit_leaves_previous_checkpoint(
    make: Make, service: FakeBlobs, tmp_path: Path, lost: bool
) -> None:
    cut = 0
    seen: set[str] = set()
    while True:
        cut += 1
        service.blobs.clear()
        service.away_from, service.done_when_lost = None, lost
        first = make(10 * cut + 1)
        commits(first, 3)
        first.write(4)
        service.away_from = len(service.requests) + cut
        with contextlib.suppress(StorageRequestError):
            first.commit()
        finished = len(service.requests) < service.away_from
        service.away_from = None
        second = make(10 * cut + 2)
        restored = second.restore()
        assert restored is not None
        assert (restored.checkpoint.number, restored.skipped) in ((3, ()), (4, ()))
        assert second.version() == str(restored.checkpoint.number)
        seen.add(second.version())
        second.write(5)
        assert second.commit().number > restored.checkpoint.number
        third = make(10 * cut + 3)
        assert third.restore() is not None
        assert third.version() == "5"
        if finished:
            break
    assert (seen, cut > 8) == ({"3", "4"}, True)


def damage(service: FakeBlobs, manifest: dict[str, Any], how: str) -> None:
    name = manifest["files"][1]["blob"]
    if how == "missing":
        del service.blobs[name]
    elif how == "shorter":
        del service.blobs[name].data[-1:]
    elif how == "other":
        service.blobs[name].data[0] ^= 1
    elif how == "manifest":
        del service.blobs[f"{RUN}/checkpoints/{manifest['checkpoint']}/manifest.json"].data[-9:]
    elif how == "newer":
        service.put(
            f"{RUN}/checkpoints/{manifest['checkpoint']}/manifest.json",
            json.dumps({**manifest, "format": 2}).encode(),
        )
    else:
        manifest["files"][1]["path"] = how
        service.put(
            f"{RUN}/checkpoints/{manifest['checkpoint']}/manifest.json",
            json.dumps(manifest).encode(),
        )


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("missing", "w1 is missing"),
        ("shorter", "bytes long, not"),
        ("other", "has the sha256"),
        ("manifest", "its manifest is damaged"),
        ("newer", "its format is 2"),
        ("../../escape", "leaves the folder"),
        ("/etc/escape", "leaves the folder"),
    ],
)
def test_damaged_checkpoint_is_skipped_with_its_reason(
    make: Make, service: FakeBlobs, how: str, why: str
) -> None:
    commits(make(1), 3)
    damage(service, json.loads(service.data(f"{RUN}/checkpoints/3/manifest.json")), how)
    second = make(2)
    restored = second.restore()
    assert restored is not None
    assert (restored.checkpoint.number, second.version()) == (2, "2")
    [skipped] = restored.skipped
    assert why in skipped


def test_run_with_only_damaged_checkpoints_starts_over(make: Make, service: FakeBlobs) -> None:
    commits(make(1), 2)
    for name in [name for name in service.blobs if "/files/" in name]:
        del service.blobs[name]
    second = make(2)
    assert second.restore() is None
    assert list(second.folder.iterdir()) == []
    with pytest.raises(StageFailedError) as caught:
        second.restore(ResumeFrom("other-1", None))
    assert caught.value.code == "CheckpointMissing"


def test_stale_attempt_does_not_affect_newer_checkpoints(make: Make, service: FakeBlobs) -> None:
    stale, newer = make(1), make(2)
    commits(stale, 2)
    newer.restore()
    commits(newer, 1, first=100)
    commits(stale, 5, first=3)
    for name in [name for name in service.blobs if "/files/1/" in name]:
        del service.blobs[name]
    third = make(3)
    restored = third.restore()
    assert restored is not None
    assert (restored.checkpoint.attempt, third.version(), restored.skipped) == (2, "100", ())


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_after(2, range(10)))
def test_racing_attempts_leave_newest_checkpoint_complete(
    make: Make, service: FakeBlobs, seed: int
) -> None:
    service.delays = random.Random(seed)
    attempts = [make(1), make(2)]
    threads = [
        threading.Thread(target=commits, args=(attempt, 6, 100 * attempt.number))
        for attempt in attempts
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    service.delays = None
    found = find_checkpoints(attempts[0].container, RUN)
    numbers = [checkpoint.number for checkpoint in found.checkpoints]
    assert len(numbers) == len(set(numbers))
    third = make(3)
    restored = third.restore()
    assert restored is not None
    assert (restored.checkpoint.attempt, third.version(), restored.skipped) == (2, "205", ())


def test_unchanged_files_are_not_uploaded_again(make: Make, service: FakeBlobs) -> None:
    first = make(1)
    first.write(1)
    first.commit()
    (first.folder / "w0").write_text("other")
    before = len(service.requests)
    first.commit()
    puts = [path for method, path, _ in service.requests[before:] if method == "PUT"]
    assert len([path for path in puts if "/files/" in path]) == 1


def test_file_lost_by_storage_is_uploaded_again(make: Make, service: FakeBlobs) -> None:
    first = make(1)
    first.write(1)
    lost = first.commit().files[0]
    del service.blobs[lost.blob]
    (first.folder / "w1").write_text("other")
    first.commit()
    assert lost.blob in service.blobs


def test_large_file_is_uploaded_in_blocks_and_restored(
    make: Make, service: FakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = random.Random(1).randbytes(3 * snapshot_module.BLOCK_BYTES + 5)
    first, second = make(1), make(2)
    (first.folder / "model").write_bytes(data)
    first.commit()
    assert len([path for _, path, _ in service.requests if "comp=block&" in path]) == 4
    service.cut_after = 1_000_000
    second.retry_budget = RetryBudget(20.0)
    restored = second.restore()
    assert restored is not None
    assert (second.folder / "model").read_bytes() == data


def test_file_written_in_place_after_its_hash_is_not_committed(
    make: Make, service: FakeBlobs
) -> None:
    first = make(1)
    first.write(1)
    taken = first.snapshots.take(list_folder(first.folder), strict=False)
    with (first.folder / "w1").open("r+") as out:
        out.write("torn")
    with pytest.raises(UnsettledError):
        first.store.commit(taken, None)
    assert not [name for name in service.blobs if name.endswith("manifest.json")]


@pytest.mark.parametrize("blocks", [1, 2])
def test_file_truncated_after_its_hash_is_not_committed(
    make: Make, service: FakeBlobs, monkeypatch: pytest.MonkeyPatch, blocks: int
) -> None:
    monkeypatch.setattr(snapshot_module, "BLOCK_BYTES", 64)
    monkeypatch.setattr(checkpoint_store_module, "BLOCK_BYTES", 64)
    first = make(1, keep=1)
    (first.folder / "model").write_bytes(b"a" * 64 * blocks)
    first.commit()
    (first.folder / "model").write_bytes(b"b" * 64 * blocks)
    taken = first.snapshots.take(list_folder(first.folder), strict=False)
    with (first.folder / "model").open("wb"), pytest.raises(UnsettledError):
        first.store.commit(taken, None)
    second = make(2)
    assert second.restore() is not None
    assert (second.folder / "model").read_bytes() == b"a" * 64 * blocks


def test_empty_file_written_after_its_hash_is_not_committed(make: Make) -> None:
    first = make(1)
    (first.folder / "model").touch()
    taken = first.snapshots.take(list_folder(first.folder), strict=False)
    (first.folder / "model").write_text("weights")
    with pytest.raises(UnsettledError):
        first.store.commit(taken, None)


def test_checkpoint_deleted_during_restore_is_replaced_by_next(
    make: Make, service: FakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    stale = make(1, keep=1)
    commits(stale, 1)
    fetch = CheckpointRestore._fetch_all
    newer = iter((2, 3))

    def slow(self: CheckpointRestore, *arguments: Any) -> None:
        if (version := next(newer, None)) is not None:
            commits(stale, 1, first=version)
        fetch(self, *arguments)

    monkeypatch.setattr(CheckpointRestore, "_fetch_all", slow)
    second = make(2)
    restored = second.restore()
    assert restored is not None
    assert (restored.checkpoint.number, second.version()) == (3, "3")
    assert [skipped.partition(":")[0] for skipped in restored.skipped] == [
        "checkpoint 1 of attempt 1",
        "checkpoint 2 of attempt 1",
    ]


def test_local_files_are_used_only_with_the_right_hash(make: Make, service: FakeBlobs) -> None:
    commits(make(1), 1)
    held = sorted(make(1).folder.with_name("snapshots").iterdir())
    held[0].write_bytes(b"written in place since".ljust(held[0].stat().st_size, b"."))
    before = len(service.requests)
    second = make(2)
    assert second.restore(local=held[0].parent) is not None
    assert second.version() == "1"
    fetched = [p for m, p, _ in service.requests[before:] if m == "GET" and "/files/1/" in p]
    assert len(fetched) == 1


def test_stale_attempt_deletes_no_newer_files(make: Make, service: FakeBlobs) -> None:
    stale = make(1)
    commits(stale, 1)
    service.put(f"{RUN}/checkpoints/files/2/{'0' * 64}", b"the newer one has no manifest yet")
    commits(stale, 3, first=2)
    assert f"{RUN}/checkpoints/files/2/{'0' * 64}" in service.blobs


def test_truncated_blob_is_uploaded_again(make: Make, service: FakeBlobs) -> None:
    first = make(1)
    first.write(1)
    half = first.commit().files[0]
    service.put(half.blob, b"half")
    (first.folder / "w1").write_text("other")
    first.commit()
    assert len(service.data(half.blob)) == half.size_bytes


def test_refused_delete_does_not_fail_the_commit(make: Make, service: FakeBlobs) -> None:
    first = make(1, keep=1)
    commits(first, 1)
    service.refuse_delete = True
    commits(first, 2, first=2)
    second = make(2)
    assert second.restore() is not None
    assert second.version() == "3"


def test_file_permissions_are_restored(make: Make) -> None:
    first = make(1)
    for name, mode in (("run.sh", 0o755), ("secret", 0o600), ("same", 0o644)):
        (first.folder / name).write_text("content")  # all share one blob
        (first.folder / name).chmod(mode)
    made = first.commit()
    assert {file.blob for file in made.files} == {made.files[0].blob}
    second = make(2)
    assert second.restore() is not None
    modes = {path.name: path.stat().st_mode & 0o777 for path in second.folder.iterdir()}
    assert modes == {"run.sh": 0o755, "secret": 0o600, "same": 0o644}


def test_changed_permissions_alone_are_committed(make: Make) -> None:
    first = make(1)
    first.write(1, files=1)
    before = first.snapshots.take(list_folder(first.folder), strict=False)
    (first.folder / "w0").chmod(0o755)
    after = first.snapshots.take(list_folder(first.folder), strict=False)
    assert before.content != after.content


def test_old_manifest_without_permissions_is_restored(make: Make, service: FakeBlobs) -> None:
    first = make(1)
    first.write(1)
    made = first.commit()
    name = f"{RUN}/checkpoints/{made.number}/manifest.json"
    manifest = json.loads(service.data(name))
    for file in manifest["files"]:
        assert file.pop("mode") == "644"
    service.put(name, json.dumps(manifest).encode())
    second = make(2)
    assert second.restore() is not None
    assert second.version() == "1"
