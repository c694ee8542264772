"""What the primary makes of what the other nodes say, or do not say."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from runner.node.distributed.cluster import HeartbeatConfig, Hosts
from runner.node.distributed.connection import AgentConnection
from runner.node.distributed.node_group import NodeGroup, NodeGroupTimeouts
from runner.node.distributed.rendezvous import find_primary
from runner.node.failures import NodeLostError, StageFailedError, TerminatedError
from runner.node.script.command import ScriptResult
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog

# For what comes to pass, however slow the machine is; and for what does not.
PATIENT = NodeGroupTimeouts(join_s=60.0, cause_s=60.0, finish_s=60.0, flush_s=0.3)
QUICK = NodeGroupTimeouts(join_s=0.3, cause_s=0.3, finish_s=0.3, flush_s=0.3)
HOSTS = Hosts(("127.0.0.1", "127.0.0.2", "127.0.0.3"), "127.0.0.1", is_primary=True)
Until = Callable[[Callable[[], object]], None]


class Lively(HeartbeatConfig):
    """Says often that it is there, and has patience with the other."""

    @property
    def every_s(self) -> float:
        return 0.05


class Party:
    """A primary, and the links of those that came to it, by rank."""

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
        self.links: dict[int, AgentConnection] = {}

    def come(self, *ranks: int, **said: object) -> None:
        """Nodes arrive, and each says these words."""
        for rank in ranks:
            link = find_primary("127.0.0.1", self.token, within_s=30)
            assert link is not None
            link.send(**{"is": "hello"}, node=f"tvm-{rank}", address=HOSTS.addresses[rank])
            assert (link.receive() or {})["rank"] == rank
            self.links[rank] = link
            if said:
                link.send(**said)

    def assemble(self) -> dict[str, str]:
        """With nodes that are ready as soon as they are asked."""
        self.come(1, 2, **{"is": "prepared", "port": 4000})
        answers = [
            threading.Thread(target=self._answer, args=(one,)) for one in self.links.values()
        ]
        for answer in answers:
            answer.start()
        environment = self.node_group.assemble(None)
        for answer in answers:
            answer.join()
        return environment

    def said(self) -> list[str]:
        lines = (self.queue.peek() or b"").splitlines()
        return [json.loads(line)["message"] for line in lines]

    def _answer(self, link: AgentConnection) -> None:
        assert (link.receive() or {})["order"] == "restore"
        link.send(**{"is": "ready"})
        assert (link.receive() or {})["order"] == "go"

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
    """Its primary waits for nothing long."""
    made = Party(QUICK)
    yield made
    made.node_group.close()


def test_all_start_together_and_the_first_waits_for_the_others_to_end(party: Party) -> None:
    environment = party.assemble()
    assert environment["RUNNER_NODE_IPS"] == "127.0.0.1,127.0.0.2,127.0.0.3"
    for link in party.links.values():
        link.send(**{"is": "ended"})
    party.node_group.settle(ScriptResult(0, timed_out=False))
    assert not party.node_group.failed


def test_node_lost_before_its_outputs_are_kept_fails_no_success_and_is_named(
    party: Party,
) -> None:
    party.assemble()
    for link in party.links.values():
        link.send(**{"is": "ended"})
    party.node_group.settle(ScriptResult(0, timed_out=False))
    party.links[1].send(**{"is": "exported"})
    party.links[2].close()
    ranks = party.node_group.gather(lambda rank: {"prefix": f"rank-{rank}/"}, lambda *_: None)
    assert ranks == [1]
    assert (party.links[1].receive() or {})["prefix"] == "rank-1/"
    assert party.said()[-1] == "outputs of rank 2 on node tvm-2, if it has any, are not kept"


def test_rank_that_serves_for_ever_is_stopped_and_no_failure(hasty: Party) -> None:
    hasty.assemble()
    hasty.links[1].send(**{"is": "ended"})
    hasty.node_group.settle(ScriptResult(0, timed_out=False))
    hasty.node_group.close()
    assert (hasty.links[2].receive() or {})["order"] == "stop"
    assert hasty.said()[-1] == "rank 2 on node tvm-2 still ran 0.3 s after rank 0: stopped"


def test_rank_that_fails_after_the_first_has_ended_fails_the_run(party: Party) -> None:
    party.assemble()
    words = {"step": "command", "code": "CommandFailed", "message": "x", "exit_code": 6}
    party.links[1].send(**{"is": "failed"}, **words)
    with pytest.raises(StageFailedError, match="rank 1 on node tvm-1: x"):
        party.node_group.settle(ScriptResult(0, timed_out=False))
    assert not [text for text in party.said() if "still ran" in text]


def test_node_that_does_not_come_is_named(hasty: Party) -> None:
    hasty.come(1, **{"is": "prepared", "port": 4000})
    with pytest.raises(StageFailedError) as caught:
        hasty.node_group.assemble(None)
    assert caught.value.code == "NodesMissing"
    assert "rank 2 on node 127.0.0.3" in caught.value.message


def test_node_that_vanishes_before_the_start_is_lost(party: Party) -> None:
    party.come(1, 2)
    party.links[2].close()
    with pytest.raises(NodeLostError, match="rank 2 on node tvm-2"):
        party.node_group.assemble(None)


def test_node_that_says_nothing_is_lost_and_told_so_should_it_wake_up(until: Until) -> None:
    party = Party(heartbeat_config=HeartbeatConfig(60.0))
    party.come(1)
    link = party.node_group.workers[1].link
    assert link is not None
    party.node_group.heartbeat_config = HeartbeatConfig(0.3)
    link.set_timeout(0.3)
    party.links[1].send(**{"is": "stage", "text": "its last words"})  # from now on it counts
    until(lambda: party.node_group.failed)
    with pytest.raises(NodeLostError) as caught:
        party.node_group.check_preparing()
    text = "rank 1 on node tvm-1 was lost: nothing was heard of its agent for 0.3 s"
    assert (caught.value.message, caught.value.rank) == (text, 1)
    assert party.said()[-1] == text
    heard: list[object] = []
    while (message := party.links[1].receive()) is not None:
        heard.append(message["order"])
    assert set(heard) <= {"here"}
    party.node_group.close()


def test_primary_says_all_the_time_that_it_is_there() -> None:
    party = Party(heartbeat_config=Lively(60.0))
    party.come(1)
    assert [party.links[1].receive() for _ in range(2)] == [{"order": "here"}] * 2
    party.node_group.close()


def test_nodes_that_do_not_get_ready_in_time_are_named_with_what_they_do(until: Until) -> None:
    party = Party(timeouts=replace(PATIENT, behind_s=0.3))
    party.come(1, **{"is": "prepared", "port": 4000})
    party.come(2, **{"is": "stage", "text": "installing packages"})
    until(lambda: party.node_group.workers[1].port and party.node_group.workers[2].stage)
    with pytest.raises(StageFailedError) as caught:
        party.node_group.assemble(None)
    assert caught.value.code == "NodesLate"
    assert "rank 0 was: rank 2 on node tvm-2 (installing packages)" in caught.value.message
    party.node_group.close()


def test_waiting_for_nodes_fills_no_log() -> None:
    party = Party(timeouts=replace(PATIENT, join_s=1.5))
    party.come(1)
    with pytest.raises(StageFailedError):
        party.node_group.assemble(None)
    assert len([text for text in party.said() if text.startswith("not prepared yet")]) == 1
    party.node_group.close()


def test_preparing_has_an_end_on_the_primary_too(until: Until) -> None:
    party = Party(timeouts=replace(PATIENT, prepare_s=0.05))
    until(lambda: _trouble(party.node_group) == "NodesLate")
    party.node_group.close()
    assert not _trouble(party.node_group), "what follows is not held up by it"


def test_preparing_of_the_primary_ends_when_another_node_fails(party: Party, until: Until) -> None:
    words = {"step": "environment", "code": "EnvironmentFailed", "message": "x", "exit_code": None}
    party.come(1, **{"is": "failed"}, **words)
    until(lambda: party.node_group.failed)
    assert _trouble(party.node_group) == "EnvironmentFailed"


def test_what_happens_while_scripts_run_does_not_end_them_by_raising(
    party: Party, until: Until
) -> None:
    party.assemble()
    party.links[1].close()
    until(lambda: party.node_group.failed)
    assert not _trouble(party.node_group)


def test_cancel_is_heard_while_nodes_prepare(party: Party) -> None:
    party.come(1, 2)
    party.stopped = True
    with pytest.raises(TerminatedError):
        party.node_group.assemble(None)


def test_second_node_of_one_rank_and_one_of_no_rank_are_sent_away(party: Party) -> None:
    party.come(1)
    for address, why in (("127.0.0.2", "rank 1 is there already"), ("10.0.0.9", "none of this")):
        link = find_primary("127.0.0.1", party.token, within_s=30)
        assert link is not None
        link.send(**{"is": "hello"}, node="x", address=address)
        if address == "10.0.0.9":
            link.send(**{"is": "hello"})
        answer = link.receive() or {}
        assert answer["order"] == "leave"
        assert why in answer["why"]


def test_node_that_comes_again_too_early_is_told_to_try_once_more(party: Party) -> None:
    """It met the end of the attempt that had sent it away."""
    party.come(1)
    late = find_primary("127.0.0.1", party.token, within_s=30)
    assert late is not None
    party.node_group.close(again=True)
    late.send(**{"is": "hello"}, node="tvm-2", address="127.0.0.3")
    answer = late.receive() or {}
    assert (answer["order"], answer["again"]) == ("leave", True)
    assert (party.links[1].receive() or {})["again"] is True


@pytest.mark.parametrize("exit_code", [0, 1])
def test_script_that_dies_of_a_lost_node_is_no_failure_of_its_own(
    party: Party, exit_code: int
) -> None:
    """A success stands: what the first rank has written is whole."""
    party.assemble()
    party.links[1].send(**{"is": "ended"})
    party.links[2].close()
    ended = ScriptResult(exit_code, timed_out=False)
    if exit_code:
        with pytest.raises(NodeLostError):
            party.node_group.settle(ended)
    else:
        party.node_group.settle(ended)
        assert party.node_group.failed


def test_script_killed_with_its_node_is_not_what_failed(party: Party, until: Until) -> None:
    party.assemble()
    killed = {"step": "command", "code": "CommandFailed", "message": "signal 9", "exit_code": 137}
    party.links[1].send(**{"is": "failed"}, **killed)
    until(lambda: party.node_group.failed)
    party.links[1].close()
    with pytest.raises(NodeLostError):
        party.node_group.settle(ScriptResult(143, timed_out=False, stopped=True))


def test_first_to_fail_is_named_by_when_it_failed(hasty: Party, until: Until) -> None:
    hasty.assemble()
    before = ScriptResult(1, timed_out=False)
    for rank in (2, 1):
        words = {"step": "command", "code": "CommandFailed", "message": "x", "exit_code": rank}
        hasty.links[rank].send(**{"is": "failed"}, **words)
        until(lambda rank=rank: hasty.node_group.workers[rank].failure)
    hasty.node_group.settle(before)  # the primary's own script came first: the attempt says so
    with pytest.raises(StageFailedError, match="rank 2 on node tvm-2: x") as caught:
        hasty.node_group.settle(ScriptResult(1, timed_out=False))
    assert (caught.value.rank, caught.value.exit_code) == (2, 2)


def test_nonsense_from_a_node_loses_that_node_only(party: Party, until: Until) -> None:
    party.assemble()
    party.links[1].send(**{"is": "prepared", "port": "no number"})
    until(lambda: party.node_group.failed)
    assert "rank 1 on node tvm-1 was lost: its agent said what it should not" in party.said()[-1]
