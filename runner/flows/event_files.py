"""A run as TensorBoard reads it: its metrics as an event file, and the event files it wrote itself.

FOLDER/<run_id>/events.out.tfevents.…            from metrics.jsonl
FOLDER/<run_id>/script/<path>/events.out.…       what the script wrote to its outputs and
                                                 checkpoints, while it runs too
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.azure.task_files import list_task_files, read_task_range
from runner.core.errors import RunnerError
from runner.core.export import StepCounter
from runner.core.home import not_writable
from runner.core.metrics import MetricPoint, parse_metric_line
from runner.core.run_paths import RunPaths
from runner.core.run_record import RunRecord
from runner.flows.cursors import LineCursor
from runner.flows.extras import load_extra
from runner.flows.local_files import target_within
from runner.flows.run_documents import load_result, runs_container
from runner.node.checkpoint import (
    BadManifestError,
    Checkpoint,
    CheckpointBlobs,
    parse_checkpoint,
)

if TYPE_CHECKING:
    from runner.azure.credentials import Connection

_MARK = "tfevents"
_SUBFOLDERS = {"wd/output": "", "wd/checkpoints": "checkpoints/"}


class EventFolder:
    """The event files of one run; every `update` adds what is new."""

    def __init__(self, connection: Connection, record: RunRecord, folder: Path) -> None:
        self._connection = connection
        self._record = record
        self._folder = folder / record.run_id
        self._script = self._folder / "script"
        container = runs_container(connection)
        self._container = container
        self._lines = LineCursor(container, RunPaths(record.run_id).metrics)
        self._steps = StepCounter()
        self._attempt = 1
        self.points = 0
        self._events = load_extra("tensorboard", "tensorboard.compat.proto.event_pb2")
        self._summaries = load_extra("tensorboard", "tensorboard.compat.proto.summary_pb2")
        self._writer = self._open()

    def _open(self) -> Any:
        """A new file in the place of the last one: everything is read again."""
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
        """Bring what is new; whether the run is over, so that nothing more will come."""
        result = load_result(self._container, self._record.run_id)
        self._add_points()
        if result is None:
            self._copy_from_node()
            return False
        prefix = RunPaths(self._record.run_id).root + result.output
        for file in result.outputs:
            if _MARK in file.path:
                self._copy_blob(prefix + file.path, file.path, file.size_bytes)
        self._copy_checkpoint()
        return True

    def close(self) -> None:
        """Nothing is added any more."""
        self._writer.close()

    def _add_points(self) -> None:
        while lines := self._lines.read():
            for line in lines:
                if point := parse_metric_line(line):
                    self._add(point)
        self._writer.flush()

    def _add(self, point: MetricPoint) -> None:
        shown = self._steps.point(point)
        if point.attempt > self._attempt:
            # TensorBoard then forgets what the lost attempt had written from this step on.
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
        """Parameters for TensorBoard's HPARAMS page."""
        params = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in self._record.params.items()
        }
        if not params:
            return
        plugin = load_extra("tensorboard", "tensorboard.plugins.hparams.summary_v2")
        created = self._record.created.timestamp()
        summary = plugin.hparams_pb(params, self._record.run_id, created)
        writer.add_event(self._events.Event(wall_time=created, summary=summary))

    def _copy_blob(self, blob: str, path: str, size_bytes: int) -> None:
        target = self._target(path)
        if target is None or (target.is_file() and target.stat().st_size == size_bytes):
            return
        self._container.download(blob, target, _ignore, _accept)

    def _copy_checkpoint(self) -> None:
        """The event files of the newest checkpoint: they are in no output."""
        blobs = CheckpointBlobs(self._record.run_id)
        found: list[Checkpoint] = []
        for blob in self._container.list(blobs.root):
            number = blobs.number_of(blob.name)
            if number is not None and (body := self._container.read(blob.name)):
                with suppress(BadManifestError):
                    found.append(parse_checkpoint(body, blobs, number))
        newest = max(found, key=lambda checkpoint: checkpoint.order, default=None)
        for file in newest.files if newest else ():
            if _MARK in file.path.rpartition("/")[2]:
                self._copy_blob(file.blob, f"checkpoints/{file.path}", file.size_bytes)

    def _copy_from_node(self) -> None:
        """Event files grow: only their new bytes are fetched."""
        job_id, task_id = self._record.job_id, self._record.task_id
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
        """Where a file of the script goes; None for a name that leads elsewhere."""
        try:
            return target_within(self._script, path)
        except ValueError:
            return None


def write_event_files(
    connection: Connection, records: Iterable[RunRecord], folder: Path
) -> dict[str, int]:
    """Write what there is of some runs, once; how many values each has."""
    written: dict[str, int] = {}
    for record in records:
        events = EventFolder(connection, record, folder)
        try:
            events.update()
        finally:
            events.close()
        written[record.run_id] = events.points
    return written


def export_to_tensorboard(
    connection: Connection, record: RunRecord, uri: str | Path | None
) -> tuple[Path, int]:
    """Event files of a run in a folder, by default `./tensorboard`; where, and how many values."""
    # Before a folder is made that would stay empty.
    load_extra("tensorboard", "tensorboard.compat.proto.event_pb2")
    folder = check_folder(Path(uri or "tensorboard").expanduser().absolute())
    points = write_event_files(connection, [record], folder)[record.run_id]
    return folder / record.run_id, points


def _append(target: Path, size_bytes: int, read: Any) -> None:
    have = target.stat().st_size if target.is_file() else 0
    if have > size_bytes:  # another attempt began it anew
        target.unlink()
        have = 0
    new: bytes = read(have, size_bytes)
    if new:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("ab") as file:
            file.write(new)


def _single(value: float) -> float:
    """As a 32-bit number, which is what event files hold: too large ones become infinite."""
    largest = 3.4028234663852886e38
    if math.isfinite(value) and abs(value) > largest:
        return math.copysign(math.inf, value)
    return value


def _ignore(done: int) -> None:
    del done


def _accept(part: Path) -> None:
    del part


def clear_folder(folder: Path) -> None:
    """Forget a folder of event files."""
    shutil.rmtree(folder, ignore_errors=True)


def check_folder(folder: Path) -> Path:
    """A folder that can be written. Raises RunnerError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as err:
        raise RunnerError(
            "R-EXPORT-FOLDER",
            f"cannot write to {folder}",
            why=err.strerror or str(err),
            fix="give another folder with --uri",
        ) from err
    return folder
