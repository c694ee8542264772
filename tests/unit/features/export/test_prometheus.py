"""Metrics for Prometheus: the text format, and an endpoint that never repeats old values."""

from __future__ import annotations

import re
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.features.export.prometheus import (
    CONTENT_TYPE,
    Gauge,
    MetricsSource,
    open_server,
    render_metrics,
    run_gauges,
)
from runner.protocol.errors import RunnerError
from tests.unit.flows.costs.test_costs import Records

# A line of the format, as its grammar says.
_LABEL = r'\w+="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"^[a-zA-Z_:][\w:]*(\{{{_LABEL}(,{_LABEL})*\}})? [-+.\deE]+$")


@given(st.dictionaries(st.sampled_from(["pool", "state"]), st.text()), st.floats(-1e12, 1e12))
def test_every_sample_has_the_exposition_format(labels: dict[str, str], value: float) -> None:
    text = render_metrics([Gauge("runner_x", "Help.", [(labels, value)])])
    first, second, sample, rest = text.split("\n")
    assert (first, second, rest) == ("# HELP runner_x Help.", "# TYPE runner_x gauge", "")
    assert SAMPLE.match(sample), sample
    assert float(sample.rpartition(" ")[2]) == pytest.approx(value)


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Records:
    return Records(monkeypatch, tmp_path, is_marked=True)


def test_costs_and_states_are_metrics_and_unknown_prices_are_not(records: Records) -> None:
    records.add(1)
    known = render_metrics(run_gauges(records.report(by="pool")))
    assert 'runner_runs{pool="t4",state="succeeded"} 1\n' in known
    assert 'runner_node_seconds{pool="t4",part="useful"} 1800\n' in known
    assert 'runner_cost_usd{pool="t4",part="useful"} 0.18095\n' in known
    assert 'runner_unrecorded{cause="end"} 1\n' in known
    unknown = render_metrics(run_gauges(records.report(by="pool", region="chinaeast2")))
    assert "runner_cost_usd{" not in unknown
    assert 'runner_unpriced_node_seconds{pool="t4"} 2160\n' in unknown


@pytest.mark.feature(57)
def test_endpoint_answers_prometheus_while_services_are_down() -> None:
    answers = [[Gauge("runner_pool_nodes", "Nodes.", [({"pool": "t4"}, 2.0)])], None]

    def load() -> list[Gauge]:
        found = answers.pop(0)
        if found is None:
            raise RunnerError("R-LOCAL-DOWN", "no answer", why="refused", fix="runner local up")
        return found

    with open_server("127.0.0.1", 0, MetricsSource(load, every_s=0)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        try:
            with urllib.request.urlopen(f"{address}/metrics") as answer:
                up = answer.read().decode()
                assert answer.headers["Content-Type"] == CONTENT_TYPE
            with urllib.request.urlopen(f"{address}/metrics") as answer:
                down = answer.read().decode()
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{address}/")
        finally:
            server.shutdown()
            thread.join()
    assert "runner_up 1\n" in up
    assert 'runner_pool_nodes{pool="t4"} 2\n' in up
    assert "runner_up 0\n" in down
    assert "runner_pool_nodes" not in down


def test_scrapes_within_the_interval_query_the_services_once() -> None:
    asked: list[int] = []

    def load() -> list[Gauge]:
        asked.append(1)
        return []

    source = MetricsSource(load, every_s=60)
    assert source.text() == source.text()
    assert len(asked) == 1


def test_a_port_in_use_is_named() -> None:
    source = MetricsSource(list, every_s=60)
    with open_server("127.0.0.1", 0, source) as server:
        with pytest.raises(RunnerError, match="cannot listen") as caught:
            open_server("127.0.0.1", server.server_port, source)
        assert caught.value.code == "R-MONITOR-PORT"
