"""The states of a node group on the primary, by the messages of its workers."""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from runner.node.cluster import HeartbeatConfig, Hosts, node_variables
from runner.node.distributed.connection import AgentConnection
from runner.node.distributed.node_group import NodeGroup, NodeGroupTimeouts
from runner.node.distributed.rendezvous import find_primary
from runner.node.failures import NodeLostError, StageFailedError, TerminatedError
from runner.node.script.command import ScriptResult
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog

# Long timeouts for events that happen, short ones for events that do not.
PATIENT = NodeGroupTimeouts(
    join_s=600.0, cause_s=600.0, finish_s=600.0, flush_s=0.3, partial_s=3600.0
)
QUICK = NodeGroupTimeouts(join_s=0.3, cause_s=0.3, finish_s=0.3, flush_s=0.3)
HOSTS = Hosts(("127.0.0.1", "127.0.0.2", "127.0.0.3"), "127.0.0.1", is_primary=True)
Until = Callable[[Callable[[], object]], None]


class QuickHeartbeat(HeartbeatConfig):
    """A short interval and a long timeout."""

    @property
    def interval_s(self) -> float:
        return 0.05


class Party:
    """A primary, and the connections of its workers by rank."""

    def __init__(
        self, timeouts: NodeGroupTimeouts = PATIENT, heartbeat_config: HeartbeatConfig | None = None
    ) -> None:
        self.token = secrets.token_hex(16)
        self.queue = LineQueue()
        self.stopped = False
        self.node_group = NodeGroup(
            HOSTS, self.token, 1, EventLog(self.queue), self._check,
            timeouts=timeouts, heartbeat_config=heartbeat_config or HeartbeatConfig(),
        )  # fmt: skip
        self.node_group.open()
        self.connections: dict[int, AgentConnection] = {}

    def connect(self, *ranks: int, **message: object) -> None:
        """Connect workers, and send one message from each."""
        for rank in ranks:
            connection = find_primary("127.0.0.1", self.token, within_s=120)
            assert connection is not None
            connection.send(**{"is": "hello"}, node=f"tvm-{rank}", address=HOSTS.addresses[rank])
            assert (connection.receive() or {})["rank"] == rank
            self.connections[rank] = connection
            if message:
                connection.send(**message)

    def assemble(self) -> dict[str, str]:
        """Assemble with workers that are ready at once."""
        self.connect(1, 2, **{"is": "prepared", "port": 4000})
        answers = [
            threading.Thread(target=self._answer, args=(one,)) for one in self.connections.values()
        ]
        for answer in answers:
            answer.start()
        cluster = self.node_group.assemble(None)
        for answer in answers:
            answer.join()
        return node_variables(cluster, 0)

    def messages(self) -> list[str]:
        self.queue.rewind(0)  # else the block of the last call is returned again
        lines = self.queue.peek().splitlines()
        return [json.loads(line)["message"] for line in lines]

    def _answer(self, connection: AgentConnection) -> None:
        assert (connection.receive() or {})["order"] == "restore"
        connection.send(**{"is": "ready"})
        assert (connection.receive() or {})["order"] == "go"

    def _check(self) -> None:
        if self.stopped:
            raise TerminatedError


def _trouble(node_group: NodeGroup) -> str:
    try:
        node_group.check_preparing()
    except StageFailedError as err:
        return err.code
    return ""


@pytest.fixture
def party() -> Iterator[Party]:
    made = Party()
    yield made
    made.node_group.close()


@pytest.fixture
def hasty() -> Iterator[Party]:
    """Yield a party with short timeouts."""
    made = Party(QUICK)
    yield made
    made.node_group.close()


def test_all_start_together_and_primary_awaits_workers(party: Party) -> None:
    environment = party.assemble()
    assert environment["RUNNER_NODE_IPS"] == "127.0.0.1,127.0.0.2,127.0.0.3"
    for connection in party.connections.values():
        connection.send(**{"is": "ended"})
    party.node_group.check_results(ScriptResult(0, timed_out=False))
    assert not party.node_group.failed


def test_failed_run_does_not_wait_for_outputs_of_a_lost_worker(party: Party) -> None:
    party.assemble()

    def go(connection: AgentConnection) -> None:
        order = connection.receive() or {}
        assert (order["order"], order["keep"]) == ("stop", True)
        connection.close()

    workers = [threading.Thread(target=go, args=(one,)) for one in party.connections.values()]
    for worker in workers:
        worker.start()
    began = time.monotonic()
    party.node_group.close(failed=True)
    assert time.monotonic() - began < party.node_group.timeouts.partial_s / 10
    for worker in workers:
        worker.join()


def test_worker_lost_before_export_is_named_not_failed(
    party: Party,
) -> None:
    party.assemble()
    for connection in party.connections.values():
        connection.send(**{"is": "ended"})
    party.node_group.check_results(ScriptResult(0, timed_out=False))
    party.connections[1].send(**{"is": "exported"})
    party.connections[2].close()
    ranks = party.node_group.gather(lambda rank: {"prefix": f"rank-{rank}/"}, lambda *_: None)
    assert ranks == [1]
    assert (party.connections[1].receive() or {})["prefix"] == "rank-1/"
    assert party.messages()[-1] == "outputs of rank 2 on node tvm-2, if any, are not exported"


def test_endless_worker_is_stopped_without_failure(hasty: Party) -> None:
    hasty.assemble()
    hasty.connections[1].send(**{"is": "ended"})
    hasty.node_group.check_results(ScriptResult(0, timed_out=False))
    hasty.node_group.close()
    assert (hasty.connections[2].receive() or {})["order"] == "stop"
    assert hasty.messages()[-1] == "rank 2 on node tvm-2 still ran 0.3 s after rank 0: stopped"


def test_worker_failing_after_the_primary_fails_the_run(party: Party) -> None:
    party.assemble()
    words = {"step": "command", "code": "CommandFailed", "message": "x", "exit_code": 6}
    party.connections[1].send(**{"is": "failed"}, **words)
    with pytest.raises(StageFailedError, match="rank 1 on node tvm-1: x"):
        party.node_group.check_results(ScriptResult(0, timed_out=False))
    assert not [text for text in party.messages() if "still ran" in text]


def test_missing_worker_is_named(hasty: Party) -> None:
    hasty.connect(1, **{"is": "prepared", "port": 4000})
    with pytest.raises(StageFailedError) as caught:
        hasty.node_group.assemble(None)
    assert caught.value.code == "NodesMissing"
    assert "rank 2 on node 127.0.0.3" in caught.value.message


def test_worker_lost_before_the_start_ends_the_attempt(party: Party) -> None:
    party.connect(1, 2)
    party.connections[2].close()
    with pytest.raises(NodeLostError, match="rank 2 on node tvm-2"):
        party.node_group.assemble(None)


def test_silent_worker_is_lost_and_disconnected(until: Until) -> None:
    party = Party(heartbeat_config=HeartbeatConfig(60.0))
    party.connect(1)
    connection = party.node_group.workers[1].connection
    assert connection is not None
    party.node_group.heartbeat_config = HeartbeatConfig(0.3)
    connection.set_timeout(0.3)
    party.connections[1].send(**{"is": "stage", "text": "last"})  # now the timeout counts
    until(lambda: party.node_group.failed)
    with pytest.raises(NodeLostError) as caught:
        party.node_group.check_preparing()
    text = "rank 1 on node tvm-1 was lost: no message from its agent for 0.3 s"
    assert (caught.value.message, caught.value.rank) == (text, 1)
    assert party.messages()[-1] == text
    heard: list[object] = []
    while (message := party.connections[1].receive()) is not None:
        heard.append(message["order"])
    assert set(heard) <= {"here"}
    party.node_group.close()


def test_primary_sends_heartbeats() -> None:
    party = Party(heartbeat_config=QuickHeartbeat(60.0))
    party.connect(1)
    assert [party.connections[1].receive() for _ in range(2)] == [{"order": "here"}] * 2
    party.node_group.close()


def test_late_workers_are_named_with_their_stage(until: Until) -> None:
    party = Party(timeouts=replace(PATIENT, lag_s=0.3))
    party.connect(1, **{"is": "prepared", "port": 4000})
    party.connect(2, **{"is": "stage", "text": "installing packages"})
    until(lambda: party.node_group.workers[1].port and party.node_group.workers[2].stage)
    with pytest.raises(StageFailedError) as caught:
        party.node_group.assemble(None)
    assert caught.value.code == "NodesLate"
    assert "rank 0 was: rank 2 on node tvm-2 (installing packages)" in caught.value.message
    party.node_group.close()


@pytest.mark.slow
def test_waiting_progress_is_throttled() -> None:
    party = Party(timeouts=replace(PATIENT, join_s=1.5))
    party.connect(1)
    with pytest.raises(StageFailedError):
        party.node_group.assemble(None)
    assert len([text for text in party.messages() if text.startswith("not prepared yet")]) == 1
    party.node_group.close()


def test_preparation_has_a_time_limit(until: Until) -> None:
    party = Party(timeouts=replace(PATIENT, prepare_s=0.05))
    until(lambda: _trouble(party.node_group) == "NodesLate")
    party.node_group.close()
    assert not _trouble(party.node_group), "it does not affect later steps"


def test_failed_worker_ends_preparation_of_the_primary(party: Party, until: Until) -> None:
    words = {"step": "environment", "code": "EnvironmentFailed", "message": "x", "exit_code": None}
    party.connect(1, **{"is": "failed"}, **words)
    until(lambda: party.node_group.failed)
    assert _trouble(party.node_group) == "EnvironmentFailed"


def test_lost_worker_does_not_raise_while_scripts_run(party: Party, until: Until) -> None:
    party.assemble()
    party.connections[1].close()
    until(lambda: party.node_group.failed)
    assert not _trouble(party.node_group)


def test_cancel_ends_the_wait_for_workers(party: Party) -> None:
    party.connect(1, 2)
    party.stopped = True
    with pytest.raises(TerminatedError):
        party.node_group.assemble(None)


def test_duplicate_and_unknown_workers_are_rejected(party: Party) -> None:
    party.connect(1)
    for address, why in (("127.0.0.2", "rank 1 has already joined"), ("10.0.0.9", "not a node of")):
        connection = find_primary("127.0.0.1", party.token, within_s=120)
        assert connection is not None
        connection.send(**{"is": "hello"}, node="x", address=address)
        if address == "10.0.0.9":
            connection.send(**{"is": "hello"})
        answer = connection.receive() or {}
        assert answer["order"] == "leave"
        assert why in answer["why"]


def test_worker_connecting_during_close_is_asked_to_retry(party: Party) -> None:
    """The worker comes from an attempt that is still closing."""
    party.connect(1)
    late = find_primary("127.0.0.1", party.token, within_s=120)
    assert late is not None
    party.node_group.close(again=True)
    late.send(**{"is": "hello"}, node="tvm-2", address="127.0.0.3")
    answer = late.receive() or {}
    assert (answer["order"], answer["again"]) == ("leave", True)
    assert (party.connections[1].receive() or {})["again"] is True


@pytest.mark.parametrize("exit_code", [0, 1])
def test_script_failing_by_a_lost_node_counts_as_loss(party: Party, exit_code: int) -> None:
    """Only a success of the primary counts nevertheless, because its outputs are complete."""
    party.assemble()
    party.connections[1].send(**{"is": "ended"})
    party.connections[2].close()
    ended = ScriptResult(exit_code, timed_out=False)
    if exit_code:
        with pytest.raises(NodeLostError):
            party.node_group.check_results(ended)
    else:
        party.node_group.check_results(ended)
        assert party.node_group.failed


def test_loss_detected_after_the_script_failed_counts_as_its_cause(
    party: Party, monkeypatch: pytest.MonkeyPatch
) -> None:
    party.assemble()
    # `check` is called while the primary waits.
    monkeypatch.setattr(party.node_group, "check", party.connections[2].close)
    with pytest.raises(NodeLostError):
        party.node_group.check_results(ScriptResult(1, timed_out=False))


def test_script_killed_with_its_node_counts_as_loss(party: Party, until: Until) -> None:
    party.assemble()
    killed = {"step": "command", "code": "CommandFailed", "message": "signal 9", "exit_code": 137}
    party.connections[1].send(**{"is": "failed"}, **killed)
    until(lambda: party.node_group.failed)
    party.connections[1].close()
    with pytest.raises(NodeLostError):
        party.node_group.check_results(ScriptResult(143, timed_out=False, stopped=True))


def test_command_of_mpirun_starts_on_the_node_that_it_names(party: Party, until: Until) -> None:
    party.assemble()
    assert party.node_group.launch("127.0.0.3", "orted-1", "orted --hnp")
    order = party.connections[2].receive() or {}
    assert (order["order"], order["name"], order["command"]) == ("launch", "orted-1", "orted --hnp")
    ended: list[tuple[str, int]] = []
    party.node_group.report_launched(lambda *end: ended.append(end))
    party.connections[2].send(**{"is": "launched"}, name="orted-1", code=3)
    until(lambda: ended == [("orted-1", 3)])
    assert not party.node_group.launch("127.0.0.9", "orted-2", "orted --hnp")
    party.connections[2].close()
    until(lambda: party.node_group.failed)
    assert not party.node_group.launch("127.0.0.3", "orted-3", "orted --hnp")


def test_earliest_failure_is_named(hasty: Party, until: Until) -> None:
    hasty.assemble()
    before = ScriptResult(1, timed_out=False)
    for rank in (2, 1):
        words = {"step": "command", "code": "CommandFailed", "message": "x", "exit_code": rank}
        hasty.connections[rank].send(**{"is": "failed"}, **words)
        until(lambda rank=rank: hasty.node_group.workers[rank].failure)
    hasty.node_group.check_results(before)  # the primary failed first
    with pytest.raises(StageFailedError, match="rank 2 on node tvm-2: x") as caught:
        hasty.node_group.check_results(ScriptResult(1, timed_out=False))
    assert (caught.value.rank, caught.value.exit_code) == (2, 2)


def test_invalid_message_loses_that_worker_only(party: Party, until: Until) -> None:
    party.assemble()
    party.connections[1].send(**{"is": "prepared", "port": "no number"})
    until(lambda: party.node_group.failed)
    assert "rank 1 on node tvm-1 was lost: its agent sent an invalid" in party.messages()[-1]
