"""The list of runs: filters, order, groups, pages, prices, and awkward rows in the template."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from runner.flows.runs.history import RunHistory
from runner.flows.runs.rows import RunRow
from runner.page.ask import Ask
from runner.page.charts.sparklines import main_points
from runner.page.memory import run_facts, run_table
from runner.page.memory.points import GrowingMetrics, pick_shape
from runner.page.memory.run_facts import FactsMemory, RunFacts
from runner.page.memory.run_table import NodeUse, RunEntry, RunTable, with_usage
from runner.page.pages.runs import Line, RunsQuery, cut, select
from runner.protocol.errors import RunnerError
from runner.protocol.usage import AttemptUsage
from tests.unit.page.listed_runs import (
    HOSTILE,
    HOUR,
    START_MS,
    client_with,
    entry,
    local_connection,
    run_id,
    series,
)


def query(text: str = "") -> RunsQuery:
    """Return what an address says."""
    ask = Ask(SimpleNamespace(), "/runs", {}, QueryParams(text))  # type: ignore[arg-type]
    return RunsQuery.parse(ask)


def keys(
    entries: list[RunEntry], text: str, facts: Mapping[str, RunFacts] | None = None
) -> list[str]:
    """Return the keys of the lines of a list."""
    lines = select(entries, query(text), lambda each: (facts or {}).get(each.run_id))
    return [line.key for line in lines]


def numbers(entries: list[RunEntry], found: list[str]) -> list[int]:
    known = [each.run_id for each in entries]
    return [known.index(each) for each in found]


def test_words_of_a_search_must_all_be_in_the_row() -> None:
    entries = [
        entry(2, params={"lr": 0.1}, reason=HOSTILE, state="failed", label="failed"),
        entry(1, params={"lr": 0.1}, experiment="second"),
        entry(0, params={"lr": 0.2}),
    ]
    assert numbers(entries, keys(entries, "q=lr=0.1")) == [0, 1]
    assert numbers(entries, keys(entries, "q=LR%3D0.1+second")) == [1]
    assert numbers(entries, keys(entries, "q=<script>")) == [0]
    assert keys(entries, "q=nothing") == []
    assert numbers(entries, keys(entries, "status=failed")) == [0]
    assert numbers(entries, keys(entries, "experiment=first&since=2026-11-01")) == [0, 2]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("params.lr", [1, 0, 2, 3]),
        ("-params.lr", [2, 0, 1, 3]),
        ("loss", [2, 0, 1, 3]),  # the best first
        ("-metrics.loss", [1, 0, 2, 3]),
        ("price", [1, 0, 2, 3]),
        ("-price", [0, 1, 2, 3]),
        ("-took", [1, 0, 2, 3]),
        ("run", [3, 2, 1, 0]),
        ("state", [0, 1, 2, 3]),
        ("nothing", [0, 1, 2, 3]),
    ],
)
def test_runs_without_a_value_are_last_in_every_order(sort: str, order: list[int]) -> None:
    entries = [
        entry(3, params={"lr": 2}, metrics={"loss": 0.5}, took_s=1.0),
        entry(2, params={"lr": 0.5}, metrics={"loss": 0.9}, took_s=5.0),
        entry(1, params={"lr": "text"}, metrics={"loss": 0.1}, took_s=None),
        entry(0, metrics={"loss": math.nan}, took_s=None),
    ]
    rates = {True: 1_000_000, False: None}
    facts = {
        entries[0].run_id: RunFacts({}, (NodeUse(0, 2 * HOUR, spot=True),), rates),
        entries[1].run_id: RunFacts({}, (NodeUse(0, HOUR, spot=True),), rates),
        entries[2].run_id: RunFacts({}, (NodeUse(0, HOUR, spot=False),), rates),
    }
    assert numbers(entries, keys(entries, f"sort={sort}", facts)) == order


def test_trials_are_one_line_unless_single_runs_are_asked_for() -> None:
    trials = [
        entry(n, group="sweep-20261101-000000-abcd", is_trial=True, metrics={"loss": 1 / n},
              metric="loss", label="running" if n == 3 else "succeeded")
        for n in (3, 2, 1)
    ]  # fmt: skip
    entries = [entry(4), *trials, entry(0)]
    lines = select(entries, query(), lambda _: None)
    assert [line.kind for line in lines] == ["run", "sweep", "run"]
    assert lines[1].states == {"running": 1, "succeeded": 2}
    assert lines[1].best == ("loss", 1 / 3)
    for text in ("trials=1", "sort=loss", "col=lr", "status=succeeded"):
        assert len(keys(entries, text)) == 5, text


def test_experiments_are_lines_that_open() -> None:
    entries = [entry(n, experiment=f"e{n % 2}") for n in range(120, 0, -1)]
    closed, opened = select(entries, query("group=experiment&open=e1"), lambda _: None)
    assert (closed.key, closed.rows, len(closed.entries)) == ("e0", (), 60)
    assert (opened.key, len(opened.rows), len(opened.entries)) == ("e1", 50, 60)


def test_pages_continue_after_a_key_and_updates_keep_what_is_shown() -> None:
    lines = [Line(f"r{n}", (entry(n),)) for n in range(10)]
    first = cut(lines, query("n=4"))
    assert ([line.key for line in first.lines], first.left, first.last) == (
        ["r0", "r1", "r2", "r3"], 6, "r3",
    )  # fmt: skip
    after = cut(lines, query("n=4&after=r7"))
    assert ([line.key for line in after.lines], after.left) == (["r8", "r9"], 0)
    newer = [Line("new", (entry(11),)), *lines]
    assert [line.key for line in cut(newer, query("n=4&until=r3")).lines][-1] == "r3"
    assert len(cut(newer, query("n=4&until=deleted")).lines) == 4


@pytest.mark.parametrize("text", ["n=0", "n=many", "status=unknown", "since=never", "n=99999999"])
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(RunnerError):
        query(text)


def test_price_counts_each_node_until_now_and_is_unknown_without_a_rate() -> None:
    nodes = (NodeUse(0, HOUR, spot=True), NodeUse(HOUR, None, spot=True))
    facts = RunFacts({}, nodes, {True: 1000, False: None})
    assert [facts.micro(at) for at in (0, HOUR / 2, HOUR, 3 * HOUR)] == [0, 500, 1000, 3000]
    dedicated = replace(facts, nodes=(NodeUse(0, HOUR, spot=False),))
    assert dedicated.micro(HOUR) is None
    assert dedicated.micro(0) == 0


def test_time_of_a_node_includes_its_boot_and_the_checkpoint_is_the_newest() -> None:
    times: dict[str, Any] = {"booted": START_MS + 5000, "started": START_MS + 9000}
    later: dict[str, Any] = {**times, "started": START_MS + 40_000}
    usages = [
        AttemptUsage(1, 0, "tvm-1", **times, ended=START_MS + 20_000, saved=START_MS + 15_000,
                     dedicated=False),
        AttemptUsage(2, 0, "tvm-2", **later, dedicated=True),
    ]  # fmt: skip
    found = with_usage(entry(0, is_over=False, attempts=2), usages)
    assert found.used == (
        NodeUse(START_MS + 5000, START_MS + 20_000, spot=True),
        NodeUse(START_MS + 40_000, None, spot=False),
    )
    assert found.saved == START_MS + 15_000


def test_prices_may_be_those_of_another_size_and_region(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = FactsMemory()
    connection: Any = SimpleNamespace(
        outputs=SimpleNamespace(location="local"),
        target=SimpleNamespace(is_billed=False),
        home=None,
    )
    run = entry(0, used=(NodeUse(0, HOUR, spot=True),))
    free = memory.find_or_price(connection)(run)
    assert free is not None
    assert free.micro(HOUR) == 0
    find = memory.find_or_price(connection, "Standard_NC16as_T4_v3", "swedencentral")
    priced = find(run)
    assert priced is not None
    assert (priced.micro(HOUR) or 0) > 100_000
    unknown = memory.find_or_price(connection, "Standard_Unknown", "nowhere")(run)
    assert unknown is not None
    assert unknown.micro(HOUR) is None


def test_million_points_are_a_curve_that_keeps_its_peaks() -> None:
    values = [0.0] * 200_000
    values[123_456] = 9.0
    picked = pick_shape([float(n) for n in range(200_000)], values, 100)
    assert len(picked) <= 400
    assert {0, 123_456, 199_999} <= {*picked}
    found = GrowingMetrics({})
    line = '{{"time": "", "attempt": 1, "step": {}, "name": "loss", "value": {}}}'
    found.add(line.format(n, 9.0 if n == 7777 else 1 / (n + 1)) for n in range(50_000))
    one = found.by_name()["loss"]
    assert (one.count, one.best, max(one.values)) == (50_000, 1 / 50_000, 9.0)
    assert len(one.steps) <= 1500


def test_long_metric_is_shown_in_parts_until_all_of_it_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = '{"time": "", "attempt": 1, "step": %d, "name": "loss", "value": 1}\n'
    content = "".join(line % n for n in range(20)).encode()
    asked: list[int] = []

    def read_range(_: str, at: int, most: int) -> bytes:
        asked.append(most)
        return content[at : at + 100]

    monkeypatch.setattr(
        run_facts, "runs_container", lambda _: SimpleNamespace(read_range=read_range)
    )
    monkeypatch.setattr(run_facts, "_READ_FOR_S", 0.0)
    memory, run, seen = FactsMemory(), entry(0, used=()), list[int]()

    async def call(function: Any) -> Any:
        found = function(local_connection())
        seen.append(found[run.run_id].series["loss"].count)
        return found

    source: Any = SimpleNamespace(call=call)

    async def look() -> bool:
        await memory.gather(source, [run], wait_s=0.0)
        first = memory.find(run)
        await memory.gather(source, [run], wait_s=5.0)
        return first is None and memory.is_fresh(run)

    assert asyncio.run(look())
    assert seen == sorted(seen)
    assert (seen[0], seen[-1]) == (1, 20)
    assert max(asked) <= 1 << 20  # many runs are read at once


def test_values_that_are_not_finite_and_damaged_lines_are_counted_or_left_out() -> None:
    found = GrowingMetrics({"score": "max"})
    line = '{{"time": "", "attempt": {}, "step": {}, "name": "score", "value": {}}}'
    found.add(["", "{", "[]", '{"name": 1}', line.format(1, 1, 0.5), line.format(1, 2, "NaN")])
    found.add([line.format(1, 3, "Infinity"), line.format(2, 2, 0.25)])
    one = found.by_name()["score"]
    assert (one.bad, one.first_bad_step, one.best, one.last) == (2, 2, 0.5, 0.25)
    assert [*one.steps] == [1, 2]  # the second attempt replaced what came after its step
    many = GrowingMetrics({})
    many.add(line.format(1, 1, 1).replace("score", f"m{n}") for n in range(1000))
    assert (len(many.by_name()), many.left_out) == (300, 700)


class _Services:
    """Runs in storage, as `list_runs` and `iterate_runs` return them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.rows = {each.run_id: each for each in (self.row(n) for n in range(count))}
        self.reads: list[int] = []
        monkeypatch.setattr(run_table, "list_runs", self.list_runs)
        monkeypatch.setattr(run_table, "iterate_runs", lambda _, page: iter(self.newest()))

    @staticmethod
    def row(number: int) -> RunRow:
        return RunRow(run_id(number), None, None, None, problem="damaged")

    def newest(self) -> list[RunRow]:
        return [self.rows[each] for each in sorted(self.rows, reverse=True)]

    def list_runs(self, _: Any, *, limit: int | None, ids: Any = None) -> RunHistory:
        if ids is not None:
            self.reads.append(len(ids))
            return RunHistory(tuple(self.rows[each] for each in ids if each in self.rows), 0)
        rows = self.newest()
        return RunHistory(tuple(rows[:limit]), max(len(rows) - (limit or 0), 0))


def test_table_reads_all_runs_once_and_then_what_may_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    services, table = _Services(monkeypatch, 200), RunTable()
    connection: Any = None
    assert len(table.refresh(connection)) == 60
    assert not table.is_complete
    table.load_all(connection)
    assert (len(table.entries), table.is_complete, table.is_cut) == (200, True, False)
    services.rows[run_id(200)] = services.row(200)
    del services.rows[run_id(190)]
    table.refresh(connection)
    assert len(table.entries) == 200
    assert table.entries[0].run_id == run_id(200)
    assert table.find(run_id(190)) is None
    assert services.reads == []
    running = replace(table.entries[150], is_over=False)
    table._by_id[running.run_id] = running  # pyright: ignore[reportPrivateUsage]
    table.refresh(connection)
    assert services.reads == [1]
    assert table.entries[150].is_over


def test_table_keeps_the_newest_runs_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _Services(monkeypatch, 300)
    monkeypatch.setattr(run_table, "MOST_RUNS", 250)
    table = RunTable()
    table.load_all(None)  # type: ignore[arg-type]
    assert (len(table.entries), table.is_cut) == (250, True)
    assert table.entries[0].run_id == run_id(299)


def many(count: int) -> list[RunEntry]:
    """Return runs with awkward texts, 60 parameters and 200 metrics."""
    params = {f"p{n}": HOSTILE for n in range(60)}
    metrics = {f"m{n}": float(n) for n in range(200)} | {"bad": math.nan}
    more: dict[str, Any] = {"params": params, "metrics": metrics, "metric": "bad", "pool": HOSTILE}
    return [entry(n, reason=HOSTILE, experiment=f"{HOSTILE}{n % 3}", **more) for n in range(count)]


def test_rows_of_others_are_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [*many(5), RunEntry("odd-1", "unreadable", "unreadable", HOSTILE, is_over=True)]
    facts = {entries[0].run_id: RunFacts({HOSTILE: series(1, 2, 3)})}
    client = client_with(tmp_path, monkeypatch, entries, facts)
    for address in (
        "/runs", "/runs?col=params.p3&col=metrics.bad&col=pool", "/runs?group=experiment",
        "/runs?sort=metrics.bad", "/runs?q=<script>", "/rows?n=2", "/rows?only=odd-1",
        "/runs?vm_size=<script>&region=<script>",
    ):  # fmt: skip
        answered = client.get(address)
        assert answered.status_code == 200, address
        assert "<script>alert" not in answered.text
        assert not re.search(r"<[^>]* (style|on[a-z]+)=", answered.text)
    assert ">nan<" in client.get("/runs?col=metrics.bad").text


def test_row_shows_what_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = entry(0, metric="loss", metrics={"loss": 0.5})
    nodes = (NodeUse(0, HOUR, spot=True),)
    facts = RunFacts({"loss": series(1.0, 0.25, 0.5)}, nodes, {}, saved=START_MS)
    client = client_with(tmp_path, monkeypatch, [run], {run.run_id: facts})
    text = client.get("/runs").text
    assert 'aria-label="loss from 1.0000 to 0.5000"' in text
    assert "<b>0.2500</b>" in text
    assert "Price</a>" not in text  # nodes of this machine are free
    found = client.get("/api/v1/run-list").json()
    [row] = found["rows"]
    assert (row["id"], row["best"], row["curve"]) == (run.run_id, 0.25, [[0, 1, 2], [1, 0.25, 0.5]])
    assert row["checkpoint"] == "2026-11-01T00:00:00+00:00"
    assert (found["left"], found["next"], found["complete"]) == (0, None, True)


def test_list_without_runs_says_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_with(tmp_path, monkeypatch, [])
    assert "runner train mnist" in client.get("/runs").text
    assert "No runs match" in client.get("/runs?q=nothing").text


def test_selected_runs_are_compared_and_only_changed_by_who_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = client_with(tmp_path, monkeypatch, [entry(0)]).get("/runs").text
    reads = client_with(tmp_path, monkeypatch, [entry(0)], read_only=True).get("/runs").text
    assert 'formaction="/act/rm"' in acts
    assert 'formaction="/act/cancel"' not in acts  # `runner cancel` takes one run
    assert "formaction" not in reads
    assert 'action="/compare"' in reads


def test_older_rows_follow_and_unfinished_ones_ask_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = [entry(n, is_over=n != 4, state="running", label="running") for n in range(9, -1, -1)]
    client = client_with(tmp_path, monkeypatch, entries)
    text = client.get("/runs?n=3&q=mnist").text
    assert text.count('<tr id="row-') == 3
    assert f"after={entries[2].run_id}" in text
    assert f"until={entries[2].run_id}" in text  # of the updates
    more = client.get(f"/rows?n=5&q=mnist&after={entries[2].run_id}").text
    assert more.count('<tr id="row-') == 5
    assert f"only={entries[5].run_id}" in more
    again = client.get(f"/rows?only={entries[5].run_id}&only=deleted").text
    assert again.count("hx-swap-oob") == 1


def test_main_series_is_that_of_the_recipe_or_the_first_that_is_no_count() -> None:
    facts = RunFacts({"epoch": series(1, 2, name="epoch"), "loss": series(1, 2)})
    assert main_points(entry(0), None) is None
    assert main_points(entry(0, metric="score"), facts) is None
    found = main_points(entry(0), facts)
    assert found is not None
    assert found.name == "loss"
