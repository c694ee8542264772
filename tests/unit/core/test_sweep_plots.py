"""Pictures of a sweep."""

from __future__ import annotations

import random
import time
from xml.etree import ElementTree

import pytest

from runner.core.curves import html_page
from runner.core.sweep_plots import PlottedTrial, draw_sweep, importance


def sampled(count: int, seed: int = 3) -> list[PlottedTrial]:
    """The metric depends on lr alone, with a little noise."""
    chance = random.Random(seed)
    trials: list[PlottedTrial] = []
    for number in range(count):
        lr, width = 10 ** chance.uniform(-4, -1), chance.choice([64, 128, 256])
        value = lr * 10 + chance.gauss(0, 0.01)
        points = tuple((step, value * step / 5) for step in range(1, 6))
        trials.append(PlottedTrial(str(number), {"lr": lr, "width": width}, value, points))
    return trials


def test_importance_is_highest_for_the_decisive_parameter() -> None:
    shares = importance(sampled(200))
    assert list(shares) == ["lr", "width"]
    assert shares["lr"] > 0.7
    assert shares["width"] < 0.1
    assert importance([]) == {}
    assert importance([PlottedTrial("1", {"lr": 1}, float("nan"))]) == {}
    assert importance(sampled(1))["lr"] == 0


def test_picture_of_a_thousand_trials_is_one_document_drawn_quickly() -> None:
    trials = [*sampled(1000), PlottedTrial("bad", {"lr": 1.0, "opt": "<b>&"}, None)]
    began = time.thread_time()
    svg = draw_sweep("net <1>", "loss", "min", trials)
    assert time.thread_time() - began < 2
    root = ElementTree.fromstring(svg)
    lines = root.iter("{http://www.w3.org/2000/svg}polyline")
    assert sum(1 for _ in lines) == 1000 + 20
    assert "net &lt;1&gt;" in svg
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    assert html_page("net", svg).startswith("<!doctype html>")


@pytest.mark.parametrize(
    "trials",
    [
        [],
        [PlottedTrial("1", {}, 0.5)],
        [PlottedTrial("1", {"opt": "a"}, 0.5), PlottedTrial("2", {"opt": True, "lr": 0}, 1e308)],
        [PlottedTrial("1", {"lr": 1}, -1e308, ((1, 2.0), (2, float("inf"))))],
    ],
)
def test_unusual_sweeps_are_drawn(trials: list[PlottedTrial]) -> None:
    assert ElementTree.fromstring(draw_sweep("net", "loss", "max", trials)) is not None


def test_ends_of_an_axis_of_whole_numbers_are_whole() -> None:
    trials = [PlottedTrial(str(n), {"width": n, "lr": n / 10}, n / 7) for n in (16, 64)]
    svg = draw_sweep("net", "loss", "min", trials)
    assert (">16<" in svg, ">64<" in svg, ">1.6000<" in svg) == (True, True, True)


@pytest.mark.parametrize("before", range(60, 95))
def test_parameters_of_a_line_are_whole(before: int) -> None:
    params = {"prompt": f"{'a' * before}<b> & c", "d": 200}
    svg = draw_sweep("net", "loss", "min", [PlottedTrial("1", params, 0.5)])
    titles = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")
    assert f"1: prompt={params['prompt']} d=200" in [each.text for each in titles]
