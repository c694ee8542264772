"""Hundreds of seeded races of attempts for the outcome of one run: export, then result.json.

The slow suite tries 300 seeds, or `PROOF_RACES=N`: 1,000 in `make proof`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from random import Random

import pytest

from runner.node.agent.records import NO_LOGS, RunRecords
from runner.node.failures import StageFailedError
from runner.node.script import outputs as export
from runner.node.settings import NodeSettings
from runner.node.storage import blobs
from runner.protocol.paths import RunPaths
from runner.protocol.results import RunResult
from tests.unit.node.attempt_parts import outputs_of
from tests.unit.node.races import Process, Race, sha256

RUN = "mnist-1"
RACES = int(os.environ.get("PROOF_RACES", "300"))
NODE = NodeSettings(RUN, Path("unused"), Path("unused"), "tvm-1", "local", False, "host")
Body = Callable[[Process], None]


@pytest.fixture(autouse=True)
def one_request_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "THREADS", 1)  # threads of one attempt would race without the seed
    monkeypatch.setattr(blobs, "PARALLEL_BLOCKS", 0)
    monkeypatch.setattr(blobs, "STAGED_BLOCK_BYTES", 16)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the outputs of an attempt: equal names, different content."""
    made: list[Path] = []
    for attempt in range(12):
        folder = tmp_path_factory.mktemp(f"output{attempt}")
        (folder / "sub").mkdir()
        (folder / "model").write_bytes(bytes([attempt]) * 40)
        (folder / "sub" / "notes").write_bytes(bytes([attempt]) * 7)
        made.append(folder)
    return made


class Story:
    """Two or three simultaneous executions of one task; killed ones may be restarted."""

    def __init__(self, seed: int, folders: list[Path]) -> None:
        random = Random(seed)
        self.race = Race(
            random, kill=random.choice([0, 0.01, 0.04]), lose=random.choice([0, 0.05, 0.2])
        )
        self.codes: list[int] = []
        self.claimed: list[int] = []
        self._folders = list(folders)
        self._fails = random.random() < 0.2
        self.race.run(*(self._task(random.randint(1, 3)) for _ in range(random.randint(2, 3))))

    def _task(self, lives: int) -> Body:
        def task(process: Process) -> None:
            for left in reversed(range(lives)):
                try:
                    self.codes.append(self._attempt(process))
                    return
                except BaseException:
                    if not (process.dead and left):
                        raise
                    process.revive()  # Batch runs the task again

        return task

    def _attempt(self, process: Process) -> int:
        """Do the same steps as `runner.node.agent.main`."""
        runs, names = process.container("runs"), RunPaths(RUN)
        records = RunRecords(runs, names)
        recorded = records.exit_code()
        if recorded is not None:
            return recorded
        number = records.claim_attempt(NODE, NO_LOGS)
        self.claimed.append(number)
        folder = self._folders.pop()
        failure, outputs = None, []
        if self._fails and number == 1:
            failure = StageFailedError("command", "CommandFailed", "no", 3)
        else:
            prefix = names.output(number)
            made = outputs_of(runs, folder, run_id=RUN, number=number)
            outputs = made.restore(made.export(prefix, lambda *_: None))
        result = RunResult(
            status="succeeded",
            attempt=number,
            exit_code=0,
            started=datetime.fromisoformat("2026-11-21T15:31:17+00:00"),
            metrics={"loss": float(number)},
            outputs=tuple(outputs),
        )
        if records.commit_attempt(result, failure):
            return failure.exit_code or 1 if failure else 0
        recorded = records.exit_code()
        assert recorded is not None, "somebody decided"
        return recorded


def check(story: Story) -> bool:
    """Check the outcome. Return False if there is none."""
    service = story.race.service
    assert len(set(story.claimed)) == len(story.claimed), "each attempt has its own number"
    body = service.data(f"runs/{RUN}/result.json")
    if body is None:
        assert story.codes == [], "nobody says it is over without an outcome"
        return False
    assert service.written[f"runs/{RUN}/result.json"] == 1, "the outcome was written once"
    result = json.loads(body)
    assert result["attempt"] in story.claimed
    assert result["metrics"] == {"loss": float(result["attempt"])}
    assert all(code == result["exit_code"] for code in story.codes), "everybody was told the same"
    for file in result["outputs"]:
        data = service.data(f"runs/{RUN}/{result['output']}{file['path']}")
        assert data is not None, f"{file['path']} is there"
        assert (len(data), sha256(data)) == (file["size_bytes"], file["sha256"]), "and right"
    assert len(result["outputs"]) == (2 if result["status"] == "succeeded" else 0)
    return True


@pytest.mark.parametrize("seeds", [100, pytest.param(RACES, marks=pytest.mark.slow)])
def test_races_of_attempts_have_one_outcome_with_its_own_files(
    folders: list[Path], seeds: int
) -> None:
    over = attempts = 0
    for seed in range(seeds):
        story = Story(seed, folders)
        try:
            over += check(story)
        except AssertionError as err:
            raise AssertionError(f"seed {seed}: {err}") from err
        attempts += len(story.claimed)
    assert seeds > over > seeds / 2, "most were decided, and some died before"
    assert attempts > 1.5 * seeds, "they did race"
