"""States in a folder are complete or absent, after any failure of a process or file."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.hooks import load_state, save_state
from runner.hooks.state import FILE, MANIFEST, SaveError, StateFolder

_SAVER = """
import hashlib, sys
from runner.hooks import load_state, save_state
found = load_state() or (0, b"", hashlib.sha256(b"").hexdigest())
number, body, digest = found
assert hashlib.sha256(body).hexdigest() == digest, "a torn state was loaded"
print("begin", number, flush=True)
while True:
    number += 1
    body = number.to_bytes(4, "big") * 50_000
    save_state((number, body, hashlib.sha256(body).hexdigest()))
    print(number, flush=True)
"""


def states(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_last_saved_state_is_loaded(tmp_path: Path) -> None:
    assert load_state(tmp_path / "none") is None
    for value in ({"epoch": 1}, b"bytes", [1.5, None]):
        save_state(value, tmp_path)
        assert load_state(tmp_path) == value
    assert states(tmp_path) == ["state-00000002", "state-00000003"]


def test_default_folder_is_that_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RUNNER_CHECKPOINT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    assert save_state({"epoch": 1}) is None
    assert (load_state(), list(tmp_path.iterdir())) == (None, [])
    monkeypatch.setenv("RUNNER_CHECKPOINT_DIR", str(tmp_path / "run"))
    save_state({"epoch": 2})
    assert load_state() == load_state(tmp_path / "run") == {"epoch": 2}


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", [FILE, MANIFEST])
@pytest.mark.parametrize("harm", [cut, flip, Path.unlink, lambda path: path.write_bytes(b"")])
def test_damaged_state_is_skipped_with_a_warning(
    tmp_path: Path, name: str, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    save_state("older", tmp_path)
    save_state("newer" * 1000, tmp_path)
    harm(tmp_path / "state-00000002" / name)
    assert load_state(tmp_path) == "older"
    assert "state-00000002 is skipped" in caplog.text
    save_state("newest", tmp_path)
    assert load_state(tmp_path) == "newest"
    assert states(tmp_path)[-1] == "state-00000003"


def test_flipped_bit_never_loads_another_state(tmp_path: Path) -> None:
    save_state("older", tmp_path)
    save_state("newer", tmp_path)
    seed = random.SystemRandom().randrange(1000)
    chance = random.Random(seed)
    for name in (FILE, MANIFEST) * 40:
        shutil.copytree(tmp_path, copy := tmp_path.with_name(f"copy-{chance.random()}"))
        path = copy / "state-00000002" / name
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        # A changed manifest may be equivalent (1.0 for 1): then the newer state is loaded.
        assert load_state(copy) in (("older",) if name == FILE else ("older", "newer")), seed


def test_other_names_in_the_folder_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "state-x").mkdir()
    (tmp_path / "state-00000007").write_text("a file")
    (tmp_path / "mine.txt").write_text("kept")
    assert load_state(tmp_path) is None
    save_state(1, tmp_path)
    assert load_state(tmp_path) == 1
    assert {"state-x", "mine.txt", "state-00000008"} <= set(states(tmp_path))


def test_failed_write_leaves_only_the_last_state(tmp_path: Path) -> None:
    folder = StateFolder(tmp_path)
    kept = folder.save(lambda inside: (inside / "a").touch())

    def full(inside: Path) -> None:
        (inside / "a").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(SaveError, match=r"could not be saved in .*No space left") as caught:
        folder.save(full)
    assert caught.value.errno == errno.ENOSPC
    assert states(tmp_path) == [kept.name]
    assert folder.newest() == kept


def test_unfinished_state_of_a_dead_process_is_deleted(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid in (gone.pid, os.getpid()):
        (tmp_path / f".saving-{pid}-0").mkdir()
        (tmp_path / f".saving-{pid}-0" / "half").write_text("x")
    (other := tmp_path / f".saving-{os.getppid()}-0").mkdir()
    StateFolder(tmp_path).save(lambda inside: None)
    assert states(tmp_path) == [other.name, "state-00000001"]


def test_two_writers_never_overwrite_each_other(tmp_path: Path) -> None:
    first, second = StateFolder(tmp_path, keep=9), StateFolder(tmp_path, keep=9)

    def write(inside: Path) -> None:
        (inside / "first").touch()
        second.save(lambda inner: (inner / "second").touch())

    first.save(write)
    assert (tmp_path / "state-00000001" / "second").exists()
    assert (tmp_path / "state-00000002" / "first").exists()


def test_states_of_different_kinds_share_a_folder(tmp_path: Path) -> None:
    save_state("mine", tmp_path)
    for _ in range(3):
        StateFolder(tmp_path, kind="keras").save(lambda inside: None)
    assert load_state(tmp_path) == "mine"
    assert states(tmp_path) == ["keras-00000002", "keras-00000003", "state-00000001"]


def test_state_with_subfolders_is_checked(tmp_path: Path) -> None:
    def write(inside: Path) -> None:
        (inside / "deep" / "er").mkdir(parents=True)
        (inside / "deep" / "er" / "file").write_text("text")

    folder = StateFolder(tmp_path)
    saved = folder.save(write)
    assert folder.newest() == saved
    (saved / "deep" / "er" / "file").write_text("texT")
    assert folder.newest() is None


@pytest.mark.slow
def test_process_killed_at_any_time_resumes_its_last_state(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10_000)
    chance = random.Random(seed)
    saved = 0
    for _ in range(12):
        process = subprocess.Popen(
            [sys.executable, "-c", _SAVER],
            env={**os.environ, "RUNNER_CHECKPOINT_DIR": str(tmp_path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout
        begun = process.stdout.readline().split()
        # All reported states exist, and at most one other.
        assert begun[0] == "begin", seed
        assert saved <= int(begun[1]) <= saved + 1, seed
        saved = int(process.stdout.readline())
        time.sleep(chance.random() * 0.05)
        process.send_signal(signal.SIGKILL)
        saved = int((process.communicate()[0].split("\n")[:-1] or [saved])[-1])
    assert saved >= 12, seed
