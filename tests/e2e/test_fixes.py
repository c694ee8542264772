"""The `runner` commands that an error prints work in the situation that printed it."""

from __future__ import annotations

import json
import shlex
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

import runner
from runner.azure.auth.credentials import Connection, connect
from runner.core.home import HomePaths
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.settings import load_settings
from runner.features.selftest.training import EvictedTraining
from runner.flows import shell
from runner.flows.runs.documents import find_run
from runner.flows.shell import find_jupyter
from runner.flows.submit.check_and_read import check_run
from runner.protocol.errors import RunnerError
from runner.protocol.results import index_blobs
from tests.e2e.conftest import Cli, evict_node_of, show_ended, until
from tests.unit.command_lines import commands_in
from tests.unit.fix_situations import SERVED, FixCase

pytestmark = pytest.mark.slow  # a minute: two commands or more per situation
_SCRIPT = """\
import os, pathlib, sys
if "fail" in sys.argv:
    sys.exit("failed on purpose")
for name in ("model.txt", "more.txt"):
    pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], name).write_text("1")
if "silent" not in sys.argv:
    with open(os.environ["RUNNER_METRICS_FILE"], "a") as metrics:
        metrics.write('{"step": 1, "loss": 0.5}\\n')
"""


@pytest.fixture(scope="module")
def runs(session_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """Return the IDs of runs that succeeded, failed, and are needed by a model, and of a sweep."""
    folder = tmp_path_factory.mktemp("fixes")
    cli = Cli(session_home, folder)
    (folder / "train.py").write_text(_SCRIPT, encoding="utf-8")
    words = ("train", "./train.py", "--detach", "-o", "json")
    failed = json.loads(cli.ok(*words, "--", "fail"))["run_id"]
    done = json.loads(cli.ok(*words))["run_id"]
    kept = json.loads(cli.ok(*words))["run_id"]
    spare = json.loads(cli.ok(*words))["run_id"]
    silent = json.loads(cli.ok(*words, "--", "silent"))["run_id"]
    assert show_ended(cli, failed)["state"] == "failed"
    assert show_ended(cli, kept)["state"] == "succeeded"
    assert show_ended(cli, done)["state"] == "succeeded"
    assert show_ended(cli, spare)["state"] == "succeeded"
    assert show_ended(cli, silent)["state"] == "succeeded"
    varied = cli.ok("sweep", "start", "./train.py", "-p", "mode=fail", "--detach", "-o", "json")
    cli.ok("models", "register", kept, "needed")
    cli.ok("models", "register", done, "fixes")
    cli.ok("models", "register", done, "ours")
    cli.ok("models", "register", silent, "unranked")
    for run in (done, spare):
        cli.ok("models", "register", run, "used")
    cli.ok("models", "alias", "used@1", "live")
    cli.ok("models", "alias", "used@1", "moved")
    cli.ok("data", "put", "train.py", "fixes/train.py")
    return {"done": done, "failed": failed, "kept": kept, "sweep": json.loads(varied)["sweep"]}


def filled(words: str, runs: Mapping[str, str], case: FixCase) -> list[str]:
    values = {name: value.format(**runs) for name, value in case.values.items()}
    return [values.get(word, word) for word in shlex.split(words)]


def error_of(cli: Cli, words: list[str]) -> dict[str, str]:
    done = cli.run(*words, timeout_s=300)
    if done.returncode == 0:
        return {}
    code = done.stderr.partition("error[")[2].partition("]")[0]
    fix = done.stderr.partition("  fix: ")[2].partition("\n")[0]
    return {"code": code, "fix": fix, "shown": f"{done.returncode}\n{done.stdout}\n{done.stderr}"}


@pytest.mark.parametrize("code", SERVED)
def test_printed_command_works_on_the_services(
    cli: Cli, runs: Mapping[str, str], code: str
) -> None:
    case = SERVED[code]
    for name, text in case.files.items():
        (cli.cwd / name).parent.mkdir(parents=True, exist_ok=True)
        (cli.cwd / name).write_text(text, encoding="utf-8")
    err = error_of(cli, shlex.split(case.words.format(**runs)))
    assert err.get("code") == code, err
    printed = [each for each in commands_in(err["fix"]) if each.startswith("runner ")]
    assert printed, err
    for command in printed:
        again = error_of(cli, filled(command, runs, case)[1:])
        assert again.get("code", "") in ("", *case.beyond), (command, again)
    if case.cured is not None:
        after = error_of(cli, shlex.split(case.words.format(**runs)))
        assert after.get("code", "") == case.cured, after


def test_failed_run_without_a_checkpoint_is_started_over_by_retry(
    cli: Cli, runs: Mapping[str, str]
) -> None:
    err = error_of(cli, ["resume", runs["failed"]])
    (command,) = commands_in(err["fix"])
    assert command == f"runner retry {runs['failed']}"
    again = error_of(cli, shlex.split(command)[1:])
    assert again["code"] == "", again  # it started, and fails again as intended
    assert "✓ submit" in again["shown"]


# -- situations that no command creates ------------------------------------------------------------


@pytest.fixture
def stored(session_home: Path) -> Connection:
    """Return the storage and the Batch account of the services, to damage them."""
    env = {"RUNNER_HOME": str(session_home)}
    return connect(load_settings({}, cwd=session_home, env=env))


def printed(cli: Cli, code: str, *words: str) -> list[str]:
    """Run words that fail with this code; return the `runner` commands of the fix."""
    err = error_of(cli, [*words])
    assert err.get("code") == code, err
    commands = [each for each in commands_in(err["fix"]) if each.startswith("runner ")]
    assert commands, err
    return commands


def follow(cli: Cli, command: str, **values: str) -> str:
    """Run a printed command, with these words in the place of its placeholders."""
    words = [values.get(word, word) for word in shlex.split(command)[1:]]
    done = cli.run(*words, timeout_s=120)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def train(cli: Cli, *words: str) -> str:
    return json.loads(cli.ok("train", "--detach", "-o", "json", *words))["run_id"]


@pytest.mark.fix("R-MODEL-HASH", "R-MODEL-UNREADABLE")
def test_damaged_model_is_registered_again(
    cli: Cli, runs: Mapping[str, str], stored: Connection
) -> None:
    models = stored.blob_service().get_container_client("models")
    cli.ok("models", "register", runs["done"], "damaged")
    [file] = models.list_blob_names(name_starts_with="damaged/files/")
    for changed in (True, False):
        models.delete_blob(file)
        if changed:
            models.upload_blob(file, b"2")
        [again] = printed(cli, "R-MODEL-HASH", "models", "get", "damaged@1", "model")
        follow(cli, again)
        cli.ok("models", "get", "damaged@1", "model")
        (cli.cwd / "model/model.txt").unlink()
    models.upload_blob("damaged/versions/1.json", b'{"half', overwrite=True)
    [others] = printed(cli, "R-MODEL-UNREADABLE", "models", "show", "damaged@1")
    assert "unreadable" in follow(cli, others)
    # The model may come from any run, so no other test could delete one.
    models.delete_blob("damaged/versions/1.json")


@pytest.mark.fix("R-GROUP-BROKEN", "R-GROUP-SUBMITTING", "R-RETRY-CYCLE", "R-RUN-BROKEN")
def test_damaged_documents_of_runs_leave_a_way_on(cli: Cli, stored: Connection) -> None:
    files = stored.blob_service().get_container_client("runs")
    (cli.cwd / "train.py").write_text(_SCRIPT)
    tasks = ("a: {command: sh -c 'exit 1'}", "b: {command: ls}", "c: {command: sh -c 'exit 1'}")
    (cli.cwd / "tasks.yaml").write_text(f"tasks: {{{', '.join(tasks)}}}")
    submitted = ("submit", "tasks.yaml", "-e", "cycle", "--detach", "-o", "json")
    group = json.loads(cli.ok(*submitted))["group"]
    first, second, third = sorted(row["run_id"] for row in cli.json("ps", "--group", group))
    assert show_ended(cli, first)["state"] == "failed"
    assert show_ended(cli, second)["state"] == "succeeded"
    assert show_ended(cli, third)["state"] == "failed"

    # `b` fails, too, and each waits for the other.
    whole = {
        run: json.loads(files.download_blob(f"{run}/run.json").readall()) for run in (first, second)
    }
    result = json.loads(files.download_blob(f"{second}/result.json").readall())
    failed = {**result, "status": "failed", "exit_code": 1}
    files.upload_blob(f"{second}/result.json", json.dumps(failed), overwrite=True)
    for run, other in ((first, second), (second, first)):
        waiting = json.dumps({**whole[run], "after": [other]})
        files.upload_blob(f"{run}/run.json", waiting, overwrite=True)
        for blob in index_blobs(run):  # which have the previous content of the documents
            files.upload_blob(blob, b"", overwrite=True)
    listing, one = printed(cli, "R-RETRY-CYCLE", "retry", "--failed", "-e", "cycle")
    assert first in follow(cli, listing)
    assert error_of(cli, [*shlex.split(one.replace("RUN", third))[1:], "--detach"]) == {}

    cut = {name: value for name, value in whole[first].items() if name != "code"}
    files.upload_blob(f"{first}/run.json", json.dumps(cut), overwrite=True)
    [anew] = printed(cli, "R-RUN-BROKEN", "retry", first)
    follow(cli, f"{anew} --detach", RECIPE="./train.py")

    files.upload_blob(f"groups/{group}.json", b"[]", overwrite=True)
    [listing] = printed(cli, "R-GROUP-BROKEN", "show", group)
    assert second in follow(cli, listing)

    files.upload_blob("submitting/killed-20261124-000000-aaaa.json", b"{}")
    [anew] = printed(cli, "R-GROUP-SUBMITTING", "show", "killed-20261124-000000-aaaa")
    follow(cli, f"{anew} --detach", FILE="tasks.yaml")
    files.delete_blob("submitting/killed-20261124-000000-aaaa.json")


@pytest.mark.fix(
    "R-SCHEDULE-EXISTS", "R-SCHEDULE-BROKEN", "R-SCHEDULE-NODES", "R-SCHEDULE-OVER", "R-POOL-IN-USE"
)
def test_schedule_that_cannot_continue_is_made_again(cli: Cli, stored: Connection) -> None:
    files = stored.blob_service().get_container_client("runs")
    (cli.cwd / "train.py").write_text(_SCRIPT)
    create = ("schedule", "create", "./train.py", "--every", "30d", "--name", "fixed")
    cli.ok(*create, "--start", "2031-01-01")
    refused, remove = ("pool", "rm", "local"), ["runner schedule rm fixed"]
    until(lambda: printed(cli, "R-POOL-IN-USE", *refused) == remove)  # runs of other tests end
    [remove] = printed(cli, "R-SCHEDULE-EXISTS", *create)
    follow(cli, remove)
    cli.ok(*create, "--start", "2031-01-01")
    [template] = [
        n
        for n in files.list_blob_names(name_starts_with="schedules/fixed/")
        if n.endswith("/run.json")
    ]
    files.delete_blob(template)
    [remove] = printed(cli, "R-SCHEDULE-BROKEN", "schedule", "trigger", "fixed")
    follow(cli, remove)
    cli.ok(*create, "--start", "2031-01-01")
    stored.batch_client().begin_terminate_job_schedule("fixed", polling_interval=0).wait()
    [remove] = printed(cli, "R-SCHEDULE-OVER", "schedule", "pause", "fixed")
    follow(cli, remove)
    cli.ok(*create, "--start", "2031-01-01")
    follow(cli, remove)

    (cli.cwd / "wide").mkdir()
    (cli.cwd / "wide/train.yaml").write_text("command: hostname\nresources: {nodes: 2}\n")
    [submit] = printed(
        cli, "R-SCHEDULE-NODES", "schedule", "create", "wide", "--every", "30d", "--name", "wide"
    )
    file = "schedule: {every: 30d, start: 2031-01-01}\ntasks: {one: {recipe: wide}}\n"
    (cli.cwd / "wide.yaml").write_text(file)
    follow(cli, submit, FILE="wide.yaml")
    assert cli.json("schedule", "show", "wide")["state"] == "active"
    cli.ok("schedule", "rm", "wide")


@pytest.mark.fix(
    "R-AFTER-JOB",
    "R-DEV-JUPYTER",
    "R-POOL-IN-USE",
    "R-POOL-RESIZING",
    "R-REACH-WAITING",
    "R-RUN-GOES-ON",
)
def test_runs_that_are_under_way_can_be_awaited_or_cancelled(
    cli: Cli, stored: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cli.cwd / "hold.py").write_text(_HOLDS)
    (cli.cwd / "train.py").write_text(_SCRIPT)
    gate = cli.cwd / "gate"
    one, two, third = (train(cli, "./hold.py", "--", str(gate)) for _ in range(3))
    until(lambda: [row["state"] for row in cli.json("ps")].count("running") == 2)

    attach, cancel = printed(cli, "R-RUN-GOES-ON", "retry", two)
    later = ("train", "./train.py", "--after", one, "--priority", "7")
    assert printed(cli, "R-AFTER-JOB", *later, "--dry-run") == [f"runner attach {one}"]
    [wait] = printed(cli, "R-REACH-WAITING", "exec", third, "--", "true")
    assert printed(cli, "R-POOL-IN-USE", "pool", "rm", "local") == ["runner cancel --pool local"]

    spec = find_run(stored, one)
    monkeypatch.setattr(shell, "_JUPYTER_START_S", 0)  # not two minutes
    with pytest.raises(RunnerError) as absent:
        find_jupyter(stored, cli.home, spec)
    assert absent.value.code == "R-DEV-JUPYTER"
    assert "holds the node" in follow(cli, *commands_in(absent.value.fix))

    cli.ok("pool", "resize", "local", "1")  # it waits for the end of a run
    [steady] = printed(cli, "R-POOL-RESIZING", "pool", "resize", "local", "2")
    assert "resizing" in follow(cli, steady)

    follow(cli, cancel)
    assert show_ended(cli, two)["state"] == "cancelled"
    gate.touch()
    assert "succeeded" in follow(cli, f"runner attach {one}")
    assert "succeeded" in follow(cli, wait)
    assert error_of(cli, [*later, "--dry-run"]) == {}
    assert error_of(cli, shlex.split(attach)[1:])["code"] == ""  # it has ended as cancelled
    until(lambda: "steady" in follow(cli, steady))
    cli.ok("pool", "resize", "local", "2")


_NOT_LOADED = """\
import os, pathlib, pickle, sys, time
state = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state")
if state.exists():
    pickle.loads(state.read_bytes())
if os.environ["RUNNER_ATTEMPT"] != "1":
    raise KeyError("a bug")
state.write_bytes(b"not a pickle")
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.1)
"""


@pytest.mark.feature(32)
@pytest.mark.fix("R-RESUME-FAILED")
def test_run_whose_checkpoint_cannot_be_loaded_starts_over(cli: Cli) -> None:
    """By itself after an eviction, and on request if it failed from the beginning too."""
    (cli.cwd / "unloaded.py").write_text(_NOT_LOADED)
    gate = cli.cwd / "gate"
    run = train(cli, "./unloaded.py", "--", str(gate))
    until(lambda: cli.json("show", run)["checkpoints"], timeout_s=120)
    evict_node_of(cli, run, "--notice", "0")
    shown = show_ended(cli, run)
    error = "checkpoint 1: _pickle.UnpicklingError: invalid load key, 'n'"
    assert [each["not_loaded"] for each in shown["attempts"]] == ["", error, error, ""]
    assert (shown["state"], "a bug" in cli.ok("logs", run, "--stderr")) == ("failed", True)
    found = cli.json("why", run)
    assert found["cause"] == "ScriptError"
    assert [each["text"] for each in found["evidence"][:3]] == [
        f"could not load {error}", f"could not load {error}", "started from the beginning",
    ]  # fmt: skip
    assert len(shown["checkpoints"]) == 1
    [again] = printed(cli, "R-RESUME-FAILED", "resume", run)
    assert again == f"runner resume {run} --fresh"
    gate.touch()
    assert "succeeded" in follow(cli, again)
    assert cli.json("show", "@last")["run"]["resume_from"] is None


@pytest.mark.fix("R-SELFTEST-TIMEOUT")
def test_selftest_that_waits_too_long_says_where_to_look(
    cli: Cli, stored: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cli.cwd / "hold.py").write_text(_HOLDS)
    gate = cli.cwd / "gate"
    holds = [train(cli, "./hold.py", "--", str(gate)) for _ in range(2)]
    until(lambda: [row["state"] for row in cli.json("ps")].count("running") == 2)
    monkeypatch.chdir(cli.cwd)
    monkeypatch.setenv("RUNNER_HOME", str(cli.home))
    settings = load_settings({}, cwd=cli.cwd, env=cli.env)
    run = check_run(load_recipe("hold.py", cwd=cli.cwd), RunOptions())

    def give_up() -> str:
        trained = EvictedTraining(run, settings, 0, ignore_progress, stack=None)
        with pytest.raises(RunnerError) as late:
            trained.execute()
        assert late.value.code == "R-SELFTEST-TIMEOUT"
        [command] = commands_in(late.value.fix)
        return command

    assert "running" in follow(cli, give_up())
    gate.touch()
    for held in holds:
        assert show_ended(cli, held)["state"] == "succeeded"


_HOLDS = """\
import pathlib, sys, time
print("holds the node", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
"""


@pytest.mark.fix("R-MODEL-OTHER-FILES", "R-MODEL-DELETED")
def test_version_with_other_files_gives_way(cli: Cli, runs: Mapping[str, str]) -> None:
    cli.ok("models", "register", runs["done"], "half", "--path", "model.txt")
    words = ("models", "register", runs["done"], "half")
    [remove] = printed(cli, "R-MODEL-OTHER-FILES", *words)
    follow(cli, f"{remove} --yes")
    [deleted] = printed(cli, "R-MODEL-DELETED", "models", "show", "half")
    assert runs["done"] in follow(cli, deleted)
    cli.ok(*words)


@pytest.mark.fix("R-RUN-FAILED", "R-SUBMIT-SCHEDULE")
def test_commands_of_errors_in_python_work(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNNER_HOME", "HOME"):
        monkeypatch.setenv(name, cli.env[name])
    monkeypatch.chdir(cli.cwd)
    (cli.cwd / "tasks.yaml").write_text("tasks: {one: {command: sh -c 'exit 3'}}")
    with pytest.raises(RunnerError) as failed:
        runner.submit("tasks.yaml", check=True)
    assert failed.value.code == "R-RUN-FAILED"
    [show] = commands_in(failed.value.fix)
    assert "failed" in follow(cli, show)
    text = "schedule: {every: 30d, start: 2031-01-01}\ntasks: {one: {command: ls}}"
    (cli.cwd / "my times.yaml").write_text(text)
    with pytest.raises(RunnerError) as scheduled:
        runner.submit("my times.yaml")
    assert scheduled.value.code == "R-SUBMIT-SCHEDULE"
    create = next(iter(commands_in(scheduled.value.fix)))
    follow(cli, create)
    cli.ok("schedule", "rm", "my-times")


@pytest.mark.fix("R-DEV-ENDED")
def test_node_to_work_on_that_does_not_start_says_why(cli: Cli) -> None:
    (cli.cwd / "lab").mkdir()
    broken = cli.cwd / "lab/broken"
    broken.mkdir()
    (broken / "pyproject.toml").write_text("[build-system]\nrequires = []\n"
        "build-backend = 'missing'\nbackend-path = ['.']\n")  # fmt: skip
    (cli.cwd / "lab/requirements.txt").write_text("./broken\n")
    [why] = printed(cli, "R-DEV-ENDED", "dev", "lab", "--for", "1h")
    assert "R-NODE" in follow(cli, why) or "./broken" in follow(cli, why)


@pytest.mark.fix(
    *("R-SWEEP-BLOBS", "R-LOCAL-DOWN", "R-RUN-NONE", "R-CONTAINER-MISSING", "R-SERVICE"),
    *("R-ACCESS-DENIED", "R-LOCAL-KEYS", "R-LOCAL-PORT"),
)
def test_services_that_are_stopped_or_broken_are_started_as_printed(own_cli: Cli) -> None:
    cli = own_cli
    (cli.cwd / "train.py").write_text("print('trained')\n")
    swept = ("sweep", "start", "./train.py", "-p", "file={files: 'blob:data/*'}", "--dry-run")
    assert printed(cli, "R-SWEEP-BLOBS", *swept) == ["runner local up"]
    assert printed(cli, "R-LOCAL-DOWN", "local", "evict") == ["runner local up"]
    assert printed(cli, "R-LOCAL-DOWN", "local", "env") == ["runner local up"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        [elsewhere] = printed(cli, "R-LOCAL-PORT", "local", "up", "--port", port)
        follow(cli, elsewhere)
    cli.ok("local", "env")
    assert error_of(cli, [*swept])["code"] == "R-SWEEP-FILES"

    [first] = printed(cli, "R-RUN-NONE", "show", "@last")
    assert "dry run" in cli.run(*shlex.split(first)[1:], "--dry-run").stderr
    run = train(cli, "./train.py")
    assert show_ended(cli, run)["state"] == "succeeded"

    paths = HomePaths(cli.home)
    settings = load_settings({}, cwd=cli.cwd, env={"RUNNER_HOME": str(cli.home)})
    connect(settings).blob_service().delete_container("data")
    again, _ = printed(cli, "R-CONTAINER-MISSING", "data", "put", "train.py", "train.py")
    follow(cli, again)
    cli.ok("data", "put", "train.py", "train.py")

    paths.keys.write_text("{")
    restart = printed(cli, "R-LOCAL-KEYS", "ps")
    assert printed(cli, "R-LOCAL-KEYS", "local", "env") == restart
    for command in restart:
        follow(cli, command)
    assert run in cli.ok("ps")  # deleting the keys loses no run

    paths.keys.write_text(json.dumps(dict.fromkeys(("batch", "storage"), "b3RoZXI=")))
    restart = printed(cli, "R-ACCESS-DENIED", "ps")
    assert printed(cli, "R-ACCESS-DENIED", "local", "evict") == restart[:2]
    assert printed(cli, "R-ACCESS-DENIED", "selftest", "-y", "--no-training") == restart
    for command in restart:
        follow(cli, command)
    assert run in cli.ok("ps")
