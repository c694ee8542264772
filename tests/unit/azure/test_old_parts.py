"""Parts of downloads that were killed are removed by the next download into their folder."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from runner.azure.storage import blobs


def test_parts_of_killed_downloads_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blobs, "_CLEANED", set[Path]())
    killed = tmp_path / ".model.keras.0123abcd.part"
    writing = tmp_path / ".model.keras.89abcdef.part"
    others = [
        tmp_path / name for name in ("a.part", ".a.part", ".a.0123abcd.txt", "b.0123abcd.part")
    ]
    for path in (killed, writing, *others):
        path.touch()
    with writing.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        blobs._remove_old_parts(tmp_path)
        assert not killed.exists()
        assert all(path.exists() for path in (writing, *others))
    blobs._remove_old_parts(tmp_path)
    assert writing.exists(), "a folder is looked at once in a process"


def test_part_that_another_download_removes_before_its_lock_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, cleaned = blobs._lock, 0

    def clean_first(descriptor: int) -> bool | None:
        nonlocal cleaned
        cleaned += 1
        if cleaned == 1:  # the other download has listed the new part
            monkeypatch.setattr(blobs, "_CLEANED", set[Path]())
            monkeypatch.setattr(blobs, "_lock", lock)
            blobs._remove_old_parts(tmp_path)
            monkeypatch.setattr(blobs, "_lock", clean_first)
        return lock(descriptor)

    monkeypatch.setattr(blobs, "_lock", clean_first)
    with blobs._new_part(tmp_path / "model.bin") as target:
        target.write(b"model")
        target.flush()
        Path(target.name).replace(tmp_path / "model.bin")
    assert cleaned == 2
    assert (tmp_path / "model.bin").read_bytes() == b"model"
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]


def test_part_of_a_download_at_work_is_kept(tmp_path: Path) -> None:
    with blobs._new_part(tmp_path / "model.bin") as target:
        blobs._CLEANED.discard(tmp_path)
        blobs._remove_old_parts(tmp_path)
        assert Path(target.name).exists()
    assert list(tmp_path.iterdir()) == []
