"""Feature row 46, metrics and run history: `ps`, `show`, `metrics`, over real services."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from runner.azure.auth.credentials import connect
from runner.azure.batch.jobs import get_task
from runner.azure.storage.blobs import BlobContainer
from runner.core.settings import load_settings
from tests.e2e.conftest import Cli, until

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


@pytest.mark.feature(46)
def test_metrics_of_two_runs_are_shown_side_by_side(cli: Cli, script: Write) -> None:
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
    listed = cli.json("ps", "-a", "-e", "measured", "--sort", "acc", "--param", "rate")
    rates = {row["run_id"]: row["rate"] for row in listed}
    assert (rates[one], rates[two]) == (1.0, 2.0)
    refused = cli.run("ps", "-a", "--sort", "ac")
    assert refused.returncode == 2
    assert "fix: did you mean 'acc'?" in refused.stderr


def test_arguments_are_parameters_in_every_view(cli: Cli, script: Write) -> None:
    folder = script("print('loss: 0.5')")

    def trained(*words: str) -> str:
        text = cli.ok("train", folder, "--no-download", "-e", "typed", "-o", "json", *words)
        return json.loads(text)["run_id"]

    one = trained("--", "fit", "--lr", "0.1", "--amp")
    same = trained("--set", "lr=1e-1", "--", "fit", "--amp")
    two = trained("--", "test", "lr=0.2", "--shift", "-1")
    assert "the parameters are equal" in cli.ok("metrics", one, "--compare", same)
    assert cli.json("metrics", one, "--compare", two)["differing_params"] == {
        "lr": [0.1, 0.2], "amp": [True, None], "shift": [None, -1], "arguments": ["fit", "test"],
    }  # fmt: skip
    listed = {row["run_id"]: row["params"] for row in cli.json("ps", "-e", "typed")}
    assert listed[one] == listed[same] == {"lr": 0.1, "amp": True}
    assert listed[two] == {"lr": 0.2, "shift": -1}
    assert "lr=0.1, amp=True" in cli.ok("show", one)
    assert cli.json("experiments", "show", "typed")["params"]["lr"] in (0.1, 0.2)


def test_metrics_are_plotted_to_a_file(cli: Cli, script: Write) -> None:
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


@pytest.mark.feature(46)
@pytest.mark.feature(51)
@pytest.mark.feature(58)
def test_runs_are_filtered_by_state_experiment_and_time(own_cli: Cli, script: Write) -> None:
    folder = script("import sys\nprint(1)\nsys.exit('no luck' if '--fail' in sys.argv else 0)")
    good = own_cli.json("train", folder, "--no-download", "-e", "good")["run_id"]
    bad = own_cli.run("train", folder, "-e", "bad", "-o", "json", "--", "--fail")
    bad_id = json.loads(bad.stdout)["run_id"]

    def listed(*words: str) -> list[str]:
        return [row["run_id"] for row in own_cli.json("ps", *words)]

    assert listed() == [bad_id, good]
    assert listed("--status", "failed,lost") == [bad_id]
    assert listed("-e", "good", "--since", "1h") == [good]
    assert listed("--since", "2020-01-01") == [bad_id, good]
    assert own_cli.json("experiments", "show", "bad")["failures"][0]["run_ids"] == [bad_id]
    assert [row["states"] for row in own_cli.json("experiments", "ls")] == [
        {"failed": 1},
        {"succeeded": 1},
    ]
    assert own_cli.ok("logs", "-e", "bad") == f"[{bad_id}] 1\n"
    assert "R-LOGS-OPTIONS" in own_cli.run("logs", bad_id, "-e", "bad").stderr
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
    _remove_the_failed_run(own_cli, good, bad_id)


def _remove_the_failed_run(cli: Cli, good: str, bad: str) -> None:
    """Nothing is deleted without a word; then the run goes with all that it left."""
    settings = load_settings({"target": "local"}, cwd=cli.cwd, env=cli.env)
    client = connect(settings).batch_client()
    until(lambda: client.get_job("bad_local").state == "completed")
    planned = cli.json("rm", "--status", "failed", "--dry-run")
    assert [run["run_id"] for run in planned["runs"]] == [bad]
    assert planned["size_bytes"] > 0
    refused = cli.run("rm", "--status", "failed")
    assert refused.returncode == 2
    assert "fix: runner rm --status failed --yes" in refused.stderr
    newest = cli.json("ps")[0]["run_id"]
    assert f"fix: runner rm {newest} --yes" in cli.run("rm", "@last").stderr
    for age in ("0s", "86400"):
        assert "invalid --older-than" in cli.run("rm", "--older-than", age, "--yes").stderr
    removed = cli.json("rm", "--status", "failed", "--yes")
    assert (removed["files"], removed["jobs"]) == (planned["files"], ["bad_local"])
    assert [row["run_id"] for row in cli.json("ps")] == [good]
    assert not [blob.name for blob in runs_of(cli).list("") if bad in blob.name]
    # The service deletes a job some seconds after it was asked to.
    until(lambda: get_task(connect(settings), "bad_local", bad) is None)
    assert "R-RUN-UNKNOWN" in cli.run("show", bad).stderr
    assert pruned_tasks(cli, "--yes") == [f"task {good} of job good_local"]
    assert pruned_tasks(cli, "--dry-run") == []
    assert cli.json("show", good)["state"] == "succeeded"


def pruned_tasks(cli: Cli, option: str) -> list[str]:
    """Return the tasks; the machine may also have folders of homes that are gone."""
    items = cli.json("local", "prune", option)["items"]
    return [item["path"] for item in items if item["path"].startswith("task ")]


def runs_of(cli: Cli) -> BlobContainer:
    settings = load_settings({"target": "local"}, cwd=cli.cwd, env=cli.env)
    return BlobContainer(connect(settings).blob_service(), "runs")


@pytest.mark.slow
def test_every_verb_reports_a_run_of_a_newer_runner(own_cli: Cli, script: Write) -> None:
    folder = measured(script)
    good = own_cli.json("train", folder, "--no-download")["run_id"]
    runs = runs_of(own_cli)
    document = json.loads(runs.read(f"{good}/run.json") or b"{}")
    newer, torn = "measured-20991121-120000-aaaa", "measured-20991121-120001-aaaa"
    runs.create(f"{newer}/run.json", {**document, "run_id": newer, "format": 99})
    runs.create_bytes(f"{torn}/run.json", b'{"format": 1, "run_id"', "application/json")
    own_cli.ok("index", "rebuild")  # as their entries were not written
    rows = {row["run_id"]: row for row in own_cli.json("ps", "-a")}
    assert rows[good]["state"] == "succeeded"
    assert "newer version of runner" in rows[newer]["reason"]
    assert rows[torn]["state"] == "unreadable"
    for words in (
        ["show", newer],
        ["metrics", newer],
        ["metrics", good, "--compare", newer],
        ["logs", newer],
        ["attach", newer],
        ["cancel", newer],
        ["files", "ls", newer],
        ["retry", newer],
        ["resume", newer],
        ["reproduce", newer],
        ["reproduce", good, "--against", newer],
    ):
        done = own_cli.run(*words)
        assert done.returncode not in {0, 70}, words
        assert "R-RUN-FORMAT" in done.stderr, words
        assert "fix: run `pip install --upgrade azure-batch-runner`" in done.stderr, words
    poor = "measured-20991121-120002-aaaa"
    kept = ("format", "experiment", "created", "recipe", "params", "batch", "command")
    runs.create(f"{poor}/run.json", {**{k: document[k] for k in kept}, "run_id": poor})
    done = own_cli.run("retry", poor)
    assert (done.returncode, "R-RUN-BROKEN" in done.stderr) == (1, True), done.stderr
    assert own_cli.run("show", poor).returncode == 0
    for verb in ("show", "metrics", "retry", "resume", "reproduce"):
        done = own_cli.run(verb, torn)
        assert (done.returncode, "R-RUN-BROKEN" in done.stderr) == (1, True), done.stderr


def test_damaged_metric_lines_are_skipped(cli: Cli, script: Write) -> None:
    run_id = cli.json("train", script("print(1)"), "--no-download")["run_id"]
    lines = [
        '{"step": 1, "name": "x", "value": 1}',
        '{"step": 2, "name": "x", "va',
        '{"step": 1e999, "name": "x", "value": 2}',
        '{"step": 3, "name": "x", "value": 1e999}',
        '{"step": 4, "name": ["x"], "value": {}}',
        "[]",
        "\x00\udcff",
        '{"step": 5, "name": "x", "value": "NaN"}',
    ]
    runs = runs_of(cli)
    content = "\n".join(lines).encode("utf-8", "surrogateescape")
    runs.delete(f"{run_id}/metrics.jsonl")
    assert runs.create_bytes(f"{run_id}/metrics.jsonl", content, "application/jsonl")
    found = cli.json("metrics", run_id)
    assert found["metrics"]["x"]["steps"] == [1, 3, 5]
    assert found["runs"][0]["metrics"]["x"]["best"] == 1
    assert "2 values are NaN or infinite" in cli.ok("metrics", run_id, "--chart")


MANY = """
import json, os
with open(os.environ["RUNNER_METRICS_FILE"], "a") as file:
    values = {f"layer_{n}": n / 8 for n in range(1489)}
    file.write(json.dumps({"val_loss": 0.5, **values}) + "\\n")
"""


def test_end_of_a_run_with_many_metrics_is_one_screen(
    cli: Cli, script: Callable[[str], Path]
) -> None:
    folder = script(MANY)
    (folder / "train.yaml").write_text("metrics: {primary: val_loss}\n")
    done = cli.run("train", folder)
    assert done.returncode == 0, done.stderr
    run_id = cli.json("show", "@last")["run_id"]
    for text in (done.stderr, cli.ok("show", run_id)):
        assert "val_loss" in text
        assert text.count("layer_") <= 10, "nine metrics, and one in a warning"
        assert f"and 1,480 more: runner metrics {run_id}" in text
        assert len(text.splitlines()) <= 60
