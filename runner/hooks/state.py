"""For any script: save a value, load the newest that was saved whole."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

from runner.hooks.files import StateFolder, default_folder

FILE = "state.pickle"

_folders: dict[tuple[Path, int], StateFolder] = {}


def load_state(folder: str | os.PathLike[str] | None = None) -> Any:
    """The value saved last, None when there is none.

    `folder` is $RUNNER_CHECKPOINT_DIR unless given. A state is a pickle: load only what you or
    your runs have saved.
    """
    place = Path(folder) if folder is not None else default_folder()
    newest = StateFolder(place).newest() if place is not None else None
    if newest is None:
        return None
    with (newest / FILE).open("rb") as source:
        return pickle.load(source)  # noqa: S301 - from the run's own folder, as its code is


def save_state(
    state: Any, folder: str | os.PathLike[str] | None = None, *, keep: int = 2
) -> Path | None:
    """Save a value (anything that pickles), whole or not at all; the last `keep` stay.

    Where is `load_state`'s folder; without one nothing happens, so that the script runs by hand
    too. Raises SaveError when the disk does not take it.
    """
    place = Path(folder) if folder is not None else default_folder()
    if place is None:
        return None
    place = place.absolute()
    states = _folders.setdefault((place, keep), StateFolder(place, keep))
    return states.save(lambda inside: write_state(inside, state))


def write_state(folder: Path, state: Any) -> None:
    """Write the value as the one file of a state."""
    with (folder / FILE).open("wb") as out:
        pickle.dump(state, out, protocol=pickle.HIGHEST_PROTOCOL)
