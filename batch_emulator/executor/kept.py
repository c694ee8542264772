"""Containers of multi-instance tasks: one for each instance, and both of its commands run in it.

No page of the service says how it runs them. Batch Shipyard (convoy/settings.py) gives the
service's own ("native") container pools `/usr/sbin/sshd -p 23` as the coordination command: sshd
goes to the background and its command returns, so what was started must outlive the command. A
container ends with its first process, hence it is kept and both commands run in it as `docker exec`
does, which is what Shipyard does by itself on other pools (its page on multi-instance tasks). That
the primary's command finds what its coordination command left in the container is our choice [S].
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from batch_emulator.executor import container as line
from batch_emulator.executor.container import Container
from batch_emulator.executor.containers import Containers, invalid_settings, new_name
from batch_emulator.executor.failures import command_launch_failed, command_not_found
from batch_emulator.executor.launch import ExecutionError, Failure, Launch

# A shell whose input never ends and says nothing [S]: an engine has no empty container to offer.
_KEEPER = "/bin/sh"
_KEEPER_OPTIONS = ("--interactive", f"--entrypoint={_KEEPER}")
_KEEPER_ARGUMENTS = ("-s",)

# An engine's own exit codes, which a command can have as well; docker's client has 1 for what the
# daemon refuses. Hence its last words count, too, in the form that an engine gives them. A command
# that forges both spoils only its own result.
_REFUSALS = (1, 125, 126, 127, 255)
_REFUSAL = re.compile(
    r"(?=Error: |Error response from daemon: |OCI runtime exec failed: )"
    r".*(OCI runtime|OCI permission|container state improper|is not running"
    r"|no such (exec|container))",
    re.IGNORECASE,
)
# runc, docker, crun: each has its own way to say it
_MISSING = re.compile(
    r"no such file or directory|executable file .*not found|command that was not found",
    re.IGNORECASE,
)
_TAIL = 2000


@dataclass(eq=False, slots=True)
class _Kept:
    """A container that is there; `entry` stands before every command, `default` is the image's."""

    name: str
    on_container: Callable[[dict[str, Any]], None]
    container_id: str = ""
    entry: tuple[str, ...] = ()
    default: tuple[str, ...] = ()
    ending: asyncio.Task[None] | None = None


class KeptContainers:
    """The containers that live from a coordination command to the end of its task, by launch."""

    def __init__(self, containers: Containers) -> None:
        self._containers = containers
        self._kept: dict[str, _Kept] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._kept))

    def name(self, key: str) -> str:
        """What the engine knows the container of a launch by."""
        return self._kept[key].name

    def reserve(self, key: str, on_container: Callable[[dict[str, Any]], None]) -> None:
        """Name the container of a launch: from now on `close` removes it, however far it got."""
        self._kept[key] = _Kept(new_name(), on_container)

    async def open(self, key: str, container: Container) -> None:
        """Create and start the container of a launch. Raises ExecutionError.

        It is started without the task's variables: its own process is not one of the task's.
        """
        kept = self._kept[key]
        options, entry = _without_entry_point(container.run_options)
        keeper = replace(
            container,
            command=_KEEPER_ARGUMENTS,
            run_options=(*options, *_KEEPER_OPTIONS),
            environment={},
        )
        kept.container_id = await self._containers.create(keeper, kept.name)
        kept.entry, kept.default = await self._containers.words_of(container.image)
        if entry is not None:
            kept.entry, kept.default = entry, ()
        engine = await self._containers.require()
        started = await engine.run("start", kept.name)
        if started.code != 0:
            why = f"a multi-instance task needs {_KEEPER} in its image: {started.why}"
            raise ExecutionError(invalid_settings(why))

    async def command(self, key: str, container: Container) -> list[str]:
        """The command line that runs a command in the container; variables come from its stdin."""
        kept = self._kept[key]
        kept.on_container({"containerId": kept.container_id, "state": "running"})
        engine = await self._containers.require()
        variables = line.env_arguments(container.environment, "/dev/stdin")
        words = (*kept.entry, *(container.command or kept.default))
        if not words:
            raise ExecutionError(command_launch_failed("", "neither task nor image has a command"))
        return engine.command("exec", *variables, kept.name, *words)

    async def close(self, key: str) -> None:
        """End and remove the container of a launch, if it has one; return when it is gone."""
        kept = self._kept.get(key)
        if kept is None:
            return
        if kept.ending is None:
            kept.ending = asyncio.create_task(self._end(kept))
        await asyncio.shield(kept.ending)
        self._kept.pop(key, None)

    async def _end(self, kept: _Kept) -> None:
        await self._containers.kill(kept.name)
        ended = await self._containers.finish(kept.name)
        if ended is not None:
            kept.on_container(ended.document)


def _without_entry_point(options: tuple[str, ...]) -> tuple[list[str], tuple[str, ...] | None]:
    """The other options, and the entry point among them: the last one counts."""
    rest: list[str] = []
    entry: tuple[str, ...] | None = None
    given = iter(options)
    for option in given:
        name, _, value = option.partition("=")
        if name != "--entrypoint":
            rest.append(option)
            continue
        entry = _entry_words(value if "=" in option else next(given, ""))
    return rest, entry


def _entry_words(value: str) -> tuple[str, ...]:
    if value.startswith("["):  # podman takes a list too
        try:
            return tuple(str(word) for word in json.loads(value))
        except ValueError:
            pass
    return (value,) if value else ()


@contextmanager
def variables(environment: Mapping[str, str]) -> Generator[int]:
    """A file descriptor to read the variables from; the file has no name that others could open."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="surrogateescape") as file:
        file.write(line.env_file_text(environment))
        file.flush()
        os.lseek(file.fileno(), 0, os.SEEK_SET)
        yield file.fileno()


def refusal(launch: Launch, code: int) -> Failure | None:
    """Why the engine did not run a command, judged by its exit code and its last words."""
    if code not in _REFUSALS:
        return None
    said = (launch.task_dir / "stderr.txt").read_bytes()[-_TAIL:].decode(errors="replace").strip()
    why = said.rpartition("\n")[2]
    if not _REFUSAL.match(why):
        return None
    if _MISSING.search(why):
        words = shlex.split(launch.command_line)
        return command_not_found(launch.command_line, words[0] if words else "", why)
    return command_launch_failed(launch.command_line, why)
