"""A run on a pool without usable nodes: every command reports it, `--fail-if-stuck` ends it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from azure.batch import BatchClient, models
from azure.core.credentials import AzureNamedKeyCredential

from runner.azure.batch.translate import wire_text
from runner.contract import parse_stack_outputs
from runner.core.home import HomePaths
from tests.e2e.conftest import Cli, until

Write = Callable[..., Path]
NO_DRIVER = "/bin/sh -c 'echo no driver on this node >&2; exit 3'"


def with_pool(cli: Cli, pool_id: str, start_command: str) -> None:
    """Add a pool with two nodes to the account and to the outputs, and wait for their end."""
    paths = HomePaths(cli.home)
    outputs = parse_stack_outputs(paths.local_outputs.read_text())
    key = json.loads(paths.keys.read_text())["batch"]
    batch = BatchClient(outputs.batch_endpoint, AzureNamedKeyCredential(outputs.batch_account, key))
    machine = batch.get_pool("local").virtual_machine_configuration
    batch.create_pool(
        models.BatchPoolCreateOptions(
            id=pool_id,
            vm_size="Standard_D2s_v3",
            virtual_machine_configuration=machine,
            target_low_priority_nodes=2,
            start_task=models.BatchStartTask(command_line=start_command, wait_for_success=True),
        )
    )
    known = dataclasses.replace(outputs.pools[0], id=pool_id, max_nodes=2)
    changed = dataclasses.replace(outputs, pools=(*outputs.pools, known))
    paths.local_outputs.write_text(changed.to_json())

    def failed() -> bool:
        states = [wire_text(node.state) for node in batch.list_nodes(pool_id)]
        return states == ["starttaskfailed"] * 2

    until(failed)


@pytest.mark.feature(10)
def test_run_on_a_pool_of_failed_nodes_is_reported_and_cancelled(
    own_cli: Cli, script: Write
) -> None:
    own_cli.ok("local", "up", "--nodes", "0")
    with_pool(own_cli, "broken", NO_DRIVER)
    folder = script("print(1)")
    reason = "the start task failed on all 2 nodes of pool broken"
    waiting = own_cli.json("train", folder, "--pool", "broken", "--detach")["run_id"]
    [row] = own_cli.json("ps")
    assert (row["state"], row["reason"], row["cause"]["code"]) == (
        "queued",
        reason,
        "StartTaskFailed",
    )
    assert f"queued, stuck: {reason}" in own_cli.ok("ps")
    shown = own_cli.ok("show", waiting)
    for line in (
        reason,
        "start task exited with 3",
        "no driver on this node",
        "pool resize broken",
    ):
        assert line in shown
    assert own_cli.json("show", waiting)["cause"]["stuck"] is True

    attached = own_cli.run("attach", waiting, "--fail-if-stuck", "0s")
    assert attached.returncode == 5, attached.stderr
    for line in (f"stuck: {reason}", "no driver on this node", "fix:", "cancelled"):
        assert line in attached.stderr
    assert own_cli.json("show", waiting)["state"] == "cancelled"

    done = own_cli.run("train", folder, "--fail-if-stuck", "0s", "-o", "json")
    assert done.returncode == 5, done.stderr
    document = json.loads(done.stdout)
    assert document["status"] == "cancelled"
    assert document["cause"]["code"] == "NoNodesWanted"
    assert "its target is 0" in document["message"]
    for words in (["--fail-if-stuck", "soon"], ["--fail-if-stuck", "1m", "--detach"]):
        assert own_cli.run("train", folder, *words).returncode == 2
