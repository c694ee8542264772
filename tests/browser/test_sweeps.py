"""Sweeps in the browser: marks in all pictures, the address, several sweeps, and actions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from azure.storage.blob import BlobServiceClient

from bench.page.page_sweep import sweep_id, write_sweep
from bench.services import storage_connection_string
from tests.browser.checks import screenshots
from tests.browser.conftest import NewPage, PageServer
from tests.e2e.conftest import Cli, until, write_whole

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Page

DRAWN, OTHER, WIDE = sweep_id(), sweep_id("other"), sweep_id("wide")
TRIALS = 120

_SCRIPT = """\
import json, os, pathlib, sys, time
lr, gate = float(sys.argv[1]), pathlib.Path(sys.argv[2])
while lr > 0.25 and not gate.exists():
    time.sleep(0.05)
with open(os.environ["RUNNER_METRICS_FILE"], "a") as file:
    for step in range(1, 6):
        value = 1 - lr if lr < 0.15 else float("nan")
        file.write(json.dumps({"name": "accuracy", "value": value, "step": step}) + "\\n")
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "model.txt").write_text(str(lr))
if lr == 0.2:
    raise SystemExit("<b>lr</b> is 0.2")
"""
_RECIPE = """\
name: curve
command: python train.py {lr} {gate}
params: {lr: 0.1, gate: ""}
metrics: {primary: accuracy, goal: max}
"""


@pytest.fixture(scope="module", autouse=True)
def drawn(page_home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Write three sweeps that have ended, one of them with 60 parameters."""
    cli = Cli(page_home, tmp_path_factory.mktemp("drawn"))
    service = BlobServiceClient.from_connection_string(storage_connection_string(cli.env))
    container = service.get_container_client("runs")
    write_sweep(container, TRIALS, 5, name=DRAWN)
    write_sweep(container, 40, 5, name=OTHER)
    write_sweep(container, 60, 60, name=WIDE)


@pytest.mark.feature(55)
@pytest.mark.parametrize(
    ("name", "path", "heading"),
    [
        ("sweeps", "/sweeps", "Sweeps"),
        ("sweep", f"/sweeps/{DRAWN}", DRAWN),
        ("sweep-marked", f"/sweeps/{DRAWN}?b.lr=0.0001..0.01&with={OTHER}", DRAWN),
        ("sweep-wide", f"/sweeps/{WIDE}", WIDE),
        ("trial", f"/sweeps/{DRAWN}/trials/007", f"Trial 007 of {DRAWN}"),
        ("experiments", "/experiments", "Experiments"),
    ],
)
def test_page_fits_every_width_and_everybody_can_use_it(
    browser_page: Page,
    assert_accessible: Callable[[Page], None],
    name: str,
    path: str,
    heading: str,
) -> None:
    browser_page.goto(path)
    assert browser_page.inner_text("h1") == heading
    assert_accessible(browser_page)
    assert len(screenshots(browser_page, name)) == 6


def test_pages_of_sweeps_lead_to_each_other(browser_page: Page) -> None:
    browser_page.goto("/runs")
    browser_page.get_by_role("navigation").get_by_role("link", name="Sweeps").click()
    browser_page.get_by_role("link", name=DRAWN).click()
    browser_page.wait_for_url(f"**/sweeps/{DRAWN}")
    assert browser_page.locator(".facts a[href='/experiments/net']").count() == 1
    browser_page.goto("/experiments")
    browser_page.locator(".head").get_by_role("link", name="Sweeps").click()
    browser_page.wait_for_url("**/sweeps")


def test_experiment_shows_its_best_run(
    services: Cli,
    browser_page: Page,
    finished_run: str,
    assert_accessible: Callable[[Page], None],
) -> None:
    name = services.json("show", finished_run)["run"]["experiment"]
    browser_page.goto(f"/experiments/{name}")
    assert browser_page.inner_text("h1") == name
    browser_page.get_by_role("link", name=finished_run).wait_for()
    assert_accessible(browser_page)
    screenshots(browser_page, "experiment")
    browser_page.get_by_role("link", name="All experiments").click()
    browser_page.get_by_role("link", name=name, exact=True).wait_for()


def marked(page: Page) -> dict[str, int]:
    """Return how many trials are marked in each picture."""
    pictures = ("#f-parallel", "#f-trials", "#f-cost")
    return {
        each: (page.locator(f"{each} .sel").get_attribute("d") or "").count("M")
        for each in pictures
    }


def test_hover_marks_the_same_trial_everywhere(browser_page: Page) -> None:
    browser_page.goto(f"/sweeps/{DRAWN}")
    row = browser_page.locator("tr[data-row='3']")
    name = row.locator("th").inner_text()
    row.hover()
    assert browser_page.locator(".hot[d^=M]").count() == 3
    assert browser_page.locator(".curves .on").get_attribute("data-row") == "3"
    browser_page.locator("#readout", has_text=f"trial {name}").wait_for()
    assert browser_page.locator("#readout").get_by_role("link").count() == 1
    # From the picture of the best value to the table.
    dots = browser_page.locator("#f-trials svg")
    dots.hover(position={"x": 200, "y": 60})
    browser_page.locator(".board tr.on, .curves .on").first.wait_for(state="attached")
    hot = browser_page.locator("#f-trials .hot").get_attribute("d")
    assert hot
    assert browser_page.locator("#f-parallel .hot").get_attribute("d")
    # The keyboard marks, too.
    browser_page.locator("tr[data-row='5'] a").focus()
    assert browser_page.locator("tr[data-row='5']").get_attribute("class") == "on"


def test_range_of_an_axis_marks_trials_in_all_pictures_and_is_in_the_address(
    browser_page: Page,
) -> None:
    browser_page.goto(f"/sweeps/{DRAWN}?axis=lr&axis=opt")
    line = browser_page.locator(".axis[data-name='lr'] .axis-line")
    box = line.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] / 2
    browser_page.mouse.move(x, box["y"] + 0.2 * box["height"])
    browser_page.mouse.down()
    browser_page.mouse.move(x, box["y"] + 0.6 * box["height"], steps=4)
    counts = marked(browser_page)
    assert len(set(counts.values())) == 1
    assert 10 < counts["#f-trials"] < TRIALS
    assert browser_page.locator(".curves .off, .board .off").count() > 0
    browser_page.mouse.up()
    browser_page.wait_for_url("**b.lr=*")
    browser_page.locator("#readout", has_text=f"of {TRIALS} trials marked").wait_for()
    value = browser_page.get_by_label("lr", exact=True).first.input_value()
    assert re.fullmatch(r"[\d.e-]+\.\.[\d.e-]+", value)
    shown = browser_page.locator(".board tbody tr").count()
    (count,) = set(marked(browser_page).values())
    assert count == shown
    assert abs(count - counts["#f-trials"]) <= 5  # a pixel of the picture
    # The address shows the same again, and going back shows all.
    browser_page.reload()
    assert browser_page.locator(".board tbody tr").count() == shown
    browser_page.go_back()
    browser_page.locator("#readout", has_text="Drag along an axis").wait_for()


def test_form_marks_choices_and_keeps_the_focus(browser_page: Page) -> None:
    browser_page.goto(f"/sweeps/{DRAWN}")
    browser_page.locator("select[name='b.opt']").select_option(["adam"])
    browser_page.get_by_role("button", name="Show").focus()
    browser_page.keyboard.press("Enter")
    browser_page.wait_for_url("**b.opt=adam*")
    browser_page.locator("#readout", has_text="trials marked").wait_for()
    assert browser_page.evaluate("document.activeElement.textContent") == "Show"
    texts = browser_page.locator(".board tbody tr").all_inner_texts()
    assert texts
    assert all("adam" in each for each in texts)


def test_sweeps_are_compared_in_one_plot(browser_page: Page) -> None:
    browser_page.goto(f"/sweeps/{DRAWN}")
    browser_page.get_by_label("Compare with").fill(OTHER)
    browser_page.get_by_role("button", name="Show").click()
    browser_page.locator("#f-trials .legend a", has_text=OTHER).wait_for()
    assert browser_page.locator("#f-trials .best").count() == 2
    assert browser_page.locator("#f-cost .best").count() == 2


def test_sweep_is_readable_and_filtered_without_scripts(
    page_server: PageServer, new_page: NewPage
) -> None:
    page = new_page(page_server, java_script_enabled=False)
    page.goto(f"/sweeps/{DRAWN}")
    assert page.locator("svg.parallel path[data-from]").count() > 1
    assert page.locator(".board tbody tr").count() == 100
    page.get_by_role("link", name="Show more").click()
    assert page.locator(".board tbody tr").count() == TRIALS
    page.locator(".board").get_by_role("link", name="Took").click()
    page.wait_for_url("**sort=took*")
    page.get_by_label("State").select_option("failed")
    page.get_by_role("button", name="Show").click()
    assert page.locator("#readout").inner_text() == f"2 of {TRIALS} trials marked."
    page.get_by_role("link", name="Reset").click()
    assert page.locator("#readout").inner_text().startswith("Drag along an axis")


def start_sweep(cli: Cli, folder: Path, values: str) -> tuple[str, Path]:
    """Start a sweep whose trials above 0.25 wait for a file; return its ID and the file."""
    folder.mkdir()
    folder.parent.chmod(0o755)
    (folder / "train.py").write_text(_SCRIPT, encoding="utf-8")
    (folder / "train.yaml").write_text(_RECIPE, encoding="utf-8")
    gate = folder.parent / "gate"
    started = cli.json(
        "sweep", "start", folder, "-p", f"lr={values}", "--set", f"gate={gate}", "--detach"
    )
    return started["sweep"], gate


def act(page: Page, name: str, command: str) -> None:
    """Follow a link, see the command that it shows, and confirm."""
    page.get_by_role("link", name=name, exact=True).first.click()
    page.wait_for_url("**/act/*")
    confirm(page, command)


def confirm(page: Page, command: str) -> None:
    """Start the command of a form, and wait until it has succeeded."""
    assert command in page.inner_text("pre.command")
    page.locator("form.act button.main, form.act button.danger").click()
    ended = page.get_by_role("status").filter(has_not_text="…")
    ended.wait_for()
    assert "Done." in ended.inner_text(), page.inner_text("main")


@pytest.mark.feature(55)
def test_sweep_is_paused_continued_and_stopped_on_its_page(
    services: Cli, browser_page: Page, tmp_path: Path
) -> None:
    sweep, _ = start_sweep(services, tmp_path / "work", "0.3,0.4,0.5")
    address = f"/sweeps/{sweep}"
    browser_page.goto(address)
    browser_page.locator(".facts .state.running").wait_for()  # live
    act(browser_page, "Pause", f"runner sweep pause {sweep}")
    browser_page.goto(address)
    browser_page.locator(".facts .state.paused").wait_for()
    act(browser_page, "Continue", f"runner sweep unpause {sweep}")
    browser_page.goto(address)
    browser_page.get_by_role("link", name="Stop", exact=True).click()
    assert "trials" in browser_page.inner_text(".loss")
    confirm(browser_page, f"runner sweep stop {sweep}")
    until(lambda: services.json("sweep", "show", sweep)["states"] == {"cancelled": 3})
    browser_page.goto(address)
    browser_page.get_by_role("link", name="Resume", exact=True).wait_for()
    assert browser_page.locator(".facts .state.cancelled").inner_text().endswith("3 cancelled")


@pytest.mark.feature(55)
def test_sweep_with_failures_is_resumed_registered_and_deleted_on_its_page(
    services: Cli, browser_page: Page, tmp_path: Path
) -> None:
    sweep, gate = start_sweep(services, tmp_path / "work", "0.1,0.2,0.3")
    browser_page.goto(f"/sweeps/{sweep}")
    browser_page.locator(".facts .state.failed").wait_for()
    assert browser_page.locator(".board b").count() == 0  # text of a script is no HTML
    browser_page.get_by_label("Move unfinished trials to pool").select_option("local")
    browser_page.get_by_role("button", name="Move").click()
    assert f"runner sweep move {sweep} --to=local" in browser_page.inner_text("pre.command")
    write_whole(gate, "")
    browser_page.goto(f"/sweeps/{sweep}")
    until(lambda: services.json("sweep", "show", sweep)["states"].get("succeeded") == 2)
    browser_page.locator(".facts .state.succeeded", has_text="2").wait_for()
    assert browser_page.locator(".board tbody tr").first.inner_text().count("0.9000") == 1
    browser_page.get_by_role("link", name="Delete").wait_for()
    act(browser_page, "Retry failed", f"runner sweep resume {sweep} --detach --from-start")
    until(lambda: services.json("sweep", "show", sweep)["states"].get("failed") == 1)
    browser_page.goto(f"/sweeps/{sweep}")
    browser_page.get_by_label("Register the best trial as model").fill("curve")
    browser_page.get_by_role("button", name="Register").click()
    confirm(browser_page, f"runner sweep best {sweep} --register=curve")
    assert services.json("models", "ls")[0]["model"] == "curve"
    browser_page.goto(f"/sweeps/{sweep}")
    browser_page.get_by_role("link", name="Delete").click()
    loss = browser_page.locator(".loss", has_text="is kept: it is the origin of model curve@1")
    loss.wait_for()
    assert "3 runs" in loss.inner_text()
    services.ok("models", "rm", "curve@1", "--yes")
    browser_page.reload()
    assert "4 runs" in browser_page.inner_text(".loss")  # one was started again
    assert "would be lost for good" in browser_page.inner_text(".loss")
    confirm(browser_page, f"runner rm {sweep} --yes")
    browser_page.goto("/sweeps")
    assert browser_page.get_by_role("link", name=sweep).count() == 0
