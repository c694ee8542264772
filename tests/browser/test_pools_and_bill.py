"""Pools, nodes over time, the bill and the simulator: looking and acting."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.browser.checks import screenshots
from tests.browser.conftest import NewPage, Watched, start_page
from tests.browser.test_reading import start_waiting
from tests.e2e.conftest import Cli, until, write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

PRICES = "vm_size=Standard_NC16as_T4_v3&region=swedencentral"


@pytest.mark.feature(55)
@pytest.mark.parametrize(
    ("name", "path", "heading"),
    [
        ("pools", f"/pools?{PRICES}", "Pools"),
        ("pool", f"/pools/local?{PRICES}", "local"),
        ("bill", f"/bill?{PRICES}", "Bill"),
        ("whatif", f"/bill/whatif?go=1&tasks=10&mtbf=2h&{PRICES}", "What if"),
    ],
)
def test_page_fits_every_width_and_everybody_can_use_it(
    browser_page: Page,
    finished_run: str,
    assert_accessible: Callable[[Page], None],
    name: str,
    path: str,
    heading: str,
) -> None:
    browser_page.goto(path)
    assert browser_page.inner_text("h1") == heading
    assert_accessible(browser_page)
    assert len(screenshots(browser_page, name)) == 6
    assert finished_run  # the pages are not empty


def test_bar_of_a_new_run_appears_and_leads_to_it(
    services: Cli, browser_page: Page, tmp_path: Path
) -> None:
    run_id, gate = start_waiting(services, tmp_path / "bar")
    browser_page.goto("/pools/local")
    # Not the bar of its set-up, which another one may cover.
    bar = browser_page.locator(f"svg.nodes a[href='/runs/{run_id}'] .bar.running").first
    bar.wait_for(state="attached")
    bar.click()
    browser_page.wait_for_url(f"**/runs/{run_id}")
    write_whole(gate, "")
    browser_page.locator(".head .state.succeeded").wait_for()
    assert browser_page.title().startswith(run_id)


def test_laptop_has_a_bill_as_if_it_were_on_azure(
    browser_page: Page, finished_run: str, services: Cli
) -> None:
    browser_page.goto("/bill?since=all")
    browser_page.get_by_role("link", name=re.compile("as if they were")).click()
    browser_page.wait_for_url("**vm_size=*")
    assert "since=all" in browser_page.url
    browser_page.goto(f"/bill?since=all&{PRICES}")
    words = ["--vm-size", "Standard_NC16as_T4_v3", "--region", "swedencentral"]
    printed = services.json("cost", *words)
    document = browser_page.request.get(f"/api/v1/bill?since=all&{PRICES}").json()
    work = ("useful", "setup", "failed")  # idle time grows between the two
    by_day: dict[str, int] = {}
    for day in document["days"]:
        for part, micro in day["parts"].items():
            by_day[part] = by_day.get(part, 0) + micro
    for part in work:
        assert by_day.get(part, 0) == printed["total"]["parts"][part]["micro_usd"]
    assert "$" in browser_page.inner_text(".paid")
    row = browser_page.locator(f"tr[id='run-{finished_run}']")
    assert "$" in row.inner_text()


def test_simulator_answers_a_form(browser_page: Page) -> None:
    browser_page.goto("/bill/whatif")
    browser_page.get_by_label("Tasks").fill("5")
    browser_page.get_by_label("Time of a task").fill("10m")
    browser_page.get_by_label("VM sizes").fill("Standard_NC16as_T4_v3")
    browser_page.get_by_label("Region").fill("swedencentral")
    browser_page.get_by_role("button", name="Simulate").click()
    browser_page.get_by_text("Cheapest within").wait_for()
    assert browser_page.locator("img.picture").evaluate("each => each.naturalWidth") > 0
    browser_page.get_by_label("Time of a task").fill("long")
    browser_page.get_by_role("button", name="Simulate").click()
    browser_page.get_by_role("alert").get_by_text("is not a duration").wait_for()


def act(page: Page, name: str, command: str, **values: str) -> str:
    """Follow a link, fill in a form, and confirm the command that it shows.

    Returns what the form said would be lost.
    """
    page.get_by_role("link", name=name, exact=True).first.click()
    page.wait_for_url("**/act/*")
    for label, value in values.items():
        entry = page.get_by_label(label.replace("_", " "))
        is_choice = entry.evaluate("each => each.tagName") == "SELECT"
        entry.select_option(value) if is_choice else entry.fill(value)
    page.locator("pre.command", has_text=re.compile(f"^{re.escape(command)}$")).wait_for()
    loss = page.locator(".loss")
    lost = loss.inner_text() if loss.count() else ""
    page.locator("form.act .buttons button").first.click()
    page.get_by_text("Done.", exact=True).wait_for()
    return lost


def test_pool_is_changed_and_its_nodes_are_evicted_from_the_page(
    own_services: Cli, new_page: NewPage, watched: Watched, tmp_path: Path
) -> None:
    server = start_page(own_services)
    try:
        page = new_page(server)
        page.goto("/pools/local")
        act(page, "Resize", "runner pool resize local 2 --dedicated=0", Spot_nodes="2")
        page.goto("/pools/local")
        page.locator("tbody tr[id^='node-']").nth(1).wait_for()
        node = page.locator("tbody tr[id^='node-'] th").first.inner_text()
        act(page, "Disable", f"runner pool disable local {node}")
        page.goto(f"/pools/local?q={node}")
        page.locator(f"tr[id='node-{node}']", has_text="offline").wait_for()
        page.locator(f"tr[id='node-{node}']").get_by_role("link", name="Enable").click()
        page.wait_for_url("**/act/node-enable*")
        assert page.inner_text("pre.command code") == f"runner pool enable local {node}"
        page.locator("form.act .buttons button").first.click()
        page.get_by_text("Done.", exact=True).wait_for()
        run_id, gate = start_waiting(own_services, tmp_path / "evicted")
        page.goto("/pools/local?state=running")
        busy = page.locator("tbody tr[id^='node-'] th")
        for _ in range(60):
            page.wait_for_timeout(500)
            if busy.count():
                break
        node = busy.first.inner_text()
        command = f"runner local evict {node} --pool=local --notice=1s"
        lost = act(page, "Evict", command, Time_between_notice_and_eviction="1s")
        assert "1 running task" in lost
        # Not before the second attempt: the first one could end within the notice.
        until(lambda: len(own_services.json("show", run_id)["attempts"]) == 2, timeout_s=120)
        write_whole(gate, "")
        until(lambda: own_services.json("show", run_id)["state"] == "succeeded", timeout_s=120)
        (attempts,) = {row["attempts"] for row in own_services.json("ps")}
        assert attempts == 2
        page.goto("/pools/local")
        page.locator("svg.nodes .eviction").wait_for(state="attached")
        drained = "runner pool drain local --running=requeue"
        assert "No task runs" in act(page, "Drain", drained, Running_runs="requeue")
        page.goto("/pools/local")
        act(page, "Enable", "runner pool enable local")
        (pool,) = own_services.json("pool", "ls")
        assert pool["spot_target"] == 2
        page.goto("/pools/local")
        lost = act(page, "Delete", "runner pool rm local --yes")
        assert "Pool local with 2 nodes" in lost
        until(lambda: own_services.json("pool", "ls") in ([], [pool]))
        assert watched.errors == []
    finally:
        server.stop()
