"""`runner train` without faults, as users run it."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from runner.azure.auth.credentials import connect
from runner.azure.batch.translate import wire_text
from runner.core.settings import load_settings
from runner.protocol.errors import ExitCode
from runner.protocol.paths import RunPaths
from tests.e2e.conftest import Cli, known_runs, show_ended, until
from tests.e2e.test_inputs import blob_service

Write = Callable[..., Path]

PLAIN = """
import json, os, pathlib, sys
print("hello from the node", sys.argv[1:])
print("a warning", file=sys.stderr)
out = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
(out / "sub").mkdir()
(out / "sub" / "model.txt").write_text("weights")
with open(os.environ["RUNNER_METRICS_FILE"], "a") as f:
    for step in range(3):
        print(json.dumps({"step": step, "loss": 1 / (step + 1)}), file=f)
assert "RUNNER_STORAGE" not in os.environ
assert pathlib.Path(os.environ["RUNNER_PARAMS"]).exists()
"""


@pytest.mark.smoke
@pytest.mark.feature(13)
def test_unmodified_folder_trains_and_its_output_is_downloaded(cli: Cli, script: Write) -> None:
    folder = script(PLAIN)
    done = cli.run("train", folder, "--", "--lr", "0.5")
    assert done.returncode == 0, done.stderr
    assert "hello from the node ['--lr', '0.5']" in done.stdout
    run = cli.json("show", "@last")
    assert run["state"] == "succeeded"
    models = list((cli.cwd / "outputs").glob("*/sub/model.txt"))
    assert [m.read_text() for m in models] == ["weights"]
    assert "a warning" in cli.ok("logs", run["run_id"], "--stderr")
    assert run["run_id"] in done.stderr + done.stdout


@pytest.mark.smoke
def test_json_output_is_one_document_and_nothing_else(cli: Cli, script: Write) -> None:
    document = cli.json("train", script(PLAIN))
    assert document["status"] == "succeeded"
    assert document["metrics"]["loss"] == pytest.approx(1 / 3)
    assert [f["path"] for f in document["outputs"]] == ["sub/model.txt"]


@pytest.mark.smoke
@pytest.mark.feature(13)
@pytest.mark.feature(18)
def test_single_script_trains(cli: Cli, script: Write) -> None:
    folder = script(PLAIN)
    (folder / "notes.txt").write_text("not part of the run")
    assert "hello from the node" in cli.ok("train", folder / "train.py", "--no-download")
    assert not (cli.cwd / "outputs").exists()


@pytest.mark.smoke
def test_variables_of_the_command_line_reach_a_single_script(
    cli: Cli, script: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GREETING", "grüße")
    file = script("import os\nprint(os.environ['LR_SCALE'], os.environ['GREETING'])") / "train.py"
    words = ("train", file, "--env", "LR_SCALE=a=b c", "--env", "GREETING")
    given = {"LR_SCALE": "a=b c", "GREETING": "grüße"}
    assert cli.json(*words, "--dry-run")["env"] == given
    assert "LR_SCALE=a=b c, GREETING=grüße" in cli.ok(*words, "--dry-run")
    sweep = cli.json("sweep", "start", *words[1:], "-p", "x=1,2", "--dry-run")
    assert [run["env"] for run in sweep["runs"].values()] == [given, given]
    run_id = cli.json(*words, "--no-download")["run_id"]
    assert "a=b c grüße" in cli.ok("logs", run_id)
    assert cli.json("show", run_id)["run"]["env"] == given
    assert "LR_SCALE=a=b c, GREETING=grüße" in cli.ok("show", run_id)


@pytest.mark.smoke
@pytest.mark.feature(40)
def test_dry_run_prints_the_plan_and_starts_nothing(cli: Cli, script: Write) -> None:
    before = known_runs(cli)
    out = cli.ok("train", script(PLAIN), "--dry-run", "-o", "json", "--", "--lr", "1")
    plan = json.loads(out)
    assert plan["command"] == ["python", "train.py", "--lr", "1"]
    assert plan["not_looked_up"] == []
    assert known_runs(cli) == before


def test_job_ends_with_its_last_run_and_the_next_run_gets_another(cli: Cli, script: Write) -> None:
    folder = script("print('done')")
    train = ("train", folder, "--no-download", "--experiment", "closes-itself")
    first, second = cli.json(*train), cli.json(*train)
    assert (first["status"], second["status"]) == ("succeeded", "succeeded")
    env = {"RUNNER_HOME": str(cli.home), "HOME": "/"}
    connection = connect(load_settings({}, cwd=folder, env=env))
    only = "startswith(id, 'closes-itself')"

    def states() -> dict[str, str]:
        jobs = connection.batch_client().list_jobs(filter=only, select=["id", "state"])
        return {str(job.id): wire_text(job.state) for job in jobs}

    wanted = ["closes-itself_local", "closes-itself_local-2"]
    until(lambda: states() == dict.fromkeys(wanted, "completed"))


@pytest.mark.smoke
@pytest.mark.feature(36)
def test_detached_run_is_listed_and_attached(cli: Cli, script: Write) -> None:
    document = cli.json("train", script(PLAIN), "--detach")
    run_id = document["run_id"]
    assert "hello from the node" in cli.ok("attach", run_id)
    rows = cli.json("ps", "-a")
    assert run_id in [row["run_id"] for row in rows]


@pytest.mark.smoke
@pytest.mark.feature(16)
def test_files_are_listed_and_downloaded(cli: Cli, script: Write, tmp_path: Path) -> None:
    odd = "a b#1 50%25 grüße?.txt"
    code = f"{PLAIN}\nopen({odd!r}, 'w').write('odd')\nprint('äh')\n"
    run_id = cli.json("train", script(code), "--no-download")["run_id"]
    assert "sub/model.txt" in cli.ok("files", "ls", run_id)
    [listed] = [f for f in cli.json("files", "ls", run_id) if f["path"] == "sub/model.txt"]
    assert listed["url"] == cli.json("show", run_id)["output_url"] + "sub/model.txt"
    cli.ok("files", "get", run_id, "--output-dir", tmp_path / "here")
    assert [p.read_text() for p in (tmp_path / "here").rglob("model.txt")] == ["weights"]
    cli.ok("files", "get", run_id, "stderr.txt", "--output-dir", tmp_path / "here")
    assert (tmp_path / "here" / run_id / "stderr.txt").is_file()
    with pytest.raises(HTTPError, match=r"403|404"):
        urlopen(listed["url"], timeout=60)
    signed = {f["path"]: f["url"] for f in cli.json("files", "ls", run_id, "--sas", "1h")}
    assert urlopen(signed[odd], timeout=60).read() == b"odd"
    with urlopen(signed["stdout.txt"], timeout=60) as log:
        assert "äh" in log.read().decode(log.headers.get_content_charset())
    with pytest.raises(HTTPError, match="403"):
        urlopen(signed[odd].replace(quote(odd), "sub/model.txt"), timeout=60)


@pytest.mark.smoke
@pytest.mark.feature(17)
def test_second_identical_run_reuses_code_and_environment(cli: Cli, script: Write) -> None:
    folder = script("import six; print('six', six.__version__)")
    (folder / "requirements.txt").write_text("six==1.17.0\n")
    first = cli.json("train", folder)
    second = cli.json("train", folder)
    assert first["code"] == second["code"]
    runs = blob_service(cli).get_container_client("runs")
    events = runs.download_blob(RunPaths(second["run_id"]).attempt_events(1)).readall().decode()
    assert "environment is cached" in events


def test_new_recipe_trains_unchanged(cli: Cli) -> None:
    cli.ok("recipe", "new", "my_model")
    cli.ok("recipe", "check", "./my_model")
    assert cli.json("train", "./my_model")["status"] == "succeeded"


def test_two_concurrent_runs_succeed(cli: Cli, script: Write) -> None:
    folder = script(PLAIN)
    both = [cli.start("train", folder, "-o", "json") for _ in range(2)]
    outcomes = [process.communicate(timeout=240) for process in both]
    assert [process.returncode for process in both] == [0, 0], outcomes
    documents = [json.loads(out) for out, _ in outcomes]
    assert [d["status"] for d in documents] == ["succeeded", "succeeded"]
    assert documents[0]["run_id"] != documents[1]["run_id"]


def test_local_env_lets_the_plain_sdk_list_the_pools(cli: Cli) -> None:
    code = (
        "import os\n"
        "from azure.batch import BatchClient\n"
        "from azure.core.credentials import AzureNamedKeyCredential as Key\n"
        "e = os.environ\n"
        "key = Key(e['AZURE_BATCH_ACCOUNT'], e['AZURE_BATCH_ACCESS_KEY'])\n"
        "print([p.id for p in BatchClient(e['AZURE_BATCH_ENDPOINT'], key).list_pools()])\n"
        "from azure.storage.blob import BlobServiceClient\n"
        "s = BlobServiceClient.from_connection_string(e['AZURE_STORAGE_CONNECTION_STRING'])\n"
        "print(sorted(c.name for c in s.list_containers()))\n"
    )
    exports = cli.ok("local", "env")
    done = subprocess.run(
        ["/bin/sh", "-c", f'{exports}\nexec "$0" -c "$1"', sys.executable, code],
        env=cli.env,
        capture_output=True,
        text=True,
        check=True,
    )
    pools, containers = done.stdout.splitlines()
    assert pools == "['local']"
    assert {"data", "models", "runs"} <= set(
        ast.literal_eval(containers)
    )  # runs of other tests, too


@pytest.mark.feature(48)
@pytest.mark.feature(59)
def test_mnist_learns_real_digits_and_is_reproducible(cli: Cli, mnist: Path) -> None:
    document = cli.json("train", "mnist", "--data", mnist, "--set", "subset=8000")
    assert document["status"] == "succeeded"
    assert document["metrics"]["test_accuracy"] >= 0.97
    assert {"model.keras", "model.json", "model.weights.h5"} <= {
        f["path"] for f in document["outputs"]
    }
    (folder,) = (cli.cwd / "outputs").iterdir()
    assert json.loads((folder / "model.json").read_text())["class_name"] in {
        "Functional",
        "Sequential",
    }
    done = cli.run("reproduce", document["run_id"], "-o", "json")
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    found = json.loads(done.stdout)
    verdicts = {file["path"]: file["verdict"] for file in found["files"]}
    assert verdicts["model.weights.h5"] == "same"
    assert verdicts["model.keras"] == "same content"
    assert found["drift"] == []


@pytest.mark.smoke
@pytest.mark.feature(34)
def test_logs_follow_a_run_from_another_terminal(cli: Cli, script: Write) -> None:
    folder = script(
        "import time, os, pathlib\n"
        "for n in range(40):\n    print('line', n, flush=True); time.sleep(0.1)\n"
    )
    run_id = cli.json("train", folder, "--detach")["run_id"]
    follower = cli.start("logs", "-f", run_id)
    out, err = follower.communicate(timeout=240)
    assert follower.returncode == 0, err
    assert [line for line in out.splitlines() if line.startswith("line")] == [
        f"line {n}" for n in range(40)
    ]
    assert cli.ok("logs", run_id, "--tail", "2").splitlines() == ["line 38", "line 39"]
    assert show_ended(cli, run_id)["state"] == "succeeded"


def test_failed_script_without_output_names_its_log(cli: Cli, script: Write) -> None:
    folder = script("raise ValueError('no data')\n")
    assert cli.run("train", folder).returncode == ExitCode.RUN_FAILED
    done = cli.run("logs", "@last")
    assert (done.returncode, done.stdout) == (0, "")
    assert "--stderr" in done.stderr
    assert "ValueError: no data" in cli.ok("logs", "@last", "--stderr")
    fetched = cli.run("files", "get", "@last")
    assert fetched.stdout == "", "no folder is named that is not there"
    assert "no exported files" in fetched.stderr
