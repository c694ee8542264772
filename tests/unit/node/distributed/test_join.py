"""A worker's connection to its primary, its supervisor, and the wait for lost workers."""

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

from runner.node.agent.worker import PrimaryConnection
from runner.node.cluster import HeartbeatConfig, Hosts, load_heartbeat_config
from runner.node.context import TaskContext
from runner.node.distributed import rendezvous
from runner.node.distributed.connection import AgentConnection
from runner.node.distributed.rendezvous import (
    RejoinOutcome,
    RejoinServer,
    RendezvousServer,
    find_primary,
    wait_for_rejoin,
)
from runner.node.failures import TerminatedError
from runner.node.script.shipper import LineQueue
from runner.node.script.streams import EventLog
from runner.node.settings import SettingsError
from runner.node.termination import Termination
from tests.processes import alive

Until = Callable[[Callable[[], object]], None]
HOSTS = Hosts(("127.0.0.1", "127.0.0.2", "127.0.0.3"), "127.0.0.1", is_primary=True)
SUPERVISED = """
import os, pathlib, subprocess, sys, time
from runner.node.agent.join import supervise
folder = pathlib.Path(sys.argv[1])
def work():
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (folder / f"child-{os.getpid()}").write_text(str(child.pid))
    (folder / str(os.getpid())).touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    return 7
sys.exit(supervise(work, stopped_s=0.2))
"""


class QuickHeartbeat(HeartbeatConfig):
    """A short interval and a long timeout."""

    @property
    def interval_s(self) -> float:
        return 0.05


@pytest.fixture(autouse=True)
def waiting_workers_are_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Increase the timeout, because workers connect at longer intervals on slow machines."""
    monkeypatch.setattr(rendezvous, "WAITING_S", 600.0)


@pytest.fixture
def ends(until: Until) -> Iterator[tuple[AgentConnection, AgentConnection]]:
    """Yield both ends of a connection: the primary's and the worker's."""
    token, came = secrets.token_hex(16), list[AgentConnection]()
    server = RendezvousServer("127.0.0.1", token, lambda connection, _: came.append(connection))
    server.start()
    found = find_primary("127.0.0.1", token, within_s=120)
    assert found is not None
    until(lambda: came)
    yield came[0], found
    server.close()
    for connection in (came[0], found):
        connection.close()


def test_worker_of_frozen_primary_terminates(
    ends: tuple[AgentConnection, AgentConnection], until: Until
) -> None:
    termination = Termination(on_first=lambda: None)
    primary = PrimaryConnection(ends[1], termination, HeartbeatConfig(0.3))
    primary.start()
    until(lambda: termination.requested)
    assert primary.is_lost
    assert not primary.again
    with pytest.raises(TerminatedError):
        primary.await_order("go")


def test_worker_sends_heartbeats(
    ends: tuple[AgentConnection, AgentConnection],
) -> None:
    primary = PrimaryConnection(ends[1], Termination(on_first=lambda: None), QuickHeartbeat(60.0))
    primary.start()
    assert [ends[0].receive() for _ in range(2)] == [{"is": "here"}] * 2
    ends[0].send(order="here")
    ends[0].send(order="go", n=1)
    assert primary.await_order("go")["n"] == 1


def test_invalid_heartbeat_timeout_is_rejected() -> None:
    assert load_heartbeat_config({}).interval_s == 15.0
    assert load_heartbeat_config({"RUNNER_NODES_SILENCE": "3"}).timeout_s == 3.0
    for text in ("soon", "0", "-1", "nan", "inf"):
        with pytest.raises(SettingsError):
            load_heartbeat_config({"RUNNER_NODES_SILENCE": text})


def test_rejoin_completes_when_every_worker_waits(until: Until) -> None:
    token = secrets.token_hex(16)
    with RejoinServer(HOSTS, token) as rejoin:
        for address in HOSTS.addresses[1:]:
            assert not rejoin.all_waiting
            connection = find_primary("127.0.0.1", token, within_s=120)
            assert connection is not None
            connection.send(**{"is": "hello"}, address=address)
            answer = connection.receive() or {}
            assert (answer["order"], answer["again"]) == ("leave", True)
        until(lambda: rejoin.all_waiting)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(SUPERVISED), str(tmp_path)])
    yield process
    process.kill()
    process.wait()
    _end_children(tmp_path)


def _end_children(folder: Path) -> None:
    for path in folder.glob("child-*"):
        with suppress(psutil.NoSuchProcess):
            psutil.Process(int(path.read_text())).kill()


def _workers(folder: Path, count: int) -> list[int]:
    """Return process ids in the order of their start."""
    found = sorted((path for path in folder.iterdir() if path.name.isdigit()),
                   key=lambda path: path.stat().st_mtime_ns)  # fmt: skip
    return [int(path.name) for path in found] if len(found) == count else []


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_killed_or_stopped_worker_is_replaced(
    supervisor: subprocess.Popen[bytes], tmp_path: Path, until: Until, number: signal.Signals
) -> None:
    until(lambda: _workers(tmp_path, 1))
    first = _workers(tmp_path, 1)[0]
    child = tmp_path / f"child-{first}"
    os.kill(first, number)
    until(lambda: _workers(tmp_path, 2))
    assert not alive(first)
    assert not alive(int(child.read_text())), "it would hold the node's GPUs"
    (tmp_path / "go").touch()
    assert supervisor.wait(120) == 7


def test_briefly_stopped_worker_continues(tmp_path: Path, until: Until) -> None:
    script = SUPERVISED.replace("stopped_s=0.2", "stopped_s=600")
    process = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    until(lambda: _workers(tmp_path, 1))
    [worker] = _workers(tmp_path, 1)
    os.kill(worker, signal.SIGSTOP)
    os.kill(worker, signal.SIGCONT)
    (tmp_path / "go").touch()
    assert process.wait(120) == 7
    assert _workers(tmp_path, 1) == [worker]
    _end_children(tmp_path)


def test_worker_ended_by_batch_is_not_replaced(
    supervisor: subprocess.Popen[bytes], tmp_path: Path, until: Until
) -> None:
    until(lambda: _workers(tmp_path, 1))
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(120) == 137
    assert not alive(_workers(tmp_path, 1)[0])


def test_worker_dies_with_its_supervisor(
    supervisor: subprocess.Popen[bytes], tmp_path: Path, until: Until
) -> None:
    until(lambda: _workers(tmp_path, 1))
    supervisor.kill()
    supervisor.wait(120)
    [worker] = _workers(tmp_path, 1)
    until(lambda: not alive(worker))
    assert _workers(tmp_path, 1) == [worker]


def _task(hosts: Hosts | None, token: str) -> tuple[TaskContext, Termination]:
    """Return the fields that `wait_for_rejoin` reads."""
    termination = Termination(on_first=lambda: None)
    made = SimpleNamespace(hosts=hosts, nodes_token=token, termination=termination)
    return cast("TaskContext", made), termination


def test_rejoin_times_out_or_ends_by_batch() -> None:
    agent, termination = _task(HOSTS, secrets.token_hex(16))
    events = EventLog(LineQueue())
    assert wait_for_rejoin(agent, events, 1, within_s=0.2) is RejoinOutcome.TIMEOUT
    termination.request()
    assert wait_for_rejoin(agent, events, 1, within_s=300) is RejoinOutcome.TERMINATED


@pytest.mark.parametrize(
    ("losses", "outcome"), [(5, RejoinOutcome.REJOINED), (6, RejoinOutcome.TIMEOUT)]
)
def test_rejoin_is_limited_to_five_losses(losses: int, outcome: RejoinOutcome) -> None:
    hosts = Hosts(("127.0.0.1", "127.0.0.2"), "127.0.0.1", is_primary=True)
    token = secrets.token_hex(16)
    agent, _ = _task(hosts, token)

    find_s = 300 if outcome is RejoinOutcome.REJOINED else 0.5

    def knock() -> None:
        if (connection := find_primary("127.0.0.1", token, within_s=find_s)) is not None:
            connection.send(**{"is": "hello"}, address="127.0.0.2")
            connection.receive()

    knocking = threading.Thread(target=knock)
    knocking.start()
    assert wait_for_rejoin(agent, EventLog(LineQueue()), losses, within_s=find_s) is outcome
    knocking.join()
