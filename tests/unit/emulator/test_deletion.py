"""Deletion of folders in any state that tasks left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from batch_emulator import folders
from batch_emulator.executor import node_files
from batch_emulator.files_share.shares import Share, Shares, StorageAccount
from runner.protocol import host
from tests.disks import lock


def dig(folder: Path, levels: int) -> None:
    """Create nested folders, deeper than the maximum length of a path."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("deeper", dir_fd=descriptor)
        below = os.open("deeper", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)


@pytest.fixture(params=[folders, host], ids=["emulator", "runner"])
def remove_tree(request: pytest.FixtureRequest) -> Callable[[Path], None]:
    return request.param.remove_tree


@pytest.mark.parametrize("levels", [3, 3000])
def test_folder_of_any_depth_is_deleted(
    remove_tree: Callable[[Path], None], tmp_path: Path, levels: int
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    dig(folder, levels)
    remove_tree(folder)
    assert not folder.exists()
    remove_tree(folder)


def test_deep_folder_is_deleted_as_a_file_of_its_task(tmp_path: Path) -> None:
    (tmp_path / "wd").mkdir()
    dig(tmp_path / "wd", 3000)
    node_files.delete(tmp_path, "wd", recursive=True)
    assert not (tmp_path / "wd").exists()


@pytest.mark.slow
def test_share_of_any_depth_is_measured_and_deleted(tmp_path: Path) -> None:
    shares = Shares(tmp_path, StorageAccount("account", "a2V5"))
    shares.create(Share("data", 1, 1))
    folder = shares.path("data")
    (folder / "file").write_bytes(b"12345")
    dig(folder, 3000)
    assert shares.usage("data") == 5
    shares.delete("data")
    assert not folder.exists()
    shares.close()


@pytest.mark.slow
def test_remains_of_a_deep_share_do_not_block_a_start(tmp_path: Path) -> None:
    trash = tmp_path / "shares" / ".trash" / "share"
    trash.mkdir(parents=True)
    dig(trash, 3000)
    Shares(tmp_path, StorageAccount("account", "a2V5")).close()
    assert not trash.exists()


def test_folders_without_permissions_are_deleted(
    remove_tree: Callable[[Path], None], tmp_path: Path
) -> None:
    (tmp_path / "doomed").mkdir()
    remove_tree(lock(tmp_path / "doomed"))
    assert list(tmp_path.iterdir()) == []


def test_locked_folder_is_deleted_as_a_file_of_its_task(tmp_path: Path) -> None:
    (tmp_path / "wd").mkdir()
    lock(tmp_path / "wd")
    node_files.delete(tmp_path, "wd/a", recursive=True)
    assert list((tmp_path / "wd").iterdir()) == []
    node_files.delete(tmp_path, "wd", recursive=True)
    assert list(tmp_path.iterdir()) == []


def test_links_are_not_followed(remove_tree: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir(mode=0o500)
    (tmp_path / "doomed").mkdir()
    dig(tmp_path / "doomed", 1200)
    (tmp_path / "doomed" / "link").symlink_to(tmp_path / "kept")
    remove_tree(tmp_path / "doomed")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o500
