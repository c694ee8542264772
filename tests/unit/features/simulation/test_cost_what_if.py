"""`runner cost whatif`, which needs no services."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.cli.main import main

PRICES = ("--spot-price", "0.2", "--dedicated-price", "1")
FORMULA = "$TargetLowPriorityNodes = min(10, $PendingTasks.GetSample(1)); $NodeDeallocationOption = taskcompletion;"  # noqa: E501


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["cost", "whatif", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


@pytest.mark.slow
@pytest.mark.feature(7)
def test_formulas_sizes_and_policies_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    words = (FORMULA, "--tasks", "60", "--mtbf", "4h", "--checkpoint", "10m", "--save", "30s")
    sizes = ("--vm-size", "slow", "--vm-size", "fast=4")
    code, out, err = called(capsys, *words, *PRICES, *sizes, "-o", "json")
    assert code == 0, err
    found = json.loads(out)
    policies = ["on-demand", "spot", "fallback", "greedy", "uniform", "forecast"]
    names = ["formula 1", *policies]
    options = {(each["size"], each["option"]): each for each in found["options"]}
    assert list(options) == [(size, name) for size in ("slow", "fast") for name in names]
    slow, fast = options["slow", "on-demand"], options["fast", "on-demand"]
    assert fast["cost_micro_usd"] < slow["cost_micro_usd"]
    assert max(fast["makespan_s"]) < min(slow["makespan_s"])
    assert options["slow", "greedy"]["cost_micro_usd"] < slow["cost_micro_usd"]
    assert len(slow["makespan_s"]) == 3  # seeds
    by_deadline = [point["greedy"]["cost_micro_usd"] for point in found["frontier"]]
    assert by_deadline[0] > by_deadline[-1]
    assert found["checkpoint"]["daly_s"] == pytest.approx(920, rel=0.02)  # 30 s every 4 hours
    again = called(capsys, *words, *PRICES, *sizes, "-o", "json")
    assert again[1] == out
    assert options["slow", "formula 1"]["regret"] is None
    for each in (options["slow", name] for name in policies if not options["slow", name]["late"]):
        best = each["optimum_micro_usd"]
        assert each["regret"] == pytest.approx(each["cost_micro_usd"] / best - 1)
        assert each["regret"] >= 0


def test_tables_are_printed_without_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys, "--tasks", "20", *PRICES, "--deadline", "5h", "--chart")
    assert code == 0, err
    assert "cheapest by 5 h" in out
    assert "cost by deadline" in out
    assert "waiting tasks by minute" in out


def test_the_regret_of_the_advice_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tasks", "10", "--mtbf", "4h", "--lifetime", "bathtub", "--checkpoint", "10m")
    code, out, err = called(capsys, *words, *PRICES)
    assert code == 0, err
    assert "REGRET" in out
    assert "OPTIMUM" in out
    assert "above the offline optimum of" in out


def test_a_public_trace_is_the_capacity_of_the_pool(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    """Without capacity, the work is done on dedicated nodes."""
    counts = {"metadata": {"gap_seconds": 300}, "data": [0] * 500}
    (home / "trace.json").write_text(json.dumps(counts))
    words = ("--trace", "trace.json", "--tasks", "4", "--deadline", "6h", "-o", "json")
    code, out, err = called(capsys, *words, *PRICES)
    assert code == 0, err
    options = {each["option"]: each for each in json.loads(out)["options"]}
    assert options["spot"]["late"] == 3
    assert options["spot"]["regret"] is None
    assert options["greedy"]["regret"] < 0.5
    assert options["greedy"]["cost_micro_usd"] > 2_000_000


def test_a_trace_with_too_many_evictions_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = called(capsys, "--mtbf", "1s", "--nodes", "1000", "--deadline", "365d", *PRICES)
    assert code == 2
    assert "R-SCENARIO" in err
    assert "a longer --mtbf" in err
    assert "fix: runner cost whatif --help" in err


def test_an_unknown_price_is_not_counted_as_zero(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--tasks", "20", "--spot-price", "0.2", "--deadline", "10h", "-o", "json")
    found = json.loads(called(capsys, *words)[1])
    costs = {each["option"]: each["cost_micro_usd"] for each in found["options"]}
    assert costs["on-demand"] is None
    assert costs["greedy"] is not None


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("$TargetLowPriorityNodes = ;",), "cannot simulate formula 1"),
        (("--vm-size", "x=0"), "expected a speed from 0.001"),
        (("--task-slots", "4"), "a task needs 4 slots, but a node has 1"),
        (("--deadline", "0s"), "--deadline"),
        (("--trace", "none.jsonl"), "cannot be read"),
    ],
)
def test_invalid_input_is_explained(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], text: str
) -> None:
    code, _, err = called(capsys, *words)
    assert code == 2
    assert text in err


@pytest.mark.slow
def test_failed_evaluation_of_a_formula_is_reported(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = called(capsys, "$TargetLowPriorityNodes = 1 / 0;", "--tasks", "2", *PRICES)
    assert code == 0
    assert "formula 1: after 0 s: " in err
    assert "times in a row" in err
