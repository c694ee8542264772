"""Metrics of pools, nodes, the queue, evictions and costs, for Prometheus.

The text format needs no library:
https://prometheus.io/docs/instrumenting/exposition_formats (read 2026-11-23).
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from runner.azure.auth.credentials import Connection, connect
from runner.azure.storage.blobs import in_parallel
from runner.core.settings import Settings
from runner.core.states import RunState
from runner.flows.costs.report import CostQuery, CostReport, report_costs
from runner.flows.devices import load_fresh_sample
from runner.flows.environment.pools import PoolStatus, pool_list
from runner.flows.runs.documents import runs_container
from runner.protocol.devices import DeviceSample
from runner.protocol.errors import RunnerError
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec

logger = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_MOST_MEASURED = 200  # runs whose use is read
_KINDS = {True: "spot", False: "dedicated"}


@dataclass(frozen=True, slots=True)
class Gauge:
    """A metric with its samples: labels and value."""

    name: str
    help: str
    samples: Sequence[tuple[dict[str, str], float]]


def collect(settings: Settings, query: CostQuery) -> list[Gauge]:
    """Return the present metrics of a target. Metrics with an unknown price have no sample.

    Raises:
        RunnerError: the services do not respond.
    """
    settings = settings.for_whole_stack()
    pools = pool_list(settings)
    connection = connect(settings)
    report = report_costs(connection, query, settings.home)
    samples = _present_samples(connection, report, datetime.now(UTC))
    return [*pool_gauges(pools), *run_gauges(report), *device_gauges(samples)]


def _present_samples(
    connection: Connection, report: CostReport, now: datetime
) -> list[tuple[RunSpec, DeviceSample]]:
    """Return the newest sample of the first node of each run that is running."""
    specs = [
        row.spec
        for row in report.history
        if row.spec is not None and row.status and row.status.state is RunState.RUNNING
    ][:_MOST_MEASURED]
    container = runs_container(connection)
    found = in_parallel(
        lambda spec: load_fresh_sample(container, RunPaths(spec.run_id), now), specs
    )
    return [(spec, sample) for spec, sample in zip(specs, found, strict=True) if sample is not None]


def device_gauges(samples: Iterable[tuple[RunSpec, DeviceSample]]) -> list[Gauge]:
    """Return the use of GPU, CPU and memory by running runs."""
    known = [({"run": spec.run_id, "pool": spec.pool}, sample) for spec, sample in samples]
    quantities = (
        ("gpu_percent", "runner_run_gpu_percent", "Mean use of the GPUs of a run."),
        ("script_cores", "runner_run_cpu_cores", "Cores that a run keeps busy."),
        ("script_memory_bytes", "runner_run_memory_bytes", "Memory of a run."),
    )
    return [
        Gauge(
            name,
            help_,
            [(label, value) for label, s in known if (value := getattr(s, key)) is not None],
        )
        for key, name, help_ in quantities
    ]


def pool_gauges(pools: Iterable[PoolStatus]) -> list[Gauge]:
    """Return nodes by state, targets, tasks and the price of pools."""
    nodes: list[tuple[dict[str, str], float]] = []
    targets: list[tuple[dict[str, str], float]] = []
    tasks: list[tuple[dict[str, str], float]] = []
    prices: list[tuple[dict[str, str], float]] = []
    for each in pools:
        pool = each.pool.id
        for spot, kind in _KINDS.items():
            label = {"pool": pool, "kind": kind}
            target = each.pool.spot_target if spot else each.pool.dedicated_target
            targets.append((label, target))
            states = each.states.get(spot, {})
            nodes += [({**label, "state": state}, count) for state, count in states.items()]
        tasks.append(({"pool": pool}, each.running_tasks))
        if each.usd_per_hour is not None:
            prices.append(({"pool": pool}, each.usd_per_hour))
    return [
        Gauge("runner_pool_nodes", "Nodes by state.", nodes),
        Gauge("runner_pool_target_nodes", "Target number of nodes.", targets),
        Gauge("runner_pool_running_tasks", "Running tasks.", tasks),
        Gauge("runner_pool_usd_per_hour", "Present price of the nodes.", prices),
    ]


def run_gauges(report: CostReport) -> list[Gauge]:
    """Return runs by state, evictions, and costs by part, of each pool."""
    states: Counter[tuple[str, str]] = Counter()
    evicted: Counter[str] = Counter()
    for row in report.history:
        if row.spec is None or row.status is None:
            states["", "unreadable"] += 1
            continue
        states[row.spec.pool, row.status.state.value] += 1
        evicted[row.spec.pool] += row.evicted or 0
    seconds = [
        ({"pool": row.name, "part": part}, ms / 1000)
        for row in report.rows
        for part, ms in row.spent.ms.items()
    ]
    costs = [
        ({"pool": row.name, "part": part}, micro / 1e6)
        for row in report.rows
        if row.spent.total_micro is not None
        for part, micro in row.spent.micro.items()
    ]
    unpriced = [({"pool": row.name}, row.spent.unpriced_ms / 1000) for row in report.rows]
    gaps = Counter(gap.cause for gap in report.gaps)
    return [
        Gauge(
            "runner_runs",
            "Runs by state; waiting runs are queued.",
            [({"pool": pool, "state": state}, count) for (pool, state), count in states.items()],
        ),
        Gauge(
            "runner_evicted_attempts",
            "Attempts of runs that an eviction or a lost node ended.",
            [({"pool": pool}, count) for pool, count in evicted.items()],
        ),
        Gauge("runner_node_seconds", "Node time of runs by purpose.", seconds),
        Gauge("runner_cost_usd", "Cost of runs by purpose.", costs),
        Gauge("runner_unpriced_node_seconds", "Node time with an unknown price.", unpriced),
        Gauge(
            "runner_unrecorded",
            "Number of gaps in the recorded node time, by cause.",
            [({"cause": cause}, count) for cause, count in gaps.items()],
        ),
    ]


def render_metrics(gauges: Iterable[Gauge]) -> str:
    """Return the metrics in Prometheus's text format."""
    lines: list[str] = []
    for gauge in gauges:
        lines += [f"# HELP {gauge.name} {gauge.help}", f"# TYPE {gauge.name} gauge"]
        for labels, value in sorted(gauge.samples, key=lambda sample: sorted(sample[0].items())):
            named = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{gauge.name}{f'{{{named}}}' if named else ''} {value:.15g}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsSource:
    """Collects metrics at most once in `every_s` seconds, for any number of scrapes.

    If the services do not respond, the only metric is `runner_up` with 0.
    """

    def __init__(self, load: Callable[[], list[Gauge]], every_s: float) -> None:
        self._load = load
        self._every_s = every_s
        self._lock = threading.Lock()
        self._text = ""
        self._until: float | None = None  # the first scrape collects

    def text(self) -> str:
        """Return the metrics as text."""
        with self._lock:
            if self._until is None or time.monotonic() >= self._until:
                self._text = self._collected()
                self._until = time.monotonic() + self._every_s
            return self._text

    def _collected(self) -> str:
        began = time.monotonic()
        gauges: list[Gauge] = []
        try:
            gauges = self._load()
            is_up = 1.0
        except RunnerError as err:
            logger.warning("%s: %s", err.what, err.why)
            is_up = 0.0
        took = time.monotonic() - began
        status = [
            Gauge("runner_up", "1 if the services responded.", [({}, is_up)]),
            Gauge("runner_collection_seconds", "Time to collect the metrics.", [({}, took)]),
        ]
        return render_metrics([*status, *gauges])


def _reason_to_refuse(headers: Message, own_name: str) -> str | None:
    """Return why a request is refused, or None if it does not come from a web page.

    After DNS rebinding, a page's host has a name that belongs to somebody else, never an address.
    """
    if "Origin" in headers or headers.get("Sec-Fetch-Site", "none") != "none":
        return "requests of web pages are refused"
    given = headers.get("Host", "")
    try:
        name = urlsplit(f"//{given}").hostname or ""
        if name not in ("", "localhost", own_name.lower(), socket.gethostname().lower()):
            ipaddress.ip_address(name)
    except ValueError:  # a name, or an invalid address
        return f"Host '{given[:64]}' is neither an address nor the name of this machine"
    return None


def open_server(host: str, port: int, source: MetricsSource) -> ThreadingHTTPServer:
    """Return a server of `/metrics`; call its `serve_forever`.

    Raises:
        RunnerError: R-MONITOR-PORT, the address cannot be used.
    """

    class _Scrape(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = HTTPStatus.NOT_FOUND, "metrics are at /metrics\n"
            if (reason := _reason_to_refuse(self.headers, host)) is not None:
                status, body = HTTPStatus.FORBIDDEN, f"{reason}\n"
            elif self.path.partition("?")[0] == "/metrics":
                status, body = HTTPStatus.OK, source.text()
            content = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name there
            logger.debug(format, *args)

    try:
        return ThreadingHTTPServer((host, port), _Scrape)
    except (OSError, OverflowError) as err:
        raise RunnerError(
            "R-MONITOR-PORT",
            f"cannot listen on {host} port {port}",
            why=getattr(err, "strerror", None) or str(err),
            fix="use another --port, or --host 127.0.0.1",
        ) from err
