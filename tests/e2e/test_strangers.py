"""Scripts with the habits of the systems that people come from, run unchanged."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli, until
from tests.e2e.strangers.projects import SYSTEMS, make_project

Write = Callable[..., Path]


@pytest.fixture
def trained(own_cli: Cli, mnist: Path) -> dict[str, Path]:
    """Train the script of each system with one command, evict the node, and let all end."""
    own_cli.ok("local", "up", "--nodes", "1", "--slots", str(len(SYSTEMS)))
    projects = {name: make_project(own_cli.cwd, each, mnist) for name, each in SYSTEMS.items()}
    commands: list[subprocess.Popen[str]] = []
    for name, system in SYSTEMS.items():
        (projects[name] / "wait_for_eviction").touch()
        inside = Cli(own_cli.home, projects[name])
        commands.append(inside.start("train", ".", "--entry", system.script, *system.words))

    def running() -> list[str]:
        return [row["run_id"] for row in own_cli.json("ps") if row["state"] == "running"]

    until(lambda: len(running()) == len(SYSTEMS), every_s=0.5)
    for run in running():
        until(lambda run=run: own_cli.json("metrics", run)["metrics"], every_s=0.5)
    own_cli.ok("local", "evict", "--notice", "5", "--away", "1")
    for command in commands:
        out, err = command.communicate(timeout=300)
        assert command.returncode == 0, f"{out}\n{err}"
    return projects


@pytest.mark.feature(13)
@pytest.mark.feature(23)
@pytest.mark.feature(31)
@pytest.mark.feature(46)
@pytest.mark.feature(48)
def test_scripts_for_other_systems_train_unchanged_and_survive_eviction(
    own_cli: Cli, trained: dict[str, Path]
) -> None:
    for name, system in SYSTEMS.items():
        [folder] = (trained[name] / "outputs").iterdir()
        shown = own_cli.json("show", folder.name)
        assert [each["why"] == "succeeded" for each in shown["attempts"]] == [False, True], name
        kept = {path.relative_to(folder).as_posix() for path in folder.rglob("*")}
        assert kept >= system.outputs, name
        assert set(own_cli.json("metrics", folder.name)["metrics"]) == system.metrics, name


@pytest.mark.smoke
def test_run_without_outputs_warns(cli: Cli, script: Write) -> None:
    done = cli.run("train", script("print('trained')"))
    assert done.returncode == 0, done.stderr
    assert "warning: the run kept no files" in done.stderr
    assert "none: the script wrote no file" in cli.ok("show", "@last")


def test_downloaded_data_is_named_and_kept_on_request(cli: Cli, script: Write) -> None:
    text = "import os\nos.mkdir('data')\nopen('data/train.bin', 'wb').truncate(40_000_000)"
    folder = script(text)
    done = cli.run("train", folder, "--no-download")
    assert "not kept" in done.stderr
    assert "data/ (40 MB): looks like downloaded data" in done.stderr
    document = cli.json("train", folder, "--no-download", "--keep", "data")
    assert [file["path"] for file in document["outputs"]] == ["data/train.bin"]
