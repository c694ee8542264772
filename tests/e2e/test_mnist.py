"""The built-in recipe reaches its accuracy on the real data with its default parameters.

`test_train.py` and `test_recipes.py` train it on parts of the data.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.conftest import Cli

pytestmark = pytest.mark.slow


def test_mnist_reaches_its_accuracy(cli: Cli, mnist: Path) -> None:
    document = cli.json("train", "mnist", "--data", mnist)
    assert document["metrics"]["test_accuracy"] >= 0.99
