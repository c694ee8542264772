"""The OpenAPI document is made from the classes of the answers, and describes all addresses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runner.core.settings import load_settings
from runner.page.access import Access
from runner.page.actions import ACTIONS
from runner.page.app import PageApp
from runner.page.commands import StartedCommand
from runner.page.pages import ENDPOINTS, PAGES
from runner.page.rest import json_answer
from runner.page.source import Source
from runner.views.json_text import format_json
from tests.unit.page.asgi_client import AsgiClient
from tests.unit.page.json_schema import problems

HOST = "127.0.0.1:8899"
# The endpoints that have what a page shows.
OF_PAGES = {
    "/runs": ["/runs"],
    "/rows": ["/runs"],
    "/runs/{run_id}/log": ["/runs/{run_id}/log"],
    "/new": ["/recipes", "/recipe", "/recipe/params", "/task-files", "/plan", "/pools"],
    "/runs/{run_id}": [
        "/runs/{run_id}", "/runs/{run_id}/events", "/runs/{run_id}/log", "/runs/{run_id}/metrics",
        "/runs/{run_id}/files", "/runs/{run_id}/checkpoint-files", "/why/{subject}", "/costs",
    ],
    "/runs/{run_id}/files": ["/runs/{run_id}/files", "/runs/{run_id}/download"],
    "/compare": ["/runs/{run_id}/metrics", "/runs/{run_id}"],
    "/pools": ["/pools"],
    "/pools/{pool}": ["/pools/{pool}", "/pools/{pool}/nodes", "/pools/{pool}/time"],
    "/bill": ["/bill", "/costs"],
    "/bill/whatif": ["/whatif"],
    "/sweeps": ["/sweeps"],
    "/sweeps/{group_id}": ["/sweeps/{group_id}", "/groups/{group_id}"],
    "/sweeps/{group_id}/trials/{name}": ["/sweeps/{group_id}"],
    "/experiments": ["/experiments"],
    "/experiments/{name}": ["/experiments/{name}"],
    "/models": ["/models"],
    "/models/{model}": ["/models/{model}", "/models/{model}/{version}"],
    "/data": ["/data", "/data/download"],
    "/schedules": ["/schedules"],
    "/schedules/{schedule}": ["/schedules/{schedule}"],
    "/environment": ["/environment", "/local", "/checks", "/preview"],
    "/commands": ["/commands"],
    "/jobs/{number}": ["/commands/{number}"],
}  # fmt: skip


def open_app(folder: Path, *, read_only: bool = False) -> tuple[PageApp, dict[str, str]]:
    settings = load_settings({}, cwd=folder, env={"RUNNER_HOME": str(folder)})
    access = Access(frozenset({HOST}), programs_only=True, read_only=read_only)
    tokens = access.create_tokens()
    return PageApp(Source(settings), access, None), {str(name): tokens[name] for name in tokens}


@pytest.fixture
def app(tmp_path: Path) -> tuple[PageApp, dict[str, str]]:
    return open_app(tmp_path)


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def description(app: tuple[PageApp, dict[str, str]]) -> dict[str, Any]:
    client = AsgiClient(app[0].asgi, HOST)
    answered = client.get("/api/v1/openapi.json", headers=bearer(app[1]["read"]))
    assert answered.status_code == 200
    return answered.json()


def test_description_has_every_address_once(description: dict[str, Any]) -> None:
    paths = description["paths"]
    assert {f"/api/v1{each.path}" for each in ENDPOINTS} < set(paths)
    assert {f"/api/v1/actions/{name}" for name in ACTIONS} < set(paths)
    operations = [each for path in paths.values() for each in path.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)
    for path, operation in ((path, each) for path, all_ in paths.items() for each in all_.values()):
        declared = {each["name"] for each in operation["parameters"]} if "{" in path else set()
        assert {part.split("}")[0] for part in path.split("{")[1:]} <= declared
        assert operation["summary"].endswith(".")


def test_every_reference_leads_to_a_schema(description: dict[str, Any]) -> None:
    text = json.dumps(description)
    for part in text.split('"$ref": "#/')[1:]:
        found: Any = description
        for name in part.split('"')[0].split("/"):
            found = found[name]
        assert isinstance(found, dict)


def test_pages_show_nothing_that_programs_do_not_get(app: tuple[PageApp, dict[str, str]]) -> None:
    pages = {each.path for each in (*PAGES, *app[0].commands.pages)}
    assert set(OF_PAGES) == pages
    known = {each.path for each in ENDPOINTS} | {"/commands", "/commands/{number}"}
    assert {path for paths in OF_PAGES.values() for path in paths} <= known


def test_answer_is_what_the_command_line_prints() -> None:
    document = {"a": float("nan"), "b": [1, {"c": "ü"}], "d": Path("/x")}
    assert bytes(json_answer(document).body).decode() == f"{format_json(document)}\n"
    assert json.loads(bytes(json_answer(document).body)) == {
        "a": "NaN", "b": [1, {"c": "ü"}], "d": "/x",
    }  # fmt: skip


@pytest.mark.attack
def test_scopes_of_tokens(
    app: tuple[PageApp, dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def run(job: StartedCommand) -> None:
        job.exit_code = 0
        job.ended.set()

    monkeypatch.setattr(app[0].commands, "_run", run)
    client, path = AsgiClient(app[0].asgi, HOST), "/api/v1/actions/cancel"
    body = b'{"run": "a"}'
    for headers in ({}, bearer("x"), bearer(""), {"cookie": f"runner-8899={app[1]['act']}"}):
        assert client.post(path, content=body, headers=headers).status_code == 401
        assert client.get("/api/v1/commands", headers=headers).status_code == 401
    assert client.get(f"/api/v1/commands?token={app[1]['read']}").status_code == 401
    refused = client.post(path, content=body, headers=bearer(app[1]["read"]))
    assert (refused.status_code, "may read only" in refused.text) == (403, True)
    assert client.get("/api/v1/commands", headers=bearer(app[1]["read"])).json() == []
    done = client.post(path, content=body, headers=bearer(app[1]["act"]))
    assert (done.status_code, done.json()["command"]) == (200, "runner cancel a")
    assert client.get("/runs", headers=bearer(app[1]["act"])).status_code == 404
    shown, tokens = open_app(tmp_path / "other", read_only=True)
    assert set(tokens) == {"read"}
    answered = AsgiClient(shown.asgi, HOST).post(path, content=body, headers=bearer(tokens["read"]))
    assert answered.status_code == 403


def test_action_says_what_it_would_do(
    app: tuple[PageApp, dict[str, str]], description: dict[str, Any]
) -> None:
    client, headers = AsgiClient(app[0].asgi, HOST), bearer(app[1]["read"])
    answered = client.get("/api/v1/actions/retry?run=a%20b", headers=headers)
    assert answered.json()["command"] == "runner retry 'a b' --detach"
    schema = description["paths"]["/api/v1/actions/retry"]["get"]["responses"]["200"]
    found = problems(answered.json(), schema["content"]["application/json"]["schema"], description)
    assert list(found) == []
    missing = client.get("/api/v1/actions/retry", headers=headers)
    assert (missing.status_code, missing.json()["error"]["code"]) == (400, "R-PAGE-FORM")
    unknown = client.get("/api/v1/actions/nothing", headers=headers)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "R-PAGE-UNKNOWN")
    listed = client.get("/api/v1/actions", headers=headers).json()
    assert [each["action"] for each in listed] == list(ACTIONS)


def test_value_of_an_action_is_described(description: dict[str, Any]) -> None:
    for name, action in ACTIONS.items():
        body = description["paths"][f"/api/v1/actions/{name}"]["post"]["requestBody"]
        schema = body["content"]["application/json"]["schema"]
        assert set(schema["required"]) <= set(schema["properties"])
        given: dict[str, object] = dict.fromkeys(action.names, "a")
        for field in action.fields:
            given[field.name] = {"check": True, "number": 3}.get(field.kind, "a")
        assert list(problems(given, schema, description)) == []
        families = [each for each in action.options if each.endswith(".")]
        fits = not list(problems({**given, "set.lr": 0.1}, schema, description))
        assert fits == bool(families)


def test_value_that_an_action_does_not_have_is_refused(
    app: tuple[PageApp, dict[str, str]],
) -> None:
    client, headers = AsgiClient(app[0].asgi, HOST), bearer(app[1]["act"])
    body = b'{"run": "a", "pol": "x"}'
    answered = client.post("/api/v1/actions/cancel", content=body, headers=headers)
    assert (answered.status_code, "no value 'pol'" in answered.text) == (400, True)
    assert client.get("/api/v1/commands", headers=headers).json() == []


@pytest.mark.attack
@pytest.mark.parametrize(
    "body",
    [
        r'{"run": "\ud800"}', r'{"run": ["a", "\udfff"]}', r'{"\ud800": "a"}',
        r'{"run": "a\u0000"}', '{"run": "' + "x" * 200_000 + '"}',
    ],
)  # fmt: skip
def test_value_that_no_command_can_have_starts_none(
    app: tuple[PageApp, dict[str, str]], body: str
) -> None:
    client, headers = AsgiClient(app[0].asgi, HOST), bearer(app[1]["act"])
    answered = client.post("/api/v1/actions/cancel", content=body.encode(), headers=headers)
    assert (answered.status_code, answered.json()["error"]["code"]) == (400, "R-PAGE-QUERY")
    assert client.get("/api/v1/commands", headers=headers).json() == []


def test_recipes_and_environment_match_their_description(
    app: tuple[PageApp, dict[str, str]], description: dict[str, Any]
) -> None:
    client, headers = AsgiClient(app[0].asgi, HOST), bearer(app[1]["read"])
    for path in ("/recipes", "/recipe?recipe=mnist", "/environment", "/local", "/actions"):
        answered = client.get(f"/api/v1{path}", headers=headers)
        assert answered.status_code == 200, answered.text
        operation = description["paths"][f"/api/v1{path.partition('?')[0]}"]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert list(problems(answered.json(), schema, description)) == []


@pytest.mark.parametrize(
    ("value", "schema", "fits"),
    [
        (1, {"type": "number"}, True),
        (True, {"type": "number"}, False),
        ("NaN", {"anyOf": [{"type": "number"}, {"enum": ["NaN"]}]}, True),
        ({"a": 1}, {"type": "object", "properties": {"a": {"type": "integer"}}}, True),
        ({"b": 1}, {"type": "object", "properties": {"a": {"type": "integer"}}}, False),
        ({"a": "x"}, {"type": "object", "additionalProperties": {"type": "integer"}}, False),
        ([1, "x"], {"type": "array", "items": {"type": "integer"}}, False),
        ({}, {"type": "object", "required": ["a"]}, False),
    ],
)
def test_validator_finds_problems(value: Any, schema: dict[str, Any], fits: bool) -> None:
    assert (not list(problems(value, schema, {}))) == fits
