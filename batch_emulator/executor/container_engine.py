"""The container engine of this machine: which one, and its command lines."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from batch_emulator.domain.launch import ContainerMount, ContainerSpec
from batch_emulator.executor.container_options import GPU_RUNTIME, gpu_devices

NODE_LABEL = "batch-emulator.node"
DATA_LABEL = "batch-emulator.data"
NAME_LABEL = "batch-emulator.name"


def create_arguments(
    container: ContainerSpec,
    name: str,
    env_file: Path,
    *,
    user: str,
    extra: Sequence[str] = (),
    podman: bool = False,
) -> list[str]:
    """Return the arguments of `docker` or `podman` that create the container.

    Later options win, so those of the task come last. The command is passed as arguments to the
    entry point of the image, unless `--entrypoint` is among the options (container workloads page;
    until 2023 it said that the command replaces the entry point [X]). The network is that of the
    node [S], because storage and the other nodes are on the loopback of this machine. The service
    runs containers as the user of the task, not as that of the image (nextflow-io/nextflow#2126).

    Our name and our labels identify the container, and come last for that. The name that the task
    wishes is a label, because nodes share the engine of this machine [S].
    """
    own = _for_podman(container.run_options) if podman else container.run_options
    given = [*extra, *own]
    arguments = [
        "create",
        f"--name={name}",
        "--log-driver=none",
        "--pull=never",
    ]
    if not _names_network(given):
        arguments.append("--network=host")
    arguments.append(f"--user={user}")
    for mount in container.mounts:
        arguments.append(f"--mount={_bind(mount)}")
    arguments += env_arguments(container.environment, env_file)
    if container.working_dir is not None:
        arguments.append(f"--workdir={container.working_dir}")
    arguments += [option for option in given if option not in ("--rm", "--rm=true")]
    labels = {NODE_LABEL: container.node_root, DATA_LABEL: container.data_dir}
    labels |= {NAME_LABEL: container.name} if container.name else {}
    arguments += [f"--label={label}={value}" for label, value in labels.items()]
    return [*arguments, container.image, *container.command]


def _for_podman(options: Iterable[str]) -> Iterator[str]:
    """Yield the options, with GPUs as podman names them (Container Device Interface)."""
    for option in options:
        name, _, value = option.partition("=")
        if name == "--gpus":
            yield from (f"--device={device}" for device in gpu_devices(value))
        elif option == f"--runtime={GPU_RUNTIME}":
            yield "--device=nvidia.com/gpu=all"
        else:
            yield option


def _bind(mount: ContainerMount) -> str:
    """Return the mount in the form of the engines: fields of a CSV line."""
    fields = ["type=bind", f"source={mount.path}", f"target={mount.path}"]
    if mount.read_only:
        fields.append("readonly")
    quoted = [
        '"{}"'.format(field.replace('"', '""')) if {",", '"'} & set(field) else field
        for field in fields
    ]
    return ",".join(quoted)


def _names_network(options: Sequence[str]) -> bool:
    return any(option.split("=")[0] in ("--network", "--net") for option in options)


def env_file_text(environment: Mapping[str, str]) -> str:
    """Return the content of the engine's file of variables, which cannot contain line breaks."""
    lines = [f"{n}={v}" for n, v in environment.items() if not _many_lines(v)]
    return "".join(f"{line}\n" for line in lines)


def env_arguments(environment: Mapping[str, str], env_file: Path | str) -> list[str]:
    """Return the options for the file, and for variables that the engine inherits."""
    inherited = [f"--env={name}" for name, value in environment.items() if _many_lines(value)]
    return [f"--env-file={env_file}", *inherited]


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the engine inherits, because their values have line breaks."""
    return {name: value for name, value in environment.items() if _many_lines(value)}


def _many_lines(value: str) -> bool:
    return "\n" in value or "\r" in value


def server_of(image: str) -> str:
    """Return the registry of an image."""
    return full_name(image).partition("/")[0]


def full_name(image: str) -> str:
    """Return the full name of an image; without a registry it is on Docker Hub (docs)."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


log = logging.getLogger(__name__)

_PROBE_S = 30.0
_QUICK_S = 60.0


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an engine's command."""

    code: int
    out: str
    err: str

    @property
    def why(self) -> str:
        """Return the last error message."""
        lines = [line for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[-1].strip() if lines else f"exit code {self.code}"


@dataclass(frozen=True, slots=True)
class Engine:
    """A container engine; `program` is podman or compatible with docker."""

    program: str

    @property
    def is_podman(self) -> bool:
        """Return True if the engine accepts the options of podman."""
        return "podman" in Path(self.program).name

    def command(self, *arguments: str, config_dir: Path | None = None) -> list[str]:
        """Return the command line; `config_dir` contains credentials."""
        if not self.is_podman:
            config = [] if config_dir is None else ["--config", str(config_dir)]
            return [self.program, *config, *arguments]
        # its warnings would appear in the stderr of the task
        quiet = [self.program, "--log-level=error"]
        if config_dir is None:
            return [*quiet, *arguments]
        return [*quiet, arguments[0], f"--authfile={config_dir}/config.json", *arguments[1:]]

    @property
    def user(self) -> str:
        """Return the user of the emulator, as containers name it: root of a rootless podman."""
        return "0:0" if self.is_podman else f"{os.geteuid()}:{os.getegid()}"

    async def run(
        self,
        *arguments: str,
        config_dir: Path | None = None,
        text: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = _QUICK_S,
    ) -> Result:
        """Run a command of the engine to its end; cancelling ends the command."""
        try:
            process = await asyncio.create_subprocess_exec(
                *self.command(*arguments, config_dir=config_dir),
                stdin=asyncio.subprocess.DEVNULL if text is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except (OSError, ValueError) as err:  # ValueError: a NUL in a value from a client
            return Result(-1, "", str(err))
        try:
            given = None if text is None else text.encode()
            out, err = await asyncio.wait_for(process.communicate(given), timeout_s)
        except TimeoutError:
            return Result(-1, "", f"no answer in {timeout_s:g} s")
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
        stdout, stderr = (text.decode(errors="replace") for text in (out, err))
        return Result(process.returncode or 0, stdout, stderr)


async def find(choice: str) -> Engine | None:
    """Return an engine that works, by `auto`, `podman`, `docker`, a path, or `none`."""
    names = {"auto": ("podman", "docker"), "none": ()}.get(choice, (choice,))
    for name in names:
        program = shutil.which(name)
        if program is None:
            continue
        engine = Engine(program)
        answer = await engine.run("info", timeout_s=_PROBE_S)
        if answer.code == 0:
            log.info("containers run through %s", program)
            return engine
        log.warning("%s cannot be used: %s", program, answer.why)
    return None


def remove_all(program: str, label: str) -> None:
    """Remove the containers that a crash left. Blocks: no event loop runs at the start."""
    listing = _run_blocking(program, "ps", "--all", "--quiet", f"--filter=label={label}")
    names = [] if listing is None else listing.split()
    if names:
        log.info("removing %d containers that a crash left", len(names))
        _run_blocking(program, "kill", *names)
        _run_blocking(program, "rm", "--force", *names)


def _run_blocking(program: str, *arguments: str) -> str | None:
    command: Sequence[str] = Engine(program).command(*arguments)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_QUICK_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as err:
        log.warning("containers of a crash may be left: %s", err)
        return None
    return done.stdout
