"""Model files are compared by content, not by the time of writing."""

from __future__ import annotations

import json
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from runner.core.planning import reproduction
from runner.core.planning.reproduction import Drift, content_difference, environment_drift

Date = tuple[int, int, int, int, int, int]


def archive(path: Path, members: dict[str, bytes], year: int) -> Path:
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as packed:
        for name, content in members.items():
            packed.writestr(zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0)), content)
    return path


def keras(
    path: Path,
    year: int,
    weights: bytes = b"weights",
    version: str = "3.1",
    shared: tuple[int, ...] = (0, 1, 0),
) -> Path:
    metadata = {"keras_version": version, "date_saved": f"{year}-01-01@00:00:00"}
    layers = [{"dtype": {"shared_object_id": 140_000 + year + number}} for number in shared]
    members = {
        "metadata.json": json.dumps(metadata).encode(),
        "config.json": json.dumps({"layers": layers}).encode(),
        "model.weights.h5": weights,
    }
    return archive(path, members, year)


def test_archives_are_equal_whatever_the_packing_time(tmp_path: Path) -> None:
    one = archive(tmp_path / "a" / "m.npz", {"w": b"1"}, 2001)
    other = archive(tmp_path / "b" / "m.npz", {"w": b"1"}, 2002)
    assert one.read_bytes() != other.read_bytes()
    assert content_difference(one, other) is None


def test_keras_models_are_equal_whatever_the_saving_time(tmp_path: Path) -> None:
    one, other = keras(tmp_path / "a" / "m.keras", 2001), keras(tmp_path / "b" / "m.keras", 2002)
    assert content_difference(one, other) is None


@pytest.mark.parametrize(
    ("changes", "member"),
    [
        ({"weights": b"other"}, "model.weights.h5"),
        ({"version": "4"}, "metadata.json"),
        ({"shared": (0, 1, 1)}, "config.json"),
    ],
)
def test_different_keras_model_names_the_member(
    tmp_path: Path, changes: dict[str, Any], member: str
) -> None:
    one = keras(tmp_path / "a" / "m.keras", 2001)
    other = keras(tmp_path / "b" / "m.keras", 2001, **changes)
    assert content_difference(one, other) == f"members {member}"


@pytest.mark.attack
def test_zip_bomb_in_a_model_is_not_read(tmp_path: Path) -> None:
    """By the writer of an output that `runner reproduce` compares."""
    paths = [tmp_path / folder / "m.zip" for folder in "ab"]
    for path in paths:
        path.parent.mkdir()
    with zipfile.ZipFile(paths[0], "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for number in range(3):
            with packed.open(str(number), "w", force_zip64=True) as file:
                for _ in range(400):
                    file.write(bytes(1 << 20))
    shutil.copyfile(*paths)
    began = time.thread_time()
    assert content_difference(*paths) == "members ?"
    assert time.thread_time() - began < 0.5


@pytest.mark.attack
def test_large_json_in_a_keras_model_is_not_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduction, "_MAX_JSON", 10)
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *_: pytest.fail("read at once"))
    one, other = keras(tmp_path / "a" / "m.keras", 2001), keras(tmp_path / "b" / "m.keras", 2001)
    assert content_difference(one, other) is None


def test_missing_member_differs(tmp_path: Path) -> None:
    one = archive(tmp_path / "a" / "m.zip", {"w": b"1", "x": b""}, 2001)
    other = archive(tmp_path / "b" / "m.zip", {"w": b"1"}, 2001)
    assert content_difference(one, other) == "members x"


def test_damaged_archive_equals_no_other(tmp_path: Path) -> None:
    one = archive(tmp_path / "a" / "m.zip", {"w": b"1" * 1000}, 2001)
    broken = tmp_path / "b.zip"
    broken.write_bytes(one.read_bytes().replace(b"1" * 1000, b"2" * 1000))
    assert content_difference(one, broken)
    plain = tmp_path / "c.zip"
    plain.write_bytes(b"x")
    assert content_difference(one, plain) == "bytes"


def test_different_json_names_the_keys(tmp_path: Path) -> None:
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    one.write_text('{"loss": 1, "seconds": 2}')
    other.write_text('{"seconds": 3, "loss": 1}')
    assert content_difference(one, other) == "keys seconds"
    other.write_text("[1]")
    assert content_difference(one, other) == "bytes"


def test_environment_drift_names_each_difference() -> None:
    was = {"python": "3.11.7", "cpu": "A", "gpus": [], "packages": {"numpy": "2.1", "x": "1"}}
    now = {"python": "3.12.0", "cpu": "A", "gpus": ["T4"], "packages": {"numpy": "2.2"}}
    assert environment_drift(was, now) == [
        Drift("Python", "3.11.7", "3.12.0"),
        Drift("GPUs", "none", "T4"),
        Drift("package numpy", "2.1", "2.2"),
        Drift("package x", "1", "none"),
    ]
    assert environment_drift({}, now) == [], "what was not recorded is no drift"
