"""The contract scenario of `runner selftest` against emulators that differ on purpose."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path

import pytest
from azure.batch.models import BatchTask
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batch_emulator.domain.account import Limits
from batch_emulator.emulator import Emulator
from batch_emulator.server import Server
from runner.azure.auth.credentials import Connection
from runner.azure.batch.pools import restart_node
from runner.azure.batch.raw import send_raw
from runner.cli.main import main
from runner.contract import StackOutputs
from runner.core.progress import ignore_progress
from runner.features.selftest.contract import Answer, ContractRun, compare
from runner.features.selftest.selftest import await_access
from runner.flows.local.state import LocalState, local_outputs
from runner.protocol.errors import RunnerError
from tests.arm_server import ArmServer
from tests.contract.server import Things, client_for, eventually
from tests.unit.command_lines import commands_in
from tests.unit.infra.cloud import SUBSCRIPTION

# Changed responses of unchanged length, because the length is sent first.
_CHANGED = {b'"PoolExists"': b'"PoolIsHere"', b'"onAllTasksComplete"': b'"onAllTasksFinished"'}


class _Changing(Server):
    """An emulator that answers some requests differently."""

    def application(self, emulator: Emulator) -> ASGIApp:
        app = super().application(emulator)

        async def changed(scope: Scope, receive: Receive, send: Send) -> None:
            async def pass_on(message: Message) -> None:
                for before, after in _CHANGED.items():
                    if before in message.get("body", b""):
                        message["body"] = message["body"].replace(before, after)
                await send(message)

            await app(scope, receive, pass_on)

        return changed


def connection(server: Server) -> Connection:
    port = int(server.url.rpartition(":")[2])
    outputs: StackOutputs = local_outputs(LocalState(port, 0, nodes=1, slots=1))
    return Connection(outputs, {"batch": server.key, "storage": server.key})


def contract_run(server: Server, limit_s: float = 120) -> ContractRun:
    return ContractRun(connection(server), "target", "x", limit_s, ignore_progress)


def answers_of(server: Server) -> list[Answer]:
    run = contract_run(server)
    found = run.answers()
    assert run.clean_up() == []
    return found


@pytest.fixture(scope="module")
def expected() -> Generator[list[Answer]]:
    with Server(account="runnerlocal") as server:
        yield answers_of(server)
        for kind in ("pools", "jobs"):
            left = send_raw(connection(server), "GET", f"/{kind}").body["value"]
            assert [each["id"] for each in left] == []


def test_two_emulators_give_equal_responses_to_the_scenario(expected: list[Answer]) -> None:
    with Server(account="runnerlocal") as server:
        found = compare(answers_of(server), expected)
    assert [(step.step, step.differences) for step in found if step.differences] == []
    assert not [step.step for step in found if step.target.outcome]


def test_changed_code_and_changed_property_are_reported(expected: list[Answer]) -> None:
    with _Changing(account="runnerlocal") as server:
        found = compare(answers_of(server), expected)
    different = {step.step: step.differences for step in found if step.differences}
    assert different["same pool again"] == ("409 PoolIsHere, the emulator 409 PoolExists",)
    assert different["job"] == (
        ".onAllTasksComplete: absent, the emulator string",
        ".onAllTasksFinished: string, the emulator absent",
    )
    assert different.keys() == {
        "same pool again", "job", "job is disabled", "job is completed",
    }  # fmt: skip


@pytest.mark.slow
def test_steps_on_a_missing_node_are_skipped(tmp_path: Path) -> None:
    with Server(tmp_path, account="runnerlocal", limits=Limits(boot_s=3600)) as server:
        run = contract_run(server, limit_s=0.5)
        found = {answer.step: answer for answer in run.answers()}
        assert run.clean_up() == []
    assert found["node is ready"].outcome.startswith("timed out: value.0.state")
    assert found["file"].outcome == "skipped: no answer to 'node is ready'"
    assert found["same job again"].code == "JobExists"


def test_restarted_node_requeues_its_task(tmp_path: Path) -> None:
    with Server(tmp_path, account="runnerlocal") as server:
        things = Things(client_for(server.url, server.key, "runnerlocal"))
        pool = things.pool(target_dedicated_nodes=1)
        [node] = things.wait_nodes(pool, 1, "idle")
        job = things.job(pool)
        task = things.task(job, "/bin/sleep 1000")
        things.wait_task(job, task, "running")
        restart_node(connection(server), pool, str(node.id))
        again = eventually(lambda: requeued(things.client.get_task(job, task)))
        with pytest.raises(RunnerError, match="cannot restart node"):
            restart_node(connection(server), pool, "none")
    assert again.execution_info is not None
    assert again.execution_info.requeue_count == 1


def requeued(task: BatchTask) -> BatchTask | None:
    return task if task.execution_info and task.execution_info.requeue_count else None


def test_cleanup_names_resources_left_on_a_dead_service(tmp_path: Path) -> None:
    with Server(tmp_path, account="runnerlocal") as server:
        run = contract_run(server)
    left = run.clean_up()
    assert [each.command.rpartition("; ")[2] for each in left] == [
        "az batch job delete --job-id selftest-job-x --yes",
        "az batch job delete --job-id selftest-stray-x --yes",
        "az batch pool delete --pool-id selftest-pool-x --yes",
        "az batch pool delete --pool-id selftest-work-x --yes",
    ]


@pytest.mark.slow
@pytest.mark.fix("R-SELFTEST-ACCESS")
def test_denied_access_names_the_checks_of_the_stack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Server() as server:
        keys = {"batch": "b3RoZXI=", "storage": "b3RoZXI="}  # of another account
        others = Connection(connection(server).outputs, keys)
        with pytest.raises(RunnerError) as denied:
            await_access(others, 0, ignore_progress, stack="lab")
    assert denied.value.code == "R-SELFTEST-ACCESS"
    [command] = commands_in(denied.value.fix)
    assert command == "runner check --stack lab"
    (tmp_path / "Pulumi.yaml").write_text("name: runner\nruntime: python\n")
    (tmp_path / "Pulumi.lab.yaml").write_text(_LAB.format(subscription=SUBSCRIPTION))
    monkeypatch.chdir(tmp_path)
    with ArmServer() as arm:
        for name, value in {**arm.environment(), "RUNNER_HOME": str(tmp_path / "home")}.items():
            monkeypatch.setenv(name, value)
        arm.add_size("Standard_NC4as_T4_v3", "standardNCASv3_T4Family", "eastus")
        main([*command.split()[1:], "-o", "json"])
    checks = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    assert checks["permissions"]["state"] == checks["sizes"]["state"] == "ok", checks


_LAB = """\
config:
  azure-native:location: eastus
  azure-native:subscriptionId: {subscription}
  runner:pools: [{{id: t4, vm_size: Standard_NC4as_T4_v3, max_spot: 1}}]
"""
