"""Azure Files: the folder that tasks mount and the REST view are the same files."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path

import pytest

from batch_emulator.files_share.shares import StorageAccount
from batch_emulator.server import Server
from tests.contract.files_service import ACCOUNT, KEY, Files, serving_files


def test_files_written_by_a_task_are_read_over_rest(files: Files) -> None:
    share = files.share()
    folder = files.folder(share) / "out"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"weights")
    os.utime(folder / "model.pt", (1e9, 1e9))
    file = share.get_file_client("out/model.pt")
    found = file.get_file_properties()
    assert (found.size, found.metadata, found.file_attributes) == (7, {}, "Archive")
    assert found.last_write_time == datetime.fromtimestamp(1e9, UTC)
    assert found.content_settings.content_type == "application/octet-stream"
    assert file.download_file().readall() == b"weights"
    (listed,) = share.list_directories_and_files("out", include=["timestamps"])
    assert listed.size == 7


def test_files_written_over_rest_are_read_by_a_task(files: Files) -> None:
    share = files.share()
    share.create_directory("in")
    share.get_file_client("in/data").upload_file(b"data")
    assert (files.folder(share) / "in" / "data").read_bytes() == b"data"
    share.get_file_client("in/data").delete_file()
    assert list((files.folder(share) / "in").iterdir()) == []


def test_append_by_a_task_changes_size_and_etag(files: Files) -> None:
    share = files.share()
    file = share.get_file_client("log")
    file.upload_file(b"one", metadata={"k": "v"})
    before = file.get_file_properties()
    with (files.folder(share) / "log").open("ab") as log:
        log.write(b"two")
    after = file.get_file_properties()
    assert after.size == 6
    assert after.etag != before.etag
    assert after.metadata == {"k": "v"}


def test_file_replaced_by_a_task_loses_its_metadata(files: Files) -> None:
    share = files.share()
    file = share.get_file_client("f")
    file.upload_file(b"old", metadata={"k": "v"})
    new = files.folder(share) / "new"
    new.write_bytes(b"new")
    new.rename(files.folder(share) / "f")
    assert file.download_file().readall() == b"new"
    assert file.get_file_properties().metadata == {}


def test_links_are_not_followed(files: Files, tmp_path: Path) -> None:
    share = files.share()
    folder = files.folder(share)
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (folder / "file-link").symlink_to(secret)
    (folder / "dir-link").symlink_to(tmp_path)
    (folder / "up").symlink_to("..")
    assert list(share.list_directories_and_files()) == []
    assert not share.get_file_client("file-link").exists()
    with pytest.raises(Exception, match="ResourceTypeMismatch"):
        share.get_file_client("file-link").create_file(1)
    for path in ("dir-link/secret", "dir-link/new", "up/x"):
        with pytest.raises(Exception, match="ParentNotFound"):
            share.get_file_client(path).create_file(1)
        with pytest.raises(Exception, match="ParentNotFound"):
            share.get_file_client(path).download_file()
    with pytest.raises(Exception, match="ResourceNotFound"):
        list(share.list_directories_and_files("dir-link"))
    assert secret.read_text() == "secret"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret"]


def test_link_replacing_a_file_is_not_followed(files: Files, tmp_path: Path) -> None:
    share = files.share()
    file = share.get_file_client("f")
    file.upload_file(b"x")
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (files.folder(share) / "f").unlink()
    (files.folder(share) / "f").symlink_to(secret)
    with pytest.raises(Exception, match="ResourceNotFound"):
        file.upload_range(b"y", offset=0, length=1)
    with pytest.raises(Exception, match="ResourceNotFound"):
        file.delete_file()
    assert secret.read_text() == "secret"


def test_pipes_and_sockets_are_not_found(files: Files) -> None:
    share = files.share()
    os.mkfifo(files.folder(share) / "pipe")
    here = Path.cwd()
    os.chdir(files.folder(share))
    try:
        with socket.socket(socket.AF_UNIX) as unix:
            unix.bind("socket")
    finally:
        os.chdir(here)
    for name in ("pipe", "socket"):
        assert not share.get_file_client(name).exists()
        with pytest.raises(Exception, match="ResourceNotFound"):
            share.get_file_client(name).download_file()
    assert list(share.list_directories_and_files()) == []


def test_a_share_survives_a_restart(tmp_path: Path) -> None:
    with serving_files(tmp_path) as files:
        share = files.share(metadata={"k": "v"})
        share.get_file_client("f").upload_file(b"x", metadata={"a": "b"})
        before = share.get_file_client("f").get_file_properties()
    with serving_files(tmp_path) as files:
        again = files.service.get_share_client(share.share_name)
        assert again.get_share_properties().metadata == {"k": "v"}
        after = again.get_file_client("f").get_file_properties()
        assert (after.metadata, after.etag) == ({"a": "b"}, before.etag)


def test_folder_deleted_by_hand_is_recreated_empty(files: Files) -> None:
    share = files.share()
    files.folder(share).rmdir()
    assert list(share.list_directories_and_files()) == []


def test_an_emulator_without_a_storage_account_serves_no_files(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        assert server.files_url is None
        assert not (tmp_path / "shares").exists()


def test_folder_to_mount_contains_the_files_of_the_share(tmp_path: Path) -> None:
    with Server(tmp_path, storage=StorageAccount(ACCOUNT, KEY)) as server:
        files = Files(server.files_url or "", tmp_path / "shares", None)
        files.service = files.connect()
        share = files.share()
        assert server.emulator is not None
        assert server.emulator.shares is not None
        folder = server.emulator.shares.folder(ACCOUNT, share.share_name, KEY)
        (folder / "f").write_text("x")
        assert share.get_file_client("f").download_file().readall() == b"x"
