"""Containers of tasks: images, creation and end; a multi-instance task keeps one per instance."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from batch_emulator.domain.launch import (
    ContainerSpec,
    ExecutionError,
    FailureInfo,
    LaunchSpec,
    RegistryCredentials,
    command_launch_failed,
    command_not_found,
    container_failure,
)
from batch_emulator.executor.container_engine import (
    DATA_LABEL,
    Engine,
    create_arguments,
    env_arguments,
    env_file_text,
    find,
    full_name,
    inherited,
    remove_all,
    server_of,
)
from batch_emulator.executor.node_setup import Booted, NodeError, Step
from batch_emulator.folders import make_real_folder, read_end_below

log = logging.getLogger(__name__)

_PULL_S = 3600.0
_MISSING = 127
_MISSING_TEXTS = ("executable file not found", "command that was not found")
_OUTPUT_CHARACTERS = 1000  # characters of an engine's output
_NOT_STARTED = "0001-01-01"  # StartedAt of a container that was not started, in both engines


@dataclass(frozen=True, slots=True)
class ContainerExit:
    """A container that has ended: `document` is its containerInfo, `code` that of the engine."""

    document: dict[str, Any]
    started: bool
    error: str
    code: int


class TaskContainers:
    """Runs containers for one emulator, all with `run_options`.

    `choice` names the engine: see `container_engine.find`.
    """

    def __init__(
        self, data_dir: Path, choice: str = "none", run_options: Sequence[str] = ()
    ) -> None:
        self._data_dir = data_dir
        self._choice = choice
        self._run_options = tuple(run_options)
        self._engine: asyncio.Future[Engine | None] | None = None
        self._pulls: dict[str, asyncio.Lock] = {}
        self._names: dict[str, tuple[Path, str]] = {}  # node and wished name, by container

    @property
    def _engine_file(self) -> Path:
        return self._data_dir / "container-engine"

    async def engine(self) -> Engine | None:
        """Return the engine; search again as long as there is none."""
        if self._engine is None:
            self._engine = asyncio.ensure_future(find(self._choice))
        found = await asyncio.shield(self._engine)
        if found is None:
            self._engine = None
        if found is not None and not self._engine_file.exists():
            self._engine_file.write_text(found.program, encoding="utf-8")
        return found

    def remove_leftovers(self) -> None:
        """Remove the containers of an emulator that crashed on this data dir."""
        if self._engine_file.exists():
            program = self._engine_file.read_text(encoding="utf-8")
            remove_all(program, f"{DATA_LABEL}={self._data_dir}")

    async def require(self) -> Engine:
        """Return the engine. Without one, raise the ExecutionError of pools without containers."""
        found = await self.engine()
        if found is None:
            raise ExecutionError(not_supported("No container engine works on this machine"))
        return found

    async def create(self, container: ContainerSpec, name: str) -> str:
        """Create a container, with a pulled image, and return its id. Raises ExecutionError."""
        engine = await self.require()
        await self.fetch(container.image, container.registries)
        self._take_name(container, name)
        if engine.is_podman:  # docker makes them itself
            _make_volumes(container)
        env_file = container.node_root.parent / f"{name}.env"
        user = container.user or engine.user
        arguments = create_arguments(
            container, name, env_file,
            user=user, extra=self._run_options, podman=engine.is_podman,
        )  # fmt: skip
        try:
            _write_secret(env_file, env_file_text(container.environment))
            passed = inherited(container.environment)
            created = await engine.run(*arguments, environment=passed)
        except OSError as err:
            self._names.pop(name, None)
            raise ExecutionError(invalid_settings(str(err))) from err
        finally:
            env_file.unlink(missing_ok=True)
        if created.code != 0:
            self._names.pop(name, None)
            raise ExecutionError(invalid_settings(created.why))
        return created.out.strip()

    def _take_name(self, container: ContainerSpec, name: str) -> None:
        """Give a container the name that its task wishes. A node has each name once, as docker.

        Raises ExecutionError.
        """
        wished = (container.node_root, container.name)
        if wished in self._names.values():
            why = f'The container name "/{container.name}" is already in use on this node.'
            raise ExecutionError(invalid_settings(f"Conflict. {why}"))
        if container.name:
            self._names[name] = wished

    async def words_of(self, image: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return entry point and command of an image; each is empty if the image has none."""
        answer = await (await self.require()).run("image", "inspect", image)
        config: dict[str, Any] = (_inspected(answer.out) or {}).get("Config") or {}
        return tuple(config.get("Entrypoint") or ()), tuple(config.get("Cmd") or ())

    async def start_command(self, name: str) -> list[str]:
        """Return the command that runs a created container, with its output and exit code."""
        return (await self.require()).command("start", "--attach", name)

    async def kill(self, name: str) -> None:
        """End a container, if it runs."""
        await (await self.require()).run("kill", "--signal=KILL", name)

    async def remove(self, name: str) -> None:
        """End a container, if it runs, and remove it, if it is there."""
        engine = await self.require()
        await self.kill(name)  # because podman waits ten seconds before it kills
        await engine.run("rm", "--force", name)
        self._names.pop(name, None)

    async def finish(self, name: str) -> ContainerExit | None:
        """Remove a container and return its outcome, or None if the engine does not know it."""
        engine = await self.require()
        answer = await engine.run("container", "inspect", name)
        removed = await engine.run("rm", "--force", name)
        self._names.pop(name, None)
        if removed.code != 0:
            log.warning("container %s is left: %s", name, removed.why)
        found = _inspected(answer.out)
        if found is None:
            return None
        state: dict[str, Any] = found.get("State") or {}
        status = state.get("Status", "")
        if status in ("running", "stopped"):  # it was killed, and podman has not noticed yet
            status = "exited"
        document = {"containerId": found.get("Id", ""), "state": status}
        error = str(state.get("Error") or "")
        if error:
            document["error"] = error
        started = not str(state.get("StartedAt") or _NOT_STARTED).startswith(_NOT_STARTED)
        return ContainerExit(document, started, error, int(state.get("ExitCode") or 0))

    async def fetch(self, image: str, registries: Iterable[RegistryCredentials]) -> None:
        """Pull an image unless it is on this machine. Raises ExecutionError.

        An image of a registry without a password here is pulled with the logins of the engine on
        this machine. So are those of a registry that nodes use with an identity [S].
        """
        async with self._pulls.setdefault(image, asyncio.Lock()):
            engine = await self.require()
            known = await engine.run("image", "inspect", "--format={{.Id}}", image)
            if known.code == 0:
                return
            with tempfile.TemporaryDirectory(prefix="batch-emulator-") as folder:
                config = Path(folder)
                servers = await log_in(engine, registries, config)
                asked = server_of(image) in servers
                name = full_name(image) if engine.is_podman else image
                pulled = await engine.run(
                    "pull", name, config_dir=config if asked else None, timeout_s=_PULL_S
                )
            if pulled.code != 0:
                details = (("ContainerImage", image), ("Message", pulled.why))
                message = "One or more container images specified are invalid"
                raise ExecutionError(container_failure("ContainerInvalidImage", message, *details))

    def step(self) -> Step:
        """Return the step of a node's setup for a container pool: engine, registries, images."""
        return Step("containers", lambda spec: configuration(spec) is not None, self._prepare)

    async def _prepare(self, node: Booted) -> None:
        config = configuration(node.spec) or {}
        registries = registries_of(config.get("containerRegistries") or ())
        try:
            engine = await self.require()
            if registries:
                with tempfile.TemporaryDirectory(prefix="batch-emulator-") as folder:
                    await log_in(engine, registries, Path(folder))
            for image in config.get("containerImageNames") or ():
                await self.fetch(image, registries)
        except ExecutionError as err:
            failure = err.failure
            raise NodeError(failure.code, failure.message, failure.details) from err


def _inspected(output: str) -> dict[str, Any] | None:
    """Return the only object that `inspect` printed, None if the engine knows none."""
    try:
        return json.loads(output)[0]
    except (ValueError, LookupError, TypeError):
        return None


async def log_in(
    engine: Engine, registries: Iterable[RegistryCredentials], config: Path
) -> set[str]:
    """Write credentials below `config`. Return their registries. Raises ExecutionError."""
    servers: set[str] = set()
    for registry in registries:
        servers.add(registry.server)
        user = f"--username={registry.username}"
        answer = await engine.run(
            "login", user, "--password-stdin", registry.server,
            config_dir=config, text=registry.password,
        )  # fmt: skip
        if answer.code != 0:
            details = (("ContainerRegistry", registry.server), ("Message", answer.why))
            message = "One or more container registries specified are invalid"
            raise ExecutionError(container_failure("ContainerInvalidRegistry", message, *details))
    return servers


def _make_volumes(container: ContainerSpec) -> None:
    """Make missing folders of the node that the options mount, as docker does."""
    for option in container.run_options:
        name, _, value = option.partition("=")
        source = Path(value.partition(":")[0])
        if name == "--volume" and source.is_relative_to(container.node_root):
            with suppress(OSError):  # then the engine says what is wrong
                make_real_folder(source, container.node_root)


def configuration(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the container configuration of a pool's body."""
    machine: dict[str, Any] = spec.get("virtualMachineConfiguration") or {}
    return machine.get("containerConfiguration")


def registries_of(documents: Iterable[Mapping[str, Any]]) -> tuple[RegistryCredentials, ...]:
    """Return the registries with credentials; one without a name is Docker Hub (docs)."""
    return tuple(
        RegistryCredentials(
            str(one.get("registryServer") or "docker.io").removeprefix("https://").rstrip("/"),
            str(one["username"]),
            str(one.get("password") or ""),
        )
        for one in documents
        if one.get("username")
    )


def new_name() -> str:
    """Return a name that no container has."""
    return f"batch-emulator-{uuid4().hex}"


def invalid_settings(why: str) -> FailureInfo:
    """Return the error of a container that cannot be created as requested."""
    message = "At least one value of specified task container settings is invalid"
    return container_failure("ContainerInvalidSettings", message, ("Message", why))


def not_supported(why: str) -> FailureInfo:
    """Return the error of a pool without containers; the SDK's own tests expect this code."""
    message = "The pool does not support running tasks in containers"
    return container_failure("ContainerPoolNotSupported", message, ("Message", why))


def not_started(launch: LaunchSpec, code: int, ended: ContainerExit) -> FailureInfo:
    """Return the error of a command that the engine could not start.

    For a missing program, docker sets the exit code 127 of the container, and podman prints a
    message. Only the engine has written to stderr.txt.
    """
    said = _end_of_stderr(launch, 4 * _OUTPUT_CHARACTERS)[-_OUTPUT_CHARACTERS:].strip()
    why = ended.error or said or f"the engine ended with {code}"
    line = launch.command_line
    if _MISSING in (code, ended.code) or any(text in why for text in _MISSING_TEXTS):
        program = line.split(maxsplit=1)[0] if line.strip() else ""
        return command_not_found(line, program, why)
    return command_launch_failed(line, why)


def _end_of_stderr(launch: LaunchSpec, size: int) -> str:
    path = launch.task_dir / "stderr.txt"
    return read_end_below(path, launch.node_dir, size).decode(errors="replace")


def settings_missing() -> FailureInfo:
    """Return the error of a task without container settings on a pool that requires them."""
    message = "Container-enabled compute node requires task container settings"
    return container_failure("ContainerTaskSettingsNotFound", message)


def _write_secret(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(text)


# A shell that reads endless empty input keeps the container running [S].
_IDLE_COMMAND = "/bin/sh"
_IDLE_OPTIONS = ("--interactive", f"--entrypoint={_IDLE_COMMAND}")
_IDLE_ARGUMENTS = ("-s",)

# Exit codes of engines, which a command can have as well; the client of docker exits with 1 if the
# daemon refuses. So the last line of the output must also have the form of an engine's message. A
# command that imitates both affects only its own result.
_REFUSALS = (1, 125, 126, 127, 255)
_REFUSAL = re.compile(
    r"(?=Error: |Error response from daemon: |OCI runtime exec failed: )"
    r".*(OCI runtime|OCI permission|container state improper|is not running"
    r"|no such (exec|container))",
    re.IGNORECASE,
)
# the messages of runc, docker and crun
_NO_PROGRAM = re.compile(
    r"no such file or directory|executable file .*not found|command that was not found",
    re.IGNORECASE,
)
_TAIL = 2000


@dataclass(eq=False, slots=True)
class _InstanceContainer:
    """An existing container; `entry` precedes every command, `default` is the image's command."""

    name: str
    on_container: Callable[[dict[str, Any]], None]
    container_id: str = ""
    entry: tuple[str, ...] = ()
    default: tuple[str, ...] = ()
    ending: asyncio.Task[None] | None = None


class InstanceContainers:
    """The containers that exist from a coordination command to the end of its task, by key."""

    def __init__(self, containers: TaskContainers) -> None:
        self._containers = containers
        self._kept: dict[str, _InstanceContainer] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._kept))

    def name(self, key: str) -> str:
        """Return the name of the container of a launch."""
        return self._kept[key].name

    def reserve(self, key: str, on_container: Callable[[dict[str, Any]], None]) -> None:
        """Name the container of a launch, so that `close` removes it even if it is incomplete."""
        self._kept[key] = _InstanceContainer(new_name(), on_container)

    async def open(self, key: str, container: ContainerSpec) -> None:
        """Create and start the container of a launch. Raises ExecutionError.

        It starts without the task's variables: its first process does not belong to the task.
        """
        kept = self._kept[key]
        options, entry = _without_entry_point(container.run_options)
        keeper = replace(
            container,
            command=_IDLE_ARGUMENTS,
            run_options=(*options, *_IDLE_OPTIONS),
            environment={},
        )
        kept.container_id = await self._containers.create(keeper, kept.name)
        kept.entry, kept.default = await self._containers.words_of(container.image)
        if entry is not None:
            kept.entry, kept.default = entry, ()
        engine = await self._containers.require()
        started = await engine.run("start", kept.name)
        if started.code != 0:
            why = f"a multi-instance task needs {_IDLE_COMMAND} in its image: {started.why}"
            raise ExecutionError(invalid_settings(why))

    async def command(self, key: str, container: ContainerSpec) -> list[str]:
        """Return the command line for a command in the container, with variables from stdin."""
        kept = self._kept[key]
        kept.on_container({"containerId": kept.container_id, "state": "running"})
        engine = await self._containers.require()
        variables = env_arguments(container.environment, "/dev/stdin")
        words = (*kept.entry, *(container.command or kept.default))
        if not words:
            raise ExecutionError(command_launch_failed("", "neither task nor image has a command"))
        return engine.command("exec", *variables, kept.name, *words)

    async def close(self, key: str) -> None:
        """End and remove the container of a launch, if there is one."""
        kept = self._kept.get(key)
        if kept is None:
            return
        if kept.ending is None:
            kept.ending = asyncio.create_task(self._end(kept))
        await asyncio.shield(kept.ending)
        self._kept.pop(key, None)

    async def _end(self, kept: _InstanceContainer) -> None:
        await self._containers.kill(kept.name)
        ended = await self._containers.finish(kept.name)
        if ended is not None:
            kept.on_container(ended.document)


def _without_entry_point(options: tuple[str, ...]) -> tuple[list[str], tuple[str, ...] | None]:
    """Split options into the others and the entry point, of which the last one counts."""
    found = [one.partition("=")[2] for one in options if one.startswith("--entrypoint=")]
    rest = [one for one in options if not one.startswith("--entrypoint=")]
    return rest, _entry_words(found[-1]) if found else None


def _entry_words(value: str) -> tuple[str, ...]:
    if value.startswith("["):  # podman also accepts a list
        try:
            return tuple(str(word) for word in json.loads(value))
        except ValueError:
            pass
    return (value,) if value else ()


@contextmanager
def variables(environment: Mapping[str, str]) -> Generator[int]:
    """Yield a file descriptor with the variables; the file has no name that others could open."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape") as file:
        file.write(env_file_text(environment))
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        yield file.fileno()


def refusal(launch: LaunchSpec, code: int) -> FailureInfo | None:
    """Return why the engine did not run a command, by its exit code and its output."""
    if code not in _REFUSALS:
        return None
    said = _end_of_stderr(launch, _TAIL).strip()
    why = said.rpartition("\n")[2]
    if not _REFUSAL.match(why):
        return None
    if _NO_PROGRAM.search(why):
        words = shlex.split(launch.command_line)
        return command_not_found(launch.command_line, words[0] if words else "", why)
    return command_launch_failed(launch.command_line, why)
