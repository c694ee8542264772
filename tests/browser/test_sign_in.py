"""Signing in with the link that `runner ui` prints, and moving between pages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.browser.checks import screenshots
from tests.browser.conftest import NewPage, PageServer
from tests.e2e.conftest import until

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_list_and_run_are_accessible_and_fit(
    browser_page: Page, assert_accessible: Callable[[Page], None], finished_run: str
) -> None:
    browser_page.goto("/runs")
    assert_accessible(browser_page)
    screenshots(browser_page, "runs")
    browser_page.get_by_role("link", name=finished_run).click()
    browser_page.get_by_role("heading", name=finished_run).wait_for()
    assert_accessible(browser_page)
    screenshots(browser_page, "run")
    browser_page.go_back()
    assert browser_page.title().startswith("Runs")


def test_link_signs_in_one_browser_and_leaves_the_address(
    page_server: PageServer, new_page: NewPage
) -> None:
    used = page_server.link
    first = new_page(page_server, signed_in=False)
    first.goto(used)
    assert first.url == f"{page_server.address}/runs"
    assert first.evaluate("document.cookie") == ""
    until(lambda: page_server.link != used)
    second = new_page(page_server, signed_in=False)
    refused = second.goto(used)
    assert refused is not None
    assert refused.status == 403
