"""Feature row 46, metrics and run history: `ps`, `show`, `metrics`, over real services."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

from tests.e2e.conftest import Cli

Write = Callable[..., Path]

MEASURE = """
import json, os, sys
rate = float(sys.argv[sys.argv.index("--rate") + 1]) if "--rate" in sys.argv else 1.0
with open(os.environ["RUNNER_METRICS_FILE"], "a") as out:
    for step in range(1, 6):
        out.write(json.dumps({"step": step, "acc": rate * step, "loss": 1 / step}) + "\\n")
    out.write('{"step": 6, "acc": NaN, "loss": Infinity}\\n')
open(os.environ["RUNNER_OUTPUT_DIR"] + "/model.bin", "wb").write(b"m")
"""
RECIPE = """
name: measured
command: [python, train.py]
params:
  rate: {type: float, default: 1.0}
  seed: {type: int, default: 0}
outputs: [model.bin]
metrics: {primary: acc, goal: max}
"""


def measured(script: Write) -> Path:
    folder = script(MEASURE)
    (folder / "train.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


def test_metrics_of_two_runs_stand_side_by_side(cli: Cli, script: Write) -> None:
    folder = measured(script)
    one, two = (
        cli.json("train", folder, "--no-download", "--set", f"rate={rate}")["run_id"]
        for rate in (1.0, 2.0)
    )
    text = cli.ok("metrics", one, "--compare", two, "--chart")
    assert "rate       1.0" in text
    assert "seed" not in text, "only parameters that differ"
    lines = [line.split() for line in text.splitlines() if line.startswith("acc ")]
    assert lines == [
        ["acc", one, "nan", "6", "5.0000", "5", "6"],
        ["acc", two, "nan", "6", "10.0000", "5", "6"],
    ]
    found = cli.json("metrics", one, "acc", "--compare", two, "--last", "2")
    assert found["metrics"] == {
        "acc": {"steps": [5, 6], "values": {one: [5, "NaN"], two: [10, "NaN"]}}
    }
    assert found["differing_params"] == {"rate": [1.0, 2.0]}
    rows = cli.ok("metrics", one, "loss", "-o", "tsv").splitlines()
    assert rows[0].split("\t") == ["run_id", "metric", "step", "value"]
    assert rows[-1].split("\t")[2:] == ["6", "inf"]


def test_metrics_are_drawn_into_a_file(cli: Cli, script: Write) -> None:
    run_id = cli.json("train", measured(script), "--no-download")["run_id"]
    for name in ("curves.svg", "curves.html"):
        cli.ok("metrics", run_id, "--plot", name)
    assert ElementTree.parse(cli.cwd / "curves.svg").getroot().tag.endswith("svg")
    assert run_id in (cli.cwd / "curves.html").read_text(encoding="utf-8")
    refused = cli.run("metrics", run_id, "--plot", "curves.png")
    assert refused.returncode == 2
    assert "fix: --plot curves.svg" in refused.stderr
    unknown = cli.run("metrics", run_id, "los")
    assert unknown.returncode == 2
    assert f"fix: runner metrics {run_id} loss" in unknown.stderr


def test_runs_are_found_again_by_state_experiment_and_time(own_cli: Cli, script: Write) -> None:
    folder = script("import sys\nsys.exit('no luck' if '--fail' in sys.argv else 0)")
    good = own_cli.json("train", folder, "--no-download", "-e", "good")["run_id"]
    bad = own_cli.run("train", folder, "-e", "bad", "-o", "json", "--", "--fail")
    bad_id = json.loads(bad.stdout)["run_id"]

    def listed(*words: str) -> list[str]:
        return [row["run_id"] for row in own_cli.json("ps", *words)]

    assert listed() == [bad_id, good]
    assert listed("--status", "failed,lost") == [bad_id]
    assert listed("-e", "good", "--since", "1h") == [good]
    assert listed("--since", "2020-01-01") == [bad_id, good]
    text = own_cli.ok("ps").splitlines()
    assert text[0].split() == [
        "RUN",
        "RECIPE",
        "EXPERIMENT",
        "STATUS",
        "ATTEMPT",
        "POOL",
        "AGE",
        "DURATION",
        "ERROR",
    ]
    assert "exited with code 1" in text[1]
    for words, code in (
        (["--status", "done"], "R-STATE"),
        (["--since", "x"], "R-SINCE"),
        (["-w", "-o", "json"], "R-WATCH-FORMAT"),
    ):
        refused = own_cli.run("ps", *words)
        assert refused.returncode == 2
        assert code in refused.stderr
        assert "fix:" in refused.stderr
