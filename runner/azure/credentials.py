"""How to sign in. The only file that knows the local services from Azure."""

# ruff: noqa: PLC0415  each SDK takes 0.4 to 0.8 s to import: only what a command signs in to is loaded
from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from runner.azure.sign_in import STORAGE_SCOPE, default_credential
from runner.azure.stack import load_outputs
from runner.azure.transport import batch_options, blob_options, storage_transport
from runner.contract import StackOutputs
from runner.core.errors import ExitCode, RunnerError
from runner.core.home import HomePaths
from runner.core.settings import Settings
from runner.core.stored_paths import SHARE

if TYPE_CHECKING:
    from azure.batch import BatchClient
    from azure.batch.models import ResourceFile
    from azure.core.credentials import TokenCredential
    from azure.storage.blob import BlobServiceClient
    from azure.storage.fileshare import ShareClient, ShareServiceClient

    from runner.azure.blob_requests import BlobRequests
    from runner.azure.stores import Store

COPY_LIFETIME = timedelta(hours=1)
_STORE_LIFETIME = timedelta(days=7)  # of an opened store; local services only
# What a task may do. It deletes checkpoints beyond the last few; nothing of a model, ever.
_NODE_RIGHTS = {"runs": "racwdl", "data": "rl", "models": "racwl"}


class Connection:
    """Signed-in clients of one target, made on first use; `outputs` describes the target.

    `keys` are the account keys of the local services ("batch", "storage"); None means Azure, where
    this machine signs in with DefaultAzureCredential and nodes with their managed identity.
    """

    def __init__(self, outputs: StackOutputs, keys: dict[str, str] | None) -> None:
        self.outputs = outputs
        self._keys = keys

    def batch_client(self) -> BatchClient:
        """The data-plane client of the Batch account."""
        return self._batch

    def blob_service(self) -> BlobServiceClient:
        """The client of the storage account."""
        return self._blob

    def open_store(self, name: str) -> Store:
        """The container `name`, or with SHARE the stack's file share. Raises RunnerError."""
        if name != SHARE:
            from runner.azure.blob_store import BlobStore

            return BlobStore(self.blob_service(), name, self._blob_requests(name))
        from runner.azure.share_store import ShareStore

        return ShareStore(self.share_client())

    def share_client(self) -> ShareClient:
        """The client of the stack's file share. Raises RunnerError where there is none."""
        return self._file.get_share_client(self._share_name())

    def node_storage(self, lifetime: timedelta) -> dict[str, Any]:
        """The RUNNER_STORAGE document of docs/run-format.md, a secret; SAS valid for `lifetime`."""
        outputs = self.outputs
        names = {
            "runs": outputs.container_runs,
            "data": outputs.container_data,
            "models": outputs.container_models,
        }
        containers = {
            name: {
                "url": self._container_url(container),
                "sas": self._container_sas(container, lifetime, _NODE_RIGHTS[name]),
            }
            for name, container in names.items()
        }
        identity = None if self._keys else self._identity(self.outputs.identity_client_id)
        return {**containers, "identity_client_id": identity}

    def read_access(self, containers: Iterable[str], lifetime: timedelta) -> dict[str, Any]:
        """Further containers in the form of `node_storage`, by name and only to read."""
        return {
            name: {
                "url": self._container_url(name),
                "sas": self._container_sas(name, lifetime, "rl"),
            }
            for name in containers
        }

    def job_access(self) -> dict[str, Any]:
        """What a task of a job needs beside its identity, to add tasks to that job.

        Azure has retired the tokens of tasks; there the nodes' identity has a role, if the stack
        says so. Raises RunnerError where it does not.
        """
        if self._keys is not None:
            return {"authenticationTokenSettings": {"access": ["job"]}}
        if not self.outputs.nodes_add_tasks:
            raise RunnerError(
                "R-STACK-NODES-ADD",
                "the nodes of this stack may not add tasks",
                why="at each firing, a node adds the tasks of the schedule to their job",
                fix="set runner:nodes_add_tasks: true in the stack's file and run runner up",
                exit_code=ExitCode.PREFLIGHT,
            )
        return {}

    def resource_file(self, blob_name: str, file_path: str, lifetime: timedelta) -> ResourceFile:
        """A blob of the `runs` container as a file in the task's working directory."""
        from azure.batch.models import BatchNodeIdentityReference, ResourceFile

        container = self.outputs.container_runs
        url = f"{self._container_url(container)}/{blob_name}"
        if self._keys is not None:
            sas = self._blob_sas(container, blob_name, lifetime)
            return ResourceFile(http_url=f"{url}?{sas}", file_path=file_path)
        identity = self._identity(self.outputs.identity_resource_id)
        return ResourceFile(
            http_url=url,
            file_path=file_path,
            identity_reference=BatchNodeIdentityReference(resource_id=identity),
        )

    def copy_source(self, blob_name: str) -> tuple[str, str | None]:
        """A blob of the `runs` container as the source of a copy: its URL, and a token for it."""
        container = self.outputs.container_runs
        url = f"{self._container_url(container)}/{quote(blob_name)}"
        if self._token is not None:
            return url, f"Bearer {self._token.get_token(STORAGE_SCOPE).token}"
        return f"{url}?{self._blob_sas(container, blob_name, COPY_LIFETIME)}", None

    @cached_property
    def _batch(self) -> BatchClient:
        from azure.batch import BatchClient

        credential: Any = self._token
        if self._keys is not None:
            from azure.core.credentials import AzureNamedKeyCredential

            name = self.outputs.batch_account
            credential = AzureNamedKeyCredential(name, self._keys["batch"])
        return BatchClient(
            self.outputs.batch_endpoint, credential, **batch_options(), **self._direct
        )

    @cached_property
    def _blob(self) -> BlobServiceClient:
        from azure.storage.blob import BlobServiceClient

        return BlobServiceClient(
            self.outputs.blob_endpoint,
            self._storage_credential,
            transport=self._storage_transport,
            **blob_options(),
        )

    @cached_property
    def _storage_transport(self) -> Any:
        return storage_transport(**self._direct)

    def _blob_requests(self, container: str) -> BlobRequests:
        from runner.azure.blob_requests import BlobRequests
        from runner.azure.storage_sign_in import StorageSignIn

        url = self._container_url(container)
        if self._token is not None:
            return BlobRequests(url, self._storage_transport, StorageSignIn(self._token))
        sas = self._container_sas(container, _STORE_LIFETIME, "racw")
        return BlobRequests(f"{url}?{sas}", self._storage_transport)

    @cached_property
    def _file(self) -> ShareServiceClient:
        from azure.storage.fileshare import ShareServiceClient

        # Without an intent Azure Files refuses tokens (REST docs, "Authorize with Microsoft Entra
        # ID", read 2026-11-21).
        intent: dict[str, Any] = {"token_intent": "backup"} if self._keys is None else {}
        return ShareServiceClient(
            self.outputs.file_endpoint or "",
            self._storage_credential,
            transport=self._storage_transport,
            **intent,
            **blob_options(),
        )

    @property
    def _storage_credential(self) -> Any:
        if self._keys is None:
            return self._token
        return {
            "account_name": self.outputs.storage_account,
            "account_key": self._keys["storage"],
        }

    def _share_name(self) -> str:
        if self.outputs.file_share and self.outputs.file_endpoint:
            return self.outputs.file_share
        raise RunnerError(
            "R-SHARE-NONE",
            "this stack has no file share",
            why="it is off by default: it is the one thing that keeps account keys on",
            fix="set storage.file_share_gib in the stack's configuration and run runner up, "
            "or use a container: data:PATH",
            exit_code=ExitCode.PREFLIGHT,
        )

    @cached_property
    def _token(self) -> TokenCredential | None:
        if self._keys is not None:
            return None
        return default_credential()

    @property
    def _direct(self) -> dict[str, Any]:
        """Local services are on this machine: a proxy from the environment cannot reach them."""
        return {} if self._keys is None else {"use_env_settings": False}

    def _container_url(self, container: str) -> str:
        return f"{self.outputs.blob_endpoint}/{container}"

    def _container_sas(self, container: str, lifetime: timedelta, rights: str) -> str | None:
        if self._keys is None:
            return None
        from azure.storage.blob import ContainerSasPermissions, generate_container_sas

        return generate_container_sas(
            self.outputs.storage_account,
            container,
            account_key=self._keys["storage"],
            permission=ContainerSasPermissions.from_string(rights),
            expiry=datetime.now(UTC) + lifetime,
        )

    def _blob_sas(self, container: str, blob_name: str, lifetime: timedelta) -> str:
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        return generate_blob_sas(
            self.outputs.storage_account,
            container,
            blob_name,
            account_key=(self._keys or {})["storage"],
            permission=BlobSasPermissions(read=True),
            expiry=datetime.now(UTC) + lifetime,
        )

    def _identity(self, found: str | None) -> str:
        if found:
            return found
        raise RunnerError(
            "R-STACK-IDENTITY",
            "the stack has no managed identity for its nodes",
            why="nodes read code and write results with it; shared keys are off",
            fix="deploy the stack again: pulumi up",
            exit_code=ExitCode.PREFLIGHT,
        )


def connect(settings: Settings) -> Connection:
    """Read the target's outputs and keys; nothing is sent yet."""
    outputs = load_outputs(settings)
    return Connection(outputs, _local_keys(settings) if settings.target == "local" else None)


def _local_keys(settings: Settings) -> dict[str, str]:
    path = HomePaths(settings.home).keys
    try:
        raw: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise _no_keys(str(path), str(err)) from err
    keys = cast("dict[str, object]", raw) if isinstance(raw, dict) else {}
    if not all(isinstance(keys.get(name), str) for name in ("batch", "storage")):
        raise _no_keys(str(path), "it has no keys 'batch' and 'storage'")
    return {name: str(keys[name]) for name in ("batch", "storage")}


def _no_keys(path: str, why: str) -> RunnerError:
    return RunnerError(
        "R-LOCAL-KEYS",
        f"cannot read the keys of the local services from {path}",
        why=why,
        fix="runner local up, or start over with runner local reset",
        exit_code=ExitCode.ACCESS,
    )
