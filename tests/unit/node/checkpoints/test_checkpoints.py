"""Checkpoints of the packed agent: committed while the script runs, restored before it starts."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.node.agent_task import RUN, Task

Until = Callable[[Callable[[], object]], None]
QUICK = {"interval_s": 0.1, "keep": 3, "max_bytes": 1 << 30}
# Counts up to $1, renames a file into place for each number, and resumes from the folder. With
# $2 it waits for a file at the end.
COUNTER = """
import os, sys, time
folder = os.environ["RUNNER_CHECKPOINT_DIR"]
path = os.path.join(folder, "counter")
number = int(open(path).read()) if os.path.exists(path) else 0
print("from", number, os.environ.get("RUNNER_RESUMED", "0"), flush=True)
while number < int(sys.argv[1]) or ("go" in sys.argv and not os.path.exists("../../go")):
    number += 1
    with open(path + ".new", "w") as out:
        out.write(str(number))
    os.replace(path + ".new", path)
    time.sleep(0.02)
print("to", number)
"""


def manifests(task: Task) -> list[dict[str, Any]]:
    """Return all manifests in their order."""
    blobs = dict(task.service.blobs)  # a copy, because the agent writes in the meantime
    names = [n for n in blobs if n.startswith(f"{RUN}/checkpoints/")]
    found = [json.loads(bytes(blobs[n].data)) for n in names if n.endswith("/manifest.json")]
    return sorted(found, key=lambda m: (m["attempt"], m["checkpoint"]))


def content(task: Task, manifest: dict[str, Any], path: str) -> bytes:
    [file] = [file for file in manifest["files"] if file["path"] == path]
    data = task.service.data(file["blob"])
    assert (len(data), hashlib.sha256(data).hexdigest()) == (file["size_bytes"], file["sha256"])
    return data


def submit_counter(task: Task, to: int, *words: str, **changes: Any) -> None:
    command = ["python", "train.py", str(to), *words]
    task.submit(COUNTER, **{"command": command, "checkpoints": QUICK, **changes})


@pytest.mark.feature(32)
def test_killed_task_resumes_from_the_newest_checkpoint(task: Task, until: Until) -> None:
    submit_counter(task, 0, "go")
    first = task.start()
    until(lambda: len(manifests(task)) >= 2)
    task.kill(first)
    newest = manifests(task)[-1]
    number = int(content(task, newest, "counter"))
    (task.folder / "task-1").mkdir()
    (task.folder / "task-1" / "go").touch()
    assert task.run() == 0, task.output
    assert f"from {number} 1\n" in task.text("logs/stdout.txt")
    assert task.text("logs/stdout.txt").endswith(f"from {number} 1\nto {number}\n")
    resumed = task.json("attempts/2/resume.json")
    assert (resumed["checkpoint"], resumed["attempt"]) == (newest["checkpoint"], 1)
    ends = [e for e in task.lines("attempts/2/events.jsonl") if e["stage"] == "restore"]
    assert ends[-1]["message"] == f"resumed from checkpoint {newest['checkpoint']} of attempt 1"
    checkpoint = task.json("result.json")["checkpoint"]
    assert checkpoint["restored"] == resumed
    assert checkpoint == task.json("attempts/2/end.json")["checkpoint"]


# Replaces a file, then writes it in place and is killed in a pause, which is longer than a write
# counts as recent and than the agent waits for a folder that changes.
SLOW_WRITER = """
import os, signal, time
path = os.path.join(os.environ["RUNNER_CHECKPOINT_DIR"], "state")
with open(path + ".new", "w") as out:
    out.write("whole")
os.replace(path + ".new", path)
while not os.path.exists("../../go"):
    time.sleep(0.01)
out = open(path, "w")
out.write("half")
out.flush()
time.sleep(6)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_file_half_written_in_place_is_never_committed(task: Task, until: Until) -> None:
    task.submit(SLOW_WRITER, checkpoints=QUICK)
    process = task.start()
    until(lambda: manifests(task))
    (task.folder / "task-0" / "go").touch()
    process.communicate(timeout=120)
    assert {content(task, manifest, "state") for manifest in manifests(task)} == {b"whole"}
    checkpoint = task.json("attempts/1/end.json")["checkpoint"]
    assert checkpoint["problem"].startswith("could not take a checkpoint: state ")


def test_first_attempt_restores_nothing(task: Task) -> None:
    submit_counter(task, 1)
    assert task.run() == 0, task.output
    assert task.text("logs/stdout.txt").startswith("from 0 0\n")
    assert "restore" not in task.json("result.json")["stages_s"]
    assert not task.has("attempts/1/resume.json")


@pytest.mark.slow
def test_old_checkpoints_and_their_files_are_deleted(task: Task, until: Until) -> None:
    submit_counter(task, 0, "go", checkpoints={**QUICK, "keep": 2})
    process = task.start()
    until(lambda: max([m["checkpoint"] for m in manifests(task)], default=0) > 4)
    (task.folder / "task-0" / "go").touch()
    assert process.wait(120) == 0
    found = manifests(task)
    committed = task.json("result.json")["checkpoint"]["committed"]
    late = found[-1]["checkpoint"] - committed
    assert committed > 3
    assert late in (0, 1), "one may have been on its way when the script ended"
    assert 2 <= len(found) <= 2 + late
    files = {n for n in task.service.blobs if n.startswith(f"{RUN}/checkpoints/files/")}
    assert files >= {file["blob"] for m in found for file in m["files"]}
    assert len(files) <= 3


@pytest.mark.slow
def test_unchanged_folder_is_committed_once(task: Task, until: Until) -> None:
    script = (
        "import os, time\n"
        "path = os.environ['RUNNER_CHECKPOINT_DIR'] + '/model'\n"
        "open(path, 'w').write('weights')\n"
        "while not os.path.exists('../../go'): time.sleep(0.01)\n"
        "os.utime(path)\n"
        "time.sleep(0.5)\n"
    )
    task.submit(script, checkpoints=QUICK)
    process = task.start()
    until(lambda: manifests(task))
    (task.folder / "task-0" / "go").touch()
    assert process.wait(120) == 0
    assert len(manifests(task)) == 1
    puts = [p for m, p, _ in task.service.requests if m == "PUT" and "/checkpoints/files/" in p]
    assert len(puts) == 1


@pytest.mark.slow
def test_files_saved_on_sigterm_are_committed(task: Task, until: Until) -> None:
    script = (
        "import os, signal, sys, time\n"
        "path = os.environ['RUNNER_CHECKPOINT_DIR'] + '/model'\n"
        "def save(*_):\n"
        "    open(path, 'wb').write(b'x' * 20_000_000)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    task.submit(script)
    process = task.start()
    until(lambda: "ready" in task.text("logs/stdout.txt"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143
    [manifest] = manifests(task)
    assert content(task, manifest, "model") == b"x" * 20_000_000
    assert task.json("attempts/1/end.json")["checkpoint"]["last"] == 1


@pytest.mark.slow
def test_files_saved_at_the_time_limit_are_committed(task: Task) -> None:
    script = (
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    open(os.environ['RUNNER_CHECKPOINT_DIR'] + '/model', 'w').write('weights')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})\n"
        "time.sleep(600)\n"
    )
    task.submit(script, timeout_s=1)
    # Inherited, because the limit may be reached before the script starts.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        assert task.run() == 124
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert task.json("result.json")["code"] == "Timeout"
    [manifest] = manifests(task)
    assert content(task, manifest, "model") == b"weights"


@pytest.mark.slow
def test_failed_script_leaves_a_checkpoint_for_the_retry(task: Task) -> None:
    script = (
        "import os\n"
        "path = os.environ['RUNNER_CHECKPOINT_DIR'] + '/model'\n"
        "print('there' if os.path.exists(path) else 'missing')\n"
        "open(path, 'w').write('weights')\n"
        "raise SystemExit(3 if os.environ['RUNNER_ATTEMPT'] == '1' else 0)\n"
    )
    task.submit(script, retries=1)
    assert task.run() == 3
    assert task.run() == 0, task.output
    assert task.text("logs/stdout.txt") == "missing\nthere\n"


def test_file_being_written_by_killed_script_is_not_committed(task: Task) -> None:
    script = (
        "import os, signal, time\n"
        "out = open(os.environ['RUNNER_CHECKPOINT_DIR'] + '/model', 'wb', buffering=0)\n"
        "while out.tell() < 1000:\n"
        "    out.write(b'x')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    task.submit(script, retries=1)
    assert task.run() == 137
    assert manifests(task) == []
    problem = task.json("attempts/1/end.json")["checkpoint"]["problem"]
    assert "model was being written when the script was killed" in problem


def test_run_without_checkpoints_commits_and_restores_none(task: Task) -> None:
    script = "import os\nopen(os.environ['RUNNER_CHECKPOINT_DIR'] + '/x', 'w').write('x')\nexit(1)"
    task.submit(script, checkpoints=None, retries=5)
    assert task.run() == 1
    assert manifests(task) == []


@pytest.mark.slow
def test_checkpoint_of_another_run_is_resumed(task: Task, until: Until) -> None:
    submit_counter(task, 100_000)
    first = task.start()
    until(lambda: len(manifests(task)) >= 2)
    task.kill(first)
    older, newest = manifests(task)[-2:]
    other = {n.replace(RUN, "first", 1): b for n, b in task.service.blobs.items() if RUN in n}
    for blob in other.values():
        blob.data[:] = blob.data.replace(RUN.encode(), b"first")
    task.service.blobs.clear()
    task.service.blobs.update(other)
    for number, manifest in ((None, newest), (older["checkpoint"], older)):
        start = int(content_of_first(task, manifest))
        submit_counter(task, start + 1, resume_from={"run_id": "first", "checkpoint": number})
        assert task.run() == 0, task.output
        assert task.text("logs/stdout.txt") == f"from {start} 1\nto {start + 1}\n"
        assert task.json("attempts/1/resume.json")["run_id"] == "first"
        for name in [n for n in task.service.blobs if n.startswith(f"{RUN}/")]:
            del task.service.blobs[name]


def content_of_first(task: Task, manifest: dict[str, Any]) -> bytes:
    return task.service.data(manifest["files"][0]["blob"].replace(RUN, "first", 1))


@pytest.mark.parametrize("number", [None, 7])
def test_missing_checkpoint_to_resume_fails_the_run(task: Task, number: int | None) -> None:
    submit_counter(task, 1, resume_from={"run_id": "first", "checkpoint": number})
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["step"], result["code"]) == ("restore", "CheckpointMissing")
    assert "first has no complete checkpoint" in result["message"]


@pytest.mark.slow
def test_links_and_empty_folders_are_restored(task: Task) -> None:
    script = (
        "import os\n"
        "os.chdir(os.environ['RUNNER_CHECKPOINT_DIR'])\n"
        "if os.environ['RUNNER_ATTEMPT'] == '1':\n"
        "    os.makedirs('step-1/deep')\n"
        "    os.mkdir('empty')\n"
        "    open('step-1/deep/w', 'w').write('w')\n"
        "    open('none', 'w').close()\n"
        "    os.symlink(os.path.abspath('step-1'), 'latest')\n"
        "    os.symlink('/etc/passwd', 'outside')\n"
        "    os.mkfifo('pipe')\n"
        "    exit(1)\n"
        "print(open('latest/deep/w').read(), os.readlink('latest'), sorted(os.listdir('.')))\n"
    )
    task.submit(script, retries=1)
    assert task.run() == 1
    checkpoint = task.json("attempts/1/end.json")["checkpoint"]
    assert (
        checkpoint["problem"]
        == "checkpoints do not contain outside: it is a link that leaves the folder"
    )
    assert task.run() == 0, task.output
    assert task.text("logs/stdout.txt") == "w step-1 ['empty', 'latest', 'none', 'step-1']\n"


@pytest.mark.slow
def test_too_large_folder_is_reported_once(task: Task, until: Until) -> None:
    submit_counter(task, 60, "go", checkpoints={**QUICK, "max_bytes": 1})
    process = task.start()
    until(lambda: "max_size" in task.text("attempts/1/events.jsonl"))
    (task.folder / "task-0" / "go").touch()
    assert process.wait(120) == 0
    events = [e for e in task.lines("attempts/1/events.jsonl") if e["stage"] == "checkpoint"]
    assert len(events) <= 1 + len(manifests(task))
    assert "checkpoints.max_size" in events[-1]["message"]
    assert "checkpoints.max_size" in task.json("result.json")["checkpoint"]["problem"]
