"""Where files of storage lie on this machine."""

from __future__ import annotations

import unicodedata
from itertools import combinations
from pathlib import Path, PurePath, PureWindowsPath
from typing import cast

import pytest

from runner.core.progress import ignore_progress
from runner.flows import local_files
from runner.flows.local_files import (
    BytesMoved,
    FileSystem,
    Targets,
    name_targets,
    part_of,
    plan_targets,
)

NAMES = ["a%x5Cb", "10:30.jpg", "%xFF%x0A", "A", "a", "é", "e\u0301", "CON", "x" * 255, "dot%x2E/y"]


class OfAnotherSystem(FileSystem):
    """Takes names as macOS does, and not those that Windows refuses."""

    def accepts(self, name: str) -> bool:
        is_text = not any("\udc80" <= char <= "\udcff" for char in name)
        allowed = not set(name) & set('<>:"\\|?*\n') and name[-1] not in ". " and name != "CON"
        return is_text and allowed and len(name) < 200

    def is_same_file(self, one: str, other: str) -> bool:
        same = (unicodedata.normalize("NFD", each).casefold() for each in (one, other))
        return len(set(same)) == 1


def test_linux_has_every_name(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    targets = plan_targets(folder, NAMES)
    assert targets.note == ""
    assert targets.by_path["a%x5Cb"] == folder / "a\\b"
    assert targets.by_path["%xFF%x0A"] == folder / "\udcff\n"
    assert targets.by_path["dot%x2E/y"] == folder / "dot." / "y"
    assert not list(tmp_path.iterdir())


def test_name_invalid_on_the_file_system_is_mapped(tmp_path: Path) -> None:
    targets = name_targets(tmp_path, NAMES, OfAnotherSystem(tmp_path))
    found = {name: str(target.relative_to(tmp_path)) for name, target in targets.by_path.items()}
    assert found["a%x5Cb"] == "a%x5Cb"
    assert found["10:30.jpg"] == "10%x3A30.jpg"
    assert found["%xFF%x0A"] == "%xFF%x0A"
    assert found["A"] == "A"
    assert found["a"] == "a~ca978112"
    assert found["dot%x2E/y"] == "dot%x2E/y"
    assert found["CON"].startswith("CON~")
    assert len(found["x" * 255]) < 100
    assert found["é"] != found["e\u0301"]
    assert len(set(found.values())) == len(NAMES)
    assert "10:30.jpg as 10%x3A30.jpg" in targets.note
    assert targets == name_targets(tmp_path, reversed(NAMES), OfAnotherSystem(tmp_path))


def test_two_stored_paths_of_one_name_have_two_targets(tmp_path: Path) -> None:
    """Older versions stored names without escapes."""
    names = ["notes.", "notes%x2E", "d./x", "d%x2E/x", "d%x2E/y"]
    targets = plan_targets(tmp_path, names)
    assert len(set(targets.by_path.values())) == len(names)
    assert targets.by_path["notes%x2E"] == tmp_path / "notes."
    assert targets.by_path["notes."].name.startswith("notes.~")
    assert targets.by_path["d%x2E/x"].parent == targets.by_path["d%x2E/y"].parent == tmp_path / "d."
    assert f"notes. as {targets.by_path['notes.'].name}" in targets.note
    assert targets == plan_targets(tmp_path, reversed(names))


@pytest.mark.parametrize(
    "names",
    [
        ["a:b", "a%x3Ab", "A%x3Ab"],
        ["A", "a", "a~ca978112", "A~CA978112"],
        ["x" * 70 + ":", "x" * 70 + "%x3A"],
    ],
)
def test_mapped_name_collides_with_no_other_file(tmp_path: Path, names: list[str]) -> None:
    system = OfAnotherSystem(tmp_path)
    targets = name_targets(tmp_path, names, system)
    kept = [target.name for target in targets.by_path.values()]
    assert not any(system.is_same_file(one, other) for one, other in combinations(kept, 2))
    assert targets.note


def test_ordinary_names_need_no_file_of_a_trial(tmp_path: Path) -> None:
    names = ["model.pt", "logs/a b.txt", "run-1/weights_2.tar.gz"]
    found = name_targets(tmp_path, names, cast("FileSystem", None))
    assert found == Targets({name: tmp_path / name for name in names})


@pytest.mark.parametrize(
    ("name", "flavour"),
    [
        *(
            (name, PureWindowsPath)
            for name in ("\\Users\\x\\file", "..\\..\\secret", "a\\b", "a\\")
        ),
        *(
            (name, PureWindowsPath)
            for name in ("C:x", "C:\\x", "C:", "a.txt:stream", "a/b", "..", "")
        ),
        *((name, PurePath) for name in ("../secret", "a/b", "..", ".", "")),
    ],
)
def test_name_containing_a_path_is_not_tried(
    tmp_path: Path, name: str, flavour: type[PurePath]
) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    before = [(path, path.stat().st_mtime_ns) for path in (tmp_path, folder.parent, folder)]
    with FileSystem(folder, flavour) as system:
        assert not system.accepts(name)
        assert not system.is_same_file(name, "x")
        assert [(path, path.stat().st_mtime_ns) for path, _ in before] == before
        assert system.accepts("10%x3A30.jpg")


@pytest.mark.parametrize("path", ["../x", "/x", "a/../x", "link/x"])
def test_path_leaving_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match="leaves"):
        plan_targets(tmp_path / "here", [path])


@pytest.mark.attack
def test_part_of_a_download_is_not_written_through_a_link(tmp_path: Path) -> None:
    part, victim = part_of(tmp_path / "model.bin", "content"), tmp_path / "victim"
    moved = BytesMoved("files", 1, ignore_progress)
    part.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic"), local_files._part_lock(part, moved):
        pass
    assert not victim.exists()
