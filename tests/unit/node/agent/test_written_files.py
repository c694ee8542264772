"""What the agent does with files that a script wrote elsewhere than in $RUNNER_OUTPUT_DIR."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.node.agent.records import AttemptOutcome, RunRecords
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.retries import RetryBudget
from runner.node.termination import NodeEviction
from runner.protocol.paths import RunPaths, blob_name
from runner.protocol.results import OutputFile, parse_result
from tests.repetition import slow_after
from tests.unit.node.agent_task import RUN, Task

Until = Callable[[Callable[[], object]], None]
BESIDE = "open('model.h5', 'w').write('weights')\nopen('../home.txt', 'w').write('home')\n"


def outputs(task: Task) -> dict[str, OutputFile]:
    """Return the outputs that the client reads."""
    result = parse_result(task.service.data(f"{RUN}/result.json"), RUN)
    return {file.path: file for file in result.outputs}


@pytest.mark.feature(13)
@pytest.mark.feature(48)
def test_model_beside_the_script_is_an_output_with_its_source(task: Task) -> None:
    task.submit(BESIDE)
    assert task.run() == 0, task.output
    assert {path: file.source for path, file in outputs(task).items()} == {
        "model.h5": "code",
        "home/home.txt": "home",
    }
    assert task.text("output/model.h5") == "weights"
    assert task.text("output/home/home.txt") == "home"


def test_file_in_a_mount_is_no_output_even_if_the_mount_is_a_link(
    task: Task, tmp_path: Path
) -> None:
    (share := tmp_path / "share").mkdir()
    (mounts := task.folder / "mounts").mkdir()
    (mounts / "shared").symlink_to(share)
    task.submit(
        "import os\nd = os.environ['AZ_BATCH_NODE_MOUNTS_DIR']\n"
        "open(d + '/shared/a.txt', 'w').write('1')\nopen('model.h5', 'w').write('weights')"
    )
    assert task.run() == 0, task.output
    assert (share / "a.txt").exists()
    assert set(outputs(task)) == {"model.h5"}


@pytest.mark.parametrize("promised", slow_after(1, ["*.h5", "model.h5", "./model.h5"]))
def test_promised_output_is_found_beside_the_script(task: Task, promised: str) -> None:
    task.submit(BESIDE, outputs=[promised])
    assert task.run() == 0, task.output


def test_promised_output_from_the_code_archive_is_missing(task: Task) -> None:
    task.submit("", outputs=["train.py"])
    assert task.run() == 1
    assert task.json("result.json")["code"] == "OutputMissing"


def test_omitted_files_are_in_the_result_and_the_events(task: Task) -> None:
    task.submit("open('big.bin', 'w').write('x' * 2000)", keep={"max_bytes": 1000})
    assert task.run() == 0, task.output
    [left_out] = task.json("result.json")["left_out"]
    assert left_out == {"path": "big.bin", "size_bytes": 2000, "why": "size", "files": 1}
    notices = [e for e in task.lines("attempts/1/events.jsonl") if e["stage"] == "notice"]
    assert "big.bin (2.0 kB): above the size limit" in notices[0]["message"]
    assert not task.has("output/big.bin")


@pytest.mark.slow
def test_process_outliving_the_script_is_in_the_events(task: Task) -> None:
    task.submit("import subprocess\nsubprocess.Popen(['sleep', '60'])")
    assert task.run() == 0, task.output
    notices = [e for e in task.lines("attempts/1/events.jsonl") if e["stage"] == "notice"]
    assert any("python train.py ended before 'sleep 60'" in e["message"] for e in notices)


@pytest.mark.slow
def test_repeated_export_has_the_files_beside_the_script(task: Task) -> None:
    task.submit(BESIDE, retries=1, outputs=["model.h5"])
    task.service.refuse_put = f"{RUN}/output/model.h5"
    assert task.run() == 1
    task.service.refuse_put = ""
    assert task.run(again_in=0) == 0, task.output
    assert "the command of attempt 1 succeeded here" in task.output
    assert outputs(task)["model.h5"].source == "code"
    assert task.text("attempts/2/output/model.h5") == "weights"


def test_variable_of_batch_ai_is_an_output_folder(task: Task) -> None:
    task.submit(
        "import os\nopen(os.environ['AZ_BATCHAI_OUTPUT_MODEL'] + '/a', 'w').write('1')\n"
        "print([name for name in os.environ if name.startswith('AZURE_ML_')])"
    )
    assert task.run() == 0, task.output
    assert task.text("output/model/a") == "1"
    assert task.text("logs/stdout.txt") == "[]\n"


def test_failed_script_leaves_its_files_as_partial_outputs(task: Task) -> None:
    task.submit(BESIDE + "raise SystemExit(3)")
    assert task.run() == 3
    result = parse_result(task.service.data(f"{RUN}/result.json"), RUN)
    assert (result.status, result.partial) == ("failed", True)
    assert set(outputs(task)) == {"model.h5", "home/home.txt"}
    assert task.text("output/model.h5") == "weights"


def test_missing_promised_output_keeps_written_files(task: Task) -> None:
    task.submit(BESIDE, outputs=["other.bin"])
    assert task.run() == 1
    assert task.json("result.json")["code"] == "OutputMissing"
    assert "home, model.h5" in task.json("result.json")["message"]
    assert set(outputs(task)) == {"model.h5", "home/home.txt"}


@pytest.mark.slow
def test_only_the_last_attempt_exports_a_failure(task: Task) -> None:
    task.submit(BESIDE + "raise SystemExit(3)", retries=1)
    assert task.run() == 3
    assert not task.has("output/model.h5")
    assert task.run() == 3
    assert task.text("attempts/2/output/model.h5") == "weights"


EPOCHS = (
    "import os, time\nattempt = os.environ['RUNNER_ATTEMPT']\n"
    "open('latest.pt', 'w').write(attempt)\nopen(f'epoch-{attempt}.pt', 'w').write(attempt)\n"
    "print('saved', attempt)\nif attempt == '1': time.sleep(600)\n"
)


@pytest.mark.slow
def test_files_of_an_evicted_attempt_are_among_the_outputs_of_the_next(
    task: Task, until: Until
) -> None:
    task.submit(EPOCHS)
    process = task.start()
    until(lambda: "saved 1" in task.text("logs/stdout.txt"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143
    assert [file["path"] for file in json.loads(task.text("attempts/1/outputs.json"))] == [
        "epoch-1.pt",
        "latest.pt",
    ]
    assert not task.has("result.json")
    assert task.run() == 0, task.output
    files = outputs(task)
    assert {path: (file.attempt, file.partial) for path, file in files.items()} == {
        "epoch-1.pt": (1, True),
        "epoch-2.pt": (None, False),
        "latest.pt": (None, False),
    }
    texts = [task.text(f"attempts/2/output/{path}") for path in files]
    assert texts == ["1", "2", "2"], "what both attempts wrote is of the later one"


@pytest.mark.slow
def test_folders_and_files_of_the_agent_are_no_outputs(task: Task) -> None:
    task.settings["AZ_BATCH_NODE_ROOT_DIR"] = str(task.folder)
    task.submit(
        "import os, time\nfolder = os.environ['RUNNER_CHECKPOINT_DIR']\n"
        "open(folder + '/1.pt', 'w').write('1')\nhome = os.path.expanduser('~')\n"
        "for end in range(3000):\n"
        "    if os.path.isdir(home + '/snapshots') and os.listdir(home + '/snapshots'): break\n"
        "    time.sleep(0.1)\n"
        "else: raise SystemExit('no snapshot')\n"
        "os.symlink('../..', 'task')\nopen(home + '/m', 'w').write('m')\n",
        checkpoints={"interval_s": 0.1, "quiet_s": 0.1},
    )
    assert task.run() == 0, task.output + task.text("logs/stderr.txt")
    assert set(outputs(task)) == {"home/m"}
    assert task.json("result.json").get("left_out", []) == []


def test_names_invalid_for_blobs_are_outputs(task: Task) -> None:
    script = "import os\n"
    script += "names = ['a\\\\b', 'a:1.csv', b'\\x1b[1m\\xff', 'end.', '%x5C', 'two\\nlines']\n"
    script += "for name in names:\n    open(name, 'w').write('x')\n"
    script += "open(os.environ['RUNNER_OUTPUT_DIR'] + '/\\x01\\\\', 'w').write('x')\n"
    script += (
        "deep = '/'.join(['d' * 250] * 5)\nos.makedirs(deep)\nopen(deep + '/f', 'w').write('x')\n"
    )
    task.submit(script + BESIDE)
    assert task.run() == 0, task.output
    deep = "/".join(["d" * 250] * 5 + ["f"])
    expected = {
        "a%x5Cb", "a:1.csv", "%x1B[1m%xFF", "end%x2E", "%x25x5C", "two%x0Alines", "%x01%x5C", deep,
        "model.h5", "home/home.txt",
    }  # fmt: skip
    result = task.json("result.json")
    assert {file["path"] for file in result["outputs"]} == expected
    assert "left_out" not in result
    for path in expected - {"model.h5", "home/home.txt"}:
        assert task.service.data(blob_name(f"{RUN}/output/{path}")) == b"x"


def test_damaged_list_of_an_earlier_attempt_is_ignored(task: Task) -> None:
    task.submit(BESIDE)
    task.service.put(f"{RUN}/attempts/1/start.json", b"{}")
    task.service.put(f"{RUN}/attempts/1/outputs.json", b"{")
    assert task.run() == 0, task.output
    assert task.json("result.json")["attempt"] == 2
    assert set(outputs(task)) == {"model.h5", "home/home.txt"}


def test_temporary_files_are_exported_and_removed_from_the_node(task: Task) -> None:
    task.submit(
        "import os, tempfile\nfolder = tempfile.mkdtemp()\nprint(tempfile.gettempdir())\n"
        "os.rename(folder, os.environ['TMPDIR'] + '/mine')\n"
        "open(os.environ['TMPDIR'] + '/mine/m.pt', 'w').write('temp')"
    )
    assert task.run() == 0, task.output
    assert task.text("output/temp/mine/m.pt") == "temp"
    assert not Path(task.text("logs/stdout.txt").strip()).exists()


def test_temporary_files_in_a_folder_of_the_user_are_not_moved(task: Task) -> None:
    task.submit("import os; print(os.environ['TMPDIR'])", env={"TMPDIR": str(task.folder)})
    assert task.run() == 0, task.output
    assert task.text("logs/stdout.txt").strip() == str(task.folder)
    assert task.folder.exists()


def test_model_at_an_absolute_path_is_an_output(task: Task) -> None:
    path = task.folder / "far" / "model.bin"
    task.submit(f"import os\nos.makedirs('{path.parent}')\nopen('{path}', 'w').write('far')")
    assert task.run() == 0, task.output
    assert outputs(task)[f"outside{path}"].source == str(path)
    assert task.text(f"output/outside{path}") == "far"


def test_model_at_a_computed_path_is_an_output(task: Task) -> None:
    task.settings["FAR"] = str(task.folder)
    task.submit(
        "import os, pathlib\n"
        "path = pathlib.Path(os.environ['FAR'], 'out', os.environ['MY_SETTING'])\n"
        "os.makedirs(path.parent)\npath.write_text('far')\nopen('m.h5', 'w').close()",
        outputs=["m.h5"],
    )
    assert task.run() == 0, task.output
    path = task.folder / "out" / "1"
    assert outputs(task)[f"outside{path}"].source == str(path)
    assert task.text(f"output/outside{path}") == "far"


# Of the agent: the result of the folder of the script once it contains a file `written`.
ODD_FILE_SYSTEM = """
import os, time
real = os.scandir
def scandir(path="."):
    if str(path).rstrip("/").endswith("/code") and os.path.exists(os.path.join(path, "written")):
        {answer}
    return real(path)
os.scandir = scandir
"""


def make_odd(task: Task, answer: str) -> None:
    """Let the folder of the script answer so, after the script has written to it."""
    folder = task.folder / "odd"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(ODD_FILE_SYSTEM.replace("{answer}", answer))
    task.settings["PYTHONPATH"] = str(folder)


@pytest.mark.parametrize(("code", "status"), [(0, "succeeded"), (3, "failed")])
def test_failed_search_for_files_does_not_change_the_outcome(
    task: Task, code: int, status: str
) -> None:
    make_odd(task, "raise RuntimeError('odd')")
    task.submit(
        "import os\nopen('written', 'w').close()\n"
        "open(os.environ['RUNNER_OUTPUT_DIR'] + '/own', 'w').close()\n"
        f"raise SystemExit({code})"
    )
    assert task.run() == code, task.output
    result = parse_result(task.service.data(f"{RUN}/result.json"), RUN)
    assert (result.status, set(outputs(task))) == (status, {"own"})
    assert [each.why for each in result.left_out] == ["search"]
    assert task.json("attempts/1/end.json")["why"] == status


def test_end_of_a_terminated_attempt_does_not_wait_for_the_search(task: Task, until: Until) -> None:
    make_odd(task, f"while not os.path.exists({str(task.folder / 'go')!r}): time.sleep(0.01)")
    task.submit("import time\nopen('written', 'w').close()\nprint('saved')\ntime.sleep(600)")
    process = task.start()
    until(lambda: "saved" in task.text("logs/stdout.txt"))
    process.send_signal(signal.SIGTERM)
    until(lambda: task.has("attempts/1/end.json"))
    assert not task.has("attempts/1/outputs.json")
    (task.folder / "go").touch()
    assert process.wait(120) == 143
    assert [each["path"] for each in json.loads(task.text("attempts/1/outputs.json"))] == [
        "written"
    ]


def test_upload_of_an_evicted_attempt_ends_before_its_node(container: ContainerClient) -> None:
    given: list[float | None] = []

    def export_partial(left_s: Callable[[], Any], *, last: bool) -> None:
        given.append(left_s())

    agent: Any = SimpleNamespace(
        notices=SimpleNamespace(notice=NodeEviction("1", time.monotonic() + 1000)),
        retry_budget=RetryBudget(),
        nodes_token="",
    )
    records = RunRecords(container, RunPaths(RUN))
    attempt: Any = SimpleNamespace(
        streams=None,
        checkpoints=SimpleNamespace(summary=lambda: None),
        outputs=SimpleNamespace(export_partial=export_partial),
        temp=SimpleNamespace(remove=lambda: None),
    )
    AttemptOutcome(agent, records, 1, "", attempt).terminated("command")
    agent.notices = None
    AttemptOutcome(agent, records, 1, "", attempt).terminated("command")
    assert given[0] is not None
    assert 0 < given[0] <= 1000
    assert given[1] is None


TEMPORARY = (
    "import os, time\nfolder = os.environ['TMPDIR']\nprint(folder, os.listdir(folder))\n"
    "open(folder + '/weights.pt', 'w').write('temp')\n"
)


@pytest.mark.slow
def test_temporary_files_of_a_killed_attempt_are_removed_by_the_next(
    task: Task, until: Until
) -> None:
    task.submit(
        TEMPORARY + "print('saved')\nif os.environ['RUNNER_ATTEMPT'] == '1': time.sleep(600)"
    )
    process = task.start()
    until(lambda: "saved" in task.text("logs/stdout.txt"))
    task.kill(process)
    assert task.run(again_in=0) == 0, task.output
    lines = task.text("logs/stdout.txt").splitlines()
    assert lines[0] == lines[2], "an empty folder of the same name"
    assert not Path(lines[0].split()[0]).exists()


@pytest.mark.slow
def test_temporary_files_are_kept_for_a_repeated_export(task: Task) -> None:
    task.submit(TEMPORARY + "open('m.h5', 'w').close()", retries=1, outputs=["m.h5"])
    task.service.refuse_put = f"{RUN}/output/m.h5"
    assert task.run() == 1
    task.service.refuse_put = ""
    assert task.run(again_in=0) == 0, task.output
    assert task.text("attempts/2/output/temp/weights.pt") == "temp"
    assert not Path(task.text("logs/stdout.txt").split()[0]).exists()
