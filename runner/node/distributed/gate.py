"""Check all nodes before the script starts, and find the broken one.

Each node queries its GPUs, and takes part in an all-reduce over a ring of connections between the
agents. Both have a time limit. Without this check, a framework would hang or fail on all ranks.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner.protocol.codec import NOT_STORED, JsonDocument
from runner.protocol.run_spec import RunSpec

GATE_S = 20.0  # time limit of the ring
GPU_S = 30.0  # time limit of nvidia-smi, which a broken GPU may block for ever
PAYLOAD_BYTES = 64 * 1024  # large enough to detect a network that loses large packets
POLL_S = 0.1
GPU_DEVICES = Path("/dev")


@dataclass(frozen=True)
class GateReport:
    """The result of the check on one node; an empty `problem` means that it is healthy.

    `peer` is the rank that it could not exchange data with, or None. `is_consequence` is True if
    another node caused the problem by leaving the ring.
    """

    problem: str = ""
    peer: int | None = None
    is_consequence: bool = False


@dataclass(frozen=True)
class Ring(JsonDocument):
    """The ring of nodes as one of them, `rank`, sees it. The order CHECK has the other fields.

    `ports` has the port of each agent's listener, by rank. `nonce` is new for each check.
    """

    rank: int = field(metadata=NOT_STORED)
    addresses: Sequence[str]
    ports: Sequence[int]
    nonce: str

    def greeting(self, rank: int) -> bytes:
        """Return the bytes that the agent of a rank sends first, to identify itself."""
        return hashlib.sha256(f"{self.nonce} {rank}".encode()).digest()


def check_gpus() -> str:
    """Return why the GPUs of this node do not work, or "" if no problem was found."""
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=GPU_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"nvidia-smi did not respond within {GPU_S:g} s"
    except OSError as err:
        return f"cannot start nvidia-smi: {err}"
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or [""]
        return f"nvidia-smi exited with code {done.returncode}: {lines[-1][:200]}"
    return ""


def has_gpus(spec: RunSpec) -> bool:
    """Return True if this node should have GPUs. (Images without GPUs may have nvidia-smi.)"""
    return bool(spec.resources.gpus) or any(GPU_DEVICES.glob("nvidia[0-9]*"))


def check_node(
    ring: Ring,
    listener: socket.socket,
    within_s: float = GATE_S,
    gpus: Callable[[], str] | None = None,
) -> GateReport:
    """Check this node and its connections to its neighbours.

    Args:
        ring: the nodes.
        listener: the listening socket of this node.
        within_s: the time limit of the all-reduce.
        gpus: checks the GPUs; None if the node has none.
    """
    if gpus is not None and (problem := gpus()):
        return GateReport(problem)
    began, count = time.monotonic(), len(ring.addresses)
    # Half of the time, so that a node that cannot connect reports this before the others give up.
    connect_s = within_s / 2
    until = began + connect_s
    before, after = (ring.rank - 1) % count, (ring.rank + 1) % count
    with ExitStack() as stack:
        accepted: list[socket.socket] = []
        accepting = threading.Thread(
            target=_accept, args=(listener, ring.greeting(before), until, accepted), daemon=True
        )
        accepting.start()
        try:
            address = (ring.addresses[after], ring.ports[after])
            following = socket.create_connection(address, timeout=connect_s)
            stack.enter_context(following)
            following.sendall(ring.greeting(ring.rank))
        except OSError as err:
            return GateReport(f"cannot connect to rank {after}: {err}", after)
        accepting.join(max(until - time.monotonic(), 0.0))
        if not accepted:
            text = f"no connection from rank {before} within {connect_s:g} s"
            return GateReport(text, before)
        previous = stack.enter_context(accepted[0])
        return _reduce(ring, previous, following, began + within_s)


def _accept(
    listener: socket.socket, greeting: bytes, until: float, accepted: list[socket.socket]
) -> None:
    """Accept connections until one sends the greeting, and append it to `accepted`."""
    while (left_s := until - time.monotonic()) > 0:
        listener.settimeout(left_s)
        with suppress(OSError):
            found, _ = listener.accept()
            found.settimeout(left_s)
            if _read(found, len(greeting)) == greeting:
                accepted.append(found)
                return
            found.close()


def _reduce(
    ring: Ring, previous: socket.socket, following: socket.socket, until: float
) -> GateReport:
    """Pass the values of all ranks around the ring, and check their sum."""
    count = len(ring.addresses)
    value = total = ring.rank + 1
    for turn in range(count - 1):
        left_s = max(until - time.monotonic(), POLL_S)
        body = value.to_bytes(8, "big") * (PAYLOAD_BYTES // 8)
        sender = threading.Thread(target=_send, args=(following, body, left_s), daemon=True)
        sender.start()
        previous.settimeout(left_s)
        before, is_silent = (ring.rank - 1) % count, False
        try:
            received = _read(previous, PAYLOAD_BYTES)
        except TimeoutError:
            received, is_silent = b"", True
        except OSError:
            received = b""
        if len(received) < PAYLOAD_BYTES:  # a rank that closes its connection reports the cause
            text = f"no data from rank {before}"
            return GateReport(text, before, is_consequence=turn > 0 or not is_silent)
        if received[:8] * (PAYLOAD_BYTES // 8) != received:
            return GateReport(f"damaged data from rank {before}", before)
        sender.join(left_s)
        value = int.from_bytes(received[:8], "big")
        total += value
    if total != count * (count + 1) // 2:
        return GateReport(f"the sum over {count} nodes is wrong: {total}", is_consequence=True)
    return GateReport()


def _send(sock: socket.socket, body: bytes, within_s: float) -> None:
    with suppress(OSError):
        sock.settimeout(within_s)
        sock.sendall(body)


def _read(sock: socket.socket, size: int) -> bytes:
    """Return `size` bytes, or fewer if the connection ends. Raise OSError."""
    parts: list[bytes] = []
    while size > 0 and (part := sock.recv(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def find_bad_rank(reports: Mapping[int, GateReport | None]) -> tuple[int, str] | None:
    """Return the rank that is broken and the reason, or None if all nodes are healthy.

    Args:
        reports: the report of each rank, or None if it did not report in time.
    """
    for rank, report in reports.items():
        if report is None:
            return rank, "it did not respond to the check of the nodes in time"
        if report.problem and report.peer is None and not report.is_consequence:
            return rank, report.problem
    failed = {rank: report for rank, report in reports.items() if report and report.problem}
    if not failed:
        return None
    causes = {r: each for r, each in failed.items() if not each.is_consequence} or failed
    mentions = dict.fromkeys(reports, 0)
    for rank, report in causes.items():
        for one in (rank, report.peer):
            if one is not None:
                mentions[one] += 1
    # If rank 0 and another rank are equally suspect, return the other one: the network of rank 0
    # works, because it collects the reports.
    worst = max(mentions, key=lambda rank: (mentions[rank], rank > 0, -rank))
    witness = next((r for r, each in causes.items() if worst in (r, each.peer)), worst)
    return worst, f"rank {witness}: {causes[witness].problem}"
