"""The thread that measures the devices while the script runs, and can end an idle script."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runner.node.devices.gpus import GpuReader, may_have_gpus
from runner.node.devices.idle import IdleWatch
from runner.node.devices.machine import KernelCounters
from runner.node.devices.sampler import MAX_INTERVAL_S, DeviceSampler
from runner.node.failures import GPU_IDLE
from runner.node.script.context import AttemptContext
from runner.node.script.shipper import LineQueue, Shipper
from runner.node.storage.blobs import AppendBlob
from runner.node.storage.http import StorageRequestError

logger = logging.getLogger(__name__)

PER_LIMIT = 5  # measurements within an idle timeout, at least
MAX_BLOB_BYTES = 16 * 1024 * 1024  # of all attempts
LEAVE_S = 1.0  # for the measurement that is under way when the script ends
WARNED_AFTER_S = 1800.0  # of idle GPUs, without an idle timeout


class DeviceWatch(threading.Thread):
    """Measures until the script ends. `finish` stores the rest afterwards.

    Args:
        context: the attempt; its paths have the rank of the node.
        folder: the folder of the task.
        ending: is set when the script ends.
        report: on a worker, tells the primary for how many seconds this node has been idle. The
            primary then decides.
        others_idle_s: on the primary of several nodes, returns for how long all others were idle.
    """

    def __init__(
        self,
        context: AttemptContext,
        folder: Path,
        ending: threading.Event,
        *,
        report: Callable[[float], None] | None = None,
        others_idle_s: Callable[[], float] | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        super().__init__(name="devices", daemon=True)
        self._context = context
        self._folder = folder
        self._report = report
        self._others_idle_s = others_idle_s
        self._environment = environment
        self._ending = ending
        self._queue = LineQueue()
        self._shipper: Shipper | None = None
        self._sampler: DeviceSampler | None = None
        self._idle: IdleWatch | None = None
        self._has_warned = self._has_explained = self._is_full = False
        self.ended: tuple[str, str] | None = None  # code and message, once the run is too idle

    @property
    def _limit_s(self) -> float | None:
        return self._context.spec.idle_timeout_s

    def run(self) -> None:
        """Thread body: measure until the script ends."""
        try:
            sampler = self._sampler = self._open()
            while not self._ending.wait(sampler.interval_s):
                self._measure(sampler)
            sampler.flush()
        except Exception as err:
            # A bug, or a kernel that differs: the script must not notice.
            logger.exception("the devices are not measured any more")
            self._explain(f"{type(err).__name__}: {err}")

    def _open(self) -> DeviceSampler:
        spec, limit_s = self._context.spec, self._limit_s
        wanted = spec.resources.gpus
        gpus = GpuReader(
            self._environment, expected=may_have_gpus(wanted), stopped=self._ending.is_set
        )
        self._idle = IdleWatch(
            limit_s or WARNED_AFTER_S,
            ignores_gpus=wanted == 0,
            is_workspace=spec.is_workspace,
            others_idle_s=self._others_idle_s or (lambda: float("inf")),
        )
        most_s = limit_s / PER_LIMIT if limit_s else MAX_INTERVAL_S
        machine = KernelCounters(in_container=spec.image is not None)
        number = self._context.number
        return DeviceSampler(number, machine, gpus, self._folder, self._put, most_interval_s=most_s)

    def _measure(self, sampler: DeviceSampler) -> None:
        sample = sampler.measure()
        idle = self._idle
        if sample is None or idle is None:
            return
        idle.add(sample)
        if idle.problem:
            self._explain(idle.problem)
        if self._report is not None:
            self._report(idle.idle_s)
        elif self.ended is None and (found := idle.describe()) is not None:
            self._act(found)

    def _act(self, found: tuple[str, str]) -> None:
        """End the run, or warn once without a limit."""
        if self._limit_s:
            self.ended = found
        elif found[0] == GPU_IDLE and not self._has_warned:
            self._has_warned = True
            text = f"{found[1]}: `idle_timeout` ends such a run"
            self._context.events.add("notice", "progress", text)

    def _explain(self, problem: str) -> None:
        """Write once that the idle timeout has no effect while something is not measured."""
        if self._limit_s and not self._has_explained:
            self._has_explained = True
            text = f"`idle_timeout` does not end this run while its use is not measured: {problem}"
            self._context.events.add("notice", "progress", text)

    def _put(self, line: bytes) -> None:
        if not self._is_full:
            self._queue.put(line)
            if self._shipper is None:
                self._start_shipper()

    def _start_shipper(self) -> None:
        """Start to write, unless earlier attempts wrote too much or storage does not answer."""
        runs, name = self._context.runs, self._context.paths.system
        try:
            found = runs.head(name)
        except StorageRequestError as err:  # the next line tries again
            logger.warning("the use of devices is not stored yet: %s", err)
            return
        self._is_full = found is not None and found.size_bytes > MAX_BLOB_BYTES
        if self._is_full:
            logger.warning("%s is full: nothing is added", name)
            return
        self._shipper = Shipper(self._queue, AppendBlob(runs, name))
        self._shipper.start()

    def summary(self) -> dict[str, Any] | None:
        """Return what the attempt used of this node so far, or None if nothing was measured."""
        found = self._sampler.totals.summary() if self._sampler is not None else None
        return None if found is None else found.to_json()

    def finish(self, timeout_s: float | None = None) -> None:
        """Store the last measurements within the time. Raise the error that prevented it."""
        self._ending.set()
        if self.is_alive():
            self.join(LEAVE_S if timeout_s is None else min(timeout_s, LEAVE_S))
        if self._shipper is not None:
            self._shipper.finish(timeout_s)

    def await_end(self) -> None:
        """Wait until nothing is written any more, because the next attempt appends to the blob."""
        if self._shipper is not None:
            self._shipper.join()
