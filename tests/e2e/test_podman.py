"""A run in a container of a real engine: skipped where podman or busybox is missing or refused."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.contract.container_engines import Machine, installed_engine
from tests.contract.python_image import python_tree
from tests.e2e.conftest import Cli, new_home, until

pytestmark = [pytest.mark.slow, pytest.mark.feature(18)]

IMAGE = f"localhost/runner-test-{os.getpid()}:python"
COUNT = """
import os, pathlib, time
words = pathlib.Path(os.environ["RUNNER_INPUT_WORDS"]).read_text()
count = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "count")
begun = int(count.read_text()) if count.exists() else 0
print(words, "from", begun, "in", os.environ["OF_THE_IMAGE"], flush=True)
for step in range(begun, 10**6 if begun == 0 else begun + 1):
    new = count.with_suffix(".new")
    new.write_text(str(step + 1))
    new.replace(count)
    time.sleep(0.5)
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "model.txt").write_text("weights")
"""

ACCOUNT = """
import getpass, os, pathlib
pathlib.Path.home().joinpath("cache").write_text("x")
print(os.getuid())
print(getpass.getuser())
uv = pathlib.Path(os.environ["AZ_BATCH_NODE_SHARED_DIR"], "runner", "bin", "uv")
print(uv.is_file() and os.access(uv, os.X_OK))
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Generator[Machine]:
    folder = tmp_path_factory.mktemp("engine")
    with installed_engine("podman") as machine:
        python_tree(folder / "python")
        archive = folder / "python.tar"
        how = ["--change=ENV OF_THE_IMAGE=podman", "--change=ENV PATH=/usr/bin:/bin"]
        how += ["--change=ENV HOME=/root", "--change=USER 10001"]  # no folder of the task is for it
        subprocess.run(["tar", "-C", folder / "python", "-cf", archive, "."], check=True)
        subprocess.run([machine.program, "import", "--quiet", *how, archive, IMAGE], check=True)
        archive.unlink()
        yield machine
        subprocess.run([machine.program, "rmi", IMAGE], capture_output=True, check=False)


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory, machine: Machine) -> Generator[Cli]:
    folder = tmp_path_factory.mktemp("boxes")
    cli = Cli(new_home(folder / "home"), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATCH_EMULATOR_CONTAINER_ENGINE", machine.program)
        options = shlex.join(machine.options)
        patch.setenv("BATCH_EMULATOR_CONTAINER_RUN_OPTIONS", options)
        cli.ok("local", "up")
    yield cli
    cli.ok("local", "down")


def test_run_in_a_container_accepts_exec_and_continues_after_eviction(
    boxes: Cli, script: Callable[..., Path]
) -> None:
    folder = script(COUNT)
    (folder / "words.txt").write_text("alpha")
    (folder / "train.yaml").write_text(
        f"image: {IMAGE}\ninputs: {{words: words.txt}}\ncheckpoints: {{interval: 1s}}\n"
    )
    run_id = boxes.json("train", folder, "--detach")["run_id"]
    read = ["--", "python3", "-c", "print(open('../checkpoints/count').read())"]
    until(lambda: boxes.run("exec", run_id, *read).stdout.strip().isdecimal())
    until(lambda: boxes.json("show", run_id)["checkpoints"])
    boxes.ok("local", "evict", "--pool", "local-containers", "--notice", "1")
    done = boxes.run("attach", run_id)
    assert done.returncode == 0, done.stderr
    begun = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("alpha")]
    assert begun[0] == "0"
    assert int(begun[-1]) > 0
    assert boxes.json("show", run_id)["run"]["image"]["name"] == IMAGE


def test_container_has_the_user_of_the_task_and_uv_of_the_node(
    boxes: Cli, script: Callable[..., Path]
) -> None:
    folder = script(ACCOUNT)
    (folder / "train.yaml").write_text(f"image: {IMAGE}\n")
    done = boxes.run("train", folder)
    assert done.returncode == 0, done.stderr
    user, name, uv = done.stdout.splitlines()
    isolation = boxes.json("local", "status")["isolation"]  # "user UID" if the emulator is root
    uid = isolation.removeprefix("user ") if isolation.startswith("user ") else "0"
    assert user == uid
    assert name
    assert uv == "True"
