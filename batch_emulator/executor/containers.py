"""Containers of tasks: images, creation, end. The engine is looked for when first needed.

Messages follow public reports of the service (Azure/Batch#4, CromwellOnAzure#29,
ga4gh-tes#525; read 2026-11-21); where there is none they are ours [S].
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from batch_emulator.executor import container as line
from batch_emulator.executor import engine as engines
from batch_emulator.executor.container import Container, Registry
from batch_emulator.executor.engine import Engine
from batch_emulator.executor.failures import (
    command_launch_failed,
    command_not_found,
    container_failure,
)
from batch_emulator.executor.launch import ExecutionError, Failure, Launch
from batch_emulator.executor.node_setup import Booted, NodeError, Step

log = logging.getLogger(__name__)

_PULL_S = 3600.0
_MISSING = 127
_MISSING_TEXTS = ("executable file not found", "command that was not found")
_TOLD = 1000  # characters of what an engine wrote
_NEVER = "0001-01-01"  # how both engines write that a container was not started


@dataclass(frozen=True, slots=True)
class Ended:
    """A container that is over: `document` is the wire's containerInfo, `code` the engine's own."""

    document: dict[str, Any]
    started: bool
    error: str
    code: int


class Containers:
    """Runs containers for one emulator. `choice` as for `engine.find`; `run_options` go to all."""

    def __init__(
        self, data_dir: Path, choice: str = "none", run_options: Sequence[str] = ()
    ) -> None:
        self._data_dir = data_dir
        self._choice = choice
        self._run_options = tuple(run_options)
        self._engine: asyncio.Future[Engine | None] | None = None
        self._pulls: dict[str, asyncio.Lock] = {}

    @property
    def _trace(self) -> Path:
        return self._data_dir / "container-engine"

    async def engine(self) -> Engine | None:
        """The engine, looked for until there is one."""
        if self._engine is None:
            self._engine = asyncio.ensure_future(engines.find(self._choice))
        found = await asyncio.shield(self._engine)
        if found is None:
            self._engine = None
        if found is not None and not self._trace.exists():
            self._trace.write_text(found.program, encoding="utf-8")
        return found

    def remove_leftovers(self) -> None:
        """Remove the containers of an emulator that crashed on this data dir."""
        if self._trace.exists():
            program = self._trace.read_text(encoding="utf-8")
            engines.remove_all(program, f"{line.DATA_LABEL}={self._data_dir}")

    async def require(self) -> Engine:
        """The engine. Raises ExecutionError with what the service says of other pools."""
        found = await self.engine()
        if found is None:
            raise ExecutionError(not_supported("No container engine works on this machine"))
        return found

    async def create(self, container: Container, name: str) -> str:
        """Create a container, its image fetched if need be; its id. Raises ExecutionError."""
        engine = await self.require()
        await self.fetch(container.image, container.registries)
        env_file = container.node_root.parent / f"{name}.env"
        arguments = line.create_arguments(
            container, name, env_file, user=engine.user, extra=self._run_options
        )
        try:
            _write_secret(env_file, line.env_file_text(container.environment))
            inherited = line.inherited(container.environment)
            created = await engine.run(*arguments, environment=inherited)
        except OSError as err:
            raise ExecutionError(invalid_settings(str(err))) from err
        finally:
            env_file.unlink(missing_ok=True)
        if created.code != 0:
            raise ExecutionError(invalid_settings(created.why))
        return created.out.strip()

    async def words_of(self, image: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The entry point of an image and its command, as far as it names them."""
        answer = await (await self.require()).run("image", "inspect", image)
        try:
            config: dict[str, Any] = json.loads(answer.out)[0].get("Config") or {}
        except (ValueError, LookupError, TypeError):
            return (), ()
        return tuple(config.get("Entrypoint") or ()), tuple(config.get("Cmd") or ())

    async def start_command(self, name: str) -> list[str]:
        """The command that runs a created container, its output and exit code being its own."""
        return (await self.require()).command("start", "--attach", name)

    async def kill(self, name: str) -> None:
        """End a container, if it runs."""
        await (await self.require()).run("kill", "--signal=KILL", name)

    async def remove(self, name: str) -> None:
        """End a container, if it runs, and remove it, if it is there."""
        engine = await self.require()
        await self.kill(name)  # podman would give it ten seconds
        await engine.run("rm", "--force", name)

    async def finish(self, name: str) -> Ended | None:
        """What became of a container, which is removed; None when the engine does not know it."""
        engine = await self.require()
        answer = await engine.run("container", "inspect", name)
        removed = await engine.run("rm", "--force", name)
        if removed.code != 0:
            log.warning("container %s is left: %s", name, removed.why)
        try:
            found = cast("list[dict[str, Any]]", json.loads(answer.out))[0]
        except (ValueError, LookupError, TypeError):
            return None
        state: dict[str, Any] = found.get("State") or {}
        status = state.get("Status", "")
        if status in ("running", "stopped"):  # it was killed, and podman has not tidied up yet
            status = "exited"
        document = {"containerId": found.get("Id", ""), "state": status}
        error = str(state.get("Error") or "")
        if error:
            document["error"] = error
        started = not str(state.get("StartedAt") or _NEVER).startswith(_NEVER)
        return Ended(document, started, error, int(state.get("ExitCode") or 0))

    async def fetch(self, image: str, registries: Iterable[Registry]) -> None:
        """Have an image on this machine. Raises ExecutionError."""
        async with self._pulls.setdefault(image, asyncio.Lock()):
            engine = await self.require()
            known = await engine.run("image", "inspect", "--format={{.Id}}", image)
            if known.code == 0:
                return
            with tempfile.TemporaryDirectory(prefix="batch-emulator-") as folder:
                config = Path(folder)
                asked = await log_in(engine, registries, config)
                name = line.full_name(image) if engine.is_podman else image
                pulled = await engine.run(
                    "pull", name, config_dir=config if asked else None, timeout_s=_PULL_S
                )
            if pulled.code != 0:
                details = (("ContainerImage", image), ("Message", pulled.why))
                message = "One or more container images specified are invalid"
                raise ExecutionError(container_failure("ContainerInvalidImage", message, *details))

    def step(self) -> Step:
        """What a container pool wants on its nodes: the engine, registries, images."""
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


async def log_in(engine: Engine, registries: Iterable[Registry], config: Path) -> bool:
    """Write credentials below `config`; whether there are any. Raises ExecutionError."""
    asked = False
    for registry in registries:
        asked = True
        user = f"--username={registry.username}"
        answer = await engine.run(
            "login", user, "--password-stdin", registry.server,
            config_dir=config, text=registry.password,
        )  # fmt: skip
        if answer.code != 0:
            details = (("ContainerRegistry", registry.server), ("Message", answer.why))
            message = "One or more container registries specified are invalid"
            raise ExecutionError(container_failure("ContainerInvalidRegistry", message, *details))
    return asked


def configuration(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """The container configuration of a pool's body."""
    machine: dict[str, Any] = spec.get("virtualMachineConfiguration") or {}
    return machine.get("containerConfiguration")


def registries_of(documents: Iterable[Mapping[str, Any]]) -> tuple[Registry, ...]:
    """Those that ask for credentials; Docker Hub where none is named (docs)."""
    return tuple(
        Registry(
            str(one.get("registryServer") or "docker.io").removeprefix("https://").rstrip("/"),
            str(one["username"]),
            str(one.get("password") or ""),
        )
        for one in documents
        if one.get("username")
    )


def new_name() -> str:
    """A name that no container has."""
    return f"batch-emulator-{uuid4().hex}"


def invalid_settings(why: str) -> Failure:
    """The container cannot be created as it was asked for."""
    message = "At least one value of specified task container settings is invalid"
    return container_failure("ContainerInvalidSettings", message, ("Message", why))


def not_supported(why: str) -> Failure:
    """The pool runs no containers; the code is what the service's own SDK tests expect."""
    message = "The pool does not support running tasks in containers"
    return container_failure("ContainerPoolNotSupported", message, ("Message", why))


def not_started(launch: Launch, code: int, ended: Ended) -> Failure:
    """The engine could not start the command in the container.

    A missing program is 127 of the container in docker, and a message in podman; the engine is all
    that wrote to stderr.txt.
    """
    said = (launch.task_dir / "stderr.txt").read_text(encoding="utf-8", errors="replace")
    why = ended.error or said[-_TOLD:].strip() or f"the engine ended with {code}"
    line = launch.command_line
    if _MISSING in (code, ended.code) or any(text in why for text in _MISSING_TEXTS):
        program = line.split(maxsplit=1)[0] if line.strip() else ""
        return command_not_found(line, program, why)
    return command_launch_failed(line, why)


def settings_missing() -> Failure:
    """On a container pool tasks need container settings (container workloads page)."""
    message = "Container-enabled compute node requires task container settings"
    return container_failure("ContainerTaskSettingsNotFound", message)


def _write_secret(path: Path, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.write(text)
