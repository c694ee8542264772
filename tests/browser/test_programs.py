"""`runner ui --api-only` as a program uses it: every document fits its description and `-o json`."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Generator
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from tests.browser.conftest import build_opener, new_page_home
from tests.e2e.conftest import Cli, interrupt, remove_outside, show_ended, until
from tests.unit.page.json_schema import problems

_SCRIPT = """\
import json, os, pathlib, sys
lr = float(sys.argv[sys.argv.index("--lr") + 1])
print("<b>begin</b>", flush=True)
if lr > 9: sys.exit("diverged")
with open(os.environ["RUNNER_METRICS_FILE"], "a") as file:
    for step, loss in enumerate((1.0, lr, float("nan") if lr > 5 else lr / 2)):
        file.write(json.dumps({"name": "loss", "value": loss, "step": step}) + "\\n")
pathlib.Path(os.environ["RUNNER_OUTPUT_DIR"], "model.txt").write_text("w")
"""
_RECIPE = """\
name: small
command: python train.py
params: {lr: {default: 0.1, type: float, min: 0.0001}}
primary_metric: loss
"""


class Api:
    """A server that answers programs, and its two tokens."""

    def __init__(self, printed: dict[str, str]) -> None:
        self.address, self.tokens = printed["address"], printed
        self.description: dict[str, Any] = json.loads(self.get("/openapi.json"))
        self.asked: set[str] = set()

    def open(self, path: str, body: Any = None, *, scope: str = "act") -> tuple[int, bytes]:
        """Return status and body of an answer."""
        request = urllib.request.Request(f"{self.address}{path}")
        request.add_header("Authorization", f"Bearer {self.tokens[scope]}")
        if body is not None:
            request.data = json.dumps(body).encode()
        try:
            with build_opener().open(request, timeout=120) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as err:
            return err.code, err.read()

    def get(self, path: str) -> str:
        """Return a document with the token that only reads."""
        status, body = self.open(path, scope="read")
        assert status == 200, body
        return body.decode()

    def check(self, template: str, text: str) -> None:
        """Check a document against its description."""
        operation = self.description["paths"][f"/api/v1{template}"]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert list(problems(json.loads(text), schema, self.description)) == []
        self.asked.add(template)

    def act(self, name: str, **values: Any) -> dict[str, Any]:
        """Start an action, and return what it printed."""
        status, body = self.open(f"/actions/{name}", values)
        assert status == 200, body
        operation = self.description["paths"][f"/api/v1/actions/{name}"]["post"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        document = json.loads(body)
        assert list(problems(document, schema, self.description)) == []
        return document["document"]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Generator[Cli]:
    """Yield the command in a folder with a recipe, with services of this module."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "work" / "small").mkdir(parents=True)
    (folder / "work" / "small" / "train.py").write_text(_SCRIPT, encoding="utf-8")
    (folder / "work" / "small" / "train.yaml").write_text(_RECIPE, encoding="utf-8")
    (folder / "work" / "a b.txt").write_text("data", encoding="utf-8")
    found = Cli(new_page_home(folder / "home"), folder / "work")
    found.ok("local", "up", "--nodes", "2")
    yield found
    found.run("local", "down")
    remove_outside(found.home)


@pytest.fixture(scope="module")
def api(cli: Cli) -> Generator[Api]:
    """Yield the API of a server."""
    process = cli.start("ui", "--api-only", "--port", "0", "-o", "json")
    assert process.stdout is not None
    text = ""
    while not text.rstrip().endswith("}"):
        line = process.stdout.readline()
        assert line, process.stderr and process.stderr.read()
        text += line
    yield Api(json.loads(text))
    interrupt(process)


def test_documents_fit_their_description_and_equal_the_command_line(api: Api, cli: Cli) -> None:
    run = api.act("train", recipe="./small", **{"set.lr": 0.5})["run_id"]
    failed = api.act("train", recipe="./small", **{"set.lr": 10})["run_id"]
    odd = api.act("train", recipe="./small", **{"set.lr": 6.0})["run_id"]
    sweep = api.act("sweep", recipe="./small", trials=2, **{"param.lr": "0.1,0.2"})["sweep"]
    api.act("data-put", source="a b.txt", path="sets/a b.txt")
    api.act("schedule-create", recipe="./small", every="1d", name="daily", start="2099-01-01")
    for each in (run, failed, odd):
        show_ended(cli, each)
    until(lambda: set(cli.json("sweep", "show", sweep)["states"]) == {"succeeded"})
    api.act("register", run=run, name="cats", alias="best-yet")

    same = [
        ("/runs", {}, ["ps", "-n", "1000"]),
        ("/runs/{}", run, ["show", run]),
        ("/runs/{}", odd, ["show", odd]),
        ("/runs/{}", failed, ["show", failed]),
        ("/runs/{}/events", run, ["events", run]),
        ("/runs/{}/files", run, ["files", "ls", run]),
        ("/runs/{}/checkpoint-files", run, ["files", "ls", run, "--checkpoints"]),
        ("/runs/{}/metrics", odd, ["metrics", odd]),
        ("/why/{}", failed, ["why", failed]),
        ("/pools", {}, ["pool", "ls"]),
        ("/pools/{}", "local", ["pool", "show", "local"]),
        ("/pools/{}/nodes", "local", ["pool", "nodes", "local"]),
        ("/costs", {}, ["cost"]),
        ("/sweeps", {}, ["sweep", "ls"]),
        ("/sweeps/{}", sweep, ["sweep", "show", sweep]),
        ("/groups/{}", sweep, ["show", sweep]),
        ("/experiments", {}, ["experiments", "ls"]),
        ("/experiments/{}", "small", ["experiments", "show", "small"]),
        ("/recipe", {"recipe": "mnist"}, ["recipe", "show", "mnist"]),
        ("/models", {}, ["models", "ls"]),
        ("/models/{}", "cats", ["models", "ls", "cats"]),
        ("/models/{}/1", "cats", ["models", "show", "cats@1"]),
        ("/data", {}, ["data", "ls"]),
        ("/data", {"path": "sets"}, ["data", "ls", "sets"]),
        ("/schedules", {}, ["schedule", "ls"]),
        ("/schedules/{}", "daily", ["schedule", "show", "daily"]),
        ("/local", {}, ["local", "status"]),
    ]
    names = {path.format("x"): path for path in _templates(api)}
    different = []
    for path, what, words in same:
        query = f"?{urlencode(what)}" if isinstance(what, dict) and what else ""
        asked = path.format(quote(what, safe="")) if isinstance(what, str) else path
        got = api.get(f"{asked}{query}")
        api.check(names.get(path.format("x").replace("/1", "/x")) or path, got)
        printed = cli.ok(*words, "-o", "json")
        if got != printed:
            different.append((asked, got, printed))
    assert different == []

    others = (
        ("/bill", ""), ("/pools/{pool}/time", "/pools/local/time"), ("/recipes", ""),
        ("/environment", ""), ("/actions", ""), ("/commands", ""),
        ("/commands/{number}", "/commands/1"),
        ("/runs/{run_id}/log", f"/runs/{run}/log?tail=1"),
        ("/plan", "/plan?recipe=./small&set.lr=0.3"),
        ("/whatif", "/whatif?tasks=5&duration=10m&vm_size=Standard_NC16as_T4_v3"
         "&region=swedencentral"),
    )  # fmt: skip
    for template, path in others:
        api.check(template, api.get(path or template))
    assert api.get("/data/download?path=sets/a%20b.txt") == "data"
    assert api.get(f"/runs/{run}/download?name=model.txt") == "w"
    left = {path for path in _templates(api) if path not in api.asked}
    downloads = {"/data/download", "/runs/{run_id}/download"}
    of_azure = {"/checks", "/preview"}
    assert left == downloads | of_azure


def _templates(api: Api) -> list[str]:
    paths = (path.removeprefix("/api/v1") for path in api.description["paths"])
    return [path for path in paths if not path.startswith("/actions/")]


def test_action_says_what_would_be_lost_then_acts(api: Api, cli: Cli) -> None:
    run = api.act("train", recipe="./small")["run_id"]
    show_ended(cli, run)
    plan = json.loads(api.get(f"/actions/rm?run={run}"))
    assert plan["command"] == f"runner rm {run} --yes"
    assert "1 run with" in plan["loss"]
    status, body = api.open("/actions/rm", {"run": run}, scope="read")
    assert status == 403
    assert cli.json("show", run)["state"] == "succeeded"
    api.act("rm", run=run)
    status, body = api.open(f"/runs/{run}")
    assert (status, json.loads(body)["error"]["code"]) == (404, "R-RUN-UNKNOWN")


def test_failure_of_an_action_has_the_status_of_its_error(api: Api) -> None:
    for name, values, status, code in (
        ("cancel", {"run": "nothing-there"}, 404, "R-RUN-UNKNOWN"),
        ("train", {"recipe": "./small", "set.lr": "much"}, 400, "R-PARAM-TYPE"),
        ("submit", {"file": "../x.yaml"}, 400, "R-PAGE-RECIPE"),
        ("nothing", {}, 404, "R-PAGE-UNKNOWN"),
    ):
        found, body = api.open(f"/actions/{name}", values)
        document = json.loads(body)
        assert (found, document["error"]["code"]) == (status, code)
