"""Check the URL of a webhook, and post documents to it; for the agent and `runner notify test`.

The URL is a credential: whoever knows it can post. No error contains it. Only standard library.
"""

from __future__ import annotations

import ipaddress
import re
import threading
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import urllib.error

TRY_S = 5.0  # timeout of one request
LIMIT_S = 10.0  # of all tries together
TRIES = 4
FIRST_DELAY_S = 0.5
# Timeouts, throttling and server errors, after which the same request may succeed.
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_ANSWER_BYTES = 4096
_SHOWN_CHARACTERS = 120  # of the answer that refuses a request
_NOT_IN_URLS = re.compile(r"[^\x21-\x7e]|[\"<>\\^`{|}]")
_LOCAL_NAMES = ("localhost",)


class WebhookError(Exception):
    """A webhook did not accept a document; the message is the reason, without the URL."""


def check_webhook_url(url: str) -> None:
    """Raise ValueError with the reason, without the URL, unless documents may be posted to it."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("it cannot be parsed") from None
    if _NOT_IN_URLS.search(url):
        raise ValueError("it contains a space or another character that URLs encode")
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url):
        raise ValueError("it does not begin with https://")
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"its scheme is {parts.scheme}, not https")
    if not host:
        raise ValueError("it has no host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("it contains a user name or a password, which webhooks do not have")
    if parts.scheme == "http" and not _is_private(host):
        raise ValueError(
            "http would send it unencrypted; only loopback and private addresses may have it"
        )


def _is_private(host: str) -> bool:
    """Return True for this machine, and for literal addresses of private networks."""
    if host in _LOCAL_NAMES:
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_private and not address.is_link_local and not address.is_unspecified


def post_json(url: str, body: bytes, limit_s: float = LIMIT_S) -> int:
    """Post a JSON document. Return the status of the response.

    It is tried again after temporary failures, if time is left. No redirect is followed. Proxies
    of the environment are used, and certificates are verified.

    Args:
        url: The address, which is checked before.
        body: The document.
        limit_s: Time limit in seconds, which a slow name server or response cannot extend.

    Raises:
        WebhookError: the URL is invalid, or the webhook did not accept the document in time.
    """
    try:
        check_webhook_url(url)
    except ValueError as err:
        raise WebhookError(f"invalid URL: {err}") from None
    until = time.monotonic() + limit_s
    outcome: list[int | WebhookError] = []

    def work() -> None:
        try:
            outcome.append(_post_until(url, body, until))
        except WebhookError as err:
            outcome.append(err)
        except Exception as err:  # noqa: BLE001  its text may contain the URL
            outcome.append(WebhookError(type(err).__name__))

    thread = threading.Thread(target=work, name="webhook", daemon=True)
    thread.start()
    thread.join(limit_s)
    if not outcome:
        raise WebhookError(f"no response within {limit_s:.0f} s")
    found = outcome[0]
    if isinstance(found, WebhookError):
        raise found
    return found


def _post_until(url: str, body: bytes, until: float) -> int:
    last = "no time was left"
    for number in range(TRIES):
        left_s = until - time.monotonic()
        if left_s <= 0:
            break
        status, last, wait_s = _try(url, body, min(TRY_S, left_s))
        if status is not None and 200 <= status < 300:
            return status
        if status is not None and status not in _TRANSIENT:
            break
        delay_s = FIRST_DELAY_S * 2**number if wait_s is None else wait_s
        if number == TRIES - 1 or time.monotonic() + delay_s >= until:
            break
        time.sleep(delay_s)
    raise WebhookError(last)


def _try(url: str, body: bytes, timeout_s: float) -> tuple[int | None, str, float | None]:
    """Send the request once.

    Returns:
        The status, or None without a response; the error; and the seconds of `Retry-After`.
    """
    import http.client  # noqa: PLC0415  few runs need it
    import urllib.error  # noqa: PLC0415
    from urllib.request import Request, build_opener  # noqa: PLC0415

    from runner.protocol.notifying.redirects import RedirectPolicy  # noqa: PLC0415

    headers = {"Content-Type": "application/json", "User-Agent": "azure-batch-runner"}
    request = Request(url, data=body, headers=headers, method="POST")  # noqa: S310 - checked
    opener = build_opener(RedirectPolicy(lambda _: False))
    try:
        with opener.open(request, timeout=timeout_s) as response:
            return int(response.status), "", None
    except urllib.error.HTTPError as err:
        with err:
            return err.code, _refusal(err, url), _retry_after_s(err.headers.get("Retry-After"))
    except urllib.error.URLError as err:
        return None, _describe(err.reason), None
    except (OSError, http.client.HTTPException) as err:
        return None, _describe(err), None


def _describe(err: object) -> str:
    """Return the reason of a failure without a response; other texts may contain the URL."""
    if isinstance(err, TimeoutError):
        return "no response in time"
    if verification := getattr(err, "verify_message", ""):
        return f"its certificate is invalid: {verification}"
    return (isinstance(err, OSError) and err.strerror) or type(err).__name__


def _refusal(err: urllib.error.HTTPError, url: str) -> str:
    if 300 <= err.code < 400:
        return f"{err.code}: redirects are not followed; use the URL that it redirects to"
    try:
        answer = err.read(_MAX_ANSWER_BYTES).decode("utf-8", errors="replace")
    except Exception:  # noqa: BLE001  the status says enough
        answer = ""
    parts = urlsplit(url)
    for secret in (url, f"{parts.path}?{parts.query}", parts.query, parts.path.strip("/")):
        answer = answer.replace(secret, "***") if secret else answer
    plain = " ".join("".join(c if c.isprintable() else " " for c in answer).split())
    shown = plain[:_SHOWN_CHARACTERS]
    return f"{err.code} {err.reason}{f': {shown}' if shown else ''}"


def _retry_after_s(text: str | None, now: Callable[[], float] = time.time) -> float | None:
    """Return the seconds of a `Retry-After`, which is a number or a date; None without one."""
    if not text:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return max(parsedate_to_datetime(text).timestamp() - now(), FIRST_DELAY_S)
    except (ValueError, TypeError, OverflowError):
        return None
