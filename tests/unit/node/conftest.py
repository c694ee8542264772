from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.node.storage import retries
from runner.node.storage.auth import SasCredential
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import Transport
from runner.node.storage.retries import RetryBudget
from tests.unit.node.agent_task import Task
from tests.unit.node.fake_blob import FakeBlobs, serve_fake_blobs
from tests.unit.node.node_group_task import NodeGroupTask


@pytest.fixture
def service() -> Iterator[FakeBlobs]:
    with serve_fake_blobs() as fake:
        yield fake


@pytest.fixture
def node_group(tmp_path: Path, service: FakeBlobs) -> Iterator[NodeGroupTask]:
    """Yield a run over several nodes; its agents end with the test."""
    made = NodeGroupTask(tmp_path, service)
    yield made
    made.end()


@pytest.fixture
def retry_budget(monkeypatch: pytest.MonkeyPatch) -> RetryBudget:
    """Return the agent's retry budget with shorter delays."""
    monkeypatch.setattr(retries, "FIRST_DELAY_S", 0.005)
    monkeypatch.setattr(retries, "MAX_DELAY_S", 0.05)
    return RetryBudget(20.0)


@pytest.fixture
def container(service: FakeBlobs, retry_budget: RetryBudget) -> ContainerClient:
    return ContainerClient(
        Transport(service.url, SasCredential("sv=1&sig=s%2Bx"), retry_budget, 300.0)
    )


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Return a function that polls a condition for at most five minutes."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.005)

    return wait


@pytest.fixture
def task(tmp_path: Path, service: FakeBlobs) -> Iterator[Task]:
    made = Task(tmp_path, service)
    yield made
    made.end()
