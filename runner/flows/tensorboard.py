"""TensorBoard on runs: event files that are kept up to date, and the program that shows them."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

from runner.azure.faults import SERVICES_DOWN
from runner.core.errors import ExitCode, RunnerError
from runner.core.home import HomePaths
from runner.core.run_record import RunRecord
from runner.core.units import format_duration
from runner.flows.event_files import EventFolder, check_folder, clear_folder
from runner.flows.extras import install_command, load_extra
from runner.node.orphans import dies_with_parent

if TYPE_CHECKING:
    from runner.azure.credentials import Connection

PORT = 6006
_HOST = "127.0.0.1"
_EVERY_S = 3.0
_START_S = 60.0
_POLL_S = 0.1
_GRACE_S = 5.0
_DAY_S = 86400.0


@dataclass(slots=True)
class Shown:
    """A TensorBoard that runs; `wait` returns when it has ended."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]
    problems: list[RunnerError] = field(default_factory=list[RunnerError])

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait()


@contextmanager
def show_runs(
    connection: Connection, records: Sequence[RunRecord], home: Path, port: int | None
) -> Generator[Shown]:
    """Start TensorBoard on runs and follow them while the block runs; then end it.

    `port` None takes 6006, or a free one where that is taken. Raises RunnerError where TensorBoard
    is not installed or does not start.
    """
    load_extra("tensorboard", "tensorboard.version")
    tensorboard = HomePaths(home).tensorboard
    _prune(tensorboard)
    folder = check_folder(tensorboard / f"{os.getpid()}-{secrets.token_hex(4)}")
    try:
        runs = [EventFolder(connection, record, folder) for record in records]
        done = [run.update() for run in runs]
        process, chosen = _start(folder, port)
        shown = Shown(f"http://{_HOST}:{chosen}/", folder, process)
        with _following([run for run, over in zip(runs, done, strict=True) if not over], shown):
            try:
                _await_start(process, chosen)
                yield shown
            finally:
                _stop(process)
        for run in runs:
            run.close()
    finally:
        clear_folder(folder)


@contextmanager
def _following(runs: list[EventFolder], shown: Shown) -> Generator[None]:
    """Add what is new, in a thread, until the block ends or all runs have."""
    end = Event()
    thread = Thread(target=_follow, args=(runs, shown, end), daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _follow(runs: list[EventFolder], shown: Shown, end: Event) -> None:
    left = list(runs)
    while left and not end.wait(_EVERY_S):
        for run in list(left):
            try:
                if run.update():
                    left.remove(run)
            except RunnerError as err:
                if err.code != SERVICES_DOWN:  # lost contact is waited out
                    shown.problems.append(err)
                    left.remove(run)


def _start(folder: Path, port: int | None) -> tuple[subprocess.Popen[bytes], int]:
    chosen = _free_port() if port == 0 or (port is None and _taken(PORT)) else port or PORT
    if port and _taken(port):
        raise RunnerError(
            "R-PORT-TAKEN",
            f"port {port} is taken",
            why="another program listens there",
            fix="leave --port out, or give another",
            exit_code=ExitCode.PREFLIGHT,
        )
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder)]
    command += ["--host", _HOST, "--port", str(chosen), "--reload_interval", "5"]
    with (folder / ".tensorboard.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=dies_with_parent(),  # noqa: PLW1509 - one system call
        )
    return process, chosen


def _await_start(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_S
    while not _taken(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RunnerError(
                "R-TENSORBOARD",
                "TensorBoard does not start",
                why=f"it ended with code {process.returncode}"
                if process.returncode is not None
                else f"it did not listen within {format_duration(_START_S)}",
                fix=install_command("tensorboard", upgrade=True),
                exit_code=ExitCode.PREFLIGHT,
            )
        time.sleep(_POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _taken(port: int) -> bool:
    with suppress(OSError), socket.create_connection((_HOST, port), timeout=1):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _prune(folder: Path, now: Callable[[], float] = time.time) -> None:
    """What was left behind by a runner that was killed."""
    for left in folder.glob("*-*"):
        with suppress(OSError):
            if now() - left.stat().st_mtime > _DAY_S and not _lives(left.name):
                clear_folder(left)


def _lives(name: str) -> bool:
    number = name.partition("-")[0]
    if not number.isdecimal():
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
