"""Run a shell or a command on the node of a run, in its folder and with its environment.

A user with its own key is created on the node and deleted afterwards; if that fails, it expires. A
node with a loopback address is this machine, as with the emulator: the command then runs in a local
shell, without SSH.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from runner.azure.auth.credentials import Connection
from runner.azure.batch.node_users import (
    Address,
    TaskPlace,
    add_user,
    delete_user,
    find_address,
    task_places,
)
from runner.core.home import HomePaths, not_writable
from runner.core.states import RunState
from runner.flows.host_keys import TrustedHost, check_host_key, trust_host
from runner.flows.runs.documents import load_attempts, runs_container
from runner.flows.runs.live import RunView, load_view
from runner.flows.task_shell import capture, find_task_folder, run_apart, switched
from runner.protocol.errors import RunnerError
from runner.protocol.results import AttemptStart
from runner.protocol.run_spec import RunSpec

if TYPE_CHECKING:
    from runner.core.pricing.kept_node import KeptNode

_SCRIPTS = Path(__file__).with_name("shell_scripts")


def _script(name: str) -> str:
    """Return a script as one line, so that a printed command can be pasted."""
    text = (_SCRIPTS / f"{name}.sh").read_text(encoding="utf-8")
    lines = map(str.strip, text.splitlines())
    return "; ".join(line for line in lines if not line.startswith("#"))


def shell_command(work_dir: str, command: Sequence[str]) -> list[str]:
    """Return the arguments that run `command`, or a shell, in a task's folder as its user."""
    return ["sh", "-c", _script("enter"), "runner", work_dir, *command]


def _remote_command(folder: str, command: Sequence[str]) -> list[str]:
    """Return the arguments for a node; `folder` is that of the task below the node's root."""
    outer, *inner = map(_script, ("as_owner", "switch", "enter"))
    return ["sh", "-c", outer, "runner", *inner, f"{folder}/wd", *command]


def _container_command(container: str, command: Sequence[str]) -> list[str]:
    return ["sh", "-c", _script("in_container"), "runner", _script("enter"), container, *command]


@dataclass(frozen=True, slots=True)
class Forward:
    """A port of this machine whose connections are forwarded to a port of a node."""

    local: int
    remote: int


def parse_forward(text: str) -> Forward:
    """Return `PORT` or `LOCAL:PORT` as ports. Raise RunnerError."""
    local, _, remote = text.rpartition(":")
    ports = [int(each) for each in (local or remote, remote) if each.isascii() and each.isdecimal()]
    if len(ports) == 2 and all(0 < port < 65536 for port in ports):
        return Forward(*ports)
    raise RunnerError(
        "R-REACH-FORWARD",
        f"invalid --forward {text}",
        why="expected PORT of the node, or LOCAL:PORT for another port on this machine",
        fix="runner ssh --forward 8888",
    )


def ssh_command(
    *,
    user: str,
    host: str,
    port: int,
    key: str,
    node: TrustedHost,
    terminal: bool,
    forwards: Sequence[Forward] = (),
) -> list[str]:
    """Return the `ssh` command. The caller appends the remote command as one quoted argument."""
    options = {
        "IdentitiesOnly": "yes",
        "BatchMode": "yes",
        **node.options,
        "ConnectTimeout": "20",
        "ServerAliveInterval": "15",
        "LogLevel": "ERROR",
        # Root of the node could use what these forward, if the user's configuration sets them.
        "ForwardAgent": "no",
        "ForwardX11": "no",
    }
    words = ["ssh", "-i", key, "-p", str(port), "-tt" if terminal else "-T"]
    if forwards:
        options["ExitOnForwardFailure"] = "yes"
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    for each in forwards:
        words += ["-L", f"127.0.0.1:{each.local}:127.0.0.1:{each.remote}"]
    return [*words, f"{user}@{host}", "--"]


def quoted(command: Sequence[str]) -> str:
    """Return a command as one quoted argument for a shell."""
    return shlex.join(command)


_BITS = 3072  # RSA, which Azure has always accepted for Linux machines, unlike ed25519


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A private key in a separate folder, whose name is the user on the node.

    `node` is None if no SSH is needed.
    """

    folder: Path
    public: str
    node: TrustedHost | None = None

    @property
    def user(self) -> str:
        """The user on the node. Each login has its own, so that its end does not affect others."""
        return self.folder.name

    @property
    def private(self) -> Path:
        """The file for `ssh -i`."""
        return self.folder / "id"

    def delete(self) -> None:
        """Delete the key."""
        shutil.rmtree(self.folder, ignore_errors=True)


def make_key(home: Path, expires: datetime) -> NodeKey:
    """Create a key pair. Raise RunnerError if RUNNER_HOME is not writable."""
    keys = HomePaths(home).ssh
    private, public = _pair()
    folder = keys / f"runner-{secrets.token_hex(4)}"
    try:
        keys.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.mkdir(mode=0o700)
        (folder / "expires").write_text(expires.isoformat(), encoding="utf-8")
        descriptor = os.open(folder / "id", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(private)
    except OSError as err:
        shutil.rmtree(folder, ignore_errors=True)
        raise not_writable(keys, err) from err
    return NodeKey(folder, public)


def prune_keys(home: Path, now: datetime) -> None:
    """Delete keys whose users have expired."""
    for folder in HomePaths(home).ssh.glob("runner-*"):
        try:
            expires = datetime.fromisoformat((folder / "expires").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # A key without a date is being created, or its process was killed.
            expires = datetime.fromtimestamp(folder.stat().st_mtime + 3600, UTC)
        if expires < now:
            shutil.rmtree(folder, ignore_errors=True)


def _pair() -> tuple[bytes, str]:
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  0.1 s
        from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415
    except ImportError as err:
        raise RunnerError(
            "R-REACH-KEY",
            "cannot create an SSH key",
            why=f"the package cryptography cannot be imported: {err}",
            fix="pip install --force-reinstall cryptography",
        ) from err
    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return private, f"{public.decode()} runner"


_LONGEST = timedelta(hours=24)
# Variables to keep, as with ssh. The task defines all others.
_SSH_ENVIRONMENT = ("TERM", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "USER", "LOGNAME", "SHELL")
_SSH_FAILED = 255
_WAITING = "R-REACH-WAITING"


@dataclass(frozen=True, slots=True)
class RunLocation:
    """A task of a run on one of its nodes."""

    run_id: str
    task: TaskPlace
    expires: datetime
    host_keys: tuple[str, ...] = ()  # of the node, as it wrote them to storage
    kept: KeptNode | None = None  # the run has failed, and keeps the node
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Login:
    """A command that signs in and runs a program; `env` None inherits the environment.

    `uid` is the user of the task if the node is this machine and this user is another one. `node`
    is the node of a command over SSH.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str] | None
    over_ssh: bool
    uid: int | None = None
    node: TrustedHost | None = None


def find_location(connection: Connection, spec: RunSpec, node: str | None = None) -> RunLocation:
    """Return the task, node and folder of an active run, or of one that keeps its node.

    Args:
        connection: the services.
        spec: the run.
        node: rank of a node, or a prefix of its ID; None means the primary node.

    Raises:
        RunnerError: the run is not active, has not started on the node, or has no such node.
    """
    view = load_view(connection, spec)
    if (view.status.state.final and not view.kept) or view.status.state is RunState.QUEUED:
        raise _not_running(view)
    places = task_places(connection, spec.job_id, spec.task_id)
    if not places:
        raise _not_running(view)
    begun = [each for each in view.attempts if each.node == places[0].node]
    if not begun:
        raise _not_begun(spec.run_id)
    starts = {begun[-1].node: (0, begun[-1]), **_other_nodes(connection, spec, begun[-1].attempt)}
    places = sorted(places, key=lambda place: starts.get(place.node, (spec.nodes, None))[0])
    task = places[_choose(places, node, spec.run_id)]
    if task.node not in starts:
        raise _not_begun(spec.run_id)
    # The node of a run writes its records, so they decide neither folder nor pool. The agent in a
    # container sees the keys of the image.
    keys = () if spec.image is not None else starts[task.node][1].host_keys
    expires = view.kept.until if view.kept else _expiry(spec)
    return RunLocation(spec.run_id, task, expires, keys, view.kept, begun[-1].attempt)


def _other_nodes(
    connection: Connection, spec: RunSpec, attempt: int
) -> dict[str, tuple[int, AttemptStart]]:
    """Return rank and start of the nodes that have started an attempt, except the primary, by node.

    Users know nodes by rank; Batch numbers subtasks in a different order.
    """
    container = runs_container(connection)
    found = {rank: load_attempts(container, spec.run_id, rank) for rank in range(1, spec.nodes)}
    return {
        start.node: (rank, start)
        for rank, starts in found.items()
        for start in starts
        if start.attempt == attempt
    }


def _expiry(spec: RunSpec) -> datetime:
    limit = spec.timeout_s
    lasts = timedelta(seconds=limit) if isinstance(limit, int | float) else _LONGEST
    return datetime.now(UTC) + min(lasts, _LONGEST)


def _choose(places: Sequence[TaskPlace], wanted: str | None, run_id: str) -> int:
    if wanted is None:
        return 0
    if wanted.isascii() and wanted.isdecimal() and int(wanted) < len(places):
        return int(wanted)
    found = [n for n, place in enumerate(places) if place.node.startswith(wanted)]
    if len(found) == 1 and not wanted.isdecimal():
        return found[0]
    nodes = ", ".join(f"{n}: {place.node}" for n, place in enumerate(places))
    raise RunnerError(
        "R-REACH-WHICH",
        f"{wanted!r} does not match exactly one node of {run_id}",
        why=f"nodes of the run: {nodes}",
        fix="use --node with a rank, or a unique prefix of an ID",
    )


@contextmanager
def open_login(
    connection: Connection,
    home: Path,
    place: RunLocation,
    command: Sequence[str],
    *,
    terminal: bool,
    forwards: Sequence[Forward] = (),
) -> Generator[Login]:
    """Create a user on the node for the duration of the block, and return its login.

    The login forwards ports while its command runs, unless the node is this machine.
    """
    with _key(connection, home, place, keep=False) as (key, address):
        yield _login(key, address, home, place, command, terminal=terminal, forwards=forwards)


def print_login(
    connection: Connection,
    home: Path,
    place: RunLocation,
    command: Sequence[str],
    forwards: Sequence[Forward] = (),
) -> str:
    """Return the login as a command for another terminal. It works until the user expires."""
    with _key(connection, home, place, keep=True) as (key, address):
        login = _login(key, address, home, place, command, terminal=not command, forwards=forwards)
    if login.env is None:
        return quoted(login.argv)
    kept = [f"{name}={value}" for name, value in login.env.items()]
    return quoted(["env", "-i", *kept, *switched(login.argv, login.uid)])


def run_login(login: Login) -> int:
    """Run a login with the streams of this process. Return the exit code, 128 + n for signal n."""
    if not login.over_ssh:
        code = run_apart(login.argv, login.env, login.uid)
        return 128 - code if code < 0 else code
    before = signal.getsignal(signal.SIGINT)
    process = subprocess.Popen(list(login.argv))
    try:
        # The remote program handles Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        code = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return 128 - code if code < 0 else code


def capture_login(login: Login, stdin: str | None) -> tuple[int, str, str]:
    """Run a login. Return the exit code, standard output and standard error."""
    done = capture(login.argv, login.env, login.uid, stdin or "")
    code = 128 - done.returncode if done.returncode < 0 else done.returncode
    ssh_failed(login, code)  # raises if the host key was refused
    return code, done.stdout, done.stderr


JUPYTER_PACKAGES = ("jupyterlab",)
_JUPYTER_START_S = 120.0


def jupyter_command(seconds: int) -> tuple[str, ...]:
    """Return the command of a run that serves JupyterLab on its node for some seconds."""
    return ("sh", "-c", _script("jupyter"), "jupyter", str(seconds))


@dataclass(frozen=True, slots=True)
class JupyterServer:
    """JupyterLab of a run, with its port on the node, and its token."""

    place: RunLocation
    port: int
    token: str

    def address(self, port: int) -> str:
        """Return the URL for a browser; `port` of this machine is forwarded to the server."""
        return f"http://127.0.0.1:{port}/lab?token={self.token}"


def find_jupyter(connection: Connection, home: Path, spec: RunSpec) -> JupyterServer | None:
    """Wait for the server that `jupyter_command` starts on the node of a run, and return it.

    None means that the run has lost the node, and will start again on another one.

    Raises:
        RunnerError: R-DEV-JUPYTER, it has not started after two minutes.
    """
    asks = ("jupyter", "server", "list", "--json")
    place = find_location(connection, spec)
    deadline = time.monotonic() + _JUPYTER_START_S
    with open_login(connection, home, place, asks, terminal=False) as login:
        while True:
            _, answer, error = capture_login(login, None)
            with suppress(ValueError, KeyError, IndexError):
                found = json.loads(answer.strip().splitlines()[-1])
                server = JupyterServer(place, int(found["port"]), str(found["token"]))
                if 0 < server.port < 65536 and re.fullmatch(r"[0-9a-f]{48}", server.token):
                    return server
            if _has_lost(connection, spec, place):
                return None
            if time.monotonic() > deadline:
                lines = error.strip().splitlines()
                raise RunnerError(
                    "R-DEV-JUPYTER",
                    f"JupyterLab is not running on node {place.task.node}",
                    why=lines[-1] if lines else "`jupyter server list` lists no server",
                    fix=f"runner logs {place.run_id}",
                )
            time.sleep(1)


def _has_lost(connection: Connection, spec: RunSpec, place: RunLocation) -> bool:
    """Return True if a run has lost its node since this attempt started there."""
    try:
        return find_location(connection, spec).attempt != place.attempt
    except RunnerError as err:
        if err.code != _WAITING:
            raise
        return True


def free_local_port(wanted: int) -> int:
    """Return the wanted port of this machine if it is free, else another one."""
    for port in (wanted, 0):
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    return wanted


def ssh_failed(login: Login, code: int) -> bool:
    """Return True if ssh itself may have failed, and not the remote command.

    Raises:
        RunnerError: the host key of the node was refused.
    """
    if login.node is None or code != _SSH_FAILED:
        return False
    check_host_key(login.argv[:-1], login.node)
    return True


@contextmanager
def _key(
    connection: Connection, home: Path, place: RunLocation, *, keep: bool
) -> Generator[tuple[NodeKey, Address]]:
    prune_keys(home, datetime.now(UTC))
    address = find_address(connection, place.task)
    if not _is_here(address) and shutil.which("ssh") is None:
        raise RunnerError(
            "R-REACH-SSH",
            "ssh is not installed",
            why="the program `ssh` is not on PATH",
            fix="install an OpenSSH client (apt-get install openssh-client)",
        )
    node = None
    if not _is_here(address):
        account = connection.outputs.batch_endpoint
        node = trust_host(home, account, place.task, address, place.host_keys)
    key = replace(make_key(home, place.expires), node=node)
    try:
        add_user(connection, place.task, key.user, key.public, place.expires)
    except BaseException:
        key.delete()
        raise
    done = False
    try:
        yield key, address
        done = True
    finally:
        if not (keep and done):
            key.delete()
            delete_user(connection, place.task, key.user)


def _login(
    key: NodeKey,
    address: Address,
    home: Path,
    place: RunLocation,
    command: Sequence[str],
    *,
    terminal: bool,
    forwards: Sequence[Forward] = (),
) -> Login:
    task = place.task
    if key.node is None or _is_here(address):
        env = {name: os.environ[name] for name in _SSH_ENVIRONMENT if name in os.environ}
        if task.container:
            argv = _container_command(task.container, command)
            return Login(tuple(argv), env, over_ssh=False)
        folder = find_task_folder(home, task.pool, task.node, task.folder)
        argv = shell_command(str(folder.path), command)
        return Login(tuple(argv), env, over_ssh=False, uid=folder.uid)
    inside = (
        _container_command(task.container, command)
        if task.container
        else _remote_command(task.folder, command)
    )
    outside = ssh_command(
        user=key.user,
        host=address.host,
        port=address.port,
        key=str(key.private),
        node=key.node,
        terminal=terminal,
        forwards=forwards,
    )
    return Login((*outside, quoted(inside)), None, over_ssh=True, node=key.node)


def _is_here(address: Address) -> bool:
    try:
        return ipaddress.ip_address(address.host).is_loopback
    except ValueError:  # a user name
        return False


def _not_running(view: RunView) -> RunnerError:
    run_id, state = view.spec.run_id, view.status.state
    if state.final:
        return RunnerError(
            "R-REACH-ENDED",
            f"run {run_id} has ended: {state.value}",
            why="its node runs other tasks by now",
            fix=f"runner logs {run_id}, or runner files get {run_id}",
        )
    return RunnerError(
        "R-REACH-WAITING",
        f"{run_id} is not on a node: {state.value}",
        why=view.status.reason,
        fix=f"run `runner attach {run_id}` to wait for its start",
    )


def _not_begun(run_id: str) -> RunnerError:
    return RunnerError(
        "R-REACH-WAITING",
        f"{run_id} has not started on its node",
        why="the node is downloading files of the run, or the agent is starting",
        fix="try again in a few seconds",
    )
