"""Expressions that never end are known before a run; those that people write are not refused."""

from __future__ import annotations

import pytest

from runner.core.pattern_cost import endless_part

ENDLESS = [
    r"(?:a+)+b(x)",
    r"^(?:\w+\s?)*acc=([0-9.]+)$",
    r"(?:.*)*acc (\d)",
    r"(?:.*,)*acc (\d)",
    r"(?:\d+\.?)+ acc (\d)",
    r"(?:[a-z]+[0-9a-f]?)* (\d)",
    r"(?:(?:\s*\w+\s*))* (\d)",
    r"epoch (?:x|(?:[^,]*)*), (\d)",
    r"(?:a{1,50}){1,50}b(\d)",
    r"acc ((?:\d+,?)+)$",
    r"acc ((?:\d+,?)+) ?(?:%? x)",
]
USUAL = [
    r"loss=([0-9.eE+-]+)",
    r"epoch (?P<step>\d+) .*acc (?P<value>[\d.]+)",
    r"(?:\w+=\d+ )*loss=([0-9.]+)",
    r"(?:[^,]*,)*\s*([0-9.]+)$",
    r"(?:\d+,)+(\d+)",
    r"^(?:\[[^\]]*\]\s*)*loss: ([\d.]+)",
    r"(?:ab)+ (\d)",
    r"loss=((?:\d+\.?)+)",
    r"loss\s*[:=]\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)",
    r"(?:a+){2}b(x)",
    r"(?i:Loss)\s+(\d+)",
    r"(?:\w+ \w+ )*(\d)",
    r"(?<=x)(\d)\1?(?!y)",
    r"loss: ((?:\d+,?)+)%?",
    r"took (?:(?:\d+[hms]?)+)\s*(\d*)",
]


@pytest.mark.parametrize("pattern", ENDLESS)
def test_repetition_that_can_be_cut_in_many_ways_is_found(pattern: str) -> None:
    assert endless_part(pattern)


@pytest.mark.parametrize("pattern", USUAL)
def test_usual_expression_is_no_trouble(pattern: str) -> None:
    assert endless_part(pattern) is None
