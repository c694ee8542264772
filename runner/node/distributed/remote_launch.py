"""Start the daemons of `mpirun` on the other nodes, over the connections between the agents.

On rank 0, `mpirun` runs the program `plm_rsh_agent` (see `launchers`) instead of ssh, because nodes
accept no SSH connections from each other. The program writes `request.*.ready`, and waits.
`LaunchRequests` sends the request to the agent of the other node. There, `LaunchedCommands` starts
the command as part of the script, and reports its exit code, with which the program ends.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

POLL_S = 0.05
UNKNOWN_HOST_CODE = 255  # the same as ssh
READY, ENDED = ".ready", ".ended"
START, CODE, FINISH = ".start", ".code", "finish"


class LaunchRequests(threading.Thread):
    """On rank 0: passes requests of mpirun to `send` while a block runs.

    Args:
        folder: where the program `plm_rsh_agent` writes its requests.
        send: receives the address, the name of the request and the command. It returns False if the
            address is not that of another node, or that node is lost.
    """

    def __init__(self, folder: Path, send: Callable[[str, str, str], bool]) -> None:
        super().__init__(name="launch requests", daemon=True)
        self._folder = folder
        self._send = send
        self._stopped = threading.Event()

    def run(self) -> None:
        """Thread body."""
        while not self._stopped.wait(POLL_S):
            for path in self._folder.glob(f"request.*{READY}"):
                name = path.name.removesuffix(READY)
                with suppress(OSError):
                    host, _, command = path.read_text(encoding="utf-8").partition("\n")
                    path.unlink()
                    if not self._send(host, name, command.strip()):
                        logger.warning("mpirun starts a process on %s: not a node of the run", host)
                        self.end(name, UNKNOWN_HOST_CODE)

    def end(self, name: str, code: int) -> None:
        """Pass the exit code of a launched command to the program that requested it."""
        with suppress(OSError):
            _write(self._folder / f"{Path(name).name}{ENDED}", f"{code}\n")

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self._stopped.set()


class LaunchedCommands(threading.Thread):
    """On another rank: lets the script start commands, and passes their exit codes to `report`."""

    def __init__(self, folder: Path, report: Callable[[str, int], None]) -> None:
        super().__init__(name="launched commands", daemon=True)
        self._folder = folder
        self._report = report
        self._stopped = threading.Event()

    def start_command(self, name: str, command: str) -> None:
        """Start a command that `mpirun` on rank 0 requested."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)  # this node may start later than rank 0
            _write(self._folder / f"{Path(name).name}{START}", f"{command}\n")
        except OSError as err:
            logger.warning("cannot start a command of mpirun: %s", err)
            self._report(name, UNKNOWN_HOST_CODE)

    def finish(self) -> None:
        """Let the script end when its commands have ended, because rank 0 starts no more."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            _write(self._folder / FINISH, "")

    def run(self) -> None:
        """Thread body: until `stop`."""
        stopped = False
        while not stopped:
            stopped = self._stopped.wait(POLL_S)
            for path in self._folder.glob(f"*{CODE}"):
                with suppress(OSError, ValueError):
                    code = int(path.read_text(encoding="ascii"))
                    path.unlink()
                    self._report(path.name.removesuffix(CODE), code)

    def stop(self) -> None:
        """Stop after a last search for exit codes."""
        self._stopped.set()


def _write(path: Path, text: str) -> None:
    """Create a file atomically, so that readers never see a part of it. Raise OSError."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)  # noqa: PTH105 - clearer
