"""The built-in recipe reaches its accuracy on the real data with its default parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Cli

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("subset", "accuracy"), [(0, 0.99), (8000, 0.97)])
def test_mnist_reaches_its_accuracy(cli: Cli, mnist: Path, subset: int, accuracy: float) -> None:
    document = cli.json("train", "mnist", "--data", mnist, "--set", f"subset={subset}")
    assert document["metrics"]["test_accuracy"] >= accuracy
