"""With everything of `RUNNER_HOME` on one small disk, other files fill it at any time."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.azure.faults import STORAGE_FULL
from runner.core.progress import Progress, ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.settings import load_settings
from runner.flows.submit.check_and_read import check_run
from runner.flows.submit.pipeline import open_services, plan_submission
from runner.flows.submit.submit_run import submit_run
from runner.protocol.errors import RunnerError
from tests.e2e.conftest import Cli, new_home, until

SIZE = "150m"


@dataclass(frozen=True)
class SmallDisk:
    """A disk with the home of the runner, and a project on another one."""

    folder: Path
    cli: Cli

    @property
    def project(self) -> Path:
        return self.cli.cwd / "project"

    def fill(self) -> None:
        for size in (1 << 16, 1 << 9):
            with (self.folder / f"other{size}").open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        for other in self.folder.glob("other*"):
            other.unlink()
        until(lambda: self.cli.run("local", "up", "--nodes", "1").returncode == 0)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallDisk]:
    folder, work = tmp_path_factory.mktemp("disk"), tmp_path_factory.mktemp("work")
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user cannot mount a small disk")
    cli = Cli(new_home(folder / "home"), work)
    try:
        (work / "project").mkdir()
        (work / "project" / "train.py").write_text("print('trained')\n")
        cli.ok("local", "up", "--nodes", "1")
        yield SmallDisk(folder, cli)
    finally:
        cli.run("local", "down")
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def emptied(disk: SmallDisk) -> Iterator[SmallDisk]:
    yield disk
    disk.free()


@pytest.mark.parametrize("stage", ["upload", "submit"])
def test_submission_during_which_the_disk_fills_ends_and_can_be_repeated(
    stage: str, emptied: SmallDisk
) -> None:
    disk, home = emptied, emptied.cli.home
    (disk.project / "stage.txt").write_text(stage)
    settings = load_settings({}, cwd=disk.project, env={"RUNNER_HOME": str(home)})
    connection, services = open_services(settings, ignore_progress)
    run = check_run(load_recipe(str(disk.project), cwd=disk.project), RunOptions())
    plan = plan_submission(run, services, ignore_progress)

    def fill(progress: Progress) -> None:
        if (progress.stage, progress.state) == (stage, "start"):
            disk.fill()

    began = time.monotonic()
    code, fix = "", "free"
    try:  # what is left to write may still fit
        submit_run(connection, plan, fill)
    except RunnerError as err:
        code, fix = err.code, err.fix or ""
    assert code in ("", "R-DISK-SPACE", STORAGE_FULL)
    assert "free" in fix
    assert time.monotonic() - began < 200
    disk.free()
    run_id = disk.cli.json("train", "project")["run_id"]
    states = {row["run_id"]: row["state"] for row in disk.cli.json("ps")}
    assert states[run_id] == "succeeded"
    assert "lost" not in states.values()


def test_full_disk_is_named_by_each_command_that_needs_room(emptied: SmallDisk) -> None:
    disk, cli = emptied, emptied.cli
    data = cli.cwd / "data.bin"
    data.write_bytes(bytes(30_000_000))
    disk.fill()
    for command in (
        ("local", "up", "--nodes", "1"),
        ("train", "project"),
        ("data", "put", str(data), "more/"),
    ):
        began = time.monotonic()
        done = cli.run(*command)
        assert time.monotonic() - began < 200, command
        assert done.returncode, command
        assert any(code in done.stderr for code in ("R-DISK-", STORAGE_FULL)), done.stderr
        assert "free" in done.stderr.partition("fix:")[2], done.stderr


def test_runs_are_read_and_deleted_on_a_full_disk(emptied: SmallDisk) -> None:
    disk, cli = emptied, emptied.cli
    run_id = cli.json("train", "project")["run_id"]
    disk.fill()
    assert run_id in {row["run_id"] for row in cli.json("ps")}
    assert cli.json("show", run_id)["state"] == "succeeded"
    assert "trained" in cli.ok("logs", run_id)
    cli.ok("local", "status")
    cli.ok("rm", "--yes", run_id)
    assert run_id not in {row["run_id"] for row in cli.json("ps")}
