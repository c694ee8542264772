"""The digits that benchmarks train on: a given folder, or what `runner train mnist` would use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runner.flows.data.datasets import Dataset, resolve_dataset
from runner.protocol.errors import RunnerError

HOME = Path(__file__).parents[2] / ".cache" / "services"
# Names of the data set as the recipe's download.py gives them, and as a row names them.
_TITLES = {"mnist": "MNIST", "sklearn-digits": "digits of scikit-learn"}


def find_digits(home: Path = HOME) -> Dataset:
    """Return the folder in BENCH_MNIST, else MNIST from the cache or a mirror, else the digits
    of scikit-learn. Print on stderr which one it is.

    Raises:
        RunnerError: there is no network, and nothing is in the cache.
    """
    given = os.environ.get("BENCH_MNIST")
    try:
        found = resolve_dataset("mnist", Path(given) if given else None, home, lambda _: None)
    except RunnerError as err:
        err.fix = "check network and proxy, or set BENCH_MNIST to a folder with MNIST's four files"
        raise
    print(f"data: {title(found)} in {found.folder}", file=sys.stderr, flush=True)
    return found


def title(digits: Dataset) -> str:
    """Return the name of the data for a row."""
    return _TITLES.get(digits.name, f"{digits.name} in {digits.folder.name}")
