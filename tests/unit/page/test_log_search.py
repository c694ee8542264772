"""The page of a whole log: parts of bounded size, and searches that go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from runner.azure.storage.blobs import BlobContainer
from runner.page.pages import log_search
from runner.page.pages.log_search import find_text, read_part
from runner.page.rendering import marked


@dataclass
class _Log:
    """A blob that reads as `BlobContainer` does, and counts the bytes that were read."""

    content: bytes
    read: list[int] = field(default_factory=list[int])

    def size(self, blob: str) -> int:
        return len(self.content)

    def read_range(self, blob: str, offset: int, length: int | None) -> bytes | None:
        piece = self.content[offset : offset + length] if length else self.content[offset:]
        self.read.append(len(piece))
        return piece or None


def container(content: bytes) -> BlobContainer:
    return cast("Any", _Log(content))


LINES = b"".join(b"line %06d\n" % number for number in range(60_000))  # 12 bytes each


def test_last_part_begins_with_a_whole_line() -> None:
    part = read_part(container(LINES), "log", None)
    assert part.lines[0].startswith("line ")
    assert part.lines[-1] == "line 059999"
    assert part.end == part.size == len(LINES)


def test_parts_follow_each_other_without_a_gap() -> None:
    start, lines = 0, list[str]()
    while start < len(LINES):
        part = read_part(container(LINES), "log", start)
        lines += part.lines
        start = part.end
    assert lines == LINES.decode().splitlines()


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"no end", b"x" * (log_search.PART * 3), b"\xff\xfe"]
)
@pytest.mark.parametrize("start", [None, 0, 1, 10**12])
def test_part_of_any_log_is_bounded(content: bytes, start: int | None) -> None:
    part = read_part(container(content), "log", start)
    assert 0 <= part.start <= part.end <= part.size
    assert part.end - part.start <= log_search.PART


@pytest.mark.parametrize("piece", [7, 16, 1 << 20])
@pytest.mark.parametrize("text", ["line 000777", "LINE 000777", "000777"])
def test_match_is_found_across_pieces(
    text: str, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_search, "_PIECE", piece)
    assert find_text(container(LINES), "log", text, 0, len(LINES))[0] == 777 * 12


def test_search_goes_on_after_a_match_and_after_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    log = container(LINES)
    first, searched = find_text(log, "log", "line", 0, len(LINES))
    second, _ = find_text(log, "log", "line", searched, len(LINES))
    assert (first, second) == (0, 12)
    monkeypatch.setattr(log_search, "_SEARCHED", 1804)  # in the middle of the match
    found, searched = find_text(log, "log", "line 000150", 0, len(LINES))
    assert (found, searched) == (None, 1794)
    assert find_text(log, "log", "line 000150", searched, len(LINES))[0] == 1800
    assert find_text(log, "log", "nowhere", len(LINES), len(LINES)) == (None, len(LINES))


def test_marks_are_of_the_text_and_nothing_is_interpreted() -> None:
    assert (
        marked("<b>Loss</b> loss", "loss")
        == "&lt;b&gt;<mark>Loss</mark>&lt;/b&gt; <mark>loss</mark>"
    )
    assert marked("a.b <i>", ".") == "a<mark>.</mark>b &lt;i&gt;"
    assert marked("\x1b[31mred\x1b[0m", "") == "red"
