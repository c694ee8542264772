"""`runner bug-report` of a run whose script prints secrets, on local services."""

from __future__ import annotations

import json
import zipfile

from azure.storage.blob import BlobServiceClient

from tests.e2e.conftest import Cli

SCRIPT = """\
import os
print("using", os.environ["DB_PASSWORD"], "and MY_TOKEN=undeclared-token-1")
raise SystemExit("no rows in https://me:urlpass99@host/table")
"""
RECIPE = """\
command: python train.py
env: {WANDB_API_KEY: written-into-the-recipe}
secrets: {DB_PASSWORD: {env: MY_DB_PASSWORD}}
"""


def test_report_of_a_failed_run_has_its_documents_without_secrets(cli: Cli) -> None:
    folder = cli.cwd / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "train.yaml").write_text(RECIPE)
    env = {"MY_DB_PASSWORD": "declared-secret-1"}
    assert cli.run("train", folder, env=env).returncode == 1

    done = cli.run("bug-report", "@last", "--file", "report.zip", "-o", "json", env=env)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(cli.cwd / "report.zip") as archive:
        files = {name: archive.read(name).decode() for name in archive.namelist()}
    shown = json.loads(done.stdout)
    assert {file["name"] for file in shown["files"]} == files.keys() - {"contents.json"}
    assert shown["problems"] == []
    assert "run/documents/run.json" in files
    assert "run/documents/result.json" in files
    assert json.loads(files["batch/task.json"])["status"] == 200
    assert json.loads(files["batch/nodes.json"])["body"]["value"]
    assert json.loads(files["run/why.json"])["cause"]
    assert "local/logs/batch.log" in files
    assert "using *** and MY_TOKEN=***" in files["run/documents/logs/stdout.txt"]
    keys = json.loads((cli.home / "local" / "keys.json").read_text()).values()
    secrets = (*keys, "declared-secret-1", "undeclared-token", "written-into", "urlpass99")
    for name, text in files.items():
        assert not [secret for secret in secrets if secret in text], name
        assert "sig=" not in text.replace("sig=***", ""), name


def test_unknown_run_is_refused_and_a_dry_run_writes_nothing(cli: Cli) -> None:
    cli.ok("local", "up")
    refused = cli.run("bug-report", "nosuchrun", "--file", "report.zip")
    assert refused.returncode == 2
    assert "R-RUN-UNKNOWN" in refused.stderr
    shown = cli.json("bug-report", "--dry-run", "--file", "report.zip")
    assert shown["path"] is None
    assert "batch/pools.json" in {file["name"] for file in shown["files"]}
    assert not (cli.cwd / "report.zip").exists()


def test_report_of_a_run_names_what_is_damaged_and_masks_arguments(cli: Cli) -> None:
    (cli.cwd / "train.py").write_text("import sys\nprint(sys.argv)\n")
    done = cli.run("train", "train.py", "-o", "json", "--", "--password", "argument-secret")
    assert done.returncode == 0, done.stderr
    shown = cli.json("bug-report", "@last", "--file", "whole.zip")
    assert not shown["problems"]
    with zipfile.ZipFile(cli.cwd / "whole.zip") as archive:
        texts = [archive.read(name).decode() for name in archive.namelist()]
    assert not [text for text in texts if "argument-secret" in text]

    run_id = json.loads(done.stdout)["run_id"]
    connection = cli.json("local", "env")["AZURE_STORAGE_CONNECTION_STRING"]
    blobs = BlobServiceClient.from_connection_string(connection)
    blob = blobs.get_blob_client("runs", f"{run_id}/run.json")
    whole = blob.download_blob().readall()
    blob.upload_blob(b"[" * 100_000, overwrite=True)
    try:
        shown = cli.json("bug-report", run_id, "--file", "damaged.zip")
    finally:
        blob.upload_blob(whole, overwrite=True)
    assert [each for each in shown["problems"] if each.startswith("run.json: R-RUN")]
    assert "run/documents/logs/stdout.txt" in {file["name"] for file in shown["files"]}
