"""Stage export: check that every promised file exists, and upload the outputs of the script."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.node.failures import StageFailedError
from runner.node.script.streams import Report
from runner.node.script.written import Collected
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import StorageRequestError
from runner.node.storage.limits import run_watched
from runner.protocol.encoding import parse_json
from runner.protocol.paths import RunPaths
from runner.protocol.results import OutputFile, parse_outputs

logger = logging.getLogger(__name__)

STEP = "export"
NOTHING_COLLECTED = Collected()
THREADS = 8  # small files are limited by round trips, not by bandwidth


def check_promised(
    output_dir: Path, promised: Sequence[str], collected: Collected = NOTHING_COLLECTED
) -> None:
    """Raise StageFailedError (OutputMissing) naming every glob that matches no file."""
    missing = [
        pattern
        for pattern in promised
        if pattern not in collected.kept_promises and not _matches(output_dir, pattern)
    ]
    if missing:
        entries = output_dir.iterdir() if output_dir.is_dir() else ()
        names = {path.name for path in entries} | {n.partition("/")[0] for n in collected.files}
        found = sorted(names) or ["nothing"]
        raise StageFailedError(
            STEP,
            "OutputMissing",
            f"the script did not write {', '.join(missing)} to its folder or $RUNNER_OUTPUT_DIR; "
            f"it wrote {', '.join(found[:10])}",
        )


def export_outputs(
    container: ContainerClient,
    prefix: str,
    output_dir: Path,
    report: Report,
    check: Callable[[], None],
    collected: Collected = NOTHING_COLLECTED,
) -> list[OutputFile]:
    """Upload every file below `output_dir`, and what was collected elsewhere.

    Args:
        container: the container of runs.
        prefix: the prefix of the blobs' names.
        output_dir: the folder of the script's outputs.
        report: receives progress.
        check: is called several times a second, and may raise to stop.
        collected: what the script wrote elsewhere.

    Returns:
        The files, sorted by path.

    Raises:
        StageFailedError: a file cannot be read, or its name is not UTF-8.
    """
    own = [path.relative_to(output_dir).as_posix() for path in _files(output_dir)]
    names = sorted([*own, *collected.files])
    total = sum((output_dir / name).stat().st_size for name in own)
    total += sum(_size(Path(path)) for path in collected.files.values())
    outputs: list[OutputFile] = []

    def upload(name: str) -> OutputFile | None:
        try:
            return _upload(container, prefix, output_dir, collected, name)
        except StageFailedError as err:
            if name not in collected.files:
                raise
            logger.warning("%s", err.message)  # nobody promised it
            return None

    def check_progress(finished: Sequence[OutputFile | None]) -> None:
        outputs.extend(file for file in finished if file is not None)
        check()
        done = sum(output.size_bytes for output in outputs)
        report("uploading outputs", done, total, "bytes")

    run_watched(upload, names, check_progress, threads=THREADS, name="export")
    return sorted(outputs, key=lambda output: output.path)


class _OutOfTimeError(Exception):
    """Nothing more is uploaded."""


def export_partial(
    container: ContainerClient,
    prefix: str,
    output_dir: Path,
    collected: Collected,
    may_continue: Callable[[], bool],
) -> list[OutputFile]:
    """Upload what a script left that did not succeed. Return what could be uploaded.

    Small files go first, unreadable ones are left out, and nothing is raised: the attempt has an
    end already.
    """
    outputs: list[OutputFile] = []

    def add(finished: Sequence[OutputFile | None]) -> None:
        outputs.extend(file for file in finished if file is not None)
        if not may_continue():
            raise _OutOfTimeError

    def upload(name: str) -> OutputFile | None:
        try:
            return _upload(container, prefix, output_dir, collected, name)
        except StageFailedError as err:
            logger.warning("%s", err.message)
            return None

    try:
        sizes = {p.relative_to(output_dir).as_posix(): _size(p) for p in _files(output_dir)}
        sizes |= {name: _size(Path(path)) for name, path in collected.files.items()}
        run_watched(
            upload, sorted(sizes, key=lambda name: sizes[name]), add, threads=THREADS, name="export"
        )
    except _OutOfTimeError:
        logger.warning("no time was left for all outputs: %d uploaded", len(outputs))
    except (StageFailedError, StorageRequestError, OSError) as err:
        logger.warning("not all outputs were uploaded: %s", err)
    return sorted(outputs, key=lambda output: output.path)


def write_list(runs: ContainerClient, name: str, outputs: Sequence[OutputFile]) -> None:
    """Store the list of the files that a node, or an attempt that was terminated, exported."""
    runs.put(name, json.dumps([output.to_json() for output in outputs]).encode())


def read_list(runs: ContainerClient, name: str) -> tuple[OutputFile, ...] | None:
    """Return the files that `write_list` stored, or None if there is no list. Raise ValueError."""
    body = runs.get(name)
    if body is None:
        return None
    listed: list[dict[str, Any]] = parse_json(body)
    if not isinstance(listed, list):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{name} is not a list of files")
    return parse_outputs(listed)


def add_earlier_outputs(
    runs: ContainerClient, blobs: RunPaths, attempt: int, outputs: Sequence[OutputFile]
) -> list[OutputFile]:
    """Copy what earlier attempts kept when they were terminated, and this one did not write.

    Returns:
        All files, sorted by path; those of an earlier attempt name it.
    """
    found = {file.path: file for file in outputs}
    for earlier in range(attempt - 1, 0, -1):
        try:
            listed = read_list(runs, blobs.attempt_outputs(earlier)) or ()
        except (ValueError, KeyError, TypeError) as err:
            logger.warning("the outputs of attempt %d are not known: %s", earlier, err)
            continue
        for file in listed:
            source = blobs.output(earlier) + file.path
            target = blobs.output(attempt) + file.path
            if file.path not in found and runs.copy(source, target, file.size_bytes):
                found[file.path] = replace(file, attempt=earlier)
    return sorted(found.values(), key=lambda file: file.path)


def restore_outputs(
    container: ContainerClient,
    prefix: str,
    output_dir: Path,
    outputs: Sequence[OutputFile],
    collected: Collected = NOTHING_COLLECTED,
) -> list[OutputFile]:
    """Upload again the files that storage has lost since the export, as after a crash.

    Raises:
        StageFailedError: a lost file is not on this node, but was on another node of the run.
    """
    if not outputs:
        return []
    existing = set(container.list_names(prefix))
    return [
        file
        if prefix + file.path in existing or file.attempt is not None
        else _upload(container, prefix, output_dir, collected, file.path)
        for file in outputs
    ]


def _upload(
    container: ContainerClient, prefix: str, output_dir: Path, collected: Collected, name: str
) -> OutputFile:
    path = collected.files.get(name) or output_dir / name
    try:
        size, sha256 = container.put_file(prefix + name, Path(path))
    except UnicodeEncodeError as err:
        raise _unreadable(name, "its name is not UTF-8") from err
    except OSError as err:
        raise _unreadable(name, err.strerror or str(err)) from err
    return OutputFile(name, size, sha256, collected.sources.get(name))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _unreadable(name: str, why: str) -> StageFailedError:
    return StageFailedError(STEP, "OutputUnreadable", f"cannot export {name!r}: {why}")


def _raise_unreadable(err: OSError) -> None:
    raise _unreadable(str(err.filename), err.strerror or str(err)) from err


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
