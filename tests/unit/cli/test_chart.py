"""Charts of metrics as text."""

from __future__ import annotations

import math

import pytest

from runner.cli.ui.charts import draw_chart
from runner.core.curves import Curve


@pytest.mark.parametrize("is_utf", [True, False])
def test_chart_rises_from_lower_left_to_upper_right(is_utf: bool) -> None:
    curve = Curve("a", "acc", tuple((n, float(n)) for n in range(50)))
    lines = draw_chart([curve], is_utf=is_utf)
    assert len(lines) == 10
    assert max(map(len, lines)) == 72
    assert lines[1].startswith("49.0000")
    assert lines[-3].split()[0].startswith("0")
    assert lines[1][-2] != " "
    assert lines[-3][lines[-3].index("0") + 2] != " "
    assert lines[-1].split() == ["0", "49"]
    assert is_utf or "".join(lines).isascii()


def test_each_of_several_runs_has_a_marker() -> None:
    curves = [Curve("a", "x", ((1, 0.0), (9, 0.0))), Curve("b", "x", ((1, 1.0), (9, 1.0)))]
    lines = draw_chart(curves)
    assert "oooooooooo" in lines[1]
    assert "**********" in lines[-3]


@pytest.mark.parametrize(
    "values",
    [
        *((math.nan, math.inf), (), (1e308, -1e308), (5.0,), (math.nan, 1.0), (1e-320, 0.0)),
        *((1e300, 1.0), (1.0, 1.0 + 1e-15), (-3.0, -2.5), (0.0, 1e-299)),
    ],
)
def test_chart_is_drawn_for_all_finite_values(values: tuple[float, ...]) -> None:
    curve = Curve("run", "loss", tuple(enumerate(values)))
    assert bool(draw_chart([curve])) == any(map(math.isfinite, values))
