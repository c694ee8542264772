"""Errors about folders that cannot be written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from runner.core.home import (
    HomePaths,
    check_owner,
    disk_reserve,
    full_disk,
    keep_reserve,
    not_writable,
)
from runner.core.settings import load_settings
from runner.protocol.errors import RunnerError
from tests.disks import Disk


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_disk_with_room_is_no_error(tmp_path: Path) -> None:
    assert full_disk(tmp_path / "not" / "yet") is None


@pytest.mark.parametrize(
    ("changes", "why", "fix"),
    [
        (
            {"f_bfree": 3, "f_bavail": 3, "f_frsize": 512, "f_blocks": 4096},
            "has 1,536 of 2,097,152 bytes free",
            "free space on the disk of",
        ),
        (
            {"f_files": 9999, "f_ffree": 7, "f_favail": 7},
            "has only 7 free inodes",
            "free space on the disk of",
        ),
        ({"f_flag": os.ST_RDONLY}, "is mounted read-only", "mount"),
    ],
)
def test_full_disk_is_named_with_its_free_space(
    tmp_path: Path, disk: Disk, changes: dict[str, int], why: str, fix: str
) -> None:
    disk.changes = changes
    error = full_disk(tmp_path / "not" / "yet")
    assert error is not None
    assert (error.code, error.what) == ("R-DISK-FULL", f"cannot write to {tmp_path}/not/yet")
    assert error.why.startswith("the disk mounted at /")
    assert error.why.endswith(why)
    assert (error.fix or "").startswith(fix)


def test_error_of_the_write_names_a_disk_with_space_again(tmp_path: Path) -> None:
    error = not_writable(tmp_path, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert (error.code, error.why) == ("R-DISK-FULL", "No space left on device")


def test_missing_permission_is_not_reported_as_a_full_disk(tmp_path: Path) -> None:
    error = not_writable(tmp_path, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    assert (error.code, error.why) == ("R-HOME-WRITE", "Permission denied")


def test_reserve_is_released_on_a_full_disk_and_written_again(tmp_path: Path, disk: Disk) -> None:
    paths = HomePaths(tmp_path)
    with disk_reserve(paths):
        assert not paths.local.exists()  # no services have been set up
    paths.local.mkdir()
    before = os.umask(0)
    keep_reserve(paths)
    os.umask(before)
    assert paths.reserve.stat().st_mode & 0o777 == 0o600
    size = paths.reserve.stat().st_size
    assert 0 < size < 1 << 20
    with disk_reserve(paths):
        assert paths.reserve.exists()
    disk.fill()
    with disk_reserve(paths):
        assert not paths.reserve.exists()
        disk.free()
    assert paths.reserve.stat().st_size == size


@pytest.mark.attack
@pytest.mark.parametrize("me", [0, 1000])
@pytest.mark.parametrize("owner", [0, 1000, 1001])
@pytest.mark.parametrize("parent", [0o1777, 0o755])
def test_home_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, me: int, owner: int, parent: int
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    real = Path.stat
    found = {home: (0o40700, owner), tmp_path: (0o40000 | parent, 0)}

    def stat(path: Path, **kwargs: bool) -> os.stat_result:
        if path not in found:
            return real(path, **kwargs)
        (mode, uid), rest = found[path], list(real(path, **kwargs))
        return os.stat_result((mode, *rest[1:4], uid, *rest[5:]))

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr(os, "geteuid", lambda: me)
    is_mounted = me == 0 and parent == 0o755  # as in a container
    if owner in (0, me) or is_mounted:
        check_owner(home)
        return
    with pytest.raises(RunnerError, match="R-HOME-OWNER"):
        load_settings({}, cwd=tmp_path, env={"RUNNER_HOME": str(home)})


def test_home_that_does_not_exist_is_accepted(tmp_path: Path) -> None:
    check_owner(tmp_path / "not" / "yet")
    assert not (tmp_path / "not").exists()
