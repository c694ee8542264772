"""One measured ratio and the table of them."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
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
        """Ours divided by the peer's."""
        return self.ours / self.peer


def percentile(values: Sequence[float], percent: int) -> float:
    """The percentile of a sample of two values or more (inclusive method)."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def as_table(ratios: Iterable[Ratio]) -> str:
    """A table for people; the rows keep their order."""
    head = ("what", "ours", "peer", "ratio", "must be", "")
    rows = [
        (
            r.name,
            f"{r.ours:.3g} {r.unit}",
            f"{r.peer:.3g} {r.unit} ({r.peer_name})",
            f"{r.ratio:.2f}",
            r.bound,
            {True: "ok", False: "MISSED", None: ""}[r.met],
        )
        for r in ratios
    ]
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    )


def as_json(ratios: Iterable[Ratio]) -> str:
    """The same as JSON, with the ratio filled in."""
    return json.dumps([{**asdict(r), "ratio": r.ratio} for r in ratios], indent=2)
