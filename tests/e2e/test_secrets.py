"""A secret reaches the script, and nothing that a person or storage sees."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.conftest import Cli
from tests.e2e.test_inputs import blob_service

Write = Callable[..., Path]
VALUE = "hunter2-and-more"


@pytest.mark.smoke
@pytest.mark.feature(21)
def test_secret_reaches_only_the_script(cli: Cli, script: Write) -> None:
    folder = script("import os; print('it is', os.environ['TOKEN'], len(os.environ['TOKEN']))")
    (folder / "train.yaml").write_text("secrets: {TOKEN: {env: MY_TOKEN}}\n")
    refused = cli.run("train", folder)
    assert refused.returncode == 3
    assert "error[R-SECRET-MISSING]: secret TOKEN has no value" in refused.stderr
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


def test_retried_run_has_the_same_inputs_and_secrets(cli: Cli, script: Write) -> None:
    first = cli.json(
        "train", script("import os; open(os.environ['RUNNER_OUTPUT_DIR'] + '/m', 'w')")
    )
    folder = script(
        "import os; print(len(os.environ['TOKEN']), os.environ['RUNNER_INPUT_M']); 1 / 0"
    )
    (folder / "train.yaml").write_text(
        f"secrets: {{TOKEN: {{env: MY_TOKEN}}}}\ninputs: {{m: 'run:{first['run_id']}/m'}}\n"
    )
    assert cli.run("train", folder, env={"MY_TOKEN": VALUE}).returncode == 1
    assert "R-SECRET-MISSING" in cli.run("retry", "@last").stderr
    again = cli.run("retry", "@last", env={"MY_TOKEN": VALUE})
    assert f"{len(VALUE)} " in again.stdout + cli.run("logs", "@last").stdout
    assert cli.json("show", "@last")["result"]["step"] == "command"
