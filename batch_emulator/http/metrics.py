"""The metrics of an emulator as Prometheus reads them: text format 0.0.4.

Source of the format: "Exposition formats", prometheus.io/docs (read 2026-11-29).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from batch_emulator import __version__
from batch_emulator.domain.model import JobState, NodeState
from batch_emulator.domain.request_metrics import RequestMetrics
from batch_emulator.emulator import Emulator

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_Sample = tuple[Mapping[str, str], float]


def metrics_text(emulator: Emulator, now: datetime) -> str:
    """Return all metrics. The work grows with pools, nodes and jobs, not with tasks."""
    account, requests = emulator.account, emulator.requests
    families = [
        _family("info", "gauge", "The version of the emulator and its account.",
                [({"version": __version__, "account": emulator.settings.account}, 1)]),
        _family("uptime_seconds", "gauge", "Seconds of the emulator's clock since its start.",
                [({}, (now - emulator.started).total_seconds())]),
        _family("requests_total", "counter", "Answers by operation and status.",
                [({"operation": operation, "status": status}, count)
                 for (operation, status), count in requests.statuses.items()]),
        _durations(requests),
        _family("pools", "gauge", "Pools.", [({}, len(account.pools))]),
        _family("nodes", "gauge", "Nodes by state and kind.", _nodes(emulator)),
        _family("jobs", "gauge", "Jobs by state.", _jobs(emulator)),
        _family("tasks", "gauge", "Tasks by state; of completed ones by result.",
                _tasks(emulator)),
        _family("fault_matches_total", "counter", "Requests and machines that a rule matched.",
                [({"rule": one.rule.name, "fault": one.rule.kind.value}, one.matched)
                 for one in account.faults.rules]),
        _family("fault_hits_total", "counter", "Requests and machines that a rule hit.",
                [({"rule": one.rule.name, "fault": one.rule.kind.value}, one.hits)
                 for one in account.faults.rules]),
    ]  # fmt: skip
    return "".join(f"{line}\n" for family in families for line in family)


def _family(name: str, kind: str, text: str, samples: Iterable[_Sample]) -> Iterator[str]:
    full = f"batch_emulator_{name}"
    yield f"# HELP {full} {text}"
    yield f"# TYPE {full} {kind}"
    for labels, value in samples:
        yield f"{full}{_labels(labels)} {value!r}"


def _labels(labels: Mapping[str, str]) -> str:
    shown = (f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return "{" + ",".join(shown) + "}" if labels else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _durations(requests: RequestMetrics) -> Iterator[str]:
    name = "batch_emulator_request_seconds"
    yield f"# HELP {name} Seconds from a request to its answer, delays of rules included."
    yield f"# TYPE {name} histogram"
    for operation, durations in requests.durations.items():
        labels = {"operation": operation}
        count = 0
        for bound, count in durations.cumulative():
            yield f"{name}_bucket{_labels({**labels, 'le': bound})} {count}"
        yield f"{name}_sum{_labels(labels)} {durations.total_s!r}"
        yield f"{name}_count{_labels(labels)} {count}"


def _nodes(emulator: Emulator) -> Iterator[_Sample]:
    pools = emulator.account.pools.values()
    counts = Counter((node.state, node.dedicated) for pool in pools for node in pool.nodes.values())
    for state in NodeState:
        for dedicated, kind in ((True, "dedicated"), (False, "spot")):
            yield {"state": state.value, "kind": kind}, counts[(state, dedicated)]


def _jobs(emulator: Emulator) -> Iterator[_Sample]:
    counts = Counter(job.state for job in emulator.account.jobs.values())
    for state in JobState:
        yield {"state": state.value}, counts[state]


def _tasks(emulator: Emulator) -> Iterator[_Sample]:
    jobs = emulator.account.jobs.values()
    for state in ("active", "running"):
        yield {"state": state, "result": ""}, sum(getattr(job.tasks, state) for job in jobs)
    for result in ("succeeded", "failed"):
        found = sum(getattr(job.tasks, result) for job in jobs)
        yield {"state": "completed", "result": result}, found
