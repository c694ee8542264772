"""What the task tells the agent through its environment."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.node.blobs import Container
from runner.node.identity import Credential, ManagedIdentityCredential, SasCredential
from runner.node.patience import Patience
from runner.node.transport import Transport

STORAGE_VARIABLE = "RUNNER_STORAGE"  # a secret: never given to the script, never printed


class SettingsError(Exception):
    """The task was not set up for the agent; the message names the variable."""


@dataclass(frozen=True)
class NodeSettings:
    """Where the agent runs. `work_dir` is the task's own folder, `shared_dir` the node's."""

    run_id: str
    work_dir: Path
    shared_dir: Path
    node: str
    pool: str
    dedicated: bool
    host: str


def load_node_settings(environment: Mapping[str, str]) -> NodeSettings:
    """Read Batch's variables. Raises SettingsError naming what is missing."""
    run_id = _required(environment, "RUNNER_RUN_ID")
    if "/" in run_id or run_id in (".", ".."):
        raise SettingsError(f"RUNNER_RUN_ID is no run id: {run_id!r}")
    return NodeSettings(
        run_id=run_id,
        work_dir=Path(environment.get("AZ_BATCH_TASK_WORKING_DIR") or Path.cwd()),
        shared_dir=Path(_required(environment, "AZ_BATCH_NODE_SHARED_DIR")),
        node=environment.get("AZ_BATCH_NODE_ID", ""),
        pool=environment.get("AZ_BATCH_POOL_ID", ""),
        dedicated=environment.get("AZ_BATCH_NODE_IS_DEDICATED", "").lower() == "true",
        host=socket.gethostname(),
    )


def load_containers(
    environment: Mapping[str, str], patience: Patience
) -> tuple[Container, Container]:
    """The `runs` and the `data` container named in RUNNER_STORAGE. Raises SettingsError."""
    text = _required(environment, STORAGE_VARIABLE)
    try:
        raw: dict[str, Any] = json.loads(text)
        return _container(raw, "runs", patience), _container(raw, "data", patience)
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        # The text holds a SAS: say what is wrong with it, never what it is.
        raise SettingsError(
            f"{STORAGE_VARIABLE} is not as expected: {type(err).__name__}"
        ) from None


def script_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the script inherits: all but our secret, with output that is not held back."""
    inherited = {key: value for key, value in environment.items() if key != STORAGE_VARIABLE}
    inherited.setdefault("PYTHONUNBUFFERED", "1")
    # Without byte code every start compiles every import again.
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    return inherited


def _container(raw: dict[str, Any], name: str, patience: Patience) -> Container:
    entry: dict[str, Any] = raw[name]
    sas: str | None = entry.get("sas")
    credential: Credential = (
        SasCredential(sas) if sas else ManagedIdentityCredential(raw.get("identity_client_id"))
    )
    return Container(Transport(str(entry["url"]), credential, patience))


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise SettingsError(f"{name} is not set: the agent runs as an Azure Batch task")
    return value


def process_environment() -> dict[str, str]:
    """The environment of this process, with the secret taken out of it."""
    environment = dict(os.environ)
    os.environ.pop(STORAGE_VARIABLE, None)
    return environment
