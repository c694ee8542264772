"""Run `runner` in forks of a process that has imported its modules already.

Imports take four fifths of the processor time of a short command. Here, one process per worker
imports the modules once, and then forks for every command. A fork gets the arguments,
environment, folder and pipes of a process of `.venv/bin/runner`, runs the same `main`, and exits
as Python does, except that it does not clean up modules. The warm process itself executes no
command, so no command sees the state of another. `Cli.start` and `test_installed.py` start the
real program.

Forks submit an agent that was packed once, because compiling its modules takes half a second.
Runs that `Cli.start` submits have an agent that the command packs itself.
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
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

_PACKAGES = ("runner.core", "runner.azure", "runner.flows", "runner.cli")
# Modules that commands import within functions, and that the packages above do not import.
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
# These commands load the modules of `pulumi_azure_native` that most stacks use.
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
                stdout=subprocess.PIPE,  # pipes, like the streams of a fork
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C goes to the tests, which then end this process
            )
        atexit.register(self.close)

    def close(self) -> None:
        """End the process, by closing its socket."""
        self._requests.close()
        self._process.communicate()

    def _died(self) -> str:
        self._process.kill()
        raise AssertionError(f"the warm process ended: {self._process.communicate()[1]!r}")

    def run(
        self, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float
    ) -> subprocess.CompletedProcess[str]:
        """Run the command in a fork; returns and raises like `subprocess.run`."""
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
    """Return the warm process of this worker."""
    return Warm(program)


def run(
    program: Path, arguments: Sequence[str], env: Mapping[str, str], cwd: Path, timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run the command: on Linux in a fork of this worker's warm process, else as a new process."""
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


def worker_ports(ports: range) -> range:
    """Return the part of the ports from which this worker of pytest-xdist chooses.

    Otherwise, another worker could take the port of a service while it is stopped.
    """
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return ports[number :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]


def _read(fd: int, texts: list[str], number: int) -> None:
    with open(fd, encoding="utf-8") as pipe:
        texts[number] = pipe.read()


def _serve(program: str, requests: socket.socket) -> None:
    """Fork for each request, and report how commands ended. Return only in a fork.

    A second fork for each command, which waits for it, would take as long as the command's fork.
    """
    running: dict[int, int] = {}  # socket to report the exit code to, by process ID
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
            with contextlib.suppress(OSError):  # the test has stopped waiting
                os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
            os.close(running.pop(pid))


def _become(
    program: str, streams: Sequence[int], arguments: list[str], env: dict[str, str], cwd: str
) -> None:
    """Turn this fork into the process of a command."""
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


@contextlib.contextmanager
def _without_extras() -> Generator[None]:
    """Skip a module that needs a package of an extra, such as Pulumi after `make setup` alone."""
    try:
        yield
    except ModuleNotFoundError as err:
        if (err.name or "").split(".")[0] in {"runner", "runner_infra", "batch_emulator"}:
            raise


def _import_all() -> None:
    for name in _PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.ispkg:
                with _without_extras():
                    importlib.import_module(module.name)
    for name in _LATE:
        importlib.import_module(name)
    services = vars(importlib.import_module("runner.flows.local.services"))
    services["_PORTS"] = worker_ports(services["_PORTS"])


@functools.cache
def _load_services() -> None:
    """Load the modules of a deployment, before the first fork that deploys."""
    azure_native = importlib.import_module("pulumi_azure_native")
    for name in _SERVICES:
        hasattr(getattr(azure_native, name), "any")  # looking up any name loads the module
    gc.collect()
    gc.freeze()


def _compile_agent() -> None:
    """Pack the agent once for all homes."""
    archive = importlib.import_module("runner.flows.submit.agent_archive")
    packed, original = archive.pack(archive.read_sources()), archive.build_agent
    for name, module in [*sys.modules.items()]:
        # `getattr` would make some lazy packages load thousands of modules.
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
