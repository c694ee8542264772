"""Stored paths: one for each file, and the file again from each."""

from __future__ import annotations

import os
import random

import pytest
from azure.storage.blob import BlobProperties

from runner.azure.storage.blobs import _full_name, _name_metadata
from runner.protocol.paths import (
    as_stored,
    blob_name,
    file_path,
    is_selected_output,
    is_shortened,
    stored_path,
    stored_path_from_bytes,
)

BYTES = bytes(byte for byte in range(1, 256) if byte != ord("/"))
SIMILAR = b"%x25CE.0A\\F"


@pytest.mark.parametrize(
    "path",
    [
        "model.pt", "a b/ü.txt", "100%.txt", "a%20b", "caf%C3%A9", "%x", "%x5c", "%xyz", "2026:10",
        ".hidden", "..a", "a..b", "~", "#?&=+;'\"<>|*", "漢字", "\u2028", "\U0001f600", " space ",
    ],
)  # fmt: skip
def test_ordinary_name_is_stored_unchanged(path: str) -> None:
    assert stored_path(path) == path
    assert file_path(path) == path


@pytest.mark.parametrize(
    ("path", "stored"),
    [
        ("a\\b", "a%x5Cb"),
        ("two\nlines/\x1b[1m", "two%x0Alines/%x1B[1m"),
        ("dir./end...", "dir%x2E/end..%x2E"),
        ("bad\udcff", "bad%xFF"),
        ("\x85\ue000\uffff", "%xC2%x85%xEE%x80%x80%xEF%xBF%xBF"),
        ("\U0010ffff", "%xF4%x8F%xBF%xBF"),
        ("a%x5Cb", "a%x25x5Cb"),
        ("%x25x5C", "%x25x25x5C"),
        ("%x2E", "%x25x2E"),
    ],
)
def test_name_invalid_for_a_blob_is_escaped(path: str, stored: str) -> None:
    assert stored_path(path) == stored
    assert file_path(stored) == path


def test_name_outside_utf8_is_the_same_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Windows, Python reads and writes names with `surrogatepass`."""
    monkeypatch.setattr(os, "fsdecode", lambda data: data.decode("utf-8", "surrogatepass"))
    monkeypatch.setattr(os, "fsencode", lambda name: name.encode("utf-8", "surrogatepass"))
    assert file_path("bad%xFF") == "bad\udcff"
    assert stored_path_from_bytes(b"bad\xff") == "bad%xFF"
    long = "%xFF" + "x" * 1100
    props = BlobProperties(name=blob_name(long), metadata=_name_metadata(long))
    assert _full_name(props) == long


def test_every_name_has_a_unique_stored_path() -> None:
    chance, seen = random.Random(20261123), dict[str, bytes]()
    for _ in range(20_000):
        alphabet = chance.choice((BYTES, SIMILAR))
        name = bytes(chance.choices(alphabet, k=chance.choice((1, 2, 4, 9, 40))))
        if name not in (b".", b".."):
            stored = stored_path(os.fsdecode(name))
            assert os.fsencode(file_path(stored)) == name
            assert as_stored(stored) == stored
            assert stored.encode("utf-8")
            assert seen.setdefault(stored, name) == name


@pytest.mark.parametrize("stored", ["%x2E", ".%x2E", "%x2Fetc", "%x00", "a%x2Eb", "%x41", "%x25"])
def test_invalid_escape_sequence_is_part_of_the_name(stored: str) -> None:
    """They lead to another folder, or are names that an older agent may have stored unchanged."""
    assert file_path(f"a/{stored}/b") == f"a/{stored}/b"


def test_blob_of_a_long_name_is_in_the_same_folder() -> None:
    longest = "run/output/" + "x" * 1013
    assert blob_name(longest) == longest
    assert blob_name("d/" * 253 + "f") == "d/" * 253 + "f"
    for name in (longest + "x", "run/output/" + "d/" * 252 + "f", "run/" + "😀" * 511):
        blob = blob_name(name)
        assert blob.startswith("run/")
        assert is_shortened(blob)
        assert len(blob) < 600
        assert blob != blob_name(f"{name}y")


@pytest.mark.parametrize("path", ["a\\b", "a%x5Cb", "a*b", "*", "dir"])
def test_output_is_selected_by_either_name(path: str) -> None:
    name = "dir/x" if path == "dir" else "a%x5Cb"
    assert is_selected_output(name, path)
    assert not is_selected_output("other", path) or path == "*"
