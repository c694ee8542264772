"""The page of a sweep of 5,000 trials in a headless Chromium, against Optuna Dashboard.

Both servers have the trials in storage and have shown them once. A sample ends when the browser
shows a picture of the trials and the table, two frames after it was laid out. Needed: Chromium on
PATH and Playwright; the peer is Optuna Dashboard, `pip install optuna-dashboard`.
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
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bench.report import PeerMissingError, Ratio
from bench.services import RUNNER, local_services, storage_connection_string
from runner.protocol.groups import RunGroup, group_blob
from runner.protocol.results import index_blob, index_metadata
from runner.protocol.sweeps import TrialReport

TRIALS = 5000
PARAMS = 8
POINTS = 50  # of each curve
ROUNDS = 5
BOUND_S, BOUND_REQUESTS, BOUND_KB = 0.5, 4, 150
_LINK = re.compile(r"http://\S+/\?token=\S+")
_CREATED = datetime(2026, 11, 1, 8, tzinfo=UTC)
_SHOWN = """() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() =>
  done(performance.now()))))"""


def measure() -> Iterator[Ratio]:
    """Yield the time, the requests and the bytes until 5,000 trials are on screen."""
    if importlib.util.find_spec("playwright") is None or not shutil.which("chromium"):
        raise PeerMissingError("Chromium and Playwright are needed: make .venv/.ready-browser")
    with _browser() as browser:
        with local_services() as env, _page(env) as link:
            ours = _ours(browser, link)
        peer = _peer(browser)
    name = f"page of a sweep of {TRIALS:,} trials on screen"
    said = "Optuna Dashboard" if peer else "the bound"
    theirs = peer or {"s": BOUND_S, "kB": BOUND_KB, "requests": BOUND_REQUESTS}
    shown = ours["s"]
    yield Ratio(name, "s", shown, said, theirs["s"], f"<= {BOUND_S} s", shown <= BOUND_S)
    size = ours["kB"]
    yield Ratio(
        f"{name}, compressed", "kB", size, said, theirs["kB"], "<= 150 kB", size <= BOUND_KB
    )
    count = ours["requests"]
    is_met = count <= BOUND_REQUESTS
    yield Ratio(f"{name}, requests", "", count, said, theirs["requests"], "<= 4", is_met)
    first = ours["first"]
    yield Ratio(f"{name}, first time", "s", first, said, theirs.get("first", first), "none", None)


@contextlib.contextmanager
def _browser() -> Generator[Any]:
    playwright: Any = importlib.import_module("playwright.sync_api")
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        yield browser
        browser.close()


@contextlib.contextmanager
def _page(env: dict[str, str]) -> Generator[str]:
    """Start `runner ui` with a sweep in storage. Yield the link that signs in."""
    storage: Any = importlib.import_module("azure.storage.blob")
    service = storage.BlobServiceClient.from_connection_string(storage_connection_string(env))
    write_sweep(service.get_container_client("runs"), TRIALS, PARAMS)
    process = subprocess.Popen(
        [RUNNER, "ui", "--no-open", "--port", "0"], env=env, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        lines = process.stdout or ()
        yield next(found[0] for line in lines if (found := _LINK.search(line)))
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


def _ours(browser: Any, link: str) -> dict[str, float]:
    address, path = link.partition("/?token=")[0], f"/sweeps/{sweep_id()}"
    context = browser.new_context(base_url=address, viewport={"width": 1280, "height": 800})
    context.new_page().goto(link)
    began = time.perf_counter()
    context.new_page().goto(path)
    first = time.perf_counter() - began
    samples = [_sample(browser, context, path, "#trials tr[data-row]") for _ in range(ROUNDS)]
    return {name: statistics.median(each[name] for each in samples) for name in samples[0]} | {
        "first": first
    }


def _sample(browser: Any, signed_in: Any, path: str, selector: str) -> dict[str, float]:
    """Return seconds, requests and kB of a page in a browser without a cache."""
    state = signed_in.storage_state()
    base = signed_in.pages[0].url.split("/", 3)
    context = browser.new_context(
        base_url="/".join(base[:3]), storage_state=state, viewport={"width": 1280, "height": 800}
    )
    page = context.new_page()
    client = context.new_cdp_session(page)
    client.send("Network.enable")
    received: dict[str, float] = {}

    def count(event: Any) -> None:
        received[event["requestId"]] = event["encodedDataLength"]

    client.on("Network.loadingFinished", count)
    page.goto(path, wait_until="domcontentloaded")
    page.wait_for_selector(selector, timeout=120_000)
    shown_ms = page.evaluate(_SHOWN)
    page.wait_for_timeout(300)
    context.close()
    return {
        "s": shown_ms / 1000,
        "requests": float(len(received)),
        "kB": sum(received.values()) / 1000,
    }


def _peer(browser: Any) -> dict[str, float] | None:
    """Return the same of Optuna Dashboard, or None if it is not installed."""
    if not all(importlib.util.find_spec(each) for each in ("optuna", "optuna_dashboard")):
        return None
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.log"
        _write_study(journal)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-m", "optuna_dashboard", str(journal), "--port", str(port)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            return _dashboard(browser, f"http://127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(30)


def _dashboard(browser: Any, address: str) -> dict[str, float]:
    context = browser.new_context(base_url=address, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    for _ in range(100):
        with contextlib.suppress(Exception):
            page.goto("/dashboard/")
            break
        time.sleep(0.3)
    path, selector = "/dashboard/studies/1", "#plot-history .plotly .scatterlayer .points"
    first = _sample(browser, context, path, selector)["s"]
    return {**_sample(browser, context, path, selector), "first": first}


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


def sweep_id() -> str:
    """Return the ID of the sweep that `write_sweep` writes."""
    return f"net-{_CREATED:%Y%m%d-%H%M%S}-0abc"


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
        curve = tuple((step, value * step / (step + 3)) for step in range(1, POINTS + 1))
        report = TrialReport(each, number, run_id, state, values, curve)
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
