"""The page of a sweep of 5,000 trials, and of 500 curves, in a headless Chromium.

The peers are Optuna Dashboard and TensorBoard with the same trials (`pip install optuna-dashboard`,
`pip install tensorboard`); one that is not installed is skipped with a word. All servers have the
trials in storage and have shown them once. A sample begins with the request, in a browser without
a cache, and ends two frames after the trials, or the curves, and the table are in the page. Needed:
Chromium on PATH and Playwright.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import math
import os
import random
import re
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.report import PeerMissingError, Ratio
from bench.services import RUNNER, local_services, storage_connection_string
from runner.protocol.groups import RunGroup, group_blob
from runner.protocol.results import index_blob, index_metadata
from runner.protocol.sweeps import TrialReport

TRIALS, CURVES = 5000, 500
PARAMS = 8
POINTS = 50  # of each curve
ROUNDS = 5
BOUND_S, BOUND_REQUESTS, BOUND_KB = 0.5, 4, 150
_START_S = 120.0
_LINK = re.compile(r"http://\S+/\?token=\S+")
_CREATED = datetime(2026, 11, 1, 8, tzinfo=UTC)
_VIEW = {"width": 1280, "height": 800}
_SHOWN = """() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>
  done(performance.now()))))"""


@dataclass(frozen=True, slots=True)
class Site:
    """A server, and the state of a browser that is signed in."""

    address: str
    state: Any = None


@dataclass(frozen=True, slots=True)
class Shown:
    """What a page took: seconds until it was shown, its requests, and what they received."""

    s: float
    requests: float
    kb: float
    first_s: float | None = None


def measure() -> Iterator[Ratio]:
    """Yield time, requests and bytes until 5,000 trials, and 500 curves, are on screen."""
    if importlib.util.find_spec("playwright") is None or not shutil.which("chromium"):
        raise PeerMissingError("Chromium and Playwright are needed: make .venv/.ready-browser")
    with _browser() as browser, local_services() as env, _page(browser, env) as site:
        trials, curves = sweep_id(), sweep_id("curves")
        ours = _show(browser, site, f"/sweeps/{trials}", "#trials tr[data-row]", ROUNDS)
        yield from _ratios(f"{TRIALS:,} trials", ours, "Optuna Dashboard", _optuna(browser))
        ours = _show(
            browser, site, f"/sweeps/{curves}?curves={CURVES}", "#trials .curves path", ROUNDS
        )
        yield from _ratios(f"{CURVES} curves", ours, "TensorBoard", _tensorboard(browser))


def _ratios(subject: str, ours: Shown, peer: str, theirs: Shown | None) -> Iterator[Ratio]:
    if theirs is None:
        print(f"no comparison with {peer}: it is not installed", file=sys.stderr, flush=True)
        peer, theirs = "the bound", Shown(BOUND_S, BOUND_REQUESTS, BOUND_KB)
    for what, unit, own, other, bound in (
        ("on screen", "s", ours.s, theirs.s, BOUND_S),
        ("requests", "", ours.requests, theirs.requests, BOUND_REQUESTS),
        ("compressed", "kB", ours.kb, theirs.kb, BOUND_KB),
    ):
        must_be = f"<= {bound} {unit}".rstrip()
        yield Ratio(f"page of {subject}, {what}", unit, own, peer, other, must_be, own <= bound)
    if ours.first_s is not None and theirs.first_s is not None:
        name = f"page of {subject}, the first time"
        yield Ratio(name, "s", ours.first_s, peer, theirs.first_s, "none", None)


@contextlib.contextmanager
def _browser() -> Generator[Any]:
    playwright: Any = importlib.import_module("playwright.sync_api")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        yield browser
        browser.close()


@contextlib.contextmanager
def _page(browser: Any, env: dict[str, str]) -> Generator[Site]:
    """Start `runner ui` with two sweeps in storage, and sign in."""
    storage: Any = importlib.import_module("azure.storage.blob")
    service = storage.BlobServiceClient.from_connection_string(storage_connection_string(env))
    container = service.get_container_client("runs")
    write_sweep(container, TRIALS, PARAMS)
    write_sweep(container, CURVES, PARAMS, name=sweep_id("curves"))
    process = subprocess.Popen(
        [RUNNER, "ui", "--no-open", "--port", "0"], env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        lines = process.stdout or ()
        link = next(found[0] for line in lines if (found := _LINK.search(line)))
        context = browser.new_context()
        context.new_page().goto(link)
        state = context.storage_state()
        context.close()
        yield Site(link.partition("/?token=")[0], state)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def _show(browser: Any, site: Site, path: str, selector: str, rounds: int) -> Shown:
    """Return the medians of some samples, after a first one."""
    first = _sample(browser, site, path, selector)
    samples = [_sample(browser, site, path, selector) for _ in range(rounds)]
    return Shown(
        statistics.median(each.s for each in samples),
        statistics.median(each.requests for each in samples),
        statistics.median(each.kb for each in samples),
        first.s,
    )


def _sample(browser: Any, site: Site, path: str, selector: str) -> Shown:
    context = browser.new_context(base_url=site.address, storage_state=site.state, viewport=_VIEW)
    page = context.new_page()
    client = context.new_cdp_session(page)
    client.send("Network.enable")
    asked: set[str] = set()
    received: dict[str, float] = {}

    def count(event: Any) -> None:
        if event["request"]["url"].startswith("http"):
            asked.add(event["requestId"])

    def add(event: Any) -> None:
        received[event["requestId"]] = event["encodedDataLength"]

    client.on("Network.requestWillBeSent", count)
    client.on("Network.loadingFinished", add)
    page.goto(path, wait_until="commit")
    page.wait_for_selector(selector, state="attached", timeout=_START_S * 1000)
    shown_ms = page.evaluate(_SHOWN)
    page.wait_for_timeout(300)
    context.close()
    return Shown(shown_ms / 1000, len(asked), sum(received.values()) / 1000)


def _optuna(browser: Any) -> Shown | None:
    """Return the same of Optuna Dashboard, or None if it is not installed."""
    if not all(importlib.util.find_spec(each) for each in ("optuna", "optuna_dashboard")):
        return None
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.log"
        _write_study(journal)
        command = [str(Path(sys.executable).with_name("optuna-dashboard")), str(journal)]
        with _serving(command, "/api/studies") as site:
            selector = "#plot-history .scatterlayer .point"
            return _show(browser, site, "/dashboard/studies/0", selector, 1)


def _tensorboard(browser: Any) -> Shown | None:
    """Return the same of TensorBoard with a run for each curve, or None if it is not installed."""
    if importlib.util.find_spec("tensorboard") is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        _write_events(Path(folder))
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", folder]
        with _serving(command, "/data/runs", CURVES) as site:
            # The table below the picture, which has the curves then.
            selector = "scalar-card tb-data-table-content-row"
            return _show(browser, site, "/#timeseries", selector, ROUNDS)


@contextlib.contextmanager
def _serving(command: list[str], path: str, least: int = 1) -> Generator[Site]:
    """Start the server of a peer, and wait until a list that it answers is long enough."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [*command, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    site = Site(f"http://127.0.0.1:{port}")
    deadline = time.monotonic() + _START_S
    try:
        while _count(site.address + path) < least:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{shlex.join(command)} does not answer")
            time.sleep(0.5)
        yield site
    finally:
        process.terminate()
        process.wait(30)


def _count(address: str) -> int:
    """Return the number of studies or runs that a peer lists; 0 without an answer."""
    with contextlib.suppress(OSError, ValueError):
        with urllib.request.urlopen(address, timeout=60) as answer:
            document: Any = json.load(answer)
        if "study_summaries" in document:
            document = document["study_summaries"]
        return len(document)
    return 0


def _write_events(folder: Path) -> None:
    """Write the curves of the trials as TensorBoard reads them."""
    writers: Any = importlib.import_module("tensorboard.summary.writer.event_file_writer")
    events: Any = importlib.import_module("tensorboard.compat.proto.event_pb2")
    summaries: Any = importlib.import_module("tensorboard.compat.proto.summary_pb2")
    for number in range(CURVES):
        writer = writers.EventFileWriter(str(folder / f"{number:04d}"))
        for step, value in curve_of(score(draw(number, PARAMS))):
            entry = summaries.Summary.Value(tag="accuracy", simple_value=value)
            summary = summaries.Summary(value=[entry])
            writer.add_event(events.Event(wall_time=step, step=step, summary=summary))
        writer.close()


def _write_study(journal: Path) -> None:
    optuna: Any = importlib.import_module("optuna")
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    storage = optuna.storages.JournalStorage(backend)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(storage=storage, study_name="bench", direction="maximize")
    uniform = optuna.distributions.FloatDistribution(0.0, 1.0)
    trials: list[Any] = []
    for number in range(TRIALS):
        params = {name: value for name, value in draw(number, PARAMS).items() if name != "opt"}
        trials.append(
            optuna.trial.create_trial(
                params={name: min(float(value), 1.0) for name, value in params.items()},
                distributions=dict.fromkeys(params, uniform),
                value=score(draw(number, PARAMS)),
            )
        )
    study.add_trials(trials)


def sweep_id(name: str = "net") -> str:
    """Return the ID of a sweep that `write_sweep` writes."""
    return f"{name}-{_CREATED:%Y%m%d-%H%M%S}-0abc"


def curve_of(value: float) -> tuple[tuple[int, float], ...]:
    """Return the steps and values of a trial that ends with about this value."""
    return tuple((step, value * step / (step + 3)) for step in range(1, POINTS + 1))


def draw(number: int, params: int) -> dict[str, Any]:
    """Return the parameters of a trial."""
    chance = random.Random(number)
    found: dict[str, Any] = {
        "lr": float(f"{10 ** chance.uniform(-5, -1):.6g}"),
        "opt": chance.choice(["adam", "sgd", "rmsprop"]),
    }
    for each in range(2, params):
        found[f"p{each:02d}"] = round(chance.random(), 4)
    return found


def score(params: dict[str, Any]) -> float:
    """Return the value of a trial."""
    chance = random.Random(repr(params))
    value = 1 - abs(math.log10(params["lr"]) + 3) / 5 - 0.2 * params.get("p02", 0.0)
    return round(value + chance.gauss(0, 0.03), 5)


def write_sweep(container: Any, trials: int, params: int, *, name: str = "") -> str:
    """Write a sweep of ended trials, as client and agents do. Return its ID.

    Every 50th trial has failed, every 20th was stopped early, and every 33rd measured NaN.
    """
    group_id = name or sweep_id()
    width = len(str(trials))
    names = [f"{number:0{width}d}" for number in range(1, trials + 1)]
    stem, stamp = group_id[:-21], group_id[-20:]
    runs = {each: f"{stem}-{each}-{stamp}" for each in names}
    drawn = {each: draw(number, params) for number, each in enumerate(names)}
    group = RunGroup(
        group_id, "net", _CREATED, group_id, "local", runs, dict.fromkeys(names, ()), trials=drawn
    )

    def write(number: int) -> None:
        each = names[number]
        values, run_id = drawn[each], runs[each]
        value = math.nan if number % 33 == 32 else score(values)
        run = _run(run_id, group_id, each, number, values)
        result = _result(run_id, number, value)
        state = "failed" if number % 50 == 49 else "succeeded"
        report = TrialReport(each, number, run_id, state, values, curve_of(value))
        metadata = index_metadata(run, result)
        container.upload_blob(index_blob(run_id), b"", metadata=metadata, overwrite=True)
        blob = report.blob(group_id)
        container.upload_blob(blob, b"", metadata=report.to_metadata(), overwrite=True)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(trials)))
    container.upload_blob(group_blob(group_id), json.dumps(group.to_json()), overwrite=True)
    return group_id


def _run(
    run_id: str, group_id: str, name: str, number: int, params: dict[str, Any]
) -> dict[str, Any]:
    return {
        "format": 1,
        "run_id": run_id,
        "experiment": "net",
        "created": _CREATED.isoformat(),
        "recipe": {"name": "net", "description": "", "source": "folder"},
        "command": ["python", "train.py"],
        "params": params,
        "group": group_id,
        "trial": {"name": name, "number": number, "params": params,
                  "metric": "accuracy", "goal": "max"},
        "metrics": {"patterns": {}, "primary": "accuracy", "goal": "max"},
        "batch": {"account": "local", "pool": "local", "vm_size": "local", "spot": True,
                  "job_id": group_id, "task_id": run_id},
    }  # fmt: skip


def _result(run_id: str, number: int, value: float) -> dict[str, Any]:
    started = _CREATED + timedelta(seconds=37 * number)
    has_failed, is_stopped = number % 50 == 49, number % 20 == 19
    found: dict[str, Any] = {
        "format": 1,
        "run_id": run_id,
        "status": "failed" if has_failed else "succeeded",
        "attempt": 1,
        "evicted": 0,
        "exit_code": 1 if has_failed else 0,
        "started": started.isoformat(),
        "ended": (started + timedelta(seconds=60 + number % 90)).isoformat(),
        "metrics": {} if has_failed else {"accuracy": value if math.isfinite(value) else "NaN"},
        "output": "output/",
        "outputs": [],
    }
    if has_failed:
        found["message"] = "python train.py exited with code 1"
    elif is_stopped:
        found |= {"code": "StoppedEarly", "message": "worse than the median"}
    return found
