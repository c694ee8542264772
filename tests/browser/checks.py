"""What every page must hold in a browser: accessible, of one width, without shifts and errors."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.core.file_lock import file_lock
from runner.core.home import HomePaths
from runner.flows.local.azurite import ensure_nodejs, npm_ci, npm_variables
from runner.protocol.errors import RunnerError

if TYPE_CHECKING:
    from playwright.sync_api import Page

HERE = Path(__file__).parent
ROOT = Path(__file__).parents[2]
PICTURES = ROOT / ".cache" / "browser"  # build outputs
WIDTHS = (360, 1280, 2560)
_PACKAGES = HERE / "packages"
_AXE = Path("node_modules") / "axe-core" / "axe.min.js"
_SERIOUS = ("serious", "critical")
MAX_SHIFT = 0.1  # https://web.dev/articles/cls: "good"
# Sums the shifts that no input of the reader caused, as that page says: within five seconds, with
# less than one between two of them. The largest sum counts.
COUNT_SHIFTS = """
    window.shifted = 0;
    let sum = 0, first = 0, last = -Infinity;
    new PerformanceObserver((list) => {
      for (const {hadRecentInput, startTime, value} of list.getEntries()) {
        if (hadRecentInput) continue;
        if (startTime - last >= 1000 || startTime - first >= 5000) [sum, first] = [0, startTime];
        [sum, last] = [sum + value, startTime];
        window.shifted = Math.max(window.shifted, sum);
      }
    }).observe({type: "layout-shift", buffered: true});
"""


@functools.cache
def axe_script(home: Path) -> str:
    """Return axe-core, which is installed once with npm for all tests of the checkout."""
    lock = hashlib.sha256((_PACKAGES / "package-lock.json").read_bytes()).hexdigest()[:12]
    target = ROOT / ".cache" / "axe" / lock
    target.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(target.parent / ".lock", what="installing axe-core", timeout_s=300):
        if not (target / _AXE).is_file():
            paths = HomePaths(home)
            runtime = ensure_nodejs(paths, lambda _: None)
            npm_ci(_PACKAGES, _AXE, target, runtime, npm_variables(paths), _failed)
    return (target / _AXE).read_text(encoding="utf-8")


def _failed(why: str) -> RunnerError:
    return RunnerError("R-TEST-AXE", "cannot install axe-core", why=why)


def serious_findings(page: Page, home: Path) -> list[str]:
    """Return what axe-core finds on a page that is serious or critical, one line each."""
    page.evaluate(axe_script(home))
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{each['id']}: {each['help']}: {node['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in _SERIOUS
        for node in each["nodes"]
    ]


def shifted(page: Page) -> float:
    """Return the largest sum of layout shifts since the page was opened."""
    return page.evaluate("window.shifted")


def overflow(page: Page) -> int:
    """Return the pixels by which the page is wider than the window."""
    return page.evaluate("document.scrollingElement.scrollWidth - window.innerWidth")


def screenshots(page: Page, name: str) -> list[Path]:
    """Keep pictures of a page in light and dark at three widths. Check that it fits into each.

    The window has its former size afterwards.
    """
    PICTURES.mkdir(parents=True, exist_ok=True)
    former, wide, paths = page.viewport_size, [], list[Path]()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            if (by := overflow(page)) > 0:
                wide.append(f"{width}: {by} px too wide")
            paths.append(PICTURES / f"{name}-{scheme}-{width}.png")
            page.screenshot(path=paths[-1], full_page=True, animations="disabled")
    page.emulate_media(color_scheme=None)
    if former:
        page.set_viewport_size(former)
    assert not wide, f"{name}: {wide}"
    return paths
