"""A secret reaches the script, and nothing that a person or storage sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.e2e.conftest import Cli
from tests.e2e.test_inputs import blob_service

Write = Callable[..., Path]
VALUE = "hunter2-and-more"


def test_secret_is_in_the_script_and_nowhere_else(cli: Cli, script: Write) -> None:
    folder = script("import os; print('it is', os.environ['TOKEN'], len(os.environ['TOKEN']))")
    (folder / "train.yaml").write_text("secrets: {TOKEN: {env: MY_TOKEN}}\n")
    refused = cli.run("train", folder)
    assert refused.returncode == 3
    assert "error[R-SECRET-MISSING]: the secret TOKEN has no value" in refused.stderr
    done = cli.run("train", folder, env={"MY_TOKEN": VALUE})
    assert done.returncode == 0, done.stderr
    assert f"it is *** {len(VALUE)}" in done.stdout
    run = cli.json("show", "@last")
    assert run["run"]["secrets"] == ["TOKEN"]
    seen = done.stdout + done.stderr + cli.ok("show", "@last") + cli.ok("logs", run["run_id"])
    runs = blob_service(cli).get_container_client("runs")
    for name in runs.list_blob_names(name_starts_with=run["run_id"]):
        seen += runs.download_blob(name).readall().decode()
    assert VALUE not in seen
