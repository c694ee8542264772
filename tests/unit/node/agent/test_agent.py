"""The packed agent as Batch runs it: a process in a task's folder, against a blob service."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from runner.protocol.results import index_blobs
from runner.protocol.usage import parse_usage
from tests.repetition import slow_after
from tests.unit.node.agent_task import RUN, Task
from tests.unit.node.fake_blob import FakeBlobs

Until = Callable[[Callable[[], object]], None]
WRITE_MODEL = (
    "import os; open(os.environ['RUNNER_OUTPUT_DIR'] + '/model.bin', 'w').write('model')\n"
)


@pytest.mark.slow
def test_empty_named_output_fails_the_run(task: Task) -> None:
    script = "import os; print(os.listdir(os.environ['RUNNER_OUTPUT_DIR']))\n"
    named: dict[str, Any] = {
        "outputs": ["plots"],
        "named_outputs": {"RUNNER_OUTPUT_PLOTS": "plots"},
    }
    task.submit(script, **named)
    assert task.run() == 1
    assert task.json("result.json")["code"] == "OutputMissing"
    assert task.text("logs/stdout.txt") == "['plots']\n"


@pytest.mark.slow
@pytest.mark.feature(15)
def test_named_output_is_exported(task: Task) -> None:
    script = "import os; open(os.environ['RUNNER_OUTPUT_PLOTS'] + '/a.svg', 'w').write('x')\n"
    task.submit(script, outputs=["plots"], named_outputs={"RUNNER_OUTPUT_PLOTS": "plots"})
    assert task.run() == 0, task.output
    assert task.text("output/plots/a.svg") == "x"


@pytest.mark.slow
def test_variables_are_replaced_in_command_and_parameters(task: Task) -> None:
    script = (
        "import json, os, sys\n"
        "print(sys.argv[1:] == [os.environ['RUNNER_OUTPUT_DIR'] + '/m', '1'])\n"
        "print(json.load(open(os.environ['RUNNER_PARAMS'])))\n"
    )
    command = ["python", "train.py", "$RUNNER_OUTPUT_DIR/m", "${MY_SETTING}"]
    task.submit(script, command=command, params={"setting": "$MY_SETTING"})
    assert task.run() == 0, task.output
    assert task.text("logs/stdout.txt") == "True\n{'setting': '1'}\n"


def test_command_with_an_unset_variable_is_not_started(task: Task) -> None:
    task.submit("print('started')", command=["python", "train.py", "$NOT_SET"])
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["step"], result["code"]) == ("command", "VariableMissing")
    assert "$NOT_SET" in result["message"]
    assert "logs/stdout.txt" not in task.service.blobs or not task.text("logs/stdout.txt")


def test_successful_run_stores_all_its_documents(task: Task, service: FakeBlobs) -> None:
    script = (
        "import json, os, sys\n"
        "print('loss=0.5')\nprint('warning', file=sys.stderr)\n"
        "open(os.environ['RUNNER_METRICS_FILE'], 'w').write('{\"test_accuracy\": 0.99}')\n"
        "print(json.load(open(os.environ['RUNNER_PARAMS'])), os.environ['RUNNER_DATA_DIR'],\n"
        "  os.environ['RUNNER_ATTEMPT'], os.environ['MY_SETTING'], os.getcwd())\n"
    )
    service.put("d/1/x.gz", b"data")
    files = [{"name": "x.gz", "size_bytes": 4, "sha256": hashlib.sha256(b"data").hexdigest()}]
    task.submit(script + WRITE_MODEL, data={"prefix": "d/1/", "files": files}, outputs=["*.bin"])
    assert task.run() == 0, task.output
    result = task.json("result.json")
    assert (result["status"], result["exit_code"], result["attempt"]) == ("succeeded", 0, 1)
    assert list(result["stages_s"]) == ["code", "environment", "data", "command", "export"]
    assert result["metrics"] == {"loss": 0.5, "test_accuracy": 0.99}
    model = {"path": "model.bin", "size_bytes": 5, "sha256": hashlib.sha256(b"model").hexdigest()}
    assert result["outputs"] == [model]
    assert task.text("output/model.bin") == "model"
    shown = f"{{'epochs': 5}} {task.shared}/runner/data/d/1 1 1 {task.folder}/task-0/wd/code"
    assert task.text("logs/stdout.txt") == f"loss=0.5\n{shown}\n"
    assert task.text("logs/stderr.txt") == "warning\n"
    assert [m["name"] for m in task.lines("metrics.jsonl")] == ["loss", "test_accuracy"]
    start, end = task.json("attempts/1/start.json"), task.json("attempts/1/end.json")
    assert (start["node"], start["pool"], start["dedicated"]) == ("tvm-1", "local", False)
    assert (end["why"], end["exit_code"]) == ("succeeded", 0)


def test_events_contain_every_stage_before_the_result(task: Task) -> None:
    task.submit("")
    assert task.run() == 0
    events = [(e["stage"], e["state"]) for e in task.lines("attempts/1/events.jsonl")]
    stages = ["code", "environment", "command", "export"]
    assert [e for e in events if e[1] != "progress"] == [
        (stage, state) for stage in stages for state in ("start", "end")
    ]
    written = [path for method, path, _ in task.service.requests if method == "PUT"]
    result, *entries = written[-3:]
    assert f"{RUN}/result.json" in result
    copies = ["a copy for who lists runs, after the outcome itself", "and one by time"]
    for entry, name, why in zip(entries, index_blobs(RUN), copies, strict=True):
        assert name in entry, why


@pytest.mark.slow
def test_line_is_in_blob_while_the_script_runs(task: Task, until: Until) -> None:
    task.submit(
        "import os, time\nprint('loss=0.5')\n"
        "while not os.path.exists('../../go'): time.sleep(0.01)\n"
    )
    process = task.start()
    until(lambda: task.text("logs/stdout.txt") == "loss=0.5\n")
    until(lambda: task.lines("metrics.jsonl"))
    assert not task.has("result.json")
    (task.folder / "task-0" / "go").touch()
    assert process.wait(120) == 0


def test_compiled_programs_of_jax_stay_on_the_node_and_are_no_outputs(task: Task) -> None:
    cache = task.folder / "cache"  # outside of the node, as that of local nodes
    cache.mkdir()
    (task.shared / "runner" / "cache").symlink_to(cache)
    program = "program.keras"
    task.submit(
        "import os, pathlib\n"
        f"file = pathlib.Path(os.environ['JAX_COMPILATION_CACHE_DIR'], '{program}')\n"
        "print(file.exists(), os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'])\n"
        "file.write_text('compiled')\n"
        "print(file.parent)\n",
        env={"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "3"},
    )
    assert task.run() == 0
    [folder] = (cache / "jax").iterdir()  # of this code alone
    assert task.text("logs/stdout.txt") == f"False 3\n{folder.resolve()}\n"
    assert (folder / program).read_text() == "compiled"
    result = task.json("result.json")
    assert (result["outputs"], result.get("left_out", [])) == ([], [])


def test_storage_secret_is_not_given_to_the_script_nor_printed(task: Task) -> None:
    task.submit(
        "import os\nprint('RUNNER_STORAGE' in os.environ, 'PYTHONDONTWRITEBYTECODE' in os.environ)"
    )
    assert task.run() == 0
    assert task.text("logs/stdout.txt") == "False False\n"
    everything = task.output + "".join(b.data.decode() for b in task.service.blobs.values())
    assert "secret-signature" not in everything


def test_failed_script_fails_the_run_with_its_exit_code(task: Task) -> None:
    task.submit("import sys\nprint('the reason', file=sys.stderr)\nsys.exit(3)")
    assert task.run() == 3
    result = task.json("result.json")
    assert (result["status"], result["step"], result["code"]) == (
        "failed",
        "command",
        "CommandFailed",
    )
    assert (result["exit_code"], result["message"]) == (3, "python train.py exited with code 3")
    assert result["outputs"] == []
    assert task.json("attempts/1/end.json")["why"] == "failed"
    assert "the reason" in task.output


def test_failed_module_is_named(task: Task) -> None:
    task.submit("raise SystemExit(3)", command=["python", "-m", "train", "--epochs", "3"])
    assert task.run() == 3
    assert task.json("result.json")["message"] == "python -m train exited with code 3"


def test_missing_module_of_a_launcher_is_named_with_a_fix(task: Task) -> None:
    task.submit("", command=["python", "-m", "humanize.x"])
    assert task.run() == 1
    message = task.json("result.json")["message"]
    assert ": no module 'humanize'; add its package to a requirements.txt" in message


@pytest.mark.parametrize(
    ("place", "is_shared"), [("$AZ_BATCH_NODE_SHARED_DIR/runner/data", True), ("/usr", False)]
)
def test_write_to_a_shared_folder_is_named_with_a_fix(
    task: Task, place: str, is_shared: bool
) -> None:
    path = f"os.path.expandvars('{place}/it.cache')"
    task.submit(f"import os\nraise OSError(30, os.strerror(30), {path})")
    assert task.run() == 1
    advice = ": 'it.cache' is in a folder that other runs use: write to a copy of it"
    assert task.json("result.json")["message"].endswith(advice) == is_shared


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("import humanize.x", ": no module 'humanize'; add its package to a requirements.txt"),
        ("import train.x", None),
        ("try:\n import humanize\nexcept ImportError: raise SystemExit(1)", None),
    ],
)
def test_missing_module_is_named_with_a_fix(task: Task, line: str, hint: str | None) -> None:
    task.submit(line)
    assert task.run() == 1
    message = task.json("result.json")["message"]
    assert hint in message if hint else message.endswith("exited with code 1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "changes", "exit_code", "step", "code"),
    [
        ("", {"command": ["no-such-program"]}, 127, "command", "CommandNotFound"),
        ("import time; time.sleep(600)", {"timeout_s": 0.2}, 124, "command", "Timeout"),
        ("", {"outputs": ["model.keras"]}, 1, "export", "OutputMissing"),
        ("", {"expect": {"a": {"min": 1, "outside": "fail"}}}, 1, "metrics", "MetricOutOfRange"),
        ("", {"requirements": {"file": "gone.txt"}}, 1, "environment", "EnvironmentFailed"),
        ("", {"code": {"sha256": "0" * 64}}, 1, "code", "CodeInvalid"),
        ("", {"format": 2}, 1, "code", "RunSpecInvalid"),
        ("", {"retries": float("inf")}, 1, "code", "RunSpecInvalid"),
        ("", {"metrics": {"patterns": {"a": "("}}}, 1, "code", "RunSpecInvalid"),
        (
            "",
            {"data": {"prefix": "d/", "files": [{"name": "x", "size_bytes": 1, "sha256": "0"}]}},
            1,
            "data",
            "DataMissing",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isalpha() else "",
)
def test_failing_stage_and_cause_are_named(
    task: Task, script: str, changes: dict[str, Any], exit_code: int, step: str, code: str
) -> None:
    task.submit(script, **changes)
    assert task.run() == exit_code, task.output
    result = task.json("result.json")
    assert (result["status"], result["step"], result["code"]) == ("failed", step, code)
    assert result["message"]


@pytest.mark.parametrize(("outside", "status"), [("fail", "failed"), ("warn", "succeeded")])
def test_metric_outside_its_range_fails_the_run_if_configured(
    task: Task, outside: str, status: str
) -> None:
    expect = {"accuracy": {"min": 0.97, "max": None, "outside": outside}}
    patterns = {"patterns": {"accuracy": "accuracy=(.*)"}}
    task.submit(WRITE_MODEL + "print('accuracy=0.91')", metrics=patterns, expect=expect)
    assert task.run() == (status == "failed"), task.output
    result = task.json("result.json")
    assert (result["status"], result["metrics"]) == (status, {"accuracy": 0.91})
    assert [file["path"] for file in result["outputs"]] == ["model.bin"]
    if status == "failed":
        assert result["message"] == "accuracy is 0.9100, expected at least 0.97"
        assert result["partial"]


@pytest.mark.slow
def test_ended_run_is_not_run_again(task: Task) -> None:
    task.submit("raise SystemExit(3)")
    assert task.run() == 3
    before = {name: bytes(blob.data) for name, blob in task.service.blobs.items()}
    assert task.run() == 3
    assert {name: bytes(blob.data) for name, blob in task.service.blobs.items()} == before
    assert "over already" in task.output


def test_cancelled_run_does_not_start(task: Task) -> None:
    task.submit("print('ran')")
    result = {"status": "cancelled", "exit_code": None}
    task.service.put(f"{RUN}/result.json", json.dumps(result).encode())
    assert task.run() == 1
    assert not task.has("attempts/1/start.json")


@pytest.mark.slow
def test_outcome_decided_by_another_writer_is_kept(task: Task, until: Until) -> None:
    task.submit(
        "import os, time\nprint('up')\nwhile not os.path.exists('../../go'): time.sleep(0.01)\n"
    )
    process = task.start()
    until(lambda: task.text("logs/stdout.txt"))
    decided = json.dumps({"status": "cancelled", "exit_code": 9}).encode()
    task.service.put(f"{RUN}/result.json", decided)
    (task.folder / "task-0" / "go").touch()
    assert process.wait(120) == 9
    assert task.service.data(f"{RUN}/result.json") == decided


def test_terminated_attempt_records_it_without_an_outcome(task: Task, until: Until) -> None:
    task.submit(
        "import signal, sys, time\n"
        "def stop(*_):\n print('checkpoint saved'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, stop)\nprint('up')\ntime.sleep(600)\n"
    )
    process = task.start()
    until(lambda: task.text("logs/stdout.txt"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143
    assert task.text("logs/stdout.txt") == "up\ncheckpoint saved\n"
    assert task.json("attempts/1/end.json")["why"] == "terminated"
    assert not task.has("result.json")


PREPARE = """
echo preparing $MY_SETTING
echo once >> "$AZ_BATCH_NODE_SHARED_DIR/prepared"
test -f train.py
mkdir -p __pycache__ ~/.cache/pip
touch __pycache__/train.pyc ~/.cache/pip/index
"""


@pytest.mark.slow
@pytest.mark.feature(4)
def test_node_is_prepared_once_for_a_job(task: Task) -> None:
    task.submit("print('trained')", prepare=PREPARE)
    run = task.json("run.json")

    def prepared(job: str) -> int:
        task.service.blobs.clear()
        document = {**run, "batch": {"job_id": job}}
        task.service.put(f"{RUN}/run.json", json.dumps(document).encode())
        assert task.run() == 0, task.output
        assert task.text("logs/stdout.txt") == "trained\n"
        return len((task.shared / "prepared").read_text().splitlines())

    assert prepared("first") == 1
    assert task.text("logs/stderr.txt") == "preparing 1\n"
    stages = list(task.json("result.json")["stages_s"])
    assert stages == ["code", "environment", "prepare", "command", "export"]
    assert prepared("first") == 1
    assert task.text("logs/stderr.txt") == ""
    assert prepared("second") == 2


READ_BUILT = "print(open('built.txt').read())"
# Paths that only this task has; the last two commands write nothing after the first time.
OWN_PLACES = {
    "folder of the script": ("echo ok > built.txt", READ_BUILT),
    "home": ("test -f ~/ok || touch ~/ok", "import os; print(os.listdir(os.environ['HOME']))"),
    "temporary files": (
        'mkdir -p "$TMPDIR/ok"',
        "import os; print(os.listdir(os.environ['TMPDIR']))",
    ),
}


@pytest.mark.slow
@pytest.mark.feature(4)
@pytest.mark.parametrize("place", slow_after(1, OWN_PLACES))
def test_each_task_and_retry_has_the_files_of_prepare(task: Task, place: str) -> None:
    prepare, script = OWN_PLACES[place]
    task.submit(script, prepare=prepare, batch={"job_id": "first"})
    document = json.dumps(task.json("run.json")).encode()
    for again_in in (None, 0, None, 2):  # two tasks, each of which is run again in its folder
        task.service.blobs.clear()
        task.service.put(f"{RUN}/run.json", document)
        (task.folder / f"task-{again_in}" / "wd" / "finished.json").unlink(missing_ok=True)
        assert task.run(again_in) == 0, task.output + task.text("logs/stderr.txt")
        assert "ok" in task.text("logs/stdout.txt")
        events = task.lines("attempts/1/events.jsonl")
        (end,) = (each for each in events if (each["stage"], each["state"]) == ("prepare", "end"))
        assert "so each task of the job runs it" in end["message"]


@pytest.mark.slow
@pytest.mark.feature(4)
def test_interrupted_preparation_is_repeated_for_each_task(task: Task, until: Until) -> None:
    wait = "while ! test -f $AZ_BATCH_NODE_SHARED_DIR/go; do sleep 0.05; done"
    prepare = f"test -f ~/ok || {{ touch ~/ok; {wait}; }}"
    script = "import os; print(os.path.exists(os.path.expanduser('~/ok')))"
    task.submit(script, prepare=prepare, batch={"job_id": "first"})
    process = task.start()
    until((task.folder / "task-0" / "wd" / "ok").exists)
    task.kill(process)
    (task.shared / "go").touch()
    assert task.run(again_in=0) == 0, task.output
    task.service.blobs.pop(f"{RUN}/result.json")
    assert task.run() == 0, task.output
    assert task.text("logs/stdout.txt").splitlines()[-1] == "True"


@pytest.mark.slow
@pytest.mark.feature(4)
def test_every_container_is_prepared(task: Task) -> None:
    task.submit(
        "print('trained')", prepare=PREPARE, batch={"job_id": "first"}, image={"name": "mine:1"}
    )
    for times in (1, 2):
        task.service.blobs.pop(f"{RUN}/result.json", None)
        assert task.run() == 0, task.output
        assert len((task.shared / "prepared").read_text().splitlines()) == times


@pytest.mark.feature(18)
def test_script_in_a_container_without_a_home_has_one_that_is_writable(task: Task) -> None:
    write = "import pathlib\npathlib.Path.home().joinpath('cache').write_text('x')\nprint('done')\n"
    task.settings["HOME"] = "/nonexistent"
    task.submit(write, image={"name": "mine:1"})
    assert task.run() == 0, task.output
    assert task.text("logs/stdout.txt") == "done\n"


@pytest.mark.slow
@pytest.mark.feature(4)
def test_failed_preparation_fails_the_run_with_its_log(task: Task) -> None:
    broken = "echo no such package >&2\nfalse\necho never"
    task.submit("print('trained')", prepare=broken, batch={"job_id": "first"})
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["step"], result["code"]) == ("prepare", "PreparationFailed")
    assert "exited with code 1" in result["message"]
    assert task.text("logs/stderr.txt") == "no such package\n"
    assert task.text("logs/stdout.txt") == ""
    task.service.blobs.clear()
    task.submit("print('trained')", prepare="true", batch={"job_id": "first"})
    assert task.run() == 0, "it runs again once it is corrected"


def test_termination_during_the_environment_is_prompt(task: Task, until: Until) -> None:
    task.submit("")
    (task.shared / "runner/bin/uv.slow").touch()
    process = task.start()
    until((task.shared / "uv.log").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143
    end = task.json("attempts/1/end.json")
    assert (end["why"], end["step"]) == ("terminated", "environment")


@pytest.mark.slow
def test_next_attempt_continues_logs_and_attempt_numbers(task: Task, until: Until) -> None:
    task.submit(
        "import os, time\nprint('attempt', os.environ['RUNNER_ATTEMPT'])\n"
        "if os.environ['RUNNER_ATTEMPT'] == '1': time.sleep(600)\n"
    )
    lost = task.start()
    until(lambda: task.text("logs/stdout.txt"))
    task.kill(lost)  # the node is gone: no end.json
    assert task.run() == 0
    assert task.text("logs/stdout.txt") == "attempt 1\nattempt 2\n"
    assert task.json("attempts/2/start.json")["log_offsets"] == {"stdout": 10, "stderr": 0}
    assert not task.has("attempts/1/end.json")
    assert task.json("result.json")["attempt"] == 2


@pytest.mark.slow
def test_live_output_survives_the_node_and_the_next_attempt_appends(
    task: Task, until: Until
) -> None:
    write = (
        "import os, pathlib, time\nout = pathlib.Path(os.environ['RUNNER_OUTPUT_DIR'])\n"
        "(out / 'a.ipynb').write_text(os.environ['RUNNER_ATTEMPT'])\n"
        "if os.environ['RUNNER_ATTEMPT'] == '1':\n"
        " (out / 'b.ipynb').write_text('so far')\n time.sleep(600)\n"
    )
    task.submit(write, live_outputs=["a.ipynb", "b.ipynb"])
    lost = task.start()
    until(lambda: task.has("attempts/1/outputs.json"))
    assert task.text("output/b.ipynb") == "so far"
    task.kill(lost)
    assert task.run() == 0
    kept = {each["path"]: each.get("attempt") for each in task.json("result.json")["outputs"]}
    assert kept == {"a.ipynb": None, "b.ipynb": 1}


def test_failed_notebook_cell_is_the_message_of_the_run(task: Task) -> None:
    task.submit(
        "import sys\nsys.stderr.write('runner: the notebook stopped: cell In [3] failed\\n')\n"
        "sys.exit(1)"
    )
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["code"], result["message"]) == ("NotebookCellFailed", "cell In [3] failed")


@pytest.mark.slow
def test_run_fails_only_after_its_last_retry(task: Task) -> None:
    task.submit("raise SystemExit(3)", retries=1)
    assert task.run() == 3
    assert not task.has("result.json")
    assert task.json("attempts/1/end.json")["why"] == "failed"
    assert task.run() == 3
    assert task.json("result.json")["status"] == "failed"


@pytest.mark.slow
def test_storage_outage_does_not_affect_the_script(task: Task, until: Until) -> None:
    task.submit(
        "import os, time\nfor n in range(3):\n print(n)\n"
        " while not os.path.exists(f'../../go{n}'): time.sleep(0.01)\n" + WRITE_MODEL
    )
    process = task.start()
    until(lambda: task.text("logs/stdout.txt") == "0\n")
    task.service.away.set()
    for number in range(3):
        (task.folder / "task-0" / f"go{number}").touch()
    until((task.folder / "task-0/wd/output/model.bin").exists)
    task.service.away.clear()
    assert process.wait(120) == 0
    assert task.text("logs/stdout.txt") == "0\n1\n2\n"
    assert task.text("output/model.bin") == "model"
    assert len(task.lines("attempts/1/events.jsonl")) >= 8


@pytest.mark.slow
def test_lost_responses_change_no_result(task: Task) -> None:
    task.submit("print('once')\n" + WRITE_MODEL)
    task.service.lose_every = 3
    assert task.run() == 0, task.output
    assert task.text("logs/stdout.txt") == "once\n"
    assert task.json("result.json")["status"] == "succeeded"
    assert not task.has("attempts/2/start.json")


def test_unwritable_log_does_not_prevent_the_result(task: Task) -> None:
    task.submit("print('lost')\n" + WRITE_MODEL)
    # Another client created a block blob there, so every append is refused.
    task.service.put(f"{RUN}/logs/stdout.txt", b"foreign")
    task.service.refuse_append = f"{RUN}/logs/stdout.txt"
    assert task.run() == 0, task.output
    assert task.json("result.json")["status"] == "succeeded"
    assert "logs/stdout.txt: 409 InvalidBlobType" in task.output


def test_failed_folder_creation_fails_the_run(task: Task) -> None:
    task.submit("")
    process_folder = task.folder / "task-0" / "wd"
    process_folder.mkdir(parents=True)
    (process_folder / "file").write_text("a file where a folder must be")
    task.settings = {"AZ_BATCH_TASK_WORKING_DIR": str(process_folder / "file")}
    assert task.run() == 1
    assert task.json("result.json")["code"] == "AgentFailed"


def test_refused_storage_access_is_reported_and_fails_the_task(task: Task) -> None:
    task.submit("")
    task.service.refuse_for_good()
    assert task.run() == 122
    assert "storage: GET mnist-1/result.json: 403 AuthenticationFailed (the sign" in task.output


def test_missing_run_json_is_reported(task: Task) -> None:
    task.submit("")
    del task.service.blobs[f"{RUN}/run.json"]
    assert task.run() == 1
    assert "there is no mnist-1/run.json" in task.output


@pytest.mark.slow
def test_times_of_the_node_and_of_the_attempt_are_recorded_and_indexed(task: Task) -> None:
    root = task.folder / "root"
    (root / "startup" / "wd").mkdir(parents=True)
    (root / "shared").mkdir()
    booted = time.time() - float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    made = round(booted) + 2
    os.utime(root / "shared", (made, made))
    os.utime(root / "startup", (1_000_000, 1_000_000))  # from an image: before the node was started
    task.settings["AZ_BATCH_NODE_ROOT_DIR"] = str(root)
    before = time.time()
    task.submit(WRITE_MODEL)
    assert task.run() == 0, task.output
    times = task.json("attempts/1/start.json")["node_times"]
    moments = {name: datetime.fromisoformat(times[name]).timestamp() for name in times}
    assert set(moments) == {"booted", "created", "ready"}
    assert moments["booted"] == pytest.approx(booted, abs=1)
    assert moments["created"] == made
    assert moments["ready"] <= before + 1
    headers = [
        sent for method, path, sent in task.service.requests if method == "PUT" and "index" in path
    ]
    lower = {name.lower(): value for name, value in headers[-1].items()}
    found = parse_usage(lower["x-ms-meta-attempts"])
    assert found is not None
    (usage,) = found
    assert (usage.node, usage.dedicated, usage.why) == ("tvm-1", False, "succeeded")
    assert usage.ready == int(moments["ready"] * 1000)
    assert usage.started is not None
    assert usage.command is not None
    assert usage.ended is not None
    assert before * 1000 - 1 <= usage.started <= usage.command <= usage.ended
