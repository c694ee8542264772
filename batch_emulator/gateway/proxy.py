"""The proxy: it ends TLS for Azure's names and passes requests to local services.

`signatures.py` checks the signature of a request, and signs it again for the local service. For a
command, every other host is refused, so that no request for the local services reaches Azure. Tasks
of nodes reach all other hosts, except Azure's hosts of the account.
"""

from __future__ import annotations

import base64
import contextlib
import hmac
import http.client
import json
import secrets
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass
from xml.etree import ElementTree as ET

from batch_emulator.files_share.auth import query_of
from batch_emulator.gateway.authority import Authority
from batch_emulator.gateway.pools import api_version, arm_answer, pool_of
from batch_emulator.gateway.services import LocalServices
from batch_emulator.gateway.sign_in import (
    IDENTITY_PATH,
    MANAGEMENT_HOST,
    SIGN_IN_HOST,
    Json,
    Tokens,
    answer_identity,
    answer_management,
    answer_sign_in,
    arm_error,
    user_key_document,
)
from batch_emulator.gateway.signatures import RefusedError, Signatures, StorageRequest
from batch_emulator.web_pages import reason_to_refuse

_CHUNK_BYTES = 256 * 1024
_TIMEOUT_S = 300.0
_CONNECT_S = 60.0
_TUNNEL_BYTES = 64 * 1024
_POLL_S = 0.05  # the longest time that `close` waits for the server thread
_MAX_SIGN_IN_BYTES = 64 * 1024
_VALID_FOR_COMMANDS = timedelta(days=2)
_VALID_FOR_NODES = timedelta(days=3650)  # an emulator may run for months
_PROXY_USER = "local"
_HOP_HEADERS = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class Gateway(ThreadingHTTPServer):
    """Serves on a free port of loopback, in threads, from `start` to `close`.

    With `for_nodes`, other hosts can be reached, and tokens give access to storage only: a task
    gets no account keys, and rights in Batch only through its authentication token.
    """

    daemon_threads = True
    request_queue_size = 1024  # clients open many connections at once

    def __init__(self, services: LocalServices, *, for_nodes: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), ProxyConnection)
        self.services = services
        self.for_nodes = for_nodes
        self.tokens = Tokens()
        self.authority = Authority(_VALID_FOR_NODES if for_nodes else _VALID_FOR_COMMANDS)
        self._password = secrets.token_urlsafe(32)
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), daemon=True)

    @property
    def url(self) -> str:
        """Return the URL of this server, where the endpoint of the managed identity is."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def proxy_url(self) -> str:
        """Return the URL of the proxy, with a password, because other users can reach the port."""
        return f"http://{_PROXY_USER}:{self._password}@127.0.0.1:{self.server_address[1]}"

    def admits(self, authorization: str) -> bool:
        """Return True if the header Proxy-Authorization has the password."""
        wanted = _proxy_authorization(_PROXY_USER, self._password)["Proxy-Authorization"]
        return hmac.compare_digest(authorization.encode(), wanted.encode())

    def start(self) -> None:
        """Serve in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop. Open connections end with the process."""
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that clients close early."""


class ProxyConnection(BaseHTTPRequestHandler):
    """One connection of the command: CONNECT, then requests over TLS."""

    protocol_version = "HTTP/1.1"
    server: Gateway  # pyright: ignore[reportIncompatibleVariableOverride]
    _host = ""
    _begun = False  # True once the answer to the request has begun

    def is_admitted(self) -> bool:
        """Return True if the connection may use the proxy."""
        return self.server.admits(self.headers.get("Proxy-Authorization", ""))

    def do_CONNECT(self) -> None:
        """Serve a host over TLS if it is one of the local services, else tunnel or refuse."""
        if not self._host and not self.is_admitted():
            self._ask_for_password()
            return
        name, _, port = self.path.rpartition(":")
        host, services = name.strip("[]").rstrip(".").lower(), self.server.services
        is_other = not services.knows(host) and not services.claims(host)
        if self.server.for_nodes and is_other and not self._host and port.isdigit():
            self._tunnel(host, int(port))
            return
        if self._host or not services.knows(host):
            self.send_error(403, "Forbidden", f"{host} is none of the local services")
            return
        self.send_response_only(200, "Connection established")
        self.end_headers()
        try:
            secured = self.server.authority.context(host).wrap_socket(
                self.connection, server_side=True
            )
        except (OSError, ssl.SSLError):  # the client does not know the authority
            self.close_connection = True
            return
        self._host, self.connection = host, secured
        self.rfile = secured.makefile("rb")
        self.wfile = secured.makefile("wb", 0)  # pyright: ignore[reportAttributeAccessIssue]
        self.close_connection = False

    def _ask_for_password(self) -> None:
        """Request the password, which some clients (.NET) send only then."""
        self.close_connection = True
        self.send_response(407)
        self.send_header("Proxy-Authenticate", 'Basic realm="batch-emulator"')
        self.send_header("Content-Length", "0")
        self.send_header("Connection", "close")
        self.end_headers()

    def _tunnel(self, host: str, port: int) -> None:
        """Pass bytes to and from another host until both sides have ended."""
        self.close_connection = True
        try:
            remote = _open_tunnel(host, port)
        except OSError as err:
            self.send_error(502, "Bad Gateway", f"{host} does not answer: {err}")
            return
        with remote:
            self.send_response_only(200, "Connection established")
            self.end_headers()
            _relay(self.connection, remote)

    def finish(self) -> None:
        """Close the connection on both sides."""
        with contextlib.suppress(OSError, ValueError):
            super().finish()
        if self._host:
            self.connection.close()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server names it
        """Log nothing: URLs contain signatures."""

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        if not self._host and (self.command, path) == ("GET", IDENTITY_PATH):
            if reason := reason_to_refuse({n.lower(): v for n, v in self.headers.items()}):
                self.send_error(403, "Forbidden", reason)
                return
            header = self.headers.get("X-IDENTITY-HEADER", "")
            server = self.server
            found = answer_identity(query_of(query), header, server.tokens, any_id=server.for_nodes)
            self._answer(*found)
            return
        if not self._host:
            self.send_error(403, "Forbidden", "this proxy takes HTTPS only")
            return
        self._begun = False
        try:
            if self._host in (SIGN_IN_HOST, MANAGEMENT_HOST):
                self._answer_here()
            else:
                self._pass_on()
        except RefusedError as err:
            self.close_connection = True  # the body was not read
            self._answer(err.status, {"error": {"code": err.code, "message": str(err)}})
        except ValueError as err:  # a malformed URL, such as the source of a copy
            self.close_connection = True
            if self._begun:
                return
            self._answer(400, {"error": {"code": "InvalidUri", "message": str(err)}})
        except (OSError, http.client.HTTPException) as err:
            self.close_connection = True
            if self._begun:
                return
            with contextlib.suppress(OSError):
                message = f"the local service does not answer: {err}"
                self._answer(502, {"error": {"code": "BadGateway", "message": message}})

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_MERGE = _serve  # noqa: N815

    def _answer_here(self) -> None:
        path, tokens = urlsplit(self.path).path, self.server.tokens
        body = b"".join(self._body())
        if self._host == SIGN_IN_HOST:
            self._answer(*answer_sign_in(self.command, path, body, tokens))
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        if not self._signatures().has_token(headers):
            self._answer(
                *arm_error(401, "InvalidAuthenticationToken", "The access token is invalid.")
            )
        elif self.server.for_nodes:
            message = "The identity of a node has no role there."
            self._answer(*arm_error(403, "AuthorizationFailed", message))
        else:
            self._answer(*self._answer_management(path, body))

    def _answer_management(self, path: str, body: bytes) -> tuple[int, Json]:
        account = self.server.services.account
        try:
            wanted = pool_of(self.command, path, account, body)
        except ValueError as err:
            return arm_error(400, "InvalidRequestContent", str(err))
        if wanted is None:
            return answer_management(self.command, path, account)
        return arm_answer(wanted, *self._create_pool(wanted.body))

    def _create_pool(self, body: Json) -> tuple[int, Json]:
        """Create a pool through the Batch service. Return status and body of its answer."""
        asked = query_of(urlsplit(self.path).query).get("api-version", "")
        services, query = self.server.services, f"api-version={api_version(asked)}"
        content = json.dumps(body).encode()
        headers = {
            "content-type": "application/json; odata=minimalmetadata",
            "content-length": str(len(content)),
        }
        self._signatures().sign_for_batch(headers, "POST", ("/pools", query))
        base = urlsplit(services.batch_url)
        connection = http.client.HTTPConnection(base.netloc, timeout=_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.request("POST", f"{base.path}/pools?{query}", content, headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")

    def _answer(
        self, status: int, document: Json | bytes, kind: str = "application/json; charset=utf-8"
    ) -> None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _body(self) -> Iterator[bytes]:
        """Yield the body of the request, which may be chunked."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline(_MAX_SIGN_IN_BYTES).partition(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            while self.rfile.readline(_MAX_SIGN_IN_BYTES).strip():
                pass
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left > 0:
            part = self.rfile.read(min(left, _CHUNK_BYTES))
            if not part:
                raise ConnectionError("the body is cut short")
            left -= len(part)
            yield part

    def _pass_on(self) -> None:
        """Send the request to the local service, and its answer back."""
        services = self.server.services
        base = urlsplit(services.url_of(self._host) or "")
        headers = {
            name.lower(): value
            for name, value in self.headers.items()
            if name.lower() not in (*_HOP_HEADERS, "host", "expect")
        }
        chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        body: Iterable[bytes] = self._body()
        signatures = self._signatures()
        if not base.path:
            self._sign_for_batch(signatures, headers)
        elif self._wants_user_key() and signatures.require_own_token(headers):
            self._answer_user_key(headers)
            return
        else:
            request = StorageRequest(self.command, self.path, headers)
            needs_signature = signatures.needs_signature(request)
            if self.command == "POST" and query_of(request.query).get("comp") == "batch":
                body = [signatures.rewrite_batch(headers, b"".join(body), base.path)]
            signatures.rewrite(request, base.path, needs_signature=needs_signature)
            self.path = request.target
        # A connection for each request: the service may close one that is idle at any time.
        connection = http.client.HTTPConnection(base.netloc, timeout=_TIMEOUT_S)
        with contextlib.closing(connection) as upstream:
            upstream.putrequest(
                self.command, base.path + self.path, skip_host=True, skip_accept_encoding=True
            )
            upstream.putheader("Host", base.netloc)
            for name, value in headers.items():
                upstream.putheader(name, value)
            if chunked:
                upstream.putheader("Transfer-Encoding", "chunked")
            upstream.endheaders()
            for part in body:
                upstream.send(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            if chunked:
                upstream.send(b"0\r\n\r\n")
            self._send_back(upstream.getresponse(), base.scheme + "://" + base.netloc + base.path)

    def _send_back(self, answer: http.client.HTTPResponse, local_url: str) -> None:
        """Pass an answer on, with Azure's host instead of local URLs in headers and documents."""
        kind = answer.headers.get("Content-Type", "")
        local, named = local_url.encode(), f"https://{self._host}".encode()
        # The content of files, which tasks and users wrote, passes unchanged.
        is_document = kind.startswith("application/json;") or "comp=list" in self.path
        body = answer.read().replace(local, named) if is_document else None
        self._begun = True
        self.send_response_only(answer.status, answer.reason)
        for name, value in answer.headers.items():
            if name.lower() not in (*_HOP_HEADERS, "content-length"):
                self.send_header(name, value.replace(local_url, f"https://{self._host}"))
        empty = self.command == "HEAD" or answer.status in (204, 304)
        length = answer.headers.get("Content-Length")
        if body is not None and not empty:
            length = str(len(body))
        if length is not None:
            self.send_header("Content-Length", length)
        elif not empty:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if empty:
            answer.read()
            return
        parts = [body] if body is not None else iter(lambda: answer.read(_CHUNK_BYTES), b"")
        sent = 0
        for part in parts:
            sent += len(part)
            self.wfile.write(part if length else b"%x\r\n%b\r\n" % (len(part), part))
        if length is None:
            self.wfile.write(b"0\r\n\r\n")
        elif sent < int(length):  # the service closed the connection early
            self.close_connection = True

    def _wants_user_key(self) -> bool:
        query = query_of(self.path.partition("?")[2])
        wanted = query.get("restype"), query.get("comp")
        return self.command == "POST" and wanted == ("service", "userdelegationkey")

    def _answer_user_key(self, headers: dict[str, str]) -> None:
        """Answer as Azurite does behind TLS of its own (Get User Delegation Key)."""
        try:
            asked = ET.fromstring(b"".join(self._body()))  # noqa: S314 - expat limits entities
        except ET.ParseError as err:
            raise RefusedError(400, "InvalidXmlDocument", str(err)) from err
        start, expiry = asked.findtext("Start", ""), asked.findtext("Expiry", "")
        version = headers.get("x-ms-version", "")
        document = user_key_document(start, expiry, version, self.server.services.account.seed)
        self._answer(200, document, "application/xml")

    def _signatures(self) -> Signatures:
        return Signatures(self.server.services, self.server.tokens, self._host)

    def _sign_for_batch(self, signatures: Signatures, headers: dict[str, str]) -> None:
        """Replace a token of this gateway by a signature of the account.

        A signature of the client stays, because it does not include the host. The authentication
        token of a task stays, too, because the service knows it.
        """
        if not signatures.has_token(headers):
            return
        if self.server.for_nodes:
            message = "The identity of a node has no role in the Batch account."
            raise RefusedError(403, "AuthorizationFailure", message)
        path, _, query = self.path.partition("?")
        signatures.sign_for_batch(headers, self.command, (path, query))


def _open_tunnel(host: str, port: int) -> socket.socket:
    """Connect to a host, through the proxy of this process if it has one. Raises OSError."""
    proxy = _upstream_proxy()
    if not proxy.hostname or proxy_bypass(host):
        remote = socket.create_connection((host, port), _CONNECT_S)
    elif proxy.scheme != "http":
        raise OSError(f"the emulator's own proxy must have an http:// URL, not {proxy.scheme}://")
    else:
        connection = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=_CONNECT_S)
        connection.set_tunnel(host, port, _proxy_authorization(proxy.username, proxy.password))
        connection.connect()
        remote = connection.sock
    remote.settimeout(None)
    return remote


def _upstream_proxy() -> SplitResult:
    """Return the URL of this process's proxy for HTTPS, empty if it has none."""
    found = getproxies()
    url = found.get("https") or found.get("all", "")
    return urlsplit(url if not url or "://" in url else f"http://{url}")


def _proxy_authorization(user: str | None, password: str | None) -> dict[str, str]:
    """Return the header for a proxy with a password, {} without a user."""
    if user is None:
        return {}
    text = f"{unquote(user)}:{unquote(password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def _relay(client: socket.socket, remote: socket.socket) -> None:
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
