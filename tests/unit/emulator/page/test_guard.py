"""Sessions of the page: links that are valid once, and signed cookies."""

from __future__ import annotations

import pytest

from batch_emulator.page.guard import Sessions

URL = "http://127.0.0.1:80"


def _signed_in(sessions: Sessions) -> str:
    token = sessions.new_link().partition("?token=")[2]
    cookie = sessions.use_token(token)
    assert cookie is not None
    return cookie


def test_link_is_valid_once_and_another_one_is_made() -> None:
    links: list[str] = []
    sessions = Sessions(URL, "key", links.append)
    token = sessions.new_link().partition("?token=")[2]
    assert sessions.use_token(token) is not None
    assert sessions.use_token(token) is None
    assert sessions.use_token("") is None
    [link] = links
    assert sessions.use_token(link.partition("?token=")[2]) is not None


def test_old_links_are_forgotten_when_there_are_many() -> None:
    sessions = Sessions(URL, "key", lambda _: None)
    token = sessions.new_link().partition("?token=")[2]
    for _ in range(20):
        sessions.new_link()
    assert sessions.use_token(token) is None


def test_cookie_is_valid_after_a_restart_with_the_same_key_only() -> None:
    cookie = _signed_in(Sessions(URL, "key", lambda _: None))
    assert Sessions(URL, "key", lambda _: None).knows(cookie)
    assert not Sessions(URL, "another", lambda _: None).knows(cookie)


def test_cookie_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(URL, "key", lambda _: None)
    monkeypatch.setattr("batch_emulator.page.guard.time.time", lambda: 1_000_000.0)
    cookie = _signed_in(sessions)
    assert sessions.knows(cookie)
    monkeypatch.setattr("batch_emulator.page.guard.time.time", lambda: 1_000_000.0 + 31 * 86400)
    assert not sessions.knows(cookie)


@pytest.mark.parametrize("cookie", ["", ".", "a.b.c", "1.x", "é.é.é"])
def test_forged_cookie_is_refused(cookie: str) -> None:
    assert not Sessions(URL, "key", lambda _: None).knows(cookie)
