"""`runner pool autoscale lint` and `simulate`, which need no services."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.cli.main import main

GOOD = "$TargetLowPriorityNodes = min(4, $PendingTasks.GetSample(1));\n$NodeDeallocationOption = taskcompletion;\n"  # noqa: E501
LARGE = "$TargetDedicatedNodes = min(40, $PendingTasks.GetSample(1));"
PRICED = (
    "--vm-size",
    "Standard_NC4as_T4_v3",
    "--region",
    "southeastasia",
    "--dedicated-price",
    "0.5",
)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RUNNER_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["pool", "autoscale", *words])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def as_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    code, out, err = called(capsys, *words, "-o", "json")
    assert code == 0, err
    return json.loads(out)


def test_formulas_are_compared_with_the_same_tasks(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "good.txt").write_text(GOOD)
    words = ("simulate", "good.txt", LARGE, "--tasks", "50", "--duration", "20m-40m", *PRICED)
    rows = as_json(capsys, *words)
    assert [row["formula"] for row in rows] == ["good.txt", "formula 2"]
    small, large = rows
    assert small["finished"] == large["finished"] == 50
    assert small["cost_micro_usd"] < large["cost_micro_usd"]
    assert small["makespan_s"] > large["makespan_s"]
    for row in rows:
        parts = row["spent"].values()
        assert sum(part["cost_micro_usd"] for part in parts) == row["cost_micro_usd"]
        spent = sum(part["node_s"] for part in parts)
        assert spent == pytest.approx(row["spot_node_s"] + row["dedicated_node_s"])
    assert as_json(capsys, *words) == rows


def test_a_simulation_is_shown_and_drawn(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(
        capsys, "simulate", GOOD, "--tasks", "9", "--mtbf", "1h", "--checkpoint", "10m",
        "--spot-price", "0.2", "--chart", "--plot", "pool.svg",
    )  # fmt: skip
    assert code == 0
    assert "USD" in out
    assert "nodes by minute" in out
    assert "9 tasks, 4 h 30 min of work in all; 1 slot per node; evaluated every 15 min" in err
    assert (home / "pool.svg").read_text().startswith("<svg")


def test_an_unknown_price_is_shown_as_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = called(capsys, "simulate", GOOD, "--tasks", "2")
    assert (code, "unknown" in out, "no price: set --vm-size" in err) == (0, True, True)
    [row] = as_json(capsys, "simulate", GOOD, "--tasks", "2")
    assert row["cost_micro_usd"] is None


def test_tasks_and_evictions_come_from_files(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "tasks.csv").write_text("arrival,duration\n0,30m\n1h,30m\n")
    (home / "trace.jsonl").write_text('{"time": 1500, "evict": 1, "notice": 0}\n')
    words = ("--workload", "tasks.csv", "--trace", "trace.jsonl")
    [row] = as_json(capsys, "simulate", GOOD, *words)
    assert (row["finished"], row["evictions"], row["repeated"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("simulate",), "R-FORMULA-MISSING"),
        (("simulate", "none.txt"), "R-FORMULA-READ"),
        (("simulate", "$TargetLowPriorityNodes = ;"), "R-SIMULATION"),
        (("simulate", GOOD, "--task-slots", "2"), "R-SIMULATION"),
        (("simulate", GOOD, "--region", "sweden"), "R-SKUS-UNKNOWN"),
        (("simulate", GOOD, "--duration", "soon"), "R-SCENARIO"),
        (("simulate", GOOD, "--workload", "none.csv"), "R-SCENARIO"),
        (("simulate", GOOD, "--trace", "none.csv"), "R-SCENARIO"),
        (("simulate", GOOD, "--interval", "1m"), "R-FLAG-VALUE"),
        (("simulate", GOOD, "--mtbf", "0s"), "R-FLAG-VALUE"),
        (("simulate", GOOD, "--plot", "pool.png"), "R-PLOT-FORMAT"),
        (("lint",), "R-FORMULA-MISSING"),
        (("lint", " = 1;"), "R-FORMULA-READ"),
        (("lint", " "), "R-FORMULA-READ"),
    ],
)
def test_invalid_input_is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: str
) -> None:
    status, out, err = called(capsys, *words)
    assert (status in (2, 3), out) == (True, "")
    assert f"error[{code}]" in err
    assert "fix:" in err


def test_findings_have_a_position_and_a_suggestion(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "bad.txt").write_text(
        "// all of them\n$TargetLowPriorityNodes = sum($PendingTasks.GetSample(1));\n"
    )
    code, out, _ = called(capsys, "lint", "bad.txt", GOOD)
    assert code == 0
    assert "bad.txt:2: warning: 100,000 waiting tasks request 100,000 nodes" in out
    assert "better: $TargetLowPriorityNodes = min(10, sum($PendingTasks.GetSample(1)));" in out
    assert "formula 2: no problem found" in out
    [row, _] = as_json(capsys, "lint", "bad.txt")
    assert {"rule", "line", "level", "what", "better", "formula"} == set(row)


def test_invalid_formula_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = called(capsys, "lint", "nodes = 3;")
    assert (code, "error: the formula sets neither node count" in out) == (1, True)
