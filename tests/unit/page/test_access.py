"""Who may see the page and act."""

from __future__ import annotations

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from runner.page.access import Access, AccessMiddleware

HOST = "127.0.0.1:8899"


async def answer(request: Request) -> PlainTextResponse:
    return PlainTextResponse(request.state.access)


def client_of(access: Access) -> TestClient:
    paths = ["/", "/runs", "/act/cancel", "/api/v1/runs", "/static/page.css"]
    app = Starlette(routes=[Route(p, answer, methods=["GET", "POST"]) for p in paths])
    return TestClient(
        AccessMiddleware(app, access), base_url=f"http://{HOST}", follow_redirects=False
    )


@pytest.fixture
def printed() -> list[str]:
    return []


@pytest.fixture
def access(printed: list[str]) -> Access:
    return Access(frozenset({HOST}), on_link=printed.append)


@pytest.fixture
def client(access: Access) -> TestClient:
    return client_of(access)


def test_without_a_link_nothing_is_shown(client: TestClient) -> None:
    answered = client.get("/runs")
    assert answered.status_code == 401
    assert "runner ui" in answered.text


def test_link_signs_in_once_and_prints_another(
    client: TestClient, access: Access, printed: list[str]
) -> None:
    token = access.link_token
    first = client.get(f"/runs?status=failed&token={token}")
    assert (first.status_code, first.headers["location"]) == (303, "/runs?status=failed")
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert client.get("/runs").text == "act"
    assert printed == [access.link_token]
    stranger = client_of(access)
    assert stranger.get(f"/runs?token={token}").status_code == 403
    assert stranger.get("/runs").status_code == 401


def test_used_link_opens_the_page_where_it_was_used(client: TestClient, access: Access) -> None:
    token = access.link_token
    client.get(f"/?token={token}")
    assert client.get(f"/runs?token={token}").headers["location"] == "/runs"


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example"])
def test_link_never_redirects_to_another_host(access: Access, path: str) -> None:
    answered = client_of(access).get(f"http://{HOST}{path}?token={access.link_token}")
    assert answered.headers["location"].startswith("/evil.example")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:80", "127.0.0.1", ""])
def test_other_hosts_are_refused(client: TestClient, access: Access, host: str) -> None:
    answered = client.get(f"/?token={access.link_token}", headers={"host": host})
    assert answered.status_code == 403
    assert "set-cookie" not in answered.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_posts_of_other_websites_are_refused(
    client: TestClient, access: Access, headers: dict[str, str]
) -> None:
    client.get(f"/?token={access.link_token}")
    assert client.post("/act/cancel", headers=headers).status_code == 403


def test_posts_of_the_page_and_of_programs_pass(client: TestClient, access: Access) -> None:
    client.get(f"/?token={access.link_token}")
    own = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
    assert client.post("/act/cancel", headers=own).text == "act"
    assert client.post("/act/cancel").text == "act"


def test_tokens_of_programs_have_scopes(access: Access) -> None:
    tokens = access.create_tokens()
    client = client_of(access)
    read = {"authorization": f"Bearer {tokens['read']}"}
    act = {"authorization": f"Bearer {tokens['act']}"}
    assert client.get("/api/v1/runs", headers=read).text == "read"
    assert client.post("/api/v1/runs", headers=read).status_code == 403
    assert client.post("/api/v1/runs", headers=act).text == "act"
    wrong = {"authorization": "Bearer runner_act_wrong"}
    refused = client.get("/api/v1/runs", headers=wrong)
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")


def test_read_only_server_lets_nobody_act() -> None:
    access = Access(frozenset({HOST}), read_only=True)
    client = client_of(access)
    client.get(f"/?token={access.link_token}")
    assert client.get("/runs").text == "read"
    assert client.post("/act/cancel").status_code == 403
    assert "act" not in access.create_tokens()


def test_every_answer_has_the_policy(client: TestClient) -> None:
    for path in ("/runs", "/static/page.css"):
        headers = client.get(path).headers
        assert "script-src 'self';" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_password_signs_in_on_other_hosts() -> None:
    access = Access(frozenset({HOST}), password="correct horse")
    assert access.sign_in("wrong", "127.0.0.1") is None
    assert access.sign_in("correct horse", "127.0.0.1")
    assert client_of(access).get("/runs").headers["location"] == "/login?next=%2Fruns"
