"""Pools and nodes: bars from the charges, awkward texts, many nodes, and deleted pools."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from runner.page.charts.nodes import NodeBar, NodeRow, draw_node_map, draw_nodes
from runner.page.pages.node_time import PoolUse, collect, summarize
from runner.page.pages.pools import _Pool, choose_range
from runner.page.pages.spending import at_ms
from runner.protocol.errors import RunnerError
from tests.unit.page.spending import (
    AWKWARD,
    HOUR,
    START,
    attempt,
    client_of,
    node,
    pool,
    report_of,
    run_usage,
)

MISSING = RunnerError("R-POOL-MISSING", "pool 't4' not found", fix="runner pool ls")
RANGE = "since=2026-11-29T00:00:00Z&until=2026-11-30T00:00:00Z"


def evicted_run() -> Any:
    return report_of(
        run_usage(
            "a",
            attempt(1, HOUR, 3 * HOUR, why="terminated", created=0, kept=2 * HOUR,
                    node_ends=3 * HOUR + 60_000),
            attempt(2, 5 * HOUR, 6 * HOUR, node="tvm-2", created=4 * HOUR, ready=4 * HOUR),
        ),
        run_usage("b", attempt(1, HOUR, 2 * HOUR, created=0)),
    )  # fmt: skip


def test_node_has_a_bar_for_each_part_of_each_attempt_that_leads_to_its_run() -> None:
    found = collect(evicted_run(), "T4")
    first, second = found.rows
    assert (first.node, first.lanes, second.lanes) == ("tvm-1", 2, 1)
    shown = {(bar.kind, bar.href) for bar in first.bars}
    assert shown == {
        ("boot", ""), ("useful", "/runs/a"), ("lost", "/runs/a"), ("evicted", "/runs/a"),
        ("useful", "/runs/b"),
    }  # fmt: skip
    lanes = {bar.href: bar.lane for bar in first.bars if bar.href}
    assert sorted(lanes.values()) == [0, 1]
    assert [bar.kind for bar in second.bars] == ["idle", "useful"]
    useful = next(bar for bar in first.bars if bar.href == "/runs/b")
    assert "attempt 1" in useful.title
    assert "$0.05" in useful.title  # half of an hour of the node
    assert "shared" in useful.title
    assert list(first.evictions) == [START + 3 * HOUR + 60_000]
    assert found.evictions == {"tvm-1": 1}


def test_node_that_was_away_and_came_back_has_a_mark_between_its_lives() -> None:
    report = report_of(
        run_usage("a", attempt(1, HOUR, 2 * HOUR, created=0)),
        run_usage("b", attempt(1, 5 * HOUR, 6 * HOUR, created=4 * HOUR)),
    )
    [row] = collect(report, "t4").rows
    [away] = [bar for bar in row.bars if bar.kind == "away"]
    assert (away.start_ms, away.end_ms) == (START + 2 * HOUR, START + 4 * HOUR)
    assert "evicted while it was idle" in away.title
    assert collect(report, "t4").total_micro == report.total.total_micro
    later = collect(report, "t4", START + 5 * HOUR, START + 6 * HOUR).rows[0]
    assert [bar.kind for bar in later.bars] == ["useful"]


def test_costs_of_nodes_sum_to_those_of_the_pool() -> None:
    report = evicted_run()
    found = collect(report, "t4")
    use = summarize(report)["t4"]
    assert found.total_micro == use.micro == report.total.total_micro
    assert (use.start_ms, use.end_ms, use.evictions) == (START, START + 6 * HOUR, 1)


def test_bars_of_a_time_are_those_that_touch_it() -> None:
    found = collect(evicted_run(), "t4", START + 5 * HOUR, START + 6 * HOUR)
    assert [(row.node, [bar.kind for bar in row.bars]) for row in found.rows] == [
        ("tvm-2", ["useful"])
    ]
    assert found.evictions == {}


def test_unknown_price_of_a_node_is_unknown() -> None:
    report = report_of(run_usage("a", attempt(1, 0, HOUR, created=0), vm_size="other"))
    found = collect(report, "t4")
    assert found.total_micro is None
    assert "unknown" in found.rows[0].bars[0].title


def test_default_range_is_the_last_day_before_the_newest_record() -> None:
    now = at_ms(START + 1000 * HOUR)
    used = PoolUse("t4", START, START + 100 * HOUR, 0, 0)
    found = choose_range(None, None, used, now)
    assert found.end_ms == START + 100 * HOUR
    assert 0 <= START + 76 * HOUR - found.start_ms < HOUR
    short = choose_range(None, None, PoolUse("t4", START, START + HOUR, 0, 0), now)
    assert 0 < START - short.start_ms < HOUR // 10
    given = choose_range(now - timedelta(hours=2), now, used, now)
    assert given.end_ms - given.start_ms == 2 * HOUR
    backwards = choose_range(now, now - timedelta(hours=2), used, now)
    assert backwards.end_ms > backwards.start_ms


def test_thousands_of_bars_become_few_that_lead_to_a_shorter_time() -> None:
    bars = [NodeBar("useful", START + n * 1000, START + n * 1000 + 900, "x") for n in range(50_000)]
    rows = [NodeRow("tvm-1", "tvm-1", bars)]
    picture = str(
        draw_nodes(
            rows, START, START + 50_000_000, "nodes", zoom=lambda start, end: f"/z?{start}-{end}"
        )
    )
    assert picture.count("<rect") < 2000
    assert "select to zoom in" in picture
    assert "/z?" in picture
    detail = str(draw_nodes(rows, START, START + 10_000, "nodes"))
    assert detail.count("<rect") == 10


@pytest.mark.parametrize("days", [0.001, 1, 10, 400, 36_000])
def test_axis_has_few_ticks_for_any_time(days: float) -> None:
    bar = NodeBar("useful", START, START + 1000, "x")
    end = START + round(days * 24 * HOUR)
    picture = str(draw_nodes([NodeRow("n", "n", [bar])], START, end, "nodes"))
    assert 0 < picture.count("tick") <= 9
    assert "nan" not in picture.lower()


def test_chart_and_map_without_nodes_are_empty() -> None:
    assert draw_nodes([], 0, 1, "nodes") == ""
    assert draw_nodes([NodeRow("n", "n", [])], 5, 5, "nodes") == ""
    assert draw_node_map([], "map") == ""


def test_pages_escape_what_the_service_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node("tvm-1"), node("tvm-2", "unusable")]
    answers = {"pools": [pool()], "pool": _Pool(pool(), nodes), "costs": evicted_run()}
    client = client_of(answers, tmp_path, monkeypatch)
    for path in ("/pools", f"/pools/t4?{RANGE}"):
        answered = client.get(path)
        assert answered.status_code == 200
        assert "<script>alert" not in answered.text
        assert "&lt;script&gt;alert" in answered.text
        assert "\x1b" not in answered.text
        assert "style=" not in answered.text
    shown = client.get(f"/pools/t4?{RANGE}").text
    assert shown.index("node-tvm-2") < shown.index("node-tvm-1")  # problems first
    assert 'href="/runs/a"' in shown
    assert "/act/evict?pool=t4&amp;node=tvm-1" in shown


def test_read_only_page_offers_no_action(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {"pool": _Pool(pool(), [node("tvm-1")]), "costs": evicted_run()}
    client = client_of(answers, tmp_path, monkeypatch, read_only=True)
    assert "/act/" not in client.get("/pools/t4").text


def test_deleted_pool_is_shown_as_long_as_runs_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = {"pools": [], "pool": MISSING, "costs": evicted_run()}
    client = client_of(answers, tmp_path, monkeypatch)
    assert "do not exist any more" in client.get("/pools").text
    shown = client.get(f"/pools/t4?{RANGE}").text
    assert "does not exist any more" in shown
    assert 'href="/runs/a"' in shown
    assert client.get("/api/v1/pools/t4").status_code == 404
    unknown = client_of({"pool": MISSING, "costs": report_of()}, tmp_path, monkeypatch)
    assert unknown.get("/pools/t4").status_code == 404


def test_account_without_pools_names_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of({"pools": [], "costs": report_of(is_free=True)}, tmp_path, monkeypatch)
    assert "<code>runner local up</code>" in client.get("/pools").text


def test_2500_nodes_are_a_map_and_a_first_part_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node(f"tvm-{number:04}") for number in range(2500)]
    runs = [
        run_usage(f"run-{number}", attempt(1, 0, HOUR, node=f"tvm-{number:04}", created=0))
        for number in range(2500)
    ]
    answers = {"pool": _Pool(pool(), nodes), "costs": report_of(*runs)}
    client = client_of(answers, tmp_path, monkeypatch)
    began = time.process_time()
    shown = client.get(f"/pools/t4?{RANGE}").text
    assert time.process_time() - began < 5
    assert shown.count('class="node ') == 2500
    assert shown.count('<tr id="node-') == 100
    assert "Show all 2500 nodes" in shown
    everything = client.get(f"/pools/t4?{RANGE}&n=2500").text
    assert everything.count('<tr id="node-') == 2500
    assert everything.count("/runs/run-") >= 2500
    one = client.get(f"/pools/t4?{RANGE}&q=tvm-0007").text
    assert one.count('<tr id="node-') == 1


@pytest.mark.parametrize("query", ["since=x", "until=0001-01-01", "n=0", "since=99999w", "n=x"])
def test_wrong_address_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    answers = {"pool": _Pool(pool(), []), "costs": report_of()}
    client = client_of(answers, tmp_path, monkeypatch)
    assert client.get(f"/pools/t4?{query}").status_code == 400


def test_documents_are_those_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [node("tvm-1"), node("tvm-2", "unusable")]
    answers = {"pools": [pool()], "pool": _Pool(pool(), nodes), "costs": evicted_run()}
    client = client_of(answers, tmp_path, monkeypatch)
    listed = client.get("/api/v1/pools").json()
    assert listed == [client.get("/api/v1/pools/t4").json()]
    assert listed[0]["nodes"]["spot"] == {"idle": 1, "unusable": 1}
    assert [each["state"] for each in client.get("/api/v1/pools/t4/nodes").json()] == [
        "idle", "unusable",
    ]  # fmt: skip
    charges = client.get(f"/api/v1/pools/t4/time?{RANGE}").json()
    assert sum(each["micro_usd"] for each in charges) == evicted_run().total.total_micro
    assert datetime.fromisoformat(charges[0]["start"]).tzinfo == UTC
    assert re.search(r"/api/v1/pools/\{pool\}/time", client.get("/api/v1/openapi.json").text)
    assert AWKWARD in listed[0]["formula"]
