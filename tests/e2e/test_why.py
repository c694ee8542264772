"""`runner why` of runs: each cause is produced by the real agent, and healthy runs have none."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch import translate
from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.contract import parse_stack_outputs
from runner.core.home import HomePaths
from runner.core.planning.plan import RunPlan, StorageScopes
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.settings import load_settings
from runner.flows.runs.cancel import cancel_run
from runner.flows.runs.diagnose import diagnose_run
from runner.flows.runs.documents import find_run, load_points, runs_container
from runner.flows.submit.submit_run import submit_run
from runner.protocol.paths import RunPaths
from runner.protocol.results import AttemptStart, StageEvent
from tests.e2e.conftest import Cli, new_home, until
from tests.e2e.plans import plan_recipe

Write = Callable[..., Path]
LATER = "later"  # a pool without nodes, for runs whose surroundings change before they start


@dataclass(frozen=True)
class Place:
    """Local services of this module, and a client of their Batch account."""

    home: Path
    batch: BatchClient

    def cli(self, cwd: Path) -> Cli:
        return Cli(self.home, cwd)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Generator[Place]:
    folder = tmp_path_factory.mktemp("why")
    cli = Cli(new_home(folder / "home"), folder)
    cli.ok("local", "up", "--nodes", "2")
    paths = HomePaths(cli.home)
    outputs = parse_stack_outputs(paths.local_outputs.read_text())
    key = json.loads(paths.keys.read_text())["batch"]
    batch = BatchClient(outputs.batch_endpoint, AzureNamedKeyCredential(outputs.batch_account, key))
    batch.create_pool(
        models.BatchPoolCreateOptions(
            id=LATER,
            vm_size="Standard_D2s_v3",
            virtual_machine_configuration=batch.get_pool("local").virtual_machine_configuration,
            target_low_priority_nodes=0,
            start_task=batch.get_pool("local").start_task,
        )
    )
    known = dataclasses.replace(outputs.pools[0], id=LATER, max_nodes=2)
    changed = dataclasses.replace(outputs, pools=(*outputs.pools, known))
    paths.local_outputs.write_text(changed.to_json())
    yield Place(cli.home, batch)
    cli.ok("local", "down")


@pytest.fixture
def cli(place: Place, tmp_path: Path) -> Cli:
    return place.cli(tmp_path)


def why(cli: Cli, run_id: str) -> dict[str, Any]:
    """Ask, and check what every answer with a cause has: dated evidence, and a command that runs.

    A command that starts a run or watches one is only asked for its plan or for its help.
    """
    found = cli.json("why", run_id)
    if found["cause"] is None:
        assert not found["command"]
        return found
    assert any(each["at"] for each in found["evidence"]), found
    program, *words = shlex.split(found["command"])
    if program == "runner":
        watching = words[0] in ("attach", "events")
        starting = words[0] in ("retry", "resume")
        asked = [*words, *(["--help"] if watching else ["--detach"] if starting else [])]
        done = cli.run(*asked)
        assert done.returncode == 0, (found["command"], done.stderr)
    return found


def failed(cli: Cli, *words: object) -> dict[str, Any]:
    done = cli.run("train", *words, "-o", "json")
    assert done.returncode == 1, done.stderr
    return why(cli, json.loads(done.stdout)["run_id"])


SCRIPTS = {
    "ScriptError": ("raise ValueError('shapes (3,) and (4,) differ')", "shapes (3,) and (4,)"),
    "OutOfMemory": (
        """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
held = bytearray(1 << 31)
""",
        "MemoryError",
    ),
    # As PyTorch 2.9 prints it.
    "GpuOutOfMemory": (
        """
class OutOfMemoryError(RuntimeError): pass
OutOfMemoryError.__module__ = "torch"
raise OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total "
    "capacity of 15.77 GiB of which 9.44 GiB is free.")
""",
        "Tried to allocate 20.00 GiB",
    ),
    "DiskFull": (
        "import errno, os\nraise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), 'model.pt')\n",
        "No space left on device",
    ),
    # The name is reserved, so no server answers.
    "NetworkMissing": (
        "from urllib.request import urlopen\nurlopen('http://data.invalid/train.csv')\n",
        "urlopen error",
    ),
    # As PyTorch 2.15 prints it.
    "GpuMissing": (
        "raise RuntimeError('Found no NVIDIA driver on your system. Please check that you have')\n",
        "no NVIDIA driver",
    ),
    "TerminalMissing": ("import os\nprint(os.get_terminal_size().columns)\n", "ioctl"),
    "Killed": ("import os\nos.kill(os.getpid(), 9)\n", "signal 9"),
}


@pytest.mark.feature(10)
@pytest.mark.parametrize("cause", SCRIPTS)
def test_failure_of_a_script_is_named_with_its_last_lines(
    cause: str, cli: Cli, script: Write
) -> None:
    text, evidence = SCRIPTS[cause]
    caught = "try:\n    raise MemoryError\nexcept MemoryError as err:\n    print(repr(err))\n"
    found = failed(cli, script(caught + text))
    assert found["cause"] == cause
    assert any(evidence in each["text"] for each in found["evidence"]), found


@pytest.mark.smoke
def test_file_that_a_rule_left_out_is_named_before_and_after_the_run(
    cli: Cli, tmp_path: Path
) -> None:
    folder = tmp_path / "tracked"
    folder.mkdir()
    (folder / ".gitignore").write_text("*.json\n*.csv\n")
    (folder / "config.json").write_text("{}")
    (folder / "rows.csv").write_text("1")
    (folder / "train.py").write_text(
        "import json, shutil\njson.load(open('config.json'))\n"
        "shutil.make_archive('../code', 'zip', '.')\nopen('rows.csv')\n"
    )
    git = ["git", "-C", str(folder)]
    for words in (["init", "-q"], ["add", "-f", "config.json", "train.py", ".gitignore"]):
        subprocess.run([*git, *words], check=True)
    planned = cli.run("train", str(folder), "--dry-run", "-o", "json")
    [read] = json.loads(planned.stdout)["left_out"]["read"]
    assert (read["where"], read["path"]) == ("train.py:4", "rows.csv")
    assert "train.py:4 reads rows.csv" in cli.run("recipe", "check", str(folder)).stderr
    failed = cli.run("train", str(folder), "--no-download")
    assert failed.returncode == 1
    answer = cli.json("why", "@last")
    assert answer["cause"] == "FileMissing"
    assert "rows.csv was not sent (.gitignore:2: *.csv)" in answer["message"]


def test_text_answer_has_cause_evidence_fix_and_next_command(cli: Cli, script: Write) -> None:
    assert failed(cli, script("print('epoch 1')\nprint(1 / 0)"))["cause"] == "ScriptError"
    shown = cli.ok("why", "@last")
    for line in ("ScriptError", "ZeroDivisionError: division by zero", "next", "runner logs"):
        assert line in shown


def test_sweep_is_explained_by_its_first_failed_trial(cli: Cli, script: Write) -> None:
    folder = script("import sys\nprint(1 / int(sys.argv[2]))")
    assert cli.run("sweep", "start", folder, "-p", "n=1,0,0").returncode == 1
    sweep = cli.json("sweep", "ls")[0]["sweep"]
    found = cli.json("why", sweep)
    first = sweep.replace("-20", "-2-20", 1)
    assert (found["subject"], found["cause"]) == (sweep, "ScriptError")
    assert found["state"] == "1 succeeded, 2 failed"
    assert found["message"].startswith(f"2 runs failed, the first is {first}: ")
    assert "ZeroDivisionError" in found["message"]
    assert found["command"] == f"runner logs {first} --stderr --tail 50"
    assert cli.json("why", sweep[:-2]) == found


@pytest.mark.parametrize(
    ("text", "words", "shown"),
    [
        ("print('acc 0.5')\nsys.stderr.write('a warning\\n')", ("--metric", "loss"), ""),
        ("sys.stderr.write('acc 0.5\\n')", ("--metric", "loss"), " --stderr"),
        ("print('a problem')\nsys.exit(1)", (), ""),
    ],
)
def test_next_command_shows_the_log_with_the_cause(
    text: str, words: tuple[str, ...], shown: str, cli: Cli, script: Write
) -> None:
    rule = ("--early-stop", "median") if words else ()
    folder = script(f"import sys\n{text}")
    assert cli.run("sweep", "start", folder, "-p", "n=1", *words, *rule).returncode == 1
    first = cli.json("sweep", "show", "@last")["trials"][0]["run_id"]
    found = cli.json("why", first)
    assert found["cause"] == ("MetricMissing" if words else "ScriptError")
    assert found["command"] == f"runner logs {first}{shown} --tail 50"


def test_flag_that_the_script_of_a_sweep_refuses_is_named(cli: Cli, script: Write) -> None:
    parser = "import argparse\np = argparse.ArgumentParser()\np.add_argument('lr')\n"
    folder = script(f"{parser}print('loss:', p.parse_args().lr)")
    sweep = ("sweep", "start", folder, "-p", "lr=1,2")
    assert cli.run(*sweep).returncode == 1
    found = cli.json("why", cli.json("sweep", "ls")[0]["sweep"])
    assert found["cause"] == "ArgumentRefused"
    assert "unrecognized arguments: --lr" in found["message"]
    advised = re.search("`runner (.*)`", found["fix"])
    assert advised is not None
    words = advised[1].replace("RECIPE", str(folder)).replace("VALUES", "1,2")
    cli.ok(*shlex.split(words))


def test_failed_environment_is_named(cli: Cli, script: Write) -> None:
    folder = script("print(1)")
    (folder / "requirements.txt").write_text("./broken\n")
    (folder / "broken").mkdir()
    (folder / "broken/pyproject.toml").write_text("[build-system]\nrequires = []\n"
        "build-backend = 'missing'\nbackend-path = ['.']\n")  # fmt: skip
    assert failed(cli, folder)["cause"] == "EnvironmentFailed"
    printed = cli.ok("logs", "@last", "--build")
    assert "No module named 'missing'" in printed
    assert printed.startswith("attempt 1\n$ ")


def test_output_of_a_build_has_no_secret_and_is_kept(cli: Cli, script: Write) -> None:
    folder = script("print(1)")
    (folder / "requirements.txt").write_text(
        "--index-url http://someone:hunter2hunter2@127.0.0.1:1/packages\nno-such-package-at-all\n"
    )
    failed(cli, folder)
    printed = cli.ok("logs", "@last", "--build")
    assert "no-such-package-at-all" in printed
    assert "hunter2" not in printed
    assert cli.run("logs", "@last", "--build", "--stderr").returncode == 2


def test_time_limit_is_named(cli: Cli, script: Write) -> None:
    found = failed(cli, script("import time\ntime.sleep(600)"), "--timeout", "1s")
    assert found["cause"] == "TimeLimit"
    assert found["command"].startswith("runner logs")  # it has no checkpoint to resume from


def test_blocked_run_names_the_run_before_it(cli: Cli, script: Write, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    wait = f"while not os.path.exists({str(gate)!r}): time.sleep(0.05)\n"
    folder = script(f"import os, time\n{wait}raise SystemExit(3)")
    before = cli.json("train", folder, "--detach")["run_id"]
    run_id = cli.json("train", folder, "--after", before, "--detach")["run_id"]
    gate.touch()
    cli.run("attach", run_id)
    found = why(cli, run_id)
    assert (found["cause"], found["command"]) == ("BlockedDependency", f"runner why {before}")


def in_process(cli: Cli) -> tuple[Any, Connection]:
    settings = load_settings({}, cwd=cli.cwd, env=cli.env)
    return settings, connect(settings)


def submitted(cli: Cli, folder: Path) -> str:
    settings, connection = in_process(cli)
    plan = plan_recipe(connection, settings, load_recipe(str(folder), cwd=cli.cwd))
    return submit_run(connection, plan, ignore_progress).run_id


def test_expired_access_is_named(cli: Cli, script: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunPlan, "access_lifetime", property(lambda _: timedelta(minutes=-5)))
    run_id = submitted(cli, script("print(1)"))
    cli.run("attach", run_id)
    assert why(cli, run_id)["cause"] == "SasExpired"


def test_missing_permission_is_named(
    cli: Cli, script: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translate, "storage_scopes", lambda _: StorageScopes(("rl~",)))
    run_id = submitted(cli, script("print(1)"))
    cli.run("attach", run_id)
    found = cli.json("why", run_id)
    assert (found["cause"], found["command"]) == ("IdentityWithoutRole", "runner check")


def test_eviction_of_a_waiting_run_is_named(cli: Cli, script: Write) -> None:
    folder = script("import time\nprint('on', flush=True)\ntime.sleep(600)")
    run_id = cli.json("train", folder, "--detach")["run_id"]
    until(lambda: cli.json("show", run_id)["state"] == "running")
    assert cli.json("why", run_id)["cause"] is None
    cli.ok("local", "evict", "--all", "--notice", "0s", "--away", "40s")
    until(lambda: cli.json("show", run_id)["state"] == "queued")
    found = why(cli, run_id)
    assert found["cause"] == "Evicted"
    events = cli.json("events", run_id)
    times = [each["at"] for each in events if each["at"]]
    assert times == sorted(times)
    shown = [(each["source"], each["event"]) for each in events]
    assert ("eviction", "the task waits again: its node was lost") in shown
    assert ("task", "added to the queue") in shown
    assert any(source == "eviction" and "was evicted" in text for source, text in shown)
    assert ("attempt 1", "stage command") in shown
    until(lambda: any(each["source"].startswith("node tvm") for each in cli.json("events", run_id)))
    cli.ok("cancel", run_id)
    assert why(cli, run_id)["cause"] is None  # a user cancelled it
    until(lambda: cli.json("why", "local")["cause"] is None)  # the nodes are back


def test_missing_data_and_a_disabled_job_are_named(
    cli: Cli, place: Place, script: Write, tmp_path: Path
) -> None:
    folder = script("print(1)")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "numbers.csv").write_text("1,2\n")
    words = ("--data", tmp_path / "set", "--pool", LATER, "-e", "gone", "--detach")
    run_id = cli.json("train", folder, *words)["run_id"]
    found = cli.json("why", run_id)
    assert (found["cause"], found["command"]) == ("NoNodesWanted", f"runner pool resize {LATER} 1")
    _, connection = in_process(cli)
    data = BlobContainer(connection.blob_service(), connection.outputs.container_data)
    for blob in list(data.list("")):
        data.delete(blob.name)
    job_id = cli.json("show", run_id)["run"]["batch"]["job_id"]
    options = models.BatchJobDisableOptions(disable_tasks="requeue")
    every: Any = 0.05
    place.batch.begin_disable_job(job_id, options, polling_interval=every).result()
    assert why(cli, run_id)["cause"] == "JobDisabled"
    place.batch.begin_enable_job(job_id, polling_interval=every).result()
    cli.ok("pool", "resize", LATER, "1")
    cli.run("attach", run_id)
    assert why(cli, run_id)["cause"] == "DataMissing"
    cli.ok("pool", "resize", LATER, "0")


def test_failed_job_preparation_of_a_run_is_named(cli: Cli, place: Place, script: Write) -> None:
    place.batch.create_job(
        models.BatchJobCreateOptions(
            id="prepared_local",
            pool_info=models.BatchPoolInfo(pool_id="local"),
            uses_task_dependencies=True,
            job_preparation_task=models.BatchJobPreparationTask(
                command_line="/bin/sh -c 'echo no such mirror >&2; exit 4'",
                constraints=models.BatchTaskConstraints(max_task_retry_count=0),
            ),
        )
    )
    run_id = cli.json("train", script("print(1)"), "-e", "prepared", "--detach")["run_id"]
    until(lambda: cli.json("why", run_id)["cause"])
    found = cli.json("why", run_id)
    assert found["cause"] == "JobPreparationFailed"
    assert any("no such mirror" in each["text"] for each in found["evidence"])
    cli.ok(*shlex.split(found["command"])[1:])


def test_unknown_name_is_an_error(cli: Cli) -> None:
    done = cli.run("why", "nothing-of-this-name")
    assert done.returncode == 2
    assert "no run, pool, node or job has the ID 'nothing-of-this-name'" in done.stderr


@pytest.mark.feature(57)
def test_events_of_a_node_with_another_clock_are_corrected_and_gaps_are_marked(
    cli: Cli, script: Write
) -> None:
    run_id = cli.json("train", script("print(1)"), "--pool", LATER, "--detach")["run_id"]
    _, connection = in_process(cli)
    runs = runs_container(connection)
    paths = RunPaths(run_id)
    before = datetime.now(UTC).replace(microsecond=0)
    slow = before - timedelta(minutes=90)  # the current time of the node
    start = AttemptStart(
        attempt=1, node="tvm-slow", started=slow.isoformat(), pool=LATER, dedicated=False
    )
    runs.put(paths.attempt_start(1), start.to_json())
    event = StageEvent(1, (slow + timedelta(seconds=20)).isoformat(), "command", "start", "")
    line = json.dumps(event.to_json()).encode() + b"\n"
    runs.create_bytes(paths.attempt_events(1), line, "application/jsonl")
    runs.put(paths.attempt_end(1), {"damaged": True})
    events = [each for each in cli.json("events", run_id) if each["attempt"] == 1]
    by_text = {each["event"]: each for each in events}
    assert set(by_text) == {
        "started on node tvm-slow, spot",
        "stage command",
        "gap: end.json is damaged",
    }
    began = datetime.fromisoformat(by_text["started on node tvm-slow, spot"]["at"])
    assert timedelta(0) <= began - before <= timedelta(seconds=30)
    after = datetime.fromisoformat(by_text["stage command"]["at"]) - began
    assert after == timedelta(seconds=20)  # both were moved by the same duration
    assert by_text["stage command"]["clock_offset_s"] >= 5400
    shown = cli.run("events", run_id)
    assert "attempt 1: its clock is 54" in shown.stderr
    cli.ok("cancel", run_id)


def test_run_without_progress_is_named_after_a_long_silence(cli: Cli, script: Write) -> None:
    folder = script(
        "import time\n"
        "for step in range(6):\n"
        "    print(f'loss={1 / (step + 1)}', flush=True)\n"
        "    time.sleep(0.1)\n"
        "time.sleep(600)\n"
    )
    (folder / "train.yaml").write_text(
        "command: python train.py\nmetrics: {patterns: {loss: 'loss=([0-9.]+)'}}\n"
    )
    run_id = cli.json("train", folder, "--detach")["run_id"]
    _, connection = in_process(cli)
    spec = find_run(connection, run_id)
    until(lambda: len(load_points(connection, spec)) == 6)
    now = datetime.now(UTC)
    assert diagnose_run(connection, spec, now + timedelta(minutes=10)).cause is None
    found = diagnose_run(connection, spec, now + timedelta(minutes=20))
    assert (found.cause, found.command) == ("NoProgress", f"runner ssh {run_id}")
    assert all(each.at for each in found.evidence)
    cli.ok("cancel", run_id)


HEALTHY = 20  # runs: four in five of them run to their end, and one in five is cancelled


@pytest.mark.slow
def test_healthy_run_has_no_cause_from_submission_to_end(cli: Cli, script: Write) -> None:
    """It waits for slots or for a predecessor, prepares, runs, and ends or is cancelled."""
    folder = script("import time\nprint('on', flush=True)\ntime.sleep(2)\n")
    lines = ["tasks:"]
    for number in range(HEALTHY):
        behind = f", after: [t{number - 1}]" if number % 10 == 9 else ""
        lines.append(f"  t{number}: {{command: [python, train.py]{behind}}}")
    (folder / "many.yaml").write_text("\n".join(lines) + "\n")
    group = cli.json("submit", folder / "many.yaml", "--detach")["group"]
    _, connection = in_process(cli)
    shown = cli.json("show", group)["tasks"]
    specs = [find_run(connection, task["run_id"]) for task in shown]
    assert len(specs) == HEALTHY
    for spec in specs[5::10]:
        cancel_run(connection, spec)
    seen: set[str] = set()
    left = list(specs)
    while left:
        began = time.monotonic()
        found = in_parallel(lambda spec: diagnose_run(connection, spec), left)
        labelled = [each for each in found if each.cause is not None]
        assert labelled == []
        seen |= {each.state for each in found}
        ended = {each.subject for each in found if each.state in ("succeeded", "cancelled")}
        left = [spec for spec in left if spec.run_id not in ended]
        time.sleep(time.monotonic() - began)  # half of the time is for the runs
    assert {"queued", "running", "succeeded", "cancelled"} <= seen
