"""Where the emulator has the folders of tasks: in the home, or outside if tasks cannot reach it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from runner.core.home import HomePaths

# As root, the emulator has folders of tasks here if tasks cannot reach the home (isolation.py).
# Each has a record of its data dir, which the emulator locks while it runs.
OUTSIDE = Path("/var/lib/batch-emulator")
CLAIM = "data-dir"


def task_folder(paths: HomePaths) -> Path:
    """Return the folder with the nodes of this home."""
    link = paths.batch_data / "outside"
    return link.readlink() if link.is_symlink() else paths.batch_data


def find_claims() -> Iterator[tuple[Path, Path | None]]:
    """Yield the folders in OUTSIDE and their data dirs; an earlier version recorded none."""
    with suppress(OSError):  # there is none, or it belongs to root
        for folder in sorted(OUTSIDE.iterdir()):
            if folder.is_symlink():  # not ours; what it refers to must not be deleted
                continue
            data: Path | None = None
            with suppress(OSError):
                data = Path(os.fsdecode((folder / CLAIM).read_bytes()))
            yield folder, data if data is not None and data.is_absolute() else None


def folders_outside(paths: HomePaths) -> list[Path]:
    """Return the folders of this home in OUTSIDE, also after a reset, which keeps their cache."""
    own = Path(os.path.realpath(paths.batch_data))
    return [folder for folder, data in find_claims() if data == own]
