"""`runner ui --api-only` for a program: documents fit their description, and equal `-o json`."""

from __future__ import annotations

import difflib
import json
import re
import urllib.error
import urllib.request
from collections.abc import Generator
from typing import Any

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
params:
  lr: {default: 0.1, type: float, min: 0.0001}
metrics: {primary: loss, goal: min}
"""


_PRICES = "vm_size=Standard_NC16as_T4_v3&region=swedencentral"

_WORDS = ["--vm-size", "Standard_NC16as_T4_v3", "--region", "swedencentral"]

# Idle nodes cost more with every second, and a plan has a time and an ID.
_OTHER_EACH_TIME = ("/costs", "/plan")
_NUMBERS = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-z]{4}|[0-9][0-9T:.+-]*")


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

    def act(self, name: str, /, **values: Any) -> dict[str, Any]:
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


@pytest.mark.feature(56)
def test_documents_fit_their_description_and_equal_the_command_line(api: Api, cli: Cli) -> None:
    run = api.act("train", recipe="./small", **{"set.lr": 0.5})["run_id"]
    failed = api.act("train", recipe="./small", **{"set.lr": 10})["run_id"]
    odd = api.act("train", recipe="./small", **{"set.lr": 6.0})["run_id"]
    sweep = api.act("sweep", recipe="./small", **{"param.lr": "0.1,0.2"})["sweep"]
    api.act("data-put", source="a b.txt", path="sets/a b.txt")
    api.act("schedule-create", recipe="./small", every="1d", name="daily", start="2099-01-01")
    for each in (run, failed, odd):
        show_ended(cli, each)
    until(lambda: set(cli.json("sweep", "show", sweep)["states"]) == {"succeeded"})
    api.act("register", run=run, name="cats", alias="best-yet")
    api.act("budget-set", usd=50, experiment="small")

    same = (
        ("/runs", "/runs", ["ps", "-n", "1000"]),
        ("/runs/{run_id}", f"/runs/{run}", ["show", run]),
        ("/runs/{run_id}", f"/runs/{odd}", ["show", odd]),
        ("/runs/{run_id}", f"/runs/{failed}", ["show", failed]),
        ("/runs/{run_id}/events", f"/runs/{run}/events", ["events", run]),
        ("/runs/{run_id}/files", f"/runs/{run}/files", ["files", "ls", run]),
        (
            "/runs/{run_id}/checkpoint-files",
            f"/runs/{run}/checkpoint-files",
            ["files", "ls", run, "--checkpoints"],
        ),
        ("/runs/{run_id}/metrics", f"/runs/{odd}/metrics", ["metrics", odd]),
        ("/runs/{run_id}/devices", f"/runs/{odd}/devices", ["metrics", odd, "--system"]),
        ("/budgets", "/budgets", ["budget", "ls"]),
        ("/why/{subject}", f"/why/{failed}", ["why", failed]),
        ("/pools", "/pools", ["pool", "ls"]),
        ("/pools/{pool}", "/pools/local", ["pool", "show", "local"]),
        ("/pools/{pool}/nodes", "/pools/local/nodes", ["pool", "nodes", "local"]),
        ("/costs", f"/costs?{_PRICES}", ["cost", *_WORDS]),
        ("/sweeps", "/sweeps", ["sweep", "ls"]),
        ("/sweeps/{group_id}", f"/sweeps/{sweep}", ["sweep", "show", sweep]),
        ("/groups/{group_id}", f"/groups/{sweep}", ["show", sweep]),
        ("/experiments", "/experiments", ["experiments", "ls"]),
        ("/experiments/{name}", "/experiments/small", ["experiments", "show", "small"]),
        ("/recipe", "/recipe?recipe=mnist", ["recipe", "show", "mnist"]),
        ("/plan", "/plan?recipe=./small", ["train", "./small", "--dry-run"]),
        ("/models", "/models", ["models", "ls"]),
        ("/models/{model}", "/models/cats", ["models", "ls", "cats"]),
        ("/models/{model}/{version}", "/models/cats/1", ["models", "show", "cats@1"]),
        ("/data", "/data", ["data", "ls"]),
        ("/data", "/data?path=sets", ["data", "ls", "sets"]),
        ("/schedules", "/schedules", ["schedule", "ls"]),
        ("/schedules/{schedule}", "/schedules/daily", ["schedule", "show", "daily"]),
        ("/local", "/local", ["local", "status"]),
    )
    different: list[tuple[str, str]] = []
    for template, path, words in same:
        got = api.get(path)
        api.check(template, got)
        printed = cli.ok(*words, "-o", "json")
        if path.startswith(_OTHER_EACH_TIME):
            got, printed = _NUMBERS.sub("0", got), _NUMBERS.sub("0", printed)
        if got != printed:
            different.append((path, _difference(got, printed)))
    assert "\n".join(f"{path}\n{said}" for path, said in different) == ""

    others = (
        ("/compare", f"/compare?run={run}&run={odd}&metric=loss&axis=time"),
        ("/run-list", ""), ("/bill", ""), ("/task-files", ""),
        ("/recipe/params", "/recipe/params?recipe=mnist"),
        ("/pools/{pool}/time", "/pools/local/time"), ("/recipes", ""),
        ("/environment", ""), ("/actions", ""), ("/commands", ""),
        ("/commands/{number}", "/commands/1"),
        ("/runs/{run_id}/log", f"/runs/{run}/log?tail=1"),
        ("/whatif", f"/whatif?tasks=5&duration=10m&{_PRICES}"),
    )  # fmt: skip
    for template, path in others:
        api.check(template, api.get(path or template))
    assert api.get("/data/download?path=sets/a%20b.txt") == "data"
    assert api.get(f"/runs/{run}/download?name=model.txt") == "w"
    left = {path for path in _templates(api) if path not in api.asked}
    downloads = {"/data/download", "/runs/{run_id}/download"}
    of_azure = {"/checks", "/preview"}
    assert left == downloads | of_azure


def _difference(got: str, printed: str) -> str:
    lines = difflib.unified_diff(got.splitlines(), printed.splitlines(), lineterm="", n=0)
    return "\n".join(lines)


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
        ("train", {"recipe": "./small", "set.lr": "much"}, 400, "R-SET-VALUE"),
        ("submit", {"file": "../x.yaml"}, 400, "R-PAGE-RECIPE"),
        ("train", {"recipe": "./small", "gpu": 4}, 400, "R-PAGE-QUERY"),
        ("nothing", {}, 404, "R-PAGE-UNKNOWN"),
    ):
        found, body = api.open(f"/actions/{name}", values)
        document = json.loads(body)
        assert (found, document["error"]["code"]) == (status, code)
