"""Upload some outputs while the script runs, so that they are kept if the node is lost."""

from __future__ import annotations

import logging
import threading

from runner.node.script.context import AttemptContext
from runner.node.script.outputs import write_list
from runner.protocol.results import OutputFile

logger = logging.getLogger(__name__)

POLL_S = 1.0
PAUSE_S = 2.0  # after an upload
FINISH_S = 5.0  # time limit for an upload that is under way when the script ends


class LiveOutputs(threading.Thread):
    """Uploads each of the files whenever the script has replaced it, while a block runs.

    The script must replace the files atomically. They are listed as outputs of the attempt, so that
    the next attempt keeps those that it does not write itself.
    """

    def __init__(self, context: AttemptContext) -> None:
        super().__init__(name="live outputs", daemon=True)
        self._runs = context.runs
        self._prefix = context.paths.output(context.number)
        self._list = context.paths.attempt_outputs(context.number)
        self._folder = context.dirs.output
        self._names = context.spec.live_outputs
        self._seen: dict[str, tuple[int, ...]] = {}
        self._stored: dict[str, OutputFile] = {}
        self._ending = threading.Event()

    def run(self) -> None:
        """Thread body: check the files until the block ends."""
        while not self._ending.wait(POLL_S):
            try:
                if self.upload_changed():
                    self._ending.wait(PAUSE_S)
            except Exception as err:  # noqa: BLE001 - the export at the end uploads them too
                logger.warning("outputs are not stored while the script runs: %s", err)
                self._ending.wait(PAUSE_S)

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        """Stop. The export uploads the last version."""
        self._ending.set()
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
