"""Which requests TensorBoard answers: those of its own page, of programs, and links."""

from __future__ import annotations

import pytest

from runner.features.export.tensorboard_server import reason_to_refuse

_OWN = {"HTTP_HOST": "127.0.0.1:6006"}


@pytest.mark.attack
@pytest.mark.parametrize(
    "request_",
    [
        {"HTTP_HOST": "evil.test:6006"},
        {"HTTP_HOST": "127.0.0.1.evil.test"},
        {"HTTP_HOST": "127.0.0.1:80@evil.test"},
        {"HTTP_HOST": "["},
        {"HTTP_HOST": ""},
        {},
        {**_OWN, "HTTP_ORIGIN": "null"},
        {**_OWN, "HTTP_ORIGIN": "http://127.0.0.1:1"},
        {**_OWN, "HTTP_ORIGIN": "http://evil.test:6006"},
        {**_OWN, "HTTP_SEC_FETCH_SITE": "cross-site"},
        {**_OWN, "HTTP_SEC_FETCH_SITE": "same-site", "HTTP_SEC_FETCH_DEST": "image"},
        {**_OWN, "HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_DEST": "iframe"},
    ],
    ids=str,
)
def test_other_web_page_is_refused(request_: dict[str, str]) -> None:
    assert reason_to_refuse(request_)


@pytest.mark.parametrize(
    "request_",
    [
        _OWN,
        {"HTTP_HOST": "localhost:16006"},  # a forwarded port
        {"HTTP_HOST": "[::1]:6006"},
        {**_OWN, "HTTP_ORIGIN": "http://127.0.0.1:6006", "HTTP_SEC_FETCH_SITE": "same-origin"},
        {**_OWN, "HTTP_SEC_FETCH_SITE": "none", "HTTP_SEC_FETCH_DEST": "document"},
        {**_OWN, "HTTP_SEC_FETCH_SITE": "cross-site", "HTTP_SEC_FETCH_DEST": "document"},  # a link
    ],
    ids=str,
)
def test_own_page_links_and_programs_are_answered(request_: dict[str, str]) -> None:
    assert reason_to_refuse(request_) is None
