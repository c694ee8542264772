"""The local target: its stored state, keys and services, and the outputs of its stack.

The pool for containers needs a container engine, so it is created when a run first needs it.
"""

from __future__ import annotations

import base64
import dataclasses
import http.client
import importlib.util
import json
import os
import secrets
import shlex
import shutil
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from runner.azure.batch.pools import PoolSpec, ShareMount
from runner.contract import LOCAL_VM_SIZE, PoolOutput, StackOutputs
from runner.core.home import HomePaths, check_room, full_disk, not_writable, write_atomically
from runner.core.progress import OnProgress, Progress
from runner.core.settings import LOCAL, Settings
from runner.flows.extras import install_command
from runner.flows.local.azurite import find_uv
from runner.flows.local.task_folders import folders_outside
from runner.protocol.errors import ExitCode, RunnerError
from runner.protocol.run_spec import RecipeSpec

if TYPE_CHECKING:
    import psutil

    from runner.azure.auth.credentials import Connection


ACCOUNT = "runnerlocal"  # name of the Batch account and of the storage account
BATCH = "batch"
BLOB = "blob"
SEED = "user_delegation_seed"  # its name in keys.json
SEED_VARIABLE = "BATCH_EMULATOR_STORAGE_SEED"  # the same, of both services
_SAME_START_S = 1.0
_PACKAGES = ("batch_emulator", "httptools", "httpx", "psutil", "starlette", "uvicorn")
_PACKAGES_BYTES = 1 << 30  # Keras and JAX take 600 MB, PyTorch for CPUs 900 MB
_ANSWER_TIMEOUT_S = 30.0  # seconds on a busy machine; a port without a listener refuses immediately


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """A process that we started; `created` (seconds since the epoch) detects a recycled PID."""

    pid: int
    created: float


@dataclass(frozen=True, slots=True)
class LocalState:
    """Ports and sizes, which are chosen once; a record is None while the service is stopped."""

    batch_port: int
    blob_port: int
    nodes: int
    slots: int
    batch: ProcessRecord | None = None
    blob: ProcessRecord | None = None
    files_port: int = 0  # port of Azure Files in the Batch emulator; 0 before it is chosen
    azure_names: bool = False  # tasks reach the services by Azure's host names
    ui_port: int = 0  # port of the emulator's page; 0 if it has none
    faults: str = ""  # path of a file with rules for faults on purpose; empty without
    faults_digest: str = ""  # of its content, so that a changed file is loaded again
    images: tuple[str, ...] = ()  # REFERENCE=FOLDER of node images, see batch_emulator

    def record(self, service: str) -> ProcessRecord | None:
        """Return the process record of BATCH or BLOB."""
        return self.batch if service == BATCH else self.blob

    def with_record(self, service: str, record: ProcessRecord | None) -> LocalState:
        """Return a copy with another process record of BATCH or BLOB."""
        return replace(self, **{"batch" if service == BATCH else "blob": record})

    @property
    def batch_endpoint(self) -> str:
        """The URL of the Batch account."""
        return f"http://127.0.0.1:{self.batch_port}"

    @property
    def blob_endpoint(self) -> str:
        """The URL of the blob service."""
        return f"http://127.0.0.1:{self.blob_port}/{ACCOUNT}"

    @property
    def file_endpoint(self) -> str:
        """The URL of the file service."""
        return f"http://127.0.0.1:{self.files_port}/{ACCOUNT}"


def load_state(paths: HomePaths) -> LocalState | None:
    """Return the stored state, or None if the services were never set up. Raise RunnerError."""
    try:
        raw: Any = json.loads(paths.local_state.read_text(encoding="utf-8"))
        for name in ("batch", "blob"):
            raw[name] = ProcessRecord(**raw[name]) if raw[name] else None
        raw["images"] = tuple(raw.get("images", ()))
        return LocalState(**raw)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError) as err:
        raise RunnerError(
            "R-LOCAL-STATE",
            f"cannot read {paths.local_state}",
            why=str(err),
            fix="delete the file; keys, runs and jobs are stored elsewhere",
        ) from err


def save_state(paths: HomePaths, state: LocalState) -> None:
    """Store the state atomically. Earlier versions can read it without the newer options."""
    document = dataclasses.asdict(state)
    for name in ("ui_port", "faults", "faults_digest", "images"):
        if not document[name]:
            del document[name]
    write_atomically(paths.local_state, json.dumps(document, indent=2))


def ensure_keys(paths: HomePaths, *, renew: bool = False) -> dict[str, str]:
    """Return the account keys `batch` and `storage`, and the SEED: random, created once, private.

    Keys of an earlier version have no SEED; see `ensure_seed`. `renew` replaces damaged keys. Use
    it only while the services are stopped. Their data does not depend on the keys.
    """
    try:
        return _checked(json.loads(paths.keys.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return _create_keys(paths)
    except ValueError as err:
        if renew:
            return _create_keys(paths)
        raise RunnerError(
            "R-LOCAL-KEYS",
            f"{paths.keys} is damaged",
            why=str(err),
            fix="runner local down && runner local up",
            exit_code=ExitCode.PREFLIGHT,
        ) from err


def ensure_seed(paths: HomePaths, keys: dict[str, str]) -> dict[str, str]:
    """Return the keys with the SEED of user delegation keys, which is added to the file if missing.

    Use it only while other commands do not start the services, which have to know the same.
    """
    if keys.get(SEED):
        return keys
    keys = {**keys, SEED: _new_key()}
    write_atomically(paths.keys, json.dumps(keys, indent=2))
    return keys


def _create_keys(paths: HomePaths) -> dict[str, str]:
    return ensure_seed(paths, {name: _new_key() for name in ("batch", "storage")})


def _checked(raw: Any) -> dict[str, str]:
    keys = cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}
    if not all(isinstance(keys.get(name), str) for name in ("batch", "storage")):
        raise ValueError("missing keys 'batch' and 'storage'")
    if not isinstance(keys.get(SEED, ""), str):
        raise ValueError(f"'{SEED}' is no text")
    return keys


def _new_key() -> str:
    return base64.b64encode(secrets.token_bytes(64)).decode("ascii")


POOL_ID = "local"
# The emulator shows rebalance recommendations to requests of every later date.
_EVENTS_VERSION = "2026-01-01"
SHARE = "shared"  # name and mount path, as in infra
_PREPARE = """set -e
runner="$AZ_BATCH_NODE_SHARED_DIR/runner"
mkdir -p "$runner/bin" "$RUNNER_NODE_CACHE"
ln -sfn "$RUNNER_NODE_CACHE" "$runner/cache"
if ! command -v uv >/dev/null && [ -n "$RUNNER_NODE_UV" ]; then
  ln -sf "$RUNNER_NODE_UV" "$runner/bin/uv"
fi
if ! command -v micromamba >/dev/null && [ -n "${RUNNER_NODE_MICROMAMBA:-}" ]; then
  ln -sf "$RUNNER_NODE_MICROMAMBA" "$runner/bin/micromamba"
fi
"""
# Containers have only the folders of the node, so links to other folders do not work there.
_PREPARE_CONTAINERS = """set -e
runner="$AZ_BATCH_NODE_SHARED_DIR/runner"
mkdir -p "$runner/bin" "$runner/cache"
uv=${RUNNER_NODE_UV:-$(command -v uv || true)}
if [ -n "$uv" ]; then
  cp "$uv" "$runner/bin/uv"
fi
"""


@dataclass(frozen=True, slots=True)
class TaskIsolation:
    """The isolation of tasks in the emulator: a separate user (`uid`), or `environment`.

    `folder` contains the folders that tasks can reach; `why` is why there is no separate user.
    """

    mode: str
    uid: int | None
    folder: Path
    why: str

    def __str__(self) -> str:
        return f"user {self.uid}" if self.uid is not None else self.mode


def load_isolation(state: LocalState) -> TaskIsolation | None:
    """Return the isolation of the running emulator, or None if it is too old to report it.

    Raises RunnerError if it does not respond, because its tasks may have a separate user.
    """
    try:
        answer = _health(state)
        if "isolation" not in answer:
            return None
        found = answer["isolation"]
        return TaskIsolation(found["mode"], found["uid"], Path(found["folder"]), found["why"])
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError) as err:
        raise RunnerError(
            "R-LOCAL-DOWN",
            "the Azure Batch emulator does not respond",
            why=str(err),
            fix="runner local status",
        ) from err


def make_node_cache(paths: HomePaths, isolation: TaskIsolation | None) -> NodeCache:
    """Return the cache of nodes, and programs for their tasks. Create them if necessary.

    Tasks with a separate user have a separate cache, which they can reach.
    """
    uv, micromamba = find_uv() or "", shutil.which("micromamba") or ""
    if isolation is None or isolation.uid is None:
        return NodeCache(paths.cache, uv, micromamba)
    cache = paths.cache.resolve() / "user"
    if cache.is_dir() and cache.stat().st_uid != isolation.uid:  # of another emulator
        cache = cache.with_name(f"user-{isolation.uid}")
    if not all(folder.stat().st_mode & 0o001 for folder in cache.parents):
        cache = isolation.folder / "cache"
    try:
        cache.mkdir(mode=0o700, exist_ok=True)
        os.chown(cache, isolation.uid, isolation.uid)
        programs = cache.with_name("uv-of-tasks")
        return NodeCache(
            cache, _copy_for_tasks(uv, programs), _copy_for_tasks(micromamba, programs)
        )
    except OSError as err:
        raise not_writable(cache, err) from err


def _copy_for_tasks(program: str, folder: Path) -> str:
    """Return a copy of a program that tasks can read but not write."""
    if not program:
        return ""
    source, target = Path(program).resolve(), folder / Path(program).name
    if not target.is_file() or target.stat().st_mtime_ns != source.stat().st_mtime_ns:
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)  # regardless of the umask
        new = target.with_name(f".{target.name}.{os.getpid()}")
        shutil.copy2(source, new)
        new.chmod(0o755)
        new.replace(target)
    return str(target)


@dataclass(frozen=True, slots=True)
class NodeCache:
    """The folder of packages that outlives nodes, and the paths of programs on nodes, or ""."""

    folder: Path
    uv: str
    micromamba: str = ""


def check_packages_room(settings: Settings, recipe: RecipeSpec) -> None:
    """Raise R-DISK-SPACE if the packages of a first training here would fill the disk."""
    installs = recipe.requirements_file is not None and recipe.image is None
    if not settings.target.runs_here or not installs:
        return
    paths = HomePaths(settings.home)
    if any((place / "uv").exists() for place in (paths.cache, paths.cache / "user")):
        return
    if not any((folder / "cache" / "uv").exists() for folder in folders_outside(paths)):
        check_room(paths.cache, _PACKAGES_BYTES, "the packages of the recipe")


def pool_spec(state: LocalState, storage_key: str, cache: NodeCache) -> PoolSpec:
    """Return the pool of spot nodes with the file share, uv and a cache that outlives nodes."""
    return PoolSpec(
        id=POOL_ID,
        vm_size=LOCAL_VM_SIZE,
        spot_nodes=state.nodes,
        slots_per_node=state.slots,
        inter_node=True,
        start_command=f"/bin/sh -c {shlex.quote(_PREPARE)}",
        start_env=(
            ("RUNNER_NODE_CACHE", str(cache.folder)),
            ("RUNNER_NODE_UV", cache.uv),
            *((("RUNNER_NODE_MICROMAMBA", cache.micromamba),) if cache.micromamba else ()),
        ),
        share=ShareMount(ACCOUNT, f"{state.file_endpoint}/{SHARE}", SHARE, storage_key),
    )


def local_outputs(state: LocalState) -> StackOutputs:
    """Return the local services as the outputs of a stack."""
    pool = PoolOutput(
        id=POOL_ID,
        vm_size=LOCAL_VM_SIZE,
        gpus=0,
        vcpus=os.cpu_count() or 1,
        spot=True,
        max_nodes=state.nodes,
        containers=False,
        task_nodes=state.nodes if state.slots == 1 else 1,
    )
    return StackOutputs(
        location=LOCAL.name,
        resource_group="local",
        batch_account=ACCOUNT,
        batch_endpoint=state.batch_endpoint,
        storage_account=ACCOUNT,
        blob_endpoint=state.blob_endpoint,
        file_endpoint=state.file_endpoint,
        container_runs="runs",
        container_models="models",
        container_data="data",
        container_code="code",
        events_version=_EVENTS_VERSION,
        file_share=SHARE,
        identity_client_id=None,
        identity_resource_id=None,
        pools=(pool,),
        image_definition=None,
    )


CONTAINER_POOL_ID = "local-containers"


def with_container_pool(
    image: str | None, settings: Settings, outputs: StackOutputs
) -> StackOutputs:
    """Add the pool for containers if `image` needs one; outputs of Azure are returned unchanged."""
    if image is None or not settings.target.runs_here or any(p.containers for p in outputs.pools):
        return outputs
    first = outputs.pools[0]
    pool = PoolOutput(
        CONTAINER_POOL_ID,
        first.vm_size,
        first.gpus,
        first.vcpus,
        first.spot,
        first.max_nodes,
        containers=True,
        task_nodes=first.task_nodes,
    )
    return replace(outputs, pools=(*outputs.pools, pool))


def is_made_on_demand(settings: Settings, pool: PoolOutput) -> bool:
    """Return True if submitting to the pool creates it."""
    return settings.target.runs_here and pool.id == CONTAINER_POOL_ID


def make_container_pool(home: Path, on_progress: OnProgress) -> None:
    """Create the pool for containers of the local services, unless it exists."""
    from runner.azure.auth.credentials import Connection  # noqa: PLC0415  loads the SDK
    from runner.azure.batch.pools import ensure_pool  # noqa: PLC0415

    paths = HomePaths(home)
    state = load_state(paths)
    if state is None:  # the submission reports that the services are not running
        return
    keys = ensure_keys(paths)
    on_progress(Progress("services", "start", "creating the pool for containers"))
    connection = Connection(local_outputs(state), keys)
    cache = make_node_cache(paths, load_isolation(state))
    spec = replace(
        pool_spec(state, keys["storage"], cache),
        id=CONTAINER_POOL_ID,
        containers=True,
        start_command=f"/bin/sh -c {shlex.quote(_PREPARE_CONTAINERS)}",
    )
    happened = ensure_pool(connection, spec)
    on_progress(Progress("services", "end", f"pool {CONTAINER_POOL_ID} {happened}"))


def find_process(record: ProcessRecord | None, marker: str) -> psutil.Process | None:
    """Return a recorded process if it still runs, and its PID is not that of another process."""
    import psutil  # noqa: PLC0415  few commands need it

    if record is None:
        return None
    try:
        process = psutil.Process(record.pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        # If the clock was changed, creation times differ, and only the marker identifies it.
        same = abs(process.create_time() - record.created) < _SAME_START_S
        return process if same or has_marker(process, marker) else None
    except psutil.Error:
        return None


def has_marker(process: psutil.Process, marker: str) -> bool:
    """Return True if the marker is a word of the process's command line."""
    return marker in process.cmdline()


def service_marker(paths: HomePaths, name: str) -> str:
    """Return a word that only the command line of this home's service contains."""
    return str(paths.batch_data if name == BATCH else paths.blob_data)


def find_service(paths: HomePaths, state: LocalState, name: str) -> psutil.Process | None:
    """Return the running process of BATCH or BLOB, or None."""
    return find_process(state.record(name), service_marker(paths, name))


def has_seed(process: psutil.Process) -> bool:
    """Return False if a service signs for users with the public seed of an unchanged Azurite."""
    import psutil  # noqa: PLC0415  few commands need it

    try:
        return bool(process.environ().get(SEED_VARIABLE))
    except psutil.Error:
        return True  # the next request shows whether it still runs


def is_reachable(settings: Settings) -> bool:
    """Return False if the target is local and its services are not running."""
    return not settings.target.runs_here or all_respond(settings)


def all_respond(settings: Settings) -> bool:
    """Return True if the local services were set up, and both run and respond to requests."""
    check_extra()
    paths = HomePaths(settings.home)
    state = load_state(paths)
    if state is None or not paths.local_outputs.is_file():
        return False
    found = {name: find_service(paths, state, name) for name in (BATCH, BLOB)}
    blob = found[BLOB]
    if blob is not None and not has_seed(blob):  # of an earlier version: `up` restarts it
        return False
    return all(found[name] is not None and service_answers(name, state) for name in found)


_ROOM_TIMEOUT_S, _ROOM_POLL_S = 10.0, 0.2
_RUN_BYTES = 8 << 20  # agent, logs, and the reserve that the agent keeps from the script


def await_room(settings: Settings) -> None:
    """Wait on a full disk until the emulator has deleted what ended runs left there.

    Raises:
        RunnerError: R-DISK-FULL or R-DISK-SPACE, other files fill the disk, so that a run could
            neither start nor store why.
    """
    paths = HomePaths(settings.home)
    deadline = time.monotonic() + _ROOM_TIMEOUT_S
    while full := full_disk(paths.local):
        state = load_state(paths)
        if state is None or time.monotonic() > deadline or refusal(state) is None:
            raise full
        time.sleep(_ROOM_POLL_S)  # the emulator has begun to delete when it was asked
    if paths.local.is_dir():
        check_room(paths.local, _RUN_BYTES, "a run")


def check_services_room(connection: Connection, needed_bytes: int) -> None:
    """Raise R-DISK-SPACE if the disk of the local services has no room for an upload."""
    if connection.target.runs_here and connection.home is not None:
        check_room(HomePaths(connection.home).local, needed_bytes, "the files to upload")


def refusal(state: LocalState) -> str | None:
    """Return why the emulator starts no tasks, such as a full disk, or None."""
    try:
        return _health(state).get("reason")
    except (OSError, http.client.HTTPException, ValueError, AttributeError):
        return None


def service_answers(name: str, state: LocalState, *, timeout_s: float = _ANSWER_TIMEOUT_S) -> bool:
    """Return True if the service responds to requests."""
    port = state.batch_port if name == BATCH else state.blob_port
    path = "/_emulator/health" if name == BATCH else f"/{ACCOUNT}?comp=list"
    try:
        reply, _ = ask_service(port, "GET", path, timeout_s=timeout_s)
    except (OSError, http.client.HTTPException):
        return False
    if name == BATCH:
        return reply.status == http.client.OK
    return (reply.getheader("Server") or "").startswith(
        "Azurite-Blob"
    )  # 403: the request has no key


def check_extra() -> None:
    """Raise R-LOCAL-EXTRA if this machine lacks packages of the local services."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if importlib.util.find_spec("uv") is None and shutil.which("uv") is None:
        missing.append("uv")
    if os.name == "nt" or missing:
        windows = os.name == "nt"
        raise RunnerError(
            "R-LOCAL-EXTRA",
            "the local services cannot run here",
            why="Windows is not supported" if windows else f"not installed: {', '.join(missing)}",
            fix="use WSL" if windows else install_command("local"),
        )


def services_down() -> RunnerError:
    """Return the error for a command that needs the local services while they do not run."""
    return RunnerError("R-LOCAL-DOWN", "the local services are not running", fix="runner local up")


def ask_service(
    port: int,
    method: str,
    path: str,
    *,
    timeout_s: float = _ANSWER_TIMEOUT_S,
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
) -> tuple[http.client.HTTPResponse, bytes]:
    """Send one request to a local service and return its answer, which is read and closed.

    Raises OSError or HTTPException if the service does not respond.
    """
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)) as connection:
        connection.request(method, path, body=content, headers=headers or {})
        reply = connection.getresponse()
        return reply, reply.read()


def new_page_link(state: LocalState, key: str) -> str:
    """Return a link that signs one browser in to the emulator's page, empty if it has none."""
    if not state.ui_port:
        return ""
    headers = {"Authorization": f"Bearer {key}"}
    try:
        path = "/_emulator/page-links"
        reply, content = ask_service(state.batch_port, "POST", path, headers=headers)
        return str(json.loads(content)["url"]) if reply.status == http.client.CREATED else ""
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return ""  # `runner local status` says what is wrong


def _health(state: LocalState) -> Any:
    return json.loads(ask_service(state.batch_port, "GET", "/_emulator/health")[1])
