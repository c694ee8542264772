"""Refuse requests of web pages: these ports run commands."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def reason_to_refuse(headers: Mapping[str, str], *, any_host: bool = False) -> str | None:
    """Return why a request is refused, or None if it does not come from a web page.

    With `any_host`, for ports that other machines reach, all hosts are accepted: the names of this
    machine are not known.

    A browser sends Origin, or the name of the page's host as Host after DNS rebinding. For images,
    scripts and links it sends neither, but Sec-Fetch-Site, which is `none` for a typed address
    (https://www.w3.org/TR/fetch-metadata, read 2026-11-28).
    """
    if "origin" in headers or headers.get("sec-fetch-site", "none") != "none":
        return "requests of web pages are refused"
    if any_host:
        return None
    given = headers.get("host", "")
    try:
        host = urlsplit(f"//{given}").hostname or ""
    except ValueError:  # unbalanced brackets, or an invalid address
        host = given
    if host not in ("", "localhost") and not _is_loopback(host):
        return f"Host '{host[:64]}' is not a loopback address"
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
