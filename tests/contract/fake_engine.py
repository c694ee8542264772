#!/usr/bin/env python3
"""A fake container engine for tests, which runs containers as processes of this machine.

The name of the program decides whether it acts as podman or docker. It accepts only options that
the real engine accepts at the same position; others end it with exit code 125. The test describes
images and registries in `images.json` next to the program; `calls.jsonl` lists the calls. The
command of a container runs with only the variables of the container, in its working directory,
and on folders of this machine.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

# Tests start this program a thousand times, so each call imports only the modules that it needs.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any, NoReturn

ME = Path(sys.argv[0]).absolute()
HOME = ME.parent
PODMAN = ME.name == "podman"
BOXES = HOME / "containers"
IN = "FAKE_CONTAINER"  # marks the processes that `exec` started, and their children


def fail(why: str, code: int = 125) -> NoReturn:
    """Print an error and exit, by default with 125, the code of the engine's own failures."""
    sys.stderr.write(f"Error: {why}\n")
    sys.exit(code)


class Strict(argparse.ArgumentParser):
    """A parser without abbreviated options, and with the exit code of the engines."""

    def __init__(self) -> None:
        super().__init__(prog=ME.name, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Report a usage error as the engines do."""
        fail(f"unknown flag or argument: {message}")


def note(argv: list[str]) -> None:
    """Record the arguments of this call for the tests."""
    with (HOME / "calls.jsonl").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(json.dumps({"argv": argv}) + "\n")


@contextmanager
def exclusive() -> Generator[None]:
    """Prevent other calls from reading or changing containers during the block. Does not nest.

    Otherwise a listed container could be gone when it is read, or a removed one be started.
    """
    with (HOME / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write(file: Path, value: object) -> None:
    """Replace a file atomically, so that a killed call leaves the old file."""
    (new := HOME / f"{os.urandom(16).hex()}.new").write_text(json.dumps(value))
    new.replace(file)


def machine() -> dict[str, Any]:
    """Return the test's settings: images by full name, accounts by registry, and faults."""
    return json.loads((HOME / "images.json").read_text())


def full_name(image: str) -> str:
    """Return the full name of an image, as Docker resolves it."""
    first, slash, _ = image.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def credentials(file: Path | None) -> dict[str, Any]:
    """Return the logins that are stored in a file."""
    return json.loads(file.read_text()).get("auths", {}) if file and file.exists() else {}


def login(options: list[str], config: Path | None) -> None:
    """Log in with a password from stdin; one on the command line would be visible in `ps`."""
    parser = Strict()
    parser.add_argument("--username", required=True)
    parser.add_argument("--password-stdin", action="store_true", required=True)
    if PODMAN:
        parser.add_argument("--authfile", type=Path, required=True)
    parser.add_argument("server")
    given = parser.parse_args(options)
    password = sys.stdin.read()
    accounts = machine().get("accounts", {})
    if "://" in given.server or accounts.get(given.server) != [given.username, password]:
        fail(f'logging into "{given.server}": invalid username/password')
    import base64

    file = given.authfile if PODMAN else (config or fail("no --config")) / "config.json"
    token = base64.b64encode(f"{given.username}:{password}".encode()).decode()
    file.write_text(json.dumps({"auths": {**credentials(file), given.server: {"auth": token}}}))


def pull(options: list[str], config: Path | None) -> None:
    """Fetch an image from the registry of the test."""
    parser = Strict()
    if PODMAN:
        parser.add_argument("--authfile", type=Path)
    parser.add_argument("image")
    given = parser.parse_args(options)
    file = given.authfile if PODMAN else config and config / "config.json"
    if PODMAN and given.image != full_name(given.image):
        fail(f"short-name {given.image!r} did not resolve to an alias")
    name = full_name(given.image)
    image = machine()["registry"].get(name)
    if image is None:
        fail(f"{name}: manifest unknown")
    if image.get("private"):
        import base64

        server = name.partition("/")[0]
        auth = credentials(file).get(server, {}).get("auth", "")
        account = machine().get("accounts", {}).get(server, ["", ""])
        own = file is None and server in machine().get("logged_in", [])  # by this machine's user
        if not own and base64.b64decode(auth).decode() != ":".join(account):
            fail(f"{name}: unauthorized: authentication required")
    (HOME / "pulled").mkdir(exist_ok=True)
    write(HOME / "pulled" / name.replace("/", "%"), image)


def local_image(name: str) -> dict[str, Any]:
    """Return a pulled image, or fail."""
    file = HOME / "pulled" / full_name(name).replace("/", "%")
    if not file.exists():
        fail(f"{name}: image not known")
    return json.loads(file.read_text())


def create(options: list[str]) -> None:
    """Create a container as a file."""
    parser = Strict()
    parser.add_argument("--name", required=True)
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--log-driver", choices=["none"], required=True)
    parser.add_argument("--pull", choices=["never"], required=True)
    parser.add_argument("--network", choices=["host", "bridge", "none"], required=True)
    parser.add_argument("--user")
    parser.add_argument("--mount", action="append", default=[])
    parser.add_argument("--env-file", type=Path, required=True)
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("--workdir")
    parser.add_argument("--entrypoint")
    parser.add_argument("--shm-size")
    parser.add_argument("--interactive", action="store_true")
    parser.add_argument("--init", choices=["true", "false"])
    parser.add_argument("--volume", action="append", default=[])
    parser.add_argument("--device", action="append", default=[])
    for name in ("--cidfile", "--runtime", *([] if PODMAN else ["--gpus"])):
        parser.add_argument(name)
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(options)
    for volume in given.volume:
        bind(Path(volume.partition(":")[0]))
    image = local_image(given.image)
    environment = {**image.get("env", {}), **variables(given)}
    entry = [given.entrypoint] if given.entrypoint else image.get("entrypoint", [])
    default = [] if given.entrypoint else image.get("cmd", [])
    box: dict[str, Any] = {
        "Id": os.urandom(32).hex(),
        "Name": given.name,
        "labels": dict(label.split("=", 1) for label in given.label),
        "environment": environment,
        "mounts": [mounted(text) for text in given.mount],
        "workdir": given.workdir or image.get("workdir", "/"),
        "command": [*entry, *(given.command or default)],
        "interactive": given.interactive,
        "State": {"Status": "created", "StartedAt": "0001-01-01T00:00:00Z", "Error": ""},
    }
    BOXES.mkdir(exist_ok=True)
    with exclusive():
        if (BOXES / given.name).exists():
            fail(f"the container name {given.name!r} is already in use")
        write(BOXES / given.name, box)
    if given.cidfile:
        with open(given.cidfile, "x") as file:  # noqa: PTH123 - as the engines do
            file.write(box["Id"])
    sys.stdout.write(f"{box['Id']}\n")


def variables(given: argparse.Namespace) -> dict[str, str]:
    """Return the variables of the file, which must be private, and those of `--env`."""
    if stat.S_IMODE(given.env_file.stat().st_mode) & 0o077:
        fail(f"others can read {given.env_file}")
    lines = given.env_file.read_text().split("\n")
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {n: v for n, _, v in pairs} | {name: os.environ[name] for name in given.env}


def mounted(text: str) -> dict[str, Any]:
    """Return a bind mount of an existing folder, or fail. Another path does not show its files."""
    fields = {name: value for name, _, value in (f.partition("=") for f in text.split(","))}
    read_only = fields.pop("readonly", None) is not None
    if set(fields) != {"type", "source", "target"} or fields["type"] != "bind":
        fail(f"invalid mount {text}")
    if not Path(fields["source"]).is_dir():
        fail(f"statfs {fields['source']}: no such file or directory")
    return {"path": fields["target"], "read_only": read_only}


def bind(source: Path) -> None:
    """Make the folder of a volume as docker does; podman fails if it is missing."""
    if not PODMAN:
        source.mkdir(parents=True, exist_ok=True)
    elif not source.exists():
        fail(f"statfs {source}: no such file or directory")


def containers() -> list[dict[str, Any]]:
    """Return all containers. Call it within `exclusive`."""
    return [json.loads(file.read_text()) for file in BOXES.glob("*")]


def load(name: str) -> dict[str, Any]:
    """Return the container with this name or ID, or fail."""
    for box in containers():
        if name in (box["Name"], box["Id"]):
            return box
    fail(f"no container with name or ID {name!r} found: no such container")


def save(box: dict[str, Any]) -> None:
    """Store the present state of a container, unless it was removed."""
    if (BOXES / box["Name"]).exists():
        write(BOXES / box["Name"], box)


def start(options: list[str]) -> None:
    """Run the command of a container; with `--attach`, on the streams of this process."""
    parser = Strict()
    parser.add_argument("--attach", action="store_true")
    parser.add_argument("name")
    given = parser.parse_args(options)
    with exclusive():
        box = load(given.name)
        child = first_process(box) if given.attach else start_detached(box)
        box["State"] |= {"Status": "running", "StartedAt": "2026-01-01T00:00:00Z", "Pid": child.pid}
        save(box)
        signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
    if not given.attach:
        return
    code = child.wait()
    with exclusive(), suppress(ProcessLookupError):  # the other processes end with the first one
        box["State"] |= {"Status": "exited", "Pid": 0}
        save(box)
        os.killpg(child.pid, signal.SIGKILL)
    sys.exit(128 - code if code < 0 else code)


def first_process(box: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the command of a container in its working directory, or fail."""
    where = Path(box["workdir"])
    if where != Path("/") and not any(where.is_relative_to(m["path"]) for m in box["mounts"]):
        fail(f"workdir {where} does not exist in the container", 126)
    try:
        return subprocess.Popen(
            box["command"], cwd=where, env=box["environment"], stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        why = f'exec: "{box["command"][0]}": executable file not found in $PATH'
        if PODMAN:
            fail(f"runc: {why}: OCI runtime attempted to invoke a command that was not found")
        box["State"] |= {"Error": why, "ExitCode": 127}
        save(box)
        fail(f"Error response from daemon: {why}", 1)


def start_detached(box: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Start the command of a container in the background, with open input for a shell."""
    if not box["interactive"]:
        fail("this engine only leaves interactive containers running")
    reading, writing = os.pipe()
    return subprocess.Popen(
        box["command"], env=box["environment"], stdin=reading, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, start_new_session=True, pass_fds=(writing,),
    )  # fmt: skip


def execute(options: list[str]) -> None:
    """Run a command in a running container; it continues if this process is killed."""
    parser = Strict()
    parser.add_argument("--env-file", type=Path, required=True)
    parser.add_argument("--env", action="append", default=[])
    parser.add_argument("name")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(options)
    with exclusive():  # a concurrent kill must find the command by its variables
        child = start_in(load(given.name), given)
    code = child.wait()
    sys.exit(128 - code if code < 0 else code)


def start_in(box: dict[str, Any], given: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Start a command in a running container."""
    if box["State"]["Status"] != "running":
        fail("can only create exec sessions on running containers: container state improper", 255)
    environment = {**box["environment"], **variables(given), IN: box["Name"]}
    try:
        return subprocess.Popen(
            given.command, cwd=box["workdir"], env=environment, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
    except FileNotFoundError:
        why = f'exec: "{given.command[0]}": executable file not found in $PATH'
        fail(f"OCI runtime exec failed: {why}", 127)


def kill_all(box: dict[str, Any]) -> None:
    """Kill all processes of a container, and mark it as exited unless `start` does."""
    with suppress(ProcessLookupError):
        os.killpg(box["State"]["Pid"], signal.SIGKILL)
    mark = f"{IN}={box['Name']}".encode()
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if mark in environment.read_bytes().split(b"\0"):
                os.kill(int(environment.parent.name), signal.SIGKILL)
    if box["interactive"]:
        box["State"] |= {"Status": "exited", "Pid": 0, "ExitCode": 137}
        save(box)


def kill(options: list[str]) -> None:
    """Kill the processes of containers."""
    parser = Strict()
    parser.add_argument("--signal", default="KILL", choices=["KILL"])
    parser.add_argument("names", nargs="+")
    for name in parser.parse_args(options).names:
        with exclusive():
            box = load(name)
            if box["State"]["Status"] != "running":
                fail("can only kill running containers")
            kill_all(box)


def remove(options: list[str]) -> None:
    """Remove containers, including running ones."""
    parser = Strict()
    parser.add_argument("--force", action="store_true", required=True)
    parser.add_argument("names", nargs="+")
    for name in parser.parse_args(options).names:
        with exclusive():
            box = load(name)
            if box["State"]["Status"] == "running":
                kill_all(box)
            (BOXES / box["Name"]).unlink()


def listing(options: list[str]) -> None:
    """Print the IDs of the containers with a label."""
    parser = Strict()
    for flag in ("--all", "--quiet"):
        parser.add_argument(flag, action="store_true", required=True)
    parser.add_argument("--filter", required=True)
    kind, name, value = parser.parse_args(options).filter.split("=", 2)
    with exclusive():
        found = [b["Id"] for b in containers() if b["labels"].get(name) == value]
    sys.stdout.writelines(f"{box}\n" for box in found if kind == "label")


def inspect(name: str) -> None:
    """Print a container as JSON."""
    with exclusive():
        box = load(name)
    sys.stdout.write(json.dumps([{name: box[name] for name in ("Id", "Name", "State")}]))


def main(argv: list[str]) -> None:
    """Parse the global options, and run the command with its own options."""
    note(argv)
    config = None
    if PODMAN and argv[0] == "--log-level=error":
        argv = argv[1:]
    elif not PODMAN and argv[0] == "--config":
        config, argv = Path(argv[1]), argv[2:]
    match argv:
        case ["info"]:
            if machine().get("broken"):
                fail("cannot connect to the daemon", 1)
        case ["login", *options]:
            login(options, config)
        case ["pull", *options]:
            pull(options, config)
        case ["image", "inspect", "--format={{.Id}}", name]:
            local_image(name)
        case ["image", "inspect", name]:
            image = local_image(name)
            config = {"Entrypoint": image.get("entrypoint"), "Cmd": image.get("cmd")}
            sys.stdout.write(json.dumps([{"Config": config}]))
        case ["container", "inspect", name]:
            inspect(name)
        case [name, *options] if name in COMMANDS:
            COMMANDS[name](options)
        case _:
            fail(f"unknown command {argv}")


COMMANDS = {
    "create": create, "start": start, "exec": execute, "kill": kill, "rm": remove, "ps": listing,
}  # fmt: skip

if __name__ == "__main__":
    main(sys.argv[1:])
