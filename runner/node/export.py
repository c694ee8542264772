"""Uploads what the script wrote, after checking that it kept its promises."""

from __future__ import annotations

import concurrent.futures
import hashlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from runner.node.blobs import Container
from runner.node.events import Report
from runner.node.failures import StageFailedError

logger = logging.getLogger(__name__)

STEP = "export"
THREADS = 4
POLL_S = 0.2
CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True)
class OutputFile:
    """One exported file; `path` counts from the output folder."""

    path: str
    size_bytes: int
    sha256: str

    def to_json(self) -> dict[str, str | int]:
        """As result.json lists it."""
        return asdict(self)


def check_promised(output_dir: Path, promised: Sequence[str]) -> None:
    """Raise StageFailedError (OutputMissing) naming every glob that matches no file."""
    missing = [pattern for pattern in promised if not _matches(output_dir, pattern)]
    if missing:
        found = sorted(path.name for path in output_dir.iterdir()) or ["nothing"]
        raise StageFailedError(
            STEP,
            "OutputMissing",
            f"the script promised {', '.join(missing)} in $RUNNER_OUTPUT_DIR and did not write it; "
            f"there is {', '.join(found[:10])}",
        )


def export_outputs(
    container: Container,
    prefix: str,
    output_dir: Path,
    report: Report,
    check: Callable[[], None],
) -> list[OutputFile]:
    """Upload every file below `output_dir`; `check` may raise to stop. Sorted by path."""
    paths = sorted(_files(output_dir))
    total = sum(path.stat().st_size for path in paths)
    done = 0
    outputs: list[OutputFile] = []
    pool = concurrent.futures.ThreadPoolExecutor(THREADS, thread_name_prefix="export")
    try:
        waiting = {pool.submit(_upload, container, prefix, output_dir, path) for path in paths}
        while waiting:
            finished, waiting = concurrent.futures.wait(
                waiting, POLL_S, concurrent.futures.FIRST_COMPLETED
            )
            for future in finished:
                outputs.append(future.result())
                done += outputs[-1].size_bytes
            check()
            report("uploading outputs", done, total, "bytes")
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return sorted(outputs, key=lambda output: output.path)


def _upload(container: Container, prefix: str, output_dir: Path, path: Path) -> OutputFile:
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as source:
        while chunk := source.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    name = path.relative_to(output_dir).as_posix()
    container.put_file(prefix + name, path, size)
    return OutputFile(name, size, digest.hexdigest())


def _files(output_dir: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(output_dir):
        for name in folders:
            if (Path(folder) / name).is_symlink():
                logger.warning("not exported: %s is a link to a folder", Path(folder, name))
        for name in names:
            path = Path(folder) / name
            if path.is_file():  # a link to a file is exported as that file
                yield path
            else:
                logger.warning("not exported: %s is not a file", path)


def _matches(output_dir: Path, pattern: str) -> bool:
    if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
        return False
    try:
        hits = list(output_dir.glob(pattern))
    except ValueError:  # not a pattern: nothing can match it
        return False
    return any(hit.is_file() or any(below.is_file() for below in hit.rglob("*")) for hit in hits)
