"""Plots that commands write as files: they fit the window, and no text covers another."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from runner.core.curves import Curve, draw_html, html_page
from runner.core.sweep_plots import PlottedTrial, draw_sweep
from tests.browser.conftest import WAIT_MS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# The texts that overlap another one by more than a pixel, or that leave the picture.
_COLLISIONS = """() => {
  const found = [], apart = (p, q) => p.left >= q.right - 1 || q.left >= p.right - 1 ||
    p.top >= q.bottom - 3 || q.top >= p.bottom - 3;
  for (const svg of document.querySelectorAll("svg")) {
    const { left, right } = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll("text")].map((each) => [
      each.textContent, each.getBoundingClientRect()]);
    texts.forEach(([words, place], n) => {
      if (place.left < left - 1 || place.right > right + 1) found.push("outside: " + words);
      for (const [others, q] of texts.slice(n + 1))
        if (!apart(place, q)) found.push(words + " | " + others);
    });
  }
  return found;
}"""
_WIDE = "document.scrollingElement.scrollWidth - window.innerWidth"
_LONG = ("learning_rate", "hidden_size_of_layers", "momentum_of_the_optimizer", "weight_decay")


def sampled(params: int) -> list[PlottedTrial]:
    chance = random.Random(5)
    names = [_LONG[n] if n < len(_LONG) else f"another_parameter_{n}" for n in range(params)]
    trials: list[PlottedTrial] = []
    for number in range(30):
        values: dict[str, object] = {name: 10 ** chance.uniform(-6, 1) for name in names[1:]}
        values[names[0]] = chance.choice(["adam", "sgd", "rmsprop-with-a-very-long-name", "lion"])
        points = tuple((step, chance.random()) for step in range(1, 6))
        trials.append(PlottedTrial(f"{number:02}", values, chance.random(), points))
    return trials


def opened(chromium: Browser, page: str, folder: Path) -> Page:
    path = folder / "plot.html"
    path.write_text(page, encoding="utf-8")
    shown = chromium.new_context(viewport={"width": 1200, "height": 800}).new_page()
    shown.set_default_timeout(WAIT_MS)
    shown.goto(path.as_uri())
    return shown


@pytest.mark.parametrize("params", [1, 4, 8])
def test_plot_of_a_sweep_fits_the_window_and_no_text_covers_another(
    chromium: Browser, tmp_path: Path, params: int
) -> None:
    svg = draw_sweep("net-20261121-143005-k3f9", "validation_accuracy_top1", "max", sampled(params))
    page = opened(chromium, html_page("net", svg), tmp_path)
    assert page.evaluate(_COLLISIONS) == []
    for width in (1200, 400):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(_WIDE) <= 0


def test_plots_of_metrics_have_their_legends_between_title_and_curves(
    chromium: Browser, tmp_path: Path
) -> None:
    runs = [f"net-{n}-20261121-143005-k3f9" for n in range(11)]
    panels = {
        name: [Curve(run, name, ((1, n), (2, n + 1.5))) for n, run in enumerate(runs)]
        for name in ("loss", "accuracy")
    }
    page = opened(chromium, draw_html(" and ".join(runs), panels), tmp_path)
    assert page.evaluate(_COLLISIONS) == []
    assert page.evaluate(_WIDE) <= 0
    tops = page.evaluate(
        """() => [...document.querySelectorAll("svg > g")].map((panel) => {
          const [title, ...names] = [...panel.querySelectorAll("text")].map(
            (each) => each.getBoundingClientRect().top);
          const curves = [...panel.querySelectorAll("polyline")].map(
            (each) => each.getBoundingClientRect().top);
          return [title, Math.min(...names), Math.max(...names.slice(0, 11)), Math.min(...curves)];
        })"""
    )
    assert len(tops) == len(panels)
    for title, first, last, curve in tops:
        assert title < first <= last < curve
