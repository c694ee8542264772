"""Upload some outputs while the script runs, so that they are kept if the node is lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from pathlib import Path

from runner.node.script.outputs import write_list
from runner.node.storage.blobs import ContainerClient
from runner.protocol.paths import RunPaths
from runner.protocol.results import OutputFile

logger = logging.getLogger(__name__)

POLL_S = 1.0
PAUSE_S = 2.0  # after an upload
FINISH_S = 5.0  # time limit for an upload that is under way when the script ends


class LiveOutputs(threading.Thread):
    """Uploads each of the files whenever the script has replaced it.

    The script must replace the files atomically. They are listed as outputs of the attempt, so that
    the next attempt keeps those that it does not write itself.
    """

    def __init__(
        self,
        runs: ContainerClient,
        blobs: RunPaths,
        attempt: int,
        folder: Path,
        names: Sequence[str],
    ) -> None:
        super().__init__(name="live outputs", daemon=True)
        self._runs = runs
        self._prefix = blobs.output(attempt)
        self._list = blobs.attempt_outputs(attempt)
        self._folder = folder
        self._names = names
        self._seen: dict[str, tuple[int, ...]] = {}
        self._stored: dict[str, OutputFile] = {}
        self._ending = threading.Event()

    def run(self) -> None:
        """Thread body: check the files until `finish`."""
        while not self._ending.wait(POLL_S):
            try:
                if self.upload_changed():
                    self._ending.wait(PAUSE_S)
            except Exception as err:  # noqa: BLE001 - the export at the end uploads them too
                logger.warning("outputs are not stored while the script runs: %s", err)
                self._ending.wait(PAUSE_S)

    def finish(self) -> None:
        """Stop. The export uploads the last version."""
        self._ending.set()
        if self.is_alive():
            self.join(FINISH_S)

    def upload_changed(self) -> bool:
        """Upload the files that changed since the last time. Return True if there were any.

        Raises:
            StorageRequestError: storage refused a file or did not answer. The next call retries.
        """
        found = {name: state for name in self._names if (state := self._state(name))}
        changed = [name for name, state in found.items() if self._seen.get(name) != state]
        for name in changed:
            try:
                size, sha256 = self._runs.put_file(self._prefix + name, self._folder / name)
            except OSError:
                continue  # it was removed meanwhile
            self._seen[name] = found[name]
            self._stored[name] = OutputFile(name, size, sha256)
        if changed:
            write_list(self._runs, self._list, list(self._stored.values()))
        return bool(changed)

    def _state(self, name: str) -> tuple[int, ...] | None:
        try:
            file = (self._folder / name).stat()
        except OSError:
            return None
        return file.st_ino, file.st_mtime_ns, file.st_size
