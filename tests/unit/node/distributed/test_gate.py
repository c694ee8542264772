"""The check of the nodes before a script starts."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

import pytest

from runner.node.distributed.gate import GateReport, Ring, check_node, find_bad_rank
from tests.unit.node.node_group_task import NodeGroupTask

Reports = dict[int, GateReport | None]


@contextmanager
def _listeners(count: int) -> Generator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]


def _check(count: int, *, deaf: int | None = None, gpus: dict[int, str] | None = None) -> Reports:
    """Let all nodes check themselves; `deaf` accepts no connections, and connects to nobody."""
    reports: Reports = dict.fromkeys(range(count))
    limit_s = 300.0 if deaf is None and gpus is None else 1.0  # which they wait for the others

    def check(rank: int, listener: socket.socket, ports: list[int]) -> None:
        ring = Ring(rank, ["127.0.0.1"] * count, ports, "nonce")
        reports[rank] = check_node(ring, listener, limit_s, lambda: (gpus or {}).get(rank, ""))

    with _listeners(count) as listeners:
        ports = [int(each.getsockname()[1]) for each in listeners]
        threads = [
            threading.Thread(target=check, args=(rank, listener, ports))
            for rank, listener in enumerate(listeners)
            if rank != deaf
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return reports


@pytest.mark.parametrize("count", [2, 3, 5])
def test_healthy_nodes_compute_the_sum_of_all_values(count: int) -> None:
    reports = _check(count)
    assert reports == dict.fromkeys(range(count), GateReport())
    assert find_bad_rank(reports) is None


@pytest.mark.parametrize("bad", [1, 2, 3])
def test_node_without_a_network_is_named(bad: int) -> None:
    reports, tries = _check(4, deaf=bad), 1
    while (find_bad_rank(reports) or (None,))[0] != bad and tries < 3:  # others may be late too
        reports, tries = _check(4, deaf=bad), tries + 1
    assert reports[bad] is None
    found = find_bad_rank(reports)
    assert found is not None
    assert found[0] == bad
    # Also if it reports that it reaches no other rank.
    reports[bad] = GateReport(f"cannot connect to rank {(bad + 1) % 4}: timed out", (bad + 1) % 4)
    assert (find_bad_rank(reports) or (None,))[0] == bad


def test_node_with_a_silent_gpu_is_named_with_the_reason() -> None:
    reports = _check(3, gpus={2: "nvidia-smi did not respond within 30 s"})
    assert find_bad_rank(reports) == (2, "nvidia-smi did not respond within 30 s")


def test_unreachable_peer_is_named_in_the_error() -> None:
    reports: Reports = {
        0: GateReport("cannot connect to rank 1: timed out", 1),
        1: GateReport("cannot connect to rank 0: timed out", 0),
    }
    assert find_bad_rank(reports) == (1, "rank 0: cannot connect to rank 1: timed out")


def test_unknown_connections_do_not_disturb_the_check() -> None:
    def stranger(port: int) -> None:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"x" * 64)

    reports: Reports = {}

    def run(check: Callable[[], GateReport], rank: int) -> None:
        reports[rank] = check()

    with _listeners(2) as listeners:
        ports = [int(each.getsockname()[1]) for each in listeners]
        stranger(ports[0])
        rings = [Ring(rank, ["127.0.0.1"] * 2, ports, "n") for rank in (0, 1)]
        threads = [
            threading.Thread(
                target=run, args=(lambda r=r: check_node(rings[r], listeners[r], 300.0), r)
            )
            for r in (0, 1)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert find_bad_rank(reports) is None


BROKEN_GPU = """#!/bin/sh
echo "Unable to determine the device handle for GPU0: GPU is lost." >&2
exit 15
"""


@pytest.mark.slow
@pytest.mark.feature(24)
def test_run_names_the_node_with_a_lost_gpu(
    node_group: NodeGroupTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake `nvidia-smi` reports a GPU that the driver has lost."""
    for rank in (0, 1):
        folder = node_group.folder / f"bin-{rank}"
        folder.mkdir()
        (folder / "nvidia-smi").write_text(BROKEN_GPU if rank else "#!/bin/sh\n")
        (folder / "nvidia-smi").chmod(0o755)
    environment = node_group._environment

    def with_gpus(rank: int) -> dict[str, str]:
        found = environment(rank)
        return {**found, "PATH": f"{node_group.folder}/bin-{rank}:{found['PATH']}"}

    monkeypatch.setattr(node_group, "_environment", with_gpus)
    node_group.submit("print('trained')", resources={"nodes": 2, "gpus": 1})
    assert node_group.run_node_group(2) == 1
    result = node_group.json("result.json")
    assert (result["code"], result["step"], result["rank"]) == ("NodeUnhealthy", "nodes", 1)
    assert result["message"] == (
        "rank 1 on node tvm-1 is unhealthy: nvidia-smi exited with code 15: Unable to determine "
        "the device handle for GPU0: GPU is lost."
    )
    assert node_group.text("logs/stdout.txt") == ""
