"""Who may see the page and act."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from runner.page.access import Access, AccessMiddleware, Guesses, own_path
from runner.protocol.errors import RunnerError
from tests.unit.page.asgi_client import AsgiClient

HOST = "127.0.0.1:8899"
COOKIE = "runner-8899"


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def answer(request: Request) -> PlainTextResponse:
    await request.body()
    return PlainTextResponse(request.state.access)


async def refuse(request: Request, err: Exception) -> PlainTextResponse:
    return PlainTextResponse(str(err), 400)


def client_of(access: Access, *, client: str = "127.0.0.1") -> AsgiClient:
    paths = ["/", "/runs", "/act/cancel", "/api/v1/runs", "/static/page.css", "/login", "/health"]
    routes = [Route(path, answer, methods=["GET", "POST"]) for path in paths]
    app = Starlette(routes=routes, exception_handlers={RunnerError: refuse})
    return AsgiClient(AccessMiddleware(app, access), HOST, client=client)


@pytest.fixture
def printed() -> list[str]:
    return []


@pytest.fixture
def access(printed: list[str]) -> Access:
    return Access(frozenset({HOST}), on_link=printed.append)


@pytest.fixture
def client(access: Access) -> AsgiClient:
    return client_of(access)


@pytest.fixture
def signed_in(client: AsgiClient, access: Access) -> AsgiClient:
    client.get(f"/?token={access.link_token}")
    return client


def test_without_a_link_nothing_is_shown(client: AsgiClient) -> None:
    answered = client.get("/runs")
    assert answered.status_code == 401
    assert "runner ui" in answered.text


def test_link_signs_in_once_and_prints_another(
    client: AsgiClient, access: Access, printed: list[str]
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


def test_used_link_opens_the_page_where_it_was_used(client: AsgiClient, access: Access) -> None:
    token = access.link_token
    client.get(f"/?token={token}")
    assert client.get(f"/runs?token={token}").headers["location"] == "/runs"


def test_encoded_name_of_the_token_does_not_redirect_forever(
    client: AsgiClient, access: Access
) -> None:
    answered = client.get(f"/runs?%74oken={access.link_token}&q=1")
    assert answered.headers["location"] == "/runs?q=1"


@pytest.mark.parametrize(
    "path", ["//evil.example/", "/\\evil.example", "/%5Cevil.example", "/%09/evil.example"]
)
def test_link_never_redirects_to_another_host(access: Access, path: str) -> None:
    url = f"http://{HOST}{path}?token={access.link_token}"
    location = client_of(access).get(url).headers["location"]
    joined = httpx.URL(f"http://{HOST}/").join(location)
    assert joined.netloc == HOST.encode()


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/runs/a%20b?q=1&col=x", "/runs/a%20b?q=1&col=x"),
        ("/runs/ä", "/runs/%C3%A4"),
        ("//evil.example", "/runs"),
        ("/\\evil.example", "/runs"),
        ("/\t/evil.example", "/runs"),
        ("/runs\r\nset-cookie: a=b", "/runs"),
        ("https://evil.example", "/runs"),
        ("javascript:alert(1)", "/runs"),
        ("", "/runs"),
    ],
)
def test_only_paths_of_this_server_follow_a_sign_in(text: str, path: str) -> None:
    assert own_path(text) == path


@pytest.mark.attack
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1:80", "127.0.0.1", "", "[::1]"])
def test_other_hosts_are_refused(client: AsgiClient, access: Access, host: str) -> None:
    answered = client.get(f"/?token={access.link_token}", headers={"host": host})
    assert answered.status_code == 403
    assert "set-cookie" not in answered.headers


FOREIGN = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:9999"},
    {"origin": f"https://{HOST}"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


@pytest.mark.attack
@pytest.mark.parametrize("headers", FOREIGN)
def test_posts_of_other_websites_are_refused(
    signed_in: AsgiClient, headers: dict[str, str]
) -> None:
    navigation = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert signed_in.post("/act/cancel", headers=headers).status_code == 403
    assert signed_in.post("/act/cancel", headers=navigation | headers).status_code == 403


@pytest.mark.attack
@pytest.mark.parametrize("headers", FOREIGN)
def test_other_websites_load_nothing(signed_in: AsgiClient, headers: dict[str, str]) -> None:
    assert signed_in.get("/api/v1/runs", headers=headers).status_code == 403
    frame = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}
    assert signed_in.get("/runs", headers=headers | frame).status_code == 403


def test_link_of_another_website_opens_the_page(signed_in: AsgiClient) -> None:
    followed = {
        "sec-fetch-site": "cross-site",
        "sec-fetch-mode": "navigate",
        "sec-fetch-dest": "document",
    }
    assert signed_in.get("/runs", headers=followed).text == "act"


def test_posts_of_the_page_and_of_programs_pass(signed_in: AsgiClient) -> None:
    own = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
    assert signed_in.post("/act/cancel", headers=own).text == "act"
    assert signed_in.post("/act/cancel").text == "act"


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


def test_wrong_token_is_refused_even_with_a_session(signed_in: AsgiClient) -> None:
    wrong = {"authorization": "Bearer wrong"}
    assert signed_in.get("/api/v1/runs", headers=wrong).status_code == 401


def test_server_for_programs_accepts_tokens_only(access: Access) -> None:
    access.programs_only = True
    client = client_of(access)
    assert client.get(f"/?token={access.link_token}").status_code == 403
    for path in ("/runs", "/api/v1/runs"):
        assert client.get(path).headers["www-authenticate"] == "Bearer"


def test_read_only_server_lets_nobody_act() -> None:
    access = Access(frozenset({HOST}), read_only=True)
    client = client_of(access)
    client.get(f"/?token={access.link_token}")
    assert client.get("/runs").text == "read"
    assert client.post("/act/cancel").status_code == 403
    assert "act" not in access.create_tokens()


@pytest.mark.attack
def test_every_answer_has_the_policy(client: AsgiClient) -> None:
    for path in ("/runs", "/static/page.css", "//", "/runs?token=wrong"):
        headers = client.get(f"http://{HOST}{path}").headers
        assert "script-src 'self';" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


@pytest.mark.parametrize(
    "path",
    ["/loginX", "/static/../runs", "/static/a/b", "/static/%2e%2e%2fruns", "/login/", "//login"],
)
def test_only_the_open_paths_are_open(client: AsgiClient, path: str) -> None:
    assert client.get(f"http://{HOST}{path}").status_code == 401


def test_session_ends_a_week_after_its_last_request() -> None:
    clock = Clock()
    access = Access(frozenset({HOST}), clock=clock)
    client = client_of(access)
    client.get(f"/?token={access.link_token}")
    for _ in range(3):
        clock.now += 6 * 86_400
        assert client.get("/runs").status_code == 200
    clock.now += 7 * 86_400
    assert client.get("/runs").status_code == 401


def test_sign_out_ends_the_session(signed_in: AsgiClient, access: Access) -> None:
    pairs = "; ".join(f"{name}={value}" for name, value in signed_in.cookies.items())
    access.sign_out(Headers({"cookie": pairs}), COOKIE)
    assert signed_in.get("/runs").status_code == 401


def test_cookie_of_another_port_is_none(access: Access) -> None:
    client = client_of(access)
    client.get(f"/?token={access.link_token}")
    session = client.cookies[COOKIE]
    stranger = client_of(access)
    assert stranger.get("/runs", headers={"cookie": f"runner-9999={session}"}).status_code == 401
    mixed = {"cookie": f"runner-9999=x; a; ={session}; {COOKIE}={session}"}
    assert stranger.get("/runs", headers=mixed).text == "act"


def test_over_tls_only_this_host_can_set_the_cookie() -> None:
    access = Access(frozenset({HOST}), is_secure=True)
    cookie = client_of(access).get(f"/?token={access.link_token}").headers["set-cookie"]
    assert cookie.startswith("__Host-runner-8899=")
    assert "secure" in cookie.lower()
    assert "path=/" in cookie.lower()
    assert "domain" not in cookie.lower()


def test_password_signs_in_on_other_hosts() -> None:
    access = Access(frozenset({HOST}), password="correct horse")
    assert access.sign_in("wrong", "10.0.0.1") is None
    assert access.sign_in("correct horse", "10.0.0.1")
    client = client_of(access)
    assert client.get("/runs?q=a b").headers["location"] == "/login?next=%2Fruns%3Fq%3Da%2520b"
    update = {"sec-fetch-mode": "cors", "sec-fetch-site": "same-origin"}
    assert client.get("/runs", headers=update).status_code == 401


def test_secrets_are_not_in_the_text_of_an_access() -> None:
    access = Access(frozenset({HOST}), password="correct horse")
    assert access.link_token not in repr(access)
    assert "correct horse" not in repr(access)


@pytest.mark.attack
def test_guesses_of_a_client_wait_longer_and_longer() -> None:
    clock = Clock()
    guesses = Guesses(clock)
    waits: list[float] = []
    for _ in range(15):
        waits.append(guesses.wait_s("10.0.0.1"))
        clock.now += waits[-1]
        guesses.note_wrong("10.0.0.1")
    assert waits[:6] == [0, 0, 0, 0, 0, 1]
    assert waits == sorted(waits)
    assert waits[-1] == 60
    assert guesses.wait_s("10.0.0.2") == 0
    guesses.forget("10.0.0.1")
    assert guesses.wait_s("10.0.0.1") == 0


def test_addresses_of_one_network_count_as_one_client() -> None:
    guesses = Guesses(Clock())
    for number in range(Guesses.FREE):
        guesses.note_wrong(f"2001:db8::{number + 1}")
    assert guesses.wait_s("2001:db8::ffff") > 0
    assert guesses.wait_s("2001:db8:0:1::1") == 0


def test_many_clients_slow_each_other_down_and_fill_no_memory() -> None:
    clock = Clock()
    guesses = Guesses(clock)
    for number in range(20_000):
        guesses.note_wrong(f"client-{number}")
    assert guesses.wait_s("new") == 1.0
    assert len(guesses._wrong) <= 10_000
    clock.now += 1
    assert guesses.wait_s("new") == 0


@pytest.mark.attack
def test_huge_body_is_refused(signed_in: AsgiClient) -> None:
    answered = signed_in.post("/act/cancel", content=b"x" * (1 << 21))
    assert (answered.status_code, "too large" in answered.text) == (400, True)
