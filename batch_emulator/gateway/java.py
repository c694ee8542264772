"""What a Java program needs to use a gateway: a port without a password, and a trust store.

A Java VM reads neither HTTPS_PROXY nor SSL_CERT_FILE, and no property of it names the password of a
proxy. So there is a port that takes connections of this user's processes only, which could read the
password in the environment of the command as well. `JAVA_TOOL_OPTIONS` reaches every VM that the
command starts, in scripts such as `nextflow`, too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
from cryptography.hazmat.primitives.serialization.pkcs12 import (
    PKCS12Certificate,
    serialize_java_truststore,
)

from batch_emulator.gateway.proxy import Gateway, ProxyConnection

_OPTIONS = "JAVA_TOOL_OPTIONS"
_STRONGER = ("JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")  # their options win over those in _OPTIONS
_POLL_S = 0.05
_STORE_PASSWORD = "changeit"  # noqa: S105 - Java's own; the certificates are public
_LOOPBACK = f"{int.from_bytes(socket.inet_aton('127.0.0.1'), sys.byteorder):08X}"


class _OwnUserConnection(ProxyConnection):
    """One connection of a process of this user."""

    def is_admitted(self) -> bool:
        """Return True, because the port has verified the user."""
        return True


class OwnUserPort(ThreadingHTTPServer):
    """Another port of a gateway, for processes of this user without a password. Linux only."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(("127.0.0.1", 0), _OwnUserConnection)
        self._gateway = gateway
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), daemon=True)

    @property
    def port(self) -> int:
        """Return the number of the port."""
        return int(self.server_address[1])

    def __enter__(self) -> OwnUserPort:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()
        self.server_close()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002 - inherited
        """Close connections of other users before they are read."""
        return user_of(client_address[1], self.port) == os.geteuid()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection as the gateway does."""
        _OwnUserConnection(request, client_address, self._gateway)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore connections that clients close early."""


def user_of(client_port: int, port: int) -> int | None:
    """Return the user whose process has connected to a port of 127.0.0.1, None if unknown.

    Source: proc_pid_net(5): addresses are in the byte order of the machine, and sockets for IPv6
    have IPv4 addresses at the end of their own.
    """
    ends = (f"{_LOOPBACK}:{client_port:04X}", f"{_LOOPBACK}:{port:04X}")
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]):
                    return int(fields[7])
    return None


def trust_store(bundle: bytes) -> bytes:
    """Return the certificates of a PEM bundle as a trust store of Java (PKCS #12)."""
    found = [
        PKCS12Certificate(one, f"authority-{number}".encode())
        for number, one in enumerate(_certificates(bundle))
    ]
    return serialize_java_truststore(found, BestAvailableEncryption(_STORE_PASSWORD.encode()))


def _certificates(bundle: bytes) -> Iterator[x509.Certificate]:
    """Yield the certificates that `cryptography` can read, as Java skips others."""
    mark = b"-----BEGIN CERTIFICATE-----"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # serial numbers of old authorities
        for text in bundle.split(mark)[1:]:
            with contextlib.suppress(ValueError):
                yield x509.load_pem_x509_certificate(mark + text)


def java_variables(port: int, store: Path, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a command; the options in them follow those that the caller has.

    The properties of a proxy that the caller has could bypass the gateway for Azure's names.
    """
    properties = {
        "https.proxyHost": "127.0.0.1",
        "https.proxyPort": str(port),
        "http.nonProxyHosts": "127.0.0.1|localhost",
        "javax.net.ssl.trustStore": str(store),
        "javax.net.ssl.trustStoreType": "PKCS12",
        "javax.net.ssl.trustStorePassword": _STORE_PASSWORD,
    }
    options = (f"-D{name}={value}" for name, value in properties.items())
    quoted = (f'"{one}"' if set(one) & set(" \t'") else one for one in options)
    ours = " ".join(quoted)
    names = [_OPTIONS, *(name for name in _STRONGER if name in inherited)]
    return {name: f"{inherited.get(name, '')} {ours}".strip() for name in names}
