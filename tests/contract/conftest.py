"""Fixtures of the contract tests: the official SDK against an emulator."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest
from azure.batch import BatchClient

from tests.contract.emulation import Emulation, emulate
from tests.contract.recording import take_violations
from tests.contract.server import Running, Things, network_with, serving

if TYPE_CHECKING:
    from tests.contract.files_service import Files


@pytest.fixture(autouse=True)
def conforms() -> Generator[None]:
    """Fail tests that receive a response which the description of the service does not allow."""
    take_violations()
    yield
    assert take_violations() == [], "answers that the service's description does not allow"


@pytest.fixture(scope="session")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Generator[Emulation]:
    """Yield an emulator with one pool of one node, shared by all tests of a worker."""
    with emulate(tmp_path_factory.mktemp("emulator") / "data") as running:
        yield running


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Generator[Files]:
    """Yield Azure Files of an emulator, shared by all tests of a worker."""
    from tests.contract.files_service import serving_files  # needs the SDK of Azure Files

    with serving_files(tmp_path_factory.mktemp("files")) as files:
        yield files


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """Yield an emulator in a thread of the test process, shared by all tests of a worker."""
    with serving(tmp_path_factory.mktemp("batch")) as running:
        yield running


@pytest.fixture(scope="session")
def client(running: Running) -> BatchClient:
    return running.client


@pytest.fixture(scope="session")
def things(client: BatchClient) -> Things:
    return Things(client)


@pytest.fixture(scope="session")
def pool(things: Things) -> str:
    """Create a pool with an idle node of four slots and an endpoint, shared by a worker's tests."""
    pool_id = things.pool(
        target_dedicated_nodes=1,
        task_slots_per_node=4,
        network_configuration=network_with({"ssh": 22}),
    )
    things.wait_nodes(pool_id, 1)
    return pool_id
