"""Walk through the page as a newcomer, and photograph it: `python -m tools.page_tour`.

`make tour` calls it. The pictures of docs/guides/page.md are written to docs/page/. Everything is
done in a headless Chromium against local services: a run is started, its node evicted, a sweep
started, runs compared, a model registered, the bill read. tests/browser/test_tour.py takes the same
walk, so a page that leads nowhere fails there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "page"
NAMES = ("form", "run", "pool", "sweep", "compare", "models", "bill")
WIDTH, HEIGHT = 1280, 860
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# Long enough for an eviction, also with the small data set of a machine without network.
RUN = {"epochs": "300", "subset": "2000"}
SWEEP = {"learning_rate": "0.001,0.004,0.016", "dropout": "0.1,0.5"}
NOTICE = "2s"
PATIENCE_S = 240


class Tour:
    """A walk through a page of a server that has a free pool of two spot nodes.

    Args:
        page: A tab that is signed in, whose context has the base URL of the server.
        folder: Where the pictures are written.
    """

    def __init__(self, page: Page, folder: Path) -> None:
        self.page = page
        self._folder = folder
        page.set_default_timeout(PATIENCE_S * 1000)

    def walk(self) -> None:
        """Take all steps. Playwright raises TimeoutError where a step cannot be taken."""
        self.submit()
        run = self.page.url
        self.evict()
        self.see_it_resume(run)
        sweep = self.run_sweep()
        self.compare()
        self.register(sweep)
        self.read_bill()

    def submit(self) -> None:
        """Start a run with the form of a recipe, and watch it."""
        page = self.page
        page.goto("/")
        page.get_by_role("link", name="Train", exact=True).first.click()
        page.get_by_role("link", name="mnist", exact=True).click()
        for name, value in RUN.items():
            page.get_by_label(name, exact=True).fill(value)
        page.get_by_text(f"--set=epochs={RUN['epochs']}").wait_for()  # the command follows the form
        self._take("form")
        page.get_by_role("button", name="Train", exact=True).click()
        self._follow_result()
        page.get_by_text(re.compile(r"epoch 5/")).first.wait_for()

    def evict(self) -> None:
        """Evict the node that has the run."""
        page = self.page
        page.get_by_role("link", name="Pools").click()
        page.get_by_role("link", name="local", exact=True).click()
        busy = page.get_by_role("row").filter(has=page.get_by_role("cell", name="running"))
        busy.get_by_role("link", name="Evict").click()
        page.get_by_label("Time between notice and eviction").fill(NOTICE)
        page.get_by_role("button", name="Evict the node").click()
        page.get_by_text("Done.").wait_for()

    def see_it_resume(self, run: str) -> None:
        """Watch the second attempt of the run until its end."""
        page = self.page
        page.goto(run)
        page.get_by_text("attempt 2").first.wait_for()
        self._state("succeeded")
        self._take("run")
        page.get_by_role("link", name="Pools").click()
        page.get_by_role("link", name="local", exact=True).click()
        page.get_by_text("1 eviction").wait_for()
        self._take("pool")

    def run_sweep(self) -> str:
        """Start a sweep, wait for its end, and return its address."""
        page = self.page
        page.get_by_role("link", name="Train", exact=True).first.click()
        page.get_by_role("link", name="mnist", exact=True).click()
        page.get_by_role("link", name="A sweep").click()
        for name, value in SWEEP.items():
            page.get_by_label(f"Values of {name}").fill(value)
        page.get_by_label("subset", exact=True).fill(RUN["subset"])
        page.get_by_role("button", name="Start the sweep").click()
        self._follow_result()
        page.get_by_text("6 succeeded").first.wait_for()
        self._take("sweep")
        return page.url

    def compare(self) -> None:
        """Choose three runs in the list, and compare them."""
        page = self.page
        page.goto("/runs?trials=1")
        choices = page.get_by_role("row").get_by_role("checkbox")
        for number in range(3):
            choices.nth(number).check()
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("heading", name=re.compile("Compare")).wait_for()
        self._take("compare")

    def register(self, sweep: str) -> None:
        """Register the best trial of the sweep as a model."""
        page = self.page
        page.goto(sweep)
        page.get_by_label("Register the best trial as model").fill("digits")
        page.get_by_role("button", name="Register", exact=True).click()
        page.get_by_role("button", name="Register").click()
        page.get_by_text("Done.").wait_for()
        page.get_by_role("link", name="Models").click()
        page.get_by_role("link", name="digits").first.wait_for()
        self._take("models")

    def read_bill(self) -> None:
        """Read what it would have cost on a GPU in Azure."""
        page = self.page
        page.get_by_role("link", name="Bill").click()
        page.get_by_role("link", name=re.compile("Show the bill as if")).click()
        page.get_by_role("heading", name="By cause").wait_for()
        self._take("bill")

    def _follow_result(self) -> None:
        """Wait for the end of a command, and follow the link to what it has made."""
        self.page.get_by_role("main").locator("a.button").first.click()

    def _state(self, label: str) -> None:
        self.page.locator(".head").get_by_text(label).wait_for()

    def _take(self, name: str) -> None:
        self.page.wait_for_load_state("load")
        self.page.evaluate("() => document.fonts.ready")
        self.page.screenshot(path=self._folder / f"{name}.png", animations="disabled")


@contextmanager
def _page_server(runner: Sequence[str], folder: Path) -> Generator[str]:
    """Serve the page of local services, and yield the link that signs a browser in."""
    words = [*runner, "ui", "--no-open", "--port", "0"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        lines = iter(server.stdout or ())
        yield next(line.strip() for line in lines if "token=" in line)
        server.send_signal(signal.SIGINT)


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the walk with services of its own in a temporary folder."""
    parser = argparse.ArgumentParser(description="Photograph the page for its guide.")
    parser.add_argument("--pictures", type=Path, default=PICTURES, help="folder for the pictures")
    folder: Path = parser.parse_args(arguments).pictures
    program = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None or importlib.util.find_spec("playwright") is None:
        print("error: needs Chromium (apt-get install chromium) and Playwright (make test-all)")
        return 1
    from playwright.sync_api import ViewportSize, sync_playwright  # noqa: PLC0415

    work = Path(tempfile.gettempdir()) / "runner-tour"  # its path is in the log of a run
    (work / "folder").mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    os.environ |= {"RUNNER_HOME": str(work / "home"), "RUNNER_TARGET": "local"}
    runner = (sys.executable, "-m", "runner")
    subprocess.run([*runner, "local", "reset", "--yes"], cwd=work, check=True)
    subprocess.run([*runner, "local", "up", "--nodes", "2"], cwd=work, check=True)
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    try:
        with _page_server(runner, work / "folder") as link, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=options)
            size = ViewportSize(width=WIDTH, height=HEIGHT)
            context = browser.new_context(
                base_url=link.partition("/?")[0], viewport=size, timezone_id="UTC", locale="en-GB"
            )
            page = context.new_page()
            page.goto(link)
            Tour(page, folder).walk()
            browser.close()
    finally:
        subprocess.run([*runner, "local", "down"], cwd=work, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
