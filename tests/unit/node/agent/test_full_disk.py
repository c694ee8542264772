"""A full disk of a node: the run reports it, keeps what it had, and goes on when there is room."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from shutil import disk_usage

import pytest

from runner.node.script.protection import NODES_VARIABLE
from runner.node.script.workspace import (
    AttemptDirs,
    DiskReserve,
    disk_full_line,
    full_disk_text,
)
from tests.disks import fill, filled, small_disk
from tests.unit.node.agent_task import RUN, Task
from tests.unit.node.checkpoints.test_checkpoints import manifests
from tests.unit.node.fake_blob import FakeBlobs

# Fills the disk to the last byte that it may use.
FILL = """
import os
out = os.environ["RUNNER_OUTPUT_DIR"]
with open(out + "/kept", "w") as kept:
    kept.write("kept")
print("filling", flush=True)
with open("/proc/self/cwd/hog", "wb", buffering=0) as hog:
    for size in (1 << 20, 4096, 1):
        try:
            while hog.write(bytes(size)) == size:
                pass
        except OSError:
            pass
"""
FILES = {"interval_s": 0.2, "keep": 3, "max_bytes": 1 << 30}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", "size=16m") as folder:
        yield folder


@pytest.fixture
def task(disk: Path, service: FakeBlobs) -> Iterator[Task]:
    made = Task(disk, service)
    yield made
    made.end()


def outputs(task: Task) -> dict[str, int]:
    return {file["path"]: file["size_bytes"] for file in task.json("result.json")["outputs"]}


@pytest.mark.slow
@pytest.mark.parametrize("then", [
    "open(out + '/model', 'w').write('x' * 100000)",
    "for n in range(100000): print('line', n)",
    "import numpy_that_is_missing",
])  # fmt: skip
def test_script_failing_on_a_full_disk_keeps_its_outputs(task: Task, then: str) -> None:
    task.submit(FILL + then)
    assert task.run() == 1
    result = task.json("result.json")
    assert (result["status"], result["code"]) == ("failed", "DiskFull")
    assert "the node's disk is full (16 of 16 MiB used)" in result["message"]
    assert "DiskFull" in task.output
    assert outputs(task)["kept"] == 4
    assert task.service.text(f"{RUN}/output/kept") == "kept"
    assert task.text("logs/stdout.txt").startswith("filling\n")


@pytest.mark.slow
def test_script_that_ignores_a_full_disk_succeeds_with_a_notice(task: Task) -> None:
    task.submit(FILL, checkpoints=FILES)
    assert task.run() == 0
    assert task.json("result.json")["status"] == "succeeded"
    assert outputs(task)["kept"] == 4
    told = [event["message"] for event in task.lines("attempts/1/events.jsonl")]
    assert "files may be incomplete: the node's disk is full (16 of 16 MiB used)" in told


@pytest.mark.slow
@pytest.mark.parametrize("retries", [0, 1])
def test_disk_full_from_the_start_fails_the_attempt(task: Task, disk: Path, retries: int) -> None:
    task.submit("print('trained')", retries=retries)
    with ExitStack() as full:
        task.before_agent = lambda: full.enter_context(filled(disk))
        task.run()
    task.before_agent = lambda: None
    assert "failed in code: DiskFull: the node's disk is full" in task.output
    assert task.json("attempts/1/end.json")["why"] == "failed"
    if not retries:
        assert task.json("result.json")["code"] == "DiskFull"
        return
    assert not task.has("result.json")
    assert task.run(again_in=0) == 0
    assert task.json("result.json")["attempt"] == 2
    assert task.text("logs/stdout.txt") == "trained\n"


# Saves step 1 completely, then fills the disk and replaces the state by one that does not fit.
SAVE = """
import os, time
from pathlib import Path
state = Path(os.environ["RUNNER_CHECKPOINT_DIR"], "state")
print("from", state.read_text()[:1] if state.exists() else 0, flush=True)
if not state.exists():
    state.with_suffix(".new").write_text("1" * 1000)
    state.with_suffix(".new").rename(state)
    while not os.path.exists("go"):
        time.sleep(0.01)
"""


@pytest.mark.slow
def test_full_disk_during_checkpoints_leaves_the_newest_complete_one(
    task: Task, disk: Path, until: Callable[[Callable[[], object]], None]
) -> None:
    fail = f"{FILL}\nstate.write_text('2' * 90000)"
    script = SAVE + "".join(f"    {line}\n" for line in fail.splitlines())
    task.submit(script, checkpoints=FILES, retries=1)
    process = task.start()
    until(lambda: manifests(task))
    (task.folder / "task-0" / "wd" / "code" / "go").touch()
    output, _ = process.communicate(timeout=120)
    assert "DiskFull" in output
    for hog in disk.rglob("hog"):
        hog.unlink()
    assert task.run(again_in=0) == 0
    assert task.text("logs/stdout.txt") == "from 0\nfilling\nfrom 1\n"
    assert task.json("result.json")["status"] == "succeeded"


QUOTA = "cp: error writing 'b': Disk quota exceeded"
SPACE = "OSError: [Errno 28] No space left on device: 'a'"


@pytest.mark.parametrize(("text", "line"), [
    (f"{SPACE}\n", SPACE),
    (f"x\n{SPACE}\n {QUOTA}\nbye", QUOTA),
    ("RuntimeError: unable to write to file </torch_12_3>: No space left on device (28)", None),
    ("ValueError: no space", None),
])  # fmt: skip
def test_line_reporting_a_full_disk_is_found(text: str, line: str | None) -> None:
    assert disk_full_line(text) == line


@pytest.mark.slow
def test_failed_script_that_deletes_partial_files_names_the_disk(
    tmp_path: Path, service: FakeBlobs
) -> None:
    task = Task(tmp_path, service)
    task.submit("import errno, os\nraise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), 'm.pt')")
    assert task.run() == 1
    result = task.json("result.json")
    assert result["code"] == "DiskFull"
    assert result["message"].endswith("OSError: [Errno 122] Disk quota exceeded: 'm.pt'")
    task.end()


def test_reserve_is_kept_from_the_script_and_freed_for_storage(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=32m") as disk:
        reserve = DiskReserve(disk, shared=True)
        reserve.keep()
        assert disk_usage(disk).free == 24 << 20
        fill(disk)
        assert full_disk_text(disk)
        reserve.release()
        assert "32 of 32 MiB" in reserve.full
        assert disk_usage(disk).free == 8 << 20
        assert reserve.room_bytes() == 2 << 20, "half of what is left without a margin"


def test_reserve_of_a_small_disk_is_smaller_and_none_without_services(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=8m") as disk:
        reserve = DiskReserve(disk, shared=True)
        reserve.keep()
        assert disk_usage(disk).free == 4 << 20
        reserve.keep()  # of an attempt that was killed
        assert disk_usage(disk).free == 4 << 20
        reserve.release()
        assert (reserve.full, reserve.room_bytes()) == ("", None)
        other = DiskReserve(disk, shared=False)
        other.keep()
        assert disk_usage(disk).free == 8 << 20
        fill(disk)
        assert not other.stays_full()


def test_full_disk_without_a_reserve_is_freed_of_what_the_script_wrote(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=3m") as disk:
        reserve, dirs = DiskReserve(disk, shared=True), AttemptDirs.below(disk)
        for folder in (dirs.code, dirs.output, dirs.logs):
            folder.mkdir()
        dirs.stderr.write_text("No space left")
        reserve.keep()
        fill(dirs.code)
        reserve.release()
        assert reserve.full
        assert disk_usage(disk).free > 2 << 20
        assert dirs.stderr.read_text() == "No space left"


@pytest.mark.slow
def test_script_that_fills_the_disk_of_the_services_leaves_room(
    tmp_path: Path, service: FakeBlobs
) -> None:
    with small_disk(tmp_path / "disk", "size=64m") as disk:
        task = Task(disk, service)
        task.settings = {**task.settings, NODES_VARIABLE: str(tmp_path)}
        task.submit(FILL + "import numpy_that_is_missing")
        assert task.run() == 1
        result = task.json("result.json")
        assert result["code"] == "DiskFull"
        assert outputs(task)["kept"] == 4
        assert [(each["path"], each["why"]) for each in result["left_out"]] == [("hog", "disk")]
        assert disk_usage(disk).free > 48 << 20, "what the script wrote is removed"
        task.end()
