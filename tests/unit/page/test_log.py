"""The log of a run on its page: endless lines, gigabytes, progress bars, and services that end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, cast

import pytest

from runner.page.ask import Ask
from runner.page.pages import log as log_module
from runner.page.pages.log import LogPosition, follow_log
from runner.protocol.errors import RunnerError
from runner.views import details

GIGABYTE = 1 << 30
OF_LINES = GIGABYTE // 7 * 7


class Container:
    """Stands in for the container of runs: each stream is a function of its bytes."""

    def __init__(self, size: int, content: Callable[[int, int], bytes]) -> None:
        self._size, self._content = size, content
        self.most = 0  # bytes in one read

    def size(self, blob: str) -> int | None:
        return self._size if "stdout" in blob else None

    def read_range(self, blob: str, offset: int, length: int | None) -> bytes | None:
        if "stdout" not in blob:
            return None
        end = self._size if length is None else min(self._size, offset + length)
        self.most = max(self.most, end - offset)
        return self._content(offset, end) if offset < end else b""


def read(
    monkeypatch: pytest.MonkeyPatch, container: Container, position: str = ""
) -> tuple[list[str], LogPosition]:
    monkeypatch.setattr(log_module, "runs_container", lambda _: container)
    found = LogPosition("run-1", position)
    began = time.thread_time()
    lines = [line for _, line in found.read(cast("Any", None))]
    assert time.thread_time() - began < 2
    assert container.most <= 1 << 20
    return lines, found


def one_line(start: int, end: int) -> bytes:
    return b"x" * (end - start)


def short_lines(start: int, end: int) -> bytes:
    text = b"step 1\n"
    skipped = start % len(text)
    return (text * ((end - start) // len(text) + 2))[skipped : skipped + end - start]


def test_gigabyte_that_is_one_line_is_read_in_part_and_shown_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines, position = read(monkeypatch, Container(GIGABYTE, one_line))
    assert len(lines) == 1
    assert len(lines[0]) < 5000
    assert lines[0].endswith("more characters")
    assert str(position) == f"{GIGABYTE},0"


def test_gigabyte_of_lines_begins_with_the_last_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, position = read(monkeypatch, Container(OF_LINES, short_lines))
    assert len(lines) == 500
    assert set(lines) == {"step 1"}
    assert str(position) == f"{OF_LINES},0"


def test_reader_who_is_far_behind_gets_the_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, _ = read(monkeypatch, Container(OF_LINES, short_lines), "7,0")
    assert "left out" in lines[0]
    assert lines[1:] == ["step 1"] * 500


def test_line_of_a_piece_is_cut_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    container = Container(1_000_000, short_lines)
    lines, position = read(monkeypatch, container, "0,0")
    assert set(lines) == {"step 1"}
    more = [line for _, line in position.read(cast("Any", None))]
    assert set(more) == {"step 1"}


def test_line_that_is_not_complete_comes_later(monkeypatch: pytest.MonkeyPatch) -> None:
    lines, position = read(monkeypatch, Container(9, lambda start, end: b"step 1\nst"[start:end]))
    assert lines == ["step 1"]
    assert str(position) == "7,0"


def test_progress_bar_is_one_line_and_controls_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"10%\r50%\r\x1b[31m100%\x1b[0m\n\x1b]0;title\x07<b>\xff\n"
    lines, _ = read(monkeypatch, Container(len(text), lambda start, end: text[start:end]))
    assert lines == ["100%", "<b>\ufffd"]


@pytest.mark.parametrize("position", ["-1,0", "1", "x,y", "9" * 5000 + ",0", "²,0", "1,0,0", "٣,0"])
def test_position_that_is_none_is_that_of_a_new_reader(position: str) -> None:
    assert str(LogPosition("run-1", position)) == "0,0"


def test_document_of_an_endless_line_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    container = Container(GIGABYTE, one_line)
    monkeypatch.setattr("runner.flows.runs.logs.runs_container", lambda _: container)
    wanted = details.LogSelection("stdout", 10, None, None)
    spec = cast("Any", type("Spec", (), {"run_id": "run-1", "nodes": 1}))
    found = details.log_document(cast("Any", None), spec, wanted)
    assert [len(line) for line in found["lines"]] == [8 << 20]


def test_trouble_is_said_once_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = RunnerError("R-SERVICES-DOWN", "services are down", fix="runner local up")
    answers: list[Any] = [gone, gone, [], [("stdout", "a <b>")]]
    monkeypatch.setattr(log_module, "_QUIET_POLL_S", 0.01)
    monkeypatch.setattr(log_module, "_POLL_S", 0.01)

    async def call(_: object) -> Any:
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    source = type("Source", (), {"call": staticmethod(call)})
    query = type("Query", (), {"get": staticmethod(lambda _, default: default)})
    ask = Ask(cast("Any", source), "/", {"run_id": "run-1"}, cast("Any", query))

    async def three() -> list[str]:
        events = follow_log(ask, "")
        return [(await anext(events)).decode() for _ in range(3)]

    said, taken_back, line = asyncio.run(three())
    assert "services are down" in said
    assert "services" not in taken_back
    assert 'id="trouble"' in taken_back
    assert "a &lt;b&gt;" in line
