"""Run a program with the Python of the script, which may have packages that the agent lacks."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.node.script.command import child_setup, own_helper
from runner.node.script.protection import start_protected
from runner.protocol.codec import parse_json

MAX_ANSWER_BYTES = 64 << 20
_MAX_ERROR_CHARS = 500


@dataclass(frozen=True)
class ScriptPython:
    """The Python of a script, which may have packages that the agent lacks.

    Attributes:
        path: the interpreter.
        environment: the variables of the script.
        protect: called in the new process, as for the script.
    """

    path: str
    environment: Mapping[str, str]
    protect: Callable[[], None] | None = None

    @classmethod
    def of_command(
        cls,
        words: Iterable[str],
        environment: Mapping[str, str],
        protect: Callable[[], None] | None,
    ) -> ScriptPython | None:
        """Return the interpreter that a command names, or else the first one on PATH, if any."""
        first = next(iter(words), "")
        names = [first] if Path(first).name.startswith("python") else []
        for name in (*names, "python", "python3"):
            if found := shutil.which(name, path=environment.get("PATH")):
                return cls(found, environment, protect)
        return None

    def ask(self, source: str, request: object, timeout_s: float) -> Any:
        """Run a program, which gets a line of JSON, and return the JSON that it prints.

        It does not import from the script's folder, nor the runner's hooks.

        Raises:
            OSError: it could not be started, failed, or did not end in time.
        """
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as errors:
            given.write(json.dumps(request).encode("ascii") + b"\n")
            given.seek(0)

            def start(protect: Callable[[], None] | None) -> subprocess.Popen[bytes]:
                return subprocess.Popen(
                    [self.path, "-I", "-c", source],
                    cwd="/",
                    env=dict(self.environment),
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    preexec_fn=child_setup(protect),  # noqa: PLW1509 - as for the script
                )

            with own_helper(lambda: start_protected(start, self.protect)) as process:
                try:
                    content = _read_all(process, time.monotonic() + timeout_s)
                finally:
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            try:
                return parse_json(content)
            except ValueError as err:
                errors.seek(0)
                said = errors.read()[-_MAX_ERROR_CHARS:].decode("utf-8", "replace").split("\n")
                raise OSError(next(filter(None, reversed(said)), "no answer")) from err


def _read_all(process: subprocess.Popen[bytes], deadline: float) -> bytes:
    """Return what a process prints. Raise OSError for too much, or if it does not end in time."""
    stdout, parts, size = process.stdout, list[bytes](), 0
    if stdout is None:
        return b""
    with stdout:
        while True:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([stdout], [], [], left_s)[0]:
                raise TimeoutError("no answer in time")
            part = os.read(stdout.fileno(), 1 << 16)
            if not part:
                return b"".join(parts)
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise OSError(f"more than {MAX_ANSWER_BYTES >> 20} MiB of values")
