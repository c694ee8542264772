"""The packed agent when storage, scripts and other attempts misbehave."""

from __future__ import annotations

import hashlib
import json
import random
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.node.context import TERMINATED_EXIT_CODE
from tests.processes import alive
from tests.repetition import slow_after
from tests.unit.node.agent_task import RUN, Task
from tests.unit.node.fake_blob import FakeBlobs

Until = Callable[[Callable[[], object]], None]
GROWING = ("logs/stdout.txt", "metrics.jsonl", "attempts/1/events.jsonl")
WAIT = "while not os.path.exists('../../go'): time.sleep(0.01)\n"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def go(task: Task, number: int = 0) -> None:
    (task.folder / f"task-{number}" / "go").touch()


def assert_outputs_are_as_promised(task: Task) -> None:
    result = task.json("result.json")
    assert result["outputs"]
    for file in result["outputs"]:
        data = task.service.data(f"{RUN}/{result['output']}{file['path']}")
        assert hashlib.sha256(data).hexdigest() == file["sha256"]
        assert len(data) == file["size_bytes"]


def forget_last_seconds(service: FakeBlobs, name: str, chance: random.Random) -> None:
    """Shorten or delete an append blob, as a killed Azurite does."""
    with service.lock:
        _forget(service, name, chance)


def _forget(service: FakeBlobs, name: str, chance: random.Random) -> None:
    blob = service.blobs.get(name)
    if blob is None:
        return
    if chance.random() < 0.3:
        del service.blobs[name]
        return
    # The agent appends blocks of lines: a block is lost as a whole.
    ends = [0, *(n + 1 for n, byte in enumerate(bytes(blob.data)) if byte == ord("\n"))]
    del blob.data[chance.choice(ends) :]


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_documents_lost_by_storage_are_written_again(task: Task, until: Until, seed: int) -> None:
    task.submit(
        "import json, os, time\n"
        "for n in range(200):\n"
        " while n % 50 == 0 and not os.path.exists(f'../../go{n}'): time.sleep(0.01)\n"
        " print('line', n, f'loss={n}.5')\n"
        " open(os.environ['RUNNER_METRICS_FILE'], 'a').write(json.dumps({'m': n}) + '\\n')\n" + WAIT
    )
    process = task.start()
    chance = random.Random(seed)
    for first in range(0, 200, 50):
        (task.folder / "task-0" / f"go{first}").touch()
        until(lambda n=first: f"line {n + 20}" in task.text("logs/stdout.txt"))
        for name in GROWING:
            forget_last_seconds(task.service, f"{RUN}/{name}", chance)
    go(task)
    assert process.wait(120) == 0
    lines = [f"line {n} loss={n}.5" for n in range(200)]
    assert task.text("logs/stdout.txt").splitlines() == lines
    seen = [(m["name"], m["value"]) for m in task.lines("metrics.jsonl")]
    assert sorted(seen) == sorted(
        [("loss", n + 0.5) for n in range(200)] + [("m", float(n)) for n in range(200)]
    )
    events = [(e["stage"], e["state"]) for e in task.lines("attempts/1/events.jsonl")]
    stages = ["code", "environment", "command", "export"]
    assert [e for e in events if e[1] != "progress"] == [
        (stage, state) for stage in stages for state in ("start", "end")
    ]


def test_log_lost_after_its_last_line_is_written_again(task: Task, until: Until) -> None:
    task.submit("import os, time\nprint('early')\n" + WAIT)
    process = task.start()
    until(lambda: task.text("logs/stdout.txt"))
    del task.service.blobs[f"{RUN}/logs/stdout.txt"]
    go(task)
    assert process.wait(120) == 0
    assert task.text("logs/stdout.txt") == "early\n"


def test_outputs_lost_before_the_outcome_are_uploaded_again(task: Task) -> None:
    task.submit(
        "import os\nfor n in range(3):\n"
        " open(os.environ['RUNNER_OUTPUT_DIR'] + f'/{n}', 'w').write(str(n))\n"
    )
    task.service.forget_at = (f"{RUN}/attempts/1/end.json", f"{RUN}/output/1")
    assert task.run() == 0
    assert_outputs_are_as_promised(task)


@pytest.mark.slow
@pytest.mark.parametrize("seed", slow_after(1, range(3)))
def test_concurrent_attempts_leave_one_complete_result(task: Task, until: Until, seed: int) -> None:
    task.submit(
        "import os, time\n" + WAIT + "for n in range(30):\n"
        " with open(os.environ['RUNNER_OUTPUT_DIR'] + f'/{n}', 'w') as out:\n"
        "  out.write(os.environ['RUNNER_ATTEMPT'] * (n + 1))\n"
    )
    task.service.delays = random.Random(seed)
    processes = []
    for number in (1, 2, 3):
        processes.append(task.start())
        until(lambda n=number: task.has(f"attempts/{n}/start.json"))
    for number in range(3):
        go(task, number)
    assert [process.wait(120) for process in processes] == [0, 0, 0]
    assert_outputs_are_as_promised(task)
    assert len(task.json("result.json")["outputs"]) == 30


@pytest.mark.slow
@linux
def test_daemon_ends_with_its_script(task: Task) -> None:
    task.submit(
        "import os, time\n"
        "if os.fork() == 0:\n os.setsid()\n"
        " if os.fork() == 0:\n"
        "  while True: os.write(1, b'y' * 65536); time.sleep(0.001)\n"
        " os._exit(0)\n"
        "time.sleep(0.2)\n"
        "open(os.environ['RUNNER_OUTPUT_DIR'] + '/pid', 'w').write('x')\n"
    )
    assert task.run() == 0, task.output  # the daemon would write for ever
    folder = str(task.folder)
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        try:
            assert not str(entry.readlink()).startswith(folder)
        except OSError:
            continue


@pytest.mark.slow
@linux
@pytest.mark.parametrize(
    "how", slow_after(1, ["", ", env={}", ", stdout=subprocess.DEVNULL, stderr=2"])
)
def test_next_attempt_ends_the_daemon_of_a_killed_agent(task: Task, until: Until, how: str) -> None:
    pid = task.folder / "pid"
    task.submit(
        "import os, pathlib, subprocess, time\n"
        "if os.environ['RUNNER_ATTEMPT'] == '1':\n"
        f" daemon = subprocess.Popen(['sleep', '600'], start_new_session=True{how})\n"
        f" pathlib.Path({str(pid)!r}).write_text(str(daemon.pid))\n"
        " time.sleep(600)\n"
    )
    killed = task.start()
    until(lambda: pid.exists() and pid.read_text())
    killed.kill()
    killed.wait()
    daemon = int(pid.read_text())
    assert alive(daemon)
    assert task.run(again_in=0) == 0, task.output
    assert not alive(daemon), "it would hold the node's GPUs"


@pytest.mark.slow
def test_next_attempt_excludes_late_appends_of_a_killed_agent(task: Task, until: Until) -> None:
    stdout = f"{RUN}/logs/stdout.txt"
    task.submit(
        "import os, time\nprint('attempt', os.environ['RUNNER_ATTEMPT'], flush=True)\n"
        "if os.environ['RUNNER_ATTEMPT'] == '1':\n"
        + textwrap.indent(WAIT, " ")
        + " print('late', flush=True)\n time.sleep(600)\n"
    )
    killed = task.start()
    until(lambda: task.text("logs/stdout.txt") == "attempt 1\n")
    task.service.hold_append = stdout
    go(task)
    until(lambda: task.service.held)
    killed.kill()
    killed.wait()
    other = task.start()
    until(lambda: task.has("attempts/2/start.json"))
    task.service.hold_append = ""
    assert other.wait(120) == 0
    start = task.json("attempts/2/start.json")["log_offsets"]["stdout"]
    assert task.text("logs/stdout.txt")[start:] == "attempt 2\n"


@pytest.mark.slow
def test_log_includes_output_not_sent_by_a_killed_agent(task: Task, until: Until) -> None:
    printed = task.folder / "task-0" / "wd" / "logs" / "stdout.txt"
    task.secrets = {"values": {"TOKEN": "abcdef-secret"}}
    task.submit(
        "import os, time\nprint('attempt', os.environ['RUNNER_ATTEMPT'], flush=True)\n"
        "if os.environ['RUNNER_ATTEMPT'] == '1':\n"
        + textwrap.indent(WAIT, " ")
        + " print('not sent', os.environ['TOKEN'], flush=True)\n time.sleep(600)\n"
    )
    killed = task.start()
    until(lambda: task.text("logs/stdout.txt") == "attempt 1\n")
    task.service.away.set()
    go(task)
    until(lambda: printed.read_text().endswith("secret\n"))
    killed.kill()
    killed.wait()
    task.service.away.clear()
    assert task.run(again_in=0) == 0, task.output
    assert task.text("logs/stdout.txt") == "attempt 1\nnot sent ***\nattempt 2\n"
    assert task.json("attempts/2/start.json")["log_offsets"]["stdout"] == 23


@pytest.mark.slow
def test_second_agent_of_a_task_waits_for_the_outcome(task: Task, until: Until) -> None:
    go = task.folder / "go"
    task.submit(
        "import os, pathlib, time\nprint('ran in', os.environ['RUNNER_ATTEMPT'], flush=True)\n"
        f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\n"
    )
    first = task.start()
    until(lambda: task.text("logs/stdout.txt"))
    second, stopped = task.start(again_in=0), task.start(again_in=0)
    for said in (second.stdout, stopped.stdout):
        assert said is not None
        until(lambda said=said: "waiting for its end" in said.readline())
    stopped.terminate()
    assert stopped.wait(120) == TERMINATED_EXIT_CODE
    assert first.poll() is None
    go.touch()
    assert (first.wait(120), second.wait(120)) == (0, 0)
    assert task.text("logs/stdout.txt") == "ran in 1\n"
    assert task.json("result.json")["attempt"] == 1
    assert not task.has("attempts/2/start.json")


@pytest.mark.slow
def test_script_that_removes_its_folders_fails_with_its_own_code(task: Task) -> None:
    remove = "import os, shutil, sys\nshutil.rmtree(os.environ['RUNNER_OUTPUT_DIR'])\n"
    task.submit(remove + "shutil.rmtree(os.getcwd())\nsys.exit(7)\n")
    assert task.run() == 7, task.output
    assert task.json("result.json")["code"] == "CommandFailed"


@pytest.mark.slow
def test_removed_output_folder_breaks_the_promise(task: Task) -> None:
    task.submit(
        "import os, shutil\nshutil.rmtree(os.environ['RUNNER_OUTPUT_DIR'])\n",
        outputs=["model.bin"],
    )
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["step"], result["code"]) == ("export", "OutputMissing")


@pytest.mark.slow
def test_unreadable_output_is_named(task: Task) -> None:
    link = "os.environb[b'RUNNER_OUTPUT_DIR'] + b'/caf\\xe9.bin'"
    task.submit(f"import os\nos.symlink(b'/proc/self/mem', {link})\n")
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["step"], result["code"]) == ("export", "OutputUnreadable")
    assert "'caf%xE9.bin'" in result["message"]


@pytest.mark.slow
def test_attempt_without_an_end_document_has_an_outcome(task: Task) -> None:
    task.submit("print('x')")
    task.service.refuse_put = f"{RUN}/attempts/1/end.json"
    assert task.run() == 0, task.output
    assert task.json("result.json")["status"] == "succeeded"


@pytest.mark.slow
@linux
def test_full_task_log_does_not_change_the_exit_code(task: Task) -> None:
    task.submit("print('x')")
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        assert task.start(stdout=full).wait(120) == 0
    assert json.loads(task.service.data(f"{RUN}/result.json"))["status"] == "succeeded"


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
def test_agent_killed_at_any_point_is_continued_by_the_next_attempt(
    task: Task, until: Until, seed: int
) -> None:
    task.submit(
        "import os\nprint('attempt', os.environ['RUNNER_ATTEMPT'], flush=True)\n"
        "for n in range(20):\n"
        " open(os.environ['RUNNER_OUTPUT_DIR'] + f'/{n}', 'w').write(str(n) * 1000)\n"
    )
    chance = random.Random(seed)
    for _ in range(4):
        # A run of 20 outputs makes some 40 requests.
        last = len(task.service.requests) + chance.randrange(1, 30)
        process = task.start()
        until(lambda n=last, p=process: len(task.service.requests) >= n or p.poll() is not None)
        process.kill()
        process.wait()
    assert task.run() == 0, task.output
    assert_outputs_are_as_promised(task)
    assert len(task.json("result.json")["outputs"]) == 20
    assert f"attempt {task.json('result.json')['attempt']}\n" in task.text("logs/stdout.txt")


@pytest.mark.slow
def test_access_expired_during_the_run_has_its_own_exit_code(
    task: Task, until: Callable[[Callable[[], object]], None]
) -> None:
    task.submit(
        "import os, time; print('up', flush=True)\n"
        "while not os.path.exists('../../go'): time.sleep(0.02)\n"
    )
    process = task.start()
    until(lambda: "up" in task.text("logs/stdout.txt"))
    task.service.refuse_for_good()
    go(task)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 122, output
    assert "storage:" in output


@pytest.mark.slow
@pytest.mark.parametrize("status", slow_after(1, [401, 403]))
def test_temporary_refusal_during_export_and_commit_is_retried(
    task: Task, until: Until, status: int
) -> None:
    task.submit(
        "import os, time; print('up', flush=True)\n"
        "for n in range(3): open(os.environ['RUNNER_OUTPUT_DIR'] + f'/{n}', 'w').write(str(n))\n"
        + WAIT
    )
    process = task.start()
    until(lambda: "up" in task.text("logs/stdout.txt"))
    task.service.fault_code = "AuthorizationFailure"
    task.service.faults.extend([status] * 12)
    go(task)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert not task.service.faults
    assert_outputs_are_as_promised(task)
    assert task.json("result.json")["status"] == "succeeded"
