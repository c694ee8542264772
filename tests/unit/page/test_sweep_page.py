"""The page of a sweep: what the address selects, the pictures, and awkward values."""

from __future__ import annotations

import asyncio
import gzip
import math
import random
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from runner.azure.auth.credentials import Connection
from runner.core.settings import load_settings
from runner.flows.sweeps.experiments import Leaderboard, TrialCost
from runner.page import losses
from runner.page.actions import ACTIONS
from runner.page.ask import Ask
from runner.page.charts.trials import HEIGHT, shades, shown_range
from runner.page.pages import sweep as page
from runner.page.pages.sweep import Sweep, SweepQuery, Trial
from runner.page.rendering import render
from runner.page.source import Source
from runner.protocol.errors import RunnerError
from runner.protocol.groups import RunGroup

CREATED = datetime(2026, 11, 1, tzinfo=UTC)
ID = "net-20261101-000000-0abc"


def trial(number: int, value: float | None, params: Mapping[str, Any], **given: Any) -> Trial:
    ended = CREATED + timedelta(minutes=number)
    points = tuple((step, float(step)) for step in range(5))
    found = Trial(
        f"{number:04d}", f"net-{number:04d}-20261101-000000-0abc", "succeeded", "", value, params,
        3600.0, 1, 0, ended, points,
    )  # fmt: skip
    return replace(found, **given)


def sweep_of(*trials: Trial) -> Sweep:
    names = [each.name for each in trials]
    group = RunGroup(
        ID, "net", CREATED, ID, "local", {each.name: each.run_id for each in trials},
        dict.fromkeys(names, ()), trials={each.name: each.params for each in trials},
    )  # fmt: skip
    board = Leaderboard(ID, (), group, "accuracy")
    ordered = sorted(trials, key=lambda each: (not each.has_value, -(each.value or 0)))
    return Sweep(group, board, tuple(ordered), "max", 0.1)


def many(count: int, params: int) -> Sweep:
    """The metric depends on p00 alone."""
    chance = random.Random(1)
    trials: list[Trial] = []
    for number in range(count):
        drawn: dict[str, Any] = {f"p{n:02d}": round(chance.random(), 4) for n in range(params)}
        trials.append(trial(number, drawn["p00"], drawn))
    return sweep_of(*trials)


class Shown(Source):
    """A source that knows sweeps by their IDs, and asks no service."""

    def __init__(self, folder: Path, *sweeps: Sweep) -> None:
        super().__init__(load_settings({"target": "local"}, cwd=folder, env={}))
        self.sweeps = {each.group.group_id: each for each in sweeps}

    async def read(self, key: Any, function: Callable[[Connection], Any], **_: Any) -> Any:
        del function
        if key[0] == "sweep":
            if key[1] not in self.sweeps:
                raise RunnerError("R-GROUP-UNKNOWN", f"group {key[1]!r} not found")
            return self.sweeps[key[1]]
        return {"pools": ("local",), "group ids": [*self.sweeps]}[key[0]]


def show(folder: Path, sweep: Sweep, query: str = "", *others: Sweep) -> str:
    source = Shown(folder, sweep, *others)
    ask = Ask(source, f"/sweeps/{ID}", {"group_id": ID}, QueryParams(query), may_act=True)
    context: dict[str, Any] = {
        "navigation": (), "page": None, "path": "", "query": ask.pairs, "live": "",
        "target": source.settings.target, "stack": "", "may_act": True, "asset": str,
        "has_password": False,
    }  # fmt: skip
    return render("sweep.html", None, context | asyncio.run(page.read(ask)))


def axis_names(html: str) -> list[str]:
    return re.findall(r'class="axis" data-name="([^"]*)"', html)


def rows_of(html: str) -> list[str]:
    return re.findall(r'<tr id="trial-(\d+)"', html)


def test_sweep_of_60_parameters_shows_the_important_axes_and_offers_all(tmp_path: Path) -> None:
    sweep = many(80, 60)
    html = show(tmp_path, sweep)
    names = axis_names(html)
    assert (names[0], len(names), names[-1]) == ("p00", 9, "")
    assert html.count('name="axis"') == 60
    chosen = axis_names(show(tmp_path, sweep, "axis=p59&axis=p58&axis=unknown"))
    assert chosen == ["p59", "p58", ""]
    assert "p31" in axis_names(show(tmp_path, sweep, "b.p31=0..0.1"))


def test_every_trial_is_in_each_picture_in_the_order_of_the_board(tmp_path: Path) -> None:
    html = show(tmp_path, many(300, 3))
    pictures = re.findall(r'<svg class="chart trials (?:parallel|history)".*?</svg>', html)
    assert len(pictures) == 3
    for svg in pictures:
        parts = re.findall(r'data-from="(\d+)" d="([^"]*)"', svg)
        starts = {int(first): path.count("M") for first, path in parts}
        at = 0
        while at in starts:
            at += starts.pop(at)
        assert (at, starts) == (300, {})
        numbers = [re.findall(r"-?\d+", each) for each in parts[0][1].split("M")[1:]]
        assert len({len(each) for each in numbers}) == 1


def test_page_of_5000_trials_is_small(tmp_path: Path) -> None:
    html = show(tmp_path, many(5000, 12))
    # With scripts, styles and headers at most 150 kB.
    assert len(gzip.compress(html.encode(), 5)) < 100_000
    assert len(rows_of(html)) == 100
    assert "100 of 5000" in html


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [trial(1, None, {}, state="queued", ended=None, took_s=None, points=())],
        [trial(1, 0.5, {"lr": 0.1})],
        [trial(1, math.nan, {"lr": 0.1}), trial(2, None, {"opt": "<script>alert(1)</script>"})],
        [trial(1, 1e308, {"lr": math.inf}), trial(2, -1e308, {"lr": math.nan})],
        [trial(1, 1.0, {"a": True, "b": None, 'c"': [1, 2]}), trial(2, 2.0, {"a": "x", "b": 1})],
        [
            trial(1, 1.0, {"lr": 1e-6}, points=((1, math.nan), (2, math.inf), (3, 2.0))),
            trial(2, 0.9, {"lr": 10.0}, state="stopped early", reason="worse than the median"),
            trial(3, None, {"lr": 1.0}, state="failed", reason="exit <b>1</b>\nline 2"),
        ],
    ],
)
def test_awkward_sweeps_are_shown_as_text(tmp_path: Path, trials: list[Trial]) -> None:
    html = show(tmp_path, sweep_of(*trials))
    assert "<script>alert" not in html
    assert "<b>1</b>" not in html
    for svg in re.findall(r"<svg.*?</svg>", html, re.DOTALL):
        assert not re.search(r'(?:d|x|y|height)="[^"]*(?:nan|inf)', svg)
    assert not re.search(r"\sstyle=|\son[a-z]+=", html)


def test_trial_without_a_value_or_a_parameter_crosses_below_the_axis() -> None:
    sweep = sweep_of(trial(1, 0.5, {"lr": 1e-4}), trial(2, 0.7, {"lr": 1.0}), trial(3, None, {}))
    assert sweep.axes["lr"].is_log
    assert sweep.cross("lr") == (0, HEIGHT, None)
    assert sweep.cross("") == (0, HEIGHT, None)
    assert shades(2, 3) == [("none", 2, 3), ("s1", 1, 2), ("s0", 0, 1)]


def query_of(folder: Path, sweep: Sweep, text: str) -> SweepQuery:
    ask = Ask(Shown(folder, sweep), "", {}, QueryParams(text))
    return SweepQuery.parse(ask).with_brushes(ask, sweep)


def test_address_selects_ranges_choices_and_states(tmp_path: Path) -> None:
    sweep = sweep_of(
        trial(1, 0.9, {"lr": 0.1, "opt": "adam"}),
        trial(2, 0.8, {"lr": 0.01, "opt": "sgd"}),
        trial(3, 0.7, {"opt": "adam"}, state="failed"),
        trial(4, math.nan, {"lr": 0.05, "opt": "rms"}),
    )

    def chosen(text: str) -> list[str] | None:
        found = query_of(tmp_path, sweep, text).select(sweep)
        return None if found is None else [sweep.trials[number].name for number in found]

    assert chosen("") is None
    assert chosen("b.lr=0.02..0.1") == ["0001", "0004"]
    assert chosen("b.lr=..0.01") == ["0002"]
    assert chosen("b.lr=0.1") == ["0001"]
    assert chosen("b.opt=adam&b.opt=rms") == ["0001", "0003", "0004"]
    assert chosen("b=0.75..") == ["0001", "0002"]
    assert chosen("b.opt=adam&state=failed") == ["0003"]
    assert chosen("b.lr=5..6") == []
    html = show(tmp_path, sweep, "b.lr=0.02..0.1")
    assert 'class="brush"' in html
    assert rows_of(html) == ["0001", "0004"]
    assert "2 of 4 trials marked" in html
    assert "No trial is in all marked ranges" in show(tmp_path, sweep, "b.lr=5..6")
    with pytest.raises(RunnerError, match="invalid range"):
        query_of(tmp_path, sweep, "b.lr=small")


def test_table_is_sorted_by_any_column_and_missing_values_come_last(tmp_path: Path) -> None:
    sweep = sweep_of(
        trial(1, 0.9, {"lr": 0.1, "opt": "b"}, took_s=5.0),
        trial(2, 0.8, {"lr": 0.01, "opt": "a"}, took_s=None),
        trial(3, None, {"opt": "c"}, took_s=1.0),
    )
    assert rows_of(show(tmp_path, sweep)) == ["0001", "0002", "0003"]
    assert rows_of(show(tmp_path, sweep, "sort=p.lr")) == ["0002", "0001", "0003"]
    assert rows_of(show(tmp_path, sweep, "sort=-p.opt")) == ["0003", "0001", "0002"]
    assert rows_of(show(tmp_path, sweep, "sort=took")) == ["0003", "0001", "0002"]
    assert 'aria-sort="descending"' in show(tmp_path, sweep, "sort=-p.opt")
    assert rows_of(show(tmp_path, sweep, "n=1")) == ["0001"]


def test_best_value_so_far_is_over_trials_and_over_what_they_cost() -> None:
    sweep = sweep_of(
        trial(1, 0.5, {}), trial(2, 0.4, {}), trial(3, 0.8, {}), trial(4, None, {}, ended=None)
    )
    by_trials = page.history_by_trials(sweep)
    assert (by_trials.best, by_trials.last) == ([(1.0, 0.5), (3.0, 0.8)], 3.0)
    assert by_trials.points[-1] is None
    costs = {f"{n:04d}": TrialCost(n * 2.0, 0.0) for n in range(1, 5)}
    assert page.history_by_cost(sweep, costs).best == [(2.0, 0.5), (12.0, 0.8)]
    assert page.history_by_cost(sweep, None).best == [(3600.0, 0.5), (10_800.0, 0.8)]
    assert page.total_cost(costs) == 20.0
    assert page.total_cost({**costs, "0001": TrialCost(None, None)}) is None
    assert page.total_cost(None) is None


def test_sweeps_with_the_same_metric_are_in_one_plot(tmp_path: Path) -> None:
    own = many(20, 2)
    other = many(30, 2)
    other = replace(other, group=replace(other.group, group_id="other"))
    apart = replace(other, group=replace(other.group, group_id="apart"))
    apart = replace(apart, board=replace(apart.board, metric="loss"))
    html = show(tmp_path, own, "with=other&with=apart&with=gone", other, apart)
    assert html.count('class="curve best c1"') == 2
    assert html.count('class="curve best c2"') == 0
    assert "apart is not shown" in html
    assert "gone is not shown" in html


def test_few_bad_values_do_not_hide_the_others() -> None:
    values = [1.0 + n / 100 for n in range(100)]
    assert shown_range([*values, 1e9], "min")[1] < 2
    assert shown_range([*values, -1e9], "max")[0] >= 1
    assert shown_range(values, "min") == (1.0, 1.99)
    assert shown_range([math.nan, math.inf], "min") == (0.0, 1.0)
    low, high = shown_range([3.0], "max")
    assert low < 3 < high


def test_actions_of_a_sweep_are_commands() -> None:
    def command(name: str, **values: str) -> str:
        return " ".join(ACTIONS[name].argv({"sweep": ID, **values}))

    assert command("sweep-pause", running="wait") == f"sweep pause {ID} --running=wait"
    assert command("sweep-unpause") == f"sweep unpause {ID}"
    assert command("sweep-stop") == f"sweep stop {ID}"
    assert command("group-stop") == f"cancel {ID}"
    again = f"sweep resume {ID} --detach --from-start"
    assert command("sweep-resume", from_start="on") == again
    assert command("sweep-register", model="net") == f"sweep best {ID} --register=net"
    assert command("sweep-move", pool="big") == f"sweep move {ID} --to=big"
    assert command("sweep-rm") == f"rm {ID} --yes"


def test_stop_says_in_numbers_what_would_be_lost() -> None:
    describe = losses.SWEEP_ENDS.describe
    states = {"running": 2, "preparing": 1, "queued": 40, "succeeded": 7, "stopped early": 3}
    said = describe({"states": states}, {})
    assert "3 running trials" in said
    assert "40 waiting trials would not start" in said
    assert "10 trials ended before" in said
    assert "ended already" in describe({"states": {"succeeded": 7}}, {})
    tasks = [{"state": "running"}, {"state": "succeeded"}]
    assert "1 running run computed" in losses.GROUP_ENDS.describe({"tasks": tasks}, {})
