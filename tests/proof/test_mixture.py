"""`kill -9` of services, agents, scripts and clients in random mixtures, on the local services.

Every run ends with the weights of an uninterrupted one and one result; each attempt is recorded
once, and its log has each line once. The test of a victim kills it three times in five, and any of
the others otherwise, `PROOF_KILLS=N` times. All five kill each victim about N times. 100 kills of
each take about 75 minutes, and `PROOF_SEED=N` uses other points:

    PROOF_KILLS=100 PROOF_SEED=7 pytest -m slow -s tests/proof/test_mixture.py
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from runner.azure.auth.credentials import Connection
from runner.contract import parse_stack_outputs
from runner.core.home import HomePaths
from runner.flows.local.state import BATCH, BLOB, ensure_keys, load_state
from runner.flows.runs.documents import (
    find_run,
    list_run_ids,
    load_attempts,
    load_result,
    runs_container,
)
from runner.flows.runs.logs import read_log
from tests.e2e.conftest import RUNNER, Cli, new_home, until
from tests.proof.killing import TRAINER, starts, uninterrupted, wrong_steps

SEED = int(os.environ.get("PROOF_SEED", "20261123"))
KILLS = int(os.environ.get("PROOF_KILLS", "4"))
VICTIMS = ("azurite", "emulator", "agent", "script", "client")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 60 * KILLS)]

AT_ONCE = 2  # runs, one per node
KILLS_OF_A_ROUND = 6
STEPS = 150
_SERVICES = {"emulator": BATCH, "azurite": BLOB}
_PROGRAMS = {"agent": "runner-agent.pyz", "script": "train.py"}
_RECIPE = """
name: {name}
command: [python, train.py, hook, "{steps}", "0.02"]
env: {{PROOF_DIR: "{proof}"}}
outputs: [weights]
checkpoints: {{interval: 1s, keep: 3}}
retries: 100
"""


class Services:
    """The local services of the test, and a connection to them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "work").mkdir()
        self.cli = Cli(new_home(folder / "home"), folder / "work")
        self.cli.ok("local", "up", "--nodes", AT_ONCE, "--slots", 1)
        self.paths = HomePaths(self.cli.home)
        outputs = parse_stack_outputs(self.paths.local_outputs.read_text())
        self.connection = Connection(outputs, ensure_keys(self.paths))

    def kill(self, service: str, away_s: float) -> bool:
        """Kill a service, and start it again later."""
        state = load_state(self.paths)
        record = state.record(service) if state else None
        assert record is not None
        os.kill(record.pid, signal.SIGKILL)
        time.sleep(away_s)
        until(lambda: self.cli.run("local", "up").returncode == 0, timeout_s=120)
        return True


class Run:
    """A run, and the client that submits or follows it."""

    def __init__(self, services: Services, name: str) -> None:
        self._services = services
        self._container = runs_container(services.connection)
        self.name = name
        self.proof = services.folder / name / "proof"
        self._recipe = services.folder / name / "recipe"
        for folder in (self.proof, self._recipe):
            folder.mkdir(parents=True)
        (self.proof / "gate").touch()
        shutil.copyfile(TRAINER, self._recipe / "train.py")
        text = _RECIPE.format(name=name, steps=STEPS, proof=self.proof)
        (self._recipe / "train.yaml").write_text(text)
        self._client: subprocess.Popen[bytes] | None = None
        self._without_task: set[str] = set()

    def run_id(self) -> str | None:
        found = set(list_run_ids(self._container, f"{self.name}-")) - self._without_task
        return max(found, default=None)

    def has_ended(self) -> bool:
        run_id = self.run_id()
        return run_id is not None and load_result(self._container, run_id) is not None

    def follow(self) -> None:
        """Start a client unless one runs: it follows the run, or submits it."""
        if self.has_ended() or (self._client is not None and self._client.poll() is None):
            return
        run_id = self.run_id()
        if run_id and self._services.cli.json("show", run_id)["state"] == "lost":
            self._without_task.add(run_id)  # its client was killed before it added the task
            assert not load_attempts(self._container, run_id), f"{run_id} is lost"
            run_id = None
        words = ["attach", run_id] if run_id else ["train", str(self._recipe)]
        cli = self._services.cli
        with (self._services.folder / "clients.log").open("ab") as log:
            self._client = subprocess.Popen(
                [str(RUNNER), *words], env=cli.env, cwd=cli.cwd, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def attempts(self) -> int:
        run_id = self.run_id()
        return len(load_attempts(self._container, run_id)) if run_id else 0

    def kill(self, victim: str) -> bool:
        """Kill the client, the agent or the script. Return False if there is none."""
        if victim == "client":
            found = (
                [] if self._client is None or self._client.poll() is not None else [self._client]
            )
        else:
            found = self._processes(_PROGRAMS[victim])
        for process in found:
            with suppress(psutil.Error):
                process.kill()
        return bool(found)

    def end(self) -> None:
        if self._client is not None:
            self._client.kill()
            self._client.wait()

    def _processes(self, program: str) -> list[Any]:
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if program in process.cmdline():
                    run_id = process.environ().get("RUNNER_RUN_ID", "")
                    found += [process] if run_id.startswith(f"{self.name}-") else []
        return found

    def problems(self, weights: bytes) -> list[str]:
        """Return the claims that do not hold after the end."""
        connection, run_id = self._services.connection, self.run_id()
        result = load_result(self._container, run_id) if run_id else None
        if run_id is None or result is None:
            return [f"{self.name} has no result"]
        record = find_run(connection, run_id)
        attempts = [start.attempt for start in load_attempts(self._container, run_id)]
        logs = {n: "".join(read_log(connection, record, "stdout", attempt=n)) for n in attempts}
        begun = starts(self.proof)
        steps = [step for _, step, _ in begun]
        blob = f"{run_id}/{result.output}weights"
        holds = {
            f"it succeeded, not {result.code}: {result.message}": result.status == "succeeded",
            "the script got no partial state": not (self.proof / "torn").exists(),
            "the weights are the same": self._container.read(blob) == weights,
            "every attempt is recorded": attempts == list(range(1, result.attempt + 1)),
            "no number was given twice": len({attempt for attempt, *_ in begun}) == len(begun),
            "every start of the script belongs to an attempt": {n for n, *_ in begun}
            <= set(attempts),
            "no attempt began before an earlier one": steps == sorted(steps),
        }
        broken = [claim for claim, true in holds.items() if not true]
        broken += wrong_steps(logs, result.attempt, STEPS)
        return [f"{run_id}: {claim}" for claim in broken]


def draw(chance: random.Random, often: str) -> str:
    """Return a victim: `often` three times in five, the others equally often."""
    others = [victim for victim in VICTIMS if victim != often]
    return often if chance.random() < 0.6 else chance.choice(others)


def one_round(
    services: Services, runs: list[Run], chance: random.Random, often: str, kills: Counter[str]
) -> None:
    """Kill until the runs have ended, or often enough, and count the kills by victim."""
    enough = min(kills.total() + KILLS_OF_A_ROUND, KILLS)
    victim = draw(chance, often)
    while kills.total() < enough and not all(run.has_ended() for run in runs):
        for run in runs:
            run.follow()
        time.sleep(chance.uniform(0, 3))
        run = chance.choice(runs)
        if victim in _SERVICES:
            killed = services.kill(_SERVICES[victim], chance.uniform(0, 2))
        else:
            killed = run.kill(victim)
        if killed:  # otherwise retried: a script runs for a shorter time than a service
            kills[victim] += 1
            victim = draw(chance, often)

    def ended() -> bool:
        for run in runs:
            run.follow()
        return all(run.has_ended() for run in runs)

    until(ended, timeout_s=300, every_s=0.5)


@pytest.mark.parametrize("victim", VICTIMS)
def test_runs_are_correct_whatever_is_killed(tmp_path: Path, victim: str) -> None:
    chance = random.Random(f"{SEED} {victim}")
    weights = uninterrupted(tmp_path / "reference", STEPS)
    kills: Counter[str] = Counter()
    services, broken, rounds = Services(tmp_path), list[str](), 0
    try:
        while kills.total() < KILLS:
            rounds += 1
            runs = [Run(services, f"mix-{rounds}-{n}") for n in range(AT_ONCE)]
            try:
                one_round(services, runs, chance, victim, kills)
                broken += [text for run in runs for text in run.problems(weights)]
            finally:
                for run in runs:
                    run.end()
            attempts = sum(run.attempts() for run in runs)
            print(f"round {rounds}: {dict(kills)}, {attempts} attempts, {broken}")  # noqa: T201
    finally:
        services.cli.run("local", "down")
    assert not broken, f"seed {SEED}: {kills} in {rounds} rounds: {broken}"
