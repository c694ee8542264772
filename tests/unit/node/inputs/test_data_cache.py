from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.flows.local_files import plan_targets
from runner.node.failures import StageFailedError, TerminatedError
from runner.node.inputs import data_cache as data_module
from runner.node.inputs.data_cache import DataCache, part_path
from runner.node.script.protection import NODES_VARIABLE
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.retries import RetryBudget
from runner.protocol.run_spec import DataFile
from tests.disks import needs_ordinary_user
from tests.unit.node.fake_blob import FakeBlobs

PREFIX = "mnist/0123/"
CONTENT = {"a.gz": b"a" * 3000, "deep/b.gz": b"b" * 10, "empty": b""}


def files(content: dict[str, bytes]) -> list[DataFile]:
    return [DataFile(n, len(d), hashlib.sha256(d).hexdigest()) for n, d in content.items()]


@pytest.fixture
def make_cache(
    container: ContainerClient, retry_budget: RetryBudget, tmp_path: Path
) -> Callable[..., DataCache]:
    def make(check: Callable[[], None] = lambda: None) -> DataCache:
        root = tmp_path / "runner" / "data"
        return DataCache(container.transport, root, retry_budget, lambda *_: None, check)

    return make


@pytest.fixture
def stored(service: FakeBlobs) -> FakeBlobs:
    for name, data in CONTENT.items():
        service.put(PREFIX + name, data)
    return service


def test_data_is_fetched_once_per_node(
    make_cache: Callable[..., DataCache], stored: FakeBlobs, tmp_path: Path
) -> None:
    folder = make_cache().ensure(PREFIX, files(CONTENT))
    assert folder == tmp_path / "runner/data/mnist/0123"
    assert {n: (folder / n).read_bytes() for n in CONTENT} == CONTENT
    asked = len(stored.requests)
    make_cache().ensure(PREFIX, files(CONTENT))
    assert len(stored.requests) == asked


def test_blobs_with_equal_file_names_are_two_files(
    make_cache: Callable[..., DataCache], service: FakeBlobs, tmp_path: Path
) -> None:
    """Older versions stored `notes.` without escapes, and a blob may have the name of a folder."""
    content = {"notes.": b"old", "notes%x2E": b"newer", "a": b"file", "a/b": b"in a folder"}
    for name, data in content.items():
        service.put(PREFIX + name, data)
    folder = make_cache().ensure(PREFIX, files(content))
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    planned = plan_targets(tmp_path / "client", content).by_path
    relative = {name: str(path.relative_to(tmp_path / "client")) for name, path in planned.items()}
    assert found == {relative[name]: data for name, data in content.items()}
    assert relative["a/b"] == "a/b"
    assert relative["notes%x2E"] == "notes."


def test_files_that_another_run_added_are_not_seen(
    make_cache: Callable[..., DataCache], stored: FakeBlobs
) -> None:
    folder = make_cache().ensure(PREFIX, files(CONTENT))
    for place in (folder, folder / "deep"):
        place.chmod(0o755)
        (place / "train.cache").write_text("stale")
        (place / "link").symlink_to("/etc")
    (folder / "new" / "folder").mkdir(parents=True)
    (folder / "new" / "folder" / "x").touch()
    asked = len(stored.requests)
    make_cache().ensure(PREFIX, files(CONTENT))
    found = {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}
    assert found == CONTENT.keys()
    assert not (folder / "new").exists()
    assert len(stored.requests) == asked, "the rest is not downloaded again"


def test_file_that_another_run_changed_is_downloaded_again(
    make_cache: Callable[..., DataCache], stored: FakeBlobs
) -> None:
    folder = make_cache().ensure(PREFIX, files(CONTENT))
    (folder / "a.gz").chmod(0o644)
    (folder / "a.gz").write_bytes(b"x" * 3000)
    (folder / "deep").chmod(0o755)
    (folder / "deep" / "b.gz").unlink()
    (folder / "deep" / "b.gz").symlink_to(folder / "a.gz")
    make_cache().ensure(PREFIX, files(CONTENT))
    assert {n: (folder / n).read_bytes() for n in CONTENT} == CONTENT


@needs_ordinary_user
def test_ordinary_user_cannot_add_a_file_to_data(
    make_cache: Callable[..., DataCache], stored: FakeBlobs
) -> None:
    folder = make_cache().ensure(PREFIX, files(CONTENT))
    for place in (folder, folder / "deep"):
        with pytest.raises(PermissionError):
            (place / "train.cache").touch()


def test_folders_of_a_node_of_this_machine_can_be_deleted(
    make_cache: Callable[..., DataCache], stored: FakeBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NODES_VARIABLE, "/nodes")
    folder = make_cache().ensure(PREFIX, files(CONTENT))
    assert folder.stat().st_mode & 0o200


def test_shared_files_cannot_be_overwritten_by_a_script(
    make_cache: Callable[..., DataCache], stored: FakeBlobs
) -> None:
    folder = make_cache().ensure(PREFIX, files(CONTENT))
    assert (folder / "a.gz").stat().st_mode & 0o222 == 0


def test_interrupted_transfer_resumes_where_it_stopped(
    make_cache: Callable[..., DataCache], stored: FakeBlobs
) -> None:
    stored.cut_after = 1000
    folder = make_cache().ensure(PREFIX, files({"a.gz": CONTENT["a.gz"]}))
    assert (folder / "a.gz").read_bytes() == CONTENT["a.gz"]
    assert stored.requests[-1][2]["x-ms-range"] == "bytes=1000-"


def test_damaged_file_is_rejected_and_deleted(
    make_cache: Callable[..., DataCache], stored: FakeBlobs, tmp_path: Path
) -> None:
    stored.put(PREFIX + "a.gz", b"x" * 3000)
    with pytest.raises(StageFailedError, match=r"a\.gz is damaged") as caught:
        make_cache().ensure(PREFIX, files(CONTENT))
    assert caught.value.code == "DataMissing"
    assert not (tmp_path / "runner/data/mnist/0123/a.gz").exists()
    assert not list((tmp_path / "runner/data").rglob("a.gz*"))


def test_missing_file_is_named(make_cache: Callable[..., DataCache], stored: FakeBlobs) -> None:
    with pytest.raises(StageFailedError, match=r"gone\.gz: 404 BlobNotFound"):
        make_cache().ensure(PREFIX, files({"gone.gz": b"x"}))


def test_file_of_wrong_size_is_downloaded_again(
    make_cache: Callable[..., DataCache], stored: FakeBlobs, tmp_path: Path
) -> None:
    folder = tmp_path / "runner/data/mnist/0123"
    folder.mkdir(parents=True)
    (folder / "a.gz").write_bytes(b"half")
    make_cache().ensure(PREFIX, files(CONTENT))
    assert (folder / "a.gz").read_bytes() == CONTENT["a.gz"]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", ""])
def test_name_outside_the_data_set_is_rejected(
    make_cache: Callable[..., DataCache], name: str
) -> None:
    with pytest.raises(StageFailedError, match="not a name inside"):
        make_cache().ensure(PREFIX, files({name: b""}))
    with pytest.raises(StageFailedError, match="not a name inside"):
        make_cache().ensure(f"{name}/", [])


def test_termination_stops_a_download(
    make_cache: Callable[..., DataCache], stored: FakeBlobs
) -> None:
    def check() -> None:
        raise TerminatedError

    with pytest.raises(TerminatedError):
        make_cache(check).ensure(PREFIX, files(CONTENT))


def test_full_disk_has_its_own_error_code(
    make_cache: Callable[..., DataCache],
    stored: FakeBlobs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not os.path.exists("/dev/full"):  # noqa: PTH110 - a device
        pytest.skip("this system has no /dev/full")
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    monkeypatch.setattr(data_module, "part_path", lambda _: full)
    with pytest.raises(StageFailedError) as caught:
        make_cache().ensure(PREFIX, files({"a.gz": CONTENT["a.gz"]}))
    assert caught.value.code == "DiskFull"


def test_remains_of_a_killed_download_are_deleted(
    make_cache: Callable[..., DataCache], stored: FakeBlobs, tmp_path: Path
) -> None:
    folder = tmp_path / "runner/data/mnist/0123"
    folder.mkdir(parents=True)
    part_path(folder / "a.gz").write_bytes(b"half")
    make_cache().ensure(PREFIX, files(CONTENT))
    assert sorted(path.name for path in folder.iterdir()) == ["a.gz", "deep", "empty"]


def test_file_named_like_a_partial_download_stays(
    make_cache: Callable[..., DataCache], service: FakeBlobs
) -> None:
    names = {"train.part-1": b"one", "train.part-2": b"two"}
    for name, data in names.items():
        service.put(PREFIX + name, data)
    make_cache().ensure(PREFIX, files(names))
    before = len(service.requests)
    make_cache().ensure(PREFIX, files(names))
    assert len(service.requests) == before
