"""The search for metric files while a script runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.node.metric_files import watch as watch_module
from runner.node.metric_files.watch import MetricFiles
from runner.node.script.metrics import MetricLog
from runner.node.script.printed import PrintedMetrics, is_metric_of
from runner.node.script.shipper import LineQueue
from tests.unit.node.agent_task import Task

WRITTEN = Path(__file__).parent / "written"
EVENTS = "events.out.tfevents.1.node"


class Watched:
    """A folder that is searched, and the values that were found."""

    def __init__(self, folder: Path, is_needless: bool = False) -> None:
        self.folder = folder
        self.queue = LineQueue()
        self.log = MetricLog(1, self.queue)
        self.log.compare_sources(())
        self.files = MetricFiles(
            lambda: [str(folder)], self.log.add, is_metric_of(()), lambda: is_needless
        )

    def found(self) -> list[tuple[str, object, int | None, str]]:
        lines = [json.loads(line) for line in self.queue.peek().splitlines()]
        self.queue.advance()
        return [(line["name"], line["value"], line["step"], line["source"]) for line in lines]


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(watch_module, "EVERY_S", 3600.0)
    watched = Watched(tmp_path)
    yield watched
    if watched.files.is_alive():
        watched.files.finish()


def test_values_of_a_new_file_are_read_once(watched: Watched) -> None:
    watched.files.start()
    path = watched.folder / "runs" / "metrics.csv"
    path.parent.mkdir()
    path.write_text("step,loss\n1,0.5\n")
    watched.files.search()
    watched.files.search()
    assert watched.found() == [("loss", 0.5, 1, "csv")]
    with path.open("a") as file:
        file.write("2,0.25\n")
    watched.files.finish()
    assert watched.found() == [("loss", 0.25, 2, "csv")]


def test_content_from_before_the_script_is_not_reported(watched: Watched) -> None:
    path = watched.folder / "metrics.csv"
    path.write_text("step,loss\n1,0.5\n")
    watched.files.start()
    with path.open("a") as file:
        file.write("2,0.25\n")
    watched.files.finish()
    assert watched.found() == [("loss", 0.25, 2, "csv")]


def test_script_does_not_wait_for_long_files_from_before(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "BEFORE_S", 0.2)
    rows = "".join(f"{step},0.5\n" for step in range(40_000))  # several seconds
    for name in ("a", "b"):
        (watched.folder / f"{name}.csv").write_text("step,loss\n" + rows * 20)
    began = time.process_time()  # of all threads
    watched.files.start()
    assert time.process_time() - began < 1.5
    assert watched.files._is_ready.wait(300)  # else what follows may count as of the script
    (watched.folder / "new.csv").write_text("step,val_loss\n1,0.5\n")
    with (watched.folder / "a.csv").open("a") as file:
        file.write("900000,0.25\n")
    watched.files.finish()
    assert watched.found() == [("val_loss", 0.5, 1, "csv")]


def test_equal_names_in_two_folders_are_told_apart(watched: Watched) -> None:
    watched.files.start()
    for name in ("first", "second", "validation"):
        (watched.folder / name).mkdir()
        (watched.folder / name / EVENTS).write_bytes((WRITTEN / EVENTS).read_bytes())
    watched.files.finish()
    names = {name for name, *_ in watched.found()}
    assert len({name for name in names if name.endswith("train/loss")}) == 3
    assert "train/loss" in names


def test_folder_of_a_phase_is_part_of_the_name(watched: Watched) -> None:
    watched.files.start()
    for phase in ("train", "validation"):
        path = watched.folder / "logs" / phase
        path.mkdir(parents=True)
        (path / "loss.csv").write_text("step,loss\n1,0.5\n")
        (path / EVENTS).write_bytes((WRITTEN / EVENTS).read_bytes())
    watched.files.finish()
    names = {name for name, _, _, source in watched.found() if source == "tensorboard"}
    assert "val/loss" in names


def test_damaged_and_unreadable_files_do_not_stop_the_search(watched: Watched) -> None:
    watched.files.start()
    content = bytearray((WRITTEN / EVENTS).read_bytes())
    content[1] ^= 1
    (watched.folder / "events.out.tfevents.damaged").write_bytes(content)
    (watched.folder / "link.csv").symlink_to("/dev/zero")
    (watched.folder / "long.csv").write_text(f'step,loss,text\n1,0.5,"{"x" * 200_000}"\n')
    os.mkfifo(watched.folder / "pipe.csv")
    (watched.folder / "metrics.csv").write_text("step,loss\n1,inf\n")
    watched.files.finish()
    assert watched.found() == [("loss", "Infinity", 1, "csv")]


def test_nothing_is_read_when_the_script_writes_its_metrics_file(tmp_path: Path) -> None:
    watched = Watched(tmp_path, is_needless=True)
    watched.files.start()
    (tmp_path / "metrics.csv").write_text("step,loss\n1,0.5\n")
    watched.files.finish()
    assert watched.found() == []


def test_unchanged_folder_is_not_listed_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(20):
        (watched.folder / f"{n}.csv").write_text("step,loss\n1,0.5\n")
    os.utime(watched.folder, (1, 1))
    watched.files.search()
    listed: list[object] = []
    monkeypatch.setattr(os, "scandir", listed.append)
    watched.files.search()
    assert listed == []


def test_wanted_metric_counts_once_and_is_not_lost(watched: Watched) -> None:
    log = watched.log
    log.compare_sources(["val_accuracy"])
    log.add("val/accuracy", 0.5, 1, source="tensorboard")
    log.add("val_accuracy", 0.5, 1, source="stdout", precision=0.05)
    assert watched.found() == [("val_accuracy", 0.5, 1, "tensorboard")]
    log.add("val/acc", 0.75, 2, source="tensorboard")
    log.add("val_accuracy", 0.75, 2, source="stdout", precision=0.005)
    log.add("validation/accuracy", 0.75, 2, source="csv")
    assert watched.found() == [
        ("val/acc", 0.75, 2, "tensorboard"),
        ("val_accuracy", 0.75, 2, "stdout"),
    ]


def test_value_that_is_printed_and_logged_counts_once(watched: Watched) -> None:
    printed = PrintedMetrics(watched.log)
    watched.files.start()
    printed.feed(b"epoch 1 train loss 1.00, val loss 0.25\nepoch 2 train loss 0.50\n")
    (watched.folder / EVENTS).write_bytes((WRITTEN / EVENTS).read_bytes())
    watched.files.finish()
    found = watched.found()
    assert [(name, source) for name, *_, source in found] == [
        ("train_loss", "stdout"), ("val_loss", "stdout"), ("train_loss", "stdout"),
        ("train/loss", "tensorboard"),
    ]  # fmt: skip
    assert found[-1][1] == pytest.approx(1 / 3)


SCRIPT = """
import os, sys, time
print("epoch 1 loss: 0.5", file=sys.stderr)
os.makedirs("lightning_logs/version_0")
with open("lightning_logs/version_0/metrics.csv", "w") as file:
    file.write("epoch,step,val_loss\\n0,10,0.75\\n")
"""


@pytest.mark.slow
@pytest.mark.feature(46)
def test_metrics_of_stderr_and_files_are_those_of_the_run(task: Task) -> None:
    task.submit(SCRIPT, metrics={})
    assert task.run() == 0, task.output
    assert task.json("result.json")["metrics"] == {"loss": 0.5, "val_loss": 0.75}
