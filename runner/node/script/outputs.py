"""The outputs of an attempt: find what its script wrote, and upload it in the stage `export`.

The promised outputs are the globs in `outputs` of the recipe. `FinishedScript` lets a later attempt
export the outputs of a script that succeeded.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any

from runner.node.failures import StageFailedError
from runner.node.script.context import AttemptContext
from runner.node.script.streams import Report, Streams, last_metrics
from runner.node.script.workspace import AttemptDirs, boot_id
from runner.node.script.written import CODE, Collected, WrittenFiles, shortened
from runner.node.storage.blobs import ContainerClient, OnBytes, ignore_bytes
from runner.node.storage.http import StorageRequestError
from runner.node.storage.retries import run_watched
from runner.protocol.codec import DAMAGED, parse_json
from runner.protocol.host import format_size
from runner.protocol.metrics import MetricValue
from runner.protocol.paths import RunPaths, blob_name, file_path, stored_path
from runner.protocol.results import AttemptEnd, LeftOut, OutputFile, parse_outputs
from runner.protocol.run_spec import RunSpec

logger = logging.getLogger(__name__)

STEP = "export"
NOTHING_COLLECTED = Collected()
THREADS = 8  # small files are limited by round trips, not by bandwidth
SAVE_EVERY_S = 1.0  # how often the list of outputs is stored while an attempt is terminated
MAX_SEARCH_S = 600.0  # for files that the script wrote elsewhere, if nothing else limits it
LIST_RESERVE_S = 0.5  # kept for writing the list of outputs when the attempt is terminated


class AttemptOutputs:
    """The outputs of one attempt on this node, and what is not kept of them.

    The termination of the task stops uploads. `collected` is what a finished script wrote
    elsewhere, or None if the script runs in this attempt. `prefix` is that of the blobs' names.
    """

    def __init__(self, context: AttemptContext, collected: Collected | None = None) -> None:
        self._runs = context.runs
        self._paths = context.paths
        self._spec = context.spec
        self._number = context.number
        self._dirs = context.dirs
        self._events = context.events
        self._retry_budget = context.retry_budget
        self._check = context.termination.check
        self._collected = collected
        self._not_uploaded: list[LeftOut] = []
        self._written: WrittenFiles | None = None
        self.prefix = context.paths.output(context.number)
        self._room_bytes: Callable[[], int | None] = lambda: None

    def limit_to_room(self, room_bytes: Callable[[], int | None]) -> None:
        """Keep only outputs for which storage has room.

        Args:
            room_bytes: returns the room if storage is on a full disk of this machine, else None.
        """
        self._room_bytes = room_bytes

    def begin(self, written: WrittenFiles, command: Sequence[str]) -> None:
        """Record the existing files before the script starts, so that `collect` finds its own."""
        written.begin(command)
        self._written = written

    def collect(self, within_s: float | None = None) -> Collected:
        """Return the files that the script wrote outside of `$RUNNER_OUTPUT_DIR`.

        The first call searches for them, unless a finished script has recorded them. A failed
        search is not an error, because the recipe does not promise these files.

        Args:
            within_s: the time limit of the search. After it, the result is empty. None uses the
                time that is left to the agent.
        """
        if self._collected is None and self._written is not None:
            left_s = self._retry_budget.left_s if within_s is None else within_s
            self._collected = _search(self._written, left_s)
            for each in self._collected.left_out:
                self._events.add("notice", "progress", f"not kept: {each}")
        return self._collected or NOTHING_COLLECTED

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """The files that the script wrote and that are not kept, as far as they are known."""
        return (*self.collect().left_out, *shortened(self._not_uploaded))

    def _leave_out(self, entry: LeftOut) -> None:
        entry = replace(entry, path=entry.path.encode(errors="replace").decode())
        self._not_uploaded.append(entry)
        self._events.add("notice", "progress", f"not kept: {entry}")

    def names(self) -> list[str]:
        """Return the names of files and folders that may become outputs."""
        names: list[str] = []
        for folder in (self._dirs.output, self._dirs.code):
            with suppress(OSError):
                names += os.listdir(folder)  # noqa: PTH208 - names
        return names

    def check_promised(self, promised: Sequence[str]) -> None:
        """Raise StageFailedError (OutputMissing) if a promised glob matches no file."""
        collected = self.collect()
        missing = [
            pattern
            for pattern in promised
            if not any(self._is_promised(name, [pattern]) for name in collected.files)
            and not _matches(self._dirs.output, pattern)
        ]
        if missing:
            folder = self._dirs.output
            own = {path.relative_to(folder).parts[0] for path in _files(folder)}
            names = own | {name.partition("/")[0] for name in collected.files}
            found = sorted(map(stored_path, names)) or ["nothing"]
            raise StageFailedError(
                STEP,
                "OutputMissing",
                f"the script did not write {', '.join(missing)} to its folder or "
                f"$RUNNER_OUTPUT_DIR; it wrote {', '.join(found[:10])}",
            )

    def export(self, prefix: str, report: Report, promised: Sequence[str] = ()) -> list[OutputFile]:
        """Check the promised outputs, and upload all outputs of this node.

        A file beside the script that cannot be read, or that storage refuses, is left out unless it
        is promised.

        Args:
            prefix: the prefix of the blobs' names.
            report: receives progress.
            promised: the globs of the outputs that the run must have.

        Returns:
            The files, sorted by path.

        Raises:
            StageFailedError: a promised output is missing, or it or a file in `$RUNNER_OUTPUT_DIR`
                cannot be read.
            StorageRequestError: storage cannot be reached, or refuses such a file.
        """
        self.check_promised(promised)
        folder, collected = self._dirs.output, self.collect()
        own = [path.relative_to(folder).as_posix() for path in _files(folder)]
        names = sorted([*own, *collected.files])
        total = sum((folder / name).stat().st_size for name in own)
        total += sum(_size(Path(path)) for path in collected.files.values())
        self._check_room(total)
        outputs: list[OutputFile] = []

        uploaded = 0
        lock = threading.Lock()

        def count(size_bytes: int) -> None:
            nonlocal uploaded
            with lock:
                uploaded += size_bytes

        def upload(name: str) -> OutputFile | None:
            is_required = name not in collected.files or self._is_promised(name, promised)
            try:
                return self._upload(prefix, name, count)
            except (StageFailedError, StorageRequestError, ValueError) as err:
                if is_required or _is_unreachable(err):
                    raise
                self._leave_out_file(name, err)
                return None

        def check_progress(finished: Sequence[OutputFile | None]) -> None:
            outputs.extend(file for file in finished if file is not None)
            self._check()
            report("uploading outputs", min(uploaded, total), total, "bytes")

        run_watched(upload, names, check_progress, threads=THREADS, name="export")
        return sorted(outputs, key=lambda output: output.path)

    def of_rank(self, rank: int, folder: str) -> list[OutputFile]:
        """Return the files that another node exported to a folder. Raise ValueError."""
        name = RunPaths(self._spec.run_id, rank).attempt_outputs(self._number)
        listed = read_list(self._runs, name)
        if listed is None:
            raise ValueError(f"there is no {name}")
        return [replace(file, path=folder + file.path) for file in listed]

    def add_earlier(
        self, outputs: Sequence[OutputFile], check: Callable[[], None] | None = None
    ) -> list[OutputFile]:
        """Add the files that earlier attempts exported when they were terminated.

        Files with the path of a newer one are not copied. Files that storage refuses to copy are
        left out, because the outputs of this attempt are valid without them.

        Args:
            outputs: the files of this attempt.
            check: called before each copy; may raise. OutOfTimeError only ends the copying.

        Returns:
            All files, sorted by path. Those of an earlier attempt have its number, and are partial.
        """
        check = check or self._check
        found = {file.path: file for file in outputs}
        nodes = self._spec.nodes

        def copy(earlier: int) -> None:
            listed = list(read_list(self._runs, self._paths.attempt_outputs(earlier)) or ())
            ranks = range(1, nodes) if nodes > 1 and not self._has_failed(earlier) else ()
            for rank in ranks:
                listed += read_rank_list(self._runs, self._paths.run_id, rank, earlier)
            for file in listed:
                if file.path in found:
                    continue
                check()
                source = self._paths.output(earlier) + file.path
                try:
                    if self._runs.copy(source, self.prefix + file.path, file.size_bytes):
                        found[file.path] = replace(file, attempt=earlier, partial=True)
                        continue
                except StorageRequestError as err:
                    if err.is_retryable:
                        raise
                    logger.warning("not copied from attempt %d: %s", earlier, err)
                self._leave_out(LeftOut(file.path, file.size_bytes, "transfer"))

        for earlier in range(self._number - 1, 0, -1):
            try:
                copy(earlier)
            except OutOfTimeError:
                self._leave_out(LeftOut(f"files of attempt {earlier}", 0, "time"))
                break
            except StorageRequestError as err:
                logger.warning("the outputs of attempt %d are incomplete: %s", earlier, err)
                self._leave_out(LeftOut(f"files of attempt {earlier}", 0, "transfer"))
                if err.is_retryable:
                    break
            except DAMAGED as err:
                logger.warning("the outputs of attempt %d are not known: %s", earlier, err)
                self._leave_out(LeftOut(f"files of attempt {earlier}", 0, "transfer"))
        return sorted(found.values(), key=lambda file: file.path)

    def _has_failed(self, attempt: int) -> bool:
        """Return True if the attempt failed and was retried. Rank 0 then kept no outputs."""
        end = AttemptEnd.load(self._runs.get(self._paths.attempt_end(attempt)) or b"")
        return end is not None and end.why == "failed"

    def export_partial(
        self, left_s: Callable[[], float | None], *, last: bool, folder: str = ""
    ) -> list[OutputFile]:
        """Export the files of a script that did not succeed, as far as time allows.

        Small files are uploaded first, and unreadable ones are left out. No error is raised,
        because the outcome of the attempt is decided already.

        Args:
            left_s: returns the seconds until this node or process ends, None if there is no end.
            last: True if the run ends with this attempt. Then the outputs that earlier attempts
                kept are added. Otherwise a list of the outputs is written for the next attempt,
                once a second and at the end.
            folder: the folder of this node's outputs, relative to the outputs of the run.
        """

        def check() -> None:
            left = left_s()
            if left is not None and left <= LIST_RESERVE_S:
                raise OutOfTimeError

        def save(outputs: Sequence[OutputFile]) -> None:
            if last:
                return
            try:
                write_list(self._runs, self._paths.attempt_outputs(self._number), outputs, folder)
            except StorageRequestError as err:
                logger.warning("the list of the outputs is lost: %s", err)

        left = left_s()
        self.collect(None if left is None else max(left - LIST_RESERVE_S, LIST_RESERVE_S))
        outputs: list[OutputFile] = []
        sizes = self._sizes()
        waiting = set(sizes)
        saved_at = time.monotonic()

        def add(finished: Sequence[OutputFile | None]) -> None:
            nonlocal saved_at
            outputs.extend(file for file in finished if file is not None)
            if outputs and time.monotonic() - saved_at >= SAVE_EVERY_S:
                save(outputs)
                saved_at = time.monotonic()
            check()

        def upload(name: str) -> OutputFile | None:
            try:
                return self._upload(self.prefix + folder, name)
            except (StageFailedError, StorageRequestError, ValueError) as err:
                if _is_unreachable(err):
                    raise
                waiting.discard(name)
                self._leave_out_file(name, err)

        why = "transfer"
        small_first = self._within_room(sorted(sizes, key=sizes.__getitem__), sizes)
        waiting.intersection_update(small_first)
        try:
            run_watched(upload, small_first, add, threads=THREADS, name="export")
        except OutOfTimeError:
            why = "time"
        except Exception as err:  # noqa: BLE001 - the attempt ends as it did
            logger.warning("not all outputs were uploaded: %s", err)
        outputs = sorted(outputs, key=lambda output: output.path)
        if rest := waiting.difference(file_path(file.path) for file in outputs):
            self._leave_out(LeftOut("others", sum(sizes[name] for name in rest), why, len(rest)))
        if outputs:
            save(outputs)
        if not last:
            return outputs
        own = self.names()
        for rank in range(1, self._spec.nodes):
            outputs += read_rank_list(self._runs, self._spec.run_id, rank, self._number, own)
        return self.add_earlier(outputs, check)

    def _check_room(self, total: int) -> None:
        room = self._room_bytes()
        if room is not None and total > room:
            message = (
                f"{format_size(total)} of outputs have no room on the disk, on which the local "
                f"services store them: {format_size(room)} are left"
            )
            raise StageFailedError(STEP, "DiskFull", message)

    def _within_room(self, names: list[str], sizes: Mapping[str, int]) -> list[str]:
        """Return the first names for which storage has room; leave out the others."""
        room = self._room_bytes()
        if room is None:
            return names
        ends = accumulate(sizes[name] for name in names)
        fitting = [name for name, end in zip(names, ends, strict=True) if end <= room]
        for name in names[len(fitting) :]:
            self._leave_out(LeftOut(stored_path(name), sizes[name], "disk"))
        return fitting

    def _sizes(self) -> dict[str, int]:
        """Return the sizes of all outputs that can be listed."""
        sizes = {name: _size(Path(path)) for name, path in self.collect().files.items()}
        try:
            for path in _files(self._dirs.output):
                sizes[path.relative_to(self._dirs.output).as_posix()] = _size(path)
        except (StageFailedError, OSError) as err:
            logger.warning("not all outputs were found: %s", err)
        return sizes

    def restore(self, outputs: Sequence[OutputFile]) -> list[OutputFile]:
        """Return the exported files. Upload those again that storage lost, for example in a crash.

        Raises:
            StageFailedError: a lost file is not on this node, but was on another node of the run.
        """
        if not outputs:
            return []
        existing = set(self._runs.list_names(self.prefix))
        found: list[OutputFile] = []
        for file in outputs:
            if blob_name(self.prefix + file.path) in existing or file.attempt is not None:
                found.append(file)
                continue
            name = file_path(file.path)
            try:
                found.append(self._upload(self.prefix, name))
            except (StageFailedError, StorageRequestError, ValueError) as err:
                is_required = file.source is None or self._is_promised(name, self._spec.outputs)
                if is_required or _is_unreachable(err):
                    raise
                self._leave_out(LeftOut(file.path, file.size_bytes, "transfer"))
        return found

    def _is_promised(self, name: str, promised: Sequence[str]) -> bool:
        """Return True if a promised glob matches a collected file, or a folder that contains it.

        Globs apply to files in the script's folder. A file from elsewhere must be named by the
        exact path that it gets among the outputs, or by a folder of that path.
        """
        parts = PurePosixPath(name).parts
        is_beside = self.collect().sources.get(name) == CODE
        for pattern in promised:
            globs = PurePosixPath(pattern).parts
            is_start = _starts_with(parts, globs) if is_beside else parts[: len(globs)] == globs
            if globs and is_start:
                return True
        return False

    def _leave_out_file(self, name: str, err: Exception) -> None:
        logger.warning("%s", err.message if isinstance(err, StageFailedError) else err)
        path = Path(self.collect().files.get(name, self._dirs.output / name))
        self._leave_out(LeftOut(stored_path(name), _size(path), "transfer"))

    def _upload(self, prefix: str, name: str, on_bytes: OnBytes = ignore_bytes) -> OutputFile:
        collected = self.collect()
        path, stored = collected.files.get(name) or self._dirs.output / name, stored_path(name)
        try:
            size, sha256 = self._runs.put_file(prefix + stored, Path(path), on_bytes)
        except OSError as err:
            raise _unreadable(stored, err.strerror or str(err)) from err
        source = collected.sources.get(name)
        return OutputFile(stored, size, sha256, source and stored_path(source))


def _search(written: WrittenFiles, within_s: float | None) -> Collected:
    """Return the files that the script wrote elsewhere.

    If the search fails or takes longer than `within_s`, the result has only one entry, which says
    that files were left out.
    """
    found: list[Collected] = []

    def search() -> None:
        try:
            # The search ends a little early, so that it can return the files it found.
            found.append(written.collect(None if within_s is None else within_s * 0.8))
        except Exception:
            logger.exception("the files beside the script could not be searched for")

    # In a thread: a file system that does not answer blocks its caller for ever.
    thread = threading.Thread(target=search, name="written files", daemon=True)
    thread.start()
    thread.join(MAX_SEARCH_S if within_s is None else within_s)
    if found:
        return found[0]
    return Collected(left_out=(LeftOut("files beside the script", 0, "search"),))


class OutOfTimeError(Exception):
    """The time for uploading is over."""


def write_list(
    runs: ContainerClient, name: str, outputs: Sequence[OutputFile], folder: str = ""
) -> None:
    """Store a list of exported files: those of a node, or of an attempt that was terminated.

    Args:
        runs: the container of runs.
        name: the blob of the list.
        outputs: the files.
        folder: the folder of these files, relative to the outputs of the run, if a reader of the
            list cannot know it.
    """
    fields = {"folder": folder} if folder else {}
    runs.put(name, json.dumps([{**output.to_json(), **fields} for output in outputs]).encode())


def read_list(runs: ContainerClient, name: str, folder: str = "") -> tuple[OutputFile, ...] | None:
    """Return the files that `write_list` stored, or None if there is no list. Raise ValueError.

    The paths get the folder in the list as a prefix, or else `folder`.
    """
    body = runs.get(name)
    if body is None:
        return None
    listed: list[dict[str, Any]] = parse_json(body)
    if not isinstance(listed, list):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{name} is not a list of files")
    return parse_outputs(
        listed, lambda each: logger.warning("in %s: %s", name, each), folder=folder
    )


def rank_folder(rank: int, own: Iterable[str] = ()) -> str:
    """Return the folder for the outputs of a rank, which differs from the names `own` of rank 0."""
    taken = {path.partition("/")[0] for path in own}
    folder = f"rank-{rank}"
    while folder in taken:
        folder += "_"
    return f"{folder}/"


def read_rank_list(
    runs: ContainerClient, run_id: str, rank: int, attempt: int, own: Sequence[str] = ()
) -> list[OutputFile]:
    """Return the files that another node exported in an attempt, or [] without a readable list.

    Args:
        runs: the container of runs.
        run_id: the run.
        rank: the rank of the node.
        attempt: the number of the attempt.
        own: names of outputs of rank 0.
    """
    name = RunPaths(run_id, rank).attempt_outputs(attempt)
    try:
        return list(read_list(runs, name, rank_folder(rank, own)) or ())
    except (StorageRequestError, *DAMAGED) as err:
        logger.warning("the outputs of rank %d are not known: %s", rank, err)
        return []


def _is_unreachable(err: Exception) -> bool:
    """Return True if storage could not be reached, so that other files would fail too."""
    return isinstance(err, StorageRequestError) and not 400 <= err.status < 500


def _starts_with(parts: Sequence[str], globs: Sequence[str]) -> bool:
    """Return True if the globs match the first parts of a path."""
    if not globs:
        return True
    if globs[0] == "**":
        return any(_starts_with(parts[skipped:], globs[1:]) for skipped in range(len(parts)))
    return bool(parts) and fnmatchcase(parts[0], globs[0]) and _starts_with(parts[1:], globs[1:])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _unreadable(name: str, why: str) -> StageFailedError:
    return StageFailedError(STEP, "OutputUnreadable", f"cannot export {name!r}: {why}")


def _raise_unreadable(err: OSError) -> None:
    raise _unreadable(stored_path(str(err.filename)), err.strerror or str(err)) from err


def _files(output_dir: Path) -> Iterator[Path]:
    if not output_dir.is_dir():
        return
    for folder, folders, names in os.walk(output_dir, onerror=_raise_unreadable):
        for name in folders:
            if (Path(folder) / name).is_symlink():
                logger.warning("not exported: %s is a link to a folder", Path(folder, name))
        for name in names:
            path = Path(folder) / name
            if path.is_file():  # a link to a file is exported as a file
                yield path
            else:
                logger.warning("not exported: %s is not a file", path)


def _matches(output_dir: Path, pattern: str) -> bool:
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        return False
    try:
        hits = list(output_dir.glob(pattern))
    except ValueError:  # not a valid pattern
        return False
    return any(hit.is_file() or any(below.is_file() for below in hit.rglob("*")) for hit in hits)


FINISHED_FILE = "finished.json"  # in the task's working directory


class FinishedScript:
    """The record, in a task's folder, that the script of an earlier attempt succeeded there.

    If the export fails because of storage, or the agent is killed during it, the next attempt in
    that folder only exports. A node that was restarted may have lost unsynced writes: there the
    script runs again. Create an instance before the attempt clears the folders.

    Attributes:
        attempt: the number of that attempt, whose outputs are still in the folder. It is None if
            the script has to run.
        environment: the folder of its Python environment.
        metrics: the last values of its metrics.
        collected: the files that it wrote elsewhere, or None if the script has to run.
    """

    def __init__(self, work_dir: Path, spec: RunSpec) -> None:
        self._path = work_dir / FINISHED_FILE
        self._spec = spec
        self.attempt: int | None = None
        self.environment = Path()
        self.metrics: dict[str, MetricValue] = {}
        self.collected: Collected | None = None
        try:
            self._read(AttemptDirs.below(work_dir))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.forget()

    def _read(self, dirs: AttemptDirs) -> None:
        raw: dict[str, Any] = parse_json(self._path.read_bytes())
        if raw["of"] != self._identity() or not dirs.output.is_dir():
            raise ValueError("the record is of another run, or older than the start of the node")
        environment, collected = Path(raw["environment"]), Collected.from_json(raw["collected"])
        # The agent may have written the record before it had read the last metrics.
        last = last_metrics(dirs.metrics, dirs.stdout, self._spec, any_form=raw["printed"])
        metrics, attempt = {**raw["metrics"], **last}, int(raw["attempt"])
        self.attempt, self.environment = attempt, environment
        self.metrics, self.collected = metrics, collected

    def _identity(self) -> list[str]:
        """Return what the record is valid for: the run, its code and this start of the node."""
        return [self._spec.run_id, self._spec.code.sha256, boot_id()]

    def save(self, attempt: int, environment: Path, collected: Collected, streams: Streams) -> None:
        """Record that the script succeeded. A failure to write is only logged."""
        if self._spec.nodes > 1:
            return  # the script on another node may still fail
        try:
            document = {
                "of": self._identity(),
                "attempt": attempt,
                "environment": str(environment),
                "metrics": streams.metrics.last(),
                "collected": collected.to_json(),
                "printed": streams.is_searched,
            }
            part = self._path.with_suffix(".part")
            part.unlink(missing_ok=True)  # the script may have made it a link
            with part.open("x", encoding="utf-8") as file:
                file.write(json.dumps(document))
            part.replace(self._path)
        except OSError as err:
            logger.warning("an attempt after this one would run the script again: %s", err)

    def forget(self) -> None:
        """Remove the record, so that the next attempt runs the script."""
        self.attempt = None
        try:
            self._path.unlink(missing_ok=True)
        except OSError as err:
            logger.warning("%s cannot be removed: %s", self._path, err)
