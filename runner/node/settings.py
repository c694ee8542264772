"""Read the task's environment variables: folders, access to storage, and secrets."""

from __future__ import annotations

import ctypes
import http.client
import os
import socket
import urllib.error
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from runner.node.failures import StageFailedError
from runner.node.inputs.stage import InputAccess
from runner.node.script.redaction import Redactor
from runner.node.storage.auth import Credential, ManagedIdentityCredential, SasCredential
from runner.node.storage.blobs import ContainerClient
from runner.node.storage.http import TRANSIENT_STATUS, Transport
from runner.node.storage.retries import RetryBudget, read_all
from runner.protocol.codec import parse_json
from runner.protocol.host import exclude_loopback
from runner.protocol.run_spec import NOTIFY_VARIABLE
from runner.protocol.task import (
    SECRET_VARIABLES,
    SECRETS_VARIABLE,
    STORAGE_VARIABLE,
    TRIAL_VARIABLE,
)

STEP = "secrets"
API_VERSION = "7.4"  # Key Vault REST docs, "Get Secret"
TIMEOUT_S = 30.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_REFUSAL_REASONS = {
    401: "the vault rejected the identity of the node",
    403: "the identity of the node may not read it: assign the role Key Vault Secrets User",
    404: "the secret does not exist",
}


class RunSecrets:
    """The secrets of a run, by variable. Each value is added to the redactor when it is read.

    NOTIFY_VARIABLE is one of the agent: `resolve` leaves it out, and the script does not get it.

    Args:
        values: secrets that the task contains.
        keyvault: URLs of secrets in key vaults.
        client_id: the managed identity that reads the vaults; None for the only one of the node.
        redactor: hides the values in logs.
    """

    def __init__(
        self,
        values: Mapping[str, str],
        keyvault: Mapping[str, str],
        client_id: str | None,
        redactor: Redactor,
    ) -> None:
        self._values = dict(values)
        self._keyvault = dict(keyvault)
        self._client_id = client_id
        self._redactor = redactor
        for value in self._values.values():
            self._hide(value)
        self._notify_url = self._values.pop(NOTIFY_VARIABLE, None)
        self._notify_vault = self._keyvault.pop(NOTIFY_VARIABLE, None)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(sorted({*self._values, *self._keyvault}))})"

    @property
    def in_vaults(self) -> bool:
        """Return True if values are in a key vault."""
        return bool(self._keyvault)

    @property
    def notifies(self) -> bool:
        """Return True if the run has a webhook for notifications."""
        return bool(self._notify_url or self._notify_vault)

    def read_notify_url(self, limit_s: float) -> str:
        """Return the URL of the webhook. Raise StageFailedError.

        `limit_s` is the time for tries at the key vault.
        """
        if self._notify_url is None:
            url = self._notify_vault or ""
            self._notify_url = self._read("of `notify`", url, RetryBudget(limit_s))
            self._hide(self._notify_url)
        return self._notify_url

    def resolve(self, retry_budget: RetryBudget) -> dict[str, str]:
        """Return the script's variables. Raise StageFailedError."""
        values = dict(self._values)
        for name, url in self._keyvault.items():
            values[name] = self._read(name, url, retry_budget)
            self._hide(values[name])
        return values

    def _hide(self, value: str) -> None:
        """Redact a value, and the password of the address that it may be."""
        self._redactor.add(value)
        if "://" in value and "@" in value:
            with suppress(ValueError):
                self._redactor.add(urlsplit(value).password or "")

    def _read(self, name: str, url: str, retry_budget: RetryBudget) -> str:
        identity = ManagedIdentityCredential(self._client_id, resource=_resource(name, url))
        last: Exception | None = None
        for _ in retry_budget.tries():
            try:
                return _get(f"{url.rstrip('/')}?api-version={API_VERSION}", identity.headers())
            except urllib.error.HTTPError as err:
                err.close()
                last = err
                if err.code not in TRANSIENT_STATUS:
                    why = _REFUSAL_REASONS.get(err.code, str(err.reason))
                    raise _secret_error(name, url, f"{err.code}, {why}") from err
            except (KeyError, TypeError, ValueError) as err:
                raise _secret_error(name, url, "the response is not a secret") from err
            except (OSError, http.client.HTTPException) as err:
                last = err
        raise _secret_error(name, url, str(last)) from last


def _to_texts(raw: dict[str, Any], name: str) -> dict[str, str]:
    entries: dict[str, Any] = raw.get(name) or {}
    return {str(key): str(value) for key, value in entries.items()}


def _resource(name: str, url: str) -> str:
    """Return the audience of the token for a vault, or for this machine in tests.

    Raises:
        StageFailedError: the URL is not that of a key vault.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    from runner.protocol.azure.clouds import CLOUDS, PUBLIC  # noqa: PLC0415  few runs need it

    for cloud in CLOUDS:
        if parts.scheme == "https" and host.endswith(f".{cloud.vault_domain}"):
            return cloud.vault_resource
    if parts.scheme == "http" and host in _LOOPBACK:
        return PUBLIC.vault_resource
    raise _secret_error(name, url, "this is not the URL of a key vault")


def _get(url: str, headers: Mapping[str, str]) -> str:
    from urllib.request import Request, build_opener  # noqa: PLC0415  few runs need it

    from runner.protocol.notifying.redirects import RedirectPolicy  # noqa: PLC0415

    request = Request(url, headers=dict(headers))  # noqa: S310 - see _resource
    # The token must not be sent to another host, so no redirect is followed.
    opener = build_opener(RedirectPolicy(lambda _: False))
    with opener.open(request, timeout=TIMEOUT_S) as response:
        return str(parse_json(read_all(response))["value"])


def _secret_error(name: str, url: str, why: str) -> StageFailedError:
    return StageFailedError(STEP, "SecretUnavailable", f"secret {name}: {url}: {why}")


class SettingsError(Exception):
    """A variable of the task is missing or invalid; the message names it."""


class NothingDueError(Exception):
    """The firing of a job schedule is not one of the times of its schedule."""


@dataclass(frozen=True)
class NodeSettings:
    """The node and the task. `work_dir` is the task's folder, `shared_dir` the node's.

    `evictions` counts the evictions of a rehearsal before this start of the task.
    """

    run_id: str
    work_dir: Path
    shared_dir: Path
    node: str
    pool: str
    dedicated: bool
    host: str
    evictions: int | None = None
    root_dir: Path | None = None


def load_node_settings(environment: Mapping[str, str]) -> NodeSettings:
    """Read Batch's variables. Raise SettingsError if one is missing or invalid."""
    run_id = _required(environment, "RUNNER_RUN_ID")
    if "/" in run_id or run_id in (".", ".."):
        raise SettingsError(f"RUNNER_RUN_ID is not a run ID: {run_id!r}")
    evictions = environment.get("BATCH_EMULATOR_EVICTED", "")
    return NodeSettings(
        run_id=run_id,
        work_dir=Path(environment.get("AZ_BATCH_TASK_WORKING_DIR") or Path.cwd()),
        shared_dir=Path(_required(environment, "AZ_BATCH_NODE_SHARED_DIR")),
        node=environment.get("AZ_BATCH_NODE_ID", ""),
        pool=environment.get("AZ_BATCH_POOL_ID", ""),
        dedicated=environment.get("AZ_BATCH_NODE_IS_DEDICATED", "").lower() == "true",
        host=socket.gethostname(),
        evictions=int(evictions) if evictions.isdecimal() else None,
        root_dir=Path(root) if (root := environment.get("AZ_BATCH_NODE_ROOT_DIR")) else None,
    )


def load_access(
    environment: Mapping[str, str], retry_budget: RetryBudget, redactor: Redactor
) -> InputAccess:
    """Return the containers of RUNNER_STORAGE and the mounts. Raise SettingsError."""
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
        named = {n: _container(entry, client_id, retry_budget) for n, entry in further.items()}
        runs = _container(raw["runs"], client_id, retry_budget)
        data = _container(raw["data"], client_id, retry_budget)
        return InputAccess(runs, data, named, Path(mounts) if mounts else None)
    except (ValueError, KeyError, TypeError, AttributeError) as err:
        # The variable contains a SAS: the message must not quote it.
        raise SettingsError(f"invalid {STORAGE_VARIABLE}: {type(err).__name__}") from None


def load_models(
    environment: Mapping[str, str], retry_budget: RetryBudget
) -> ContainerClient | None:
    """Return the `models` container, or None without valid access to it."""
    try:
        raw: dict[str, Any] = parse_json(_required(environment, STORAGE_VARIABLE))
        return _container(raw["models"], raw.get("identity_client_id"), retry_budget)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # the run is valid without a registered model


def load_task_secrets(environment: Mapping[str, str], redactor: Redactor) -> RunSecrets:
    """Return the run's secrets. Raise SettingsError, whose message does not contain a value."""
    try:
        client_id = parse_json(environment[STORAGE_VARIABLE]).get("identity_client_id")
        raw: dict[str, Any] = parse_json(environment.get(SECRETS_VARIABLE) or "{}")
        values, keyvault = _to_texts(raw, "values"), _to_texts(raw, "keyvault")
        return RunSecrets(values, keyvault, client_id, redactor)
    except (ValueError, TypeError, AttributeError):
        raise SettingsError(f"invalid {SECRETS_VARIABLE}") from None


def script_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the script, without the agent's secrets."""
    inherited = {key: value for key, value in environment.items() if key not in SECRET_VARIABLES}
    inherited.setdefault("PYTHONUNBUFFERED", "1")
    # Without bytecode files, each start of the script compiles all imports again.
    inherited.pop("PYTHONDONTWRITEBYTECODE", None)
    inherited.pop(TRIAL_VARIABLE, None)
    return inherited


def _container(
    entry: dict[str, Any], client_id: str | None, retry_budget: RetryBudget
) -> ContainerClient:
    sas: str | None = entry.get("sas")
    credential: Credential = SasCredential(sas) if sas else ManagedIdentityCredential(client_id)
    return ContainerClient(Transport(str(entry["url"]), credential, retry_budget))


def _required(environment: Mapping[str, str], name: str) -> str:
    value = environment.get(name)
    if not value:
        raise SettingsError(f"{name} is not set: the agent runs as an Azure Batch task")
    return value


def process_variables() -> dict[str, str]:
    """Return the environment of this process with secrets, and remove them from the process.

    They are also overwritten in memory. Otherwise, every process of the same user could read them
    in `/proc/<pid>/environ`, which shows the memory that the process was started with. A script
    that runs as root, or may trace this process, can still read the rest of its memory.
    """
    os.environ.update(exclude_loopback(os.environ))  # for every process that the agent starts
    environment = dict(os.environ)
    for name in SECRET_VARIABLES:
        _overwrite(name)
        os.environ.pop(name, None)
    return environment


def _overwrite(name: str) -> None:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    address: int | None = getenv(name.encode())
    if address is not None:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
