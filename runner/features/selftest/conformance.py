"""Statements on how one Batch service compares with another: table, counts and badge.

The emulator's page about itself and the page of a self-test have this form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Conformance(StrEnum):
    """What a statement says."""

    SAME = "same"
    DIFFERS = "differs"
    OURS = "our choice"


@dataclass(frozen=True, slots=True)
class ConformanceStatement:
    """One statement, with its source: documentation, recording, report, or none.

    Attributes:
        subject: An operation, a property, or a behaviour in words.
        how: The difference, or what was chosen; empty if it is the same.
        detail: A cell between the subject and the verdict, such as the request.
    """

    subject: str
    verdict: Conformance
    source: str
    how: str = ""
    detail: str = ""

    def cells(self) -> tuple[str, ...]:
        """Return the cells of its row."""
        said = f"{self.verdict}: {self.how}" if self.how else str(self.verdict)
        between = (self.detail,) if self.detail else ()
        return (self.subject, *between, said, self.source)


def table(head: Sequence[str], statements: Iterable[ConformanceStatement]) -> list[str]:
    """Return a table in Markdown."""
    cells = [[_cell(text) for text in each.cells()] for each in statements]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *cells)]


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")


def counts(groups: Iterable[tuple[str, Sequence[ConformanceStatement]]]) -> list[str]:
    """Return the table of the numbers of statements by group and verdict."""
    lines = [f"| | {' | '.join(Conformance)} | all |", "|---|---|---|---|---|"]
    for name, statements in groups:
        found = Counter(each.verdict for each in statements)
        numbers = [str(found[verdict]) for verdict in Conformance]
        lines.append(f"| {name} | {' | '.join(numbers)} | {len(statements)} |")
    return lines


_LETTER, _PADDING, _HEIGHT = 6.6, 10, 20
_GOOD, _FAIR, _POOR = ("#2e7d32", 0.9), ("#8d6e00", 0.7), ("#b3261e", 0.0)


def badge(label: str, statements: Sequence[ConformanceStatement]) -> str:
    """Return an SVG that says how many statements are `same`."""
    same = sum(each.verdict is Conformance.SAME for each in statements)
    text = f"{same} of {len(statements)} same"
    share = same / len(statements) if statements else 0.0
    color = next(color for color, least in (_GOOD, _FAIR, _POOR) if share >= least)
    left, right = (round(len(part) * _LETTER + 2 * _PADDING) for part in (label, text))
    style = 'font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" fill="#fff"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="{_HEIGHT}" '
        f'role="img" aria-label="{label}: {text}">'
        f"<title>{label}: {text}</title>"
        f'<rect width="{left}" height="{_HEIGHT}" fill="#444"/>'
        f'<rect x="{left}" width="{right}" height="{_HEIGHT}" fill="{color}"/>'
        f'<g {style} text-anchor="middle"><text x="{left / 2}" y="14">{label}</text>'
        f'<text x="{left + right / 2}" y="14">{text}</text></g></svg>\n'
    )
