"""Export runs to TensorBoard: update their event files, and run TensorBoard on them.

FOLDER/<run_id>/events.out.tfevents.…            from metrics.jsonl
FOLDER/<run_id>/script/<path>/events.out.…       from outputs and checkpoints of the script,
                                                 also while it runs
"""

from __future__ import annotations

import ctypes
import math
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psutil

from runner.azure.auth.credentials import Connection
from runner.azure.batch.jobs import list_task_files, read_task_range
from runner.azure.faults import TRANSIENT_CODES
from runner.core.home import HomePaths, not_writable
from runner.core.masking import Mask
from runner.core.points import StepCounter
from runner.core.units import format_duration
from runner.flows.child_python import command_of
from runner.flows.extras import install_command, load_extra
from runner.flows.local_files import target_within
from runner.flows.runs.documents import LineCursor, load_result, runs_container
from runner.protocol.checkpoints import (
    BadManifestError,
    CheckpointBlobs,
    CheckpointManifest,
    parse_checkpoint,
)
from runner.protocol.errors import RunnerError
from runner.protocol.metrics import MetricPoint
from runner.protocol.paths import RunPaths
from runner.protocol.run_spec import RunSpec

_MARK = "tfevents"
_SUBFOLDERS = {"wd/output": "", "wd/checkpoints": "checkpoints/"}


class EventFolder:
    """The event files of one run; each `update` adds new values and files."""

    def __init__(self, connection: Connection, spec: RunSpec, folder: Path) -> None:
        self._connection = connection
        self._spec = spec
        self._folder = folder / spec.run_id
        self._script = self._folder / "script"
        container = runs_container(connection)
        self._container = container
        self._lines = LineCursor(container, RunPaths(spec.run_id).metrics)
        self._steps = StepCounter()
        self._attempt = 1
        self.points = 0
        self._events = load_extra("tensorboard", "tensorboard.compat.proto.event_pb2")
        self._summaries = load_extra("tensorboard", "tensorboard.compat.proto.summary_pb2")
        self._writer = self._open()

    def _open(self) -> Any:
        """Create the event file anew, because all metrics are read again."""
        writers = load_extra("tensorboard", "tensorboard.summary.writer.event_file_writer")
        try:
            for old in self._folder.glob("events.out.tfevents.*.runner"):
                old.unlink()
            writer = writers.EventFileWriter(str(self._folder), filename_suffix=".runner")
        except OSError as err:
            raise not_writable(self._folder, err) from err
        self._write_params(writer)
        return writer

    def update(self) -> bool:
        """Add new values and files. Return True if the run has ended."""
        result = load_result(self._container, self._spec.run_id)
        self._add_points()
        if result is None:
            self._copy_from_node()
            return False
        prefix = RunPaths(self._spec.run_id).root + result.output
        for file in result.outputs:
            if (
                _MARK in file.path.rpartition("/")[2]
            ):  # another file may tell TensorBoard to read more
                self._copy_blob(prefix + file.path, file.path, file.size_bytes)
        self._copy_checkpoint()
        return True

    def close(self) -> None:
        """Close the event file."""
        self._writer.close()

    def _add_points(self) -> None:
        while lines := self._lines.read():
            for line in lines:
                if point := MetricPoint.load(line):
                    self._add(point)
        self._writer.flush()

    def _add(self, point: MetricPoint) -> None:
        shown = self._steps.point(point)
        if point.attempt > self._attempt:
            # TensorBoard then drops the values of the lost attempt from this step on.
            self._attempt = point.attempt
            start = self._events.SessionLog(status=self._events.SessionLog.START)
            self._writer.add_event(
                self._events.Event(wall_time=shown.time_s, step=shown.step, session_log=start)
            )
        value = self._summaries.Summary.Value(tag=shown.name, simple_value=_single(shown.value))
        self._writer.add_event(
            self._events.Event(
                wall_time=shown.time_s,
                step=shown.step,
                summary=self._summaries.Summary(value=[value]),
            )
        )
        self.points += 1

    def _write_params(self, writer: Any) -> None:
        """Write the parameters for the HPARAMS page."""
        params = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in Mask().document(self._spec.all_params).items()
        }
        if not params:
            return
        plugin = load_extra("tensorboard", "tensorboard.plugins.hparams.summary_v2")
        created = self._spec.created.timestamp()
        summary = plugin.hparams_pb(params, self._spec.run_id, created)
        writer.add_event(self._events.Event(wall_time=created, summary=summary))

    def _copy_blob(self, blob: str, path: str, size_bytes: int) -> None:
        target = self._target(path)
        if target is None or (target.is_file() and target.stat().st_size == size_bytes):
            return
        self._container.download(blob, target, lambda _: None, lambda _: None)

    def _copy_checkpoint(self) -> None:
        """Copy the event files of the newest checkpoint."""
        blobs = CheckpointBlobs(self._spec.run_id)
        found: list[CheckpointManifest] = []
        for blob in self._container.list(blobs.root):
            number = blobs.parse_number(blob.name)
            if number is not None and (body := self._container.read(blob.name)):
                with suppress(BadManifestError):
                    found.append(parse_checkpoint(body, blobs, number))
        newest = max(found, key=lambda checkpoint: checkpoint.order, default=None)
        for file in newest.files if newest else ():
            if _MARK in file.path.rpartition("/")[2]:
                self._copy_blob(file.blob, f"checkpoints/{file.path}", file.size_bytes)

    def _copy_from_node(self) -> None:
        """Copy the new bytes of event files, which grow."""
        job_id, task_id = self._spec.job_id, self._spec.task_id
        for folder, below in _SUBFOLDERS.items():
            found = list_task_files(self._connection, job_id, task_id, folder)
            for file in found:
                if _MARK not in file.path.rpartition("/")[2]:
                    continue
                target = self._target(below + file.path.removeprefix(f"{folder}/"))
                if target is not None:
                    read = partial(read_task_range, self._connection, job_id, task_id, file.path)
                    _append(target, file.size_bytes, read)

    def _target(self, path: str) -> Path | None:
        """Return the target of a file of the script, or None if it leaves the folder."""
        try:
            return target_within(self._script, path)
        except ValueError:
            return None


def export_to_tensorboard(
    connection: Connection, spec: RunSpec, uri: str | Path | None
) -> tuple[Path, int]:
    """Write the event files of a run, by default to `./tensorboard`. Return folder and count."""
    # First, so that no empty folder remains after an error.
    load_extra("tensorboard", "tensorboard.compat.proto.event_pb2")
    folder = check_folder(Path(uri or "tensorboard").expanduser().absolute())
    with closing(EventFolder(connection, spec, folder)) as events:
        events.update()
    return folder / spec.run_id, events.points


def _append(target: Path, size_bytes: int, read: Any) -> None:
    have = target.stat().st_size if target.is_file() else 0
    if have > size_bytes:  # a later attempt has started a new file
        target.unlink()
        have = 0
    new: bytes = read(have, size_bytes)
    if new:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            file.write(new)


def _single(value: float) -> float:
    """Return a value as a 32-bit float, as in event files; too large values become infinite."""
    largest = 3.4028234663852886e38
    if math.isfinite(value) and abs(value) > largest:
        return math.copysign(math.inf, value)
    return value


def check_folder(folder: Path) -> Path:
    """Create a folder and return it. Raise RunnerError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise RunnerError(
            "R-EXPORT-FOLDER",
            f"cannot write to {folder}",
            why=err.strerror or str(err),
            fix="use another folder with --uri",
        ) from err
    return folder


PORT = 6006
_HOST = "127.0.0.1"
_SERVER = "runner.features.export.tensorboard_server"
_PR_SET_PDEATHSIG = 1  # prctl(2)
_EVERY_S = 3.0
_START_S = 60.0
_POLL_S = 0.1
_GRACE_S = 5.0
_DAY_S = 86400.0


@dataclass(slots=True)
class TensorBoardProcess:
    """A running TensorBoard."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]
    problems: list[RunnerError] = field(default_factory=list[RunnerError])

    def wait(self) -> int:
        """Wait for its end and return the exit code."""
        return self.process.wait()


@contextmanager
def show_runs(
    connection: Connection, specs: Sequence[RunSpec], home: Path, port: int | None
) -> Generator[TensorBoardProcess]:
    """Run TensorBoard on runs, and update their event files, while the block runs.

    `port` None is 6006, or a free port if that is in use.

    Raises:
        RunnerError: TensorBoard is not installed or does not start.
    """
    load_extra("tensorboard", "tensorboard.version")
    tensorboard = HomePaths(home).tensorboard
    _prune(tensorboard)
    folder = check_folder(tensorboard / f"{os.getpid()}-{secrets.token_hex(4)}")
    try:
        runs: list[EventFolder] = []
        for spec in specs:
            run = EventFolder(connection, spec, folder)
            if run.update():
                run.close()  # each open file has a thread
            else:
                runs.append(run)
        process, chosen = _start(folder, port)
        shown = TensorBoardProcess(f"http://{_HOST}:{chosen}/", folder, process)
        with _following(runs, shown):
            try:
                _await_start(process, chosen)
                yield shown
            finally:
                _stop(process)
        for run in runs:
            run.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _following(runs: list[EventFolder], shown: TensorBoardProcess) -> Generator[None]:
    """Update the runs in a thread until the block or all runs have ended."""
    end = Event()
    thread = Thread(target=_follow, args=(runs, shown, end), daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _follow(runs: list[EventFolder], shown: TensorBoardProcess, end: Event) -> None:
    left = list(runs)
    while left and not end.wait(_EVERY_S):
        for run in list(left):
            try:
                if run.update():
                    left.remove(run)
            except RunnerError as err:
                if err.code not in TRANSIENT_CODES:  # wait until the services respond again
                    shown.problems.append(err)
                    left.remove(run)


def _die_with_parent() -> Callable[[], None]:
    """Return a function for a new child, so that Linux kills it when this process ends.

    Load the library here, because imports are not safe between fork and exec.
    """
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _start(folder: Path, port: int | None) -> tuple[subprocess.Popen[bytes], int]:
    chosen = _free_port() if port == 0 or (port is None and _port_in_use(PORT)) else port or PORT
    if port and _port_in_use(port):
        raise RunnerError(
            "R-PORT-TAKEN",
            f"port {port} is in use",
            why="another program listens on it",
            fix="omit --port, or use another port",
        )
    command = command_of(_SERVER, "--logdir", str(folder))
    command += ["--host", _HOST, "--port", str(chosen), "--reload_interval", "5"]
    with (folder / ".tensorboard.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            preexec_fn=_die_with_parent(),  # noqa: PLW1509 - one system call
        )
    return process, chosen


def _await_start(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_S
    while not _port_in_use(port):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RunnerError(
                "R-TENSORBOARD",
                "TensorBoard does not start",
                why=f"it exited with code {process.returncode}"
                if process.returncode is not None
                else f"it did not listen within {format_duration(_START_S)}",
                fix=install_command("tensorboard", upgrade=True),
            )
        time.sleep(_POLL_S)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _port_in_use(port: int) -> bool:
    with suppress(OSError), socket.create_connection((_HOST, port), timeout=1):
        return True
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _prune(folder: Path) -> None:
    """Delete the folders of processes that were killed."""
    for left in folder.glob("*-*"):
        pid = left.name.partition("-")[0]
        with suppress(OSError):
            is_old = time.time() - left.stat().st_mtime > _DAY_S
            if is_old and pid.isdecimal() and not psutil.pid_exists(int(pid)):
                shutil.rmtree(left, ignore_errors=True)
