"""Warn about checkpoints on worker nodes, which are not committed.

Unless `checkpoints.sharded` is set, a checkpoint contains only the folder of rank 0
(docs/run-format.md). The warning appears early, while the run can still be changed.
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
from runner.protocol.host import format_size

WATCH_INTERVAL_S = 5.0
_TOO_MANY = f"more than {MAX_FILES:,} files"


class CheckpointWatch(threading.Thread):
    """Calls `report` once, after the script has written to its checkpoint folder.

    It is a context manager. Enter it after the checkpoint was restored.
    """

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        super().__init__(name="checkpoint folder", daemon=True)
        self._folder = folder
        self._report = report
        self._before: Mapping[str, FileState] | None = None  # None if there are too many files
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
                if amount := self._describe_new():
                    self._report(
                        f"{amount} in $RUNNER_CHECKPOINT_DIR of this node are in no "
                        "checkpoint: only rank 0 commits checkpoints"
                    )
                    return

    def _describe_new(self) -> str:
        """Return the number and size of new files as text, or an empty string."""
        before = self._before or {}
        try:
            now = list_folder(self._folder).files
        except TooManyFilesError:
            return _TOO_MANY
        new = {path: file for path, file in now.items() if before.get(path) != file}
        size, count = FolderListing(new).size_bytes, len(new)
        return f"{count} file{'s'[: count > 1]} ({format_size(size)})" if new else ""
