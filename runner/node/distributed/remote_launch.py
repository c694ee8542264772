"""Start the daemons of `mpirun` on the other nodes, over the connections between the agents.

On rank 0, `mpirun` runs the program of `plm_rsh_agent` (`launchers`) instead of ssh. That writes
`request.*.ready`, which `LaunchRequests` sends to the agent of the node. There `LaunchedCommands`
starts it as part of the script, and reports its exit code, which ends the program. No node accepts
SSH from another one.
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
UNKNOWN_HOST_CODE = 255  # as ssh
READY, ENDED = ".ready", ".ended"
START, CODE, FINISH = ".start", ".code", "finish"


class LaunchRequests(threading.Thread):
    """On rank 0: passes requests of mpirun to `send`, until `stop`.

    Args:
        folder: where the program of `plm_rsh_agent` writes its requests.
        send: receives address, name of the request and command; returns False if the address is not
            that of another node, or its node is lost.
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
        """Report the end of a launched command to the program that asked for it."""
        with suppress(OSError):
            _write(self._folder / f"{Path(name).name}{ENDED}", f"{code}\n")

    def stop(self) -> None:
        """Stop passing requests."""
        self._stopped.set()


class LaunchedCommands(threading.Thread):
    """On another rank: lets the script start commands, and reports their ends by `report`."""

    def __init__(self, folder: Path, report: Callable[[str, int], None]) -> None:
        super().__init__(name="launched commands", daemon=True)
        self._folder = folder
        self._report = report
        self._stopped = threading.Event()

    def start_command(self, name: str, command: str) -> None:
        """Start a command that `mpirun` of rank 0 asked for."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)  # this node may start later than rank 0
            _write(self._folder / f"{Path(name).name}{START}", f"{command}\n")
        except OSError as err:
            logger.warning("cannot start what mpirun asked for: %s", err)
            self._report(name, UNKNOWN_HOST_CODE)

    def finish(self) -> None:
        """Let the script end when its commands have ended: rank 0 starts no others."""
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
        """Stop after a last look."""
        self._stopped.set()


def _write(path: Path, text: str) -> None:
    """Create a file whose readers never see a part of it. Raise OSError."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)  # noqa: PTH105 - says what it is
