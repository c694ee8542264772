"""Adapter for `tf.train.CheckpointManager`: keeps a copy of its folder, and restores it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from runner.hooks.automatic import place

_STATE = "checkpoint"  # the file that lists the others
_folders: dict[str, Path] = {}  # the folder of the copy, by folder of a manager


def prepare(bound: Any) -> Callable[[], None] | None:
    """Restore the folder of a new manager, and copy it after `save`."""
    given: dict[str, Any] = bound.arguments
    if "directory" in given:
        _restore(str(given["directory"]))
        return None
    kept = _folders.get(str(given["self"].directory))
    return None if kept is None else lambda: _keep(given["self"], kept)


def _restore(directory: str) -> None:
    base = None if "://" in directory or place.is_inside(directory) else place.process_folder()
    if base is None:
        return
    kept = base / f"tensorflow-{place.digest(place.portable_path(directory))}"
    _folders[directory] = kept
    what = f"the folder {directory} of tf.train.CheckpointManager"
    resumed = (kept / _STATE).exists() and not Path(directory, _STATE).exists()
    if resumed:
        place.mirror(kept, Path(directory), _STATE, {path.name for path in kept.iterdir()})
    place.say_start(what, "with what it held when the run was evicted" if resumed else "")


def _keep(manager: Any, kept: Path) -> None:
    folder = Path(manager.directory)
    prefixes = tuple(f"{os.path.basename(path)}." for path in manager.checkpoints)  # noqa: PTH119
    names = {path.name for path in folder.iterdir() if path.name.startswith(prefixes)}
    if (folder / _STATE).exists():
        place.mirror(folder, kept, _STATE, names | {_STATE})
