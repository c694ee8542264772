"""Checkpoints of scripts on worker nodes, which nobody commits.

A checkpoint is one state of one folder (docs/run-format.md). Shards on several nodes are several
folders, so a warning appears while the run can still be changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from runner.node.checkpoints.snapshot import (
    MAX_FILES,
    FileState,
    FolderListing,
    TooManyFilesError,
    list_folder,
)
from runner.protocol.encoding import format_size

WATCH_INTERVAL_S = 5.0
_MANY = f"more than {MAX_FILES:,} files"


class CheckpointWatch(threading.Thread):
    """Calls `report` once, after the script has written to its checkpoint folder.

    A context manager, to be entered after the restore.
    """

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        super().__init__(name="checkpoint folder", daemon=True)
        self._folder = folder
        self._report = report
        self._before: Mapping[str, FileState] | None = None  # None: too many to compare
        with suppress(TooManyFilesError):
            self._before = list_folder(folder).files
        self._stopped = threading.Event()

    def __enter__(self) -> CheckpointWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, after a last check."""
        self._stopped.set()
        self.join()

    def run(self) -> None:
        """Thread body."""
        more = self._before is not None
        while more:
            more = not self._stopped.wait(WATCH_INTERVAL_S)
            with suppress(OSError):
                if amount := self._new():
                    self._report(
                        f"{amount} in $RUNNER_CHECKPOINT_DIR of this node are in no "
                        "checkpoint: only rank 0 commits checkpoints"
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
    count = len(found.files)
    return f"{count} file{'s'[: count > 1]} ({format_size(found.size_bytes)})"
