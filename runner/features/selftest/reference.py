"""A separate emulator for the comparison: another process, an empty account, a free port."""

from __future__ import annotations

import base64
import os
import secrets
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from runner.azure.auth.credentials import Connection
from runner.contract import LOCAL_VM_SIZE
from runner.flows.child_python import command_of
from runner.flows.local.services import last_error
from runner.flows.local.state import ACCOUNT, LocalState, local_outputs
from runner.protocol.errors import RunnerError

_STOPS_WITHIN_S = 30.0


@contextmanager
def reference_emulator() -> Generator[Connection]:
    """Yield a connection to a new emulator, which ends with the block.

    Raises:
        RunnerError: it does not start.
    """
    key = base64.b64encode(secrets.token_bytes(64)).decode("ascii")
    with tempfile.TemporaryDirectory(prefix="runner-selftest-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # tasks of root have a separate user
        log = folder / "emulator.log"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                command_of(
                    *("batch_emulator", "--host", "127.0.0.1", "--vm-size", LOCAL_VM_SIZE),
                    *("--account", ACCOUNT, "--data-dir", str(folder / "data")),
                ),
                env={**os.environ, "BATCH_EMULATOR_KEY": key},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C must not reach it; this process stops it
            )
        try:
            port = _port(process, log)
            outputs = local_outputs(LocalState(port, 0, nodes=1, slots=1))
            yield Connection(outputs, {"batch": key, "storage": key})
        finally:
            _stop(process)


def _port(process: subprocess.Popen[str], log: Path) -> int:
    """Return the port of `listening on http://127.0.0.1:PORT account NAME`."""
    line = process.stdout.readline() if process.stdout else ""
    words = line.split()
    if words[:2] == ["listening", "on"]:
        return int(words[2].rpartition(":")[2])
    why, fix = last_error(log.read_text("utf-8", "replace"))
    raise RunnerError(
        "R-SELFTEST-EMULATOR",
        "the emulator for the comparison did not start",
        why=why,
        fix=fix or "correct the problem, then run the command again",
    )


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=_STOPS_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
