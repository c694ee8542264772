"""How a worker takes what its primary says, or does not say; and who keeps the worker."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest

from runner.node.agent.context import AgentContext
from runner.node.agent.settings import SettingsError
from runner.node.agent.termination import Termination
from runner.node.distributed import rendezvous as reunion_module
from runner.node.distributed.cluster import HeartbeatConfig, Hosts, load_heartbeat_config
from runner.node.distributed.connection import AgentConnection
from runner.node.distributed.rendezvous import (
    RejoinOutcome,
    RejoinServer,
    RendezvousServer,
    find_primary,
    wait_for_rejoin,
)
from runner.node.distributed.worker import PrimaryConnection
from runner.node.failures import TerminatedError
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog
from tests.processes import alive

Until = Callable[[Callable[[], object]], None]
HOSTS = Hosts(("127.0.0.1", "127.0.0.2", "127.0.0.3"), "127.0.0.1", is_primary=True)
KEPT = """
import os, pathlib, subprocess, sys, time
from runner.node.distributed.join import keep
folder = pathlib.Path(sys.argv[1])
def work():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (folder / f"child-{os.getpid()}").write_text(str(child.pid))
    (folder / str(os.getpid())).touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return 7
sys.exit(keep(work, stopped_s=0.2))
"""


class Lively(HeartbeatConfig):
    """Says often that it is there, and has patience with the other."""

    @property
    def every_s(self) -> float:
        return 0.05


@pytest.fixture(autouse=True)
def knocks_are_fresh_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of a slow machine knock at longer intervals."""
    monkeypatch.setattr(reunion_module, "FRESH_S", 600.0)


@pytest.fixture
def ends(until: Until) -> Iterator[tuple[AgentConnection, AgentConnection]]:
    """A link's two ends: the primary's, the worker's."""
    token, came = secrets.token_hex(16), list[AgentConnection]()
    door = RendezvousServer("127.0.0.1", token, lambda link, _: came.append(link))
    door.start()
    found = find_primary("127.0.0.1", token, within_s=30)
    assert found is not None
    until(lambda: came)
    yield came[0], found
    door.close()
    for link in (came[0], found):
        link.close()


def test_worker_of_a_frozen_primary_ends_its_script(
    ends: tuple[AgentConnection, AgentConnection], until: Until
) -> None:
    termination = Termination(on_first=lambda: None)
    primary = PrimaryConnection(ends[1], termination, HeartbeatConfig(0.3))
    primary.start()
    until(lambda: termination.requested)
    assert primary.is_gone
    assert not primary.again
    with pytest.raises(TerminatedError):
        primary.next_order("go")


def test_worker_says_all_the_time_that_it_is_there(
    ends: tuple[AgentConnection, AgentConnection],
) -> None:
    primary = PrimaryConnection(ends[1], Termination(on_first=lambda: None), Lively(60.0))
    primary.start()
    assert [ends[0].receive() for _ in range(2)] == [{"is": "here"}] * 2
    ends[0].send(order="here")
    ends[0].send(order="go", n=1)
    assert primary.next_order("go")["n"] == 1


def test_silence_that_is_no_number_of_seconds_is_refused() -> None:
    assert load_heartbeat_config({}).every_s == 15.0
    assert load_heartbeat_config({"RUNNER_NODES_SILENCE": "3"}).silence_s == 3.0
    for told in ("soon", "0", "-1", "nan", "inf"):
        with pytest.raises(SettingsError):
            load_heartbeat_config({"RUNNER_NODES_SILENCE": told})


def test_reunion_is_complete_when_every_node_has_knocked(until: Until) -> None:
    token = secrets.token_hex(16)
    with RejoinServer(HOSTS, token) as reunion:
        for address in HOSTS.addresses[1:]:
            assert not reunion.complete
            link = find_primary("127.0.0.1", token, within_s=30)
            assert link is not None
            link.send(**{"is": "hello"}, address=address)
            answer = link.receive() or {}
            assert (answer["order"], answer["again"]) == ("leave", True)
        until(lambda: reunion.complete)


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(KEPT), str(tmp_path)])
    yield process
    process.kill()
    process.wait()
    _end_children(tmp_path)


def _end_children(folder: Path) -> None:
    for path in folder.glob("child-*"):
        with suppress(psutil.NoSuchProcess):
            psutil.Process(int(path.read_text())).kill()


def _workers(folder: Path, count: int) -> list[int]:
    """In the order of their births."""
    found = sorted((path for path in folder.iterdir() if path.name.isdigit()),
                   key=lambda path: path.stat().st_mtime_ns)  # fmt: skip
    return [int(path.name) for path in found] if len(found) == count else []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_worker_that_is_killed_or_stopped_has_a_successor(
    keeper: subprocess.Popen[bytes], tmp_path: Path, until: Until, number: signal.Signals
) -> None:
    until(lambda: _workers(tmp_path, 1))
    first = _workers(tmp_path, 1)[0]
    child = tmp_path / f"child-{first}"
    os.kill(first, number)
    until(lambda: _workers(tmp_path, 2))
    assert not alive(first)
    assert not alive(int(child.read_text())), "it would hold the node's GPUs"
    (tmp_path / "go").touch()
    assert keeper.wait(120) == 7


def test_worker_that_is_stopped_for_a_moment_goes_on(tmp_path: Path, until: Until) -> None:
    script = KEPT.replace("stopped_s=0.2", "stopped_s=600")
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    until(lambda: _workers(tmp_path, 1))
    [worker] = _workers(tmp_path, 1)
    os.kill(worker, signal.SIGSTOP)
    os.kill(worker, signal.SIGCONT)
    (tmp_path / "go").touch()
    assert process.wait(120) == 7
    assert _workers(tmp_path, 1) == [worker]
    _end_children(tmp_path)


def test_worker_that_batch_ends_has_none_and_dies_with_its_keeper(
    keeper: subprocess.Popen[bytes], tmp_path: Path, until: Until
) -> None:
    until(lambda: _workers(tmp_path, 1))
    keeper.send_signal(signal.SIGTERM)
    assert keeper.wait(120) == 137
    assert not alive(_workers(tmp_path, 1)[0])


def test_worker_dies_with_its_keeper(
    keeper: subprocess.Popen[bytes], tmp_path: Path, until: Until
) -> None:
    until(lambda: _workers(tmp_path, 1))
    keeper.kill()
    keeper.wait(120)
    [worker] = _workers(tmp_path, 1)
    until(lambda: not alive(worker))
    assert _workers(tmp_path, 1) == [worker]


def _agent(hosts: Hosts | None, losses: int, token: str = "") -> tuple[AgentContext, Termination]:
    """What `outlive` looks at of it."""
    termination = Termination(on_first=lambda: None)
    made = SimpleNamespace(
        hosts=hosts, nodes_token=token, termination=termination, losses=[1] * losses
    )
    return cast("AgentContext", made), termination


def test_task_that_lost_a_node_waits_for_batch_and_then_for_nothing() -> None:
    agent, termination = _agent(HOSTS, 1, secrets.token_hex(16))
    events = EventLog(LineQueue())
    assert wait_for_rejoin(agent, events, within_s=0.2) is RejoinOutcome.NOTHING
    termination.request()
    assert wait_for_rejoin(agent, events, within_s=60) is RejoinOutcome.TERMINATED


@pytest.mark.parametrize(
    ("losses", "outcome"), [(5, RejoinOutcome.BACK), (6, RejoinOutcome.NOTHING)]
)
def test_nodes_that_come_back_begin_anew_but_not_for_ever(
    losses: int, outcome: RejoinOutcome
) -> None:
    hosts = Hosts(("127.0.0.1", "127.0.0.2"), "127.0.0.1", is_primary=True)
    token = secrets.token_hex(16)
    agent, _ = _agent(hosts, losses, token)

    find_s = 60 if outcome is RejoinOutcome.BACK else 0.5

    def knock() -> None:
        if (link := find_primary("127.0.0.1", token, within_s=find_s)) is not None:
            link.send(**{"is": "hello"}, address="127.0.0.2")
            link.receive()

    knocking = threading.Thread(target=knock)
    knocking.start()
    assert wait_for_rejoin(agent, EventLog(LineQueue()), within_s=find_s) is outcome
    knocking.join()
