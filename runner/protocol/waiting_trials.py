"""Trials that have not started: one document of the sweep contains their future run.json.

`waiting/<group>.json` has a common run.json and the differences of each trial. The task of a trial
contains the same differences, relative to `sweeps/<group>/run.json`. From both, the agent writes
run.json when the trial starts. Until then, clients derive it. A trial that is cancelled before it
starts never gets a run.json. It is recorded in `waiting/<group>.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from runner.protocol.codec import DAMAGED, FORMAT, JsonDocument, parse_json, wire
from runner.protocol.groups import SWEEPS_FOLDER
from runner.protocol.results import RunResult

WAITING_FOLDER = "waiting/"
_PARTS = ("batch", "trial")  # mappings of run.json that are compared key by key


def template_blob(group_id: str) -> str:
    """Return the blob that the agents of a sweep derive run.json from."""
    return f"{SWEEPS_FOLDER}{group_id}/run.json"


def waiting_blob(group_id: str) -> str:
    """Return the blob with the waiting trials of a sweep."""
    return f"{WAITING_FOLDER}{group_id}.json"


def differences(common: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes from which `derive(common, changes)` makes `document`.

    `document` must have all keys of `common`.
    """
    changed = {
        key: value for key, value in document.items() if key not in common or common[key] != value
    }
    for name in _PARTS:
        if changed.get(name) and common.get(name):
            changed[name] = differences(common[name], changed[name])
    return changed


def derive(common: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document `common` with these differences."""
    parts = {
        name: {**common[name], **changes[name]}
        for name in _PARTS
        if changes.get(name) and common.get(name)
    }
    return {**common, **changes, **parts}


def _read_cancelled(raw: Mapping[str, Any] | None) -> dict[str, tuple[str, str]]:
    return {run_id: (str(at), str(why)) for run_id, (at, why) in (raw or {}).items()}


@dataclass(frozen=True, slots=True)
class WaitingTrials(JsonDocument):
    """`waiting/<group>.json`.

    Attributes:
        common: run.json with the values that all or most trials have.
        trials: Differences from it, by run ID.
        cancelled: When and why a trial was cancelled, by run ID. Ignored for a run with a run.json,
            because a node started it before the cancellation.
    """

    group_id: str
    common: Mapping[str, Any] = field(metadata=wire("run"))
    trials: Mapping[str, Mapping[str, Any]]
    cancelled: Mapping[str, tuple[str, str]] = field(
        default_factory=dict[str, tuple[str, str]], metadata=wire(read=_read_cancelled)
    )

    def document(self, run_id: str) -> dict[str, Any] | None:
        """Return run.json of a waiting trial, or None for another run."""
        changes = self.trials.get(run_id)
        return None if changes is None else derive(self.common, changes)

    def result(self, run_id: str) -> RunResult | None:
        """Return the outcome of a trial that was cancelled before it started, or None."""
        found = self.cancelled.get(run_id)
        if found is None or run_id not in self.trials:
            return None
        return RunResult(
            status="cancelled",
            attempt=0,
            evicted=0,
            code="Cancelled",
            message=found[1],
            ended=datetime.fromisoformat(found[0]),
        )

    def cancel(self, run_ids: Iterable[str], now: datetime, why: str) -> WaitingTrials:
        """Return the document with these trials cancelled. Earlier cancellations do not change."""
        new = {run_id: (now.isoformat(), why) for run_id in run_ids if run_id in self.trials}
        return replace(self, cancelled={**new, **self.cancelled})

    def is_same(self, other: WaitingTrials, run_id: str) -> bool:
        """Return True if a trial waits, or was cancelled, in the same way in both documents."""
        if (run_id in self.cancelled) != (run_id in other.cancelled):
            return False
        return self.document(run_id) == other.document(run_id)

    def job_of(self, run_id: str) -> str:
        """Return the ID of the job with the task of a trial."""
        batch: Mapping[str, Any] = (self.document(run_id) or {}).get("batch") or {}
        return str(batch.get("job_id") or "")

    def task_of(self, run_id: str) -> str:
        """Return the ID of the task of a trial, which may run several trials."""
        own: Mapping[str, Any] = self.trials[run_id].get("batch") or {}
        common: Mapping[str, Any] = self.common.get("batch") or {}
        return str(own.get("task_id") or common.get("task_id") or run_id)

    def tasks(self) -> dict[str, list[str]]:
        """Return the trials of each task, in their order."""
        found: dict[str, list[str]] = {}
        for run_id in self.trials:
            found.setdefault(self.task_of(run_id), []).append(run_id)
        return found

    def requeue(self, run_ids: Iterable[str], changes: Mapping[str, Any]) -> WaitingTrials:
        """Return the document with these trials waiting again, even if they were cancelled.

        `changes` of run.json, such as the job and a newer agent, apply to all these trials. Trials
        that shared a task share one again.
        """
        place: Mapping[str, Any] = changes.get("batch") or {}
        moved: dict[str, Mapping[str, Any]] = {}
        tasks: dict[str, str] = {}  # by the earlier one
        for run_id in run_ids:
            own = self.trials[run_id]
            before: Mapping[str, Any] = own.get("batch") or {}
            task = {"task_id": tasks.setdefault(self.task_of(run_id), run_id)}
            moved[run_id] = {**own, **changes, "batch": {**before, **place, **task}}
        cancelled = {run_id: one for run_id, one in self.cancelled.items() if run_id not in moved}
        return replace(self, trials={**self.trials, **moved}, cancelled=cancelled)

    def without(self, run_ids: Iterable[str]) -> WaitingTrials:
        """Return the document without these trials."""
        gone = frozenset(run_ids)
        return replace(
            self,
            trials={run_id: one for run_id, one in self.trials.items() if run_id not in gone},
            cancelled={run_id: one for run_id, one in self.cancelled.items() if run_id not in gone},
        )

    def to_bytes(self) -> bytes:
        """Return the content of the blob."""
        document = {"format": FORMAT, **self.to_json()}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def parse(cls, content: bytes) -> WaitingTrials | None:
        """Read the content. Return None if it is damaged or has a newer format."""
        try:
            raw: dict[str, Any] = parse_json(content)
            if int(raw["format"]) > FORMAT:
                return None
            return cls.from_json(raw)
        except DAMAGED:
            return None


def trial_setting(group_id: str, changes: Mapping[str, Any]) -> str:
    """Return the value of RUNNER_TRIAL, from which the agent derives run.json of a trial."""
    return json.dumps({"group": group_id, "run": changes}, separators=(",", ":"))


def task_trials_setting(
    first: Mapping[str, Any], later: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]
) -> str:
    """Return the value of RUNNER_TASK_TRIALS, a secret.

    Args:
        first: RUNNER_STORAGE of the first trial of the task.
        later: Of each trial after it: the changes as for `trial_setting`, and RUNNER_STORAGE.
    """
    return json.dumps(
        [
            {
                "run_id": run_id,
                "run": changes,
                "storage": {k: v for k, v in storage.items() if first.get(k) != v},
            }
            for run_id, (changes, storage) in later.items()
        ],
        separators=(",", ":"),
    )


def parse_trial_setting(value: str) -> tuple[str, dict[str, Any]]:
    """Return the sweep and the differences of RUNNER_TRIAL. Raise one of DAMAGED."""
    raw: dict[str, Any] = parse_json(value.encode())
    return str(raw["group"]), dict(raw["run"])
