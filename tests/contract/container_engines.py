"""Engines for container tests: a fake podman, a fake docker, and the real podman if it works."""

from __future__ import annotations

import json
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models

from tests.contract.server import Running, Things, serving
from tests.repetition import slow_after

_MINE = f"localhost/batch-emulator-test-{os.getpid()}"  # test processes share one store of images
IMAGE = f"{_MINE}:plain"
ENTRY = f"{_MINE}:entry"  # echoes "entry" and its arguments
PRIVATE = "private.example/team/tool:1"
ACCOUNT = ["robot", "s3cret-of-a-registry"]
RUNC = ("--runtime=runc", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")
ENGINES = slow_after(2, ["fake docker", "podman", "fake podman"])
_APPLETS = ("sh", "cat", "echo", "pwd", "sleep", "env", "touch", "true")


@dataclass(frozen=True)
class Machine:
    """An engine, the options that every container needs there, and its queries."""

    program: str
    options: tuple[str, ...] = ()

    def calls(self) -> list[list[str]]:
        """Return the command lines of the calls of a fake engine."""
        lines = (Path(self.program).parent / "calls.jsonl").read_text().splitlines()
        return [json.loads(line)["argv"] for line in lines]

    def left(self, data_dir: Path) -> list[str]:
        """Return the existing containers of an emulator."""
        label = f"--filter=label=batch-emulator.data={data_dir}"
        listed = subprocess.run(
            [self.program, "ps", "--all", "--quiet", label],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return listed.stdout.split()


def fake(folder: Path, name: str, **changes: Any) -> Machine:
    """Create a fake podman or docker that runs containers as processes of this machine."""
    source = Path(__file__).with_name("fake_engine.py")
    program = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    # Compiled and without site-packages, because tests start it about a thousand times.
    py_compile.compile(str(source), str(folder / "fake_engine.pyc"), doraise=True)
    call = "import fake_engine, sys\nfake_engine.main(sys.argv[1:])\n"
    program.write_text(f"#!{sys.executable} -S\n{call}", encoding="utf-8")
    program.chmod(0o755)
    path = {"PATH": "/usr/local/bin:/usr/bin:/bin", "OF_THE_IMAGE": "yes"}
    images = {
        IMAGE: {"env": path},
        ENTRY: {"env": path, "entrypoint": ["/bin/echo", "entry"], "cmd": ["default"]},
        PRIVATE: {"env": path, "private": True},
    }
    machine = {"registry": images, "accounts": {"private.example": ACCOUNT}, **changes}
    (folder / "images.json").write_text(json.dumps(machine))
    return Machine(str(program))


def podman(folder: Path) -> tuple[Machine | None, str]:
    """Return the real podman with the images of the tests, or the reason why it is missing."""
    program, shell = shutil.which("podman"), shutil.which("busybox")
    if program is None or shell is None:
        return None, "podman and a static busybox are not installed"
    tree = folder / "image"
    (tree / "bin").mkdir(parents=True)
    (tree / "tmp").mkdir()
    shutil.copy(shell, tree / "bin" / "busybox")
    for name in _APPLETS:
        (tree / "bin" / name).symlink_to("busybox")
    archive = folder / "image.tar"
    changes = [
        (IMAGE, ["--change=ENV OF_THE_IMAGE=yes"]),
        (ENTRY, ['--change=ENTRYPOINT ["/bin/echo", "entry"]', '--change=CMD ["default"]']),
    ]
    commands = [["tar", "-C", str(tree), "-cf", str(archive), "."]]
    commands += [[program, "import", *how, str(archive), name] for name, how in changes]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return None, f"{command[0]} does not work: {done.stderr.strip()[-200:]}"
    why = ""
    for options in ((), RUNC):
        command = [program, "run", "--rm", "--network=host", *options, IMAGE, "/bin/true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Machine(program, options), ""
        why = done.stderr.strip()[-200:]
    return None, f"podman runs no containers on this machine: {why}"


@contextmanager
def installed_engine(name: str) -> Generator[Machine]:
    """Yield one of `ENGINES`, and remove what it made; skip the test if there is no podman."""
    with tempfile.TemporaryDirectory(prefix="engine-") as path:
        if name != "podman":
            yield fake(Path(path), name.split()[1])
            return
        found, why = podman(Path(path))
        if found is None:
            pytest.skip(why)
        yield found
        subprocess.run([found.program, "rmi", IMAGE, ENTRY], capture_output=True, check=False)


@contextmanager
def serving_on(
    machine: Machine | None, data_dir: Path, *, kill_grace_s: float = 0.5, **options: Any
) -> Generator[Running]:
    """Start an emulator that uses the engine, or none."""
    settings = {
        "container_engine": "none" if machine is None else machine.program,
        "container_options": () if machine is None else machine.options,
        "kill_grace_s": kill_grace_s,
    }
    with serving(data_dir, settings=settings, **options) as running:
        yield running


def container_pool(things: Things, **options: Any) -> str:
    """Create a pool with one node; `config` has further container settings of the pool."""
    config: Any = {"type": "dockerCompatible", **options.pop("config", {})}
    machine = models.VirtualMachineConfiguration(
        image_reference=models.BatchVmImageReference(
            publisher="microsoft-dsvm", offer="ubuntu-hpc", sku="2204"
        ),
        node_agent_sku_id="batch.node.ubuntu 22.04",
        container_configuration=models.BatchContainerConfiguration(**config),
    )
    given = {"target_dedicated_nodes": 1, "task_slots_per_node": 4, **options}
    return things.pool(virtual_machine_configuration=machine, **given)


def inside(image: str = IMAGE, **options: Any) -> models.BatchTaskContainerSettings:
    """Return the container settings of a task."""
    return models.BatchTaskContainerSettings(image_name=image, **options)
