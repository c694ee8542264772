"""The emulator's page in a real browser: live updates, actions, without scripts, and for everybody.

Pictures of all pages are written to `build/emulator-page/`. The check with axe needs `AXE_CORE`,
the path of `axe.min.js` in the npm package axe-core.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from batch_emulator.domain.account import Limits
from batch_emulator.server import Server
from tests.browser.conftest import WAIT_MS
from tests.contract.server import ACCOUNT, KEY, MACHINE, Things, client_for
from tests.loopback import reusable_ports

# Playwright is installed separately, so that its types may be missing.
Browser = Any
Page = Any

pytestmark = pytest.mark.slow

PICTURES = Path(__file__).parents[2] / "build" / "emulator-page"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>"
WIDTHS = (360, 1280, 2560)
PATHS = {
    "pools": "/",
    "pool": "/pools/gpus",
    "timeline": "/timeline",
    "jobs": "/jobs",
    "job": "/jobs/train",
    "task": "/jobs/train/tasks/t1",
    "schedules": "/schedules",
    "requests": "/requests",
    "request": "/requests/1",
    "events": "/events",
    "control": "/control",
    "action": "/act/evict-some?pool=gpus&back=/pools/gpus",
}


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    """Yield Chromium, driven by Playwright; both are installed separately."""
    api: Any = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next(filter(None, map(shutil.which, names)), None)
    if program is None:
        pytest.skip("no Chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        started = playwright.chromium.launch(executable_path=program, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    """Yield an emulator with a pool, and with tasks whose names and output are hostile."""
    limits = Limits(boot_s=0.3)
    folder = tmp_path_factory.mktemp("browser")
    with Server(folder, ui=True, account=ACCOUNT, key=KEY, limits=limits) as running:
        things = Things(client_for(running.url))
        pool: Any = {
            "id": "gpus",
            "displayName": HOSTILE,
            "vmSize": "standard_d2s_v3",
            "targetLowPriorityNodes": 2,
            "virtualMachineConfiguration": MACHINE,
        }
        things.client.create_pool(pool)
        job: Any = {"id": "train", "displayName": HOSTILE, "poolInfo": {"poolId": "gpus"}}
        things.client.create_job(job)
        for n in range(4):
            task: Any = {
                "id": f"t{n}",
                "displayName": HOSTILE,
                "commandLine": f"/bin/sh -c \"echo '{HOSTILE}'; sleep 0.3\"",
            }
            things.client.create_task("train", task)
        for n in range(4):
            things.wait_task("train", f"t{n}")
        yield running


def _open(browser: Browser, server: Server, **options: Any) -> tuple[Page, str]:
    """Return a page that is signed in, and the address of the emulator's page."""
    assert server.page_link is not None
    link = server.page_link
    context = browser.new_context(**options)
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto(link)
    return page, link.partition("/?")[0]


@pytest.fixture
def page(browser: Browser, server: Server) -> Generator[Page]:
    """Yield a page that is signed in, and fail if a script of others ran or one of ours failed."""
    opened, _ = _open(browser, server, timezone_id="Asia/Kolkata", permissions=["clipboard-write"])
    faults: list[str] = []

    def on_dialog(dialog: Any) -> None:
        faults.append(dialog.message)
        dialog.dismiss()

    def on_error(error: Any) -> None:
        faults.append(str(error))

    def on_console(message: Any) -> None:
        if "Content Security" in message.text:
            faults.append(message.text)

    opened.on("dialog", on_dialog)
    opened.on("pageerror", on_error)
    opened.on("console", on_console)
    yield opened
    opened.context.close()
    assert faults == []


def _base(page: Page) -> str:
    found = re.match(r"http://[^/]+", page.url)
    assert found is not None
    return found[0]


def test_link_signs_in_and_leaves_the_address(page: Page) -> None:
    assert page.url == f"{_base(page)}/"
    assert page.title() == "Pools · Batch emulator"
    assert page.evaluate("document.cookie") == ""
    assert page.locator("th a", has_text="gpus").count() == 1


def test_changes_appear_without_a_reload(page: Page, server: Server) -> None:
    page.goto(f"{_base(page)}/jobs")
    page.evaluate("window.mark = 1")
    page.locator("th a").first.focus()
    job: Any = {"id": "later", "poolInfo": {"poolId": "gpus"}}
    client_for(server.url).create_job(job)
    page.locator("th a", has_text="later").wait_for()
    assert page.evaluate("window.mark") == 1
    assert page.evaluate("document.activeElement.tagName") == "A"
    client_for(server.url).begin_delete_job("later")
    page.locator("th a", has_text="later").wait_for(state="detached")


def test_times_are_in_the_zone_of_the_reader_with_utc_on_hover(page: Page) -> None:
    page.goto(f"{_base(page)}/jobs/train")
    shown = page.locator("dl time").first
    utc = shown.get_attribute("title") or ""
    assert utc.endswith(" UTC")
    minutes = int(utc[14:16])
    assert int(shown.inner_text()[14:16]) == (minutes + 30) % 60  # India is at +5:30


def test_node_is_evicted_with_the_keyboard_after_the_command_was_shown(
    page: Page, server: Server
) -> None:
    page.goto(f"{_base(page)}/pools/gpus")
    page.locator("td a", has_text="Evict").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/act/evict**")
    assert "curl -X POST" in page.locator("#command").inner_text()
    page.get_by_label("Seconds of notice").fill("0")
    page.locator("#command", has_text="notice=0").first.wait_for()
    go = page.get_by_role("button", name="Evict")
    go.click()
    assert "/act/evict" in page.url  # the browser asks for the confirmation first
    page.get_by_label("Go on").focus()
    page.keyboard.press("Space")
    go.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**/pools/gpus")
    assert server.emulator is not None
    kinds = [event.kind for event in server.emulator.account.events.after(0)]
    assert "node.evict" in kinds
    Things(client_for(server.url)).wait_nodes("gpus", 2)


def test_address_has_the_filters_and_back_goes_back(page: Page) -> None:
    page.goto(f"{_base(page)}/jobs/train")
    page.get_by_label("State").select_option("running")
    page.wait_for_url("**state=running")
    assert "No task is running" in page.locator("main").inner_text()
    page.go_back()
    page.locator("th a", has_text="t3").wait_for()


def test_details_stay_open_while_the_page_changes(page: Page, server: Server) -> None:
    page.goto(f"{_base(page)}/pools/gpus")
    page.locator("summary").click()
    job: Any = {"id": "another", "poolInfo": {"poolId": "gpus"}}
    with page.expect_response(re.compile("/pools/gpus$")):
        client_for(server.url).create_job(job)
    assert page.locator("details[open]").count() == 1
    client_for(server.url).begin_delete_job("another")


def test_everything_works_without_scripts(browser: Browser, server: Server) -> None:
    page, base = _open(browser, server, java_script_enabled=False)
    for path in PATHS.values():
        answer = page.goto(f"{base}{path}")
        assert answer is not None
        assert answer.ok
    page.goto(f"{base}/act/plan-fault")
    page.locator("[name=operation]").fill("Pool_List")
    page.locator("[name=count]").fill("3")
    page.get_by_role("button", name="Update the command").click()
    assert '"count": 3' in page.locator("#command").inner_text()
    page.get_by_role("button", name="Plan a fault").click()
    page.goto(f"{base}/control")
    assert "Pool_List" in page.locator("table").inner_text()
    page.get_by_role("link", name="Forget all rules for faults").click()
    page.get_by_role("button", name="Forget all rules for faults").click()
    page.wait_for_url("**/control?done=forget-faults")
    assert "There are no rules" in page.locator("main").inner_text()
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_every_width(browser: Browser, server: Server, scheme: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page, base = _open(browser, server, color_scheme=scheme)
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for name, path in PATHS.items():
            page.goto(f"{base}{path}")
            page.screenshot(path=PICTURES / f"{name}-{scheme}-{width}.png", full_page=width < 2000)
            wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{path} is {wide} pixels too wide at {width}"
    page.context.close()


_COUNT_SHIFTS = """
window.shifts = 0;
new PerformanceObserver(list => list.getEntries().forEach(e => window.shifts += e.value))
  .observe({ type: "layout-shift", buffered: true });
"""


def test_nothing_moves_after_a_page_has_loaded(browser: Browser, server: Server) -> None:
    page, base = _open(browser, server, timezone_id="Asia/Kolkata")
    page.add_init_script(_COUNT_SHIFTS)
    moved: dict[str, float] = {}
    for name, path in PATHS.items():
        page.goto(f"{base}{path}")
        page.wait_for_timeout(300)
        if shifts := page.evaluate("window.shifts"):
            moved[name] = shifts
    page.context.close()
    assert moved == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Browser, server: Server, scheme: str) -> None:
    if "AXE_CORE" not in os.environ:
        pytest.skip("set AXE_CORE to axe.min.js of the npm package axe-core")
    axe = Path(os.environ["AXE_CORE"]).read_text(encoding="utf-8")
    page, base = _open(browser, server, color_scheme=scheme, bypass_csp=True)
    found: list[str] = []
    for path in PATHS.values():
        page.goto(f"{base}{path}")
        page.evaluate(axe)
        result = page.evaluate("axe.run()")
        assert result["passes"]
        found += [f"{path}: {v['id']} ({v['impact']})" for v in result["violations"]]
    page.context.close()
    assert found == []


def test_page_goes_on_after_a_restart_of_the_emulator(browser: Browser, tmp_path: Path) -> None:
    ports = [str(port) for port in reusable_ports(2)]

    def start() -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "batch_emulator", "--account", ACCOUNT, "--ui"),
                *("--port", ports[0], "--ui-port", ports[1], "--data-dir", str(tmp_path / "data")),
            ],
            env={**os.environ, "BATCH_EMULATOR_KEY": KEY},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        [link] = [line.split()[-1] for line in lines if line.startswith("page on ")]
        return process, link

    process, link = start()
    page = browser.new_page()
    page.set_default_timeout(WAIT_MS)
    try:
        page.goto(link)
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        note = page.locator("#trouble")
        note.filter(has_text="does not answer").wait_for()
        process, _ = start()
        note.wait_for(state="hidden")
        assert "az batch pool create" in page.locator("main").inner_text()
    finally:
        page.close()
        process.kill()
        process.wait()
