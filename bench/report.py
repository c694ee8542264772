"""A measured value with that of its peer, and its row in the table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass


class PeerMissingError(Exception):
    """The program to compare with is not installed; the message says how to install it."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """Our value and that of the peer, in the same unit.

    `bound` describes the required value as text. `met` is None if there is no requirement.
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
    """Return a percentile of at least two values by the inclusive method."""
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
