"""`runner local evict`: spot nodes of the local pool go, as on Azure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runner.core.home import HomePaths
from tests import plain_http
from tests.e2e.conftest import Cli, evict_node_of, until

_SCRIPT = """
import os, time
print("attempt", os.environ["RUNNER_ATTEMPT"], flush=True)
while os.environ["RUNNER_ATTEMPT"] == "1":
    time.sleep(0.1)
"""


@pytest.mark.feature(31)
@pytest.mark.slow
def test_evicted_run_continues_in_another_attempt(cli: Cli, script: Callable[[str], Path]) -> None:
    folder = script(_SCRIPT)
    training = cli.start("train", folder)

    assert training.stdout is not None
    assert until(training.stdout.readline).startswith("attempt 1")
    run_id = cli.json("show", "@last")["run_id"]
    [evicted] = evict_node_of(cli, run_id, "--notice", "0")
    assert evicted["pool"] == "local"
    out, err = training.communicate(timeout=180)
    assert (training.returncode, "attempt 2" in out) == (0, True), f"{out}\n{err}"
    [row] = [row for row in cli.json("ps") if row["run_id"] == run_id]
    assert (row["attempts"], row["evicted"]) == (2, 1)
    assert re.search(rf"{run_id} .* 2 \(1 evicted\)", cli.ok("ps"))
    attempts = cli.json("show", run_id)["attempts"]
    assert [(each["attempt"], each["spot"]) for each in attempts] == [(1, True), (2, True)]
    assert [each["why"] for each in attempts] == ["lost", "succeeded"]
    assert (attempts[0]["lost_s"] > 0, attempts[1]["lost_s"]) == (True, None)
    assert attempts[0]["lost_is_bound"]  # without a notice, the end is not on record
    [spent] = cli.json("cost", run_id)["rows"]
    lost = spent["parts"]["lost"]
    assert lost["node_ms"] == round(1000 * attempts[0]["lost_s"])
    assert 0 < lost["bound_node_ms"] <= lost["node_ms"]
    assert "<= " in cli.ok("cost", run_id)
    last_s = attempts[-1]["took_s"]
    assert row["took_s"] > last_s, "the first attempt counts, too"


def test_impossible_evictions_are_refused_with_the_reason(own_cli: Cli) -> None:
    down = own_cli.run("local", "evict")
    assert (down.returncode, "runner local up" in down.stderr) == (3, True)
    own_cli.ok("local", "up", "--nodes", "2")

    gone: list[str] = []

    def all_gone() -> bool:
        done = own_cli.run("local", "evict", "--count", "2", "--away", "3600", "-o", "json")
        if done.returncode == 0:  # they may arrive at different times
            gone.extend(row["node"] for row in json.loads(done.stdout))
        return len(gone) == 2

    until(all_gone)
    again = own_cli.run("local", "evict", "--all")
    assert (again.returncode, "all its spot nodes are being evicted" in again.stderr) == (5, True)
    for words, code, text in (
        (("nobody",), 2, "has no node 'nobody'"),
        (("tvm", "--all"), 2, "exclude each other"),
        (("--all", "--count", "1"), 2, "exclude each other"),
        (("--pool", "none"), 3, "local pool 'none' not found"),
        (("tvm-",), 2, "prefix 'tvm-' matches 2 nodes of pool 'local'"),
    ):
        refused = own_cli.run("local", "evict", *words)
        assert (refused.returncode, text in refused.stderr) == (code, True), refused.stderr


_STEPS = """
import json, os, pathlib, time
saved = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "step")
step = int(saved.read_text()) if saved.exists() else 0
last = 1200 if os.environ["RUNNER_ATTEMPT"] == "1" else 120  # the first attempt is evicted
with open(os.environ["RUNNER_METRICS_FILE"], "a") as metrics:
    while step < last:
        time.sleep(0.1)
        step += 1
        print(json.dumps({"step": step, "loss": 1 / step}), file=metrics, flush=True)
        saved.with_suffix(".new").write_text(str(step))
        saved.with_suffix(".new").replace(saved)
"""


def rehearse(cli: Cli, folder: Path, trace: Path, lost_steps: int) -> Any:
    """Train with evictions, up to three times until no more than these steps are lost.

    The machine may pause a process just when its state has to be saved.
    """
    reports = (cli.json("train", folder, "--evict", trace)["rehearsal"] for _ in range(3))
    few = (each for each in reports if each["lost"][0]["lost_steps"] <= lost_steps)
    found = next(few, None)
    assert found is not None, f"more than {lost_steps} steps were lost three times"
    return found


@pytest.mark.slow
def test_rehearsal_evicts_at_the_given_times_and_reports_the_loss(
    cli: Cli, script: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, trace = script(_STEPS), tmp_path / "trace.csv"
    trace.write_text("time,evict,notice\n6,1,0\n6.1,1,0\n")
    report = rehearse(cli, folder, trace, 60)
    assert [(each["after_s"], each["notice_s"]) for each in report["log"]] == [(6, 0), (0.1, 0)]
    first, second = report["lost"]
    assert (first["attempt"], second["attempt"]) == (1, None)  # no agent starts within 0.1 s
    assert 0 < first["lost_s"] <= 6
    assert not report["lost_s_is_bound"]  # the plan has the time
    attempts = cli.json("show")["attempts"]
    assert attempts[0]["lost_s"] == first["lost_s"]
    [spent] = cli.json("cost", "@last")["rows"]
    assert spent["parts"]["lost"]["node_ms"] == round(1000 * first["lost_s"])
    assert 0 < first["lost_steps"] <= 60
    assert [each["why"] for each in cli.json("show")["attempts"]] == ["lost", "succeeded"]


@pytest.mark.slow
@pytest.mark.feature(33)
@pytest.mark.parametrize(("notice_s", "lost_steps"), [(0, 60), (2, 25), (10, 25)])
def test_state_is_saved_within_a_short_notice(
    cli: Cli, script: Callable[[str], Path], tmp_path: Path, notice_s: int, lost_steps: int
) -> None:
    """Ten steps take a second; without a notice, the last periodic commit counts."""
    folder, trace = script(_STEPS), tmp_path / "trace.csv"
    trace.write_text(f"time,evict,notice\n4,1,{notice_s}\n")
    report = rehearse(cli, folder, trace, lost_steps)
    [lost] = report["lost"]
    assert report["log"][0]["notice_s"] == notice_s
    assert lost["lost_steps"] <= lost_steps
    attempts = cli.json("show")["attempts"]
    assert attempts[-1]["why"] == "succeeded"
    if notice_s:
        assert lost["resumed_from"], "the state of the first attempt was committed"


_WAITS = """
import pathlib, sys, time
print("waits", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""


@pytest.mark.slow
@pytest.mark.feature(33)
def test_rebalance_recommendation_reaches_the_run_and_evicts_nobody(
    cli: Cli, script: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, go = script(_WAITS), tmp_path / "go"
    training = cli.start("train", folder, "--", go)
    assert training.stdout is not None
    assert until(training.stdout.readline).startswith("waits")
    run_id = cli.json("show", "@last")["run_id"]
    paths = HomePaths(cli.home)
    outputs = json.loads(paths.local_outputs.read_text())
    key = json.loads(paths.keys.read_text())["batch"]
    node = cli.json("show", run_id)["node"]
    address = f"{outputs['batch_endpoint']}/_emulator/pools/local/nodes/{node}/rebalance"
    headers = {"authorization": f"Bearer {key}"}
    assert plain_http.post(address, headers=headers).status_code == 202
    until(lambda: "rebalance recommendation" in cli.ok("events", run_id))
    go.touch()
    out, err = training.communicate(timeout=120)
    assert training.returncode == 0, f"{out}\n{err}"
    assert [each["why"] for each in cli.json("show", run_id)["attempts"]] == ["succeeded"]
