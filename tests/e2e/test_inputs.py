"""Inputs by name: from this machine, from blob, from the web, from another run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from azure.storage.blob import BlobServiceClient

from runner.core.home import HomePaths
from tests.e2e.conftest import Cli, known_runs
from tests.unit.node.file_server import serve_file

Write = Callable[..., Path]

SHOW = """
import os, pathlib
for name, value in sorted(os.environ.items()):
    if name.startswith("RUNNER_INPUT_"):
        path = pathlib.Path(value)
        files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
        print(name, [f.read_text() for f in files])
out = pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"])
(out / "model.txt").write_text("weights")
"""


@pytest.fixture
def blobs(cli: Cli) -> BlobServiceClient:
    return blob_service(cli)


def blob_service(cli: Cli) -> BlobServiceClient:
    """Return the storage of the local services."""
    home = HomePaths(cli.home)
    stack = json.loads(home.local_outputs.read_text())
    key = json.loads(home.keys.read_text())["storage"]
    credential = {"account_name": stack["storage_account"], "account_key": key}
    return BlobServiceClient(stack["blob_endpoint"], credential)


def put(blobs: BlobServiceClient, container: str, **files: str) -> None:
    if not blobs.get_container_client(container).exists():
        blobs.create_container(container)
    for name, text in files.items():
        blob = blobs.get_blob_client(container, name.replace("__", "/"))
        blob.upload_blob(text, overwrite=True)


@pytest.mark.smoke
@pytest.mark.feature(15)
def test_every_kind_of_input_reaches_the_script(
    cli: Cli, script: Write, blobs: BlobServiceClient
) -> None:
    put(blobs, "pictures", cats__1="miau", cats__2="purr", catsup="no cat")
    folder = script(SHOW)
    (folder / "words").mkdir()
    (folder / "words/a.txt").write_text("alpha")
    with serve_file(b"from the web") as web:
        (folder / "train.yaml").write_text(
            f"""
inputs:
  words: ./words
  one: {{path: words/a.txt}}
  cats: blob:pictures/cats
  cat: blob:pictures/cats/1
  web: {web.url}
"""
        )
        first = cli.run("train", folder, "--no-download")
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines() == [
        "RUNNER_INPUT_CAT ['miau']",
        "RUNNER_INPUT_CATS ['miau', 'purr']",
        "RUNNER_INPUT_ONE ['alpha']",
        "RUNNER_INPUT_WEB ['from the web']",
        "RUNNER_INPUT_WORDS ['alpha']",
    ]
    run = cli.json("show", "@last")
    assert run["run"]["inputs"]["cats"]["files"][0]["etag"]
    options = ("--input", "model=run:@last/model.txt", "--input", "words=blob:pictures/cats/2")
    second = cli.run("train", script(SHOW, "again.py") / "again.py", *options)
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines() == [
        "RUNNER_INPUT_MODEL ['weights']",
        "RUNNER_INPUT_WORDS ['purr']",
    ]
    assert cli.json("show", "@last")["run"]["inputs"]["model"]["run_id"] == run["run_id"]


def test_unchanged_input_is_not_uploaded_again(cli: Cli, script: Write) -> None:
    folder = script("print(1)")
    (cli.cwd / "data.bin").write_bytes(b"x" * 1_000_000)
    cli.ok("train", folder, "--input", "data=./data.bin")
    again = cli.run("train", folder, "--input", "data=./data.bin")
    assert "nothing changed" in again.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("x=blob:no-such-container/a", "container 'no-such-container' does not exist"),
        ("x=blob:runs/no/such/prefix", "no blob has that name or prefix"),
        ("x=run:no-such-run", "no-such-run"),
        ("x=./no-such-file", "no-such-file does not exist"),
    ],
)
def test_missing_input_is_refused_before_any_upload(
    cli: Cli, script: Write, given: str, said: str
) -> None:
    before = known_runs(cli)
    done = cli.run("train", script("print(1)"), "--input", given)
    assert done.returncode in (2, 3), done.stderr
    assert said in done.stderr
    assert "fix:" in done.stderr
    assert known_runs(cli) == before


def test_blob_deleted_after_submission_fails_the_run_by_name(
    cli: Cli, script: Write, blobs: BlobServiceClient
) -> None:
    put(blobs, "pictures", gone__1="x")
    # both nodes are taken: the run waits while the blob is deleted
    busy = [cli.json("train", script("import time; time.sleep(600)"), "--detach") for _ in range(2)]
    waiting = cli.json("train", script("print(1)"), "--detach", "--input", "x=blob:pictures/gone")
    blobs.get_blob_client("pictures", "gone/1").delete_blob()
    for run in busy:
        cli.run("cancel", run["run_id"])
    done = cli.run("attach", waiting["run_id"])
    assert done.returncode == 1
    assert "input x: it was changed or deleted since the run was submitted" in done.stderr
    assert "gone/1" in done.stderr
