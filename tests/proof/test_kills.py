"""`kill -9` of script and agent at 74 random points, also during writes; 254 in `make proof`.

The final weights are identical to those of a training without kills, the script never gets a
partial state, every attempt is recorded, and its log has each line once. `PROOF_SEED=N make proof`
uses other points.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.proof.killing import SCRIPT_KILLED, TRAINER, Killer, Moment, uninterrupted, wrong_lines
from tests.unit.node.agent_task import RUN, Task
from tests.unit.node.fake_blob import FakeBlobs, serve_fake_blobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SEED = int(os.environ.get("PROOF_SEED", "20261121"))
PARTS = int(os.environ.get("PROOF_PARTS", "1"))
ALLOWED_FAILURES = 1000


@pytest.fixture
def service() -> Iterator[FakeBlobs]:
    with serve_fake_blobs() as fake:
        yield fake


@pytest.fixture
def task(tmp_path: Path, service: FakeBlobs) -> Iterator[Task]:
    made = Task(tmp_path, service)
    yield made
    made.end()


def submit(task: Task, proof: Path, style: str, steps: int, pause_s: float, **rule: Any) -> None:
    task.submit(
        TRAINER.read_text(encoding="utf-8"),
        command=["python", "train.py", style, str(steps), str(pause_s)],
        env={"PROOF_DIR": str(proof)},
        checkpoints={"keep": 3, "max_bytes": 1 << 30, **rule},
        outputs=["weights"],
        metrics={"patterns": {}},
        retries=ALLOWED_FAILURES,
    )


def any_moment(killer: Killer) -> Moment:
    """Return a moment for a script that saves with the hooks all the time."""
    chance = killer.chance
    started = lambda: killer.pid() is not None  # noqa: E731
    commits, reads = chance.randrange(1, 12), chance.randrange(1, 4)
    moments = [
        Moment("the script", "script", started, chance.uniform(0, 0.5)),
        Moment("the agent", "agent", started, chance.uniform(0, 0.5)),
        Moment("the agent as it starts", "agent", lambda: True, chance.uniform(0, 0.5)),
        Moment("the agent after SIGTERM", "agent", started, chance.uniform(0, 0.3), True),
        Moment(
            "the script as it saves",
            "script",
            lambda: killer.pid() and killer.saving(),
            chance.uniform(0, 0.004),
        ),
        Moment(
            "the agent as the script saves",
            "agent",
            lambda: killer.pid() and killer.saving(),
            chance.uniform(0, 0.004),
        ),
        Moment(
            "the agent as it commits",
            "agent",
            lambda: killer.requests("PUT", "/checkpoints/") >= commits,
            chance.choice((0.0, 0.002, chance.uniform(0, 0.02))),  # a commit takes milliseconds
        ),
        Moment(
            "the script as the agent commits",
            "script",
            lambda: killer.pid() and killer.requests("PUT", "/checkpoints/") >= commits,
            chance.uniform(0, 0.02),
        ),
        Moment(
            "the agent as it restores",
            "agent",
            lambda: killer.pid() or killer.requests("GET", "/checkpoints/") >= reads,
            chance.uniform(0, 0.02),
        ),
    ]
    return moments[killer.done.count % len(moments)]


def any_moment_of_a_slow_writer(killer: Killer, writing_s: float = 0.15) -> Moment:
    """Return a moment for a script that writes one file in place, in about `writing_s`."""
    chance = killer.chance
    writing = lambda: killer.pid() and killer.writing()  # noqa: E731
    started = lambda: killer.pid() is not None  # noqa: E731
    commits, reads = chance.randrange(1, 5), chance.randrange(1, 3)
    moments = [
        Moment("the script as it writes", "script", writing, chance.uniform(0, writing_s)),
        Moment("the agent as the script writes", "agent", writing, chance.uniform(0, writing_s)),
        Moment(
            "the agent as it commits",
            "agent",
            lambda: killer.requests("PUT", "/checkpoints/") >= commits,
            chance.uniform(0, 0.005),
        ),
        Moment(
            "the agent as it restores",
            "agent",
            lambda: killer.pid() or killer.requests("GET", "/checkpoints/") >= reads,
            chance.uniform(0, 0.02),
        ),
        Moment("the script", "script", started, chance.uniform(0, 4)),
        Moment("the agent", "agent", started, chance.uniform(0, 4)),
        Moment("the agent after SIGTERM", "agent", started, chance.uniform(0, 3), True),
    ]
    return moments[killer.done.count % len(moments)]


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.feature(33)
def test_run_killed_at_forty_points_has_the_same_weights(
    task: Task, tmp_path: Path, part: int
) -> None:
    seed = SEED + part
    steps = 2000
    (proof := tmp_path / "proof").mkdir()
    submit(task, proof, "hook", steps, 0.001, interval_s=0.15)
    killer = Killer(task, proof, seed)
    code = killer.run(40, any_moment)
    broken = problems(killer, uninterrupted(tmp_path / "reference", steps), steps)
    assert (code, broken) == (0, []), f"seed {seed}: {killer.done} {killer.journal()}"


@pytest.mark.parametrize("part", range(PARTS))
def test_file_written_in_place_is_never_restored_partially(
    task: Task, tmp_path: Path, part: int
) -> None:
    seed = SEED + 100 + part
    (proof := tmp_path / "proof").mkdir()
    submit(task, proof, "file", 12, 1.2, interval_s=0.2)
    killer = Killer(task, proof, seed)
    code = killer.run(20, any_moment_of_a_slow_writer)
    broken = problems(killer, uninterrupted(tmp_path / "reference", 12), 12)
    assert (code, broken) == (0, []), f"seed {seed}: {killer.done} {killer.journal()}"


def test_file_written_with_a_long_pause_is_never_restored_partially(
    task: Task, tmp_path: Path
) -> None:
    (proof := tmp_path / "proof").mkdir()
    submit(task, proof, "pause", 6, 1.2, interval_s=0.2)
    killer = Killer(task, proof, SEED + 200)
    code = killer.run(14, lambda killer: any_moment_of_a_slow_writer(killer, writing_s=3.0))
    broken = problems(killer, uninterrupted(tmp_path / "reference", 6), 6)
    assert (code, broken) == (0, []), f"seed {SEED + 200}: {killer.done} {killer.journal()}"


def problems(killer: Killer, weights: bytes, total: int) -> list[str]:
    """Return the claims that do not hold after these kills."""
    task, done, journal = killer.task, killer.done, killer.journal()
    result = task.json("result.json")
    last = result["attempt"]
    prefix = "" if last == 1 else f"attempts/{last}/"
    ends = [task.json(f"attempts/{attempt}/end.json") for attempt in done.script_kills]
    steps = [step for _, step in journal]
    holds = {
        "it succeeded": result["status"] == "succeeded",
        "the script got no partial state": not (killer.proof / "torn").exists(),
        "the weights are the same": task.service.data(f"{RUN}/{prefix}output/weights") == weights,
        "every attempt is recorded": killer.attempts() == list(range(1, last + 1)),
        "every start of the script belongs to one": {a for a, _ in journal}
        <= set(killer.attempts()),
        "there are no more attempts than starts": last <= done.starts,
        "what killed the script is recorded": {(e["why"], e["exit_code"]) for e in ends}
        <= {("failed", SCRIPT_KILLED)},
        "no attempt began before an earlier one": steps == sorted(steps),
        "it resumed from a checkpoint": steps[-1] > 0,
    }
    broken = [claim for claim, true in holds.items() if not true]
    return broken + wrong_lines(task.service, RUN, total)
