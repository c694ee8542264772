"""Tasks of the local services run as another user, apart from runner's home."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential

from batch_emulator.executor.isolation import choose_isolation
from runner.azure.auth.credentials import connect
from runner.core.settings import load_settings
from runner.flows.runs.documents import runs_container
from runner.protocol.paths import RunPaths
from tests.e2e.conftest import Cli, new_home, until

_CHOSEN = choose_isolation("auto", Path(tempfile.gettempdir(), "emulator-of-tests"))
_TRAIN = """
import json, os, pathlib
outputs = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
data = pathlib.Path(os.environ["RUNNER_DATA_DIR"])
seen = {"uid": os.getuid(), "data": (data / "d").read_text()}
(outputs / "seen.json").write_text(json.dumps(seen))
(pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"]) / "1").write_text("state")
"""


@dataclasses.dataclass(frozen=True)
class _AsUser(Cli):
    """Runs `runner` whose emulator keeps tasks apart by a user of their own."""

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "BATCH_EMULATOR_ISOLATION": "user"}


@pytest.fixture
def cli(tmp_path: Path) -> Generator[Cli]:
    """Yield separate services, because other users cannot enter the homes of root's tests."""
    if _CHOSEN.owner is None:
        pytest.skip(_CHOSEN.why)
    (tmp_path / "work").mkdir()
    cli = _AsUser(new_home(tmp_path / "home"), tmp_path / "work")
    yield cli
    outside = cli.home / "local" / "batch" / "outside"
    place = outside.readlink() if outside.is_symlink() else None
    cli.run("local", "reset", "--yes")
    if place is not None:
        assert not (place / "nodes").exists()
        shutil.rmtree(place)  # the cache, which a reset keeps


def _run_task(cli: Cli, script: str) -> str:
    """Run a shell script as a task of the local pool. Return its output."""
    exports = cli.json("local", "env")
    credential: Any = AzureNamedKeyCredential(
        exports["AZURE_BATCH_ACCOUNT"], exports["AZURE_BATCH_ACCESS_KEY"]
    )
    with BatchClient(exports["AZURE_BATCH_ENDPOINT"], credential) as client:
        info = models.BatchPoolInfo(pool_id="local")
        client.create_job(models.BatchJobCreateOptions(id="job", pool_info=info))
        line = f"/bin/sh -c {shlex.quote(script)}"
        client.create_task("job", models.BatchTaskCreateOptions(id="task", command_line=line))
        until(lambda: client.get_task("job", "task").state == models.BatchTaskState.COMPLETED)
        content = client.download_task_file("job", "task", "stdout.txt")
        return b"".join(content).decode()


@pytest.mark.slow
def test_run_as_another_user_reads_data_and_writes_outputs(
    cli: Cli, script: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "d").write_text("data", encoding="utf-8")
    project = script(_TRAIN)
    cli.ok("train", project / "train.py", "--data", tmp_path / "data")
    [seen] = cli.cwd.glob("outputs/*/seen.json")
    found = json.loads(seen.read_text("utf-8"))
    assert found["data"] == "data"
    assert cli.json("local", "status")["isolation"] == f"user {found['uid']}"


def test_tasks_can_neither_break_runner_nor_read_its_keys(cli: Cli) -> None:
    cli.ok("local", "up")
    keys = cli.home / "local" / "keys.json"
    script = f"pip3 uninstall -y pydantic; cat {keys} || echo closed; echo $PATH; id -u"
    said = _run_task(cli, script).splitlines()
    assert said[-3] == "closed"
    assert cli.json("local", "status")["isolation"] == f"user {said[-1]}"
    assert ".venv" not in said[-2]
    cli.ok("ps")


@pytest.mark.attack
def test_command_in_the_folder_of_a_run_never_runs_as_root(cli: Cli, tmp_path: Path) -> None:
    (cli.cwd / "run.py").write_text("import time; print('begun', flush=True); time.sleep(300)")
    run_id = cli.json("train", "./run.py", "--detach")["run_id"]
    until(lambda: "begun" in cli.run("logs", run_id).stdout, timeout_s=120)
    trap = tmp_path / "trap"
    (trap / "logs").mkdir(parents=True)
    (trap / "logs" / "environment.sh").write_text(f"id -u > {trap}/sourced\n")
    settings = load_settings({}, cwd=tmp_path, env={"RUNNER_HOME": str(cli.home), "HOME": "/"})
    runs = runs_container(connect(settings))
    start = RunPaths(run_id).attempt_start(1)
    record = json.loads(runs.read(start) or b"")
    runs.put(start, {**record, "work_dir": str(trap)})
    uid = cli.json("local", "status")["isolation"].removeprefix("user ")
    shown = cli.ok("exec", run_id, "--", "sh", "-c", "id -u; id -G; touch made; stat -c %u made")
    assert shown.split() == [uid] * 3
    printed = cli.ok("exec", run_id, "--print", "--", "id", "-u").strip()
    done = subprocess.run(["sh", "-c", printed], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == uid
    assert not (trap / "sourced").exists()
    folder = Path(record["work_dir"])
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(trap)
    refused = cli.run("exec", run_id, "--", "id")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert "R-REACH-FOLDER" in refused.stderr
    assert not (trap / "sourced").exists()
    cli.run("cancel", run_id)
