"""The page of `runner ui`: its scripts, its memory, its lists, its lines and 50 open pages.

The peers of the page load their scripts and one list in the same way. They are measured where they
are installed (`pip install optuna-dashboard`, `pip install tensorboard`), and skipped with a word
otherwise.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import importlib.util
import json
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO

import psutil
from azure.storage.blob import BlobServiceClient, ContainerClient

from bench.client.history import result_document, run_document
from bench.report import Ratio, percentile
from bench.services import RUNNER, local_services, storage_connection_string
from bench.training.log_latency import LINES, SCRIPT, latencies
from runner.page.live import MOST_STREAMS
from runner.protocol.results import by_time_blob, index_blob, index_metadata

RUNS = 10_000
OPEN_PAGES = 50
WATCH_S = 20.0
BOUND_LIST_S = 0.5
BOUND_LINE_S = 1.0
BOUND_SCRIPTS_KB = 45.0
BOUND_MEMORY_MB = 120.0
_LINK = re.compile(r"http://\S+/\?token=\S+")
_BOUND = "the bound"  # where no peer has the like


@dataclass(frozen=True, slots=True)
class Page:
    """A running page, what it prints, and the cookie of a session."""

    process: psutil.Process
    host: str
    printed: IO[str]
    cookie: str = ""

    def get(self, path: str) -> tuple[bytes, int]:
        """Return the content of an address, and its size as it was sent."""
        connection = http.client.HTTPConnection(self.host, timeout=120)
        headers = {"Cookie": self.cookie, "Accept-Encoding": "gzip"}
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        sent = answer.read()
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path} was answered with {answer.status}")
        return gzip.decompress(sent) if answer.headers["Content-Encoding"] else sent, len(sent)

    def sign_in(self) -> Page:
        """Return the page in one more browser."""
        link = next(found[0] for line in self.printed if (found := _LINK.search(line)))
        connection = http.client.HTTPConnection(self.host, timeout=120)
        connection.request("GET", link.partition(self.host)[2])
        cookie = connection.getresponse().headers["Set-Cookie"].partition(";")[0]
        return replace(self, cookie=cookie)

    def stream(self, path: str) -> http.client.HTTPResponse:
        """Return an open stream of updates."""
        connection = http.client.HTTPConnection(self.host, timeout=120)
        connection.request("GET", path, headers={"Cookie": self.cookie})
        return connection.getresponse()

    @property
    def memory_mb(self) -> float:
        """The resident memory of the server."""
        return self.process.memory_info().rss / 1e6


def measure() -> Iterator[Ratio]:
    """Yield the figures of the page, each as soon as it is measured."""
    with local_services() as env, open_page(env) as page:
        yield from _scripts(page)
        yield from _lines(env, page)
        yield from _open_pages(env, page)
        yield _memory(page, f"{OPEN_PAGES} pages")
        _fill(env)
        yield _list(page)
        yield _memory(page, f"{RUNS} runs")


@contextlib.contextmanager
def open_page(env: dict[str, str]) -> Generator[Page]:
    """Start `runner ui` and sign in."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    process = subprocess.Popen(
        [RUNNER, "ui", "--no-open", "--port", str(port)],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield Page(psutil.Process(process.pid), f"127.0.0.1:{port}", process.stdout).sign_in()
    finally:
        process.terminate()
        process.wait(30)


def _memory(page: Page, after: str) -> Ratio:
    name = f"memory of the server after {after}"
    return _limited(name, "MB", page.memory_mb, BOUND_MEMORY_MB)


def _limited(name: str, unit: str, ours: float, bound: float) -> Ratio:
    return Ratio(name, unit, ours, _BOUND, bound, f"<= {bound:g} {unit}", ours <= bound)


def _scripts(page: Page) -> Iterator[Ratio]:
    text = page.get("/runs")[0].decode()
    addresses = re.findall(r'src="(/static/[^"]+)"', text)
    ours = sum(page.get(address)[1] for address in addresses) / 1e3
    peers = list(_peer_scripts())
    for name, size in peers or [(_BOUND, BOUND_SCRIPTS_KB)]:
        met = ours <= BOUND_SCRIPTS_KB
        yield Ratio(
            "scripts, compressed", "kB", ours, name, size, f"<= {BOUND_SCRIPTS_KB:g} kB", met
        )


def _peer_scripts() -> Iterator[tuple[str, float]]:
    """Yield the compressed scripts of installed peers, in kB."""
    for name, module, pattern in (
        ("Optuna Dashboard", "optuna_dashboard", "**/*.js"),
        ("TensorBoard", "tensorboard", "webfiles.zip"),
    ):
        found = importlib.util.find_spec(module)
        if found is None or not found.submodule_search_locations:
            print(f"no comparison with {name}: it is not installed", file=sys.stderr, flush=True)
            continue
        folder = Path(next(iter(found.submodule_search_locations)))
        files = sorted(folder.glob(pattern))
        yield name, sum(len(gzip.compress(file.read_bytes(), 6)) for file in files) / 1e3


def _lines(env: dict[str, str], page: Page) -> Iterator[Ratio]:
    """Yield how long a printed line takes to the stream of the page."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        Path(folder, "chatty.py").write_text(SCRIPT)
        script = str(Path(folder, "chatty.py"))
        peer = pool.submit(latencies, ["python3", script], None, folder)
        run_id = _train(env, script)
        seen: list[float] = []
        for line in page.stream(f"/live/runs/{run_id}/log?from=0,0"):
            if found := re.search(rb"at (\d+\.\d+)", line):
                seen.append(time.time() - float(found[1]))
                if len(seen) == LINES:
                    break
        pipe = peer.result()
    for percent, bound, met in (
        (50, "-", None),
        (95, f"<= {BOUND_LINE_S:g} s", percentile(seen, 95) <= BOUND_LINE_S),
    ):
        name = f"line to the page, p{percent}"
        ours, theirs = percentile(seen, percent), percentile(pipe, percent)
        yield Ratio(name, "s", ours, "plain pipe", theirs, bound, met)


def _train(env: dict[str, str], script: str, *words: str) -> str:
    done = subprocess.run(
        [RUNNER, "train", script, "--detach", "-o", "json", *words],
        env=env, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return json.loads(done.stdout)["run_id"]


def _open_pages(env: dict[str, str], page: Page) -> Iterator[Ratio]:
    """Yield processor time and memory of the server while 50 pages show a run that prints."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "chatty.py").write_text(SCRIPT.replace(f"range({LINES})", "range(400)"))
        run_id = _train(env, str(Path(folder, "chatty.py")))
        paths = [f"/live/runs/{run_id}", f"/live/runs/{run_id}/log?from=0,0", "/live/runs"]
        # The windows of one browser would take turns.
        browsers = [page.sign_in() for _ in range(-(-OPEN_PAGES // MOST_STREAMS))]
        streams = [
            browsers[number // MOST_STREAMS].stream(paths[number % 3])
            for number in range(OPEN_PAGES)
        ]
        readers = [threading.Thread(target=_drain, args=(each,), daemon=True) for each in streams]
        for reader in readers:
            reader.start()
        time.sleep(3)
        began, before = time.monotonic(), page.process.cpu_times()
        time.sleep(WATCH_S)
        after, took = page.process.cpu_times(), time.monotonic() - began
        cores = (after.user + after.system - before.user - before.system) / took
        yield _limited(f"{OPEN_PAGES} open pages", "cores", cores, 1.0)
        subprocess.run([RUNNER, "cancel", run_id], env=env, check=True, capture_output=True)


def _drain(stream: http.client.HTTPResponse) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        while stream.read1(65_536):
            pass


def _fill(env: dict[str, str]) -> None:
    """Write the documents of many runs that a list reads."""
    service = BlobServiceClient.from_connection_string(storage_connection_string(env))
    with ThreadPoolExecutor(8) as pool:
        container = service.get_container_client("runs")
        list(pool.map(partial(_make_run, container), range(RUNS)))


def _make_run(container: ContainerClient, number: int) -> None:
    created = datetime.now(UTC) - timedelta(days=30) + timedelta(minutes=number)
    run_id = f"mnist-{created:%Y%m%d-%H%M%S}-{number % 10}abc"
    run, result = run_document(run_id, created), result_document(run_id, created)
    for name, document in (("run.json", run), ("result.json", result)):
        container.upload_blob(f"{run_id}/{name}", json.dumps(document))
    metadata = index_metadata(run, result, None)
    for name in (index_blob(run_id), by_time_blob(run_id)):
        container.upload_blob(name, b"", metadata=metadata)


def _list(page: Page) -> Ratio:
    """Return how long the first rows of the list take, after a pause that ends all reuse."""
    took: list[float] = []
    for _ in range(5):
        time.sleep(2)
        began = time.perf_counter()
        text, _ = page.get("/runs")
        took.append(time.perf_counter() - began)
        if text.count(b'<tr id="row-') < 50:
            raise RuntimeError("the list has too few rows")
    return _limited(f"first rows of {RUNS} runs", "s", sorted(took)[2], BOUND_LIST_S)
