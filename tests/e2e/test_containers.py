"""Runs in container images: on an engine that runs containers as processes of this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.contract.container_engines import IMAGE, Machine, fake
from tests.e2e.conftest import Cli, new_home, until
from tests.unit.node.distributed.test_node_group import SUM

Write = Callable[..., Path]
NO_PYTHON = "docker.io/library/nothing:1"
OLD_PYTHON = "docker.io/library/chainer:1"
# To the agent, it appears to be older than its own.
OLD = f"""case "$2" in *"sys.exit(sys.version_info"*) exit 1;; esac
OLD_PYTHON=yes exec {Path(sys.executable).resolve()} "$@"
"""

SHOW = """
import os, shutil, sys
print("image:", os.environ["OF_THE_IMAGE"])
print("python:", shutil.which("python") is not None)
print(open(os.environ["RUNNER_INPUT_WORDS"]).read())
with open(os.environ["RUNNER_OUTPUT_DIR"] + "/model.txt", "w") as out:
    out.write("weights")
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    folder = tmp_path_factory.mktemp("engine")
    machine = fake(folder, "podman")
    known = json.loads((folder / "images.json").read_text())
    known["registry"][NO_PYTHON] = {"env": {"PATH": "/nowhere", "UV_OFFLINE": "1"}}
    tools = folder / "tools"
    tools.mkdir()
    for name, text in (("python3", OLD), ("uv", f"echo {sys.executable}\n")):
        (tools / name).write_text(f"#!/bin/sh\n{text}")
        (tools / name).chmod(0o755)
    known["registry"][OLD_PYTHON] = {"env": {"PATH": f"{tools}:/usr/bin:/bin"}}
    (folder / "images.json").write_text(json.dumps(known))
    return machine


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory, machine: Machine) -> Generator[Cli]:
    folder = tmp_path_factory.mktemp("boxes")
    cli = Cli(new_home(folder / "home"), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATCH_EMULATOR_CONTAINER_ENGINE", machine.program)
        cli.ok("local", "up")
    yield cli
    cli.ok("local", "down")


def recipe(script: Write, image: str, text: str = SHOW, more: str = "") -> Path:
    folder = script(text)
    (folder / "words.txt").write_text("alpha")
    (folder / "train.yaml").write_text(f"image: {image}\ninputs: {{words: words.txt}}\n{more}")
    return folder


@pytest.mark.feature(18)
def test_run_executes_in_its_image(boxes: Cli, script: Write, machine: Machine) -> None:
    done = boxes.run("train", recipe(script, IMAGE))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["image: yes", "python: True", "alpha"]
    run = boxes.json("show", "@last")
    assert run["run"]["image"] == {"name": IMAGE, "digest": None}
    assert run["run"]["batch"]["pool"] == "local-containers"
    assert [p.read_text() for p in (boxes.cwd / "outputs").glob("*/model.txt")] == ["weights"]
    created = next(call for call in machine.calls() if "create" in call)
    assert "--entrypoint=/bin/sh" in created
    assert not any("sig=" in word or "RUNNER_STORAGE" in word for word in created)
    again = boxes.run("train", script("print('no image')"))
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
def test_run_on_two_nodes_executes_in_a_container_on_each(boxes: Cli, script: Write) -> None:
    boxes.ok("local", "up", "--nodes", "2", "--slots", "1")
    folder = recipe(script, IMAGE, "import os; print(os.environ['OF_THE_IMAGE'])\n" + SUM)
    done = boxes.run("train", folder, "--nodes", "2")
    assert done.returncode == 0, done.stderr
    assert boxes.ok("logs", "@last", "--node", "0").splitlines() == ["yes", "rank 0 sum 11"]
    assert boxes.ok("logs", "@last", "--node", "1").splitlines() == ["yes", "rank 1 sum 11"]


def test_requirements_are_installed_on_top_of_the_image(boxes: Cli, script: Write) -> None:
    folder = recipe(script, IMAGE, "import os, sys; print(sys.prefix != sys.base_prefix)")
    (folder / "requirements.txt").write_text("# none\n")
    done = boxes.run("train", folder, "--no-download")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.feature(23)
def test_script_uses_the_old_python_of_its_image_and_the_agent_its_own(
    boxes: Cli, script: Write
) -> None:
    text = "import os; print('old:', os.environ.get('OLD_PYTHON')); open('m.h5', 'w').close()"
    done = boxes.run("train", recipe(script, OLD_PYTHON, text))
    assert (done.returncode, done.stdout) == (0, "old: yes\n"), done.stderr
    assert "m.h5" in done.stderr


@pytest.mark.parametrize(
    ("image", "said", "fix"),
    [
        ("docker.io/library/typo:1", "the image cannot be pulled", "check name and tag"),
        (NO_PYTHON, "the image has no python3", "add python3 to the image"),
    ],
)
def test_unusable_image_fails_the_run_with_a_fix(
    boxes: Cli, script: Write, image: str, said: str, fix: str
) -> None:
    done = boxes.run("train", recipe(script, image))
    assert done.returncode == 1
    assert said in done.stderr
    assert fix in done.stderr
    shown = boxes.ok("show", "@last")
    assert said in shown
    assert fix in shown
    assert boxes.json("show", "@last")["fix"]


def test_pool_without_containers_is_refused_before_any_upload(boxes: Cli, script: Write) -> None:
    done = boxes.run("train", recipe(script, IMAGE), "--pool", "local")
    assert done.returncode == 3
    assert "error[R-POOL-CONTAINERS]: pool local runs no containers" in done.stderr


@pytest.mark.parametrize("tasks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_scheduled_runs_with_images_execute_in_containers(
    boxes: Cli, script: Write, tasks: int
) -> None:
    folder = recipe(script, IMAGE)
    names = ["a", "b"][:tasks]
    file = folder.parent / f"boxed{tasks}.yaml"
    lines = "".join(f"  {name}: {{recipe: ./project}}\n" for name in names)
    file.write_text(f"schedule: {{every: 1d}}\ntasks:\n{lines}")
    made = boxes.json("submit", file)
    assert made["pool"] == "local-containers"

    def ended() -> list[str]:
        runs = boxes.json("schedule", "show", made["schedule"])["runs"]
        over = [run for run in runs if boxes.json("show", run)["state"] == "succeeded"]
        return over if len(over) == tasks else []

    for run in until(ended):
        assert boxes.ok("logs", run).splitlines()[0] == "image: yes"
    boxes.ok("schedule", "rm", made["schedule"])
