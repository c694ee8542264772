"""The cause of a failed run, from its result and the end of its output."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from runner.core.diagnosis import explain_output, explain_result
from runner.protocol.results import RunResult

STARTED = datetime(2026, 11, 24, tzinfo=UTC)


@pytest.mark.parametrize(
    "line",
    [
        "OSError: [Errno 98] Address already in use",
        "torch.distributed.DistNetworkError: The socket has failed to listen: EADDRINUSE",
    ],
)
def test_port_of_another_program_is_the_cause(line: str) -> None:
    stderr = f'Traceback (most recent call last):\n  File "train.py", line 3\n{line}\n'
    found = explain_output("python train.py exited with code 1", 1, stderr)
    assert found.cause == "PortInUse"
    assert "$MASTER_PORT" in found.fix


def test_hung_run_is_explained_with_its_stacks() -> None:
    message = "every node stopped: no log line, metric or checkpoint for 600 s"
    result = RunResult(
        status="failed", attempt=1, evicted=0, exit_code=None, step="command", code="Hung",
        message=message, started=STARTED, ended=STARTED, stages_s={}, metrics={}, outputs=(),
    )  # fmt: skip
    stack = 'Current thread 0x1 (most recent call first):\n  File "train.py", line 9 in barrier\n'
    found = explain_result(result, stack)
    assert found is not None
    assert (found.cause, found.message) == ("Hung", message)
    assert found.lines[-1] == '  File "train.py", line 9 in barrier'
    assert "hang_timeout" in found.fix
