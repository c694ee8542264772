"""What the emulator says about itself: its OpenAPI document and its metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from typing import Any

import httpx
import pytest
from azure.core.exceptions import HttpResponseError

from batch_emulator.domain.request_metrics import BOUNDS_S, Durations
from batch_emulator.http.routes.admin import ADMIN_ROUTES
from batch_emulator.http.routes.openapi import openapi_document
from batch_emulator.http.routes.table import ROUTES
from tests import plain_http
from tests.contract.server import KEY, Running, Things, client_for, serving

BEARER = {"Authorization": f"Bearer {KEY}"}
# A line of the text format, as its grammar says.
_LABEL = r'\w+="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"([a-zA-Z_:][\w:]*)((?:\{{{_LABEL}(?:,{_LABEL})*\}})?) ([-+.\deE]+)")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    with serving(tmp_path_factory.mktemp("described")) as found:
        yield found


def ask(running: Running, name: str) -> httpx.Response:
    return plain_http.get(f"{running.url}/_emulator/{name}", headers=BEARER)


def samples(running: Running) -> dict[str, float]:
    """Return the value of each line, by its name and labels."""
    answer = ask(running, "metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found: dict[str, float] = {}
    for line in answer.text.splitlines():
        if line.startswith("#"):
            assert re.fullmatch(r"# (HELP|TYPE) batch_emulator_\w+ .+", line), line
            continue
        match = SAMPLE.fullmatch(line)
        assert match is not None, line
        assert match[1] + match[2] not in found, f"{line} is there twice"
        found[match[1] + match[2]] = float(match[3])
    return found


def references(node: Any) -> Iterator[str]:
    """Yield every $ref of a document."""
    if isinstance(node, dict):
        for key, value in node.items():
            yield from [value] if key == "$ref" else references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


@pytest.mark.feature(60)
def test_openapi_document_has_every_route(running: Running) -> None:
    answer = plain_http.get(f"{running.url}/_emulator/openapi.json")  # without the key
    document = answer.json()
    assert document["servers"] == [{"url": running.url}]
    described = {
        (method.upper(), path) for path, found in document["paths"].items() for method in found
    }
    routes = [(r.method, r.path) for r in (*ROUTES, *ADMIN_ROUTES)]
    assert described == set(routes)
    assert len(described) == len(routes)


def test_openapi_document_is_consistent() -> None:
    document = openapi_document(ADMIN_ROUTES, "http://127.0.0.1")
    for reference in set(references(document)):
        found: Any = document
        for step in reference.removeprefix("#/").split("/"):
            found = found[step]
    names: list[str] = []
    for path, operations in document["paths"].items():
        for operation in operations.values():
            names.append(operation["operationId"])
            given = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
            assert given == re.findall(r"\{(\w+)\}", path)
            asked = [p["name"] for p in operation["parameters"]]
            assert len(asked) == len(set(asked))
    assert len(names) == len(set(names))
    schemas = document["components"]["schemas"]
    assert schemas["TaskAddCollectionParameter"]["properties"]["value"]["maxItems"] == 100
    assert "id" in schemas["PoolAddParameter"]["required"]
    assert schemas["FaultRule"]["properties"]["rate"]["exclusiveMinimum"] is True
    evict = document["paths"]["/_emulator/pools/{poolId}/evict"]["post"]
    assert [p["name"] for p in evict["parameters"]] == ["poolId", "count", "notice", "away"]


def test_openapi_document_is_valid() -> None:
    tool: Any = pytest.importorskip(
        "openapi_spec_validator", reason="pip install openapi-spec-validator"
    )
    document = json.loads(json.dumps(openapi_document(ADMIN_ROUTES, "http://127.0.0.1")))
    assert list(tool.OpenAPIV30SpecValidator(document).iter_errors()) == []


@pytest.mark.feature(60)
def test_metrics_count_requests_tasks_nodes_and_faults(running: Running) -> None:
    things = Things(running.client)
    pool = things.pool(target_dedicated_nodes=2)
    things.wait_nodes(pool, 2)
    job = things.job(pool)
    for line in ("/bin/true", "/bin/false"):
        things.wait_task(job, things.task(job, line))
    rule = {"name": 'say "no"\\', "operation": "Job_Get", "code": "ServerBusy", "count": 1}
    body = {"rules": [rule]}
    plain_http.put(f"{running.url}/_emulator/faults", json=body, headers=BEARER).raise_for_status()
    before = samples(running)
    with pytest.raises(HttpResponseError):
        client_for(running.url).get_job(job)
    client_for(running.url).get_job(job)
    found = samples(running)
    name = "batch_emulator_requests_total"
    added = {key: value - before.get(key, 0) for key, value in found.items() if name in key}
    assert {key: value for key, value in added.items() if value} == {
        f'{name}{{operation="Job_Get",status="503"}}': 1,
        f'{name}{{operation="Job_Get",status="200"}}': 1,
        f'{name}{{operation="GET /_emulator/metrics",status="200"}}': 1,
    }
    tasks = "batch_emulator_tasks"
    assert found[f'{tasks}{{state="completed",result="succeeded"}}'] == 1
    assert found[f'{tasks}{{state="completed",result="failed"}}'] == 1
    assert found['batch_emulator_nodes{state="idle",kind="dedicated"}'] == 2
    assert found['batch_emulator_jobs{state="active"}'] == 1
    hit = r'batch_emulator_fault_hits_total{rule="say \"no\"\\",fault="error"}'
    assert (before[hit], found[hit]) == (0, 1)
    seconds = "batch_emulator_request_seconds"
    assert found[f'{seconds}_bucket{{operation="Job_Get",le="+Inf"}}'] == 2
    assert found[f'{seconds}_count{{operation="Job_Get"}}'] == 2
    assert found[f'{seconds}_sum{{operation="Job_Get"}}'] > 0


def test_metrics_need_the_key(running: Running) -> None:
    assert plain_http.get(f"{running.url}/_emulator/metrics").status_code == 403


def test_metrics_are_read_by_prometheus_itself(running: Running) -> None:
    parser: Any = pytest.importorskip(
        "prometheus_client.parser", reason="pip install prometheus-client"
    )
    families = list(parser.text_string_to_metric_families(ask(running, "metrics").text))
    assert {"batch_emulator_requests", "batch_emulator_tasks"} <= {one.name for one in families}


def test_requests_without_an_operation_do_not_add_names(running: Running) -> None:
    for number in range(5):
        plain_http.get(f"{running.url}/nothing/{number}")
    named = {key.partition(",")[0] for key in samples(running) if "requests_total" in key}
    assert 'batch_emulator_requests_total{operation="none"' in named
    assert not any("nothing" in key for key in named)


def test_duration_at_a_bound_counts_below_it() -> None:
    durations = Durations()
    for seconds in (0.0, BOUNDS_S[0], BOUNDS_S[-1], BOUNDS_S[-1] + 1):
        durations.add(seconds)
    counts = dict(durations.cumulative())
    assert (counts["0.001"], counts["10.0"], counts["+Inf"]) == (2, 3, 4)
