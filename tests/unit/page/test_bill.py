"""The bill and the simulator: pictures, awkward addresses, and the command behind it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from starlette.datastructures import QueryParams

from runner.core.pricing.budgets import Spending
from runner.core.settings import load_settings
from runner.flows.costs.bill import Waterfall, make_bill
from runner.page.actions import ACTIONS
from runner.page.ask import Ask
from runner.page.charts.bars import Column, WaterfallStep, draw_columns, draw_waterfall
from runner.page.pages import whatif
from runner.page.pages.bill import to_columns, to_steps
from runner.page.pages.whatif import run_command, to_frontier, to_words, with_dark
from runner.page.rendering import format_dollars
from runner.page.source import Source
from runner.protocol.errors import RunnerError
from tests.unit.page.spending import HOUR, attempt, client_of, report_of, run_usage

ALL = "since=all"
NO_BUDGETS: dict[str, Any] = {"budgets": ([], "")}


def two_runs(**more: Any) -> Any:
    return report_of(
        run_usage("<script>alert(1)</script>", attempt(1, HOUR, 30 * HOUR, created=0)),
        run_usage("b", attempt(1, HOUR, 2 * HOUR, node="tvm-2", created=0, why="terminated",
                               node_ends=3 * HOUR), status=""),
        **more,
    )  # fmt: skip


def test_steps_end_at_what_was_paid() -> None:
    steps = to_steps(Waterfall(1000, 700, 20, 30, 350))
    assert sum(step.value for step in steps if not step.is_sum) + steps[0].value == 350
    assert steps[-1].value == 350
    unknown = to_steps(Waterfall(None, None, 20, 30, 350))
    assert [step.name for step in unknown] == ["work", "rework", "idle", "paid"]
    assert sum(step.value for step in unknown[:-1]) == 350


@pytest.mark.parametrize(
    ("micro", "text"),
    [
        (0, "$0.00"), (3, "<$0.0001"), (-3, ">-$0.0001"), (1_500_000, "$1.50"),
        (-1_500_000, "-$1.50"), (12_345, "$0.0123"),
    ],
)  # fmt: skip
def test_tiny_and_negative_amounts_are_not_shown_as_zero(micro: int, text: str) -> None:
    assert format_dollars(micro) == text


def test_waterfall_shows_changes_with_their_sign_and_also_a_loss() -> None:
    steps = to_steps(Waterfall(100_000, -50_000, 0, 0, 150_000))  # spot nodes were dearer
    picture = str(draw_waterfall(steps, "waterfall", format_dollars))
    assert "+$0.05" in picture
    assert "NaN" not in picture
    assert draw_waterfall([], "waterfall", format_dollars) == ""
    zero = [WaterfallStep("paid", 0, "total", is_sum=True)]
    assert "$0.00" in str(draw_waterfall(zero, "waterfall", format_dollars))


def test_columns_show_a_year_with_few_names() -> None:
    columns = [Column(f"d{number}", {"useful": float(number)}) for number in range(365)]
    picture = str(draw_columns(columns, "days", format_dollars))
    assert picture.count("<rect") == 364  # the first one is empty
    assert 0 < picture.count(">d") <= 12 + 364
    assert picture.count("tick middle") <= 12
    assert draw_columns([], "days", format_dollars) == ""


def test_days_without_prices_show_node_time() -> None:
    def first_day(vm_size: str) -> float:
        run = run_usage("a", attempt(1, 0, HOUR, created=0), vm_size=vm_size)
        return to_columns(make_bill(report_of(run)))[0].total

    assert first_day("known") == 100_001
    assert first_day("other") == HOUR


def test_bill_shows_days_causes_runs_and_gaps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of({"costs": two_runs(), **NO_BUDGETS}, tmp_path, monkeypatch)
    answered = client.get(f"/bill?{ALL}")
    assert answered.status_code == 200
    assert "<script>alert" not in answered.text
    assert "style=" not in answered.text
    for said in ("on demand", "spot saving", "rework", "By cause", "By pool", "Not on record",
                 "nodes that were being evicted", "11-30"):  # fmt: skip
        assert said in answered.text


def test_free_bill_offers_prices_of_azure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of({"costs": two_runs(is_free=True), **NO_BUDGETS}, tmp_path, monkeypatch)
    shown = client.get(f"/bill?{ALL}").text
    assert "Show the bill as if they were Standard_" in shown
    assert "free" in shown


def test_bill_with_unknown_prices_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = report_of(
        run_usage("a", attempt(1, 0, HOUR, created=0)),
        run_usage("b", attempt(1, 0, HOUR, node="n", created=0), vm_size="other"),
    )
    shown = (
        client_of({"costs": report, **NO_BUDGETS}, tmp_path, monkeypatch).get(f"/bill?{ALL}").text
    )
    assert "of node time is unknown; the rest costs $0.10" in shown
    assert "The on-demand price is not shown" in shown


def test_budgets_are_shown_with_buttons_that_change_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spendings = [
        Spending("", 100_000_000, 2_000_000, 0),
        Spending("a&b", 5_000_000, 1_000_000, 1_500_000, ("old-run",)),
    ]
    answers = {"costs": report_of(), "budgets": (spendings, "the price of old-run is unknown")}
    client = client_of(answers, tmp_path, monkeypatch)
    shown = client.get("/bill").text
    assert "the price of old-run is unknown" in shown
    for said in ("this month", "$100.00", "at least $1.00", "$2.50", "experiment=a%26b"):
        assert said in shown
    first, second = client.get("/api/v1/budgets").json()
    assert (first["budget"], first["experiment"], first["left_micros"]) == (
        "month", None, 98_000_000
    )  # fmt: skip
    assert second["unpriced_runs"] == ["old-run"]


def test_actions_on_budgets_are_commands_of_runner() -> None:
    change, remove = ACTIONS["budget-set"], ACTIONS["budget-rm"]
    found = change.argv({"usd": "50", "experiment": "digits"})
    assert " ".join(found) == "budget set 50 --experiment=digits"
    assert " ".join(change.argv({"usd": "50"})) == "budget set 50"
    assert " ".join(remove.argv({})) == "budget rm"


def test_empty_account_names_the_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of({"costs": report_of(), **NO_BUDGETS}, tmp_path, monkeypatch)
    assert "<code>runner train mnist</code>" in client.get("/bill").text
    assert client.get("/api/v1/bill").json()["days"] == []


@pytest.mark.parametrize("query", ["since=x", "n=0", "since=1999-01-01"])
def test_wrong_address_of_the_bill_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str
) -> None:
    client = client_of({"costs": report_of(), **NO_BUDGETS}, tmp_path, monkeypatch)
    assert client.get(f"/bill?{query}").status_code == 400


def test_documents_have_the_same_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of({"costs": two_runs(), **NO_BUDGETS}, tmp_path, monkeypatch)
    bill = client.get(f"/api/v1/bill?{ALL}").json()
    costs = client.get(f"/api/v1/costs?{ALL}&by=pool").json()
    assert costs["by"] == "pool"
    assert [row["name"] for row in costs["rows"]] == ["t4"]
    total = costs["total"]["cost_micro_usd"]
    assert bill["waterfall"]["paid_micro_usd"] == costs["rows"][0]["cost_micro_usd"] == total
    assert client.get("/api/v1/costs?by=day").status_code == 400


def ask(query: str, folder: Path) -> Ask:
    env = {"RUNNER_HOME": str(folder)}
    source = Source(load_settings({"target": "local"}, cwd=folder, env=env))
    return Ask(source, "/bill/whatif", {}, QueryParams(query))


def test_form_of_the_simulator_becomes_options_of_the_command(tmp_path: Path) -> None:
    words = to_words(ask("tasks=5&mtbf=2h&vm_size=A=2 B&region=here&pool=&junk=1", tmp_path))
    assert words[:2] == ["cost", "whatif"]
    assert {"--tasks=5", "--mtbf=2h", "--vm-size=A=2", "--vm-size=B", "--region=here"} < {*words}
    assert not any("junk" in word or "--pool" in word for word in words)


@pytest.mark.attack
def test_value_of_the_simulator_is_never_an_option_or_a_file(tmp_path: Path) -> None:
    query = "duration=--plot%3D/tmp/x&run=--workload&pool=-h&vm_size=--trace=/etc/passwd"
    words = to_words(ask(query, tmp_path))[2:]
    assert all(word.startswith("--") and "=" in word for word in words)
    names = {word.partition("=")[0] for word in words}
    assert not names & {"--plot", "--workload", "--trace"}


@pytest.mark.parametrize("query", ["tasks=0", "tasks=5001", "seeds=11", "nodes=x"])
def test_simulation_that_would_take_long_is_refused(tmp_path: Path, query: str) -> None:
    with pytest.raises(RunnerError, match="invalid"):
        to_words(ask(query, tmp_path))


class Done:
    """A process that has ended."""

    def __init__(self, document: Any, code: int = 0) -> None:
        self.returncode = code
        self.stdout = json.dumps(document).encode()
        self.stderr = b"last line"


def simulated() -> dict[str, Any]:
    option = {
        "size": "<b>", "option": "greedy", "policy": True, "cost_micro_usd": 1_500_000.0,
        "optimum_micro_usd": 1_200_000.0, "regret": 0.25,
        "makespan_s": [60.0, None], "late": 0, "wait_p50_s": 1.0, "wait_p90_s": None,
        "wait_p99_s": None, "evictions": 2.0, "waste": 0.5, "unfinished": [0, 1], "problems": [],
    }  # fmt: skip
    late = {**option, "late": 1}
    return {
        "deadline_s": 3600.0,
        "options": [option, {**option, "cost_micro_usd": None}],
        "frontier": [
            {"deadline_s": 600.0, "greedy": late, "uniform": option},
            {"deadline_s": 1200.0, "greedy": option, "uniform": {**option, "cost_micro_usd": None}},
        ],
        "cheapest": {"size": "<b>", "option": "greedy"},
        "checkpoint": None,
        "measured": None,
    }


def test_late_and_unpriced_options_are_not_drawn() -> None:
    document: Any = simulated()
    curves = {curve.run_id: curve.points for curve in to_frontier(document)}
    assert curves == {
        "on-demand": (), "spot": (), "fallback": (), "greedy": ((20, 1.5),),
        "uniform": ((10, 1.5),), "forecast": (),
    }  # fmt: skip


def test_simulator_shows_the_command_its_results_and_its_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = simulated(), b"<svg/>"
    client = client_of({"whatif": found}, tmp_path, monkeypatch)
    form = client.get("/bill/whatif").text
    assert "runner cost whatif --tasks=100" in form
    assert "Cheapest" not in form
    shown = client.get("/bill/whatif?go=1").text
    assert "Cheapest within 1 h" in shown
    assert "data:image/svg+xml;base64," in shown
    assert "<b>greedy</b> on &lt;b&gt;" in shown
    assert client.get("/api/v1/whatif").json()["deadline_s"] == 3600
    wrong = client.get("/bill/whatif?go=1&tasks=0")
    assert wrong.status_code == 200
    assert "expected a whole number from 1 to 5000" in wrong.text
    assert client.get("/api/v1/whatif?tasks=0").status_code == 400


def test_failed_simulation_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ask("", tmp_path).source.settings
    error = {"error": {"code": "R-SCENARIO", "what": "invalid scenario", "why": "no duration"}}
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: Done(error, 2))
    with pytest.raises(RunnerError) as caught:
        run_command(["cost", "whatif"], settings)
    assert (caught.value.what, caught.value.why) == ("invalid scenario", "no duration")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: Done([], 1))
    with pytest.raises(RunnerError) as caught:
        run_command(["cost", "whatif"], settings)
    assert caught.value.why == "last line"

    def late(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("runner", 60)

    monkeypatch.setattr(subprocess, "run", late)
    with pytest.raises(RunnerError, match="took more than"):
        run_command(["cost", "whatif"], settings)


def test_real_simulation_has_a_picture(tmp_path: Path) -> None:
    asked = ask("tasks=3&duration=10m&nodes=1&seeds=1&go=1", tmp_path)
    document, picture = run_command(to_words(asked), asked.source.settings)
    assert {each["option"] for each in document["options"]} == {*whatif.POLICIES}
    assert picture.startswith(b"<svg")
    assert b">minute</text>" in picture
    assert b">step</text>" not in picture
    dark = ElementTree.fromstring(with_dark(picture))
    assert "prefers-color-scheme: dark" in (dark[0].text or "")
    assert with_dark(b"") == b""
    assert asyncio.run(whatif.read(ask("", tmp_path)))["found"] is None
