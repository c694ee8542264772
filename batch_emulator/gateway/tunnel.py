"""Tunnels to hosts that are not served here, directly or through the proxy of this process."""

from __future__ import annotations

import base64
import contextlib
import http.client
import socket
import threading
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

_CONNECT_S = 60.0
_TUNNEL_BYTES = 64 * 1024


def open_tunnel(host: str, port: int) -> socket.socket:
    """Connect to a host, through the proxy of this process if it has one. Raises OSError."""
    proxy = _upstream_proxy()
    if not proxy.hostname or proxy_bypass(host):
        remote = socket.create_connection((host, port), _CONNECT_S)
    elif proxy.scheme != "http":
        raise OSError(f"the emulator's own proxy must have an http:// URL, not {proxy.scheme}://")
    else:
        connection = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=_CONNECT_S)
        connection.set_tunnel(host, port, proxy_authorization(proxy.username, proxy.password))
        connection.connect()
        remote = connection.sock
    remote.settimeout(None)
    return remote


def _upstream_proxy() -> SplitResult:
    """Return the URL of this process's proxy for HTTPS, empty if it has none."""
    found = getproxies()
    url = found.get("https") or found.get("all", "")
    return urlsplit(url if not url or "://" in url else f"http://{url}")


def proxy_authorization(user: str | None, password: str | None) -> dict[str, str]:
    """Return the header for a proxy with a password, {} without a user."""
    if user is None:
        return {}
    text = f"{unquote(user)}:{unquote(password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def relay(client: socket.socket, remote: socket.socket) -> None:
    """Pass bytes in both directions until both sides have ended."""
    sending = threading.Thread(target=_pump, args=(client, remote), daemon=True)
    sending.start()
    _pump(remote, client)
    sending.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while part := source.recv(_TUNNEL_BYTES):
            target.sendall(part)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
