"""`$filter`, `$select` and pages of lists, through the official SDK."""

from datetime import UTC, datetime, timedelta

import pytest
from azure.batch import models
from azure.core.exceptions import HttpResponseError

from tests.contract.emulation import POOL, Emulation


@pytest.fixture(scope="module")
def job_id(emulation: Emulation) -> str:
    """Return a job whose tasks exited with 0, 1 and 2."""
    job_id = emulation.job("filters")
    for code in range(3):
        emulation.run(job_id, f"Exit-{code}", f"/bin/sh -c 'exit {code}'")
    return job_id


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("state eq 'completed'", "012"),
        ("state ne 'COMPLETED'", ""),
        ("executionInfo/exitCode ne 0", "12"),
        ("executionInfo/exitCode ge 1 and executionInfo/exitCode lt 2", "1"),
        ("executionInfo/result eq 'success'", "0"),
        ("startswith(id,'exit-')", "012"),
        ("id eq 'EXIT-2'", "2"),
        ("id gt 'exit-0' and (executionInfo/exitCode eq 2 or state eq 'active')", "2"),
    ],
)
def test_filter_of_tasks(emulation: Emulation, job_id: str, text: str, expected: str) -> None:
    found = emulation.client.list_tasks(job_id, filter=text)
    assert [str(task.id) for task in found] == [f"Exit-{one}" for one in expected]


def test_filter_by_time(emulation: Emulation, job_id: str) -> None:
    hour_ago = datetime.now(UTC) - timedelta(hours=1)
    text = f"creationTime gt DateTime'{hour_ago:%Y-%m-%dT%H:%M:%SZ}'"
    assert len(list(emulation.client.list_tasks(job_id, filter=text))) == 3
    text = text.replace(" gt ", " lt ")
    assert list(emulation.client.list_tasks(job_id, filter=text)) == []


def test_filter_applies_to_every_page(emulation: Emulation, job_id: str) -> None:
    pages = emulation.client.list_tasks(
        job_id, filter="executionInfo/exitCode ne 1", select=["id"], max_results=1
    ).by_page()
    found = [[(task.id, task.state) for task in page] for page in pages]
    assert [page for page in found if page] == [[("Exit-0", None)], [("Exit-2", None)]]


def test_select_limits_properties(emulation: Emulation, job_id: str) -> None:
    [task] = emulation.client.list_tasks(job_id, filter="id eq 'exit-0'", select=["id", "state"])
    assert set(task.as_dict()) == {"id", "state"}
    job = emulation.client.get_job(job_id, select=["id"])
    assert (job.id, job.state) == (job_id, None)


def test_filter_of_jobs_pools_and_nodes(emulation: Emulation, job_id: str) -> None:
    client = emulation.client
    node = emulation.node_id()
    jobs = client.list_jobs(filter=f"startswith(id,'{job_id.upper()}') and state eq 'active'")
    assert [job.id for job in jobs] == [job_id]
    of_pool = client.list_jobs(filter=f"executionInfo/poolId eq '{POOL}' and id eq '{job_id}'")
    assert [job.id for job in of_pool] == [job_id]
    pools = client.list_pools(filter="allocationState eq 'steady' and enableAutoScale eq false")
    assert [pool.id for pool in pools] == [POOL]
    nodes = client.list_nodes(POOL, filter="state eq 'idle' or state eq 'running'")
    assert [one.id for one in nodes] == [node]
    counts = client.list_pool_node_counts(filter=f"poolId eq '{POOL}'")
    assert [one.pool_id for one in counts] == [POOL]
    images = list(client.list_supported_images(filter="osType eq 'linux'"))
    assert images
    assert all(image.os_type == models.OSType.LINUX for image in images)


@pytest.mark.parametrize(
    "text",
    [
        "commandLine eq 'x'",
        "State eq 'active'",
        "state gt 'active'",
        "state eq active",
        "(state eq 'active'",
        "executionInfo/exitCode eq 'zero'",
    ],
)
def test_invalid_filter_is_400(emulation: Emulation, job_id: str, text: str) -> None:
    with pytest.raises(HttpResponseError) as refused:
        list(emulation.client.list_tasks(job_id, filter=text))
    assert refused.value.status_code == 400
    assert refused.value.error is not None
    assert refused.value.error.code == "InvalidQueryParameterValue"
