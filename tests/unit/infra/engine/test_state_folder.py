"""Only a lock whose engine is gone is removed."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from runner_infra.engine.state_folder import has_stack, remove_stale_locks


def lock(folder: Path, pid: int, *, host: str = "", stack: str = "dev") -> Path:
    path = folder / f".pulumi/locks/organization/runner/{stack}/some-id.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"pid": pid, "hostname": host or socket.gethostname()}))
    path.with_name(f"{path.name}.attrs").write_text("{}")
    return path


def dead_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_lock_of_a_dead_engine_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / "a home"
    path = lock(folder, dead_pid())
    remove_stale_locks(folder.as_uri(), "dev")
    assert list(path.parent.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="zombies are seen in /proc")
def test_zombie_engine_counts_as_dead(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    path = lock(tmp_path, process.pid)
    remove_stale_locks(tmp_path.as_uri(), "dev")
    assert not path.exists()
    process.wait()


def test_held_lock_is_kept(tmp_path: Path) -> None:
    engine = tmp_path / "pulumi"
    engine.symlink_to("/bin/sleep")
    process = subprocess.Popen([engine, "600"])
    try:
        path = lock(tmp_path, process.pid)
        remove_stale_locks(tmp_path.as_uri(), "dev")
        assert path.exists()
    finally:
        process.kill()
        process.wait()


def test_locks_of_other_machines_stacks_and_backends_are_kept(tmp_path: Path) -> None:
    elsewhere = lock(tmp_path / "one", dead_pid(), host="another-machine")
    other = lock(tmp_path / "two", dead_pid(), stack="prod")
    remove_stale_locks((tmp_path / "one").as_uri(), "dev")
    remove_stale_locks((tmp_path / "two").as_uri(), "dev")
    remove_stale_locks("azblob://state", "dev")
    remove_stale_locks(None, "dev")
    assert elsewhere.exists()
    assert other.exists()


def test_stack_in_the_home_folder_is_found_but_not_in_a_relative_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    for folder in (tmp_path, tmp_path / "state"):
        stacks = folder / ".pulumi/stacks/runner"
        stacks.mkdir(parents=True)
        (stacks / "dev.json").write_text("{}")
    assert has_stack("file://~", "dev") is True
    assert has_stack("file://~/state", "dev") is True
    assert has_stack("file://~/state", "prod") is False
    assert has_stack("file://./state", "dev") is None
