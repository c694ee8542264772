"""Proxies of the environment: they cannot reach the loopback of this machine, so it is excluded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

log = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def exclude_loopback(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that exclude this machine from the proxies of an environment.

    Empty if the environment has no proxy.
    """
    proxies = {name for name in environment if name.lower().endswith("_proxy")}
    if not proxies - {"no_proxy", "NO_PROXY"}:
        return {}
    given = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    hosts = [host.strip() for host in given.split(",") if host.strip()]
    excluded = "*" if "*" in hosts else ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost"]))
    return {"no_proxy": excluded, "NO_PROXY": excluded}


def client_options() -> dict[str, Any]:
    """Return options of clients of httpx that use the proxies, except for this machine."""
    return {
        "mounts": dict.fromkeys(f"all://{host}" for host in _LOOPBACK),
        "trust_env": _is_usable(),
    }


def _is_usable() -> bool:
    """Return False, with a warning, if httpx has no client for a proxy, such as one for SOCKS."""
    import httpx  # noqa: PLC0415 - most tasks transfer nothing

    try:
        httpx.Client().close()
    except (ImportError, ValueError) as err:
        log.warning("the proxies of the environment are not used: %s", err)
        return False
    return True
