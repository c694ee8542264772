"""What scripts on other nodes than the primary's wrote: outputs are kept, checkpoints are not.

A checkpoint is one state of one folder (docs/run-format.md): shards on several nodes are several
folders, and whoever writes them is told so while the run can still be changed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.node.checkpoints.snapshot import (
    MAX_FILES,
    FileState,
    FolderListing,
    TooManyFilesError,
    list_folder,
)
from runner.node.script.outputs import OutputFile
from runner.node.storage.blobs import ContainerClient
from runner.protocol.encoding import parse_json

WATCH_INTERVAL_S = 5.0
_MANY = f"more than {MAX_FILES:,} files"


def rank_folder(rank: int, own: Sequence[OutputFile]) -> str:
    """Where the outputs of a rank go, which rank 0 has not written to itself."""
    taken = {output.path.partition("/")[0] for output in own}
    folder = f"rank-{rank}"
    while folder in taken:
        folder += "_"
    return f"{folder}/"


def write_list(runs: ContainerClient, name: str, outputs: Sequence[OutputFile]) -> None:
    """For the primary, which has the run's result to write."""
    runs.put(name, json.dumps([output.to_json() for output in outputs]).encode())


def read_list(runs: ContainerClient, name: str, folder: str) -> list[OutputFile]:
    """What `write_list` wrote, as files of the run's outputs. Raises ValueError."""
    listed: list[dict[str, Any]] = parse_json(runs.get(name) or b"null")
    if not isinstance(listed, list):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"{name} is no list of files")
    return [
        OutputFile(folder + str(one["path"]), int(one["size_bytes"]), str(one["sha256"]))
        for one in listed
    ]


def describe_unsaved(folder: Path, variable: str, why: str) -> str:
    """What is in a folder and stays there, in a sentence; empty where there is nothing."""
    amount = ""
    try:
        found = list_folder(folder)
        amount = _amount(found) if found.files else ""
    except TooManyFilesError:
        amount = _MANY
    except OSError:
        pass
    return f"{amount} in ${variable} are not kept: {why}" if amount else ""


class CheckpointWatch(threading.Thread):
    """Calls `tell` once, when the script has written to its checkpoint folder. A context manager.

    The folder holds what was restored, when the watch begins.
    """

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        super().__init__(name="checkpoint folder", daemon=True)
        self._folder = folder
        self._report = report
        self._before: Mapping[str, FileState] | None = None  # too many to say what is new
        with suppress(TooManyFilesError):
            self._before = list_folder(folder).files
        self._over = threading.Event()

    def __enter__(self) -> CheckpointWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """After a last look."""
        self._over.set()
        self.join()

    def run(self) -> None:
        """Thread body."""
        more = self._before is not None
        while more:
            more = not self._over.wait(WATCH_INTERVAL_S)
            with suppress(OSError):
                if amount := self._new():
                    self._report(
                        f"{amount} in $RUNNER_CHECKPOINT_DIR of this node are in no "
                        "checkpoint: only those of rank 0 are"
                    )
                    return

    def _new(self) -> str:
        before = self._before or {}
        try:
            now = list_folder(self._folder).files
        except TooManyFilesError:
            return _MANY
        new = {path: file for path, file in now.items() if before.get(path) != file}
        return _amount(FolderListing(new)) if new else ""


def _amount(found: FolderListing) -> str:
    count, size = len(found.files), float(found.size_bytes)
    unit = "bytes"
    for larger in ("kB", "MB", "GB"):
        if size < 1000:
            break
        size, unit = size / 1000, larger
    return f"{count} file{'s'[: count > 1]} ({size:.3g} {unit})"
