"""Names of operators become object IDs, by a stand-in of Microsoft Graph."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

from runner.protocol.errors import RunnerError
from runner_infra.components.directory import resolve_operators
from runner_infra.config.stack import StackConfig
from runner_infra.planning.earlier import Earlier
from tests.unit.infra.recording import record
from tests.unit.infra.stacks import config_of

_ADA, _BOB = "aaaaaaaa-0000-0000-0000-000000000000", "bbbbbbbb-0000-0000-0000-000000000000"
_USERS = {"ada@example.com": _ADA, "bob_home.example#EXT#@example.com": _BOB}
_MAIL = {"bob@home.example": _BOB}


class Graph(HTTPServer):
    """Answers for users; `refuses` is the status of every answer, if it is set."""

    refuses: int | None = None
    tokens: set[str | None]


class _Handler(BaseHTTPRequestHandler):
    server: Graph  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_GET(self) -> None:
        self.server.tokens.add(self.headers["Authorization"])
        parts = urlsplit(self.path)
        status, body = self._answer(unquote(parts.path), parse_qs(parts.query))
        sent = json.dumps(body).encode()
        self.send_response(self.server.refuses or status)
        self.send_header("Content-Length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def _answer(self, path: str, query: Mapping[str, list[str]]) -> tuple[int, dict[str, Any]]:
        if path == "/v1.0/users":
            wanted = query["$filter"][0]
            found = [{"id": each} for mail, each in _MAIL.items() if wanted == f"mail eq '{mail}'"]
            return 200, {"value": found}
        name = path.removeprefix("/v1.0/users/")
        return (200, {"id": _USERS[name]}) if name in _USERS else (404, {"error": {}})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  name in the library
        pass


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Generator[Graph]:
    server = Graph(("127.0.0.1", 0), _Handler)
    server.tokens = set()
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("GRAPH_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    yield server
    server.shutdown()
    server.server_close()


def resolve(operators: list[object], earlier: Earlier | None = None) -> list[str | None]:
    found: list[StackConfig] = []

    def run() -> dict[str, Any]:
        found.append(resolve_operators(config_of(operators=operators), earlier or Earlier()))
        return {}

    record(run, stack="dev")
    return [each.id for each in found[0].operators]


def test_name_or_address_of_a_user_becomes_an_object_id(graph: Graph) -> None:
    assert resolve(["ada@example.com", "bob@home.example", {"id": _BOB}]) == [_ADA, _BOB]
    (token,) = graph.tokens
    assert str(token).startswith("Bearer ")


def test_object_ids_need_no_request(graph: Graph) -> None:
    assert resolve([_ADA, {"id": _BOB, "name": "bob@home.example"}]) == [_ADA, _BOB]
    assert not graph.tokens


def test_unknown_user_is_an_error(graph: Graph) -> None:
    with pytest.raises(RunnerError, match=r"eve@example\.com") as caught:
        resolve(["eve@example.com"])
    assert caught.value.code == "R-OPERATOR-NAME"
    assert "az ad user show --id eve@example.com" in caught.value.fix


def test_id_that_was_found_once_is_used_if_graph_refuses(graph: Graph) -> None:
    graph.refuses = 403
    assert resolve(["ada@example.com"], Earlier(names={"ada@example.com": _ADA})) == [_ADA]
    with pytest.raises(RunnerError, match=r"ada@example\.com") as caught:
        resolve(["ada@example.com"])
    assert "403" in caught.value.why
