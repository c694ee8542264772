"""Sharded checkpoints: every rank writes its part of the state, and one manifest commits them all.

The ranks save at slightly different times. To avoid parts of different steps, a checkpoint is
committed only if the newest folder in the checkpoint folder of every rank has the same name, such
as `step-200`, and no rank is writing.
"""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from runner.node.checkpoints.snapshot import (
    FolderListing,
    Snapshotter,
    UnsettledError,
    list_folder,
)
from runner.node.checkpoints.store import CheckpointStore

SETTLE_S = 5.0
RETRY_S = 0.1


@dataclass(frozen=True)
class ShardReport:
    """A shard that a rank uploaded: the blob of its manifest, and the name of its newest folder."""

    blob: str
    generation: str


def find_generation(listing: FolderListing) -> str:
    """Return the name of the newest folder, or "". The last number in the name decides."""
    tops = {PurePosixPath(path).parts[0] for path in listing.files if "/" in path}
    return max(tops, key=_order, default="")


def _order(name: str) -> tuple[int, str]:
    found = re.search(r"(\d+)\D*$", name)
    return (int(found[1]) if found else -1, name)


def check_generations(own: str, others: dict[int, str]) -> None:
    """Raise UnsettledError unless all ranks have the same newest folder."""
    if not own:
        raise UnsettledError(
            "sharded checkpoints need one folder per checkpoint, with the same name on all "
            "ranks, such as $RUNNER_CHECKPOINT_DIR/step-200"
        )
    for rank, name in sorted(others.items()):
        if name != own:
            raise UnsettledError(
                f"rank 0 has {own!r}, rank {rank} has {name or 'no folder'!r}: not of one step"
            )


class ShardWriter:
    """Uploads the checkpoint folder of a worker when the primary requests it.

    Args:
        folder: the checkpoint folder.
        held: a folder on the same disk for the files of snapshots.
        store: the run's checkpoints in blob.
    """

    def __init__(self, folder: Path, held: Path, store: CheckpointStore) -> None:
        self._snapshots = Snapshotter(folder, held)
        self._store = store

    def write(self, number: int) -> ShardReport:
        """Upload a snapshot and its manifest. `number` is that of the primary's request.

        Raises:
            UnsettledError: the folder keeps changing.
            TooManyFilesError: the folder has too many files.
            StorageRequestError: storage refused a request or did not answer.
            OSError: a file cannot be read.
        """
        until = time.monotonic() + SETTLE_S
        while True:
            listing = list_folder(self._snapshots.folder)
            try:
                snapshot = self._snapshots.take(listing)
                body = self._store.upload(snapshot, number)
                break
            except UnsettledError:
                if time.monotonic() > until:
                    raise
            time.sleep(RETRY_S)
        self._snapshots.keep_only(snapshot)
        digest = hashlib.sha256(body).hexdigest()
        return ShardReport(self._store.put_file(digest, body), find_generation(listing))
