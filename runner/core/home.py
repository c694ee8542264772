"""Paths below RUNNER_HOME. One class makes all of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.protocol.errors import ExitCode, RunnerError

_STACK_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class HomePaths:
    """Files and folders of one installation; a property creates nothing."""

    home: Path

    @property
    def local(self) -> Path:
        """State of the local services."""
        return self.home / "local"

    @property
    def keys(self) -> Path:
        """Account keys of the local services, readable by the owner only."""
        return self.local / "keys.json"

    @property
    def local_outputs(self) -> Path:
        """StackOutputs of the local services."""
        return self.local / "outputs.json"

    @property
    def local_state(self) -> Path:
        """Ports, sizes and process IDs of the local services."""
        return self.local / "state.json"

    @property
    def local_lock(self) -> Path:
        """Held while the local services are started, stopped or changed."""
        return self.home / "local.lock"

    @property
    def logs(self) -> Path:
        """Output of the local services."""
        return self.local / "logs"

    @property
    def batch_data(self) -> Path:
        """Data folder of the Batch emulator: its database and its nodes."""
        return self.local / "batch"

    @property
    def blob_data(self) -> Path:
        """Data folder of Azurite."""
        return self.local / "blob"

    @property
    def cache(self) -> Path:
        """Packages of environments; shared by nodes and kept when they are deleted."""
        return self.home / "cache"

    @property
    def ssh(self) -> Path:
        """SSH keys of nodes: one folder each, removed when the shell ends or the key expires."""
        return self.home / "ssh"

    @property
    def export_lock(self) -> Path:
        """Held while a run is exported."""
        return self.home / "export.lock"

    @property
    def tensorboard(self) -> Path:
        """Event files for TensorBoard, one folder per process; may be deleted at any time."""
        return self.home / "tensorboard"

    @property
    def prices(self) -> Path:
        """Prices that were fetched after the packaged table was written."""
        return self.home / "prices.csv"

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
