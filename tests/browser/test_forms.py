"""Forms of recipes, and the pages of models, data, schedules and the environment, with actions."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.checks import screenshots
from tests.browser.conftest import NewPage, PageServer, Watched, new_page_home, start_page
from tests.e2e.conftest import RUNNER, Cli, remove_outside, show_ended, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

_SCRIPT = """\
import os, pathlib, sys
print(sys.argv[1:], flush=True)
gate = pathlib.Path(sys.argv[-1])
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "model.txt").write_text("w")
"""
_RECIPE = """\
name: cats
description: Tells <b>cats</b> & "dogs" apart
command: python train.py
params:
  lr: {type: float, default: 0.1, min: 0, max: 1, help: the learning rate}
  size: {type: str, default: small, choices: [small, large]}
  depth: {type: int, default: 3, min: 1}
  fast: {type: bool, default: false}
metrics: {primary: accuracy, goal: max}
"""


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cli]:
    """Yield the command in a folder with a recipe, a script and a file of tasks."""
    folder = tmp_path_factory.mktemp("forms")
    work = folder / "my work"
    (work / "cats").mkdir(parents=True)
    (work / "cats" / "train.py").write_text(_SCRIPT, encoding="utf-8")
    (work / "cats" / "train.yaml").write_text(_RECIPE, encoding="utf-8")
    (work / "alone.py").write_text("print('alone')\n", encoding="utf-8")
    (work / "flow.yaml").write_text("tasks:\n  one: {recipe: ./alone.py}\n", encoding="utf-8")
    (work / "notes.txt").write_text("a note", encoding="utf-8")
    found = Cli(new_page_home(folder / "home"), work)
    found.ok("local", "up", "--nodes", "2")
    yield found
    found.run("local", "down")
    remove_outside(found.home)


@pytest.fixture(scope="module")
def server(cli: Cli) -> Generator[PageServer]:
    """Yield a page that was started in the folder."""
    found = start_page(cli)
    yield found
    found.stop()


@pytest.fixture
def page(server: PageServer, new_page: NewPage, watched: Watched) -> Generator[Page]:
    """Yield a tab that is signed in."""
    tab = new_page(server)
    yield tab
    assert watched.errors == []
    assert watched.foreign == []


def confirm(page: Page) -> str:
    """Press the button of a form, wait for the end of its command, and return the command."""
    shown = page.inner_text("#command code")
    page.locator("main form .buttons button:not([formmethod])").click()
    page.get_by_text("Done.").wait_for()
    return shown


def run_of(page: Page) -> str:
    """Return the run that a command has started."""
    return page.locator("a.button.main[href^='/runs/']").first.inner_text()


@pytest.mark.feature(55)
def test_recipe_is_found_filled_in_planned_and_started(page: Page, cli: Cli) -> None:
    page.goto("/new")
    assert "Tells <b>cats</b>" in page.inner_text("main")
    page.get_by_role("link", name="./cats").click()
    assert page.get_by_label("lr").get_attribute("placeholder") == "0.1"
    page.get_by_label("lr").fill("0.5")
    page.get_by_label("size").select_option("large")
    page.get_by_label("fast").select_option("true")
    page.locator("#command", has_text="--set=fast=true").wait_for()
    page.get_by_role("button", name="Show plan and price").click()
    page.get_by_role("heading", name="Plan").wait_for()
    assert "--lr 0.5" in page.inner_text("#plan")
    assert page.get_by_label("size").input_value() == "large"  # the address holds the form
    command = confirm(page)
    run = run_of(page)
    shown = show_ended(cli, run)
    assert shown["state"] == "succeeded"
    assert shown["run"]["params"] == {"lr": 0.5, "size": "large", "depth": 3, "fast": True}
    page.get_by_role("link", name=run).first.click()
    page.locator(".head .state.succeeded").wait_for()
    assert shlex.split(command)[:4] == ["runner", "train", "./cats", "--detach"]


def test_copied_command_does_the_same_in_a_shell(page: Page, cli: Cli) -> None:
    page.goto('/new?recipe=./cats&set.lr=0.25&experiment=it\'s $HOME "x"')
    text = page.inner_text("#command code")
    assert str(cli.cwd) in page.inner_text("#command")
    again = ["bash", "-c", f'runner() {{ "{RUNNER}" "$@"; }}\n{text} --dry-run -o json']
    options: dict[str, Any] = {"cwd": cli.cwd, "env": cli.env, "capture_output": True}
    done = subprocess.run(again, check=True, text=True, **options)
    planned = json.loads(done.stdout)
    assert planned["experiment"] == "it-s-home-x"  # the name that the storage has for it
    assert planned["params"]["lr"] == 0.25


def test_wrong_values_are_refused_where_they_are_entered(page: Page, watched: Watched) -> None:
    page.goto("/new?recipe=./cats&set.lr=7&plan=1")
    page.get_by_role("alert").get_by_text("lr").first.wait_for()
    page.goto("/new?recipe=./cats")
    page.get_by_label("depth").fill("0")
    page.get_by_role("button", name="Train").click()
    assert page.url.endswith("/new?recipe=./cats")  # the browser refuses
    answered = page.goto("/new?recipe=../x.py")
    assert answered is not None
    assert answered.status in (400, 404)
    watched.errors.clear()  # the browser names the status


def test_sweep_is_started_with_the_keyboard_alone(page: Page, cli: Cli) -> None:
    page.goto("/new?recipe=./cats&kind=sweep")
    page.get_by_label("Values of lr").focus()
    page.keyboard.type("0.1,0.2")
    page.locator("#command", has_text="--param=lr=0.1,0.2").wait_for()
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Start the sweep":
            break
    page.keyboard.press("Enter")
    page.get_by_text("Done.").wait_for()
    sweep = page.locator("a.button.main[href^='/sweeps/']").first.inner_text()
    until(lambda: cli.json("sweep", "show", sweep)["states"].get("succeeded") == 2)
    assert cli.json("sweep", "show", sweep)["states"] == {"succeeded": 2}


def test_model_is_registered_named_and_deleted(page: Page, cli: Cli) -> None:
    run = cli.json("train", "./cats", "--detach")["run_id"]
    show_ended(cli, run)
    page.goto(f"/act/register?run={run}&name=cats")
    confirm(page)
    page.goto("/models")
    page.get_by_role("link", name="cats").click()
    page.get_by_role("link", name="Alias").click()
    page.get_by_label("Alias").fill("production")
    page.locator("#command", has_text="production").wait_for()
    confirm(page)
    page.goto("/models/cats")
    page.get_by_text("production").wait_for()
    page.goto("/act/models-rm?model=cats@1&force=on")
    assert "1 version of the model" in page.inner_text(".loss")
    assert "Its aliases: production" in page.inner_text(".loss")
    confirm(page)
    assert cli.json("models", "ls") == []


def test_data_is_uploaded_downloaded_and_deleted(page: Page, cli: Cli) -> None:
    page.goto("/data")
    page.get_by_role("link", name="Upload").click()
    page.get_by_label("File or folder").fill("notes.txt")
    page.get_by_label("To").fill("sets/a b/notes.txt")
    page.locator("#command", has_text="notes.txt").wait_for()
    confirm(page)
    page.goto("/data")
    page.get_by_role("link", name="sets/").click()
    page.get_by_role("link", name="a b/").click()
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download").click()
    path = downloading.value.path()
    assert path is not None
    assert Path(path).read_text() == "a note"
    page.get_by_role("link", name="Delete").click()
    assert "1 file, 6 B" in page.inner_text(".loss")
    confirm(page)
    assert cli.json("data", "ls") == []


def test_schedule_is_created_triggered_and_deleted(page: Page, cli: Cli) -> None:
    page.goto("/schedules")
    page.get_by_role("link", name="Create a schedule").click()
    page.get_by_label("Recipe").fill("./cats")
    page.get_by_label("Times", exact=True).fill("0 3 * * *")
    page.get_by_label("Name").fill("nightly")
    page.locator("#command", has_text="--name=nightly").wait_for()
    confirm(page)
    page.goto("/schedules/nightly")
    page.get_by_role("link", name="Pause").click()
    confirm(page)
    page.goto("/schedules/nightly")
    page.get_by_role("link", name="Resume").click()
    confirm(page)
    page.goto("/schedules/nightly")
    page.get_by_role("link", name="Delete").click()
    page.locator(".loss").get_by_text("are kept").wait_for()
    confirm(page)
    assert cli.json("schedule", "ls") == []


def test_tasks_of_a_file_and_a_new_recipe(page: Page, cli: Cli) -> None:
    page.goto("/new")
    page.get_by_role("link", name="./flow.yaml").click()
    assert "It would start 1 run." in page.inner_text(".loss")
    confirm(page)
    page.goto("/act/recipe-new")
    page.get_by_label("Name of its folder").fill("dogs")
    page.locator("#command", has_text="dogs").wait_for()
    confirm(page)
    assert (cli.cwd / "dogs" / "train.yaml").is_file()
    page.get_by_role("link", name="Continue").click()
    page.get_by_role("heading", name="Train ./dogs").wait_for()


def test_run_is_deleted_only_after_what_would_be_lost_was_said(page: Page, cli: Cli) -> None:
    run = cli.json("train", "./alone.py", "--detach")["run_id"]
    show_ended(cli, run)
    page.goto(f"/runs/{run}")
    page.get_by_role("link", name="Delete").click()
    assert "1 run with" in page.inner_text(".loss")
    page.get_by_role("link", name="Back").click()
    assert cli.json("show", run)["state"] == "succeeded"
    page.go_back()
    confirm(page)
    assert cli.run("show", run).returncode == 2


def test_upkeep(page: Page) -> None:
    page.goto("/environment")
    page.get_by_role("link", name="Rebuild the index").click()
    confirm(page)
    page.goto("/environment")
    page.locator("main").get_by_role("link", name="Delete").click()
    assert "all models, would be lost for good" in page.inner_text(".loss")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("recipes", "/new"),
        ("new", "/new?recipe=./cats&plan=1"),
        ("new-sweep", "/new?recipe=./cats&kind=sweep"),
        ("new-script", "/new?recipe=./alone.py"),
        ("act-rm", "/act/rm?run=@last"),
        ("act-formula", "/act/pool-formula?pool=local"),
        ("act-schedule", "/act/schedule-create"),
        ("models", "/models"),
        ("data", "/data"),
        ("schedules", "/schedules"),
        ("environment", "/environment"),
        ("commands", "/commands"),
    ],
)
def test_page_fits_every_width_and_everybody_can_use_it(
    page: Page, cli: Cli, assert_accessible: Callable[[Page], None], name: str, path: str
) -> None:
    assert cli.cwd
    page.goto(path)
    assert_accessible(page)
    assert len(screenshots(page, f"form-{name}")) == 6


@pytest.mark.parametrize("path", ["/new?recipe=./cats&set.lr=0.5", "/act/models-alias?model=a@1"])
def test_form_is_whole_without_scripts(server: PageServer, new_page: NewPage, path: str) -> None:
    page = new_page(server, java_script_enabled=False)
    page.goto(path)
    page.locator("main form").wait_for()
    assert page.locator("main form .buttons button").count() == 2


@pytest.mark.attack
def test_page_that_only_reads_starts_nothing(cli: Cli, new_page: NewPage) -> None:
    server = start_page(cli, "--read-only")
    try:
        page = new_page(server)
        for path in ("/new?recipe=./cats", "/act/rm?run=@last", "/environment", "/data", "/models"):
            page.goto(path)
            assert (
                page.locator("form[method=post] button:not([formmethod], [data-copy])").count() == 0
            )
            assert page.locator("main a[href^='/act/']").count() == 0
        refused = page.request.post("/act/rm", form={"run": "@last"})
        assert refused.status == 403
    finally:
        server.stop()
