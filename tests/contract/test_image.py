"""The emulator's image in a container, and the examples of `examples/testcontainers` with it.

Skipped where no container engine runs, or where neither a registry nor debootstrap gives a base.
"""

from __future__ import annotations

import base64
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import plain_http
from tests.contract.server import Things, client_for, eventually
from tests.unit.source_tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

KEY = base64.b64encode(secrets.token_bytes(64)).decode()
EXAMPLES = ROOT / "examples" / "testcontainers"
BOUND = 150  # MB, compressed


@dataclass(frozen=True)
class Image:
    """An image, the engine that has it, and its compressed size in MB."""

    name: str
    engine: str
    size: int

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the engine."""
        return subprocess.run(
            [self.engine, *words],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def ok(self, *words: str, **variables: str) -> str:
        """Return what a command of the engine prints."""
        done = self.run(*words, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture(scope="module")
def image() -> Image:
    built = subprocess.run(
        [ROOT / "tools" / "emulator_image.sh"], capture_output=True, text=True, check=False
    )
    said = built.stderr.strip().splitlines()
    if built.returncode == 75:
        pytest.skip(said[-1])
    assert built.returncode == 0, built.stderr
    size = re.search(r"(\d+) MB compressed$", said[-1])
    assert size is not None
    chosen = os.environ.get("CONTAINER_ENGINE", "podman docker").split()
    found = [
        engine for engine in chosen if Image(built.stdout, engine, 0).run("info").returncode == 0
    ]
    return Image(built.stdout.strip(), found[0], int(size[1]))


@contextmanager
def started(image: Image, *options: str) -> Generator[tuple[str, str]]:
    """Yield the name of a container and the URL of its account."""
    name = f"batch-emulator-test-{secrets.token_hex(4)}"
    given = (
        "--detach",
        "--no-healthcheck",
        "--name",
        name,
        "--publish",
        "127.0.0.1::8900",
        "--env",
        "BATCH_EMULATOR_KEY",
    )
    image.ok("run", *given, image.name, *options, BATCH_EMULATOR_KEY=KEY)
    try:
        url = f"http://{image.ok('port', name, '8900/tcp')}"
        _wait_until_healthy(url)
        yield name, url
    finally:
        image.run("rm", "--force", "--volumes", name)


def _wait_until_healthy(url: str) -> None:
    def healthy() -> bool:
        with suppress(Exception):  # nothing listens yet, or the connection is closed
            return plain_http.get(f"{url}/_emulator/health", timeout=60).status_code == 200
        return False

    eventually(healthy, 300)


def test_image_is_small(image: Image) -> None:
    assert image.size <= BOUND


def test_image_does_not_start_without_a_key(image: Image) -> None:
    done = image.run("run", "--rm", "--no-healthcheck", image.name)
    assert done.returncode == 2
    assert "missing account key" in done.stderr


@pytest.mark.feature(60)
def test_image_runs_tasks_as_an_ordinary_user_and_keeps_its_state(image: Image) -> None:
    with started(image, "--boot-seconds", "0") as (name, url):
        (found,) = json.loads(image.ok("image", "inspect", image.name))
        check = found.get("Healthcheck") or found["Config"]["Healthcheck"]  # podman, docker
        image.ok("exec", name, *check["Test"][1:])
        things = Things(client_for(url, KEY, "local"))
        job = things.job(things.pool(target_dedicated_nodes=1))
        task = things.task(job, "/bin/bash -c 'id -u; pip3 --version; echo $AZ_BATCH_ACCOUNT_URL'")
        things.wait_task(job, task)
        uid, pip, own = things.text(job, task).splitlines()
        assert (uid, own) == ("10001", "http://127.0.0.1:8900")
        assert pip.startswith("pip ")
        begun = time.monotonic()
        image.ok("stop", "-t", "300", name)  # SIGKILL would come then
        assert time.monotonic() - begun < 200, "it did not end at SIGTERM"
        assert "whoever reaches port 8900" in image.run("logs", name).stderr
        image.ok("start", name)
        again = f"http://{image.ok('port', name, '8900/tcp')}"
        _wait_until_healthy(again)
        assert [each.id for each in client_for(again, KEY, "local").list_jobs()] == [job]


@contextmanager
def docker_service(image: Image, folder: Path) -> Generator[dict[str, str]]:
    """Yield the variables with which Testcontainers finds the engine."""
    found = {
        "BATCH_EMULATOR_IMAGE": image.name,
        "TESTCONTAINERS_RYUK_DISABLED": "true",  # its image is in a registry
        "TESTCONTAINERS_CONNECTION_MODE": "docker_host",
        "TESTCONTAINERS_HOST_OVERRIDE": "127.0.0.1",
    }
    if "podman" not in image.run("--version").stdout:
        yield found
        return
    socket = folder / "podman.sock"
    service = subprocess.Popen(
        [image.engine, "system", "service", "--time", "0", f"unix://{socket}"],
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(socket.exists, 60)
        yield {**found, "DOCKER_HOST": f"unix://{socket}"}
    finally:
        service.terminate()
        service.wait(60)


def run_in(folder: Path, variables: Mapping[str, str], *command: str | Path) -> tuple[int, str]:
    """Return exit code and output of a command in a folder."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


PIP = ["v/bin/python", "-m", "pip", "install", "--quiet", "--requirement", "requirements.txt"]
# The program that an example needs, how its packages are installed, and how its test runs.
COMMANDS = {
    "python": ("python3", PIP, ["v/bin/python", "-m", "pytest", "-q"]),
    "node": ("npm", ["npm", "install", "--no-audit", "--no-fund"], ["npm", "test"]),
    "java": ("mvn", ["mvn", "-q", "-B", "test-compile"], ["mvn", "-q", "-B", "test"]),
}


@pytest.mark.parametrize("language", sorted(COMMANDS))
def test_example_runs_a_task(image: Image, tmp_path: Path, language: str) -> None:
    program, install, command = COMMANDS[language]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    folder = tmp_path / language
    shutil.copytree(EXAMPLES / language, folder)
    if language == "python":
        subprocess.run([sys.executable, "-m", "venv", folder / "v"], check=True)
    code, printed = run_in(folder, {}, *_program(install, folder))
    if code != 0:
        pytest.skip(f"its packages cannot be installed here: {printed.strip()[-300:]}")
    with docker_service(image, tmp_path) as variables:
        code, printed = run_in(folder, variables, *_program(command, folder))
    assert code == 0, printed


def _program(command: list[str], folder: Path) -> list[str]:
    first, *rest = command
    return [str(folder / first) if "/" in first else first, *rest]
