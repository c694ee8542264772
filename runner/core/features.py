"""Load a module of an optional feature, for what the core offers and a feature does.

The core imports no module of `runner.features`. Verbs of features are found by `runner.cli.main`.
"""

from __future__ import annotations

import importlib
from typing import Any


def load_feature(module: str) -> Any:
    """Return a module below `runner.features`, such as `export.mlflow`."""
    return importlib.import_module(f"runner.features.{module}")
