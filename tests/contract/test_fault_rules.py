"""Rules for faults as Microsoft's SDK meets them: its retries, cut connections and lost answers."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ServiceResponseError
from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import SansIOHTTPPolicy

from batch_emulator.domain.account import Limits
from batch_emulator.domain.fault_rules import parse_rules
from batch_emulator.http.routes.table import OPERATIONS
from batch_emulator.server import Server
from tests import plain_http
from tests.contract.server import (
    ACCOUNT,
    KEY,
    Running,
    Things,
    client_for,
    code_of,
    eventually,
    serving,
    wire,
)

BEARER = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    """Serve without the recorder of other tests, which holds answers back until they are whole."""
    limits = Limits(boot_s=0.05)
    with Server(tmp_path_factory.mktemp("faults"), account=ACCOUNT, key=KEY, limits=limits) as one:
        assert one.emulator is not None
        yield Running(one.url, one.emulator, client_for(one.url))


@pytest.fixture(autouse=True)
def forgotten(running: Running) -> Generator[None]:
    yield
    plain_http.delete(f"{running.url}/_emulator/faults", headers=BEARER)


def load(running: Running, *rules: dict[str, Any], seed: int = 7) -> None:
    body = {"seed": seed, "rules": list(rules)}
    plain_http.put(f"{running.url}/_emulator/faults", json=body, headers=BEARER).raise_for_status()


def hits(running: Running) -> list[int]:
    answer = plain_http.get(f"{running.url}/_emulator/faults", headers=BEARER)
    return [rule["hits"] for rule in answer.json()["value"]]


class Statuses(SansIOHTTPPolicy[Any, Any]):
    """Records the status of each answer, in the place of a hook within the retries."""

    def __init__(self, found: list[int]) -> None:
        self._found = found

    def on_response(
        self, request: PipelineRequest[Any], response: PipelineResponse[Any, Any]
    ) -> None:
        self._found.append(response.http_response.status_code)


def patient(running: Running, **options: Any) -> BatchClient:
    return client_for(running.url, retry_total=5, retry_backoff_factor=0.001, **options)


def create(client: BatchClient, job_id: str) -> None:
    pool = models.BatchPoolInfo(pool_id="none")
    client.create_job(models.BatchJobCreateOptions(id=job_id, pool_info=pool))


def test_retries_of_the_sdk_wait_as_retry_after_says(running: Running) -> None:
    busy = {"code": "TooManyRequests", "status": 429, "retryAfterSeconds": 0, "count": 2}
    load(running, {"operation": "Job_Add", **busy})
    statuses: list[int] = []
    create(patient(running, per_retry_policies=[Statuses(statuses)]), "after-429")
    assert statuses == [429, 429, 201]
    assert hits(running) == [2]


@pytest.mark.parametrize("fault", ["reset", "lostAnswer", "halfAnswer"])
def test_sdk_repeats_a_read_whose_connection_breaks(running: Running, fault: str) -> None:
    load(running, {"operation": "Pool_List", "fault": fault, "count": 2})
    with pytest.raises((ServiceResponseError, HttpResponseError)):
        list(client_for(running.url).list_pools())
    assert isinstance(list(patient(running).list_pools()), list)
    assert hits(running) == [2]


def test_lost_answer_leaves_what_the_request_created(running: Running) -> None:
    load(running, {"operation": "Job_Add", "fault": "lostAnswer", "count": 1})
    client = client_for(running.url)
    with pytest.raises(ServiceResponseError):
        create(client, "answer-lost")
    assert client.get_job("answer-lost").state == "active"


def test_reset_leaves_nothing(running: Running) -> None:
    load(running, {"operation": "Job_Add", "fault": "reset", "count": 1})
    client = client_for(running.url)
    with pytest.raises(ServiceResponseError):
        create(client, "reset")
    assert "reset" not in [job.id for job in client.list_jobs()]


def test_request_that_is_executed_twice_finds_its_own_job(running: Running) -> None:
    load(running, {"operation": "Job_Add", "fault": "twice", "count": 1})
    client = client_for(running.url)
    with pytest.raises(ResourceExistsError) as refused:
        create(client, "twice")
    assert code_of(refused.value) == "JobExists"


def test_file_arrives_by_half(running: Running) -> None:
    things = Things(running.client)
    job = things.job(things.pool(target_dedicated_nodes=1))
    task = things.task(job, "/bin/sh -c 'head -c 300000 /dev/zero'")
    things.wait_task(job, task)
    load(running, {"operation": "File_GetFromTask", "fault": "halfAnswer", "count": 1})
    parts = client_for(running.url).download_task_file(job, task, "stdout.txt")
    with pytest.raises(HttpResponseError, match="150000 bytes read, 150000 more expected"):
        list(parts)


def test_broken_connections_leave_no_errors_in_the_log(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    kinds = ("reset", "lostAnswer", "halfAnswer")
    load(running, *({"operation": "Pool_List", "fault": kind, "count": 3} for kind in kinds))
    with caplog.at_level(logging.WARNING):
        for _ in range(9):
            with pytest.raises((ServiceResponseError, HttpResponseError)):
                list(client_for(running.url).list_pools())
        list(client_for(running.url).list_pools())
    assert hits(running) == [3, 3, 3]
    assert [r.getMessage() for r in caplog.records if r.name.startswith("uvicorn")] == []


@pytest.mark.feature(60)
def test_same_rules_break_the_same_requests_again(running: Running) -> None:
    def outcomes() -> list[bool]:
        load(running, {"operation": "Job_*", "code": "ServerBusy", "rate": 0.5}, seed=3)
        client, found = client_for(running.url), list[bool]()
        for _ in range(20):
            try:
                client.get_job_task_counts("none")
            except HttpResponseError as err:
                found.append(err.status_code == 503)
        return found

    first = outcomes()
    assert 0 < sum(first) < 20
    assert outcomes() == first


@pytest.mark.parametrize(
    "body", [{}, {"rules": []}, {"rules": [{"operation": "Pool_Lst", "code": "ServerBusy"}]}]
)
def test_invalid_rules_are_refused_and_replace_nothing(running: Running, body: Any) -> None:
    load(running, {"operation": "Pool_List", "code": "ServerBusy"})
    answer = plain_http.put(f"{running.url}/_emulator/faults", json=body, headers=BEARER)
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidPropertyValue")
    assert hits(running) == [0]


def test_start_task_of_every_third_node_fails(tmp_path: Path) -> None:
    rule = {"fault": "startTask", "every": 3, "exitCode": 9}
    found = parse_rules({"rules": [rule]}, OPERATIONS)
    with serving(tmp_path, settings={"faults": found}) as running:
        things = Things(running.client)
        start = models.BatchStartTask(command_line="/bin/echo ready", wait_for_success=True)
        pool = things.pool(start_task=start, target_dedicated_nodes=3)
        nodes = things.wait_nodes(pool, 3, "idle", "starttaskfailed")
        [bad] = [node for node in nodes if node.state == "starttaskfailed"]
        assert bad.start_task_info is not None
        assert bad.start_task_info.exit_code == 9
        assert bad.start_task is not None
        assert bad.start_task.command_line == "/bin/echo ready"
        path = "startup/stderr.txt"
        said = b"".join(running.client.download_node_file(pool, str(bad.id), path))
        assert said == b"the rule 'rule-1' fails this start task\n"
        running.client.begin_reboot_node(pool, str(bad.id), wire(nodeRebootOption="requeue"))
        eventually(lambda: running.client.get_node(pool, str(bad.id)).state == "idle")


def test_program_refuses_rules_that_never_match(tmp_path: Path) -> None:
    file = tmp_path / "faults.json"
    file.write_text(json.dumps({"rules": [{"operation": "Task_Ad", "code": "ServerBusy"}]}))
    command = [sys.executable, "-m", "batch_emulator", "--account", "a", "--faults", str(file)]
    command += ["--data-dir", str(tmp_path / "d")]
    environment = {**os.environ, "BATCH_EMULATOR_KEY": KEY}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.splitlines() == [
        f"error: {file}: rule 1: unknown operation 'Task_Ad'",
        "  why: no operation of the service has such a name",
        "  fix: use a name such as Task_Add, or a pattern such as Task_*",
    ]
