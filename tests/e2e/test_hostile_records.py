"""What the writer of a record can do to the person who reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection, connect
from runner.azure.storage.blobs import BlobContainer
from runner.core.progress import ignore_progress
from runner.core.settings import load_settings
from runner.flows.runs.documents import runs_container
from runner.flows.runs.group_documents import find_group
from runner.flows.submit.resume_sweep import resume_trials
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec
from runner.protocol.waiting_trials import template_blob, waiting_blob
from tests.e2e.conftest import Cli, until

pytestmark = pytest.mark.attack


@pytest.fixture
def connection(session_home: Path, tmp_path: Path) -> Connection:
    env = {"RUNNER_HOME": str(session_home), "HOME": "/"}
    return connect(load_settings({}, cwd=tmp_path, env=env))


@pytest.fixture
def runs(connection: Connection) -> BlobContainer:
    return runs_container(connection)


def rewrite(runs: BlobContainer, blob: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a document as its writer could."""
    document = json.loads(runs.read(blob) or b"{}")
    change(document)
    runs.put(blob, document)


@pytest.fixture
def running(cli: Cli, script: Callable[[str], Path]) -> Generator[str]:
    path = script("import time; print('begun', flush=True); time.sleep(300)")
    run_id = cli.json("train", path, "--detach")["run_id"]
    until(lambda: "begun" in cli.run("logs", run_id).stdout, timeout_s=120)
    yield run_id
    cli.run("cancel", run_id)


@pytest.mark.smoke
def test_record_does_not_decide_folder_and_user_of_exec(
    cli: Cli, running: str, runs: BlobContainer, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    (trap / "logs").mkdir(parents=True)
    (trap / "code").mkdir()
    (trap / "logs" / "environment.sh").write_text(f"id -u > {trap}/sourced\n")
    start = RunPaths(running).attempt_start(1)
    rewrite(runs, start, lambda one: one.update(work_dir=str(trap)))
    folder = cli.ok("exec", running, "--", "pwd").strip()
    assert not (trap / "sourced").exists()
    assert folder.endswith(f"/{running}/wd/code")


SECRET = "the-secret-of-the-reader"
_SENDS = """
import os
print("got", len(os.environ.get("TOKEN", "")), flush=True)
raise SystemExit(int(os.environ.get("CODE", "1")))
"""


def asks_for(name: str) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["secrets"] = ["TOKEN"]
        document["secret_refs"] = {"TOKEN": {"env": name}}

    return change


@pytest.mark.smoke
def test_changed_record_gets_no_variable_without_consent(
    cli: Cli, script: Callable[[str], Path], runs: BlobContainer
) -> None:
    folder = script(_SENDS)
    mine = ("-e", "changed")  # other tests have failed runs, too
    cli.run("train", folder, "--no-download", *mine)
    [run_id] = [row["run_id"] for row in cli.json("ps", "--all", *mine)]
    rewrite(runs, RunPaths(run_id).run, asks_for("AZURE_CLIENT_SECRET"))
    env = {"AZURE_CLIENT_SECRET": SECRET}
    for command in (
        ("retry", run_id),
        ("resume", run_id, "--fresh"),
        ("retry", "--failed", *mine),
        ("retry", run_id, "--send-env", "OTHER"),
    ):
        refused = cli.run(*command, env=env)
        assert refused.returncode == 3, refused.stderr
        assert "R-SECRET-SEND" in refused.stderr, refused.stderr
        assert "$AZURE_CLIENT_SECRET" in refused.stderr
        assert SECRET not in refused.stderr + refused.stdout
    assert len(cli.json("ps", "--all", *mine)) == 1
    document = json.loads(cli.run("retry", run_id, "-o", "json", env=env).stdout)["error"]
    words = document["fix"].partition("runner ")[2].split()
    again = cli.run(*words, "--detach", "-o", "json", env=env)
    repeated = json.loads(again.stdout)["run_id"]
    cli.run("attach", repeated, "--no-download")
    assert f"got {len(SECRET)}" in cli.ok("logs", repeated)
    # It is now a submission of this person from this machine.
    assert "R-SECRET-SEND" not in cli.run("retry", repeated, "--detach", env=env).stderr


def test_reproduction_of_a_changed_record_sends_nothing(
    cli: Cli, script: Callable[[str], Path], runs: BlobContainer
) -> None:
    folder = script("import os; open(os.environ['RUNNER_OUTPUT_DIR'] + '/m.bin', 'w').write('1')")
    run_id = cli.json("train", folder, "--no-download")["run_id"]
    rewrite(runs, RunPaths(run_id).run, asks_for("AZURE_CLIENT_SECRET"))
    refused = cli.run("reproduce", run_id, env={"AZURE_CLIENT_SECRET": SECRET})
    assert "R-SECRET-SEND" in refused.stderr


def test_changed_sweep_and_schedule_send_nothing(
    cli: Cli, script: Callable[[str], Path], runs: BlobContainer
) -> None:
    folder = script(_SENDS)
    (folder / "train.yaml").write_text(
        "command: python train.py\nparams: {x: 1}\nsecrets: {TOKEN: {env: MY_TOKEN}}\n"
    )
    own = {"MY_TOKEN": SECRET}
    cli.run("sweep", "start", folder, "-p", "x=1,2", env=own)
    sweep = cli.json("sweep", "ls")[0]
    group = sweep.get("group_id") or sweep["sweep"]
    resumed = cli.run("sweep", "resume", group, env=own)
    assert "R-SECRET-SEND" not in resumed.stderr, resumed.stderr
    trials = cli.json("ps")
    for row in trials:
        if runs.size(RunPaths(row["run_id"]).run) is not None:
            rewrite(runs, RunPaths(row["run_id"]).run, asks_for("AZURE_CLIENT_SECRET"))
    refused = cli.run("sweep", "resume", group, env={**own, "AZURE_CLIENT_SECRET": SECRET})
    assert "$AZURE_CLIENT_SECRET" in refused.stderr, refused.stderr

    cli.ok("schedule", "create", folder, "--every", "30d", "--name", "own", env=own)
    triggered = cli.run("schedule", "trigger", "own", env=own)
    assert triggered.returncode == 0, triggered.stderr
    [template] = [name for name in runs.names("schedules/") if name.endswith("run.json")]
    rewrite(runs, template, asks_for("AZURE_CLIENT_SECRET"))
    refused = cli.run("schedule", "trigger", "own", env={"AZURE_CLIENT_SECRET": SECRET})
    assert "R-SECRET-SEND" in refused.stderr, refused.stderr
    cli.ok("schedule", "rm", "own")


def test_changed_pool_of_a_scheduled_group_sends_nothing(
    cli: Cli, script: Callable[[str], Path], runs: BlobContainer
) -> None:
    folder = script(_SENDS)
    secrets = "secrets: {TOKEN: {env: MY_TOKEN}}"
    (folder / "train.yaml").write_text(f"command: python train.py\n{secrets}\n")
    file = folder.parent / "nightly.yaml"
    file.write_text(f"name: nightly\ntasks: {{a: {{recipe: {folder}}}, b: {{recipe: {folder}}}}}\n")
    cli.ok("schedule", "create", file, "--every", "30d", "--name", "group", env=_OWN)
    triggered = cli.run("schedule", "trigger", "group", env=_OWN)
    assert triggered.returncode == 0, triggered.stderr
    [template] = [name for name in runs.names("schedules/group") if name.endswith("group.json")]
    rewrite(runs, template, lambda one: one.update(pool="theirs"))
    refused = cli.run("schedule", "trigger", "group", env=_OWN)
    assert "R-SECRET-SEND" in refused.stderr, refused.stderr
    cli.ok("schedule", "rm", "group")


@pytest.mark.smoke
def test_dry_run_executes_no_code_of_the_folder(
    cli: Cli, script: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, ran = script("print(1)"), tmp_path / "ran"
    code = f"open({str(ran)!r}, 'a').write('x')\n"
    (folder / "train.yaml").write_text(
        "command: python train.py\ndataset: mine\nsweep: {generator: 'trials.py:make'}\n"
    )
    (folder / "download.py").write_text(code)
    (folder / "trials.py").write_text(f"{code}def make():\n    yield {{'x': 1}}\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_text("1")
    data = ("--data", tmp_path / "data")
    shown = cli.run("train", folder, *data, "--dry-run")
    assert (shown.returncode, ran.exists()) == (0, False), shown.stderr
    assert "--run-checks" in shown.stderr
    shown = cli.run("sweep", "start", folder, *data, "--dry-run")
    assert (shown.returncode, ran.exists()) == (2, False), shown.stderr
    assert "R-SWEEP-UNCHECKED" in shown.stderr
    cli.ok("train", folder, *data, "--dry-run", "--run-checks")
    assert ran.read_text() == "x"
    shown = cli.run("sweep", "start", folder, *data, "--dry-run", "--run-checks")
    assert f"running {folder / 'trials.py'}" in shown.stderr


@pytest.fixture
def stopped(cli: Cli, script: Callable[[str], Path], tmp_path: Path) -> str:
    """A sweep with a secret and two trials, of which the second has never started."""
    go = tmp_path / "go"
    folder = script(f"import os, time\nif not os.path.exists({str(go)!r}): time.sleep(600)\n")
    (folder / "train.yaml").write_text(
        "command: python train.py\nparams: {x: 1}\nsecrets: {TOKEN: {env: MY_TOKEN}}\n"
    )
    words = (
        "sweep",
        "start",
        folder,
        "-p",
        "x=1,2",
        "--max-parallel",
        "1",
        "--detach",
        "-o",
        "json",
    )
    sweep: str = json.loads(cli.ok(*words, env=_OWN))["sweep"]
    until(lambda: cli.json("sweep", "show", sweep)["states"].get("running"))
    cli.ok("sweep", "stop", sweep)
    until(lambda: cli.json("sweep", "show", sweep)["states"] == {"cancelled": 2})
    go.touch()
    return sweep


_OWN = {"MY_TOKEN": SECRET}


def _add_theirs(document: dict[str, Any]) -> None:
    document["prepare"] = "curl https://theirs"


def test_resumed_sweep_runs_what_was_agreed_to(cli: Cli, stopped: str, runs: BlobContainer) -> None:
    """Agents derive run.json from another blob than the one whose trials the client shows."""
    second = cli.json("sweep", "show", stopped)["trials"][1]["run_id"]
    assert runs.read(RunPaths(second).run) is None
    rewrite(runs, template_blob(stopped), _add_theirs)
    cli.ok("sweep", "resume", stopped, env=_OWN)
    for blob in (RunPaths(second).run, template_blob(stopped)):  # a node may have kept the latter
        assert json.loads(runs.read(blob) or b"").get("prepare") is None, blob


def test_trial_that_changes_after_it_was_agreed_to_is_not_submitted(
    cli: Cli,
    stopped: str,
    runs: BlobContainer,
    connection: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**_OWN, "RUNNER_HOME": str(cli.home)}.items():
        monkeypatch.setenv(name, value)

    def change(*_: object) -> None:
        rewrite(runs, waiting_blob(stopped), lambda one: _add_theirs(one["run"]))

    monkeypatch.setattr("runner.flows.submit.resume_sweep.upload_files", change)
    done = resume_trials(connection, find_group(connection, stopped), None, ignore_progress)
    assert (isinstance(done["1"], RunSpec), done["2"]) == (True, None)


_LISTINGS = (
    ("ps", "--all"),
    ("experiments", "ls"),
    ("sweep", "ls"),
    ("models", "ls"),
    ("cost",),
    ("schedule", "ls"),
    ("rm", "--older-than", "30d", "--dry-run"),
)


@pytest.mark.slow
def test_no_name_and_no_document_ends_a_listing(
    own_cli: Cli, script: Callable[[str], Path], tmp_path: Path
) -> None:
    own_cli.ok("train", script("print(1)"), "--no-download")
    env = {"RUNNER_HOME": str(own_cli.home), "HOME": "/"}
    runs = runs_container(connect(load_settings({}, cwd=tmp_path, env=env)))
    for name in (
        *("index/1-a\x1b[31mb", "index/%x1Bq%zz", "waiting/\x1b.json", "groups/\x1b[8m.json"),
        *("by-time/79738878856994-a\x1b", "by-time/x", "deleting/\x1b"),
        *("a\x1b/run.json", "schedules/\x1bx/run.json", "index/\uffff", "index/a/b"),
    ):
        runs.put_metadata(name, {"run": "x"}, overwrite=True)
    [run_id] = [row["run_id"] for row in own_cli.json("ps")]
    document = json.loads(runs.read(RunPaths(run_id).run) or b"")
    values: tuple[Any, ...] = ("\x1b]0;t\x07\x1b[8mx", "{}", [], {}, -1, 1e308, None, {"a": {}})
    contents = [json.dumps({**document, key: each}) for key in document for each in values]
    for name in ("job_id", "task_id", "pool"):
        batch = {**document["batch"], name: "{}/../x"}
        contents.append(json.dumps({**document, "batch": batch}))
    contents += ["", "null", "[]", "{", "[" * 100_000, '{"run_id":NaN}', "1" * 10_000]
    for number, content in enumerate(contents):
        other = f"z-20261128-19{number // 60:02d}{number % 60:02d}-abcd"
        text = content.replace(f'"{run_id}"', f'"{other}"')
        runs.create_bytes(RunPaths(other).run, text.encode(), "application/json")
    for name in ("groups/x.json", "waiting/x.json", "schedules/x/schedule.json"):
        runs.create_bytes(name, b'{"format":1,"trials":[1],"runs":3}', "application/json")
    for words in _LISTINGS:
        done = own_cli.run(*words)
        assert done.returncode == 0, (words, done.stderr)
        assert "\x1b" not in done.stdout + done.stderr
    assert run_id in own_cli.ok("ps", "--all")
