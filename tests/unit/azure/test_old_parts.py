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
