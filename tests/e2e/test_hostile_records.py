"""What the writer of a record can do to the person who reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from runner.azure.auth.credentials import Connection, connect
from runner.azure.storage.blobs import BlobContainer
from runner.core.settings import load_settings
from runner.flows.runs.documents import runs_container
from runner.protocol.paths import RunPaths
from tests.e2e.conftest import Cli, until

pytestmark = pytest.mark.attack


@pytest.fixture
def connection(session_home: Path, tmp_path: Path) -> Connection:
    env = {"RUNNER_HOME": str(session_home), "HOME": "/"}
    return connect(load_settings({}, cwd=tmp_path, env=env))


@pytest.fixture
def runs(connection: Connection) -> BlobContainer:
    return runs_container(connection)


def rewrite(runs: BlobContainer, blob: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a document as its writer could."""
    document = json.loads(runs.read(blob) or b"{}")
    change(document)
    runs.put(blob, document)


@pytest.fixture
def running(cli: Cli, script: Callable[[str], Path]) -> Generator[str]:
    path = script("import time; print('begun', flush=True); time.sleep(300)")
    run_id = cli.json("train", path, "--detach")["run_id"]
    until(lambda: "begun" in cli.run("logs", run_id).stdout, timeout_s=120)
    yield run_id
    cli.run("cancel", run_id)


@pytest.mark.smoke
def test_record_does_not_decide_folder_and_user_of_exec(
    cli: Cli, running: str, runs: BlobContainer, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    (trap / "logs").mkdir(parents=True)
    (trap / "code").mkdir()
    (trap / "logs" / "environment.sh").write_text(f"id -u > {trap}/sourced\n")
    start = RunPaths(running).attempt_start(1)
    rewrite(runs, start, lambda one: one.update(work_dir=str(trap)))
    folder = cli.ok("exec", running, "--", "pwd").strip()
    assert not (trap / "sourced").exists()
    assert folder.endswith(f"/{running}/wd/code")
