"""Save and load states atomically, and read and set random states.

FOLDER/state-00000012/manifest.json    name, size and SHA-256 of every other file
FOLDER/state-00000012/...              the files of the caller
FOLDER/.saving-<pid>-<n>/              a state being written; never read
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import logging
import os
import pickle
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

FOLDER_VARIABLE = "RUNNER_CHECKPOINT_DIR"
MANIFEST = "manifest.json"
_FORMAT = 1
_UNFINISHED = ".saving-"
_CHUNK_BYTES = 1024 * 1024
_SETTLED_NS = 2_000_000_000

_numbers = itertools.count()
_own_unfinished: set[str] = set()  # names of unfinished states of this process


class TornStateError(Exception):
    """A state is incomplete or damaged; the message has the reason."""


class SaveError(OSError):
    """A state could not be saved; earlier states are unchanged."""


def default_folder() -> Path | None:
    """Return the run's checkpoint folder, or None if the script is not part of a run."""
    given = os.environ.get(FOLDER_VARIABLE)
    return Path(given) if given else None


class StateFolder:
    """The states of one `kind` in a folder.

    The last `keep` states are retained, but at least two, because the newest may be damaged.
    """

    def __init__(self, path: str | os.PathLike[str], keep: int = 2, *, kind: str = "state") -> None:
        self._path = Path(path)
        self._keep = max(keep, 2)
        self._prefix = f"{kind}-"
        self._is_tidy = False

    def save(self, write: Callable[[Path], None]) -> Path:
        """Save the files that `write` creates in the folder that is its argument.

        Returns:
            The folder of the state, which survives a crash of the machine.

        Raises:
            SaveError: the state cannot be written.
        """
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._remove_unfinished()
            final = self._write(write)
        except OSError as err:
            why = err.strerror or str(err)
            raise SaveError(
                err.errno, f"the state could not be saved in {self._path}: {why}"
            ) from err
        self._remove_old(final)
        return final

    def try_save(self, write: Callable[[Path], None]) -> bool:
        """Save as `save` does, and return True. If that fails, log a warning and return False.

        The last state still exists then, so the training can continue.
        """
        try:
            self.save(write)
        except SaveError as err:
            logger.warning("%s; the training continues", err)
            return False
        return True

    def newest(self) -> Path | None:
        """Return the newest complete state, or None. Log a warning for each damaged one."""
        for state in reversed(self._states()):
            try:
                check_state(state)
            except TornStateError as err:
                logger.warning("%s is skipped: %s", state.name, err)
            else:
                return state
        return None

    def _write(self, write: Callable[[Path], None]) -> Path:
        unfinished = self._path / f"{_UNFINISHED}{os.getpid()}-{next(_numbers)}"
        _own_unfinished.add(unfinished.name)
        try:
            unfinished.mkdir()
            write(unfinished)
            _seal(unfinished)
            return self._publish(unfinished)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
        finally:
            _own_unfinished.discard(unfinished.name)

    def _states(self) -> list[Path]:
        numbered: list[tuple[int, Path]] = []
        if self._path.is_dir():
            for entry in self._path.iterdir():
                number = entry.name[len(self._prefix) :]
                if entry.name.startswith(self._prefix) and number.isdecimal():
                    numbered.append((int(number), entry))
        return [entry for _, entry in sorted(numbered)]

    def _publish(self, unfinished: Path) -> Path:
        states = self._states()
        number = int(states[-1].name[len(self._prefix) :]) + 1 if states else 1
        while True:
            final = self._path / f"{self._prefix}{number:08d}"
            # The rename fails if another process has created this state.
            with contextlib.suppress(FileExistsError):
                if not final.exists():
                    _rename(unfinished, final)
                    _sync(self._path)
                    return final
            number += 1

    def _remove_old(self, newest: Path) -> None:
        states = [state for state in self._states() if state != newest]
        for state in states[: -(self._keep - 1)]:
            with contextlib.suppress(OSError):  # without its manifest it does not count as a state
                (state / MANIFEST).unlink(missing_ok=True)
            shutil.rmtree(state, ignore_errors=True)

    def _remove_unfinished(self) -> None:
        """Delete unfinished states of killed processes, which may have run on another node."""
        if self._is_tidy:
            return
        self._is_tidy = True
        for entry in self._path.glob(f"{_UNFINISHED}*"):
            pid = entry.name[len(_UNFINISHED) :].partition("-")[0]
            others = pid.isdecimal() and int(pid) != os.getpid() and _is_alive(int(pid))
            if not others and entry.name not in _own_unfinished:
                shutil.rmtree(entry, ignore_errors=True)


def check_state(state: Path) -> None:
    """Compare the files with the manifest. Raise TornStateError."""
    try:
        manifest: dict[str, Any] = json.loads((state / MANIFEST).read_bytes())
        if manifest["format"] != _FORMAT:
            raise TornStateError(f"its format is {manifest['format']}, not {_FORMAT}")
        for entry in manifest["files"]:
            path = state / entry["name"]
            if path.stat().st_size != entry["size_bytes"]:
                raise TornStateError(f"{entry['name']} has another size than when it was saved")
            if _sha256(path) != entry["sha256"]:
                raise TornStateError(f"{entry['name']} has other content than when it was saved")
    except FileNotFoundError as err:
        raise TornStateError(f"{Path(err.filename or state).name} is missing") from err
    except (OSError, ValueError, KeyError, TypeError) as err:
        raise TornStateError(f"it cannot be read: {type(err).__name__}: {err}") from err


def _seal(folder: Path) -> None:
    """Write the manifest, and flush all files to disk."""
    files: list[dict[str, Any]] = []
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        _settle(path)
        files.append({"name": name, "size_bytes": path.stat().st_size, "sha256": _sha256(path)})
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"format": _FORMAT, "files": files}), encoding="utf-8")
    _settle(manifest)
    for inner in folder.rglob("*"):
        if inner.is_dir():
            _sync(inner)
    _sync(folder)


def _settle(path: Path) -> None:
    """Flush a file to disk, and set its time back.

    If the script is killed, the agent treats files written in the last second as incomplete.
    """
    then = time.time_ns() - _SETTLED_NS
    os.utime(path, ns=(then, then))
    _sync(path)


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def _rename(unfinished: Path, final: Path) -> None:
    try:
        unfinished.rename(final)
    except OSError as err:
        if final.exists():  # ENOTEMPTY or EEXIST, depending on the file system
            raise FileExistsError(err.errno, err.strerror, str(final)) from err
        raise


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source:
        while chunk := source.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as err:
        return isinstance(err, PermissionError)
    return True


FILE = "state.pickle"

_folders: dict[tuple[Path, int], StateFolder] = {}


def load_state(folder: str | os.PathLike[str] | None = None) -> Any:
    """Return the value that was saved last, or None.

    A state is a pickle: load only states that you or your runs have saved.

    Args:
        folder: the folder of the states; by default $RUNNER_CHECKPOINT_DIR.
    """
    path = Path(folder) if folder is not None else default_folder()
    return None if path is None else read_state(StateFolder(path))


def read_state(states: StateFolder) -> Any:
    """Return the value of the newest complete state, or None."""
    newest = states.newest()
    if newest is None:
        return None
    with (newest / FILE).open("rb") as source:
        return pickle.load(source)  # noqa: S301 - it is the run's own folder


def save_state(
    state: Any, folder: str | os.PathLike[str] | None = None, *, keep: int = 2
) -> Path | None:
    """Save a value that can be pickled, completely or not at all.

    Args:
        state: the value.
        folder: the folder of the states; by default $RUNNER_CHECKPOINT_DIR.
        keep: how many states to retain, at least two.

    Returns:
        The folder of the state. None without a folder, for example if the script is not in a run.

    Raises:
        SaveError: the state cannot be written.
    """
    path = Path(folder) if folder is not None else default_folder()
    if path is None:
        return None
    path = path.absolute()
    states = _folders.setdefault((path, keep), StateFolder(path, keep))
    return states.save(lambda inside: write_state(inside, state))


def write_state(folder: Path, state: Any) -> None:
    """Write the value as the only file of a state."""
    with (folder / FILE).open("wb") as out:
        pickle.dump(state, out, protocol=pickle.HIGHEST_PROTOCOL)


def random_states() -> dict[str, Any]:
    """Return the random states of Python and of imported libraries, by name."""
    states: dict[str, Any] = {"python": random.getstate()}
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_available():
            states["cuda"] = torch.cuda.get_rng_state_all()
    return states


def restore_random_states(states: dict[str, Any]) -> None:
    """Set the generators to the states that `random_states` returned."""
    random.setstate(states["python"])
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and "numpy" in states:
        numpy.random.set_state(states["numpy"])
    torch: Any = sys.modules.get("torch")
    if "torch" not in states or not hasattr(torch, "set_rng_state"):
        return
    torch.set_rng_state(states["torch"])
    cuda: list[Any] = states.get("cuda", [])
    if torch.cuda.is_available() and len(cuda) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(cuda)
