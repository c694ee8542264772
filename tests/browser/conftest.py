"""Fixtures that look at the page of a real server in a headless Chromium.

A test that needs another server starts one with `start_page`. `browser_page` checks at its end that
the browser had no error, asked no other host, and shifted nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import urllib.request
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from tests.browser.checks import COUNT_SHIFTS, MAX_SHIFT, serious_findings, shifted
from tests.e2e.conftest import KEPT, Cli, new_home, remove_outside, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

HERE = Path(__file__).parent
WAIT_MS = 120_000  # for what happens at once on a quiet machine
EVIL = "evil.test"  # a name of another website, which leads to this machine
_LINK = re.compile(r"http://\S+/\?token=\S+")
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder as slow."""
    for item in items:
        if str(item.path).startswith(f"{HERE}/"):
            item.add_marker(pytest.mark.slow)


@dataclass
class PageServer:
    """A process of `runner ui`."""

    cli: Cli
    process: subprocess.Popen[str]
    printed: list[str] = field(default_factory=list[str])  # all lines of both streams
    _cookie: tuple[str, str] | None = None

    def follow(self) -> None:
        """Read both streams in the background."""
        for stream in (self.process.stdout, self.process.stderr):
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream: Any) -> None:
        self.printed.extend(iter(stream.readline, ""))

    @property
    def link(self) -> str:
        """The newest link that signs a browser in, once."""
        links = [found[0] for line in list(self.printed) if (found := _LINK.search(line))]
        return links[-1] if links else ""

    @property
    def address(self) -> str:
        """The address without a final slash."""
        return self.link.partition("/?token=")[0]

    def cookie(self) -> tuple[str, str]:
        """Return name and value of the cookie of one session that all browsers of a test share."""
        if self._cookie is None:
            used = self.link
            with build_opener().open(used) as answer:
                name, _, rest = answer.headers["set-cookie"].partition("=")
            self._cookie = (name, rest.partition(";")[0])
            until(lambda: self.link != used)
        return self._cookie

    def stop(self, timeout_s: float = 120) -> int:
        """Press Ctrl-C, and return the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout_s)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def http_error_303(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> Any:
        return fp


def build_opener() -> urllib.request.OpenerDirector:
    """Return what opens an address of the page: no proxy, and redirects are answers."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


def start_page(cli: Cli, *options: object, port: int = 0) -> PageServer:
    """Start `runner ui`, and return it when it answers."""
    server = PageServer(cli, cli.start("ui", "--no-open", "--port", port, *options))
    server.follow()
    until(lambda: server.link or server.process.poll() is not None, timeout_s=120)
    assert server.link, server.printed
    return server


@pytest.fixture(scope="session")
def page_home(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Return the home of local services with two nodes, shared by the tests of one worker."""
    folder = tmp_path_factory.mktemp("browser")
    home = new_page_home(folder / "home")
    cli = Cli(home, folder)
    cli.ok("local", "up", "--nodes", "2")
    yield home
    cli.ok("local", "down")
    remove_outside(home)


def new_page_home(path: Path) -> Path:
    """Return an empty RUNNER_HOME whose downloads, also the page's scripts, are shared."""
    home = new_home(path)
    (KEPT / "page").mkdir(exist_ok=True)
    (home / "page").symlink_to(KEPT / "page")
    return home


@pytest.fixture
def services(page_home: Path, tmp_path: Path) -> Cli:
    """Return the command with the shared local services, in a folder of the test."""
    return Cli(page_home, tmp_path)


@pytest.fixture
def own_services(tmp_path: Path) -> Generator[Cli]:
    """Yield the command with running services of the test, which it may break."""
    (tmp_path / "work").mkdir()
    cli = Cli(new_page_home(tmp_path / "home"), tmp_path / "work")
    cli.ok("local", "up")
    yield cli
    cli.run("local", "down")
    remove_outside(cli.home)


@pytest.fixture(scope="session")
def page_server(page_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Generator[PageServer]:
    """Yield a page of the shared services, which no test may stop."""
    server = start_page(Cli(page_home, tmp_path_factory.mktemp("page")))
    yield server
    server.stop()


@pytest.fixture(scope="module")  # Playwright's event loop would stop `asyncio.run` of other tests
def chromium() -> Generator[Browser]:
    """Yield a headless Chromium of the system."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("Playwright is not installed: make test-all installs it")
    program = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if program is None:
        pytest.skip("no Chromium on PATH: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    # The sandbox of Chromium refuses root.
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    options.append(f"--host-resolver-rules=MAP {EVIL} 127.0.0.1")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


@dataclass
class Watched:
    """What a browser reported about the pages of a context."""

    errors: list[str] = field(default_factory=list[str])
    foreign: list[str] = field(default_factory=list[str])

    def watch(self, context: BrowserContext, address: str) -> None:
        """Collect errors, and requests to other hosts."""
        host = urlsplit(address).netloc

        def check(url: str) -> None:
            if urlsplit(url).scheme not in ("data", "blob") and urlsplit(url).netloc != host:
                self.foreign.append(url)

        context.on("request", lambda request: check(request.url))
        context.on(
            "console",
            lambda said: self.errors.append(said.text) if said.type == "error" else None,
        )
        context.on("weberror", lambda error: self.errors.append(str(error.error)))


@pytest.fixture
def watched() -> Watched:
    """Return what the browser of `browser_page` reports. A test that expects errors clears it."""
    return Watched()


NewPage = Callable[..., "Page"]


@pytest.fixture
def new_page(chromium: Browser, watched: Watched) -> Generator[NewPage]:
    """Yield a function that opens a tab which is signed in at a server, with base URL."""
    contexts: list[BrowserContext] = []

    def open_tab(server: PageServer, *, signed_in: bool = True, **options: Any) -> Page:
        given: dict[str, Any] = {"viewport": {"width": 1280, "height": 800}, **options}
        context = chromium.new_context(base_url=server.address, **given)
        context.set_default_timeout(WAIT_MS)
        contexts.append(context)
        if signed_in:
            name, value = server.cookie()
            context.add_cookies([{"name": name, "value": value, "url": server.address}])
        if options.get("java_script_enabled", True):
            context.add_init_script(COUNT_SHIFTS)
        watched.watch(context, server.address)
        return context.new_page()

    yield open_tab
    for context in contexts:
        context.close()


@pytest.fixture
def browser_page(page_server: PageServer, new_page: NewPage, watched: Watched) -> Generator[Page]:
    """Yield a tab that is signed in: `browser_page.goto("/runs")`."""
    page = new_page(page_server)
    yield page
    shift = shifted(page)
    assert watched.errors == []
    assert watched.foreign == []
    assert shift < MAX_SHIFT


@pytest.fixture
def assert_accessible(page_home: Path) -> Callable[[Page], None]:
    """Return a function that fails for serious findings of axe-core on a page."""

    def check(page: Page) -> None:
        assert serious_findings(page, page_home) == []

    return check


@pytest.fixture(scope="session")
def finished_run(page_home: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the ID of a run that succeeded, with metrics, an output and lines on both streams."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "train.py").write_text(_SCRIPT, encoding="utf-8")
    cli = Cli(page_home, folder)
    done = cli.ok("train", folder, "-o", "json", "--", "--lr", "0.1")
    return json.loads(done)["run_id"]


_SCRIPT = """\
import json, os, pathlib, sys
print("<b>begin</b>", flush=True)
print("warned", file=sys.stderr)
with open(os.environ["RUNNER_METRICS_FILE"], "a") as file:
    for step in range(20):
        file.write(json.dumps({"name": "loss", "value": 1 / (step + 1), "step": step}) + "\\n")
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "report.json").write_text('{"loss": 0.05}')
"""
