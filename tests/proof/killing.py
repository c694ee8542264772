"""Runs a task repeatedly, as Batch does after a loss, and kills it at different times."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.unit.node.agent_task import RUN, Task
from tests.unit.node.fake_blob import FakeBlobs

TRAINER = Path(__file__).with_name("trainer.py")
SCRIPT_KILLED = 128 + signal.SIGKILL
_POLL_S = 0.0005


@dataclass(frozen=True)
class Moment:
    """What to kill and when: `after_s` seconds after `ready` returns true."""

    name: str
    victim: str
    ready: Callable[[], object]
    after_s: float = 0.0
    also_terminate: bool = False


@dataclass
class Killed:
    """The kills so far. `script_kills` are the attempts of which only the script was killed."""

    starts: int = 0
    kills: dict[str, int] = field(default_factory=dict[str, int])
    script_kills: list[int] = field(default_factory=list[int])

    @property
    def count(self) -> int:
        return sum(self.kills.values())


class Killer:
    """Kills the task of a run a number of times, and then lets it end."""

    def __init__(self, task: Task, proof: Path, seed: int) -> None:
        self.task = task
        self.proof = proof
        self.chance = random.Random(seed)
        self.done = Killed()

    def run(self, count: int, moments: Callable[[Killer], Moment]) -> int:
        """Return the exit code of the last task, which is not killed."""
        while self.done.count < count:
            self._kill_once(moments(self))
            torn = self.proof / "torn"
            assert not torn.exists(), f"after {self.done}: {torn.read_text()}"
        (self.proof / "gate").touch()
        process = self._start()
        process.communicate(timeout=120)
        return process.returncode

    def pid(self) -> int | None:
        """Return the script's process id once it trains."""
        with suppress(FileNotFoundError, ValueError):
            return int((self.proof / "pid").read_text())
        return None

    def saving(self) -> bool:
        """Return True while the script writes a state."""
        work_dir = self.task.folder / f"task-{len(self.task.processes) - 1}" / "wd"
        return next((work_dir / "checkpoints").glob(".saving-*"), None) is not None

    def writing(self) -> bool:
        """Return True while the script writes its file in place."""
        return (self.proof / "writing").exists()

    def requests(self, method: str, part: str) -> int:
        """Return the number of such requests since the start of the task."""
        found = self.task.service.requests[self._seen :]
        return sum(m == method and part in path for m, path, _ in found)

    def _start(self) -> subprocess.Popen[str]:
        for name in ("pid", "writing"):
            (self.proof / name).unlink(missing_ok=True)
        self._seen = len(self.task.service.requests)
        self.done.starts += 1
        return self.task.start(subprocess.DEVNULL)

    def _kill_once(self, moment: Moment) -> None:
        process = self._start()
        deadline = time.monotonic() + 15
        while not moment.ready() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        time.sleep(moment.after_s)
        if process.poll() is None:
            self._kill(process, moment)
            self.done.kills[moment.name] = self.done.kills.get(moment.name, 0) + 1
        process.communicate(timeout=180)

    def _kill(self, process: subprocess.Popen[str], moment: Moment) -> None:
        if moment.victim == "script" and (pid := self.pid()) is not None:
            # The process id may be that of an earlier, killed agent's script.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.done.script_kills.append(int(self.journal()[-1][0]))
                return
        if moment.also_terminate:
            process.send_signal(signal.SIGTERM)
            time.sleep(self.chance.uniform(0, 1.5))
        process.kill()

    def journal(self) -> list[tuple[int, int]]:
        """Return attempt and first step of every start of the script."""
        return [(attempt, step) for attempt, step, _ in starts(self.proof)]

    def attempts(self) -> list[int]:
        """Return the numbers of the recorded attempts."""
        names = [n for n in self.task.service.blobs if n.startswith(f"{RUN}/attempts/")]
        return sorted(int(n.split("/")[2]) for n in names if n.endswith("/start.json"))


def wrong_lines(service: FakeBlobs, run: str, steps: int) -> list[str]:
    """Return the errors in the logs of a run's attempts; see `wrong_steps`."""
    starts = sorted(
        (json.loads(blob.data) for name, blob in service.blobs.items() if _is_start(name, run)),
        key=lambda start: start["attempt"],
    )
    text = service.data(f"{run}/logs/stdout.txt")
    ends = [start["log_offsets"]["stdout"] for start in starts[1:]] + [len(text)]
    logs = {
        start["attempt"]: text[start["log_offsets"]["stdout"] : end].decode()
        for start, end in zip(starts, ends, strict=True)
    }
    last = json.loads(service.data(f"{run}/result.json"))["attempt"]
    return wrong_steps(logs, last, steps)


def _is_start(name: str, run: str) -> bool:
    return name.startswith(f"{run}/attempts/") and name.endswith("/start.json")


def wrong_steps(logs: Mapping[int, str], last: int, steps: int) -> list[str]:
    """Return the errors in logs by attempt; `last` is the attempt that wrote the result.

    Each line must name its attempt and the next step. The log of a killed attempt may end early;
    the log of the last attempt must end with the last step.
    """
    wrong: list[str] = []
    for attempt, text in logs.items():
        found = [line.split() for line in text.split("\n")[:-1] if line.startswith("step ")]
        if others := sorted({words[4] for words in found} - {str(attempt)}):
            wrong.append(f"the log of attempt {attempt} has lines of {', '.join(others)}")
        numbers = [int(words[1]) for words in found]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers)) if numbers else ()):
            jumps = [pair for pair in pairwise(numbers) if pair[1] != pair[0] + 1]
            wrong.append(f"steps of attempt {attempt} are repeated or missing: {jumps}")
        if attempt == last and numbers and numbers[-1] != steps:
            wrong.append(f"the log of attempt {attempt} ends with step {numbers[-1]}")
    return wrong


def starts(proof: Path) -> list[tuple[int, int, str]]:
    """Return attempt, first step and node of every start of the script."""
    path = proof / "journal"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(a), int(s), node) for a, s, node in (line.split() for line in lines)]


def uninterrupted(folder: Path, steps: int) -> bytes:
    """Return the weights of a training without kills."""
    (folder / "output").mkdir(parents=True)
    (folder / "gate").touch()
    subprocess.run(
        [sys.executable, str(TRAINER), "hook", str(steps), "0"],
        env={"PROOF_DIR": str(folder), "RUNNER_OUTPUT_DIR": str(folder / "output")},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return (folder / "output" / "weights").read_bytes()
