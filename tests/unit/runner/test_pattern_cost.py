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
    # As people read the logs of frameworks, bars and other services.
    r"lr = ([-+]?[0-9]*\.?[0-9]+(?:[eE]?[-+]?[0-9]+)?)",
    r"([\w|-]+)\s*=\s*([+-]?\d*(?:\.\d+)?(?:[Ee][+-]?\d+)?)",
    r".*loss: (?P<loss>[0-9.]+) - accuracy: (?P<value>[0-9.]+) - val_loss: .*",
    r"^\[[\d\s:,-]+\] .*Epoch \[(?P<step>\d+)/\d+\] \| Loss: ([\d.]+)",
    r"\s*(\d+)%\|[^|]*\|\s*(?P<step>\d+)/\d+ \[(?:[^,\]]*,)+ loss=([\d.]+)\]",
    r"(?:'\w+': [^,}]+, )*'eval_loss': ([\d.]+)",
    r"step:(?P<step>\d+)(?:/\d+)?(?: \w+:\S+)* loss:(\S+)",
    r"(?:\S+\s+)*?acc(?:uracy)?\s+(\d+(?:\.\d+)*)%?",
    r"(?:\d{2}:){2}\d{2}(?:\.\d+)? (?:INFO|WARN) .*?: (-?\d+)",
    r"\x1b\[(?:\d+;)*\d+mloss (.*?)\x1b",
    r"^(?:\|\s*[^|]+?\s*)+\|$",
    r"(?:train|valid)[ _-]*loss[^\d-]*(?P<value>-?\d[\d_,]*(?:\.\d+)?)",
]
SLOW_BUT_TAKEN = [
    r"(?:a|ab|b)*x",
    r"(?:\s+|,)*x",
    r"(?:\d{1,3},?)+x",
    r"(?:a?){30}a{30}",
    r"(?=(?:a+)+x)a",
    r".*.*.*.*.*x",
]


@pytest.mark.parametrize("pattern", ENDLESS)
def test_repetition_that_can_be_cut_in_many_ways_is_found(pattern: str) -> None:
    assert endless_part(pattern)


@pytest.mark.parametrize("pattern", USUAL)
def test_usual_expression_is_no_trouble(pattern: str) -> None:
    assert endless_part(pattern) is None


@pytest.mark.parametrize("pattern", SLOW_BUT_TAKEN)
def test_what_is_not_found_is_what_the_module_says(pattern: str) -> None:
    assert endless_part(pattern) is None, "found now: say so in the module"
