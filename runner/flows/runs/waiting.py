"""Trials that have not started. Clients derive their run.json from the document of the sweep."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from threading import Lock

from runner.azure.storage.blobs import BlobContainer, in_parallel
from runner.protocol.paths import RunPaths, parse_sweep_id, trial_prefix
from runner.protocol.results import RunResult
from runner.protocol.waiting_trials import (
    WAITING_FOLDER,
    WaitingTrials,
    waiting_blob,
)


class WaitingTrialsCache:
    """The waiting trials of all sweeps; the document of each sweep is read once."""

    def __init__(self, container: BlobContainer) -> None:
        self._container = container
        self._sweeps: dict[str, WaitingTrials | None] = {}
        self._started: dict[str, frozenset[str]] = {}
        self._lock = Lock()

    def sweep(self, group_id: str) -> WaitingTrials | None:
        """Return the waiting trials of a sweep, or None if all have started."""
        with self._lock:
            if group_id not in self._sweeps:
                content = self._container.read(waiting_blob(group_id))
                self._sweeps[group_id] = WaitingTrials.parse(content) if content else None
            return self._sweeps[group_id]

    def of_run(self, run_id: str) -> WaitingTrials | None:
        """Return the waiting trials that include a run. The run may have started since."""
        group_id = parse_sweep_id(run_id)
        found = self.sweep(group_id) if group_id else None
        return found if found is not None and run_id in found.trials else None

    def unstarted(self, run_id: str) -> WaitingTrials | None:
        """Do the same as `of_run`, but return None if the run has started. Fast for many runs."""
        found = self.of_run(run_id)
        if found is None:
            return None
        with self._lock:
            if found.group_id not in self._started:
                self._started[found.group_id] = list_started(self._container, found.group_id)
            return None if run_id in self._started[found.group_id] else found

    def read(self, run_id: str) -> bytes | None:
        """Return the future run.json, or None for a run that is not a waiting trial."""
        found = self.of_run(run_id)
        return None if found is None else json.dumps(found.document(run_id)).encode()


def read_run(
    container: BlobContainer, run_id: str, waiting: WaitingTrialsCache | None = None
) -> bytes | None:
    """Return run.json of a run, or the future one of a waiting trial; None if there is no run."""
    blob = RunPaths(run_id).run
    content = container.read(blob)
    if content is not None or parse_sweep_id(run_id) is None:
        return content
    derived = (waiting or WaitingTrialsCache(container)).read(run_id)
    # If the last trial started in between, run.json replaces the document of the sweep.
    return derived or container.read(blob)


def cancelled_result(container: BlobContainer, run_id: str) -> RunResult | None:
    """Return the outcome of a trial that was cancelled before a node started it, or None."""
    if container.size(RunPaths(run_id).run) is not None:
        return None
    found = WaitingTrialsCache(container).of_run(run_id)
    return None if found is None else found.result(run_id)


def list_started(container: BlobContainer, group_id: str) -> frozenset[str]:
    """Return the runs of a sweep with a folder: nodes have started them, or clients ended them."""
    return frozenset(container.folders(trial_prefix(group_id)))


def load_waiting(container: BlobContainer) -> dict[str, WaitingTrials]:
    """Return the waiting trials of all sweeps, by the blob that lists them."""
    names = [blob.name for blob in container.list(WAITING_FOLDER)]
    contents = zip(names, in_parallel(container.read, names), strict=True)
    parsed = {name: WaitingTrials.parse(content) for name, content in contents if content}
    return {name: waiting for name, waiting in parsed.items() if waiting is not None}


def list_waiting(container: BlobContainer, prefix: str, started: Collection[str]) -> list[str]:
    """Return the IDs of trials with a prefix that have not started.

    Args:
        container: the container of runs.
        prefix: prefix of the run IDs.
        started: The runs with this prefix that have a folder. If all runs are listed, and this
            includes all trials of a sweep, its document is deleted.
    """
    found: list[str] = []
    for name, waiting in load_waiting(container).items():
        left = [run_id for run_id in waiting.trials if run_id not in started]
        found += (run_id for run_id in left if run_id.startswith(prefix))
        if not left and not prefix:
            container.delete(name)
    return found


def forget_waiting(container: BlobContainer, group_id: str, run_ids: Iterable[str]) -> None:
    """Remove deleted runs from `waiting/<group>.json`."""
    gone = frozenset(run_ids)

    def change(content: bytes) -> bytes | None:
        found = WaitingTrials.parse(content)
        if found is None:
            return content
        left = found.without(gone)
        return left.to_bytes() if left.trials else None

    container.update(waiting_blob(group_id), change)
