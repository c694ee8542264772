"""Bodies, pages, routes and clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from batch_emulator.domain.clock import SystemClock
from batch_emulator.domain.faults import FAULTS, Fault
from batch_emulator.domain.values import etag_text, parse_duration, parse_time, time_of, time_text
from batch_emulator.emulator import inherited_environment
from batch_emulator.http import bodies, odata, render
from batch_emulator.http.routes.table import ROUTES, Matcher
from tests.manual_clock import ManualClock


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"new": 1e999}',
        '{"new": -Infinity}',
    ],
)
def test_body_other_than_a_json_object_is_refused(text: str) -> None:
    with pytest.raises(Fault) as caught:
        bodies.parse(text.encode())
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("PT15M", timedelta(minutes=15)),
        ("P1DT2H3M4.5S", timedelta(days=1, hours=2, minutes=3, seconds=4.5)),
        ("P10675199DT2H48M5.4775807S", None),
    ],
)
def test_durations_are_read(text: str, expected: timedelta | None) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "PT0S"),
        (-1e-9, "PT0S"),
        (6.1e-05, "PT0.000061S"),
        (0.25, "PT0.25S"),
        (1e6, "PT1000000S"),
    ],
)
def test_seconds_are_written_without_an_exponent(seconds: float, text: str) -> None:
    assert render.duration(seconds) == text
    assert parse_duration(text) is not None


@pytest.mark.parametrize("text", ["", "P", "PT", "15M", "-PT1M", 5, None])
def test_invalid_durations_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-03-01T12:30:45Z", "2026-03-01T12:30:45.000000Z"),
        ("2026-03-01T12:30:45.1234567z", "2026-03-01T12:30:45.123456Z"),
        (" 2026-03-01T12:30:45.12345678901+02:00 ", "2026-03-01T10:30:45.123456Z"),
        ("2026-03-01T12:30", "2026-03-01T12:30:00.000000Z"),
        ("2026-03-01T12:30.5-01:30", "2026-03-01T14:00:00.500000Z"),
        ("2026-03-01", "2026-03-01T00:00:00.000000Z"),
        ("2026-03-01+01:00", "2026-02-28T23:00:00.000000Z"),
        ("2026-03", "2026-03-01T00:00:00.000000Z"),
        ("2026", "2026-01-01T00:00:00.000000Z"),
    ],
)
def test_times_are_read_like_the_service(text: str, expected: str) -> None:
    assert time_text(parse_time(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "20260301",
        "20260301T123045Z",
        "2026-W09-7",
        "2026-060",
        "2026-03-01 12:30:45Z",
        "2026-03-01t12:30:45Z",
        "2026-03-01T12",
        "2026-03-01T12:30:45,5Z",
        "2026-03-01T12:30:45.Z",
        "2026-03-01T12:30:45+0100",
        "2026-03-01T12:30:45+01",
        "2026-03-01T12:30:45+01:00:00",
        "2026-03-01T24:00:00Z",
        "2026-03-01T12:30:60Z",
        "2026-02-29",
        "2026-13",
        "2026-03T12:30:45Z",
        "0000-01-01",
        "12:30:45",
        "Sun, 01 Mar 2026 12:30:45 GMT",
        "\u0662026-03-01",
        "",
        5,
        None,
    ],
)
def test_invalid_times_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="ISO 8601"):
        parse_time(text)


def test_times_survive_writing_and_reading() -> None:
    now = SystemClock().now()
    assert time_of(time_text(now)) == now
    assert time_text(ManualClock().now()) == "2026-01-01T00:00:00.000000Z"


def entities(count: int) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"k{n:02}", {"id": f"k{n:02}", "state": "active" if n % 2 else "deleting"})
        for n in range(count)
    ]


def walk(query: dict[str, str], count: int) -> list[list[dict[str, Any]]]:
    """Return all pages of a list, by following the links."""
    pages: list[list[dict[str, Any]]] = []
    while True:
        asked = odata.parse(query, odata.POOL_FIELDS)
        fetch = odata.from_sorted(entities(count))
        page = asyncio.run(odata.page(asked, fetch, "http://h/pools", "2024-02-01.19.0"))
        pages.append(page["value"])
        if "odata.nextLink" not in page:
            return pages
        link = urlsplit(page["odata.nextLink"])
        assert link.path == "/pools"
        query = dict(parse_qsl(link.query))
        assert query["api-version"] == "2024-02-01.19.0"


def test_pages_contain_each_entry_once() -> None:
    pages = walk({"maxresults": "3"}, 7)
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [item["id"] for page in pages for item in page] == [f"k{n:02}" for n in range(7)]


def test_last_full_page_has_no_link() -> None:
    assert [len(page) for page in walk({"maxresults": "3"}, 6)] == [3, 3]


async def turns_during(work: Coroutine[Any, Any, dict[str, Any]]) -> tuple[int, int]:
    """Return how often other coroutines ran, and the number of listed entities."""
    task = asyncio.ensure_future(work)
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return turns, len(task.result()["value"])


def test_filter_over_a_long_list_yields_to_requests() -> None:
    asked = odata.parse({"$filter": "id eq 'k04000'"}, odata.POOL_FIELDS)
    found = [(f"k{n:05}", {"id": f"k{n:05}"}) for n in range(5000)]
    work = odata.page(asked, odata.from_sorted(found), "http://h/pools", "2024-02-01.19.0")
    turns, matches = asyncio.run(turns_during(work))
    assert matches == 1
    assert turns >= 10


def test_links_carry_filter_and_select() -> None:
    query = {"maxresults": "2", "$filter": "state eq 'active'", "$select": "id"}
    pages = walk(query, 9)
    assert [item for page in pages for item in page] == [{"id": f"k0{n}"} for n in (1, 3, 5, 7)]


@pytest.mark.parametrize("token", ["?", "bm9wZQ==", "MQ=="])
def test_foreign_skip_tokens_are_refused(token: str) -> None:
    with pytest.raises(Fault) as caught:
        odata.parse({"$skiptoken": token}, None)
    assert caught.value.code == "InvalidQueryParameterValue"


def test_file_paths_have_one_or_more_segments() -> None:
    matcher = Matcher(ROUTES)
    for path in ("wd%2Fa%20b.txt", "wd/a%20b.txt"):
        route, params = matcher.find("GET", f"/jobs/j/tasks/t/files/{path}")
        assert route.operation == "File_GetFromTask"
        assert params["filePath"] == "wd/a b.txt"


def test_operation_names_are_unique() -> None:
    assert len({route.operation for route in ROUTES}) == len(ROUTES)
    assert len({(route.method, route.path) for route in ROUTES}) == len(ROUTES)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/nothing", "InvalidUri"),
        ("GET", "/jobs/a/b/c/d/e/f/g", "InvalidUri"),
        ("PUT", "/pools", "UnsupportedHttpVerb"),
        ("GET", "/certificates()", "InvalidUri"),
    ],
)
def test_unknown_paths_are_refused(method: str, path: str, code: str) -> None:
    with pytest.raises(Fault) as caught:
        Matcher(ROUTES).find(method, path)
    assert caught.value.code == code


def test_certificate_paths_are_matched() -> None:
    path = "/certificates(thumbprintAlgorithm=sha1,thumbprint=ab)"
    assert Matcher(ROUTES).find("DELETE", path)[0].operation == "Certificate_Delete"


def test_every_fault_has_a_text() -> None:
    assert all(400 <= status <= 503 and text.endswith(".") for status, text in FAULTS.values())


def test_etags_have_the_format_of_the_service() -> None:
    assert etag_text(0x8DC1234567890AB) == "0x8DC1234567890AB"


def test_tasks_inherit_lang_and_the_named_variables() -> None:
    environment = {"PATH": "p", "LANG": "l", "HOME": "h", "RUNNER_A": "1", "RUNNER_B": "2"}
    assert inherited_environment(environment, ("RUNNER_A*",)) == {
        "LANG": "l",
        "RUNNER_A": "1",
    }


def test_advanced_clock_wakes_waiters() -> None:
    async def scenario() -> None:
        clock = ManualClock()
        wake = asyncio.Event()
        due = clock.now() + timedelta(seconds=60)
        waiting = asyncio.create_task(clock.wait(wake, due))
        await asyncio.sleep(0)
        assert not waiting.done()
        clock.push(60)
        await asyncio.wait_for(waiting, 60)

    asyncio.run(scenario())


def test_system_clock_waits_for_an_event_or_a_time() -> None:
    async def scenario() -> None:
        clock = SystemClock()
        wake = asyncio.Event()
        await asyncio.wait_for(clock.wait(wake, clock.now() + timedelta(milliseconds=5)), 60)
        assert not wake.is_set()
        wake.set()
        await asyncio.wait_for(clock.wait(wake, None), 60)

    asyncio.run(scenario())
