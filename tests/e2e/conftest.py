"""Fixtures that run the command as a process, against separate local services."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from runner.core.home import HomePaths
from runner.core.settings import load_settings
from runner.flows.local import services
from runner.flows.local.evict import local_nodes
from runner.flows.local.task_folders import folders_outside
from runner.protocol.errors import RunnerError
from tests.e2e import warm
from tests.e2e.extras import Extras, ensure_extras

services._PORTS = warm.worker_ports(services._PORTS)
T = TypeVar("T")
HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
RUNNER = Path(sys.executable).with_name("runner")
SHARED_MNIST = ROOT.parent / "shared" / "data" / "mnist"
collect_ignore = ["strangers/layouts"]  # projects with tests of their own
KEPT = ROOT / ".cache" / "services"  # only downloads: Azurite, the cache of uv, Node.js


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests without the mark `smoke` as slow, because their processes take seconds."""
    here = f"{HERE}/"
    for item in items:
        if str(item.path).startswith(here) and item.get_closest_marker("smoke") is None:
            item.add_marker(pytest.mark.slow)


def new_home(path: Path) -> Path:
    """Return an empty RUNNER_HOME whose downloads are shared by all tests."""
    path.mkdir(parents=True)
    for name in ("azurite", "cache", "node"):
        (KEPT / name).mkdir(parents=True, exist_ok=True)
        (path / name).symlink_to(KEPT / name)
    return path


def remove_outside(home: Path) -> None:
    """Remove the folders that the emulator made elsewhere, which pytest does not."""
    for folder in folders_outside(HomePaths(home)):
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Cli:
    """Runs `runner` with a separate home, in a separate folder."""

    home: Path
    cwd: Path

    @property
    def env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RUNNER_", "AZURE_"))}
        return {**kept, "RUNNER_HOME": str(self.home), "HOME": str(self.cwd), "COLUMNS": "120"}

    def run(
        self, *args: object, timeout_s: float = 800, env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        given, words = {**self.env, **(env or {})}, [*map(str, args)]
        return warm.run(RUNNER, words, given, self.cwd, timeout_s)

    def ok(self, *args: object, **kwargs: Any) -> str:
        done = self.run(*args, **kwargs)
        assert done.returncode == 0, f"runner {args}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *args: object) -> Any:
        return json.loads(self.ok(*args, "-o", "json"))

    def start(self, *args: object) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(RUNNER), *map(str, args)],
            env=self.env,
            cwd=self.cwd,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )


def until(condition: Callable[[], T], *, timeout_s: float = 300, every_s: float = 0.1) -> T:
    """Poll until the condition is truthy, and return its value. Fail after the timeout.

    Most conditions run a command, and frequent polls would slow the services down. The pause is
    twice as long as the last poll, and later a tenth of the time waited, at most 20 times the last
    poll.
    """
    start = time.monotonic()
    while True:
        began = time.monotonic()
        if value := condition():
            return value
        now = time.monotonic()
        assert now < start + timeout_s, "did not happen in time"
        took = now - began
        time.sleep(max(every_s, 2 * took, min(20 * took, (now - start) / 10)))


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Send SIGINT and await the end of the process."""
    process.send_signal(signal.SIGINT)
    return process.communicate(timeout=120)


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically, so that readers never see a part of it."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def show_ended(cli: Cli, run_id: str) -> dict[str, Any]:
    """Wait until a run has ended, in any state, and return the output of `show` about it."""
    cli.run("attach", run_id)
    shown = cli.json("show", run_id)
    assert shown["state"] in ("succeeded", "failed", "cancelled", "lost"), shown["state"]
    return shown


def evict_node_of(cli: Cli, run_id: str, *options: object) -> list[dict[str, Any]]:
    """Evict the node of a running run, and return the output of `local evict`."""

    def evict() -> list[dict[str, Any]] | None:
        node = until(lambda: cli.json("show", run_id)["node"])
        done = cli.run("local", "evict", node, *options, "-o", "json")
        if "its eviction is pending" in done.stderr:  # an earlier test announced it
            return None
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    found = until(evict)
    assert found is not None
    return found


def await_evictions(cli: Cli) -> None:
    """Wait until no node of the pool is being evicted or replaced because an earlier test asked.

    An eviction happens up to 30 seconds after it was announced, to any run on the node.
    """
    settings = load_settings({}, cwd=cli.cwd, env=cli.env)
    with suppress(RunnerError):  # an earlier test stopped the services
        until(lambda: all(node.evictable for node in local_nodes(settings)), timeout_s=120)


def known_runs(cli: Cli) -> set[str]:
    """Return the IDs of all runs, including runs of other tests, which end at any time."""
    return {row["run_id"] for row in cli.json("ps", "-a")}


@pytest.fixture(scope="session")
def session_home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Return the home of local services with two nodes, shared by the tests of one worker."""
    folder = tmp_path_factory.mktemp("e2e")
    home = new_home(folder / "home")
    cli = Cli(home, folder)
    cli.ok("local", "up", "--nodes", "2")
    yield home
    cli.ok("local", "down")
    remove_outside(home)


@pytest.fixture
def cli(session_home: Path, tmp_path: Path) -> Cli:
    found = Cli(session_home, tmp_path)
    await_evictions(found)
    return found


@pytest.fixture(scope="session")
def extras() -> Extras:
    """Return an environment with the optional extras, created once and kept with the checkout."""
    return ensure_extras()


@pytest.fixture
def own_cli(tmp_path: Path) -> Generator[Cli]:
    """Yield a command with separate services, which the test may break."""
    (tmp_path / "work").mkdir()
    cli = Cli(new_home(tmp_path / "home"), tmp_path / "work")
    yield cli
    cli.run("local", "down")
    remove_outside(cli.home)


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str, name: str = "train.py") -> Path:
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        return folder

    return write


@pytest.fixture(scope="session")
def mnist() -> Path:
    if not SHARED_MNIST.is_dir():
        pytest.skip("no MNIST beside the checkout")
    return SHARED_MNIST
