"""Sign in to a target: its stack outputs, credentials, client options and SDK clients.

The only module that signs in to the local services differently than to Azure. Each SDK is imported
with its first client.
"""

# ruff: noqa: PLC0415  each SDK takes 0.4 to 0.8 s to import, so it is imported when needed
from __future__ import annotations

import base64
import difflib
import hmac
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from copy import copy
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, lru_cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from runner.azure.auth.sign_in import make_credential
from runner.contract import (
    SHARED_TEAM,
    ContractError,
    NewerContractError,
    StackOutputs,
    parse_stack_outputs,
)
from runner.core.home import HomePaths
from runner.core.settings import Settings, Target, target_at
from runner.protocol import paths as blob_paths
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.host import whole_response_class

if TYPE_CHECKING:
    from azure.batch import BatchClient
    from azure.batch.models import ResourceFile
    from azure.core.credentials import AccessToken, TokenCredential
    from azure.storage.blob import BlobServiceClient
    from azure.storage.fileshare import ShareClient, ShareServiceClient

    from runner.core.azure.clouds import Cloud
    from runner.core.planning.plan import StorageScopes


_UPGRADE = "run `pip install --upgrade azure-batch-runner`"


def outputs_path(settings: Settings) -> Path:
    """Return the file with the outputs of the target: local services, or cached from Pulumi."""
    paths = HomePaths(settings.home)
    if settings.target.has_stacks:
        return paths.stack_outputs(settings.stack)
    return paths.local_outputs


def load_outputs(settings: Settings) -> StackOutputs:
    """Return the outputs of the target: of a stack, the part of the team in the settings.

    Raises:
        RunnerError: they are missing or invalid; or R-TEAM-UNKNOWN.
    """
    path = outputs_path(settings)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as err:
        raise _no_outputs(settings, path) from err
    except (OSError, UnicodeDecodeError) as err:
        raise RunnerError(
            "R-STACK-READ",
            f"cannot read {path}",
            why=str(err),
            fix="make it readable, or set RUNNER_HOME to another folder; see `runner config show`",
            exit_code=ExitCode.PREFLIGHT,
        ) from err
    try:
        outputs = parse_stack_outputs(text)
    except ContractError as err:
        raise RunnerError(
            "R-STACK-OUTPUTS",
            f"{path} is not a valid description of a stack",
            why=str(err),
            fix=_UPGRADE if isinstance(err, NewerContractError) else _outputs_fix(settings),
        ) from err
    if not settings.target.has_stacks:
        return outputs
    try:
        return outputs.for_team(settings.team)
    except KeyError as err:
        raise _unknown_team(settings, outputs) from err


def _unknown_team(settings: Settings, outputs: StackOutputs) -> RunnerError:
    names = [team.name for team in outputs.teams]
    origin = f"the team is set by {settings.origins['team']}"
    if not names:
        return RunnerError(
            "R-TEAM-UNKNOWN",
            f"stack {settings.stack!r} has no team {settings.team!r}",
            why=f"none of its pools has the key `team`; {origin}",
            fix=f"--team {SHARED_TEAM}, or remove the setting",
        )
    near = difflib.get_close_matches(settings.team or "", names, n=1) or names
    return RunnerError(
        "R-TEAM-UNKNOWN",
        f"stack {settings.stack!r} has no team {settings.team!r}",
        why=f"its teams: {', '.join(names)}; {origin}",
        fix=f"--team {near[0]}; for the part of the stack without a team: --team {SHARED_TEAM}",
    )


def _no_outputs(settings: Settings, path: Path) -> RunnerError:
    is_stack = settings.target.has_stacks
    return RunnerError(
        "R-STACK-MISSING",
        f"stack {settings.stack!r} is unknown" if is_stack else "the local services are not set up",
        why=f"{path} does not exist",
        fix=_outputs_fix(settings),
    )


def _outputs_fix(settings: Settings) -> str:
    if not settings.target.has_stacks:
        return "runner local up"
    option = f"--stack {settings.stack}"
    return f"`runner join {option}` if somebody has deployed it, or `runner up {option}`"


def no_code_container(target: Target) -> RunnerError:
    """Build the error for a submission with outputs of version 1."""
    is_stack = target.has_stacks
    return RunnerError(
        "R-STACK-NO-CODE",
        f"{'the stack' if is_stack else 'the local target'} has no container for code",
        why=f"an older version of runner {'deployed' if is_stack else 'started'} it; its nodes "
        "could replace the code of later runs",
        fix="runner up" if is_stack else "runner local up",
    )


def outputs_cloud(outputs: StackOutputs) -> Cloud:
    """Return the cloud of a stack: that of its endpoints, or of this process for custom ones."""
    from runner.core.azure.clouds import cloud_at, find_cloud

    found = cloud_at(outputs.batch_endpoint) or cloud_at(outputs.blob_endpoint)
    return found or find_cloud(os.environ)


# The same in all clouds: learn.microsoft.com/rest/api/storageservices/
# authorize-with-azure-active-directory (read 2026-11-29).
STORAGE_SCOPE = "https://storage.azure.com/.default"
_MIN_LEFT_S = 300  # azure-core requests a new token within this time before the expiry


def default_credential(cloud: Cloud | None = None) -> TokenCredential:
    """Return the credential that the variables of this process select, for a cloud.

    Nothing is sent before its first use. `cloud` is that of `make_credential`.
    """
    return CachedTokens(make_credential(os.environ, cloud))


class CachedTokens:
    """A credential that caches the tokens of another one, and calls it from one thread at a time.

    DefaultAzureCredential starts `az` for each token, because AzureCliCredential has no cache. This
    takes about a second per client, and per thread of a client without a token.
    """

    def __init__(self, credential: TokenCredential) -> None:
        self._credential = credential
        self._lock = Lock()
        self._cached: dict[object, AccessToken] = {}

    def get_token(self, *scopes: str, claims: str | None = None, **options: Any) -> AccessToken:
        """See `TokenCredential.get_token`; with `claims`, the service rejected the cached token."""
        key = (scopes, *sorted(options.items()))
        with self._lock:
            token = self._cached.get(key)
            if claims is not None or token is None or token.expires_on - time.time() < _MIN_LEFT_S:
                token = self._credential.get_token(*scopes, claims=claims, **options)
                self._cached[key] = token
            return token


# Files and blocks of files are transferred in parallel (flows/data, storage/blobs).
_MAX_CONNECTIONS = 32
_READ_BYTES = 1024 * 1024
_TIMEOUTS: dict[str, Any] = {"connection_timeout": 10, "read_timeout": 60}


def batch_options() -> dict[str, Any]:
    """Return options of `BatchClient`, which reports a refused connection after about 0.4 s."""
    from runner.azure.faults import BatchRetries, check_response, count_try

    hooks = {"raw_request_hook": count_try, "raw_response_hook": check_response}
    return {**_TIMEOUTS, "retry_policy": BatchRetries(), **hooks}


def blob_options() -> dict[str, Any]:
    """Return options of `BlobServiceClient`, which reports a refused connection after about 1 s.

    The backoff is `initial_backoff + increment_base ** n` seconds: 1 s between retries.
    """
    from runner.azure.faults import RETRIES, count_try

    return {
        **_TIMEOUTS,
        "raw_request_hook": count_try,
        "initial_backoff": 0,
        "increment_base": 1,
        "random_jitter_range": 0.2,
        "retry_total": RETRIES + 1,
        "retry_connect": 1,
        "retry_read": RETRIES,
        "retry_status": RETRIES,
    }


def sdk_transport(**options: Any) -> Any:
    """Return a transport with one connection per parallel transfer, large reads and whole headers.

    The default pool keeps ten connections, so those of other threads are closed after every
    request. The default transport reads bodies in pieces of 4 KiB; threads compete for the GIL
    after each piece. And it accepts headers that a lost connection has cut, so that a blob would
    seem to have no metadata; here, the SDK sends the request again.
    """
    from azure.core.pipeline.transport import RequestsTransport

    # The logger warns about broken responses without their URL, although the SDK retries them.
    logging.getLogger("azure.core.pipeline.transport._requests_basic").setLevel(logging.ERROR)
    options = {**_TIMEOUTS, "connection_data_block_size": _READ_BYTES, **options}
    transport = RequestsTransport(**options)
    transport.open()
    for scheme in ("http://", "https://"):
        retries = transport.session.get_adapter(scheme).max_retries  # none: the SDK has its own
        adapter = _adapter_class()(4, _MAX_CONNECTIONS, max_retries=retries)
        transport.session.mount(scheme, adapter)
    return transport


@cache
def _adapter_class() -> Any:
    """Return an adapter whose connections, also those through a proxy, refuse partial headers."""
    from requests.adapters import HTTPAdapter
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class HttpConnection(HTTPConnection):
        response_class = whole_response_class()

    class HttpsConnection(HTTPSConnection):
        response_class = whole_response_class()

    class HttpPool(HTTPConnectionPool):
        ConnectionCls: Any = HttpConnection

    class HttpsPool(HTTPSConnectionPool):
        ConnectionCls: Any = HttpsConnection

    pools: dict[str, Any] = {"http": HttpPool, "https": HttpsPool}

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, **options)
            self.poolmanager.pool_classes_by_scheme = pools

        def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
            manager = super().proxy_manager_for(*args, **options)
            manager.pool_classes_by_scheme = pools
            return manager

    return Adapter


COPY_LIFETIME = timedelta(hours=1)
# A user delegation key is valid for at most seven days (REST docs, "Get User Delegation Key",
# learn.microsoft.com, read 2026-11-23).
_KEY_LIFETIME = timedelta(days=7)
_CLOCK_SKEW = timedelta(minutes=5)
TASK_TOKEN = "authenticationTokenSettings"  # noqa: S105 - the name of a property
DATA_PLANE_API = "2025-06-01"  # of the Batch SDK; a test fails if it has another one
TOKENS_API_VERSION = "2024-02-01.19.0"  # 2025-06-01 has no authentication tokens
# A SAS that Azurite checks with scopes.js: its version, and the text that its key is derived from.
_SCOPED_VERSION = "runner-1"
_SCOPED_CONTEXT = b"runner scoped SAS 1"


_MODELS_LOCK = Lock()


@cache
def _complete_models() -> None:
    """Create an instance of each model class of the Batch SDK.

    The SDK completes a class when its first instance is created, which is not thread-safe. If two
    threads do that at the same time, one may get a dict in place of a nested model (azure-batch
    15.1, seen 2026-11-25).
    """
    from azure.batch import models

    for each in vars(models).values():
        if isinstance(each, type) and issubclass(each, MutableMapping):
            each({})  # pyright: ignore[reportCallIssue] - all models accept a document


@lru_cache(maxsize=64)  # trials of a sweep differ in one of their signatures
def _sign(key: bytes, text: str) -> str:
    signature = hmac.digest(key, text.encode(), "sha256")
    return base64.urlsafe_b64encode(signature).decode().rstrip("=")


class Connection:
    """Clients of one target, created on first use; `outputs` describes the target.

    `keys` are the account keys of the local services ("batch", "storage"). None means Azure, where
    this machine signs in with DefaultAzureCredential and nodes with their managed identity.
    `home` is the folder of all state, or None to remember nothing.
    """

    def __init__(
        self, outputs: StackOutputs, keys: dict[str, str] | None, home: Path | None = None
    ) -> None:
        self.outputs = outputs
        self._keys = keys
        self.home = home

    @property
    def target(self) -> Target:
        """The target that the outputs describe."""
        return target_at(self.outputs.location)

    @property
    def cloud(self) -> Cloud | None:
        """The cloud of the accounts; None for the local services."""
        return None if self._keys is not None else outputs_cloud(self.outputs)

    @property
    def code_container(self) -> str:
        """Return the container that nodes only read. Raise RunnerError if the stack has none."""
        if self.outputs.container_code is not None:
            return self.outputs.container_code
        raise no_code_container(self.target)

    @property
    def uses_identity(self) -> bool:
        """True if nodes sign in with a managed identity, False if they use SAS."""
        return self._keys is None

    def parts(self) -> Sequence[Connection]:
        """Return a connection for the shared part of the stack and one for each team."""
        if not self.outputs.teams:
            return [self]
        self.blob_service()  # the copies share its client and sign-in
        found: list[Connection] = []
        for part in self.outputs.parts():
            found.append(copy(self))
            found[-1].outputs = part
        return found

    def batch_client(self, api_version: str | None = None) -> BatchClient:
        """Return the data-plane client of the Batch account; None uses the SDK's API version."""
        return self._batch if api_version is None else self._batch_client(api_version=api_version)

    def blob_service(self) -> BlobServiceClient:
        """Return the client of the storage account."""
        return self._blob

    def share_client(self) -> ShareClient:
        """Return the client of the stack's file share. Raise RunnerError if the stack has none."""
        if self.outputs.file_share and self.outputs.file_endpoint:
            return self._file.get_share_client(self.outputs.file_share)
        raise RunnerError(
            "R-SHARE-NONE",
            "this stack has no file share",
            why="the file share is off by default, because nodes need an account key to mount it",
            fix="set storage.file_share_gib in the stack's configuration and run `runner up`, "
            "or use a container: data:PATH",
        )

    def with_account_options(self, command: str) -> str:
        """Return a command of `az batch` with the options that select this account."""
        host = self.outputs.batch_endpoint.rpartition("/")[2]
        if self._keys is not None:
            return f'eval "$(runner local env)"; {command}'
        name = host.partition(".")[0]
        return f"{command} --account-name {name} --account-endpoint {host}"

    def node_storage(self, scopes: StorageScopes, lifetime: timedelta) -> dict[str, Any]:
        """Return the RUNNER_STORAGE document of docs/run-format.md, a secret.

        Args:
            scopes: What the task may do. On Azure, nodes use their identity instead, whose roles
                apply to all runs.
            lifetime: Validity of its SAS.
        """
        outputs, expiry = self.outputs, datetime.now(UTC) + lifetime
        named = {
            "runs": (outputs.container_runs, scopes.runs),
            "data": (outputs.container_data, scopes.data),
            "models": (outputs.container_models, scopes.models),
        }
        if scopes.code:
            named["code"] = (self.code_container, scopes.code)
        identity = None if self._keys else self._identity(self.outputs.identity_client_id)
        return {
            **{name: self._access(*one, expiry) for name, one in named.items()},
            "identity_client_id": identity,
            "inputs": {
                container: self._access(container, entries, expiry)
                for container, entries in sorted(scopes.inputs.items())
            },
        }

    def _access(self, container: str, entries: Iterable[str], expiry: datetime) -> dict[str, Any]:
        url = self._container_url(container)
        return {"url": url, "sas": self._scoped_sas(container, ",".join(entries), expiry)}

    def _scoped_sas(self, container: str, scope: str, expiry: datetime) -> str | None:
        """Return a SAS for parts of a container, or None if nodes have an identity."""
        if self._scoped_key is None:
            return None
        end = f"{expiry.isoformat(timespec='seconds')[:19]}Z"  # of UTC
        text = "\n".join((end, self.outputs.storage_account, container, scope))
        return f"sv={_SCOPED_VERSION}&se={end}&scope={scope}&sig={_sign(self._scoped_key, text)}"

    @cached_property
    def _scoped_key(self) -> bytes | None:
        if self._keys is None:
            return None
        key = base64.b64decode(self._keys["storage"])
        return hmac.digest(key, _SCOPED_CONTEXT, "sha256")

    def job_access(self) -> dict[str, Any]:
        """Return the settings with which a task may add tasks to its job.

        Azure has retired the authentication tokens of tasks. There, the identity of the nodes needs
        a role, which the stack assigns if configured. Local services still accept the tokens, in
        requests with TOKENS_API_VERSION.

        Raises:
            RunnerError: the stack does not assign the role.
        """
        if self._keys is not None:
            return {TASK_TOKEN: {"access": ["job"]}}
        if not self.outputs.nodes_add_tasks:
            raise RunnerError(
                "R-STACK-NODES-ADD",
                "the nodes of this stack are not allowed to add tasks",
                why="a schedule of several tasks lets a node add them at each firing",
                fix="set runner:nodes_add_tasks: true in the stack's file, and run `runner up`",
            )
        return {}

    def resource_file(self, blob_name: str, file_path: str, lifetime: timedelta) -> ResourceFile:
        """Return a blob of the `code` container as a resource file in the working directory."""
        from azure.batch.models import BatchNodeIdentityReference, ResourceFile

        container = self.code_container
        url = f"{self._container_url(container)}/{blob_name}"
        if self._keys is not None:
            sas = self._blob_sas(container, blob_name, datetime.now(UTC) + lifetime)
            return ResourceFile(http_url=f"{url}?{sas}", file_path=file_path)
        identity = self._identity(self.outputs.identity_resource_id)
        return ResourceFile(
            http_url=url,
            file_path=file_path,
            identity_reference=BatchNodeIdentityReference(resource_id=identity),
        )

    def copy_source(self, blob_name: str) -> tuple[str, str | None]:
        """Return URL and token of a blob in the `runs` container, as the source of a copy."""
        container = self.outputs.container_runs
        url = self.blob_url(container, blob_name)
        if self._token is not None:
            return url, f"Bearer {self._token.get_token(STORAGE_SCOPE).token}"
        sas = self._blob_sas(container, blob_name, datetime.now(UTC) + COPY_LIFETIME)
        return f"{url}?{sas}", None

    def sign_reads(self, container: str, expiry: datetime) -> Callable[[str], str]:
        """Return a function that maps a blob to a signed URL for reading only this blob.

        The URLs are secrets until `expiry`, at most seven days from now. On Azure, they are signed
        with a user delegation key of the signed-in account, and allow only HTTPS.
        """
        import mimetypes

        signer: dict[str, Any] = {}
        if self._keys is None:
            from runner.azure.faults import service_errors

            now = datetime.now(UTC)
            start = max(now - _CLOCK_SKEW, expiry - _KEY_LIFETIME)
            with service_errors("requesting a user delegation key"):
                key = self.blob_service().get_user_delegation_key(start, expiry)
            signer = {"user_delegation_key": key, "protocol": "https"}

        def sign(blob: str) -> str:
            kind = mimetypes.guess_type(quote(blob))[0] or ""
            shown = {"content_type": f"{kind}; charset=utf-8"} if kind.startswith("text/") else {}
            sas = self._blob_sas(container, blob, expiry, **signer, **shown)
            return f"{self.blob_url(container, blob)}?{sas}"

        return sign

    def blob_url(self, container: str, blob: str) -> str:
        """Return the URL of a blob, without a signature."""
        return f"{self._container_url(container)}/{quote(blob_paths.blob_name(blob))}"

    @cached_property
    def _batch(self) -> BatchClient:
        return self._batch_client()

    def _batch_client(self, **options: Any) -> BatchClient:
        from azure.batch import BatchClient

        with _MODELS_LOCK:
            _complete_models()
        credential: Any = self._token
        if self.cloud is not None:
            options["credential_scopes"] = [f"{self.cloud.batch_resource}/.default"]
        if self._keys is not None:
            from azure.core.credentials import AzureNamedKeyCredential

            name = self.outputs.batch_account
            credential = AzureNamedKeyCredential(name, self._keys["batch"])
        return BatchClient(
            self.outputs.batch_endpoint,
            credential,
            transport=sdk_transport(**self._proxy_options),
            **batch_options(),
            **options,
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
        return sdk_transport(**self._proxy_options)

    @cached_property
    def _file(self) -> ShareServiceClient:
        from azure.storage.fileshare import ShareServiceClient

        # Without an intent, Azure Files rejects tokens (REST docs, "Authorize with Microsoft Entra
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

    @cached_property
    def _token(self) -> TokenCredential | None:
        return default_credential(self.cloud) if self._keys is None else None

    @property
    def _proxy_options(self) -> dict[str, Any]:
        """Return options that bypass proxies for local services, which proxies cannot reach."""
        return {} if self._keys is None else {"use_env_settings": False}

    def _container_url(self, container: str) -> str:
        return f"{self.outputs.blob_endpoint}/{container}"

    def _blob_sas(self, container: str, blob_name: str, expiry: datetime, **options: Any) -> str:
        from azure.storage.blob import BlobSasPermissions, generate_blob_sas

        return generate_blob_sas(
            self.outputs.storage_account,
            container,
            blob_paths.blob_name(blob_name),
            account_key=self._keys["storage"] if self._keys else None,
            permission=BlobSasPermissions(read=True),
            expiry=expiry,
            **options,
        )

    def _identity(self, found: str | None) -> str:
        if found:
            return found
        raise RunnerError(
            "R-STACK-IDENTITY",
            "the stack has no managed identity for its nodes",
            why="nodes read code and write results with it; shared keys are disabled",
            fix="run `runner up` to deploy the stack again",
        )


def connect(settings: Settings) -> Connection:
    """Read the outputs and keys of the target. Send no request."""
    outputs = load_outputs(settings)
    keys = _local_keys(settings) if settings.target.runs_here else None
    return Connection(outputs, keys, settings.home)


def _local_keys(settings: Settings) -> dict[str, str]:
    path = HomePaths(settings.home).keys
    try:
        raw: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as err:
        raise _no_keys(str(path), str(err)) from err
    keys = cast("dict[str, object]", raw) if isinstance(raw, dict) else {}
    if not all(isinstance(keys.get(name), str) for name in ("batch", "storage")):
        raise _no_keys(str(path), "keys 'batch' and 'storage' are missing")
    return {name: str(keys[name]) for name in ("batch", "storage")}


def _no_keys(path: str, why: str) -> RunnerError:
    return RunnerError(
        "R-LOCAL-KEYS",
        f"cannot read the keys of the local services from {path}",
        why=why,
        fix="runner local down && runner local up",
        exit_code=ExitCode.ACCESS,
    )
