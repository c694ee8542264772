"""Fixtures of the contract tests: the official SDK against an emulator process."""

from collections.abc import Generator

import pytest

from tests.contract.emulation import Emulation, emulate


@pytest.fixture(scope="session")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Generator[Emulation]:
    """An emulator with one pool of one node, shared by all tests of a worker."""
    with emulate(tmp_path_factory.mktemp("emulator") / "data") as running:
        yield running
