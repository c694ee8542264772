"""Paths of Azure Files: every URL maps to a path in the share or is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from batch_emulator.files_share import tree
from batch_emulator.files_share.faults import FilesFault
from batch_emulator.files_share.tree import MAX_DEPTH, BadNameError, check_share, folded, parse_path

hypothesis: Any = pytest.importorskip("hypothesis")
st: Any = pytest.importorskip("hypothesis.strategies")

PIECES = st.sampled_from(
    ["..", ".", "/", "//", "%2e", "%2E%2e", "%2f", "%5c", "\\", "%00", "a", "B.", "é", "%c3%a9",
     "%ff", "con", "...", " ", "~", "*", "x" * 200, "\ud800", "link", "dir"]
)  # fmt: skip
PATHS = st.one_of(st.text(max_size=60), st.lists(PIECES, max_size=12).map("".join))


@hypothesis.given(PATHS)
def test_path_is_refused_or_consists_of_plain_names(raw: str) -> None:
    try:
        parts = parse_path(raw)
    except BadNameError:
        return
    assert len(parts) <= MAX_DEPTH
    for part in parts:
        assert part not in ("", ".", "..")
        assert not set(part) & set('/\\\0"<>|:*?')
        assert len(os.fsencode(part)) <= 255


@hypothesis.given(PATHS)
def test_parsed_path_parses_to_itself(raw: str) -> None:
    try:
        parts = parse_path(raw)
    except BadNameError:
        return
    assert parse_path("/".join(quote(part, safe="") for part in parts)) == parts


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a share with a directory, a link that leaves it, and a link into itself."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "a").write_text("secret")
    share = outside / "share"
    (share / "dir").mkdir(parents=True)
    (share / "link").symlink_to(outside)
    (share / "dir" / "link").symlink_to("..")
    return share


@hypothesis.given(path=PATHS)
def test_no_path_leaves_its_share(root: Path, path: str) -> None:
    inside = {root.stat().st_ino, (root / "dir").stat().st_ino}
    try:
        with tree.open_entry(root, parse_path(path)) as place:
            assert os.fstat(place.parent_fd).st_ino in inside
            if place.is_file or place.is_directory:
                assert place.status is not None
                assert place.status.st_ino in inside
    except (BadNameError, FilesFault):
        return


@hypothesis.given(st.text(alphabet="abyz019-_.A", max_size=70))
def test_share_name_is_a_plain_folder_name(name: str) -> None:
    try:
        check_share(name)
    except BadNameError:
        return
    assert 3 <= len(name) <= 63
    assert name == name.lower()
    assert "--" not in name
    assert name[0].isalnum()
    assert name[-1].isalnum()


@hypothesis.given(st.text(max_size=20))
def test_folding_is_idempotent_and_keeps_the_length(name: str) -> None:
    assert folded(folded(name)) == folded(name)
    assert len(folded(name)) == len(name)


def test_trailing_dots_are_removed_unless_allowed() -> None:
    assert parse_path("a./b..") == ("a", "b")
    assert parse_path("a./b..", allow_trailing_dot=True) == ("a.", "b..")
    with pytest.raises(BadNameError):
        parse_path("a/...")
    with pytest.raises(BadNameError):
        parse_path("a/..", allow_trailing_dot=True)
