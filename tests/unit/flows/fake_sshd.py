"""An SSH server up to the end of the key exchange (RFC 4253, RFC 8731), with a host key of choice.

A real `ssh` verifies its signature and its host key, and sends NEWKEYS only if it accepts them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import socket
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

_VERSION = b"SSH-2.0-fake"
_KEXINIT, _NEWKEYS, _ECDH_INIT, _ECDH_REPLY = 20, 21, 30, 31
_LISTS = (
    b"curve25519-sha256", b"ssh-ed25519", b"aes128-ctr", b"aes128-ctr", b"hmac-sha2-256",
    b"hmac-sha2-256", b"none", b"none", b"", b"",
)  # fmt: skip


def _string(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _raw(key: Ed25519PrivateKey | X25519PrivateKey) -> bytes:
    public = key.public_key()
    return public.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


@dataclass
class FakeSshd:
    """A server; `accepted` has True for each connection that trusted the key, else False."""

    port: int = 0
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    accepted: list[bool] = field(default_factory=list[bool])

    @property
    def public(self) -> str:
        """The host key, as in a `.pub` file."""
        return f"ssh-ed25519 {base64.b64encode(self.blob).decode()}"

    @property
    def blob(self) -> bytes:
        return _string(b"ssh-ed25519") + _string(_raw(self.key))

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb") as stream, suppress(OSError, struct.error):
            stream.write(_VERSION + b"\r\n")
            stream.flush()
            client = stream.readline().rstrip(b"\r\n")
            ours = bytes([_KEXINIT]) + bytes(16) + b"".join(map(_string, _LISTS)) + bytes(5)
            self._send(stream, ours)
            theirs = self._read(stream)
            received = self._read(stream)
            assert (theirs[0], received[0]) == (_KEXINIT, _ECDH_INIT)
            own, q_c = X25519PrivateKey.generate(), received[5:]
            shared = own.exchange(X25519PublicKey.from_public_bytes(q_c)).lstrip(b"\0")
            secret = (b"\0" if shared[0] & 0x80 else b"") + shared
            parts = (client, _VERSION, theirs, ours, self.blob, q_c, _raw(own), secret)
            signature = self.key.sign(hashlib.sha256(b"".join(map(_string, parts))).digest())
            signed = _string(b"ssh-ed25519") + _string(signature)
            answer = (self.blob, _raw(own), signed)
            self._send(stream, bytes([_ECDH_REPLY]) + b"".join(map(_string, answer)))
            self._send(stream, bytes([_NEWKEYS]))
            try:
                self.accepted.append(self._read(stream)[0] == _NEWKEYS)
            except (OSError, struct.error, IndexError):
                self.accepted.append(False)

    def _send(self, stream: io.BufferedRWPair, payload: bytes) -> None:
        padding = 8 - (len(payload) + 5) % 8 + 8
        head = struct.pack(">IB", len(payload) + padding + 1, padding)
        stream.write(head + payload + bytes(padding))
        stream.flush()

    def _read(self, stream: io.BufferedRWPair) -> bytes:
        size, padding = struct.unpack(">IB", stream.read(5))
        return stream.read(size - 1)[: size - 1 - padding]


@contextmanager
def serve_fake_sshd() -> Generator[FakeSshd]:
    """Yield a server on a free port of 127.0.0.1."""
    server = FakeSshd()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]

        def accept() -> None:
            with suppress(OSError):
                while True:
                    server.serve(listener.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield server
