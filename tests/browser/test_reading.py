"""Reading and acting: live updates, actions, the keyboard, paper, and no scripts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.browser.checks import overflow
from tests.browser.conftest import NewPage, PageServer
from tests.e2e.conftest import Cli, until, write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

_WAITS = """\
import pathlib, sys, time
print("waiting", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print("loss 0.25", flush=True)
print("went on", flush=True)
"""


def start_waiting(cli: Cli, folder: Path) -> tuple[str, Path]:
    """Start a run that waits for a file, and return its ID and the file."""
    folder.mkdir()
    (folder / "train.py").write_text(_WAITS, encoding="utf-8")
    folder.parent.chmod(0o755)
    gate = folder.parent / "gate"
    started = cli.ok("train", folder, "-d", "-o", "json", "--", gate)
    return json.loads(started)["run_id"], gate


@pytest.mark.feature(55)
def test_run_updates_itself_and_log_lines_arrive(
    services: Cli, browser_page: Page, tmp_path: Path
) -> None:
    run_id, gate = start_waiting(services, tmp_path / "live")
    browser_page.goto(f"/runs/{run_id}")
    browser_page.locator("#log", has_text="waiting").wait_for()
    browser_page.evaluate("document.querySelector('#log').dataset.mine = '1'")
    write_whole(gate, "")
    browser_page.locator("#log", has_text="went on").wait_for()
    browser_page.locator(".head .state.succeeded").wait_for()
    browser_page.get_by_role("link", name="Reproduce").wait_for()
    assert browser_page.locator("#log").get_attribute("data-mine") == "1"  # not replaced
    assert browser_page.inner_text("#log").count("went on") == 1


def test_cancel_shows_its_command_asks_and_acts(
    services: Cli, browser_page: Page, tmp_path: Path
) -> None:
    run_id, _ = start_waiting(services, tmp_path / "cancelled")
    browser_page.goto(f"/runs/{run_id}")
    browser_page.get_by_role("link", name="Cancel").click()
    assert f"runner cancel {run_id}" in browser_page.inner_text("main")
    browser_page.get_by_role("button", name="Cancel").click()
    browser_page.wait_for_url("**/jobs/*")
    browser_page.get_by_text("Done.").wait_for()
    assert services.json("show", run_id)["state"] == "cancelled"
    browser_page.goto(f"/runs/{run_id}")
    assert browser_page.locator(".head .state").inner_text().endswith("cancelled")


def test_retry_leads_to_the_new_run(services: Cli, browser_page: Page, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    tmp_path.chmod(0o755)
    failed = services.run("train", tmp_path, "-o", "json")
    run_id = json.loads(failed.stdout)["run_id"]
    browser_page.goto(f"/runs/{run_id}")
    browser_page.get_by_role("link", name="Retry").click()
    browser_page.get_by_role("button", name="Retry").click()
    browser_page.get_by_text("Done.").wait_for()
    new = browser_page.locator("main a[href^='/runs/']").first.inner_text()
    assert new != run_id
    until(lambda: services.json("show", new)["state"] == "failed")


def test_pages_are_complete_without_scripts(
    page_server: PageServer, new_page: NewPage, finished_run: str
) -> None:
    page = new_page(page_server, java_script_enabled=False)
    page.goto("/runs")
    page.get_by_label("Search").fill("no such run")
    page.get_by_role("button", name="Show").click()
    assert "No runs match" in page.inner_text("main")
    page.goto("/runs")
    page.get_by_role("link", name=finished_run).click()
    for word in ("loss", "report.json", "begin", "--lr"):
        assert word in page.inner_text("main")
    assert page.locator("svg").count() > 0
    page.get_by_role("link", name="report.json").click()
    assert '"loss": 0.05' in page.inner_text("main")


def test_keyboard_alone_reaches_a_run(browser_page: Page, finished_run: str) -> None:
    browser_page.goto("/runs")
    browser_page.keyboard.press("Tab")
    assert browser_page.evaluate("document.activeElement.innerText") == "Skip to the content"
    browser_page.keyboard.press("Enter")
    browser_page.wait_for_url("**#view")
    for _ in range(60):
        browser_page.keyboard.press("Tab")
        text: str = browser_page.evaluate("document.activeElement.innerText")
        outline = browser_page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none", text
        if text == finished_run:
            break
    browser_page.keyboard.press("Enter")
    browser_page.wait_for_url(f"**/runs/{finished_run}")


def test_paper_has_the_content_and_no_buttons(browser_page: Page, finished_run: str) -> None:
    browser_page.goto(f"/runs/{finished_run}")
    browser_page.emulate_media(media="print")
    assert not browser_page.locator("header").is_visible()
    assert not browser_page.get_by_role("link", name="Retry").is_visible()
    assert browser_page.locator("#log").is_visible()
    browser_page.set_viewport_size({"width": 794, "height": 1123})  # A4
    assert overflow(browser_page) <= 0
    assert len(browser_page.pdf()) > 1000


def test_address_shows_the_same_view_again_and_back_returns(
    browser_page: Page, page_server: PageServer, new_page: NewPage, finished_run: str
) -> None:
    browser_page.goto("/runs")
    browser_page.get_by_label("Search").fill(finished_run)
    browser_page.get_by_role("button", name="Show").click()
    browser_page.wait_for_url(re.compile("q="))
    other = new_page(page_server)
    other.goto(browser_page.url)
    for page in (browser_page, other):
        assert page.locator("tbody tr").count() == 1
        assert page.get_by_label("Search").input_value() == finished_run
    browser_page.go_back()
    assert browser_page.get_by_label("Search").input_value() == ""


def test_action_and_file_pages_are_accessible(
    browser_page: Page, assert_accessible: Callable[[Page], None], finished_run: str
) -> None:
    for path in (
        f"/act/rm?run={finished_run}",
        f"/runs/{finished_run}/files?name=report.json",
        f"/compare?run={finished_run}&run=@last",
        "/runs?q=nothing",
    ):
        browser_page.goto(path)
        assert_accessible(browser_page)
