"""Stage export: check that every promised file exists, and upload the outputs of the script."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from runner.node.failures import StageFailedError
from runner.node.script.streams import Report
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.limits import run_watched
from runner.protocol.results import OutputFile

logger = logging.getLogger(__name__)

STEP = "export"
THREADS = 8  # small files are limited by round trips, not by bandwidth


def check_promised(output_dir: Path, promised: Sequence[str]) -> None:
    """Raise StageFailedError (OutputMissing) naming every glob that matches no file."""
    missing = [pattern for pattern in promised if not _matches(output_dir, pattern)]
    if missing:
        entries = output_dir.iterdir() if output_dir.is_dir() else ()
        found = sorted(path.name for path in entries) or ["nothing"]
        raise StageFailedError(
            STEP,
            "OutputMissing",
            f"the script did not write {', '.join(missing)} to $RUNNER_OUTPUT_DIR, which "
            f"contains {', '.join(found[:10])}",
        )


def export_outputs(
    container: ContainerClient,
    prefix: str,
    output_dir: Path,
    report: Report,
    check: Callable[[], None],
) -> list[OutputFile]:
    """Upload every file below `output_dir`. Return the files, sorted by path.

    Args:
        container: the container of runs.
        prefix: the prefix of the blobs' names.
        output_dir: the folder of the script's outputs.
        report: receives progress.
        check: is called several times a second, and may raise to stop.

    Raises:
        StageFailedError: a file cannot be read, or its name is not UTF-8.
    """
    names = sorted(path.relative_to(output_dir).as_posix() for path in _files(output_dir))
    total = sum((output_dir / name).stat().st_size for name in names)
    outputs: list[OutputFile] = []

    def check_progress(finished: Sequence[OutputFile]) -> None:
        outputs.extend(finished)
        check()
        done = sum(output.size_bytes for output in outputs)
        report("uploading outputs", done, total, "bytes")

    upload = partial(_upload, container, prefix, output_dir)
    run_watched(upload, names, check_progress, threads=THREADS, name="export")
    return sorted(outputs, key=lambda output: output.path)


def restore_outputs(
    container: ContainerClient, prefix: str, output_dir: Path, outputs: Sequence[OutputFile]
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
        if prefix + file.path in existing
        else _upload(container, prefix, output_dir, file.path)
        for file in outputs
    ]


def _upload(container: ContainerClient, prefix: str, output_dir: Path, name: str) -> OutputFile:
    try:
        size, sha256 = container.put_file(prefix + name, output_dir / name)
    except UnicodeEncodeError as err:
        raise _unreadable(name, "its name is not UTF-8") from err
    except OSError as err:
        raise _unreadable(name, err.strerror or str(err)) from err
    return OutputFile(name, size, sha256)


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
