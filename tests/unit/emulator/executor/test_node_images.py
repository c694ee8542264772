"""Folders for images of nodes: references, what they need, and which image a pool has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.validation.machine_rules import MachineChoice
from batch_emulator.executor.node_images import (
    ImageError,
    ImageFolder,
    NodeImages,
    parse_images,
)

UBUNTU = "canonical:ubuntu-24_04-lts:server"
GALLERY = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/galleries/mine/images/ml"


def image(folder: Path, *, python: str = sys.executable) -> Path:
    """Create a folder with links to a shell and a Python."""
    (folder / "usr/bin").mkdir(parents=True)
    (folder / "usr/bin/sh").symlink_to("/bin/sh")
    (folder / "usr/bin/python3").symlink_to(python)
    return folder


def pool(**reference: str) -> dict[str, Any]:
    return {"virtualMachineConfiguration": {"imageReference": reference}}


def parsed(*texts: str, any_machine: bool = False) -> Sequence[ImageFolder]:
    return parse_images(texts, MachineChoice(any_machine=any_machine))


def marketplace(version: str = "") -> dict[str, Any]:
    more = {"version": version} if version else {}
    return pool(publisher="Canonical", offer="ubuntu-24_04-lts", sku="server", **more)


def test_most_exact_reference_counts(tmp_path: Path) -> None:
    folders = [image(tmp_path / name) for name in "abcd"]
    names = [UBUNTU, f"{UBUNTU}:1.2.3", GALLERY, f"{GALLERY}/versions/2.0.0"]
    found = NodeImages(parsed(*(f"{n}={f}" for n, f in zip(names, folders, strict=True))))
    wanted = [
        marketplace(), marketplace("latest"), marketplace("9.9.9"), marketplace("1.2.3"),
        pool(virtualMachineImageId=GALLERY.upper()),
        pool(virtualMachineImageId=f"{GALLERY}/versions/1.0.0"),
        pool(virtualMachineImageId=f"{GALLERY}/versions/2.0.0"),
        pool(publisher="debian", offer="debian-12", sku="12"), {},
    ]  # fmt: skip
    assert [Path(found.folder_of(each)).name for each in wanted] == [*"aaabccd", "", ""]


def test_variables_and_path_of_the_image_are_read(tmp_path: Path) -> None:
    folder = image(tmp_path / "a")
    (folder / "opt/tool/bin").mkdir(parents=True)
    (folder / "etc").mkdir()
    (folder / "etc/environment").write_text(
        '# of the image\nPATH="/opt/tool/bin:/usr/bin:/gone"\nTOOL_HOME=/opt/tool\nexport A=b c\n\n'
    )
    one = NodeImages(parsed(f"{UBUNTU}={folder}")).of(marketplace())
    assert one is not None
    assert one.path == f"{folder}/opt/tool/bin:{folder}/usr/bin"
    assert one.variables == {
        "TOOL_HOME": f"{folder}/opt/tool",
        "A": "b c",
        "BATCH_EMULATOR_IMAGE": str(folder),
    }


def test_absolute_program_of_the_image_is_found(tmp_path: Path) -> None:
    folder = image(tmp_path / "a b")
    (folder / "opt/tool").mkdir(parents=True)
    (folder / "opt/tool/go").write_text("#!/bin/sh\n")
    one = NodeImages(parsed(f"{UBUNTU}={folder}")).of(marketplace())
    assert one is not None
    assert one.command_line("/opt/tool/go -x 1") == f"'{folder}/opt/tool/go' -x 1"
    (folder / "opt/my tool").mkdir()
    (folder / "opt/my tool/go").write_text("#!/bin/sh\n")
    spaced = f"'{folder}/opt/my tool/go'"
    for line, expected in (
        ('"/opt/my tool/go" -x "a b"', f'{spaced} -x "a b"'),
        ("/opt/my\\ tool/go '#1'", f"{spaced} '#1'"),
        ("'/opt/my tool/go'", spaced),
        ("/opt/my' tool'/go; x", "/opt/my' tool'/go; x"),  # the program is `go;`
    ):
        assert one.command_line(line) == expected
    same = ("/bin/sh -c 'echo /opt/tool/go'", "go", "/opt/tool/gone", "", "'")
    assert [one.command_line(line) for line in same] == list(same)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("nothing", "REFERENCE=FOLDER is expected"),
        ("=folder", "REFERENCE=FOLDER is expected"),
        (f"{UBUNTU}=", "REFERENCE=FOLDER is expected"),
        ("canonical:ubuntu=FOLDER", "publisher:offer:sku, publisher:offer:sku:version"),
        ("canonical:ubuntu-24_04-lts:servr=FOLDER", f"the nearest is {UBUNTU}"),
        ("/subscriptions/s/images/i=FOLDER", "it is not the ARM id of an image"),
        (f"{UBUNTU}=/nowhere/at/all", "/nowhere/at/all does not exist"),
    ],
)
def test_unknown_image_is_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(ImageError) as refused:
        parsed(text.replace("FOLDER", str(image(tmp_path / "a"))))
    assert word in str(refused.value)


def test_any_machine_accepts_an_image_that_is_not_listed(tmp_path: Path) -> None:
    text = f"me:mine:one={image(tmp_path / 'a')}"
    assert parsed(text, any_machine=True)[0].reference == "me:mine:one"
    with pytest.raises(ImageError, match="unknown image 'me:mine:one'"):
        parsed(text)


@pytest.mark.parametrize("again", [UBUNTU.upper(), f"{UBUNTU}:latest", f" {UBUNTU}"])
def test_two_folders_for_an_image_are_refused(tmp_path: Path, again: str) -> None:
    folder = image(tmp_path / "a")
    with pytest.raises(ImageError, match="is its folder already"):
        parsed(f"{UBUNTU}={folder}", f"{again}={folder}")


@pytest.mark.parametrize("name", ["sh", "python3"])
def test_folder_without_shell_or_python_is_refused(tmp_path: Path, name: str) -> None:
    folder = image(tmp_path / "a")
    (folder / "usr/bin" / name).unlink()
    with pytest.raises(ImageError) as refused:
        parsed(f"{UBUNTU}={folder}")
    assert refused.value.what == f"the image in {folder} has no {name}"
    assert refused.value.fix.startswith(f"mkdir -p {folder}/bin && ln -s /")


@pytest.mark.parametrize(
    ("script", "word"),
    [
        ("#!/bin/sh\necho broken >&2; exit 3\n", "does not run: broken"),
        ("#!/nowhere/python\n", "does not run: "),
        ("#!/bin/sh\necho hello\n", "is no Python: it printed 'hello"),
        ("#!/bin/sh\necho '[[3, 6], \"/x\", []]'\n", "is too old: its Python is 3.6"),
    ],
)
def test_python_that_does_not_run_is_refused(tmp_path: Path, script: str, word: str) -> None:
    folder = image(tmp_path / "a")
    python = folder / "usr/bin/python3"
    python.unlink()
    python.write_text(script)
    python.chmod(0o755)
    with pytest.raises(ImageError) as refused:
        NodeImages(parsed(f"{UBUNTU}={folder}"))
    assert word in str(refused.value)


def test_invalid_line_of_variables_is_refused(tmp_path: Path) -> None:
    folder = image(tmp_path / "a")
    (folder / "etc").mkdir()
    (folder / "etc/environment").write_text("A=b\nif true; then\n")
    with pytest.raises(ImageError, match="line 2 is not NAME=VALUE"):
        parsed(f"{UBUNTU}={folder}")
