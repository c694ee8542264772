"""Nodes that are set up in the background: pending, lost and failed setups."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.emulator import Emulator
from batch_emulator.executor.node_setup import Booted, NodeError, NodeSetup, Step
from tests.contract.server import Running, Things, eventually, serving


class Slow:
    """A step that waits for the test, and fails when told to."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.error: NodeError | None = None

    def into(self, emulator: Emulator) -> None:
        """Make this the only step of an emulator."""
        emulator.loop.node_setup = NodeSetup([Step("slow", self.wanted, self.run)])

    def wanted(self, spec: Mapping[str, Any]) -> bool:
        return bool(spec.get("metadata"))

    async def run(self, node: Booted) -> None:
        self.begun.append(node.node_id)
        try:
            while not self.go.is_set():
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.cancelled.append(node.node_id)
            raise
        if self.error is not None:
            raise self.error
        (node.layout.shared / "set-up").write_text("yes")


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def running(tmp_path: Path, slow: Slow) -> Generator[Running]:
    with serving(tmp_path, before=slow.into) as running:
        yield running


def pool_that_wants_it(things: Things, **options: Any) -> str:
    metadata = [{"name": "a", "value": "b"}]
    return things.pool(target_dedicated_nodes=1, metadata=metadata, **options)


def test_tasks_wait_while_their_node_is_set_up(running: Running, slow: Slow) -> None:
    things = Things(running.client)
    job = things.job(pool_that_wants_it(things))
    task = things.task(job, "/bin/sh -c 'cat $AZ_BATCH_NODE_SHARED_DIR/set-up'")
    eventually(lambda: slow.begun)
    [node] = running.client.list_nodes(running.client.get_job(job).pool_info.pool_id or "")
    assert node.state == "starting"
    assert running.client.get_task(job, task).state == "active"
    slow.go.set()
    things.wait_task(job, task)
    assert things.text(job, task) == "yes"


def test_failed_setup_makes_the_node_unusable(running: Running, slow: Slow) -> None:
    things = Things(running.client)
    slow.error = NodeError("SomethingFailed", "Something failed.", (("Name", "it"),))
    slow.go.set()
    pool = pool_that_wants_it(things)
    [node] = things.wait_nodes(pool, 1, "unusable")
    [error] = node.errors or []
    assert (error.code, error.message) == ("SomethingFailed", "Something failed.")
    assert [(d.name, d.value) for d in error.error_details or []] == [("Name", "it")]


def test_pool_deletion_during_setup_deletes_the_node_folder(running: Running, slow: Slow) -> None:
    things = Things(running.client)
    pool = pool_that_wants_it(things)
    eventually(lambda: slow.begun)
    running.client.begin_delete_pool(pool, polling_interval=1).result()
    assert slow.cancelled == slow.begun
    folder = running.emulator.launches.node_dir(pool, slow.begun[0])
    eventually(lambda: not folder.exists())


def test_interrupted_node_setup_is_repeated_after_a_restart(tmp_path: Path, slow: Slow) -> None:
    with serving(tmp_path / "data", before=slow.into) as running:
        things = Things(running.client)
        pool = pool_that_wants_it(things)
        eventually(lambda: slow.begun)
    assert slow.cancelled == slow.begun
    slow.go.set()
    with serving(tmp_path / "data", before=slow.into) as running:
        things = Things(running.client)
        [node] = things.wait_nodes(pool, 1, "idle")
    assert slow.begun == [node.id, node.id]
