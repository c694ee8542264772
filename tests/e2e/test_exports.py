"""`runner tensorboard` (feature 49) and `runner export`, with the real packages."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.conftest import Cli, until
from tests.e2e.extras import Extras

pytestmark = pytest.mark.slow
_SCRIPT = """
import json, os, pathlib, time
output = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
(output / "sub").mkdir()
(output / "sub" / "model.bin").write_bytes(b"m" * 1000)
with open(os.environ["RUNNER_METRICS_FILE"], "a") as file:
    for step in range(1, 11):
        values = {"step": step, "val/loss": 1 / step, "odd \\u00e9@": float("nan")}
        file.write(json.dumps(values) + "\\n")
    file.write(json.dumps({"name": "seconds", "value": 1e300}) + "\\n")
events = pathlib.Path("recorded.bin")
if events.is_file():
    (output / "tb").mkdir()
    (output / "tb" / "events.out.tfevents.1.script").write_bytes(events.read_bytes())
    kept = pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "events.out.tfevents.2.kept")
    kept.write_bytes(events.read_bytes())
    print("written", flush=True)
    while not (output / "stop").exists():
        time.sleep(0.05)
"""


@pytest.fixture
def run_id(cli: Cli, script: Callable[[str], Path]) -> str:
    """Return a run that succeeded."""
    folder = script(_SCRIPT)
    (folder / "train.yaml").write_text("command: python train.py\nparams: {rate: 0.1, kind: big}\n")
    words = ("train", str(folder), "--no-download", "-o", "json", "--", "--batch-size", "8")
    words += ("--api-key", "secret-argument")
    return str(json.loads(cli.ok(*words))["run_id"])


@pytest.mark.attack
def test_tensorboard_gets_no_file_that_makes_it_read_others(
    cli: Cli, extras: Extras, script: Callable[[str], Path], tmp_path: Path
) -> None:
    """Its projector opens any path that a `projector_config.pbtxt` beside event files names."""
    folder = script(
        "import os\nfolder = os.environ['RUNNER_OUTPUT_DIR'] + '/x.tfevents'\nos.mkdir(folder)\n"
        "for name in ('projector_config.pbtxt', 'events.out.tfevents.1.script'):\n"
        "    open(f'{folder}/{name}', 'w').write('embeddings { metadata_path: \"/etc/passwd\" }')\n"
    )
    run_id = cli.json("train", folder, "--no-download")["run_id"]
    extras.json(cli, "export", run_id, "--to", "tensorboard", "--uri", tmp_path / "tb")
    names = {path.name for path in (tmp_path / "tb").rglob("*")}
    assert "events.out.tfevents.1.script" in names
    assert "projector_config.pbtxt" not in names


_LOOK = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient(sys.argv[1])
[experiment] = [e for e in client.search_experiments() if e.name != "Default"]
print(json.dumps([
    {
        "name": run.info.run_name, "status": run.info.status, "params": run.data.params,
        "tags": run.data.tags, "span": run.info.end_time - run.info.start_time,
        "history": {
            name: [[m.step, str(m.value)] for m in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        },
        "files": [[f.path, f.file_size] for f in client.list_artifacts(run.info.run_id, "sub")],
    }
    for run in client.search_runs([experiment.experiment_id])
]))
"""


def test_second_export_to_mlflow_updates_the_run_without_duplicates(
    cli: Cli, extras: Extras, run_id: str, tmp_path: Path
) -> None:
    address = tmp_path / "mlruns"
    first = extras.json(cli, "export", run_id, "--to", "mlflow", "--uri", address)
    again = extras.json(cli, "export", run_id, "--to", "mlflow", "--uri", address)
    assert (first["created"], first["new_points"], first["new_files"]) == (True, 21, 1)
    assert (again["created"], again["new_points"], again["new_files"]) == (False, 0, 0)
    assert again["mlflow_run_id"] == first["mlflow_run_id"]
    [found] = extras.python(_LOOK, address.as_uri())
    assert (found["name"], found["status"]) == (run_id, "FINISHED")
    params = {"rate": "0.1", "kind": "big", "batch_size": "8", "api_key": "***"}
    assert found["params"] == params
    assert "secret-argument" not in json.dumps(found)
    assert found["history"]["val/loss"] == [[n, str(1 / n)] for n in range(1, 11)]
    assert found["history"]["odd é_"] == [[n, "nan"] for n in range(1, 11)]
    assert found["history"]["seconds"] == [[1, "1e+300"]]
    assert found["files"] == [["sub/model.bin", 1000]]
    assert found["tags"]["runner.run_id"] == run_id
    assert len(found["tags"]["runner.code.sha256"]) == 64
    assert found["span"] >= 0
    assert "sig=" not in json.dumps(found)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return json.load(reply)


def _scalars(url: str, run: str, tag: str) -> list[Any]:
    try:
        return _get(f"{url}data/plugin/scalars/scalars?tag={quote(tag)}&run={quote(run, safe='')}")
    except OSError:
        return []


@pytest.mark.feature(49)
def test_tensorboard_shows_a_running_run_and_its_event_files(
    cli: Cli, extras: Extras, run_id: str, tmp_path: Path, script: Callable[[str], Path]
) -> None:
    shown = extras.json(cli, "export", run_id, "--to", "tensorboard", "--uri", tmp_path / "tb")
    again = extras.json(cli, "export", run_id, "--to", "tensorboard", "--uri", tmp_path / "tb")
    assert shown == again
    assert shown["points"] == 21
    [events] = Path(shown["where"]).iterdir()
    folder = script(_SCRIPT)
    (folder / "recorded.bin").write_bytes(events.read_bytes())
    (folder / "train.yaml").write_text("command: python train.py\ncheckpoints: {interval: 1s}\n")
    live = cli.json("train", folder, "--detach")["run_id"]
    until(lambda: "written" in cli.run("logs", live).stdout, timeout_s=120)
    board = subprocess.Popen(
        [str(extras.bin / "runner"), "tensorboard", live, run_id, "--port", "0"],
        env=cli.env,
        cwd=cli.cwd,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert board.stdout is not None
        url = board.stdout.readline().strip()
        until(lambda: len(_scalars(url, f"{live}/script/tb", "val/loss")) == 10)
        until(lambda: len(_scalars(url, live, "val/loss")) == 10)
        kept = f"{live}/script/checkpoints"
        until(lambda: len(_scalars(url, kept, "val/loss")) == 10)
        assert len(_scalars(url, run_id, "val/loss")) == 10
        cli.ok("exec", live, "--", "sh", "-c", 'touch "$RUNNER_OUTPUT_DIR/stop"')
    finally:
        board.send_signal(signal.SIGINT)
        board.wait(timeout=120)
    assert board.returncode == 0
    assert list((cli.home / "tensorboard").iterdir()) == []
    until(lambda: "succeeded" in cli.run("show", live).stdout)
    over = extras.json(cli, "export", live, "--to", "tensorboard", "--uri", tmp_path / "over")
    found = sorted(
        str(path.relative_to(over["where"])) for path in Path(over["where"]).rglob("*.[sk]*t*")
    )
    assert found == [
        "script/checkpoints/events.out.tfevents.2.kept",
        "script/tb/events.out.tfevents.1.script",
    ]


def test_missing_extra_is_reported_with_the_install_command(
    cli: Cli, run_id: str, tmp_path: Path
) -> None:
    for extra, words in (
        ("mlflow", ("export", run_id, "--to", "mlflow", "--uri", tmp_path / "x")),
        ("tensorboard", ("export", run_id, "--to", "tensorboard", "--uri", tmp_path / "x")),
        ("tensorboard", ("tensorboard", run_id)),
    ):
        refused = cli.run(*words)
        assert (refused.returncode, "R-EXTRA-MISSING" in refused.stderr) == (3, True)
        assert f"pip install 'azure-batch-runner[{extra}]'\n" in refused.stderr
    unsaid = cli.run("export", run_id, "--to", "mlflow")
    assert (unsaid.returncode, "R-EXPORT-URI" in unsaid.stderr) == (2, True)
