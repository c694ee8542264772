"""The stand-in for podman and docker, called by several at once."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.contract.container_engines import Machine, fake

IMAGE = "docker.io/library/of-the-test"


def call(machine: Machine, *words: str) -> str:
    done = subprocess.run([machine.program, *words], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("turns", [2, pytest.param(12, marks=pytest.mark.slow)])
def test_containers_are_listed_while_others_are_created_and_removed(
    tmp_path: Path, turns: int
) -> None:
    machine = fake(tmp_path, "podman")
    (tmp_path / "images.json").write_text(json.dumps({"registry": {IMAGE: {}}}))
    (variables := tmp_path / "variables").touch(0o600)
    call(machine, "pull", IMAGE)
    create = ["create", "--label=batch-emulator.data=x", "--log-driver=none", "--pull=never"]
    create += ["--network=host", f"--env-file={variables}", "--interactive"]

    def come_and_go(worker: int) -> None:
        for turn in range(turns):
            name = f"box-{worker}-{turn}"
            call(machine, *create, f"--name={name}", IMAGE, "sleep", "60")
            call(machine, "start", name)
            call(machine, "rm", "--force", name)

    with ThreadPoolExecutor() as pool:
        workers = [pool.submit(come_and_go, worker) for worker in range(3)]
        while not all(worker.done() for worker in workers):
            machine.left(Path("x"))
        for worker in workers:
            worker.result()
    assert machine.left(Path("x")) == []
