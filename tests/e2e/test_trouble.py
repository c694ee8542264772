"""Faults as users see them: what, why, fix, the correct exit code, and no lost data."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import ContainerClient

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import get_task
from runner.contract import parse_stack_outputs
from runner.core.home import HomePaths
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.settings import load_settings
from runner.core.states import RunState
from runner.flows.local.state import ensure_keys
from runner.flows.runs.documents import load_attempts, runs_container
from runner.flows.runs.events import RunEnded
from runner.flows.runs.logs import read_log
from runner.flows.runs.outputs import download_outputs
from runner.flows.runs.watch import watch_run
from runner.flows.submit.submit_run import submit_run
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec
from tests.disks import fill, filled, small_disk
from tests.e2e.conftest import Cli, interrupt, known_runs, new_home, show_ended, until
from tests.e2e.plans import plan_recipe
from tests.faulty_line import by_chance, faulty_line
from tests.processes import alive
from tests.proof.killing import wrong_steps

Write = Callable[..., Path]

SLOW = """
import pathlib, os, time
print("started", os.getpid(), flush=True)
for n in range(600):
    print("tick", n, flush=True)
    time.sleep(0.1)
"""


def refused(cli: Cli, *args: object, code: int = 2, **kwargs: object) -> str:
    done = cli.run(*args, **kwargs)  # type: ignore[arg-type]
    assert done.returncode == code, f"{done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "error[R-" in done.stderr
    assert "fix:" in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def running(cli: Cli, folder: Path) -> tuple[str, int]:
    """Start a detached run, and wait until it has printed its process ID."""
    run_id = cli.json("train", folder, "--detach")["run_id"]

    def started() -> list[str]:
        done = cli.run("logs", run_id)
        return [line for line in done.stdout.splitlines() if line.startswith("started")]

    return run_id, int(until(started)[0].split()[1])


def test_unknown_recipe_suggests_similar_names(cli: Cli) -> None:
    assert "mnist" in refused(cli, "train", "mnits")


def test_unknown_key_in_train_yaml_names_file_line_and_field(cli: Cli, script: Write) -> None:
    folder = script("print(1)")
    (folder / "train.yaml").write_text("name: x\ncommand: python train.py\nepocs: 3\n")
    text = refused(cli, "train", folder)
    assert "train.yaml:3" in text
    assert "epocs" in text


def test_wrong_type_in_train_yaml_names_the_allowed_types(cli: Cli, script: Write) -> None:
    folder = script("print(1)")
    (folder / "train.yaml").write_text(
        "name: x\ncommand: python train.py\nparams:\n  lr: {type: number, default: 1}\n"
    )
    text = refused(cli, "train", folder)
    assert "train.yaml:4" in text
    assert "float" in text


def test_undeclared_parameter_names_the_declared_ones(cli: Cli) -> None:
    assert "epochs" in refused(cli, "train", "mnist", "--set", "epoch=3", "--dry-run")


@pytest.mark.smoke
def test_missing_data_folder_is_refused_before_anything_starts(cli: Cli) -> None:
    before = known_runs(cli)
    refused(cli, "train", "mnist", "--data", "/nowhere")
    assert known_runs(cli) == before


@pytest.mark.parametrize("name", ["../outside", "a/../../b"])
def test_requirements_file_outside_the_recipe_is_refused(
    cli: Cli, script: Write, name: str
) -> None:
    folder = script("print(1)")
    (folder / "train.yaml").write_text(f"name: x\ncommand: python train.py\nrequirements: {name}\n")
    assert "train.yaml:3" in refused(cli, "train", folder)


def test_unknown_run_is_refused(cli: Cli) -> None:
    assert "no-such-run" in refused(cli, "show", "no-such-run")


@pytest.mark.smoke
def test_failed_script_fails_the_run_and_shows_its_last_lines(cli: Cli, script: Write) -> None:
    folder = script(
        "import sys\nfor n in range(50): print('line', n)\nsys.stderr.write('boom\\n'); sys.exit(3)"
    )
    done = cli.run("train", folder)
    assert done.returncode == 1
    assert "boom" in done.stderr
    assert "exit code 3" in done.stderr.lower() or "exited with 3" in done.stderr.lower()
    assert "command" in done.stderr
    run = cli.json("show", "@last")
    assert (run["state"], run["result"]["exit_code"]) == ("failed", 3)


def test_command_not_found_is_named(cli: Cli, script: Write) -> None:
    folder = script("print(1)")
    (folder / "train.yaml").write_text("name: x\ncommand: no-such-program --now\n")
    done = cli.run("train", folder)
    assert done.returncode == 1
    assert "no-such-program" in done.stderr
    assert cli.json("show", "@last")["result"]["code"] == "CommandNotFound"


def test_missing_promised_output_fails_the_run(cli: Cli, script: Write) -> None:
    folder = script("print('trained nothing')")
    (folder / "train.yaml").write_text(
        "name: x\ncommand: python train.py\noutputs: [model.keras]\n"
    )
    done = cli.run("train", folder)
    assert done.returncode == 1
    assert "model.keras" in done.stderr
    result = cli.json("show", "@last")["result"]
    assert (result["code"], result["step"]) == ("OutputMissing", "export")


def test_unknown_requirements_fail_in_the_environment_stage(cli: Cli, script: Write) -> None:
    folder = script("print(1)")
    (folder / "requirements.txt").write_text("no-such-package-of-ours==1.0\n")
    done = cli.run("train", folder)
    assert done.returncode == 1
    assert "no-such-package-of-ours" in done.stderr
    assert cli.json("show", "@last")["result"]["step"] == "environment"


def test_killed_script_is_a_failed_run_that_names_the_signal(cli: Cli, script: Write) -> None:
    run_id, pid = running(cli, script(SLOW))
    os.kill(pid, signal.SIGKILL)
    done = cli.run("attach", run_id)
    assert done.returncode == 1
    assert "SIGKILL" in done.stderr


def test_killed_agent_leaves_a_failed_run_with_a_reason(cli: Cli, script: Write) -> None:
    run_id, pid = running(cli, script(SLOW))
    child = psutil.Process(pid)
    agent = child.parent()
    assert agent is not None
    agent.kill()
    done = cli.run("attach", run_id)
    assert done.returncode == 1
    assert cli.json("show", run_id)["state"] == "failed"
    until(lambda: not alive(pid))


@pytest.mark.smoke
def test_cancelled_run_ends_and_stays_cancelled(cli: Cli, script: Write) -> None:
    run_id, pid = running(cli, script(SLOW))
    until(lambda: "tick 0" in cli.ok("logs", run_id))
    cli.ok("cancel", run_id)
    until(lambda: not alive(pid))
    run = cli.json("show", run_id)
    assert run["state"] == "cancelled"
    assert run["result"]["status"] == "cancelled"
    assert "tick 0" in cli.ok("logs", run_id)


def test_terminated_task_is_not_a_success(cli: Cli, script: Write) -> None:
    """Here, the portal or `az` has ended the task instead of `runner cancel`."""
    run_id, _pid = running(cli, script(SLOW))
    exports = dict(
        line.removeprefix("export ").split("=", 1)
        for line in cli.ok("local", "env").splitlines()
        if line.startswith("export ")
    )
    from azure.batch import BatchClient
    from azure.core.credentials import AzureNamedKeyCredential

    account, key, endpoint = (
        exports[name].strip("'\"")
        for name in ("AZURE_BATCH_ACCOUNT", "AZURE_BATCH_ACCESS_KEY", "AZURE_BATCH_ENDPOINT")
    )
    client = BatchClient(endpoint, AzureNamedKeyCredential(account, key))
    batch = cli.json("show", run_id)["run"]["batch"]
    client.terminate_task(batch["job_id"], batch["task_id"])
    assert show_ended(cli, run_id)["state"] == "failed"


def test_ctrl_c_detaches_and_the_run_continues(cli: Cli, script: Write, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    folder = script(
        "import pathlib, time\nprint('begun', flush=True)\n"
        f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.05)\n"
        "print('finished', flush=True)"
    )
    process = cli.start("train", folder)
    assert process.stdout is not None
    assert until(process.stdout.readline).startswith("begun")
    _out, err = interrupt(process)
    assert process.returncode == 130
    assert "runner attach" in err
    gate.touch()
    assert "finished" in cli.ok("attach", "@last")


@pytest.mark.smoke
def test_killed_client_loses_nothing(cli: Cli, script: Write) -> None:
    folder = script("import time\nprint('begun', flush=True)\ntime.sleep(2)\nprint('finished')")
    process = cli.start("train", folder)
    assert process.stdout is not None
    until(process.stdout.readline)
    process.kill()
    process.communicate(timeout=120)
    assert "finished" in cli.ok("attach", "@last")


def test_run_completes_after_the_emulator_is_killed(own_cli: Cli, script: Write) -> None:
    folder = script(
        "import os, time\n"
        "for n in range(6000 if os.environ['RUNNER_ATTEMPT'] == '1' else 30):\n"
        "    print('tick', n, flush=True)\n"
        "    time.sleep(0.1)\n"
        "print('finished')"
    )
    run_id = own_cli.json("train", folder, "--detach")["run_id"]
    until(lambda: "tick 3" in own_cli.run("logs", run_id).stdout)
    status = own_cli.json("local", "status")
    os.kill(status["batch"]["pid"], signal.SIGKILL)
    own_cli.ok("local", "up")
    done = own_cli.run("attach", run_id)
    assert done.returncode == 0, done.stderr
    assert "finished" in done.stdout
    run = own_cli.json("show", run_id)
    assert run["state"] == "succeeded"
    assert len(run["attempts"]) == 2


@pytest.mark.feature(35)
def test_killed_storage_loses_and_repeats_no_log_line(own_cli: Cli, script: Write) -> None:
    folder = script(
        "import time\nfor n in range(150): print('tick', n, flush=True); time.sleep(0.1)\n"
    )
    own_cli.ok("local", "up")
    process = own_cli.start("train", folder)
    assert process.stdout is not None
    seen = [process.stdout.readline() for _ in range(20)]
    os.kill(own_cli.json("local", "status")["blob"]["pid"], signal.SIGKILL)
    own_cli.ok("local", "up")
    seen += process.stdout.readlines()
    assert process.wait(timeout=120) == 0
    printed = [line.strip() for line in seen if line.startswith("tick")]
    assert printed == [f"tick {n}" for n in range(150)]
    assert own_cli.ok("logs", "@last").splitlines() == printed


def test_train_starts_stopped_services(own_cli: Cli, script: Write) -> None:
    assert own_cli.json("local", "status")["running"] is False
    assert "hi" in own_cli.ok("train", script("print('hi')"))
    assert own_cli.json("local", "status")["running"] is True


@pytest.mark.slow
def test_concurrent_first_runs_start_one_set_of_services(own_cli: Cli, script: Write) -> None:
    folder = script("print('hi')")
    both = [own_cli.start("train", folder, "-o", "json") for _ in range(2)]
    outcomes = [process.communicate(timeout=200) for process in both]
    assert [json.loads(out)["status"] for out, _ in outcomes] == ["succeeded"] * 2
    assert len(own_cli.json("ps", "-a")) == 2


def test_port_in_use_is_named(own_cli: Cli) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        text = refused(own_cli, "local", "up", "--port", port, code=3)
    assert str(port) in text
    assert own_cli.json("local", "status")["running"] is False


def test_stale_pid_file_is_ignored(own_cli: Cli) -> None:
    own_cli.ok("local", "up")
    status = own_cli.json("local", "status")
    for name in ("batch", "blob"):
        os.kill(status[name]["pid"], signal.SIGKILL)
    until(lambda: not own_cli.json("local", "status")["running"])
    own_cli.ok("local", "up")
    again = own_cli.json("local", "status")
    assert again["running"] is True
    assert again["batch"]["endpoint"] == status["batch"]["endpoint"]


def test_unwritable_home_is_refused(own_cli: Cli, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a folder")
    text = refused(own_cli, "local", "up", code=3, env={"RUNNER_HOME": str(in_the_way / "home")})
    assert "RUNNER_HOME" in text


def test_missing_node_is_named_when_it_cannot_be_installed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "bin").mkdir()
    cli = Cli(tmp_path / "home", tmp_path / "work")
    text = refused(
        cli, "local", "up", code=3, env={"PATH": str(tmp_path / "bin"), "UV_OFFLINE": "1"}
    )
    assert "node" in text.lower()


def test_dead_services_are_reported_without_a_traceback(own_cli: Cli) -> None:
    own_cli.ok("local", "up")
    pid = own_cli.json("local", "status")["batch"]["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))
    done = own_cli.run("ps")
    assert done.returncode in {0, 3}
    assert "Traceback" not in done.stderr


def test_full_disk_on_the_node_is_named(tmp_path: Path, script: Write) -> None:
    (tmp_path / "work").mkdir()
    cli = Cli(new_home(tmp_path / "home"), tmp_path / "work")
    with small_disk(cli.home / "local" / "batch" / "nodes", "size=32m"):
        try:
            folder = script(
                "import os\n"
                "f = open(os.environ['RUNNER_OUTPUT_DIR'] + '/big', 'wb')\n"
                "while True: f.write(bytes(1 << 20)); f.flush()\n"
            )
            first = cli.run("train", folder)
            assert first.returncode == 1
            assert "the node's disk is full" in first.stderr
            assert cli.json("show", "@last")["result"]["code"] == "DiskFull"
        finally:
            cli.run("local", "down")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_full_disk_of_the_services_is_named_and_can_be_resolved(
    tmp_path: Path, script: Write
) -> None:
    (tmp_path / "work").mkdir()
    with small_disk(tmp_path / "disk") as disk:
        cli = Cli(new_home(disk / "home"), tmp_path / "work")
        try:
            cli.ok("local", "up", "--slots", "1")
            ended, other = (
                cli.json("train", script(f"print({n})"), "--detach")["run_id"] for n in range(2)
            )
            show_ended(cli, ended)
            show_ended(cli, other)
            waiting, _ = running(cli, script(SLOW))
            cli.ok("data", "put", script("x"), "stored")
            with filled(disk):  # no space is left, even after files were deleted
                text = refused(cli, "rm", other, "--yes", code=5)
                assert f"ServerBusy, the disk of {cli.home / 'local' / 'blob'} is full" in text
                assert "R-DISK-FULL" in refused(cli, "local", "up", code=3)
            cli.ok("local", "up")  # which also creates the reserve again
            hog = fill(disk)
            assert os.statvfs(disk).f_bfree == 0
            cli.ok("cancel", waiting)
            cli.ok("local", "prune", "--yes")
            cli.ok("rm", ended, "--yes")
            cli.ok("data", "rm", "-r", "stored", "--yes")
            cli.ok("local", "down")
            hog.unlink()
            cli.ok("local", "up")
            # Where the mark of the refused deletion was stored, the next `rm` completed it.
            listed = {row["run_id"] for row in cli.json("ps", "-a")}
            assert listed in ({other, waiting}, {waiting})
        finally:
            cli.run("local", "down")


def _container(cli: Cli) -> ContainerClient:
    paths = HomePaths(cli.home)
    outputs, key = parse_stack_outputs(paths.local_outputs.read_text()), ensure_keys(paths)
    credential = {"account_name": outputs.storage_account, "account_key": key["storage"]}
    url = f"{outputs.blob_endpoint}/{outputs.container_data}"
    return ContainerClient.from_container_url(url, credential, retry_total=0)


def _fill_storage(container: ContainerClient, end: float) -> dict[str, bytes]:
    """Store blobs until a time, and until one was refused; those that were acknowledged."""
    kept: dict[str, bytes] = {}
    number = refused = 0
    while time.monotonic() < end or not refused:
        number += 1
        name, data = f"full/{number}", os.urandom(100)
        try:
            container.upload_blob(name, data)
        except HttpResponseError:
            refused += 1
        else:
            kept[name] = data
        time.sleep(0.02)  # leaves the processors to the services
    return kept


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seconds", [5, 20])
def test_temporarily_full_disk_of_the_services_fails_no_run(
    tmp_path: Path, script: Write, seconds: int
) -> None:
    (tmp_path / "work").mkdir()
    with small_disk(tmp_path / "disk") as disk:
        cli = Cli(new_home(disk / "home"), tmp_path / "work")
        try:
            cli.ok("local", "up", "--slots", "1")
            services = cli.json("local", "status")
            first, _ = running(cli, script(SLOW.replace("600", "300")))
            stored = _container(cli)
            with filled(disk):
                end = time.monotonic() + seconds
                second = cli.start("train", script("print('second')"))
                assert "R-DISK-FULL" in refused(cli, "local", "up", code=3)
                kept = _fill_storage(stored, end)
            cli.ok("local", "up")
            now = cli.json("local", "status")
            assert [now[name]["pid"] for name in ("batch", "blob")] == [
                services[name]["pid"] for name in ("batch", "blob")
            ]
            assert {name: stored.download_blob(name).readall() for name in kept} == kept
            second.communicate(timeout=300)
            third = cli.json("train", script("print('third')"), "--detach")["run_id"]
            ended = {run: show_ended(cli, run) for run in (first, third)}
            assert [shown["state"] for shown in ended.values()] == ["succeeded"] * 2
            assert [len(shown["attempts"]) for shown in ended.values()] == [1, 1]
            log = cli.ok("logs", first).splitlines()
            assert log[1:] == [f"tick {n}" for n in range(300)]
        finally:
            cli.run("local", "down")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_connection_resets_of_the_client_fail_no_run(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    recipe = script("for n in range(20): print('line', n)\nopen('model', 'w').write('weights')")
    paths = HomePaths(cli.home)
    outputs, keys = parse_stack_outputs(paths.local_outputs.read_text()), ensure_keys(paths)
    settings = load_settings({}, cwd=tmp_path, env={"RUNNER_HOME": str(cli.home), "HOME": "/"})
    with (
        faulty_line(outputs.batch_endpoint, by_chance(0.2, seed=1)) as (batch, _),
        faulty_line(outputs.blob_endpoint, by_chance(0.2, seed=2)) as (blob, line),
    ):
        connection = Connection(replace(outputs, batch_endpoint=batch, blob_endpoint=blob), keys)
        runs: list[RunSpec] = []
        for _ in range(12):
            loaded = load_recipe(str(recipe), cwd=tmp_path)
            plan = plan_recipe(connection, settings, loaded, RunOptions())
            runs.append(submit_run(connection, plan, ignore_progress))
        for spec in runs:
            *_, last = watch_run(connection, spec)
            assert isinstance(last, RunEnded)
            assert last.status.state is RunState.SUCCEEDED, last.status.reason
            log = "".join(read_log(connection, spec, "stdout"))
            assert log.splitlines() == [f"line {n}" for n in range(20)]
            assert len(load_attempts(runs_container(connection), spec.run_id)) == 1
            fetched = download_outputs(connection, spec, tmp_path / "out", ignore_progress)
            assert (fetched.folder / "model").read_text() == "weights"
        _await_agents(connection, *runs)
    assert line.resets > 100


def _await_agents(connection: Connection, *specs: RunSpec) -> None:
    """Wait until the agents have ended: without storage they would keep their slots for minutes.

    A run has ended once its result is written; its agent then still registers the model.
    """
    for spec in specs:
        until(partial(_has_completed, connection, spec))


def _has_completed(connection: Connection, spec: RunSpec) -> bool:
    task = get_task(connection, spec.job_id, spec.task_id)
    return task is not None and task.phase == "completed"


BROKEN_LINE = """
import json, os, sys, time
from pathlib import Path
from runner.hooks import load_state, save_state
attempt, output = os.environ["RUNNER_ATTEMPT"], Path(os.environ["RUNNER_OUTPUT_DIR"])
blocks = Path(os.environ["RUNNER_INPUT_BLOCKS"]).read_bytes()
first = (load_state() or {"step": 0})["step"] + 1
with open(os.environ["RUNNER_METRICS_FILE"], "a", buffering=1) as metrics:
    for step in range(first, 121):
        print("step", step, "of attempt", attempt, flush=True)
        metrics.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
        if step % 20 == 0:
            save_state({"step": step, "filler": blocks[: 1 << 20]})
        if step == 70 and attempt == "1":
            sys.exit(3)
        time.sleep(0.02)
output.joinpath("blocks").write_bytes(blocks[::-1])
for n in range(30):
    output.joinpath(f"small-{n}").write_text(attempt)
"""
LINES = int(os.environ.get("PROOF_LINES", "2"))
BROKEN_LINE_YAML = """
name: broken-line
command: [python, train.py]
inputs: {blocks: ./blocks.bin}
outputs: [blocks, small-29]
checkpoints: {interval: 1s}
retries: 1
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_runs_on_a_node_with_connection_resets_are_correct(
    cli: Cli, script: Write, tmp_path: Path
) -> None:
    """A fifth of all requests fail. `PROOF_LINES=N` tries N seeds, four in `make proof`."""
    folder, blocks = script(BROKEN_LINE), random.Random(5).randbytes(20 << 20)
    (folder / "blocks.bin").write_bytes(blocks)
    (folder / "train.yaml").write_text(BROKEN_LINE_YAML)
    paths = HomePaths(cli.home)
    outputs, keys = parse_stack_outputs(paths.local_outputs.read_text()), ensure_keys(paths)
    settings = load_settings({}, cwd=tmp_path, env={"RUNNER_HOME": str(cli.home), "HOME": "/"})
    direct, resets = Connection(outputs, keys), []
    for seed in range(LINES):
        faults = by_chance(0.2, seed, ("request", "answer", "part"))
        with faulty_line(outputs.blob_endpoint, faults) as (blob, line):
            broken = Connection(replace(outputs, blob_endpoint=blob), keys)
            plan = plan_recipe(broken, settings, load_recipe(str(folder), cwd=tmp_path))
            spec = submit_run(broken, plan, ignore_progress)
            *_, last = watch_run(direct, spec)
            _await_agents(direct, spec)
        resets.append(line.resets)
        assert isinstance(last, RunEnded)
        assert last.status.state is RunState.SUCCEEDED, last.status.reason
        container = runs_container(direct)
        assert [each.attempt for each in load_attempts(container, spec.run_id)] == [1, 2]
        logs = {n: "".join(read_log(direct, spec, "stdout", attempt=n)) for n in (1, 2)}
        assert wrong_steps(logs, last=2, steps=120) == []
        lines = (container.read(RunPaths(spec.run_id).metrics) or b"").splitlines()
        values = [line for line in lines if b'"value"' in line]
        assert len(values) == len(set(values)) == sum(map(str.count, logs.values(), ["step "] * 2))
        assert len(lines) == len(values) + 1, "the mark of the second attempt"
        got = download_outputs(direct, spec, tmp_path / f"out-{seed}", ignore_progress).folder
        assert (got / "blocks").read_bytes() == blocks[::-1]
        assert {(got / f"small-{n}").read_text() for n in range(30)} == {"2"}
    assert min(resets) > 20, resets
