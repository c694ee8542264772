"""A measured ratio and its row in the table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


class PeerMissingError(Exception):
    """The program to compare with is not installed; the text says how to get it."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """`ours` against `peer` in `unit`; `bound` is what it must reach, as a sentence.

    `met` is None for a figure that is only reported.
    """

    name: str
    unit: str
    ours: float
    peer_name: str
    peer: float
    bound: str
    met: bool | None

    @property
    def ratio(self) -> float:
        """Return our value divided by that of the peer."""
        return self.ours / self.peer


def percentile(values: Sequence[float], percent: int) -> float:
    """The percentile of a sample of two values or more (inclusive method)."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


# Fixed widths, so that each row is printed as soon as it is measured; a longer cell shifts its row.
_COLUMNS = {"what": 56, "ours": 18, "peer": 50, "ratio": 6, "must be": 16, "": 6}
HEAD = "  ".join(name.ljust(width) for name, width in _COLUMNS.items()).rstrip()


def as_row(ratio: Ratio) -> str:
    """Return the row of the table for people; `HEAD` names its columns."""
    cells = (
        ratio.name,
        f"{ratio.ours:.3g} {ratio.unit}",
        f"{ratio.peer:.3g} {ratio.unit} ({ratio.peer_name})",
        f"{ratio.ratio:.2f}",
        ratio.bound,
        {True: "ok", False: "MISSED", None: ""}[ratio.met],
    )
    padded = (cell.ljust(width) for cell, width in zip(cells, _COLUMNS.values(), strict=True))
    return "  ".join(padded).rstrip()


def as_json(ratio: Ratio) -> str:
    """Return one line of JSON with the ratio filled in."""
    return json.dumps({**asdict(ratio), "ratio": ratio.ratio})
