"""Ask `nvidia-smi` what the GPUs of this node do.

It may be missing, fail, hang for ever if a GPU has fallen off the bus, and old drivers do not know
all fields. Values that it does not have are texts such as `[N/A]`, `[Not Supported]` or `ERR!`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from runner.node.script.command import forget_helper, start_helper
from runner.protocol.devices import GpuUse

TIMEOUT_S = 10.0
KILLED_S = 0.5  # how long to wait for a killed nvidia-smi, which the driver may block
AFTER_FAILURE_S = 60.0
MAX_OUTPUT_BYTES = 64 * 1024
POLL_S = 0.2
GPU_DEVICES = Path("/dev")
# Where nvidia-smi is if it is not on the PATH: the container toolkit, WSL, and images of Google.
_FOLDERS = ("/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/opt/bin")
FIELDS = (
    "index", "uuid", "name", "utilization.gpu", "memory.used", "memory.total", "power.draw",
    "temperature.gpu", "mig.mode.current",
)  # fmt: skip
_NEEDED = frozenset({"index", "utilization.gpu"})
_UNKNOWN_FIELD = re.compile(r'Field "([\w.]+)" is not a valid field')
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The answer of nvidia-smi: the GPUs, why there is none or no utilisation, and its duration."""

    gpus: tuple[GpuUse, ...] = ()
    problem: str = ""
    took_s: float = 0.0


class GpuReader:
    """Reads the GPUs that the run may use.

    Args:
        environment: the variables of the agent, with `PATH` and `CUDA_VISIBLE_DEVICES`.
        expected: the node should have GPUs. Otherwise, a missing or failing nvidia-smi is no
            problem, because images have it on nodes without GPUs too.
        stopped: returns True when nobody needs the answer any more.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        expected: bool,
        stopped: Callable[[], bool] = lambda: False,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        path = os.pathsep.join([environment.get("PATH") or os.defpath, *_FOLDERS])
        self._program = shutil.which("nvidia-smi", path=path)
        self._visible = environment.get("CUDA_VISIBLE_DEVICES")
        self._environment = {**environment, "LC_ALL": "C"}
        self._expected = expected
        self._stopped = stopped
        self._timeout_s = timeout_s
        self._fields = FIELDS
        self._hanging: subprocess.Popen[bytes] | None = None
        self._failed_at: float | None = None
        self._problem = ""
        self._has_answered = False

    @property
    def is_needed(self) -> bool:
        """False if this node has no GPUs that could be measured."""
        return self._expected or self._program is not None

    def read(self) -> GpuReading:
        """Return what the GPUs do now.

        After a failure, the same problem is returned for a while without another try.
        """
        if self._program is None:
            why = "no nvidia-smi on this node or in its container image"
            return GpuReading(problem=why if self._expected else "")
        if self._failed_at is not None and time.monotonic() - self._failed_at < AFTER_FAILURE_S:
            return GpuReading(problem=self._problem)
        began = time.monotonic()
        try:
            gpus = self._ask(self._program)
        except _FailedError as err:
            self._failed_at = time.monotonic()
            is_problem = self._expected or self._has_answered
            self._problem = str(err) if is_problem else ""
            return GpuReading(problem=self._problem, took_s=time.monotonic() - began)
        self._failed_at, self._has_answered = None, True
        took_s = time.monotonic() - began
        return GpuReading(tuple(row.use for row in gpus), _find_problem(gpus), took_s)

    def _ask(self, program: str) -> list[_Row]:
        while True:
            code, text = self._run(
                [program, f"--query-gpu={','.join(self._fields)}", "--format=csv,noheader,nounits"]
            )
            unknown = _UNKNOWN_FIELD.search(text)
            if code and unknown and unknown[1] in self._fields and unknown[1] not in _NEEDED:
                self._fields = tuple(each for each in self._fields if each != unknown[1])
                continue
            if code:
                last = (text.strip().splitlines() or ["no output"])[-1]
                raise _FailedError(f"nvidia-smi exited with code {code}: {last[:200]}")
            rows = [row for line in text.splitlines() if (row := _parse(self._fields, line))]
            if not rows:
                raise _FailedError("nvidia-smi listed no GPU")
            return select_visible(rows, self._visible)

    def _run(self, command: list[str]) -> tuple[int, str]:
        """Return exit code and output. Raise _FailedError if it hangs or cannot be started."""
        if self._hanging is not None and self._hanging.poll() is None:
            raise _FailedError("an earlier nvidia-smi still hangs")
        if self._hanging is not None:
            forget_helper(self._hanging)
            self._hanging = None
        try:
            process = start_helper(
                lambda: subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    start_new_session=True,
                )
            )
        except OSError as err:
            raise _FailedError(f"cannot start nvidia-smi: {err}") from err
        try:
            return self._finish(process)
        finally:
            if process.returncode is not None:
                forget_helper(process)

    def _finish(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                output, _ = process.communicate(timeout=POLL_S)
                text = output[:MAX_OUTPUT_BYTES].decode("utf-8", "replace")
                return process.returncode, text
            except subprocess.TimeoutExpired:
                if time.monotonic() < until and not self._stopped():
                    continue
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(KILLED_S)
            if process.stdout is not None:
                process.stdout.close()
            if process.returncode is None:
                self._hanging = process
            raise _FailedError(f"nvidia-smi did not answer within {self._timeout_s:g} s")


class _FailedError(Exception):
    """nvidia-smi gave no answer; the message is the reason."""


@dataclass(frozen=True, slots=True)
class _Row:
    use: GpuUse
    uuid: str = ""
    has_mig: bool = False
    values: Mapping[str, str] = field(default_factory=dict[str, str], compare=False)


def _parse(names: tuple[str, ...], line: str) -> _Row | None:
    """Return a line of the output; None for another line, such as a warning."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != len(names):
        return None
    values = dict(zip(names, words, strict=True))
    if not values["index"].isdigit():
        return None
    memory, limit = (_to_number(values.get(f"memory.{name}")) for name in ("used", "total"))
    use = GpuUse(
        int(values["index"]),
        values.get("name", ""),
        _to_number(values["utilization.gpu"]),
        None if memory is None else int(memory * _MIB),
        None if limit is None else int(limit * _MIB),
        _to_number(values.get("power.draw")),
        _to_number(values.get("temperature.gpu")),
    )
    has_mig = values.get("mig.mode.current", "").lower() == "enabled"
    return _Row(use, values.get("uuid", ""), has_mig, values)


def _to_number(text: str | None) -> float | None:
    """Return the number, or None for `[N/A]` and the like. Some versions print units anyway."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(?: ?(?:%|MiB|W|C))?", text or "")
    return float(found[1]) if found else None


def select_visible(rows: list[_Row], visible: str | None) -> list[_Row]:
    """Return the GPUs that CUDA shows to programs.

    `CUDA_VISIBLE_DEVICES` is a list of indexes or of (starts of) UUIDs, which ends at the first
    invalid entry (CUDA C++ Programming Guide, "CUDA Environment Variables", read 2026-11-29).
    """
    if visible is None:
        return rows
    found: list[_Row] = []
    for word in (word.strip() for word in visible.split(",")):
        parts = word.split("/")  # an old name of a part is MIG-GPU-<UUID>/<instance>/<instance>
        named = parts[0].removeprefix("MIG-") if len(parts) > 1 else word
        each = next(
            (
                row
                for row in rows
                if (word.isdigit() and row.use.index == int(word))
                or (named.startswith("GPU-") and row.uuid.startswith(named))
            ),
            None,
        )
        if each is None and word.startswith("MIG-"):
            return [row for row in rows if row.has_mig]  # which of them is unknown
        if each is None:
            break
        found += [each] if each not in found else []
    return found


def _find_problem(rows: list[_Row]) -> str:
    """Return why the utilisation of a GPU is unknown, or ""."""
    for row in rows:
        if row.use.percent is not None:
            continue
        which = f"GPU {row.use.index}"
        if row.has_mig:
            return f"{which} is divided by MIG, and nvidia-smi has no utilisation of its parts"
        return f"{which} has no utilisation: nvidia-smi printed {row.values['utilization.gpu']!r}"
    return ""


def may_have_gpus(wanted: int | None) -> bool:
    """Return True if this node should have GPUs: the run needs some, or the kernel has some."""
    return bool(wanted) or any(GPU_DEVICES.glob("nvidia[0-9]*"))
