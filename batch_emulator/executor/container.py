"""One container task, as the executor is told about it, and as the engine's command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NODE_LABEL = "batch-emulator.node"
DATA_LABEL = "batch-emulator.data"


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry that asks for credentials; `server` has no scheme."""

    server: str
    username: str
    password: str


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of the node, at the same path in the container."""

    path: Path
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Container:
    """What a task's containerSettings ask for, on the node that it runs on.

    `data_dir` is the emulator's: its containers are found by it after a crash. An empty `command`
    runs what the image says; `working_dir` None stands for the image's.
    """

    image: str
    command: tuple[str, ...]
    run_options: tuple[str, ...]
    environment: Mapping[str, str]
    mounts: tuple[Mount, ...]
    working_dir: Path | None
    registries: tuple[Registry, ...]
    node_root: Path
    data_dir: Path


def create_arguments(
    container: Container,
    name: str,
    env_file: Path,
    *,
    user: str | None = None,
    extra: Sequence[str] = (),
) -> list[str]:
    """What stands behind `docker` or `podman` to create the container.

    Later options win, so those of the task stand last. An image's entry point gets the command as
    its arguments, unless `--entrypoint` is among the options: so today's container workloads page;
    until 2023 it said that the command replaces it [X]. The network is the node's [S], because
    storage and the other nodes are on the loopback of this machine.
    """
    given = [*extra, *container.run_options]
    arguments = [
        "create",
        f"--name={name}",
        f"--label={NODE_LABEL}={container.node_root}",
        f"--label={DATA_LABEL}={container.data_dir}",
        "--log-driver=none",
        "--pull=never",
    ]
    if not _names_network(given):
        arguments.append("--network=host")
    if user is not None:
        arguments.append(f"--user={user}")
    for mount in container.mounts:
        arguments.append(f"--mount={_bind(mount)}")
    arguments += env_arguments(container.environment, env_file)
    if container.working_dir is not None:
        arguments.append(f"--workdir={container.working_dir}")
    # the service takes care of the removal itself (container workloads page)
    arguments += [option for option in given if option not in ("--rm", "--rm=true")]
    return [*arguments, container.image, *container.command]


def _bind(mount: Mount) -> str:
    """The mount as the engines read it: fields of a CSV line."""
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
    """The file that the engine reads variables from; it has no way to write a line break."""
    lines = [f"{n}={v}" for n, v in environment.items() if not _many_lines(v)]
    return "".join(f"{line}\n" for line in lines)


def env_arguments(environment: Mapping[str, str], env_file: Path | str) -> list[str]:
    """The options that name the file, and the variables that the engine takes from its own."""
    inherited = [f"--env={name}" for name, value in environment.items() if _many_lines(value)]
    return [f"--env-file={env_file}", *inherited]


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that the engine must find in its own environment."""
    return {name: value for name, value in environment.items() if _many_lines(value)}


def _many_lines(value: str) -> bool:
    return "\n" in value or "\r" in value


def full_name(image: str) -> str:
    """The image as docker would pull it: from Docker Hub when no registry is named (docs)."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"
