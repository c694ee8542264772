"""Updates of a page, and what it reads, while services have trouble."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from runner.core.settings import load_settings
from runner.page import live as live_module
from runner.page import source as source_module
from runner.page.live import MOST_STREAMS, Live
from runner.page.source import Source
from runner.protocol.errors import RunnerError
from tests.logs import own_records


async def collect(live: Live, texts: list[Any], count: int) -> list[str]:
    """Return the first events of a page that renders the texts one after the other."""

    async def render() -> str:
        found = texts.pop(0) if texts else "end"
        if isinstance(found, Exception):
            raise found
        return found

    events: list[str] = []
    async for event in live.follow("/runs", render, every_s=0.01):
        events.append(event.decode())
        if len(events) == count:
            break
    return events


def test_only_changes_are_sent() -> None:
    events = asyncio.run(collect(Live(), ["a", "a", "a", "b"], 3))
    assert events == ["data: a\n\n", "data: b\n\n", "data: end\n\n"]


def test_trouble_is_a_banner_until_it_ends() -> None:
    gone = RunnerError("R-SERVICES-DOWN", "services <down>", fix="runner local up")
    first, second, _ = asyncio.run(collect(Live(), ["a", gone, gone, "a"], 3))
    assert first == "data: a\n\n"
    assert "services &lt;down&gt;" in second
    assert 'id="trouble"' in second


def test_bug_is_a_banner_and_the_stream_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    events = asyncio.run(collect(Live(), [KeyError("x"), "a"], 2))
    assert "runner bug-report" in events[0]
    assert events[1] == "data: a\n\n"
    assert len(own_records(caplog)) == 1


def test_page_says_that_services_have_not_answered_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "_SLOW_S", 0.02)

    async def wait() -> None:
        silent = asyncio.Event()

        async def render() -> str:
            await silent.wait()
            return "late"

        events = Live().follow("/runs", render, every_s=0.01)
        assert b"have not answered yet" in await anext(events)
        silent.set()
        assert await anext(events) == b"data: late\n\n"

    asyncio.run(wait())


@pytest.fixture
def source(tmp_path: Path) -> Source:
    settings = load_settings({"target": "local"}, cwd=tmp_path, env={"RUNNER_HOME": str(tmp_path)})
    return Source(settings)


class _Connections:
    """Stands in for `connect`: each connection is a number."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, _: object) -> Any:
        self.count += 1
        return self.count


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> _Connections:
    made = _Connections()
    monkeypatch.setattr(source_module, "connect", made)
    return made


def test_services_with_other_ports_are_connected_again(
    source: Source, connections: _Connections, tmp_path: Path
) -> None:
    described = source_module.outputs_path(source.settings)
    described.parent.mkdir(parents=True, exist_ok=True)
    described.write_text(json.dumps({}), encoding="utf-8")
    assert [source.connect(), source.connect()] == [1, 1]
    os.utime(described, (1, 1))
    assert source.connect() == 2
    described.unlink()
    assert source.connect() == 3


def test_lost_connection_is_made_again(source: Source, connections: _Connections) -> None:
    def lost(_: object) -> None:
        raise RunnerError("R-SERVICES-DOWN", "gone")

    def unknown(_: object) -> None:
        raise RunnerError("R-RUN-UNKNOWN", "no such run")

    async def ask() -> list[int]:
        found: list[Any] = []
        for function in (unknown, lost):
            with pytest.raises(RunnerError):
                await source.call(function)
            found.append(await source.call(lambda connection: connection))
        return found

    assert asyncio.run(ask()) == [1, 2]


def test_readers_of_the_same_key_share_one_call(source: Source, connections: _Connections) -> None:
    calls: list[int] = []

    async def ask() -> list[int]:
        def read(_: object) -> int:
            calls.append(1)
            return len(calls)

        return list(await asyncio.gather(*(source.read("key", read, fresh_s=60) for _ in range(9))))

    assert asyncio.run(ask()) == [1] * 9


async def reading_ended(source: Source) -> None:
    """Wait until the answer of "key" has been read, and those who wait for it were told."""
    while source._answers["key"].pending is not None:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.01)


def test_error_that_nobody_awaits_is_not_printed(
    source: Source, connections: _Connections, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask() -> None:
        def fail(_: object) -> None:
            raise RunnerError("R-SERVICES-DOWN", "gone")

        reader = asyncio.create_task(source.read("key", fail))
        await asyncio.sleep(0)
        reader.cancel()
        await reading_ended(source)
        gc.collect()

    gc.collect()  # what earlier tests left
    caplog.clear()
    asyncio.run(ask())
    assert not own_records(caplog)


def test_answers_are_bounded(source: Source, connections: _Connections) -> None:
    async def ask() -> None:
        for number in range(300):
            await source.read(number, lambda _: None)

    asyncio.run(ask())
    assert len(source._answers) <= 201


async def endless() -> AsyncGenerator[bytes]:
    while True:
        yield b"data: x\n\n"
        await asyncio.sleep(3600)


async def opened(live: Live, browser: str) -> AsyncGenerator[bytes]:
    """Return a stream that has sent its first event."""
    stream = live.until_closed(endless(), browser)
    assert await anext(stream) == b"data: x\n\n"
    return stream


def test_windows_of_a_browser_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_module, "_TURN_S", 0.0)

    async def use() -> None:
        live = Live()
        streams = [await opened(live, "a") for _ in range(MOST_STREAMS)]
        others = [await opened(live, "b"), await opened(live, "")]
        newest = await opened(live, "a")
        turn = await asyncio.wait_for(anext(streams[0]), 60)
        assert b"event: turn" in turn
        assert turn.startswith(b"retry: ")
        assert [event async for event in streams[0]] == []
        for each in (*streams[1:], newest, *others):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(each), 0.01)

    asyncio.run(use())


def test_window_waits_for_its_turn() -> None:
    async def use() -> None:
        live = Live()
        streams = [await opened(live, "a") for _ in range(MOST_STREAMS)]
        late = [event async for event in live.until_closed(endless(), "a")]
        assert len(late) == 1
        assert b"event: turn" in late[0]
        await streams[0].aclose()
        streams[0] = await opened(live, "a")
        live.close()
        for each in streams:
            assert [event async for event in each] == []

    asyncio.run(use())


def test_programs_have_as_many_streams_as_they_like() -> None:
    async def use() -> None:
        live = Live()
        assert len([await opened(live, "") for _ in range(50)]) == 50

    asyncio.run(use())


def test_answer_that_cannot_be_read_again_is_not_used_any_more(
    source: Source, connections: _Connections
) -> None:
    async def ask() -> None:
        def fail(_: object) -> None:
            raise RunnerError("R-SERVICES-DOWN", "gone")

        async def read(function: Any) -> Any:
            return await source.read("key", function, fresh_s=0, stale_s=600)

        assert await read(lambda _: 1) == 1
        assert await read(fail) == 1  # read again in the background
        await reading_ended(source)
        with pytest.raises(RunnerError):
            await read(fail)
        with pytest.raises(RunnerError):
            await read(fail)
        assert await read(lambda _: 2) == 2
        assert await read(lambda _: 3) == 2

    asyncio.run(ask())


def test_reader_does_not_wait_without_end_and_the_next_one_gets_the_answer(
    source: Source, connections: _Connections
) -> None:
    async def ask() -> None:
        go = threading.Event()

        def slow(_: object) -> str:
            go.wait(600)
            return "answer"

        try:
            with pytest.raises(RunnerError, match="not answered"):
                await source.read("key", slow, fresh_s=0, patience_s=0.01)
            go.set()
            await reading_ended(source)
            go.clear()
            assert await source.read("key", slow, fresh_s=0, patience_s=0.01) == "answer"
            with pytest.raises(RunnerError, match="not answered"):
                await source.read("key", slow, fresh_s=0, patience_s=0.01)
        finally:
            go.set()

    asyncio.run(ask())
