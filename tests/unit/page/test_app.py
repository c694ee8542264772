"""Answers of the whole application, without services."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.settings import load_settings
from runner.flows.local import lifecycle
from runner.flows.local.lifecycle import LocalStatus, ServiceStatus
from runner.page.access import Access, Guesses
from runner.page.actions import ACTIONS
from runner.page.app import PageApp
from runner.page.assets import Assets
from runner.page.commands import StartedCommand
from runner.page.pages import runs
from runner.page.rendering import moment, templates
from runner.page.server import _Lines
from runner.page.source import Source
from runner.protocol.errors import RunnerError
from tests.unit.page.asgi_client import AsgiClient

HOST = "127.0.0.1:8899"


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(
        load_settings({"target": "local"}, cwd=tmp_path, env={"RUNNER_HOME": str(tmp_path)})
    )


@pytest.fixture
def app(source: Source) -> PageApp:
    access = Access(frozenset({HOST}), password="correct horse")
    return PageApp(source, access, Assets())


@pytest.fixture
def client(app: PageApp) -> AsgiClient:
    found = AsgiClient(app.asgi, HOST)
    found.get(f"/?token={app.access.link_token}")
    return found


def fail_with(source: Source, monkeypatch: pytest.MonkeyPatch, err: Exception) -> None:
    async def read(*_: object, **__: object) -> object:
        raise err

    monkeypatch.setattr(source, "read", read)


def test_unexpected_error_is_a_page_with_a_hint_and_one_line_of_the_log(
    client: AsgiClient,
    source: Source,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    fail_with(source, monkeypatch, ZeroDivisionError("<b>by\x1b[31m zero</b>"))
    for path in ("/runs", "/api/v1/runs"):
        answered = client.get(path)
        assert answered.status_code == 500
        assert "runner bug-report" in answered.text
        assert "Traceback" not in answered.text
    assert "&lt;b&gt;by" in client.get("/runs").text
    record = next(each for each in caplog.records if "ZeroDivisionError" in each.getMessage())
    line = _Lines(debug=False).format(record)
    assert len(line.splitlines()) == 1
    assert "\x1b" not in line
    assert "GET /runs: ZeroDivisionError" in line
    assert record.levelno == logging.ERROR


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("R-SERVICES-DOWN", 503),
        ("R-RUN-UNKNOWN", 404),
        ("R-PAGE-QUERY", 400),
        ("R-RUN-INVALID", 400),
        ("R-PAGE-TWICE", 409),
    ],
)
def test_error_has_a_status_a_reason_and_a_fix(
    client: AsgiClient, source: Source, monkeypatch: pytest.MonkeyPatch, code: str, status: int
) -> None:
    fail_with(source, monkeypatch, RunnerError(code, "what <", why="why <", fix="fix <"))
    answered = client.get("/runs")
    assert answered.status_code == status
    assert all(f"{word} &lt;" in answered.text for word in ("what", "why", "fix"))
    document = client.get("/api/v1/runs").json()
    said = {"code": code, "what": "what <", "why": "why <", "fix": "fix <"}
    assert document["error"].pop("exit_code") in (2, 3)
    assert document["error"] == said


@pytest.mark.attack
def test_text_of_the_address_is_text_of_the_page(client: AsgiClient) -> None:
    answered = client.get("/%3Cscript%3Ealert(1)%3C/script%3E")
    assert answered.status_code == 404
    assert "<script>alert" not in answered.text
    assert "&lt;script&gt;alert" in answered.text


def test_sign_in_leads_to_the_address_that_was_asked_for(app: PageApp) -> None:
    client = AsgiClient(app.asgi, HOST)
    asked = client.get("/runs?q=a%20b").headers["location"]
    page = client.get(asked).text
    assert 'value="/runs?q=a%20b"' in page
    form = {"password": "correct horse", "next": "/runs?q=a%20b"}
    answered = client.post("/login", data=form)
    assert (answered.status_code, answered.headers["location"]) == (303, "/runs?q=a%20b")
    away = client.post("/login", data={**form, "next": "//evil.example"})
    assert away.headers["location"] == "/runs"
    assert client.post("/logout").headers["location"] == "/login"
    assert client.get("/runs").headers["location"].startswith("/login")


@pytest.mark.attack
def test_right_password_is_not_looked_at_while_a_client_waits(app: PageApp) -> None:
    client = AsgiClient(app.asgi, HOST, client="10.0.0.1")
    for _ in range(Guesses.FREE):
        assert "wrong" in client.post("/login", data={"password": "guess"}).text
    answered = client.post("/login", data={"password": "correct horse"})
    assert answered.status_code == 403
    assert "Try again in 1 s" in answered.text
    other = AsgiClient(app.asgi, HOST, client="10.0.0.2")
    assert other.post("/login", data={"password": "correct horse"}).status_code == 303


@pytest.mark.attack
def test_headers_of_proxies_are_not_believed(app: PageApp) -> None:
    client = AsgiClient(app.asgi, HOST, client="10.0.0.1")
    for number in range(Guesses.FREE):
        headers = {"x-forwarded-for": f"10.1.0.{number}", "forwarded": f"for=10.1.0.{number}"}
        client.post("/login", data={"password": "guess"}, headers=headers)
    assert app.access.guesses.wait_s("10.0.0.1") > 0
    for name in ("x-forwarded-host", "x-host", "forwarded"):
        answered = client.get("/health", headers={"host": "evil.example", name: HOST})
        assert answered.status_code == 403


def test_nobody_learns_the_target_without_a_session(app: PageApp) -> None:
    client = AsgiClient(app.asgi, HOST)
    for path in ("/static/nothing.js", "/nothing", "/login?next=x", "/health"):
        assert "local" not in client.get(path).text


def test_streams_have_no_head_and_pages_have(client: AsgiClient) -> None:
    assert client.request("HEAD", "/live/runs").status_code == 405
    assert client.request("HEAD", "/login").status_code == 200
    assert client.request("OPTIONS", "/login").status_code == 405


@pytest.mark.attack
def test_huge_and_deep_bodies_are_refused(client: AsgiClient) -> None:
    for path in ("/login", "/act/cancel", "/api/v1/actions/cancel"):
        answered = client.post(path, content=b"a" * (1 << 21))
        assert (answered.status_code, "too large" in answered.text) == (400, True)
    deep = client.post("/api/v1/actions/cancel", content=b"[" * 100_000)
    assert (deep.status_code, "not JSON" in deep.text) == (400, True)


@pytest.mark.attack
def test_value_of_a_form_cannot_be_an_option(
    app: PageApp, client: AsgiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(job: StartedCommand) -> None:
        del job

    monkeypatch.setattr(app.commands, "_run", run)
    client.post("/act/rm", data={"run": "--older-than=0d"})
    client.post("/act/evict", data={"node": "--all", "notice": "--all"})
    shown = ["rm", "--yes", "--target", "local", "--", "--older-than=0d"]
    assert app.commands.jobs[1].argv == shown
    executed = app.commands.jobs[1].words
    assert executed.index("--") > executed.index("--target")
    assert app.commands.jobs[2].argv == ["local", "evict", "--notice=--all", "--", "--all"]


def test_second_person_is_told_that_the_command_was_started(
    app: PageApp, client: AsgiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(job: StartedCommand) -> None:
        del job

    monkeypatch.setattr(app.commands, "_run", run)
    first = client.post("/act/cancel", data={"run": "a"})
    assert first.headers["location"] == "/jobs/1"
    second = client.post("/act/cancel", data={"run": "a"})
    assert second.status_code == 409
    assert 'href="/jobs/1"' in second.text
    assert client.post("/act/cancel", data={"run": "b"}).headers["location"] == "/jobs/2"
    app.commands.jobs[1].exit_code = 1  # it failed, so trying again is right
    assert client.post("/act/cancel", data={"run": "a"}).headers["location"] == "/jobs/3"


@pytest.mark.parametrize("path", ["/runs", "/pools", "/bill", "/sweeps", "/data"])
def test_page_without_services_has_a_button_that_starts_them(
    client: AsgiClient, app: PageApp, path: str
) -> None:
    button = 'href="/act/local-up"'
    answered = client.get(path)
    assert answered.status_code == 503
    assert button in answered.text
    app.access.read_only = True
    assert button not in client.get(path).text


_SERVICES = (
    ServiceStatus("batch", "running", 1, "http://127.0.0.1:1", "batch.log"),
    ServiceStatus("blob", "stopped", None, "http://127.0.0.1:2", "blob.log"),
)


@pytest.mark.parametrize(
    ("known", "says"),
    [
        ({"services": ()}, "not set up"),
        ({}, "2 nodes, each with 1 task slot"),
        ({"isolation": "environment"}, "tasks run as your user"),
        ({"refusal": "the disk is full"}, "No tasks are started: the disk is full"),
        ({"faults": "/tmp/faults.toml"}, "/tmp/faults.toml"),
        ({"images": ("a=/one", "b=/two")}, "b=/two"),
        ({"faults": "/f.toml", "images": ("a=/one",), "isolation": "users"}, "tasks run as users"),
    ],
)
def test_environment_is_shown_whatever_is_known_of_the_services(
    client: AsgiClient, monkeypatch: pytest.MonkeyPatch, known: dict[str, Any], says: str
) -> None:
    status = replace(LocalStatus(True, _SERVICES, nodes=2, slots=1, home="/home/x"), **known)
    monkeypatch.setattr(lifecycle, "status", lambda _: status)
    answered = client.get("/environment")
    assert answered.status_code == 200, answered.text
    assert says in " ".join(re.sub("<[^>]*>", "", answered.text).split())


@pytest.mark.parametrize(
    ("name", "values", "query"),
    [
        ("cancel", {"run": ["a b"]}, "run=a+b"),
        ("train", {"recipe": ["./a.py"], "params": ["x=1"]}, "recipe=.%2Fa.py&params=x%3D1"),
        ("sweep", {"recipe": ["./a.py"], "trials": ["0"]}, "recipe=.%2Fa.py&trials=0"),
    ],
)
def test_failed_command_leads_back_to_its_form(
    client: AsgiClient, app: PageApp, name: str, values: dict[str, list[str]], query: str
) -> None:
    form = f"/act/{name}?{query}"
    for exit_code, expected in ((2, True), (0, False), (None, False)):
        job = StartedCommand(1, ACTIONS[name], [name], [name], values, exit_code=exit_code)
        app.commands.jobs = {1: job}
        page = client.get("/jobs/1").text
        assert (f'href="{form}"'.replace("&", "&amp;") in page) == expected
        assert ("Continue" in page) == (exit_code == 0)
    if ACTIONS[name].page:
        address = client.get(form).headers["location"]
        assert ("kind=sweep" in address) == (name == "sweep")
        assert "recipe=.%2Fa.py" in address


def test_form_with_very_long_values_is_no_link(client: AsgiClient, app: PageApp) -> None:
    values = {"run": ["x" * 90_000]}
    app.commands.jobs = {1: StartedCommand(1, ACTIONS["cancel"], [], [], values, exit_code=2)}
    assert "Change it" not in client.get("/jobs/1").text


def test_list_of_runs_is_read_before_somebody_asks(
    app: PageApp, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(app.warm())  # without services: the first request says what is wrong
    read: list[Any] = []

    async def call(function: Any) -> Any:
        return function(None)

    async def note(ask: Any) -> dict[str, Any]:
        read.append(ask.path)
        return {}

    monkeypatch.setattr(source, "call", call)
    page = replace(runs.PAGE, read=note)
    monkeypatch.setattr(runs, "PAGE", page)
    asyncio.run(app.warm())
    asyncio.run(PageApp(source, app.access, None).warm())  # programs ask for what they need
    assert read == ["/runs"]


@pytest.mark.parametrize("text", ["[{'<b>': None}]", "soon", "9999-99-99", "\x1b[31m"])
def test_time_of_a_damaged_document_is_shown_as_its_text(text: str) -> None:
    age: Any = templates().filters["age"]
    for shown in (str(moment(text)), str(age(text))):
        assert "<time" not in shown
        assert "<b>" not in shown
        assert "\x1b" not in shown
