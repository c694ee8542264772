"""What the task tells the agent through its environment."""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from runner.node.blobs import Container
from runner.node.documents import parse_json
from runner.node.hosts import TOKEN_VARIABLE
from runner.node.identity import Credential, ManagedIdentityCredential, SasCredential
from runner.node.inputs import InputAccess
from runner.node.patience import Patience
from runner.node.redaction import Redactor
from runner.node.secrets import VARIABLE as SECRETS_VARIABLE
from runner.node.secrets import Secrets, load_secrets
from runner.node.transport import Transport

STORAGE_VARIABLE = "RUNNER_STORAGE"  # a secret: never given to the script, never printed
GROUP_SECRETS_VARIABLE = "RUNNER_GROUP_SECRETS"  # of the tasks that a job manager adds: the same
OUR_SECRETS = (STORAGE_VARIABLE, SECRETS_VARIABLE, GROUP_SECRETS_VARIABLE, TOKEN_VARIABLE)


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


def load_access(
    environment: Mapping[str, str], patience: Patience, redactor: Redactor
) -> InputAccess:
    """The containers named in RUNNER_STORAGE, and the mounts. Raises SettingsError."""
    text = _required(environment, STORAGE_VARIABLE)
    mounts = environment.get("AZ_BATCH_NODE_MOUNTS_DIR")
    try:
        raw: dict[str, Any] = parse_json(text)
        client_id = raw.get("identity_client_id")
        further: dict[str, Any] = raw.get("inputs") or {}
        for entry in (*raw.values(), *further.values()):
            if isinstance(entry, dict):
                redactor.add_sas(cast("dict[str, Any]", entry).get("sas") or "")
        redactor.add(environment.get("AZ_BATCH_AUTHENTICATION_TOKEN", ""))
        named = {n: _container(entry, client_id, patience) for n, entry in further.items()}
        runs = _container(raw["runs"], client_id, patience)
        data = _container(raw["data"], client_id, patience)
        return InputAccess(runs, data, named, Path(mounts) if mounts else None)
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        # The text holds a SAS: say what is wrong with it, never what it is.
        raise SettingsError(
            f"{STORAGE_VARIABLE} is not as expected: {type(err).__name__}"
        ) from None


def load_models(environment: Mapping[str, str], patience: Patience) -> Container | None:
    """The `models` container; None where a client gave no access to it, or none that is one."""
    try:
        raw: dict[str, Any] = parse_json(_required(environment, STORAGE_VARIABLE))
        return _container(raw["models"], raw.get("identity_client_id"), patience)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # a good run must not fail of it


def load_task_secrets(environment: Mapping[str, str], redactor: Redactor) -> Secrets:
    """The run's secrets. Raises SettingsError."""
    try:
        client_id = parse_json(environment[STORAGE_VARIABLE]).get("identity_client_id")
        return load_secrets(environment, client_id, redactor)
    except ValueError as err:
        raise SettingsError(str(err)) from None


def script_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What the script inherits: all but our secrets, with output that is not held back."""
    inherited = {key: value for key, value in environment.items() if key not in OUR_SECRETS}
    inherited.setdefault("PYTHONUNBUFFERED", "1")
    # Without byte code every start compiles every import again.
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    return inherited


def _container(entry: dict[str, Any], client_id: str | None, patience: Patience) -> Container:
    sas: str | None = entry.get("sas")
    credential: Credential = SasCredential(sas) if sas else ManagedIdentityCredential(client_id)
    return Container(Transport(str(entry["url"]), credential, patience))


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise SettingsError(f"{name} is not set: the agent runs as an Azure Batch task")
    return value


def process_environment() -> dict[str, str]:
    """The environment of this process, with the secrets taken out of it.

    Out of `/proc/<pid>/environ` too, which every process of the same user may read: the kernel
    shows the memory that the process was started with, whatever became of its variables. A script
    that runs as root, or may trace this process, can still read the rest of its memory.
    """
    environment = dict(os.environ)
    for name in OUR_SECRETS:
        _wipe(name)
        os.environ.pop(name, None)
    return environment


def _wipe(name: str) -> None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    address: int | None = getenv(name.encode())
    if address is not None:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
