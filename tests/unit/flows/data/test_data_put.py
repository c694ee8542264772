"""`runner data put`: the blobs of its sources."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.storage.blob import BlobServiceClient

from runner.azure.auth.credentials import Connection
from runner.azure.storage.stores import ChangedError, FileStore, StoredFile
from runner.core.progress import Progress, ignore_progress
from runner.core.storage_paths import StoragePath
from runner.flows.data.commands import place_to_remove, sources_and_place
from runner.flows.data.stores import open_store
from runner.flows.data.transfer import plan_put, put_files
from runner.flows.local.state import LocalState, local_outputs
from runner.protocol.errors import RunnerError


class _Empty:
    """A store in which nothing lies."""

    def list(self, _folder: str) -> Iterator[StoredFile]:
        return iter(())

    def find(self, _path: str) -> StoredFile | None:
        return None

    def close(self) -> None:
        return None


STORE = cast("FileStore", _Empty())


def test_two_files_for_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("left", "right"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.txt").write_text(folder)
    sources = [tmp_path / "left" / "a.txt", tmp_path / "right" / "a.txt"]
    with pytest.raises(RunnerError) as caught:
        plan_put(STORE, sources, StoragePath("data", "both"), ignore_progress)
    assert caught.value.code == "R-DATA-SAME-NAME"
    assert "both/a.txt" in caught.value.what


@pytest.mark.parametrize("name", ["why?", "a:b", "dot."])
def test_name_invalid_on_a_share_is_refused_before_any_upload(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("a")
    plan_put(STORE, [tmp_path], StoragePath("data", "x"), ignore_progress)
    with pytest.raises(RunnerError) as caught:
        plan_put(STORE, [tmp_path], StoragePath("share", "x"), ignore_progress)
    assert caught.value.code == "R-DATA-PATH"


class _Overtaken(_Empty):
    """Somebody else writes `content` just before each put."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def put(self, path: str, *_: object) -> None:
        raise ChangedError(path)

    def find(self, _path: str) -> StoredFile | None:
        digest = hashlib.md5(self._content, usedforsecurity=False).digest()
        return StoredFile(_path, len(self._content), digest, "1", None)


def test_concurrent_upload_of_the_same_content_is_a_success(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("mine")
    uploads = plan_put(STORE, [tmp_path], StoragePath("data", "x"), ignore_progress)
    put_files(cast("FileStore", _Overtaken(b"mine")), uploads, ignore_progress)
    with pytest.raises(RunnerError) as caught:
        put_files(cast("FileStore", _Overtaken(b"them")), uploads, ignore_progress)
    assert caught.value.code == "R-DATA-CHANGED"


def test_skipped_pipes_and_links_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "sub").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "circle").symlink_to(tmp_path)
    seen: list[Any] = []

    def on_progress(progress: Progress) -> None:
        seen.append(progress)

    uploads = plan_put(STORE, [tmp_path], StoragePath("data", "x"), on_progress)
    assert [upload.path for upload in uploads] == ["x/a.txt"]
    said = str(seen[-1])
    assert all(name in said for name in ("pipe", "nowhere", "circle"))
    assert "sub" not in said.replace(str(tmp_path), "")


def test_missing_container_is_named() -> None:
    class Connected:
        outputs = local_outputs(LocalState(20001, 20002, 1, 1))

        def blob_service(self) -> BlobServiceClient:
            return BlobServiceClient("http://127.0.0.1:1/account", "sig=x")

    connection = cast("Connection", Connected())
    with pytest.raises(RunnerError) as caught, open_store(connection, "pets"):
        raise RunnerError("R-CONTAINER-MISSING", "a storage container does not exist", fix="up")
    assert caught.value.code == "R-DATA-NO-CONTAINER"
    assert "'pets'" in caught.value.what
    with pytest.raises(RunnerError) as caught, open_store(connection, "data"):
        raise RunnerError("R-CONTAINER-MISSING", "a storage container does not exist", fix="up")
    assert caught.value.code == "R-CONTAINER-MISSING"


@pytest.mark.parametrize(
    ("sources", "dest", "code"),
    [
        ([""], None, "R-DATA-MISSING"),
        ([], "x", "R-DATA-MISSING"),
        (["a", "b"], None, "R-DATA-DEST"),
        (["a\0b"], None, "R-DATA-MISSING"),
    ],
)
def test_missing_source_is_not_the_current_folder(
    sources: list[str], dest: str | None, code: str
) -> None:
    with pytest.raises(RunnerError) as caught:
        sources_and_place(sources, dest, "data")
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("sources", "dest", "place"),
    [
        (["x/a.txt"], None, "data:a.txt"),
        (["x/a.txt"], "b.txt", "data:b.txt"),
        (["x/a.txt"], "b/", "data:b/a.txt"),
        (["x/a.txt"], "share:", "share:a.txt"),
        (["x"], "share:", "share:"),
        (["x", "x/a.txt"], "b", "data:b"),
    ],
)
def test_single_source_keeps_its_name_in_a_folder(
    sources: list[str],
    dest: str | None,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.txt").write_text("a")
    assert str(sources_and_place(sources, dest, "data")[1]) == place


def test_container_is_emptied_only_if_it_is_named() -> None:
    outputs = local_outputs(LocalState(20001, 20002, 1, 1))
    connection = cast("Connection", SimpleNamespace(outputs=outputs))
    for path in ("", "/"):
        with pytest.raises(RunnerError) as caught:
            place_to_remove(connection, path)
        assert caught.value.code == "R-DATA-ALL"
        assert caught.value.fix == "to remove everything, use data:"
    assert str(place_to_remove(connection, "data:")) == "data:"
    with pytest.raises(RunnerError) as ours:
        place_to_remove(connection, "runs:")
    assert ours.value.code == "R-DATA-OURS"
