"""A dry run reports the same as the submission, and creates nothing."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from azure.batch.models import BatchJobDisableOptions

from runner.azure.auth.credentials import Connection, connect
from runner.azure.batch.jobs import create_job
from runner.azure.storage.blobs import BlobContainer
from runner.cli.main import main
from runner.core.home import HomePaths
from runner.core.progress import ignore_progress
from runner.core.recipe.file import load_recipe
from runner.core.recipe.options import RunOptions
from runner.core.recipe.recipe import Recipe
from runner.core.settings import Settings, load_settings
from runner.flows.data import datasets
from runner.flows.runs.history import list_runs
from runner.flows.submit.submit_group import submit_group
from runner.flows.submit.submit_run import submit_run
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths
from tests.contract.server import wire
from tests.e2e.conftest import Cli
from tests.e2e.plans import plan_file, plan_recipe, preview_file, preview_recipe
from tests.unit.test_contract import OUTPUTS

pytestmark = pytest.mark.smoke  # most of its tests take milliseconds
Write = Callable[..., Path]
RUN_ID = "dryrun-20261121-143005-k3f9"
FAILED_ID = "dryrun-20261121-143006-k3f9"


@pytest.fixture
def settings(session_home: Path, tmp_path: Path) -> Settings:
    return load_settings({}, cwd=tmp_path, env={"RUNNER_HOME": str(session_home), "HOME": "/"})


@pytest.fixture
def connection(settings: Settings) -> Generator[Connection]:
    connection = connect(settings)
    runs = BlobContainer(connection.blob_service(), connection.outputs.container_runs)
    put_runs(connection, runs)
    yield connection
    for run_id in (RUN_ID, FAILED_ID):
        runs.delete(RunPaths(run_id).run)
        runs.delete(RunPaths(run_id).result)


def put_runs(connection: Connection, runs: BlobContainer) -> None:
    """Create a run that wrote a model, a run that failed, and a picture."""
    for run_id, status in ((RUN_ID, "succeeded"), (FAILED_ID, "failed")):
        batch = {"pool": "local", "spot": True, "job_id": "j", "task_id": run_id}
        run = {"format": 1, "run_id": run_id, "recipe": {"name": "x"}, "batch": batch}
        more = {"experiment": "x", "created": "2026-11-21T14:30:05+00:00", "params": {}}
        runs.create(RunPaths(run_id).run, {**run, **more})
        outputs = [{"path": "model.bin", "size_bytes": 1, "sha256": "a" * 64}]
        result = {"format": 1, "run_id": run_id, "status": status, "attempt": 1}
        runs.create(RunPaths(run_id).result, {**result, "outputs": outputs})
    data = connection.blob_service().get_container_client(connection.outputs.container_data)
    data.get_blob_client("pictures/cat").upload_blob(io.BytesIO(b"miau"), overwrite=True)


def fields(err: RunnerError) -> tuple[str, str, str, str, int]:
    return (err.code, err.what, err.why, err.fix, int(err.exit_code))


def train(connection: Connection, settings: Settings, recipe: Recipe) -> None:
    submit_run(connection, plan_recipe(connection, settings, recipe), ignore_progress)


def submit(connection: Connection, settings: Settings, path: Path) -> None:
    submit_group(connection, plan_file(connection, settings, path), ignore_progress)


def all_there(connection: Connection, settings: Settings) -> set[str]:
    """Return the IDs of all runs, jobs and pools. Those of other tests may end at any time."""
    client = connection.batch_client()
    runs = list_runs(connection, limit=None).rows
    return {
        *(row.run_id for row in runs),
        *(f"job {job.id}" for job in client.list_jobs()),
        *(f"pool {pool.id}" for pool in client.list_pools()),
    }


@pytest.mark.parametrize("verb", ["train", "submit", "schedule"])
def test_refused_runs_download_no_data(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets, "_load_cached", lambda _: None)
    monkeypatch.setattr(datasets, "_run", lambda *_: pytest.fail("a download has begun"))
    folder = tmp_path / "recipe"
    folder.mkdir()
    (folder / "train.py").touch()
    keys = "dataset: mnist\ncommand: python train.py\ninputs: {x: 'run:no-such-run'}\n"
    (folder / "train.yaml").write_text(keys)
    Path("tasks.yaml").write_text("tasks: {a: {recipe: ./recipe}}\n")
    words = {
        "train": ["train", "recipe"],
        "submit": ["submit", "tasks.yaml"],
        "schedule": ["schedule", "create", "recipe", "--every", "1d"],
    }
    assert main(words[verb]) == 2
    assert "error[R-RUN-UNKNOWN]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ("inputs: {x: 'blob:no-such-container/a'}", "R-INPUT"),
        ("inputs: {x: 'blob:data/no/such/prefix'}", "R-INPUT"),
        ("inputs: {x: 'run:no-such-run'}", "R-RUN-UNKNOWN"),
        (f"inputs: {{x: 'run:{RUN_ID}/model.txt'}}", "R-INPUT"),
        (f"inputs: {{x: 'run:{FAILED_ID}'}}", "R-INPUT"),
        ("inputs: {x: 'dataset:no-such-set'}", "R-INPUT"),
        ("inputs: {x: ./no-such-file}", "R-INPUT"),
        ("dataset: no-such-set", "R-DATA-MISSING"),
        ("after: [no-such-run]", "R-RUN-UNKNOWN"),
        (f"after: [{RUN_ID}, {FAILED_ID}]", "R-AFTER-FAILED"),
        ("secrets: {TOKEN: {env: NO_SUCH_VARIABLE}}", "R-SECRET-MISSING"),
        ("resources: {gpus: 8}", "R-POOL-FIT"),
    ],
)
def test_dry_run_fails_like_the_submission(
    connection: Connection, settings: Settings, script: Write, keys: str, code: str
) -> None:
    folder = script("print(1)")
    (folder / "train.yaml").write_text(keys)
    recipe = load_recipe(str(folder), cwd=folder)
    before = all_there(connection, settings)
    with pytest.raises(RunnerError) as dry:
        preview_recipe(settings, recipe)
    with pytest.raises(RunnerError) as real:
        train(connection, settings, recipe)
    assert dry.value.code == code
    assert fields(dry.value) == fields(real.value)
    assert all_there(connection, settings) <= before


def test_dry_run_finds_problems_known_to_the_services(
    connection: Connection, settings: Settings, script: Write
) -> None:
    folder = script("print(1)")
    (folder / "train.yaml").write_text(
        f"after: [{RUN_ID[:-4]}]\n"
        f"inputs: {{cat: 'blob:data/pictures', model: 'run:{RUN_ID[:-4]}/*.bin',"
        " old: 'share:no/such', web: 'https://example.org/x'}\n"
    )
    before = all_there(connection, settings)
    recipe = load_recipe(str(folder), cwd=folder)
    found = preview_recipe(settings, recipe)
    named = found.run.content.inputs
    assert [file["name"] for file in named["cat"]["files"]] == ["cat"]
    assert named["model"] == {"kind": "run", "run_id": RUN_ID, "path": "*.bin"}
    assert found.run.after == (RUN_ID,)
    assert list(found.notes) == ["input old: no/such does not exist on the file share yet"]
    assert found.unanswered_json() == [{"what": "input web", "why": "the node fetches it"}]
    assert all_there(connection, settings) <= before


def test_dry_run_prints_the_documents_of_the_submission(
    connection: Connection, settings: Settings, script: Write
) -> None:
    folder = script("print(1)")
    keys = f"inputs: {{cat: 'blob:data/pictures', model: 'run:{RUN_ID}', code: train.py}}\n"
    (folder / "train.yaml").write_text(f"after: [{RUN_ID}]\n{keys}")
    recipe = load_recipe(str(folder), cwd=folder)
    [dry] = preview_recipe(settings, recipe).documents().values()
    plan = plan_recipe(connection, settings, recipe)
    spec = submit_run(connection, plan, ignore_progress)
    runs = BlobContainer(connection.blob_service(), connection.outputs.container_runs)
    real = json.loads(runs.read(RunPaths(spec.run_id).run) or b"")
    dry["batch"]["task_id"] = dry["run_id"] = spec.run_id
    assert dry | {"created": real["created"]} == real


def test_dry_run_suggests_after_for_an_input_of_a_running_run(
    connection: Connection, settings: Settings, script: Write
) -> None:
    runs = BlobContainer(connection.blob_service(), connection.outputs.container_runs)
    runs.delete(RunPaths(RUN_ID).result)
    folder = script("print(1)")
    (folder / "train.yaml").write_text(f"inputs: {{x: 'run:{RUN_ID}'}}\n")
    recipe = load_recipe(str(folder), cwd=folder)
    found = preview_recipe(settings, recipe)
    assert list(found.notes) == [f"input x: run {RUN_ID} has not ended: --after {RUN_ID}"]


def test_dry_run_names_the_job_of_the_submission(
    connection: Connection, settings: Settings, script: Write
) -> None:
    client = connection.batch_client()
    recipe = load_recipe(str(script("print(1)")), cwd=Path.cwd())
    options = RunOptions(experiment="dry run of a closed job")
    found = preview_recipe(settings, recipe, options)
    job_id = found.job.job_id
    create_job(connection, job_id, "local")
    client.begin_disable_job(
        job_id, BatchJobDisableOptions(disable_tasks="requeue"), polling_interval=0
    ).wait()
    with pytest.raises(RunnerError) as dry:
        preview_recipe(settings, recipe, options)
    with pytest.raises(RunnerError) as real:
        submit_run(connection, plan_recipe(connection, settings, recipe, options), ignore_progress)
    assert fields(dry.value) == fields(real.value)
    why = wire(terminateReason="a test")
    client.begin_terminate_job(job_id, why, polling_interval=0).wait()
    assert preview_recipe(settings, recipe, options).job.job_id == f"{job_id}-2"
    assert preview_recipe(settings, recipe, options).job.job_id == f"{job_id}-2", "it made none"


def test_dry_run_of_a_file_looks_up_inputs_of_its_tasks(
    connection: Connection, settings: Settings, script: Write
) -> None:
    path = script("print(1)") / "graph.yaml"
    tasks = "tasks:\n  a: {command: python train.py}\n  b:\n    command: python train.py\n"
    path.write_text(f"{tasks}    inputs: {{x: {{run: a, path: y}}, z: 'run:{FAILED_ID}'}}\n")
    before = all_there(connection, settings)
    with pytest.raises(RunnerError) as dry:
        preview_file(settings, path)
    with pytest.raises(RunnerError) as real:
        submit(connection, settings, path)
    assert fields(dry.value) == fields(real.value)
    path.write_text(f"{tasks}    inputs: {{x: {{run: a, path: y}}, z: 'run:{RUN_ID}'}}\n")
    found = preview_file(settings, path)
    assert found.runs["b"].content.inputs["x"]["run_id"] == found.run_group.runs["a"]
    assert found.unanswered_text() == ""
    assert all_there(connection, settings) <= before


def test_dry_run_of_an_existing_schedule_is_refused_like_its_submission(
    cli: Cli, script: Write
) -> None:
    path = script("print(1)") / "twice.yaml"
    path.write_text(
        "schedule: {every: 6h, start: 2099-01-01}\n"
        "tasks: {a: {command: python train.py}, b: {command: python train.py, after: [a]}}\n"
    )
    cli.ok("submit", path, "--dry-run")
    cli.ok("submit", path)
    try:
        refused = [cli.run("submit", path, *more) for more in ((), ("--dry-run",))]
    finally:
        cli.ok("schedule", "rm", "twice")
    assert "R-SCHEDULE-EXISTS" in refused[0].stderr
    assert [one.returncode for one in refused] == [refused[0].returncode] * 2
    assert refused[1].stderr == refused[0].stderr[-len(refused[1].stderr) :]


def test_dry_run_without_services_names_skipped_checks(tmp_path: Path, script: Write) -> None:
    home = tmp_path / "no-home"
    folder = script("print(1)")
    (folder / "train.yaml").write_text(
        "after: [some-run]\ninputs: {cat: 'blob:data/no-such', s: 'share:x', p: train.py}\n"
        "launcher: torchrun\n"
    )
    cli = Cli(home, tmp_path)
    printed = " ".join(cli.ok("train", folder, "--dry-run").split())
    assert "pool local, job project_local: the local services are not running" in printed
    assert "command python train.py launcher torchrun code" in printed
    plan = json.loads(cli.ok("train", folder, "--dry-run", "-o", "json"))
    why = "the local services are not running"
    names = ("input cat", "input s", "after some-run", "pool local, job project_local")
    assert plan["not_looked_up"] == [{"what": name, "why": why} for name in names]
    assert plan["after"] == ["some-run"]
    assert not home.exists()


def test_dry_run_for_an_old_stack_is_refused_like_the_submission(
    tmp_path: Path, script: Write
) -> None:
    cli = Cli(tmp_path / "home", tmp_path)
    outputs = HomePaths(cli.home).stack_outputs("dev")
    outputs.parent.mkdir(parents=True)
    old = {**json.loads(OUTPUTS.to_json()), "contract_version": 1, "container_code": None}
    outputs.write_text(json.dumps(old))
    refused = cli.run("train", script("print(1)"), "--dry-run", "--target", "azure")
    assert refused.returncode == 3
    assert "R-STACK-NO-CODE" in refused.stderr
    assert "fix: runner up" in refused.stderr


def test_dry_run_downloads_nothing_and_checks_local_data(
    connection: Connection, settings: Settings, script: Write, tmp_path: Path
) -> None:
    folder = script("print(1)")
    (folder / "train.yaml").write_text("dataset: mnist\ninputs: {digits: 'dataset:mnist'}\n")
    recipe = load_recipe(str(folder), cwd=folder)
    found = preview_recipe(settings, recipe)
    assert not found.files.data
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunnerError) as caught:
        preview_recipe(settings, recipe, RunOptions(data=tmp_path / "empty"))
    assert caught.value.code == "R-DATA-PATH"
