"""`runner why` of healthy runs: no phase of their lives gets a cause.

60 runs, more than there are slots, or `PROOF_HEALTHY_RUNS=N`: 200 in `make proof`.

The tasks are real ones of the emulator; what the agent of each would have written is put beside
them when the phase changes, drawn from a seed.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from azure.batch import models

from runner.azure.storage.blobs import BlobContainer, BlobInfo, in_parallel
from runner.flows.runs.diagnose import diagnose_run
from runner.protocol.run_spec import RunSpec, parse_run
from tests.contract.server import Things, eventually, serving
from tests.contract.test_stuck_runs import PLAIN_RUN, connected

RUNS = int(os.environ.get("PROOF_HEALTHY_RUNS", "60"))
SEED = 15
PREPARING = ("code", "environment", "data", "restore")


class Stored:
    """The container of runs, in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blobs: dict[str, tuple[bytes, datetime]] = {}
        monkeypatch.setattr(BlobContainer, "read", lambda _, blob: self._read(blob))
        monkeypatch.setattr(BlobContainer, "read_range", self._read_range)
        monkeypatch.setattr(BlobContainer, "size", lambda _, blob: len(self._read(blob) or b""))
        monkeypatch.setattr(BlobContainer, "list", lambda _, prefix: self._list(prefix))
        monkeypatch.setattr(
            BlobContainer, "names", lambda _, prefix: (blob.name for blob in self._list(prefix))
        )

    def put(self, name: str, content: Any, age: timedelta = timedelta()) -> None:
        self.blobs[name] = (json.dumps(content).encode() + b"\n", datetime.now(UTC) - age)

    def _read(self, name: str) -> bytes | None:
        found = self.blobs.get(name)
        return None if found is None else found[0]

    def _read_range(self, _: object, blob: str, offset: int, length: int | None) -> bytes | None:
        content = self._read(blob)
        until = None if length is None else offset + length
        return None if content is None else content[offset:until]

    def _list(self, prefix: str) -> Iterator[BlobInfo]:
        for name, (content, modified) in sorted(self.blobs.items()):
            if name.startswith(prefix):
                yield BlobInfo(name, len(content), modified=modified)


def run_of(number: int, pool_id: str, job_id: str, draw: random.Random) -> RunSpec:
    run_id = f"cats-20261121-143005-h{number:03d}"
    raw = json.loads(PLAIN_RUN.read_text()) | {"run_id": run_id}
    raw["batch"] = {**raw["batch"], "pool": pool_id, "job_id": job_id, "task_id": run_id}
    raw["retries"] = draw.choice([0, 0, 2])
    return parse_run(json.dumps(raw).encode(), run_id)


class Life:
    """A run with the documents of its agent; `seen` are the states that it was asked in."""

    def __init__(self, spec: RunSpec, stored: Stored, draw: random.Random) -> None:
        self.spec = spec
        self.draw = draw
        self.stored = stored
        self.cancelled = draw.random() < 0.2
        self.attempt = 1
        self.began = datetime.now(UTC)

    def prepare(self) -> None:
        """Start an attempt, sometimes after one that failed and is retried."""
        if self.spec.retries:
            self._start()
            end = {"attempt": 1, "ended": self._time(), "why": "failed", "step": "command"}
            self._put("attempts/1/end.json", end)
            self.attempt = 2
        self._start()
        self._event(self.draw.choice(PREPARING))

    def train(self) -> None:
        """Run the script: it prints, measures, or does neither for a while."""
        self._event("command")
        if self.draw.random() < 0.8:
            quiet = timedelta(seconds=self.draw.randint(0, 300))
            point = {"attempt": self.attempt, "name": "loss", "value": 0.5, "step": 1}
            self._put("metrics.jsonl", {**point, "time": self._time(-quiet)}, quiet)
        if self.draw.random() < 0.8:
            self._put("logs/stdout.txt", "Traceback? no: error rate 0.1, MemoryError caught")

    def end(self) -> None:
        result = {
            "format": 1, "run_id": self.spec.run_id, "attempt": self.attempt, "evicted": 0,
            "status": "cancelled" if self.cancelled else "succeeded", "metrics": {"loss": 0.1},
            "started": self.began.isoformat(), "ended": self._time(), "exit_code": 0,
        }  # fmt: skip
        self._put("result.json", result)

    def _start(self) -> None:
        start = {"attempt": self.attempt, "node": "tvm-1", "started": self._time()}
        self._put(f"attempts/{self.attempt}/start.json", start)

    def _event(self, stage: str) -> None:
        event = {"stage": stage, "state": "start", "time": self._time()}
        self._put(f"attempts/{self.attempt}/events.jsonl", event)

    def _time(self, shift: timedelta = timedelta()) -> str:
        return (datetime.now(UTC) + shift).isoformat()

    def _put(self, name: str, content: Any, age: timedelta = timedelta()) -> None:
        self.stored.put(f"{self.spec.run_id}/{name}", content, age)


@pytest.mark.slow
@pytest.mark.feature(10)
def test_healthy_runs_have_no_problem_in_any_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, stored = random.Random(SEED), Stored(monkeypatch)
    with serving(tmp_path / "account", boot_s=1.0) as running:
        things, connection = Things(running.client), connected(running)
        pool_id = things.pool(target_low_priority_nodes=8, task_slots_per_node=5)
        job_id = things.job(pool_id)
        specs = [run_of(number, pool_id, job_id, draw) for number in range(RUNS)]
        lives = [Life(spec, stored, draw) for spec in specs]
        wait = "/bin/sh -c 'while [ ! -e {} ]; do sleep 0.2; done'"
        for first in range(0, RUNS, 100):
            options = [
                models.BatchTaskCreateOptions(
                    id=each.run_id, command_line=wait.format(tmp_path / each.run_id)
                )
                for each in specs[first : first + 100]
            ]
            running.client.create_task_collection(
                job_id, models.BatchTaskGroup(task_values=options)
            )
        seen: dict[str, int] = {}

        def ask(asked: list[Life]) -> None:
            for found in in_parallel(lambda life: diagnose_run(connection, life.spec), asked):
                assert found.cause is None, (found, SEED)
                seen[found.state] = seen.get(found.state, 0) + 1

        def running_ids() -> set[str] | None:
            tasks = running.client.list_tasks(job_id, filter="state eq 'running'")
            return {str(task.id) for task in tasks} or None

        ask(lives[:40])  # the nodes boot
        waiting = {life.spec.run_id: life for life in lives}
        while waiting:
            ids = eventually(running_ids) & set(waiting)
            wave = [waiting.pop(each) for each in sorted(ids)]
            if not wave:
                continue
            ask(list(waiting.values())[:10])  # all slots are taken
            ask(wave)  # its agent has not started
            for phase in (Life.prepare, Life.train):
                for life in wave:
                    phase(life)
                ask(wave)
            for life in wave:
                life.end()
                (tmp_path / life.spec.run_id).touch()
            ask(wave)
        ask(lives)  # and their tasks have ended
    assert seen["succeeded"] + seen["cancelled"] >= 2 * RUNS
    assert {"queued", "preparing", "running", "succeeded", "cancelled"} <= set(seen)
