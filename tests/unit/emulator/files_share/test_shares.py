"""Shares as folders: access to mount them, and their state after a restart."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from batch_emulator.files_share.shares import (
    Item,
    NoSuchShareError,
    Share,
    Shares,
    StorageAccount,
    WrongAccountError,
    WrongKeyError,
)

ACCOUNT = StorageAccount("account", "a2V5")


@pytest.fixture
def shares(tmp_path: Path) -> Generator[Shares]:
    found = Shares(tmp_path, ACCOUNT)
    yield found
    found.close()


def test_folder_of_a_share_needs_the_account_and_its_key(shares: Shares) -> None:
    assert shares.create(Share("data", 1, 1))
    folder = shares.folder("account", "data", "a2V5")
    assert folder == shares.root / "data"
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("account", "share", "key", "error"),
    [
        ("other", "data", "a2V5", WrongAccountError),
        ("account", "data", "d3Jvbmc=", WrongKeyError),
        ("account", "data", "", WrongKeyError),
        ("account", "none", "a2V5", NoSuchShareError),
        ("account", "../..", "a2V5", NoSuchShareError),
        ("account", ".trash", "a2V5", NoSuchShareError),
    ],
)
def test_folder_of_a_share_is_refused_for_other_names_and_keys(
    shares: Shares, account: str, share: str, key: str, error: type[Exception]
) -> None:
    shares.create(Share("data", 1, 1))
    with pytest.raises(error) as raised:
        shares.folder(account, share, key)
    assert not key or key not in str(raised.value)


def test_deleting_a_share_deletes_its_files(shares: Shares) -> None:
    shares.create(Share("data", 1, 1))
    (shares.path("data") / "file").write_text("x")
    shares.delete("data")
    assert shares.get("data") is None
    assert not (shares.root / "data").exists()
    assert shares.create(Share("data", 2, 2))
    assert list(shares.path("data").iterdir()) == []


def test_shares_survive_a_restart_and_include_manual_folders(tmp_path: Path) -> None:
    first = Shares(tmp_path, ACCOUNT)
    first.create(Share("data", 1, 1, quota_gib=7, metadata={"a": "b"}))
    first.close()
    (tmp_path / "shares" / "byhand").mkdir()
    (tmp_path / "shares" / "No_Share").mkdir()
    second = Shares(tmp_path, ACCOUNT)
    assert [share.name for share in second.records.shares()] == ["byhand", "data"]
    assert second.get("data") == Share("data", 1, 1, quota_gib=7, metadata={"a": "b"})
    second.close()


def test_metadata_of_a_file_belongs_to_its_inode(shares: Shares) -> None:
    shares.records.put_item("data", "a/b", 5, Item(metadata={"k": "v"}))
    assert shares.records.item("data", "a/b", 5).metadata == {"k": "v"}
    assert shares.records.item("data", "a/b", 6) == Item()


def test_metadata_moves_with_its_directory(shares: Shares) -> None:
    for path in ("a", "a/b", "ab", "a0", "new/stale"):
        shares.records.put_item("data", path, 5, Item(metadata={"was": path}))
    shares.records.move_items("data", "a", "new")
    found = {path: shares.records.item("data", path, 5).metadata for path in
             ("new", "new/b", "ab", "a0", "a", "new/stale")}  # fmt: skip
    assert found == {
        "new": {"was": "a"},
        "new/b": {"was": "a/b"},
        "ab": {"was": "ab"},
        "a0": {"was": "a0"},
        "a": {},
        "new/stale": {},
    }


def test_concurrently_deleted_share_leaves_no_folder(shares: Shares, tmp_path: Path) -> None:
    shares.create(Share("data", 1, 1))
    shares.delete("data")
    assert not shares.path("data").exists()
    shares.close()
    again = Shares(tmp_path, ACCOUNT)
    assert again.get("data") is None
    again.close()
