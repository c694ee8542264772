"""A plain script with a counter in its checkpoint folder continues from its last value."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import Cli, evict_node_of, until

_SCRIPT = """
import os, time
path = os.path.join(os.environ["RUNNER_CHECKPOINT_DIR"], "counter")
number = int(open(path).read()) if os.path.exists(path) else 0
print("from", number, "resumed", os.environ.get("RUNNER_RESUMED", "0"), flush=True)
resumed = number > 0
while number < 10_000:
    number += 1
    with open(path + ".new", "w") as out:
        out.write(str(number))
    os.replace(path + ".new", path)
    if number == 11:
        print("past ten", flush=True)
    time.sleep(0.05)
    if resumed and number % 20 == 0:
        break
with open(os.path.join(os.environ["RUNNER_OUTPUT_DIR"], "counter"), "w") as out:
    out.write(str(number))
print("to", number)
"""


def evicted_run(cli: Cli, folder: Path, notice: int) -> dict[str, object]:
    """Train, evict the node once there is a checkpoint, train to the end; `show` of the run."""
    (folder / "train.yaml").write_text("checkpoints: {interval: 1s}\n")
    training = cli.start("train", folder)
    assert training.stdout is not None
    assert any("past ten" in line for line in training.stdout), training.communicate()
    run_id = cli.json("show", "@last")["run_id"]

    def newest() -> int:
        found = cli.json("show", run_id)["checkpoints"]
        return max((one["checkpoint"] for one in found), default=0)

    before = newest()
    # the next one may have been started before
    until(lambda: newest() >= before + 2, timeout_s=180, every_s=0.5)
    evict_node_of(cli, run_id, "--notice", notice, "--away", "1")
    out, err = training.communicate(timeout=240)
    assert training.returncode == 0, f"{out}\n{err}"
    return cli.json("show", run_id)


def test_evicted_script_continues_from_its_newest_checkpoint(
    cli: Cli, script: Callable[[str], Path]
) -> None:
    shown = evicted_run(cli, script(_SCRIPT), notice=0)
    log = cli.ok("logs", "@last")
    [first, second] = [line.split() for line in log.splitlines() if line.startswith("from ")]
    assert (first[1], first[3]) == ("0", "0")
    assert (int(second[1]) > 10, second[3]) == (True, "1")
    assert [a["why"] for a in shown["attempts"]] == ["lost", "succeeded"]  # type: ignore[index]
    resumed = shown["attempts"][1]["resumed"]  # type: ignore[index]
    assert resumed["attempt"] == 1
    assert f"checkpoint {resumed['checkpoint']} of attempt 1" in cli.ok("show", "@last")
    listed = cli.json("files", "ls", "@last", "--checkpoints")
    assert {row["path"] for row in listed} == {"counter"}


@pytest.mark.slow
def test_eviction_with_notice_loses_almost_no_work(cli: Cli, script: Callable[[str], Path]) -> None:
    text = _SCRIPT.replace("import os, time\n", "import os, signal, sys, time\n")
    text = text.replace(
        "while number",
        "def stop(*_):\n"
        "    print('stopped at', number, flush=True)\n"
        "    time.sleep(1)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\n"
        "while number",
    )
    shown = evicted_run(cli, script(text), notice=20)
    assert [a["why"] for a in shown["attempts"]] == ["terminated", "succeeded"]  # type: ignore[index]
    log = cli.ok("logs", "@last").splitlines()
    [stopped] = [int(line.split()[2]) for line in log if line.startswith("stopped at ")]
    [_, again] = [int(line.split()[1]) for line in log if line.startswith("from ")]
    assert again in (stopped - 1, stopped)


def test_checkpoint_problem_of_a_running_run_is_shown(
    cli: Cli, script: Callable[[str], Path]
) -> None:
    folder = script(
        "import os, pathlib, time\n"
        "here = pathlib.Path(os.environ['RUNNER_CHECKPOINT_DIR'])\n"
        "(here / 'large').write_bytes(bytes(1 << 20))\n"
        "time.sleep(600)\n"
    )
    (folder / "train.yaml").write_text("checkpoints: {interval: 1s, max_size: 1KiB}\n")
    run = cli.json("train", folder, "--detach")["run_id"]

    def has_problem() -> bool:
        return bool(cli.json("show", run)["checkpoint_problem"])

    until(has_problem, timeout_s=180, every_s=0.5)
    shown = cli.ok("show", run)
    assert "running" in shown
    assert "checkpoint problem" in shown
    assert "checkpoints.max_size" in cli.json("show", run)["checkpoint_problem"]
    cli.ok("cancel", run)


_LOST = """
import os, time
path = os.path.join(os.environ["RUNNER_CHECKPOINT_DIR"], "counter")
first = int(open(path).read()) if os.path.exists(path) else 0
for step in range(first + 1, 9):
    value = 0.99 if step == 7 and not first else round(0.6 + step / 100, 2)
    print(f"step {step} accuracy: {value}", flush=True)
    if step == 5:
        with open(path + ".new", "w") as out:
            out.write(str(step))
        os.replace(path + ".new", path)
        print("saved", flush=True)
        time.sleep(5)
    if step == 7 and not first:
        print("past seven", flush=True)
        time.sleep(600)
"""


@pytest.mark.feature(46)
def test_value_of_lost_work_is_marked_and_never_the_best(
    cli: Cli, script: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = script(_LOST)
    (folder / "train.yaml").write_text("checkpoints: {interval: 1s}\n")
    training = cli.start("train", folder)
    assert training.stdout is not None
    assert any("past seven" in line for line in training.stdout), training.communicate()
    run_id = cli.json("show", "@last")["run_id"]

    def accuracy() -> dict[str, Any]:
        [found] = [
            each["metrics"].get("accuracy", {}) for each in cli.json("metrics", run_id)["runs"]
        ]
        return found

    until(lambda: accuracy().get("best") == 0.99)
    assert accuracy()["lost"] == 0
    evict_node_of(cli, run_id, "--notice", "0", "--away", "1")
    out, err = training.communicate(timeout=240)
    assert training.returncode == 0, f"{out}\n{err}"

    plot = tmp_path / "curve.svg"
    document = cli.json("metrics", run_id, "--plot", plot)
    [run] = document["runs"]
    found = run["metrics"]["accuracy"]
    assert (found["best"], found["best_step"], found["last"]) == (0.68, 8, 0.68)
    assert (found["count"], found["lost"], found["source"]) == (8, 2, "stdout")
    assert run["lost"] == {"accuracy": {"steps": [6, 7], "values": [0.66, 0.99]}}
    curve = document["metrics"]["accuracy"]
    assert curve["steps"] == list(range(1, 9))
    assert curve["values"][run_id][6] == 0.67
    assert "lost work" in plot.read_text()
    shown = cli.ok("metrics", run_id)
    assert re.search(r"POINTS +LOST", shown)
    assert "0.9900" not in shown
    assert "0.99" not in cli.ok("show", run_id)
