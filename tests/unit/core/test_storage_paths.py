from __future__ import annotations

import pytest

from runner.core.storage_paths import StoragePath, parse_storage_path
from runner.protocol.errors import RunnerError


@pytest.mark.parametrize(
    ("text", "store", "path"),
    [
        ("cats", "data", "cats"),
        ("cats/2024/", "data", "cats/2024"),
        ("/cats", "data", "cats"),
        ("", "data", ""),
        ("share:", "share", ""),
        ("share:a b/ü.txt", "share", "a b/ü.txt"),
        ("my-own:x", "my-own", "x"),
        ("$web:index.html", "$web", "index.html"),
        ("data:C:/x", "data", "C:/x"),
        ("data:10:30.jpg", "data", "10:30.jpg"),
        ("cats/10:30.jpg", "data", "cats/10:30.jpg"),
        ("a\\b", "data", "a%x5Cb"),
        ("a%x5Cb", "data", "a%x5Cb"),
        ("a\nb\udcff", "data", "a%x0Ab%xFF"),
        ("dot./x", "data", "dot%x2E/x"),
        ("x" * 1025, "data", "x" * 1025),
        ("share:50%x41", "share", "50%x41"),
    ],
)
def test_path_without_a_store_uses_the_default_store(text: str, store: str, path: str) -> None:
    assert parse_storage_path(text, "data") == StoragePath(store, path)


@pytest.mark.parametrize(
    "text",
    ["../x", "a/../b", "a//b", "a/./b", "share:a\\b", "share:a\nb", "share:a\x7fb", "Data:x",
     "ab:x", "my--own:x", "C:/x", "share:a\udcff", "10:30.jpg", "share:..", "share:.runner-parts/x",
     "share:.Runner-Parts", f"share:{'x' * 256}"],
)  # fmt: skip
def test_invalid_storage_paths_are_rejected(text: str) -> None:
    with pytest.raises(RunnerError) as refused:
        parse_storage_path(text, "data")
    assert refused.value.code == "R-DATA-PATH"
    assert refused.value.why
    assert refused.value.fix


def test_name_is_the_last_part_or_the_store() -> None:
    assert parse_storage_path("a/b.txt", "data").name == "b.txt"
    assert parse_storage_path("share:", "data").name == "share"
