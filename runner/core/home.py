"""Paths below RUNNER_HOME. One class makes all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from runner.protocol.errors import ExitCode, RunnerError

_STACK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class HomePaths:
    """Files and folders of one installation; none of them is created."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.local = home / "local"  # state of the local services
        self.keys = self.local / "keys.json"  # their account keys, readable by the owner only
        self.local_outputs = self.local / "outputs.json"  # their StackOutputs
        self.local_state = self.local / "state.json"  # their ports, sizes and process IDs
        self.logs = self.local / "logs"
        self.batch_data = self.local / "batch"  # of the emulator: its database and its nodes
        self.blob_data = self.local / "blob"  # of Azurite
        # Held while the local services are started, stopped or changed.
        self.local_lock = home / "local.lock"
        self.cache = home / "cache"  # packages, shared by nodes and kept when they are deleted
        self.ssh = home / "ssh"  # keys of nodes, a folder each, removed when the shell ends
        self.export_lock = home / "export.lock"  # held while a run is exported
        self.tensorboard = home / "tensorboard"  # event files by process; may be deleted
        self.prices = home / "prices.csv"  # fetched after the packaged table was written

    def stack_outputs(self, stack: str) -> Path:
        """Return the path of a stack's cached outputs. Raise RunnerError for an invalid name."""
        if not _STACK_NAME.fullmatch(stack):
            raise RunnerError(
                "R-STACK-NAME",
                f"invalid stack name {stack!r}",
                why="allowed: letters, digits, '.', '_' and '-'",
                fix="pass --stack NAME",
            )
        return self.home / "stacks" / f"{stack}.json"

    def data(self, dataset: str) -> Path:
        """Return the cache folder of one data set."""
        return self.home / "data" / dataset

    def azurite(self, version: str) -> Path:
        """Return the folder of an installed version of Azurite."""
        return self.home / "azurite" / version

    def node(self, version: str) -> Path:
        """Return the folder of an installed version of Node.js, used if the system has none."""
        return self.home / "node" / version


def runner_home(env: Mapping[str, str]) -> Path:
    """Return the folder of all state: `RUNNER_HOME`, else the platform's user data folder."""
    given = env.get("RUNNER_HOME")
    if given:
        return Path(given).expanduser().absolute()
    import platformdirs  # noqa: PLC0415  only needed when RUNNER_HOME is not set

    return Path(platformdirs.user_data_dir("runner", appauthor=False))


def not_writable(folder: Path, err: OSError) -> RunnerError:
    """Return the error for a home or output folder that cannot be written."""
    return RunnerError(
        "R-HOME-WRITE",
        f"cannot write to {folder}",
        why=err.strerror or str(err),
        fix="make the folder writable, or set RUNNER_HOME to another one",
        exit_code=ExitCode.PREFLIGHT,
    )
