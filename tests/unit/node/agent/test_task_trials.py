"""One agent runs several trials of a sweep in one task."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from urllib.parse import urlsplit

import pytest

from runner.node.context import TERMINATED_EXIT_CODE
from tests.unit.node.agent_task import RUN, Task
from tests.unit.node.shared_task import ended, result, submit_trials

pytestmark = pytest.mark.slow  # the packed agent runs

SCRIPT = """
import json, os, pathlib, sys, time
run_id, params = os.environ["RUNNER_RUN_ID"], json.load(open(os.environ["RUNNER_PARAMS"]))
home = pathlib.Path(os.environ["HOME"])
seen = sorted(p.name for p in home.rglob("left-*"))
print("run", run_id, "sees", seen, f"loss={params.get('loss', 0.5)}", flush=True)
for folder in (home, pathlib.Path.cwd(), pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])):
    (folder / ("left-" + run_id)).write_text(run_id)
(home / "code").is_dir() or sys.exit("no code")
if int(os.environ["RUNNER_ATTEMPT"]) <= params.get("sleeps", 1):
    time.sleep(params.get("sleep", 0))
if "fail_until" in params:
    sys.exit(int(os.environ["RUNNER_ATTEMPT"]) < params["fail_until"])
sys.exit(params.get("code", 0))
"""

# Kills its agent in the first attempts.
KILLER = """
import json, os, signal, time
params, attempt = json.load(open(os.environ["RUNNER_PARAMS"])), int(os.environ["RUNNER_ATTEMPT"])
print("kill", params.get("kill", 0), flush=True)
if attempt <= params.get("kill", 0):
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(30)
"""


def wait_for(task: Task, blob: str, process: subprocess.Popen[str]) -> None:
    """Wait until the task has written a blob."""
    deadline = time.monotonic() + 300
    while blob not in task.service.blobs:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, blob
        time.sleep(0.02)


def test_each_trial_has_its_own_records_outputs_and_outcome(task: Task) -> None:
    trials = submit_trials(task, SCRIPT, [{"loss": 0.5}, {"loss": 0.25, "code": 3}, {"loss": 0.1}])
    assert task.run() == 0, task.output
    found = [result(task, run_id) for run_id in trials]
    assert [(each["status"], each["attempt"]) for each in found] == [
        ("succeeded", 1), ("failed", 1), ("succeeded", 1),
    ]  # fmt: skip
    assert found[1]["exit_code"] == 3
    assert [each["metrics"] for each in found] == [{"loss": 0.5}, {"loss": 0.25}, {"loss": 0.1}]
    for run_id, each in zip(trials, found, strict=True):
        line = task.service.text(f"{run_id}/logs/stdout.txt")
        assert line.startswith(f"run {run_id} sees [] "), "files of another trial"
        names = {file["path"].rpartition("/")[2] for file in each["outputs"]}
        assert names == {f"left-{run_id}"}
        run = json.loads(task.service.data(f"{run_id}/run.json"))
        assert (run["run_id"], run["batch"]["task_id"]) == (run_id, RUN)
        assert f"sweeps/train-20261129-120000-aaaa/trials/{trials.index(run_id) + 1}" in (
            task.service.blobs
        )


def test_each_trial_uses_its_own_signature_only(task: Task) -> None:
    trials = submit_trials(task, SCRIPT, [{}, {}, {}])
    assert task.run() == 0, task.output
    for _, path, _ in task.service.requests:
        parts = urlsplit(path)
        owner = parts.path.partition("/runs/")[2].partition("/")[0]
        if owner in trials:
            assert f"sig=signature-of-{owner}" in parts.query, path


def test_trial_is_repeated_as_its_retries_allow(task: Task) -> None:
    trials = submit_trials(task, SCRIPT, [{"fail_until": 2}, {"fail_until": 9}, {}], retries=1)
    assert task.run() == 0, task.output
    found = [result(task, run_id) for run_id in trials]
    assert [(each["status"], each["attempt"]) for each in found] == [
        ("succeeded", 2), ("failed", 2), ("succeeded", 1),
    ]  # fmt: skip


def test_second_task_repeats_no_trial_that_ended(task: Task) -> None:
    trials = submit_trials(task, SCRIPT, [{}, {"code": 3}, {}])
    assert task.run() == 0, task.output
    before = {name: bytes(blob.data) for name, blob in task.service.blobs.items()}
    assert task.run() == 0, task.output
    assert task.run(again_in=0) == 0, task.output
    assert {name: bytes(blob.data) for name, blob in task.service.blobs.items()} == before
    assert ended(task, trials) == trials


def test_killed_agent_continues_with_the_interrupted_trial(task: Task) -> None:
    trials = submit_trials(task, SCRIPT, [{}, {"sleep": 600}, {}])
    process = task.start(subprocess.DEVNULL)
    wait_for(task, f"{trials[1]}/attempts/1/start.json", process)
    time.sleep(0.4)
    task.kill(process)
    assert ended(task, trials) == trials[:1]
    assert task.run(again_in=0) == 0, task.output
    assert [result(task, run_id)["attempt"] for run_id in trials] == [1, 2, 1]
    text = task.service.text(f"{trials[1]}/logs/stdout.txt")
    assert text.count(f"run {trials[1]} sees [] ") >= 1
    assert trials[0] not in text.replace(trials[1], "")


def start_until_it_ends(task: Task, starts: int) -> int:
    """Start the task in its folder as Batch does after a failure. Return the number of starts."""
    folder = None
    for number in range(1, starts + 1):
        code = task.run(again_in=folder)
        folder = 0
        if code == 0:
            return number
    raise AssertionError(task.output)


@pytest.mark.parametrize("retries", [0, 1])
def test_trial_that_kills_its_agent_fails_and_the_others_run(task: Task, retries: int) -> None:
    trials = submit_trials(task, KILLER, [{}, {"kill": 9}, {"kill": 1}, {}], retries=retries)
    starts = start_until_it_ends(task, 9)
    assert starts == 1 + (retries + 2) + 1
    found = [result(task, run_id) for run_id in trials]
    assert [(each["status"], each["attempt"]) for each in found] == [
        ("succeeded", 1), ("failed", retries + 2), ("succeeded", 2), ("succeeded", 1),
    ]  # fmt: skip
    assert (found[1]["code"], found[1]["step"]) == ("AgentKilled", "command")
    assert found[1]["started"]
    assert found[1]["evicted"] == 0
    assert "kill 9\n" in task.service.text(f"{trials[1]}/logs/stdout.txt")
    end = json.loads(task.service.data(f"{trials[1]}/attempts/{retries + 2}/end.json"))
    assert end["why"] == "failed"


@pytest.mark.parametrize(
    "damage",
    [
        "each.chmod(0o600); each.write_bytes(b'')",
        "each.unlink()",
        "each.unlink(); each.mkdir(); (each / 'x').touch()",
        "each.unlink(); each.symlink_to('/etc/passwd')",
    ],
)
def test_trial_that_damages_the_files_of_its_task_harms_no_other(task: Task, damage: str) -> None:
    script = f"""
import json, os, pathlib
if json.load(open(os.environ["RUNNER_PARAMS"])).get("damages"):
    home = pathlib.Path(os.environ["HOME"])
    for each in [path for path in home.iterdir() if path.is_file()]:
        {damage}
    home.chmod(0o500)
"""
    trials = submit_trials(task, script, [{}, {"damages": 1}, {}, {"damages": 1}, {}])
    assert task.run() == 0, task.output
    assert [result(task, run_id)["status"] for run_id in trials] == ["succeeded"] * 5


def test_trial_sees_no_file_beside_the_working_directory_of_another(task: Task) -> None:
    script = """
import os, pathlib
folder = pathlib.Path(os.environ["HOME"]).parent
print(sorted(path.name for path in folder.rglob("left-*")))
(folder / "left-folder").mkdir()
for place in (folder, folder / "left-folder", folder / "certs"):
    (place / "left-file").touch()
"""
    trials = submit_trials(task, script, [{}, {}])
    folder = task.folder / "task-0"
    (folder / "certs").mkdir(parents=True)
    (folder / "certs" / "of-batch").touch()
    task.settings["AZ_BATCH_TASK_DIR"] = str(folder)
    assert task.run() == 0, task.output
    assert [task.service.text(f"{each}/logs/stdout.txt") for each in trials] == ["[]\n"] * 2
    assert (folder / "certs" / "of-batch").exists()


def test_agents_that_were_terminated_do_not_count_as_killed(task: Task) -> None:
    trials = submit_trials(task, SCRIPT, [{"sleep": 600, "sleeps": 3}, {}])
    for number in (1, 2, 3):
        process = task.start(again_in=0 if number > 1 else None)
        wait_for(task, f"{trials[0]}/attempts/{number}/start.json", process)
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
        assert process.returncode == TERMINATED_EXIT_CODE
    assert task.run(again_in=0) == 0, task.output
    assert [result(task, run_id)["status"] for run_id in trials] == ["succeeded"] * 2


def test_terminated_task_starts_no_further_trial(task: Task) -> None:
    trials = submit_trials(task, SCRIPT, [{}, {"sleep": 600}, {}])
    process = task.start()
    wait_for(task, f"{trials[1]}/attempts/1/start.json", process)
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=300)
    assert process.returncode == TERMINATED_EXIT_CODE
    assert ended(task, trials) == trials[:1]
    assert f"{trials[2]}/run.json" not in task.service.blobs
    end = json.loads(task.service.data(f"{trials[1]}/attempts/1/end.json"))
    assert end["why"] == "terminated"


def test_cancelled_trial_ends_and_the_next_one_runs(task: Task) -> None:
    trials = submit_trials(task, SCRIPT, [{"sleep": 600}, {}, {}])
    process = task.start()
    wait_for(task, f"{trials[0]}/logs/stdout.txt", process)
    cancelled = json.dumps({"format": 1, "run_id": trials[0], "status": "cancelled"}).encode()
    task.service.put(f"{trials[2]}/run.json", b"{}")  # before it has started
    task.service.put(f"{trials[2]}/result.json", cancelled)
    task.service.put(f"{trials[0]}/result.json", cancelled)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert [result(task, run_id)["status"] for run_id in trials] == [
        "cancelled", "succeeded", "cancelled",
    ]  # fmt: skip
    end = json.loads(task.service.data(f"{trials[0]}/attempts/1/end.json"))
    assert end["why"] == "terminated"
    assert f"{trials[2]}/attempts/1/start.json" not in task.service.blobs


def test_storage_that_refuses_a_trial_ends_the_task_with_an_error(task: Task) -> None:
    trials = submit_trials(task, SCRIPT, [{}, {}, {}])
    task.service.refuse_put = f"{trials[1]}/output/left-{trials[1]}"
    assert task.run() != 0, task.output
    assert ended(task, trials)[0] == trials[0]
    assert f"{trials[2]}/run.json" not in task.service.blobs
    task.service.refuse_put = ""
    assert task.run() == 0, task.output
    assert ended(task, trials) == trials


def test_damaged_setting_of_the_task_is_reported_without_its_signatures(task: Task) -> None:
    submit_trials(task, SCRIPT, [{}, {}])
    task.settings["RUNNER_TASK_TRIALS"] = '[{"run_id": "a/b", "sig": "signature-of-all"}]'
    assert task.run() == 1
    assert "invalid RUNNER_TASK_TRIALS" in task.output
    assert "signature-of-all" not in task.output


def test_script_does_not_get_the_setting_of_the_task(task: Task) -> None:
    script = "import os; print(sorted(n for n in os.environ if n.startswith('RUNNER_T')))"
    trials = submit_trials(task, script, [{}, {}])
    assert task.run() == 0, task.output
    for run_id in trials:
        assert task.service.text(f"{run_id}/logs/stdout.txt") == "[]\n"
