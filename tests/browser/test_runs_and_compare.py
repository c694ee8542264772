"""The list of runs and the comparison: filters, order, groups, columns, curves and differences."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.checks import overflow, screenshots
from tests.browser.conftest import NewPage, PageServer, start_page
from tests.e2e.conftest import Cli, write_whole

if TYPE_CHECKING:
    from playwright.sync_api import Page

PRICES = "vm_size=Standard_NC16as_T4_v3&region=swedencentral"
_SCRIPT = """\
import json, os, pathlib, sys, time
lr = float(sys.argv[sys.argv.index("--lr") + 1])
with open(os.environ["RUNNER_METRICS_FILE"], "a") as file:
    for step in range(40):
        for name, value in (("loss", 1 / (1 + lr * step)), ("score", lr * step)):
            file.write(json.dumps({"name": name, "value": value, "step": step}) + "\\n")
pathlib.Path(os.environ["RUNNER_CHECKPOINT_DIR"], "model.bin").write_text(str(lr))
if "--gate" in sys.argv:
    while not pathlib.Path(sys.argv[sys.argv.index("--gate") + 1]).exists():
        time.sleep(0.05)
if "--fail" in sys.argv:
    raise SystemExit("<script>alert(1)</script>")
"""


@pytest.fixture(scope="session")
def curves(page_home: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Return runs of the experiment `curves`: two that succeeded with other code, one failed."""
    folder = tmp_path_factory.mktemp("curves")
    cli = Cli(page_home, folder)
    ids: list[str] = []
    for number, words in enumerate((("--lr", "0.1"), ("--lr", "0.5"), ("--lr", "2.5", "--fail"))):
        (folder / "train.py").write_text(f"{_SCRIPT}# part {number}\n", encoding="utf-8")
        done = cli.run("train", folder, "-e", "curves", "-o", "json", "--", *words)
        ids.append(json.loads(done.stdout)["run_id"])
        time.sleep(1.0)  # runs of the same second have no order
    return tuple(ids)


def rows(page: Page) -> list[str]:
    """Return the IDs of the runs of the list, in order."""
    return page.locator("#rows tr[data-run]").evaluate_all("all => all.map(e => e.dataset.run)")


def addressed(page: Page, names: str) -> None:
    """Show the filters that were entered."""
    page.get_by_role("button", name="Show").first.click()
    page.wait_for_url(re.compile(names))


@pytest.mark.feature(55)
def test_list_is_filtered_sorted_and_grouped(
    browser_page: Page, curves: tuple[str, ...], assert_accessible: Callable[[Page], None]
) -> None:
    first, second, failed = curves
    browser_page.goto("/runs")
    browser_page.locator("select[name=experiment]").select_option("curves")
    addressed(browser_page, "experiment=curves")
    assert rows(browser_page) == [failed, second, first]
    browser_page.get_by_label("State").select_option("failed")
    addressed(browser_page, "status=failed")
    assert rows(browser_page) == [failed]
    browser_page.goto("/runs?experiment=curves")
    browser_page.get_by_label("Search").fill("lr=0.5")
    addressed(browser_page, "q=lr")
    assert rows(browser_page) == [second]
    browser_page.goto("/runs?experiment=curves")
    browser_page.get_by_role("link", name="Metric, best").click()
    browser_page.wait_for_url(re.compile("sort=metric"))
    ascending = rows(browser_page)
    browser_page.get_by_role("link", name="Metric, best").click()
    browser_page.wait_for_url(re.compile("sort=-metric"))
    assert rows(browser_page) == ascending[::-1]
    assert browser_page.locator("th[aria-sort=descending]").inner_text().startswith("Metric")
    browser_page.goto("/runs")
    browser_page.get_by_label("Group").select_option("experiment")
    addressed(browser_page, "group=experiment")
    assert rows(browser_page) == []
    browser_page.get_by_role("link", name="curves").click()
    browser_page.wait_for_url(re.compile("open=curves"))
    assert rows(browser_page) == [failed, second, first]
    assert_accessible(browser_page)


def test_row_has_curve_price_and_chosen_columns(
    browser_page: Page, curves: tuple[str, ...]
) -> None:
    browser_page.goto(f"/runs?experiment=curves&{PRICES}")
    row = browser_page.locator(f"#row-{curves[0]}")
    row.locator("svg.spark path").wait_for()
    assert re.search(r"loss\s+0\.2041", row.inner_text())
    assert "$" in row.inner_text()
    browser_page.locator("#columns summary").click()
    browser_page.get_by_label("params.lr").check()
    browser_page.get_by_label("metrics.score").check()
    addressed(browser_page, "col=params.lr")
    heads = browser_page.locator("table.runs thead th").all_inner_texts()
    assert heads[3:6] == ["lr", "score", "Price"]
    cells = browser_page.locator(f"#row-{curves[0]} td").all_inner_texts()
    assert cells[3:5] == ["0.1", "3.9000"]
    assert browser_page.get_by_label("Region").input_value() == "swedencentral"
    screenshots(browser_page, "runs")


def test_state_curve_checkpoint_and_new_runs_appear_and_choices_stay(
    services: Cli, browser_page: Page, curves: tuple[str, ...], tmp_path: Path
) -> None:
    browser_page.goto("/runs")
    browser_page.get_by_label("Search").fill("half a word")
    browser_page.get_by_label(f"Select {curves[0]}").check()
    gate = tmp_path / "gate"
    (tmp_path / "work").mkdir()
    tmp_path.chmod(0o755)
    (tmp_path / "work" / "train.py").write_text(_SCRIPT, encoding="utf-8")
    command = f"python train.py --lr 0.3 --gate {gate}"
    recipe = f"command: {command}\ncheckpoints: {{interval: 1s}}\n"
    (tmp_path / "work" / "train.yaml").write_text(recipe, encoding="utf-8")
    started = services.ok("train", tmp_path / "work", "-d", "-o", "json")
    row = browser_page.locator(f"#row-{json.loads(started)['run_id']}")
    row.locator(".state.running").wait_for()
    row.locator("svg.spark").wait_for()
    row.locator("time").nth(1).wait_for()  # of the checkpoint and of the submission
    write_whole(gate, "")
    row.locator(".state.succeeded").wait_for()
    assert browser_page.get_by_label("Search").input_value() == "half a word"
    assert browser_page.get_by_label(f"Select {curves[0]}").is_checked()


def test_older_rows_come_when_the_end_is_seen_and_stay(
    browser_page: Page, curves: tuple[str, ...]
) -> None:
    browser_page.set_viewport_size({"width": 1280, "height": 250})
    browser_page.goto("/runs?experiment=curves&n=1")
    assert rows(browser_page) == [curves[2]]
    browser_page.mouse.wheel(0, 2000)
    for run_id in curves[:2]:
        browser_page.locator(
            f"#older ~ * tr[data-run='{run_id}'], tr[data-run='{run_id}']"
        ).wait_for()
    browser_page.wait_for_timeout(4000)  # two updates
    assert browser_page.locator("tr[data-run]").count() == 3


def test_runs_are_compared_over_steps_time_and_dollars(
    browser_page: Page,
    page_server: PageServer,
    curves: tuple[str, ...],
    assert_accessible: Callable[[Page], None],
) -> None:
    browser_page.goto(f"/runs?experiment=curves&{PRICES}")
    for run_id in curves[:2]:
        browser_page.get_by_label(f"Select {run_id}").check()
    browser_page.get_by_role("button", name="Compare").click()
    browser_page.wait_for_url(re.compile("/compare"))
    for axis, word in (("step", "step"), ("time", "time since the start"), ("dollars", "dollars")):
        browser_page.get_by_label("Axis").select_option(axis)
        addressed(browser_page, f"axis={axis}")
        curve = browser_page.locator("#plot-loss path[data-run]")
        curve.first.wait_for(state="attached")
        assert curve.count() == 2
        assert word in (browser_page.locator("#plot-loss > svg").text_content() or "")
    table = browser_page.locator("table.differences").inner_text()
    for word in ("Parameters", "lr", "0.1", "0.5", "Code", "train.py"):
        assert word in table
    browser_page.locator("summary", has_text="train.py").click()
    assert "+# part 0" in browser_page.locator("pre.diff").inner_text()
    assert_accessible(browser_page)
    screenshots(browser_page, "compare")
    answer = browser_page.request.get(
        f"/api/v1/compare?run={curves[0]}&run={curves[1]}&metric=loss"
    )
    found = answer.json()
    assert found["complete"]
    assert found["params"]["lr"] == [0.1, 0.5]
    assert found["metrics"]["loss"]["x"] == [*range(40)]


def test_hover_marks_a_run_in_all_pictures_and_tables(
    browser_page: Page, curves: tuple[str, ...]
) -> None:
    browser_page.goto("/compare?experiment=curves")
    browser_page.locator("#plot-loss path[data-run]").first.wait_for()
    browser_page.locator(f"#run-{curves[1]}").hover()
    for plot in ("loss", "score"):
        marked = browser_page.locator(f"#plot-{plot} path.on")
        assert marked.get_attribute("data-run") == curves[1]
    browser_page.wait_for_timeout(1000)
    curve = f"#plot-loss path[data-run='{curves[0]}']"
    browser_page.locator(curve).dispatch_event("pointerover", {"bubbles": True})
    assert browser_page.locator("tr.on").get_attribute("data-run") == curves[0]
    browser_page.mouse.move(0, 0)
    assert browser_page.locator("path.on").count() == 0


def test_long_curve_is_read_closer_where_a_range_is_drawn(
    services: Cli, browser_page: Page, tmp_path: Path
) -> None:
    write = 'file.write(json.dumps({"name": "loss", "value": step % 7, "step": step}) + "\\n")'
    (tmp_path / "train.py").write_text(
        'import json, os\nwith open(os.environ["RUNNER_METRICS_FILE"], "a") as file:\n'
        f"    for step in range(5000):\n        {write}\n",
        encoding="utf-8",
    )
    tmp_path.chmod(0o755)
    run_id = json.loads(services.ok("train", tmp_path, "-o", "json"))["run_id"]
    browser_page.goto(f"/compare?run={run_id}")
    browser_page.locator("#plot-loss path[data-run]").wait_for(state="attached")
    browser_page.locator("#plot-loss").hover()
    plot = browser_page.locator("#plot-loss .u-over")
    plot.wait_for()
    box = plot.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    browser_page.mouse.move(box["x"] + box["width"] * 0.4, middle)
    with browser_page.expect_response(re.compile(r"/api/v1/compare.*&from=.*&to=")) as part:
        browser_page.mouse.down()
        browser_page.mouse.move(box["x"] + box["width"] * 0.5, middle, steps=4)
        browser_page.mouse.up()
    places = part.value.json()["metrics"]["loss"]["x"]
    assert 1900 < places[0] < places[-1] < 2600


def test_list_and_comparison_are_complete_without_scripts(
    page_server: PageServer, new_page: NewPage, curves: tuple[str, ...]
) -> None:
    page = new_page(page_server, java_script_enabled=False)
    page.goto("/runs?experiment=curves&n=2")
    page.get_by_role("link", name="Older runs").click()
    assert rows(page) == [curves[0]]
    page.goto("/runs?experiment=curves")
    for run_id in curves:
        page.get_by_label(f"Select {run_id}").check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url(re.compile("/compare"))
    assert page.locator("#plot-loss path[data-run]").count() == 3
    page.goto("/runs?experiment=curves")
    for run_id in curves[:2]:
        page.get_by_label(f"Select {run_id}").check()
    page.get_by_role("button", name="Delete").click()
    assert " ".join(sorted(curves[:2])) in " ".join(sorted(page.inner_text("main").split()))


def test_awkward_text_is_text_and_nothing_is_too_wide(
    browser_page: Page, curves: tuple[str, ...]
) -> None:
    for address in ("/runs", "/compare?experiment=curves", f"/runs?group=experiment&{PRICES}"):
        for width in (360, 1280, 2560):
            browser_page.set_viewport_size({"width": width, "height": 900})
            browser_page.goto(address)
            assert overflow(browser_page) <= 0, (address, width)
    for address in ("/compare", "/compare?run=nothing-here", "/compare?experiment=no&axis=miles"):
        answer = browser_page.request.get(address)
        assert 400 <= answer.status < 500, address
        assert "R-" in answer.text()


def test_reader_may_compare_and_may_not_act(
    services: Cli, new_page: NewPage, curves: tuple[str, ...]
) -> None:
    server = start_page(services, "--read-only")
    try:
        page = new_page(server)
        page.goto("/runs?experiment=curves")
        assert page.get_by_role("button", name="Compare").is_visible()
        assert not page.get_by_role("button", name="Delete").is_visible()
    finally:
        server.stop()
