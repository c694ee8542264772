"""Posts to a webhook: which URLs are accepted, what is tried again, and what errors contain."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from runner.protocol.notifying import webhooks
from runner.protocol.notifying.webhooks import WebhookError, check_webhook_url, post_json
from tests.loopback import QuietServer, listening, reusable_ports
from tests.webhook import PATH, Answer, Webhook, serve_webhook

SECRET = "very-secret-part"
UNHURRIED_S = 300.0  # for tests of something else than the limits


@pytest.fixture(autouse=True)
def short_delays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(webhooks, "TRY_S", UNHURRIED_S)


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with serve_webhook() as made:
        yield made


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.slack.com/services/T/B/X",
        "https://default5c07.61.environment.api.powerplatform.com:443/powerautomate/x?sp=%2Fa&sig=_x",
        "http://127.0.0.1:8080/hook",
        "http://localhost/hook",
        "http://[::1]:80/hook",
        "http://10.1.2.3/hook",
        "https://[2001:db8::1]/x",
    ],
)
def test_url_of_a_webhook_is_accepted(url: str) -> None:
    assert refusal_of(url) == ""


def refusal_of(url: str) -> str:
    """Return why a URL is refused, or an empty string."""
    try:
        check_webhook_url(url)
    except ValueError as err:
        return str(err)
    return ""


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.com/hook", "unencrypted"),
        ("http://8.8.8.8/hook", "unencrypted"),
        ("http://169.254.169.254/metadata", "unencrypted"),
        ("http://0.0.0.0/x", "unencrypted"),
        ("http://127.0.0.1.example.com/x", "unencrypted"),
        ("file:///etc/passwd", "its scheme is file"),
        ("ftp://example.com/x", "its scheme is ftp"),
        ("data:text/plain,x", "does not begin with https://"),
        ("hooks.slack.com/services/x", "does not begin with https://"),
        ("https:///x", "no host"),
        ("https://me:pw@example.com/x", "user name or a password"),
        ("https://me@example.com/x", "user name or a password"),
        ("https://example.com/a b", "a space or another character"),
        ("https://example.com/x\nHost: a", "a space or another character"),
        ("https://example.com/\u00e4", "a space or another character"),
        ("https://example.com:99999/x", "cannot be parsed"),
        ("https://[::1/x", "cannot be parsed"),
        ("", "does not begin with https://"),
    ],
)
def test_other_url_is_refused_without_showing_it(url: str, why: str) -> None:
    assert why in refusal_of(url)
    assert not url or url not in refusal_of(url)
    with pytest.raises(WebhookError, match="invalid URL"):
        post_json(url, b"{}")


def test_document_is_posted_as_json(webhook: Webhook) -> None:
    webhook.answers = [Answer(202)]
    assert post_json(webhook.url, b'{"a": 1}', UNHURRIED_S) == 202
    method, path, headers = webhook.requests[0]
    assert (method, path, headers["Content-Type"]) == ("POST", PATH, "application/json")
    assert webhook.bodies == [{"a": 1}]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_temporary_failures_are_tried_again(webhook: Webhook, status: int) -> None:
    webhook.answers = [Answer(status), Answer(status), Answer(200)]
    assert post_json(webhook.url, b"{}", UNHURRIED_S) == 200
    assert len(webhook.bodies) == 3


def test_tries_are_bounded(webhook: Webhook) -> None:
    webhook.answers = [Answer(500, body=b"oops")]
    with pytest.raises(WebhookError, match="500 Internal Server Error: oops"):
        post_json(webhook.url, b"{}", UNHURRIED_S)
    assert len(webhook.bodies) == webhooks.TRIES


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
def test_refusal_is_not_tried_again(webhook: Webhook, status: int) -> None:
    answer = f"no_service {webhook.url} {PATH}".encode()
    webhook.answers = [Answer(status, body=answer)]
    with pytest.raises(WebhookError, match=f"{status} .*: no_service") as caught:
        post_json(webhook.url, b"{}", UNHURRIED_S)
    assert len(webhook.bodies) == 1
    assert SECRET not in str(caught.value)


def test_retry_after_is_awaited(webhook: Webhook) -> None:
    webhook.answers = [Answer(429, {"Retry-After": "1"}), Answer(200)]
    began = time.monotonic()
    assert post_json(webhook.url, b"{}", UNHURRIED_S) == 200
    assert time.monotonic() - began >= 1


def test_retry_after_beyond_the_limit_ends_the_tries(webhook: Webhook) -> None:
    later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    for value in ("3600", later):
        webhook.bodies.clear()
        webhook.answers = [Answer(429, {"Retry-After": value})]
        began = time.monotonic()
        with pytest.raises(WebhookError, match="429"):
            post_json(webhook.url, b"{}", 600)
        assert (len(webhook.bodies), time.monotonic() - began < 300) == (1, True)


@pytest.mark.parametrize("value", ["", "soon", "-1", "9" * 400, "Wed, 99 Foo 2026"])
def test_damaged_retry_after_is_ignored(webhook: Webhook, value: str) -> None:
    webhook.answers = [Answer(503, {"Retry-After": value}), Answer(200)]
    with contextlib.suppress(WebhookError):
        post_json(webhook.url, b"{}", UNHURRIED_S)
    assert webhook.bodies


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(webhook: Webhook, status: int) -> None:
    with serve_webhook() as other:
        webhook.answers = [Answer(status, {"Location": other.url})]
        with pytest.raises(WebhookError, match="redirects are not followed") as caught:
            post_json(webhook.url, b"{}", UNHURRIED_S)
        assert (other.requests, len(webhook.requests)) == ([], 1)
        assert SECRET not in str(caught.value)


def test_silent_webhook_takes_no_longer_than_the_limit(webhook: Webhook) -> None:
    webhook.answers = [Answer(after_s=600)]
    began = time.monotonic()
    with pytest.raises(WebhookError, match="no response"):
        post_json(webhook.url, b"{}", 0.5)
    assert time.monotonic() - began < 120


def test_webhook_that_sends_byte_by_byte_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                for _ in range(6000):
                    connection.sendall(b"H")
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(WebhookError):
            post_json(f"http://127.0.0.1:{server.getsockname()[1]}{PATH}", b"{}", 0.7)
        assert time.monotonic() - began < 120


def test_unreachable_webhook_is_explained_without_its_url() -> None:
    [port] = reusable_ports(1)
    with pytest.raises(WebhookError, match="Connection refused") as caught:
        post_json(f"http://127.0.0.1:{port}{PATH}", b"{}", UNHURRIED_S)
    assert SECRET not in str(caught.value)


@contextlib.contextmanager
def serving_tls(folder: Path) -> Generator[tuple[str, Path, list[bytes]]]:
    """Serve with a certificate that nobody signed. Yield URL, certificate and what arrived."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "webhook")])
    now = datetime.now(UTC)
    own = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(own, critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate = folder / "certificate.pem"
    certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8)
    (folder / "key.pem").write_bytes(key.private_bytes(*form, serialization.NoEncryption()))
    arrived: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            arrived.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:  # type: ignore[override]
            """Print nothing."""

    server = QuietServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, folder / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}{PATH}", certificate, arrived
    server.shutdown()
    server.server_close()
    thread.join()


def test_certificate_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving_tls(tmp_path) as (url, certificate, arrived):
        with pytest.raises(WebhookError, match=r"certificate is invalid: self.signed") as caught:
            post_json(url, b"{}", UNHURRIED_S)
        assert (arrived, SECRET in str(caught.value)) == ([], False)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        assert post_json(url, b"{}", UNHURRIED_S) == 200
        assert arrived == [b"{}"]


def test_proxy_of_the_environment_is_used(
    webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = webhook.url.removesuffix(PATH)
    monkeypatch.setenv("http_proxy", proxy)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    assert post_json(f"http://10.255.255.1{PATH}", b"{}", UNHURRIED_S) == 200
    assert webhook.requests[0][1] == f"http://10.255.255.1{PATH}"
    assert post_json(webhook.url, b"{}", UNHURRIED_S) == 200
    assert webhook.requests[1][1] == PATH


def test_server_of_another_protocol_is_explained() -> None:
    from http.server import BaseHTTPRequestHandler

    class Broken(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.wfile.write(b"not http\r\n")

    with listening(Broken) as url, pytest.raises(WebhookError) as caught:
        post_json(f"{url}{PATH}", b"{}")
    assert SECRET not in str(caught.value)
