"""Folders of Aim: with Aim itself where `tools/framework_envs.sh aim` built it, else with a fake.

The fake package stores the trees of Aim's databases as JSON. It tests how the program is started,
what counts as new and what happens when it fails, but not what Aim's files contain.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.node.metric_files import aim_folders
from runner.node.metric_files import watch as watch_module
from runner.node.metric_files.aim_folders import AIM_FILE, AimFolder, shown_name
from runner.node.metric_files.mlflow_files import DATABASE_HEAD
from runner.node.metric_files.watch import MetricFiles
from runner.node.script import command, script_python
from runner.node.script.command import run_command
from runner.node.script.metrics import MetricLog
from runner.node.script.printed import PrintedMetrics, is_metric_of
from runner.node.script.script_python import ScriptPython
from runner.node.script.shipper import LineQueue

Until = Callable[[Callable[[], object]], None]

FAKE = """
import json, os

class _Tree:
    def __init__(self, found): self.found = found
    def tree(self): return self
    def subtree(self, keys):
        found = self.found
        for key in keys if isinstance(keys, tuple) else (keys,):
            found = found.get(str(key), {})
        return _Tree(found)
    def keys(self): return self.found.keys()
    def get(self, keys, default): return self.subtree(keys).found or default
    def array(self, name, dtype=None): return self.subtree(name)
    def items(self): return self.found.items()

def RocksContainer(path, read_only, skip_read_optimization):
    assert read_only and skip_read_optimization
    print("a line of Aim")
    with open(os.path.join(path, "data.json")) as file:
        return _Tree(json.load(file))
"""


@pytest.fixture(scope="module")
def fake_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("fake") / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "aimrocks.py").touch()
    (packages / "aim" / "storage").mkdir(parents=True)
    (packages / "aim" / "__init__.py").write_text("raise SystemError('imported')")
    (packages / "aim" / "storage" / "rockscontainer.py").write_text(FAKE)
    return str(folder / "bin" / "python")


def python(path: str) -> ScriptPython:
    return ScriptPython(path, dict(os.environ))


class FakeAim:
    """A folder `.aim` of the fake; `track` is the method of one run of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / ".aim"
        self.folder.mkdir(parents=True)
        self.file = Path(f"{folder}{AIM_FILE}")
        self.file.write_bytes(DATABASE_HEAD + b"of Aim")
        self._data: dict[tuple[str, str], Any] = {}

    def track(
        self, name: str, value: Any, step: int, context: dict[str, Any] | None = None,
        *, run: str = "first", version: int = 2, dtype: str = "float",
    ) -> None:  # fmt: skip
        key = json.dumps(context or {})
        meta = self._data.setdefault(("meta", run), {"contexts": {}, "traces": {}})
        meta["contexts"][key] = context or {}
        facts = {"dtype": dtype, "version": version}
        meta["traces"].setdefault(key, {})[name] = facts
        tree = self._data.setdefault(("seqs", run), {})
        for part in ("chunks", run, key, name):
            tree = tree.setdefault(part, {})
        at = str(step) if version == 1 else f"hash of {step}"
        tree.setdefault("val", {})[at] = value
        tree.setdefault("step", {})[at] = step
        self._write(run, version)

    def _write(self, run: str, version: int) -> None:
        values = self._data["seqs", run]
        seqs = values if version == 1 else {f"v{version}": values}
        meta = {"chunks": {run: self._data["meta", run]}}
        for kind, content in (("meta", {"meta": meta}), ("seqs", {"seqs": seqs})):
            chunk = self.folder / kind / "chunks" / run
            chunk.mkdir(parents=True, exist_ok=True)
            if not (chunk / "IDENTITY").exists():
                (chunk / "IDENTITY").touch()
            (chunk / "data.json").write_text(json.dumps(content))


@pytest.fixture
def aim(tmp_path: Path) -> FakeAim:
    return FakeAim(tmp_path)


def values(reader: AimFolder) -> list[tuple[str, str, int | None]]:
    return [(name, f"{value:g}", step) for name, value, step in reader.finish()]


def test_new_values_of_each_context_are_read_once(aim: FakeAim, fake_python: str) -> None:
    reader = AimFolder(aim.file, python(fake_python).ask)
    aim.track("loss", 0.5, 0, {"subset": "train"})
    aim.track("loss", 0.75, 0, {"subset": "val"})
    aim.track("__system__cpu", 3.0, 0)
    aim.track("picture", 1, 0, dtype="image")
    assert values(reader) == [("train/loss", "0.5", 0), ("val/loss", "0.75", 0)]
    assert values(reader) == []
    aim.track("loss", "NaN", 2, {"subset": "val"})
    assert values(reader) == [("val/loss", "nan", 2)]
    aim.track("loss", 0.25, 1, {"subset": "val"})  # of an earlier step
    assert values(reader) == [("val/loss", "0.25", 1)]


def test_second_run_has_its_number_before_the_names(aim: FakeAim, fake_python: str) -> None:
    reader = AimFolder(aim.file, python(fake_python).ask)
    aim.track("loss", 0.5, 0)
    os.utime(aim.folder / "meta" / "chunks" / "first" / "IDENTITY", (1, 1))
    aim.track("loss", 0.25, 0, run="another", version=1)
    assert values(reader) == [("loss", "0.5", 0), ("run-2/loss", "0.25", 0)]


def test_run_that_cannot_be_read_yet_is_read_later(aim: FakeAim, fake_python: str) -> None:
    reader = AimFolder(aim.file, python(fake_python).ask)
    aim.track("loss", 0.5, 0)
    broken = aim.folder / "meta" / "chunks" / "second"
    broken.mkdir()
    assert values(reader) == [("loss", "0.5", 0)]
    broken.rmdir()
    aim.track("loss", 0.25, 0, run="second")
    assert values(reader) == [("run-2/loss", "0.25", 0)]


def test_next_reading_waits_in_proportion_to_the_last(
    aim: FakeAim, fake_python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = AimFolder(aim.file, python(fake_python).ask)
    aim.track("loss", 0.5, 0)
    assert len(list(reader.read())) == 1
    aim.track("loss", 0.25, 1)
    assert list(reader.read()) == []
    later = time.monotonic() + 3600
    monkeypatch.setattr(aim_folders, "time", SimpleNamespace(monotonic=lambda: later))
    assert len(list(reader.read())) == 1


def test_environment_without_aim_ends_the_reading(aim: FakeAim) -> None:
    aim.track("loss", 0.5, 0)
    with pytest.raises(ValueError, match="has no Aim"):
        values(AimFolder(aim.file, python(sys.executable).ask))


@pytest.mark.parametrize(
    ("program", "limit_s", "expected"),
    [
        ("import time; time.sleep(600)", 0.5, "no answer in time"),
        ("import sys; sys.exit('broken')", 300, "broken"),
        ("while True: print('x' * 9999)", 300, "MiB of values"),
    ],
)
def test_program_that_fails_is_an_error_and_leaves_no_process(
    program: str, limit_s: float, expected: str, monkeypatch: pytest.MonkeyPatch, until: Until
) -> None:
    monkeypatch.setattr(script_python, "MAX_ANSWER_BYTES", 1 << 20)
    before = command.children()
    began = time.monotonic()
    with pytest.raises(OSError, match=expected):
        python(sys.executable).ask(program, {}, limit_s)
    assert time.monotonic() - began < 120
    until(lambda: command.children() <= before)  # threads of other tests start some meanwhile


def test_interpreter_is_that_of_the_command_or_the_first_on_path(tmp_path: Path) -> None:
    for name in ("python", "python3.9"):
        (tmp_path / name).touch(mode=0o755)
    of_command = partial(ScriptPython.of_command, environment={"PATH": str(tmp_path)}, protect=None)

    def found(*words: str) -> str | None:
        python = of_command(words)
        return python and Path(python.path).name

    assert found("python3.9", "train.py") == "python3.9"
    assert found("bash", "run.sh") == "python"
    assert found("python3.8", "train.py") == "python"
    assert ScriptPython.of_command(["sh"], {"PATH": str(tmp_path / "none")}, None) is None


def test_contexts_are_part_of_the_name() -> None:
    assert shown_name("loss", {}) == "loss"
    assert shown_name("loss", {"subset": "val", "fold": 1}) == "val/fold=1/loss"


def test_reading_at_the_end_of_the_script_is_neither_killed_nor_reported(
    tmp_path: Path, fake_python: str
) -> None:
    from threading import Thread

    answers: list[object] = []
    slow = "import time; time.sleep(2); print('[1]')"
    thread = Thread(target=lambda: answers.append(python(fake_python).ask(slow, {}, 300)))
    script = "import time; time.sleep(0.7)"
    logs = tmp_path / "out", tmp_path / "err"
    for path in logs:
        path.touch()
    ended = run_command(
        [sys.executable, "-c", script], cwd=tmp_path, environment=dict(os.environ),
        stdout=logs[0], stderr=logs[1], timeout_s=300, terminated=lambda: False,
        on_start=lambda _: thread.start(),
    )  # fmt: skip
    assert ended.left_running == ()
    thread.join()
    assert answers == [[1]]


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return a function that watches a folder: it returns the thread and its found values."""
    monkeypatch.setattr(watch_module, "EVERY_S", 0.2)

    def watch(path: str) -> tuple[MetricFiles, Callable[[], list[Any]], MetricLog]:
        queue = LineQueue()
        log = MetricLog(1, queue)
        log.compare_sources(())
        files = MetricFiles(
            lambda: [str(tmp_path)], log.add, is_metric_of(()), ask=python(path).ask
        )

        found: list[Any] = []

        def values() -> list[Any]:
            for line in queue.peek().splitlines():
                each = json.loads(line)
                found.append((each["name"], each["value"], each["step"], each["source"]))
            queue.advance()
            return found

        return files, values, log

    return watch


def test_values_of_aim_that_are_printed_too_count_once(
    aim: FakeAim, fake_python: str, found: Callable[..., Any]
) -> None:
    aim.track("loss", 9.0, 0, run="before")
    files, values, log = found(fake_python)
    files.start()
    PrintedMetrics(log).feed(b"epoch 0 val loss: 0.500\n")
    aim.track("loss", 0.5, 0, {"subset": "val"}, run="before")
    aim.track("loss", 0.25, 1, {"subset": "val"}, run="before")
    files.finish()
    assert values() == [("val_loss", 0.5, 0, "stdout"), ("val/loss", 0.25, 1, "aim")]


TRACKING = """
from aim import Run
import pathlib, time
run = Run(experiment="first")
run["hparams"] = {"lr": 0.1}
for step in range(3):
    run.track(1.0 / (step + 1), name="loss", step=step, epoch=0, context={"subset": "train"})
    run.track(1.5 / (step + 1), name="loss", step=step, epoch=0, context={"subset": "val"})
    run.track(step, name="count", step=step)
run.log_info("a line of a log")
pathlib.Path("tracked").touch()
while not pathlib.Path("go").exists():
    time.sleep(0.1)
run.track({"f1": 0.5}, step=3, context={"subset": "test"})
run.close()
"""


@pytest.mark.slow
def test_runs_of_aim_are_read_while_the_script_writes_and_unchanged(
    tmp_path: Path, found: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aim_folders, "SHARE", 0.5)
    path = os.environ.get("AIM_PYTHON")
    if path is None:
        pytest.skip("Aim is not installed; $AIM_PYTHON may name an interpreter with it")
    files, values, _ = found(path)
    files.start()
    script = subprocess.Popen([path, "-c", TRACKING], cwd=tmp_path)
    until = time.monotonic() + 240
    while len(values()) < 9 and time.monotonic() < until:
        time.sleep(0.1)
    assert [each for each in values() if each[0] == "val/loss"] == [
        ("val/loss", 1.5 / (step + 1), step, "aim") for step in range(3)
    ]
    (tmp_path / "go").touch()
    assert script.wait(240) == 0

    def state() -> dict[Path, tuple[int, int]]:
        every = [each for each in tmp_path.rglob("*") if each.is_file()]
        return {each: (each.stat().st_size, each.stat().st_mtime_ns) for each in every}

    before = state()
    files.finish()
    assert state() == before
    assert len(values()) == 10
    assert values()[-1] == ("test/f1", 0.5, 3, "aim")
