from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.node import patience as patience_module
from runner.node.blobs import Container
from runner.node.identity import SasCredential
from runner.node.patience import Patience
from runner.node.transport import Transport
from tests.unit.node.agent_task import Task
from tests.unit.node.fake_blob import FakeBlobs, serve_fake_blobs
from tests.unit.node.gang_task import GangTask


@pytest.fixture
def service() -> Iterator[FakeBlobs]:
    with serve_fake_blobs() as fake:
        yield fake


@pytest.fixture
def gang(tmp_path: Path, service: FakeBlobs) -> Iterator[GangTask]:
    """A run over several nodes, whose agents end with the test."""
    made = GangTask(tmp_path, service)
    yield made
    made.end()


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Patience:
    """As patient as the agent's, with shorter waits in between."""
    monkeypatch.setattr(patience_module, "FIRST_DELAY_S", 0.005)
    monkeypatch.setattr(patience_module, "LONGEST_DELAY_S", 0.05)
    return Patience(20.0)


@pytest.fixture
def container(service: FakeBlobs, patience: Patience) -> Container:
    return Container(Transport(service.url, SasCredential("sv=1&sig=s%2Bx"), patience, 60.0))


@pytest.fixture
def until() -> Callable[[Callable[[], object]], None]:
    """Poll a condition, at most two minutes."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline, "the condition did not come true"
            time.sleep(0.005)

    return wait


@pytest.fixture
def task(tmp_path: Path, service: FakeBlobs) -> Iterator[Task]:
    made = Task(tmp_path, service)
    yield made
    made.end()
