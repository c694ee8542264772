from __future__ import annotations

import pytest

from runner.core.stored_paths import StoredPath, parse_stored_path
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
    ],
)
def test_path_without_a_store_is_in_the_default_one(text: str, store: str, path: str) -> None:
    assert parse_stored_path(text, "data") == StoredPath(store, path)


@pytest.mark.parametrize(
    "text",
    ["../x", "a/../b", "a//b", "a/./b", "a\\b", "a\nb", "a\x7fb", "x" * 1025, "Data:x", "ab:x",
     "my--own:x", "C:/x", "a\udcff", "share:..", "share:.runner-parts/x", "share:.Runner-Parts",
     f"share:{'x' * 256}"],
)  # fmt: skip
def test_invalid_stored_paths_are_rejected(text: str) -> None:
    with pytest.raises(RunnerError) as refused:
        parse_stored_path(text, "data")
    assert refused.value.code == "R-DATA-PATH"
    assert refused.value.why
    assert refused.value.fix


def test_name_is_the_last_part_or_the_store() -> None:
    assert parse_stored_path("a/b.txt", "data").name == "b.txt"
    assert parse_stored_path("share:", "data").name == "share"
