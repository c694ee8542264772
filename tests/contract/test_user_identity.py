"""The user of a task: an auto user or a user account of the pool, and never both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from azure.batch import BatchClient, models
from azure.core.exceptions import HttpResponseError

from tests.contract.server import POOL, Things, code_of, values_of, wire

AUTO = {"scope": "pool", "elevationLevel": "nonadmin"}
WRONG: list[dict[str, Any]] = [{"username": "worker", "autoUser": AUTO}, {}, {"username": ""}]


def starts(client: BatchClient, pool: str, identity: Any) -> None:
    start = {"commandLine": "/bin/true", "userIdentity": identity}
    accounts = [{"name": "worker", "password": "a secret"}]
    client.create_pool(wire(**POOL, id=pool, startTask=start, userAccounts=accounts))


def adds(client: BatchClient, job: str, identity: Any) -> None:
    client.create_task(job, wire(id="task", commandLine="/bin/true", userIdentity=identity))


def prepares(client: BatchClient, job: str, identity: Any) -> None:
    task = {"commandLine": "/bin/true", "userIdentity": identity}
    client.create_job(wire(id=job, poolInfo={"poolId": "none"}, jobPreparationTask=task))


def manages(client: BatchClient, job: str, identity: Any) -> None:
    task = {"id": "manager", "commandLine": "/bin/true", "userIdentity": identity}
    client.create_job(wire(id=job, poolInfo={"poolId": "none"}, jobManagerTask=task))


@pytest.mark.parametrize("identity", WRONG)
@pytest.mark.parametrize("send", [starts, adds, prepares, manages])
def test_task_with_two_users_or_none_is_refused(
    client: BatchClient,
    things: Things,
    send: Callable[[BatchClient, str, Any], None],
    identity: dict[str, Any],
) -> None:
    where = things.job("none") if send is adds else things.id()
    with pytest.raises(HttpResponseError) as caught:
        send(client, where, identity)
    assert (caught.value.status_code, code_of(caught.value)) == (400, "InvalidPropertyValue")
    assert values_of(caught.value)["PropertyName"].endswith("userIdentity")


def test_start_task_needs_a_user_account_of_its_pool(client: BatchClient, things: Things) -> None:
    starts(client, things.id(), {"username": "worker"})
    with pytest.raises(HttpResponseError) as caught:
        starts(client, things.id(), {"username": "Worker"})
    assert values_of(caught.value)["PropertyName"] == "startTask/userIdentity/username"


def test_task_of_an_unknown_user_fails_on_the_node(client: BatchClient, things: Things) -> None:
    account = models.UserAccount(name="worker", password="a secret")
    pool = things.pool(target_dedicated_nodes=1, user_accounts=[account])
    [node] = things.wait_nodes(pool, 1)
    assert node.id is not None
    client.create_node_user(pool, node.id, models.BatchNodeUserCreateOptions(name="added"))
    job = things.job(pool)
    codes = {
        name: code_at_end(things, job, things.task(job, user_identity={"username": name}))
        for name in ("worker", "added", "nobody")
    }
    assert codes == {"worker": None, "added": None, "nobody": "CommandLaunchFailed"}


def code_at_end(things: Things, job: str, task: str) -> str | None:
    info = things.wait_task(job, task).execution_info
    assert info is not None
    return info.failure_info.code if info.failure_info else None
