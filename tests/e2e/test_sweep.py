"""Feature rows 42 to 44, sweeps: `runner sweep` over real services."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import runner
from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.jobs import find_job_in_pool
from runner.azure.storage.blobs import BlobContainer
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.sweep import SweepFile
from runner.core.settings import load_settings
from runner.flows.runs import waiting
from runner.flows.runs.documents import runs_container
from runner.flows.runs.group_documents import find_group
from runner.flows.submit import resume_sweep
from runner.flows.submit.pipeline import open_and_plan
from runner.flows.submit.submit_group import finish_interrupted, submit_group
from runner.flows.submit.sweep import check_sweep
from runner.flows.sweeps.cancel import cancel_group
from runner.protocol.paths import RunPaths
from tests.e2e.conftest import Cli, known_runs, until

Write = Callable[..., Path]
PRICE = ("--vm-size", "Standard_NC16as_T4_v3", "--region", "swedencentral")

# A script without our hooks: its parameters are options of argparse, and it prints its loss.
SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--momentum", type=float, default=0.0)
args = parser.parse_args()
print(f"loss: {abs(args.lr - 0.01) + args.momentum:.4f}")
open("model.txt", "w").write(str(args.lr))
"""


@pytest.mark.fix("R-LOGS-GROUP")
@pytest.mark.smoke
@pytest.mark.feature(42)
def test_script_trains_with_every_combination_and_the_best_model_is_registered(
    cli: Cli, script: Write
) -> None:
    folder = script(SCRIPT)
    found = cli.json("sweep", "start", folder, "-p", "lr=0.1,0.01", "-p", "momentum=[0.0, 0.5]")
    assert found["states"] == {"succeeded": 4}
    assert found["metric"] == "loss"
    assert [(trial["params"], trial["value"]) for trial in found["trials"]] == [
        ({"lr": 0.01, "momentum": 0.0}, 0.0),
        ({"lr": 0.1, "momentum": 0.0}, 0.09),
        ({"lr": 0.01, "momentum": 0.5}, 0.5),
        ({"lr": 0.1, "momentum": 0.5}, 0.59),
    ]
    trials = {row["sweep"]: row["trials"] for row in cli.json("sweep", "ls")}
    assert trials[found["sweep"]] == 4
    assert cli.json("attach", found["sweep"])["trials"] == found["trials"]
    assert "R-ATTACH-GROUP" in cli.run("attach", found["sweep"], "--tail", "3").stderr
    fetched = cli.json("files", "get", found["sweep"])
    assert [row["task"] for row in fetched] == ["1", "2", "3", "4"]
    written = [Path(row["output_dir"], "model.txt").read_text("utf-8") for row in fetched]
    assert written == ["0.1", "0.1", "0.01", "0.01"]
    assert cli.json("files", "get", found["sweep"][:-1], "model.*") == fetched
    unknown = cli.run("files", "get", found["sweep"], "model.txt", "weights.h5")
    assert f"no run of {found['sweep']} has a file 'weights.h5'" in unknown.stderr
    lines = cli.ok("logs", found["sweep"]).splitlines()
    names = [line.partition(" ")[0] for line in lines]
    assert (len(set(names)), names == sorted(names)) == (4, True), lines
    refused = cli.run("logs", found["sweep"], "--follow").stderr
    assert "R-LOGS-GROUP" in refused
    fix = next(line for line in refused.splitlines() if "fix: runner " in line)
    assert "loss: " in cli.ok(*fix.split()[2:])
    best = cli.json("sweep", "best", "@last", "--register", "swept")
    assert (best["run_id"], best["model"]) == (found["trials"][0]["run_id"], "swept@1")
    assert "model.txt" in cli.ok("models", "show", "swept@best")
    assert (cli.json("models", "ls", "swept")[0]["metric"]) == "loss"
    bills = [cli.json("cost", name, *PRICE) for name in (found["sweep"], "--by=sweep")]
    rows = [next(r for r in bill["rows"] if r["name"] == found["sweep"]) for bill in bills]
    assert [len(row["runs"]) for row in rows] == [4, 4]
    useful = [row["parts"]["useful"]["micro_usd"] for row in rows]  # its node is idle meanwhile
    assert useful[0] == useful[1] > 0
    shown = cli.json("sweep", "show", found["sweep"], *PRICE)["trials"]
    assert sum(trial["cost_usd"] for trial in shown) >= useful[0] / 1e6
    assert f"sweep best {found['sweep']} --register" in cli.run("sweep", "show", "@last").stderr
    assert f"models register {best['run_id']}" in cli.run("sweep", "best", "@last").stderr


def test_model_of_a_sweep_without_outputs_is_not_suggested(cli: Cli, script: Write) -> None:
    cli.ok("sweep", "start", script("print('loss: 0.1')"), "-p", "lr=0.1,0.01")
    for verb in ("show", "best"):
        assert "register" not in cli.run("sweep", verb, "@last").stderr
    refused = cli.run("sweep", "best", "@last", "--register", "swept")
    assert "error[R-MODEL-FILES]" in refused.stderr


@pytest.mark.fix("R-METRIC-UNCLEAR")
def test_sweep_without_a_clear_metric_is_not_ranked(cli: Cli, script: Write) -> None:
    folder = script(
        "import sys\n"
        "for name, value in (('Batch size', sys.argv[2]), ('gap', '-' + sys.argv[2])):\n"
        "    print(f'Attempted to log scalar metric {name}:\\n{value}')\n"
    )
    found = cli.json("sweep", "start", folder, "-p", "batch_size=256,512", "-e", "unclear")
    assert (found["metric"], [trial["trial"] for trial in found["trials"]]) == (None, ["1", "2"])
    assert found["problems"] == [
        "no reported value is clearly a metric; --metric takes one of Batch size, gap"
    ]
    assert cli.json("experiments", "show", "unclear")["best"] is None
    refused = cli.run("sweep", "best", found["sweep"])
    assert "error[R-METRIC-UNCLEAR]" in refused.stderr
    fix = refused.stderr.partition("fix: runner ")[2].partition("\n")[0]
    best = cli.json(*fix.replace("NAME", "gap").split())
    assert (best["trial"], best["value"]) == ("1", -256.0)


# A script that reads NAME=VALUE, as scripts of Hydra do.
KEY_VALUE_SCRIPT = """
import sys
given = dict(word.split("=", 1) for word in sys.argv[1:])
open("arguments.txt", "w").write(repr(sys.argv[1:]))
print(f"loss: {abs(float(given['model.lr']) - 0.01):.4f}")
"""


@pytest.mark.feature(42)
def test_script_that_reads_key_value_is_swept(cli: Cli, script: Write) -> None:
    folder = script(KEY_VALUE_SCRIPT)
    form = ("--params-as", "key=value")
    words = ("-p", "model.lr=0.1,0.01", "--set", "note=a, b=[c]", *form)
    planned = cli.json("sweep", "start", folder, *words, "--dry-run")
    commands = [run["command"] for run in planned["runs"].values()]
    assert commands[0] == ["python", "train.py", "note=a, b=[c]", "model.lr=0.1"]
    found = cli.json("sweep", "start", folder, *words)
    assert [trial["value"] for trial in found["trials"]] == [0.0, 0.09]
    best = found["trials"][0]["run_id"]
    fetched = cli.json("files", "get", best)
    written = Path(fetched["output_dir"], "arguments.txt").read_text("utf-8")
    assert written == "['note=a, b=[c]', 'model.lr=0.01']"


# A script with a subcommand and a positional argument, which writes down what it was given.
POSITIONAL_SCRIPT = """
import argparse
parser = argparse.ArgumentParser()
commands = parser.add_subparsers(required=True)
fit = commands.add_parser("fit")
fit.add_argument("lr", type=float)
fit.add_argument("--config-name")
fit.add_argument("--momentum", type=float, default=0.0)
fit.add_argument("--extra")
args = parser.parse_args()
open("arguments.txt", "w").write(repr(vars(args)))
print(f"loss: {abs(args.lr - 0.01) + args.momentum:.4f}")
"""


WRITTEN = """
import argparse, sys
parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=float)
parser.add_argument("--ver")
parser.add_argument("--amp", action="store_true")
parser.parse_args()
print("argv", *sys.argv[1:])
print("loss: 1")
"""


@pytest.mark.feature(42)
def test_values_and_flags_reach_trials_and_their_repetitions_as_written(
    cli: Cli, script: Write
) -> None:
    folder = script(WRITTEN)
    swept = ("-p", "steps=1e3,2e3", "-p", "ver=1.10", "-p", "amp=true,null")
    found = cli.json("sweep", "start", folder, *swept)
    assert found["states"] == {"succeeded": 4}
    trials = {each["trial"]: each for each in found["trials"]}
    assert trials["1"]["params"] == {"steps": 1000.0, "ver": "1.10", "amp": True}
    assert trials["4"]["params"] == {"steps": 2000.0, "ver": "1.10", "amp": None}
    lines = cli.ok("logs", found["sweep"])
    for arguments in ("--steps 1e3 --ver 1.10 --amp", "--steps 1e3 --ver 1.10\n"):
        assert f"argv {arguments}" in lines
    run_id = cli.json("reproduce", trials["2"]["run_id"], "-d")["run_id"]
    until(lambda: cli.json("show", run_id)["state"] == "succeeded")
    assert "argv --steps 1e3 --ver 1.10\n" in cli.ok("logs", run_id)


@pytest.mark.feature(42)
def test_parameters_are_put_where_arguments_name_them(cli: Cli, script: Write) -> None:
    folder = script(POSITIONAL_SCRIPT)
    words = ("-p", "lr=0.1,0.01", "-p", "cfg=small,big", "-p", "momentum=0.5,0.0")
    args = ("-o", "json", "--", "fit", "{lr}", "--config-name={cfg}", "--extra", '{"a": "{b}"}')
    planned = json.loads(cli.ok("sweep", "start", folder, *words, "--dry-run", *args))
    commands = [run["command"] for run in planned["runs"].values()]
    assert len(commands) == 8
    assert commands[0] == [
        "python", "train.py", "fit", "0.1", "--momentum", "0.5", "--config-name=small",
        "--extra", '{"a": "{b}"}',
    ]  # fmt: skip
    found = json.loads(cli.ok("sweep", "start", folder, *words, *args))
    assert found["states"] == {"succeeded": 8}
    best = found["trials"][0]
    assert (best["value"], best["params"]["lr"], best["params"]["momentum"]) == (0.0, 0.01, 0.0)
    fetched = cli.json("files", "get", best["run_id"])
    written = Path(fetched["output_dir"], "arguments.txt").read_text("utf-8")
    assert f"'config_name': '{best['params']['cfg']}'" in written


@pytest.mark.feature(43)
@pytest.mark.feature(44)
def test_draws_and_generators_are_shown_before_anything_is_started(cli: Cli, script: Write) -> None:
    folder = script(SCRIPT)
    (folder / "train.yaml").write_text(
        "sweep: {params: {lr: {loguniform: [0.001, 0.1]}}, trials: 12, seed: 3}\n"
    )
    first, again = (cli.json("sweep", "start", folder, "--dry-run")["tasks"] for _ in range(2))
    drawn = [task["trial"]["lr"] for task in first.values()]
    assert drawn == [task["trial"]["lr"] for task in again.values()]
    assert len(set(drawn)) == 12
    assert all(0.001 <= rate <= 0.1 for rate in drawn)
    (folder / "train.yaml").write_text("sweep: {generator: 'trials.py:make', repeat: 2}\n")
    (folder / "trials.py").write_text(
        "print('noise')\ndef make():\n    for n in (1, 2):\n        yield {'lr': 10.0 ** -n}\n"
    )
    document = cli.json("sweep", "start", folder, "--dry-run", "--run-checks")
    assert [task["trial"] for task in document["tasks"].values()] == [
        {"lr": 0.1}, {"lr": 0.1}, {"lr": 0.01}, {"lr": 0.01},
    ]  # fmt: skip
    commands = [run["command"] for run in document["runs"].values()]
    assert commands[0][-2:] == ["--lr", "0.1"]


@pytest.mark.feature(42)
def test_stopped_sweep_cancels_the_trials_that_have_not_ended(cli: Cli, script: Write) -> None:
    folder = script("import time; time.sleep(600)")
    words = ("-p", "seed=1,2,3", "--max-parallel", "1", "--detach")
    sweep = cli.json("sweep", "start", folder, *words)["sweep"]
    until(lambda: cli.json("sweep", "show", sweep)["states"].get("running"))
    assert cli.json("sweep", "stop", sweep)["cancelled"] == ["1", "2", "3"]
    until(lambda: cli.json("sweep", "show", sweep)["states"] == {"cancelled": 3})
    never = cli.json("sweep", "show", sweep)["trials"][-1]["run_id"]
    assert cli.json("show", never)["state"] == "cancelled"
    assert cli.json("sweep", "stop", sweep)["cancelled"] == []
    failed = cli.run("sweep", "best", sweep)
    assert failed.returncode == 1
    assert "error[R-SWEEP-BEST]" in failed.stderr
    assert "3 cancelled" in failed.stderr
    resumed = cli.json("sweep", "resume", sweep, "--detach")["resumed"]
    assert list(resumed) == ["1", "2", "3"]
    until(lambda: cli.json("sweep", "show", sweep)["states"].get("running"))
    assert cli.json("sweep", "stop", sweep)["cancelled"] == ["1", "2", "3"]
    assert re.search(r"resumed +1-3\n", cli.ok("sweep", "resume", sweep, "--detach"))
    cli.ok("sweep", "stop", sweep)
    cli.ok("rm", sweep, "--yes")
    listed = {row["run_id"] for row in cli.json("ps", "--all")}
    assert never not in listed


def test_sweep_of_a_client_killed_before_it_is_listed_leaves_nothing(
    cli: Cli, script: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trials are written before the sweep is listed, since a listed sweep can be resumed."""

    class Killed(BaseException):
        """As SIGKILL: the client does not clean up."""

    def die(_group_id: str) -> str:
        raise Killed

    folder = script(SCRIPT)
    environment = {"RUNNER_HOME": str(cli.home), "HOME": "/"}
    settings = load_settings({"target": "local"}, cwd=folder, env=environment)
    space = SweepFile.model_validate({"params": {"lr": [0.1, 0.2]}})
    checked = check_sweep(load_recipe(str(folder), cwd=folder), space, RunOptions())
    connection, plan = open_and_plan(checked, settings, ignore_progress, print)
    with monkeypatch.context() as context:
        context.setattr("runner.flows.submit.submit_group.group_blob", die)
        with pytest.raises(Killed):
            submit_group(connection, plan, ignore_progress)
    group_id, trials = plan.run_group.group_id, set(plan.run_group.runs.values())
    assert group_id not in [row["sweep"] for row in cli.json("sweep", "ls")]
    assert trials <= {row["run_id"] for row in cli.json("ps", "--all")}
    finish_interrupted(connection, datetime.now(UTC) + timedelta(minutes=20))
    assert not trials & {row["run_id"] for row in cli.json("ps", "--all")}
    names = {blob.name for blob in runs_container(connection).list("")}
    assert [name for name in names if group_id in name] == []


@pytest.mark.feature(42)
def test_trial_that_starts_while_its_sweep_is_stopped_is_cancelled(
    cli: Cli, script: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = script("import time; time.sleep(600)")
    words = ("-p", "seed=1,2", "--max-parallel", "1", "--detach")
    sweep = cli.json("sweep", "start", folder, *words)["sweep"]
    until(lambda: cli.json("sweep", "show", sweep)["states"].get("running"))
    env = {"RUNNER_HOME": str(cli.home), "HOME": "/"}
    connection = connect(load_settings({}, cwd=folder, env=env))
    container = runs_container(connection)
    group = find_group(connection, sweep)
    listed = waiting.list_started

    def list_then_start(runs: BlobContainer, group_id: str) -> frozenset[str]:
        """List the trials, of which the second starts immediately afterwards."""
        found = listed(runs, group_id)
        document = waiting.WaitingTrialsCache(runs).read(group.runs["2"])
        assert document is not None
        runs.create(RunPaths(group.runs["2"]).run, json.loads(document))
        return found

    monkeypatch.setattr(waiting, "list_started", list_then_start)
    assert cancel_group(connection, group)["2"].changed
    result = container.read(RunPaths(group.runs["2"]).result)
    assert result is not None
    assert json.loads(result)["status"] == "cancelled"
    assert cli.json("sweep", "show", sweep)["states"] == {"cancelled": 2}


@pytest.mark.feature(42)
def test_trial_that_has_not_started_is_a_run_like_others(cli: Cli, script: Write) -> None:
    folder = script("import time; time.sleep(600)")
    words = ("-p", "seed=1,2", "--max-parallel", "1", "--detach")
    sweep = cli.json("sweep", "start", folder, *words)["sweep"]
    first, second = (trial["run_id"] for trial in cli.json("sweep", "show", sweep)["trials"])
    assert {first, second} <= {row["run_id"] for row in cli.json("ps", "--all")}
    assert cli.json("show", second[:-2])["run_id"] == second
    until(lambda: cli.json("show", first)["state"] == "running")
    assert cli.json("cancel", second)["state"] == "cancelled"
    cli.ok("cancel", first)
    until(lambda: cli.json("sweep", "show", sweep)["states"] == {"cancelled": 2})
    cli.ok("rm", first, second, "--yes")
    assert not {first, second} & {row["run_id"] for row in cli.json("ps", "--all")}


# Fails in its second epoch until the file exists, and continues from its checkpoint.
RESUMED = """
import os, pathlib, sys
checkpoint = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "epoch.txt")
begun = int(checkpoint.read_text()) if checkpoint.exists() else 0
for epoch in range(begun, 3):
    print(f"epoch {epoch} loss: {1 / (epoch + 1):.3f}", flush=True)
    checkpoint.write_text(str(epoch + 1))
    if epoch == 1 and sys.argv[sys.argv.index("--lr") + 1] == "0.5" and not begun:
        sys.exit(3)
"""


@pytest.mark.feature(42)
def test_resumed_sweep_continues_its_failed_trials_as_themselves(cli: Cli, script: Write) -> None:
    folder = script(RESUMED)
    assert cli.run("sweep", "start", folder, "-p", "lr=0.1,0.5").returncode == 1
    before = cli.json("sweep", "show", "@last")
    assert before["states"] == {"succeeded": 1, "failed": 1}
    after = cli.json("sweep", "resume", before["sweep"])
    assert after["states"] == {"succeeded": 2}
    trials = {trial["trial"]: trial for trial in after["trials"]}
    assert trials["1"]["run_id"] == next(t["run_id"] for t in before["trials"] if t["trial"] == "1")
    assert (trials["2"]["params"], trials["2"]["attempts"]) == ({"lr": 0.5}, 2)
    printed = cli.ok("logs", trials["2"]["run_id"])
    assert "epoch 2" in printed
    assert "epoch 0" not in printed
    assert cli.json("sweep", "resume", before["sweep"])["resumed"] == {}


@pytest.mark.fix("R-RETRY-GROUP")
@pytest.mark.feature(51)
def test_retry_of_a_sweep_or_group_names_the_command_that_works(cli: Cli, script: Write) -> None:
    folder = script("import sys; sys.exit(3)")
    sweep = cli.json("sweep", "start", folder, "-p", "n=1,2", "--detach")["sweep"]
    cli.run("attach", sweep)
    (folder / "tasks.yaml").write_text(
        "experiment: batch\ntasks: {a: {folder: ., command: python train.py}}\n"
    )
    group = cli.json("submit", folder / "tasks.yaml", "--detach")["group"]
    cli.run("attach", group)
    for verb in ("retry", "resume"):
        for name, words in (
            (sweep, f"sweep resume {sweep}"),
            (group, "retry --failed --experiment batch"),
        ):
            refused = cli.run(verb, name).stderr
            assert "R-RETRY-GROUP" in refused
            assert f"fix: runner {words}\n" in refused
    assert set(cli.json("sweep", "resume", sweep, "--detach")["resumed"]) == {"1", "2"}
    again = cli.json("retry", "--failed", "--experiment", "batch")
    assert [row["retry_of"].startswith("tasks-a-") for row in again] == [True]


@pytest.mark.feature(42)
def test_retried_trial_counts_in_its_sweep_and_in_the_merge(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    folder = script(
        "import os, pathlib, sys\n"
        f"if sys.argv[2] != '1' and not os.path.exists({str(gate)!r}): sys.exit(3)\n"
        "pathlib.Path('part.txt').write_text(sys.argv[2])"
    )
    merge = "python -c \"import os; print(sorted(os.listdir(os.environ['RUNNER_INPUT_TRIALS'])))\""
    words = ("-p", "seed=1,2,3", "--merge", merge, "-e", "retried")
    assert cli.run("sweep", "start", folder, *words).returncode == 1
    sweep = cli.json("sweep", "show", "@last")
    assert sweep["states"] == {"succeeded": 1, "failed": 2}
    failed = {t["trial"]: t["run_id"] for t in sweep["trials"] if t["state"] == "failed"}
    merged = sweep["merge"]["run_id"]
    refused = cli.run("retry", merged)
    assert "error[R-AFTER-FAILED]" in refused.stderr
    assert f"fix: runner sweep resume {sweep['sweep']}\n" in refused.stderr
    gate.touch()
    again = {"2": cli.json("retry", failed["2"])["run_id"]}
    rows = cli.json("retry", "--failed", "-e", "retried")
    assert [row["retry_of"] for row in rows] == [failed["3"]]
    again["3"] = rows[0]["run_id"]
    until(lambda: cli.json("sweep", "show", sweep["sweep"])["states"] == {"succeeded": 3})
    trials = {t["trial"]: t for t in cli.json("sweep", "show", sweep["sweep"])["trials"]}
    assert {name: trials[name]["run_id"] for name in again} == again
    result = cli.json("retry", merged)
    assert cli.ok("logs", result["run_id"]).strip() == "['1', '2', '3', 'trials.json']"
    assert cli.json("sweep", "resume", sweep["sweep"])["resumed"] == {}


# A curve that rises to 1 - |lr - 0.3|, with one value per round.
CURVE = """
import argparse, time
parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
args = parser.parse_args()
for epoch in range(1, 10):
    reached = (1 - abs(args.lr - 0.3)) * (1 - 0.5 ** epoch)
    print(f"epoch {epoch} accuracy: {reached:.4f}", flush=True)
    open("model.txt", "w").write(str(epoch))
    time.sleep(0.7 if args.lr > 5 else 0)
time.sleep(600 if args.lr > 5 else 0)  # until it is stopped
"""


@pytest.mark.feature(45)
def test_poor_trial_is_stopped_early_and_keeps_its_outputs(cli: Cli, script: Write) -> None:
    folder = script(CURVE)
    found = cli.json(
        "sweep", "start", folder, "-p", "lr=0.1,0.2,0.3,0.4,9.0", "--metric", "accuracy",
        "--early-stop", "median", "-e", "stopped",
    )  # fmt: skip
    worst = found["trials"][-1]
    assert (worst["params"], worst["state"]) == ({"lr": 9.0}, "stopped early")
    assert found["trials"][0]["params"] == {"lr": 0.3}
    shown = cli.json("show", worst["run_id"])
    assert shown["state"] == "succeeded"
    assert "stopped early: its best value" in cli.ok("show", worst["run_id"])
    assert cli.json("files", "ls", worst["run_id"])
    views = (
        ("ps",), ("attach", found["sweep"]), ("sweep", "show", "@last"),
        ("experiments", "show", "stopped"), ("experiments", "ls"),
    )  # fmt: skip
    for view in views:
        done = cli.run(*view)
        assert "4 succeeded, 1 stopped early" in done.stdout + done.stderr, view


@pytest.mark.parametrize(
    ("printed", "states", "why"),
    [
        ("nothing", {"failed": 5, "cancelled": 7}, "the first 5 trials failed"),
        ("auc: nan", {"succeeded": 10, "cancelled": 2}, "first 10 trials reported no finite auc"),
    ],
)
@pytest.mark.feature(45)
def test_sweep_whose_metric_never_comes_stops_itself(
    printed: str, states: dict[str, int], why: str, cli: Cli, script: Write
) -> None:
    folder = script(f"print({printed!r})")
    done = cli.run(
        "sweep", "start", folder, "-p", "seed={range: [1, 12]}", "--metric", "auc",
        "--early-stop", "median", "--max-parallel", "1",
    )  # fmt: skip
    assert done.returncode == 1
    shown = cli.json("sweep", "show", "@last")
    assert shown["states"] == states
    assert why in "".join(shown["problems"])
    fails = "the script reported no value of auc" in done.stdout + done.stderr
    assert fails == ("failed" in states)
    again = "runner sweep resume" in "".join(shown["problems"])
    assert again == ("failed" in states), "others would be cancelled again"


@pytest.mark.slow
@pytest.mark.feature(45)
def test_later_trials_are_chosen_by_the_results_without_a_controller(
    cli: Cli, script: Write
) -> None:
    folder = script(CURVE)
    words = ("sweep", "start", folder, "-p", "lr={uniform: [0, 1]}", "-n", "14")
    words = (*words, "--metric", "accuracy", "--early-stop", "none", "--max-parallel", "2")
    drawn = [task["trial"]["lr"] for task in cli.json(*words, "--dry-run")["tasks"].values()]
    started = cli.json(*words, "--detach")
    until(lambda: cli.json("sweep", "show", started["sweep"])["states"] == {"succeeded": 14})
    found = cli.json("sweep", "show", started["sweep"])
    tried = {trial["trial"]: trial["params"]["lr"] for trial in found["trials"]}
    rates = [tried[name] for name in sorted(tried)]
    assert rates[:10] == drawn[:10]
    last = [trial["run_id"] for trial in found["trials"] if trial["trial"] in sorted(tried)[12:]]
    events = "\n".join(cli.ok("events", run_id) for run_id in last)  # why the sampler failed
    assert not set(rates[12:]) & set(drawn), events
    for trial in found["trials"]:  # the script got these parameters
        reached = (1 - abs(trial["params"]["lr"] - 0.3)) * (1 - 0.5**9)
        assert trial["value"] == pytest.approx(reached, abs=1e-4)
    page = cli.cwd / "sweep.html"
    cli.ok("sweep", "show", started["sweep"], "--plot", page, "--cost")
    assert page.read_text("utf-8").count("<polyline") == 14 + 14


@pytest.mark.slow
@pytest.mark.feature(51)
def test_two_clients_that_resume_one_sweep_start_each_trial_once(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"  # closed, it keeps trials from failing again before both clients end
    wait = f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)"
    folder = script(f"import os, sys, time\n{wait}\nsys.exit(1)")
    gate.touch()
    assert cli.run("sweep", "start", folder, "-p", "seed=1,2,3,4").returncode == 1
    sweep = cli.json("sweep", "show", "@last")["sweep"]
    before = known_runs(cli)
    gate.unlink()
    clients = [cli.start("sweep", "resume", sweep, "--detach", "-o", "json") for _ in range(2)]
    answers = [json.loads(client.communicate(timeout=300)[0]) for client in clients]
    resumed = [name for answer in answers for name in answer["resumed"]]
    assert sorted(set(resumed)) == ["1", "2", "3", "4"]
    assert len(known_runs(cli) - before) == 4
    gate.touch()
    until(lambda: cli.json("sweep", "show", sweep)["states"] == {"failed": 4})
    assert {trial["attempts"] for trial in cli.json("sweep", "show", sweep)["trials"]} == {2}


@pytest.mark.slow
@pytest.mark.parametrize("done", [0, 3, 10])
def test_client_that_read_the_states_before_another_resumed_adds_nothing(
    done: int, cli: Cli, script: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it continues, trials of the other client wait, run or have ended."""
    folder = script("import time; time.sleep(0.5); print('loss: 0.5')")
    words = ("-p", "seed={range: [1, 10]}", "--max-parallel", "2", "-e", f"late-{done}")
    sweep = cli.json("sweep", "start", folder, *words, "--detach")["sweep"]
    assert cli.json("sweep", "stop", sweep)["cancelled"]

    def ended() -> int:
        return cli.json("sweep", "show", sweep)["states"].get("succeeded", 0)

    def paused(connection: Connection, job_id: str, pool: str) -> object:  # after the states
        cli.ok("sweep", "resume", sweep, "--detach")
        until(lambda: ended() >= done)
        return find_job_in_pool(connection, job_id, pool)

    monkeypatch.setattr(resume_sweep, "find_job_in_pool", paused)
    monkeypatch.setenv("RUNNER_HOME", str(cli.home))
    runner.group(sweep).resume()
    until(lambda: ended() == 10)
    runs = cli.json("ps", "--all", "-e", f"late-{done}")
    trials = [int(re.findall(r"-(\d+)-\d{8}-", row["run_id"])[0]) for row in runs]
    succeeded = [n for n, row in zip(trials, runs, strict=True) if row["state"] == "succeeded"]
    assert sorted(succeeded) == list(range(1, 11))
    assert {row["state"] for row in runs} <= {"succeeded", "cancelled"}


@pytest.mark.slow
@pytest.mark.feature(51)
def test_clients_killed_while_they_resume_a_sweep_run_each_trial_once(
    cli: Cli, script: Write
) -> None:
    folder = script("import time; time.sleep(0.5); print('loss: 0.5')")
    words = ("-p", "seed={range: [1, 10]}", "--max-parallel", "2", "-e", "killed", "--detach")
    sweep = cli.json("sweep", "start", folder, *words)["sweep"]
    assert cli.json("sweep", "stop", sweep)["cancelled"]
    chance = random.Random(42)
    for _ in range(3):
        clients = [cli.start("sweep", "resume", sweep, "--detach") for _ in range(2)]
        for client in clients:
            time.sleep(chance.uniform(0.3, 1.5))  # the time of the kill is random
            client.kill()
            client.communicate()
        cli.run("local", "evict")  # refused until the previous node is replaced

    def is_over() -> bool:
        cli.run("sweep", "resume", sweep, "--detach")
        return cli.json("sweep", "show", sweep)["states"] == {"succeeded": 10}

    until(is_over, every_s=2)
    runs = cli.json("ps", "--all", "-e", "killed")
    ended = [row["run_id"] for row in runs if row["state"] == "succeeded"]
    trials = [int(re.findall(r"-(\d+)-\d{8}-", run_id)[0]) for run_id in ended]
    assert sorted(trials) == list(range(1, 11))
    assert {row["state"] for row in runs} <= {"succeeded", "cancelled", "lost"}
