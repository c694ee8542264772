"""Services that end, servers that end, and clocks that are wrong, while pages are open."""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.browser.conftest import NewPage, PageServer, Watched, start_page
from tests.e2e.conftest import Cli, until
from tests.processes import alive

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page


def kill_services(cli: Cli) -> dict[str, Any]:
    """Kill emulator and blob service, and return what `local status` said about them."""
    status = cli.json("local", "status")
    for name in ("batch", "blob"):
        os.kill(status[name]["pid"], signal.SIGKILL)
    until(lambda: not any(alive(status[name]["pid"]) for name in ("batch", "blob")))
    return status


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def trouble(page: Page) -> str:
    return page.inner_text("#trouble")


def wait_for(page: Page, condition: Callable[[], object], *, timeout_s: float = 60) -> None:
    """Let the browser work until a condition is true."""
    end = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end, "did not happen in time"
        page.wait_for_timeout(200)


def test_page_says_that_services_are_gone_and_comes_back_on_other_ports(
    own_services: Cli, new_page: NewPage
) -> None:
    server = start_page(own_services)
    page = new_page(server)
    page.goto("/runs")
    before = kill_services(own_services)
    wait_for(page, lambda: "not running" in trouble(page))
    assert "runner local up" in trouble(page)
    refused = page.request.get("/runs")
    assert refused.status == 503
    assert "runner local up" in refused.text()
    own_services.ok("local", "up", "--blob-port", free_port(), "--port", free_port())
    wait_for(page, lambda: not trouble(page))
    assert "No runs" in page.inner_text("main")
    after = own_services.json("local", "status")
    assert after["blob"]["endpoint"] != before["blob"]["endpoint"]
    server.stop()
    assert not [line for line in server.printed if "Traceback" in line]


def test_page_says_that_its_server_ended_and_that_a_new_one_needs_a_link(
    services: Cli, new_page: NewPage, watched: Watched
) -> None:
    server = start_page(services)
    page = new_page(server)
    page.goto("/runs")
    wait_for(page, lambda: page.locator("h1").count())
    port = urlsplit(server.address).port
    server.stop()
    wait_for(page, lambda: "does not answer" in trouble(page))
    second = start_page(services, port=port or 0)
    wait_for(page, lambda: "signed out" in trouble(page))
    page.goto(second.link)
    assert page.url.endswith("/runs")
    assert watched.errors  # the browser reports failed requests
    second.stop()


def test_interrupt_ends_within_two_seconds_and_leaves_no_process(
    services: Cli, new_page: NewPage, finished_run: str
) -> None:
    server = start_page(services)
    pages = [new_page(server) for _ in range(3)]
    for page in pages:
        page.goto(f"/runs/{finished_run}")
    children = psutil.Process(server.process.pid).children(recursive=True)
    started = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - started < 2
    assert not [each for each in children if alive(each.pid)]
    assert not [line for line in server.printed if "ERROR" in line or "Traceback" in line]


def test_command_that_runs_ends_with_the_server(services: Cli, new_page: NewPage) -> None:
    server = start_page(services)
    page = new_page(server)
    page.goto("/act/retry?run=@last")
    page.get_by_role("button", name="Retry").click()
    page.wait_for_url("**/jobs/1")
    children = psutil.Process(server.process.pid).children(recursive=True)
    started = time.monotonic()
    server.stop()
    assert time.monotonic() - started < 2
    until(lambda: not [each for each in children if alive(each.pid)], timeout_s=5)


def test_port_in_use_is_an_error_with_a_fix(services: Cli, page_server: PageServer) -> None:
    port = urlsplit(page_server.address).port
    done = services.run("ui", "--no-open", "--port", port)
    assert done.returncode == 2
    assert "error[R-PAGE-PORT]" in done.stderr
    assert "--port 0 takes a free one" in done.stderr


def test_clock_of_the_reader_may_be_wrong(
    page_server: PageServer, new_page: NewPage, finished_run: str
) -> None:
    page = new_page(page_server, timezone_id="Asia/Tokyo", locale="en-GB")
    page.clock.install(time=datetime(2001, 2, 3, tzinfo=UTC))
    page.goto("/runs")
    age = page.locator(f"#row-{finished_run} time").first
    assert re.fullmatch(r"[\d.]+ (s|min)", age.inner_text())
    page.goto(f"/runs/{finished_run}")
    shown = page.locator("time:not([data-age])").first
    at = datetime.fromisoformat(shown.get_attribute("datetime") or "")
    page.wait_for_function(
        "!document.querySelector('time:not([data-age])').innerText.endsWith('UTC')"
    )
    local = shown.evaluate("each => new Date(each.dateTime).toLocaleTimeString('en-GB')")
    assert local in page.locator("time:not([data-age])").first.evaluate("e => e.textContent")
    assert (shown.get_attribute("title") or "").startswith(at.strftime("%Y-%m-%d %H:%M:%S"))


@pytest.mark.parametrize("option", ["--read-only"])
def test_read_only_page_shows_no_button_and_refuses_actions(
    services: Cli, new_page: NewPage, finished_run: str, option: str
) -> None:
    server = start_page(services, option)
    page = new_page(server)
    page.goto(f"/runs/{finished_run}")
    assert "read only" in page.inner_text("header")
    assert page.get_by_role("link", name="Retry").count() == 0
    refused = page.request.post("/act/retry", form={"run": finished_run})
    assert refused.status == 403
    server.stop()
