"""`runner` in a process of its own which does not load its modules anew: a warm process forks.

Four fifths of the processor time of a short command are imports. Here one process per worker
imports them once and then forks for every command. The fork gets the arguments, the environment,
the folder and the pipes that a process of `.venv/bin/runner` would get, runs the same `main`, and
ends as Python ends but for taking its modules apart. The warm process executes no command itself,
so none sees what another left. `Cli.start` and `test_installed.py` start the program itself.

The agent that forks submit holds its modules compiled: half of the time of an agent's start is
their compilation. Runs that `Cli.start` submits have the agent as it is packed.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

_PACKAGES = ("runner.core", "runner.azure", "runner.flows", "runner.cli")
# What commands import within functions; the others come with the packages above.
_LATE = (
    "_strptime",
    "azure.batch.models",
    "azure.core.rest._http_response_impl",
    "azure.core.rest._requests_basic",
    "azure.core.pipeline.transport",
    "azure.storage.blob",
    "platformdirs.unix",
    "pydantic.type_adapter",
    "rich._emoji_codes",
    "rich.live",
    "rich.table",
    "typer._adapters",
    "typer._click.decorators",
    "typer.rich_utils",
)
# What `pulumi_azure_native` loads when the program of most stacks uses it, in these commands.
_DEPLOYING = ("up", "preview", "selftest")
_SERVICES = (
    *("authorization", "batch", "consumption", "managedidentity", "monitor"),
    *("operationalinsights", "resources", "storage"),
)
_MESSAGE_BYTES = 200_000


class Warm:
    """Runs commands in forks of one process, from any thread."""

    def __init__(self, program: Path) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(program), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # as the streams of a fork are, too
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C goes to the tests, which then end this process
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End the process, which ends when nobody can ask it any more."""
        self._requests.close()
        self._process.communicate()

    def _died(self) -> str:
        self._process.kill()
        raise AssertionError(f"the warm process ended: {self._process.communicate()[1]!r}")

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """What `subprocess.run` of the command returns and raises."""
        command = ["runner", *arguments]
        out, err, (ours, theirs) = os.pipe(), os.pipe(), socket.socketpair()
        request = json.dumps([list(arguments), dict(env), str(cwd)]).encode()
        given = [out[1], err[1], theirs.fileno()]
        socket.send_fds(self._requests, [request], given)
        theirs.close()
        os.close(out[1])
        os.close(err[1])
        texts = ["", ""]
        readers = [
            threading.Thread(target=_read, args=(fd, texts, n), daemon=True)
            for n, fd in enumerate((out[0], err[0]))
        ]
        with ours, ours.makefile("r") as answers:
            pid = int(answers.readline() or self._died())
            timer = threading.Timer(timeout_s, os.kill, (pid, signal.SIGKILL))
            timer.start()
            for reader in readers:
                reader.start()
            for reader in readers:
                reader.join(timeout_s)
            code = int(answers.readline())
            late = not timer.is_alive()
            timer.cancel()
        if late or any(reader.is_alive() for reader in readers):
            raise subprocess.TimeoutExpired(command, timeout_s, *texts)
        return subprocess.CompletedProcess(command, code, *texts)


@functools.cache
def warm(program: Path) -> Warm:
    """The warm process of this worker."""
    return Warm(program)


def run(
    program: Path, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run the command, in a fork of this worker's warm process where processes can fork."""
    if sys.platform == "linux":
        return warm(program).run(arguments, env, cwd, timeout_s)
    return subprocess.run(
        [str(program), *arguments],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _read(fd: int, texts: list[str], number: int) -> None:
    with open(fd, encoding="utf-8") as pipe:
        texts[number] = pipe.read()


def _serve(program: str, requests: socket.socket) -> None:
    """Fork for each request; returns in the fork that is to run the command, and at the end.

    It also tells how commands ended. A process for each command that waits for it would cost as
    much as the fork of the command itself.
    """
    running: dict[int, int] = {}  # ID of a process -> where to tell its end
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    while True:
        ready, _, _ = select.select([requests, woken], [], [])
        if woken in ready:
            os.read(woken, 1000)
            _tell_ended(running)
        if requests not in ready:
            continue
        text, fds, _, _ = socket.recv_fds(requests, _MESSAGE_BYTES, 3)
        if not text:
            raise SystemExit
        arguments, env, cwd = json.loads(text)
        if arguments[:1] and arguments[0] in _DEPLOYING:
            _load_services()
        out, err, answers = fds
        if (pid := os.fork()) == 0:
            requests.close()
            signal.set_wakeup_fd(-1)
            for fd in (woken, wake, answers, *running.values()):
                os.close(fd)
            return _become(program, (out, err), arguments, env, cwd)
        os.close(out)
        os.close(err)
        os.write(answers, f"{pid}\n".encode())
        running[pid] = answers


def _tell_ended(running: dict[int, int]) -> None:
    for pid, answers in [*running.items()]:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with contextlib.suppress(OSError):  # nobody waits for it any more
                os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(running.pop(pid))


def _become(
    program: str, streams: Sequence[int], arguments: list[str], env: dict[str, str], cwd: str
) -> None:
    """Be the process of a command."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for fd, standard in zip(streams, (1, 2), strict=True):
        os.dup2(fd, standard)
        os.close(fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv[:] = [program, *arguments]


def _end(code: int) -> None:
    threading._shutdown()  # pyright: ignore
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _import_all() -> None:
    for name in _PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.ispkg:
                importlib.import_module(module.name)
    for name in _LATE:
        importlib.import_module(name)


@functools.cache
def _load_services() -> None:
    """Load what a deployment uses, before the first fork that deploys."""
    azure_native = importlib.import_module("pulumi_azure_native")
    for name in _SERVICES:
        hasattr(getattr(azure_native, name), "any")  # whatever the name is, this loads it
    gc.collect()
    gc.freeze()


def _compile_agent() -> None:
    """Compile the agent once for all homes."""
    archive = importlib.import_module("runner.flows.submit.agent_archive")
    packed, original = archive.pack(archive.read_sources()), archive.build_agent
    for name, module in [*sys.modules.items()]:
        # not `getattr`: some packages load thousands of modules for it
        if name.startswith("runner.") and vars(module).get("build_agent") is original:
            module.build_agent = lambda: packed  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    _program, _fd = sys.argv[1:]
    sys.path[0] = str(Path(_program).parent)  # as in a script
    _import_all()
    _compile_agent()
    gc.collect()
    gc.freeze()
    with contextlib.closing(socket.socket(fileno=int(_fd))) as _socket:
        _serve(_program, _socket)
    from runner.__main__ import main

    _end(main())
