"""A curve in text: Braille dots for one run, a letter for each of several."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from runner.core.metric_series import Curve
from runner.core.metrics import format_value

MARKS = "*o+x#@%&"
_BRAILLE = 0x2800
# Bits of the eight dots of a cell: two columns of four (Unicode, "Braille Patterns").
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))

Cells = list[list[str]]


def draw_chart(
    curves: Sequence[Curve], *, width: int = 60, height: int = 8, braille: bool = True
) -> list[str]:
    """Lines of text, the axes' ends written at the sides; nothing where nothing is finite.

    Several curves, or `braille` off, are drawn with a mark each, in the order of `MARKS`.
    """
    points = [point for curve in curves for point in curve.finite]
    if not points:
        return []
    first, last = min(x for x, _ in points), max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    fine = braille and len(curves) == 1
    columns, rows = (2 * width, 4 * height) if fine else (width, height)
    dots: list[tuple[int, int, int]] = []
    for number, curve in enumerate(curves):
        line = [
            (_place(x, first, last, columns), rows - 1 - _place(y, low, high, rows))
            for x, y in curve.finite
        ]
        dots += [(x, y, number) for x, y in _joined(line)]
    cells = _braille(dots, width, height) if fine else _marked(dots, width, height)
    return _framed(cells, (low, high), (first, last))


def _place(value: float, low: float, high: float, size: int) -> int:
    if high == low:
        return (size - 1) // 2
    # Halved first: the distance of two huge values would be infinite.
    return round((value / 2 - low / 2) / (high / 2 - low / 2) * (size - 1))


def _joined(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The points and, between neighbours, a straight line of dots."""
    dots = list(points[:1])
    for (x0, y0), (x1, y1) in pairwise(points):
        steps = max(abs(x1 - x0), abs(y1 - y0), 1)
        dots += [
            (x0 + round((x1 - x0) * n / steps), y0 + round((y1 - y0) * n / steps))
            for n in range(1, steps + 1)
        ]
    return dots


def _braille(dots: Sequence[tuple[int, int, int]], width: int, height: int) -> Cells:
    bits = [[0] * width for _ in range(height)]
    for x, y, _ in dots:
        bits[y // 4][x // 2] |= _DOTS[x % 2][y % 4]
    return [[chr(_BRAILLE + cell) if cell else " " for cell in row] for row in bits]


def _marked(dots: Sequence[tuple[int, int, int]], width: int, height: int) -> Cells:
    cells = [[" "] * width for _ in range(height)]
    for x, y, number in dots:
        cells[y][x] = MARKS[number % len(MARKS)]
    return cells


def _framed(cells: Cells, values: tuple[float, float], steps: tuple[int, int]) -> list[str]:
    low, high = (format_value(value) for value in values)
    margin = max(len(low), len(high))
    labels = [high, *[""] * (len(cells) - 2), low]
    lines = [
        f"{label:>{margin}} |{''.join(row)}".rstrip()
        for label, row in zip(labels, cells, strict=True)
    ]
    first, last = (str(step) for step in steps)
    room = max(len(cells[0]) - len(first), len(last) + 1)
    ends = first if first == last else f"{first}{last:>{room}}"
    return [*lines, f"{'':>{margin}} +{'-' * len(cells[0])}", f"{'':>{margin}}  {ends}"]
