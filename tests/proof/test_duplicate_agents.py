"""A task that is started twice on a node, at random times: one execution, or one after the other.

The outputs, the log and the record of an attempt are of one execution, also if one of the agents is
killed. `PROOF_SEED=N` uses other times, `PROOF_ROUNDS=N` another number of rounds.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.proof.killing import wrong_lines
from tests.unit.node.agent_task import RUN, Task
from tests.unit.node.fake_blob import FakeBlobs, serve_fake_blobs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SEED = int(os.environ.get("PROOF_SEED", "20261123"))
ROUNDS = int(os.environ.get("PROOF_ROUNDS", "15"))
LINES, FILES = 120, 20
SCRIPT = f"""
import os, time
attempt = os.environ["RUNNER_ATTEMPT"]
for n in range(1, {LINES} + 1):
    print("step", n, "of attempt", attempt, flush=True)
    with open(os.environ["RUNNER_OUTPUT_DIR"] + f"/{{n % {FILES}}}", "w") as out:
        out.write(attempt)
    time.sleep(0.004)
"""


@pytest.fixture
def service() -> Iterator[FakeBlobs]:
    with serve_fake_blobs() as fake:
        yield fake


def problems(task: Task, codes: list[int], *, killed: bool) -> list[str]:
    """Return the claims that do not hold after a round."""
    result = task.json("result.json")
    last, outputs = result["attempt"], result["outputs"]
    prefix = f"{RUN}/{result['output']}"
    # An agent that finds the outputs of a script that had finished exports them in its attempt.
    steps = [line for line in task.text("logs/stdout.txt").splitlines() if line.startswith("step ")]
    step, executed = steps[-1].split()[1::3]
    holds = {
        "it succeeded": (result["status"], codes[-1]) == ("succeeded", 0),
        "every agent that was not killed left with the outcome": killed or codes == [0, 0],
        "it was executed once": killed or last == 1,
        "all files were exported": len(outputs) == FILES,
        "all files are of one execution": {task.service.text(prefix + f["path"]) for f in outputs}
        == {executed},
        "the log is complete": step == str(LINES),
    }
    broken = [claim for claim, true in holds.items() if not true]
    return broken + wrong_lines(task.service, RUN, LINES)


def one_round(task: Task, chance: random.Random) -> list[str]:
    task.submit(SCRIPT, metrics={"patterns": {}})
    kills = chance.random() < 0.3
    first = task.start(subprocess.DEVNULL)
    time.sleep(chance.choice((0.0, chance.uniform(0, 1.5))))
    agents = [first, task.start(subprocess.DEVNULL, again_in=0)]
    if kills:
        time.sleep(chance.uniform(0, 1.0))
        agents[chance.randrange(2)].kill()
    codes = [agent.wait(120) for agent in agents]
    killed = -9 in codes
    if killed and codes[1]:  # Batch starts the task again
        codes.append(task.start(subprocess.DEVNULL, again_in=0).wait(120))
    return problems(task, codes, killed=killed)


def test_two_agents_in_one_folder_never_mix_executions(tmp_path: Path, service: FakeBlobs) -> None:
    chance = random.Random(SEED)
    broken: dict[int, list[str]] = {}
    for number in range(ROUNDS):
        service.blobs.clear()
        task = Task(tmp_path / str(number), service)
        try:
            found = one_round(task, chance)
        finally:
            task.end()
        if found:
            broken[number] = found
    assert not broken, f"seed {SEED}: {broken}"
