"""Run uv or pip, report its output as progress, and use its last lines as the error message."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from runner.node.failures import DISK_FULL_TEXT, StageFailedError
from runner.node.script.command import child_setup
from runner.node.script.protection import protect_node, start_protected
from runner.node.script.streams import Report
from runner.protocol.host import remove_tree
from runner.protocol.results import NO_UV

STEP = "environment"
MOST_LINES = 20_000  # of the output of uv, which contains that of a failed build
SHOWN_LINES, MAX_LINE = 15, 400  # lines of a message, and characters of a line of a build
POLL_S = 0.1
QUERY_TIMEOUT_S = 120.0  # uv may first run every interpreter of a busy node
RESOLVED = re.compile(r"^(?:Resolved|Audited) (\d+) packages?")
DONE = re.compile(r"^(Prepared|Installed|Bytecode compiled) (\d+) (packages?|files?)")
_AFFECT_UV = frozenset({
    "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "CONDA_PREFIX",
})  # fmt: skip
# The password of an address, or a token instead of a user: git prints them in errors.
_SIGN_IN = re.compile(r"(://[^/\s:@]*:)[^/\s@]+@|(://)[^/\s:@]{20,}@")
DOWNLOADED = re.compile(r"^\s*Downloaded (\S+)")


def find_uv(shared_dir: Path) -> Path:
    """Return the uv that the runner installed on the node, or that on PATH.

    Raises:
        StageFailedError: there is neither.
    """
    own = shared_dir / "runner" / "bin" / "uv"
    if os.access(own, os.X_OK):
        return own
    on_path = shutil.which("uv")
    if on_path is None:
        raise StageFailedError(
            STEP,
            "EnvironmentFailed",
            f"{NO_UV}: neither as {own} nor on PATH",
        )
    return Path(on_path)


_SPECIFIER = re.compile(r"(~=|===?|!=|<=|>=|<|>)\s*(\d+(?:\.\d+)*)(\.\*)?")


def is_range(request: str) -> bool:
    """Return True for a request with specifiers of PEP 440, such as `>=3.11,<3.13`."""
    return request.startswith(("~", "=", "!", "<", ">"))


def meets(request: str, version: Sequence[int]) -> bool:
    """Return True if a release of Python, such as (3, 11, 7), satisfies a request with specifiers.

    A request that this function cannot read is not met: uv reads it.
    """
    for text in request.split(","):
        found = _SPECIFIER.fullmatch(text.strip())
        if found is None:
            return False
        operator, wanted = found[1], tuple(map(int, found[2].split(".")))
        own = tuple(version[: max(len(wanted), 3)])
        own, full = (*own, 0, 0)[:3], (*wanted, 0, 0)[:3]
        is_same = own[: len(wanted)] == wanted if found[3] else own == full
        allowed = {
            "==": is_same,
            "===": is_same,
            "!=": not is_same,
            "<": own < full,
            "<=": own <= full,
            ">": own > full,
            ">=": own >= full,
            "~=": own >= full and own[: len(wanted) - 1] == wanted[:-1],
        }
        if not allowed[operator]:
            return False
    return True


def uv_environment(cache_dir: Path) -> dict[str, str]:
    """Return the task's environment without variables that would affect uv."""
    environment = {name: value for name, value in os.environ.items() if name not in _AFFECT_UV}
    return {**environment, "UV_CACHE_DIR": str(cache_dir), "UV_NO_PROGRESS": "1", "NO_COLOR": "1"}


def package_commands(
    uv: Path | None, environment: Path
) -> tuple[list[str | Path], list[str | Path]]:
    """Return the commands that install and remove packages, with uv or with pip."""
    python = environment / "bin" / "python"
    if uv is not None:
        commands = ([uv, "pip", word, "--python", python] for word in ("install", "uninstall"))
        install, uninstall = commands
        return install, uninstall
    quiet = ["--disable-pip-version-check", "--no-input", "--root-user-action=ignore"]
    pip: list[str | Path] = [python, "-m", "pip"]
    return [*pip, "install", *quiet], [*pip, "uninstall", "--yes", *quiet]


@dataclass(frozen=True)
class Installer:
    """Runs the programs that install packages.

    Attributes:
        shared_dir: The shared folder of the node.
        report: Receives progress.
        check: Called several times a second; may raise to stop a program.
        record: Receives each command and each line that it prints.
    """

    shared_dir: Path
    report: Report
    check: Callable[[], None]
    record: Callable[[str], object]

    def run(
        self,
        arguments: Sequence[str | Path],
        variables: Mapping[str, str],
        cwd: Path,
        protect: Callable[[], None] | None = None,
    ) -> None:
        """Run a program until it exits.

        Args:
            arguments: the command.
            variables: its environment variables.
            cwd: its working directory.
            protect: called in the new process, from `protect_node`.

        Raises:
            StageFailedError: it failed; the message names the package, the cause and the lines that
                show it.
        """
        command = [str(argument) for argument in arguments]

        def start(protect: Callable[[], None] | None) -> subprocess.Popen[str]:
            return subprocess.Popen(
                command,
                cwd=cwd,
                env=dict(variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # pip and `venv` print errors here
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                preexec_fn=child_setup(protect),  # noqa: PLW1509 - system calls, no locks, no imports
            )

        self.record(f"$ {shlex.join(command)}")
        process = start_protected(start, protect)
        tail: deque[str] = deque(maxlen=MOST_LINES)
        reader = threading.Thread(
            target=_read_output, args=(process, tail, self.report, self.record), daemon=True
        )
        reader.start()
        try:
            _wait(process, self.check)
        finally:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            reader.join(5.0)
        if process.returncode != 0:
            raise _failure(command, process.returncode, list(tail))

    def install(
        self,
        command: Sequence[str | Path],
        variables: Mapping[str, str],
        cwd: Path,
        environment: Path,
        cache: Path,
    ) -> None:
        """Run `uv pip install`, so that no package can change what other environments get.

        Packages that are built from source run their own code for that. Where the node can be
        protected, uv first tries without them; else they write to a copy of the cache.
        """
        own = environment.with_name(f"{environment.name}.cache")
        for folder in (own, cache):
            folder.mkdir(parents=True, exist_ok=True)
        copies = {Path(os.path.realpath(cache)): own}
        protect = protect_node(self.shared_dir, [environment, own], copies)
        try:
            if protect is not None:
                if "-e" not in command:  # a source, always
                    try:
                        self.run([*command[:3], "--no-build", *command[3:]], variables, cwd)
                        return
                    except StageFailedError as err:
                        if err.code != "EnvironmentFailed":
                            raise
                variables = {**variables, "UV_LINK_MODE": "copy"}
            self.run(command, variables, cwd, protect)
        finally:
            remove_tree(own)

    def find_python(self, request: str, variables: Mapping[str, str]) -> Path:
        """Return uv's interpreter for a request such as `3.12` or `>=3.11`; may download it.

        Raises:
            StageFailedError: no such interpreter is on the node, and uv cannot download it.
        """
        uv = find_uv(self.shared_dir)
        find = [uv, "python", "find", "--no-project", request]
        found = ask_uv([*find, "--system"], variables)
        if found.returncode != 0:
            self.report(f"no Python {request} on this node: downloading it")
            install = [uv, "python", "install", "--no-bin", request]
            try:
                self.run(install, variables, Path.cwd())
            except StageFailedError as err:
                if err.code == "DiskFull":
                    raise
                raise _python_missing(request, err.message) from err
            found = ask_uv(find, variables)
        if found.returncode != 0:
            raise _python_missing(request, found.stderr.strip() or "uv found no such version")
        return Path(found.stdout.strip())


def _python_missing(request: str, why: str) -> StageFailedError:
    own = ".".join(map(str, sys.version_info[:3]))
    first, _, rest = why.partition("\n")
    message = f"Python {request} is not on the node and cannot be downloaded: {first}; it has {own}"
    message = f"{message}\n{rest}".rstrip()
    return StageFailedError(STEP, "PythonMissing", message)


def ask_uv(
    arguments: Sequence[str | Path], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a uv query, which installs nothing, and return the completed process.

    Raises:
        StageFailedError: uv did not exit within two minutes.
    """
    command = [str(argument) for argument in arguments]
    try:
        return subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as err:
        message = (
            f"`{_short_text(command)}` gave no answer in {QUERY_TIMEOUT_S:g} s: an interpreter of "
            "this node, or its disk, hangs; retry the run, or remove `python` from train.yaml"
        )
        raise StageFailedError(STEP, "EnvironmentFailed", message) from err


def _wait(process: subprocess.Popen[str], check: Callable[[], None]) -> None:
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
            return
        check()


def _read_output(
    process: subprocess.Popen[str],
    tail: deque[str],
    report: Report,
    record: Callable[[str], object],
) -> None:
    """Report the progress that uv prints, record its lines, and keep the last ones in `tail`."""
    total: int | None = None
    downloaded = 0
    for raw in process.stdout or ():
        line = _SIGN_IN.sub(r"\1\2***@", raw.rstrip())
        tail.append(line)
        record(line)
        if match := RESOLVED.match(line):
            total = int(match[1])
            report(f"resolved {total} packages", 0, total, "packages")
        elif match := DOWNLOADED.match(line):
            downloaded += 1
            report(f"downloaded {match[1]}", downloaded, total, "packages")
        elif match := DONE.match(line):
            unit = "files" if match[3].startswith("file") else "packages"
            report(line, int(match[2]), int(match[2]), unit)


# uv's words for a request without an answer; an answer such as 404 has others.
_UNREACHABLE = (
    *("error sending request for url", "operation timed out"),
    *("Couldn't connect to server", "Could not resolve host"),  # git
)
_ERROR_MARKS = ("error:", "\N{MULTIPLICATION SIGN}", "ERROR:")
_NOISE = re.compile(
    r"^\s*(?:Using Python|Using CPython|Resolved|Audited|Building|Built|Prepared|Updat(?:ing|ed)"
    r"|Downloading|Downloaded|Creating virtual|Looking in|Collecting)\b"
)
# How uv and pip name the package that failed.
_PACKAGE = re.compile(
    r"Failed to (?:build|download and build|download|fetch|read)\b[^`\n]*`([^`]+)`"
    r"|Failed building wheel for (\S+)|metadata-generation-failed.*?([\w.-]+)$"
)
_COLLECTED = re.compile(r"^Collecting ([\w.-]+\S*)")
# Not the hints that refer to a table of a project, which the text after them shows.
_HINT = re.compile(r"hint: (?!This error likely indicates that .* build dependency|Build failures)")
# Where uv and pip begin to print the output of a build.
_OUTPUT_OF_BUILD = re.compile(
    r"^\W*(?:\[(?P<stream>stdout|stderr)\]|\[\d+ lines of output\]|-+ (?P<old>stdout|stderr))\W*$"
)
_COMPILER = re.compile(r"\b(?:fatal )?error: (?![Cc]ommand\b|subprocess)|CMake Error")
_EXCEPTION = re.compile(
    r"^(?:\w+\.)*(?!SystemExit|CalledProcessError)\w*(?:Error|Exception|Exit|InvalidRequirement)(?::.*)?$"
)
_COMPLAINT = re.compile(
    r"(?i)\b(?:cannot|can't|could not|couldn't|not found|no such|missing|requires?|must|unable"
    r"|unsupported|deprecated|failed|error)\b"
)


def _failure(command: Sequence[str], returncode: int, tail: Sequence[str]) -> StageFailedError:
    lines = [line for line in tail if line.strip()]
    code = _failure_code("\n".join(lines))
    # The first line is the one that lists of runs show: uv prints progress before the error.
    start = next((n for n, line in enumerate(lines) if _is_error(line)), None)
    shown = _short_text(command)
    first = f"`{shown}` exited with code {returncode}"
    if start is None:
        rest = lines[-SHOWN_LINES:] or ["it printed nothing"]
        return StageFailedError(STEP, code, "\n".join((first, *rest)))
    if (output := _output_of_build(lines[start:])) is not None:
        at = _find_cause(output)
        what = _failed_package(lines, start, command)
        cause = output[at].strip() if output else "it printed nothing"
        context = [line[:MAX_LINE] for line in output[max(at - SHOWN_LINES // 2, 0) : at + 3]]
        hints = [line for line in lines[start:] if _HINT.match(line)]
        how = "fetched" if any("Git operation failed" in line for line in lines) else "built"
        said = f"{first}: {what} cannot be {how}: {cause[:MAX_LINE]}"
        return StageFailedError(STEP, code, "\n".join((said, *context, *hints)))
    error = lines.pop(start).strip()
    rest = [line for line in lines if not _NOISE.match(line)]
    causes = [line for line in rest if line.lstrip().startswith(("cause:", "Caused by:"))]
    if causes:  # the last one is the root
        rest.remove(causes[-1])
        error = f"{error}: {causes[-1].strip().partition(': ')[2]}"
    return StageFailedError(STEP, code, "\n".join((f"{first}: {error}", *rest[:SHOWN_LINES])))


def _is_error(line: str) -> bool:
    return line.lstrip().startswith(_ERROR_MARKS)


def _output_of_build(lines: Sequence[str]) -> list[str] | None:
    """Return what the build of a package printed, stderr last; None if no build failed."""
    streams: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in lines:
        if found := _OUTPUT_OF_BUILD.match(line):
            stream = found["stream"] or found["old"] or "stderr"
            current = streams.setdefault(stream, [])
        elif (
            not line.startswith((" ", "\N{BOX DRAWINGS LIGHT VERTICAL}"))
            or "[end of output]" in line
        ):
            current = None
        elif current is not None:
            current.append(line.strip().removeprefix("\N{BOX DRAWINGS LIGHT VERTICAL} "))
    if not streams:
        return None
    return [*streams.get("stdout", []), *streams.get("stderr", [])]


def _find_cause(output: Sequence[str]) -> int:
    """Return the index of the line that probably shows why a build failed."""
    numbers = range(len(output))
    compiler = [n for n in numbers if _COMPILER.search(output[n])]
    exceptions = [n for n in numbers if _EXCEPTION.match(output[n])]
    complaints = [
        n for n in numbers if _COMPLAINT.search(output[n]) and "warning" not in output[n].lower()
    ]
    if compiler:
        return compiler[0]
    return max(exceptions or complaints[:1] or [len(output) - 1])


def _failed_package(lines: Sequence[str], start: int, command: Sequence[str]) -> str:
    """Return the package that could not be built, as uv or pip or the requirements name it."""
    for line in lines[start:]:
        if found := _PACKAGE.search(line):
            return next(filter(None, found.groups())).partition(" @ ")[0]
    local = list[str]()
    for option, file in pairwise(command):
        if option == "-r" and file.endswith(".txt"):
            with suppress(OSError, UnicodeDecodeError):
                text = Path(file).read_text(encoding="utf-8-sig")
                local += re.findall(
                    r"(?m)^\s*(?:(?:-e|--editable)[\s=]+)?(\.[^\s;#]*|file:\S+)", text
                )
    collected = [found[1] for line in lines if (found := _COLLECTED.match(line))]  # by pip
    return " or ".join(dict.fromkeys(local)) or (collected or ["a package"])[-1]


def _failure_code(text: str) -> str:
    if DISK_FULL_TEXT in text:
        return "DiskFull"
    if any(words in text for words in _UNREACHABLE):
        return "PackagesUnreachable"
    return "EnvironmentFailed"


def _short_text(command: Sequence[str]) -> str:
    return " ".join(Path(word).name if word.startswith("/") else word for word in command[:3])
