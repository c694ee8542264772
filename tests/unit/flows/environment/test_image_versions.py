"""Versions of an image go before their definition, from a Resource Manager over HTTP."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from runner.azure.arm.client import ArmClient
from runner.flows.environment import images
from runner.flows.environment.images import delete_versions, find_versions
from runner.protocol.errors import RunnerError
from tests.arm_server import SUBSCRIPTION, ArmServer, resource_id

GROUP = "rg-runner-dev"
DEFINITION = resource_id(GROUP, "Microsoft.Compute/galleries/runner_dev/images/runner-gpu")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[ArmServer]:
    monkeypatch.setattr(images, "DELETE_POLL_S", 0.001)
    with ArmServer() as running:
        running.state.resources[DEFINITION] = {"name": "runner-gpu"}
        running.state.page_size = 2
        for number in range(3):
            name = f"1.0.{number}"
            running.state.resources[f"{DEFINITION}/versions/{name}"] = {"name": name}
        yield running


@pytest.fixture
def management(server: ArmServer) -> ArmClient:
    return ArmClient(SUBSCRIPTION, endpoint=server.url, credential=server.credential)


def deletes(server: ArmServer) -> list[str]:
    return [path for method, path, _ in server.state.requests if method == "DELETE"]


def test_every_version_is_deleted_once_and_waited_for(
    server: ArmServer, management: ArmClient
) -> None:
    looks: list[list[str]] = []

    def accept(path: str, body: Any) -> tuple[int, dict[str, Any], dict[str, str]]:
        return 202, {}, {}

    def see(left: Any) -> None:
        looks.append(list(left))
        if len(looks) > 1:  # each deletion takes a while in Azure
            server.state.resources.pop(f"{DEFINITION}/versions/{left[0]}")

    server.handle("DELETE", "/versions/", accept)
    delete_versions(management, DEFINITION, see)
    names = ["1.0.0", "1.0.1", "1.0.2"]
    assert looks == [names, names, names[1:], names[2:]]
    assert deletes(server) == [f"{DEFINITION}/versions/{name}" for name in names]


def test_missing_definition_has_no_versions(server: ArmServer, management: ArmClient) -> None:
    server.state.resources.clear()
    assert find_versions(management, DEFINITION) == []
    delete_versions(management, DEFINITION, lambda _: None)
    assert deletes(server) == []


def test_refused_deletion_stops_with_the_reason(server: ArmServer, management: ArmClient) -> None:
    server.refuse("/versions/1.0.0", 403, "AuthorizationFailed")
    with pytest.raises(RunnerError, match="lacks a permission"):
        delete_versions(management, DEFINITION, lambda _: None)
    assert len(deletes(server)) == 1


def test_deletion_that_takes_too_long_goes_on_with_the_same_command(
    server: ArmServer, management: ArmClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_DELETE_TIMEOUT_S", 0)
    server.handle("DELETE", "/versions/", lambda path, body: (202, {}, {}))
    with pytest.raises(RunnerError) as caught:
        delete_versions(management, DEFINITION, lambda _: None)
    assert caught.value.code == "R-IMAGE-DELETE"
    assert caught.value.fix.startswith("run the same command again")  # `runner up` or `down`
    for version in find_versions(management, DEFINITION):  # Azure has finished
        server.state.resources.pop(f"{DEFINITION}/versions/{version}")
    delete_versions(management, DEFINITION, lambda _: None)
    assert find_versions(management, DEFINITION) == []
