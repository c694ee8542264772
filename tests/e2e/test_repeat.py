"""Rows 31 and 46 of the features: retry, resume, reproduce, from any folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection, connect
from runner.azure.storage.blobs import BlobContainer
from runner.core.settings import load_settings
from runner.protocol.paths import RunPaths
from tests.e2e.conftest import Cli

Write = Callable[..., Path]

TRAIN = """
import argparse, hashlib, json, os, pathlib, sys, time, zipfile
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--fail")
parser.add_argument("--vary", default="false")
arguments = parser.parse_args()
if arguments.fail:
    sys.exit("no luck")
salt = os.urandom(8).hex() if arguments.vary == "true" else ""
weights = hashlib.sha256(f"{arguments.seed}{salt}".encode()).digest() * 100
out = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
with zipfile.ZipFile(out / "model.zip", "w") as packed:
    # an archive counts in steps of two seconds, and a run is faster than that
    moment = 400_000_000 + time.time_ns() // 1_000_000 % 400_000_000 * 2
    packed.writestr(zipfile.ZipInfo("weights", time.localtime(moment)[:6]), weights)
(out / "weights.bin").write_bytes(weights)
(out / "summary.json").write_text(json.dumps({"acc": 0.5, "seconds": time.time()}))
with open(os.environ["RUNNER_METRICS_FILE"], "a") as metrics:
    metrics.write(json.dumps({"step": 1, "acc": 0.5 if not salt else int(salt, 16)}) + "\\n")
"""
RECIPE = """
name: repeated
command: [python, train.py]
params:
  seed: {type: int, default: 3}
  vary: {type: bool, default: false}
outputs: [model.zip, weights.bin]
metrics: {primary: acc, goal: max}
"""


def recipe(script: Write) -> Path:
    folder = script(TRAIN)
    (folder / "train.yaml").write_text(RECIPE, encoding="utf-8")
    return folder


def connection(cli: Cli) -> Connection:
    settings = load_settings({"target": "local"}, cwd=cli.cwd, env=cli.env)
    return connect(settings)


def runs_of(cli: Cli) -> BlobContainer:
    return BlobContainer(connection(cli).blob_service(), "runs")


def run_document(cli: Cli, run_id: str) -> dict[str, Any]:
    return json.loads(runs_of(cli).read(RunPaths(run_id).run) or b"{}")


def failed(cli: Cli, folder: Path, *words: str) -> str:
    done = cli.run("train", folder, *words, "-o", "json", "--", "--fail", "yes")
    assert done.returncode == 1
    return json.loads(done.stdout)["run_id"]


def test_model_is_reproduced_without_the_project_folder(cli: Cli, script: Write) -> None:
    folder = recipe(script)
    given = ("--set", "seed=11", "--env", "FLAVOR=sweet")
    first = cli.json("train", folder, "--no-download", *given)
    shutil.rmtree(folder)
    done = cli.run("reproduce", first["run_id"], "-o", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["same_model"] is True
    assert {file["path"]: file["verdict"] for file in found["files"]} == {
        "model.zip": "same content",
        "weights.bin": "same",
        "summary.json": "differs",
    }
    assert found["metrics"] == {}
    document = run_document(cli, found["repeated"])
    assert document["origin"] == {"kind": "reproduce", "run_id": first["run_id"]}
    assert document["params"] == {"seed": 11, "vary": False}
    assert document["env"] == {"FLAVOR": "sweet"}
    assert document["code"] == run_document(cli, first["run_id"])["code"]


def test_different_model_is_no_reproduction(cli: Cli, script: Write) -> None:
    first = cli.json("train", recipe(script), "--no-download", "--set", "vary=true")["run_id"]
    done = cli.run("reproduce", first)
    assert done.returncode == 1
    assert "weights.bin" in done.stdout
    assert "members weights" in done.stdout
    assert "metric acc:" in done.stdout
    assert "not the same model" in done.stdout


def test_runs_are_compared_without_a_new_run(cli: Cli, script: Write) -> None:
    folder = recipe(script)
    one, two = (
        cli.json("train", folder, "--no-download", "--set", f"seed={seed}")["run_id"]
        for seed in (1, 2)
    )
    done = cli.run("reproduce", one, "--against", two)
    assert done.returncode == 1
    assert "drift: parameter seed, 1 -> 2" in done.stdout


@pytest.mark.smoke
@pytest.mark.feature(31)
def test_failed_run_is_retried_from_any_folder(cli: Cli, script: Write) -> None:
    run_id = failed(cli, recipe(script), "--set", "seed=5", "--env", "FLAVOR=sweet")
    shutil.rmtree(cli.cwd / "project")
    done = cli.run("retry", run_id, "-o", "json")
    assert done.returncode == 1, "it fails as it did"
    again = json.loads(done.stdout)["run_id"]
    document, original = run_document(cli, again), run_document(cli, run_id)
    assert document["origin"] == {"kind": "retry", "run_id": run_id}
    assert document["command"] == original["command"]
    assert document["env"] == {"FLAVOR": "sweet"}
    shown = cli.ok("show", again)
    assert f"retry of {run_id}" in shown
    (row,) = cli.json("show", again)["attempts"]
    assert (row["attempt"], row["why"], row["exit_code"]) == (1, "failed", 1)


@pytest.mark.feature(51)
def test_every_failed_run_is_retried_once(cli: Cli, script: Write) -> None:
    folder = recipe(script)
    first = {failed(cli, folder, "-e", "unlucky") for _ in range(2)}
    cli.json("train", folder, "--no-download", "-e", "unlucky")
    failed(cli, folder, "-e", "other")
    rows = cli.json("retry", "--failed", "-e", "unlucky")
    assert {row["retry_of"] for row in rows} == first
    for row in rows:
        cli.run("attach", row["run_id"])
    again = cli.json("retry", "--failed", "-e", "unlucky")
    assert {row["retry_of"] for row in again} == {row["run_id"] for row in rows}
    for row in again:
        cli.run("cancel", row["run_id"])


def test_unrepeatable_runs_are_refused(cli: Cli, script: Write) -> None:
    folder = recipe(script)
    good = cli.json("train", folder, "--no-download")["run_id"]
    bad = failed(cli, folder)
    for words, code in (
        (["retry", good], "R-RETRY-STATE"),
        (["retry"], "R-RETRY-WHICH"),
        (["retry", bad, "--failed"], "R-RETRY-WHICH"),
        (["retry", bad, "--pool", "nowhere"], "R-POOL-UNKNOWN"),
        (["resume", good], "R-RESUME-NOTHING"),
        (["resume", good, "--set", "epochs=1"], "R-RESUME-NOTHING"),
        (["reproduce", bad], "R-REPRODUCE-OUTCOME"),
        (["reproduce", good, "--against", bad], "R-REPRODUCE-OUTCOME"),
    ):
        refused = cli.run(*words)
        assert refused.returncode in {2, 3}, refused.stderr
        assert code in refused.stderr
        assert "fix:" in refused.stderr
    assert (
        f"fix: start from the beginning: runner reproduce {good}" in cli.run("resume", good).stderr
    )


def test_running_run_is_neither_retried_nor_resumed(cli: Cli, script: Write) -> None:
    run_id = cli.json("train", script("import time; time.sleep(600)"), "--detach")["run_id"]
    for verb in ("retry", "resume"):
        refused = cli.run(verb, run_id)
        assert refused.returncode == 2
        assert f"runner cancel {run_id}" in refused.stderr
    cli.ok("cancel", run_id)
    again = cli.json("retry", run_id, "--detach")["run_id"]
    cli.ok("cancel", again)


def test_code_missing_from_storage_is_named(cli: Cli, script: Write) -> None:
    run_id = failed(cli, recipe(script))
    code = BlobContainer(connection(cli).blob_service(), "code")
    assert code.delete(run_document(cli, run_id)["code"]["blob"])
    before = cli.json("ps", "-a")
    refused = cli.run("retry", run_id)
    assert refused.returncode == 3
    assert "R-REPEAT-CODE" in refused.stderr
    assert len(cli.json("ps", "-a")) == len(before)


COUNT = """
import argparse, os, pathlib, sys
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int)
parser.add_argument("--fail", default="no")
arguments = parser.parse_args()
state = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state.txt")
done = int(state.read_text()) if state.exists() else 0
print(f"began at {done}")
while done < arguments.steps:
    done += 1
    state.write_text(str(done))
    if arguments.fail == str(done):
        sys.exit("no luck")
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "model.txt").write_text(str(done))
"""
COUNT_RECIPE = """
name: counted
command: [python, train.py]
params:
  steps: {type: int, default: 5}
  fail: {type: str, default: "3"}
checkpoints: {interval: 1s}
outputs: [model.txt]
"""


@pytest.mark.feature(32)
def test_resumed_run_continues_from_the_newest_checkpoint(cli: Cli, script: Write) -> None:
    folder = script(COUNT)
    (folder / "train.yaml").write_text(COUNT_RECIPE, encoding="utf-8")
    done = cli.run("train", folder, "--env", "FLAVOR=sweet", "-o", "json")
    assert done.returncode == 1
    first = json.loads(done.stdout)["run_id"]
    shutil.rmtree(folder)
    assert "checkpoint" in cli.ok("show", first)
    numbers = [one["checkpoint"] for one in cli.json("show", first)["checkpoints"]]
    again = cli.json("resume", first, "--set", "fail=no", "--set", "steps=7", "--no-download")
    assert "began at 3" in cli.ok("logs", again["run_id"])
    document = run_document(cli, again["run_id"])
    assert document["origin"] == {"kind": "resume", "run_id": first}
    assert document["resume_from"] == {"run_id": first, "checkpoint": max(numbers)}
    assert document["params"] == {"steps": 7, "fail": "no"}
    assert document["env"] == {"FLAVOR": "sweet"}
    shown = cli.ok("show", again["run_id"])
    assert f"resume of {first}" in shown
    unknown = cli.run("resume", first, "--set", "step=1")
    assert unknown.returncode == 2
    assert "R-SET-UNKNOWN" in unknown.stderr


def test_secret_is_read_again_for_a_repeated_run(cli: Cli, script: Write) -> None:
    folder = script("import os, sys\nsys.exit(len(os.environ['TOKEN']))")
    (folder / "train.yaml").write_text(
        "name: secretive\ncommand: [python, train.py]\nsecrets: {TOKEN: {env: MY_TOKEN}}\n",
        encoding="utf-8",
    )
    done = cli.run("train", folder, "-o", "json", env={"MY_TOKEN": "0123456"})
    assert done.returncode == 1
    run_id = json.loads(done.stdout)["run_id"]
    missing = cli.run("retry", run_id)
    assert (missing.returncode, "MY_TOKEN" in missing.stderr) == (3, True), missing.stderr
    again = cli.run("retry", run_id, "-o", "json", env={"MY_TOKEN": "0123456789"})
    assert json.loads(again.stdout)["exit_code"] == 10
    assert "0123456789" not in again.stdout + again.stderr
