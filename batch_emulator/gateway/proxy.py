"""The proxy: it ends TLS for Azure's names and passes requests to local services.

The proxy checks the signature of a request, and signs the request again for the local service,
whose paths begin with the account. For a command, every other host is refused, so that no request
for the local services reaches Azure. Tasks of nodes reach all other hosts, except Azure's hosts of
the account.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import re
import secrets
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass
from xml.etree import ElementTree as ET

from batch_emulator.executor.blob_sas import read_signature
from batch_emulator.files_share.auth import SignedRequest, query_of, strings_to_sign
from batch_emulator.gateway.authority import DOMAINS, Authority
from batch_emulator.gateway.pools import api_version, arm_answer, pool_of
from batch_emulator.gateway.sign_in import (
    IDENTITY_PATH,
    MANAGEMENT_HOST,
    SIGN_IN_HOST,
    Json,
    NamedAccounts,
    Tokens,
    answer_identity,
    answer_management,
    answer_sign_in,
    arm_error,
    user_key_document,
)
from batch_emulator.http.auth import signature_of
from batch_emulator.web_pages import reason_to_refuse

_CHUNK_BYTES = 256 * 1024
_TIMEOUT_S = 300.0
_POLL_S = 0.05  # the longest time that `close` waits for the server thread
_CONNECT_S = 60.0
_TUNNEL_BYTES = 64 * 1024
_MAX_SIGN_IN_BYTES = 64 * 1024
_VALID_FOR_COMMANDS = timedelta(days=2)
_VALID_FOR_NODES = timedelta(days=3650)  # an emulator may run for months
_COPY_LIMIT = timedelta(hours=1)  # validity of the SAS for a copy source that came with a token
_PROXY_USER = "local"
# Audiences without a final slash. Storage also accepts the audience of a single account
# (https://learn.microsoft.com/azure/storage/common/storage-auth-aad-msi, read 2026-11-23).
_BATCH_AUDIENCES = frozenset({"https://batch.core.windows.net"})
_STORAGE_AUDIENCE = "https://storage.azure.com"
_MANAGEMENT_AUDIENCES = frozenset(
    {f"https://{MANAGEMENT_HOST}", "https://management.core.windows.net"}
)
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


@dataclass(frozen=True, slots=True)
class LocalServices:
    """The local services behind Azure's host names; the paths of storage URLs are the account."""

    account: NamedAccounts
    batch_url: str
    blob_url: str
    file_url: str

    def batch_pattern(self) -> re.Pattern[str]:
        """Return the pattern of the host of the Batch account, in any region."""
        return re.compile(rf"{re.escape(self.account.name)}\.[a-z0-9]+\.batch\.azure\.com")

    def url_of(self, host: str) -> str | None:
        """Return the URL of the local service behind a host of Batch or Storage, or None."""
        if self.batch_pattern().fullmatch(host):
            return self.batch_url
        storage = {"blob": self.blob_url, "file": self.file_url}
        for service, url in storage.items():
            if host == self.account.storage_host(service):
                return url
        return None

    def knows(self, host: str) -> bool:
        """Return True if the host is served."""
        return host in (SIGN_IN_HOST, MANAGEMENT_HOST) or self.url_of(host) is not None

    def claims(self, host: str) -> bool:
        """Return True if the host is one of the account on Azure, served here or not."""
        name, _, domain = host.partition(".")
        own = (self.account.name, f"{self.account.name}-secondary")
        return name in own and any(domain.endswith(end) for end in DOMAINS)

    def audiences(self, host: str) -> frozenset[str]:
        """Return the audiences of the tokens that a host of Azure accepts."""
        if host == MANAGEMENT_HOST:
            return _MANAGEMENT_AUDIENCES
        if self.batch_pattern().fullmatch(host):
            return _BATCH_AUDIENCES
        return frozenset({_STORAGE_AUDIENCE, f"https://{host}"})


class Gateway(ThreadingHTTPServer):
    """Serves on a free port of loopback, in threads, from `start` to `close`.

    With `for_nodes`, other hosts can be reached, and tokens give access to storage only: a task
    gets no account keys, and rights in Batch only through its authentication token.
    """

    daemon_threads = True
    request_queue_size = 1024  # clients open many connections at once

    def __init__(self, services: LocalServices, *, for_nodes: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
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
        wanted = _authorization(_PROXY_USER, self._password)["Proxy-Authorization"]
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


@dataclass(slots=True)
class _Request:
    """A request for Storage; header names are lower-case, and the target is as sent."""

    method: str
    target: str
    headers: dict[str, str]

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def query(self) -> str:
        return self.target.partition("?")[2]


class _RefusedError(Exception):
    """The request is answered here, as the service refuses it."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class _Handler(BaseHTTPRequestHandler):
    """One connection of the command: CONNECT, then requests over TLS."""

    protocol_version = "HTTP/1.1"
    server: Gateway  # pyright: ignore[reportIncompatibleVariableOverride]
    _host = ""
    _begun = False  # True once the answer to the request has begun

    def do_CONNECT(self) -> None:
        """Serve a host over TLS if it is one of the local services, else tunnel or refuse."""
        if not self._host and not self.server.admits(self.headers.get("Proxy-Authorization", "")):
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
        except _RefusedError as err:
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
        if not self._has_token(headers, others=True):
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
        self._sign_as_account(headers, "POST", "/pools", query)
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
        if not base.path:
            self._sign_for_batch(headers)
        elif self._wants_user_key() and self._has_token(headers):
            self._answer_user_key(headers)
            return
        else:
            request = _Request(self.command, self.path, headers)
            needs_signature = self._needs_signature(request)
            if self.command == "POST" and query_of(request.query).get("comp") == "batch":
                body = [self._rewrite_batch(headers, base.path)]
            self._rewrite(request, base.path, needs_signature=needs_signature)
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
            raise _RefusedError(400, "InvalidXmlDocument", str(err)) from err
        start, expiry = asked.findtext("Start", ""), asked.findtext("Expiry", "")
        version = headers.get("x-ms-version", "")
        document = user_key_document(start, expiry, version, self.server.services.account.seed)
        self._answer(200, document, "application/xml")

    def _has_token(self, headers: dict[str, str], *, others: bool = False) -> bool:
        """Return True if the request has a valid token of this gateway, False if it has no token.

        Args:
            headers: those of the request, with lower-case names.
            others: return False for any other token, instead of raising _RefusedError.
        """
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        audiences = self.server.services.audiences(self._host)
        if self.server.tokens.is_valid(token.strip(), audiences):
            return True
        if others:
            return False
        raise _RefusedError(401, "InvalidAuthenticationInfo", "The access token is invalid.")

    def _sign_for_batch(self, headers: dict[str, str]) -> None:
        """Replace a token of this gateway by a signature of the account.

        A signature of the client stays, because it does not include the host. The authentication
        token of a task stays, too, because the service knows it.
        """
        if not self._has_token(headers, others=True):
            return
        if self.server.for_nodes:
            message = "The identity of a node has no role in the Batch account."
            raise _RefusedError(403, "AuthorizationFailure", message)
        path, _, query = self.path.partition("?")
        self._sign_as_account(headers, self.command, path, query)

    def _sign_as_account(self, headers: dict[str, str], method: str, path: str, query: str) -> None:
        headers["ocp-date"] = format_datetime(datetime.now(UTC), usegmt=True)
        account = self.server.services.account
        signed = signature_of(method, (path, query), headers, account.name, account.batch_key)
        headers["authorization"] = f"SharedKey {account.name}:{signed}"

    def _needs_signature(self, request: _Request) -> bool:
        """Return True if the request has to be signed for the local service.

        This is so for a valid shared key or token, which are checked. A SAS does not include the
        host, so the local service checks it. Raises _RefusedError.
        """
        account = self.server.services.account
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "sharedkey":
            return self._has_token(request.headers)
        name, _, signature = given.strip().partition(":")
        known = [_sign(text, account.storage_key) for text in self._texts(request, "")]
        if name != account.name or not any(
            hmac.compare_digest(one.encode(), signature.encode()) for one in known
        ):
            message = "The MAC signature found in the HTTP request is not the same."
            raise _RefusedError(403, "AuthenticationFailed", message)
        return True

    def _rewrite(self, request: _Request, prefix: str, *, needs_signature: bool) -> None:
        """Rewrite headers and target for the local service, except the prefix of its paths."""
        account, headers = self.server.services.account, request.headers
        if not needs_signature:
            self._rewrite_copy_source(headers)
            headers["x-forwarded-proto"] = "https"  # our Azure Files then accepts a SAS for HTTPS
            known = account.without_protocol(request.path, request.query)
            request.target = f"{request.path}?{known}" if known else request.path
            return
        if not headers.get("authorization", "").lower().startswith("sharedkey"):
            headers["x-ms-date"] = format_datetime(datetime.now(UTC), usegmt=True)
        self._rewrite_copy_source(headers)
        text = self._texts(request, prefix)[0]
        headers["authorization"] = f"SharedKey {account.name}:{_sign(text, account.storage_key)}"

    def _texts(self, request: _Request, prefix: str) -> list[str]:
        client = str(self.client_address[0])
        signed = SignedRequest(
            request.method, prefix + request.path, request.query, request.headers, client
        )
        return strings_to_sign(signed, self.server.services.account.name)

    def _rewrite_batch(self, headers: dict[str, str], prefix: str) -> bytes:
        """Return the body of a Blob Batch, whose requests are signed, for the local service.

        Source: https://learn.microsoft.com/rest/api/storageservices/blob-batch, read 2026-11-28.
        """
        _, _, boundary = headers.get("content-type", "").partition("boundary=")
        mark = b"--" + boundary.strip().encode()
        first, *parts = b"".join(self._body()).split(mark)
        body = mark.join([first, *(self._rewrite_part(part, prefix) for part in parts)])
        if "content-length" in headers:
            headers["content-length"] = str(len(body))
        return body

    def _rewrite_part(self, part: bytes, prefix: str) -> bytes:
        """Return a part of a batch for the local service, unchanged if it is invalid."""
        try:
            about, content, rest = part.split(b"\r\n\r\n", 2)
            line, *lines = content.decode("latin-1").split("\r\n")
            method, target, version = line.split(" ")
            pairs = [each.partition(":") for each in lines]
            request = _Request(method, target, {n.lower(): v.strip() for n, _, v in pairs})
            with contextlib.suppress(_RefusedError):
                self._rewrite(request, prefix, needs_signature=self._needs_signature(request))
        except ValueError:
            return part
        lines = [f"{name}: {value}" for name, value in request.headers.items()]
        written = "\r\n".join([f"{method} {prefix}{request.target} {version}", *lines])
        return b"\r\n\r\n".join([about, written.encode("latin-1"), rest])

    def _rewrite_copy_source(self, headers: dict[str, str]) -> None:
        """Replace the source of a copy by its local URL, with a SAS if it came with a token."""
        source = headers.get("x-ms-copy-source", "")
        split = urlsplit(source)
        local = self.server.services.url_of(split.hostname or "")
        if not source or local is None:
            return
        account = self.server.services.account
        query = account.without_protocol(split.path, split.query)
        scheme, _, token = headers.pop("x-ms-copy-source-authorization", "").partition(" ")
        if scheme:
            audiences = self.server.services.audiences(split.hostname or "")
            if scheme.lower() != "bearer" or not self.server.tokens.is_valid(
                token.strip(), audiences
            ):
                message = "The token of the copy source is invalid."
                raise _RefusedError(401, "CannotVerifyCopySource", message)
            expiry = f"{datetime.now(UTC) + _COPY_LIMIT:%Y-%m-%dT%H:%M:%SZ}"
            signature = read_signature(split.path, expiry, account.name, account.storage_key)
            query = f"{query}&{signature}" if query else signature
        headers["x-ms-copy-source"] = f"{local}{split.path}{'?' if query else ''}{query}"


def _sign(text: str, key: str) -> str:
    digest = hmac.digest(base64.b64decode(key), text.encode(), hashlib.sha256)
    return base64.b64encode(digest).decode()


def _open_tunnel(host: str, port: int) -> socket.socket:
    """Connect to a host, through the proxy of this process if it has one. Raises OSError."""
    proxy = _upstream_proxy()
    if not proxy.hostname or proxy_bypass(host):
        remote = socket.create_connection((host, port), _CONNECT_S)
    elif proxy.scheme != "http":
        raise OSError(f"the emulator's own proxy must have an http:// URL, not {proxy.scheme}://")
    else:
        connection = http.client.HTTPConnection(proxy.hostname, proxy.port, timeout=_CONNECT_S)
        connection.set_tunnel(host, port, _authorization(proxy.username, proxy.password))
        connection.connect()
        remote = connection.sock
    remote.settimeout(None)
    return remote


def _upstream_proxy() -> SplitResult:
    """Return the URL of this process's proxy for HTTPS, empty if it has none."""
    found = getproxies()
    url = found.get("https") or found.get("all", "")
    return urlsplit(url if not url or "://" in url else f"http://{url}")


def _authorization(user: str | None, password: str | None) -> dict[str, str]:
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
