"""Find out for how long the devices of a node have been idle."""

from __future__ import annotations

import time
from collections.abc import Callable

from runner.node.failures import CPU_IDLE, GPU_IDLE
from runner.protocol.devices import IDLE_CORES, IDLE_GPU_PERCENT, IDLE_IO_BYTES_S, DeviceSample


class IdleWatch:
    """Receives measurements of this node, and says when all devices were idle for too long.

    The devices are the GPUs if the node has some, else the CPU, where reading and writing counts as
    use. A span in which they could not be measured counts as use.

    Args:
        limit_s: how long they may be idle.
        ignores_gpus: the run asked for no GPU.
        is_workspace: a person works on the node, so that processes outside of the script count.
        others_idle_s: on the primary of several nodes, returns the time for which all other nodes
            have been idle.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        limit_s: float,
        *,
        ignores_gpus: bool = False,
        is_workspace: bool = False,
        others_idle_s: Callable[[], float] = lambda: float("inf"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit_s = limit_s
        self._ignores_gpus = ignores_gpus
        self._is_workspace = is_workspace
        self._others_idle_s = others_idle_s
        self._clock = clock
        self._busy_at = self._measured_at = clock()
        self._code = CPU_IDLE
        self._last: DeviceSample | None = None
        self.problem = ""  # why the last span could not be measured

    @property
    def idle_s(self) -> float:
        """The time between the last use and the last measurement of this node."""
        return self._measured_at - self._busy_at

    def add(self, sample: DeviceSample) -> None:
        """Add the measurement of a span that ends now."""
        self._measured_at, self._last = self._clock(), sample
        if self._is_busy(sample):
            self._busy_at = self._measured_at

    def _is_busy(self, sample: DeviceSample) -> bool:
        self.problem = ""
        if not self._ignores_gpus and (sample.gpus or sample.gpu_problem):
            self._code = GPU_IDLE
            self.problem = sample.gpu_problem
            return bool(self.problem) or not sample.has_idle_gpus
        self._code = CPU_IDLE
        used = sample.cpu_cores if self._is_workspace else sample.script_cores
        if used is None:
            self.problem = "the CPU time of its processes is unknown"
            return True
        if self._is_workspace:
            return used >= IDLE_CORES
        if sample.script_runnable:  # on a crowded machine, it may get little time
            return True
        return used >= IDLE_CORES or (sample.script_io_bytes_s or 0.0) >= IDLE_IO_BYTES_S

    def describe(self) -> tuple[str, str] | None:
        """Return the code and the message of a run that has been idle for too long, or None."""
        if self._last is None or self.idle_s < self.limit_s:
            return None
        if self._others_idle_s() < self.limit_s:
            return None
        if self._code == GPU_IDLE:
            count = len(self._last.gpus)
            what = "the GPU was" if count == 1 else f"all {count} GPUs were"
            return GPU_IDLE, f"{what} used less than {IDLE_GPU_PERCENT:g} % for {self.limit_s:g} s"
        return CPU_IDLE, (
            f"the script used less than {IDLE_CORES * 100:g} % of a core for {self.limit_s:g} s"
        )
